//! Who is attached to what: the cache of results and our own records, seen as one.

use std::collections::BTreeMap;

use cni::{AddResult, AttachmentKey};
use cni_runtime::CachedAttachment;
use serde::Serialize;
use state::{Index, NetnsIdentity, Record};

use super::ports::PortMapping;
use super::presence::{self, Presence};
use super::session::Session;
use crate::failure::Failure;

/// An attachment, with all that is known of it.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) key: AttachmentKey,
    /// What the runtime wrote down; `None` when a runtime made it that keeps its cache elsewhere.
    pub(crate) cached: Option<CachedAttachment>,
    /// What our plugins wrote down; empty when others made it.
    pub(crate) records: Vec<Record>,
    pub(crate) presence: Presence,
}

/// Everything known, and what could not be read.
#[derive(Debug, Default)]
pub(crate) struct All {
    pub(crate) known: Vec<Known>,
    /// Files that were passed over, a line each.
    pub(crate) notices: Vec<String>,
}

/// Reads the cache and our records.
pub(crate) fn all(session: &Session) -> Result<All, Failure> {
    let listing =
        session.runtime.cached_attachments(None).map_err(|error| Failure::from(error.to_cni()))?;
    let mut notices: Vec<String> = listing
        .passed_over
        .iter()
        .map(|passed| format!("passed over {:?}: {}", passed.path, passed.reason))
        .collect();
    let records = Index::new(&session.roots).list();
    notices.extend(records.damaged.iter().map(ToString::to_string));
    let boot = state::boot_id().unwrap_or_default();

    let mut found: BTreeMap<AttachmentKey, (Option<CachedAttachment>, Vec<Record>)> =
        BTreeMap::new();
    for cached in listing.attachments {
        let key = cached.key();
        found.entry(key).or_default().0 = Some(cached);
    }
    for record in records.found {
        found.entry(record.attachment.clone()).or_default().1.push(record);
    }
    let known = found.into_iter().map(|(key, (cached, records))| {
        let presence = presence_of(cached.as_ref(), &records, &boot);
        Known { key, cached, records, presence }
    });
    Ok(All { known: known.collect(), notices })
}

fn presence_of(cached: Option<&CachedAttachment>, records: &[Record], boot: &str) -> Presence {
    let path = cached
        .map(|cached| cached.attachment.netns.clone())
        .filter(|netns| !netns.is_empty())
        .or_else(|| netns_of(records));
    let identity: Option<NetnsIdentity> =
        records.iter().filter(|record| record.boot_id == boot).find_map(|record| record.netns_id);
    presence::look(&path.unwrap_or_default(), identity)
}

fn netns_of(records: &[Record]) -> Option<String> {
    records.iter().find_map(|record| Some(record.netns.as_ref()?.to_string_lossy().into_owned()))
}

impl Known {
    /// Returns the path of the namespace; empty when nobody wrote it down.
    pub(crate) fn netns(&self) -> String {
        let cached = self.cached.as_ref().map(|cached| cached.attachment.netns.clone());
        cached
            .filter(|netns| !netns.is_empty())
            .or_else(|| netns_of(&self.records))
            .unwrap_or_default()
    }

    /// Returns what ADD returned, if that can be read.
    pub(crate) fn result(&self) -> Option<AddResult> {
        self.cached.as_ref().and_then(|cached| cached.result().ok().flatten())
    }

    /// Returns the container's addresses.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let Some(result) = self.result() else { return Vec::new() };
        result.container_ips(self.key.ifname.as_str()).map(|ip| ip.address.to_string()).collect()
    }

    /// Returns the published ports that the runtime asked for.
    pub(crate) fn ports(&self) -> Vec<PortMapping> {
        let cached = self.cached.as_ref();
        let raw = cached.and_then(|cached| cached.attachment.capability_args.get("portMappings"));
        raw.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
    }
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
            addresses: known.addresses(),
            ports: known.ports().iter().map(ToString::to_string).collect(),
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
