//! What the kernel has, compared with what an attachment wants.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use cni::{Error, IpConfig};
use cni_plugin::{Call, codes};
use ipnet::IpNet;
use kernel::mac::MacAddr;
use kernel::netns::Netns;
use kernel::route::{
    self, AddressOptions, Change, IpFamily, Link, LinkSet, Neighbour, RouteFilter, RouteSocket,
    Scope, TABLE_MAIN,
};
use state::Index;
use wanted::{Address, Because, Item, Place, Restored, Route, SatisfiedBy, State, Wanted};

use super::Kind;
use crate::interface::single::Namespaces;
use crate::shared::claim::{self, Routed};
use crate::shared::container::{self, Options};
use crate::shared::host_side::{self, Astray};
use crate::shared::policy::Policy;
use crate::shared::rules::{self, MasqueradeBackend};
use crate::shared::{advertisements, forwarding, identity, kernel_error as kernel, owner, repair};

/// One difference between what is wanted and what is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The position of the item; `None` if it is none's.
    pub(super) item: Option<usize>,
    /// Repair restores the item.
    pub(super) by_repair: bool,
    /// What differs, in one clause.
    pub(super) text: String,
    /// What a person can do; empty when repair does it.
    pub(super) remedy: String,
    /// Only repair cares: nothing is amiss for the container yet.
    pub(super) quiet: bool,
}

impl Difference {
    /// One that is no item's and has no remedy.
    pub(crate) fn text(text: String) -> Self {
        Difference { text, ..Difference::default() }
    }

    /// Takes what CHECK says of a difference that is no item's; any other error stays one.
    ///
    /// # Errors
    /// The error, unless its code is 104.
    pub(crate) fn of(compared: Result<(), Error>) -> Result<Option<Self>, Error> {
        match compared {
            Ok(()) => Ok(None),
            Err(drift) if drift.code == codes::DRIFT => {
                Ok(Some(Difference { remedy: drift.details, ..Difference::text(drift.msg) }))
            }
            Err(error) => Err(error),
        }
    }
}

/// What differs of one item, in one clause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    text: String,
    /// What a person does about it, if repair does not.
    by_hand: Option<String>,
    /// The link that the item is about is missing: nothing else of it is compared.
    without_link: bool,
}

impl Found {
    /// What repair restores, unless the item says otherwise.
    pub(crate) fn new(text: String) -> Self {
        Found { text, by_hand: None, without_link: false }
    }

    /// What a person restores.
    pub(crate) fn by_hand(text: String, remedy: &str) -> Self {
        Found { text, by_hand: Some(remedy.to_owned()), without_link: false }
    }

    /// Has nothing else of the link compared.
    pub(crate) fn without_link(self) -> Self {
        Found { without_link: true, ..self }
    }

    /// Takes what CHECK says of a difference; its details are what a person does.
    ///
    /// # Errors
    /// The error, unless its code is 104.
    pub(crate) fn of(compared: Result<(), Error>) -> Compared {
        match compared {
            Ok(()) => sound(),
            Err(drift) if drift.code == codes::DRIFT => {
                let by_hand = Some(drift.details).filter(|details| !details.is_empty());
                Ok(vec![Found { by_hand, ..Found::new(drift.msg) }])
            }
            Err(error) => Err(error),
        }
    }
}

/// What has been observed of one namespace.
#[derive(Debug, Default)]
struct Seen {
    links: BTreeMap<String, Option<Link>>,
    addresses: BTreeMap<u32, Vec<route::Address>>,
    /// By family, and by link if only its routes were asked for.
    routes: BTreeMap<(bool, Option<u32>), Vec<route::Route>>,
    /// By family and link.
    neighbours: BTreeMap<(bool, u32), Vec<Neighbour>>,
    /// The rules, and the routes of all tables.
    policy: Option<Policy>,
}

/// Both namespaces, opened when one of them is first needed: what a chained plugin wants may be in
/// the packet filter alone.
#[derive(Debug)]
pub(crate) struct Sides<'c> {
    call: &'c Call<'c>,
    opened: Option<Namespaces>,
}

