//! The system calls that create a lab: mounts and namespaces.

use std::fmt;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
    mount_bind_recursive, mount_change, move_mount, open_tree, unmount,
};
use rustix::thread::UnshareFlags;

use super::{loopback, sysctl};

/// Directories of the machine that become private: writable as before, but nothing written reaches
/// the machine.
///
/// `/var` is the last, because the private files are below it until then.
const OVERLAID: [&str; 4] = ["/etc", "/opt", "/usr/local", "/var"];

/// What a fresh machine does not have: removed from the lab's view.
const FORGOTTEN: [&str; 5] =
    ["/etc/cni", "/etc/netwright", "/var/lib/cni", "/var/lib/netwright", "/opt/cni"];

/// Directories covered by an empty file system.
const COVERED: [&str; 3] = ["/run", "/dev/shm", "/var/lib/containers"];

/// The part of an overlaid directory that remains the machine's. It contains the lab's scratch
/// directory.
pub(super) const TEMPORARY: &str = "/var/tmp";

/// The namespaces of a lab.
#[derive(Debug)]
pub(super) struct Namespaces {
    pub(super) mount: OwnedFd,
    pub(super) net: OwnedFd,
}

/// A step of creating a lab failed.
#[derive(Debug)]
pub(super) struct SetupError {
    step: String,
    source: Option<std::io::Error>,
}

impl SetupError {
    pub(super) fn died() -> Self {
        Self { step: "the keeper thread died".to_owned(), source: None }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{}: {source}", self.step),
            None => f.write_str(&self.step),
        }
    }
}

/// Attaches the attempted operation to an error.
trait Step<T> {
    fn step(self, what: impl Into<String>) -> Result<T, SetupError>;
}

impl<T, E: Into<std::io::Error>> Step<T> for Result<T, E> {
    fn step(self, what: impl Into<String>) -> Result<T, SetupError> {
        self.map_err(|error| SetupError { step: what.into(), source: Some(error.into()) })
    }
}

/// Moves the calling thread into new namespaces.
///
/// The deprecated function is the safe one. Its successor is unsafe because of `CLONE_FILES`, which
/// is not requested here.
#[expect(deprecated, reason = "see above")]
pub(crate) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    assert!(!flags.contains(UnshareFlags::FILES), "descriptor tables are never unshared");
    rustix::thread::unshare(flags)
}

