//! Lists the attachments: the cache of results and our own records, merged.

use std::collections::BTreeSet;
use std::path::Path;

use cni_runtime::{Cache, CachedAttachment, Inventory, Presence, Runtime};
use doctor::runtime_names::RuntimeNames;
use doctor::{dockers, presence};
use kernel::netns::NetnsId;
use serde::Serialize;
use state::Roots;

use super::container::Kind;
use super::ports::PortMapping;
use super::session::Session;
use crate::failure::Failure;

pub(crate) use cni_runtime::KnownAttachment;
pub(crate) use plugins::multi::whole::{wholes, with_parts};

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

/// Returns the container's addresses.
pub(crate) fn addresses(known: &KnownAttachment) -> Vec<String> {
    let Some(result) = known.result() else { return Vec::new() };
    result.container_ips(known.key.ifname.as_str()).map(|ip| ip.address.to_string()).collect()
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
        let ports = dockers::ports(known, docker.as_ref());
        Row {
            network: known.key.network.to_string(),
            container_id: known.key.container_id.to_string(),
            docker: docker.as_ref().map(|endpoint| endpoint.shown(known)),
            ifname: known.key.ifname.to_string(),
            netns: dockers::netns(known, docker.as_ref()),
            state: known.presence,
            addresses: addresses(known),
            ports: ports.into_iter().map(|one| PortMapping::from(one).to_string()).collect(),
        }
    }

    /// Returns the container's name in a list.
    pub(crate) fn container(&self) -> String {
        self.docker.as_ref().map_or_else(|| self.container_id.clone(), dockers::EndpointIds::name)
    }
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
        let netns = dockers::netns(known, docker.as_ref());
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
        of_container.retain(|known| {
            is_in(&dockers::netns(known, dockers::endpoint(known, roots).as_ref()), named)
        });
    }
    of_container
}
