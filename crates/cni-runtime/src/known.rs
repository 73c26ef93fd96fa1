//! Every attachment on this node that anybody wrote down: the cache and our plugins' records, seen as one.

use std::collections::BTreeMap;
use std::path::Path;

use cni::{AddResult, AttachmentKey};
use kernel::netns::{Netns, NetnsError};
use serde::Serialize;
use state::{Index, NetnsIdentity, Record, Roots};

use crate::cache::{CacheError, CachedAttachment};
use crate::{Attachment, DelError, Runtime};

/// What is known of a container's namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Presence {
    /// It is there.
    Alive,
    /// Its path leads nowhere, to something else, or to another namespace than the one attached.
    Gone,
    /// Nobody wrote down where it was, or it cannot be examined.
    Unknown,
}

impl Presence {
    /// Returns the word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Presence::Alive => "alive",
            Presence::Gone => "gone",
            Presence::Unknown => "unknown",
        }
    }

    /// Looks for the namespace of an attachment.
    ///
    /// `attached` is the identity it had, when that was recorded in this boot: process IDs come back, and then
    /// `/proc/PID/ns/net` is somebody else's.
    #[must_use]
    pub fn look(netns: &str, attached: Option<NetnsIdentity>) -> Self {
        if netns.is_empty() {
            return Presence::Unknown;
        }
        match Netns::open(Path::new(netns)) {
            Ok(found)
                if attached
                    .is_some_and(|was| (was.dev, was.ino) != (found.id().dev, found.id().ino)) =>
            {
                Presence::Gone
            }
            // A container has a namespace of its own; a path that leads to ours was given to another process.
            Ok(found) if Netns::current_id().is_ok_and(|own| own == found.id()) => Presence::Gone,
            Ok(_) => Presence::Alive,
            Err(error) if error.is_missing() => Presence::Gone,
            Err(NetnsError::NotANamespace { .. }) => Presence::Gone,
            Err(_) => Presence::Unknown,
        }
    }
}

/// An attachment, with all that is known of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Known {
    /// The attachment.
    pub key: AttachmentKey,
    /// What the runtime wrote down; `None` when a runtime made it that keeps its cache elsewhere.
    pub cached: Option<CachedAttachment>,
    /// What our plugins wrote down; empty when others made it.
    pub records: Vec<Record>,
    /// Whether the container is still there.
    pub presence: Presence,
}

/// Every attachment, and what could not be read.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Everything {
    /// The attachments, sorted by their keys.
    pub known: Vec<Known>,
    /// Files that were passed over, a line each.
    pub notices: Vec<String>,
}

impl Runtime<'_> {
    /// Reads the cache and the records below `roots`.
    ///
    /// # Errors
    /// [`CacheError::File`] when the cache's folder cannot be read.
    pub fn everything(&self, roots: &Roots) -> Result<Everything, CacheError> {
        let listing = self.cached_attachments(None)?;
        let mut notices: Vec<String> = listing
            .passed_over
            .iter()
            .map(|passed| format!("passed over {:?}: {}", passed.path, passed.reason))
            .collect();
        let records = Index::new(roots).list();
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
        Ok(Everything { known: known.collect(), notices })
    }

    /// Detaches with the configuration of the time when the attachment was made; `None` where nobody wrote that down: the
    /// present one must do then ([`Known::description`]).
    pub fn del_known(
        &self,
        known: &Known,
        deadline: Option<std::time::Instant>,
    ) -> Option<Result<(), DelError>> {
        let mut cached = known.cached.clone()?;
        if known.presence == Presence::Gone {
            cached.attachment.netns.clear();
        }
        match self.del_cached(&cached, deadline) {
            Err(DelError::NoConfig { .. }) => None,
            deleted => Some(deleted.map(drop)),
        }
    }
}

fn presence_of(cached: Option<&CachedAttachment>, records: &[Record], boot: &str) -> Presence {
    let path = cached
        .map(|cached| cached.attachment.netns.clone())
        .filter(|netns| !netns.is_empty())
        .or_else(|| netns_of(records));
    let identity: Option<NetnsIdentity> =
        records.iter().filter(|record| record.boot_id == boot).find_map(|record| record.netns_id);
    Presence::look(&path.unwrap_or_default(), identity)
}

fn netns_of(records: &[Record]) -> Option<String> {
    records.iter().find_map(|record| Some(record.netns.as_ref()?.to_string_lossy().into_owned()))
}

impl Known {
    /// Returns the path of the namespace; empty when nobody wrote it down.
    #[must_use]
    pub fn netns(&self) -> String {
        let cached = self.cached.as_ref().map(|cached| cached.attachment.netns.clone());
        cached
            .filter(|netns| !netns.is_empty())
            .or_else(|| netns_of(&self.records))
            .unwrap_or_default()
    }

    /// Returns what ADD returned, if that can be read.
    #[must_use]
    pub fn result(&self) -> Option<AddResult> {
        self.cached.as_ref().and_then(|cached| cached.result().ok().flatten())
    }

    /// Describes the attachment for DEL; the namespace is left out when it is gone.
    #[must_use]
    pub fn description(&self) -> Attachment {
        let netns = if self.presence == Presence::Gone { String::new() } else { self.netns() };
        Attachment::new(self.key.container_id.clone(), self.key.ifname.clone(), netns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_whether_the_container_is_there() {
        assert_eq!(Presence::look("", None), Presence::Unknown);
        assert_eq!(Presence::look("/nonexistent/netns", None), Presence::Gone);
        assert_eq!(Presence::look("/etc/hostname", None), Presence::Gone);
        assert_eq!(Presence::look("/proc/self/ns/net", None), Presence::Gone);
    }
}
