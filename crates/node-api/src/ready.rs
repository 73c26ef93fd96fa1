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
    let text = state::read_optional(&file(socket)).ok().flatten();
    let text = text.and_then(|text| String::from_utf8(text).ok());
    let then = text.and_then(|text| text.trim().parse().ok()).map(Duration::from_millis);
    let now = clock_gettime(ClockId::Boottime);
    let now = Duration::try_from(now).unwrap_or_default();
    then.and_then(|then| now.checked_sub(then)).is_some_and(|missing| missing < MISSING)
}
