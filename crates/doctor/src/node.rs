//! The node that `doctor` looks at, and what it looks with.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni::{ContainerId, NetworkList};
use cni_runtime::{ConfigFolder, Outcome, Runtime};
use state::Roots;

/// The node of the calling process, as its runtime and our plugins write of it.
#[derive(Debug)]
pub struct Node<'n> {
    /// The folders of our own state.
    pub roots: &'n Roots,
    /// The cache of results, and where plugins are.
    pub runtime: &'n Runtime<'static>,
    /// The folder of network configurations.
    pub conf_dir: &'n Path,
    /// The network that exists without a file, unless a file has its name.
    pub embedded: NetworkList,
    /// Whether the runtime finds our own plugins. Without them none is asked.
    pub has_own_plugins: bool,
    /// How long all plugins of one attachment or network may take.
    pub timeout: Duration,
    /// The version of the program.
    pub version: &'static str,
    /// Adds to the details of an error what a person can do about it.
    pub advise: fn(cni::Error) -> cni::Error,
}

/// A network and where it was found.
#[derive(Debug, Clone)]
pub struct Network {
    /// Its configuration.
    pub list: NetworkList,
    /// The file; `None` for the embedded network.
    pub file: Option<PathBuf>,
}

/// The only container to look at, by any name that it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The name, as a person wrote it.
    pub text: String,
    /// The namespace that it means, if it is a path, a process ID or a name of `ip netns`.
    pub netns: PathBuf,
    /// The ID that a container in this namespace has if no runtime gave it one.
    pub id: ContainerId,
}

impl Node<'_> {
    /// Returns the deadline of a call of plugins that begins now.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.timeout)
    }
}

/// Lists every network that can be used, the embedded one last unless a file has its name.
#[must_use]
pub fn networks(folder: &ConfigFolder, embedded: NetworkList) -> Vec<Network> {
    let mut networks: Vec<Network> = folder
        .networks()
        .map(|list| Network { list: list.clone(), file: file_of(folder, &list.name) })
        .collect();
    let is_of_name = |name: &str| name == embedded.name;
    let broken = folder.refusals().any(|one| one.network.as_deref().is_some_and(is_of_name));
    if !broken && !networks.iter().any(|network| is_of_name(&network.list.name)) {
        networks.push(Network { list: embedded, file: None });
    }
    networks
}

/// Returns the file from which a folder has a network.
#[must_use]
pub fn file_of(folder: &ConfigFolder, name: &str) -> Option<PathBuf> {
    folder.considered().iter().find_map(|considered| match &considered.outcome {
        Outcome::Network(list) if list.name == name => Some(considered.path.clone()),
        _ => None,
    })
}

impl Network {
    /// Returns the file's path, or what is shown without one.
    #[must_use]
    pub fn origin(&self) -> String {
        match &self.file {
            Some(path) => path.display().to_string(),
            None => "(embedded)".to_owned(),
        }
    }

    /// Returns the plugins' types in order.
    #[must_use]
    pub fn chain(&self) -> Vec<String> {
        self.list.plugins.iter().map(|plugin| plugin.plugin_type.clone()).collect()
    }
}
