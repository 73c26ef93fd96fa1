//! The sets, chains and rules of `inet netwright-routing`.
//!
//! `docs/firewall.md` explains them; the snapshot in the tests shows them.

use kernel::nft::{
    Batch, CmpOp, Expr, Family, Hook, HookPoint, KeyType, NewChain, NewRule, NewSet, PayloadBase,
    Register, TableRef, Value, field,
};

use super::{Encapsulation, Rules};
use crate::layout::{BEHIND_SRCNAT, RAW, net, no_interface_in};

/// The table's comment.
const COMMENT: &str = "Netwright. Filled by netwrightd routing: do not edit.";
/// The usual priority of what changes packets (`mangle`).
const MANGLE: i32 = -150;
/// After IPVS and all that translates, so that packets have the destination that they arrive at (linux
/// net/netfilter/ipvs/ip_vs_core.c `ip_vs_ops4`: `NF_IP_PRI_NAT_SRC` - 1 at most).
const ARRIVED: i32 = 101;

const STRANGERS: &str = "strangers";
const TOO_BIG: &str = "too-big";
const SOURCES: &str = "sources";
const TO_NODES: &str = "to-nodes";

/// A set of the table. The names are those `nft list ruleset` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Set {
    /// Prefixes of this node's pods.
    Own4,
    /// The same for IPv6.
    Own6,
    /// Ranges of all pods.
    Cluster4,
    /// The same for IPv6.
    Cluster6,
    /// Other ranges that see pods' addresses.
    Exempt4,
    /// The same for IPv6.
    Exempt6,
    /// Addresses of nodes, from which tunnels' packets come.
    Nodes4,
    /// The same for IPv6.
    Nodes6,
    /// Further addresses of nodes.
    Addresses4,
    /// The same for IPv6.
    Addresses6,
    /// This node's addresses to which other nodes send tunnels' packets.
    Endpoints4,
    /// The same for IPv6.
    Endpoints6,
    /// What this node's pods have addresses of, and no others.
    Local4,
    /// The same for IPv6.
    Local6,
    /// What pods of other nodes have addresses of whose packets come without a tunnel.
    Plain4,
    /// The same for IPv6.
    Plain6,
    /// Where the kernel's routes decide by which uplink packets from pods' addresses come.
    Routed4,
    /// The same for IPv6.
    Routed6,
    /// Links by which packets of other nodes come, by name.
    Underlay,
    /// Links to other hosts, behind which no pod of this node is, by name.
    Uplinks,
    /// Tunnels to other nodes, by name.
    Tunnels,
}

impl Set {
    /// Every set, in the order they are made.
    pub(crate) const ALL: [Set; 21] = [
        Set::Own4,
        Set::Own6,
        Set::Cluster4,
        Set::Cluster6,
        Set::Exempt4,
        Set::Exempt6,
        Set::Nodes4,
        Set::Nodes6,
        Set::Addresses4,
        Set::Addresses6,
        Set::Endpoints4,
        Set::Endpoints6,
        Set::Local4,
        Set::Local6,
        Set::Plain4,
        Set::Plain6,
        Set::Routed4,
        Set::Routed6,
        Set::Underlay,
        Set::Uplinks,
        Set::Tunnels,
    ];

    /// Returns the set's name in nftables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Set::Own4 => "own4",
            Set::Own6 => "own6",
            Set::Cluster4 => "cluster4",
            Set::Cluster6 => "cluster6",
            Set::Exempt4 => "exempt4",
            Set::Exempt6 => "exempt6",
            Set::Nodes4 => "nodes4",
            Set::Nodes6 => "nodes6",
            Set::Addresses4 => "addresses4",
            Set::Addresses6 => "addresses6",
            Set::Endpoints4 => "endpoints4",
            Set::Endpoints6 => "endpoints6",
            Set::Local4 => "local4",
            Set::Local6 => "local6",
            Set::Plain4 => "plain4",
            Set::Plain6 => "plain6",
            Set::Routed4 => "routed4",
            Set::Routed6 => "routed6",
            Set::Underlay => "underlay",
            Set::Uplinks => "uplinks",
            Set::Tunnels => "tunnels",
        }
    }

    /// Returns the type of its keys.
    pub(crate) const fn key(self) -> KeyType {
        match self {
            Set::Own4
            | Set::Cluster4
            | Set::Exempt4
            | Set::Nodes4
            | Set::Addresses4
            | Set::Endpoints4
            | Set::Local4
            | Set::Plain4
            | Set::Routed4 => KeyType::Ipv4Addr,
            Set::Own6
            | Set::Cluster6
            | Set::Exempt6
            | Set::Nodes6
            | Set::Addresses6
            | Set::Endpoints6
            | Set::Local6
            | Set::Plain6
            | Set::Routed6 => KeyType::Ipv6Addr,
            Set::Underlay | Set::Uplinks | Set::Tunnels => KeyType::IfName,
        }
    }

    /// Says whether its elements are ranges.
    pub(crate) const fn has_ranges(self) -> bool {
        matches!(
            self,
            Set::Own4
                | Set::Own6
                | Set::Cluster4
                | Set::Cluster6
                | Set::Exempt4
                | Set::Exempt6
                | Set::Local4
                | Set::Local6
                | Set::Plain4
                | Set::Plain6
                | Set::Routed4
                | Set::Routed6
        )
    }
}

