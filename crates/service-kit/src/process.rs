//! The process of a service: what it finds when it starts, its status, and its configuration when that
//! is read again.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent::change::{keys_for, read_by, shown};
use agent::keys::Key;
use agent::load::Identity;
use agent::metrics;
use agent::report::{Report, State};
use agent::{Config, LoadedConfig};
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use state::{FileError, Roots};

use crate::attendant::{self, Attendant, Changes, Duties};
use crate::bell::Bell;
use crate::exchange::Answer;
use crate::health::Health;
use crate::listen::{self, ListenError, Listener};
use crate::log;
use crate::stop::{Stop, failed};

/// Reads the command line and the configuration again.
pub type ConfigReader = Arc<dyn Fn() -> Result<Config, Stop> + Send + Sync>;

/// What a service finds when it starts.
#[derive(Clone)]
pub struct Process {
    /// Its environment.
    pub environment: Vec<(OsString, OsString)>,
    /// What it knows of itself.
    pub health: Health,
    /// Changes how it logs.
    pub log: log::Control,
    /// Reads its command line and configuration again.
    pub reread: ConfigReader,
    /// Whether a SIGHUP asked for the configuration to be read again before the service could.
    pub hung_up: Arc<AtomicBool>,
    /// The service's socket, if it had to be opened before the process became another user.
    pub socket: Arc<Mutex<Option<Listener>>>,
    /// The configuration's file and what was read, if the service is to follow it.
    pub follows: Option<(PathBuf, Identity)>,
    /// Whether the service is to run anew when it has ended.
    pub again: Arc<AtomicBool>,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").finish_non_exhaustive()
    }
}

/// Answers questions that only one service can be asked.
pub type MoreAnswers = Box<dyn Fn(&str) -> Option<Answer> + Send>;

