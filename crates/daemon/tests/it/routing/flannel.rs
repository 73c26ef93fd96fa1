//! Our service replaces flanneld on a node while pods run, and flanneld comes back.

use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::kube::KubeApi;
use testkit::{Place as _, Snapshot, wait_for, wait_until};

use super::Fabric;
use super::cluster::{KEY, cluster};
use super::pings::Pings;
use super::reach::path;

const PREFIX: &str = "flannel.alpha.coreos.com/";

/// flanneld's backends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    Vxlan,
    /// `vxlan`, and within a segment without the tunnel.
    DirectRouting,
    HostGw,
}

impl Backend {
    pub(super) fn name(self) -> &'static str {
        match self {
            Backend::Vxlan | Backend::DirectRouting => "vxlan",
            Backend::HostGw => "host-gw",
        }
    }

    /// flanneld's configuration.
    pub(super) fn config(self) -> String {
        let more = match self {
            Backend::DirectRouting => r#", "DirectRouting": true"#,
            Backend::Vxlan | Backend::HostGw => "",
        };
        format!(
            r#"{{"Network": "10.244.0.0/16", "IPv6Network": "fd00:244::/32", "EnableIPv6": true,
                "Backend": {{"Type": "{}"{more}}}}}"#,
            self.name()
        )
    }
}

/// The hardware addresses of a node's tunnels over IPv4 and IPv6. flanneld's are random.
pub(super) fn macs(number: usize) -> [String; 2] {
    [format!("5e:72:04:aa:00:0{number}"), format!("5e:72:06:aa:00:0{number}")]
}

