//! Routes and tunnels to the pods of other nodes.
//!
//! | file | what it is |
//! |---|---|
//! | this one | start and end, and the loop |
//! | `nodes` | where nodes are learnt: a file |
//! | `cluster_nodes` | or the Nodes of a Kubernetes cluster |
//! | `node_object` | such a Node, as the API server gives it |
//! | `etcd_leases` | or flannel's leases in etcd |
//! | `own_lease` | this node's lease there, and flanneld's configuration |
//! | `turns` | when that lease is written |
//! | `spaces` | blocks of spaces, with nodes of any source |
//! | `etcd_keys` | follows keys of etcd, for both |
//! | `flannel_config` | flanneld's configuration |
//! | `host` | what the kernel has, in routing's words |
//! | `ways` | the ways to nodes' addresses |
//! | `apply` | makes changes in the kernel |
//! | `making` | makes many, and what needs no answer to them at the same time |
//! | `filter` | the packet filter's table |
//! | `files` | the last known nodes, and what runtimes and plugins read |
//! | `answers` | what `netwright routes` asks |
//! | `probes` | whether other nodes answer |
//! | `counts` | what is counted, for metrics |
//! | `leave` | `--uninstall` |
//!
//! The crate `netwright-routing` makes all decisions. The loop passes it what the nodes are and
//! what the kernel has, makes the changes that it returns, and passes it the results. An event of
//! the kernel never says what to do: it only makes the loop look again. Nothing is removed when the
//! service ends.
//!
//! # Looks
//!
//! A look reads everything that is ours, has the crate compare it with what is wanted, and carries
//! out the changes. An event causes one only if it says something else than the loop knows. The
//! kernel reports some changes late and others never: when a link goes down, its IPv4 routes and
//! nexthops vanish without a message. To repair single objects by their events would be cheaper (a
//! look with 5,000 nodes reads 20,000 objects), but wrong if an event is late. A burst of events
//! causes one look, after which the loop rests four times as long as it worked. While a tunnel is
//! being made, the kernel reports states that it no longer has afterwards, so the loop reads these
//! events before it puts anything on the tunnel.
//!
//! News of a node needs no look: only that node is planned. The ways to nodes are asked for after
//! an event about a route, an address or a link that is not ours, after events were lost, and after
//! each interval, because rules and other tables change without an event. The packet filter has a
//! look of its own: the kernel reports that something was removed, but not from which table, and on
//! a node with many services that happens all the time.
//!
//! The loop blocks, on one thread. A second thread answers `netwright routes`, behind a lock that
//! is held for decisions only. A third follows the API server, if it is the source, and counts it
//! as reachable after a broken watch only once it has answered a request. More than 2,048 changes
//! in a row get two more threads (`making`); no change waits for them, and none is made in another
//! order.
//!
//! Forwarding is switched on and stays on. The holders that plugins use for it are attachments, and
//! GC would collect any other.

mod answers;
mod apply;
mod cluster_nodes;
mod counts;
mod etcd_keys;
mod etcd_leases;
mod files;
mod filter;
mod flannel_config;
mod host;
mod leave;
mod making;
mod node_object;
mod nodes;
mod own_lease;
mod probes;
mod spaces;
mod turns;
mod ways;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agent::Config;
use agent::config::{self, RoutingFlannel, RoutingPath, RoutingSource};
use agent::setting::PodMtu;
use clap::{Arg, ArgAction};
use ipnet::IpNet;
use kernel::conntrack::{ConntrackSocket, FlowFilter};
use kernel::events::{Object, ObjectEvent, ObjectListener};
use kernel::route::{IpFamily, Route, RouteSocket, TABLE_LOCAL, TABLE_MAIN};
use routing::blocks::Records;
use routing::cluster::{Event, News, NodeRecord};
use routing::document::Document;
use routing::object::Key;
use routing::plan::Change;
use routing::render;
use routing::routing::LeaveMode;
use routing::settings::{Backend, LinkName, OwnNode, Paths, Tunnels};
use routing::{Routing, Settings, SourceNode, Time, Todo, annotation, flannel, settings};

pub(crate) use self::answers::{ACCEPT, EXPLAIN, ROUTES, TARGETS};

use self::answers::SharedRouting;
use self::apply::Kind;
use self::cluster_nodes::{ClusterNodes, NodeReport, NodesEvent};
use self::counts::Counts;
use self::etcd_leases::EtcdLeases;
use self::files::{Disk, NetworkFiles};
use self::filter::Filter;
use self::host::{Host, IP_FORWARD, Links};
use self::making::{ChangesOutcome, Results, are_many};
use self::nodes::Nodes;
use self::own_lease::Configuration;
use self::probes::Probes;
use self::spaces::Spaces;
use super::Stop;
use super::folders::Folders;
use super::pace::{Pace, processor_time};
use super::setup::{Process, failed, stop_signals, words};
use crate::attendant::{Attendant, Changes, Duties};
use crate::bell::Bell;
use crate::clock;
use crate::command_line::{Invocation, UNINSTALL};
use crate::health::Health;
use crate::listen::Listener;
use crate::poll::{Interest, Poller};

/// Numbers of the descriptors that the loop waits for.
const SIGNALS: u64 = 0;
const EVENTS: u64 = 1;
const CHANGES: u64 = 2;
const FOLDERS: u64 = 3;
const ASKED: u64 = 4;
const NODES: u64 = 5;
const SPACES: u64 = 6;

/// The shortest time between two writes of the last known nodes.
const BETWEEN_WRITES: Duration = Duration::from_secs(5);

/// Looks at the kernel and at the packet filter that are due within this time of each other are made
/// together.
const TOGETHER: Duration = Duration::from_secs(1);

/// What cannot be written is tried again after this time, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// How long after its last act it is told that flanneld seems to run on this node too.
const FLANNELD_TOLD: Duration = Duration::from_secs(3600);

/// How long it is told that a machine on a link has announced itself as a router of pods.
const ANNOUNCED_TOLD: Duration = Duration::from_secs(3600);

/// Why a route of flanneld's is not removed: pods would be cut off.
const EARLY: &str = "ours to the same prefix is not there yet";

/// The protocol number of UDP (RFC 768).
const UDP: u8 = 17;

/// This variable names the folder of the host's kernel parameters, where `/proc/sys` is a
/// container's.
const SYSCTLS: &str = "NETWRIGHT_SYSCTL_DIR";

const TO_FLANNEL: &str = "to-flannel";
const FORCE: &str = "force";

