//! Network policies for the pods of this node.
//!
//! | file | what it is |
//! |---|---|
//! | this one | start and end, and the loop |
//! | `engine` | all decisions |
//! | `kinds` | objects as sources say them |
//! | `further` | what the annotations of pods say of further networks |
//! | `lists` | what is kept although a list lacks it |
//! | `records` | the attachments of this node |
//! | `add_queue` | ADDs that wait for the first lists |
//! | `tell` | what is written to the API server, and when |
//! | `concern` | which connections a change may forbid |
//! | `isolate` | the isolation of namespaces, as the configuration says it |
//! | `shared` | the engine, for the loop and the other threads |
//! | `server` | the asynchronous thread: the plugin's requests, and the API server |
//! | `cluster`, `slim` | the source `kubernetes` |
//! | `writer` | statuses and Events |
//! | `folder`, `objects`, `said` | the source `file` |
//! | `filter` | the packet filter's table, under its lock |
//! | `inside` | the tables in containers' own namespaces |
//! | `links` | pods' links, on which verdicts stand |
//! | `cuts` | ends connections |
//! | `known` | how many policies there were, on the disk, and the thread that writes it |
//! | `answers`, `drops`, `listing`, `question`, `log` | the answers to `netwright policy` |
//! | `of_files` | its answers about files, without a service |
//! | `counts` | what is counted, for metrics |
//!
//! The crate `netwright-policy` judges and compiles; the engine decides what is done with that; the
//! loop carries it out. The loop takes all that was heard, passes it to the engine, makes one
//! transaction, and then answers plugins. A plugin waits for two seconds. So the loop does not wait
//! for a disk, and takes the requests of plugins before other work. Nothing is removed when the
//! service ends.
//!
//! Records that the plugin `policy` writes say which pods are here. The service reads all of them
//! at its start, once a minute, and before it writes its whole table; a message only makes it look
//! at once. If messages alone said it, a lost one would leave a pod open, or an address closed for
//! ever. Plugin and service share a lock, so that no table is written without an address that a
//! plugin has just closed. A packet in the middle of an unknown TCP connection is reset if an end
//! has policies in the other direction: otherwise a connection that was cut would revive in
//! reverse. If another program empties connection tracking, connections of such pods are reset too.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod add_queue;
mod answers;
mod cluster;
pub mod command;
mod concern;
mod counts;
mod cuts;
mod drops;
mod engine;
mod filter;
mod folder;
mod further;
mod inside;
mod isolate;
mod kinds;
mod known;
mod links;
mod listing;
mod lists;
mod log;
mod objects;
mod of_files;
mod question;
mod records;
mod said;
mod server;
mod shared;
mod slim;
mod tell;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use agent::Config;
use agent::config::{self, PolicySource};
use clap::{Arg, ArgAction};
use firewall::FirewallError;
use firewall::pods::{Logging, NO_LOG, ipvs};
use kernel::events::TableEvent;
use node_api::Refusal;
use node_api::policy::{Answer, Owner, Request};
use service_kit::attendant;
use service_kit::command_line::{Invocation, UNINSTALL};
use service_kit::event_loop::{EventLoop, Rounds};
use service_kit::exchange::{NoAnswer, ask};
use service_kit::health::Health;
use service_kit::outlet::{self, Inlet};
use service_kit::pace::{Pace, thread_time};
use service_kit::process::{LONG, Process, raise_descriptor_limit};
use service_kit::stop::{Stop, failed, words};
use state::{Durability, Roots};

use self::add_queue::AddQueue;
use self::concern::Concern;
use self::counts::Counts;
use self::cuts::{Cuts, Departures};
use self::drops::Drops;
use self::engine::{Engine, Event, Todo};
use self::filter::{Filter, TableDifference};
use self::folder::Files;
use self::known::{Disk, Keeper};
use self::links::{Links, Repairs};
use self::lists::Origin;
use self::log::Counters;
use self::records::{Id, id};
use self::server::{Order, Reply, Server, ThreadEvent};
use self::shared::SharedEngine;

