//! What a node keeps on its disk: the blocks that it owns, and the owner of each address.
//!
//! | path, below a folder that is passed in | contents |
//! |---|---|
//! | `node.json` | the node's identity and epoch, and until when its lease holds |
//! | `blocks/<space>~<address>-<length>` | a block that this node owns, or is returning |
//! | `held/<space>~<address>~<owner>` | an address that is in use |
//! | `lock` | held by the process that writes here |
//!
//! The *names* contain everything that must not be lost. An address whose file is truncated or
//! garbled stays taken, and its owner can release it: the name contains the owner's
//! [hash](node_api::ipam::Owner::hash). The contents hold the rest.
//!
//! Addresses are not flushed to the disk: a power cut ends the containers too. Blocks are.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use node_api::ipam::Owner;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use state::{Durability, FileError, file_name_of, object_of};

use crate::record::BlockId;
use crate::store::Moment;

/// The version of these files.
const VERSION: u32 = 1;
const MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// The contents of `node.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeFile {
    pub(crate) version: u32,
    pub(crate) identity: String,
    pub(crate) epoch: u64,
    /// The boot in which `until` is valid.
    pub(crate) boot: String,
    /// The end of the lease, on the clock that counts from that boot.
    pub(crate) until: Duration,
    /// The process that wrote the node's record last, or was about to, and the one before it.
    pub(crate) run: String,
    pub(crate) run_before: String,
    /// The store's position.
    pub(crate) moment: Option<Moment>,
}

/// The contents of a block's file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BlockFile {
    pub(crate) version: u32,
    pub(crate) epoch: u64,
    /// It is being returned: its addresses are no longer given.
    pub(crate) returning: bool,
    /// The addresses that pods keep.
    pub(crate) kept: BTreeMap<IpAddr, String>,
}

/// The contents of an address's file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HeldFile {
    pub(crate) version: u32,
    pub(crate) boot: String,
    pub(crate) network: String,
    pub(crate) owner: Owner,
    /// The block was lost: the address may have another owner as well.
    pub(crate) lost: bool,
    /// The name of the record by which the owner's pod keeps the address.
    pub(crate) sticky: Option<String>,
}

/// The parts of the name of an address's file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HeldName {
    pub(crate) space: String,
    pub(crate) address: IpAddr,
    pub(crate) hash: String,
}

/// Called before each write.
pub(crate) type Hook = Box<dyn Fn(&Path) + Send + Sync>;

/// The folder.
pub(crate) struct Files {
    dir: PathBuf,
    /// Called before each write: for tests that end there.
    hook: Option<Hook>,
    _lock: File,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// Everything that was found.
#[derive(Debug, Default)]
pub(crate) struct LocalFiles {
    pub(crate) node: Option<NodeFile>,
    pub(crate) blocks: Vec<(BlockId, BlockFile)>,
    pub(crate) held: Vec<(HeldName, HeldFile)>,
    /// What could not be read, in sentences.
    pub(crate) notices: Vec<String>,
}

impl Files {
    /// Opens the folder, and creates it if it is missing.
    ///
    /// # Errors
    /// [`FileError`], also when another process writes there.
    pub(crate) fn open(dir: &Path, hook: Option<Hook>) -> Result<Self, FileError> {
        for folder in ["blocks", "held"] {
            let folder = dir.join(folder);
            state::create_directory(&folder, FOLDER_MODE)?;
            state::remove_abandoned(&folder);
        }
        state::remove_abandoned(dir);
        let path = dir.join("lock");
        let failed = |source| FileError::Create { path: path.clone(), source };
        let options = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = options.map_err(failed)?;
        lock.try_lock().map_err(|error| {
            let text = format!("another netwrightd ipam uses this folder: {error}");
            failed(std::io::Error::new(std::io::ErrorKind::WouldBlock, text))
        })?;
        Ok(Files { dir: dir.to_owned(), hook, _lock: lock })
    }