/// The flags that are not keys of the configuration.
pub(crate) fn more_flags() -> Vec<Arg> {
    let uninstall = Arg::new(UNINSTALL).long(UNINSTALL).action(ArgAction::SetTrue);
    let to_flannel =
        Arg::new(TO_FLANNEL).long(TO_FLANNEL).action(ArgAction::SetTrue).requires(UNINSTALL);
    vec![
        uninstall.help(
            "remove everything that the service made on this node, and end; pods here and elsewhere do not reach each other any more",
        ),
        to_flannel.help(
            "with --uninstall: leave the tunnels to flanneld, which runs on this node again",
        ),
        Arg::new(FORCE).long(FORCE).action(ArgAction::SetTrue).requires(UNINSTALL).help(
            "with --uninstall: even while containers of the network are attached here, which would be cut off from other nodes",
        ),
    ]
}

/// Runs the service until a signal ends it.
pub(crate) fn run(invocation: &Invocation, process: &Process) -> Result<(), Stop> {
    if let Some(folder) = std::env::var_os(SYSCTLS) {
        kernel::sysctl::use_folder(folder.into());
    }
    let config = &invocation.config().routing;
    let node = process.node_name(config.node.clone().unwrap_or_default());
    let folder = config.state.clone().unwrap_or_else(|| process.roots().lib.join("routing"));
    let disk = Disk::new(&folder);
    let is_etcd = config.source.0 == RoutingSource::Etcd;
    if invocation.takes_off() {
        let of_etcd = is_etcd.then(|| Configuration::read_once(config, &disk)).transpose()?;
        let settings = settings(config, &disk, of_etcd.as_ref()).map_err(Stop::Failed)?;
        let published = NetworkFiles::new(config, under_policy(&invocation.config().policy));
        let leaving = match invocation.more.get_flag(TO_FLANNEL) {
            true if settings.flannel.is_none() => {
                return Err(Stop::Failed("--to-flannel needs flannel = \"replace\"".to_owned()));
            }
            true => LeaveMode::ToFlannel,
            false => LeaveMode::Clean,
        };
        let forget = || match (config.source.0, &of_etcd) {
            (RoutingSource::Kubernetes, _) => {
                let mut annotations = vec![annotation::KEY.to_owned()];
                if let (Some(of_flannel), LeaveMode::Clean) = (&settings.flannel, leaving) {
                    annotations.extend(flannel::annotations::written(of_flannel));
                }
                cluster_nodes::forget(config.kubeconfig.as_deref(), &node, &annotations)
            }
            (RoutingSource::Etcd, Some(of_etcd)) if leaving == LeaveMode::Clean => {
                own_lease::forget(config, &settings, &node, &of_etcd.windows)
            }
            _ => Ok(()),
        };
        let roots = process.roots();
        if leaving == LeaveMode::Clean && !invocation.more.get_flag(FORCE) {
            leave::refuse_attached(&config.network, &roots)?;
        }
        return leave::leave(&settings, &node, leaving, &disk, &published, &roots, forget);
    }
    let signals = stop_signals().map_err(failed)?;
    let attended = process.attend("routing", &invocation.loaded)?;
    let of_etcd = match is_etcd {
        true => match Configuration::wait(config, &disk, process, &signals)? {
            Some(found) => Some(found),
            None => {
                process.tell_stopping();
                return Ok(());
            }
        },
        false => None,
    };
    let settings = settings(config, &disk, of_etcd.as_ref()).map_err(Stop::Failed)?;
    let listener = Listener::open(Vec::new(), &config.socketpath).map_err(failed)?;
    let socket = listener.path.clone();
    let policy = under_policy(&invocation.config().policy);
    let published = NetworkFiles::new(config, policy);
    let mut service = Service::new(config, settings, node, folder, of_etcd, published, process)?;
    let shared = service.shared.clone();
    let answer = Box::new(move |target: &str| shared.answer(target));
    let answers = Duties { answer, reload: None, changed: None };
    let _answering = Attendant::start(Some(listener), answers, &process.hung_up).map_err(failed)?;
    let poller = Poller::new().map_err(failed)?;
    poller.add(&signals, SIGNALS, Interest::Read).map_err(failed)?;
    poller.add(attended.changes.descriptor(), CHANGES, Interest::Read).map_err(failed)?;
    poller.add(service.folders.descriptor(), FOLDERS, Interest::Read).map_err(failed)?;
    poller.add(service.shared.bell(), ASKED, Interest::Read).map_err(failed)?;
    if let Some(bell) = service.source.bell() {
        poller.add(bell, NODES, Interest::Read).map_err(failed)?;
    }
    if let Some(spaces) = &service.spaces {
        poller.add(spaces.bell(), SPACES, Interest::Read).map_err(failed)?;
    }
    for descriptor in service.listener.descriptors() {
        poller.add(descriptor, EVENTS, Interest::Read).map_err(failed)?;
    }
    service.start();
    process.tell_ready(Some(&socket));
    service.tell_ready();
    let served = service.serve(&poller, &signals, &attended.changes);
    process.tell_stopping();
    service.save();
    served.map_err(failed)?;
    tracing::info!("stopped; routes and tunnels stay");
    Ok(())
}

/// Returns the network policy that pods start under.
fn under_policy(policy: &config::Policy) -> Option<render::Policy> {
    let elsewhere = policy.socketpath != config::Policy::default().socketpath;
    let socket = elsewhere.then(|| policy.socketpath.clone());
    policy.enable.then_some(render::Policy { socket })
}

/// Returns what the crate `routing` has to know of the configuration, flanneld's included: that of
/// etcd, or of a file.
///
/// # Errors
/// What is wrong with flanneld's configuration.
fn settings(
    config: &config::Routing,
    disk: &Disk,
    of_etcd: Option<&Configuration>,
) -> Result<Settings, String> {
    let paths = match config.path.0 {
        RoutingPath::Auto => Paths::Auto,
        RoutingPath::Direct => Paths::Direct,
        RoutingPath::Native => Paths::Native,
        RoutingPath::Vxlan => Paths::Vxlan,
    };
    let of_cluster = match config.flannel.0 {
        RoutingFlannel::None => Settings {
            vxlan: Tunnels {
                vni: config.vxlan_vni.0,
                port: u16::try_from(config.vxlan_port.0).unwrap_or(u16::MAX),
            },
            paths,
            ..Settings::new(config.cluster.clone())
        },
        flannel => {
            let of_flannel = match of_etcd {
                Some(found) => found.read.clone(),
                None => flannel_config::read(config, disk)?,
            };
            Settings {
                standby: flannel == RoutingFlannel::Standby,
                // As flanneld has them, so that it can take over again: Linux refuses its IPv6
                // routes by the tunnel where ours are by another link.
                paths: match (paths, of_flannel.backend) {
                    (Paths::Auto, Backend::HostGw) => Paths::Direct,
                    (Paths::Auto, Backend::Vxlan) if !of_flannel.direct_routing => Paths::Vxlan,
                    (paths, _) => paths,
                },
                ..of_flannel.settings(&config.flannel_prefix)
            }
        }
    };
    let overlap = of_cluster.cluster_ranges.iter().find_map(|range| {
        let is_same = |of: &&IpNet| of.contains(range) || range.contains(*of);
        Some((range, config.space_ranges.iter().find(is_same)?))
    });
    if let Some((range, of_space)) = overlap {
        return Err(format!("space-ranges: {of_space} overlaps {range}, which is the cluster's"));
    }
    Ok(Settings {
        spaces: config.spaces.clone(),
        space_ranges: config.space_ranges.clone(),
        source: match config.source.0 {
            RoutingSource::File => settings::Source::File,
            RoutingSource::Kubernetes => settings::Source::Kubernetes,
            RoutingSource::Etcd => settings::Source::Etcd,
        },
        exempt: config.exempt.clone(),
        service_ranges: config.services.clone(),
        pod_mtu: match config.pod_mtu {
            PodMtu::Paths => routing::settings::PodMtu::Paths,
            PodMtu::Underlay => routing::settings::PodMtu::Underlay,
            PodMtu::Fixed(mtu) => routing::settings::PodMtu::Fixed(mtu),
        },
        allow_overlap: config.allow_overlap,
        ..of_cluster
    })
}