/// Moves the calling thread into a new mount and network namespace and makes it look like a fresh
/// host.
pub(super) fn private_host(scratch: &Path) -> Result<Namespaces, SetupError> {
    unshare(UnshareFlags::NEWNS | UnshareFlags::NEWNET)
        .step("unshare mount and network namespaces")?;
    default_sysctls()?;
    loopback::up().step("bring lo up")?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step("make / private")?;
    let needed: Vec<(PathBuf, OwnedFd)> = needed()
        .into_iter()
        .map(|dir| Ok((dir.clone(), clone_tree(&dir)?)))
        .collect::<Result<_, SetupError>>()?;
    overlay(scratch)?;
    forget_networks()?;
    for dir in COVERED.into_iter().filter(|dir| Path::new(dir).is_dir()) {
        tmpfs(Path::new(dir))?;
    }
    for (dir, tree) in needed {
        fs::create_dir_all(&dir).step(format!("create {}", dir.display()))?;
        move_mount(tree, "", CWD, &dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .step(format!("show {}", dir.display()))?;
    }
    fresh_sysfs()?;
    fs::create_dir_all("/run/lock").step("create /run/lock")?;
    fs::create_dir_all("/run/netns").step("create /run/netns")?;
    // Shared, as iproute2 makes it: all processes see a namespace named in one, including copies of
    // this mount namespace.
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    mount_bind_recursive("/run/netns", "/run/netns").step("bind /run/netns")?;
    mount_change("/", shared).step("make / shared within the lab")?;
    Ok(Namespaces {
        mount: File::open("/proc/thread-self/ns/mnt").step("open mount namespace")?.into(),
        net: File::open("/proc/thread-self/ns/net").step("open network namespace")?.into(),
    })
}

/// The checkout and what cargo built, where a lab covers them. They remain the machine's. An
/// overlay would be enough for most tests, but container roots are overlays over folders in it, and
/// the kernel allows no third layer of overlays.
fn needed() -> Vec<PathBuf> {
    let has = |dir: Option<PathBuf>, file: &str| -> Option<PathBuf> {
        let dir = dir?.canonicalize().ok()?;
        // The outermost folder is taken, because cargo may put such a mark into a folder for each
        // target below it.
        dir.ancestors().filter(|dir| dir.join(file).is_file()).last().map(Path::to_owned)
    };
    let checkout = has(std::env::current_dir().ok(), "Cargo.lock");
    let built = has(std::env::current_exe().ok(), "CACHEDIR.TAG");
    let built = built.filter(|built| !checkout.as_ref().is_some_and(|dir| built.starts_with(dir)));
    let covered = |dir: &PathBuf| {
        !dir.starts_with(TEMPORARY)
            && OVERLAID.iter().chain(&COVERED).any(|covered| dir.starts_with(covered))
    };
    checkout.into_iter().chain(built).filter(covered).collect()
}

fn default_sysctls() -> Result<(), SetupError> {
    sysctl::reset().map_err(|(step, source)| SetupError { step, source: Some(source) })
}

fn overlay(scratch: &Path) -> Result<(), SetupError> {
    let temporary = clone_tree(Path::new(TEMPORARY))?;
    let upper = scratch.join("upper");
    fs::create_dir(&upper).step("create directory for private files")?;
    tmpfs(&upper)?;
    for lower in OVERLAID {
        let layer = upper.join(lower.trim_start_matches('/'));
        let (top, work) = (layer.join("top"), layer.join("work"));
        fs::create_dir_all(&top).step(format!("create {}", top.display()))?;
        fs::create_dir_all(&work).step(format!("create {}", work.display()))?;
        if !Path::new(lower).is_dir() {
            continue;
        }
        let options =
            format!("lowerdir={lower},upperdir={},workdir={}", top.display(), work.display());
        let options = std::ffi::CString::new(options).step("overlay options")?;
        mount("overlay", lower, "overlay", MountFlags::empty(), Some(options.as_c_str()))
            .step(format!("mount overlay on {lower}"))?;
    }
    move_mount(temporary, "", CWD, TEMPORARY, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .step("move /var/tmp")
}

fn forget_networks() -> Result<(), SetupError> {
    for dir in FORGOTTEN {
        match fs::remove_dir_all(dir) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).step(format!("hide {dir}")),
        }
    }
    Ok(())
}

/// Mounts `/sys` as seen from the new network namespace, with the cgroup hierarchies where programs
/// look for them.
fn fresh_sysfs() -> Result<(), SetupError> {
    let cgroups = Path::new("/sys/fs/cgroup");
    // crun refuses a hybrid hierarchy (v1 and v2 side by side); then the lab shows only v1.
    let _ = unmount(cgroups.join("unified"), UnmountFlags::DETACH);
    let tree = clone_tree(cgroups)?;
    mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None).step("mount sysfs")?;
    move_mount(tree, "", CWD, cgroups, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .step("move /sys/fs/cgroup")
}

/// Returns a detached copy of the mounts at and below a directory.
fn clone_tree(dir: &Path) -> Result<OwnedFd, SetupError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, dir, flags).step(format!("clone mounts of {}", dir.display()))
}

fn tmpfs(dir: &Path) -> Result<(), SetupError> {
    let options = c"mode=0755";
    mount("tmpfs", dir, "tmpfs", MountFlags::empty(), Some(options))
        .step(format!("mount tmpfs on {}", dir.display()))
}

/// Creates a network namespace and mounts it at `/run/netns/NAME` of the calling thread's mount
/// namespace.
pub(super) fn create_netns(name: &str) -> Result<OwnedFd, SetupError> {
    let path = PathBuf::from("/run/netns").join(name);
    fs::create_dir_all("/run/netns").step("create /run/netns")?;
    File::options()
        .write(true)
        .create_new(true)
        .open(&path)
        .step(format!("create {}", path.display()))?;
    let in_new = || -> Result<OwnedFd, SetupError> {
        unshare(UnshareFlags::NEWNET).step("unshare network namespace")?;
        default_sysctls()?;
        let own = "/proc/thread-self/ns/net";
        rustix::mount::mount_bind(own, &path).step(format!("mount {}", path.display()))?;
        Ok(File::open(own).step("open network namespace")?.into())
    };
    thread::scope(|scope| scope.spawn(in_new).join()).unwrap_or_else(|_| Err(SetupError::died()))
}

/// Removes the mount and the file. It is fine if neither exists.
pub(super) fn delete_netns(path: &Path) {
    let _ = unmount(path, UnmountFlags::DETACH);
    let _ = fs::remove_file(path);
}
