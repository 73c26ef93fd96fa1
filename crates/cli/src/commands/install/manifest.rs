//! What `install` did in a folder.

use std::path::{Path, PathBuf};

use cni::{code, owner};
use serde::{Deserialize, Serialize};

use super::{DAEMON, EXECUTABLE};
use crate::failure::Failure;

/// The folder for replaced files, and for the manifest. Runtimes look only for names of plugins.
const FOLDER: &str = ".netwright-replaced";
const FILE: &str = "manifest.json";
/// The version of the manifest's format.
const FORMAT: u32 = 1;

/// How many digits of the SHA-512 are compared to see whether a configuration is still what we
/// wrote.
const DIGITS: usize = 32;

/// What `install` did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest {
    /// The version that was installed.
    pub(super) version: String,
    /// The plugins that are links of ours.
    pub(super) links: Vec<String>,
    /// The daemon was installed, too.
    #[serde(default)]
    pub(super) daemon: bool,
    /// The names whose foreign files are kept.
    pub(super) replaced: Vec<String>,
    /// The configuration that was written.
    #[serde(default)]
    pub(super) config: Option<Config>,
    /// The folders that were created, the outer ones first.
    #[serde(default)]
    pub(super) created_dirs: Vec<PathBuf>,
}

/// A configuration that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Config {
    pub(super) path: PathBuf,
    digest: String,
}

impl Config {
    pub(super) fn of(path: &Path, text: &str) -> Self {
        Config { path: path.to_owned(), digest: owner::sha512_hex(text, DIGITS) }
    }

    /// Says whether the file still holds what we wrote.
    pub(super) fn is_unchanged(&self) -> bool {
        std::fs::read_to_string(&self.path)
            .is_ok_and(|text| owner::sha512_hex(&text, DIGITS) == self.digest)
    }
}

/// The form on the disk.
#[derive(Serialize, Deserialize)]
struct ManifestFile {
    format: u32,
    #[serde(rename = "netwright")]
    manifest: Manifest,
}

/// Lists what must be created for a folder to exist, the outer ones first.
pub(in crate::commands) fn missing(dir: &Path) -> Vec<PathBuf> {
    let missing = dir.ancestors().take_while(|dir| dir.symlink_metadata().is_err());
    let mut missing: Vec<PathBuf> = missing.map(Path::to_path_buf).collect();
    missing.reverse();
    missing
}

/// Removes created folders that are empty; returns those it removed.
pub(in crate::commands) fn remove_created(created: &[PathBuf]) -> Vec<PathBuf> {
    created.iter().rev().filter(|dir| std::fs::remove_dir(dir).is_ok()).cloned().collect()
}

/// Returns the folder that keeps what was replaced in `dir`.
pub(super) fn folder_of(dir: &Path) -> PathBuf {
    dir.join(FOLDER)
}

/// Says whether a folder has a manifest, whole or damaged.
pub(super) fn is_in(dir: &Path) -> bool {
    folder_of(dir).join(FILE).is_file()
}

impl Manifest {
    /// Reads a folder's manifest, if it has one.
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, Failure> {
        let path = folder_of(dir).join(FILE);
        let bytes =
            state::read_optional(&path).map_err(|error| Failure::of(code::IO_FAILURE, &error))?;
        let Some(bytes) = bytes else { return Ok(None) };
        match serde_json::from_slice::<ManifestFile>(&bytes) {
            Ok(read) if read.format == FORMAT => Ok(Some(read.manifest)),
            Ok(read) => Err(Failure::of_format(&path, read.format, FORMAT)
                .hint("use the version that installed it")),
            Err(error) => Err(Failure::of(code::DECODE_FAILURE, &error)
                .context(format_args!("read {}", path.display()))
                .hint(format!(
                    "move it away: what is kept in {} can then be put back by hand",
                    folder_of(dir).display()
                ))),
        }
    }

    pub(super) fn write(&self, dir: &Path) -> Result<(), Failure> {
        let failed = |error: state::FileError| Failure::of(code::IO_FAILURE, &error);
        let on_disk = ManifestFile { format: FORMAT, manifest: self.clone() };
        let bytes = serde_json::to_vec_pretty(&on_disk).expect("a manifest has string keys only");
        state::create_directory(&folder_of(dir), 0o755).map_err(failed)?;
        let path = folder_of(dir).join(FILE);
        state::write_atomic(&path, &bytes, 0o644, state::Durability::Synced).map_err(failed)
    }

    pub(super) fn remove(dir: &Path) -> Result<(), Failure> {
        state::remove_file(&folder_of(dir).join(FILE))
            .map(drop)
            .map_err(|error| Failure::of(code::IO_FAILURE, &error))
    }

    /// Says whether a name is ours.
    pub(super) fn owns(&self, name: &str) -> bool {
        name == EXECUTABLE
            || (name == DAEMON && self.daemon)
            || self.links.iter().any(|link| link == name)
    }

    /// Says whether the file of a name of ours is yet, or again, another program's: it was to be
    /// kept, and is not. A process was killed before it kept that file, or when it had put it back.
    pub(super) fn is_theirs(&self, dir: &Path, name: &str) -> bool {
        self.replaced.iter().any(|replaced| replaced == name)
            && folder_of(dir).join(name).symlink_metadata().is_err()
    }

    /// Says whether the installed version is newer than `version`; versions that cannot be compared
    /// are not.
    pub(super) fn is_newer_than(&self, version: &str) -> bool {
        cni::version::compare(&self.version, version).is_ok_and(std::cmp::Ordering::is_gt)
    }
}