/// Where this node and the others are learnt.
#[derive(Debug)]
enum Source {
    File(Nodes),
    Kubernetes(ClusterNodes),
    Etcd(Box<EtcdLeases>),
}

impl Source {
    /// Returns what becomes readable when something was heard; `None` if a look finds that.
    fn bell(&self) -> Option<&Bell> {
        match self {
            Source::File(_) => None,
            Source::Kubernetes(nodes) => Some(nodes.bell()),
            Source::Etcd(leases) => Some(leases.bell()),
        }
    }
}

struct Service {
    settings: Settings,
    /// This node's name.
    node: String,
    shared: SharedRouting,
    clock: Clock,
    health: Health,
    netlink: RouteSocket,
    listener: ObjectListener,
    links: Links,
    filter: Filter,
    /// The packet filter's table is as wanted; before the first time, elements are only noted.
    filter_stands: bool,
    /// When it was made so beside other objects, if nothing has changed it since.
    filter_brought: Option<Instant>,
    source: Source,
    spaces: Option<Spaces>,
    /// The records of spaces that cannot be asked for, each with the reason.
    away: BTreeMap<Records, String>,
    /// This node, as its source says.
    of_source: Result<SourceNode, String>,
    /// The prefixes of all nodes, as the source says.
    prefixes: Vec<IpNet>,
    disk: Disk,
    published: NetworkFiles,
    /// Configurations that runtimes take before ours, in sentences.
    before_ours: Vec<String>,
    folders: Folders,
    probes: Probes,
    counts: Counts,
    pace: Pace,
    filter_pace: Pace,
    /// Whether forwarding or a file for pods could not be written since the last look began, and
    /// the pause before the next look for that reason ([`RETRY`]).
    unwritten: bool,
    wait: Option<Duration>,
    /// When the last known nodes are to be written, and when they were.
    save_at: Option<Instant>,
    saved: Option<Instant>,
    /// A look at the kernel is under way: at its end it finds the differences and the addresses whose
    /// ways are not known. They are changed and looked up then, by the links that it has read.
    looking: bool,
    /// An event that matters was heard, and not looked at yet: the present look may have read the
    /// kernel before it.
    heard: bool,
    /// Something of another program has changed, and the ways to nodes may be others now.
    other_ways: bool,
    /// When all ways were looked up, and the addresses that were looked up since this look began.
    ways_found: Option<Instant>,
    looked_up: HashSet<IpAddr>,
    /// The addresses that the end of the present look looks up.
    unknown: Vec<IpAddr>,
    /// The kernel has not answered a question for a way since this look began.
    unanswered: bool,
    /// What the log has said so far of whether the service is ready.
    told_ready: Option<bool>,
    /// When flanneld, whose place this service takes, was seen to make a route last.
    flanneld_at: Option<Instant>,
    /// When a machine on a link was last found to have announced itself as the router of pods, and the
    /// sentence of it, by link.
    announced: BTreeMap<LinkName, (Instant, String)>,
}

impl Service {
    fn new(
        config: &config::Routing,
        settings: Settings,
        node: String,
        folder: PathBuf,
        of_etcd: Option<Configuration>,
        published: NetworkFiles,
        process: &Process,
    ) -> Result<Self, Stop> {
        let netlink = RouteSocket::open().map_err(failed)?;
        let mut listener = ObjectListener::open().map_err(failed)?;
        listener.ignore(&netlink).map_err(failed)?;
        let file = config.nodes.as_deref();
        let folders = Folders::of(published.paths().chain(file)).map_err(failed)?;
        let source = match (config.source.0, of_etcd) {
            (RoutingSource::Etcd, Some(Configuration { text, windows, .. })) => {
                let of_file = own_lease::prefixes_of_file(config);
                Source::Etcd(Box::new(EtcdLeases::follow(config, text, windows, of_file)?))
            }
            (RoutingSource::Kubernetes, _) => {
                let kubeconfig = config.kubeconfig.clone();
                Source::Kubernetes(ClusterNodes::follow(kubeconfig, &node, &settings)?)
            }
            (RoutingSource::File | RoutingSource::Etcd, _) => {
                Source::File(Nodes::new(file.unwrap_or(Path::new(""))))
            }
        };
        let filter =
            Filter::open(&settings, config.masquerade, &process.roots()).map_err(failed)?;
        let shared = SharedRouting::new(Routing::new(settings.clone(), &node)).map_err(failed)?;
        let clock = Clock::start();
        let counts = Counts::default();
        let (of_nodes, counted) = (shared.clone(), counts.clone());
        process.health.counts(move || counts::figures(&of_nodes, &counted));
        Ok(Service {
            probes: Probes::start(shared.clone(), clock).map_err(failed)?,
            shared,
            settings,
            node,
            clock,
            counts,
            health: process.health.clone(),
            netlink,
            listener,
            links: Links::default(),
            filter,
            filter_stands: false,
            filter_brought: None,
            source,
            spaces: Spaces::follow(config)?,
            away: BTreeMap::new(),
            of_source: Err("the list of nodes has not been read yet".to_owned()),
            prefixes: Vec::new(),
            disk: Disk::new(&folder),
            published,
            before_ours: Vec::new(),
            folders,
            pace: Pace::new(config.interval),
            filter_pace: Pace::new(config.interval),
            unwritten: false,
            wait: None,
            save_at: None,
            saved: None,
            looking: false,
            heard: false,
            other_ways: false,
            ways_found: None,
            looked_up: HashSet::new(),
            unknown: Vec::new(),
            unanswered: false,
            told_ready: None,
            flanneld_at: None,
            announced: BTreeMap::new(),
        })
    }

