//! Routes and tunnels to the pods of other nodes.
//!
//! | file | what it is |
//! |---|---|
//! | this one | start and end, and the loop |
//! | `nodes` | where nodes are learnt: a file |
//! | `host` | what the kernel has, in routing's words |
//! | `apply` | makes changes in the kernel |
//! | `filter` | the packet filter's table |
//! | `files` | the last known nodes, and what runtimes and plugins read |
//! | `answers` | what `netwright routes` asks |
//! | `leave` | `--uninstall` |
//!
//! The crate `netwright-routing` makes all decisions. The loop tells it what the nodes are and what
//! the kernel has, makes the changes that it returns, and tells it the results. An event of the
//! kernel never says what to do: it only makes the loop look again. Nothing is removed when the
//! service ends.

mod answers;
mod apply;
mod files;
mod filter;
mod host;
mod leave;
mod nodes;

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use agent::Config;
use agent::config::{self, RoutingPath};
use agent::setting::PodMtu;
use clap::{Arg, ArgAction};
use ipnet::IpNet;
use kernel::conntrack::{ConntrackSocket, FlowFilter};
use kernel::events::{Object, ObjectEvent, ObjectListener};
use kernel::route::{IpFamily, Route, RouteSocket};
use kernel::sysctl::Sysctl;
use routing::cluster::{Event, News, Seen};
use routing::node::Node;
use routing::object::Key;
use routing::path::Way;
use routing::plan::Change;
use routing::routing::Phase;
use routing::settings::{Found, Own, Paths, Source, Tunnels};
use routing::{Family, PerFamily, Routing, Settings, Time, Todo, overlap};

pub(crate) use self::answers::{ACCEPT, EXPLAIN, ROUTES};

use self::answers::Shared;
use self::files::{Disk, Folders, Published};
use self::filter::Filter;
use self::host::{Host, Links};
use self::nodes::Nodes;
use super::Stop;
use super::pace::{Pace, processor_time};
use super::setup::{Process, failed, stop_signals, words};
use crate::attendant::{Attendant, Changes, Duties};
use crate::clock;
use crate::command_line::Invocation;
use crate::health::Health;
use crate::listen::Listener;
use crate::poll::{Interest, Poller};

/// Numbers of the descriptors that the loop waits for.
const SIGNALS: u64 = 0;
const EVENTS: u64 = 1;
const CHANGES: u64 = 2;
const FOLDERS: u64 = 3;
const ASKED: u64 = 4;

/// The last known nodes are written at most so often.
const BETWEEN_WRITES: Duration = Duration::from_secs(5);

/// The protocol number of UDP (RFC 768).
const UDP: u8 = 17;

const UNINSTALL: &str = "uninstall";

/// The flags that are no keys of the configuration.
pub(crate) fn more_flags() -> Vec<Arg> {
    let uninstall = Arg::new(UNINSTALL).long(UNINSTALL).action(ArgAction::SetTrue);
    vec![uninstall.help(
        "remove everything that the service made on this node, and end; pods here and elsewhere do not reach each other any more",
    )]
}

/// Runs the service until a signal ends it.
pub(crate) fn run(invocation: &Invocation, process: &Process) -> Result<(), Stop> {
    let config = &invocation.config().routing;
    let node = process.node_name(config.node.clone().unwrap_or_default());
    let settings = settings(config);
    let folder = config.state.clone().unwrap_or_else(|| process.roots().lib.join("routing"));
    if invocation.more.get_flag(UNINSTALL) {
        let (disk, published) = (Disk::new(&folder), Published::new(config));
        return leave::leave(&settings, &node, &disk, &published, &process.roots());
    }
    let signals = stop_signals().map_err(failed)?;
    let attended = process.attend("routing", &invocation.loaded)?;
    let listener = Listener::open(Vec::new(), &config.socketpath).map_err(failed)?;
    let socket = listener.path.clone();
    let mut service = Service::new(config, settings, node, folder, process)?;
    let shared = service.shared.clone();
    let answer = Box::new(move |target: &str| shared.answer(target));
    let answers = Duties { answer, reload: None, changed: None };
    let _answering = Attendant::start(Some(listener), answers, &process.hung_up).map_err(failed)?;
    let poller = Poller::new().map_err(failed)?;
    poller.add(&signals, SIGNALS, Interest::Read).map_err(failed)?;
    poller.add(attended.changes.descriptor(), CHANGES, Interest::Read).map_err(failed)?;
    poller.add(service.folders.descriptor(), FOLDERS, Interest::Read).map_err(failed)?;
    poller.add(service.shared.bell(), ASKED, Interest::Read).map_err(failed)?;
    for descriptor in service.listener.descriptors() {
        poller.add(descriptor, EVENTS, Interest::Read).map_err(failed)?;
    }
    service.start();
    process.tell_ready(Some(&socket));
    tracing::info!(node = service.node, interval = ?config.interval, "ready");
    let served = service.serve(&poller, &signals, &attended.changes);
    process.tell_stopping();
    service.save();
    served.map_err(failed)?;
    tracing::info!("stopped; routes and tunnels stay");
    Ok(())
}

