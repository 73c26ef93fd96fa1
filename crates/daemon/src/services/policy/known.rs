//! How many policies there were, on the disk. A start whose first lists have far fewer does not
//! believe them at once: without policies, pods are open.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use state::{Durability, FileError};

use super::engine::Known;

/// The version of the file.
const VERSION: u32 = 1;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    version: u32,
    network_policies: usize,
    cluster_network_policies: usize,
    multi_network_policies: usize,
}

/// The file.
#[derive(Debug)]
pub(super) struct Disk {
    path: PathBuf,
    written: Option<Known>,
}

impl Disk {
    pub(super) fn new(folder: &Path) -> Self {
        Disk { path: folder.join("policies"), written: None }
    }

    /// Reads how many there were. What is damaged, or of another version, counts as none.
    pub(super) fn read(&mut self) -> Known {
        let text = match state::read_optional(&self.path) {
            Ok(text) => text.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "it is not known how many policies there were");
                return Known::default();
            }
        };
        let document: Document = serde_json::from_slice(&text).unwrap_or_default();
        if document.version != VERSION {
            if !text.is_empty() {
                tracing::warn!(path = %self.path.display(), "the file is ignored");
            }
            return Known::default();
        }
        let known = Known {
            network_policies: document.network_policies,
            cluster_network_policies: document.cluster_network_policies,
            multi_network_policies: document.multi_network_policies,
        };
        self.written = Some(known);
        known
    }

    /// Removes the file, and its folder if that is empty.
    pub(super) fn remove(&self) -> Result<(), FileError> {
        state::remove_file(&self.path)?;
        if let Some(folder) = self.path.parent() {
            state::remove_abandoned(folder);
            match state::remove_directory(folder) {
                // A container's mount is not ours to remove.
                Err(FileError::Remove { source, .. })
                    if matches!(
                        source.kind(),
                        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::ResourceBusy
                    ) => {}
                removed => {
                    removed?;
                }
            }
        }
        Ok(())
    }

    /// Writes how many there are, unless the file says so.
    pub(super) fn write(&mut self, known: Known) -> Result<(), FileError> {
        if self.written == Some(known) {
            return Ok(());
        }
        if let Some(folder) = self.path.parent() {
            state::create_directory(folder, 0o700)?;
        }
        let document = Document {
            version: VERSION,
            network_policies: known.network_policies,
            cluster_network_policies: known.cluster_network_policies,
            multi_network_policies: known.multi_network_policies,
        };
        let text = serde_json::to_vec(&document).expect("it has string keys only");
        state::write_atomic(&self.path, &text, 0o600, Durability::Synced)?;
        self.written = Some(known);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("policy");
        let disk = || Disk::new(&folder);
        assert_eq!(disk().read(), Known::default());
        let known =
            Known { network_policies: 7, cluster_network_policies: 2, multi_network_policies: 1 };
        disk().write(known).unwrap();
        assert_eq!(disk().read(), known);
        disk().remove().unwrap();
        assert!(!folder.exists());
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("policies");
        for damaged in ["", "7", "{\"version\":2,\"networkPolicies\":7}"] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(disk().read(), Known::default(), "{damaged:?}");
        }
    }
}
