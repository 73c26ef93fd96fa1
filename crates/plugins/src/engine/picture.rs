//! What the kernel has, compared with what an attachment wants.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use cni_plugin::{Call, codes};
use ipnet::IpNet;
use kernel::netns::Netns;
use kernel::route::{self, IpFamily, Link, Neighbour, RouteFilter, RouteSocket};
use state::{Index, Record};
use wanted::{Item, Place, Remedy, State, Wanted};

use super::any_kind::{ConfiguredKind, KindInfo};
use crate::shared::failure::Failure;
use crate::shared::namespaces::Namespaces;
use crate::shared::policy::Policy;
use crate::shared::{claim, owner};

/// One difference between what is wanted and what is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The position of the item; `None` if the difference belongs to no item.
    pub(super) item: Option<usize>,
    /// Repair restores the item.
    pub(super) by_repair: bool,
    /// What differs, in one clause.
    pub(super) text: String,
    /// What an administrator can do; empty when repair does it.
    pub(super) remedy: String,
    /// Only repair cares: nothing is amiss for the container yet.
    pub(super) quiet: bool,
    /// Other plugins than ours never make it.
    pub(super) ours: bool,
    /// It is of hairpin mode.
    pub(super) hairpin: bool,
}

impl Difference {
    /// One that is no item's and has no remedy.
    pub(crate) fn text(text: String) -> Self {
        Difference { text, ..Difference::default() }
    }

    /// Turns CHECK's error about something that is not an item into a difference; any other error
    /// stays an error.
    ///
    /// # Errors
    /// The error, unless its code is 104.
    pub(crate) fn of(compared: Result<(), impl Into<Failure>>) -> Result<Option<Self>, Failure> {
        match compared.map_err(Into::into) {
            Ok(()) => Ok(None),
            Err(drift) if drift.code() == codes::DRIFT => {
                let remedy = drift.details().to_owned();
                Ok(Some(Difference { remedy, ..Difference::text(drift.message().to_owned()) }))
            }
            Err(error) => Err(error),
        }
    }
}

/// What differs of one item, in one clause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mismatch {
    text: String,
    /// What an administrator does about it, if repair does not.
    by_hand: Option<String>,
    /// The link that the item is about is missing: nothing else of it is compared.
    without_link: bool,
    /// Other plugins than ours never make it.
    ours: bool,
    /// It is of hairpin mode.
    hairpin: bool,
}

impl Mismatch {
    /// What repair restores, unless the item says otherwise.
    pub(crate) fn new(text: String) -> Self {
        Mismatch { text, by_hand: None, without_link: false, ours: false, hairpin: false }
    }

    /// What differs in a packet filter.
    pub(crate) fn of_filter(text: &str) -> Self {
        Mismatch::new(format!("packet filter: {text}"))
    }

    /// What an administrator restores.
    pub(crate) fn by_hand(text: String, remedy: &str) -> Self {
        Mismatch { by_hand: Some(remedy.to_owned()), ..Mismatch::new(text) }
    }

    /// Has nothing else of the link compared.
    pub(crate) fn without_link(self) -> Self {
        Mismatch { without_link: true, ..self }
    }

    /// Other plugins than ours never make it.
    pub(crate) fn of_ours(self) -> Self {
        Mismatch { ours: true, ..self }
    }

    /// It is of hairpin mode.
    pub(crate) fn of_hairpin(self) -> Self {
        Mismatch { hairpin: true, ..self }
    }

    /// Turns CHECK's error into a difference; its details say what an administrator does.
    ///
    /// # Errors
    /// The error, unless its code is 104.
    pub(crate) fn of(compared: Result<(), impl Into<Failure>>) -> Comparison {
        match compared.map_err(Into::into) {
            Ok(()) => sound(),
            Err(drift) if drift.code() == codes::DRIFT => {
                let by_hand =
                    Some(drift.details().to_owned()).filter(|details| !details.is_empty());
                Ok(vec![Mismatch { by_hand, ..Mismatch::new(drift.message().to_owned()) }])
            }
            Err(error) => Err(error),
        }
    }
}

