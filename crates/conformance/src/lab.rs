//! The private machine that a case runs on.
//!
//! A case is its own process, the first of a PID namespace. It moves into new mount and network
//! namespaces, makes everything it shares with the machine read-only, covers `/run`, `/var`, `/tmp`
//! and `/dev/shm` with empty file systems and `/etc` with a private copy, and mounts `/proc` and
//! `/sys` anew. When it ends, or is ended, the kernel removes all of that: namespaces, mounts and
//! every process that a plugin left behind.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use kernel::route::{Change, LinkSet, RouteSocket};
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
    mount_bind, mount_change, mount_remount, move_mount, open_tree, unmount,
};
use rustix::thread::UnshareFlags;
use thiserror::Error;

/// The suite's own folder: it does not count as something that plugins leave or change.
pub(crate) const OWN: &str = "/run/conformance";

/// The folder of containers' namespaces.
pub(crate) const NETNS: &str = "/run/netns";

/// Folders covered by empty file systems.
const COVERED: [&str; 4] = ["/run", "/var", "/tmp", "/dev/shm"];

/// Folders below them that programs take for granted.
const MADE: [&str; 6] = ["/run/lock", "/var/lib", "/var/tmp", "/var/log", "/var/cache", OWN];

/// What the private copy of `/etc` leaves out: a fresh machine does not have it.
const FORGOTTEN: [&str; 2] = ["/etc/cni", "/etc/netwright"];

/// Mount points that stay writable: devices, and what gets its own mount.
const WRITABLE: [&str; 4] = ["/proc", "/sys", "/dev", "/etc"];

/// The private machine could not be set up.
#[derive(Debug, Error)]
#[error("{step}")]
pub(crate) struct LabError {
    step: String,
    #[source]
    source: io::Error,
}

trait Step<T> {
    fn step(self, what: impl Into<String>) -> Result<T, LabError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, what: impl Into<String>) -> Result<T, LabError> {
        self.map_err(|error| LabError { step: what.into(), source: error.into() })
    }
}

/// Moves the calling thread into new namespaces.
///
/// The deprecated function is the safe one. Its successor is unsafe because of `CLONE_FILES`, which
/// is not used here.
#[expect(deprecated, reason = "see above")]
pub(crate) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    assert!(!flags.contains(UnshareFlags::FILES), "descriptor tables are never unshared");
    rustix::thread::unshare(flags)
}

/// Turns the calling process, which must have one thread, into a private machine. The `kept` paths
/// stay visible.
///
/// # Errors
/// [`LabError`]; it needs root.
pub(crate) fn enter(kept: &[PathBuf]) -> Result<(), LabError> {
    unshare(UnshareFlags::NEWNS | UnshareFlags::NEWNET)
        .step("make mount and network namespaces (needs root)")?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step("make / private")?;
    let covered = kept.iter().filter(|path| is_covered(path));
    let trees: Vec<(&PathBuf, OwnedFd)> =
        covered.map(|path| Ok((path, clone_tree(path)?))).collect::<Result<_, LabError>>()?;
    for dir in COVERED.into_iter().filter(|dir| Path::new(dir).is_dir()) {
        tmpfs(dir)?;
    }
    for dir in MADE {
        fs::create_dir_all(dir).step(format!("make {dir}"))?;
    }
    for (link, target) in [("/var/run", "/run"), ("/var/lock", "/run/lock")] {
        std::os::unix::fs::symlink(target, link).step(format!("make {link}"))?;
    }
    for (path, tree) in trees {
        fs::create_dir_all(path).step(format!("make {}", path.display()))?;
        move_mount(tree, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .step(format!("show {}", path.display()))?;
    }
    overlay_etc()?;
    protect_machine();
    mount("proc", "/proc", "proc", MountFlags::empty(), None).step("mount /proc")?;
    protect_sysctls();
    // Without it, programs see the links of another namespace; programs that use netlink do not
    // depend on it.
    let _ = mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None);
    let mut netlink = RouteSocket::open().map_err(io::Error::other).step("open netlink")?;
    let lo = Change::SetLink { ifindex: 1, set: LinkSet::default().up(true) };
    netlink.apply_one(&lo).map_err(io::Error::other).step("set lo up")
}

fn is_covered(path: &Path) -> bool {
    COVERED.iter().any(|dir| path.starts_with(dir))
}

fn tmpfs(dir: &str) -> Result<(), LabError> {
    mount("tmpfs", dir, "tmpfs", MountFlags::empty(), Some(c"mode=0755"))
        .step(format!("cover {dir}"))
}

fn clone_tree(dir: &Path) -> Result<OwnedFd, LabError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, dir, flags).step(format!("clone the mounts of {}", dir.display()))
}

/// Mounts a copy of `/etc`: nothing written to it reaches the machine.
fn overlay_etc() -> Result<(), LabError> {
    let (top, work) = (format!("{OWN}/etc"), format!("{OWN}/etc-work"));
    for dir in [&top, &work] {
        fs::create_dir_all(dir).step(format!("make {dir}"))?;
    }
    let options = format!("lowerdir=/etc,upperdir={top},workdir={work}");
    let options = CString::new(options).step("name the layers of /etc")?;
    mount("overlay", "/etc", "overlay", MountFlags::empty(), Some(options.as_c_str()))
        .step("put an overlay on /etc")?;
    for dir in FORGOTTEN {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).step(format!("hide {dir}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes every mount of the machine read-only here. A mount that refuses stays as it is, and the
/// next is tried.
fn protect_machine() {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in table.lines() {
        let Some(point) = line.split(' ').nth(4) else { continue };
        let path = Path::new(point);
        let ours = COVERED.iter().any(|dir| path == Path::new(dir));
        if ours || WRITABLE.iter().any(|dir| path.starts_with(dir)) {
            continue;
        }
        let _ = mount_remount(path, MountFlags::BIND | MountFlags::RDONLY, "");
    }
}

/// Only the network's sysctls belong to a namespace: protects the others.
fn protect_sysctls() {
    let (all, net) = ("/proc/sys", "/proc/sys/net");
    let protect = || -> rustix::io::Result<()> {
        mount_bind(all, all)?;
        mount_bind(net, net)?;
        mount_remount(all, MountFlags::BIND | MountFlags::RDONLY, "")
    };
    if protect().is_err() {
        let _ = unmount(net, UnmountFlags::DETACH);
        let _ = unmount(all, UnmountFlags::DETACH);
    }
}
