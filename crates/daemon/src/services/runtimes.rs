//! What the services that watch attachments share: their flags, and a runtime for each cache.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni_invoke::{Exec, Executor, Mixed, PLUGIN_DIRS, REQUIRE_TRUSTED_PLUGINS, distrust};
use cni_runtime::{Cache, DEFAULT_CACHE_DIR, Runtime};
use ovsdb::Keys;
use plugins::Builtins;
use state::Roots;

use super::arguments::{Arguments, FlagError};
use super::setup::Surroundings;

/// The timeout of plugins for one attachment.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The flags of a service, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flags {
    /// `-cache`: the folders of runtimes' caches.
    pub(super) caches: Vec<PathBuf>,
    /// `-path`: where plugins are.
    pub(super) path: String,
    /// `-confdir`: where network configurations are.
    pub(super) conf_dir: PathBuf,
    /// `-interval`: the time between two looks.
    pub(super) interval: Duration,
    /// `-grace`: how long something must have been garbage.
    pub(super) grace: Duration,
    /// `-act`: do it.
    pub(super) act: bool,
    /// `-once`: look once and end.
    pub(super) once: bool,
    /// `-netwright`: the executable whose plugins are called in this process.
    pub(super) netwright: Option<PathBuf>,
    /// `-ovsdb`: databases of Open vSwitch to watch.
    pub(super) databases: Vec<String>,
    /// `-private-key`, `-certificate`, `-ca-cert`: the files for databases at `ssl:` addresses.
    pub(super) keys: Keys,
}

impl Flags {
    /// Reads the arguments after the service's name; `known` are the names of its flags.
    pub(super) fn parse(
        arguments: &[OsString],
        known: &[&str],
        mut flags: Flags,
    ) -> Result<Self, FlagError> {
        let mut arguments = Arguments::new(arguments);
        let mut caches = Vec::new();
        while let Some(name) = arguments.next()? {
            match name.as_str() {
                unknown if !known.contains(&unknown) => return Err(FlagError::Unknown(name)),
                "act" => flags.act = arguments.switch()?,
                "once" => flags.once = arguments.switch()?,
                "cache" => caches.push(arguments.value()?.into()),
                "path" => flags.path = arguments.value()?,
                "confdir" => flags.conf_dir = arguments.value()?.into(),
                "interval" => {
                    flags.interval = arguments.duration()?.max(Duration::from_millis(1));
                }
                "ovsdb" => flags.databases.push(arguments.value()?),
                "private-key" => flags.keys.private_key = arguments.value()?.into(),
                "certificate" => flags.keys.certificate = arguments.value()?.into(),
                "ca-cert" => flags.keys.ca_cert = arguments.value()?.into(),
                "grace" => flags.grace = arguments.duration()?,
                _ => flags.netwright = Some(arguments.value()?.into()),
            }
        }
        if !caches.is_empty() {
            flags.caches = caches;
        }
        Ok(flags)
    }
}

impl Default for Flags {
    fn default() -> Self {
        Flags {
            caches: vec![DEFAULT_CACHE_DIR.into()],
            path: PLUGIN_DIRS.join(":"),
            conf_dir: "/etc/cni/net.d".into(),
            interval: Duration::from_secs(60),
            grace: Duration::from_secs(300),
            act: false,
            once: false,
            netwright: None,
            databases: Vec::new(),
            keys: Keys::default(),
        }
    }
}

/// The node as the runtimes' caches and our records show it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) roots: Roots,
    /// One for each cache.
    pub(super) runtimes: Vec<Runtime<'static>>,
}

impl Node {
    /// Opens only the executable whose plugins this daemon contains: where a runtime would start
    /// that file, they are called in this process; every other plugin is executed.
    pub(super) fn new(flags: &Flags, surroundings: Surroundings<'_>) -> Self {
        let mut roots = surroundings.roots();
        let bus = surroundings.variable("DBUS_SYSTEM_BUS_ADDRESS");
        roots.system_bus = bus.map(|bus| bus.to_string_lossy().into_owned());
        let netwright = flags.netwright.clone().unwrap_or_else(|| {
            let own = std::fs::read_link("/proc/self/exe").unwrap_or_default();
            own.with_file_name("netwright")
        });
        let builtins = Builtins { roots: roots.clone(), build: env!("CARGO_PKG_VERSION") };
        let exec = Exec::new(surroundings.environment.iter().cloned())
            .refusing_untrusted_if(REQUIRE_TRUSTED_PLUGINS);
        let executor: Arc<dyn Executor> =
            match Mixed::in_place_of(&netwright, builtins, exec.clone()) {
                Ok(mixed) => Arc::new(mixed),
                Err(_) => Arc::new(exec),
            };
        let path: Vec<PathBuf> = std::env::split_paths(&flags.path).collect();
        let runtime = |cache: &PathBuf| {
            Runtime::new(path.clone(), Arc::clone(&executor))
                .with_cache(Cache::new(cache))
                .with_stderr(|said| {
                    let text = String::from_utf8_lossy(said.text);
                    tracing::debug!(plugin = said.plugin_type, "{}", text.trim_end());
                })
        };
        let runtimes = flags.caches.iter().map(runtime).collect();
        warn_of_untrusted(&path);
        Node { roots, runtimes }
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

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[&str] = &["cache", "path", "interval", "act"];

    fn parse(line: &str) -> Result<Flags, FlagError> {
        let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        Flags::parse(&arguments, KNOWN, Flags::default())
    }

    #[test]
    fn flags_are_those_that_a_service_has() {
        assert_eq!(parse("").unwrap(), Flags::default());
        let flags = parse("-cache /a --cache=/b -path /x:/y -interval 2s -act").unwrap();
        assert_eq!(flags.caches, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert_eq!((flags.path.as_str(), flags.interval.as_secs()), ("/x:/y", 2));
        assert!(flags.act && !parse("-act=false").unwrap().act);
        assert_eq!(parse("-grace 1m"), Err(FlagError::Unknown("grace".to_owned())));
    }
}
