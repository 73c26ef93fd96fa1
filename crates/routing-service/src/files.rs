//! The files that the service writes.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agent::config;
use cni::NetworkName;
use ipam::Store;
use ipnet::IpNet;
use routing::document::{self, Document};
use routing::flannel::kept;
use routing::flannel::subnet_env::SubnetEnv;
use routing::mtu::IPV6_LEAST;
use routing::render::{self, AttachMode, NetworkConfig, Policy};
use routing::routing::LeaveMode;
use routing::{Routing, Settings};
use service_kit::process::remove_own_folder;
use service_kit::stop::words;
use state::{Durability, FileError};

use super::context::Context;

/// The bridge that pods are attached to.
const BRIDGE: &str = "nw-pods";

/// How many bridges there can be: each earlier prefix with pods may have one.
const BRIDGES: usize = 9;

/// How the names of the files end that runtimes read (libcni's `ConfFiles`).
const ENDINGS: [&str; 3] = ["conf", "conflist", "json"];

/// Plugins whose configuration comes first on purpose: they attach pods to the next one.
const LEADING: [&str; 3] = ["netwright-multi", "multus", "multus-shim"];

/// Where host-local keeps its folders, one for each network.
const RECORDS: &str = ipam::DATA_DIR;

/// Lists the addresses that host-local has given to pods; `None` if that cannot be known.
pub(super) fn recorded() -> Option<Vec<IpAddr>> {
    let mut addresses = Vec::new();
    for entry in std::fs::read_dir(RECORDS).ok()? {
        let entry = entry.ok()?;
        // What has no network's name is not host-local's.
        let name = entry.file_name();
        let network = name.to_str().and_then(|name| name.parse::<NetworkName>().ok());
        let Some(network) = network else { continue };
        if entry.file_type().ok()?.is_dir() {
            addresses.extend(Store::new(Path::new(RECORDS), &network).addresses().ok()?);
        }
    }
    Some(addresses)
}

/// The shortest time between two writes of the last known nodes.
const BETWEEN_WRITES: Duration = Duration::from_secs(5);

/// The last known nodes, and flanneld's last known configuration.
#[derive(Debug)]
pub(super) struct Disk {
    path: PathBuf,
    /// When the nodes are to be written, and when they were.
    write_at: Option<Instant>,
    written_at: Option<Instant>,
}

impl Disk {
    pub(super) fn new(folder: &Path) -> Self {
        Disk { path: folder.join("peers"), write_at: None, written_at: None }
    }

    /// Takes note that the nodes are others: they are to be written soon.
    pub(super) fn nodes_changed(&mut self, now: Instant) {
        if self.write_at.is_none() {
            let earliest = self.written_at.map_or(now, |written| written + BETWEEN_WRITES);
            self.write_at = Some(earliest.max(now));
        }
    }

    /// Returns when the nodes are to be written; `None` if the file has them.
    pub(super) fn write_at(&self) -> Option<Instant> {
        self.write_at
    }

    /// Writes the nodes, if the file has others. What fails is tried again.
    pub(super) fn write_nodes(&mut self, context: &Context) {
        if self.write_at.take().is_none() || context.settings.standby {
            return;
        }
        let document = context.routing().document();
        let written = self.write(&document);
        let now = Instant::now();
        self.written_at = Some(now);
        if written.is_err() {
            self.write_at = Some(now + BETWEEN_WRITES);
        }
        context.health.needs("record of nodes", written.map_err(|error| words(&error)));
    }

    /// Reads what was written last. A damaged file counts as none: the source will list the nodes.
    pub(super) fn read(&self) -> Document {
        let text = match state::read_optional(&self.path) {
            Ok(Some(text)) => text,
            Ok(None) => return Document::default(),
            Err(error) => {
                tracing::warn!(%error, "the last known nodes cannot be read");
                return Document::default();
            }
        };
        document::read(&text).unwrap_or_else(|error| {
            tracing::warn!(path = %self.path.display(), %error, "the file is ignored");
            Document::default()
        })
    }

    fn write(&self, document: &str) -> Result<(), FileError> {
        if let Some(folder) = self.path.parent() {
            state::create_directory(folder, 0o700)?;
        }
        state::write_atomic(&self.path, document.as_bytes(), 0o600, Durability::Synced)
    }

