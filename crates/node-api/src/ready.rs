//! The file in which a daemon says that it was ready a moment ago.
//!
//! The file lies beside the socket: its path and `.ready`. It holds the milliseconds since the boot
//! (`man 2 clock_gettime` CLOCK_BOOTTIME), as a decimal number. The daemon writes it every few
//! seconds while it is ready, and leaves it behind. So STATUS can tell a daemon that is being
//! replaced from one that is gone.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};

/// How long a daemon may be missing before STATUS reports it. A daemon that is being replaced is
/// back within seconds, or later if its image must be fetched. If the node became NotReady
/// meanwhile, others would consider its pods lost.
const MISSING: Duration = Duration::from_secs(60);

/// How long after the boot a daemon that was not ready yet may still come: the node agent, or the
/// kubelet with its images, starts within minutes.
const BOOT: Duration = Duration::from_secs(600);

/// Returns the path of the file.
#[must_use]
pub fn file(socket: &Path) -> PathBuf {
    crate::beside(socket, ".ready")
}

/// Records that the daemon is ready, at this time since the boot. It writes into the file that is
/// there: the folder may be root's, and the daemon need not be.
///
/// # Errors
/// The kernel's, when it cannot be written.
pub fn record(socket: &Path, since_boot: Duration) -> io::Result<()> {
    let text = since_boot.as_millis().to_string();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(flags.bits().cast_signed())
        .open(file(socket))?;
    // Numbers of one boot only get longer, so that no old digit stays behind the new ones. A file of
    // another boot may be longer.
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(u64::try_from(text.len()).unwrap_or_default())
}

/// Reports whether the daemon of a socket was ready a moment ago, by its own account. An unreadable
/// file counts as not ready.
#[must_use]
pub fn was_ready(socket: &Path) -> bool {
    missing(socket, since_boot()).is_some_and(|missing| missing < MISSING)
}

/// Reports whether it is worth waiting for the daemon of a socket that does not listen: it was ready
/// a moment ago, or has not been ready yet and the machine was booted a moment ago.
#[must_use]
pub fn may_come(socket: &Path) -> bool {
    may_come_at(socket, since_boot())
}

fn may_come_at(socket: &Path, now: Duration) -> bool {
    missing(socket, now).map_or(now < BOOT, |missing| missing < MISSING)
}

/// Returns for how long the daemon has not been ready; `None` if it was not ready since the boot,
/// as far as can be read.
fn missing(socket: &Path, now: Duration) -> Option<Duration> {
    let text = state::read_optional(&file(socket)).ok().flatten()?;
    let text = String::from_utf8(text).ok()?;
    now.checked_sub(Duration::from_millis(text.trim().parse().ok()?))
}

fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{BOOT, Duration, MISSING, file, may_come_at};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_daemon_that_is_gone_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s.sock");
        let (long, booted) = (BOOT + MISSING + MISSING, BOOT - SECOND);
        let says = |then: Duration| fs::write(file(&socket), then.as_millis().to_string()).unwrap();

        assert!(may_come_at(&socket, booted), "it may be starting with the machine");
        assert!(!may_come_at(&socket, long), "it has not been ready since the boot");
        for (now, missing, comes) in [
            (long, Duration::ZERO, true),
            (long, MISSING - SECOND, true),
            (long, MISSING, false),
            (long, BOOT, false),
            (booted, MISSING, false),
        ] {
            says(now - missing);
            assert_eq!(may_come_at(&socket, now), comes, "missing for {missing:?} at {now:?}");
        }
        // By the clock of another boot it was ready later than now.
        says(long);
        assert!(may_come_at(&socket, booted));
        fs::write(file(&socket), "soon").unwrap();
        assert!(may_come_at(&socket, booted) && !may_come_at(&socket, long));
    }
}