/// What has been observed of one namespace.
#[derive(Debug, Default)]
struct ObservedNamespace {
    links: BTreeMap<String, Option<Link>>,
    addresses: BTreeMap<u32, Vec<route::Address>>,
    /// By family, and by link if only its routes were asked for.
    routes: BTreeMap<(bool, Option<u32>), Vec<route::Route>>,
    /// By family and link.
    neighbours: BTreeMap<(bool, u32), Vec<Neighbour>>,
    /// The rules, and the routes of all tables.
    policy: Option<Policy>,
}

/// Both namespaces, opened when one of them is first needed: what a chained plugin wants may be
/// only in the packet filter.
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
    pub(crate) fn get(&mut self) -> Result<&mut Namespaces, Failure> {
        if self.opened.is_none() {
            self.opened = Some(Namespaces::open(self.call.open_netns()?)?);
        }
        Ok(self.opened.as_mut().expect("both were opened just now"))
    }

    pub(super) fn socket(&mut self, place: Place) -> Result<&mut RouteSocket, Failure> {
        let namespaces = self.get()?;
        Ok(match place {
            Place::Host => &mut namespaces.host,
            Place::Container => &mut namespaces.inside,
        })
    }
}

/// One namespace: where to ask, and what has been observed of it.
pub(super) struct Side<'p, 'c> {
    sides: &'p mut Sides<'c>,
    place: Place,
    seen: &'p mut ObservedNamespace,
}

impl<'p> Side<'p, '_> {
    pub(super) fn link(self, name: &str) -> Result<Option<Link>, Failure> {
        if let Some(known) = self.seen.links.get(name) {
            return Ok(known.clone());
        }
        let found = self.sides.socket(self.place)?.link_by_name(name)?;
        self.seen.links.insert(name.to_owned(), found.clone());
        Ok(found)
    }

    pub(super) fn addresses(self, ifindex: u32) -> Result<&'p [route::Address], Failure> {
        match self.seen.addresses.entry(ifindex) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(unknown) => {
                let found = self.sides.socket(self.place)?.addresses(Some(ifindex));
                Ok(unknown.insert(found?))
            }
        }
    }

    pub(super) fn neighbours(self, of: IpAddr, ifindex: u32) -> Result<&'p [Neighbour], Failure> {
        match self.seen.neighbours.entry((of.is_ipv4(), ifindex)) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(unknown) => {
                let socket = self.sides.socket(self.place)?;
                let found = socket.neighbours(IpFamily::of(of), Some(ifindex));
                Ok(unknown.insert(found?))
            }
        }
    }

    pub(super) fn routes(
        self,
        to: &IpNet,
        oif: Option<u32>,
    ) -> Result<&'p [route::Route], Failure> {
        match self.seen.routes.entry((to.addr().is_ipv4(), oif)) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(unknown) => {
                let filter = RouteFilter { family: IpFamily::of(to.addr()), table: None, oif };
                let found = self.sides.socket(self.place)?.routes(filter);
                Ok(unknown.insert(found?))
            }
        }
    }
}

/// Both sides of an attachment, as far as they have been observed.
#[derive(Debug)]
pub(crate) struct Picture<'c> {
    /// The call of CHECK or repair.
    pub(crate) call: &'c Call<'c>,
    /// Our files.
    pub(crate) index: &'c Index,
    /// The plugin.
    pub(super) about: KindInfo,
    /// The plugin's record, as it was when the round began.
    pub(super) record: Option<Record>,
    /// Both sides.
    pub(crate) namespaces: Sides<'c>,
    host: ObservedNamespace,
    container: ObservedNamespace,
}

/// The result of the comparison of one item: nothing, or what differs.
pub(crate) type Comparison = Result<Vec<Mismatch>, Failure>;

/// Nothing differs.
pub(crate) fn sound() -> Comparison {
    Ok(Vec::new())
}

/// One thing differs.
pub(crate) fn differs(text: String) -> Comparison {
    Ok(vec![Mismatch::new(text)])
}

