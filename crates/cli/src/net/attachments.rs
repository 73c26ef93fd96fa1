//! Lists the attachments: the cache of results and our own records, merged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cni::AttachmentKey;
use cni_runtime::{Cache, CachedAttachment, Inventory, Runtime};
use firewall::taken;
use kernel::netns::NetnsId;
use plugins::chained::portmap;
use serde::Serialize;
use state::Roots;

use super::container::Kind;
use super::dockers::{self, Endpoint};
use super::ports::PortMapping;
use super::presence::{self, Presence};
use super::runtime_names::RuntimeNames;
use super::session::Session;
use crate::failure::Failure;

pub(crate) use cni_runtime::KnownAttachment;

/// Reads the cache and our records.
pub(crate) fn all(session: &Session) -> Result<Inventory, Failure> {
    session.runtime.everything(&session.roots).map_err(|error| Failure::from(error.to_cni()))
}

/// Reads them, but does not search for containers whose path no longer leads to them: for callers
/// that need the path.
pub(crate) fn at_paths(session: &Session) -> Result<Inventory, Failure> {
    let everything = session.runtime.everything_at_paths(&session.roots);
    everything.map_err(|error| Failure::from(error.to_cni()))
}

/// Attachments to show, and which of them consist of several networks.
#[derive(Debug)]
pub(crate) struct AttachmentList {
    /// All attachments; where one consists of several networks, also each of these with its result.
    pub(crate) known: Vec<KnownAttachment>,
    /// The attachments whose networks are listed too.
    pub(crate) wholes: BTreeSet<AttachmentKey>,
    /// Those of the listed attachments that are networks of others. Only the plugin of the whole
    /// knows their results: a CHECK or a repair of the whole is one of each part.
    pub(crate) parts: BTreeSet<AttachmentKey>,
}

/// Adds what `multi` and `netwright-multi` recorded of their networks to what is known. This is for
/// people to read: to detach or repair, a command calls the plugin, which acts on all of its
/// networks.
pub(crate) fn with_parts(session: &Session, known: Vec<KnownAttachment>) -> AttachmentList {
    let mut parts = BTreeMap::new();
    let mut wholes = BTreeSet::new();
    for whole in &known {
        for record in &whole.records {
            for cached in plugins::multi::parts(&session.roots, record) {
                wholes.insert(whole.key.clone());
                parts.insert(cached.key(), (cached, whole.clone()));
            }
        }
    }
    // A part may have the key of the whole.
    let keys = parts.iter().filter(|(key, (_, whole))| **key != whole.key);
    let keys = cni::order::gather(keys.map(|(key, _)| key.clone()));
    let mut known = known;
    for one in &mut known {
        if let Some((cached, _)) = parts.remove(&one.key) {
            wholes.remove(&one.key);
            one.cached.get_or_insert(cached);
        }
    }
    known.extend(parts.into_values().map(|(cached, whole)| KnownAttachment::part(&whole, cached)));
    cni::order::sort_by(&mut known, |one, other| one.key.cmp(&other.key));
    AttachmentList { known, wholes, parts: keys }
}

/// Returns runtimes whose caches are those of the plugins that attach to several networks: there are
/// the results of these networks.
pub(crate) fn inner_runtimes(session: &Session) -> Result<Vec<Runtime<'static>>, Failure> {
    let mut folders = BTreeSet::new();
    for record in at_paths(session)?.known.iter().flat_map(|known| &known.records) {
        let parts = plugins::multi::parts(&session.roots, record);
        // The file lies in the cache's folder `results`.
        let folder = |cached: &CachedAttachment| cached.path.ancestors().nth(2).map(Path::to_owned);
        folders.extend(parts.iter().filter_map(folder));
    }
    let runtime = |folder| session.runtime.clone().with_cache(Cache::new(folder));
    Ok(folders.into_iter().map(runtime).collect())
}

/// Returns the attachments that plugins are asked about: without those that are networks of others.
/// A network's name means the whole to which such a network belongs, too.
pub(crate) fn wholes(
    session: &Session,
    known: Vec<KnownAttachment>,
    network: Option<&str>,
) -> Vec<KnownAttachment> {
    let mut parts = Vec::new();
    for whole in &known {
        for record in &whole.records {
            let keys = plugins::multi::parts(&session.roots, record).into_iter();
            parts.extend(keys.map(|cached| (cached.key(), whole.key.clone())));
        }
    }
    let is_part =
        |key: &AttachmentKey| parts.iter().any(|(part, whole)| part == key && whole != key);
    let is_of = |known: &KnownAttachment, name: &str| {
        let mut own = parts.iter().filter(|(_, whole)| *whole == known.key);
        known.key.network.as_str() == name || own.any(|(part, _)| part.network.as_str() == name)
    };
    let mut known = known;
    known.retain(|known| !is_part(&known.key) && network.is_none_or(|name| is_of(known, name)));
    known
}