/// Returns what the crate `routing` has to know of the configuration.
fn settings(config: &config::Routing) -> Settings {
    Settings {
        source: Source::File,
        exempt: config.exempt.clone(),
        paths: match config.path.0 {
            RoutingPath::Auto => Paths::Auto,
            RoutingPath::Direct => Paths::Direct,
            RoutingPath::Native => Paths::Native,
            RoutingPath::Vxlan => Paths::Vxlan,
        },
        vxlan: Tunnels {
            vni: config.vxlan_vni.0,
            port: u16::try_from(config.vxlan_port.0).unwrap_or(u16::MAX),
        },
        pod_mtu: match config.pod_mtu {
            PodMtu::Paths => routing::settings::PodMtu::Paths,
            PodMtu::Underlay => routing::settings::PodMtu::Underlay,
            PodMtu::Fixed(mtu) => routing::settings::PodMtu::Fixed(mtu),
        },
        allow_overlap: config.allow_overlap,
        ..Settings::new(config.cluster.clone())
    }
}

struct Service {
    settings: Settings,
    /// This node's name.
    node: String,
    shared: Shared,
    clock: Clock,
    health: Health,
    netlink: RouteSocket,
    listener: ObjectListener,
    links: Links,
    filter: Filter,
    /// The packet filter's table is as wanted; before the first time, elements are only noted.
    filter_stands: bool,
    nodes: Nodes,
    /// This node, as its source says.
    of_source: Result<Node, String>,
    /// The prefixes of all nodes, as the source says.
    prefixes: Vec<IpNet>,
    disk: Disk,
    published: Published,
    folders: Folders,
    pace: Pace,
    filter_pace: Pace,
    /// When the last known nodes are to be written, and when they were.
    save_at: Option<Instant>,
    saved: Option<Instant>,
    /// The first look is over: what differs from now on was changed by somebody else.
    settled: bool,
}

impl Service {
    fn new(
        config: &config::Routing,
        settings: Settings,
        node: String,
        folder: PathBuf,
        process: &Process,
    ) -> Result<Self, Stop> {
        let netlink = RouteSocket::open().map_err(failed)?;
        let mut listener = ObjectListener::open().map_err(failed)?;
        listener.ignore(&netlink).map_err(failed)?;
        let file = config.nodes.clone().unwrap_or_default();
        let (nodes, published) = (Nodes::new(&file), Published::new(config));
        let watched = published.paths().chain([nodes.path()]);
        let folders = Folders::of(watched).map_err(failed)?;
        let filter =
            Filter::open(&settings, config.masquerade, &process.roots()).map_err(failed)?;
        let routing = Routing::new(settings.clone(), &node);
        Ok(Service {
            shared: Shared::new(routing).map_err(failed)?,
            settings,
            node,
            clock: Clock::start(),
            health: process.health.clone(),
            netlink,
            listener,
            links: Links::default(),
            filter,
            filter_stands: false,
            nodes,
            of_source: Err("the list of nodes has not been read yet".to_owned()),
            prefixes: Vec::new(),
            disk: Disk::new(&folder),
            published,
            folders,
            pace: Pace::new(config.interval),
            filter_pace: Pace::new(config.interval),
            save_at: None,
            saved: None,
            settled: false,
        })
    }

    /// Takes what the disk has, then what the source says, and makes the kernel so.
    fn start(&mut self) {
        let document = self.disk.read();
        if let Some(own) = document.own.filter(|own| own.name == self.node) {
            self.of_source = Ok(own);
        }
        let now = self.clock.now();
        let todo = self.shared.routing().restore(document.peers, now);
        self.obey(todo);
        self.read_nodes();
        self.look();
    }

