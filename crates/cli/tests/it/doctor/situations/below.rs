//! Situations below the packet filters, and in tunnels. Kernels without modules lack some features
//! for them, so the virtual machine tries them.

use serde_json::Value;
use testkit::real::Ovs;
use testkit::traffic::pings_within;

use super::node::{MENDED, Node, Way, findings};
use super::{Act, ExpectedFinding, Fix, HintReason, Situation, Symptom};

/// All ways of IPv4 packets to c1 and from it.
const ALL: &[Way] = &[
    Way::Out4,
    Way::Between,
    Way::Published,
    Way::PublishedHere,
    Way::FromNode,
    Way::Names,
    Way::Large,
];

/// Commands after those that make a VXLAN tunnel to the machine outside, which leads to a server.
macro_rules! with_a_tunnel {
    ($more:literal $(,)?) => {
        concat!(
            "ip link add vx0 type vxlan id 9 local 198.51.100.1 remote 198.51.100.2 dev up0 dstport 4789
             ip link set vx0 addrgenmode none
             ip addr add 10.9.0.1/30 dev vx0
             ip link set vx0 up
             ip -n outside link add vx0 type vxlan id 9 local 198.51.100.2 remote 198.51.100.1 dev eth0 dstport 4789
             ip -n outside addr add 10.9.0.2/30 dev vx0
             ip -n outside link set vx0 up
             ip route add 203.0.113.0/24 via 10.9.0.2 dev vx0
             ",
            $more
        )
    };
}