/// Numbers of the descriptors that the loop waits for.
/// The requests of plugins are the lowest, and come before work that may take longer.
const HEARD: u64 = 0;
const FILTER: u64 = 1;
const ASKED: u64 = 2;
const FILES: u64 = 3;
const LINKS: u64 = 4;
const TABLES: u64 = 5;

/// The shortest time between two writes of the number of policies.
const BETWEEN_WRITES: Duration = Duration::from_secs(5);

/// How long it takes until records are listed again: those of attachments that have ended, damaged
/// ones, and all of them after a start.
const ENDED: Duration = Duration::from_secs(2);

/// How often the service looks whether IPVS has services, until it has. The kernel does not report
/// that.
const SERVICES: Duration = Duration::from_secs(1);

/// How long the service waits for more changes of files after one.
const FILES_SETTLE: Duration = Duration::from_millis(20);

/// What the service's health calls the tables in containers' namespaces.
const INSIDE: &str = "containers' packet filters";

const OPEN: &str = "open";

/// How long a service may take to say that it runs.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The flags that are not keys of the configuration.
pub fn more_flags() -> Vec<Arg> {
    let uninstall = Arg::new(UNINSTALL).long(UNINSTALL).action(ArgAction::SetTrue);
    let open = Arg::new(OPEN).long(OPEN).action(ArgAction::SetTrue).requires(UNINSTALL);
    vec![
        uninstall.help(
            "enforce nothing new on this node, and end: containers that run keep their rules as they are until they end, and new ones of a network with the plugin policy are refused",
        ),
        open.help(
            "with --uninstall: remove the packet filter's tables at once, so that no policy holds on this node any more",
        ),
    ]
}

/// Runs the service until a signal ends it.
pub fn run(invocation: &Invocation, process: &Process) -> Result<(), Stop> {
    let config = &invocation.config().policy;
    let roots = process.roots();
    let folder = config.state.clone().unwrap_or_else(|| roots.lib.join("policy"));
    let mut disk = Disk::new(&folder);
    let filter = Filter::open(logging(config), &roots);
    let taken_off = node_api::policy::taken_off(&roots.lib);
    if invocation.takes_off() {
        let open = invocation.more.get_flag(OPEN);
        return leave(filter.map_err(failed)?, &disk, &taken_off, open, &roots);
    }
    state::remove_file(&taken_off).map_err(failed)?;
    let mut events = EventLoop::new(process)?;
    raise_descriptor_limit();
    let node = process.node_name(config.node.clone().unwrap_or_default());
    let origin = match config.source.0 {
        PolicySource::File => Origin::Files,
        PolicySource::Kubernetes => Origin::Server,
    };
    let engine = Engine::new(&node, origin, isolate::isolation(config), disk.read());
    let shared = SharedEngine::new(engine).map_err(failed)?;
    let listener = process.listen(&config.socketpath).map_err(failed)?;
    let (inlet, outlet) = outlet::pair().map_err(failed)?;
    events.watch(inlet.bell(), HEARD)?;
    let (source, files) = match config.source.0 {
        PolicySource::Kubernetes => {
            let kubeconfig = config.kubeconfig.clone();
            (Some(cluster::Source { kubeconfig, interval: config.interval }), None)
        }
        PolicySource::File => (None, Some(Files::new(&config.objects).map_err(failed)?)),
    };
    // Pods may wait for the first lists: they are asked for before everything else.
    let server = Server::start(&listener, outlet, source, shared.clone())?;
    let counters = Counters::default();
    let health = process.health.clone();
    let drops = Drops::start(logging(config).group, shared.clone(), health, counters.clone());
    let of_answers = shared.clone();
    let answer = move |target: &str| answers::answer(&of_answers, &drops, target);
    events.attend_with(&invocation.loaded, Box::new(answer))?;
    let filter = filter.map_err(failed)?;
    let links = Links::open(&roots).map_err(failed)?;
    let ends = (inlet, server);
    let mut service = Service::new(config, shared, (filter, links), ends, process, counters)?;
    service.files = files;
    service.keeper = Some(Keeper::start(disk, process.health.clone()).map_err(failed)?);
    events.watch(service.filter.descriptor(), FILTER)?;
    for (descriptor, number) in service.links.descriptors().into_iter().zip([LINKS, TABLES]) {
        events.watch(descriptor, number)?;
    }
    events.watch(service.shared.bell(), ASKED)?;
    if let Some(files) = &service.files {
        events.watch(files.descriptor(), FILES)?;
    }
    service.start();
    process.tell_ready(Some(&listener.path));
    tracing::info!(node, socket = %listener.path.display(), "ready");
    let served = events.serve(&mut service);
    listener.close();
    service.save();
    if let Some(keeper) = service.keeper.take() {
        keeper.finish();
    }
    served?;
    match service.filter.remove_unused() {
        Ok(0) => tracing::info!("stopped; no container here is under policy"),
        Ok(_) => tracing::info!("stopped; policies stay enforced"),
        Err(error) => tracing::warn!(error = words(&error), "stopped; the table stays"),
    }
    Ok(())
}

