//! Probes that this node, or the container itself, refuses or leads elsewhere: `doctor` blames no
//! other machine for that.

use serde_json::{Value, json};
use testkit::require;

use super::situations::node::{Node, findings};
use crate::support::call_in;

const SERVER: &str = "203.0.113.2:80";

/// A way to lead what c1 sends to the server elsewhere.
struct Diversion {
    is: &'static str,
    breaks: &'static str,
    mends: &'static str,
    /// The ID of the first finding that names the fault, and a part of its object or its place.
    finds: (&'static str, &'static str),
}

const LED: &[Diversion] = &[
    Diversion {
        is: "a rule of the node refuses what has a certain random number",
        breaks: "nft 'add table ip other; \
                 add chain ip other f { type filter hook forward priority 0; }; \
                 add rule ip other f ip saddr {a1} numgen random mod 1 == 0 \
                 tcp dport 80 reject with tcp reset'",
        mends: "nft delete table ip other",
        finds: ("forward-dropped", "rule 1: reject"),
    },
    Diversion {
        is: "a kill switch in the container refuses what does not go by the tunnel",
        breaks: "nsenter --net=/run/netns/c1 nft 'add table ip kill; \
                 add chain ip kill out { type filter hook output priority 0; }; \
                 add rule ip kill out numgen random mod 1 == 0 oifname != \"wg0\" \
                 tcp dport 80 reject'",
        mends: "nsenter --net=/run/netns/c1 nft delete table ip kill",
        finds: ("inside-dropped", "rule 1: reject"),
    },
    Diversion {
        is: "a rule in the container sends it to a proxy that does not run",
        breaks: "nsenter --net=/run/netns/c1 nft 'add table ip mesh; \
                 add chain ip mesh out { type nat hook output priority -100; }; \
                 add rule ip mesh out tcp dport 80 redirect to :15001'",
        mends: "nsenter --net=/run/netns/c1 nft delete table ip mesh",
        finds: ("proxy-missing", "15001"),
    },
    Diversion {
        is: "the container has the server's address itself",
        breaks: "ip -n c1 addr add 203.0.113.2/32 dev lo",
        mends: "ip -n c1 addr del 203.0.113.2/32 dev lo",
        finds: ("outside-silent", "c1 has 203.0.113.2 itself, on lo"),
    },
    Diversion {
        is: "a routing rule leads what containers send into a tunnel that nobody ends",
        breaks: "ip link add vpn0 type veth peer name vpn1; ip link set vpn0 up; \
                 ip link set vpn1 up; ip addr add 10.9.0.1/24 dev vpn0; \
                 ip route add default via 10.9.0.2 dev vpn0 table 77; \
                 ip rule add pref 100 from 10.88.0.0/24 to 203.0.113.0/24 lookup 77",
        mends: "ip rule del pref 100; ip route flush table 77; ip link del vpn0",
        finds: ("rule-diverts", "rule 100: from 10.88.0.0/24 to 203.0.113.0/24 lookup 77"),
    },
    Diversion {
        is: "a filter gives the mark for which the rule of a VPN asks, and that refuses",
        breaks: "ip rule add pref 5250 fwmark 0x80000/0xff0000 lookup 53; \
                 ip route add unreachable default table 53; \
                 nft 'add table ip marks; \
                 add chain ip marks pre { type filter hook prerouting priority mangle; }; \
                 add rule ip marks pre ip saddr 10.88.0.0/24 meta mark set meta mark or 0x80000'",
        mends: "nft delete table ip marks; ip rule del pref 5250; ip route flush table 53",
        finds: ("route-refuses", "IPv4 rule 5250"),
    },
    Diversion {
        is: "a bridge of another program has the server's subnet",
        breaks: "ip link add br9 type bridge; ip link set br9 addrgenmode none; \
                 ip addr add 203.0.113.1/24 dev br9; ip link set br9 up",
        mends: "ip link del br9",
        finds: ("outside-silent", "counts as a machine on br9"),
    },
    Diversion {
        is: "a route of the container takes the server for a machine on its link",
        breaks: "ip -n c1 route add 203.0.113.2/32 dev eth0",
        mends: "ip -n c1 route del 203.0.113.2/32",
        finds: ("inside-diverts", "c1: 203.0.113.2/32 dev eth0"),
    },
    Diversion {
        is: "a rule of the node sends it to a dead end",
        breaks: "nft 'add table ip led; \
                 add chain ip led pre { type nat hook prerouting priority -110; }; \
                 add rule ip led pre ip daddr 203.0.113.2 tcp dport 80 dnat to 198.51.100.77'",
        mends: "nft delete table ip led",
        finds: ("outside-silent", "ip led/pre rule 1 sends it to 198.51.100.77"),
    },
];