pub(super) const BELOW: &[Situation] = &[
    Situation {
        number: 49,
        is: "netem loses what is for a container",
        breaks: Act::Sh("tc qdisc add dev {p1} root netem loss 100%"),
        fails: Symptom::Silent(ALL),
        finds: ExpectedFinding::First("queue-loses", "{p1} qdisc netem"),
        fix: Fix::Mends,
        mends: Act::Sh("tc qdisc del dev {p1} root 2>/dev/null || true"),
    },
    Situation {
        number: 53,
        is: "netem holds what is for a container for longer than programs wait",
        breaks: Act::Sh("tc qdisc add dev {p1} root netem delay 5s"),
        fails: Symptom::Silent(ALL),
        finds: ExpectedFinding::First("queue-delays", "{p1}"),
        fix: Fix::Mends,
        mends: Act::Sh("tc qdisc del dev {p1} root 2>/dev/null || true"),
    },
    Situation {
        number: 50,
        is: "a filter of traffic control drops what a container sends",
        breaks: Act::Sh(
            "tc qdisc add dev {p1} clsact; \
             tc filter add dev {p1} ingress pref 10 protocol ip matchall action drop",
        ),
        fails: Symptom::Silent(ALL),
        finds: ExpectedFinding::First("tc-drops", "{p1} ingress filter 10"),
        fix: Fix::Mends,
        mends: Act::Sh("tc qdisc del dev {p1} clsact 2>/dev/null || true"),
    },
    Situation {
        number: 58,
        is: "a filter of traffic control sends what a container sends out by the uplink",
        breaks: Act::Sh(
            "tc qdisc add dev {p1} clsact; \
             tc filter add dev {p1} ingress pref 10 protocol ip matchall \
             action mirred egress redirect dev up0",
        ),
        fails: Symptom::Silent(ALL),
        finds: ExpectedFinding::First("tc-drops", "{p1} ingress filter 10"),
        fix: Fix::Mends,
        mends: Act::Sh("tc qdisc del dev {p1} clsact 2>/dev/null || true"),
    },
    Situation {
        number: 54,
        is: "a program of BPF of traffic control drops what a container sends",
        // The program has one instruction, which returns TC_ACT_SHOT.
        breaks: Act::Sh(
            "tc qdisc add dev {p1} clsact; \
             tc filter add dev {p1} ingress pref 10 protocol ip bpf da bytecode '1,6 0 0 2,'",
        ),
        fails: Symptom::Silent(ALL),
        finds: ExpectedFinding::First("program-drops", "{p1} ingress"),
        fix: Fix::Hint(HintReason::Program, "whose program it is, the agent's own tool says"),
        mends: Act::Sh("tc qdisc del dev {p1} clsact"),
    },
    Situation {
        number: 56,
        is: "such a program drops what leaves the container's own interface",
        breaks: Act::Sh(
            "ip netns exec c1 tc qdisc add dev eth0 clsact; \
             ip netns exec c1 tc filter add dev eth0 egress pref 10 protocol ip bpf da bytecode '1,6 0 0 2,'",
        ),
        fails: Symptom::Silent(ALL),
        finds: ExpectedFinding::First("program-drops", "c1: eth0 egress"),
        fix: Fix::Hint(HintReason::Program, "whose program it is, the agent's own tool says"),
        mends: Act::Sh("ip netns exec c1 tc qdisc del dev eth0 clsact"),
    },
    Situation {
        number: 55,
        is: "a bucket within another queue holds a packet for more than a second",
        breaks: Act::Sh(
            "tc qdisc add dev {p1} root handle 1: prio; \
             tc qdisc add dev {p1} parent 1:3 tbf rate 8kbit burst 3000 latency 100ms",
        ),
        fails: Symptom::Latent("only some packets get there"),
        finds: ExpectedFinding::First("rate-too-low", "{p1}"),
        fix: Fix::Hint(HintReason::Choice, "the limit may be meant, and only too low"),
        mends: Act::Sh("tc qdisc del dev {p1} root"),
    },
    Situation {
        number: 57,
        is: "the only class of a queue may send a packet in one second and a half",
        breaks: Act::Sh(
            "tc qdisc add dev {p1} root handle 1: htb default 10; \
             tc class add dev {p1} parent 1: classid 1:10 htb rate 8kbit",
        ),
        fails: Symptom::Latent("each large packet takes a second and a half"),
        finds: ExpectedFinding::First("rate-too-low", "{p1}"),
        fix: Fix::Hint(HintReason::Choice, "the limit may be meant, and only too low"),
        mends: Act::Sh("tc qdisc del dev {p1} root"),
    },
    Situation {
        number: 51,
        is: "a route leads into WireGuard, whose peer is allowed no addresses",
        breaks: Act::Do(wireguard),
        fails: Symptom::Silent(&[Way::Out4, Way::Names, Way::Large]),
        finds: ExpectedFinding::First("peer-not-allowed", "wg0: 203.0.113.0/24"),
        fix: Fix::Hint(HintReason::Program, "the program wg is not everywhere"),
        // c1 has learnt how little WireGuard carries, and would know it for ten minutes.
        mends: Act::Sh("ip link del wg0; ip netns exec c1 ip route flush cache"),
    },
    Situation {
        number: 52,
        is: "the network below a tunnel loses large packets, and no router says so",
        breaks: Act::Sh(with_a_tunnel!(
            "ip netns exec outside nft 'add table ip below; \
             add chain ip below in { type filter hook prerouting priority -400; }; \
             add rule ip below in ip length > 1400 drop'",
        )),
        fails: Symptom::Silent(&[Way::Large]),
        finds: ExpectedFinding::First("tunnel-mtu", "vx0"),
        fix: Fix::Hint(HintReason::Choice, "large packets are refused then, with a word"),
        mends: Act::Sh(
            "ip link del vx0; ip -n outside link del vx0; \
             ip netns exec outside nft delete table ip below; \
             ip netns exec c1 ip route flush cache",
        ),
    },
];