    /// Takes what the disk has, then what the source says, and makes the kernel so.
    fn start(&mut self) {
        let mut document = self.disk.read();
        if self.is_outdated(&document) {
            tracing::info!("flanneld has run here since the nodes were recorded: they are ignored");
            document = Document::default();
        }
        let own = document.own.as_ref().filter(|own| own.name == self.node);
        // Before the source answers, pods and a routing daemon's routes may be in these prefixes.
        let nodes = own.into_iter().chain(document.peers.iter().map(|(node, _)| node));
        let prefixes = nodes.flat_map(|node| node.prefixes.iter().chain(&node.kept));
        self.prefixes = prefixes.copied().collect();
        if let Some(own) = own {
            self.of_source = Ok(own.clone().into());
        }
        let now = self.clock.now();
        let todo = self.shared.routing().restore(document, now);
        self.carry_out(todo);
        self.learn();
        self.look();
    }

    /// Reports whether flanneld, whose place this service takes, has made routes to nodes since the
    /// disk's record of them was written: these nodes may be others by now.
    fn is_outdated(&mut self, document: &Document) -> bool {
        if self.settings.flannel.is_none() || document.peers.is_empty() {
            return false;
        }
        let prefixes = document.peers.iter().flat_map(|(node, _)| &node.prefixes);
        let prefixes: BTreeSet<IpNet> = prefixes.copied().collect();
        let own = self.shared.routing().cluster().own().clone();
        let ranges: Vec<IpNet> = self.settings.ranges().collect();
        let host = Host::read(&mut self.netlink, &own, &ranges);
        host.is_ok_and(|host| host.is_flannels(&prefixes))
    }

    fn serve(&mut self, poller: &Poller, signals: &Bell, changes: &Changes) -> std::io::Result<()> {
        loop {
            self.health.turns();
            for number in poller.wait(Some(self.health.pause(self.pause())))? {
                match number {
                    SIGNALS => {
                        signals.heard();
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
                        self.look_at_others();
                        self.learn_and_publish();
                    }
                    NODES => self.learn_and_publish(),
                    SPACES => self.learn_blocks(),
                    ASKED => {
                        if self.shared.take_accepted() {
                            let todo = self.shared.routing().accept(self.clock.now());
                            self.carry_out(todo);
                        }
                        self.tell_condition();
                    }
                    _ => self.hear(),
                }
            }
            self.do_what_is_due();
            self.tell_ready();
        }
    }

    /// Says in the log, once, that this node is known and its network is made; first that it is not
    /// yet.
    fn tell_ready(&mut self) {
        let is_ready = self.shared.routing().waits_for().is_none();
        if self.told_ready == Some(is_ready) || self.told_ready == Some(true) {
            return;
        }
        self.told_ready = Some(is_ready);
        let (node, interval) = (&self.node, self.pace.interval());
        match is_ready {
            true => tracing::info!(node, ?interval, "ready"),
            false => tracing::info!(node, ?interval, "started, and not ready yet"),
        }
    }

    /// Returns how long it is until something is due.
    fn pause(&self) -> Duration {
        let now = Instant::now();
        let due = self.shared.routing().due().map(|due| due.since(self.clock.now()));
        let save = self.save_at.map(|at| at.saturating_duration_since(now));
        let looks = [self.pace.until_due(now), self.filter_pace.until_due(now)];
        due.into_iter().chain(save).chain(looks).min().unwrap_or_default()
    }

    fn do_what_is_due(&mut self) {
        let now = Instant::now();
        // If both looks are due soon after each other, one look does both: the loop wakes up once.
        let both = self.filter_pace.is_due(now) && self.pace.is_due(now + TOGETHER);
        if both || self.pace.is_due(now) {
            self.folders.watch();
            self.learn();
            self.look();
        } else if self.filter_pace.is_due(now) {
            self.look_at_filter();
        }
        let now = self.clock.now();
        if self.shared.routing().due().is_some_and(|due| due <= now) {
            let todo = self.shared.routing().tick(now);
            self.carry_out(todo);
        }
        if self.save_at.is_some_and(|at| at <= Instant::now()) {
            self.save();
        }
    }

    /// Learns what the source says now, and writes what follows from it for pods: a node's path may
    /// have another MTU.
    fn learn_and_publish(&mut self) {
        if self.learn() {
            return self.look();
        }
        // What the last look could not write is tried again already.
        let is_tried = self.unwritten;
        self.publish();
        if self.unwritten && !is_tried {
            self.pace.look_by(Instant::now() + RETRY.0);
        }
    }

    /// Learns what the source says now. Returns whether everything is to be looked at again.
    fn learn(&mut self) -> bool {
        match &mut self.source {
            Source::File(nodes) => match nodes.look(&self.settings) {
                Some(read) => self.take_list(read),
                None => false,
            },
            Source::Kubernetes(nodes) => {
                let mut look = false;
                for heard in nodes.heard() {
                    look |= self.take_heard(heard);
                }
                look
            }
            Source::Etcd(leases) => {
                let mut look = false;
                for heard in leases.heard() {
                    look |= self.take_heard_of_leases(heard);
                }
                look
            }
        }
    }

    /// Takes a list of nodes. One that cannot be read changes nothing: the last one counts. Returns
    /// whether this node is another now, or the list is the first.
    fn take_list(&mut self, read: Result<Vec<NodeRecord>, String>) -> bool {
        let before = self.of_source.clone();
        let was_listed = self.shared.routing().cluster().listed();
        let event = match read {
            Ok(seen) => {
                self.health.needs("list of nodes", Ok(()));
                let readable = seen.iter().filter_map(|seen| seen.node.as_ref().ok());
                self.prefixes = readable.flat_map(|node| node.prefixes.iter().copied()).collect();
                if let Source::File(nodes) = &self.source {
                    let path = nodes.path().display().to_string();
                    self.take_own(SourceNode::of_list(&seen, &self.node, &path));
                }
                Event::Listed(seen)
            }
            Err(why) => {
                tracing::error!(error = why, "the list of nodes is wrong; the last one is used");
                self.health.needs("list of nodes", Err(why));
                Event::Silent
            }
        };
        let todo = self.shared.routing().event(event, self.clock.now());
        self.carry_out(todo);
        !was_listed || self.of_source != before
    }

