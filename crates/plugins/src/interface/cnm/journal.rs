//! What is recorded before it is done: the networks and the attachments of this node.
//!
//! | below `/var/lib/netwright/cnm` | what |
//! |---|---|
//! | `<network>/network.json` | the network as the driver got it, and the pools |
//! | `<network>/<attachment>.json` | how far an attachment is, and its addresses |
//!
//! It survives a reboot, as the drivers' own memory does: what they hold for containers that are
//! gone must be released. A network stays as long as attachments are in its folder.
//!
//! The plugin records what it asks for, before it asks, and not what it has got: a driver outlives
//! the plugin, and if the plugin or the connection dies in a call, no program learns what the
//! driver has done. So one DEL gives back everything that a driver holds, even if the driver or the
//! plugin died in a call.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use cni::AttachmentKey;
use cni_plugin::codes;
use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use state::{Durability, FileError, Roots, create_directory, file_name_of, read_optional};

use super::config::WantedNetwork;
use super::driver::DriverRecord;
use crate::shared::failure::Failure;
use crate::shared::identity::Identity;

/// The version of the files.
const VERSION: u32 = 1;
/// The folder, below the one for state that survives a reboot.
const FOLDER: &str = "cnm";
const NETWORK: &str = "network.json";
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// How often the folder may disappear between its creation and that of a file in it. Each time
/// another attachment has left.
const FOLDER_RACES: usize = 8;
/// How long the hash in an attachment's file name is.
const HASH_DIGITS: usize = 32;
/// The length of the IDs that engines assign.
const ID_DIGITS: usize = 64;

/// Returns the network's ID for its driver: the same on every node, as cluster drivers need it.
pub(super) fn network_id(network: &str) -> String {
    cni::owner::sha512_hex(format!("cnm\0{network}"), ID_DIGITS)
}

/// Returns an attachment's ID for its driver.
pub(super) fn endpoint_id(key: &AttachmentKey) -> String {
    let text = format!("cnm\0{}\0{}\0{}", key.network, key.container_id, key.ifname);
    cni::owner::sha512_hex(&text, ID_DIGITS)
}

/// A pool of a network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Pool {
    /// Whether it was requested and the answer is not known yet.
    pub(super) asking: bool,
    pub(super) v6: bool,
    /// The IPAM driver's name for it; empty if no driver assigns addresses from it.
    pub(super) id: String,
    pub(super) address_space: String,
    /// The subnet.
    pub(super) subnet: String,
    /// The gateway with its prefix length.
    pub(super) gateway: String,
    /// Further addresses, by name, with their prefix lengths.
    pub(super) aux: BTreeMap<String, String>,
    /// The addresses held for the network itself.
    pub(super) held: Vec<IpAddr>,
}

/// A network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Network {
    version: u32,
    pub(super) id: String,
    /// The boot in which the driver got the network.
    pub(super) boot_id: String,
    pub(super) driver: DriverRecord,
    pub(super) ipam_driver: Option<DriverRecord>,
    /// What it was created from.
    pub(super) wanted: WantedNetwork,
    pub(super) pools: Vec<Pool>,
    /// Whether the driver has created it.
    pub(super) made: bool,
    /// Whether addresses are requested with a hardware address.
    pub(super) needs_mac: bool,
    /// Whether the IPAM driver forgets what was requested and must get it again.
    pub(super) needs_replay: bool,
}

impl Network {
    pub(super) fn new(
        network: &str,
        driver: DriverRecord,
        ipam: Option<DriverRecord>,
        wanted: WantedNetwork,
    ) -> Self {
        Network {
            version: VERSION,
            id: network_id(network),
            boot_id: String::new(),
            driver,
            ipam_driver: ipam,
            wanted,
            pools: Vec::new(),
            made: false,
            needs_mac: false,
            needs_replay: false,
        }
    }
}

/// An address that an IPAM driver assigned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Lease {
    /// The pool.
    pub(super) pool: String,
    /// The address with its prefix length; absent while any address is being requested.
    pub(super) address: Option<IpNet>,
}

/// The link that a driver lent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LentLink {
    /// The driver's name for it.
    pub(super) name: String,
    /// The alias that it had.
    pub(super) alias: String,
    /// Whether the driver put it into the container itself.
    pub(super) placed: bool,
    /// Which link of the container it is, once it is there.
    pub(super) inside: Option<Identity>,
}