    /// Reads everything.
    ///
    /// # Errors
    /// [`FileError`] when a folder cannot be read: then no address may be given.
    pub(crate) fn read(&self) -> Result<LocalFiles, FileError> {
        let mut found = LocalFiles::default();
        let path = self.dir.join("node.json");
        found.node = content(&path, &mut found.notices);
        for name in names(&self.dir.join("blocks"))? {
            let Some(id) = block_of(&name) else {
                found
                    .notices
                    .push(format!("ignored blocks/{name}, which is not the name of a block"));
                continue;
            };
            let path = self.dir.join("blocks").join(&name);
            // A file without content is looked up in the store.
            if let Some(file) = content(&path, &mut found.notices) {
                found.blocks.push((id, file));
            }
        }
        for name in names(&self.dir.join("held"))? {
            let Some(held) = held_of(&name) else {
                found
                    .notices
                    .push(format!("ignored held/{name}, which is not the name of an address"));
                continue;
            };
            let path = self.dir.join("held").join(&name);
            found.held.push((held, content(&path, &mut found.notices).unwrap_or_default()));
        }
        Ok(found)
    }

    pub(crate) fn write_node(&self, file: &NodeFile) -> Result<(), FileError> {
        let file = NodeFile { version: VERSION, ..file.clone() };
        self.write(&self.dir.join("node.json"), &file, Durability::Synced)
    }

    pub(crate) fn write_block(&self, id: &BlockId, file: &BlockFile) -> Result<(), FileError> {
        let file = BlockFile { version: VERSION, ..file.clone() };
        self.write(&self.block_path(id), &file, Durability::Synced)
    }

    pub(crate) fn remove_block(&self, id: &BlockId) -> Result<(), FileError> {
        self.remove(&self.block_path(id))
    }

    pub(crate) fn write_held(&self, name: &HeldName, file: &HeldFile) -> Result<(), FileError> {
        let file = HeldFile { version: VERSION, ..file.clone() };
        self.write(&self.held_path(name), &file, Durability::Volatile)
    }

    pub(crate) fn remove_held(&self, name: &HeldName) -> Result<(), FileError> {
        self.remove(&self.held_path(name))
    }

    fn block_path(&self, id: &BlockId) -> PathBuf {
        let (address, length) = (id.block.addr(), id.block.prefix_len());
        self.dir.join("blocks").join(format!("{}~{address}-{length}", file_name_of(&id.space)))
    }

    fn held_path(&self, name: &HeldName) -> PathBuf {
        let HeldName { space, address, hash } = name;
        self.dir.join("held").join(format!("{}~{address}~{hash}", file_name_of(space)))
    }

    fn write<T: Serialize>(
        &self,
        path: &Path,
        file: &T,
        durability: Durability,
    ) -> Result<(), FileError> {
        if let Some(hook) = &self.hook {
            hook(path);
        }
        let text = serde_json::to_vec(file).expect("our files have text for keys");
        state::write_atomic(path, &text, MODE, durability)
    }

    fn remove(&self, path: &Path) -> Result<(), FileError> {
        if let Some(hook) = &self.hook {
            hook(path);
        }
        state::remove_file(path).map(|_| ())
    }
}

fn content<T: DeserializeOwned>(path: &Path, notices: &mut Vec<String>) -> Option<T> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Head {
        version: u32,
    }
    let bytes = match state::read_optional(path) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return None,
        Err(error) => {
            notices.push(format!("cannot {error}"));
            return None;
        }
    };
    let of_version = serde_json::from_slice(&bytes).is_ok_and(|head: Head| head.version == VERSION);
    let read = if of_version { serde_json::from_slice(&bytes).ok() } else { None };
    if read.is_none() {
        notices.push(format!("{path:?} is garbled: its name counts, its content is lost"));
    }
    read
}

fn names(folder: &Path) -> Result<Vec<String>, FileError> {
    let failed = |source| FileError::List { path: folder.to_owned(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn block_of(name: &str) -> Option<BlockId> {
    let (space, block) = name.rsplit_once('~')?;
    let (address, length) = block.rsplit_once('-')?;
    let block = IpNet::new(address.parse().ok()?, length.parse().ok()?).ok()?;
    (block.trunc() == block).then_some(())?;
    Some(BlockId { space: object_of(space)?, block })
}

fn held_of(name: &str) -> Option<HeldName> {
    let (rest, hash) = name.rsplit_once('~')?;
    let (space, address) = rest.rsplit_once('~')?;
    let space = object_of(space)?;
    Some(HeldName { space, address: address.parse().ok()?, hash: hash.to_owned() })
}