    fn serve(
        &mut self,
        poller: &Poller,
        mut signals: &UnixStream,
        changes: &Changes,
    ) -> std::io::Result<()> {
        loop {
            self.health.turns();
            for number in poller.wait(Some(self.health.pause(self.pause())))? {
                match number {
                    SIGNALS => {
                        let _ = signals.read(&mut [0; 16]);
                        return Ok(());
                    }
                    CHANGES => {
                        if let Some(Config { routing, .. }) = changes.take() {
                            let now = Instant::now();
                            self.pace.set_interval(routing.interval, now);
                            self.filter_pace.set_interval(routing.interval, now);
                        }
                    }
                    FOLDERS => {
                        self.folders.heard();
                        if self.read_nodes() {
                            self.look();
                        }
                        self.publish();
                    }
                    ASKED => {
                        if self.shared.take_accepted() {
                            let todo = self.shared.routing().accept(self.clock.now());
                            self.obey(todo);
                        }
                    }
                    _ => self.hear(),
                }
            }
            self.do_what_is_due();
        }
    }

    /// Returns how long nothing is due.
    fn pause(&self) -> Duration {
        let now = Instant::now();
        let due = self.shared.routing().due().map(|due| due.since(self.clock.now()));
        let save = self.save_at.map(|at| at.saturating_duration_since(now));
        let looks = [self.pace.until_due(now), self.filter_pace.until_due(now)];
        due.into_iter().chain(save).chain(looks).min().unwrap_or_default()
    }

    fn do_what_is_due(&mut self) {
        if self.pace.is_due(Instant::now()) {
            self.folders.watch();
            self.read_nodes();
            self.look();
        } else if self.filter_pace.is_due(Instant::now()) {
            self.look_at_filter();
        }
        let now = self.clock.now();
        if self.shared.routing().due().is_some_and(|due| due <= now) {
            let todo = self.shared.routing().tick(now);
            self.obey(todo);
        }
        if self.save_at.is_some_and(|at| at <= Instant::now()) {
            self.save();
        }
    }

    /// Reads the list of nodes, if it has changed. Says whether it has.
    ///
    /// A list that cannot be read changes nothing: the last one counts.
    fn read_nodes(&mut self) -> bool {
        let Some(read) = self.nodes.look(&self.settings) else { return false };
        let event = match read {
            Ok(seen) => {
                self.health.needs("list of nodes", Ok(()));
                let readable = seen.iter().filter_map(|seen| seen.node.as_ref().ok());
                self.prefixes = readable.flat_map(|node| node.prefixes.clone()).collect();
                self.take_own(&seen);
                Event::Listed(seen)
            }
            Err(why) => {
                tracing::error!(error = why, "the list of nodes is wrong; the last one counts");
                self.health.needs("list of nodes", Err(why));
                Event::Silent
            }
        };
        let todo = self.shared.routing().event(event, self.clock.now());
        self.obey(todo);
        true
    }

    /// Takes what the list says of this node. If it says nothing, what is programmed stays.
    fn take_own(&mut self, seen: &[Seen]) {
        match nodes::own(seen, &self.node, self.nodes.path()) {
            Ok(own) => self.of_source = Ok(own),
            Err(why) => {
                self.of_source = Err(why.clone());
                // Before the list counts: it may lack other nodes too.
                self.take_found(Err(why));
            }
        }
    }

    /// Looks at everything, and puts right what is not as it is to be.
    fn look(&mut self) {
        let (begin, worked) = (Instant::now(), processor_time());
        let looked = self.look_once();
        let again = looked.is_err();
        self.health.needs("kernel", looked);
        let worked = processor_time().saturating_sub(worked);
        self.pace.looked(begin, Instant::now(), worked, again);
        self.publish();
    }