/// What flanneld writes to a Node.
fn annotations(node: &super::Node, backend: Backend) -> Value {
    let ([mac4, mac6], (v4, v6)) = (macs(node.number), node.underlay());
    let v6 = v6.parse::<std::net::Ipv6Addr>().unwrap().to_string();
    let data = |mac: String| match backend {
        Backend::Vxlan | Backend::DirectRouting => format!(r#"{{"VNI":1,"VtepMAC":"{mac}"}}"#),
        Backend::HostGw => "null".to_owned(),
    };
    let all = [
        ("backend-data", data(mac4)),
        ("backend-type", backend.name().to_owned()),
        ("backend-v6-data", data(mac6)),
        ("kube-subnet-manager", "true".to_owned()),
        ("public-ip", v4),
        ("public-ipv6", v6),
    ];
    all.into_iter().map(|(name, text)| (format!("{PREFIX}{name}"), Value::from(text))).collect()
}

/// Begins connection tracking, as the rules of flanneld and kube-proxy do on every node. If it began
/// with the take-over, all flows would be new to it at that moment, and of two packets of a new flow
/// that the kernel takes in together it drops the second (`__nf_conntrack_confirm`).
const TRACKED: &str = "nft list table inet tracked >/dev/null 2>&1 || nft 'add table inet tracked; \
     add chain inet tracked forward { type filter hook forward priority 10; }; \
     add rule inet tracked forward ct state established accept'";

/// Does what flanneld does on a node when it starts, in its order, from what the other nodes have
/// published. Existing devices stay, entries are replaced, routes have no protocol of their own and
/// no metric. flanneld removes nothing.
pub(super) fn flanneld(fabric: &Fabric, number: usize, backend: Backend) {
    let others: Vec<usize> = (0..fabric.nodes.len()).filter(|other| *other != number).collect();
    flanneld_with(fabric, number, backend, &others);
}

/// Does the same only from what these nodes have published: flanneld ignores nodes with another
/// backend.
pub(super) fn flanneld_with(fabric: &Fabric, number: usize, backend: Backend, others: &[usize]) {
    let node = &fabric.nodes[number];
    let peers: Vec<&super::Node> = others.iter().map(|other| &fabric.nodes[*other]).collect();
    let script = match backend {
        Backend::Vxlan => vxlan(node, &peers, false),
        Backend::DirectRouting => vxlan(node, &peers, true),
        Backend::HostGw => peers.into_iter().map(without_tunnel).collect(),
    };
    node.host.sh(&format!(
        "set -e; sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1\n{TRACKED}\n{script}"
    ));
}

/// Routes to a node of the same segment.
fn without_tunnel(peer: &super::Node) -> String {
    let (to, (v4, v6)) = (peer.number, peer.underlay());
    format!(
        "ip route replace 10.244.{to}.0/24 via {v4} dev eth0
         ip -6 route replace fd00:244:{to}::/64 via {v6} dev eth0\n"
    )
}

fn vxlan(node: &super::Node, peers: &[&super::Node], direct: bool) -> String {
    let (own, (v4, v6)) = (node.number, node.underlay());
    let [mac4, mac6] = macs(own);
    let mut script = format!(
        "ip link show flannel.1 >/dev/null 2>&1 || ip link add flannel.1 address {mac4} mtu 1450 type vxlan id 1 local {v4} dev eth0 dstport 8472 nolearning
         ip link show flannel-v6.1 >/dev/null 2>&1 || ip link add flannel-v6.1 address {mac6} mtu 1430 type vxlan id 1 local {v6} dev eth0 dstport 8472 nolearning
         for dev in flannel.1 flannel-v6.1; do echo 0 >/proc/sys/net/ipv6/conf/$dev/accept_ra; done
         ip addr replace 10.244.{own}.0/32 dev flannel.1; ip link set flannel.1 up
         ip addr replace fd00:244:{own}::/128 dev flannel-v6.1 nodad; ip link set flannel-v6.1 up\n"
    );
    for peer in peers {
        if direct && peer.segment == node.segment {
            script.push_str(&without_tunnel(peer));
            continue;
        }
        let (to, (v4, v6), [mac4, mac6]) = (peer.number, peer.underlay(), macs(peer.number));
        script.push_str(&format!(
            "ip neigh replace 10.244.{to}.0 lladdr {mac4} dev flannel.1 nud permanent
             bridge fdb replace {mac4} dst {v4} dev flannel.1 self permanent
             ip route replace 10.244.{to}.0/24 via 10.244.{to}.0 dev flannel.1 onlink
             ip neigh replace fd00:244:{to}:: lladdr {mac6} dev flannel-v6.1 nud permanent
             bridge fdb replace {mac6} dst {v6} dev flannel-v6.1 self permanent
             ip -6 route replace fd00:244:{to}::/64 via fd00:244:{to}:: dev flannel-v6.1 onlink\n"
        ));
    }
    script
}

/// How many TCP connections there are from one pod to another, half of them in each family.
const STREAMS: usize = 20;

/// TCP connections that carry data all the time.
pub(super) struct Streams {
    ends: Arc<AtomicBool>,
    writers: Vec<JoinHandle<io::Result<u64>>>,
    readers: Vec<JoinHandle<io::Result<u64>>>,
}

impl Streams {
    pub(super) fn start(from: &super::Node, to: &super::Node) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (mut writers, mut readers) = (Vec::new(), Vec::new());
        for number in 0..STREAMS {
            let address: IpAddr = to.pod_addresses()[number % 2].parse().unwrap();
            let listener = to.pod.enter(|| TcpListener::bind((address, 0))).unwrap();
            let at = listener.local_addr().unwrap();
            let mut stream = from.pod.enter(|| TcpStream::connect(at)).unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            let ends = Arc::clone(&ends);
            writers.push(thread::spawn(move || {
                let mut written = 0;
                while !ends.load(Ordering::Relaxed) {
                    stream.write_all(&[7; 1000])?;
                    written += 1000;
                    thread::sleep(Duration::from_millis(10));
                }
                Ok(written)
            }));
            readers.push(thread::spawn(move || io::copy(&mut accepted, &mut io::sink())));
        }
        Streams { ends, writers, readers }
    }

    /// Ends the connections, and asserts that everything has arrived.
    #[track_caller]
    pub(super) fn assert_nothing_lost(self) {
        self.ends.store(true, Ordering::Relaxed);
        for (writer, reader) in self.writers.into_iter().zip(self.readers) {
            let (written, read) =
                (writer.join().unwrap().unwrap(), reader.join().unwrap().unwrap());
            assert!(0 < written && written == read, "{written} sent, {read} arrived");
        }
    }
}