    /// Takes what was heard of the cluster's Nodes. Returns whether this node is another now, or the
    /// list is the first.
    fn take_heard(&mut self, heard: NodesEvent) -> bool {
        let before = self.of_source.clone();
        let was_listed = self.shared.routing().cluster().listed();
        let event = match heard {
            NodesEvent::Listed(nodes) => {
                let own = nodes.iter().find_map(|node| node.own.as_deref());
                self.take_own(SourceNode::of_cluster(own, &self.node, &self.settings));
                let prefixes = nodes.iter().flat_map(|node| &node.prefixes);
                self.prefixes = prefixes.copied().collect();
                Event::Listed(nodes.into_iter().map(|node| node.seen).collect())
            }
            NodesEvent::Changed(node) => {
                let NodeReport { prefixes, seen, own } = *node;
                for prefix in prefixes {
                    // A Node changes all the time, and its prefix does not.
                    if !self.prefixes.contains(&prefix) {
                        self.prefixes.push(prefix);
                    }
                }
                if let Some(fields) = own {
                    let own = SourceNode::of_cluster(Some(&fields), &self.node, &self.settings);
                    self.take_own(own);
                }
                Event::Changed(seen)
            }
            NodesEvent::Deleted(name) => {
                if name == self.node {
                    self.take_own(SourceNode::of_cluster(None, &self.node, &self.settings));
                }
                Event::Deleted(name)
            }
            NodesEvent::Silent(why) => {
                self.health.needs("API server", Err(why));
                let todo = self.shared.routing().event(Event::Silent, self.clock.now());
                self.carry_out(todo);
                return false;
            }
            NodesEvent::Answers => Event::Answers,
            NodesEvent::Written(done) => {
                self.health.needs("Node of this node", done);
                return false;
            }
        };
        self.health.needs("API server", Ok(()));
        let todo = self.shared.routing().event(event, self.clock.now());
        self.carry_out(todo);
        if self.shared.routing().has_earlier() {
            // Another node may have been given what is kept here.
            self.pace.hurry(Instant::now());
        }
        self.of_source != before || (!was_listed && self.shared.routing().cluster().listed())
    }

    /// Says in this node's Node whether its pods have a network.
    fn tell_condition(&self) {
        if let Source::Kubernetes(nodes) = &self.source
            && let Some(condition) = self.shared.routing().condition(self.clock.now())
        {
            nodes.set_condition(condition);
        }
    }

    /// Takes what the source says of this node. If it says nothing, what is programmed stays.
    fn take_own(&mut self, own: Result<SourceNode, String>) {
        if let Err(why) = &own {
            // This comes before the list counts: a list that lacks this node may lack other nodes
            // too.
            self.take_found(Err(why.clone()));
        }
        self.of_source = own;
    }

    /// Looks at everything, and puts right what is not as it is to be.
    fn look(&mut self) {
        let (begin, worked) = (Instant::now(), processor_time());
        self.looking = true;
        self.heard = false;
        self.unwritten = false;
        self.unanswered = false;
        // What is heard from here on may be newer than what this look reads: it is for the next.
        let other_ways = std::mem::take(&mut self.other_ways);
        let looked = self.look_once(other_ways);
        self.looking = false;
        self.other_ways |= other_ways && looked.is_err();
        let again = looked.is_err() || self.unanswered;
        self.health.needs("kernel", looked);
        let worked = processor_time().saturating_sub(worked);
        self.pace.looked(begin, Instant::now(), worked, again);
        self.counts.looked(begin.elapsed());
        if std::mem::take(&mut self.heard) {
            self.pace.hurry(Instant::now());
        }
        self.look_at_others();
        self.publish();
        let longer = |wait: Duration| (wait * 2).min(RETRY.1);
        self.wait = self.unwritten.then(|| self.wait.map_or(RETRY.0, longer));
        if let Some(wait) = self.wait {
            self.pace.look_by(Instant::now() + wait);
        }
    }

    /// Looks once. `other_ways` says that the ways to nodes may have changed since the last look.
    fn look_once(&mut self, other_ways: bool) -> Result<(), String> {
        let said = |error: kernel::netlink::NetlinkError| words(&error);
        let own = self.shared.routing().cluster().own().clone();
        let ranges: Vec<IpNet> = self.settings.ranges().collect();
        let mut host = Host::read(&mut self.netlink, &own, &ranges).map_err(said)?;
        self.settle_lease(&host);
        let own = self.find_own(&host);
        if let Ok(own) = &own {
            host.links.recognise(own);
        }
        host.links.note_forwarding();
        // Before neighbours are read: what becomes of them after that is heard.
        let _ = self.listener.only_neighbours_of(host.links.tunnels());
        let observed = {
            let routing = self.shared.routing();
            let known = own.as_ref().unwrap_or(routing.cluster().own()).clone();
            // The table of the packet filter has what was noted of it.
            let elements = routing.observed().objects().iter();
            let elements = elements.take_while(|(key, _)| key.is_filter());
            let elements = elements.map(|(key, value)| (key.clone(), value.clone())).collect();
            drop(routing);
            host.observe(&mut self.netlink, &ranges, &known, elements).map_err(said)?
        };
        let overlap = self.shared.routing().overlap(&observed, &self.prefixes, || host.prefixes());
        let own = own.and_then(|own| overlap.map_or(Ok(own), Err));
        if let Err(why) = &own {
            self.health.needs("this node", Err(why.clone()));
        }
        let is_known = own.is_ok();
        if is_known && !self.settings.standby {
            apply::mark_tunnels(&mut self.netlink, &host.links)?;
            self.remove_announced(&host)?;
        }
        let was = self.shared.routing().cluster().own().clone();
        self.take_found(own);
        let is_other = was != *self.shared.routing().cluster().own();
        let is_other = self.relist_leases() || is_other;
        let (mut todo, of_flanneld) = {
            let mut routing = self.shared.routing();
            let (up, down) = host.links.up_and_down();
            routing.links(&up, &down);
            let todo = routing.look(observed);
            (todo, routing.flannels_return())
        };
        self.note_uplinks(&host);
        self.links = host.into_links();
        self.tell_of_flanneld(of_flanneld);
        todo.look_up.append(&mut self.unknown);
        self.looking = false;
        self.looked_up.clear();
        let put_back = self.carry_out(todo);
        let is_settled = self.shared.routing().is_settled();
        if let (Some(first), true, false) = (put_back, is_settled, is_other) {
            self.counts.put_back();
            match first {
                // That flanneld runs has been told.
                Change::RemoveForeign(..) => tracing::debug!(%first, "removed"),
                _ => tracing::warn!(%first, "put back what another program has changed"),
            }
        }
        self.look_up_again(other_ways);
        self.look_at_filter();
        self.hold_forwarding();
        // Whoever hears that the service is ready finds forwarding on.
        if is_known {
            self.health.needs("this node", Ok(()));
        }
        self.tell_condition();
        self.shared.routing().look_is_over();
        Ok(())
    }

    /// Removes what the kernel has made of router advertisements in prefixes of pods.
    fn remove_announced(&mut self, host: &Host) -> Result<(), String> {
        let announced = {
            let routing = self.shared.routing();
            host.announced(|prefix| routing.is_of_pods_alone(prefix))
        };
        let now = Instant::now();
        let (removed, done) = apply::remove_announced(&mut self.netlink, announced);
        for one in &removed {
            let (index, prefix) = one.of();
            let link = index.map_or_else(|| "?".into(), |index| host.links.name_of(index));
            let sentence = format!(
                "on link {link}, a machine announces itself as the router of {prefix}, which is pods': \
                 what the kernel made of that was removed at {}",
                self.clock.now()
            );
            if self.announced.insert(link, (now, sentence.clone())).is_none() {
                tracing::warn!("{sentence}");
            }
        }
        self.announced.retain(|_, (at, _)| now.duration_since(*at) < ANNOUNCED_TOLD);
        let sentences = self.announced.values().map(|(_, sentence)| sentence.clone()).collect();
        self.shared.routing().notice("router advertisements", sentences);
        done
    }