/// Returns the container's addresses.
pub(crate) fn addresses(known: &KnownAttachment) -> Vec<String> {
    let Some(result) = known.result() else { return Vec::new() };
    result.container_ips(known.key.ifname.as_str()).map(|ip| ip.address.to_string()).collect()
}

/// Returns the published ports: as our `portmap` recorded them; otherwise as they were requested
/// from plugins that publish ports, or as the network's list names them.
pub(crate) fn ports(known: &KnownAttachment, docker: Option<&Endpoint>) -> Vec<PortMapping> {
    let recorded = known.records.iter().find_map(portmap::published);
    let forwards = recorded.or_else(|| {
        let dockers = docker.and_then(|endpoint| endpoint.ports.as_deref());
        dockers.map(|raw| taken::forwards(raw.get())).filter(|ports| !ports.is_empty())
    });
    let forwards = forwards.unwrap_or_else(|| {
        let Some(cached) = &known.cached else { return Vec::new() };
        let asked = cached.attachment.capability_args.get(taken::PORT_MAPPINGS);
        let list = cached.list().ok();
        list.map(|list| taken::of_list(&list, asked.map(|raw| raw.get()))).unwrap_or_default()
    });
    forwards.into_iter().map(PortMapping::from).collect()
}

/// One row of a list of attachments.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) network: String,
    #[serde(rename = "containerID")]
    pub(crate) container_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) docker: Option<dockers::EndpointIds>,
    pub(crate) ifname: String,
    pub(crate) netns: String,
    pub(crate) state: Presence,
    pub(crate) addresses: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<String>,
}

impl Row {
    /// Describes an attachment; for a container of Docker's it says where Docker has put the
    /// interface.
    pub(crate) fn of(known: &KnownAttachment, roots: &Roots) -> Self {
        let docker = dockers::endpoint(known, roots);
        Row {
            network: known.key.network.to_string(),
            container_id: known.key.container_id.to_string(),
            docker: docker.as_ref().map(|endpoint| endpoint.shown(known)),
            ifname: known.key.ifname.to_string(),
            netns: netns(known, docker.as_ref()),
            state: known.presence,
            addresses: addresses(known),
            ports: ports(known, docker.as_ref()).iter().map(ToString::to_string).collect(),
        }
    }

    /// Returns the container's name in a list.
    pub(crate) fn container(&self) -> String {
        self.docker.as_ref().map_or_else(|| self.container_id.clone(), dockers::EndpointIds::name)
    }
}

/// Returns the path of the container's namespace; empty when it was not recorded.
pub(crate) fn netns(known: &KnownAttachment, docker: Option<&Endpoint>) -> String {
    let sandbox = docker.and_then(|endpoint| endpoint.sandbox.as_ref());
    sandbox.map_or_else(|| known.netns(), |path| path.to_string_lossy().into_owned())
}

/// Keeps the attachments of one container, named by its ID or by any name of its namespace; for a
/// container of Docker's also by its endpoint's ID as Docker shows it. Docker's and podman's own
/// names of running containers count where nothing else has the name.
pub(crate) fn of_container(
    known: Vec<KnownAttachment>,
    name: &super::container::ContainerName,
    roots: &Roots,
) -> Vec<KnownAttachment> {
    let path = name.netns_text();
    let is_in = |netns: &str, identity: Option<NetnsId>| {
        identity.is_some() && !netns.is_empty() && presence::identity(netns) == identity
    };
    let identity = presence::identity(&path);
    let is_named = |known: &KnownAttachment| {
        let docker = dockers::endpoint(known, roots);
        let netns = netns(known, docker.as_ref());
        known.key.container_id.as_str() == name.text
            || known.key.container_id == name.derived_id()
            || docker.is_some() && dockers::is_meant(known, &name.text)
            || netns == path
            || is_in(&netns, identity)
    };
    let mut of_container: Vec<KnownAttachment> =
        known.iter().filter(|known| is_named(known)).cloned().collect();
    if of_container.is_empty() && name.kind == Kind::Name && identity.is_none() {
        let named = RuntimeNames::read().namespace(&name.text);
        of_container = known;
        of_container
            .retain(|known| is_in(&netns(known, dockers::endpoint(known, roots).as_ref()), named));
    }
    of_container
}