fn published(api: &KubeApi, node: &str) -> Value {
    let mut node = api.object("nodes", "", node).unwrap();
    node["metadata"]["annotations"].take()
}

/// Asserts that services have written their own annotations to Nodes, and have not written those of
/// flannelds, not even unchanged.
#[track_caller]
pub(super) fn assert_only_ours_is_written(api: &KubeApi) {
    let asked = api.asked().into_iter().filter(|asked| asked.resource == "nodes");
    let changes: Vec<String> = asked
        .filter(|asked| ["patch", "update"].contains(&asked.verb.as_str()))
        .map(|asked| asked.body)
        .collect();
    assert!(changes.iter().any(|body| body.contains(KEY)), "{changes:#?}");
    assert!(!changes.iter().any(|body| body.contains(PREFIX)), "{changes:#?}");
}

/// A cluster of flannelds: their Nodes, and what they make on their hosts.
pub(super) fn flannelds(fabric: &mut Fabric, backend: Backend) -> KubeApi {
    let api = cluster(fabric);
    let config = fabric.lab.dir().join("net-conf.json");
    fs::write(&config, backend.config()).unwrap();
    for number in 0..fabric.nodes.len() {
        let node = &fabric.nodes[number];
        let patch = json!({"metadata": {"annotations": annotations(node, backend)}});
        api.change("nodes", "", &node.name(), &patch);
        flanneld(fabric, number, backend);
    }
    fabric.cluster = ["--flannel-config", config.to_str().unwrap()].map(str::to_owned).to_vec();
    api
}

/// Sets how the service of a node treats flanneld: `standby` or `replace`.
pub(super) fn flannel(fabric: &mut Fabric, node: usize, mode: &str) {
    let env = fabric.nodes[node].dir.join("subnet.env");
    fabric.flags =
        ["--flannel", mode, "--subnet-env", env.to_str().unwrap()].map(str::to_owned).to_vec();
}