    /// Takes note of the links behind which no pod of this node is.
    fn note_uplinks(&mut self, host: &Host) {
        let uplinks = {
            let routing = self.shared.routing();
            host.uplinks(routing.cluster().own(), &routing.underlay_links())
        };
        if self.filter.set_uplinks(uplinks) {
            self.filter_brought = None;
        }
    }

    /// Tells once that flanneld seems to run on this node, if a look has found a new route of its,
    /// and shows it for a while.
    fn tell_of_flanneld(&mut self, route: Option<String>) {
        let now = Instant::now();
        let is_over = |at: Instant| FLANNELD_TOLD <= now.duration_since(at);
        let sentences = match route {
            Some(route) => {
                let sentence = format!(
                    "flanneld seems to run on this node too: its route {route} came at {}, while \
                     the service is in its place; keep flanneld from this node",
                    self.clock.now()
                );
                if self.flanneld_at.replace(now).is_none() {
                    tracing::warn!("{sentence}");
                }
                vec![sentence]
            }
            None if self.flanneld_at.is_some_and(is_over) => {
                self.flanneld_at = None;
                Vec::new()
            }
            None => return,
        };
        self.shared.routing().notice("flanneld", sentences);
    }

    /// Finds out what this node is: what the source says, on the links that have its addresses.
    fn find_own(&mut self, host: &Host) -> Result<OwnNode, String> {
        let node = self.of_source.clone()?;
        self.shared.routing().note_unused(&node);
        let mut own = self.identify(&node, host)?;
        let may_keep = self.shared.routing().had_prefixes(&node, host.own_prefixes());
        if may_keep {
            let pods = host.pods(files::recorded());
            self.shared.routing().keep_earlier(&node, &pods).iter().for_each(tell);
        }
        let ranges = &self.settings.cluster_ranges;
        let bridge = host.bridge_for(&NetworkFiles::bridges(), &node.prefixes, ranges);
        self.published.use_bridge(bridge);
        let routing = self.shared.routing();
        own.node.kept = routing.kept();
        own.links = host.underlay(&own, &self.settings, |address| {
            routing.cluster().of_underlay(address).is_some()
        });
        own.node.blocks.clone_from(&routing.cluster().own().node.blocks);
        Ok(own)
    }

    fn identify(&self, node: &SourceNode, host: &Host) -> Result<OwnNode, String> {
        self.shared.routing().identify(node, &host.facts(node))
    }

    /// Passes to routing what this node is, or why it is not known yet.
    fn take_found(&mut self, own: Result<OwnNode, String>) {
        let now = self.clock.now();
        let mut routing = self.shared.routing();
        let waits_for = routing.waits_for().map(str::to_owned);
        match own {
            Ok(own) => {
                // What the disk has of this node lacks what its Node says of it.
                if let Source::Kubernetes(nodes) = &self.source
                    && routing.cluster().listed()
                {
                    nodes.annotate(routing.annotations(&own, self.of_source.as_ref().ok()));
                }
                if *routing.cluster().own() == own && waits_for.is_none() {
                    return;
                }
                // By another link, another MTU.
                self.other_ways = true;
                self.filter.set_own(&own);
                self.filter_brought = None;
                let todo = routing.own(own, now);
                drop(routing);
                self.carry_out(todo);
            }
            Err(why) => {
                if waits_for.as_ref() != Some(&why) {
                    tracing::warn!(why, "nothing is programmed for now; what is there stays");
                    routing.wait(&why);
                }
            }
        }
    }

    /// Looks up the ways to all nodes again if a route, an address or a link of this host may be
    /// another: after such events, and after each interval, as the kernel does not report
    /// everything.
    fn look_up_again(&mut self, other_ways: bool) {
        if self.unanswered {
            // The next look asks.
            return;
        }
        let (now, interval) = (Instant::now(), self.pace.interval());
        let is_old = |found: Instant| interval <= now.duration_since(found) + TOGETHER;
        if !other_ways && !self.ways_found.is_none_or(is_old) {
            return;
        }
        self.ways_found = Some(now);
        // In a cold start this look has asked for all of them.
        let addresses: BTreeSet<IpAddr> = {
            let routing = self.shared.routing();
            let is_left = |address: &IpAddr| !self.looked_up.contains(address);
            routing.underlay_addresses().filter(is_left).collect()
        };
        let todo = self.look_up(addresses);
        self.looked_up = HashSet::new();
        self.carry_out(todo);
    }