    fn look_once(&mut self) -> Result<(), String> {
        let said = |error: kernel::netlink::NetlinkError| words(&error);
        let own = self.shared.routing().cluster().own().clone();
        let host = Host::read(&mut self.netlink, &own).map_err(said)?;
        let own = self.find_own(&host);
        let observed = {
            let routing = self.shared.routing();
            let known = own.as_ref().unwrap_or(routing.cluster().own()).clone();
            drop(routing);
            host.observe(&mut self.netlink, &self.settings.cluster_ranges, &known).map_err(said)?
        };
        let is_empty = observed.objects().keys().all(|key| matches!(key, Key::Element { .. }));
        let own = own.and_then(|own| match self.overlap(&host, is_empty) {
            Some(overlap) => Err(overlap),
            None => Ok(own),
        });
        self.health.needs("this node", own.as_ref().map(|_| ()).map_err(Clone::clone));
        self.take_found(own);
        let _ = self.listener.only_neighbours_of(host.links.tunnels());
        self.links = host.links;
        let todo = {
            let mut routing = self.shared.routing();
            let (up, down) = self.links.up_and_down();
            // What follows from it is found by the look.
            for link in up {
                let _ = routing.link_up(link);
            }
            for link in down {
                let _ = routing.link_down(link);
            }
            let mut observed = observed;
            // The table of the packet filter has what was noted of it.
            for (key, value) in routing.observed().objects() {
                if let Key::Element { .. } = key {
                    observed.insert(key.clone(), value.clone());
                }
            }
            routing.look(observed)
        };
        let put_back = self.obey(todo);
        if let (Some(first), true) = (put_back, self.settled) {
            tracing::warn!(%first, "put back what another program has changed");
        }
        self.look_up_again();
        self.look_at_filter();
        self.hold_forwarding();
        self.settled = true;
        Ok(())
    }

    /// Finds out what this node is: what the source says, on the links that have its addresses.
    fn find_own(&self, host: &Host) -> Result<Own, String> {
        let node = self.of_source.as_ref().map_err(Clone::clone)?;
        let uplinks = PerFamily::with(|family| {
            let address = node.underlay.get(family)?;
            let mut uplink = host.uplink(address)?;
            uplink.mtu = uplink.mtu.min(node.mtu.unwrap_or(u32::MAX));
            Some((uplink, address))
        });
        if uplinks.iter().all(|(_, uplink)| uplink.is_none()) {
            let addresses: Vec<String> = node.underlay.iter().map(|at| at.to_string()).collect();
            return Err(format!(
                "no link of this host has the address {}, by which others are to reach it",
                addresses.join(" or ")
            ));
        }
        let found = Found {
            name: self.node.clone(),
            uid: String::new(),
            prefixes: node.prefixes.clone(),
            kept: node.kept.clone(),
            zone: node.zone.clone(),
            uplinks,
            // Every node knows the hardware addresses of the tunnels by the nodes' names.
            taken_over: PerFamily::default(),
        };
        Ok(Own::new(&self.settings, found))
    }

    /// Says why nothing may be programmed on this host: before there is anything, a range of pods
    /// must not be one that the host uses.
    fn overlap(&self, host: &Host, is_empty: bool) -> Option<String> {
        if self.settings.allow_overlap || !is_empty {
            return None;
        }
        let used = host.prefixes(&self.prefixes);
        let found = overlap::find(&self.settings.cluster_ranges, &used);
        found.first().map(ToString::to_string)
    }

    /// Tells routing what this node is, or why it is nothing yet.
    fn take_found(&mut self, own: Result<Own, String>) {
        let now = self.clock.now();
        let mut routing = self.shared.routing();
        let phase = routing.phase();
        match own {
            Ok(own) => {
                if *routing.cluster().own() == own && !matches!(phase, Phase::Waiting(_)) {
                    return;
                }
                self.filter.set_own(&own);
                // The changes are found by the look that follows.
                let todo = Todo { changes: Vec::new(), ..routing.own(own, now) };
                drop(routing);
                self.obey(todo);
            }
            Err(why) => {
                if phase != Phase::Waiting(why.clone()) {
                    tracing::warn!(why, "nothing is programmed for now; what is there stays");
                    routing.wait(&why);
                }
            }
        }
    }

    /// Looks up the ways to all nodes again: a route or an address of this host may be another.
    fn look_up_again(&mut self) {
        let addresses: BTreeSet<IpAddr> = self.shared.routing().underlay_addresses().collect();
        let todo = self.look_up(addresses);
        self.obey(todo);
    }