/// The nodes are taken over one after the other while pods ping each other, and are given back.
/// What flannelds publish stays byte for byte the same, and at the end each host is as it was.
fn taken_over_and_given_back(name: &str, segments: &[usize], backend: Backend) {
    let mut fabric = Fabric::new(name, segments);
    let api = flannelds(&mut fabric, backend);
    fabric.assert_all_reach_all();
    let before: Vec<Snapshot> = fabric.nodes.iter().map(|node| Snapshot::of(&node.host)).collect();
    let names: Vec<String> = fabric.nodes.iter().map(super::Node::name).collect();
    let of_flannel = |node: &str| {
        let mut all = published(&api, node);
        let all = all.as_object_mut().unwrap();
        all.retain(|key, _| key.starts_with(PREFIX));
        Value::from(all.clone())
    };
    let said: Vec<Value> = names.iter().map(|name| of_flannel(name)).collect();

    // In standby the service says what it would do, and does nothing.
    flannel(&mut fabric, 0, "standby");
    fabric.start_on(0);
    wait_until("the Nodes", || fabric.routes(0)["phase"] == "standby");
    let table = fabric.routes(0);
    let changes = table["standby"].to_string();
    for change in ["create route 10.244.2.0/24", "create route fd00:244:2::/64"] {
        assert!(changes.contains(change), "{table}");
    }
    assert!(!changes.contains("tunnel flannel"), "{table}");
    before[0].assert_same(&Snapshot::of(&fabric.nodes[0].host));
    assert_eq!(published(&api, "a"), said[0]);
    assert_eq!(fabric.leave(0, &["--uninstall"]), "in standby the service has made nothing\n");
    assert_eq!(published(&api, "a"), said[0]);

    let pings = Pings::everywhere(&fabric);
    let streams = Streams::start(&fabric.nodes[0], &fabric.nodes[1]);
    for (number, name) in names.iter().enumerate() {
        flannel(&mut fabric, number, "replace");
        fabric.start_on(number);
        wait_until("the node to be ready", || fabric.routes(number)["phase"] == "ready");
        let host = &fabric.nodes[number].host;
        let boot = "ip route show proto boot; ip -6 route show proto boot";
        wait_until("flanneld's routes to go", || {
            !host.sh(boot).contains("244:") && !host.sh(boot).contains("10.244.")
        });
        let [mac4, _] = macs(number + 1);
        let links = host.sh("ip -d link");
        assert!(!links.contains("nw-vxlan"), "{links}");
        let is_marked = links.contains(&mac4) && links.contains("alias netwright:routing");
        assert_eq!(is_marked, backend != Backend::HostGw, "{links}");
        if backend == Backend::DirectRouting && number == 0 {
            let table = fabric.routes(0);
            for (peer, paths) in [("b", ["direct", "direct"]), ("c", ["vxlan", "vxlan6"])] {
                assert_eq!(["ipv4", "ipv6"].map(|family| path(&table, peer, family)), paths);
            }
            let entries = host.sh("bridge fdb show dev flannel.1");
            let [[of_b, _], [of_c, _]] = [macs(2), macs(3)];
            assert!(!entries.contains(&of_b) && entries.contains(&of_c), "{entries}");
        }
        fabric.assert_all_reach_all();
        let (sound, probed) = fabric.probe(number, &[]);
        assert!(sound, "{probed}");
        assert_eq!(of_flannel(name), said[number]);
        wait_until("the annotation of ours", || {
            published(&api, name).to_string().contains("routing.netwright.io")
        });
        let env = fabric.nodes[number].dir.join("subnet.env");
        let env = wait_for("subnet.env", || fs::read_to_string(&env).ok());
        assert!(env.contains(&format!("FLANNEL_SUBNET=10.244.{}.1/24\n", number + 1)), "{env}");
    }
    Pings::assert_nothing_lost(&fabric, pings);

    let pings = Pings::everywhere(&fabric);
    for (number, name) in names.iter().enumerate() {
        flannel(&mut fabric, number, "replace");
        let service = fabric.nodes[number].service.take().unwrap();
        assert_eq!(service.stop(), Some(0));
        flanneld(&fabric, number, backend);
        fabric.leave(number, &["--uninstall", "--to-flannel"]);
        fabric.assert_all_reach_all();
        assert_eq!(published(&api, name), said[number]);
    }
    Pings::assert_nothing_lost(&fabric, pings);
    streams.assert_nothing_lost();
    assert_only_ours_is_written(&api);
    for (number, before) in before.iter().enumerate() {
        before.assert_same(&Snapshot::of(&fabric.nodes[number].host));
    }
}

#[test]
fn vm_a_node_is_taken_over_from_flanneld_and_given_back() {
    testkit::require!("root", "vxlan", "vm-full", "program:bridge", "program:ping");
    taken_over_and_given_back("routing-flannel", &[2, 1], Backend::Vxlan);
}

#[test]
fn vm_a_node_without_tunnels_is_taken_over_from_flanneld_and_given_back() {
    testkit::require!("root", "vm-full", "program:ping");
    taken_over_and_given_back("routing-flannel-gw", &[2], Backend::HostGw);
}

#[test]
fn vm_a_node_with_direct_routing_is_taken_over_from_flanneld_and_given_back() {
    testkit::require!("root", "vxlan", "full", "program:bridge", "program:ping");
    taken_over_and_given_back("routing-flannel-direct", &[2, 1], Backend::DirectRouting);
}

