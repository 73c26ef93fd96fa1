//! What of a container a difference breaks.

use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;

use crate::finding::WayKind;
use crate::model::{Attachment, Drift, Item, ItemKind};

/// Everything that goes through the container's link.
pub(super) const ALL: &[WayKind] = &WayKind::BY_LINK;

/// What the node forwards.
const FORWARDED: &[WayKind] =
    &[WayKind::Outside, WayKind::Published, WayKind::Names, WayKind::Nodes];

/// What a container sends to others, with the source address that they know.
const TRANSLATED: &[WayKind] = &[WayKind::Outside, WayKind::Names];

/// Published ports.
const PORTS: &[WayKind] = &[WayKind::Published, WayKind::PublishedHere];

/// Large packets.
const LARGE: &[WayKind] = &[
    WayKind::Outside,
    WayKind::Between,
    WayKind::FromNode,
    WayKind::Published,
    WayKind::PublishedHere,
    WayKind::Nodes,
];

/// Our sets by the beginnings of their names, with what does not pass without their elements. A
/// name ends with its IP version, if it has one. Without elements that refuse, more passes.
static SETS: [(&str, &[WayKind]); 14] = [
    ("masquerade", TRANSLATED),
    ("hostports", PORTS),
    ("hairpin", &[WayKind::Published]),
    ("local_snat", &[WayKind::PublishedHere]),
    ("loopback6", &[WayKind::PublishedHere]),
    ("snat_all", PORTS),
    ("localnet", &[]),
    ("policy_", &[]),
    ("isolated_ports", &[]),
    ("spoof_ports", &[]),
    ("spoof_allowed", ALL),
    ("no_routers", &[]),
    ("pod_", ALL),
    ("port_addresses", ALL),
];

/// Kernel parameters by parts of their names, with what may break if they have another value.
static SYSCTLS: [(&str, &[WayKind]); 9] = [
    ("disable_ipv6", ALL),
    ("forwarding", FORWARDED),
    ("ip_forward", FORWARDED),
    ("route_localnet", &[WayKind::PublishedHere]),
    ("rp_filter", FORWARDED),
    ("arp_", ALL),
    ("accept_ra", &[WayKind::Outside, WayKind::Names]),
    ("accept_local", &WayKind::BY_NODE),
    ("ip_nonlocal_bind", &[]),
];

/// A way, and its IP version; `None`: both.
type BrokenWay = (WayKind, Option<IpFamily>);

/// Returns what a plugin's differences break. A plugin that does not say what differs may
/// mean anything.
pub(super) fn of(drift: &Drift, attachment: &Attachment) -> Vec<BrokenWay> {
    if drift.items.is_empty() {
        return with(ALL, &[None]);
    }
    let mut all: Vec<BrokenWay> =
        drift.items.iter().flat_map(|item| of_item(item, attachment)).collect();
    all.sort_unstable();
    all.dedup();
    // A way that breaks for both is not told once more for one.
    let both: Vec<WayKind> =
        all.iter().filter(|(_, family)| family.is_none()).map(|(kind, _)| *kind).collect();
    all.retain(|(kind, family)| family.is_none() || !both.contains(kind));
    all
}

fn with(kinds: &[WayKind], families: &[Option<IpFamily>]) -> Vec<BrokenWay> {
    let each = |family: &Option<IpFamily>| {
        let family = *family;
        kinds.iter().map(move |kind| (*kind, family)).collect::<Vec<_>>()
    };
    families.iter().flat_map(each).collect()
}

fn of_item(item: &Item, attachment: &Attachment) -> Vec<BrokenWay> {
    let families = families(item);
    match item.kind {
        ItemKind::Setting | ItemKind::Shaping => Vec::new(),
        ItemKind::Mtu => with(LARGE, &[None]),
        ItemKind::Sysctls => item.sysctls.iter().flat_map(|path| of_sysctl(path)).collect(),
        ItemKind::Address => with(ALL, &families),
        ItemKind::Gateways | ItemKind::Neighbour => with(&WayKind::BY_NODE, &families),
        ItemKind::Route => with(of_route(item, attachment), &families),
        ItemKind::Port => with(of_port(&item.what), &[None]),
        ItemKind::LinkLocal => with(&WayKind::BY_NODE, &[Some(IpFamily::V6)]),
        ItemKind::Forwarding | ItemKind::PolicyRoute | ItemKind::Foreign => {
            with(FORWARDED, &families)
        }
        ItemKind::Filter => of_sets(&item.what, TRANSLATED, &families),
        ItemKind::HostPorts => of_sets(&item.what, PORTS, &families),
        _ => with(ALL, &[None]),
    }
}

