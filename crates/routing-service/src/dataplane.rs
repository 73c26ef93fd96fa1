//! The kernel's side: what was read of it, and the changes that are made there.
//!
//! What it does returns what became of it, and what has become due ([`Outcome`]).

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use kernel::conntrack::{ConntrackSocket, FlowFilter};
use kernel::events::ObjectListener;
use kernel::netlink::NetlinkError;
use kernel::route::{IpFamily, RouteSocket};
use routing::Todo;
use routing::plan::{Change, ObservedObjects};
use routing::settings::{LinkName, OwnNode};
use service_kit::stop::{Stop, failed, words};

use super::apply::{self, Kind};
use super::context::{Context, log};
use super::filter::Filter;
use super::host::{self, Host, IP_FORWARD, Links};
use super::making::{self, ChangesOutcome, Results, are_many};
use super::probes::Probes;
use super::schedule::Due;
use super::ways;

/// Why a route of flanneld's is not removed: pods would be cut off.
const EARLY: &str = "ours to the same prefix is not there yet";

/// The protocol number of UDP (RFC 768).
const UDP: u8 = 17;

/// The sockets to the kernel, the links as a look has read them, and the packet filter.
#[derive(Debug)]
pub(super) struct Dataplane {
    pub(super) netlink: RouteSocket,
    pub(super) listener: ObjectListener,
    pub(super) links: Links,
    pub(super) filter: Filter,
    probes: Probes,
}

/// What became of something that was done.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The first change that was made.
    pub(super) first: Option<Change>,
    /// The addresses of nodes to which the kernel has shown the way.
    pub(super) looked_up: HashSet<IpAddr>,
    pub(super) due: Due,
}

/// A router advertisement of which nothing is left.
#[derive(Debug)]
pub(super) struct RemovedAdvertisement {
    /// The link on which it came.
    pub(super) link: LinkName,
    /// What it announced.
    pub(super) prefix: IpNet,
}

impl Dataplane {
    pub(super) fn open(context: &Context, filter: Filter) -> Result<Self, Stop> {
        let netlink = RouteSocket::open().map_err(failed)?;
        let mut listener = ObjectListener::open().map_err(failed)?;
        listener.ignore(&netlink).map_err(failed)?;
        let probes = Probes::start(context.shared.clone(), context.clock).map_err(failed)?;
        Ok(Dataplane { netlink, listener, links: Links::default(), filter, probes })
    }

    /// Reads links, addresses, nexthops and routes.
    pub(super) fn read(&mut self, context: &Context) -> Result<Host, NetlinkError> {
        let ranges: Vec<IpNet> = context.settings.ranges().collect();
        Host::read(&mut self.netlink, &context.own(), &ranges)
    }

    /// Reads the rest, now that it is known what this node is, if it is.
    pub(super) fn observe(
        &mut self,
        context: &Context,
        host: &mut Host,
        own: Option<&OwnNode>,
    ) -> Result<ObservedObjects, NetlinkError> {
        if let Some(own) = own {
            host.links.recognise(own);
        }
        host.links.note_forwarding();
        // Before neighbours are read: what becomes of them after that is heard.
        let _ = self.listener.only_neighbours_of(host.links.tunnels());
        let routing = context.routing();
        let known = own.unwrap_or(routing.cluster().own()).clone();
        // The table of the packet filter has what was noted of it.
        let elements = routing.observed().objects().iter();
        let elements = elements.take_while(|(key, _)| key.is_filter());
        let elements = elements.map(|(key, value)| (key.clone(), value.clone())).collect();
        drop(routing);
        let ranges: Vec<IpNet> = context.settings.ranges().collect();
        host.observe(&mut self.netlink, &ranges, &known, elements)
    }

    /// Puts our mark on tunnels without it.
    pub(super) fn mark_tunnels(&mut self, host: &Host) -> Result<(), String> {
        apply::mark_tunnels(&mut self.netlink, &host.links)
    }

    /// Removes what the kernel has made of router advertisements in prefixes of pods. Returns what was
    /// removed, and why something was not.
    pub(super) fn remove_announced(
        &mut self,
        context: &Context,
        host: &Host,
    ) -> (Vec<RemovedAdvertisement>, Result<(), String>) {
        let announced = {
            let routing = context.routing();
            host.announced(|prefix| routing.is_of_pods_alone(prefix))
        };
        let (removed, done) = apply::remove_announced(&mut self.netlink, announced);
        let removed = removed.iter().map(|one| {
            let (index, prefix) = one.of();
            let link = index.map_or_else(|| "?".into(), |index| host.links.name_of(index));
            RemovedAdvertisement { link, prefix }
        });
        (removed.collect(), done)
    }