/// Names the table.
pub(crate) fn table() -> TableRef {
    TableRef::new(Family::Inet, "netwright-routing")
}

/// Makes the table anew, without elements. The same transaction removes a table of that name:
/// chains at other hooks and sets of other types cannot be changed into the right ones.
pub(crate) fn make_table(batch: &mut Batch) {
    let table = table();
    batch.add_table(&table, None);
    batch.delete_table(&table);
    batch.add_table(&table, Some(COMMENT));
    for set in Set::ALL {
        batch.add_set(new_set(set));
    }
}

/// Describes a set without its elements.
pub(crate) fn new_set(set: Set) -> NewSet {
    let new = NewSet::set(&table(), set.name(), [set.key()]);
    if set.has_ranges() { new.interval() } else { new }
}

/// Lists the chains.
pub(crate) fn chains() -> Vec<NewChain> {
    let table = table();
    let base = |name: &str, hook| NewChain::base(&table, name, hook);
    vec![
        NewChain::regular(&table, STRANGERS),
        NewChain::regular(&table, TOO_BIG),
        NewChain::regular(&table, SOURCES),
        NewChain::regular(&table, TO_NODES),
        base("prerouting", Hook::filter(HookPoint::Prerouting, RAW)),
        base("input", Hook::filter(HookPoint::Input, ARRIVED)),
        base("forward", Hook::filter(HookPoint::Forward, MANGLE)),
        // Before anything translates sources.
        base("outbound", Hook::filter(HookPoint::Postrouting, MANGLE)),
        // Programs that translate service addresses (kube-proxy and the like) and the plugins'
        // own rules do that at the usual priority, and the first translation of a flow wins.
        base("postrouting", Hook::nat(HookPoint::Postrouting, BEHIND_SRCNAT)),
    ]
}

/// Lists the rules, chain by chain.
pub(crate) fn rules(wanted: &Rules) -> Vec<NewRule> {
    let table = table();
    let rule = |chain: &str| NewRule::new(&table, chain);
    let tunnels = Set::Tunnels.name();
    let mut rules = Vec::new();

    for tunnel in &wanted.tunnels {
        let early = of_tunnel(rule("prerouting"), tunnel);
        // What is for another host passes; a broadcast is for this host too.
        rules.push(early.is_not(field::fib_daddr_type(), UNICAST).jump(STRANGERS));
        rules.push(of_tunnel(rule("input"), tunnel).jump(STRANGERS));
    }
    rules.extend(strangers_rules(&table));
    if !wanted.tunnels.is_empty() {
        rules.push(of_too_big(rule("input")).jump(TOO_BIG));
        rules.extend(too_big_rules(&table));
    }
    let sources = [(field::ip_saddr(), Set::Cluster4), (field::ip6_saddr(), Set::Cluster6)];
    rules.extend(
        sources.map(|(source, set)| rule("prerouting").in_set(&[source], set.name()).jump(SOURCES)),
    );
    rules.extend(sources_rules(&table));
    for tunnel in &wanted.tunnels {
        for (address, set) in [
            (field::ip_daddr(), Set::Nodes4),
            (field::ip6_daddr(), Set::Nodes6),
            (field::ip_daddr(), Set::Addresses4),
            (field::ip6_daddr(), Set::Addresses6),
        ] {
            let leaving = of_tunnel(rule("outbound"), tunnel);
            rules.push(leaving.in_set(&[address], set.name()).jump(TO_NODES));
        }
    }
    rules.extend(to_nodes_rules(&table));

    // What comes out of a tunnel is clamped too: its sender may not have clamped it.
    for way in [field::oifname(), field::iifname()] {
        rules.push(rule("forward").in_set(&[way], tunnels).clamp_segment_size());
    }

    if wanted.masquerade {
        let families = [
            (
                field::ip_saddr(),
                field::ip_daddr(),
                [Set::Own4, Set::Cluster4, Set::Exempt4, Set::Nodes4],
                "224.0.0.0/4",
            ),
            (
                field::ip6_saddr(),
                field::ip6_daddr(),
                [Set::Own6, Set::Cluster6, Set::Exempt6, Set::Nodes6],
                "ff00::/8",
            ),
        ];
        for (source, destination, [own, others @ ..], multicast) in families {
            let leaving = rule("postrouting")
                .in_set(&[source], own.name())
                .not_in_set(&[field::iifname()], tunnels);
            let leaving = others
                .into_iter()
                .fold(leaving, |rule, set| rule.not_in_set(&[destination], set.name()));
            rules.push(leaving.not_in_net(destination, net(multicast)).masquerade_fully_random());
        }
    }
    rules
}

