//! Calls that were under way when a driver was killed.
//!
//! Docker repeats a call whose connection broke, but without its content: the buffer it sends from
//! is empty by then (moby pkg/plugins/client.go, `callWithRetry`; seen with 20.10.24 and 28.5.2).
//! An empty request would mean something else. So the driver writes a note of each call before it
//! acts, and removes the note when the answer is sent. The next driver learns from the notes what
//! an empty call is about, and completes unfinished removals by itself.
//!
//! Notes serve for a minute, and only within the same boot, so nothing is flushed. A driver that
//! was killed after it sent its answer and before it removed the note leaves a note that no call
//! asks for; the first call after that minute removes it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cni::{Error, code};
use cnm::method::Method;
use service_kit::clock;
use state::Durability;

/// How long Docker repeats a call (30 s), and a margin.
const LIFETIME_MS: u64 = 60_000;

/// The folder of notes.
#[derive(Debug)]
pub(super) struct Intents {
    dir: PathBuf,
    count: AtomicU64,
    /// Notes from this time on are this driver's own.
    began_ms: u64,
    /// No note of an earlier driver is left.
    is_swept: AtomicBool,
}

/// A note; dropping it removes it.
#[derive(Debug)]
pub(super) struct Intent {
    /// The name of the call, the same when the call is repeated.
    pub(super) name: String,
    path: Option<PathBuf>,
}

/// A note that an earlier driver left.
#[derive(Debug)]
pub(super) struct LeftoverIntent {
    pub(super) method: Method,
    pub(super) body: Vec<u8>,
    /// See [`Intent::name`].
    pub(super) name: String,
    path: PathBuf,
}

impl Intents {
    pub(super) fn open(dir: &Path) -> Result<Self, state::FileError> {
        state::create_directory(dir, 0o700)?;
        state::remove_abandoned(dir);
        let began_ms = clock::boot_ms();
        Ok(Intents {
            dir: dir.to_owned(),
            count: AtomicU64::new(0),
            began_ms,
            is_swept: AtomicBool::new(false),
        })
    }

    /// Writes a note of a call.
    pub(super) fn note(&self, method: Method, body: &[u8]) -> Intent {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let (pid, now_ms) = (std::process::id(), clock::boot_ms());
        let is_over = LIFETIME_MS <= now_ms.saturating_sub(self.began_ms);
        if is_over && !self.is_swept.swap(true, Ordering::Relaxed) {
            self.left();
        }
        let name = format!("{now_ms}-{pid}-{number}");
        let path = self.dir.join(format!("{method}-{name}"));
        match state::write_atomic(&path, body, 0o600, Durability::Volatile) {
            Ok(()) => Intent { name, path: Some(path) },
            Err(error) => {
                tracing::warn!(%error, "a call could not be recorded");
                Intent { name, path: None }
            }
        }
    }

    /// Lists the calls that earlier drivers had under way; removes notes that are too old.
    pub(super) fn left(&self) -> Vec<LeftoverIntent> {
        let now_ms = clock::boot_ms();
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut found = Vec::new();
        for entry in entries {
            let name = entry.file_name();
            let (method, name) =
                name.to_str().unwrap_or_default().split_once('-').unwrap_or_default();
            let method = Method::parse(method);
            let noted_ms = name.split('-').next().and_then(|text| text.parse::<u64>().ok());
            let (Some(method), Some(noted_ms)) = (method, noted_ms) else { continue };
            if self.began_ms <= noted_ms {
                continue;
            }
            let path = entry.path();
            let body = state::read_optional(&path).ok().flatten();
            match body.filter(|_| now_ms.saturating_sub(noted_ms) < LIFETIME_MS) {
                Some(body) => {
                    found.push(LeftoverIntent { method, body, name: name.to_owned(), path });
                }
                None => drop(state::remove_file(&path)),
            }
        }
        found
    }

    /// Finds what a call without content is about.
    pub(super) fn recall(&self, method: Method) -> Result<LeftoverIntent, Error> {
        let mut left = self.left();
        left.retain(|left| left.method == method);
        match (left.pop(), left.is_empty()) {
            (Some(left), true) => Ok(left),
            (found, _) => Err(Error::new(
                code::TRY_AGAIN_LATER,
                format!(
                    "{method} came without content, and {} unfinished calls match it",
                    match found {
                        None => "no",
                        Some(_) => "several",
                    }
                ),
            )
            .with_details(
                "Docker repeats calls without content after a driver's restart: try again",
            )),
        }
    }
}

impl LeftoverIntent {
    /// Removes the note: the call is done.
    pub(super) fn forget(self) {
        let _ = state::remove_file(&self.path);
    }
}

impl Drop for Intent {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = state::remove_file(path);
        }
    }
}

/// Says whether a call has content.
pub(super) fn has_content(method: Method) -> bool {
    !matches!(
        method,
        Method::Activate
            | Method::NetworkCapabilities
            | Method::IpamCapabilities
            | Method::DefaultAddressSpaces
    )
}

/// Says whether a call only removes: its answer is empty, and it may be completed even if Docker
/// does not repeat it.
pub(super) fn removes(method: Method) -> bool {
    matches!(
        method,
        Method::FreeNetwork
            | Method::DeleteNetwork
            | Method::DeleteEndpoint
            | Method::Leave
            | Method::RevokeExternalConnectivity
            | Method::ReleaseAddress
            | Method::ReleasePool
            | Method::DiscoverNew
            | Method::DiscoverDelete
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_nobody_asked_for_goes_with_the_first_call_after_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let before = Intents::open(dir.path()).unwrap();
        // Killed when it had answered: nothing is dropped.
        std::mem::forget(before.note(Method::Join, b"{}"));
        let [ref left] = names(dir.path())[..] else { panic!() };

        // Notes carry milliseconds: the next driver begins in a later one.
        let mut intents = Intents::open(dir.path()).unwrap();
        intents.began_ms += 1;
        drop(intents.note(Method::Leave, b"{}"));
        assert_eq!(names(dir.path()), [left.as_str()], "it may be asked for yet");

        // A little more than a minute later, by the time in the note's name.
        let noted_ms: u64 = left.split('-').nth(1).unwrap().parse().unwrap();
        let old = left.replace(&noted_ms.to_string(), &(noted_ms - LIFETIME_MS - 1).to_string());
        std::fs::rename(dir.path().join(left), dir.path().join(old)).unwrap();
        intents.began_ms -= LIFETIME_MS + 1;
        let under_way = intents.note(Method::Leave, b"{}");
        let [ref only] = names(dir.path())[..] else { panic!("{:?}", names(dir.path())) };
        assert!(only.starts_with("NetworkDriver.Leave-"), "{only}");
        drop(under_way);
        assert!(names(dir.path()).is_empty());
    }
}