    /// Looks up the ways to addresses. If the kernel does not answer, what is known of the others
    /// stays, and another look asks for all soon.
    fn look_up(&mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Todo {
        let own = self.shared.routing().cluster().own().clone();
        let (ways, done) = ways::find(&mut self.netlink, &self.links, &own, addresses);
        self.looked_up.extend(ways.iter().map(|(address, _)| *address));
        let mut todo = self.shared.routing().ways(ways);
        if done.is_err() {
            todo.look_up.clear();
            (self.unanswered, self.other_ways) = (true, true);
            self.pace.look_by(Instant::now() + RETRY.0);
        }
        self.health.needs("ways to other nodes", done.map_err(|error| words(&error)));
        todo
    }

    /// Does what routing says, until it says nothing more. Returns the first change that was made.
    fn carry_out(&mut self, mut todo: Todo) -> Option<Change> {
        let mut first = None;
        loop {
            todo.news.iter().for_each(tell);
            let made = self.make(&todo.changes);
            first = first.or(made);
            self.flush_flows(&todo.flush_flows);
            if todo.document_changed && self.save_at.is_none() {
                let now = Instant::now();
                let earliest = self.saved.map_or(now, |saved| saved + BETWEEN_WRITES);
                self.save_at = Some(earliest.max(now));
            }
            if self.looking {
                self.unknown.append(&mut todo.look_up);
            }
            if todo.look_up.is_empty() {
                return first;
            }
            todo = self.look_up(std::mem::take(&mut todo.look_up));
        }
    }

    /// Makes changes, and passes the result of each to routing. Returns the first that was made.
    fn make(&mut self, changes: &[Change]) -> Option<Change> {
        if !changes.is_empty() {
            self.probes.ask();
        }
        if self.settings.standby || self.looking {
            return None;
        }
        let mut made = ChangesOutcome::default();
        let mut runs = apply::runs(changes).peekable();
        while let Some((kind, run)) = runs.next() {
            let of_run = match kind {
                Kind::Elements if self.filter_stands => self.change_filter(run),
                Kind::Elements => {
                    let many =
                        runs.next_if(|(kind, next)| *kind == Kind::Objects && are_many(next));
                    self.make_objects(run, many.map(|(_, next)| next).unwrap_or_default())
                }
                Kind::Objects => self.make_objects(&[], run),
                Kind::Foreign => self.remove_foreign(run),
                Kind::Tunnels => {
                    let made = match self.guard_tunnels() {
                        Ok(()) => self.make_objects(&[], run),
                        Err(why) => self.make_no_tunnels(run, &why),
                    };
                    let _ = self.listener.only_neighbours_of(self.links.tunnels());
                    self.hear_of_tunnels(run);
                    made
                }
            };
            if of_run.is_news {
                // Something may have changed meanwhile. If this is amid a look, the next look finds
                // it.
                self.other_ways = true;
                self.heard = true;
                self.pace.hurry(Instant::now());
            }
            made = made.then(of_run);
        }
        let failing = self.shared.routing().failing();
        self.health.needs("routes and tunnels", failing.map_or(Ok(()), Err));
        made.first
    }

    /// Brings the packet filter's table: without it, a tunnel takes packets of anybody.
    ///
    /// # Errors
    /// Why it could not be made: then no tunnel may come up.
    fn guard_tunnels(&mut self) -> Result<(), String> {
        if self.filter_stands {
            return Ok(());
        }
        let (_, listed) = self.knows_filter();
        let brought = match listed {
            true => self.filter.bring_before_tunnels(),
            false => self.filter.bring_if_missing().map(drop),
        };
        brought
            .map_err(|error| format!("the packet filter comes before tunnels: {}", words(&error)))
    }

    /// Removes the tunnels that go, and makes none.
    fn make_no_tunnels(&mut self, run: &[Change], why: &str) -> ChangesOutcome {
        let (goes, comes): (Vec<&Change>, Vec<&Change>) =
            run.iter().partition(|change| matches!(change, Change::Remove(..)));
        let results = apply::apply(&mut self.netlink, &mut self.links, &goes);
        let comes = comes.into_iter().map(|change| (change, Err(why.to_owned())));
        let results = goes.into_iter().zip(results).chain(comes);
        making::note(&self.shared, &self.counts, self.clock.now(), results)
    }

    /// Makes objects of ours. Elements of the packet filter's table come before them. They are noted
    /// while the table is still to be made; it is made at the same time if the objects are many.
    fn make_objects(&mut self, elements: &[Change], objects: &[Change]) -> ChangesOutcome {
        let is_due = are_many(objects) && !self.filter_stands;
        let brings = is_due && self.knows_filter() == (true, true);
        let Service { filter, netlink, links, shared, counts, clock, .. } = self;
        let note = |part: &[Change], results: Results| {
            making::note(shared, counts, clock.now(), part.iter().zip(results))
        };
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
            filter.bring().map(drop).map_err(|error| words(&error))
        };
        let make = || making::in_parts(elements, objects, make, note);
        let (brought, made) = making::at_once(bring, make);
        // If it is not, the look at the packet filter tries again, and says why it fails.
        self.filter_brought = brought.is_ok().then(Instant::now);
        self.filter_stands = brought.is_ok();
        made
    }

    /// Removes routes of others where ours stand.
    fn remove_foreign(&mut self, changes: &[Change]) -> ChangesOutcome {
        let routing = self.shared.routing();
        let (all, early): (Vec<&Change>, Vec<&Change>) =
            changes.iter().partition(|change| routing.may_follow(change));
        drop(routing);
        let results = apply::apply(&mut self.netlink, &mut self.links, &all);
        let early = early.into_iter().map(|change| (change, Err::<(), _>(EARLY.to_owned())));
        let results = all.into_iter().zip(results).chain(early);
        making::note(&self.shared, &self.counts, self.clock.now(), results)
    }

    /// Changes elements of the packet filter's table, which stands.
    fn change_filter(&mut self, changes: &[Change]) -> ChangesOutcome {
        if let Err(error) = self.filter.change(changes) {
            // The table has noted the changes all the same; the next look at it makes them.
            self.filter_brought = None;
            self.filter_pace.hurry(Instant::now());
            self.health.needs("packet filter", Err(words(&error)));
        }
        let results = changes.iter().map(|change| (change, Ok(())));
        making::note(&self.shared, &self.counts, self.clock.now(), results)
    }

    /// Says whether the packet filter's table may be made, and whether all nodes are known that are
    /// to be in it.
    fn knows_filter(&self) -> (bool, bool) {
        let routing = self.shared.routing();
        (routing.may_program(), routing.cluster().listed())
    }