/// A flanneld whose node is behind NAT publishes another address by `public-ip-overwrite`, and
/// tunnels lead to that address. Their MTU is the one of flanneld's configuration.
#[test]
fn vm_a_flanneld_behind_a_translation_is_reached() {
    testkit::require!("root", "vxlan", "full", "program:bridge", "program:nft");
    let mut fabric = Fabric::new("routing-flannel-nat", &[1, 1]);
    let (own, outer) = (fabric.nodes[1].underlay().0, "198.51.100.7");
    fabric.lab.sh(&format!(
        "nft 'table ip t {{
           chain p {{ type nat hook prerouting priority -100; ip daddr {outer} dnat to {own}; }};
           chain s {{ type nat hook postrouting priority 100; ip saddr {own} udp dport 8472 snat to {outer}; }};
         }}'"
    ));
    let api = flannelds(&mut fabric, Backend::Vxlan);
    let narrow = Backend::Vxlan.config().replace(r#""vxlan""#, r#""vxlan", "MTU": 1400"#);
    fs::write(fabric.lab.dir().join("net-conf.json"), narrow).unwrap();
    let annotations: Value = ["public-ip", "public-ip-overwrite"]
        .into_iter()
        .map(|name| (format!("{PREFIX}{name}"), Value::from(outer)))
        .collect();
    api.change("nodes", "", "b", &json!({"metadata": {"annotations": annotations}}));
    flannel(&mut fabric, 0, "replace");
    fabric.start_on(0);
    wait_until("the node to be ready", || fabric.routes(0)["phase"] == "ready");
    let entries = fabric.nodes[0].host.sh("bridge fdb show dev flannel.1");
    assert!(entries.contains(&format!("dst {outer} ")) && !entries.contains(&own), "{entries}");
    fabric.assert_all_reach_all();
    let link = fabric.nodes[0].host.sh("ip link show flannel.1");
    assert!(link.contains(" mtu 1350 "), "{link}");
    let env = fabric.nodes[0].dir.join("subnet.env");
    let env = wait_for("subnet.env", || fs::read_to_string(&env).ok());
    assert!(env.contains("FLANNEL_MTU=1330\n"), "{env}");
}

/// A start of the service writes nothing over what the Node says, and a route of flanneld's to a
/// node that is gone keeps nothing from being programmed. A flanneld that still runs is told, and the
/// node goes back to one that has its routes.
#[test]
fn what_flanneld_has_left_stays_and_one_that_still_runs_is_told() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-flannel-left", &[2]);
    let api = flannelds(&mut fabric, Backend::HostGw);
    // The node is behind a translation of addresses.
    let outer: Value = ["public-ip", "public-ip-overwrite"]
        .into_iter()
        .map(|name| (format!("{PREFIX}{name}"), Value::from("198.51.100.7")))
        .collect();
    api.change("nodes", "", "a", &json!({"metadata": {"annotations": outer}}));
    let host = |fabric: &Fabric, script: &str| fabric.nodes[0].host.sh(script);
    host(&fabric, "ip route add 10.244.9.0/24 via 192.0.2.60 dev eth0");
    flannel(&mut fabric, 0, "replace");
    let is_ready = |fabric: &Fabric| fabric.routes(0)["phase"] == "ready";
    fabric.start_on(0);
    wait_until("the node to be ready", || is_ready(&fabric));
    let service = fabric.nodes[0].service.take().unwrap();
    assert_eq!(service.stop(), Some(0));
    fabric.start_on(0);
    wait_until("the node to be ready again", || is_ready(&fabric));

    let warned = |fabric: &Fabric| fabric.routes(0)["warnings"].to_string();
    assert!(!warned(&fabric).contains("flanneld"), "{}", warned(&fabric));
    let (of_b, _) = fabric.nodes[1].underlay();
    let boot = || host(&fabric, "ip route show proto boot");
    for _ in 0..2 {
        host(&fabric, &format!("ip route add 10.244.2.0/24 via {of_b} dev eth0"));
        wait_until("flanneld's route to go", || !boot().contains("10.244.2.0/24"));
    }
    let words = "flanneld seems to run on this node too: its route 10.244.2.0/24 proto 3";
    assert!(warned(&fabric).contains(words), "{}", warned(&fabric));
    let log = fabric.nodes[0].service.as_ref().unwrap().log();
    assert_eq!(log.matches(words).count(), 1, "{log}");
    assert!(boot().contains("10.244.9.0/24"), "{}", boot());
    fabric.assert_all_reach_all();

    // The node is not given back before flanneld reaches what the service reaches.
    let service = fabric.nodes[0].service.take().unwrap();
    assert_eq!(service.stop(), Some(0));
    let give_back = ["--uninstall", "--to-flannel"];
    let refused = fabric.routing(0).args(give_back).output().unwrap();
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && words.starts_with("error: flanneld has no routes here"),
        "{words}"
    );
    fabric.assert_all_reach_all();
    flanneld(&fabric, 0, Backend::HostGw);
    // A record of nodes that is older than flanneld's routes does not count.
    host(&fabric, "ip nexthop flush proto 78");
    api.refuse();
    fabric.start_on(0);
    let service = fabric.nodes[0].service.take().unwrap();
    assert!(service.log().contains("they are ignored"), "{}", service.log());
    assert!(!host(&fabric, "ip route show proto 78").contains("10.244.2.0/24"));
    assert_eq!(service.stop(), Some(0));
    api.restore();
    fabric.leave(0, &give_back);
    fabric.assert_all_reach_all();
    assert_only_ours_is_written(&api);
}

