//! What the service publishes to runtimes and plugins, and what of others' stands before it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use routing::{IpFamily, SourceNode};
use service_kit::folders::Folders;
use service_kit::stop::words;

use super::context::Context;
use super::files::NetworkFiles;
use super::host::{self, Host};
use super::schedule::Due;

/// The files for pods, and the folders of these and of the list of nodes.
#[derive(Debug)]
pub(super) struct PublishedFiles {
    files: NetworkFiles,
    folders: Folders,
    /// Configurations that runtimes take before ours, and what pods of ours would lack, in sentences.
    obstacles: Vec<String>,
}

impl PublishedFiles {
    /// `list` is the list of nodes, if that is a file.
    pub(super) fn new(files: NetworkFiles, list: Option<&Path>) -> io::Result<Self> {
        let folders = Folders::of(files.paths().chain(list))?;
        Ok(PublishedFiles { files, folders, obstacles: Vec::new() })
    }

    /// Returns what is readable when something in the folders has changed.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        self.folders.descriptor()
    }

    /// Takes note of what has changed in the folders.
    pub(super) fn heard(&self) {
        self.folders.heard();
    }

    /// Watches folders that are new.
    pub(super) fn watch(&self) {
        self.folders.watch();
    }

    /// Takes note of the bridge that new pods are to be attached to.
    pub(super) fn choose_bridge(&mut self, context: &Context, node: &SourceNode, host: &Host) {
        let ranges = &context.settings.cluster_ranges;
        let bridge = host.bridge_for(&NetworkFiles::bridges(), &node.prefixes, ranges);
        self.files.use_bridge(bridge);
    }

    /// Writes what runtimes and plugins read, once everything of this node is programmed.
    pub(super) fn write(&mut self, context: &Context) -> Due {
        let routing = context.routing();
        if !routing.is_programmed() {
            return Due::default();
        }
        let written = self.files.write(&routing, &context.settings);
        drop(routing);
        let due = Due { unwritten: written.is_err(), ..Due::default() };
        context.health.needs("files for pods", written.map_err(|error| words(&error)));
        due
    }

    /// Says which configurations of other programs runtimes take before ours, and what pods of ours
    /// would lack. The service removes none and stays ready: an administrator may want another
    /// network of the node first.
    pub(super) fn look_at_others(&mut self, context: &Context, is_kubernetes: bool) {
        let mut found = self.files.before_ours();
        if is_kubernetes && self.files.has_bridge() {
            found.extend(unfiltered_frames(context));
        }
        if found == self.obstacles {
            return;
        }
        for what in found.iter().filter(|what| !self.obstacles.contains(what)) {
            tracing::warn!("{what}");
        }
        context.routing().notice("network configuration", found.clone());
        self.obstacles = found;
    }
}

/// Says that the packet filter does not see frames between pods of a bridge: an answer to a pod that
/// has asked a service then keeps the address of the pod that gives it.
fn unfiltered_frames(context: &Context) -> Option<String> {
    let routing = context.routing();
    let families = IpFamily::ALL.into_iter().filter(|family| routing.has_prefix_of(*family));
    let parameter = families.map(host::shows_frames).find(|name| !host::is_one(name))?;
    let shown = parameter.replace('/', ".");
    Some(format!(
        "{shown} is not 1: where kube-proxy translates addresses, a pod gets no answer of a \
         service whose pod is on this node too; load the module br_netfilter and set it, or \
         set attach to \"ptp\""
    ))
}