/// Returns the IP versions of an item: of the addresses that its words name, or of all its own.
fn families(item: &Item) -> Vec<Option<IpFamily>> {
    let is_named = |address: &IpAddr| {
        let text = address.to_string();
        let mut words = item.what.split(|letter: char| letter.is_whitespace() || letter == ',');
        words.any(|word| word == text)
    };
    let all: Vec<IpAddr> = item.addresses.iter().map(IpNet::addr).collect();
    let named: Vec<IpAddr> = all.iter().copied().filter(is_named).collect();
    let told = if named.is_empty() { all } else { named };
    let mut families: Vec<Option<IpFamily>> =
        told.into_iter().map(|address| Some(IpFamily::of(address))).collect();
    families.sort_unstable();
    families.dedup();
    match families.len() {
        1 => families,
        _ => vec![None],
    }
}

fn of_sysctl(path: &str) -> Vec<BrokenWay> {
    let family = match (path.contains("ipv4"), path.contains("ipv6")) {
        (true, false) => Some(IpFamily::V4),
        (false, true) => Some(IpFamily::V6),
        _ => None,
    };
    let known = SYSCTLS.iter().find(|(part, _)| path.contains(part));
    known.map(|(_, kinds)| with(kinds, &[family])).unwrap_or_default()
}

/// A container's route, or the node's to the container.
fn of_route(item: &Item, attachment: &Attachment) -> &'static [WayKind] {
    let is_on_link = |to: &IpNet| attachment.addresses.iter().any(|own| own.trunc() == to.trunc());
    match item.addresses.first() {
        _ if item.host => &WayKind::BY_NODE,
        Some(to) if to.prefix_len() == 0 => FORWARDED,
        Some(to) if !is_on_link(to) && !is_gateway(to, attachment) => FORWARDED,
        _ => ALL,
    }
}

fn is_gateway(to: &IpNet, attachment: &Attachment) -> bool {
    attachment.gateways.iter().any(|gateway| to.contains(gateway))
}

fn of_port(what: &str) -> &'static [WayKind] {
    if what.contains("isolation on") {
        &[WayKind::Between]
    } else if what.contains("isolation off") {
        &[]
    } else if what.contains("hairpin mode") {
        &[WayKind::Published]
    } else {
        ALL
    }
}

