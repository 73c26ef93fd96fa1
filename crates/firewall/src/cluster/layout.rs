//! The sets, chains and rules of `inet netwright-routing`.
//!
//! `docs/firewall.md` explains them; the snapshot in the tests shows them.

use kernel::nft::{
    Batch, CmpOp, Expr, Family, Hook, HookPoint, KeyType, NewChain, NewRule, NewSet, PayloadBase,
    Register, TableRef, Value, field,
};

use super::{Rules, Vxlan};
use crate::layout::{BEHIND_SRCNAT, RAW, net};

/// The table's comment.
const COMMENT: &str = "Netwright. Filled by netwrightd routing: do not edit.";
/// The usual priority of what changes packets (`mangle`).
const MANGLE: i32 = -150;

const STRANGERS: &str = "strangers";

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
    /// Addresses of nodes.
    Nodes4,
    /// The same for IPv6.
    Nodes6,
    /// Tunnels to other nodes, by name.
    Tunnels,
}

impl Set {
    /// Every set, in the order they are made.
    pub(crate) const ALL: [Set; 9] = [
        Set::Own4,
        Set::Own6,
        Set::Cluster4,
        Set::Cluster6,
        Set::Exempt4,
        Set::Exempt6,
        Set::Nodes4,
        Set::Nodes6,
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
            Set::Tunnels => "tunnels",
        }
    }

    /// Returns the type of its keys.
    pub(crate) const fn key(self) -> KeyType {
        match self {
            Set::Own4 | Set::Cluster4 | Set::Exempt4 | Set::Nodes4 => KeyType::Ipv4Addr,
            Set::Own6 | Set::Cluster6 | Set::Exempt6 | Set::Nodes6 => KeyType::Ipv6Addr,
            Set::Tunnels => KeyType::IfName,
        }
    }

    /// Says whether its elements are ranges.
    pub(crate) const fn has_ranges(self) -> bool {
        !matches!(self, Set::Nodes4 | Set::Nodes6 | Set::Tunnels)
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
        let new = NewSet::set(&table, set.name(), [set.key()]);
        batch.add_set(if set.has_ranges() { new.interval() } else { new });
    }
}

/// Lists the chains.
pub(crate) fn chains() -> Vec<NewChain> {
    let table = table();
    let base = |name: &str, hook| NewChain::base(&table, name, hook);
    vec![
        NewChain::regular(&table, STRANGERS),
        base("prerouting", Hook::filter(HookPoint::Prerouting, RAW)),
        base("forward", Hook::filter(HookPoint::Forward, MANGLE)),
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

    for vxlan in &wanted.vxlan {
        rules.push(of_tunnel(rule("prerouting"), *vxlan).jump(STRANGERS));
    }
    let known = |address, set: Set| rule(STRANGERS).in_set(&[address], set.name()).returns();
    rules.push(known(field::ip_saddr(), Set::Nodes4));
    rules.push(known(field::ip6_saddr(), Set::Nodes6));
    // For another host; a broadcast is for this host too.
    rules.push(rule(STRANGERS).is(field::fib_daddr_type(), UNICAST).returns());
    rules.push(rule(STRANGERS).counter().drop());

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

/// A route to another host (RTN_UNICAST).
const UNICAST: Value = Value::AddrType(1);

/// Picks the packets of a tunnel by their port and their VNI: other tunnels may use the same port,
/// which is the kernel's own default. RFC 7348 §5: the VNI is 4 bytes behind the UDP header.
fn of_tunnel(rule: NewRule, vxlan: Vxlan) -> NewRule {
    let register = Register::FIRST;
    let [_, vni @ ..] = vxlan.vni.to_be_bytes();
    rule.is(field::l4proto(), Value::UDP)
        .is(field::th_dport(), Value::Port(vxlan.port))
        .expr(Expr::Payload { base: PayloadBase::Transport, offset: 12, len: 3, register })
        .expr(Expr::Cmp { op: CmpOp::Eq, register, data: vni.to_vec() })
}