    /// Keeps the links of a look, and takes note of those behind which no pod of this node is.
    pub(super) fn keep_links(&mut self, context: &Context, host: Host) {
        let uplinks = {
            let routing = context.routing();
            host.uplinks(routing.cluster().own(), &routing.underlay_links())
        };
        self.filter.set_uplinks(uplinks);
        self.links = host.into_links();
    }

    /// Switches forwarding on for the families of this node's pods. It stays on: other programs may
    /// rely on it by the time when this service no longer needs it.
    pub(super) fn hold_forwarding(&mut self, context: &Context) -> Due {
        let has = |family: IpFamily| context.routing().forwards(family);
        // The second is written even if the first fails.
        let of_v4 = if has(IpFamily::V4) { host::forward(IP_FORWARD) } else { Ok(()) };
        let of_v6 = match has(IpFamily::V6) {
            true => host::forward_ipv6(&mut self.netlink),
            false => Ok(()),
        };
        let done = of_v4.and(of_v6);
        let due = Due { unwritten: done.is_err(), ..Due::default() };
        context.health.needs("forwarding", done);
        due
    }

    /// Does what routing says, until it says nothing more.
    pub(super) fn carry_out(&mut self, context: &Context, mut todo: Todo) -> Outcome {
        let mut outcome = Outcome::default();
        loop {
            todo.news.iter().for_each(log);
            outcome.add(self.make(context, &todo.changes));
            flush_flows(context, &todo.flush_flows);
            outcome.due |= Due { record: todo.document_changed, ..Due::default() };
            if todo.look_up.is_empty() {
                return outcome;
            }
            let (next, of_addresses) = self.look_up(context, todo.look_up);
            outcome.add(of_addresses);
            todo = next;
        }
    }

    /// Does what routing says while a look is under way: the look finds the changes itself. Returns
    /// the addresses that the end of the look looks up, by the links that it has read.
    pub(super) fn hold_back(&self, context: &Context, todo: Todo) -> (Vec<IpAddr>, Due) {
        todo.news.iter().for_each(log);
        if !todo.changes.is_empty() {
            self.probes.ask();
        }
        flush_flows(context, &todo.flush_flows);
        (todo.look_up, Due { record: todo.document_changed, ..Due::default() })
    }

    /// Looks up the ways to all nodes but those that were looked up already.
    pub(super) fn look_up_all(&mut self, context: &Context, known: &HashSet<IpAddr>) -> Outcome {
        let addresses: BTreeSet<IpAddr> = {
            let routing = context.routing();
            routing.underlay_addresses().filter(|address| !known.contains(address)).collect()
        };
        let (todo, mut outcome) = self.look_up(context, addresses);
        outcome.add(self.carry_out(context, todo));
        outcome
    }