/// Returns what our sets that are named in some words break; if none is named, `whole`.
fn of_sets(what: &str, whole: &[WayKind], families: &[Option<IpFamily>]) -> Vec<BrokenWay> {
    if what.contains("route_localnet") {
        return with(&[WayKind::PublishedHere], &[Some(IpFamily::V4)]);
    }
    let named = what.split_whitespace().find_map(|word| {
        let (_, kinds) = SETS.iter().find(|(name, _)| word.starts_with(name))?;
        Some((word, *kinds))
    });
    match named {
        Some((word, kinds)) if word.ends_with('4') => with(kinds, &[Some(IpFamily::V4)]),
        Some((word, kinds)) if word.ends_with('6') => with(kinds, &[Some(IpFamily::V6)]),
        Some((_, kinds)) => with(kinds, families),
        None => with(whole, families),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(kind: ItemKind, what: &str, addresses: &[&str]) -> Item {
        let addresses = addresses.iter().map(|net| net.parse().unwrap()).collect();
        Item { kind, what: what.to_owned(), addresses, ..Item::default() }
    }

    fn broken(item: Item) -> Vec<BrokenWay> {
        let drift = Drift {
            plugin: "bridge".to_owned(),
            code: 104,
            what: item.what.clone(),
            details: String::new(),
            items: vec![item],
        };
        let attachment = Attachment {
            addresses: vec!["10.88.0.2/24".parse().unwrap()],
            gateways: vec!["10.88.0.1".parse().unwrap()],
            ..Attachment::default()
        };
        of(&drift, &attachment)
    }

    fn is_broken(of: &[BrokenWay], kind: WayKind, family: IpFamily) -> bool {
        of.iter().any(|(one, own)| *one == kind && own.is_none_or(|own| own == family))
    }

    #[test]
    fn a_default_route_breaks_the_way_outside_of_its_ip_version() {
        let lost = broken(item(ItemKind::Route, "failed to find route ::/0", &["::/0"]));
        assert!(is_broken(&lost, WayKind::Outside, IpFamily::V6));
        assert!(!is_broken(&lost, WayKind::Outside, IpFamily::V4));
        assert!(!is_broken(&lost, WayKind::Gateway, IpFamily::V6));
        let on_link = broken(item(ItemKind::Route, "failed to find route", &["10.88.0.0/24"]));
        assert!(is_broken(&on_link, WayKind::Gateway, IpFamily::V4));
        assert!(!is_broken(&on_link, WayKind::Gateway, IpFamily::V6));
        let node = Item { host: true, ..item(ItemKind::Route, "is gone", &["10.88.0.0/24"]) };
        let node = broken(node);
        assert!(is_broken(&node, WayKind::FromNode, IpFamily::V4));
        assert!(!is_broken(&node, WayKind::Between, IpFamily::V4));
    }

    #[test]
    fn what_is_missing_of_a_filter_breaks_what_it_was_for() {
        let nets = ["10.88.0.2/24", "fd00:88::2/64"];
        let ports = broken(item(
            ItemKind::HostPorts,
            "packet filter: missing: inet netwright hostports4 { tcp . 8080 : 10.88.0.2 . 80 }",
            &[],
        ));
        assert!(is_broken(&ports, WayKind::Published, IpFamily::V4));
        assert!(!is_broken(&ports, WayKind::Published, IpFamily::V6));
        assert!(!is_broken(&ports, WayKind::Outside, IpFamily::V4));
        let localnet = "packet filter: route_localnet of \"cni0\" is 0, not 1";
        let localnet = broken(item(ItemKind::HostPorts, localnet, &[]));
        assert_eq!(localnet, [(WayKind::PublishedHere, Some(IpFamily::V4))]);
        let table = "packet filter: missing: table inet netwright";
        let table = broken(item(ItemKind::Filter, table, &nets));
        assert_eq!(table, [(WayKind::Outside, None), (WayKind::Names, None)]);
        let spoof = "missing: bridge netwright spoof_ports { \"veth1\" }";
        assert_eq!(broken(item(ItemKind::Filter, spoof, &nets)), []);
    }

    #[test]
    fn a_kernel_parameter_breaks_what_depends_on_it() {
        let of = |path: &str| {
            let item = item(ItemKind::Sysctls, "it is 0, not 1", &[]);
            broken(Item { sysctls: vec![path.to_owned()], ..item })
        };
        assert_eq!(of("net/core/somaxconn"), []);
        assert!(is_broken(&of("net/ipv6/conf/eth0/disable_ipv6"), WayKind::Gateway, IpFamily::V6));
        assert!(!is_broken(&of("net/ipv6/conf/eth0/disable_ipv6"), WayKind::Gateway, IpFamily::V4));
        let localnet = of("net/ipv4/conf/eth0/route_localnet");
        assert_eq!(localnet, [(WayKind::PublishedHere, Some(IpFamily::V4))]);
    }

    #[test]
    fn words_say_which_of_several_addresses_is_meant() {
        let nets = ["10.88.0.1/24", "fd00:88::1/64"];
        let one = "gateway address fd00:88::1 is gone from \"cni0\"";
        let one = broken(item(ItemKind::Gateways, one, &nets));
        assert!(is_broken(&one, WayKind::Gateway, IpFamily::V6));
        assert!(!is_broken(&one, WayKind::Gateway, IpFamily::V4));
        let both = "gateway addresses 10.88.0.1, fd00:88::1 are gone from \"cni0\"";
        let both = broken(item(ItemKind::Gateways, both, &nets));
        assert!(is_broken(&both, WayKind::Gateway, IpFamily::V4));
    }

    #[test]
    fn what_is_not_known_may_break_anything() {
        assert_eq!(broken(Item::default()), with(ALL, &[None]));
        let isolated = "port \"veth1\" has isolation on, the configuration asks for off";
        let isolated = broken(item(ItemKind::Port, isolated, &[]));
        assert_eq!(isolated, [(WayKind::Between, None)]);
        assert_eq!(broken(item(ItemKind::Setting, "its queue is short", &[])), []);
    }
}