#[test]
fn what_is_led_elsewhere_is_not_told_as_the_servers_fault() {
    require!("root", "program:nft");
    let node = Node::new("doctor-led");
    let to = ["c1", "--to", SERVER];
    assert_eq!(node.doctor(&to).code, 0);
    let mut wrong = Vec::new();
    for led in LED {
        let (done, said) = node.run(led.breaks);
        assert!(done, "{}: {said}", led.is);
        let said = node.doctor(&to);
        let found = findings(&said);
        let (id, part) = led.finds;
        let is_named = |one: &Value| one["id"] == id && one.to_string().contains(part);
        let blames = found.iter().any(|one| one.to_string().contains("find what beyond"));
        if said.code != 1 || blames || !found.iter().any(is_named) {
            wrong.push(format!("{}: {} {found:#?}", led.is, said.code));
        }
        let (done, said) = node.run(led.mends);
        assert!(done, "{}: {said}", led.is);
        if node.doctor(&to).code != 0 {
            wrong.push(format!("{}: it is not mended", led.is));
        }
    }
    assert!(wrong.is_empty(), "{} of {}: {}", wrong.len(), LED.len(), wrong.join("\n"));
}

/// A person or a DHCP client gives a container a default route by a network that leads nowhere.
#[test]
fn a_default_route_by_another_network_is_removed_by_the_printed_fix() {
    require!("root");
    let node = Node::new("doctor-inside-route");
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.23.0.0/24" }]] });
    let plugins = json!([{ "type": "ptp", "ipam": ipam }]);
    let network = json!({ "cniVersion": "1.0.0", "name": "intern", "plugins": plugins });
    node.network("80-intern", &network.to_string());
    let (done, said) = node.run("netwright add intern c1 --container-id c1 --ifname eth1");
    assert!(done, "{said}");
    let to = ["c1", "--to", SERVER];
    assert_eq!(node.doctor(&to).code, 0, "{:#?}", findings(&node.doctor(&to)));
    let (done, said) = node.run(
        "ip -n c1 route add default via 10.88.0.1 dev eth0 metric 100
         ip -n c1 route del default metric 0
         ip -n c1 route add default via 10.23.0.1 dev eth1 metric 50",
    );
    assert!(done, "{said}");
    for asked in [&[][..], &to[..]] {
        let found = findings(&node.doctor(asked));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(found[0]["id"], "inside-diverts", "{found:#?}");
        assert_eq!(found[0]["object"], "c1: default via 10.23.0.1 dev eth1 metric 50");
    }
    let text = call_in(&node.lab, &["doctor", "c1", "--to", SERVER]).both();
    assert!(text.contains("loopback, addresses; "), "{text}");
    let found = findings(&node.doctor(&to));
    let (done, said) = node.run(found[0]["fix"][0].as_str().unwrap());
    assert!(done, "{said}");
    let said = node.doctor(&to);
    assert_eq!(said.code, 0, "{:#?}", findings(&said));
}

/// Where no program listens at the other end, the connection came there.
#[test]
fn a_refusal_of_the_other_end_is_none_of_this_nodes() {
    require!("root");
    let node = Node::new("doctor-far-refusal");
    node.doctor(&["c1", "--to", "203.0.113.2:81"]).succeeded();
}
