//! How many policies there were, on the disk. A start whose first lists have far fewer does not
//! believe them at once: without policies, pods are open.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use service_kit::health::Health;
use service_kit::process::remove_own_folder;
use service_kit::stop::words;
use state::{Durability, FileError};

use super::engine::PolicyCounts;

/// The version of the file.
const VERSION: u32 = 1;

/// How long until a failed write is tried again.
const AGAIN: Duration = Duration::from_secs(5);

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
    written: Option<PolicyCounts>,
}

impl Disk {
    pub(super) fn new(folder: &Path) -> Self {
        Disk { path: folder.join("policies"), written: None }
    }

    /// Reads how many there were. What is damaged, or of another version, counts as none.
    pub(super) fn read(&mut self) -> PolicyCounts {
        let text = match state::read_optional(&self.path) {
            Ok(text) => text.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "it is not known how many policies there were");
                return PolicyCounts::default();
            }
        };
        let document: Document = serde_json::from_slice(&text).unwrap_or_default();
        if document.version != VERSION {
            if !text.is_empty() {
                tracing::warn!(path = %self.path.display(), "the file is ignored");
            }
            return PolicyCounts::default();
        }
        let known = PolicyCounts {
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
        self.path.parent().map_or(Ok(()), remove_own_folder)
    }

    /// Writes how many there are, unless the file has these numbers already.
    pub(super) fn write(&mut self, known: PolicyCounts) -> Result<(), FileError> {
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

/// Writes how many there are, in a thread of its own: a busy disk takes seconds, and plugins wait
/// for the loop.
#[derive(Debug)]
pub(super) struct Keeper {
    to: Sender<PolicyCounts>,
    thread: JoinHandle<()>,
}

impl Keeper {
    /// Starts the thread.
    pub(super) fn start(mut disk: Disk, health: Health) -> io::Result<Self> {
        let (to, from) = channel();
        let write = move |known| {
            let written = disk.write(known);
            let is_written = written.is_ok();
            health.needs("record of policies", written.map_err(|error| words(&error)));
            is_written
        };
        let thread = std::thread::Builder::new().name("known".to_owned());
        let thread = thread.spawn(move || keep(&from, AGAIN, write))?;
        Ok(Keeper { to, thread })
    }

    /// Has it written how many there are.
    pub(super) fn keep(&self, known: PolicyCounts) {
        let _ = self.to.send(known);
    }

    /// Waits until what was kept last is written, if that is possible.
    pub(super) fn finish(self) {
        drop(self.to);
        let _ = self.thread.join();
    }
}

/// Writes what comes until nothing more can come. Of several that have come meanwhile, the newest
/// counts.
fn keep(
    from: &Receiver<PolicyCounts>,
    again: Duration,
    mut write: impl FnMut(PolicyCounts) -> bool,
) {
    let mut next = from.recv().ok();
    while let Some(known) = next {
        let known = from.try_iter().last().unwrap_or(known);
        next = match write(known) {
            true => from.recv().ok(),
            false => match from.recv_timeout(again) {
                Ok(newer) => Some(newer),
                Err(RecvTimeoutError::Timeout) => Some(known),
                Err(RecvTimeoutError::Disconnected) => None,
            },
        };
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
        assert_eq!(disk().read(), PolicyCounts::default());
        let known = PolicyCounts {
            network_policies: 7,
            cluster_network_policies: 2,
            multi_network_policies: 1,
        };
        disk().write(known).unwrap();
        assert_eq!(disk().read(), known);
        disk().remove().unwrap();
        assert!(!folder.exists());
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("policies");
        for damaged in ["", "7", "{\"version\":2,\"networkPolicies\":7}"] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(disk().read(), PolicyCounts::default(), "{damaged:?}");
        }
    }

    fn known(network_policies: usize) -> PolicyCounts {
        PolicyCounts { network_policies, ..PolicyCounts::default() }
    }

    #[test]
    fn the_newest_is_written_and_again_if_that_failed() {
        let (to, from) = channel();
        (1..=3).for_each(|count| to.send(known(count)).unwrap());
        let mut written = Vec::new();
        let mut to = Some(to);
        keep(&from, Duration::ZERO, |known| {
            written.push(known.network_policies);
            // The second time it is possible, and then nothing more comes.
            let is_written = written.len() == 2;
            if is_written {
                drop(to.take());
            }
            is_written
        });
        assert_eq!(written, [3, 3]);
    }

    #[test]
    fn what_was_kept_last_is_written_at_the_end() {
        let (to, from) = channel();
        to.send(known(1)).unwrap();
        to.send(known(2)).unwrap();
        drop(to);
        let mut written = Vec::new();
        keep(&from, AGAIN, |known| {
            written.push(known.network_policies);
            false
        });
        assert_eq!(written, [2]);
    }
}
