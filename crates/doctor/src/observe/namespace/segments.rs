//! Reads the settings of links that share a parent, distinguish VLANs, tunnel, or lose packets on
//! purpose.

use diagnose::model::{Link, Loss, Part, Peer, PortVlan, Rate, Redirect};
use kernel::ethtool::tx_checksums;
use kernel::netns::Netns;
use kernel::route::{
    BridgeVlan, ClassInfo, FilterInfo, QdiscInfo, QdiscKind, RouteSocket, TcHandle,
};
use kernel::wireguard;

use super::map::to_end;
use super::{ObservedNamespace, with_causes};

/// For how many links the filters of traffic control are read, and the classes, and for how many
/// tunnels the settings.
const FILTERED: usize = 2_000;
const TUNNELS: usize = 64;

/// How deep classes may lie below each other (TC_HTB_MAXDEPTH).
const DEEP: usize = 8;

/// How many of the links whose filters are not known are named.
const NAMED: usize = 8;

/// The number of a link that is gone, to which a filter sends packets.
const GONE: u32 = 0;

/// Every EtherType (`linux include/uapi/linux/if_ether.h` ETH_P_ALL).
const ETH_P_ALL: u16 = 3;

/// What is not read here is a hole of the filters: links and addresses are judged all the same.
impl ObservedNamespace {
    pub(super) fn segments(&mut self, socket: &mut RouteSocket, is_node: bool) {
        if self.namespace.links.iter().any(|link| link.vlan_filtering) {
            let holes = self.holes.len();
            let found = self.or_hole(Part::OtherFilters, socket.vlans_of_ports());
            self.note_cut(Part::OtherFilters, "ports with VLANs", socket);
            // Ports that are left out would seem to have no VLANs. Without any VLANs nothing is
            // concluded.
            let is_whole = self.holes.len() == holes;
            for (port, vlans) in found.into_iter().filter(|_| is_whole) {
                if let Some(link) = link_of(&mut self.namespace.links, port) {
                    link.vlans.extend(vlans.into_iter().map(vlan));
                }
            }
        }
        self.losses(socket);
        let tunnels = self.namespace.links.iter_mut().filter(|link| is_tunnel(link));
        let mut own = None;
        for link in tunnels.take(TUNNELS) {
            if link.kind.as_deref() == Some("wireguard") {
                let Ok(tunnel) = wireguard::tunnel(link.index) else { continue };
                link.port = tunnel.port;
                link.peers = Some(tunnel.peers.into_iter().map(peer).collect());
                continue;
            }
            if link.ends.is_some() {
                let found = socket.vxlan_fdb(link.index).ok().filter(|_| !socket.take_cut());
                link.ends = found.map(|found| found.iter().map(to_end).collect());
            }
            if is_node {
                own = own.or_else(|| Netns::current().ok());
                link.tx_checksums =
                    own.as_ref().and_then(|netns| tx_checksums(netns, &link.name).ok());
            }
        }
    }

