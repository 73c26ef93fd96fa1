//! What is written down about one attachment, and how bad files are told.

use std::fmt;
use std::path::PathBuf;

use cni::AttachmentKey;
use kernel::living::{self, Noted};
use kernel::netns::{Netns, NetnsId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the format that is written.
const FORMAT: u32 = 1;

/// A network namespace as the kernel tells it apart from others while it lives: its file's device and inode
/// numbers (`man 2 stat` on nsfs). After its end the same pair may be given to another.
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

/// What a plugin wants to know later about an attachment it made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    format: u32,
    /// The boot in which it was written; after another, the kernel's objects are gone.
    #[serde(rename = "bootId")]
    pub boot_id: String,
    /// The attachment that owns what is described.
    pub attachment: AttachmentKey,
    /// The path of the container's namespace, when there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<PathBuf>,
    /// The identity of the container's namespace, when known.
    #[serde(rename = "netnsId", default, skip_serializing_if = "Option::is_none")]
    pub netns_id: Option<NetnsIdentity>,
    /// Its cookie, which no other namespace of the boot has, where the kernel tells it.
    #[serde(rename = "netnsCookie", default, skip_serializing_if = "Option::is_none")]
    pub netns_cookie: Option<u64>,
    /// The PID namespace of who wrote it: whoever counts processes there sees those that may be in the container's.
    #[serde(rename = "pidNs", default, skip_serializing_if = "Option::is_none")]
    pub pid_ns: Option<u64>,
    /// The plugin that wrote it.
    pub plugin: String,
    /// The plugin's own.
    #[serde(default)]
    pub data: Value,
}

impl Record {
    /// Makes a record without a namespace.
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
            pid_ns: None,
            plugin: plugin.into(),
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

    /// Adds the container's namespace, which is there, by all that tells it from others.
    #[must_use]
    pub fn in_netns(mut self, path: impl Into<PathBuf>, netns: &Netns) -> Self {
        self.netns = Some(path.into());
        self.netns_id = Some(netns.id().into());
        self.netns_cookie = netns.cookie();
        self.pid_ns = living::own_pid_ns();
        self
    }

    /// Does what [`Record::in_netns`] does without entering the namespace for its cookie, which another plugin of the attachment has
    /// noted.
    #[must_use]
    pub fn in_netns_of_another(self, path: impl Into<PathBuf>, netns: &Netns) -> Self {
        let pid_ns = living::own_pid_ns();
        let cookie = netns.cookie_if_asked();
        Record { netns_cookie: cookie, pid_ns, ..self.with_netns(path, Some(netns.id().into())) }
    }

    /// Says what tells the container's namespace; `None` when that was not written down.
    #[must_use]
    pub fn noted(&self) -> Option<Noted> {
        let path = self.netns.clone().unwrap_or_default();
        let id = self.netns_id.map(NetnsId::from);
        let is_noted = id.is_some() || !path.as_os_str().is_empty();
        let (cookie, pid_ns) = (self.netns_cookie, self.pid_ns);
        is_noted.then_some(Noted { path, id, cookie, pid_ns })
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record has string keys only")
    }

    /// Reads a record, or says why it is none.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        if bytes.is_empty() {
            return Err("the file is empty".to_owned());
        }
        let head: Format = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if head.format != FORMAT {
            return Err(format!("format {} is not known, only {FORMAT} is", head.format));
        }
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }
}

/// Says what records of one attachment tell of its container's namespace. Plugins may have noted different ones, when an ADD came
/// before the DEL of its predecessor. One that did not enter the namespace left its cookie to the others.
pub fn noted_in<'r>(records: impl IntoIterator<Item = &'r Record>) -> Vec<Noted> {
    let mut all: Vec<Noted> = records.into_iter().filter_map(Record::noted).collect();
    for at in 0..all.len() {
        if all[at].cookie.is_none() {
            let mut same = all.iter().filter(|noted| noted.id == all[at].id);
            all[at].cookie = same.find_map(|noted| noted.cookie);
        }
    }
    all.dedup();
    all
}

/// A file that could not be made sense of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl Damaged {
    pub(crate) fn new(path: impl Into<PathBuf>, reason: impl fmt::Display) -> Self {
        Damaged { path: path.into(), reason: reason.to_string() }
    }

    /// Tells an error and its sources as the reason.
    pub(crate) fn of(path: impl Into<PathBuf>, error: &dyn std::error::Error) -> Self {
        let mut reason = error.to_string();
        let mut next = error.source();
        while let Some(source) = next {
            reason = format!("{reason}: {source}");
            next = source.source();
        }
        Damaged { path: path.into(), reason }
    }
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "passed over {:?}: {}", self.path, self.reason)
    }
}

/// What could be read, and what could not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read<T> {
    /// What could be read.
    pub found: T,
    /// The files that were passed over. Someone should be told; nothing has to stop.
    pub damaged: Vec<Damaged>,
}

impl<T> Read<T> {
    pub(crate) fn whole(found: T) -> Self {
        Read { found, damaged: Vec::new() }
    }

    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Read<U> {
        Read { found: change(self.found), damaged: self.damaged }
    }
}
