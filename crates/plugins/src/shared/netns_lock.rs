//! A container's namespace held by one call at a time.

use std::fs::{File, TryLockError};
use std::time::{Duration, Instant};

use cni::{Error, code};
use cni_plugin::codes;
use kernel::netns::Netns;

/// How long the lock may be waited for. It is held for milliseconds; whoever holds it longer is stuck.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between looks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The lock of a namespace, held until it is dropped.
///
/// It is on the namespace itself (`man 2 flock`), as the reference's `sbr` has it: nothing is left on the disk, and the
/// two keep out of each other's way.
#[derive(Debug)]
pub struct NetnsLock(File);

/// Takes the lock of a namespace.
///
/// # Errors
/// Code 11 when it is held too long, code 105 when it cannot be asked for.
pub fn lock(netns: &Netns) -> Result<NetnsLock, Error> {
    let failed = |error: &std::io::Error| {
        Error::from_chain(codes::STATE, error).context(format_args!("lock netns {netns}"))
    };
    let fd = netns.as_fd().try_clone_to_owned().map_err(|error| failed(&error))?;
    let file = File::from(fd);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(NetnsLock(file)),
            Err(TryLockError::Error(error)) => return Err(failed(&error)),
            Err(TryLockError::WouldBlock) if deadline < Instant::now() => {
                return Err(Error::new(
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
        // The namespace's own descriptor is the same open file: closing this one alone would not unlock.
        let _ = self.0.unlock();
    }
}