/// Takes the service off the node. Containers that run keep their rules, unless they are opened.
fn leave(
    mut filter: Filter,
    disk: &Disk,
    taken_off: &Path,
    open: bool,
    roots: &Roots,
) -> Result<(), Stop> {
    if !matches!(
        ask(&attendant::socket(roots, "policy"), "/livez", TIMEOUT),
        Err(NoAnswer::Nobody(_))
    ) {
        return Err(Stop::Failed(
            "the service policy runs, and would enforce everything again: stop it first".to_owned(),
        ));
    }
    disk.remove().map_err(failed)?;
    // From now on no container starts that would stay closed for ever.
    if let Some(folder) = taken_off.parent() {
        state::create_directory(folder, 0o700).map_err(failed)?;
    }
    state::write_atomic(taken_off, b"", 0o600, Durability::Synced).map_err(failed)?;
    let attached = match open {
        true => {
            filter.remove().map_err(failed)?;
            0
        }
        false => filter.remove_unused().map_err(failed)?,
    };
    Err(Stop::Print(match attached {
        0 => "no policy is enforced on this node any more\n".to_owned(),
        attached => format!(
            "{attached} attachments keep their rules as they are until they end; --open opens them now\n"
        ),
    }))
}

fn logging(config: &config::Policy) -> Logging {
    let group = u16::try_from(config.log_group.0).unwrap_or(Logging::GROUP);
    Logging { group, rate: config.log_rate.0 }
}

struct Service {
    shared: SharedEngine,
    filter: Filter,
    links: Links,
    inlet: Inlet<ThreadEvent>,
    server: Server,
    files: Option<Files>,
    keeper: Option<Keeper>,
    /// Ends connections that are forbidden, unless they are kept.
    cuts: Option<Cuts>,
    /// Ends those of containers that go.
    departures: Departures,
    counts: Counts,
    health: Health,
    pace: Pace,
    adds: AddQueue<(Request, Reply)>,
    /// Why the last attempt to bring the packet filter to the program failed.
    refused: Option<String>,
    /// Records were not listed again since the start. A plugin to which no process was listening
    /// may have removed a record that the start found.
    is_new: bool,
    /// What IPVS sends on is judged.
    judges_services: bool,
    /// Why some packets of IPVS are judged wrongly; the log has said so.
    judged_wrongly: Vec<&'static str>,
    /// When services of IPVS are looked for, when files are read again, when records are listed,
    /// and when the number of policies is written.
    services_at: Option<Instant>,
    read_at: Option<Instant>,
    list_at: Option<Instant>,
    save_at: Option<Instant>,
    saved: Option<Instant>,
}