impl<'c> Picture<'c> {
    /// Opens both sides if the container's namespace is given, and observes nothing yet.
    ///
    /// # Errors
    /// Code 100 when the kernel refuses.
    pub(super) fn open(
        call: &'c Call<'_>,
        index: &'c Index,
        about: KindInfo,
        netns: Option<Netns>,
    ) -> Result<Self, Failure> {
        let namespaces = Sides { call, opened: netns.map(Namespaces::open).transpose()? };
        let (host, container) = (ObservedNamespace::default(), ObservedNamespace::default());
        Ok(Picture { call, index, about, record: None, namespaces, host, container })
    }

    /// Forgets what was observed, because it has changed.
    pub(super) fn forget(&mut self) {
        self.host = ObservedNamespace::default();
        self.container = ObservedNamespace::default();
    }

    pub(super) fn side(&mut self, place: Place) -> Side<'_, 'c> {
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
    pub(crate) fn link(&mut self, place: Place, name: &str) -> Result<Option<Link>, Failure> {
        self.side(place).link(name)
    }

    /// Reports whether a link is a port of its bridge.
    pub(super) fn is_port(&mut self, port: &wanted::Port) -> Result<bool, Failure> {
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
    ) -> Result<&[route::Address], Failure> {
        self.side(place).addresses(ifindex)
    }

    /// Takes a link that was not found by its name.
    pub(crate) fn know(&mut self, place: Place, link: &Link) {
        self.side(place).seen.links.insert(link.name.clone(), Some(link.clone()));
    }

    /// Returns the rules and routes of one side, as they were when they were first asked for.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    pub(crate) fn policy(&mut self, place: Place) -> Result<&Policy, Failure> {
        let Side { sides, place, seen } = self.side(place);
        match &mut seen.policy {
            Some(known) => Ok(known),
            unknown => Ok(unknown.insert(Policy::read(sides.socket(place)?)?)),
        }
    }

    /// Compares every item. Items that need a link that is missing or another's are left out: the
    /// difference of the link says enough. An item that cannot be compared does not stop the rest:
    /// its position and the error are returned beside the differences.
    pub(super) fn differences(
        &mut self,
        own: &dyn ConfiguredKind,
        wanted: &Wanted,
    ) -> (Vec<Difference>, Vec<(usize, Failure)>) {
        let mut all = Vec::new();
        let mut failed = Vec::new();
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
            // The filter knows the host's end by its name, which another link may have by now.
            if foreign.is_some() && matches!(item.state, State::Filter { .. }) {
                continue;
            }
            let compared = self.compare(own, item).and_then(|found| {
                let remedy = match item.restored() {
                    _ if found.is_empty() => None,
                    _ if is_foreign => Some(String::new()),
                    Remedy::ByHand(remedy) => Some(remedy.to_owned()),
                    // The mark is that of the attachment that created the pair, which may be
                    // another one of a plugin that calls several.
                    Remedy::ByRepair if self.about.is_chained => None,
                    Remedy::ByRepair => self.by_hand(item)?,
                };
                Ok((found, remedy))
            });
            let (found, remedy) = match compared {
                Ok(compared) => compared,
                Err(error) => {
                    failed.push((number, error));
                    if item.state.identifies_link() {
                        without.extend(link);
                    }
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
                    ours: found.ours,
                    hairpin: found.hairpin,
                }
            }));
        }
        (all, failed)
    }

    /// Returns what an administrator can do about an item that differs, if repair may not restore
    /// it.
    fn by_hand(&mut self, item: &Item) -> Result<Option<String>, Failure> {
        if let State::Claim { object } = &item.state {
            let taken = claim::check(self.call, self.index, std::slice::from_ref(object));
            return Ok(taken.err().map(|error| error.details().to_owned()));
        }
        let Some(link) = item.state.link() else { return Ok(None) };
        let own = owner::alias(self.call.attachment());
        let link = self.side(item.place).link(link)?;
        let mark = link.and_then(|link| link.alias).filter(|mark| *mark != own);
        let other = mark.as_deref().and_then(|mark| mark.strip_prefix(owner::PREFIX));
        // A link that attachments share belongs to none of them.
        Ok(other
            .filter(|mark| owner::is_of_attachment(&format!("{}{mark}", owner::PREFIX)))
            .map(|other| format!("the link has the mark of {other}: it is left alone")))
    }
}
