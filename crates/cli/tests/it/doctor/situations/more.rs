//! Situations that are not on the list: other faults of the same classes.

use super::node::Way;
use super::{Act, Fails, Finds, Fix, Situation};

pub(super) const MORE: &[Situation] = &[
    Situation {
        number: 1,
        is: "IPv4 forwarding is off for what comes in by the bridge alone",
        breaks: Act::Sh("sysctl -qw net.ipv4.conf.cni0.forwarding=0"),
        fails: Fails::Ways(&[Way::Out4, Way::Published, Way::Names]),
        finds: Finds::First("forwarding-off", "net.ipv4.conf.cni0.forwarding"),
        fix: Fix::Mends,
        mends: Act::Sh("sysctl -qw net.ipv4.conf.cni0.forwarding=1"),
    },
    Situation {
        number: 2,
        is: "IPv4 forwarding is off for the answers",
        breaks: Act::Sh("sysctl -qw net.ipv4.conf.up0.forwarding=0"),
        fails: Fails::Ways(&[Way::Out4, Way::Published, Way::Names]),
        finds: Finds::First("forwarding-off", "net.ipv4.conf.up0.forwarding"),
        fix: Fix::Mends,
        mends: Act::Sh("sysctl -qw net.ipv4.conf.up0.forwarding=1"),
    },
    Situation {
        number: 3,
        is: "the bridge answers no request for a hardware address",
        breaks: Act::Sh("sysctl -qw net.ipv4.conf.cni0.arp_ignore=8"),
        fails: Fails::Latent("who has asked before knows the answer for a while"),
        finds: Finds::First("requests-ignored", "net.ipv4.conf.cni0.arp_ignore"),
        fix: Fix::Mends,
        mends: Act::Sh("sysctl -qw net.ipv4.conf.cni0.arp_ignore=0"),
    },
    Situation {
        number: 4,
        is: "a container may send a packet in one second and a half",
        breaks: Act::Sh("tc qdisc add dev {p1} root tbf rate 8kbit burst 3000 latency 100ms"),
        fails: Fails::Ways(&[Way::Large]),
        finds: Finds::First("rate-too-low", "{p1}"),
        fix: Fix::Hint("the limit may be meant, and only too low"),
        mends: Act::Sh("tc qdisc del dev {p1} root"),
    },
    Situation {
        number: 5,
        is: "another machine on the bridge answers for the gateway",
        breaks: Act::Sh(
            "ip link add twin0 type veth peer name twin1; ip link set twin0 master cni0 up; \
             ip link set twin1 netns c4; ip -n c4 addr add 10.88.0.1/24 dev twin1; \
             ip -n c4 link set twin1 up",
        ),
        fails: Fails::Latent("whoever answers first is believed"),
        finds: Finds::First("address-claimed", "10.88.0.1"),
        fix: Fix::Hint("somebody has to find the other machine"),
        mends: Act::Sh(
            "ip link del twin0; ip neigh flush dev cni0; \
             for c in c1 c2; do ip -n $c neigh flush dev eth0; done",
        ),
    },
];