    /// Looks up the ways to addresses. If the kernel does not answer, what is known of the others
    /// stays, and another look asks for all soon.
    fn look_up(
        &mut self,
        context: &Context,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> (Todo, Outcome) {
        let own = context.own();
        let (found, done) = ways::find(&mut self.netlink, &self.links, &own, addresses);
        let looked_up = found.iter().map(|(address, _)| *address).collect();
        let mut todo = context.routing().ways(found);
        if done.is_err() {
            todo.look_up.clear();
        }
        let due = Due { unanswered: done.is_err(), ..Due::default() };
        context.health.needs("ways to other nodes", done.map_err(|error| words(&error)));
        (todo, Outcome { first: None, looked_up, due })
    }

    /// Makes changes, and passes the result of each to routing.
    fn make(&mut self, context: &Context, changes: &[Change]) -> Outcome {
        if !changes.is_empty() {
            self.probes.ask();
        }
        let mut outcome = Outcome::default();
        if context.settings.standby {
            return outcome;
        }
        let mut runs = apply::runs(changes).peekable();
        while let Some((kind, run)) = runs.next() {
            let made = match kind {
                Kind::Elements if self.filter.stands() => {
                    outcome.due |= self.filter.change(context, run);
                    let results = run.iter().map(|change| (change, Ok(())));
                    making::note(context, results)
                }
                Kind::Elements => {
                    let many =
                        runs.next_if(|(kind, next)| *kind == Kind::Objects && are_many(next));
                    let many = many.map(|(_, next)| next).unwrap_or_default();
                    self.make_objects(context, run, many)
                }
                Kind::Objects => self.make_objects(context, &[], run),
                Kind::Foreign => self.remove_foreign(context, run),
                Kind::Tunnels => {
                    let made = match self.filter.bring_before_tunnels(context) {
                        Ok(()) => self.make_objects(context, &[], run),
                        Err(why) => self.make_no_tunnels(context, run, &why),
                    };
                    let _ = self.listener.only_neighbours_of(self.links.tunnels());
                    outcome.due |= self.hear_of_tunnels(context, run);
                    made
                }
            };
            if made.is_news {
                // Something may have changed meanwhile. If this is amid a look, the next look finds
                // it.
                outcome.due |= Due { routes: true, ..Due::LOOK };
            }
            outcome.first = outcome.first.or(made.first);
        }
        let failing = context.routing().failing();
        context.health.needs("routes and tunnels", failing.map_or(Ok(()), Err));
        outcome
    }

    /// Removes the tunnels that go, and makes none.
    fn make_no_tunnels(&mut self, context: &Context, run: &[Change], why: &str) -> ChangesOutcome {
        let (goes, comes): (Vec<&Change>, Vec<&Change>) =
            run.iter().partition(|change| matches!(change, Change::Remove(..)));
        let results = apply::apply(&mut self.netlink, &mut self.links, &goes);
        let comes = comes.into_iter().map(|change| (change, Err(why.to_owned())));
        let results = goes.into_iter().zip(results).chain(comes);
        making::note(context, results)
    }

    /// Makes objects of ours. Elements of the packet filter's table come before them. They are noted
    /// while the table is still to be made; it is made at the same time if the objects are many.
    fn make_objects(
        &mut self,
        context: &Context,
        elements: &[Change],
        objects: &[Change],
    ) -> ChangesOutcome {
        let Dataplane { filter, netlink, links, .. } = self;
        let brings = are_many(objects) && filter.may_be_brought(context);
        let note =
            |part: &[Change], results: Results| making::note(context, part.iter().zip(results));
        let make = |part: &[Change]| {
            let all: Vec<&Change> = part.iter().collect();
            apply::apply(netlink, links, &all)
        };
        if !brings {
            filter.note(elements);
            return making::in_parts(elements, objects, make, note);
        }
        let bring = || {
            filter.note(elements);
            filter.bring().is_ok()
        };
        let make = || making::in_parts(elements, objects, make, note);
        let (is_brought, made) = making::at_once(bring, make);
        // If it is not, the look at the packet filter tries again, and says why it fails.
        filter.was_brought(is_brought);
        made
    }

    /// Removes routes of others where ours stand.
    fn remove_foreign(&mut self, context: &Context, changes: &[Change]) -> ChangesOutcome {
        let routing = context.routing();
        let (all, early): (Vec<&Change>, Vec<&Change>) =
            changes.iter().partition(|change| routing.may_follow(change));
        drop(routing);
        let results = apply::apply(&mut self.netlink, &mut self.links, &all);
        let early = early.into_iter().map(|change| (change, Err::<(), _>(EARLY.to_owned())));
        let results = all.into_iter().zip(results).chain(early);
        making::note(context, results)
    }
}

impl Outcome {
    /// Adds what became of something later.
    pub(super) fn add(&mut self, later: Outcome) {
        self.first = self.first.take().or(later.first);
        self.looked_up.extend(later.looked_up);
        self.due |= later.due;
    }
}

/// Makes connection tracking forget UDP flows of prefixes whose packets go another way now: a flow
/// that was translated, or answered by an error, would stay so. Without connection tracking there are
/// no such flows.
fn flush_flows(context: &Context, prefixes: &[IpNet]) {
    if prefixes.is_empty() || context.settings.standby {
        return;
    }
    let Ok(mut conntrack) = ConntrackSocket::open() else { return };
    let is_in = |address: Option<IpAddr>| {
        address.is_some_and(|address| prefixes.iter().any(|prefix| prefix.contains(&address)))
    };
    for family in [IpFamily::V4, IpFamily::V6] {
        let all = FlowFilter { protocol: Some(UDP), ..FlowFilter::all(family) };
        let deleted = conntrack.delete_flows_if(&all, |flow| {
            is_in(flow.original.source) || is_in(flow.original.destination)
        });
        if let Err(error) = deleted {
            tracing::debug!(%error, "UDP flows keep their old path");
        }
    }
}