/// An attachment. A step that is recorded here may have been done; one that is not was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Endpoint {
    version: u32,
    pub(super) attachment: AttachmentKey,
    pub(super) boot_id: String,
    pub(super) driver: DriverRecord,
    pub(super) ipam_driver: Option<DriverRecord>,
    pub(super) leases: Vec<Lease>,
    /// Whether the driver was asked to create and join it.
    pub(super) made: bool,
    pub(super) link: Option<LentLink>,
    /// Whether the driver was asked to publish its ports.
    pub(super) external: bool,
}

impl Endpoint {
    pub(super) fn new(
        key: &AttachmentKey,
        boot_id: String,
        driver: DriverRecord,
        ipam: Option<DriverRecord>,
    ) -> Self {
        Endpoint {
            version: VERSION,
            attachment: key.clone(),
            boot_id,
            driver,
            ipam_driver: ipam,
            leases: Vec::new(),
            made: false,
            link: None,
            external: false,
        }
    }
}

/// The result of reading a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReadOutcome<T> {
    /// There is no file.
    Nothing,
    /// The file is damaged; the text says how.
    Damaged(String),
    /// The content.
    This(T),
}

impl<T> ReadOutcome<T> {
    /// Returns the content if it is legible; a damaged file counts as missing.
    pub(super) fn legible(self) -> Option<T> {
        match self {
            ReadOutcome::This(found) => Some(found),
            ReadOutcome::Nothing | ReadOutcome::Damaged(_) => None,
        }
    }
}

/// The files of one network.
#[derive(Debug, Clone)]
pub(super) struct Journal {
    all: PathBuf,
    folder: PathBuf,
}

impl Journal {
    pub(super) fn new(roots: &Roots, network: &str) -> Self {
        let all = roots.lib.join(FOLDER);
        let folder = all.join(file_name_of(network));
        Journal { all, folder }
    }

    /// Reads the network.
    ///
    /// # Errors
    /// Code 105 when the kernel refuses.
    pub(super) fn network(&self) -> Result<ReadOutcome<Network>, Failure> {
        read(&self.folder.join(NETWORK), |network: &Network| network.version)
    }

    /// Writes the network's record, flushed.
    ///
    /// # Errors
    /// Code 105.
    pub(super) fn put_network(&self, network: &Network) -> Result<(), Failure> {
        self.write(NETWORK, network, Durability::Synced)
    }

    /// Removes the network's record, and the folder if it is then empty.
    ///
    /// # Errors
    /// Code 105.
    pub(super) fn remove_network(&self) -> Result<(), Failure> {
        self.remove(NETWORK)
    }

    /// Reads an attachment.
    ///
    /// # Errors
    /// Code 105 when the kernel refuses.
    pub(super) fn endpoint(&self, key: &AttachmentKey) -> Result<ReadOutcome<Endpoint>, Failure> {
        let found = read(&self.folder.join(file_of(key)), |endpoint: &Endpoint| endpoint.version)?;
        Ok(match found {
            ReadOutcome::This(endpoint) if endpoint.attachment != *key => {
                ReadOutcome::Damaged(format!("it is about {}", endpoint.attachment))
            }
            found => found,
        })
    }

    /// Writes an attachment's record. It is flushed if it covers more than a reboot clears anyway.
    ///
    /// # Errors
    /// Code 105.
    pub(super) fn put_endpoint(
        &self,
        endpoint: &Endpoint,
        durability: Durability,
    ) -> Result<(), Failure> {
        self.write(&file_of(&endpoint.attachment), endpoint, durability)
    }

    /// Removes an attachment's record.
    ///
    /// # Errors
    /// Code 105.
    pub(super) fn remove_endpoint(&self, key: &AttachmentKey) -> Result<(), Failure> {
        self.remove(&file_of(key))
    }

    /// Reports whether the network has an attachment; one whose file is damaged counts.
    ///
    /// # Errors
    /// Code 105: the answer is unknown.
    pub(super) fn has_endpoints(&self) -> Result<bool, Failure> {
        Ok(!self.files()?.is_empty())
    }

