//! STATUS, ADD and packets agree: STATUS of `firewall` reports a node, and its ADD warns, exactly
//! where what a new container sends does not come back.

use std::thread;

use testkit::traffic::{Server, assert_no_tcp, assert_tcp};
use testkit::{Container, Lab, Place as _, require};

use super::kinds::{self, Kind, nft};
use crate::support::{EXECUTABLE, call_in};

const MYNET: &str = r#"{"cniVersion": "1.1.0", "name": "mynet", "plugins": [
    {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]]}},
    {"type": "firewall"}]}"#;

/// The network without the plugin that lets packets through.
const BARE: &str = r#"{"cniVersion": "1.1.0", "name": "bare", "plugins": [
    {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
     "ipam": {"type": "host-local", "dataDir": "/run/bare",
              "ranges": [[{"subnet": "10.88.0.128/25"}], [{"subnet": "fd00:88::8000/113"}]]}}]}"#;

/// A host's own table. `CHAIN` begins the chain for forwarded packets, with no policy.
struct Wall {
    name: &'static str,
    rules: &'static str,
    passes: bool,
}

const fn passes(name: &'static str, rules: &'static str) -> Wall {
    Wall { name, rules, passes: true }
}

const fn drops(name: &'static str, rules: &'static str) -> Wall {
    Wall { name, rules, passes: false }
}

const WALLS: &[Wall] = &[
    passes(
        "its bridge is accepted, and answers",
        r#"chain f { CHAIN policy drop; ct state established,related accept; iifname "cni0" accept; }"#,
    ),
    passes(
        "its subnet is, and the last rule drops",
        r#"chain f { CHAIN ct state established,related accept; ip saddr 10.88.0.0/16 accept;
           ip6 saddr fd00:88::/32 accept; counter log prefix "wall " drop; }"#,
    ),
    passes(
        "its subnet is in a set",
        r#"set pods4 { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 192.168.0.0/16 }; }
           set pods6 { type ipv6_addr; flags interval; elements = { fd00::/8 }; }
           chain f { CHAIN ct state established,related accept; ip saddr @pods4 accept;
           ip6 saddr @pods6 accept; reject with icmpx admin-prohibited; }"#,
    ),
    passes(
        "a map leads to a chain",
        r#"chain pods { accept; }
           map links { type ifname : verdict; elements = { "cni0" : goto pods, "lan0" : drop }; }
           chain f { CHAIN policy drop; ct state vmap { established : accept, related : accept, invalid : drop };
           iifname vmap @links; }"#,
    ),
    passes(
        "two chains lead there",
        r#"chain last { accept; } chain fresh { iifname "lan0" drop; goto last; }
           chain f { CHAIN policy drop; ct state established accept; ct state new jump fresh; drop; }"#,
    ),
    passes(
        "what does not come from outside is accepted",
        r#"chain f { CHAIN policy drop; ct state established accept; iifname != "up0" accept; }"#,
    ),
    passes(
        "what leaves is accepted",
        r#"chain f { CHAIN iifname "up0" ct state established,related accept; oifname "up0" accept; reject; }"#,
    ),
    passes(
        "bridges are accepted by the begin of their names",
        r#"chain f { CHAIN policy drop; ct state established accept; iifname "cni*" accept; }"#,
    ),
    passes(
        "its protocols are accepted",
        r#"chain f { CHAIN meta l4proto { tcp, udp } accept; drop; }"#,
    ),
    passes(
        "a mark is accepted",
        r#"chain m { type filter hook prerouting priority mangle; iifname "cni0" meta mark set 7; }
           chain f { CHAIN policy drop; ct state established accept; meta mark 7 accept; }"#,
    ),
    passes(
        "what is not tracked is accepted",
        r#"chain m { type filter hook prerouting priority raw; iifname { "cni0", "up0" } meta l4proto tcp notrack; }
           chain f { CHAIN policy drop; ct state untracked accept; }"#,
    ),
    drops("nothing is accepted", "chain f { CHAIN policy drop; }"),
    drops(
        "answers alone are accepted",
        "chain f { CHAIN policy drop; ct state established,related accept; }",
    ),
    drops(
        "what others send is accepted",
        r#"chain f { CHAIN policy drop; ct state established,related accept; iifname "lan0" oifname "up0" accept;
           iifname { "up0", "lan0" } oifname "lan0" accept; icmp type echo-request accept; meta l4proto ipv6-icmp accept; }"#,
    ),
    drops(
        "a chain that is asked drops",
        r#"chain last { counter drop; } chain f { CHAIN ct state established accept; iifname "lan0" accept; jump last; }"#,
    ),
    drops("answers are dropped", r#"chain f { CHAIN iifname "up0" drop; }"#),
    drops(
        "firewalld has ended, and its rules are there",
        r#"chain f { CHAIN ct state established,related accept; ct status dnat accept; iifname "lo" accept;
           reject with icmpx admin-prohibited; }"#,
    ),
];

/// A host with a neighbour at which a server listens.
struct Host {
    lab: Lab,
    _outside: Container,
    _server: Server,
}

impl Host {
    fn new(name: &str) -> Self {
        let lab = Lab::new(name);
        let outside = lab.outside();
        let server = Server::tcp(&outside, "[::]:7000", "outside");
        // What is not tracked is not masqueraded.
        outside.sh("ip route add 10.88.0.0/24 via 198.51.100.1; \
             ip -6 route add fd00:88::/64 via 2001:db8:ffff::1");
        lab.sh("ip link add lan0 type veth peer name lan1 && ip link set lan0 up && ip link set lan1 up; \
                mkdir -p /etc/cni/net.d");
        for (name, text) in [("mynet", MYNET), ("bare", BARE)] {
            std::fs::write(lab.path(format!("/etc/cni/net.d/{name}.conflist")), text).unwrap();
        }
        Host { lab, _outside: outside, _server: server }
    }