impl Rounds for Service {
    fn until_due(&self) -> Duration {
        let now = Instant::now();
        let due = self.shared.engine().due();
        let all =
            [due, self.services_at, self.read_at, self.list_at, self.save_at, self.adds.due()];
        let until = all.into_iter().flatten().map(|at| at.saturating_duration_since(now));
        let looks = [self.pace.until_due(now), self.links.until_due(now)];
        until.chain(looks).min().unwrap_or(LONG)
    }

    fn reconfigure(&mut self, new: &Config) {
        self.pace.set_interval(new.policy.interval, Instant::now());
    }

    fn round(&mut self, ready: &[u64]) -> std::io::Result<()> {
        for number in ready {
            match *number {
                HEARD => {
                    let heard = self.inlet.heard();
                    self.take(heard);
                }
                FILTER => self.hear_of_filter(),
                LINKS | TABLES => self.links.hear(),
                ASKED if self.shared.take_accepted() => {
                    self.shared.engine().accept(Instant::now());
                    let _ = self.carry_out();
                }
                FILES => {
                    if let Some(files) = &self.files {
                        files.heard();
                        self.read_at = Some(Instant::now() + FILES_SETTLE);
                    }
                }
                _ => {}
            }
        }
        self.do_what_is_due();
        self.answer_who_waits();
        self.say_what_is_missing();
        Ok(())
    }
}

impl Service {
    fn new(
        config: &config::Policy,
        shared: SharedEngine,
        (filter, links): (Filter, Links),
        (inlet, server): (Inlet<ThreadEvent>, Server),
        process: &Process,
        counters: Counters,
    ) -> Result<Self, Stop> {
        let (counts, health) = (Counts::default(), process.health.clone());
        let (of_engine, counted) = (shared.clone(), counts.clone());
        health.counts(move || counts::figures(&of_engine, &counted, &counters));
        let cuts = match config.keep_connections {
            true => None,
            false => {
                let started = Cuts::start(shared.clone(), counts.clone(), health.clone());
                Some(started.map_err(failed)?)
            }
        };
        Ok(Service {
            shared,
            filter,
            links,
            inlet,
            server,
            files: None,
            keeper: None,
            cuts,
            departures: Departures::start().map_err(failed)?,
            counts,
            health,
            pace: Pace::new(config.interval),
            adds: AddQueue::new(Instant::now()),
            refused: None,
            is_new: true,
            judges_services: false,
            judged_wrongly: Vec::new(),
            services_at: None,
            read_at: None,
            list_at: None,
            save_at: None,
            saved: None,
        })
    }

    /// Takes the records, and what files say. Where the packet filter has nothing of ours, pods
    /// with a record are closed until more is known.
    fn start(&mut self) {
        self.look_for_services();
        self.look();
        self.say_what_is_missing();
    }

    /// Makes the packet filter judge what IPVS sends on, once IPVS has a service.
    fn look_for_services(&mut self) {
        if self.judges_services {
            return;
        }
        match self.filter.judge_services() {
            Ok(false) => {}
            Ok(true) => {
                self.judges_services = true;
                tracing::info!("IPVS has services: what it sends on is judged");
            }
            Err(error) => {
                tracing::error!(error = words(&error), "what IPVS sends on is not judged");
            }
        }
        self.services_at = (!self.judges_services).then(|| Instant::now() + SERVICES);
    }

    /// Logs once why some packets of IPVS are judged wrongly.
    fn look_at_services(&mut self) {
        let found = ipvs::judged_wrongly();
        for warning in found.iter().filter(|warning| !self.judged_wrongly.contains(*warning)) {
            tracing::warn!("{warning}");
        }
        self.judged_wrongly = found;
    }

    /// Reads which addresses this host has.
    fn look_at_host(&self) {
        match cuts::own_addresses() {
            Ok(own) => self.shared.engine().take_host(own),
            Err(error) => {
                tracing::warn!(error = words(&error), "the host's addresses cannot be read");
            }
        }
    }

