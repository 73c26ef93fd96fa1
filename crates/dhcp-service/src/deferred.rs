//! Releases leases whose interface is gone.
//!
//! A release may take a second, so a thread does them, one after the other. A lease stays on disk
//! until its release was tried, so that a daemon started after a kill continues with it.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};

use dhcp::v4;
use state::{Durability, FileError};

use super::sockets::frame_of;
use super::store::LeaseRecord;
use crate::clock;

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The queue of leases to release.
#[derive(Debug)]
pub(crate) struct DeferredReleases {
    folder: PathBuf,
    queue: Sender<(PathBuf, Box<LeaseRecord>)>,
}

impl DeferredReleases {
    /// Opens the queue and starts the thread. The queue starts empty: another daemon may be working
    /// on what is on disk.
    pub(crate) fn open(state: &std::path::Path) -> Result<Self, FileError> {
        let folder = state.join("late");
        state::create_directory(&folder, FOLDER_MODE)?;
        let (queue, jobs) = channel();
        // Without the thread nothing is released before the next start; nothing else is lost.
        if let Err(error) =
            std::thread::Builder::new().name("late".to_owned()).spawn(move || work(&jobs))
        {
            tracing::error!(%error, "cannot start the thread that releases leases later");
        }
        Ok(DeferredReleases { folder, queue })
    }

    /// Continues with what an earlier daemon left.
    pub(crate) fn take_up(&self) {
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().filter_map(Result::ok) {
            let path = entry.path();
            let bytes = match state::read_optional(&path) {
                Err(error) if error.is_refused() => {
                    tracing::warn!(%error, "a lease is not released before the next start");
                    continue;
                }
                bytes => bytes.ok().flatten().unwrap_or_default(),
            };
            match serde_json::from_slice(&bytes) {
                Ok(saved) => self.enqueue(path, saved),
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "removed a file that is not a lease");
                    let _ = state::remove_file(&path);
                }
            }
        }
    }

    /// Releases a lease as soon as its turn comes.
    pub(crate) fn give_back(&self, saved: LeaseRecord) -> Result<(), FileError> {
        // Another lease of the same attachment may follow.
        let name = format!("{}-{:016x}.json", saved.attachment.hash(), clock::seed());
        let path = self.folder.join(name);
        let bytes = serde_json::to_vec(&saved).expect("a lease has string keys only");
        state::create_directory(&self.folder, FOLDER_MODE)?;
        state::write_atomic(&path, &bytes, FILE_MODE, Durability::Volatile)?;
        self.enqueue(path, saved);
        Ok(())
    }

    fn enqueue(&self, path: PathBuf, saved: LeaseRecord) {
        // It fails when there is no thread; the next start finds the file.
        let _ = self.queue.send((path, Box::new(saved)));
    }
}

fn work(jobs: &Receiver<(PathBuf, Box<LeaseRecord>)>) {
    while let Ok((path, saved)) = jobs.recv() {
        release(&saved);
        if let Err(error) = state::remove_file(&path) {
            tracing::warn!(%error, "a lease will be released a second time");
        }
    }
}

fn release(saved: &LeaseRecord) {
    let lease = &saved.attachment;
    if saved.v6.is_some() {
        // RELEASE needs a link-local source address, which went with the interface.
        tracing::info!(%lease, "the DHCPv6 lease ends by itself: its interface is gone");
    }
    let Some(v4) = &saved.v4 else { return };
    let message = v4::release_message(v4, clock::seed());
    let sent = frame_of(&message, v4.mac)
        .map_err(|error| error.to_string())
        .and_then(|frame| saved.way.send(&frame, v4.mac).map_err(|error| chain(&error)));
    let address = v4.lease.address;
    match sent {
        Ok(()) => {
            tracing::info!(%lease, %address, way = ?saved.way, "released the lease after its interface was gone");
        }
        Err(error) => tracing::warn!(
            %lease, %address, way = ?saved.way, error,
            "could not release the lease: the server frees it when it ends"
        ),
    }
}

/// Returns an error and its sources as one text.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    cni::Error::from_chain(0, error).msg
}