    /// Reads flanneld's configuration as the server had it last; `None` if it was never kept.
    ///
    /// # Errors
    /// Why what is kept does not count, in a sentence.
    pub(super) fn configuration(&self) -> Result<Option<String>, String> {
        let path = self.configuration_path();
        let Some(document) = state::read_optional(&path).map_err(|error| words(&error))? else {
            return Ok(None);
        };
        let read = kept::read(&document);
        read.map(Some).map_err(|damaged| format!("{damaged} ({})", path.display()))
    }

    /// Writes flanneld's configuration, unless the file has it.
    pub(super) fn write_configuration(&self, text: &str) -> Result<(), FileError> {
        if self.configuration().is_ok_and(|kept| kept.as_deref() == Some(text)) {
            return Ok(());
        }
        if let Some(folder) = self.path.parent() {
            state::create_directory(folder, 0o700)?;
        }
        let document = kept::write(text);
        let path = self.configuration_path();
        state::write_atomic(&path, document.as_bytes(), 0o600, Durability::Synced)
    }

    fn configuration_path(&self) -> PathBuf {
        self.path.with_file_name("flannel-config")
    }

    /// Removes the files, and their folder if that is empty.
    pub(super) fn remove(&self) -> Result<(), FileError> {
        state::remove_file(&self.path)?;
        state::remove_file(&self.configuration_path())?;
        self.path.parent().map_or(Ok(()), remove_own_folder)
    }
}

/// What runtimes and plugins read of this node's network.
#[derive(Debug)]
pub(super) struct NetworkFiles {
    conflist: Option<PathBuf>,
    subnet_env: Option<PathBuf>,
    network: String,
    attach: config::AttachMode,
    masquerade: bool,
    policy: Option<Policy>,
    /// The bridge, by its place among [`NetworkFiles::bridges`].
    bridge: usize,
    /// What the service wrote last: another program has changed what differs from it.
    written: Vec<(PathBuf, Vec<u8>)>,
}

impl NetworkFiles {
    /// `policy` is the network policy that pods start under.
    pub(super) fn new(config: &config::Routing, policy: Option<Policy>) -> Self {
        NetworkFiles {
            conflist: config.conflist.clone(),
            subnet_env: config.subnet_env(),
            network: config.network.clone(),
            attach: config.attach.0,
            masquerade: config.masquerade,
            policy,
            bridge: 0,
            written: Vec::new(),
        }
    }

    /// Returns the paths.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.subnet_env, &self.conflist].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Returns the names of the bridges that pods can be attached to, the usual one first.
    pub(super) fn bridges() -> Vec<String> {
        let more = (1..BRIDGES).map(|number| format!("{BRIDGE}{number}"));
        std::iter::once(BRIDGE.to_owned()).chain(more).collect()
    }

    /// Reports whether pods are attached to a bridge, and no network policy shows its frames to the
    /// packet filter anyway.
    pub(super) fn has_bridge(&self) -> bool {
        let is_ptp = self.attach == config::AttachMode::Ptp || self.policy.is_some();
        self.conflist.is_some() && !is_ptp
    }

    /// Says to which of [`NetworkFiles::bridges`] new pods are to be attached.
    pub(super) fn use_bridge(&mut self, place: usize) {
        self.bridge = place;
    }

