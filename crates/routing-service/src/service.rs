//! The loop: it learns, looks, has the changes made that routing plans, and reports.
//!
//! Information goes one way. A source or an event says what it has changed, a look reads the kernel,
//! the crate `routing` plans, [`Dataplane`] makes the changes; each step returns what has become due
//! ([`Due`]), and only the loop notes it in the [`Schedule`].

use std::net::IpAddr;
use std::time::{Duration, Instant};

use agent::{Config, config};
use kernel::netlink::NetlinkError;
use routing::Todo;
use routing::document::Document;
use routing::settings::OwnNode;
use service_kit::event_loop::{EventLoop, Rounds};
use service_kit::process::Process;
use service_kit::stop::{Stop, failed, words};

use super::answers::SharedRouting;
use super::context::{Context, log};
use super::dataplane::{Dataplane, Outcome};
use super::files::{self, Disk, NetworkFiles};
use super::filter::Filter;
use super::host::Host;
use super::own_lease::Configuration;
use super::published::PublishedFiles;
use super::reports::Reports;
use super::schedule::{Due, Look, Schedule, Stopwatch, Work};
use super::source::{NodeSource, identify};
use super::spaces::BlockSource;
use super::{ASKED, EVENTS, FOLDERS, NODES, SPACES};

/// The service.
pub(super) struct Service {
    context: Context,
    source: NodeSource,
    blocks: BlockSource,
    dataplane: Dataplane,
    disk: Disk,
    published: PublishedFiles,
    reports: Reports,
    schedule: Schedule,
}

impl Rounds for Service {
    fn until_due(&self) -> Duration {
        let now = Instant::now();
        let due = self.context.routing().due().map(|due| due.since(self.context.clock.now()));
        let write = self.disk.write_at().map(|at| at.saturating_duration_since(now));
        let looks = self.schedule.until_due(now);
        due.into_iter().chain(write).fold(looks, Duration::min)
    }

    fn reconfigure(&mut self, new: &Config) {
        self.schedule.set_interval(new.routing.interval, Instant::now());
    }

    fn round(&mut self, ready: &[u64]) -> std::io::Result<()> {
        for number in ready {
            match *number {
                FOLDERS => {
                    self.published.heard();
                    self.look_at_others();
                    self.learn_and_publish();
                }
                NODES => self.learn_and_publish(),
                SPACES => self.learn_blocks(),
                ASKED => self.do_what_is_asked(),
                _ => {
                    let due = self.dataplane.hear(&self.context);
                    self.note(due);
                }
            }
        }
        self.do_what_is_due();
        self.report_ready();
        Ok(())
    }
}

impl Service {
    pub(super) fn new(
        config: &config::Routing,
        context: Context,
        of_etcd: Option<Configuration>,
        disk: Disk,
        files: NetworkFiles,
        process: &Process,
    ) -> Result<Self, Stop> {
        let filter = Filter::open(&context.settings, config.masquerade, &process.roots());
        Ok(Service {
            dataplane: Dataplane::open(&context, filter.map_err(failed)?)?,
            source: NodeSource::follow(config, &context, of_etcd)?,
            blocks: BlockSource::follow(config)?,
            context,
            disk,
            published: PublishedFiles::new(files, config.nodes.as_deref()).map_err(failed)?,
            reports: Reports::default(),
            schedule: Schedule::new(config.interval),
        })
    }

    /// Returns the state of routing, for the thread that answers questions.
    pub(super) fn shared(&self) -> SharedRouting {
        self.context.shared.clone()
    }

    /// Has the loop wait for all that the service hears of.
    pub(super) fn watch(&self, events: &EventLoop<'_>) -> Result<(), Stop> {
        events.watch(self.published.descriptor(), FOLDERS)?;
        events.watch(self.context.shared.bell(), ASKED)?;
        for (bell, number) in [(self.source.bell(), NODES), (self.blocks.bell(), SPACES)] {
            if let Some(bell) = bell {
                events.watch(bell, number)?;
            }
        }
        for descriptor in self.dataplane.listener.descriptors() {
            events.watch(descriptor, EVENTS)?;
        }
        Ok(())
    }

    /// Takes what the disk has, then what the source says, and makes the kernel so.
    pub(super) fn start(&mut self) {
        let mut document = self.disk.read();
        if self.is_outdated(&document) {
            tracing::info!("flanneld has run here since the nodes were recorded: they are ignored");
            document = Document::default();
        }
        let own = document.own.as_ref().filter(|own| own.name == self.context.node);
        // Before the source answers, pods and a routing daemon's routes may be in these prefixes.
        let nodes = own.into_iter().chain(document.peers.iter().map(|(node, _)| node));
        let prefixes = nodes.flat_map(|node| node.prefixes.iter().chain(&node.kept));
        self.source.prefixes = prefixes.copied().collect();
        if let Some(own) = own {
            self.source.own = Ok(own.clone().into());
        }
        let todo = self.context.routing().restore(document, self.context.clock.now());
        let due = self.carry_out(todo);
        self.note(due);
        let due = self.learn();
        self.note(due);
        self.look();
    }

