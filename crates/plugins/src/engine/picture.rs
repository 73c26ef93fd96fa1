//! What the kernel has, compared with what an attachment wants.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use cni::{Error, IpConfig};
use cni_plugin::{Call, codes};
use ipnet::IpNet;
use kernel::netns::Netns;
use kernel::route::{
    self, AddressOptions, Change, IpFamily, Link, LinkSet, RouteFilter, RouteSocket, Scope,
    TABLE_MAIN,
};
use state::Index;
use wanted::{Address, Because, Item, Place, Restored, Route, SatisfiedBy, State, Wanted};

use crate::interface::single::Namespaces;
use crate::shared::claim::{self, Routed};
use crate::shared::container::{self, Options};
use crate::shared::rules::{self, MasqueradeBackend};
use crate::shared::{
    advertisements, forwarding, host_side, identity, kernel_error as kernel, owner,
};

/// One difference between what is wanted and what is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The position of the item that repair restores; `None` if it restores none.
    pub(super) item: Option<usize>,
    /// What differs, in one clause.
    pub(super) text: String,
    /// What a person can do; empty when repair does it.
    pub(super) remedy: String,
    /// Only repair cares: nothing is amiss for the container yet.
    pub(super) quiet: bool,
}

impl Difference {
    /// Takes what CHECK says of a difference that is no item's; any other error stays one.
    ///
    /// # Errors
    /// The error, unless its code is 104.
    pub(crate) fn of(compared: Result<(), Error>) -> Result<Option<Self>, Error> {
        match compared {
            Ok(()) => Ok(None),
            Err(drift) if drift.code == codes::DRIFT => {
                let (text, remedy) = (drift.msg, drift.details);
                Ok(Some(Difference { item: None, text, remedy, quiet: false }))
            }
            Err(error) => Err(error),
        }
    }
}

/// What a look at an attachment found.
#[derive(Debug, Default)]
pub(super) struct Observation {
    /// The differences, in the order of the items.
    pub(super) found: Vec<Difference>,
    /// Why something could not be compared: the first such error.
    pub(super) failed: Option<Error>,
}

impl Observation {
    /// Keeps the first error; returns what there is otherwise.
    pub(super) fn note<T>(&mut self, compared: Result<T, Error>) -> Option<T> {
        compared.map_err(|error| self.failed.get_or_insert(error).code).ok()
    }
}

/// What has been observed of one namespace.
#[derive(Debug, Default)]
struct Seen {
    links: BTreeMap<String, Option<Link>>,
    addresses: BTreeMap<u32, Vec<route::Address>>,
    /// By family, and by link if only its routes were asked for.
    routes: BTreeMap<(bool, Option<u32>), Vec<route::Route>>,
}

/// One namespace: its socket, and what has been observed by it.
struct Side<'p> {
    socket: &'p mut RouteSocket,
    seen: &'p mut Seen,
}

impl<'p> Side<'p> {
    fn link(self, name: &str) -> Result<Option<Link>, Error> {
        if let Some(known) = self.seen.links.get(name) {
            return Ok(known.clone());
        }
        let found = self.socket.link_by_name(name).map_err(kernel)?;
        self.seen.links.insert(name.to_owned(), found.clone());
        Ok(found)
    }

    fn addresses(self, ifindex: u32) -> Result<&'p [route::Address], Error> {
        match self.seen.addresses.entry(ifindex) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(unknown) => {
                Ok(unknown.insert(self.socket.addresses(Some(ifindex)).map_err(kernel)?))
            }
        }
    }

    fn routes(self, to: &IpNet, oif: Option<u32>) -> Result<&'p [route::Route], Error> {
        match self.seen.routes.entry((to.addr().is_ipv4(), oif)) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(unknown) => {
                let filter = RouteFilter { family: IpFamily::of(to.addr()), table: None, oif };
                Ok(unknown.insert(self.socket.routes(filter).map_err(kernel)?))
            }
        }
    }
}

/// Both sides of an attachment, as far as they have been observed.
#[derive(Debug)]
pub(crate) struct Picture<'c> {
    call: &'c Call<'c>,
    index: &'c Index,
    /// The plugin's type.
    plugin: &'static str,
    /// Both sides.
    pub(crate) namespaces: Namespaces,
    host: Seen,
    container: Seen,
}

