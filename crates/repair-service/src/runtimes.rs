//! What the services that watch attachments share: their settings, and a runtime for each cache.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::config::{Collect, Repair};
use cni_invoke::{Exec, Executor, MixedExecutor, REQUIRE_TRUSTED_PLUGINS, distrust};
use cni_runtime::{Cache, Runtime};
use ovsdb::Keys;
use plugins::Builtins;
use plugins::own_folder::OwnPlugins;
use service_kit::process::Process;
use state::Roots;

/// The timeout of plugins for one attachment.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The settings of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Flags {
    /// `cache`: the folders of runtimes' caches.
    pub(super) caches: Vec<PathBuf>,
    /// `path`: where plugins are.
    pub(super) path: Vec<PathBuf>,
    /// `confdir`: where network configurations are.
    pub(super) conf_dir: PathBuf,
    /// `interval`: the time between two looks.
    pub(super) interval: Duration,
    /// `grace`: how long something must have been garbage.
    pub(super) grace: Duration,
    /// `act`: do it.
    pub(super) act: bool,
    /// `--once`: look once and end.
    pub(super) once: bool,
    /// `netwright`: the executable whose plugins are called in this process.
    pub(super) netwright: Option<PathBuf>,
    /// `keep-plugins`: folders of plugins that are kept as they were installed.
    pub(super) keep_plugins: Vec<PathBuf>,
    /// `ovsdb`: databases of Open vSwitch to watch.
    pub(super) databases: Vec<String>,
    /// `private-key`, `certificate`, `ca-cert`: the files for databases at `ssl:` addresses.
    pub(super) keys: Keys,
}

impl From<&Collect> for Flags {
    fn from(of: &Collect) -> Self {
        Flags {
            caches: of.cache.clone(),
            path: of.path.clone(),
            conf_dir: of.confdir.clone(),
            interval: of.interval,
            grace: of.grace,
            act: of.act,
            netwright: of.netwright.clone(),
            ..Flags::default()
        }
    }
}

impl From<&Repair> for Flags {
    fn from(of: &Repair) -> Self {
        let file = |path: &Option<PathBuf>| path.clone().unwrap_or_default();
        Flags {
            caches: of.cache.clone(),
            path: of.path.clone(),
            interval: of.interval,
            netwright: of.netwright.clone(),
            keep_plugins: of.keep_plugins.clone(),
            databases: of.ovsdb.clone(),
            keys: Keys {
                private_key: file(&of.private_key),
                certificate: file(&of.certificate),
                ca_cert: file(&of.ca_cert),
            },
            ..Flags::default()
        }
    }
}

impl Flags {
    /// Returns the executable whose plugins are called in this process.
    pub(super) fn executable(&self) -> PathBuf {
        self.netwright.clone().unwrap_or_else(Flags::beside)
    }

    /// Returns the executable beside this process's.
    pub(super) fn beside() -> PathBuf {
        let own = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        own.with_file_name("netwright")
    }
}

/// The node as the runtimes' caches and our records show it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) roots: Roots,
    /// One for each cache.
    pub(super) runtimes: Vec<Runtime<'static>>,
    /// Where ours are found, whatever the folders of the configuration hold.
    _own_plugins: Option<OwnPlugins>,
}

impl Node {
    /// Opens only the executable whose plugins this daemon contains: where a runtime would start
    /// that file, they are called in this process; every other plugin is executed.
    pub(super) fn new(flags: &Flags, process: &Process) -> Self {
        let mut roots = process.roots();
        let bus = process.variable("DBUS_SYSTEM_BUS_ADDRESS");
        roots.system_bus = bus.map(|bus| bus.to_string_lossy().into_owned());
        let netwright = flags.executable();
        let builtins = Builtins { roots: roots.clone(), build: env!("CARGO_PKG_VERSION") };
        let exec = Exec::new(process.environment.iter().cloned())
            .refusing_untrusted_if(REQUIRE_TRUSTED_PLUGINS);
        let mut path = flags.path.clone();
        let mixed = MixedExecutor::in_place_of(&netwright, builtins, exec.clone());
        let (executor, own_plugins): (Arc<dyn Executor>, _) = match mixed {
            Ok(mixed) => (Arc::new(mixed), OwnPlugins::of(&netwright, &roots)),
            Err(error) => {
                let text = format!("read {}: {error}", netwright.display());
                (Arc::new(exec), Err(cni::Error::new(cni::code::IO_FAILURE, text)))
            }
        };
        match &own_plugins {
            Ok(own) => path.push(own.dir().to_owned()),
            Err(error) => {
                tracing::warn!(%error, "only plugins of these folders are used: {path:?}");
            }
        }
        let runtime = |cache: &PathBuf| {
            Runtime::new(path.clone(), Arc::clone(&executor))
                .with_cache(Cache::new(cache))
                .with_stderr(|said| {
                    let text = String::from_utf8_lossy(said.text);
                    tracing::debug!(plugin = said.plugin_type, "{}", text.trim_end());
                })
        };
        let runtimes = flags.caches.iter().map(runtime).collect();
        warn_of_untrusted(&flags.path);
        Node { roots, runtimes, _own_plugins: own_plugins.ok() }
    }

    /// Returns the deadline of plugins that start now.
    pub(super) fn deadline() -> Option<Instant> {
        Instant::now().checked_add(TIMEOUT)
    }
}

/// Warns about plugins, and folders of plugins, that users other than root can change.
fn warn_of_untrusted(path: &[PathBuf]) {
    let mut told = Vec::new();
    for folder in path {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        for what in files.flat_map(|entry| distrust(&entry.path())) {
            if !told.contains(&what.path) {
                tracing::warn!(
                    "{what}: anyone who can change a plugin's file or folder gains root at the next ADD"
                );
                told.push(what.path);
            }
        }
    }
}
