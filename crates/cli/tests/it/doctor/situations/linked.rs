//! The bridge, its ports, neighbours, and how large packets may be.

use super::node::Way;
use super::{Act, ExpectedFinding, Fix, HintReason, Situation, Symptom};

pub(super) const BRIDGE: &[Situation] = &[
    Situation {
        number: 10,
        is: "the node's end of a container's link takes packets of 600 bytes",
        breaks: Act::Sh("ip link set {p1} mtu 600"),
        fails: Symptom::Silent(&[Way::Large]),
        finds: ExpectedFinding::First("mtu-too-small", "{p1}"),
        fix: Fix::Mends,
        mends: Act::Sh("ip link set {p1} mtu 1500; netwright repair"),
    },
    Situation {
        number: 11,
        is: "a port of the bridge is down",
        breaks: Act::Sh("ip link set {p1} down"),
        fails: Symptom::Silent(Way::BY_ITS_LINK),
        finds: ExpectedFinding::First("attachment-differs", "\"{p1}\" is down"),
        fix: Fix::Mends,
        mends: Act::Sh("ip link set {p1} up"),
    },
    Situation {
        number: 12,
        is: "ports of the bridge are isolated",
        breaks: Act::Sh(
            "bridge link set dev {p1} isolated on; bridge link set dev {p2} isolated on",
        ),
        fails: Symptom::Silent(&[Way::Between]),
        finds: ExpectedFinding::First("attachment-differs", "has isolation on"),
        fix: Fix::Mends,
        mends: Act::Sh(
            "bridge link set dev {p1} isolated off; bridge link set dev {p2} isolated off",
        ),
    },
    Situation {
        number: 13,
        is: "a port is taken off the bridge",
        breaks: Act::Sh("ip link set {p1} nomaster"),
        fails: Symptom::Silent(Way::BY_ITS_LINK),
        finds: ExpectedFinding::First("attachment-differs", "\"{p1}\" is not a port of bridge"),
        fix: Fix::Mends,
        mends: Act::Sh("ip link set {p1} master cni0; netwright repair"),
    },
    Situation {
        number: 44,
        is: "the gateways' addresses are gone from the bridge",
        breaks: Act::Sh("ip addr flush dev cni0 scope global"),
        fails: Symptom::Silent(&[
            Way::Out4,
            Way::Out6,
            Way::Published,
            Way::PublishedHere,
            Way::FromNode,
            Way::Names,
        ]),
        finds: ExpectedFinding::First("attachment-differs", "10.88.0.1"),
        fix: Fix::Mends,
        mends: Act::Sh("netwright repair"),
    },
    Situation {
        number: 47,
        is: "the bridge has STP on, and a port waits",
        breaks: Act::Sh(
            "ip link set cni0 type bridge stp_state 1; ip link set {p1} down; ip link set {p1} up",
        ),
        fails: Symptom::Silent(Way::BY_ITS_LINK),
        finds: ExpectedFinding::First("attachment-differs", "has STP on"),
        fix: Fix::Mends,
        mends: Act::Sh(
            "ip link set cni0 type bridge stp_state 0; bridge link set dev {p1} state 3",
        ),
    },
];

pub(super) const NEIGHBOURS: &[Situation] = &[
    Situation {
        number: 17,
        is: "the container has a permanent neighbour entry that is wrong",
        breaks: Act::Sh(
            "ip -n c1 neigh replace 10.88.0.1 lladdr 02:00:00:00:00:66 nud permanent dev eth0",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::FromNode, Way::Names]),
        finds: ExpectedFinding::First("neighbour-wrong", "10.88.0.1"),
        fix: Fix::Mends,
        mends: Act::Sh("ip -n c1 neigh del 10.88.0.1 dev eth0 2>/dev/null || true"),
    },
    Situation {
        number: 18,
        is: "the node has a permanent neighbour entry that is wrong",
        breaks: Act::Sh("ip neigh replace {a1} lladdr 02:00:00:00:00:66 nud permanent dev cni0"),
        fails: Symptom::Silent(&[
            Way::Out4,
            Way::Published,
            Way::PublishedHere,
            Way::FromNode,
            Way::Names,
        ]),
        finds: ExpectedFinding::First("neighbour-wrong", "{a1}"),
        fix: Fix::Mends,
        mends: Act::Sh("ip neigh del {a1} dev cni0 2>/dev/null || true"),
    },
    Situation {
        number: 9,
        is: "behind the router packets of more than 1300 bytes vanish, and no router says so",
        breaks: Act::Sh(
            "ip -n outside link set eth1 mtu 1300; nsenter --net=/run/netns/outside nft \
             'add table ip hush; add chain ip hush output { type filter hook output priority 0; }; \
             add rule ip hush output icmp type destination-unreachable drop'",
        ),
        fails: Symptom::Silent(&[Way::Large]),
        finds: ExpectedFinding::First("path-mtu", "203.0.113.2"),
        fix: Fix::Hint(HintReason::Peer, "the fault is another machine's"),
        mends: Act::Sh(
            "ip -n outside link set eth1 mtu 1500; \
             nsenter --net=/run/netns/outside nft delete table ip hush",
        ),
    },
];