    /// Reports whether flanneld, whose place this service takes, has made routes to nodes since the
    /// disk's record of them was written: these nodes may be others by now.
    fn is_outdated(&mut self, document: &Document) -> bool {
        if self.context.settings.flannel.is_none() || document.peers.is_empty() {
            return false;
        }
        let prefixes = document.peers.iter().flat_map(|(node, _)| &node.prefixes);
        let prefixes = prefixes.copied().collect();
        self.dataplane.read(&self.context).is_ok_and(|host| host.is_flannels(&prefixes))
    }

    /// Says in the log whether this node is known and its network is made.
    pub(super) fn report_ready(&mut self) {
        self.reports.ready(&self.context, self.schedule.interval());
    }

    /// Writes the last known nodes, if the file has others.
    pub(super) fn save(&mut self) {
        self.disk.write_nodes(&self.context);
    }

    fn do_what_is_due(&mut self) {
        match self.schedule.work(Instant::now()) {
            Some(Work::Look) => {
                self.published.watch();
                let due = self.learn();
                self.note(due);
                self.look();
            }
            Some(Work::Filter) => self.look_at_filter(),
            None => {}
        }
        let now = self.context.clock.now();
        if self.context.routing().due().is_some_and(|due| due <= now) {
            let todo = self.context.routing().tick(now);
            let due = self.carry_out(todo);
            self.note(due);
        }
        if self.disk.write_at().is_some_and(|at| at <= Instant::now()) {
            self.save();
        }
    }

    /// Does what another thread has asked for.
    fn do_what_is_asked(&mut self) {
        if self.context.shared.take_accepted() {
            let todo = self.context.routing().accept(self.context.clock.now());
            let due = self.carry_out(todo);
            self.note(due);
        }
        self.source.publish_condition(&self.context);
    }

    /// Takes note of what has become due.
    fn note(&mut self, due: Due) {
        let now = Instant::now();
        if due.record {
            self.disk.nodes_changed(now);
        }
        self.schedule.note(due, now);
    }

    /// Does what routing says.
    fn carry_out(&mut self, todo: Todo) -> Due {
        self.dataplane.carry_out(&self.context, todo).due
    }

    /// Learns what the source says now, and does what follows for other nodes.
    fn learn(&mut self) -> Due {
        let mut due = Due::default();
        for heard in self.source.heard(&self.context) {
            let (todo, of_this) = self.source.take(&self.context, heard);
            due |= of_this;
            due |= self.carry_out(todo);
        }
        due
    }

    /// Learns what the source says now, and writes what follows from it for pods: a node's path may
    /// have another MTU.
    fn learn_and_publish(&mut self) {
        let due = self.learn();
        self.note(due);
        if due.look == Look::Now {
            return self.look();
        }
        let due = self.published.write(&self.context);
        self.note(due);
    }

    /// Learns which node holds which block now.
    fn learn_blocks(&mut self) {
        let was_listed = self.context.routing().cluster().blocks_listed();
        for heard in self.blocks.heard() {
            let todo = self.blocks.take(&self.context, heard);
            let due = self.carry_out(todo);
            self.note(due);
        }
        self.blocks.report(&self.context);
        if !was_listed && self.context.routing().cluster().blocks_listed() {
            // Objects that an earlier run made for blocks, and that no record wants any longer, go
            // now.
            self.look();
        }
    }

    /// Looks at everything, and puts right what is not as it is to be.
    fn look(&mut self) {
        let watch = Stopwatch::start();
        let other_routes = self.schedule.begin_look();
        let mut due = Due::default();
        let looked = self.look_once(other_routes, &mut due);
        due |= Due { routes: other_routes && looked.is_err(), ..Due::default() };
        self.schedule.looked(&watch, looked.is_err() || due.unanswered);
        self.context.health.needs("kernel", looked);
        self.context.counts.looked(watch.elapsed());
        self.look_at_others();
        due |= self.published.write(&self.context);
        if due.record {
            self.disk.nodes_changed(Instant::now());
        }
        self.schedule.note_of_look(due, Instant::now());
    }

