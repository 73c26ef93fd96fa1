//! A lock that only one call at a time holds on a container's namespace.

use std::fs::{File, TryLockError};
use std::time::{Duration, Instant};

use cni::code;
use cni_plugin::codes;
use kernel::netns::Netns;

use super::failure::Failure;

/// How long a call waits for the lock. It is held for milliseconds; a longer holder is stuck.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between two attempts.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The lock of a namespace, held until it is dropped.
///
/// The lock is on the namespace itself (`man 2 flock`), as that of the reference's `sbr`: nothing
/// is left on the disk, and the two exclude each other.
#[derive(Debug)]
pub struct NetnsLock(File);

/// Takes the lock of a namespace.
///
/// # Errors
/// Code 11 when another holds it too long, code 105 when the lock call fails.
pub fn lock(netns: &Netns) -> Result<NetnsLock, Failure> {
    let failed = |error: &std::io::Error| {
        Failure::from_chain(codes::STATE, error).context(format_args!("lock netns {netns}"))
    };
    let fd = netns.as_fd().try_clone_to_owned().map_err(|error| failed(&error))?;
    let file = File::from(fd);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(NetnsLock(file)),
            Err(TryLockError::Error(error)) => return Err(failed(&error)),
            Err(TryLockError::WouldBlock) if deadline < Instant::now() => {
                return Err(Failure::new(
                    code::TRY_AGAIN_LATER,
                    format!("lock netns {netns}: another call holds it since {TIMEOUT:?}"),
                ));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

impl Drop for NetnsLock {
    fn drop(&mut self) {
        // The namespace's own descriptor refers to the same open file: closing this one alone would
        // not unlock it.
        let _ = self.0.unlock();
    }
}