    fn look_up(&mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Todo {
        let own = self.shared.routing().cluster().own().clone();
        let ways: Vec<(IpAddr, Way)> = addresses
            .into_iter()
            .map(|address| (address, host::way(&mut self.netlink, &self.links, &own, address)))
            .collect();
        self.shared.routing().ways(ways)
    }

    /// Does what routing says, until it says nothing more. Returns the first change that was made.
    fn obey(&mut self, mut todo: Todo) -> Option<Change> {
        let mut first = None;
        loop {
            todo.news.iter().for_each(tell);
            first = first.or(self.make(&todo.changes));
            self.flush_flows(&todo.flush_flows);
            if todo.document_changed && self.save_at.is_none() {
                let now = Instant::now();
                let earliest = self.saved.map_or(now, |saved| saved + BETWEEN_WRITES);
                self.save_at = Some(earliest.max(now));
            }
            if todo.look_up.is_empty() {
                return first;
            }
            todo = self.look_up(std::mem::take(&mut todo.look_up));
        }
    }

    /// Makes changes, and tells routing of each how it went. Returns the first that was made.
    fn make(&mut self, changes: &[Change]) -> Option<Change> {
        let mut first = None;
        for run in changes.chunk_by(|one, other| one.is_filter() == other.is_filter()) {
            let all: Vec<&Change> = run.iter().collect();
            let results = match run[0].is_filter() {
                true => self.change_filter(&all),
                false => apply::apply(&mut self.netlink, &mut self.links, &all),
            };
            let now = self.clock.now();
            let mut routing = self.shared.routing();
            for (change, result) in run.iter().zip(results) {
                let Err(error) = result else {
                    first = first.or(Some(change.clone()));
                    routing.done(change);
                    continue;
                };
                if let Some(news) = routing.failed(change, &error, now) {
                    tell(&news);
                    // Something may have changed meanwhile.
                    self.pace.hurry(Instant::now());
                }
            }
        }
        if !changes.is_empty() {
            let _ = self.listener.only_neighbours_of(self.links.tunnels());
        }
        first
    }

    fn change_filter(&mut self, changes: &[&Change]) -> Vec<Result<(), String>> {
        if !self.filter_stands {
            self.filter.note(changes);
        } else if let Err(error) = self.filter.change(changes) {
            // Noted all the same; the next look at the table makes up for it.
            self.filter_pace.hurry(Instant::now());
            self.health.needs("packet filter", Err(words(&error)));
        }
        vec![Ok(()); changes.len()]
    }

    /// Brings the packet filter's table to what it is to be, once it is known what that is.
    fn look_at_filter(&mut self) {
        let (begin, worked) = (Instant::now(), processor_time());
        let (may, listed) = {
            let routing = self.shared.routing();
            (!matches!(routing.phase(), Phase::Waiting(_)), routing.cluster().listed())
        };
        let brought = match (may, listed) {
            (true, true) => self.filter.bring(),
            (true, false) => self.filter.bring_if_missing(),
            (false, _) => Ok(Vec::new()),
        };
        let brought = brought.map_err(|error| words(&error));
        let again = brought.is_err();
        if let Ok(lines) = &brought {
            for what in lines.iter().filter(|_| self.filter_stands) {
                tracing::warn!(what, "put back in the packet filter");
            }
            self.filter_stands |= may && listed;
        }
        self.health.needs("packet filter", brought.map(drop));
        if may {
            let opened = match self.filter.open_others() {
                Ok(closed) if closed.is_empty() => Ok(()),
                Ok(closed) => Err(format!("pods' packets are dropped: {}", closed.join("; "))),
                Err(error) => Err(words(&error)),
            };
            self.health.needs("other packet filters", opened);
        }
        let worked = processor_time().saturating_sub(worked);
        self.filter_pace.looked(begin, Instant::now(), worked, again);
    }

    /// Switches forwarding on for the families of this node's pods. It stays on: others may rely on
    /// it by the time when it is not needed any more.
    fn hold_forwarding(&mut self) {
        let has = |family: Family| {
            let routing = self.shared.routing();
            !matches!(routing.phase(), Phase::Waiting(_))
                && routing.cluster().own().node.prefixes_of(family).next().is_some()
        };
        let sysctls =
            [(Family::V4, "net/ipv4/ip_forward"), (Family::V6, "net/ipv6/conf/all/forwarding")];
        let wanted = sysctls.into_iter().filter(|(family, _)| has(*family));
        let done: Result<(), _> = wanted
            .map(|(_, name)| Sysctl::parse(name).and_then(|sysctl| sysctl.write_if_different("1")))
            .try_for_each(|done| done.map(drop));
        self.health.needs("forwarding", done.map_err(|error| words(&error)));
    }

    /// Makes connection tracking forget UDP flows of prefixes whose packets go another way now: what
    /// was translated, or answered by an error, would go on so. Without connection tracking there
    /// are none.
    fn flush_flows(&self, prefixes: &[IpNet]) {
        if prefixes.is_empty() {
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
                tracing::debug!(%error, "UDP flows keep their old way");
            }
        }
    }

