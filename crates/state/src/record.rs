//! The record of one attachment, and how damaged files are reported.

use std::fmt;
use std::path::PathBuf;

use cni::AttachmentKey;
use kernel::living::{self, NetnsNote};
use kernel::netns::{Netns, NetnsId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::roots::is_passage;

/// The format version that is written.
const FORMAT: u32 = 1;

/// A network namespace as the kernel distinguishes it from others while it lives: its file's device
/// and inode numbers (`man 2 stat` on nsfs). After it is gone, another namespace may get the same
/// pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NetnsIdentity {
    /// The device of nsfs.
    pub dev: u64,
    /// The inode.
    pub ino: u64,
}

impl From<NetnsId> for NetnsIdentity {
    fn from(id: NetnsId) -> Self {
        NetnsIdentity { dev: id.dev, ino: id.ino }
    }
}

impl From<NetnsIdentity> for NetnsId {
    fn from(id: NetnsIdentity) -> Self {
        NetnsId { dev: id.dev, ino: id.ino }
    }
}

/// What a plugin stores about an attachment it made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    format: u32,
    /// The boot in which it was written; after a reboot, the kernel's objects are gone.
    #[serde(rename = "bootId")]
    pub boot_id: String,
    /// The attachment that owns what the record describes.
    pub attachment: AttachmentKey,
    /// The path of the container's namespace, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<PathBuf>,
    /// The identity of the container's namespace, if known.
    #[serde(rename = "netnsId", default, skip_serializing_if = "Option::is_none")]
    pub netns_id: Option<NetnsIdentity>,
    /// The namespace's cookie, unique within a boot, if the kernel reports it.
    #[serde(rename = "netnsCookie", default, skip_serializing_if = "Option::is_none")]
    pub netns_cookie: Option<u64>,
    /// What every process in the namespace sees, and none in another ([`Netns::sight`]).
    #[serde(rename = "netnsSight", default, skip_serializing_if = "Option::is_none")]
    pub netns_sight: Option<u64>,
    /// The writer's PID namespace: a process that counts processes there sees those that may be in
    /// the container's.
    #[serde(rename = "pidNs", default, skip_serializing_if = "Option::is_none")]
    pub pid_ns: Option<u64>,
    /// The plugin that wrote it.
    pub plugin: String,
    /// The `ipam` object of its configuration: who gave the addresses releases them, whatever the
    /// network's configuration is by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam: Option<Value>,
    /// The plugin's own.
    #[serde(default)]
    pub data: Value,
}

impl Record {
    /// Creates a record without a namespace.
    pub fn new(
        attachment: AttachmentKey,
        plugin: impl Into<String>,
        boot_id: impl Into<String>,
        data: Value,
    ) -> Self {
        Record {
            format: FORMAT,
            boot_id: boot_id.into(),
            attachment,
            netns: None,
            netns_id: None,
            netns_cookie: None,
            netns_sight: None,
            pid_ns: None,
            plugin: plugin.into(),
            ipam: None,
            data,
        }
    }

    /// Adds the container's namespace.
    #[must_use]
    pub fn with_netns(mut self, path: impl Into<PathBuf>, id: Option<NetnsIdentity>) -> Self {
        self.netns = Some(path.into());
        self.netns_id = id;
        self
    }

    /// Adds the container's namespace, which must exist, with everything that distinguishes it from
    /// others.
    #[must_use]
    pub fn in_netns(mut self, path: impl Into<PathBuf>, netns: &Netns) -> Self {
        self.netns = Some(path.into());
        self.netns_id = Some(netns.id().into());
        self.netns_cookie = netns.cookie();
        self.netns_sight = netns.sight();
        self.pid_ns = living::own_pid_ns();
        self
    }

    /// Does what [`Record::in_netns`] does without entering the namespace for its cookie, which
    /// another plugin of the attachment has recorded.
    #[must_use]
    pub fn in_netns_of_another(self, path: impl Into<PathBuf>, netns: &Netns) -> Self {
        let pid_ns = living::own_pid_ns();
        let (netns_cookie, netns_sight) = (netns.cookie_if_asked(), netns.sight_if_asked());
        Record {
            netns_cookie,
            netns_sight,
            pid_ns,
            ..self.with_netns(path, Some(netns.id().into()))
        }
    }

    /// Returns what identifies the container's namespace; `None` when that was not recorded.
    #[must_use]
    pub fn noted(&self) -> Option<NetnsNote> {
        let path = self.netns.clone().unwrap_or_default();
        let id = self.netns_id.map(NetnsId::from);
        let is_noted = id.is_some() || !path.as_os_str().is_empty();
        let (cookie, sight, pid_ns) = (self.netns_cookie, self.netns_sight, self.pid_ns);
        let passage = is_passage(&path);
        is_noted.then_some(NetnsNote { path, id, cookie, pid_ns, sight, passage })
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record has string keys only")
    }

    /// Reads a record, or returns why it is not one.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        if bytes.is_empty() {
            return Err("the file is empty".to_owned());
        }
        let words = |error: serde_json::Error| cni::json::plain(&error.to_string());
        let head: Format = serde_json::from_slice(bytes).map_err(words)?;
        if head.format != FORMAT {
            return Err(format!("format {} is not known, only {FORMAT} is", head.format));
        }
        serde_json::from_slice(bytes).map_err(words)
    }
}

/// Returns what the records of one attachment say about its container's namespace. Plugins may have
/// recorded different ones if an ADD came before the DEL of its predecessor. A plugin that did not
/// enter the namespace left its cookie to the others.
pub fn noted_in<'r>(records: impl IntoIterator<Item = &'r Record>) -> Vec<NetnsNote> {
    let mut all: Vec<NetnsNote> = records.into_iter().filter_map(Record::noted).collect();
    for at in 0..all.len() {
        if all[at].cookie.is_none() {
            let told = |one: &&NetnsNote| one.id == all[at].id && one.cookie.is_some();
            if let Some((cookie, sight)) = all.iter().find(told).map(|one| (one.cookie, one.sight))
            {
                (all[at].cookie, all[at].sight) = (cookie, sight);
            }
        }
    }
    all.dedup();
    all
}

/// A file that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedFile {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl DamagedFile {
    pub(crate) fn new(path: impl Into<PathBuf>, reason: impl fmt::Display) -> Self {
        DamagedFile { path: path.into(), reason: reason.to_string() }
    }

    /// Describes an error and its sources as the reason.
    pub(crate) fn of(path: impl Into<PathBuf>, error: &dyn std::error::Error) -> Self {
        let mut reason = cni::json::plain(&error.to_string());
        let mut next = error.source();
        while let Some(source) = next {
            reason = format!("{reason}: {}", cni::json::plain(&source.to_string()));
            next = source.source();
        }
        DamagedFile { path: path.into(), reason }
    }
}

impl fmt::Display for DamagedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ignored {:?}: {}", self.path, self.reason)
    }
}

/// What could be read, and what could not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOutcome<T> {
    /// What could be read.
    pub found: T,
    /// The files that were skipped. They should be reported, but nothing has to stop.
    pub damaged: Vec<DamagedFile>,
}

impl<T> ReadOutcome<T> {
    pub(crate) fn whole(found: T) -> Self {
        ReadOutcome { found, damaged: Vec::new() }
    }

    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> ReadOutcome<U> {
        ReadOutcome { found: change(self.found), damaged: self.damaged }
    }
}