    /// Writes the files once everything of this node is programmed, and again when their content is
    /// to be another, or when another program has changed them. The configuration comes last: a pod
    /// may start as soon as it is there.
    pub(super) fn write(
        &mut self,
        routing: &Routing,
        settings: &Settings,
    ) -> Result<(), FileError> {
        let own = &routing.cluster().own().node;
        let Some(mtu) = routing.pod_mtu() else { return Ok(()) };
        if let Some(path) = self.subnet_env.clone() {
            let env = SubnetEnv {
                networks: settings.cluster_ranges.clone(),
                subnets: own.prefixes.clone(),
                mtu,
                ip_masq: self.masquerade,
            };
            self.put(&path, env.write().into_bytes(), 0o644)?;
        }
        if let Some(path) = self.conflist.clone() {
            let has_room = |prefix: &&IpNet| prefix.addr().is_ipv4() || IPV6_LEAST <= mtu;
            let config = NetworkConfig {
                name: self.network.clone(),
                attach: match self.attach {
                    // Network policy judges what is routed; a bridge needs `br_netfilter` for it.
                    config::AttachMode::Auto if self.policy.is_some() => AttachMode::Ptp,
                    config::AttachMode::Auto | config::AttachMode::Bridge => {
                        AttachMode::Bridge(Self::bridges().swap_remove(self.bridge))
                    }
                    config::AttachMode::Ptp => AttachMode::Ptp,
                },
                prefixes: own.prefixes.iter().filter(has_room).copied().collect(),
                mtu,
                policy: self.policy.clone(),
            };
            self.put(&path, render::conflist(&config).into_bytes(), 0o600)?;
        }
        Ok(())
    }

    /// Returns a sentence for each configuration of another program that runtimes take before ours:
    /// containerd and CRI-O take the first by name.
    pub(super) fn before_ours(&self) -> Vec<String> {
        let Some(path) = &self.conflist else { return Vec::new() };
        let (Some(folder), Some(ours)) = (path.parent(), path.file_name()) else {
            return Vec::new();
        };
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let is_read = |path: &PathBuf| {
            let ending = path.extension().and_then(|ending| ending.to_str());
            ending.is_some_and(|ending| ENDINGS.contains(&ending))
        };
        let before = entries.filter(|entry| *entry.file_name() < *ours).map(|entry| entry.path());
        let mut before: Vec<PathBuf> =
            before.filter(is_read).filter(|path| !leads_on(path)).collect();
        before.sort();
        let (ours, network) = (ours.to_string_lossy(), &self.network);
        let sentence = |path: PathBuf| {
            let path = path.display();
            format!(
                "{path} comes before {ours}: containerd and CRI-O use it, and attach no pods to \
                 {network:?}; if it is not needed: mv {path} {path}.disabled"
            )
        };
        before.into_iter().map(sentence).collect()
    }

    fn put(&mut self, path: &Path, content: Vec<u8>, mode: u32) -> Result<(), FileError> {
        // A file that cannot be read is written anew.
        if state::read_optional(path).is_ok_and(|found| found.as_deref() == Some(&content[..])) {
            self.note(path, content);
            return Ok(());
        }
        if let Some(folder) = path.parent() {
            state::create_directory(folder, 0o755)?;
        }
        state::publish(path, &content, mode, Durability::Synced)?;
        let path_shown = path.display();
        match self.note(path, content) {
            true => {
                tracing::warn!(path = %path_shown, "put back: another program removed or changed it");
            }
            false => tracing::info!(path = %path_shown, "written"),
        }
        Ok(())
    }

    /// Notes what a file has now; says whether it had that before.
    fn note(&mut self, path: &Path, content: Vec<u8>) -> bool {
        match self.written.iter_mut().find(|(known, _)| known == path) {
            Some((_, known)) => {
                let same = *known == content;
                *known = content;
                same
            }
            None => {
                self.written.push((path.to_owned(), content));
                false
            }
        }
    }

    /// Removes the files; `subnet.env` is flanneld's again if that is on this node.
    pub(super) fn remove(&self, leaving: LeaveMode) -> Result<Vec<PathBuf>, FileError> {
        let mut removed = Vec::new();
        let subnet_env = self.subnet_env.as_ref().filter(|_| leaving == LeaveMode::Clean);
        // In the reverse order: from now on no pod is to start.
        for path in self.conflist.iter().chain(subnet_env) {
            if state::withdraw(path)? {
                removed.push(path.clone());
            }
        }
        Ok(removed)
    }
}

/// Reports whether a configuration leads to the next one: its plugin looks for that itself.
fn leads_on(path: &Path) -> bool {
    let text = state::read_optional(path).ok().flatten().unwrap_or_default();
    let config: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    let kinds = [&config["type"], &config["plugins"][0]["type"]];
    kinds.iter().filter_map(|kind| kind.as_str()).any(|kind| LEADING.contains(&kind))
}
