//! Leases on disk, one file each, so that they survive the daemon.

use std::path::{Path, PathBuf};

use cni::AttachmentKey;
use dhcp::{v4, v6};
use node_api::dhcp::Client;
use serde::{Deserialize, Serialize};
use state::{Durability, FileError, NetnsIdentity};

use super::release_path::ReleasePath;

/// The version of the format that is written.
const FORMAT: u32 = 1;
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// A lease that a container has, and everything needed to renew and to release it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeaseRecord {
    format: u32,
    /// In which boot it was granted: after another boot the container is gone.
    pub(crate) boot_id: String,
    pub(crate) attachment: AttachmentKey,
    /// Where the interface is, as the host sees it.
    pub(crate) netns: PathBuf,
    pub(crate) netns_id: NetnsIdentity,
    /// The namespace's cookie, where the kernel reports it: once the namespace is gone another may
    /// get its inode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) netns_cookie: Option<u64>,
    /// The PID namespace of the plugin that asked, unless it is the machine's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pid_ns: Option<u64>,
    /// The interface's index in that namespace.
    pub(crate) ifindex: u32,
    pub(crate) mac: dhcp::MacAddr,
    /// How servers are reached once the interface is gone.
    pub(crate) way: ReleasePath,
    pub(crate) client: Client,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) v4: Option<v4::SavedLease>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) v6: Option<v6::SavedLease>,
}

/// What identifies one attachment's interface.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) netns: PathBuf,
    pub(crate) netns_id: NetnsIdentity,
    pub(crate) netns_cookie: Option<u64>,
    pub(crate) pid_ns: Option<u64>,
    pub(crate) ifindex: u32,
    pub(crate) mac: dhcp::MacAddr,
    pub(crate) way: ReleasePath,
}

impl LeaseRecord {
    pub(crate) fn new(
        boot_id: String,
        attachment: AttachmentKey,
        place: &Place,
        client: Client,
    ) -> Self {
        LeaseRecord {
            format: FORMAT,
            boot_id,
            attachment,
            netns: place.netns.clone(),
            netns_id: place.netns_id,
            netns_cookie: place.netns_cookie,
            pid_ns: place.pid_ns,
            ifindex: place.ifindex,
            mac: place.mac,
            way: place.way.clone(),
            client,
            v4: None,
            v6: None,
        }
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let words = |error: serde_json::Error| cni::json::plain(&error.to_string());
        let head: Head = serde_json::from_slice(bytes).map_err(words)?;
        if head.format != FORMAT {
            return Err(format!("format {} is not known, only {FORMAT} is", head.format));
        }
        serde_json::from_slice(bytes).map_err(words)
    }
}

/// The folder of leases.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    folder: PathBuf,
}

impl Store {
    /// Opens the folder `leases` below `state`, making it if it is missing.
    pub(crate) fn open(state: &Path) -> Result<Self, FileError> {
        let folder = state.join("leases");
        state::create_directory(&folder, FOLDER_MODE)?;
        Ok(Store { folder })
    }

    /// Writes a lease; the file survives a power cut.
    pub(crate) fn put(&self, saved: &LeaseRecord) -> Result<(), FileError> {
        let bytes = serde_json::to_vec(saved).expect("a lease has string keys only");
        // Another program may have removed the folder while it held no lease.
        state::create_directory(&self.folder, FOLDER_MODE)?;
        state::write_atomic(&self.path(&saved.attachment), &bytes, FILE_MODE, Durability::Synced)
    }

    pub(crate) fn remove(&self, key: &AttachmentKey) -> Result<(), FileError> {
        state::remove_file(&self.path(key)).map(drop)
    }

    /// Reads every lease. Skips files that are not leases and returns their names, and the folder's
    /// if it cannot be listed.
    pub(crate) fn all(&self) -> (Vec<LeaseRecord>, Vec<(PathBuf, String)>) {
        let (mut found, mut damaged) = (Vec::new(), Vec::new());
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) => {
                damaged.push((self.folder.clone(), error.to_string()));
                return (found, damaged);
            }
        };
        for entry in entries {
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(error) => {
                    damaged.push((self.folder.clone(), error.to_string()));
                    continue;
                }
            };
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
                // What a killed daemon was writing.
                let _ = state::remove_file(&path);
                continue;
            }
            let bytes = match state::read_optional(&path) {
                Ok(bytes) => bytes.unwrap_or_default(),
                Err(error) => {
                    damaged.push((path, error.to_string()));
                    continue;
                }
            };
            match LeaseRecord::parse(&bytes) {
                Ok(saved) if self.path(&saved.attachment) == path => found.push(saved),
                Ok(saved) => {
                    damaged.push((path, format!("its content is of {}", saved.attachment)));
                }
                Err(reason) => damaged.push((path, reason)),
            }
        }
        found.sort_by(|a, b| a.attachment.cmp(&b.attachment));
        (found, damaged)
    }

    fn path(&self, key: &AttachmentKey) -> PathBuf {
        self.folder.join(format!("{}.json", key.hash()))
    }
}