/// The result of the comparison of one item: nothing, or what differs.
type Compared = Result<Vec<String>, Error>;

fn sound() -> Compared {
    Ok(Vec::new())
}

fn differs(text: String) -> Compared {
    Ok(vec![text])
}

impl<'c> Picture<'c> {
    /// Opens both sides, and observes nothing yet.
    ///
    /// # Errors
    /// Code 100 when the kernel refuses.
    pub(super) fn open(
        call: &'c Call<'_>,
        index: &'c Index,
        plugin: &'static str,
        netns: Netns,
    ) -> Result<Self, Error> {
        let namespaces = Namespaces::open(netns)?;
        let (host, container) = (Seen::default(), Seen::default());
        Ok(Picture { call, index, plugin, namespaces, host, container })
    }

    /// Forgets what was observed, because it has changed.
    pub(super) fn forget(&mut self) {
        self.host = Seen::default();
        self.container = Seen::default();
    }

    fn side(&mut self, place: Place) -> Side<'_> {
        match place {
            Place::Host => Side { socket: &mut self.namespaces.host, seen: &mut self.host },
            Place::Container => {
                Side { socket: &mut self.namespaces.inside, seen: &mut self.container }
            }
        }
    }

    /// Returns a link of one side, as it was when it was first asked for.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    pub(crate) fn link(&mut self, place: Place, name: &str) -> Result<Option<Link>, Error> {
        self.side(place).link(name)
    }

    /// Compares every item. What needs a link that is missing or is another's is left out: the
    /// difference of the link says it all. What cannot be compared does not keep the rest from it.
    pub(super) fn differences(&mut self, wanted: &Wanted) -> Observation {
        let mut observed = Observation::default();
        let mut without: Vec<(Place, String)> = Vec::new();
        for (number, item) in wanted.items.iter().enumerate() {
            let link = item.state.link().map(|link| (item.place, link.to_owned()));
            if link.as_ref().is_some_and(|link| without.contains(link)) {
                continue;
            }
            let compared = self.compare(item).and_then(|texts| {
                let (restorable, remedy) = match item.restored() {
                    _ if texts.is_empty() => (false, String::new()),
                    Restored::ByHand(remedy) => (false, remedy.to_owned()),
                    Restored::ByRepair => self.restorable(item)?,
                };
                Ok((texts, restorable, remedy))
            });
            let Some((texts, restorable, remedy)) = observed.note(compared) else { continue };
            if texts.is_empty() {
                continue;
            }
            match &item.state {
                State::Link { .. } | State::Recorded { .. } => without.extend(link),
                // The container's link is another one by now: nothing of it is ours.
                State::Peer { of, .. } => {
                    without.extend(link);
                    without.push((Place::Container, of.clone()));
                }
                _ => {}
            }
            // A claim that is lost, and that no other attachment has taken.
            let quiet = restorable && matches!(item.state, State::Claim { .. });
            observed.found.extend(texts.into_iter().map(|text| Difference {
                item: restorable.then_some(number),
                text,
                remedy: remedy.clone(),
                quiet,
            }));
        }
        observed
    }

    /// Reports whether repair may restore an item that differs, or what a person can do.
    fn restorable(&mut self, item: &Item) -> Result<(bool, String), Error> {
        if let State::Claim { object } = &item.state {
            let taken = claim::check(self.call, self.index, std::slice::from_ref(object));
            return Ok(match taken {
                Ok(()) => (true, String::new()),
                Err(error) => (false, error.details),
            });
        }
        let Some(link) = item.state.link() else { return Ok((true, String::new())) };
        let own = owner::alias(self.call.attachment());
        let link = self.side(item.place).link(link)?;
        let mark = link.and_then(|link| link.alias).filter(|mark| *mark != own);
        Ok(match mark.as_deref().and_then(|mark| mark.strip_prefix(owner::PREFIX)) {
            Some(other) => (false, format!("the link has the mark of {other}: it is left alone")),
            None => (true, String::new()),
        })
    }

    fn compare(&mut self, item: &Item) -> Compared {
        let place = item.place;
        match &item.state {
            State::Link { link, kinds } => self.compare_link(place, link, kinds),
            State::Peer { link, of } => self.compare_peer(link, of),
            State::Recorded { .. } => match identity::refuse_another(self.call, self.plugin) {
                Ok(()) => sound(),
                Err(another) if another.code == codes::DRIFT => differs(another.msg),
                Err(error) => Err(error),
            },
            State::Mac { link, mac } => {
                let Some(found) = self.side(place).link(link)?.and_then(|link| link.mac) else {
                    return sound();
                };
                if found.to_string().eq_ignore_ascii_case(mac) {
                    return sound();
                }
                differs(format!("interface {link:?} has MAC address {found}, ADD reported {mac}"))
            }
            State::Mtu { link, mtu } => match self.side(place).link(link)? {
                Some(found) if found.mtu != *mtu => {
                    differs(format!("interface {link:?} has MTU {}, ADD reported {mtu}", found.mtu))
                }
                _ => sound(),
            },
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
                // Without the route of our own there is nothing to cover: that is told by itself.
                let ours = self.side(Place::Host).routes(by, Some(found.index))?;
                if !ours.iter().any(|route| route.destination == *by) {
                    return sound();
                }
                let covered = host_side::covering(&mut self.namespaces.host, &found, *to, by)?;
                covered.map_or_else(sound, |covered| differs(covered.told(link)))
            }
            State::LinkLocal { link } => {
                let lack = host_side::missing_ipv6_of(&mut self.namespaces.host, link)?;
                lack.map_or_else(sound, |lack| differs(lack.told(link)))
            }
            State::NoAdvertisements { link } => match advertisements::check(link) {
                Ok(()) => sound(),
                Err(drift) => differs(drift.msg),
            },
            State::Forwarding { ipv4, .. } => match forwarding::check_family(*ipv4)? {
                None => sound(),
                Some(text) => differs(text),
            },
            State::Filter { plan, iptables, addresses } => {
                let key = self.call.attachment();
                rules::differences(self.index, key, backend(*iptables), plan, addresses)
            }
            State::Claim { object } => match claim::look(self.call, self.index, object) {
                Ok(true) => sound(),
                Ok(false) => differs(format!("{} is gone", claim::name(object))),
                Err(taken) if taken.code == codes::DRIFT => differs(taken.msg),
                Err(error) => Err(error),
            },
            State::NotOfHost { address, link } => {
                let Some(found) = self.side(Place::Host).link(link)? else { return sound() };
                let ip = IpConfig::new(IpNet::from(*address), None);
                let routed = Routed::one_by_one(found.index);
                let own = claim::check_own(self.call, &mut self.namespaces.host, &routed, &[ip]);
                match own {
                    Ok(()) => sound(),
                    Err(own) if own.code == codes::DRIFT => differs(own.msg),
                    Err(own) => Err(own),
                }
            }
            other => Err(Error::new(codes::CONFLICT, format!("unknown item {other:?}"))),
        }
    }

    fn compare_link(&mut self, place: Place, name: &str, kinds: &[String]) -> Compared {
        let found = self.side(place).link(name)?;
        let whose = if place == Place::Host { "host" } else { "container" };
        let Some(link) = found else {
            return differs(format!("interface {name:?} is gone from the {whose}"));
        };
        if kinds.is_empty() || kinds.iter().any(|kind| link.is_kind(kind)) {
            return sound();
        }
        differs(format!("interface {name:?} is no {} link any more", kinds.join(" or ")))
    }

    fn compare_peer(&mut self, name: &str, of: &str) -> Compared {
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

    fn compare_address(&mut self, place: Place, wanted: &Address) -> Compared {
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

    fn compare_route(&mut self, place: Place, wanted: &Route) -> Compared {
        let Some(link) = self.side(place).link(&wanted.link)? else { return sound() };
        let oif = (wanted.satisfied_by == SatisfiedBy::Link).then_some(link.index);
        let present = self.side(place).routes(&wanted.destination, oif)?;
        let is = |found: &route::Route| {
            let same_gateway = || {
                found.gateway == wanted.gateway
                    || found.next_hops.iter().any(|hop| hop.gateway == wanted.gateway)
            };
            found.destination == wanted.destination
                && (wanted.satisfied_by != SatisfiedBy::Gateway || same_gateway())
        };
        if present.iter().any(is) {
            return sound();
        }
        let item = Item { place, state: State::Route(wanted.clone()), because: Because::Created };
        differs(match place {
            Place::Host => format!("{item} is gone"),
            Place::Container => format!("failed to find {item}"),
        })
    }

    /// Names an item, for messages.
    pub(super) fn describe(&self, item: &Item) -> String {
        match &item.state {
            State::Claim { object } => claim::name(object),
            _ => item.to_string(),
        }
    }

    /// Restores an item that differs.
    ///
    /// # Errors
    /// Code 100 with the kernel's words; those of the packet filter and of our own files.
    pub(super) fn restore(&mut self, item: &Item) -> Result<(), Error> {
        let place = item.place;
        let link = match item.state.link() {
            Some(name) => self.side(place).link(name)?.map_or(0, |link| link.index),
            None => 0,
        };
        let set = |set: LinkSet| Change::SetLink { ifindex: link, set };
        let mut prepared = Ok(());
        let change = match &item.state {
            State::Mac { mac, .. } => set(LinkSet { mac: mac.parse().ok(), ..LinkSet::default() }),
            State::Mtu { mtu, .. } => set(LinkSet { mtu: Some(*mtu), ..LinkSet::default() }),
            State::Up { .. } => set(LinkSet::default().up(true)),
            State::Mark { alias, .. } => {
                set(LinkSet { alias: Some(alias.clone()), ..LinkSet::default() })
            }
            State::Address(address) => {
                // The address is added all the same, and the failure is reported.
                if place == Place::Container {
                    prepared = self.prepare(address);
                }
                Change::AddAddress {
                    ifindex: link,
                    address: address.address,
                    options: AddressOptions {
                        nodad: address.nodad,
                        noprefixroute: address.noprefixroute,
                        broadcast: (!address.gateway)
                            .then(|| container::broadcast_of(address.address))
                            .flatten(),
                        ..AddressOptions::default()
                    },
                }
            }
            State::Route(wanted) => {
                let route = kernel_route(link, wanted);
                match place {
                    Place::Host => Change::AddRoute(route),
                    Place::Container => Change::AppendRoute(route),
                }
            }
            State::LinkLocal { link } => {
                return host_side::restore_ipv6(&mut self.namespaces.host, link);
            }
            State::NoAdvertisements { link } => return advertisements::refuse(link),
            State::Forwarding { ipv4, restore } => {
                let at_the_end = forwarding::at_the_end(*restore);
                let key = self.call.attachment();
                return forwarding::hold_family(self.index, key, *ipv4, at_the_end);
            }
            State::Filter { plan, iptables, addresses } => {
                let key = self.call.attachment();
                return rules::add(self.index, key, backend(*iptables), plan, addresses);
            }
            State::Claim { object } => return claim::take_again(self.call, self.index, object),
            // Never restored: see `Item::restored`.
            _ => return Ok(()),
        };
        match self.side(place).socket.apply_one(&change) {
            // Another call was faster. The host's route to the container may be another's.
            Err(error) if error.is_exists() && !matches!(change, Change::AddRoute(_)) => prepared,
            done => done.map_err(kernel).and(prepared),
        }
    }

    /// Writes the sysctls that an interface needs for an address.
    fn prepare(&self, address: &Address) -> Result<(), Error> {
        let ip = IpConfig::new(address.address, None);
        let options = Options { skip_dad: address.nodad };
        let switches = container::switches(&address.link, &[&ip], options);
        container::write_switches(&self.namespaces.netns, &switches)
    }
}

fn backend(iptables: bool) -> Option<MasqueradeBackend> {
    Some(if iptables { MasqueradeBackend::Iptables } else { MasqueradeBackend::Nftables })
}

fn kernel_route(oif: u32, wanted: &Route) -> route::Route {
    route::Route {
        gateway: wanted.gateway,
        oif: Some(oif),
        source: wanted.source,
        scope: wanted.scope.map(Scope),
        table: wanted.table.unwrap_or(TABLE_MAIN),
        priority: wanted.priority,
        mtu: wanted.mtu,
        advmss: wanted.advmss,
        onlink: wanted.onlink,
        ..route::Route::new(wanted.destination)
    }
}
