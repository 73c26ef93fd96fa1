//! The order in which base chains see a packet.

use super::Layer;
use super::packet::Packet;
use super::place::Place;
use crate::model::Namespace;
use crate::model::filter::{Base, Chain, Family, Hook, LegacyTable, Table};

/// What is asked at a hook.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Item<'n> {
    /// Here addresses of answers are translated back.
    Rewrite {
        /// When.
        priority: i32,
    },
    /// A base chain of nftables.
    Chain {
        table: &'n Table,
        chain: &'n Chain,
        base: &'n Base,
        /// It translates addresses.
        nat: bool,
        priority: i32,
    },
    /// A chain of the older iptables that is built in.
    Legacy { table: &'n LegacyTable, chain: &'static str, nat: bool, priority: i32 },
}

impl Item<'_> {
    pub(crate) fn priority(&self) -> i32 {
        match self {
            Item::Rewrite { priority }
            | Item::Chain { priority, .. }
            | Item::Legacy { priority, .. } => *priority,
        }
    }

    /// Says whether a place is in this base chain, or in a chain that it asks.
    pub(crate) fn is_of(&self, place: &Place, hook: Hook) -> bool {
        match self {
            Item::Rewrite { .. } => false,
            Item::Chain { table, chain, .. } => {
                !place.legacy
                    && place.hook == hook
                    && place.family == table.family.as_str()
                    && place.table == table.name
                    && place.base == chain.name
            }
            Item::Legacy { table, chain, .. } => {
                place.legacy && place.table == table.name && place.base == *chain
            }
        }
    }

    /// Chains that translate addresses are asked one after another at one priority of the kernel's
    /// own, in the order of theirs (linux net/netfilter/nf_nat_core.c `nf_nat_register_fn`).
    fn key(&self) -> (i32, i32) {
        match self {
            Item::Chain { priority, base, nat: true, .. } => (*priority, base.priority),
            Item::Legacy { priority, nat: true, .. } => (*priority, *priority),
            other => (other.priority(), 0),
        }
    }
}

/// linux include/uapi/linux/netfilter_ipv4.h `NF_IP_PRI_*`.
const NAT_DST: i32 = -100;
const NAT_SRC: i32 = 100;

fn nat_priority(hook: Hook) -> i32 {
    if matches!(hook, Hook::Prerouting | Hook::Output) { NAT_DST } else { NAT_SRC }
}

/// Returns what is asked at a hook, in order.
pub(crate) fn items<'n>(
    namespace: &'n Namespace,
    layer: Layer,
    hook: Hook,
    packet: &Packet,
) -> Vec<Item<'n>> {
    let (mut items, mut translations) = (Vec::new(), Vec::new());
    for table in namespace.filter.tables.iter().filter(|table| !table.dormant) {
        if !sees(table.family, layer, packet) {
            continue;
        }
        for chain in &table.chains {
            let Some(base) = &chain.base else { continue };
            if base.hook != hook || !is_of_device(base, layer, hook, packet) {
                continue;
            }
            let nat = base.kind == "nat";
            let priority = if nat { nat_priority(hook) } else { base.priority };
            let item = Item::Chain { table, chain, base, nat, priority };
            if nat {
                translations.push(item);
            } else {
                items.push(item);
            }
        }
    }
    // Tables are listed by age, and of chains with one priority the kernel asks the newest first
    // (linux net/netfilter/core.c `nf_hook_entries_grow`).
    items.extend(translations.into_iter().rev());
    if layer == Layer::Ip {
        items.push(Item::Rewrite { priority: nat_priority(hook) });
        items.extend(legacy(namespace, hook, packet));
    }
    items.sort_by_key(Item::key);
    items
}

fn sees(family: Family, layer: Layer, packet: &Packet) -> bool {
    match layer {
        Layer::Ip => match family {
            Family::Inet => true,
            Family::Ip => packet.is_ipv4(),
            Family::Ip6 => !packet.is_ipv4(),
            Family::Arp | Family::Bridge | Family::Netdev => false,
        },
        Layer::Bridge => family == Family::Bridge,
        Layer::Arp => family == Family::Arp,
        Layer::Device => matches!(family, Family::Netdev | Family::Inet),
    }
}

/// A chain of a link sees that link's frames. Of one whose link is not known, the caller doubts.
fn is_of_device(base: &Base, layer: Layer, hook: Hook, packet: &Packet) -> bool {
    if layer != Layer::Device {
        return !matches!(hook, Hook::Ingress | Hook::Egress);
    }
    let link = if hook == Hook::Egress { &packet.oif } else { &packet.iif };
    base.device.is_none() || base.device == *link
}

fn legacy<'n>(
    namespace: &'n Namespace,
    hook: Hook,
    packet: &Packet,
) -> impl Iterator<Item = Item<'n>> {
    let chain = match hook {
        Hook::Prerouting => "PREROUTING",
        Hook::Input => "INPUT",
        Hook::Forward => "FORWARD",
        Hook::Output => "OUTPUT",
        Hook::Postrouting => "POSTROUTING",
        Hook::Ingress | Hook::Egress => "",
    };
    let is_ipv4 = packet.is_ipv4();
    let tables = namespace.filter.legacy.iter().filter(move |table| {
        table.ipv4 == is_ipv4 && table.policies.iter().any(|(name, _)| name == chain)
    });
    tables.map(move |table| {
        let nat = table.name == "nat";
        let priority = legacy_priority(&table.name, hook);
        Item::Legacy { table, chain, nat, priority }
    })
}

/// Returns the priority of a table of the older iptables at a hook.
pub(crate) fn legacy_priority(table: &str, hook: Hook) -> i32 {
    match table {
        "raw" => -300,
        "mangle" => -150,
        "nat" => nat_priority(hook),
        "security" => 50,
        _ => 0,
    }
}
