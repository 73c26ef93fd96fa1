//! `policy`: a container is closed before its first packet, and stays so until a daemon knows its
//! policies.
//!
//! The daemon here is a stand-in, because a real one does not keep silent, die or answer nonsense
//! on request. The tests of `netwrightd policy` are about pods that the daemon knows.

mod bad;
mod daemon;
mod frames;
mod inside;
mod killed;
mod life;
mod matrix;
mod window;

use std::fmt;
use std::rc::Rc;

use cni::AttachmentKey;
use node_api::policy::AttachmentRecord;
use serde_json::{Value, json};
use state::Index;
use testkit::{Container, Place, traffic};

use crate::support::matrix::{Family, ipam};
use crate::support::ready::Ready;
use crate::support::{Node, Run};

/// A container that is attached by a plugin that makes a veth pair, `bridge` or `ptp`, or to a
/// further network by `macvlan`.
struct Pod<'n> {
    node: &'n Node,
    c: Rc<Container>,
    by: &'static str,
    keys: Value,
    ifname: &'static str,
    network: &'static str,
    /// The plugin's result.
    prev: Value,
}

impl fmt::Debug for Pod<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}: {}", self.c.name(), self.by, self.prev)
    }
}

/// The configuration of a bridge with both families.
fn bridge(node: &Node) -> Value {
    json!({ "bridge": "br0", "isGateway": true, "ipam": ipam(node, Family::Dual) })
}

/// The configuration of a plugin.
fn keys(node: &Node, by: &str) -> Value {
    match by {
        "bridge" => bridge(node),
        "macvlan" => json!({ "master": "p0", "ipam": ipam(node, Family::Dual) }),
        _ => json!({ "ipam": ipam(node, Family::Dual) }),
    }
}

impl<'n> Pod<'n> {
    /// Attaches a container, without network policy.
    #[track_caller]
    fn new(node: &'n Node, name: &str, by: &'static str) -> Self {
        let ifname = if by == "macvlan" { "net1" } else { "eth0" };
        Pod::of(node, node.container(name), by, keys(node, by), ("n", ifname))
    }

    #[track_caller]
    fn of(
        node: &'n Node,
        c: impl Into<Rc<Container>>,
        by: &'static str,
        keys: Value,
        (network, ifname): (&'static str, &'static str),
    ) -> Self {
        let mut pod = Pod { node, c: c.into(), by, keys, ifname, network, prev: Value::Null };
        pod.prev = pod.run(pod.by, "ADD").config(pod.keys.clone()).call().ok();
        pod
    }