    /// Writes what runtimes and plugins read, once everything of this node is programmed.
    fn publish(&mut self) {
        let routing = self.shared.routing();
        let is_there =
            |key: &Key| routing.observed().objects().get(key) == routing.wanted().get(key);
        let own = routing.wanted().keys_of("");
        if matches!(routing.phase(), Phase::Waiting(_))
            || own.is_empty()
            || !own.iter().all(is_there)
        {
            return;
        }
        let written = self.published.write(&routing, &self.settings);
        drop(routing);
        self.health.needs("files for pods", written.map_err(|error| words(&error)));
    }

    /// Writes the last known nodes.
    fn save(&mut self) {
        if self.save_at.take().is_none() {
            return;
        }
        let document = self.shared.routing().document();
        let written = self.disk.write(&document);
        self.saved = Some(Instant::now());
        if written.is_err() {
            self.save_at = Some(Instant::now() + BETWEEN_WRITES);
        }
        self.health.needs("record of nodes", written.map_err(|error| words(&error)));
    }

    fn hear(&mut self) {
        let events = match self.listener.heard() {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!(%error, "events may be missed");
                vec![ObjectEvent::Lost]
            }
        };
        let now = Instant::now();
        for event in events {
            if event == ObjectEvent::FilterRemoved {
                self.filter_pace.hurry(now);
            } else if self.concerns(&event) {
                tracing::debug!(?event, "heard");
                self.pace.hurry(now);
            }
        }
    }

    /// Says whether something is otherwise than it is known to be.
    fn concerns(&self, event: &ObjectEvent) -> bool {
        let routing = self.shared.routing();
        let (object, there) = match event {
            ObjectEvent::Changed(object) => (object, true),
            ObjectEvent::Removed(object) => (object, false),
            _ => return true,
        };
        if let Some((key, value)) = self.links.ours(object) {
            let known = routing.observed().objects().get(&key);
            return known != value.as_ref().filter(|_| there);
        }
        let own = routing.cluster().own();
        let is_waiting = matches!(routing.phase(), Phase::Waiting(_));
        let carries = |index: u32| {
            let name = self.links.name_of(index);
            own.uplinks.iter().any(|(_, uplink)| uplink.as_ref().is_some_and(|of| of.name == name))
        };
        let is_of_own = |route: &Route| {
            let prefix = route.destination.trunc();
            own.node.prefixes.iter().chain(&own.node.kept).any(|own| own.contains(&prefix))
        };
        match object {
            Object::Link(link) => is_waiting || carries(link.index) || own_name(own, &link.name),
            Object::Address(address) => {
                is_waiting
                    || carries(address.ifindex)
                    || own.node.underlay.iter().any(|own| own == address.address.addr())
            }
            // Those of pods come and go all the time.
            Object::Route(route) => !is_of_own(route),
            Object::Neighbour(_) | Object::VxlanFdb(_) | Object::Nexthop(_) => false,
            _ => true,
        }
    }
}

/// Reports whether a link has the name of one of this node's tunnels or uplinks.
fn own_name(own: &Own, name: &str) -> bool {
    let uplinks = own.uplinks.iter().filter_map(|(_, uplink)| uplink.as_ref());
    uplinks
        .map(|uplink| &uplink.name)
        .chain(own.tunnels.iter().map(|(_, of)| of))
        .any(|of| **of == *name)
}

/// Logs something that happened.
fn tell(news: &News) {
    let peer = news.node.as_deref();
    match news.warning {
        true => tracing::warn!(peer, "{}", news.text),
        false => tracing::info!(peer, "{}", news.text),
    }
}

/// Time as routing reckons it: the wall clock at the start, and what has passed since.
struct Clock {
    wall: Time,
    start: Instant,
}

impl Clock {
    fn start() -> Self {
        let wall = Duration::from_millis(clock::now().wall.as_millis());
        Clock { wall: Time::default().after(wall), start: Instant::now() }
    }

    fn now(&self) -> Time {
        self.wall.after(self.start.elapsed())
    }
}