    fn do_what_is_due(&mut self) {
        let now = Instant::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.services_at) {
            self.look_for_services();
        }
        if is_due(self.read_at) {
            self.read_files();
            let _ = self.carry_out();
        }
        if self.links.is_due(now) && !self.pace.is_due(now) {
            self.look_at_links();
        }
        if self.pace.is_due(now) {
            self.look();
        } else if is_due(self.list_at) {
            self.is_new = false;
            self.list_records();
            let _ = self.carry_out();
        }
        let due = self.shared.engine().due();
        if is_due(due) {
            self.shared.engine().tick(now);
            let _ = self.carry_out();
        }
        if is_due(self.save_at) {
            self.save();
        }
    }

    /// Takes all that was heard, makes one transaction of it, and answers.
    fn take(&mut self, heard: Vec<ThreadEvent>) {
        let mut asked: Vec<(Request, Reply)> = Vec::new();
        let mut gone: BTreeMap<Id, BTreeSet<IpAddr>> = BTreeMap::new();
        {
            let now = Instant::now();
            let mut engine = self.shared.engine();
            for heard in heard {
                match heard {
                    ThreadEvent::Event(event, _place) => engine.hear(*event, now),
                    ThreadEvent::Written(done) => self.health.needs("writing of statuses", done),
                    ThreadEvent::Asked(request, reply) => {
                        match &*request {
                            Request::Start(started) => {
                                engine.start(started.clone());
                                started.interface.iter().for_each(|name| self.links.watch(name));
                            }
                            Request::End(owner) => {
                                gone.entry(id(owner)).or_default().extend(engine.end(owner));
                            }
                            Request::Verdicts(_) | Request::Collect(_) | Request::Status(_) => {}
                        }
                        asked.push((*request, reply));
                    }
                }
            }
            engine.catch_up();
        }
        let lists = |(request, _): &(Request, Reply)| matches!(request, Request::Collect(_));
        if asked.iter().any(lists) {
            self.list_records();
        }
        let done = self.carry_out();
        let is_gathering = self.shared.engine().program().is_none();
        for (request, reply) in asked {
            if let (Request::End(owner), Ok(())) = (&request, &done) {
                let addresses = gone.get(&id(owner)).cloned().unwrap_or_default();
                self.departures.end(addresses, reply);
                continue;
            }
            match request {
                Request::Start(_) if is_gathering && done.is_ok() => {
                    self.adds.hold((request, reply));
                }
                _ => reply.send(self.answer(&request, &done)),
            }
        }
    }

    /// Answers the ADDs that wait, unless the first lists are still a moment away.
    fn answer_who_waits(&mut self) {
        let is_over = {
            let engine = self.shared.engine();
            engine.program().is_some() || engine.silence().is_some()
        };
        let done = self.refused.clone().map_or(Ok(()), Err);
        for (request, reply) in self.adds.take(is_over, Instant::now()) {
            reply.send(self.answer(&request, &done));
        }
    }

    fn answer(&mut self, request: &Request, done: &Result<(), String>) -> Answer {
        let refused = |why: &String| {
            Answer::Refused(Refusal::for_now(format!("the packet filter refuses: {why}")))
        };
        match request {
            Request::Start(started) => match done {
                Ok(()) => {
                    if let Some(why) = self.filter.inside().failure(&id(&started.owner)) {
                        return refused(why);
                    }
                    let enforced = self.shared.engine().enforced(&started.owner);
                    tracing::info!(
                        container_id = started.owner.container,
                        network = started.owner.network,
                        known = enforced.known,
                        notice = enforced.notice,
                        "started"
                    );
                    Answer::Enforced(enforced)
                }
                Err(why) => refused(why),
            },
            Request::Verdicts(owner) => self.check(owner),
            Request::End(_) | Request::Collect(_) => match done {
                Ok(()) => Answer::Ok,
                Err(why) => refused(why),
            },
            Request::Status(_) => self.status(),
        }
    }

    /// Says whether a pod that starts now would get what policies say of it. The plugin tolerates a
    /// refusal for a while after the service has known its lists, as it does a missing service.
    fn status(&self) -> Answer {
        let unlisted = self.shared.engine().unlisted();
        if unlisted.is_empty() {
            return Answer::Ok;
        }
        let why = unlisted.join("; ");
        Refusal::for_now(format!("pods that start now are closed to all but their node: {why}"))
            .into()
    }

    /// Compares what the packet filter has for an attachment with what it is to have.
    fn check(&mut self, owner: &Owner) -> Answer {
        if self.shared.engine().expected(owner).is_none() {
            self.list_records();
            if let Err(why) = self.carry_out() {
                return Refusal::for_now(format!("the packet filter refuses: {why}")).into();
            }
        }
        let (expected, enforced) = {
            let engine = self.shared.engine();
            (engine.expected(owner), engine.enforced(owner))
        };
        // Before anything is enforced, only the plugin knows which addresses it has closed.
        let Some(expected) = expected else { return Answer::Enforced(enforced) };
        let differs = self.filter.differs(&expected).and_then(|what| match what {
            None => self.filter.inside().differs(&id(owner)),
            what => Ok(what),
        });
        match differs {
            Ok(None) => Answer::Enforced(enforced),
            Ok(Some(what)) => {
                self.pace.hurry(Instant::now());
                Refusal::new(cni_plugin::codes::DRIFT, what).into()
            }
            Err(error) => {
                Refusal::for_now(format!("the packet filter does not answer: {}", words(&error)))
                    .into()
            }
        }
    }

    /// Does what the engine says. Returns whether the packet filter is as it is to be.
    fn carry_out(&mut self) -> Result<(), String> {
        let mut todo = self.shared.engine().take_todo(Instant::now());
        // After a failure it is not known what the packet filter lacks.
        todo.bring |= self.filter.sees_again() || self.refused.is_some();
        let done = self.change_filter(&mut todo);
        self.change_inside(&todo);
        self.do_the_rest(todo);
        done
    }

    /// Does the same in containers' namespaces.
    fn change_inside(&mut self, todo: &Todo) {
        let (is_judged, stands) = {
            let engine = self.shared.engine();
            (engine.judges_inside(), engine.program().is_some())
        };
        if !stands {
            return;
        }
        if !is_judged && self.filter.inside().is_empty() {
            // Earlier failures were of containers that are gone.
            self.health.needs(INSIDE, Ok(()));
            return;
        }
        let is_small = !todo.bring && !todo.inside && todo.closed.is_empty();
        if is_small && (todo.steps.is_empty() || self.filter.apply_inside(&todo.steps)) {
            return;
        }
        self.bring_inside(&todo.closed, todo.bring);
    }

    /// Brings containers' namespaces to what they are to have.
    fn bring_inside(&mut self, closed: &BTreeSet<Id>, all: bool) {
        let brought = self.filter.bring_inside(&self.shared, closed, all);
        match &brought {
            Ok(count) => (0..*count).for_each(|_| self.counts.changes.put_back()),
            Err(error) => tracing::error!(error = words(error), "containers are not judged"),
        }
        if brought.is_err() || self.filter.inside().is_refused() {
            self.pace.hurry(Instant::now());
        }
        let done = brought.map(drop).map_err(|error| words(&error));
        self.health.needs(INSIDE, done);
    }

    /// Does what comes after the packet filter has changed.
    fn do_the_rest(&mut self, todo: Todo) {
        let now = Instant::now();
        for news in &todo.news {
            match news.warning {
                true => tracing::warn!("{}", news.text),
                false => tracing::info!("{}", news.text),
            }
        }
        for telling in todo.tell {
            self.server.order(Order::Tell(telling));
        }
        for kind in todo.relist {
            self.server.order(Order::Relist(kind));
        }
        if let Some(cuts) = &mut self.cuts {
            cuts.judge(todo.concern, self.refused.is_none());
        }
        if todo.save && self.save_at.is_none() {
            let earliest = self.saved.map_or(now, |saved| saved + BETWEEN_WRITES);
            self.save_at = Some(earliest.max(now));
        }
        let awaits = self.shared.engine().awaits_ends() || self.filter.is_damaged();
        let awaits = awaits || self.is_new;
        self.list_at = awaits.then(|| self.list_at.unwrap_or(now + ENDED));
        if self.shared.engine().has_todo() {
            self.list_at = Some(now);
        }
    }

    fn change_filter(&mut self, todo: &mut Todo) -> Result<(), String> {
        if !todo.bring && todo.steps.is_empty() {
            return Ok(());
        }
        if !todo.bring {
            match self.filter.apply(&todo.steps) {
                Ok(()) => {
                    self.counts.changes.changed(true);
                    return Ok(());
                }
                // Another program has changed the table, or a plugin has closed an address
                // meanwhile.
                Err(error) => tracing::info!(error = words(&error), "the packet filter differs"),
            }
        }
        self.bring(todo)
    }

    /// Brings the packet filter to what it is to be, from any state.
    fn bring(&mut self, todo: &mut Todo) -> Result<(), String> {
        self.look_for_services();
        let brought = self.filter.bring(&self.shared, todo).map_err(|error| words(&error));
        self.health.needs("packet filter", brought.as_ref().map(drop).map_err(Clone::clone));
        let TableDifference { lines, is_as_it_was } = match brought {
            Ok(brought) => {
                if !self.filter.logs() {
                    self.health.needs(drops::NEED, Err(NO_LOG.to_owned()));
                }
                self.refused = None;
                brought
            }
            Err(why) => {
                tracing::error!(error = why, "the packet filter is not as it should be");
                self.counts.changes.changed(false);
                self.pace.hurry(Instant::now());
                self.refused = Some(why.clone());
                return Err(why);
            }
        };
        let Some(first) = lines.first() else { return Ok(()) };
        self.counts.changes.changed(true);
        if is_as_it_was {
            self.counts.changes.put_back();
            let count = lines.len();
            tracing::warn!(%first, count, "put back what another program has changed");
            let all = self.shared.engine().all_concern();
            self.judge_again(all);
        }
        Ok(())
    }

    /// Compares the packet filter with what it is to be, and brings it there.
    fn compare(&mut self) -> Result<(), String> {
        let mut todo = Todo::default();
        let done = self.bring(&mut todo);
        self.change_inside(&todo);
        self.do_the_rest(todo);
        done
    }

    /// Looks at everything, and puts right what is not as it is to be.
    fn look(&mut self) {
        // Another thread reads lists meanwhile: its time does not count for the look.
        let (begin, worked) = (Instant::now(), thread_time());
        self.look_at_host();
        self.list_records();
        self.look_at_links();
        self.read_files();
        let enforces = self.shared.engine().program().is_some();
        let done = self.carry_out();
        if enforces && self.shared.engine().judges_inside() {
            self.bring_inside(&BTreeSet::new(), true);
        }
        // The comparison also makes the changes that follow from newer records.
        let done = match done {
            Ok(()) if enforces => self.compare(),
            other => other,
        };
        self.close_if_missing();
        self.close_inside_if_missing();
        self.look_at_services();
        let worked = thread_time().saturating_sub(worked);
        self.pace.looked(begin, Instant::now(), worked, done.is_err());
    }

    /// Looks at what verdicts stand on, and puts right what is not as it is to be. What passed
    /// meanwhile may be forbidden.
    fn look_at_links(&mut self) {
        let Repairs { count, addresses } = self.links.look(&self.shared, &self.health);
        if 0 < count {
            self.counts.changes.put_back();
            self.judge_again(Concern { local: addresses, others: BTreeSet::new() });
        }
    }

    /// Judges connections that another program may have opened.
    fn judge_again(&mut self, concern: Concern) {
        if let Some(cuts) = &mut self.cuts {
            cuts.judge(concern, self.refused.is_none());
        }
    }

    /// Before policies are known: if the packet filter has nothing of ours, closes all pods with a
    /// record; if it has less than before, those that may be open by that.
    fn close_if_missing(&mut self) {
        if self.shared.engine().program().is_some() {
            return;
        }
        let closed = self.filter.close_if_lost(&self.shared);
        self.say_what_is_closed(closed);
    }

    /// Does the same where another program has just damaged the table. A new version of the
    /// service, which may have other rules, hears of no damage when it starts, and closes nothing.
    fn close_if_damaged(&mut self) {
        let closed = self.filter.close_if_damaged(&self.shared);
        self.say_what_is_closed(closed);
    }

    fn say_what_is_closed(&self, closed: Result<usize, FirewallError>) {
        if let Ok(count @ 1..) = closed {
            tracing::warn!(count, "no policies are known yet: addresses of pods are closed");
        }
        self.health.needs("packet filter", closed.map(drop).map_err(|error| words(&error)));
    }

    /// Does the same for pods that are judged in their own namespaces. No event reports a change
    /// there.
    fn close_inside_if_missing(&mut self) {
        if self.shared.engine().program().is_some() {
            return;
        }
        let closed = self.filter.close_inside_if_missing(&self.shared);
        let done = closed.map(drop).map_err(|error| words(&error));
        self.health.needs(INSIDE, done);
    }

    fn hear_of_filter(&mut self) {
        let heard = self.filter.heard().unwrap_or_else(|error| {
            tracing::warn!(%error, "changes of the packet filter may be missed");
            [TableEvent::Lost].into()
        });
        let (enforces, is_large) = {
            let engine = self.shared.engine();
            (engine.program().is_some(), engine.program().is_some_and(filter::is_large))
        };
        if heard.contains(&TableEvent::Deleted) {
            tracing::warn!("another program has removed the packet filter's table");
            // Closing is quick; all elements may take a second.
            if is_large && let Err(error) = self.filter.close_if_missing(&self.shared) {
                tracing::error!(error = words(&error), "pods are not closed");
            }
        }
        match (heard.is_empty(), enforces) {
            (true, _) => {}
            // The service's status shows the result.
            (false, true) => drop(self.compare()),
            (false, false) => self.close_if_damaged(),
        }
    }

    fn list_records(&mut self) {
        self.list_at = None;
        let listed = self.filter.records(&self.shared);
        self.shared.engine().list_records(listed);
    }

    fn read_files(&mut self) {
        self.read_at = None;
        let Some(files) = &mut self.files else { return };
        let (events, remarks) = files.look();
        self.health.needs("objects", remarks.to_correct().map_or(Ok(()), Err));
        let now = Instant::now();
        let mut engine = self.shared.engine();
        engine.hear(Event::Remarks(remarks), now);
        events.into_iter().for_each(|event| engine.hear(event, now));
        engine.catch_up();
    }

    /// Shows in the service's status what it waits for.
    fn say_what_is_missing(&self) {
        let (waits_for, unlisted, silence) = {
            let engine = self.shared.engine();
            (engine.waits_for(), engine.unlisted(), engine.silence())
        };
        self.shared.note_lists(unlisted.is_empty());
        let known = if waits_for.is_empty() { Ok(()) } else { Err(waits_for.join("; ")) };
        self.health.needs("policies", known);
        self.health.needs("API server", silence.map_or(Ok(()), Err));
    }

    /// Has the keeper write how many policies there are.
    fn save(&mut self) {
        if self.save_at.take().is_none() {
            return;
        }
        let known = {
            let engine = self.shared.engine();
            // Objects that are not enforced may be incomplete, and their number too low.
            engine.program().map(|_| engine.known())
        };
        let (Some(known), Some(keeper)) = (known, &self.keeper) else { return };
        keeper.keep(known);
        self.saved = Some(Instant::now());
    }
}
