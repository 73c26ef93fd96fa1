//! Ways in which other programs change what ADD made. The tests of CHECK and those of repair use
//! the same ones.

use self::DamagePlace::{Container as Inside, Host};

/// Where a damage is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamagePlace {
    /// The host.
    Host,
    /// The container.
    Container,
}

/// One kind of damage.
#[derive(Debug, Clone, Copy)]
pub struct Drift(
    /// Its name.
    pub &'static str,
    /// Where it is done.
    pub DamagePlace,
    /// The script that does it. `$port` and `$ifb` stand for the attachment's links, `$ipam` for
    /// the folder of its address plugin.
    pub &'static str,
    /// Words that CHECK must say.
    pub &'static str,
);

/// The damages to a container on a bridge, with everything that depends on it: network `n` with
/// plugins `bridge`, `tuning`, `bandwidth`, `portmap` and `firewall`.
pub const BRIDGE: &[Drift] = &[
    Drift("IPv4 address gone", Inside, "ip addr del 10.1.0.2/24 dev eth0", "10.1.0.2/24"),
    Drift("IPv6 address gone", Inside, "ip addr del fd00:1::2/64 dev eth0", "fd00:1::2/64"),
    Drift("default route gone", Inside, "ip route del default", "route 0.0.0.0/0"),
    Drift("IPv6 default route gone", Inside, "ip -6 route del default", "route ::/0"),
    Drift("a route gone", Inside, "ip route del 198.51.100.0/24", "route 198.51.100.0/24"),
    Drift(
        "container's MAC changed",
        Inside,
        "ip link set eth0 address 02:00:00:00:00:07",
        "02:00:00:00:00:07",
    ),
    Drift("container's link down", Inside, "ip link set eth0 down", "\"eth0\" is down"),
    Drift("container's MTU changed", Inside, "ip link set eth0 mtu 1300", "MTU of eth0 is 1400"),
    Drift("allmulticast off", Inside, "ip link set eth0 allmulticast off", "all-multicast"),
    Drift("queue length changed", Inside, "ip link set eth0 txqueuelen 7", "queue length"),
    Drift("sysctl changed", Inside, "sysctl -qw net.ipv4.conf.eth0.arp_filter=0", "arp_filter"),
    Drift(
        "gateway's neighbour entry forged",
        Inside,
        "ip neigh replace 10.1.0.1 lladdr 02:00:00:00:00:66 dev eth0 nud permanent",
        "neighbour entry of 10.1.0.1",
    ),
    Drift("host end off the bridge", Host, "ip link set $port nomaster", "not a port of bridge"),
    Drift(
        "host end on another bridge",
        Host,
        "ip link add other type bridge; ip link set $port master other; ip link del other",
        "not a port of bridge",
    ),
    Drift("host end down", Host, "ip link set $port down", "is down"),
    Drift("host end's MTU changed", Host, "ip link set $port mtu 1280", "has MTU 1280"),
    Drift("hairpin off", Host, "bridge link set dev $port hairpin off", "hairpin mode off"),
    Drift("isolation off", Host, "bridge link set dev $port isolated off", "isolation off"),
    Drift("owner's mark gone", Host, "ip link set $port alias ''", "mark (alias)"),
    Drift("bridge down", Host, "ip link set cni0 down", "bridge \"cni0\" is down"),
    Drift("bridge promiscuous", Host, "ip link set cni0 promisc on", "promiscuous mode on"),
    Drift(
        "bridge's MAC changed",
        Host,
        "ip link set cni0 address 02:00:00:00:00:08",
        "02:00:00:00:00:08",
    ),
    Drift(
        "bridge's address gone",
        Host,
        "ip addr del 10.1.0.1/24 dev cni0",
        "gateway address 10.1.0.1",
    ),
    Drift(
        "bridge's IPv6 address gone",
        Host,
        "ip addr del fd00:1::1/64 dev cni0",
        "gateway address fd00:1::1",
    ),
    Drift(
        "bridge's link-local address gone",
        Host,
        "ip -6 addr flush dev cni0 scope link",
        "link-local IPv6 address is gone",
    ),
    Drift(
        "bridge makes no link-local address",
        Host,
        "ip link set cni0 addrgenmode none; ip -6 addr flush dev cni0 scope link",
        "link-local IPv6 address is gone",
    ),
    Drift(
        "IPv6 off on the bridge",
        Host,
        "sysctl -qw net.ipv6.conf.cni0.disable_ipv6=1",
        "IPv6 is switched off on link \"cni0\"",
    ),
    Drift(
        "host's route to the containers gone",
        Host,
        "ip route del 10.1.0.0/24 dev cni0",
        "route to 10.1.0.0/24 by \"cni0\"",
    ),
    Drift(
        "host's IPv6 route to the containers gone",
        Host,
        "ip -6 route del fd00:1::/64 dev cni0",
        "route to fd00:1::/64 by \"cni0\"",
    ),
    Drift("STP on", Host, "ip link set cni0 type bridge stp_state 1", "has STP on"),
    Drift(
        "port listens since STP was on",
        Host,
        "ip link set cni0 type bridge stp_state 1; ip link set $port nomaster; ip link set $port master cni0; \
         bridge link set dev $port hairpin on isolated on; ip link set cni0 type bridge stp_state 0",
        "forwards nothing",
    ),
    Drift("port switched off", Host, "bridge link set dev $port state 0", "forwards nothing"),
    Drift("bridge's MTU less", Host, "ip link set cni0 mtu 1300", "has MTU 1300, not 1500"),
    Drift("bridge's MTU more", Host, "ip link set cni0 mtu 9000", "has MTU 9000, not 1500"),
    Drift("bridge gone", Host, "ip link del cni0", "bridge \"cni0\" is gone"),
    Drift(
        "IPv4 forwarding off",
        Host,
        "sysctl -qw net.ipv4.ip_forward=0",
        "IPv4 forwarding is off",
    ),
    Drift(
        "IPv6 forwarding off",
        Host,
        "sysctl -qw net.ipv6.conf.all.forwarding=0",
        "IPv6 forwarding is off",
    ),
    Drift(
        "container's neighbour entry forged",
        Host,
        "ip neigh replace 10.1.0.2 lladdr 02:00:00:00:00:66 dev cni0 nud permanent",
        "neighbour entry of 10.1.0.2",
    ),
    Drift(
        "masquerade elements gone",
        Host,
        "nft flush map inet netwright masquerade4",
        "masquerade4",
    ),
    Drift(
        "anti-spoofing element gone",
        Host,
        "nft flush set bridge netwright spoof_ports",
        "spoof_ports",
    ),
    Drift("host port element gone", Host, "nft flush map inet netwright hostports4", "hostports4"),
    Drift(
        "isolation element gone",
        Host,
        "nft flush set inet netwright policy_bridges",
        "policy_bridges",
    ),
    Drift(
        "somebody's chain in our table",
        Host,
        "nft 'add chain inet netwright x { type filter hook forward priority 5; }'",
        "foreign: chain x of table inet netwright",
    ),
    Drift("our table gone", Host, "nft delete table inet netwright", "missing: table"),
    Drift("the whole ruleset flushed", Host, "nft flush ruleset", "missing: table"),
    Drift("reservation gone", Host, "rm $ipam/n/10.1.0.2", "10.1.0.2 is not reserved"),
    Drift("all reservations gone", Host, "rm -r $ipam/n", "Failed to find address"),
    Drift("bucket to the container gone", Host, "tc qdisc del dev $port root", "qdisc"),
    Drift(
        "bucket's rate changed",
        Host,
        "tc qdisc change dev $port root tbf rate 1mbit burst 32k latency 20ms",
        "Rate doesn't match",
    ),
    Drift("filter gone", Host, "tc qdisc del dev $port ingress", "is not led to"),
    Drift("ifb link down", Host, "ip link set $ifb down", "is down"),
    Drift("ifb link gone", Host, "ip link del $ifb", "ifb device"),
];