    fn run(&self, plugin: &str, verb: &str) -> Run<'n> {
        self.node.run(plugin, verb).to(&self.c).ifname(self.ifname).network(self.network)
    }

    /// A call of `policy`.
    fn policy(&self, verb: &str) -> Run<'n> {
        self.run("policy", verb).prev(&self.prev)
    }

    #[track_caller]
    fn add(&self) -> String {
        let answer = self.policy("ADD").call();
        let told = answer.stderr();
        assert_eq!(answer.ok(), self.prev);
        told
    }

    #[track_caller]
    fn check(&self) {
        self.policy("CHECK").call().silent();
    }

    /// Lets the plugin repair; returns what it restored.
    #[track_caller]
    fn repair(&self) -> Vec<String> {
        let said = self.policy("CHECK").config(json!({ "netwright/repair": true })).call();
        assert!(said.succeeded(), "{said:?}");
        cni::RepairReport::parse(&said.output.stdout).lines
    }

    #[track_caller]
    fn del(&self) {
        self.policy("DEL").call().silent();
    }

    /// Runs DEL of the plugin that made the link.
    #[track_caller]
    fn detach(&self) {
        self.run(self.by, "DEL").config(self.keys.clone()).prev(&self.prev).call().silent();
    }

    /// Its addresses, without prefix lengths.
    fn addresses(&self) -> Vec<String> {
        let ips = self.prev["ips"].as_array().unwrap().iter();
        ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned())
            .collect()
    }

    /// The host's addresses on its network.
    fn gateways(&self) -> Vec<String> {
        let ips = self.prev["ips"].as_array().unwrap().iter();
        ips.map(|ip| ip["gateway"].as_str().unwrap().to_owned()).collect()
    }

    /// The host's end of its link.
    fn host_ifname(&self) -> String {
        let links = self.prev["interfaces"].as_array().unwrap().iter();
        let veth = links.filter(|link| link["sandbox"].is_null() && link["name"] != "br0");
        veth.map(|link| link["name"].as_str().unwrap().to_owned()).next().unwrap()
    }

    /// The interface at which the packet filter sees its packets.
    fn seen_at(&self) -> String {
        if self.by == "bridge" { "br0".to_owned() } else { self.host_ifname() }
    }

    fn key(&self) -> AttachmentKey {
        AttachmentKey {
            network: self.network.parse().unwrap(),
            container_id: self.c.name().parse().unwrap(),
            ifname: self.ifname.parse().unwrap(),
        }
    }

    fn recorded(&self) -> Option<AttachmentRecord> {
        let record = Index::new(&self.node.roots).get(&self.key(), "policy").found?;
        Some(serde_json::from_value(record.data).unwrap())
    }

    /// Asserts that only its node reaches the container, and that the container reaches only its
    /// node.
    #[track_caller]
    fn assert_closed(&self, others: &[&Pod<'_>]) {
        for other in others {
            assert_silent(&*other.c, &self.addresses());
            assert_silent(&*self.c, &other.addresses());
        }
        for address in self.addresses() {
            traffic::assert_pings(&self.node.lab, &address);
        }
        for gateway in self.gateways() {
            traffic::assert_pings(&*self.c, &gateway);
        }
    }

    #[track_caller]
    fn assert_open(&self, others: &[&Pod<'_>]) {
        for other in others {
            for address in self.addresses() {
                traffic::assert_pings(&*other.c, &address);
            }
            for address in other.addresses() {
                traffic::assert_pings(&*self.c, &address);
            }
        }
    }
}

/// Asserts that none of these addresses answers. All are tried at once.
#[track_caller]
fn assert_silent(from: &impl Place, addresses: &[String]) {
    let asked = addresses.join(" ");
    let answered = from.sh(&format!(
        "for to in {asked}; do (ping -n -q -c 1 -W 0.4 $to >/dev/null 2>&1 && echo $to) & done; wait"
    ));
    assert_eq!(answered, "", "answers {}", from.place_name());
}

/// The verdicts in the packet filter: maps, addresses and chains, and on further networks the
/// interface before the address.
fn verdicts(node: &Node) -> Vec<String> {
    let maps = ["in4", "in6", "out4", "out6", "net-in4", "net-in6", "net-out4", "net-out6"];
    verdicts_of(&node.lab, &maps)
}

/// The verdicts of some maps in a place's packet filter.
fn verdicts_of(place: &impl Place, maps: &[&str]) -> Vec<String> {
    let listed = place.sh("nft -j list table inet netwright-policy 2>/dev/null || true");
    // If there is no table, there are no verdicts.
    let table: Value = match listed.trim() {
        "" => Value::Null,
        listed => serde_json::from_str(listed).unwrap(),
    };
    let parts = table["nftables"].as_array().into_iter().flatten();
    let mut all = Vec::new();
    for map in parts.filter_map(|part| part.get("map")) {
        let name = map["name"].as_str().unwrap();
        if !maps.contains(&name) {
            continue;
        }
        for element in map["elem"].as_array().into_iter().flatten() {
            let (key, chain) = (&element[0], &element[1]["goto"]["target"]);
            let words: Vec<&Value> = match key["concat"].as_array() {
                Some(words) => words.iter().collect(),
                None => vec![key],
            };
            let words: Vec<&str> = words.iter().map(|word| word.as_str().unwrap()).collect();
            all.push(format!("{name} {} {}", words.join(" "), chain.as_str().unwrap_or("null")));
        }
    }
    all.sort();
    all
}

/// The verdicts of a pod that is closed.
fn closed(pod: &Pod<'_>) -> Vec<String> {
    let (map, at) = match pod.ifname {
        "eth0" => ("", String::new()),
        _ => ("net-", pod.seen_at() + " "),
    };
    let of = |address: String| {
        let family = if address.contains(':') { 6 } else { 4 };
        [
            format!("{map}in{family} {at}{address} unknown-in"),
            format!("{map}out{family} {at}{address} unknown-out"),
        ]
    };
    let mut all: Vec<String> = pod.addresses().into_iter().flat_map(of).collect();
    all.sort();
    all
}

/// The entries for pods' links in the table that all plugins share.
fn links(node: &Node) -> String {
    node.sh("for set in 'inet netwright pod_links' 'bridge netwright pod_ports' \
                    'inet netwright pod_addresses4' 'bridge netwright port_addresses4'; do \
           nft list set $set 2>/dev/null | grep -o '\"v[^\"]*\"' | sed \"s/^/$set /\"; done; true")
}

/// The settings of a bridge that pass its frames to the packet filter, for IPv4 and for IPv6.
fn shows(node: &Node, bridge: &str) -> String {
    let links: Value =
        serde_json::from_str(&node.sh(&format!("ip -d -j link show {bridge}"))).unwrap();
    let switches = &links[0]["linkinfo"]["info_data"];
    format!("{} {}", switches["nf_call_iptables"], switches["nf_call_ip6tables"])
}

/// Switches off the sysctls that apply to all bridges.
fn no_bridge_shows(node: &Node) {
    node.sh("for name in iptables ip6tables arptables; do \
           echo 0 > /proc/sys/net/bridge/bridge-nf-call-$name; done");
}

/// Records that a daemon was ready a moment ago.
fn ready(node: &Node) {
    Ready::of(&node.roots.run.join("policy.sock")).said_before(std::time::Duration::ZERO);
}
