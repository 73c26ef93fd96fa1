//! A file that has another content for one process and what it starts.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
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
/// A symbolic link is followed; one that leads nowhere is covered itself. `beside` is any folder that
/// exists: for a moment it is covered too, for the calling process alone.
///
/// If there is no file, its folder is covered by one that has it beside everything that the folder
/// has now: nothing can be added to the folder or removed from it through that namespace.
///
/// The process must have one thread: another keeps the namespace that it has.
///
/// # Errors
/// [`CoverError`]; the file then has its own content, or none.
///
/// # Privileges
/// CAP_SYS_ADMIN.
pub fn cover_file(path: &Path, content: &[u8], beside: &Path) -> Result<(), CoverError> {
    let failed = |step, source| CoverError { path: path.to_owned(), step, source };
    let refused = |step| move |errno: Errno| failed(step, errno.into());
    // SAFETY: what makes `unshare` unsafe is UnshareFlags::FILES, which unshares the table of
    // descriptors behind the back of code that owns them (I/O safety). NEWNS changes only which mounts
    // this thread sees.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
        .map_err(refused("make a mount namespace"))?;
    let downstream = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", downstream).map_err(refused("separate its mounts"))?;
    // Not before: what is mounted on must belong to this namespace.
    let place = place_of(path).map_err(|source| failed("open it", source))?;
    let no_more = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("tmpfs", beside, "tmpfs", no_more, Some(c"mode=0755"))
        .map_err(refused("mount a file system"))?;
    let written = beside.join("file");
    let covered = fs::write(&written, content)
        .map_err(|source| failed("write the content", source))
        .and_then(|()| match place {
            // By its descriptor: `path` may be below `beside`, or a link into it.
            Place::There(file) => {
                let target = format!("/proc/self/fd/{}", file.as_raw_fd());
                rustix::mount::mount_bind(&written, target.as_str())
                    .map_err(refused("mount the content"))
            }
            Place::Missing { folder, name } => {
                add_to_folder(&folder, &name, &written, &beside.join("folder"))
                    .map_err(|source| failed("cover its folder", source))
            }
        });
    let uncovered = rustix::mount::unmount(beside, UnmountFlags::DETACH);
    covered.and(uncovered.map_err(refused("unmount the file system")))
}

/// What is mounted on.
enum Place {
    /// The file, or a link that leads nowhere.
    There(File),
    /// There is neither.
    Missing { folder: PathBuf, name: OsString },
}

fn place_of(path: &Path) -> io::Result<Place> {
    let open = |flags: OFlags| {
        let flags = i32::try_from((OFlags::PATH | flags).bits()).unwrap_or_default();
        fs::OpenOptions::new().read(true).custom_flags(flags).open(path)
    };
    let is_lost = |error: &io::Error| {
        matches!(
            error.raw_os_error().map(Errno::from_raw_os_error),
            Some(Errno::NOENT | Errno::LOOP)
        )
    };
    match open(OFlags::empty()) {
        Err(error) if is_lost(&error) => {}
        opened => return opened.map(Place::There),
    }
    // Mounting through a descriptor does not follow the link.
    match (open(OFlags::NOFOLLOW), path.parent(), path.file_name()) {
        (Err(error), Some(folder), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(Place::Missing { folder: folder.to_owned(), name: name.to_owned() })
        }
        (opened, ..) => opened.map(Place::There),
    }
}

/// Covers a folder by one that has the same entries and one more, the file `added`. It is put
/// together in `made`, which does not exist yet.
fn add_to_folder(folder: &Path, name: &OsStr, added: &Path, made: &Path) -> io::Result<()> {
    fs::create_dir(made)?;
    let bind = |from: &Path, to: &Path, is_folder: bool| {
        if is_folder {
            fs::create_dir(to)?;
        } else {
            File::create(to)?;
        }
        Ok::<_, io::Error>(rustix::mount::mount_bind_recursive(from, to)?)
    };
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (from, to) = (entry.path(), made.join(entry.file_name()));
        let kind = entry.file_type()?;
        let done = match kind.is_symlink() {
            true => fs::read_link(&from).and_then(|target| std::os::unix::fs::symlink(target, &to)),
            false => bind(&from, &to, kind.is_dir()),
        };
        match done {
            // It went meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => done?,
        }
    }
    bind(added, &made.join(name), false)?;
    rustix::mount::mount_bind_recursive(made, folder)?;
    // What is added here would be lost: whoever tries is told.
    let read_only = MountFlags::BIND | MountFlags::RDONLY;
    Ok(rustix::mount::mount_remount(folder, read_only, "")?)
}