    /// Attaches a container, asserts that its packets come back, or none does, and returns what ADD
    /// said.
    #[track_caller]
    fn tries(&self, network: &str, container: &str, name: &str, passes: bool) -> String {
        let c = self.lab.container(container);
        c.sh("ip link set lo up");
        let added = call_in(&self.lab, &["add", network, container, "--container-id", container]);
        assert_eq!(added.code, 0, "{name}: {}", added.stderr);
        for to in ["198.51.100.2:7000", "[2001:db8:ffff::2]:7000"] {
            if passes {
                assert_tcp(&c, to);
            } else {
                assert_no_tcp(&c, to);
            }
        }
        self.lab.sh(&format!("{EXECUTABLE} del {network} {container} --container-id {container}"));
        added.stderr
    }

    /// Asserts that all agree that packets pass, or that they do not.
    #[track_caller]
    fn agrees(&self, name: &str, passes: bool) {
        let status = call_in(&self.lab, &["status", "mynet"]);
        let said = self.tries("mynet", "c1", name, passes);
        let all = format!("{name}:\nADD: {said}\nSTATUS: {}", status.both());
        assert_eq!(status.code == 0, passes, "{all}");
        assert_eq!(said.is_empty(), passes, "{all}");
    }

    /// Asserts the same of ADD for a network in which nothing opens the host.
    #[track_caller]
    fn agrees_without_plugin(&self, name: &str, passes: bool) {
        let said = self.tries("bare", "c2", name, passes);
        assert_eq!(said.is_empty(), passes, "{name}: {said}");
    }
}

#[test]
fn where_a_host_has_a_table_of_its_own() {
    require!("root", "program:nft");
    let half = WALLS.len() / 2;
    thread::scope(|scope| {
        for (number, walls) in [&WALLS[..half], &WALLS[half..]].into_iter().enumerate() {
            scope.spawn(move || {
                let host = Host::new(&format!("ready-wall{number}"));
                for Wall { name, rules, passes } in walls {
                    let rules = rules.replace("CHAIN", "type filter hook forward priority 0;");
                    let rules = rules.replace("} chain ", "}\nchain ");
                    let table = if name.starts_with("firewalld") { "firewalld" } else { "wall" };
                    nft(&host.lab, &format!("table inet {table} {{\n{rules}\n}}\n"));
                    host.agrees(name, *passes);
                    host.agrees_without_plugin(name, *passes);
                    host.lab.sh("nft flush ruleset");
                }
            });
        }
    });
}

/// The plugin opens what has a place for that.
#[test]
fn where_iptables_drops() {
    require!("root", "program:iptables-nft", "program:ip6tables-nft");
    let host = Host::new("ready-iptables");
    for (name, rules) in [
        ("the policy", "TOOL -P FORWARD DROP"),
        (
            "the policy, and what others send is accepted",
            "TOOL -A FORWARD -i lan0 -j ACCEPT; TOOL -P FORWARD DROP",
        ),
        (
            "its bridge is accepted",
            "TOOL -A FORWARD -i cni0 -j ACCEPT; TOOL -A FORWARD -o cni0 -j ACCEPT; TOOL -P FORWARD DROP",
        ),
        (
            "a chain that is asked",
            "TOOL -N LAST; TOOL -A LAST -j DROP; TOOL -A FORWARD ! -i lan0 -j LAST",
        ),
        (
            "a chain that is asked, by way of another",
            "TOOL -N A; TOOL -N B; TOOL -A B -m comment --comment all -j REJECT; TOOL -A A -g B; TOOL -A FORWARD -j A",
        ),
    ] {
        for tool in ["iptables-nft", "ip6tables-nft"] {
            host.lab.sh(&rules.replace("TOOL", tool));
        }
        host.agrees(name, true);
        host.agrees_without_plugin(name, rules.contains("-o cni0"));
        host.lab.sh("nft flush ruleset");
    }
}

#[test]
fn where_legacy_iptables_drops() {
    require!("root", "legacy-tables");
    for (name, rules) in [
        ("ready-legacy-policy", "TOOL -P FORWARD DROP"),
        (
            "ready-legacy-chain",
            "TOOL -N LAST; TOOL -A LAST -j DROP; TOOL -A FORWARD ! -i lan0 -j LAST",
        ),
        (
            "ready-legacy-open",
            "TOOL -A FORWARD -i cni0 -j ACCEPT; TOOL -A FORWARD -o cni0 -j ACCEPT; TOOL -A FORWARD -j DROP",
        ),
    ] {
        let host = Host::new(name);
        for tool in ["iptables-legacy", "ip6tables-legacy"] {
            host.lab.sh(&rules.replace("TOOL", tool));
        }
        host.agrees(name, true);
        host.agrees_without_plugin(name, rules.contains("-o cni0"));
    }
}

/// Everything that other programs have on the nodes of these tests.
#[test]
fn beside_other_programs() {
    require!(
        "root",
        "program:nft",
        "program:iptables-nft-restore",
        "file:/dev/net/tun",
        "legacy-tables"
    );
    let all: Vec<Kind> = [kinds::OPEN, kinds::CLOSED].concat().concat();
    let half = all.len() / 2;
    thread::scope(|scope| {
        for kinds in [&all[..half], &all[half..]] {
            scope.spawn(move || {
                for Kind { name, make } in kinds {
                    let host = Host::new("ready-beside");
                    make(&host.lab);
                    host.agrees(name, true);
                }
            });
        }
    });
}
