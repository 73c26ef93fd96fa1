//! Who is attached to what: the cache of results and our own records, seen as one.

use cni_runtime::Everything;
use serde::Serialize;

use super::ports::PortMapping;
use super::presence::{self, Presence};
use super::session::Session;
use crate::failure::Failure;

pub(crate) use cni_runtime::Known;

/// Reads the cache and our records.
pub(crate) fn all(session: &Session) -> Result<Everything, Failure> {
    session.runtime.everything(&session.roots).map_err(|error| Failure::from(error.to_cni()))
}

/// Returns the container's addresses.
pub(crate) fn addresses(known: &Known) -> Vec<String> {
    let Some(result) = known.result() else { return Vec::new() };
    result.container_ips(known.key.ifname.as_str()).map(|ip| ip.address.to_string()).collect()
}

/// Returns the published ports that the runtime asked for.
pub(crate) fn ports(known: &Known) -> Vec<PortMapping> {
    let cached = known.cached.as_ref();
    let raw = cached.and_then(|cached| cached.attachment.capability_args.get("portMappings"));
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
}

/// One row of a list of attachments.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) network: String,
    #[serde(rename = "containerID")]
    pub(crate) container_id: String,
    pub(crate) ifname: String,
    pub(crate) netns: String,
    pub(crate) state: Presence,
    pub(crate) addresses: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<String>,
}

impl From<&Known> for Row {
    fn from(known: &Known) -> Self {
        Row {
            network: known.key.network.to_string(),
            container_id: known.key.container_id.to_string(),
            ifname: known.key.ifname.to_string(),
            netns: known.netns(),
            state: known.presence,
            addresses: addresses(known),
            ports: ports(known).iter().map(ToString::to_string).collect(),
        }
    }
}

/// Keeps the attachments of one container, named by its ID or by its namespace however that is called.
pub(crate) fn of_container(
    known: Vec<Known>,
    name: &super::container::ContainerName,
) -> Vec<Known> {
    let path = name.netns_text();
    let identity = presence::identity(&path);
    known
        .into_iter()
        .filter(|known| {
            let netns = known.netns();
            known.key.container_id.as_str() == name.text
                || known.key.container_id == name.derived_id()
                || netns == path
                || (identity.is_some()
                    && !netns.is_empty()
                    && presence::identity(&netns) == identity)
        })
        .collect()
}