/// Judges packets of tunnels for this host. A tunnel takes them at every address of the host, from
/// every sender. So does this: a node may have sent what a pod of it has sent to an address that is
/// not known as a node's, or to a port that is no tunnel's, with the pod's source translated.
fn strangers_rules(table: &TableRef) -> [NewRule; 4] {
    let rule = || NewRule::new(table, STRANGERS);
    let of_node = |source, nodes: Set, destination, endpoints: Set| {
        rule()
            .in_set(&[source], nodes.name())
            .in_set(&[destination], endpoints.name())
            .in_set(&[field::iifname()], Set::Underlay.name())
            .returns()
    };
    [
        // It was for another address or port, such as a service's, and nodes send to the tunnel itself.
        // Before connection tracking, no packet is known as translated.
        rule().has_any(field::ct_status(), field::ct_status_bits::DNAT).counter().drop(),
        of_node(field::ip_saddr(), Set::Nodes4, field::ip_daddr(), Set::Endpoints4),
        of_node(field::ip6_saddr(), Set::Nodes6, field::ip6_daddr(), Set::Endpoints6),
        rule().counter().drop(),
    ]
}

/// The least that must fit to a node for its pods to have IPv6: 1280 bytes (RFC 8200 §5), and what VXLAN
/// takes over IPv6.
const LEAST_TO_NODE: u32 = 1280 + 70;

/// Picks errors that claim that less than this fits. The kernel checks those about TCP itself, by the
/// sequence number (linux net/ipv6/tcp_ipv6.c `tcp_v6_err`), and a flow of the host may need them.
/// Connection tracking has put their fragments together.
fn of_too_big(rule: NewRule) -> NewRule {
    /// RFC 4443 §3.2: "packet too big".
    const KIND: u8 = 2;
    const TCP: u8 = 6;
    let register = Register::FIRST;
    let at = |offset, len| Expr::Payload { base: PayloadBase::Transport, offset, len, register };
    let cmp = |op, data: &[u8]| Expr::Cmp { op, register, data: data.to_vec() };
    rule.is(field::icmp6_type(), Value::Icmp6Type(KIND))
        // The MTU is at byte 4, and the packet at byte 8, whose byte 6 says what it carries.
        .expr(at(4, 4))
        .expr(cmp(CmpOp::Lt, &LEAST_TO_NODE.to_be_bytes()))
        .expr(at(8 + 6, 1))
        .expr(cmp(CmpOp::Ne, &[TCP]))
}

/// Judges these errors: the kernel believes them of anybody, and it does not fragment what a tunnel
/// sends over IPv6.
fn too_big_rules(table: &TableRef) -> [NewRule; 3] {
    use field::ct_state_bits::{INVALID, UNTRACKED};
    let rule = || NewRule::new(table, TOO_BIG);
    // This node's own address is one of a node too.
    let about = |end| {
        let of_another =
            rule().in_set(&[end], Set::Nodes6.name()).not_in_set(&[end], Set::Endpoints6.name());
        of_another.counter().drop()
    };
    [
        // About a flow that is not known, such as an invented echo request.
        rule().has_any(field::ct_state(), INVALID | UNTRACKED).counter().drop(),
        about(field::ct_original_ip6_daddr()),
        about(field::ct_original_ip6_saddr()),
    ]
}