impl Process {
    /// Returns a variable that is set and not empty.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        let found = self.environment.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_os_str()).filter(|value| !value.is_empty())
    }

    /// Returns the node's name in its cluster: the configured one, or else the environment's, or
    /// else the host's, as the kubelet does (in small letters).
    pub fn node_name(&self, configured: String) -> String {
        if !configured.is_empty() {
            return configured;
        }
        match self.variable("NODE_NAME") {
            Some(name) => name.to_string_lossy().into_owned(),
            None => {
                let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
                host.unwrap_or_default().trim().to_lowercase()
            }
        }
    }

    /// Returns where our files are.
    pub fn roots(&self) -> Roots {
        Roots::of_environment(|name| self.variable(name).map(OsStr::to_owned))
    }

    /// Returns the socket at which the service is to serve: one that was opened for it, or one that
    /// it opens at this path.
    pub fn listen(&self, path: &Path) -> Result<Listener, ListenError> {
        match self.socket.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(listener) => Ok(listener),
            None => Listener::open(listen::handed_over(&self.environment)?, path),
        }
    }

    /// Notes that the service serves, at this socket if it has one, and tells the service manager.
    pub fn tell_ready(&self, socket: Option<&Path>) {
        attendant::forget_last_words(&self.roots(), self.health.service());
        self.health.serves(socket);
    }

    /// Notes that the service is about to end, and tells the service manager.
    pub fn tell_stopping(&self) {
        self.health.stops();
    }

    /// Starts the thread that answers at the service's status socket and reads the configuration
    /// again on SIGHUP. `loaded` is what the service runs with.
    pub fn attend(&self, service: &'static str, loaded: &LoadedConfig) -> Result<Attendance, Stop> {
        self.attend_with(service, loaded, Box::new(|_| None))
    }

    /// Does the same; `more` answers what only this service can be asked.
    pub fn attend_with(
        &self,
        service: &'static str,
        loaded: &LoadedConfig,
        more: MoreAnswers,
    ) -> Result<Attendance, Stop> {
        let config = &loaded.config;
        // A file cannot change what a flag sets.
        let by_flag = |key: &Key| {
            let source = loaded.sources.get(&(key.table, key.name));
            source.is_some_and(|source| source.file.as_os_str().is_empty())
        };
        self.health.runs_with(values(service, config, |key| !by_flag(key)));
        let changes = Changes::new().map_err(failed)?;
        let listener = attendant::listen(&attendant::socket(&self.roots(), service));
        let health = self.health.clone();
        let (process, to) = (self.clone(), changes.clone());
        let mut counts =
            Counts { started: config.clone(), files: files(service, config), last: config.clone() };
        let plugins = plugin_folders(service, config);
        let changed = self.follows.clone().map(|(file, known)| self.look_at(file, known, plugins));
        let duties = Duties {
            answer: Box::new(move |target| {
                more(target).unwrap_or_else(|| answer(&health.report(), target))
            }),
            reload: Some(Box::new(move || process.reload(service, &mut counts, &to))),
            changed,
        };
        let attendant = Attendant::start(listener, duties, &self.hung_up).map_err(failed)?;
        Ok(Attendance { changes, _attendant: Some(attendant) })
    }

    /// Returns what says whether the configuration's files have changed since they were `known`. It
    /// also ends this process when another program has removed one of these folders.
    fn look_at(
        &self,
        file: PathBuf,
        mut known: Identity,
        mut plugins: Vec<PathBuf>,
    ) -> Box<dyn FnMut() -> bool + Send> {
        let health = self.health.clone();
        Box::new(move || {
            if let Some(place) = plugins.iter().position(|folder| is_removed(folder)) {
                let folder = plugins.swap_remove(place);
                tracing::error!(
                    "{} was removed, and only a new container sees what is in its place",
                    folder.display()
                );
                if let Err(error) = kill_process(getpid(), Signal::TERM) {
                    tracing::error!(%error, "cannot end");
                }
            }
            let found = Identity::of(&file);
            if found == known {
                return false;
            }
            known = found;
            if known.is_nothing() {
                let error = format!("{} is gone; what was read before goes on", file.display());
                tracing::error!("{error}");
                health.needs(CONFIGURATION, Err(error));
            }
            !known.is_nothing()
        })
    }

    /// Reads the configuration again.
    fn reload(&self, service: &'static str, counts: &mut Counts, changes: &Changes) {
        let follows = self.follows.is_some();
        let new = match (self.reread)() {
            Ok(new) => new,
            Err(stop) => {
                let errors = stop.lines();
                for error in &errors {
                    tracing::error!(error, "the configuration is wrong; the one before goes on");
                }
                // A service that follows its files reloads by itself, so no user sees the errors
                // but in the status.
                if follows {
                    self.health.needs(CONFIGURATION, Err(errors.join("; ")));
                }
                return self.health.refused();
            }
        };
        self.health.needs(CONFIGURATION, Ok(()));
        self.health.tell_reloading();
        self.log.change(&new.log);
        let names = |since: &Config, live: bool| -> Vec<String> {
            let changed = keys_for(service, since, &new).into_iter().filter(|key| key.live == live);
            changed.map(|key| key.name_for(service)).collect()
        };
        let (changed, mut outdated) = (names(&counts.last, true), names(&counts.started, false));
        outdated.extend(other_files(&counts.files, &files(service, &new)));
        tracing::info!(
            changed = changed.join(","),
            after_a_restart = outdated.join(","),
            "read the configuration again"
        );
        self.health.runs_with_new(values(service, &new, |key| key.live));
        counts.last = new.clone();
        changes.put(new);
        let starts_again = follows && !outdated.is_empty();
        self.health.reloaded(outdated);
        if starts_again {
            self.again.store(true, Ordering::SeqCst);
            if let Err(error) = kill_process(getpid(), Signal::TERM) {
                tracing::error!(%error, "cannot start again");
            }
        }
    }
}

/// Returns a variable of the environment that is text.
pub fn variable<'a>(environment: &'a [(OsString, OsString)], name: &str) -> Option<&'a str> {
    let found = environment.iter().find(|(key, _)| key == name);
    found.and_then(|(_, value)| value.to_str())
}

/// What a status says is missing if the configuration is wrong.
pub const CONFIGURATION: &str = "configuration";

/// The configurations that a reload compares.
struct Counts {
    /// The one that the service started with, and the contents that its files had then.
    started: Config,
    files: Vec<NamedFile>,
    /// The one that was read last.
    last: Config,
}