impl Sides<'_> {
    /// Returns both, opened.
    ///
    /// # Errors
    /// Code 100 when the kernel refuses; those of [`Call::open_netns`].
    pub(crate) fn get(&mut self) -> Result<&mut Namespaces, Error> {
        if self.opened.is_none() {
            self.opened = Some(Namespaces::open(self.call.open_netns()?)?);
        }
        Ok(self.opened.as_mut().expect("both were opened just now"))
    }

    fn socket(&mut self, place: Place) -> Result<&mut RouteSocket, Error> {
        let namespaces = self.get()?;
        Ok(match place {
            Place::Host => &mut namespaces.host,
            Place::Container => &mut namespaces.inside,
        })
    }
}

/// One namespace: where to ask, and what has been observed of it.
struct Side<'p, 'c> {
    sides: &'p mut Sides<'c>,
    place: Place,
    seen: &'p mut Seen,
}

impl<'p> Side<'p, '_> {
    fn link(self, name: &str) -> Result<Option<Link>, Error> {
        if let Some(known) = self.seen.links.get(name) {
            return Ok(known.clone());
        }
        let found = self.sides.socket(self.place)?.link_by_name(name).map_err(kernel)?;
        self.seen.links.insert(name.to_owned(), found.clone());
        Ok(found)
    }

    fn addresses(self, ifindex: u32) -> Result<&'p [route::Address], Error> {
        match self.seen.addresses.entry(ifindex) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(unknown) => {
                let found = self.sides.socket(self.place)?.addresses(Some(ifindex));
                Ok(unknown.insert(found.map_err(kernel)?))
            }
        }
    }

    fn neighbours(self, of: IpAddr, ifindex: u32) -> Result<&'p [Neighbour], Error> {
        match self.seen.neighbours.entry((of.is_ipv4(), ifindex)) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(unknown) => {
                let socket = self.sides.socket(self.place)?;
                let found = socket.neighbours(IpFamily::of(of), Some(ifindex));
                Ok(unknown.insert(found.map_err(kernel)?))
            }
        }
    }

    fn routes(self, to: &IpNet, oif: Option<u32>) -> Result<&'p [route::Route], Error> {
        match self.seen.routes.entry((to.addr().is_ipv4(), oif)) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(unknown) => {
                let filter = RouteFilter { family: IpFamily::of(to.addr()), table: None, oif };
                let found = self.sides.socket(self.place)?.routes(filter);
                Ok(unknown.insert(found.map_err(kernel)?))
            }
        }
    }
}

/// Both sides of an attachment, as far as they have been observed.
#[derive(Debug)]
pub(crate) struct Picture<'c> {
    /// The call that looks.
    pub(crate) call: &'c Call<'c>,
    /// Our files.
    pub(crate) index: &'c Index,
    /// The plugin's type.
    plugin: &'static str,
    /// Both sides.
    pub(crate) namespaces: Sides<'c>,
    host: Seen,
    container: Seen,
}

/// The result of the comparison of one item: nothing, or what differs.
pub(crate) type Compared = Result<Vec<Found>, Error>;

/// Nothing differs.
pub(crate) fn sound() -> Compared {
    Ok(Vec::new())
}

/// One thing differs.
pub(crate) fn differs(text: String) -> Compared {
    Ok(vec![Found::new(text)])
}

impl<'c> Picture<'c> {
    /// Opens both sides if the container's namespace is given, and observes nothing yet.
    ///
    /// # Errors
    /// Code 100 when the kernel refuses.
    pub(super) fn open(
        call: &'c Call<'_>,
        index: &'c Index,
        plugin: &'static str,
        netns: Option<Netns>,
    ) -> Result<Self, Error> {
        let namespaces = Sides { call, opened: netns.map(Namespaces::open).transpose()? };
        let (host, container) = (Seen::default(), Seen::default());
        Ok(Picture { call, index, plugin, namespaces, host, container })
    }

    /// Forgets what was observed, because it has changed.
    pub(super) fn forget(&mut self) {
        self.host = Seen::default();
        self.container = Seen::default();
    }

    fn side(&mut self, place: Place) -> Side<'_, 'c> {
        let seen = match place {
            Place::Host => &mut self.host,
            Place::Container => &mut self.container,
        };
        Side { sides: &mut self.namespaces, place, seen }
    }

