//! `netwrightd` without a service's name: starts every enabled service, each as a process of its
//! own with its own rights, and looks after them, where no service manager does.
//!
//! | file | what it is |
//! |---|---|
//! | this one | the loop, and what is done to processes |
//! | `child` | one service's process: when it starts, and how it ended |
//!
//! A service that ends starts again after a pause that doubles each time. One whose configuration
//! is wrong waits for the next reload. One that does not go on is killed, and starts again.
//!
//! It starts services with the copy of the configuration that it accepted last, so a service that
//! starts again does not read a file that is still being changed. (A service that something else
//! starts reads the file itself: a person who edits it and restarts the service wants that.) It
//! learns from `/livez` that a service hangs; besides asking, it only sends signals. It refuses to
//! run twice. Services end with it (`PR_SET_PDEATHSIG`), so no process is left that holds a socket.

mod child;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use agent::change::{Change, between, shown};
use agent::load::{LoadedConfig, Surroundings};
use agent::report::{AGENT, Report, Status};
use agent::{Config, Problem, accepted, keys};
use rustix::process::{Pid, Signal, WaitOptions, getppid, kill_process, wait};
use service_kit::attendant::{self, Attendant, Duties};
use service_kit::bell::Bell;
use service_kit::exchange::{Answer, NoAnswer, ask};
use service_kit::health::{Health, Manager};
use service_kit::listen::Listener;
use service_kit::log;
use service_kit::poll::{Interest, Poller};
use service_kit::process::{CONFIGURATION, stop_signals, variable};
use service_kit::stop::{Stop, failed};
use signal_hook::consts::{SIGCHLD, SIGHUP};
use state::Roots;

use crate::probes::{self, Look, Probes};
use crate::status::{self, Processes};
use child::{Child, ExitReason};

/// The variable with the process ID of a service's supervisor.
pub(crate) const VARIABLE: &str = "NETWRIGHT_SUPERVISOR";

/// How long a service has to end before it is killed. Docker's driver waits for calls under way.
const TIME_TO_END: Duration = Duration::from_secs(90);
/// The longest pause between looks whether services go on, and how long one may take to answer.
const LOOK: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(1);

/// Services that others ask for addresses: they end last.
const END_LAST: [&str; 2] = ["dhcp", "ipam"];

/// Numbers of the descriptors that the loop waits for.
const STOP: u64 = 0;
const HANGUP: u64 = 1;
const CHILD: u64 = 2;

/// Runs until a signal ends it, with the configuration in `file`.
pub(crate) fn run(
    file: PathBuf,
    around: Surroundings,
    environment: &[(OsString, OsString)],
    roots: &Roots,
    manager: Manager,
) -> Result<(), Stop> {
    let user = rustix::process::geteuid();
    if !user.is_root() {
        return Err(Stop::Failed(format!(
            "services are started by root, and this is user {}: start it as root",
            user.as_raw()
        )));
    }
    let standing = accepted::standing(&file, roots, around).map_err(Stop::Configuration)?;
    let loaded = standing.loaded;
    let health = Health::new(AGENT, manager, loaded.config.agent.watchdog);
    let journal = variable(environment, "JOURNAL_STREAM").is_some();
    let level = variable(environment, "NETWRIGHT_LOG");
    let control = log::start(AGENT, None, &loaded.config.log, level, journal, Some(health.clone()));
    let (poller, signals) = listen_for_signals().map_err(failed)?;
    let socket = attendant::socket(roots, AGENT);
    let listener = Listener::open(Vec::new(), &socket).map_err(failed)?;
    let view: View = Arc::default();
    let look = look(roots, &file, &health, &view);
    health.runs_with(own_values(&loaded.config));
    let mut supervisor = Supervisor {
        program: std::env::current_exe().map_err(failed)?,
        for_services: file.clone(),
        file,
        around,
        roots: roots.clone(),
        children: keys::services().map(Child::new).collect(),
        loaded,
        probes: Probes::new(Arc::clone(&look), health.clone()),
        health,
        control,
        view,
        looked: Instant::now(),
        ends: false,
    };
    refuse(&supervisor.health, &standing.refused);
    if standing.refused.is_empty() {
        supervisor.accept();
    } else {
        supervisor.for_services = accepted::path(roots);
    }
    for child in &mut supervisor.children {
        if keys::is_enabled(&supervisor.loaded.config, child.service) {
            child.start();
        }
    }
    supervisor.turn();
    // It answers only from now on: a client that asked earlier would see no service.
    let duties = Duties { answer: answers(look), reload: None, changed: None };
    let attendant =
        Attendant::start(Some(listener), duties, &AtomicBool::new(false)).map_err(failed)?;
    supervisor.health.serves(Some(&socket));
    supervisor.probes.follow(&supervisor.loaded.config.agent);
    let services = supervisor.children.iter().filter(|child| child.wanted).count();
    tracing::info!(services, socket = %socket.display(), "ready");
    let done = supervisor.supervise(&poller, &signals);
    supervisor.health.stops();
    drop(attendant);
    done.map_err(failed)?;
    tracing::info!("stopped");
    Ok(())
}