/// A key that names a file which is read once, when the service starts, and what is in the file.
type NamedFile = (&'static str, Option<Vec<u8>>);

/// Reads the files that keys of a service name.
fn files(service: &str, config: &Config) -> Vec<NamedFile> {
    let (ipam, repair, routing) = (&config.ipam, &config.repair, &config.routing);
    let named: &[(&str, &Option<PathBuf>)] = match service {
        "ipam" => &[
            ("etcd-ca", &ipam.etcd_ca),
            ("etcd-cert", &ipam.etcd_cert),
            ("etcd-key", &ipam.etcd_key),
        ],
        "multinet" => &[("config", &config.multinet.config)],
        "repair" => &[
            ("ca-cert", &repair.ca_cert),
            ("certificate", &repair.certificate),
            ("private-key", &repair.private_key),
        ],
        "routing" => &[
            ("etcd-ca", &routing.etcd_ca),
            ("etcd-cert", &routing.etcd_cert),
            ("etcd-key", &routing.etcd_key),
        ],
        _ => &[],
    };
    let read = |path: &PathBuf| state::read_optional(path).ok().flatten();
    named.iter().map(|(key, path)| (*key, path.as_ref().and_then(read))).collect()
}

/// Returns the keys whose file has another content.
fn other_files(before: &[NamedFile], now: &[NamedFile]) -> Vec<String> {
    let pairs = before.iter().zip(now).filter(|(before, now)| before.1 != now.1);
    pairs.map(|(_, (key, _))| (*key).to_owned()).collect()
}

/// Returns the folders in which a service looks for plugins, and those that it keeps.
fn plugin_folders(service: &str, config: &Config) -> Vec<PathBuf> {
    match service {
        "collect" => config.collect.path.clone(),
        "multinet" => config.multinet.path.clone(),
        "repair" => [&config.repair.path[..], &config.repair.keep_plugins[..]].concat(),
        _ => Vec::new(),
    }
}

/// Says whether a path leads to a folder that was removed. The mount of a container does, also when
/// there is a new folder of that name.
fn is_removed(folder: &Path) -> bool {
    folder.metadata().is_ok_and(|found| found.is_dir() && found.nlink() == 0)
}

/// Returns the values of some of the keys that a service reads.
fn values(service: &str, config: &Config, which: impl Fn(&Key) -> bool) -> Vec<(String, String)> {
    let mut config = config.clone();
    let keys = read_by(service).filter(|key| which(key));
    keys.map(|key| (key.name_for(service), shown(key, &mut config))).collect()
}

/// The thread beside a service's loop, and what it has for the loop.
#[derive(Debug)]
pub struct Attendance {
    /// Configurations that were read since.
    pub changes: Changes,
    _attendant: Option<Attendant>,
}

#[cfg(test)]
impl Attendance {
    pub(crate) fn without_thread(changes: Changes) -> Self {
        Attendance { changes, _attendant: None }
    }
}

/// Answers what a probe or `netwrightd agent status` asks of a service.
fn answer(report: &Report, target: &str) -> Answer {
    match target {
        "/status" => Answer::json(report),
        "/readyz" => Answer::verdict(report.trouble()),
        "/livez" => Answer::verdict(report.why.clone().filter(|_| report.state == State::Hung)),
        "/metrics" => Answer::metrics(metrics::of_one(report)),
        _ => Answer::text(404, "there are /status, /readyz, /livez and /metrics"),
    }
}

/// Returns a bell that rings when the service is to stop.
pub fn stop_signals() -> std::io::Result<Bell> {
    Bell::of_signals(&[SIGINT, SIGTERM])
}

/// Removes a service's folder if it is empty, and what killed writers left in it.
///
/// # Errors
/// [`FileError::Remove`].
pub fn remove_own_folder(folder: &Path) -> Result<(), FileError> {
    state::remove_abandoned(folder);
    match state::remove_directory(folder) {
        // A container's mount is not ours to remove.
        Err(FileError::Remove { source, .. })
            if matches!(source.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::ResourceBusy) =>
        {
            Ok(())
        }
        removed => removed.map(drop),
    }
}

/// Longer than any pause.
pub const LONG: Duration = Duration::from_secs(3600);

/// Raises the limit of open files to what the service manager allows: each connection is one file.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
}
