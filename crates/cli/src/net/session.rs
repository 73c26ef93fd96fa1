//! A runtime to drive plugins with, and the networks that exist.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni::Command;
use cni::nearest::nearest;
use cni_invoke::PLUGIN_DIRS;
use cni_runtime::{Cache, ConfigFolder, DEFAULT_CACHE_DIR, LoadError, Runtime, TraceContext};
use doctor::node::{self, Node, file_of};
use plugins::Builtins;
use plugins::own_folder::{self, OwnPlugins};
use state::Roots;

use super::default;
use crate::args::Common;
use crate::failure::Failure;
use crate::shell::Shell;
use crate::world::World;
use crate::{VERSION, plugin_process};

pub(crate) use doctor::node::Network;

/// The default folder of network configurations.
pub(crate) const DEFAULT_CONF_DIR: &str = "/etc/cni/net.d";

/// A file that ends too early may be half written, or cut off.
const UNFINISHED: &str =
    "if no program is writing the file now, its end is missing: write it again";

/// What a command works with.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) roots: Roots,
    pub(crate) runtime: Runtime<'static>,
    pub(crate) conf_dir: PathBuf,
    timeout: Duration,
    _own_plugins: Option<OwnPlugins>,
}

/// Which plugins are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PluginSource {
    /// `CNI_PATH` and this executable.
    WithOwn,
    /// `CNI_PATH` and nothing else, as cnitool does.
    PathOnly,
    /// No plugin will be called.
    None,
}

fn own_plugins(roots: &Roots) -> Result<OwnPlugins, Failure> {
    OwnPlugins::create(roots).map_err(|error| Failure::from(error).hint(own_folder::HINT))
}

impl Session {
    /// Prepares what commands that call plugins need.
    pub(crate) fn open(
        world: &World,
        common: &Common,
        shell: &Shell,
        source: PluginSource,
    ) -> Result<Self, Failure> {
        let roots = world.roots();
        let own_plugins = match source {
            PluginSource::WithOwn => Some(own_plugins(&roots)?),
            PluginSource::PathOnly | PluginSource::None => None,
        };
        let given = world.variable("CNI_PATH");
        let mut path: Vec<PathBuf> = Vec::new();
        match (&given, &own_plugins) {
            (Some(given), own) => {
                path.extend(std::env::split_paths(given).filter(|dir| !dir.as_os_str().is_empty()));
                path.extend(own.iter().map(|own| own.dir().to_owned()));
            }
            (None, own) => {
                path.extend(own.iter().map(|own| own.dir().to_owned()));
                if source != PluginSource::PathOnly {
                    path.extend(PLUGIN_DIRS.iter().map(PathBuf::from));
                }
            }
        }
        let builtins = Builtins { roots: roots.clone(), build: VERSION };
        let executor = Arc::new(plugin_process::mixed(&builtins, &world.environment));
        let errors = shell.sink();
        let variables = world.environment.iter().filter_map(|(key, value)| {
            Some((key.to_str()?.to_owned(), value.to_str()?.to_owned()))
        });
        let cache_dir =
            world.variable("NETWRIGHT_CACHE_DIR").unwrap_or_else(|| DEFAULT_CACHE_DIR.to_owned());
        let runtime = Runtime::new(path, executor)
            .with_cache(Cache::new(cache_dir))
            .with_trace(TraceContext::from_vars(variables))
            .with_netns_override(world.variable("CNI_NETNS_OVERRIDE").unwrap_or_default())
            .with_stderr(move |said| {
                // A successful plugin may still write to standard error; only STATUS is called so
                // often that it must not be shown.
                if said.command != Command::Status {
                    errors(&String::from_utf8_lossy(said.text));
                }
            });
        let conf_dir = common
            .conf_dir
            .clone()
            .or_else(|| world.variable("NETCONFPATH").map(PathBuf::from))
            .unwrap_or_else(|| DEFAULT_CONF_DIR.into());
        Ok(Session {
            roots,
            runtime,
            conf_dir: world.absolute(conf_dir),
            timeout: Duration::from_secs(common.timeout),
            _own_plugins: own_plugins,
        })
    }

    /// Returns the deadline of an operation that starts now.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.timeout)
    }

    /// Reads the folder of configurations.
    pub(crate) fn scan(&self) -> Result<ConfigFolder, Failure> {
        ConfigFolder::scan(&self.conf_dir).map_err(|error| load_failure(&error))
    }

    /// Finds a network; without a file of its name, the embedded one is used.
    pub(crate) fn network(&self, name: &str) -> Result<Network, Failure> {
        let folder = self.scan()?;
        match folder.find(name) {
            Ok(list) => Ok(Network { list: list.clone(), file: file_of(&folder, name) }),
            Err(LoadError::NotFound { .. }) if name == default::NAME => {
                Ok(Network { list: default::list(), file: None })
            }
            Err(error) => {
                let mut failure = load_failure(&error);
                if let LoadError::NotFound { .. } = error {
                    let known = self.networks(&folder);
                    let names: Vec<&str> =
                        known.iter().map(|network| network.list.name.as_str()).collect();
                    failure = match nearest(name, names.iter().copied()) {
                        Some(near) => failure.hint(format!("did you mean {near:?}?")),
                        None if names.is_empty() => failure,
                        None => failure.hint(format!("there are: {}", names.join(", "))),
                    };
                }
                Err(failure)
            }
        }
    }

    /// Lists every network that can be used, the embedded one last unless a file has its name.
    pub(crate) fn networks(&self, folder: &ConfigFolder) -> Vec<Network> {
        node::networks(folder, default::list())
    }

    /// Returns the node, to look at it.
    pub(crate) fn node(&self) -> Node<'_> {
        Node {
            roots: &self.roots,
            runtime: &self.runtime,
            conf_dir: &self.conf_dir,
            embedded: default::list(),
            has_own_plugins: self._own_plugins.is_some(),
            timeout: self.timeout,
            version: VERSION,
            advise: |error| Failure::from(error).to_cni(),
        }
    }
}

/// Explains why a folder gave no network; shows a broken file with the place of its error.
pub(crate) fn load_failure(error: &LoadError) -> Failure {
    let failure = Failure::from(error.to_cni());
    match error {
        LoadError::Refused { refusal, .. } => {
            let failure = match refusal.unfinished {
                true => failure.hint(UNFINISHED),
                false => failure,
            };
            failure.excerpt(crate::commands::lint::excerpt_of_file(
                Path::new(&refusal.path),
                refusal.line,
                refusal.column,
            ))
        }
        LoadError::Unfinished { .. } => failure.hint(UNFINISHED),
        _ => failure,
    }
}
