//! Situations that are not on the list, but have other faults of the same classes.

use testkit::Place as _;

use super::node::{Node, Way};
use super::{Act, ExpectedFinding, Fix, HintReason, Situation, Symptom};

pub(super) const MORE: &[Situation] = &[
    Situation {
        number: 1,
        is: "IPv4 forwarding is off for what comes in by the bridge alone",
        breaks: Act::Sh("sysctl -qw net.ipv4.conf.cni0.forwarding=0"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("forwarding-off", "net.ipv4.conf.cni0.forwarding"),
        fix: Fix::Mends,
        mends: Act::Sh("sysctl -qw net.ipv4.conf.cni0.forwarding=1"),
    },
    Situation {
        number: 2,
        is: "IPv4 forwarding is off for the answers",
        breaks: Act::Sh("sysctl -qw net.ipv4.conf.up0.forwarding=0"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("forwarding-off", "net.ipv4.conf.up0.forwarding"),
        fix: Fix::Mends,
        mends: Act::Sh("sysctl -qw net.ipv4.conf.up0.forwarding=1"),
    },
    Situation {
        number: 3,
        is: "the bridge answers no request for a hardware address",
        breaks: Act::Sh("sysctl -qw net.ipv4.conf.cni0.arp_ignore=8"),
        fails: Symptom::Latent("who has asked before knows the answer for a while"),
        finds: ExpectedFinding::First("requests-ignored", "net.ipv4.conf.cni0.arp_ignore"),
        fix: Fix::Mends,
        mends: Act::Sh("sysctl -qw net.ipv4.conf.cni0.arp_ignore=0"),
    },
    Situation {
        number: 4,
        is: "a container may send a packet in one second and a half",
        breaks: Act::Sh("tc qdisc add dev {p1} root tbf rate 8kbit burst 3000 latency 100ms"),
        fails: Symptom::Latent("each large packet takes a second and a half"),
        finds: ExpectedFinding::First("rate-too-low", "{p1}"),
        fix: Fix::Hint(HintReason::Choice, "the limit may be meant, and only too low"),
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
        fails: Symptom::Latent("the first answer is believed"),
        finds: ExpectedFinding::First("address-claimed", "10.88.0.1"),
        fix: Fix::Hint(HintReason::Peer, "a person has to find the other machine"),
        mends: Act::Sh(
            "ip link del twin0; ip neigh flush dev cni0; \
             for c in c1 c2; do ip -n $c neigh flush dev eth0; done",
        ),
    },
    Situation {
        number: 6,
        is: "the node has lost its IPv4 address, and it has no way out by IPv6",
        breaks: Act::Sh("ip -4 addr flush dev up0; ip -6 route del default"),
        fails: Symptom::Silent(&[Way::Out4, Way::Out6, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("no-default-route", "IPv4"),
        fix: Fix::Hint(HintReason::Lost, "what the address was is not known"),
        mends: Act::Sh(
            "ip addr add 198.51.100.1/24 dev up0; ip route replace default via 198.51.100.2; \
             ip -6 route replace default via 2001:db8:ffff::2",
        ),
    },
    Situation {
        number: 7,
        is: "the node has a permanent neighbour entry for its router that is wrong",
        breaks: Act::Sh(
            "ip neigh replace 198.51.100.2 lladdr 02:00:00:00:00:66 nud permanent dev up0",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("neighbour-wrong", "198.51.100.2"),
        fix: Fix::Mends,
        mends: Act::Sh("ip neigh del 198.51.100.2 dev up0 2>/dev/null || true"),
    },
    Situation {
        number: 8,
        is: "a route of the container leads to a router that does not exist",
        breaks: Act::Sh("ip -n c1 route add 203.0.113.0/24 via 10.88.0.99"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("hop-silent", "203.0.113.0/24 via 10.88.0.99"),
        fix: Fix::Mends,
        mends: Act::Sh("ip -n c1 route del 203.0.113.0/24 2>/dev/null || true"),
    },
    Situation {
        number: 9,
        is: "a port of the bridge gets no broadcasts",
        breaks: Act::Sh("bridge link set dev {p1} bcast_flood off"),
        fails: Symptom::Latent("a sender that knows the hardware address reaches it"),
        finds: ExpectedFinding::First("port-silenced", "{p1}"),
        fix: Fix::Mends,
        mends: Act::Sh("bridge link set dev {p1} bcast_flood on"),
    },
    Situation {
        number: 10,
        is: "the container's interface asks for no hardware address",
        breaks: Act::Sh("ip -n c1 link set eth0 arp off"),
        fails: Symptom::Silent(&[Way::Out4, Way::Names]),
        finds: ExpectedFinding::First("requests-ignored", "c1: eth0"),
        fix: Fix::Mends,
        mends: Act::Sh("ip -n c1 link set eth0 arp on"),
    },
    Situation {
        number: 11,
        is: "what Calico refuses for Services covers the containers' range",
        breaks: Act::Sh(
            "iptables-nft -N cali-cidr-block; \
             iptables-nft -A cali-cidr-block -d 10.80.0.0/12 -j REJECT; \
             iptables-nft -I FORWARD -j cali-cidr-block",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("forward-dropped", "ip filter/cali-cidr-block rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table ip filter"),
    },
    Situation {
        number: 12,
        is: "the uplink was put into a bridge",
        breaks: Act::Sh("ip link add br9 type bridge; ip link set up0 master br9"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("uplink-enslaved", "up0"),
        fix: Fix::Mends,
        mends: Act::Sh("ip link set up0 nomaster; ip link del br9"),
    },
    Situation {
        number: 13,
        is: "the node has the container's address on its bridge",
        breaks: Act::Sh("ip addr add {a1}/24 dev cni0"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::FromNode]),
        finds: ExpectedFinding::First("address-duplicate", "{a1}"),
        fix: Fix::Mends,
        mends: Act::Sh("ip addr del {a1}/24 dev cni0 2>/dev/null || true"),
    },
    Situation {
        number: 14,
        is: "loopback of a container has lost its address",
        breaks: Act::Sh("ip -n c1 addr del 127.0.0.1/8 dev lo"),
        fails: Symptom::Silent(&[Way::Inside]),
        finds: ExpectedFinding::First("loopback-down", "c1"),
        fix: Fix::Mends,
        mends: Act::Sh("ip -n c1 addr replace 127.0.0.1/8 dev lo"),
    },
    Situation {
        number: 15,
        is: "packets of a container end at the node",
        breaks: Act::Sh("ip netns exec c1 sysctl -qw net.ipv4.ip_default_ttl=1"),
        fails: Symptom::Silent(&[Way::Out4, Way::Names]),
        finds: ExpectedFinding::First("hops-too-few", "c1: net.ipv4.ip_default_ttl"),
        fix: Fix::Mends,
        mends: Act::Sh("ip netns exec c1 sysctl -qw net.ipv4.ip_default_ttl=64"),
    },
    Situation {
        number: 16,
        is: "a rule of nft translates to an address that the node does not have",
        breaks: Act::Sh(
            "nft 'add table ip other; \
             add chain ip other post { type nat hook postrouting priority 90; }; \
             add rule ip other post ip saddr 10.88.0.0/24 snat to 198.51.100.77'",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Names]),
        finds: ExpectedFinding::First("source-wrong", "ip other/post rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table ip other"),
    },
    Situation {
        number: 17,
        is: "the same by a rule of iptables",
        breaks: Act::Sh(
            "iptables-nft -t nat -I POSTROUTING -s 10.88.0.0/24 -j SNAT --to-source 198.51.100.77",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Names]),
        finds: ExpectedFinding::First("source-wrong", "ip nat/POSTROUTING rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table ip nat"),
    },
    Situation {
        number: 18,
        is: "resolv.conf of a container names no server",
        breaks: Act::Sh("echo search example.com >/etc/netns/c1/resolv.conf"),
        fails: Symptom::Command("grep -q ^nameserver /etc/netns/c1/resolv.conf"),
        finds: ExpectedFinding::First("nameserver-missing", "c1"),
        fix: Fix::Hint(HintReason::File, "the runtime writes that file"),
        mends: Act::Sh("cp /etc/netns/c2/resolv.conf /etc/netns/c1/resolv.conf"),
    },
    Situation {
        number: 19,
        is: "one of two routers, each on a link of its own, is not there",
        breaks: Act::Sh(
            "ip link add up1 type veth peer name eth9 netns outside; \
             ip addr add 192.0.2.1/24 dev up1; ip link set up1 up; \
             ip -n outside addr add 192.0.2.2/24 dev eth9; ip -n outside link set eth9 up; \
             ip route replace default nexthop via 198.51.100.2 dev up0 nexthop via 192.0.2.99 dev up1",
        ),
        fails: Symptom::Latent("some connections go by the other one"),
        finds: ExpectedFinding::First("hop-silent", "192.0.2.99"),
        fix: Fix::Hint(HintReason::Peer, "a person has to look at the router"),
        mends: Act::Sh("ip route replace default via 198.51.100.2; ip link del up1"),
    },
    Situation {
        number: 20,
        is: "a port of the bridge gets no multicasts",
        breaks: Act::Sh("bridge link set dev {p1} mcast_flood off"),
        fails: Symptom::Latent("a sender that knows the hardware address reaches it"),
        finds: ExpectedFinding::First("port-silenced", "{p1}"),
        fix: Fix::Mends,
        mends: Act::Sh("bridge link set dev {p1} mcast_flood on"),
    },
    Situation {
        number: 21,
        is: "the node's route to the server of names leads to a router that does not exist",
        breaks: Act::Sh("ip route add 203.0.113.0/24 via 198.51.100.99"),
        fails: Symptom::Silent(&[Way::Out4, Way::Names]),
        finds: ExpectedFinding::First("hop-silent", "198.51.100.99"),
        fix: Fix::Mends,
        mends: Act::Sh("ip route del 203.0.113.0/24 2>/dev/null || true"),
    },
    Situation {
        number: 22,
        is: "IPv6 is switched off on the uplink",
        breaks: Act::Sh("sysctl -qw net.ipv6.conf.up0.disable_ipv6=1"),
        fails: Symptom::Silent(&[Way::Out6]),
        finds: ExpectedFinding::First("no-default-route", "net.ipv6.conf.up0.disable_ipv6"),
        fix: Fix::Hint(HintReason::Lost, "the kernel does not restore addresses and routes"),
        mends: Act::Sh(
            "sysctl -qw net.ipv6.conf.up0.disable_ipv6=0; ip addr add fe80::1/64 dev up0 nodad; \
             ip addr add 2001:db8:ffff::1/64 dev up0 nodad; \
             ip -6 route replace default via 2001:db8:ffff::2",
        ),
    },
    Situation {
        number: 23,
        is: "the node has lost its IPv4 address, and has a way out by IPv6",
        breaks: Act::Sh("ip -4 addr flush dev up0"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("no-default-route", "IPv4"),
        fix: Fix::Hint(HintReason::Lost, "what the address was is not known"),
        mends: Act::Sh(
            "ip addr add 198.51.100.1/24 dev up0; ip route replace default via 198.51.100.2",
        ),
    },
    Situation {
        number: 24,
        is: "a route of the container leads to its own loopback",
        breaks: Act::Sh("ip -n c1 route add 203.0.113.0/24 dev lo"),
        fails: Symptom::Silent(&[Way::Out4, Way::Names]),
        finds: ExpectedFinding::First("route-refuses", "c1: route 203.0.113.0/24 dev lo"),
        fix: Fix::Mends,
        mends: Act::Sh("ip -n c1 route del 203.0.113.0/24 2>/dev/null || true"),
    },
    Situation {
        number: 25,
        is: "a rule of the node drops what is larger than 1300 bytes",
        breaks: Act::Sh(
            "nft 'add table ip other; \
             add chain ip other forward { type filter hook forward priority 0; }; \
             add rule ip other forward meta length > 1300 drop'",
        ),
        fails: Symptom::Silent(&[Way::Large]),
        finds: ExpectedFinding::First("forward-dropped", "ip other/forward rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table ip other"),
    },
    Situation {
        number: 26,
        is: "loopback of the node is down",
        breaks: Act::Sh("ip link set lo down"),
        fails: Symptom::Command("ping -n -c 1 -W 1 127.0.0.1"),
        finds: ExpectedFinding::First("loopback-down", "this node"),
        fix: Fix::Mends,
        mends: Act::Sh("ip link set lo up"),
    },
    Situation {
        number: 27,
        is: "a rule of iptables lets packets live for one hop",
        breaks: Act::Sh("iptables-nft -t mangle -I PREROUTING -j TTL --ttl-set 1"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("forward-dropped", "ip mangle/PREROUTING rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table ip mangle"),
    },
    Situation {
        number: 28,
        is: "a rule of nft does so as packets leave the node",
        breaks: Act::Sh(
            "nft 'add table ip other; \
             add chain ip other post { type filter hook postrouting priority 0; }; \
             add rule ip other post oifname \"up0\" ip ttl set 1'",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("forward-dropped", "ip other/post rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table ip other"),
    },
    Situation {
        number: 29,
        is: "packets wait for a program that does not run",
        breaks: Act::Sh("iptables-nft -I FORWARD -j NFQUEUE --queue-num 7"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("forward-dropped", "ip filter/FORWARD rule 1"),
        fix: Fix::Hint(HintReason::Program, "its owner must start it"),
        mends: Act::Sh("nft delete table ip filter"),
    },
    Situation {
        number: 30,
        is: "a port of the bridge is locked, and the bridge has forgotten who is behind it",
        breaks: Act::Sh(
            "bridge link set dev {p1} locked on; ip link set cni0 type bridge fdb_flush",
        ),
        fails: Symptom::Silent(Way::BY_ITS_LINK),
        finds: ExpectedFinding::First("port-silenced", "{p1}"),
        fix: Fix::Mends,
        mends: Act::Sh("bridge link set dev {p1} locked off"),
    },
    Situation {
        number: 31,
        is: "the node's default route names no router",
        breaks: Act::Sh("ip route replace default dev up0"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("hop-silent", "default dev up0"),
        fix: Fix::Hint(HintReason::Lost, "only the administrator knows the router"),
        mends: Act::Sh("ip route replace default via 198.51.100.2"),
    },
    Situation {
        number: 32,
        is: "half a default route of the container names no router",
        breaks: Act::Sh("ip -n c1 route add 128.0.0.0/1 dev eth0"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("hop-silent", "c1: 128.0.0.0/1 dev eth0"),
        fix: Fix::Hint(HintReason::Lost, "which router is meant is not known"),
        mends: Act::Sh("ip -n c1 route del 128.0.0.0/1"),
    },
    Situation {
        number: 33,
        is: "a route of the node names no router, and the server is not on that link",
        breaks: Act::Sh("ip route add 203.0.113.0/24 dev up0"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("hop-silent", "203.0.113.0/24 dev up0"),
        fix: Fix::Hint(HintReason::Lost, "which router is meant is not known"),
        mends: Act::Sh("ip route del 203.0.113.0/24"),
    },
    Situation {
        number: 34,
        is: "a routing rule leads what containers send to a router that does not exist",
        breaks: Act::Sh(
            "ip link add up1 type veth peer name eth9 netns outside; \
             ip addr add 192.0.2.1/24 dev up1; ip link set up1 up; \
             ip -n outside addr add 192.0.2.2/24 dev eth9; ip -n outside link set eth9 up; \
             ip route add default via 192.0.2.99 dev up1 table 100; \
             ip rule add pref 100 from 10.88.0.0/24 lookup 100",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("hop-silent", "192.0.2.99"),
        fix: Fix::Mends,
        mends: Act::Sh("ip rule del pref 100; ip link del up1"),
    },
    Situation {
        number: 35,
        is: "a route of the container leads by another one that does not forward",
        breaks: Act::Sh(
            "ip netns exec c2 sysctl -qw net.ipv4.ip_forward=0; \
             ip -n c1 route add 203.0.113.0/24 via {a2}",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("hop-silent", "c1: 203.0.113.0/24 via {a2}"),
        fix: Fix::Mends,
        mends: Act::Sh("ip -n c1 route del 203.0.113.0/24 2>/dev/null || true"),
    },
    Situation {
        number: 36,
        is: "an entry of the bridge leads what is for the container to another port",
        breaks: Act::Sh(
            "bridge fdb replace $(ip netns exec c1 cat /sys/class/net/eth0/address) \
             dev {p2} master permanent",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::FromNode, Way::Names]),
        finds: ExpectedFinding::First("neighbour-wrong", "{p2}"),
        fix: Fix::Mends,
        mends: Act::Sh(
            "bridge fdb del $(ip netns exec c1 cat /sys/class/net/eth0/address) \
             dev {p2} master 2>/dev/null || true",
        ),
    },
    Situation {
        number: 37,
        is: "another machine has the node's address",
        breaks: Act::Sh("ip -n outside addr add 198.51.100.1/32 dev eth0"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("address-claimed", "198.51.100.1"),
        fix: Fix::Hint(HintReason::Peer, "somebody has to find the other machine"),
        mends: Act::Sh("ip -n outside addr del 198.51.100.1/32 dev eth0"),
    },
    Situation {
        number: 38,
        is: "a rule leads connections to a proxy that does not run",
        breaks: Act::Sh(
            "nft 'add table ip proxy; \
             add chain ip proxy pre { type nat hook prerouting priority -100; }; \
             add rule ip proxy pre iifname \"cni0\" tcp dport 80 redirect to :3128'",
        ),
        fails: Symptom::Silent(&[Way::Out4]),
        finds: ExpectedFinding::First("proxy-missing", "ip proxy/pre rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table ip proxy"),
    },
    Situation {
        number: 39,
        is: "a route of the table local keeps what is for containers",
        breaks: Act::Sh("ip route add local 10.88.0.0/25 dev lo"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::FromNode, Way::Names]),
        finds: ExpectedFinding::First("route-covers-pool", "10.88.0.0/25 dev lo"),
        fix: Fix::Mends,
        mends: Act::Sh("ip route del local 10.88.0.0/25 dev lo 2>/dev/null || true"),
    },
    Situation {
        number: 40,
        is: "a rule of iptables takes all hops but one",
        breaks: Act::Sh("iptables-nft -t mangle -I PREROUTING -i cni0 -j TTL --ttl-dec 63"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("forward-dropped", "ip mangle/PREROUTING rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table ip mangle"),
    },
    Situation {
        number: 41,
        is: "nsswitch.conf of a container leaves out dns",
        breaks: Act::Sh("echo 'hosts: files' >/etc/netns/c1/nsswitch.conf"),
        // It asks no server.
        fails: Symptom::Command(
            "sent() { ip netns exec c1 awk '/^Udp: [0-9]/ {print $5}' /proc/net/snmp; }; \
             before=$(sent); ip netns exec c1 getent hosts name.example || true; \
             test $before -lt $(sent)",
        ),
        finds: ExpectedFinding::First("nameserver-skipped", "c1"),
        fix: Fix::Hint(HintReason::File, "the file is the image's"),
        mends: Act::Sh("rm /etc/netns/c1/nsswitch.conf"),
    },
    Situation {
        number: 42,
        is: "the hosts file of a container leads localhost elsewhere",
        breaks: Act::Sh("echo 10.9.9.9 localhost >/etc/netns/c1/hosts"),
        fails: Symptom::Command("ip netns exec c1 getent ahostsv4 localhost | grep -q '^127'"),
        finds: ExpectedFinding::First("hosts-wrong", "c1: localhost"),
        fix: Fix::Hint(HintReason::File, "the runtime writes that file"),
        mends: Act::Sh("rm /etc/netns/c1/hosts"),
    },
    Situation {
        number: 43,
        is: "the prefix of the uplink is too short, so the node asks no router for the server",
        breaks: Act::Sh(
            "ip addr del 198.51.100.1/24 dev up0; ip addr add 198.51.100.1/4 dev up0; \
             ip route replace default via 198.51.100.2",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("hop-silent", "up0: 198.51.100.1/4"),
        fix: Fix::Hint(HintReason::Choice, "which machines are on the link is not known"),
        mends: Act::Sh(
            "ip addr del 198.51.100.1/4 dev up0; ip addr add 198.51.100.1/24 dev up0; \
             ip route replace default via 198.51.100.2",
        ),
    },
    Situation {
        number: 44,
        is: "a rule at a link sends what a container sends out by the uplink",
        breaks: Act::Sh(
            "nft 'add table netdev own; \
             add chain netdev own in { type filter hook ingress device \"{p1}\" priority 0; }; \
             add rule netdev own in meta protocol ip fwd to \"up0\"'",
        ),
        fails: Symptom::Silent(&[
            Way::Out4,
            Way::Between,
            Way::Published,
            Way::PublishedHere,
            Way::FromNode,
            Way::Names,
        ]),
        finds: ExpectedFinding::First("bridge-dropped", "netdev own/in rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table netdev own"),
    },
    Situation {
        number: 45,
        is: "a rule drops what a container sends after the first packet of a connection",
        breaks: Act::Sh(
            "nft 'add table ip other; \
             add chain ip other forward { type filter hook forward priority 0; }; \
             add rule ip other forward iifname \"cni0\" ct direction original \
             ct state established drop'",
        ),
        fails: Symptom::Silent(&[Way::Out4]),
        finds: ExpectedFinding::First("forward-dropped", "ip other/forward rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table ip other"),
    },
    Situation {
        number: 46,
        is: "a mark leads what containers send into a tunnel that carries nothing",
        breaks: Act::Sh(
            "ip link add dead0 type veth peer name dead1 netns c4; ip link set dead0 arp off up; \
             ip -n c4 link set dead1 up; \
             ip route add default dev dead0 table 52; \
             ip rule add pref 5270 fwmark 0x80000/0xff0000 lookup 52; \
             nft 'add table inet vpn; \
             add chain inet vpn pre { type filter hook prerouting priority -150; }; \
             add rule inet vpn pre iifname \"cni0\" ip daddr != 10.88.0.0/24 meta mark set 0x80000'",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Names]),
        finds: ExpectedFinding::First("rule-diverts", "IPv4 rule 5270"),
        fix: Fix::Hint(HintReason::Choice, "a VPN may be meant to carry them"),
        mends: Act::Sh("nft delete table inet vpn; ip rule del pref 5270; ip link del dead0"),
    },
    Situation {
        number: 47,
        is: "the default route of a second network card is preferred, and leads nowhere",
        breaks: Act::Sh(
            "ip link add usb0 type veth peer name usb1 netns c4; \
             ip addr add 192.168.42.5/24 dev usb0; ip link set usb0 up; \
             ip -n c4 addr add 192.168.42.129/24 dev usb1; ip -n c4 link set usb1 up; \
             ip route del default; ip route add default via 198.51.100.2 metric 100; \
             ip route add default via 192.168.42.129 metric 50",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Names]),
        finds: ExpectedFinding::First(
            "default-route-silent",
            "default via 192.168.42.129 dev usb0 metric 50",
        ),
        fix: Fix::Mends,
        mends: Act::Sh(
            "ip link del usb0; ip route del default; ip route add default via 198.51.100.2",
        ),
    },
    Situation {
        number: 48,
        is: "a link of the node has an address in the server's subnet, and the server is not there",
        breaks: Act::Sh(
            "ip link add usb0 type veth peer name usb1 netns c4; \
             ip addr add 203.0.113.9/24 dev usb0; ip link set usb0 up; ip -n c4 link set usb1 up",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Names]),
        finds: ExpectedFinding::Shown("nameserver-silent", "this node has 203.0.113.9/24 on usb0"),
        fix: Fix::Hint(HintReason::Choice, "the address may be right, and the prefix length not"),
        mends: Act::Sh("ip link del usb0"),
    },
    Situation {
        number: 49,
        is: "the route to a container in no bridge is gone",
        breaks: Act::Do(|node| {
            routed(node);
            node.lab.sh("ip route del 10.55.0.9");
        }),
        fails: Symptom::Command(ROUTED),
        finds: ExpectedFinding::First("no-way-back", "c3: 10.55.0.9"),
        fix: Fix::Mends,
        mends: Act::Sh(UNROUTED),
    },
    Situation {
        number: 50,
        is: "the node no longer answers for the gateway of such a container",
        breaks: Act::Do(|node| {
            routed(node);
            node.lab
                .sh("sysctl -qw net.ipv4.conf.cali9.proxy_arp=0; ip -n c3 neigh flush dev eth0");
        }),
        fails: Symptom::Command(ROUTED),
        finds: ExpectedFinding::First("requests-ignored", "net.ipv4.conf.cali9.proxy_arp"),
        fix: Fix::Mends,
        mends: Act::Sh(UNROUTED),
    },
    Situation {
        number: 69,
        is: "the node has no route to the gateway of such a container, and so does not answer for it",
        breaks: Act::Do(|node| {
            routed(node);
            node.lab.sh("ip route add 203.0.113.0/24 via 198.51.100.2; ip route del default; \
                 ip -n c3 neigh flush dev eth0");
        }),
        fails: Symptom::Command(ROUTED),
        finds: ExpectedFinding::First("requests-ignored", "169.254.1.1"),
        fix: Fix::Mends,
        mends: Act::Sh(
            "ip route del 169.254.1.1; ip route replace default via 198.51.100.2; \
             ip route del 203.0.113.0/24; netwright del routed c3 --container-id c3; \
             rm /etc/cni/net.d/70-routed.conflist /opt/cni/bin/routed; nft delete table ip masq",
        ),
    },
    Situation {
        number: 51,
        is: "Calico's chain drops what comes from the link of such a container",
        breaks: Act::Do(|node| {
            routed(node);
            node.lab.sh("iptables-nft -N cali-from-wl-dispatch; \
                 iptables-nft -A cali-from-wl-dispatch -i cali0bad -j RETURN; \
                 iptables-nft -A cali-from-wl-dispatch -j DROP; \
                 iptables-nft -I FORWARD -i cali+ -j cali-from-wl-dispatch");
        }),
        fails: Symptom::Command(ROUTED),
        finds: ExpectedFinding::First("forward-dropped", "ip filter/cali-from-wl-dispatch rule 2"),
        fix: Fix::Hint(HintReason::Program, "calico-node writes its rules"),
        mends: Act::Sh(
            "nft delete table ip filter; netwright del routed c3 --container-id c3; \
             rm /etc/cni/net.d/70-routed.conflist /opt/cni/bin/routed; nft delete table ip masq",
        ),
    },
    Situation {
        number: 52,
        is: "names are looked for first below a domain that has an address for any name",
        breaks: Act::Sh(
            "printf 'search wild.example\noptions ndots:5\n' >>/etc/netns/c1/resolv.conf",
        ),
        fails: Symptom::Command(
            "! ip netns exec c1 getent ahostsv4 www.name.example | grep -q '^203.0.113.66 '",
        ),
        finds: ExpectedFinding::First("search-wildcard", "203.0.113.2: wild.example"),
        fix: Fix::Hint(HintReason::File, "the runtime writes that file"),
        mends: Act::Sh("cp /etc/netns/c2/resolv.conf /etc/netns/c1/resolv.conf"),
    },
    Situation {
        number: 53,
        is: "programs ask for names by TCP alone, which the server does not answer",
        breaks: Act::Sh("echo options use-vc >>/etc/netns/c1/resolv.conf"),
        // It asks no server by UDP.
        fails: Symptom::Command(
            "sent() { ip netns exec c1 awk '/^Udp: [0-9]/ {print $5}' /proc/net/snmp; }; \
             before=$(sent); ip netns exec c1 getent hosts name.example || true; \
             test $before -lt $(sent)",
        ),
        finds: ExpectedFinding::Shown(
            "nameserver-silent",
            "203.0.113.2:53 refused a question by TCP",
        ),
        fix: Fix::Hint(HintReason::Peer, "another machine serves names"),
        mends: Act::Sh("cp /etc/netns/c2/resolv.conf /etc/netns/c1/resolv.conf"),
    },
    Situation {
        number: 54,
        is: "a rule takes what goes to one port from connection tracking",
        breaks: Act::Sh(
            "nft 'add table ip perf; \
             add chain ip perf pre { type filter hook prerouting priority raw; }; \
             add rule ip perf pre tcp dport 80 notrack'",
        ),
        fails: Symptom::Silent(&[Way::Out4]),
        finds: ExpectedFinding::First("not-translated", "ip perf/pre rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table ip perf"),
    },
    Situation {
        number: 70,
        is: "rules of iptables take questions for names and their answers from connection tracking",
        breaks: Act::Sh(
            "iptables-nft -t raw -A PREROUTING -p udp --dport 53 -j NOTRACK; \
             iptables-nft -t raw -A PREROUTING -p udp --sport 53 -j CT --notrack",
        ),
        fails: Symptom::Silent(&[Way::Names]),
        finds: ExpectedFinding::First("not-translated", "ip raw/PREROUTING rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table ip raw"),
    },
    Situation {
        number: 55,
        is: "answers come with a TTL of 1",
        breaks: Act::Sh(
            "nsenter --net=/run/netns/outside nft 'add table ip isp; \
             add chain ip isp post { type filter hook postrouting priority mangle; }; \
             add rule ip isp post ip saddr 203.0.113.0/24 ip ttl set 1'",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Names]),
        finds: ExpectedFinding::First("answers-expire", "203.0.113.2"),
        fix: Fix::Hint(HintReason::Peer, "the network beyond the node sets it"),
        mends: Act::Sh("nsenter --net=/run/netns/outside nft delete table ip isp"),
    },
    Situation {
        number: 56,
        is: "questions for AAAA records of a server of names get no answer",
        // The type stands behind 12 bytes of header and 19 of the name.
        breaks: Act::Sh(
            "nsenter --net=/run/netns/outside nft 'add table ip half; \
             add chain ip half lost { type filter hook forward priority 0; }; \
             add rule ip half lost udp dport 53 @th,312,16 28 drop'",
        ),
        fails: Symptom::Latent("programs wait, and then have the other answer"),
        finds: ExpectedFinding::First("nameserver-half", "203.0.113.2"),
        fix: Fix::Hint(HintReason::Peer, "the server has to answer"),
        mends: Act::Sh("nsenter --net=/run/netns/outside nft delete table ip half"),
    },
    Situation {
        number: 57,
        is: "a container sends so slowly that transfers nearly stop",
        breaks: Act::Sh("tc qdisc add dev {p1} root tbf rate 20kbit burst 3000 latency 200ms"),
        fails: Symptom::Latent("each large packet takes 600 ms"),
        finds: ExpectedFinding::First("rate-too-low", "{p1}"),
        fix: Fix::Hint(HintReason::Choice, "the limit may be meant, and only too low"),
        mends: Act::Sh("tc qdisc del dev {p1} root"),
    },
];

/// A plugin that connects a container as Calico does: a pair in no bridge, an address alone, and a
/// gateway for which the node's end answers.
const PLUGIN: &str = r#"#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}';;
ADD)
  netns=$(basename "$CNI_NETNS")
  ip link add cali9 type veth peer name "$CNI_IFNAME" netns "$netns" >&2
  ip link set cali9 addrgenmode none && ip link set cali9 up
  ip -n "$netns" link set "$CNI_IFNAME" up
  ip -n "$netns" addr add 10.55.0.9/32 dev "$CNI_IFNAME"
  ip -n "$netns" route add 169.254.1.1 dev "$CNI_IFNAME" scope link
  ip -n "$netns" route add default via 169.254.1.1 dev "$CNI_IFNAME"
  echo 1 >/proc/sys/net/ipv4/conf/cali9/proxy_arp
  echo 0 >/proc/sys/net/ipv4/neigh/cali9/proxy_delay
  ip route add 10.55.0.9 dev cali9 scope link
  echo '{"cniVersion":"1.0.0","interfaces":[{"name":"cali9"},{"name":"'"$CNI_IFNAME"'","sandbox":"'"$CNI_NETNS"'"}],
    "ips":[{"address":"10.55.0.9/32","interface":1,"gateway":"169.254.1.1"}],
    "routes":[{"dst":"0.0.0.0/0","gw":"169.254.1.1"}]}';;
DEL) ip link del cali9 2>/dev/null || true;;
esac
"#;

/// Whether the container reaches its server of names.
const ROUTED: &str = "ip netns exec c3 ping -n -q -c 1 -W 1 203.0.113.2";

const UNROUTED: &str = "netwright del routed c3 --container-id c3; \
     rm /etc/cni/net.d/70-routed.conflist /opt/cni/bin/routed; nft delete table ip masq";

/// Connects c3 so.
fn routed(node: &mut Node) {
    node.plugin("routed", PLUGIN);
    let list = r#"{"cniVersion": "1.0.0", "name": "routed", "plugins": [{"type": "routed"}]}"#;
    node.network("70-routed", list);
    let (done, said) = node.run(
        "mkdir -p /etc/netns/c3; echo nameserver 203.0.113.2 >/etc/netns/c3/resolv.conf
         nft 'add table ip masq; \
         add chain ip masq post { type nat hook postrouting priority srcnat; }; \
         add rule ip masq post ip saddr 10.55.0.0/24 masquerade'
         netwright add routed c3 --container-id c3",
    );
    assert!(done, "{said}");
    let is_there = format!("for i in 1 2 3 4 5 6 7 8 9; do {ROUTED} && exit 0; done; exit 1");
    let (done, said) = node.run(&is_there);
    assert!(done, "c3 does not reach the server: {said}");
}