    /// Brings the packet filter's table to what it is to be, once it is known what that is.
    fn look_at_filter(&mut self) {
        let (begin, worked) = (Instant::now(), processor_time());
        let is_brought = self.filter_brought.take().is_some_and(|at| at.elapsed() < TOGETHER);
        let (may, listed) = self.knows_filter();
        let brought = match (may, listed) {
            (true, true) if is_brought => Ok(Vec::new()),
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

    /// Switches forwarding on for the families of this node's pods. It stays on: other programs may
    /// rely on it by the time when this service no longer needs it.
    fn hold_forwarding(&mut self) {
        let has = |family: IpFamily| self.shared.routing().forwards(family);
        // The second is written even if the first fails.
        let of_v4 = if has(IpFamily::V4) { host::forward(IP_FORWARD) } else { Ok(()) };
        let of_v6 = match has(IpFamily::V6) {
            true => host::forward_ipv6(&mut self.netlink),
            false => Ok(()),
        };
        let done = of_v4.and(of_v6);
        self.unwritten |= done.is_err();
        self.health.needs("forwarding", done);
    }

    /// Makes connection tracking forget UDP flows of prefixes whose packets go another way now: a
    /// flow that was translated, or answered by an error, would stay so. Without connection
    /// tracking there are no such flows.
    fn flush_flows(&self, prefixes: &[IpNet]) {
        if prefixes.is_empty() || self.settings.standby {
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

    /// Says which configurations of other programs runtimes take before ours, and what pods of ours
    /// would lack. The service removes none and stays ready: an administrator may want another
    /// network of the node first.
    fn look_at_others(&mut self) {
        let mut found = self.published.before_ours();
        found.extend(self.unfiltered_frames());
        if found == self.before_ours {
            return;
        }
        for what in found.iter().filter(|what| !self.before_ours.contains(what)) {
            tracing::warn!("{what}");
        }
        self.shared.routing().notice("network configuration", found.clone());
        self.before_ours = found;
    }

    /// Says that the packet filter does not see frames between pods of a bridge: an answer to a pod
    /// that has asked a service then keeps the address of the pod that gives it.
    fn unfiltered_frames(&self) -> Option<String> {
        let has_services = matches!(self.source, Source::Kubernetes(_));
        if !has_services || !self.published.has_bridge() {
            return None;
        }
        let routing = self.shared.routing();
        let families = IpFamily::ALL.into_iter().filter(|family| routing.has_prefix_of(*family));
        let parameter = families.map(host::shows_frames).find(|name| !host::is_one(name))?;
        let shown = parameter.replace('/', ".");
        Some(format!(
            "{shown} is not 1: where kube-proxy translates addresses, a pod gets no answer of a \
             service whose pod is on this node too; load the module br_netfilter and set it, or \
             set attach to \"ptp\""
        ))
    }

    /// Writes what runtimes and plugins read, once everything of this node is programmed.
    fn publish(&mut self) {
        let routing = self.shared.routing();
        if !routing.is_programmed() {
            return;
        }
        let written = self.published.write(&routing, &self.settings);
        drop(routing);
        self.unwritten |= written.is_err();
        self.health.needs("files for pods", written.map_err(|error| words(&error)));
    }

    /// Writes the last known nodes.
    fn save(&mut self) {
        if self.save_at.take().is_none() || self.settings.standby {
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

    /// Takes the events that follow at once when tunnels were made or changed, before anything is
    /// on those that are new. What the events say of these links is outdated; the links are read
    /// again. But one that was up at the look, and has been down since, has lost what leaves by it,
    /// and only the event of its being down tells that.
    fn hear_of_tunnels(&mut self, run: &[Change]) {
        let is_of_run = |name: &str| {
            let mut keys = run.iter().filter_map(Change::key);
            keys.any(|key| matches!(key, Key::Tunnel { link } if **link == *name))
        };
        // As the look has read them; those that this run has made are down there.
        let tunnels = self.links.of_tunnels().filter(|link| is_of_run(&link.name));
        let were_up: BTreeMap<u32, bool> = tunnels.map(|link| (link.index, link.up())).collect();
        let is_past = |event: &ObjectEvent| match event {
            ObjectEvent::Changed(Object::Link(link)) => {
                were_up.get(&link.index).is_some_and(|was_up| link.up() || !was_up)
            }
            _ => false,
        };
        self.hear_but(is_past);
        for index in were_up.keys() {
            let event = match self.netlink.link_by_index(*index) {
                Ok(Some(link)) => ObjectEvent::Changed(Object::Link(Box::new(link))),
                _ => ObjectEvent::Lost,
            };
            if self.concerns(&event) {
                self.heard = true;
                self.pace.hurry(Instant::now());
            }
        }
    }

    fn hear(&mut self) {
        self.hear_but(|_| false);
    }

    /// Takes the events so far, without those that are outdated.
    fn hear_but(&mut self, is_past: impl Fn(&ObjectEvent) -> bool) {
        let events = match self.listener.heard() {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!(%error, "events may be missed");
                vec![ObjectEvent::Lost]
            }
        };
        let now = Instant::now();
        for event in events.into_iter().filter(|event| !is_past(event)) {
            if event == ObjectEvent::FilterRemoved {
                self.filter_brought = None;
                self.filter_pace.hurry(now);
            } else if self.concerns(&event) {
                tracing::debug!(?event, "heard");
                self.other_ways |= !self.is_of_ours(&event);
                self.heard = true;
                self.pace.hurry(now);
            }
        }
    }

    /// Says whether an event is of an object of ours, on which no way to a node depends.
    fn is_of_ours(&self, event: &ObjectEvent) -> bool {
        match event {
            ObjectEvent::Changed(object) | ObjectEvent::Removed(object) => {
                self.links.ours(object).is_some()
            }
            _ => false,
        }
    }

    /// Says whether an event reports something that differs from what is known.
    fn concerns(&self, event: &ObjectEvent) -> bool {
        let routing = self.shared.routing();
        let (object, there) = match event {
            ObjectEvent::Changed(object) => (object, true),
            ObjectEvent::Removed(object) => (object, false),
            _ => return true,
        };
        if let Object::Link(link) = object
            && !self.settings.standby
            && self.links.lacks_mark(link)
        {
            return true;
        }
        if let Some((key, value)) = self.links.ours(object) {
            let known = routing.observed().objects().get(&key);
            return known != value.as_ref().filter(|_| there);
        }
        if let (Object::Link(link), false) = (object, there)
            && !self.links.has(link.index)
        {
            // A look has found it gone.
            return false;
        }
        let own = routing.cluster().own();
        let is_waiting = routing.waits_for().is_some();
        let carries = |index: u32| {
            let name = self.links.name_of(index);
            own.uplinks.iter().any(|(_, uplink)| uplink.as_ref().is_some_and(|of| of.name == name))
        };
        let is_of_own = |route: &Route| {
            let prefix = route.destination.trunc();
            // A block may have been taken a moment ago.
            let is_one = prefix.prefix_len() == prefix.max_prefix_len();
            own.node.all_prefixes().any(|own| own.contains(&prefix))
                || (is_one && self.settings.is_of_space(prefix))
        };
        // What a router advertisement makes in a prefix of pods is removed.
        let may_be_announced = |index: Option<u32>, prefix: IpNet| {
            there
                && index.is_some_and(|index| self.links.is_of_host(index))
                && self.settings.ranges().any(|range| range.contains(&prefix))
        };
        // The route says something of pods, or may be the way to a node.
        let may_matter = |route: &Route| {
            let prefix = route.destination.trunc();
            let ranges: Vec<IpNet> = self.settings.ranges().collect();
            host::matters(route, &ranges)
                || own.node.underlay.iter().any(|own| prefix.contains(&own))
                || routing.cluster().has_underlay_in(prefix)
        };
        // The last pod of an earlier prefix may be gone.
        let may_end = !there && routing.has_earlier();
        match object {
            // A look has read the link so already: the event only says that a tunnel was made on
            // it, for instance.
            Object::Link(link) if there && self.links.is_as(link) => false,
            Object::Link(link) => {
                may_end || is_waiting || carries(link.index) || own_name(own, &link.name)
            }
            // On the segment of another node, packets may come in by any link.
            Object::Address(address) => {
                is_waiting
                    || carries(address.ifindex)
                    || (host::is_announced(address)
                        && may_be_announced(Some(address.ifindex), address.address.trunc()))
                    || own.node.underlay.iter().any(|own| address.address.contains(&own))
            }
            // Routes of pods come and go all the time, and so do a router's. The kernel's own
            // routes follow from addresses and links, which have events too.
            Object::Route(route) => {
                may_end
                    || (route.table == TABLE_MAIN
                        && host::is_learnt(route, &[])
                        && may_be_announced(route.oif, route.destination.trunc()))
                    || (route.table != TABLE_LOCAL
                        && !is_of_own(route)
                        && (is_waiting || may_matter(route)))
            }
            Object::Neighbour(_) | Object::VxlanFdb(_) | Object::Nexthop(_) => false,
            _ => true,
        }
    }
}

/// Reports whether a link has the name of one of this node's tunnels or uplinks.
fn own_name(own: &OwnNode, name: &str) -> bool {
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
#[derive(Debug, Clone, Copy)]
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