/// Tunnels to other nodes.
pub(super) const TUNNELS: &[Situation] = &[
    Situation {
        number: 59,
        is: "an entry of a VXLAN tunnel leads to an address that no machine has",
        breaks: Act::Sh(
            "ip link add vx0 type vxlan id 9 local 198.51.100.1 dev up0 dstport 4789 nolearning
             ip link set vx0 addrgenmode none
             ip addr add 10.9.0.1/30 dev vx0
             ip link set vx0 up
             ip neigh replace 10.9.0.2 lladdr 02:42:00:00:00:02 dev vx0 nud permanent
             bridge fdb append 02:42:00:00:00:02 dev vx0 dst 198.51.100.77
             ip route add 203.0.113.0/24 via 10.9.0.2 dev vx0",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Names, Way::Large]),
        finds: ExpectedFinding::First("tunnel-astray", "vx0: 203.0.113.0/24"),
        fix: Fix::Hint(HintReason::Lost, "where the other node is now, its program knows"),
        mends: Act::Sh("ip link del vx0"),
    },
    Situation {
        number: 60,
        is: "a rule of the node drops what comes in by a VXLAN tunnel",
        breaks: Act::Sh(with_a_tunnel!(
            "nft 'add table inet own; \
             add chain inet own in { type filter hook input priority 0; }; \
             add rule inet own in udp dport 4789 drop'",
        )),
        fails: Symptom::Silent(&[Way::Out4, Way::Names, Way::Large]),
        finds: ExpectedFinding::First("tunnel-dropped", "vx0: inet own/in rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh(
            "nft delete table inet own; ip link del vx0; ip -n outside link del vx0; \
             ip netns exec c1 ip route flush cache",
        ),
    },
    Situation {
        number: 61,
        is: "flanneld's file says that the network goes on beyond the node, and the tunnel is gone",
        breaks: Act::Sh(
            "mkdir -p /run/flannel
             echo FLANNEL_NETWORK=10.42.0.0/16 >/run/flannel/subnet.env
             echo FLANNEL_SUBNET=10.42.0.1/24 >>/run/flannel/subnet.env
             echo FLANNEL_MTU=1450 >>/run/flannel/subnet.env
             echo FLANNEL_IPMASQ=true >>/run/flannel/subnet.env
             echo '{\"cniVersion\":\"1.0.0\",\"name\":\"pods\",\"plugins\":[{\"type\":\"flannel\",\"delegate\":{\"bridge\":\"cni7\"}}]}' \
             >/etc/cni/net.d/60-pods.conflist",
        ),
        fails: Symptom::Latent("no container of this node asks one of another node"),
        finds: ExpectedFinding::First("overlay-gone", "10.42.0.0/16"),
        fix: Fix::Hint(HintReason::Program, "flanneld makes its tunnel"),
        mends: Act::Sh("rm -r /run/flannel /etc/cni/net.d/60-pods.conflist"),
    },
];

/// A policy of IPsec: not every kernel has them.
pub(super) const IPSEC: &[Situation] = &[Situation {
    number: 62,
    is: "a policy of IPsec that was left drops what containers send",
    breaks: Act::Sh("ip xfrm policy add src 10.88.0.0/24 dst 203.0.113.0/24 dir fwd action block"),
    fails: Symptom::Silent(&[Way::Out4, Way::Names, Way::Large]),
    finds: ExpectedFinding::First("ipsec-drops", "policy src 10.88.0.0/24 dst 203.0.113.0/24"),
    fix: Fix::Hint(HintReason::Choice, "the policy may be meant, and its tunnel down"),
    mends: Act::Sh("ip xfrm policy delete src 10.88.0.0/24 dst 203.0.113.0/24 dir fwd"),
}];

/// Gives a WireGuard tunnel a key and a peer that is allowed nothing, as `wg set` does.
const CONFIGURE: &str = r#"
import os, socket, struct

def attribute(kind, data):
    return struct.pack("HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)

def nested(kind, data):
    return attribute(kind | 0x8000, data)

generic = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
generic.bind((0, 0))

def ask(family, flags, command, data):
    body = struct.pack("BBH", command, 1, 0) + data
    generic.send(struct.pack("IHHII", 16 + len(body), family, flags, 1, 0) + body)
    return generic.recv(65536)

# CTRL_CMD_GETFAMILY: the attributes of the answer follow two headers.
answer = ask(16, 1, 3, attribute(2, b"wireguard\0"))
at = 20
while struct.unpack_from("HH", answer, at)[1] != 1:
    at += (struct.unpack_from("H", answer, at)[0] + 3) & ~3
family = struct.unpack_from("H", answer, at + 4)[0]

# WG_CMD_SET_DEVICE: the link, a private key, and the peers, of which one has a public key.
link = attribute(1, struct.pack("I", socket.if_nametoindex("wg0")))
key = attribute(3, os.urandom(32))
peers = nested(8, nested(0, attribute(1, bytes(range(1, 33)))))
answer = ask(family, 5, 1, link + key + peers)
error = struct.unpack_from("i", answer, 16)[0]
assert error == 0, error
"#;

fn wireguard(node: &mut Node) {
    let script = node.lab.dir().join("wireguard.py");
    std::fs::write(&script, CONFIGURE).unwrap();
    let (done, said) = node.run(&format!(
        "ip link add wg0 type wireguard
         ip addr add 10.9.0.1/24 dev wg0
         python3 {}
         ip link set wg0 up
         ip route add 203.0.113.0/24 dev wg0",
        script.display()
    ));
    assert!(done, "{said}");
}

/// A user-space switch passes on the frames that it reads, but nothing has filled in the checksums
/// of packets in a tunnel.
pub(super) fn checksums() {
    let node = Node::new("doctor-checksums");
    let ovs = Ovs::start(&node.lab);
    ovs.add_bridge("brx");
    let run = |commands: &str| {
        let (done, said) = node.run(commands);
        assert!(done, "{commands}: {said}");
    };
    run("ip link add u0 type veth peer name s0
         ip link add s1 type veth peer name u1 netns outside
         for link in u0 s0 s1; do ip link set $link addrgenmode none; ip link set $link up; done
         ip addr add 192.0.2.1/24 dev u0
         ip -n outside link set u1 up
         ip -n outside addr add 192.0.2.2/24 dev u1");
    ovs.vsctl(&["add-port", "brx", "s0", "--", "add-port", "brx", "s1"]);
    run(
        "ip link add vx0 type vxlan id 9 local 192.0.2.1 remote 192.0.2.2 dev u0 dstport 4789 noudpcsum
         ip link set vx0 addrgenmode none
         ip addr add 10.9.0.1/30 dev vx0
         ip link set vx0 up
         ip -n outside link add vx0 type vxlan id 9 local 192.0.2.2 remote 192.0.2.1 dev u1 dstport 4789 noudpcsum
         ip -n outside addr add 10.9.0.2/30 dev vx0
         ip -n outside link set vx0 up
         ip route add 203.0.113.0/24 via 10.9.0.2 dev vx0",
    );
    assert!(pings_within(&node.c1, "203.0.113.2", MENDED), "{}", ovs.log());
    let lost = [Way::Out4, Way::Names];
    assert_eq!(node.silent(&lost), lost);
    let found = findings(&node.doctor(&[]));
    // A filter after the tunnel would look the same, so this finding is a warning, after the
    // errors.
    let is_told = |finding: &Value| {
        finding["id"] == "tunnel-checksums"
            && finding["object"] == "vx0"
            && finding["severity"] == "warning"
    };
    assert!(found.iter().any(is_told), "{found:#?}");
    // The fix is applied at both ends, as it says.
    run("ethtool -K vx0 tx-checksum-ip-generic off
         nsenter --net=/run/netns/outside ethtool -K vx0 tx-checksum-ip-generic off");
    let complaints = node.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
    drop(ovs);
}

/// The bridge and the uplink join a VRF, without a default route. The node itself is then outside
/// the VRF, so the test tries only the containers' way out.
pub(super) fn vrf() {
    let node = Node::new("doctor-vrf");
    let run = |commands: &str| {
        let (done, said) = node.run(commands);
        assert!(done, "{commands}: {said}");
    };
    // The kernel sets a link that joins a VRF down and up, and the link loses its routes and its
    // IPv6 addresses. The server's answers find their way back with address translation or without.
    run("ip link add blue type vrf table 10
         ip link set blue up
         ip link set up0 master blue
         ip link set cni0 master blue
         ip -n outside route add 10.88.0.0/24 via 198.51.100.1");
    assert_eq!(node.silent(&[Way::Out4]), [Way::Out4]);
    let found = findings(&node.doctor(&[]));
    let of_vrf = |finding: &Value| {
        finding["id"] == "vrf-no-route" && finding["object"] == "table 10 of blue IPv4"
    };
    assert!(of_vrf(&found[0]), "{found:#?}");
    // The fix is applied with the router's address, as it says.
    run("ip route add default via 198.51.100.2 dev up0 table 10");
    assert!(pings_within(&node.c1, "203.0.113.2", MENDED));
    assert_eq!(node.silent(&[Way::Out4]), []);
    let found = findings(&node.doctor(&[]));
    assert!(!found.iter().any(of_vrf), "{found:#?}");
}