    /// Returns a link of one side, as it was when it was first asked for.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    pub(crate) fn link(&mut self, place: Place, name: &str) -> Result<Option<Link>, Error> {
        self.side(place).link(name)
    }

    /// Reports whether a link is a port of its bridge.
    pub(super) fn is_port(&mut self, port: &wanted::Port) -> Result<bool, Error> {
        let link = self.link(Place::Host, &port.link)?;
        let bridge = self.link(Place::Host, &port.bridge)?;
        Ok(link.zip(bridge).is_some_and(|(link, bridge)| link.master == Some(bridge.index)))
    }

    /// Returns the addresses of a link of one side, as they were when they were first asked for.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    pub(crate) fn addresses(
        &mut self,
        place: Place,
        ifindex: u32,
    ) -> Result<&[route::Address], Error> {
        self.side(place).addresses(ifindex)
    }

    /// Takes a link that was found by something else than its name.
    pub(crate) fn know(&mut self, place: Place, link: &Link) {
        self.side(place).seen.links.insert(link.name.clone(), Some(link.clone()));
    }

    /// Returns the rules and routes of one side, as they were when they were first asked for.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    pub(crate) fn policy(&mut self, place: Place) -> Result<&Policy, Error> {
        let Side { sides, place, seen } = self.side(place);
        match &mut seen.policy {
            Some(known) => Ok(known),
            unknown => Ok(unknown.insert(Policy::read(sides.socket(place)?)?)),
        }
    }

    /// Compares every item. What needs a link that is missing or is another's is left out: the
    /// difference of the link says it all. What cannot be compared does not keep the rest from it:
    /// the first such error is returned beside the differences.
    pub(super) fn differences<K: Kind>(
        &mut self,
        config: &K::Config,
        wanted: &Wanted,
    ) -> (Vec<Difference>, Option<Error>) {
        let mut all = Vec::new();
        let mut failed = None;
        let mut without: Vec<(Place, String)> = Vec::new();
        let mut foreign: Option<(Place, String)> = None;
        for (number, item) in wanted.items.iter().enumerate() {
            let link = item.state.link().map(|link| (item.place, link.to_owned()));
            if link.as_ref().is_some_and(|link| without.contains(link)) {
                continue;
            }
            // Its hardware address shows that it is another link.
            let is_foreign = link.is_some() && link == foreign;
            if is_foreign && !matches!(item.state, State::Mac { .. }) {
                continue;
            }
            let compared = self.compare::<K>(config, item).and_then(|found| {
                let remedy = match item.restored() {
                    _ if found.is_empty() => None,
                    _ if is_foreign => Some(String::new()),
                    Restored::ByHand(remedy) => Some(remedy.to_owned()),
                    // The mark is that of the attachment that created the pair, which may be
                    // another one of a plugin that calls several.
                    Restored::ByRepair if K::CHAINED => None,
                    Restored::ByRepair => self.by_hand(item)?,
                };
                Ok((found, remedy))
            });
            let (found, remedy) = match compared {
                Ok(compared) => compared,
                Err(error) => {
                    failed.get_or_insert(error);
                    continue;
                }
            };
            if found.is_empty() {
                continue;
            }
            match &item.state {
                State::Link { .. } | State::Recorded { .. } => without.extend(link),
                // The container's link is another one by now: nothing of it is ours.
                State::Peer { of, .. } => {
                    without.extend(link);
                    foreign = Some((Place::Container, of.clone()));
                }
                _ if found.iter().any(|one| one.without_link) => without.extend(link),
                _ => {}
            }
            all.extend(found.into_iter().map(|found| {
                let by_hand = remedy.clone().or(found.by_hand);
                let by_repair = by_hand.is_none();
                Difference {
                    item: Some(number),
                    by_repair,
                    text: found.text,
                    remedy: by_hand.unwrap_or_default(),
                    // A claim that is lost, and that no other attachment has taken.
                    quiet: by_repair && matches!(item.state, State::Claim { .. }),
                }
            }));
        }
        (all, failed)
    }

    /// Returns what a person can do about an item that differs, if repair may not restore it.
    fn by_hand(&mut self, item: &Item) -> Result<Option<String>, Error> {
        if let State::Claim { object } = &item.state {
            let taken = claim::check(self.call, self.index, std::slice::from_ref(object));
            return Ok(taken.err().map(|error| error.details));
        }
        let Some(link) = item.state.link() else { return Ok(None) };
        let own = owner::alias(self.call.attachment());
        let link = self.side(item.place).link(link)?;
        let mark = link.and_then(|link| link.alias).filter(|mark| *mark != own);
        let other = mark.as_deref().and_then(|mark| mark.strip_prefix(owner::PREFIX));
        // A link that attachments share is nobody's own.
        Ok(other
            .filter(|mark| owner::is_of_attachment(&format!("{}{mark}", owner::PREFIX)))
            .map(|other| format!("the link has the mark of {other}: it is left alone")))
    }

    fn compare<K: Kind>(&mut self, config: &K::Config, item: &Item) -> Compared {
        let place = item.place;
        match &item.state {
            State::Link { link, kinds } => self.compare_link::<K>(item, link, kinds),
            State::Peer { link, of } => self.compare_peer(link, of),
            State::Recorded { link } => self.compare_recorded(place, link),
            State::Mac { link, .. }
            | State::Mtu { link, .. }
            | State::QueueLength { link, .. }
            | State::Promiscuous { link, .. }
            | State::AllMulticast { link, .. } => self.compare_value::<K>(item, link),
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
                let covered =
                    host_side::covering(&mut self.namespaces.get()?.host, &found, *to, by)?;
                covered.map_or_else(sound, |covered| differs(covered.told(link)))
            }
            State::SubnetRoute { link, gateway, to } => {
                let Some(found) = self.side(Place::Host).link(link)? else { return sound() };
                match host_side::astray(&mut self.namespaces.get()?.host, &found, gateway, *to)? {
                    None => sound(),
                    Some(Astray::Missing) => differs(format!("{item} is gone")),
                    Some(Astray::Covered(by)) => {
                        Ok(vec![Found::by_hand(by.told(link), host_side::COVERED_REMEDY)])
                    }
                }
            }
            State::NoNeighbour { link, address, mac } => {
                let wrong = self.wrong_neighbours(place, link, *address, mac)?;
                let told = wrong.iter().map(|entry| repair::neighbour_name(entry, link));
                Ok(told.map(Found::new).collect())
            }
            State::LinkLocal { link } => {
                let lack = host_side::missing_ipv6(&mut self.namespaces.get()?.host, link)?;
                lack.map_or_else(sound, |lack| differs(lack.told(link)))
            }
            State::NoAdvertisements { link } => Found::of(advertisements::check(link)),
            State::Forwarding { ipv4, .. } => match forwarding::check_family(*ipv4)? {
                None => sound(),
                Some(text) => differs(text),
            },
            State::Filter { plan, iptables, addresses } => {
                let key = self.call.attachment();
                let found =
                    rules::differences(self.index, key, backend(*iptables), plan, addresses)?;
                Ok(found.into_iter().map(Found::new).collect())
            }
            State::Claim { object } => match claim::look(self.call, self.index, object) {
                Ok(true) => sound(),
                Ok(false) => differs(format!("{} is gone", claim::name(object))),
                Err(taken) => Found::of(Err(taken)),
            },
            State::NotOfHost { address, link } => {
                let Some(found) = self.side(Place::Host).link(link)? else { return sound() };
                let ip = IpConfig::new(IpNet::from(*address), None);
                let routed = Routed::one_by_one(found.index);
                let own =
                    claim::check_own(self.call, &mut self.namespaces.get()?.host, &routed, &[ip]);
                Found::of(own)
            }
            _ => K::compare(config, self, item),
        }
    }

    fn compare_link<K: Kind>(&mut self, item: &Item, name: &str, kinds: &[String]) -> Compared {
        let found = self.side(item.place).link(name)?;
        let whose = if item.place == Place::Host { "host" } else { "container" };
        let Some(link) = found else {
            let text = || format!("interface {name:?} is gone from the {whose}");
            return differs(K::words(item, None).unwrap_or_else(text));
        };
        if kinds.is_empty() || kinds.iter().any(|kind| link.is_kind(kind)) {
            return sound();
        }
        differs(format!("interface {name:?} is no {} link any more", kinds.join(" or ")))
    }

    fn compare_recorded(&mut self, place: Place, name: &str) -> Compared {
        let Some(link) = self.side(place).link(name)? else { return sound() };
        let record = self.index.get(self.call.attachment(), self.plugin).found;
        let Some(record) = record else { return sound() };
        let netns = &self.namespaces.get()?.netns;
        Found::of(identity::refuse_another(self.index, &record, netns, &link))
    }

    /// Compares a value of a link that one change sets.
    fn compare_value<K: Kind>(&mut self, item: &Item, name: &str) -> Compared {
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
        differs(K::words(item, Some(&now)).unwrap_or_else(text))
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

    /// Says what is restored of an item: the item, or what differs of an item of several parts.
    pub(super) fn what_is_restored(&self, item: &Item, difference: &Difference) -> String {
        match &item.state {
            State::Claim { object } => claim::name(object),
            State::Forwarding { .. }
            | State::Filter { .. }
            | State::Gateways(_)
            | State::VlanLink { .. }
            | State::OvsPort { .. } => difference.text.clone(),
            _ => item.to_string(),
        }
    }

    /// Restores an item that differs. Returns what was set, or nothing if the item itself says it.
    ///
    /// # Errors
    /// Code 100 with the kernel's words; those of the packet filter and of our own files.
    pub(super) fn restore<K: Kind>(
        &mut self,
        config: &K::Config,
        item: &Item,
    ) -> Result<Option<String>, Error> {
        let (call, index, key) = (self.call, self.index, self.call.attachment());
        match &item.state {
            State::LinkLocal { link } => {
                return host_side::restore_ipv6(&mut self.namespaces.get()?.host, link).map(Some);
            }
            State::NoAdvertisements { link } => advertisements::refuse(link),
            State::Forwarding { ipv4, restore } => {
                forwarding::hold_family(index, key, *ipv4, forwarding::at_the_end(*restore))
            }
            State::Filter { plan, iptables, addresses } => {
                rules::add(index, key, backend(*iptables), plan, addresses)
            }
            State::Claim { object } => claim::restore(call, index, self.plugin, object),
            State::NoNeighbour { link, address, mac } => {
                return self.forget_neighbours(item.place, link, *address, mac).map(Some);
            }
            State::Mac { .. }
            | State::Mtu { .. }
            | State::QueueLength { .. }
            | State::Promiscuous { .. }
            | State::AllMulticast { .. }
            | State::Up { .. }
            | State::Mark { .. }
            | State::Address(_)
            | State::Route(_)
            | State::SubnetRoute { .. } => self.change(item),
            _ => return K::restore(config, self, item),
        }
        .map(|()| None)
    }

    /// Restores an item that takes one change of the kernel.
    fn change(&mut self, item: &Item) -> Result<(), Error> {
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
            State::QueueLength { length, .. } => {
                set(LinkSet { tx_queue_len: Some(*length), ..LinkSet::default() })
            }
            State::Promiscuous { on, .. } => {
                set(LinkSet { promiscuous: Some(*on), ..LinkSet::default() })
            }
            State::AllMulticast { on, .. } => {
                set(LinkSet { all_multicast: Some(*on), ..LinkSet::default() })
            }
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
            State::SubnetRoute { gateway, .. } => host_side::restore_route(gateway, link),
            _ => set(LinkSet::default().up(true)),
        };
        let may_be_anothers = place == Place::Host && matches!(item.state, State::Route(_));
        match self.namespaces.socket(place)?.apply_one(&change) {
            // Another call was faster, or the route came with an address.
            Err(error) if error.is_exists() && !may_be_anothers => prepared,
            done => done.map_err(kernel).and(prepared),
        }
    }

    /// Finds lasting neighbour entries of an address that lead to another hardware address.
    fn wrong_neighbours(
        &mut self,
        place: Place,
        link: &str,
        address: IpAddr,
        mac: &str,
    ) -> Result<Vec<Neighbour>, Error> {
        let Some(found) = self.side(place).link(link)? else { return Ok(Vec::new()) };
        let Ok(mac) = mac.parse::<MacAddr>() else { return Ok(Vec::new()) };
        let present = self.side(place).neighbours(address, found.index)?;
        Ok(repair::leads_elsewhere(present, address, mac).cloned().collect())
    }

    /// Removes such entries, so that the kernel solicits the neighbour again.
    fn forget_neighbours(
        &mut self,
        place: Place,
        link: &str,
        address: IpAddr,
        mac: &str,
    ) -> Result<String, Error> {
        let mut removed = Vec::new();
        for entry in self.wrong_neighbours(place, link, address, mac)? {
            removed.push(format!("{} (removed)", repair::neighbour_name(&entry, link)));
            match self.namespaces.socket(place)?.apply_one(&Change::DelNeighbour(entry)) {
                Err(error) if !error.is_not_found() => return Err(kernel(error)),
                _ => {}
            }
        }
        Ok(removed.join(", "))
    }

    /// Writes the sysctls that an interface needs for an address.
    fn prepare(&mut self, address: &Address) -> Result<(), Error> {
        let ip = IpConfig::new(address.address, None);
        let options = Options { skip_dad: address.nodad };
        let switches = container::switches(&address.link, &[&ip], options);
        container::write_switches(&self.namespaces.get()?.netns, &switches)
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