/// What arrives of each kind of signals.
struct Signals {
    stop: Bell,
    hangup: Bell,
    child: Bell,
}

fn listen_for_signals() -> std::io::Result<(Poller, Signals)> {
    let (hangup, child) = (Bell::of_signals(&[SIGHUP])?, Bell::of_signals(&[SIGCHLD])?);
    let signals = Signals { stop: stop_signals()?, hangup, child };
    let poller = Poller::new()?;
    poller.add(&signals.stop, STOP, Interest::Read)?;
    poller.add(&signals.hangup, HANGUP, Interest::Read)?;
    poller.add(&signals.child, CHILD, Interest::Read)?;
    Ok((poller, signals))
}

/// What the thread beside the loop reports of the processes.
type View = Arc<Mutex<Vec<Report>>>;

/// Returns what looks at the supervisor and its services.
fn look(roots: &Roots, file: &Path, health: &Health, view: &View) -> Look {
    let (roots, health, view) = (roots.clone(), health.clone(), Arc::clone(view));
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    Arc::new(move || {
        let known = view.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let services = status::gather(&roots, known, Processes::Known);
        let configuration = Some(file.clone());
        let agent = Report { enabled: true, configuration, ..health.report() };
        Status { agent: Some(agent), services }
    })
}

/// Returns what answers at the socket of all services.
pub(crate) fn answers(look: Look) -> Box<dyn Fn(&str) -> Answer + Send> {
    Box::new(move |target| match target {
        "/status" => Answer::json(&look()),
        "/readyz" | "/livez" | "/metrics" => probes::answer(target, &look()),
        _ => Answer::text(404, "there are /status, /readyz, /livez and /metrics"),
    })
}

/// Returns the values of the keys that no service reads.
pub(crate) fn own_values(config: &Config) -> Vec<(String, String)> {
    let mut config = config.clone();
    let own = keys::KEYS.iter().filter(|key| key.for_agent);
    own.map(|key| (key.name_for(AGENT), shown(key, &mut config))).collect()
}

struct Supervisor {
    /// The executable; a service that starts again runs the file that has this name then.
    program: PathBuf,
    file: PathBuf,
    around: Surroundings,
    roots: Roots,
    children: Vec<Child>,
    /// The configuration that is in force.
    loaded: LoadedConfig,
    /// The file from which the services read it.
    for_services: PathBuf,
    health: Health,
    control: log::Control,
    view: View,
    probes: Probes,
    /// When the services were asked last whether they go on.
    looked: Instant,
    ends: bool,
}