    /// Looks once: observes, plans, applies, reports. `other_routes` says that the ways to nodes may
    /// have changed since the last look.
    fn look_once(&mut self, other_routes: bool, due: &mut Due) -> Result<(), String> {
        let said = |error: NetlinkError| words(&error);
        let mut host = self.dataplane.read(&self.context).map_err(said)?;
        if self.source.settle_lease(&self.context, &host) {
            self.blocks.reconnect();
        }
        let own = self.find_own(&host);
        let known = own.as_ref().ok();
        let observed = self.dataplane.observe(&self.context, &mut host, known).map_err(said)?;
        let prefixes = &self.source.prefixes;
        let overlap = self.context.routing().overlap(&observed, prefixes, || host.prefixes());
        let own = own.and_then(|own| overlap.map_or(Ok(own), Err));
        let is_known = own.is_ok();
        if let Err(why) = &own {
            self.context.health.needs("this node", Err(why.clone()));
        }
        if is_known && !self.context.settings.standby {
            self.dataplane.mark_tunnels(&host)?;
            let (removed, done) = self.dataplane.remove_announced(&self.context, &host);
            self.reports.routers(&self.context, removed);
            done?;
        }
        let (held_back, is_other) = self.take_own(own, due);
        let (mut todo, of_flanneld) = {
            let mut routing = self.context.routing();
            let (up, down) = host.links.up_and_down();
            routing.links(&up, &down);
            let todo = routing.look(observed);
            (todo, routing.flannels_return())
        };
        self.dataplane.keep_links(&self.context, host);
        self.reports.flanneld(&self.context, of_flanneld);
        todo.look_up.extend(held_back);
        let Outcome { first, looked_up, due: of_changes } =
            self.dataplane.carry_out(&self.context, todo);
        *due |= of_changes;
        let is_settled = self.context.routing().is_settled();
        if let (Some(first), true, false) = (first, is_settled, is_other) {
            Reports::restored(&self.context, &first);
        }
        // If the kernel has not answered, the next look asks.
        if !due.unanswered && self.schedule.asks_for_routes(other_routes, Instant::now()) {
            // In a cold start this look has asked for all of them.
            *due |= self.dataplane.look_up_all(&self.context, &looked_up).due;
        }
        // What was heard of the packet filter so far, this look sees.
        due.filter = false;
        self.look_at_filter();
        *due |= self.dataplane.hold_forwarding(&self.context);
        // Whoever hears that the service is ready finds forwarding on.
        if is_known {
            self.context.health.needs("this node", Ok(()));
        }
        self.source.publish_condition(&self.context);
        self.context.routing().look_is_over();
        Ok(())
    }

    /// Finds out what this node is: what the source says, on the links that have its addresses.
    fn find_own(&mut self, host: &Host) -> Result<OwnNode, String> {
        let node = self.source.own.clone()?;
        let context = &self.context;
        context.routing().note_unused(&node);
        let mut own = identify(context, &node, host)?;
        let may_keep = context.routing().had_prefixes(&node, host.own_prefixes());
        if may_keep {
            let pods = host.pods(files::recorded());
            context.routing().keep_earlier(&node, &pods).iter().for_each(log);
        }
        self.published.choose_bridge(context, &node, host);
        let routing = context.routing();
        own.node.kept = routing.kept();
        own.links = host.underlay(&own, &context.settings, |address| {
            routing.cluster().of_underlay(address).is_some()
        });
        own.node.blocks.clone_from(&routing.cluster().own().node.blocks);
        Ok(own)
    }

    /// Passes to routing, during a look, what this node is, or why it is not known yet. Returns the
    /// addresses that the end of the look looks up, and whether this node or the list of others is
    /// another now.
    fn take_own(&mut self, own: Result<OwnNode, String>, due: &mut Due) -> (Vec<IpAddr>, bool) {
        let context = &self.context;
        let before = context.own();
        let mut all = Vec::new();
        match own {
            Ok(own) => {
                let mut routing = context.routing();
                self.source.publish(&routing, &own);
                if *routing.cluster().own() != own || routing.waits_for().is_some() {
                    // By another link, another MTU.
                    *due |= Due { routes: true, ..Due::default() };
                    self.dataplane.filter.set_own(&own);
                    all.push(routing.own(own, context.clock.now()));
                }
            }
            Err(why) => context.wait_for(&why),
        }
        let is_other = before != context.own();
        let relisted = self.source.relist_leases(context);
        let is_other = is_other || relisted.is_some();
        all.extend(relisted);
        let mut look_up = Vec::new();
        for todo in all {
            let (addresses, of_todo) = self.dataplane.hold_back(context, todo);
            look_up.extend(addresses);
            *due |= of_todo;
        }
        (look_up, is_other)
    }

    /// Brings the packet filter's table to what it is to be.
    fn look_at_filter(&mut self) {
        let watch = Stopwatch::start();
        let again = self.dataplane.filter.look(&self.context);
        self.schedule.filter_looked(&watch, again);
    }

    /// Says what of other programs stands before what the service publishes.
    fn look_at_others(&mut self) {
        let is_kubernetes = self.source.is_kubernetes();
        self.published.look_at_others(&self.context, is_kubernetes);
    }
}
