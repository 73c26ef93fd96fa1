//! Docker's containers on our networks, by the records of `netwrightd docker`: which endpoint each is, and where Docker has put
//! its interface.

use std::path::PathBuf;

use cni::text::one_line;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use state::Roots;

use super::attachments::Known;

/// Where the driver keeps what it knows of endpoints (docs/files.md, "Services of `netwrightd`").
const ENDPOINTS: &str = "docker/records/endpoints";
/// How many digits of an ID Docker shows.
const SHORT: usize = 12;
/// What stands before an endpoint's ID where a container's is expected.
const PREFIX: &str = "docker:";

/// What the driver's record of an endpoint tells.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Endpoint {
    network: String,
    /// The container's namespace, once Docker has told it.
    pub(crate) sandbox: Option<PathBuf>,
    /// As the capability `portMappings` has them.
    pub(crate) ports: Option<Box<RawValue>>,
}

/// An endpoint by what Docker shows: `docker network inspect NETWORK` says which container has it.
#[derive(Debug, Serialize)]
pub(crate) struct Shown {
    endpoint: String,
    network: String,
}

/// Reads the record of an attachment's endpoint; `None` when it is not of a container of Docker's. Of one whose record cannot be read
/// nothing is told.
pub(crate) fn endpoint(known: &Known, roots: &Roots) -> Option<Endpoint> {
    if !known.is_dockers(roots) {
        return None;
    }
    let path = roots.run.join(ENDPOINTS).join(format!("{}.json", known.key.container_id));
    let read = state::read_optional(&path).ok().flatten();
    Some(read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default())
}

impl Endpoint {
    /// Describes the endpoint of an attachment.
    pub(crate) fn shown(&self, known: &Known) -> Shown {
        let network = short(&self.network).to_owned();
        Shown { endpoint: short(known.key.container_id.as_str()).to_owned(), network }
    }
}

impl Shown {
    /// What stands in a list where other containers have their ID.
    pub(crate) fn name(&self) -> String {
        one_line(format_args!("{PREFIX}{}", self.endpoint))
    }
}

/// Says whether an endpoint is meant: by its ID as Docker shows it, or as a list does.
pub(crate) fn is_meant(known: &Known, text: &str) -> bool {
    text.strip_prefix(PREFIX).unwrap_or(text) == short(known.key.container_id.as_str())
}

/// As Docker shortens IDs.
fn short(id: &str) -> &str {
    id.get(..SHORT).unwrap_or(id)
}
