//! A file that has another content for one process and what it starts.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::UnshareFlags;
use thiserror::Error;

/// A file could not be covered.
#[derive(Debug, Error)]
#[error("failed to {step} to cover {path:?}")]
pub struct CoverError {
    path: PathBuf,
    step: &'static str,
    /// Why.
    #[source]
    source: io::Error,
}

/// Gives the calling process a mount namespace of its own, in which a file has this content. Nothing
/// changes for other processes, nothing is left behind, and what they mount or unmount later is seen.
/// A symbolic link is followed. `beside` is any folder that exists: for a moment it is covered too, for
/// the calling process alone.
///
/// The process must have one thread: another keeps the namespace that it has.
///
/// # Errors
/// [`CoverError`]; the file then has its own content.
///
/// # Privileges
/// CAP_SYS_ADMIN.
pub fn cover_file(path: &Path, content: &[u8], beside: &Path) -> Result<(), CoverError> {
    let failed = |step, source| CoverError { path: path.to_owned(), step, source };
    let refused = |step| move |errno: rustix::io::Errno| failed(step, errno.into());
    // SAFETY: what makes `unshare` unsafe is UnshareFlags::FILES, which unshares the table of
    // descriptors behind the back of code that owns them (I/O safety). NEWNS changes only which mounts
    // this thread sees.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
        .map_err(refused("make a mount namespace"))?;
    let downstream = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", downstream).map_err(refused("separate its mounts"))?;
    // Not before: what is mounted on must belong to this namespace.
    let flags = i32::try_from(OFlags::PATH.bits()).unwrap_or_default();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|source| failed("open it", source))?;
    let no_more = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("tmpfs", beside, "tmpfs", no_more, Some(c"mode=0755"))
        .map_err(refused("mount a file system"))?;
    let written = beside.join("file");
    let covered = fs::write(&written, content)
        .map_err(|source| failed("write the content", source))
        .and_then(|()| {
            // By its descriptor: `path` may be below `beside`, or a link into it.
            let target = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::mount::mount_bind(&written, target.as_str())
                .map_err(refused("mount the content"))
        });
    let uncovered = rustix::mount::unmount(beside, UnmountFlags::DETACH);
    covered.and(uncovered.map_err(refused("unmount the file system")))
}
