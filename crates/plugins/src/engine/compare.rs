//! The comparison of one item with what is there.

use std::net::IpAddr;

use cni::IpConfig;
use ipnet::IpNet;
use kernel::mac::MacAddr;
use kernel::route::{self, Neighbour, NeighbourState, TABLE_MAIN};
use wanted::{Address, Item, Place, Reason, Route, RouteMatch, State};

use super::any_kind::ConfiguredKind;
use super::backend;
use super::picture::{Comparison, Mismatch, Picture, differs, sound};
use crate::shared::claim::{self, ContainerRouting};
use crate::shared::failure::Failure;
use crate::shared::host_side::{self, RouteDifference};
use crate::shared::{advertisements, dropping, forwarding, identity, rules};

impl Picture<'_> {
    pub(super) fn compare(&mut self, own: &dyn ConfiguredKind, item: &Item) -> Comparison {
        let place = item.place;
        match &item.state {
            State::Link { link, kinds } => self.compare_link(own, item, link, kinds),
            State::Peer { link, of } => self.compare_peer(link, of),
            State::Recorded { link } => self.compare_recorded(place, link),
            State::Mac { link, .. }
            | State::Mtu { link, .. }
            | State::QueueLength { link, .. }
            | State::Promiscuous { link, .. }
            | State::AllMulticast { link, .. } => self.compare_value(own, item, link),
            State::Up { link } => match self.side(place).link(link)? {
                Some(found) if !found.up() => {
                    let what = if place == Place::Host { "link" } else { "interface" };
                    differs(format!("{what} {link:?} is down"))
                }
                _ => sound(),
            },
            State::Mark { link, alias } => match self.side(place).link(link)? {
                Some(found) if found.alias.as_ref() != Some(alias) => {
                    let found = found.alias.unwrap_or_else(|| "none".to_owned());
                    differs(format!("link {link:?} has mark (alias) {found}, not {alias}"))
                }
                _ => sound(),
            },
            State::Address(address) => self.compare_address(place, address),
            State::Route(route) => self.compare_route(place, route),
            State::Path { link, to, by } => {
                let Some(found) = self.side(Place::Host).link(link)? else { return sound() };
                // Without the route of our own there is nothing to cover: another item says so.
                let ours = self.side(Place::Host).routes(by, Some(found.index))?;
                if !ours.iter().any(|route| route.destination == *by) {
                    return sound();
                }
                let covered =
                    host_side::covering(&mut self.namespaces.get()?.host, &found, *to, by)?;
                covered.map_or_else(sound, |covered| differs(covered.describe(link)))
            }
            State::SubnetRoute { link, gateway, to } => {
                let Some(found) = self.side(Place::Host).link(link)? else { return sound() };
                match host_side::compare_subnet_route(
                    &mut self.namespaces.get()?.host,
                    &found,
                    gateway,
                    *to,
                )? {
                    None => sound(),
                    Some(RouteDifference::Missing) => differs(format!("{item} is gone")),
                    Some(RouteDifference::Covered(by)) => {
                        Ok(vec![Mismatch::by_hand(by.describe(link), wanted::ROUTE_OF_OTHERS)])
                    }
                }
            }
            State::NoNeighbour { link, address, mac } => {
                let wrong = self.wrong_neighbours(place, link, *address, mac)?;
                let names = wrong.iter().map(|entry| neighbour_name(entry, link));
                Ok(names.map(Mismatch::new).collect())
            }
            State::LinkLocal { link } => {
                let lack = host_side::missing_ipv6(&mut self.namespaces.get()?.host, link)?;
                lack.map_or_else(sound, |lack| differs(lack.describe(link)))
            }
            State::NoAdvertisements { link } => {
                advertisements::check(link)?.map_or_else(sound, differs)
            }
            State::Forwarding { ipv4, .. } => match forwarding::check_family(*ipv4)? {
                None => sound(),
                Some(text) => differs(text),
            },
            State::Filter { plan, iptables, addresses, sources } => {
                let key = self.call.attachment();
                let backend = backend(*iptables, *sources);
                rules::differences(self.index, key, backend, plan, addresses)
            }
            State::Claim { object } => match claim::check_one(self.call, self.index, object) {
                Ok(true) => sound(),
                Ok(false) => differs(format!("{} is gone", claim::name(object))),
                Err(taken) => Mismatch::of(Err(taken)),
            },
            State::NotOfHost { address, link } => {
                let Some(found) = self.side(Place::Host).link(link)? else { return sound() };
                let ip = IpConfig::new(IpNet::from(*address), None);
                let routed = ContainerRouting::one_by_one(found.index);
                let own =
                    claim::check_own(self.call, &mut self.namespaces.get()?.host, &routed, &[ip]);
                Mismatch::of(own)
            }
            _ => own.compare(self, item),
        }
    }

    fn compare_link(
        &mut self,
        own: &dyn ConfiguredKind,
        item: &Item,
        name: &str,
        kinds: &[String],
    ) -> Comparison {
        let found = self.side(item.place).link(name)?;
        let whose = if item.place == Place::Host { "host" } else { "container" };
        let Some(link) = found else {
            let text = || format!("interface {name:?} is gone from the {whose}");
            return differs(own.words(item, None).unwrap_or_else(text));
        };
        if kinds.is_empty() || kinds.iter().any(|kind| link.is_kind(kind)) {
            return sound();
        }
        differs(format!("interface {name:?} is no longer of kind {}", kinds.join(" or ")))
    }

    fn compare_recorded(&mut self, place: Place, name: &str) -> Comparison {
        let Some(link) = self.side(place).link(name)? else { return sound() };
        let Some(record) = &self.record else { return sound() };
        let netns = &self.namespaces.get()?.netns;
        Mismatch::of(identity::refuse_another(self.index, record, netns, &link))
    }

    /// Compares a value of a link that one change sets.
    fn compare_value(&mut self, own: &dyn ConfiguredKind, item: &Item, name: &str) -> Comparison {
        let Some(link) = self.side(item.place).link(name)? else { return sound() };
        let (value, wanted, now) = match &item.state {
            State::Mtu { mtu, .. } => ("MTU", mtu.to_string(), link.mtu.to_string()),
            State::QueueLength { length, .. } => {
                ("transmission queue length", length.to_string(), link.tx_queue_len.to_string())
            }
            State::Promiscuous { on, .. } => {
                ("promiscuous mode", on.to_string(), link.promiscuous().to_string())
            }
            State::AllMulticast { on, .. } => {
                ("all-multicast mode", on.to_string(), link.all_multicast().to_string())
            }
            State::Mac { mac, .. } => {
                let Some(found) = link.mac else { return sound() };
                ("MAC address", mac.to_ascii_lowercase(), found.to_string())
            }
            _ => return sound(),
        };
        if wanted == now {
            return sound();
        }
        let text = || format!("interface {name:?} has {value} {now}, ADD reported {wanted}");
        differs(own.words(item, Some(&now)).unwrap_or_else(text))
    }

    fn compare_peer(&mut self, name: &str, of: &str) -> Comparison {
        let (inner, outer) =
            (self.side(Place::Container).link(of)?, self.side(Place::Host).link(name)?);
        let ends = inner.as_ref().zip(outer.as_ref()).is_some_and(|(inner, outer)| {
            inner.peer_index == Some(outer.index) && outer.peer_index == Some(inner.index)
        });
        if ends {
            return sound();
        }
        differs(format!("the host's end of interface {of:?} was not found"))
    }

    fn compare_address(&mut self, place: Place, wanted: &Address) -> Comparison {
        let Some(link) = self.side(place).link(&wanted.link)? else { return sound() };
        let present = self.side(place).addresses(link.index)?;
        let address = wanted.address;
        let is = |found: &route::Address| {
            found.address == address || (wanted.gateway && found.address.addr() == address.addr())
        };
        if present.iter().any(is) {
            return sound();
        }
        differs(if wanted.gateway {
            format!("gateway address {} is gone from {:?}", address.addr(), wanted.link)
        } else {
            format!("failed to find IP {address} on interface {:?}", wanted.link)
        })
    }

    fn compare_route(&mut self, place: Place, wanted: &Route) -> Comparison {
        let Some(link) = self.side(place).link(&wanted.link)? else { return sound() };
        let oif = (wanted.satisfied_by == RouteMatch::Link).then_some(link.index);
        let kind = dropping::kind(wanted.drops);
        let present = self.side(place).routes(&wanted.destination, oif)?;
        let is = |found: &route::Route| {
            let same_gateway = || {
                found.gateway == wanted.gateway
                    || found.next_hops.iter().any(|hop| hop.gateway == wanted.gateway)
            };
            found.destination == wanted.destination
                && found.kind == kind
                && (wanted.drops.is_none() || found.table == wanted.table.unwrap_or(TABLE_MAIN))
                && (wanted.satisfied_by != RouteMatch::Gateway || same_gateway())
        };
        if present.iter().any(is) {
            return sound();
        }
        let item = Item { place, state: State::Route(wanted.clone()), because: Reason::Created };
        differs(match place {
            Place::Host => format!("{item} is gone"),
            Place::Container => format!("failed to find {item}"),
        })
    }

    /// Finds lasting neighbour entries of an address that lead to another hardware address.
    pub(super) fn wrong_neighbours(
        &mut self,
        place: Place,
        link: &str,
        address: IpAddr,
        mac: &str,
    ) -> Result<Vec<Neighbour>, Failure> {
        let Some(found) = self.side(place).link(link)? else { return Ok(Vec::new()) };
        let Ok(mac) = mac.parse::<MacAddr>() else { return Ok(Vec::new()) };
        let present = self.side(place).neighbours(address, found.index)?;
        Ok(leads_elsewhere(present, address, mac).cloned().collect())
    }
}

/// Finds the lasting entries of an address that lead to another hardware address.
fn leads_elsewhere(
    present: &[Neighbour],
    address: IpAddr,
    mac: MacAddr,
) -> impl Iterator<Item = &Neighbour> {
    present.iter().filter(move |entry| {
        let lasting = matches!(entry.state, NeighbourState::PERMANENT | NeighbourState::NOARP);
        !entry.proxy
            && lasting
            && entry.address == address
            && entry.mac.is_some_and(|found| found != mac)
    })
}

/// Names an entry of the neighbour table, for messages.
pub(super) fn neighbour_name(entry: &Neighbour, ifname: &str) -> String {
    let mac = entry.mac.map(|mac| mac.to_string()).unwrap_or_default();
    format!("neighbour entry of {} on {ifname:?} that leads to {mac}", entry.address)
}