impl Supervisor {
    fn supervise(&mut self, poller: &Poller, signals: &Signals) -> std::io::Result<()> {
        loop {
            self.health.turns();
            let now = Instant::now();
            let due = self.children.iter().filter_map(Child::due).chain([self.next_look()]);
            let pause = due.map(|due| due.saturating_duration_since(now)).min().unwrap_or(LOOK);
            for number in poller.wait(Some(self.health.pause(pause)))? {
                match number {
                    STOP => {
                        signals.stop.heard();
                        if !self.ends {
                            self.health.stops();
                            tracing::info!("stopping");
                        }
                        self.ends = true;
                    }
                    HANGUP => {
                        signals.hangup.heard();
                        if !self.ends {
                            self.reload();
                        }
                    }
                    _ => {
                        signals.child.heard();
                    }
                }
            }
            self.turn();
            if self.ends && self.children.iter().all(|child| !child.is_alive()) {
                return Ok(());
            }
        }
    }

    /// Does everything that is due.
    fn turn(&mut self) {
        self.reap();
        if self.ends {
            self.end_some();
        }
        let now = Instant::now();
        for at in 0..self.children.len() {
            if self.children[at].is_to_start(now) {
                self.spawn(at);
            }
            if let Some(pid) = self.children[at].is_to_be_killed(now) {
                let service = self.children[at].service;
                tracing::warn!(service, "killed: it did not end in {TIME_TO_END:?}");
                signal(pid, Signal::KILL);
            }
        }
        if self.next_look() <= now {
            self.look();
        }
        let known = self.children.iter().filter(|child| child.wanted || child.is_alive());
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) =
            known.map(|child| child.report(now)).collect();
    }

    /// Takes the exit codes of processes that ended; also of orphans that the first process of a
    /// container adopts.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let Some(child) = self.children.iter_mut().find(|child| child.pid() == Some(pid))
            else {
                continue;
            };
            let service = child.service;
            match child.ended(status.into(), Instant::now()) {
                ExitReason::Asked => tracing::info!(service, "the service ended"),
                ExitReason::Refused(why) => {
                    tracing::error!(service, "{why}; it waits for a reload");
                }
                ExitReason::Failed(why, pause) => {
                    tracing::warn!(service, ?pause, "{why}; it starts again");
                }
            }
        }
    }

    fn spawn(&mut self, at: usize) {
        let child = &mut self.children[at];
        let service = child.service;
        #[expect(clippy::disallowed_methods, reason = "a service is a process of its own")]
        let mut command = Command::new(&self.program);
        command.arg(service).arg("--confine").arg("--configuration").arg(&self.for_services);
        command.env(VARIABLE, std::process::id().to_string());
        // They are this process's.
        for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS"] {
            command.env_remove(name);
        }
        // A signal of a terminal is for this process, which ends the services in order.
        let spawned = command.stdin(Stdio::null()).process_group(0).spawn();
        let now = Instant::now();
        match spawned {
            // `reap` waits for it, with all the others.
            Ok(process) => {
                child.started(Pid::from_child(&process), now);
                tracing::info!(service, pid = process.id(), "started the service");
            }
            Err(error) => {
                let pause = child.not_started(&error, now);
                tracing::error!(service, %error, ?pause, "cannot start the service");
            }
        }
    }

    /// Asks the services to end, those that others need last.
    fn end_some(&mut self) {
        let now = Instant::now();
        let last = |child: &Child| END_LAST.contains(&child.service);
        let first_alive = self.children.iter().any(|child| !last(child) && child.is_alive());
        for child in &mut self.children {
            if !last(child) || !first_alive {
                end(child, now);
            }
        }
    }

    /// Reads the configuration again, and starts, stops and signals services as it says.
    fn reload(&mut self) {
        let new = match accepted::renewed(&self.file, &self.loaded, self.around) {
            Ok(new) => new,
            Err(problems) => {
                refuse(&self.health, &problems);
                return self.health.refused();
            }
        };
        self.health.tell_reloading();
        let change = between(&self.loaded.config, &new.config);
        self.loaded = new;
        self.accept();
        self.control.change(&self.loaded.config.log);
        self.health.runs_with_new(own_values(&self.loaded.config));
        self.probes.follow(&self.loaded.config.agent);
        self.health.needs(CONFIGURATION, Ok(()));
        self.apply(&change);
        for line in change.to_string().lines() {
            tracing::info!("{line}");
        }
        tracing::info!("read the configuration again");
        self.health.reloaded(Vec::new());
    }

    fn apply(&mut self, change: &Change) {
        let now = Instant::now();
        for child in &mut self.children {
            let is_in = |changed: &[agent::change::ServiceChange]| {
                changed.iter().any(|changed| changed.service == child.service)
            };
            let (restarts, is_told) = (is_in(&change.restart), is_in(&change.tell));
            if change.start.contains(&child.service) {
                child.start();
            } else if change.stop.contains(&child.service) {
                child.wanted = false;
                end(child, now);
            } else if child.wanted && (restarts || child.waits_for_a_reload()) {
                end(child, now);
                child.start();
            } else if is_told && let Some(pid) = child.pid() {
                signal(pid, Signal::HUP);
            }
        }
    }

    /// Stores the configuration that is in force, for the services and for the next start.
    fn accept(&mut self) {
        self.for_services = match accepted::write(&self.roots, &self.loaded) {
            Ok(()) => accepted::path(&self.roots),
            Err(error) => {
                let error = cni::Error::from_chain(0, &error).msg;
                tracing::warn!(error, "services read the file itself: no accepted copy is stored");
                self.file.clone()
            }
        };
    }

    /// Returns when the services are asked next whether they go on.
    fn next_look(&self) -> Instant {
        self.looked + LOOK.min(self.loaded.config.agent.watchdog / 2)
    }

    /// Asks the services whether they go on, and kills one that has not gone on for too long.
    fn look(&mut self) {
        let watchdog = self.loaded.config.agent.watchdog;
        let roots = &self.roots;
        let services: Vec<&str> = self.children.iter().map(|child| child.service).collect();
        let live = |service: &str| ask(&attendant::socket(roots, service), "/livez", TIMEOUT);
        let answers: Vec<_> = thread::scope(|scope| {
            let asked = services.iter().map(|service| scope.spawn(move || live(service)));
            let asked: Vec<_> = asked.collect();
            asked.into_iter().map(|thread| thread.join().ok()).collect()
        });
        let now = Instant::now();
        self.looked = now;
        self.probes.look_again();
        for (child, answer) in self.children.iter_mut().zip(answers) {
            let hangs = match answer {
                Some(Ok((503, _))) => child.hangs(now, Duration::ZERO),
                Some(Err(NoAnswer::Silent)) => child.hangs(now, watchdog),
                _ => {
                    child.goes_on();
                    None
                }
            };
            if let Some(pid) = hangs {
                tracing::error!(service = child.service, ?watchdog, "killed: it did not go on");
                signal(pid, Signal::KILL);
            }
        }
    }
}

/// Says what is wrong with the configuration; the one before goes on.
pub(crate) fn refuse(health: &Health, problems: &[Problem]) {
    for problem in problems {
        let error = problem.line();
        tracing::error!(error, "the configuration is wrong; the one before goes on");
    }
    if let Some(problem) = problems.first() {
        health.needs(CONFIGURATION, Err(problem.line()));
    }
}

/// Asks a service to end, if it runs.
fn end(child: &mut Child, now: Instant) {
    if let Some(pid) = child.ends(now + TIME_TO_END) {
        signal(pid, Signal::TERM);
    }
}

fn signal(pid: Pid, signal: Signal) {
    // It has ended, and `reap` has not run yet.
    let _ = kill_process(pid, signal);
}

/// Makes this process, which has the supervisor `parent`, end when the supervisor is gone.
pub(crate) fn follow(parent: &str) -> Result<(), Stop> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).map_err(failed)?;
    let now = getppid().map(|pid| pid.as_raw_nonzero().get().to_string());
    match now.as_deref() == Some(parent) {
        true => Ok(()),
        false => Err(Stop::Failed("the supervisor is gone".to_owned())),
    }
}
