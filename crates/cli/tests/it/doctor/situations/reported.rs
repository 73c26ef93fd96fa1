//! Situations that operators have reported.

use super::node::{Node, Way};
use super::{Act, ExpectedFinding, Fix, HintReason, Situation, Symptom};

pub(super) const REPORTED: &[Situation] = &[
    Situation {
        number: 1,
        is: "a rule of iptables takes what is for a published port from connection tracking",
        breaks: Act::Sh("iptables-nft -t raw -A PREROUTING -p tcp --dport 8080 -j NOTRACK"),
        fails: Symptom::Silent(&[Way::Published]),
        finds: ExpectedFinding::First("not-translated", "ip raw/PREROUTING rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table ip raw"),
    },
    Situation {
        number: 2,
        is: "the rules of wg-quick lead what containers send into a tunnel that carries nothing",
        breaks: Act::Sh(
            "ip link add wg0 type veth peer name wg1 netns c4; ip link set wg0 arp off up; \
             ip -n c4 link set wg1 up; ip addr add 10.9.9.2/32 dev wg0; \
             ip route add default dev wg0 table 51820; ip rule add not fwmark 51820 table 51820; \
             ip rule add table main suppress_prefixlength 0",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("rule-diverts", "IPv4 rule 3276"),
        fix: Fix::Mends,
        mends: Act::Sh(
            "ip rule del not fwmark 51820 table 51820; ip rule del table main suppress_prefixlength 0; \
             while ip rule del from 10.88.0.0/24 lookup main 2>/dev/null; do :; done; \
             ip link del wg0",
        ),
    },
    Situation {
        number: 3,
        is: "a route in a container prohibits the server's network",
        breaks: Act::Sh("ip -n c1 route add prohibit 203.0.113.0/24"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("route-refuses", "c1: route prohibit 203.0.113.0/24"),
        fix: Fix::Mends,
        mends: Act::Sh("ip -n c1 route del prohibit 203.0.113.0/24 2>/dev/null || true"),
    },
    Situation {
        number: 4,
        is: "a rule leads all connections of containers to an address that no machine has",
        breaks: Act::Sh(
            "iptables-nft -t nat -A PREROUTING -i cni0 -p tcp -j DNAT --to-destination 198.51.100.77",
        ),
        fails: Symptom::Silent(&[Way::Out4]),
        finds: ExpectedFinding::First("port-redirected", "ip nat/PREROUTING rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table ip nat"),
    },
    Situation {
        number: 5,
        is: "clients come by a second uplink, whose reverse path filter is strict",
        breaks: Act::Sh(
            "ip link add up1 type veth peer name eth9 netns outside; \
             ip addr add 192.0.2.1/24 dev up1; ip link set up1 up; \
             ip -n outside addr add 192.0.2.2/24 dev eth9; ip -n outside link set eth9 up; \
             ip route add default via 192.0.2.2 metric 100; \
             sysctl -qw net.ipv4.conf.up1.rp_filter=1",
        ),
        fails: Symptom::Command(BY_THE_SECOND),
        finds: ExpectedFinding::First("reverse-path-filter", "up1"),
        fix: Fix::MendsBut(BY_THE_SECOND),
        mends: Act::Sh("ip link del up1"),
    },
    Situation {
        number: 6,
        is: "a container that was lent a device lets nothing out",
        breaks: Act::Do(lent),
        fails: Symptom::Command(LENT),
        finds: ExpectedFinding::First("inside-dropped", "c3: inet own/out policy"),
        fix: Fix::Hint(
            HintReason::Choice,
            "what a container lets out is its owner's to decide: only what was probed is let through",
        ),
        mends: Act::Sh(
            "nsenter --net=/run/netns/c3 nft delete table inet own; \
             netwright del lent c3 --container-id c3; rm /etc/cni/net.d/70-lent.conflist; \
             ip link del hd0",
        ),
    },
];

/// Needs links of macvlan.
pub(super) const ON_THE_UPLINK: &[Situation] = &[Situation {
    number: 7,
    is: "the gateway of a network of macvlan is mistyped",
    breaks: Act::Do(|node| {
        on_the_uplink(
            node,
            r#""type": "macvlan", "master": "up0""#,
            r#""198.51.100.109/24", "gateway": "198.51.100.20""#,
        );
    }),
    fails: Symptom::Command(LENT),
    finds: ExpectedFinding::First("router-silent", "c3: 198.51.100.20"),
    fix: Fix::Hint(HintReason::File, "the file is to be corrected"),
    mends: Act::Sh("netwright del lent c3 --container-id c3; rm /etc/cni/net.d/70-lent.conflist"),
}];

/// Connects the server to the published port by the second uplink.
const BY_THE_SECOND: &str = "ip netns exec server python3 -c \
    'import socket; socket.create_connection((\"192.0.2.1\", 8080), 1)'";

/// Whether c3 reaches its server of names.
const LENT: &str = "ip netns exec c3 ping -n -q -c 1 -W 1 203.0.113.2";

/// Connects c3 by a plugin, with an address of its own.
fn on_the_uplink(node: &Node, plugin: &str, address: &str) {
    let text = r#"{"cniVersion": "1.0.0", "name": "lent", "plugins": [{PLUGIN, "ipam": {
        "type": "static", "addresses": [{"address": ADDRESS}], "routes": [{"dst": "0.0.0.0/0"}]}}]}"#;
    node.network("70-lent", &text.replace("PLUGIN", plugin).replace("ADDRESS", address));
    let (done, said) = node.run(
        "mkdir -p /etc/netns/c3; echo nameserver 203.0.113.2 >/etc/netns/c3/resolv.conf
         netwright add lent c3 --container-id c3",
    );
    assert!(done, "{said}");
}

/// Lends c3 a device that leads to the router, and lets nothing out.
fn lent(node: &mut Node) {
    let (done, said) = node.run(
        "ip link add hd0 type veth peer name hd1 netns outside; ip link set hd0 addrgenmode none
         ip -n outside link set hd1 addrgenmode none; ip -n outside link set hd1 up
         ip -n outside addr add 192.0.2.2/24 dev hd1",
    );
    assert!(done, "{said}");
    on_the_uplink(
        node,
        r#""type": "host-device", "device": "hd0""#,
        r#""192.0.2.9/24", "gateway": "192.0.2.2""#,
    );
    let is_there = format!("for i in 1 2 3 4 5 6 7 8 9; do {LENT} && exit 0; done; exit 1");
    let (done, said) = node.run(&is_there);
    assert!(done, "c3 does not reach the server: {said}");
    let (done, said) = node.run(
        "nsenter --net=/run/netns/c3 nft 'add table inet own; \
         add chain inet own out { type filter hook output priority 0; policy drop; }; \
         add rule inet own out oifname \"lo\" accept'",
    );
    assert!(done, "{said}");
}