/// Where flanneld's configuration is not on the node, it is read from the ConfigMap, and what
/// was read last counts while the API server is away.
#[test]
fn flannelds_configuration_is_read_from_the_cluster() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-flannel-map", &[2]);
    let api = flannelds(&mut fabric, Backend::HostGw);
    let file = fabric.lab.dir().join("nowhere/net-conf.json");
    let map = "kube-flannel/of-flannel";
    let file = file.to_str().unwrap();
    fabric.cluster =
        ["--flannel-config", file, "--flannel-config-map", map].map(str::to_owned).to_vec();
    let says = |data: Value| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": "kube-flannel", "name": "of-flannel"}, "data": data,
        })
    };
    flannel(&mut fabric, 0, "replace");
    let refused = |fabric: &Fabric| {
        let mut command = fabric.command(0, "routing");
        command.args(&fabric.source).args(&fabric.cluster).args(&fabric.flags);
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let missing = refused(&fabric);
    let begin = format!("read flanneld's configuration from ConfigMap {map}: ");
    assert!(missing.contains(&begin) && missing.contains("no such object"), "{missing}");
    assert!(missing.contains(&format!("and {file} is not there either")), "{missing}");
    api.create(&says(json!({"net-conf.json": "{\"Network\": \"10.244.0.0\"}"})));
    let wrong = refused(&fabric);
    let words = format!("flanneld's configuration ConfigMap {map}: Network: ");
    assert!(wrong.contains(&words), "{wrong}");

    let data = json!({"data": {"net-conf.json": Backend::HostGw.config()}});
    api.change("configmaps", "kube-flannel", "of-flannel", &data);
    fabric.start_on(0);
    wait_until("the node to be ready", || fabric.routes(0)["phase"] == "ready");
    fabric.assert_all_reach_all();
    let service = fabric.nodes[0].service.take().unwrap();
    assert_eq!(service.stop(), Some(0));

    api.refuse();
    fabric.start_on(0);
    let log = fabric.nodes[0].service.as_ref().unwrap().log();
    assert!(log.contains("the configuration that was read last is used"), "{log}");
    assert_eq!(fabric.routes(0)["prefixes"], json!(["10.244.1.0/24", "fd00:244:1::/64"]));
    fabric.assert_all_reach_all();
    api.restore();
    fabric.uninstall(0);
    let left = fabric.nodes[0].dir.join("lib/routing");
    assert!(!left.exists(), "{:?}", fs::read_dir(left).map(|all| all.flatten().count()));
}