    fn losses(&mut self, socket: &mut RouteSocket) {
        let found = self.or_hole(Part::OtherFilters, socket.qdiscs());
        self.note_cut(Part::OtherFilters, "queueing disciplines", socket);
        let (mut read, mut classed) = (0, 0);
        let (mut unread, mut opaque) = (Vec::new(), Vec::new());
        for discipline in found {
            let index = discipline.qdisc.ifindex;
            let mut losses: Vec<Loss> = of_discipline(&discipline).into_iter().collect();
            let mut redirects: Vec<Redirect> = Vec::new();
            let hooks: &[(TcHandle, bool)] = match discipline.qdisc.kind {
                QdiscKind::Ingress => &[(TcHandle::INGRESS_FILTERS, false)],
                QdiscKind::Clsact => {
                    &[(TcHandle::INGRESS_FILTERS, false), (TcHandle::EGRESS_FILTERS, true)]
                }
                _ => &[],
            };
            let name = self.called(index);
            if !hooks.is_empty() && FILTERED <= read {
                unread.push(name);
            } else if !hooks.is_empty() {
                read += 1;
                for (hook, leaving) in hooks {
                    let side = if *leaving { "egress" } else { "ingress" };
                    let place = format!("{side} of {name}");
                    let filters = socket.filters(index, *hook).unwrap_or_else(|error| {
                        let why = with_causes(&error);
                        self.hole(Part::OtherFilters, format!("filters at {place}: {why}"));
                        Vec::new()
                    });
                    self.note_cut(Part::OtherFilters, &format!("filters at {place}"), socket);
                    losses.extend(of_filters(&filters, *leaving));
                    redirects.extend(redirect(&filters, *leaving));
                    opaque.extend(filters.iter().any(|one| one.opaque).then_some(place));
                }
            }
            let mut limit = rate(&discipline);
            if discipline.qdisc.kind.name() == "htb" && classed < FILTERED {
                classed += 1;
                let classes = self.or_hole(Part::OtherFilters, socket.classes(index));
                self.note_cut(Part::OtherFilters, "classes", socket);
                limit = rate_of_classes(&discipline, &classes);
            }
            if let Some(link) = link_of(&mut self.namespace.links, index) {
                link.losses.extend(losses);
                link.redirects.extend(redirects);
                link.rate = tighter(link.rate, limit);
                link.delay_ms = link.delay_ms.max(delay_ms(&discipline));
            }
        }
        if !unread.is_empty() {
            let names = some_of(&unread);
            self.hole(Part::OtherFilters, format!("the filters of {names} were not read"));
        }
        if !opaque.is_empty() {
            let places = some_of(&opaque);
            let what = "a program of BPF, or a filter of an unknown kind, of traffic control";
            self.hole(Part::Unjudged, format!("{what} sees packets at {places}"));
        }
    }

    /// Returns the name of a link.
    fn called(&mut self, index: u32) -> String {
        let link = link_of(&mut self.namespace.links, index);
        link.map_or_else(|| format!("link {index}"), |link| link.name.clone())
    }
}

