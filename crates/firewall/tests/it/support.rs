//! A host with a bridge, two containers and the outside.

use cni::AttachmentKey;
use firewall::{Firewall, FirewallError, Plan};
use netwright_firewall as firewall;
use state::{Index, NetnsIdentity, Record, Roots};
use testkit::{Container, Lab, Place};

pub(crate) struct Node {
    pub(crate) lab: Lab,
    pub(crate) index: Index,
    pub(crate) outside: Container,
    pub(crate) c1: Container,
    pub(crate) c2: Container,
}

/// The addresses of the lab's containers: 10.1.0.2 and .3, fd00:1::2 and ::3, behind `cni0` with .1
/// and ::1.
impl Node {
    pub(crate) fn new(name: &str) -> Self {
        let lab = Lab::new(name);
        let outside = lab.outside();
        lab.sh(
            "echo 1 > /proc/sys/net/ipv4/ip_forward && echo 1 > /proc/sys/net/ipv6/conf/all/forwarding && \
             echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad && \
             ip link add cni0 address 0a:58:0a:01:00:01 type bridge && ip addr add 10.1.0.1/24 dev cni0 && \
             ip addr add fd00:1::1/64 dev cni0 nodad && ip link set cni0 up",
        );
        let c1 = attach(&lab, "c1", "cni0", 2);
        let c2 = attach(&lab, "c2", "cni0", 3);
        let index = Index::new(&Roots::new(lab.dir().join("run"), lab.dir().join("lib")));
        Node { lab, index, outside, c1, c2 }
    }

    /// Sets whether bridged frames pass the hooks of `inet`.
    pub(crate) fn br_netfilter(&self, on: bool) {
        let value = u8::from(on);
        self.lab.sh(&format!(
            "echo {value} > /proc/sys/net/bridge/bridge-nf-call-iptables && \
             echo {value} > /proc/sys/net/bridge/bridge-nf-call-ip6tables"
        ));
    }

    /// Calls the function with the firewall of the lab's host.
    pub(crate) fn firewall<'n, T: Send>(
        &'n self,
        work: impl FnOnce(&mut Firewall<'n>) -> Result<T, FirewallError> + Send,
    ) -> Result<T, FirewallError> {
        self.lab.enter(|| Firewall::open(&self.index).and_then(|mut firewall| work(&mut firewall)))
    }

    #[track_caller]
    pub(crate) fn add(&self, key: &AttachmentKey, plan: &Plan) {
        self.firewall(|firewall| firewall.add(key, plan)).unwrap();
    }

    #[track_caller]
    pub(crate) fn remove(&self, key: &AttachmentKey, plan: &Plan) {
        self.firewall(|firewall| firewall.remove(key, plan)).unwrap();
    }

    #[track_caller]
    pub(crate) fn check(&self, key: &AttachmentKey, plan: &Plan) -> Vec<String> {
        self.firewall(|firewall| firewall.check(key, plan)).unwrap()
    }

    /// What `nft list ruleset` shows, without the rules of the layout.
    pub(crate) fn elements(&self) -> String {
        let ruleset = self.lab.sh("nft list ruleset");
        let mut lines = Vec::new();
        let mut set = "";
        for line in ruleset.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("map ").or_else(|| line.strip_prefix("set ")) {
                set = name.trim_end_matches(" {");
            } else if line.starts_with("chain masquerade-") {
                lines.push(line.trim_end_matches(" {").to_owned());
            } else if line == "}" {
                set = "";
            } else if !set.is_empty() && !line.starts_with("type ") {
                let element =
                    line.trim_start_matches("elements = ").trim_matches(['{', '}', ' ', ',']);
                lines.push(format!("{set}: {element}"));
            }
        }
        lines.join("\n")
    }

    /// Writes the record that identifies the holder of a port.
    pub(crate) fn record(&self, key: &AttachmentKey, container: &Container) {
        use std::os::unix::fs::MetadataExt as _;
        let path = container.netns();
        let at = std::fs::metadata(self.lab.path(&path)).unwrap();
        let id = NetnsIdentity { dev: at.dev(), ino: at.ino() };
        let record = Record::new(key.clone(), "portmap", "boot", serde_json::Value::Null)
            .with_netns(path, Some(id));
        self.index.put(&record).unwrap();
    }
}

/// Connects a container to a bridge, with the addresses that end in `last`.
pub(crate) fn attach(lab: &Lab, name: &str, bridge: &str, last: u8) -> Container {
    let container = lab.container(name);
    lab.sh(&format!(
        "ip link add v{name} type veth peer name eth0 netns {name} && echo 1 > /proc/sys/net/ipv6/conf/v{name}/disable_ipv6 && \
         ip link set v{name} master {bridge} up && bridge link set dev v{name} hairpin on"
    ));
    let net = lab.sh(&format!("ip -br -4 addr show dev {bridge}"));
    let net = net.split_whitespace().nth(2).unwrap().rsplit_once(".1/").unwrap().0.to_owned();
    let second = net.split('.').nth(1).unwrap();
    container.sh(&format!(
        "ip link set lo up && echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad && \
         ip addr add {net}.{last}/24 dev eth0 && ip addr add fd00:{second}::{last}/64 dev eth0 nodad && \
         ip link set eth0 up && ip route add default via {net}.1 && \
         ip -6 route add default via fd00:{second}::1"
    ));
    // The bridge's link-local address appears with its first port that has a carrier, thus not
    // before the container's end is up.
    lab.sh(&format!("for i in $(seq 500); do ip -6 addr show dev {bridge} scope link | grep -q inet6 && exit; sleep 0.01; done; exit 1"));
    container
}

pub(crate) fn key(network: &str, container: &str) -> AttachmentKey {
    AttachmentKey {
        network: network.parse().unwrap(),
        container_id: container.parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
    }
}
