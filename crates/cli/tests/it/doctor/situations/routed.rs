//! The node's sysctls, its way out, and its routes.

use super::node::Way;
use super::{Act, ExpectedFinding, Fix, HintReason, Situation, Symptom};

pub(super) const SWITCHES: &[Situation] = &[
    Situation {
        number: 1,
        is: "IPv4 forwarding is off",
        breaks: Act::Sh("sysctl -qw net.ipv4.ip_forward=0"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("forwarding-off", "net.ipv4.ip_forward"),
        fix: Fix::Mends,
        mends: Act::Sh("sysctl -qw net.ipv4.ip_forward=1"),
    },
    Situation {
        number: 20,
        is: "IPv6 forwarding is off",
        breaks: Act::Sh("sysctl -qw net.ipv6.conf.all.forwarding=0"),
        fails: Symptom::Silent(&[Way::Out6]),
        finds: ExpectedFinding::First("forwarding-off", "net.ipv6.conf.all.forwarding"),
        fix: Fix::Mends,
        mends: Act::Sh("sysctl -qw net.ipv6.conf.all.forwarding=1"),
    },
    Situation {
        number: 57,
        is: "route_localnet is off",
        breaks: Act::Sh("sysctl -qw net.ipv4.conf.cni0.route_localnet=0"),
        fails: Symptom::Silent(&[Way::PublishedHere]),
        finds: ExpectedFinding::First("attachment-differs", "route_localnet"),
        fix: Fix::Mends,
        mends: Act::Sh("sysctl -qw net.ipv4.conf.cni0.route_localnet=1"),
    },
    Situation {
        number: 67,
        is: "IPv6 is switched off on the bridge",
        breaks: Act::Sh("sysctl -qw net.ipv6.conf.cni0.disable_ipv6=1"),
        fails: Symptom::Silent(&[Way::Out6]),
        finds: ExpectedFinding::First("attachment-differs", "IPv6 is switched off"),
        fix: Fix::Mends,
        mends: Act::Sh("sysctl -qw net.ipv6.conf.cni0.disable_ipv6=0; netwright repair"),
    },
    Situation {
        number: 6,
        is: "the node has lost its default route",
        breaks: Act::Sh("ip route del default"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("no-default-route", "IPv4"),
        fix: Fix::Hint(HintReason::Lost, "only the administrator knows the router"),
        mends: Act::Sh("ip route replace default via 198.51.100.2"),
    },
    Situation {
        number: 43,
        is: "the uplink is down",
        breaks: Act::Sh("ip link set up0 down"),
        fails: Symptom::Silent(&[Way::Out4, Way::Out6, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("link-down", "up0"),
        fix: Fix::Hint(HintReason::Lost, "the kernel does not restore routes and IPv6 addresses"),
        mends: Act::Sh(
            "ip link set up0 up; ip addr add fe80::1/64 dev up0 nodad; \
             ip addr add 2001:db8:ffff::1/64 dev up0 nodad; ip route replace default via 198.51.100.2; \
             ip -6 route replace default via 2001:db8:ffff::2",
        ),
    },
];

pub(super) const ROUTES: &[Situation] = &[
    Situation {
        number: 4,
        is: "answers come by another uplink, whose filter is strict",
        breaks: Act::Sh(
            "ip link add up1 type veth peer name eth9 netns outside; \
             ip addr add 192.0.2.1/24 dev up1; ip link set up1 up; sysctl -qw net.ipv4.conf.all.rp_filter=1; \
             ip -n outside addr add 192.0.2.2/24 dev eth9; ip -n outside link set eth9 up; \
             ip -n outside route add 198.51.100.1 via 192.0.2.1",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("reverse-path-filter", "up1"),
        fix: Fix::Mends,
        // The fix leaves the other links strict.
        mends: Act::Sh(
            "test $(sysctl -n net.ipv4.conf.all.rp_filter) = 1; ip link del up1; \
             sysctl -qw net.ipv4.conf.all.rp_filter=0",
        ),
    },
    Situation {
        number: 5,
        is: "a container has lost its default route",
        breaks: Act::Sh("ip -n c1 route del default"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("attachment-differs", "0.0.0.0/0"),
        fix: Fix::Mends,
        mends: Act::Sh("netwright repair"),
    },
    Situation {
        number: 30,
        is: "the route of a VPN covers the pool",
        breaks: Act::Sh(
            "ip link add vpn0 type veth peer name vpn1; ip link set vpn0 up; ip link set vpn1 up; \
             ip route add 10.88.0.0/25 dev vpn0",
        ),
        fails: Symptom::Silent(&[
            Way::Out4,
            Way::Published,
            Way::PublishedHere,
            Way::FromNode,
            Way::Names,
        ]),
        finds: ExpectedFinding::First("route-covers-pool", "10.88.0.0/25"),
        fix: Fix::Mends,
        mends: Act::Sh("ip link del vpn0"),
    },
    Situation {
        number: 31,
        is: "the uplink has an address and a route in the pool's subnet",
        breaks: Act::Sh(
            "ip addr add 10.88.0.77/24 dev up0 noprefixroute; ip route replace 10.88.0.0/24 dev up0",
        ),
        fails: Symptom::Silent(&[
            Way::Out4,
            Way::Published,
            Way::PublishedHere,
            Way::FromNode,
            Way::Names,
        ]),
        finds: ExpectedFinding::First("subnet-taken", "mynet"),
        fix: Fix::Hint(HintReason::File, "the network needs another subnet"),
        mends: Act::Sh(
            "ip addr del 10.88.0.77/24 dev up0; \
             ip route replace 10.88.0.0/24 dev cni0 proto kernel scope link src 10.88.0.1",
        ),
    },
    Situation {
        number: 37,
        is: "a routing rule sends the pool to a black hole",
        breaks: Act::Sh(
            "ip route add blackhole default table 100; ip rule add pref 100 from 10.88.0.0/24 lookup 100",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::FromNode, Way::Names]),
        finds: ExpectedFinding::First("route-refuses", "blackhole"),
        fix: Fix::Mends,
        mends: Act::Sh("ip rule del pref 100; ip route flush table 100 2>/dev/null || true"),
    },
];