/// Names the first of several, and says how many more there are.
fn some_of(all: &[String]) -> String {
    let named = all[..all.len().min(NAMED)].join(", ");
    match all.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// The links are sorted by their indexes.
fn link_of(links: &mut [Link], index: u32) -> Option<&mut Link> {
    let at = links.binary_search_by_key(&index, |link| link.index).ok()?;
    links.get_mut(at)
}

fn is_tunnel(link: &Link) -> bool {
    matches!(link.kind.as_deref(), Some("vxlan" | "geneve" | "wireguard"))
}

fn vlan(vlan: BridgeVlan) -> PortVlan {
    PortVlan { first: vlan.first, last: vlan.last, pvid: vlan.pvid, untagged: vlan.untagged }
}

fn peer(peer: wireguard::Peer) -> Peer {
    Peer { key: peer.key.to_string(), endpoint: peer.endpoint, allowed: peer.allowed }
}

/// What a queueing discipline loses; one within another may get only some of the packets.
fn of_discipline(found: &QdiscInfo) -> Option<Loss> {
    let per_mille = per_mille(found.loss)?;
    let is_of_all = found.qdisc.parent == TcHandle::ROOT;
    Some(Loss {
        kind: found.qdisc.kind.name().to_owned(),
        filter: false,
        leaving: true,
        preference: 0,
        protocol: None,
        per_mille: is_of_all.then_some(per_mille),
    })
}

/// Returns the limit of what a link sends.
fn rate(found: &QdiscInfo) -> Option<Rate> {
    let of_some = found.qdisc.parent != TcHandle::ROOT;
    match &found.qdisc.kind {
        QdiscKind::Tbf(tbf) => Some(Rate { bytes_per_s: tbf.rate, burst: tbf.burst, of_some }),
        _ => None,
    }
}

/// Returns the limit of what goes by the classes of a discipline. One for what no filter picks is for
/// all packets if there is no other; others get only what a filter gives them.
fn rate_of_classes(found: &QdiscInfo, all: &[ClassInfo]) -> Option<Rate> {
    let major = |handle: TcHandle| handle.0 >> 16;
    let is_own = |one: &&ClassInfo| major(one.handle) == major(found.qdisc.handle);
    let own: Vec<&ClassInfo> = all.iter().filter(is_own).collect();
    let is_leaf = |one: &&ClassInfo| own.iter().all(|other| other.parent != one.handle);
    let leaves: Vec<&ClassInfo> = own.iter().copied().filter(is_leaf).collect();
    let is_only = leaves.len() == 1 && found.qdisc.parent == TcHandle::ROOT;
    let rates = leaves.iter().map(|leaf| Rate {
        bytes_per_s: fastest(leaf, &own),
        // A larger packet passes all the same, and others wait for longer after it.
        burst: u32::MAX,
        of_some: !(is_only && found.default_class == Some(leaf.handle)),
    });
    rates.min_by_key(|rate| (rate.of_some, rate.bytes_per_s))
}

/// Returns how much a class may send at best: its own rate, or what it may borrow from those above.
fn fastest(leaf: &ClassInfo, all: &[&ClassInfo]) -> u64 {
    let above = |one: &&ClassInfo| all.iter().copied().find(|other| other.handle == one.parent);
    let way = std::iter::successors(Some(leaf), above).take(DEEP);
    way.map(|one| one.ceil).min().unwrap_or(u64::MAX).max(leaf.rate)
}

/// Of several limits of a link, the one for all packets counts, or else the lowest.
fn tighter(known: Option<Rate>, other: Option<Rate>) -> Option<Rate> {
    known.into_iter().chain(other).min_by_key(|rate| (rate.of_some, rate.bytes_per_s))
}

/// Returns how long all that a link sends is held.
fn delay_ms(found: &QdiscInfo) -> u32 {
    match found.qdisc.parent {
        TcHandle::ROOT => u32::try_from(found.delay.as_millis()).unwrap_or(u32::MAX),
        _ => 0,
    }
}

/// Returns a part of 2^32 as one of a thousand; `None` if it is nothing.
fn per_mille(part: u32) -> Option<u16> {
    let rounded = (u64::from(part) * 1000 + (1 << 31)) >> 32;
    (part != 0).then(|| u16::try_from(rounded).unwrap_or(1000).max(1))
}

/// What the filters of a hook drop, or send to a link that is gone. The kernel asks the filters in
/// this order.
fn of_filters(filters: &[FilterInfo], leaving: bool) -> Vec<Loss> {
    let loss = |(place, filter): (usize, &FilterInfo)| Loss {
        kind: filter.kind.clone(),
        filter: true,
        leaving,
        preference: filter.preference,
        protocol: protocol_of(filter),
        per_mille: (place == 0 && filter.takes_all).then_some(1000),
    };
    let loses = |filter: &FilterInfo| filter.drops || filter.redirects_to == Some(GONE);
    filters.iter().enumerate().filter(|(_, filter)| loses(filter)).map(loss).collect()
}

/// Returns the filter of a hook that is asked first, if it sends all frames to another link that is
/// there.
fn redirect(filters: &[FilterInfo], leaving: bool) -> Option<Redirect> {
    let first = filters.first().filter(|first| first.takes_all)?;
    let to = first.redirects_to.filter(|to| *to != GONE)?;
    Some(Redirect {
        kind: first.kind.clone(),
        leaving,
        preference: first.preference,
        protocol: protocol_of(first),
        to,
    })
}

fn protocol_of(filter: &FilterInfo) -> Option<u16> {
    (filter.protocol != ETH_P_ALL).then_some(filter.protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_links_some_are_named() {
        let names = |count: usize| (0..count).map(|n| format!("d{n}")).collect::<Vec<_>>();
        assert_eq!(some_of(&names(2)), "d0, d1");
        assert_eq!(some_of(&names(NAMED)), "d0, d1, d2, d3, d4, d5, d6, d7");
        assert_eq!(some_of(&names(10)), "d0, d1, d2, d3, d4, d5, d6, d7 and 2 more");
    }

    #[test]
    fn of_several_limits_one_counts() {
        let rate = |bytes_per_s, of_some| Some(Rate { bytes_per_s, burst: 3000, of_some });
        assert_eq!(tighter(None, rate(900, true)), rate(900, true));
        assert_eq!(tighter(rate(900, true), rate(10, true)), rate(10, true));
        assert_eq!(tighter(rate(10, true), rate(900, false)), rate(900, false));
        assert_eq!(tighter(rate(900, false), None), rate(900, false));
    }

    #[test]
    fn parts_are_told_of_a_thousand() {
        let parts = [0, 1, u32::MAX / 2, u32::MAX / 100, u32::MAX];
        assert_eq!(parts.map(per_mille), [None, Some(1), Some(500), Some(10), Some(1000)]);
    }
}