/// Judges by which link packets from addresses of pods come in.
fn sources_rules(table: &TableRef) -> [NewRule; 10] {
    let rule = || NewRule::new(table, SOURCES);
    let [tunnels, underlay, uplinks] = [Set::Tunnels, Set::Underlay, Set::Uplinks].map(Set::name);
    let by_kernels_route =
        |rule: NewRule| rule.is_not(field::fib_reverse_oif(), Value::IfIndex(0)).returns();
    let routed = |source, routed: Set, local: Set| {
        by_kernels_route(
            rule().in_set(&[source], routed.name()).not_in_set(&[source], local.name()),
        )
    };
    let out_of_tunnel = |source, local: Set| {
        rule().in_set(&[field::iifname()], tunnels).not_in_set(&[source], local.name()).returns()
    };
    let plain = |source, plain: Set| {
        rule().in_set(&[field::iifname()], underlay).in_set(&[source], plain.name()).returns()
    };
    // Only what is for other nodes' pods goes into a tunnel.
    let for_node = |source, local: Set, destination, endpoints: Set| {
        rule()
            .in_set(&[field::iifname()], underlay)
            .in_set(&[destination], endpoints.name())
            .not_in_set(&[source], local.name())
            .returns()
    };
    [
        out_of_tunnel(field::ip_saddr(), Set::Local4),
        out_of_tunnel(field::ip6_saddr(), Set::Local6),
        plain(field::ip_saddr(), Set::Plain4),
        plain(field::ip6_saddr(), Set::Plain6),
        for_node(field::ip_saddr(), Set::Local4, field::ip_daddr(), Set::Endpoints4),
        for_node(field::ip6_saddr(), Set::Local6, field::ip6_daddr(), Set::Endpoints6),
        // A pod's own link is the one by which the host reaches it. Machines behind an uplink can give
        // the kernel routes to pods: by router advertisements, or by DHCP.
        by_kernels_route(
            rule()
                .not_in_set(&[field::iifname()], uplinks)
                .not_in_set(&[field::iifname()], tunnels),
        ),
        routed(field::ip_saddr(), Set::Routed4, Set::Local4),
        routed(field::ip6_saddr(), Set::Routed6, Set::Local6),
        rule().counter().drop(),
    ]
}

/// Judges packets of tunnels that leave for a node's address. Its tunnel would take them for this
/// node's once their source is translated.
fn to_nodes_rules(table: &TableRef) -> [NewRule; 6] {
    let rule = || NewRule::new(table, TO_NODES);
    // A router between other nodes passes on what they send.
    let between = |source, nodes: Set| {
        rule()
            .in_set(&[field::iifname()], Set::Underlay.name())
            .in_set(&[source], nodes.name())
            .returns()
    };
    [
        // A program of this host sends it. A frame that `br_netfilter` shows on its way through a bridge
        // came in by no link either.
        no_interface_in(rule()).is(field::fib_saddr_type(), Value::LOCAL).returns(),
        // The outer packet comes from the tunnel, and from an address of this host. A packet that
        // came out of the tunnel has another source.
        rule()
            .in_set(&[field::iifname()], Set::Tunnels.name())
            .is(field::fib_saddr_type(), Value::LOCAL)
            .returns(),
        // Nodes send to nodes: what was for another address, such as a service's, is no node's. This
        // also makes the kernel put fragments together, so that each packet has the headers.
        rule().has_any(field::ct_status(), field::ct_status_bits::DNAT).counter().drop(),
        between(field::ip_saddr(), Set::Nodes4),
        between(field::ip6_saddr(), Set::Nodes6),
        rule().counter().drop(),
    ]
}

/// A route to another host (RTN_UNICAST).
const UNICAST: Value = Value::AddrType(1);

/// Picks the packets of a tunnel.
fn of_tunnel(rule: NewRule, tunnel: &Encapsulation) -> NewRule {
    let register = Register::FIRST;
    let mut rule = rule.is(field::l4proto(), Value::Protocol(tunnel.protocol));
    if let Some(port) = tunnel.port {
        rule = rule.is(field::th_dport(), Value::Port(port));
    }
    let Some((offset, bytes)) = &tunnel.content else { return rule };
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    rule.expr(Expr::Payload { base: PayloadBase::Transport, offset: *offset, len, register })
        .expr(Expr::Cmp { op: CmpOp::Eq, register, data: bytes.clone() })
}
