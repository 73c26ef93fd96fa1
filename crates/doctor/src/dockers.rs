//! Docker's containers on our networks, by the records of `netwrightd docker`: which endpoint each
//! is, and where Docker has put its interface.

use std::path::PathBuf;

use cni::text::one_line;
use cni_runtime::KnownAttachment;
use firewall::hostport::Forward;
use firewall::taken;
use plugins::chained::portmap;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use state::Roots;

/// The folder of the driver's endpoint records (docs/files.md, "Services of `netwrightd`").
const ENDPOINTS: &str = "docker/records/endpoints";
/// How many digits of an ID Docker shows.
const SHORT: usize = 12;
/// The prefix of an endpoint's ID where a container's ID is expected.
const PREFIX: &str = "docker:";

/// The parts of the driver's record of an endpoint that are read here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    network: String,
    /// The container's namespace, once Docker has named it.
    sandbox: Option<PathBuf>,
    /// In the form of the capability `portMappings`.
    ports: Option<Box<RawValue>>,
}

/// An endpoint by the IDs that Docker shows: `docker network inspect NETWORK` says which container
/// has it.
#[derive(Debug, Serialize)]
pub struct EndpointIds {
    endpoint: String,
    network: String,
}

/// Reads the record of an attachment's endpoint; `None` when it is not of a container of Docker's.
/// A record that cannot be read gives an endpoint without details.
#[must_use]
pub fn endpoint(known: &KnownAttachment, roots: &Roots) -> Option<Endpoint> {
    if !known.is_dockers(roots) {
        return None;
    }
    let path = roots.run.join(ENDPOINTS).join(format!("{}.json", known.key.container_id));
    let read = state::read_optional(&path).ok().flatten();
    Some(read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default())
}

/// Returns the path of the container's namespace; empty when it was not recorded.
#[must_use]
pub fn netns(known: &KnownAttachment, docker: Option<&Endpoint>) -> String {
    let sandbox = docker.and_then(|endpoint| endpoint.sandbox.as_ref());
    sandbox.map_or_else(|| known.netns(), |path| path.to_string_lossy().into_owned())
}

/// Returns the published ports: as our `portmap` recorded them; otherwise as they were requested
/// from plugins that publish ports, or as the network's list names them.
#[must_use]
pub fn ports(known: &KnownAttachment, docker: Option<&Endpoint>) -> Vec<Forward> {
    let recorded = known.records.iter().find_map(portmap::published);
    let forwards = recorded.or_else(|| {
        let dockers = docker.and_then(|endpoint| endpoint.ports.as_deref());
        dockers.map(|raw| taken::forwards(raw.get())).filter(|ports| !ports.is_empty())
    });
    forwards.unwrap_or_else(|| {
        let Some(cached) = &known.cached else { return Vec::new() };
        let asked = cached.attachment.capability_args.get(taken::PORT_MAPPINGS);
        let list = cached.list().ok();
        list.map(|list| taken::of_list(&list, asked.map(|raw| raw.get()))).unwrap_or_default()
    })
}

impl Endpoint {
    /// Describes the endpoint of an attachment.
    #[must_use]
    pub fn shown(&self, known: &KnownAttachment) -> EndpointIds {
        let network = short(&self.network).to_owned();
        EndpointIds { endpoint: short(known.key.container_id.as_str()).to_owned(), network }
    }
}

impl EndpointIds {
    /// Returns what a list shows where other containers have their ID.
    #[must_use]
    pub fn name(&self) -> String {
        one_line(format_args!("{PREFIX}{}", self.endpoint))
    }
}

/// Says whether the text means this endpoint: by its ID as Docker shows it, or as a list does.
#[must_use]
pub fn is_meant(known: &KnownAttachment, text: &str) -> bool {
    text.strip_prefix(PREFIX).unwrap_or(text) == short(known.key.container_id.as_str())
}

/// Shortens an ID as Docker does.
fn short(id: &str) -> &str {
    id.get(..SHORT).unwrap_or(id)
}