    /// Reports whether another attachment of the network was announced to the driver, or may have
    /// been: one whose file is damaged counts.
    ///
    /// # Errors
    /// Code 105: the answer is unknown.
    pub(super) fn others_are_on(&self, key: &AttachmentKey) -> Result<bool, Failure> {
        let own = self.folder.join(file_of(key));
        for path in self.files()?.into_iter().filter(|path| *path != own) {
            match read(&path, |endpoint: &Endpoint| endpoint.version)? {
                ReadOutcome::Nothing => {}
                ReadOutcome::This(endpoint) if !endpoint.made => {}
                ReadOutcome::This(_) | ReadOutcome::Damaged(_) => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Reads every attachment of the network that is legible.
    ///
    /// # Errors
    /// Code 105.
    pub(super) fn endpoints(&self) -> Result<Vec<Endpoint>, Failure> {
        let mut endpoints = Vec::new();
        for path in self.files()? {
            endpoints.extend(read(&path, |endpoint: &Endpoint| endpoint.version)?.legible());
        }
        Ok(endpoints)
    }

    fn files(&self) -> Result<Vec<PathBuf>, Failure> {
        let failed = |source| {
            let path = self.folder.clone();
            FileError::List { path, source }.into()
        };
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let is_hash = stem.len() == HASH_DIGITS && stem.bytes().all(|b| b.is_ascii_hexdigit());
            if is_hash && path.extension().is_some_and(|end| end == "json") {
                files.push(path);
            }
        }
        cni::order::sort(&mut files);
        Ok(files)
    }

    fn write(
        &self,
        name: &str,
        content: &impl Serialize,
        durability: Durability,
    ) -> Result<(), Failure> {
        let bytes = serde_json::to_vec(content).expect("what is written has string keys only");
        let mut races = 0;
        loop {
            let written = create_directory(&self.folder, FOLDER_MODE).and_then(|()| {
                state::write_atomic(&self.folder.join(name), &bytes, FILE_MODE, durability)
            });
            match written {
                // Another call found the folder empty just now, and removed it.
                Err(error) if error.is_not_found() && races < FOLDER_RACES => races += 1,
                written => return Ok(written?),
            }
        }
    }

    fn remove(&self, name: &str) -> Result<(), Failure> {
        state::remove_file(&self.folder.join(name))?;
        self.tidy()
    }

    /// Removes the folders if they contain nothing but unfinished files of killed processes.
    pub(super) fn tidy(&self) -> Result<(), Failure> {
        state::remove_abandoned(&self.folder);
        for folder in [&self.folder, &self.all] {
            state::remove_directory(folder)?;
        }
        Ok(())
    }
}

fn file_of(key: &AttachmentKey) -> String {
    format!("{}.json", key.hash())
}

fn read<T: DeserializeOwned>(
    path: &std::path::Path,
    version: fn(&T) -> u32,
) -> Result<ReadOutcome<T>, Failure> {
    let bytes = match read_optional(path) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(ReadOutcome::Nothing),
        Err(error @ (FileError::NotAFile { .. } | FileError::TooLarge { .. })) => {
            return Ok(ReadOutcome::Damaged(error.to_string()));
        }
        Err(error) => return Err(Failure::from(error)),
    };
    Ok(match serde_json::from_slice::<T>(&bytes) {
        Ok(found) if version(&found) == VERSION => ReadOutcome::This(found),
        Ok(found) => ReadOutcome::Damaged(format!("version {} is not known", version(&found))),
        Err(error) => ReadOutcome::Damaged(error.to_string()),
    })
}

/// Returns the error for a file that must be legible but is not.
pub(super) fn damaged(what: &str, words: &str) -> Failure {
    Failure::new(codes::STATE, format!("the record of {what} is damaged: {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> AttachmentKey {
        AttachmentKey {
            network: "n".parse().unwrap(),
            container_id: id.parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        }
    }

    #[test]
    fn ids_are_as_engines_give_them() {
        for id in [network_id("n"), endpoint_id(&key("c1"))] {
            assert!(id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
        }
        assert_ne!(endpoint_id(&key("c1")), endpoint_id(&key("c2")));
    }

    #[test]
    fn attachments_keep_their_networks_folder() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::new(dir.path().join("run"), dir.path().join("lib"));
        let journal = Journal::new(&roots, "n");
        assert!(!journal.has_endpoints().unwrap());
        let endpoint = Endpoint::new(&key("c1"), "boot".to_owned(), DriverRecord::default(), None);
        journal.put_endpoint(&endpoint, Durability::Volatile).unwrap();
        assert_eq!(journal.endpoint(&key("c1")).unwrap(), ReadOutcome::This(endpoint.clone()));
        assert_eq!(journal.endpoints().unwrap(), [endpoint]);
        let garbled = journal.folder.join(file_of(&key("c2")));
        std::fs::write(garbled, "{").unwrap();
        assert!(matches!(journal.endpoint(&key("c2")).unwrap(), ReadOutcome::Damaged(_)));
        journal.remove_endpoint(&key("c1")).unwrap();
        assert!(journal.has_endpoints().unwrap(), "a garbled one is one");
        journal.remove_endpoint(&key("c2")).unwrap();
        assert!(!roots.lib.join(FOLDER).exists());
    }
}
