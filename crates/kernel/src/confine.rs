//! A process confines itself: it gives up for good what a service does not need.
//!
//! Where systemd starts a service, the settings of the service's unit confine it (`man 5
//! systemd.exec`). Where there is no systemd, the service's process calls [`confine`] before
//! anything else and has the same confinement:
//!
//! | setting of a unit | here |
//! |---|---|
//! | `CapabilityBoundingSet=` | [`Confinement::capabilities`] |
//! | `SystemCallFilter=`, with `SystemCallErrorNumber=EPERM` | [`Confinement::system_calls`] |
//! | `RestrictAddressFamilies=` | [`Confinement::families`] |
//! | `RestrictNamespaces=` | [`Confinement::namespaces`] |
//! | `ProtectSystem=strict`, `ReadWritePaths=`, `StateDirectory=`, `RuntimeDirectory=` | [`OwnMounts::writable`] |
//! | `PrivateDevices=`, or `DevicePolicy=closed` with `DeviceAllow=` | [`OwnMounts::devices`] |
//! | `ProtectHome=`, `InaccessiblePaths=` | [`OwnMounts::hidden`] |
//! | `PrivateTmp=` | [`OwnMounts::private_tmp`] |
//! | `User=`, `Group=` | [`Confinement::user`] |
//! | `LimitNOFILE=` | [`Confinement::open_files`] |
//! | `NoNewPrivileges=`, `SystemCallArchitectures=native`, `ProtectHostname=`, `LockPersonality=`, `MemoryDenyWriteExecute=`, `RestrictRealtime=`, `RestrictSUIDSGID=`, `UMask=0077` | always |
//! | `ProtectControlGroups=`, `ProtectKernelLogs=`, `ProtectKernelModules=` | always with [`Mounts::Own`] |
//! | `ProtectClock=`, and the capabilities and system calls that other settings take away | what the lists do not name |
//!
//! # What is stricter than systemd 252
//!
//! * A program cannot use io_uring, by which it would make calls that no filter sees (EPERM), nor
//!   `sched_setattr`, which could ask for real time unseen (EPERM). `open` cannot make a nameless
//!   file with a set-user-ID bit either.
//! * With [`Mounts::Own`], `/home`, `/root` and `/run/user` are read-only unless they are hidden or
//!   writable. `/dev` has neither `shm`, `mqueue`, `hugepages` nor `log`, and where `/dev/pts/ptmx`
//!   has no permissions, a process without CAP_DAC_OVERRIDE can make no terminal.
//! * `RestrictNamespaces=` works on aarch64, too.
//!
//! # What is weaker than systemd 252
//!
//! * Devices are restricted by their names in `/dev`, not in a control group by their numbers. A
//!   process with CAP_SYS_PTRACE reaches the host's `/dev` through `/proc/PID/root`. (It reaches the
//!   host's other files in this way with systemd, too.) With [`Mounts::Shared`] only file permissions
//!   and the lack of CAP_MKNOD restrict devices.
//! * What the process has open stays open, with the rights it was opened with.
//! * A call of the architecture x32 fails with EPERM; systemd kills the process. Calls of i386 kill
//!   it here as well.
//! * `/proc/kmsg` is empty but can be opened.
//! * Files in a private `/tmp` take memory; there is a limit.

mod calls;
mod mounts;
mod system_service;

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, UnshareFlags};
use thiserror::Error;

pub use system_service::SYSTEM_SERVICE;

/// What a process keeps. It gives up everything else for good, for itself and for the programs that
/// it starts.
#[derive(Debug, Clone, Copy)]
pub struct Confinement<'a> {
    /// The capabilities that it keeps if it has them. No set of capabilities has others afterwards.
    pub capabilities: &'a [Capability],
    /// The names of the system calls that it may make, such as those of [`SYSTEM_SERVICE`]. Others
    /// fail with EPERM. Names that this architecture does not have are passed over.
    pub system_calls: &'a [&'a str],
    /// The families of the sockets that it may open. Others fail with EAFNOSUPPORT.
    pub families: &'a [Family],
    /// The namespaces that it may make and enter.
    pub namespaces: Namespaces,
    /// The mounts that it sees.
    pub mounts: Mounts<'a>,
    /// The user that it becomes. It has no capabilities then.
    pub user: Option<User>,
    /// How many files it may have open at once, if not as many as before.
    pub open_files: Option<u64>,
}

/// A user and its group, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// The user.
    pub uid: u32,
    /// The only group.
    pub gid: u32,
}

/// A capability that a service may keep (`man 7 capabilities`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// CAP_DAC_OVERRIDE: read and write any file.
    DacOverride,
    /// CAP_NET_ADMIN: change the network.
    NetAdmin,
    /// CAP_NET_BIND_SERVICE: listen on ports below 1024.
    NetBindService,
    /// CAP_NET_BROADCAST: receive events of all network namespaces.
    NetBroadcast,
    /// CAP_NET_RAW: send and receive frames.
    NetRaw,
    /// CAP_SYS_ADMIN: enter namespaces, mount.
    SysAdmin,
    /// CAP_SYS_PTRACE: examine the processes of others.
    SysPtrace,
}

impl Capability {
    fn set(self) -> CapabilitySet {
        match self {
            Self::DacOverride => CapabilitySet::DAC_OVERRIDE,
            Self::NetAdmin => CapabilitySet::NET_ADMIN,
            Self::NetBindService => CapabilitySet::NET_BIND_SERVICE,
            Self::NetBroadcast => CapabilitySet::NET_BROADCAST,
            Self::NetRaw => CapabilitySet::NET_RAW,
            Self::SysAdmin => CapabilitySet::SYS_ADMIN,
            Self::SysPtrace => CapabilitySet::SYS_PTRACE,
        }
    }
}

/// A family of sockets (`man 2 socket`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// AF_INET
    Inet,
    /// AF_INET6
    Inet6,
    /// AF_NETLINK
    Netlink,
    /// AF_PACKET
    Packet,
    /// AF_UNIX
    Unix,
}

/// The namespaces that a process may make and enter (`man 7 namespaces`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespaces {
    /// None of any kind: `RestrictNamespaces=true`.
    None,
    /// Network namespaces: `RestrictNamespaces=net`.
    Network,
}

/// The mounts that a process sees.
#[derive(Debug, Clone, Copy)]
pub enum Mounts<'a> {
    /// Those of the process that started it. Other processes see what it mounts, and its mounts
    /// outlive it.
    Shared,
    /// Its own view of them, in which it can write to few places. It also sees what other processes
    /// mount and unmount later; they do not see what it mounts.
    Own(OwnMounts<'a>),
}

/// A process's own view of the mounts: all is read-only, except `/proc` and `/sys` without its control
/// groups, and what is named here.
#[derive(Debug, Clone, Copy)]
pub struct OwnMounts<'a> {
    /// The folders and files that are writable, with what is below them. They must exist. A mount
    /// of that path that is read-only, as `/proc/sys` in a container, becomes writable.
    pub writable: &'a [&'a Path],
    /// The devices in `/dev`.
    pub devices: Devices<'a>,
    /// The folders that become empty and read-only, and the files that become empty. Those that do
    /// not exist are passed over. Hiding a folder also hides what is writable below it.
    pub hidden: &'a [&'a Path],
    /// Whether `/tmp` and `/var/tmp` are empty, the process's own and gone with it.
    pub private_tmp: bool,
}

/// The devices that a process sees in `/dev`.
#[derive(Debug, Clone, Copy)]
pub enum Devices<'a> {
    /// All.
    All,
    /// Only `null`, `zero`, `full`, `random`, `urandom`, `tty`, `ptmx` and `pts`, as far as they
    /// exist, and these, by their paths in `/dev`, which must exist.
    Only(&'a [&'a Path]),
}

/// A part of the confinement that can be denied to a process that is itself confined, as in a
/// container.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Limiting the number of open files. The limit is then as near as the process was permitted to
    /// set it.
    OpenFiles(u64),
    /// Moving to mounts of its own: no part of [`Mounts::Own`] has been done.
    OwnMounts,
    /// Keeping this path writable.
    Writable(PathBuf),
    /// Making what is mounted here read-only.
    ReadOnly(PathBuf),
    /// Restricting `/dev`, or keeping this device.
    Device(PathBuf),
    /// Hiding this folder or file.
    Hidden(PathBuf),
    /// Giving the process this folder for its temporary files.
    PrivateTmp(PathBuf),
    /// Keeping the process away from the machine's host name.
    HostName,
    /// Becoming this user. The process has the user and the groups that it had before.
    User(u32),
    /// Cutting down the bounding set. The process has no more than the capabilities that it keeps
    /// nevertheless, and cannot get others: it has no CAP_SETPCAP, and cannot gain privileges.
    BoundingSet,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenFiles(count) => write!(f, "limit open files to {count}"),
            Self::OwnMounts => f.write_str("move to mounts of its own"),
            Self::Writable(path) => write!(f, "keep {path:?} writable"),
            Self::ReadOnly(path) => write!(f, "make {path:?} read-only"),
            Self::Device(path) => write!(f, "keep {path:?} and hide other devices"),
            Self::Hidden(path) => write!(f, "hide {path:?}"),
            Self::PrivateTmp(path) => write!(f, "make {path:?} private"),
            Self::HostName => f.write_str("move to a host name of its own"),
            Self::User(uid) => write!(f, "become the user {uid}"),
            Self::BoundingSet => f.write_str("cut down the bounding set of capabilities"),
        }
    }
}

/// A [`Step`] that was not done, and why.
#[derive(Debug, Error)]
#[error("{step}")]
pub struct UndoneStep {
    /// The step.
    pub step: Step,
    /// Why it was not done.
    #[source]
    pub source: io::Error,
}

impl UndoneStep {
    fn new(step: Step, source: impl Into<io::Error>) -> Self {
        Self { step, source: source.into() }
    }
}

/// A process could not be confined. It must end: some parts of its confinement may have been done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfineError {
    /// The process's threads could not be counted.
    #[error("count the process's threads")]
    CountThreads {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The process has other threads, which would keep their capabilities and mounts.
    #[error("confine a process of {count} threads")]
    Threads {
        /// How many threads it has.
        count: usize,
    },
    /// The filters of system calls could not be made: this architecture is not known, or a list is
    /// too long.
    #[error("make the filter of system calls")]
    MakeFilter {
        /// Why.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The process could not forgo new privileges.
    #[error("forgo new privileges")]
    NoNewPrivileges {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The process could not give up capabilities.
    #[error("give up capabilities")]
    Capabilities {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel did not accept a filter of system calls.
    #[error("filter system calls")]
    Filter {
        /// Why.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
}

/// Confines the process, and returns the steps that it was not permitted to do. The other steps
/// have been done then. It always sets the filters of system calls, the capabilities (except the
/// bounding set), and the flag that keeps the process from new privileges.
///
/// Its working directory is `/` if it has mounts of its own.
///
/// ```no_run
/// use kernel::confine::{
///     Capability, Confinement, Devices, Family, Mounts, Namespaces, OwnMounts, SYSTEM_SERVICE, confine,
/// };
///
/// let undone = confine(&Confinement {
///     capabilities: &[Capability::SysAdmin, Capability::NetAdmin],
///     system_calls: SYSTEM_SERVICE,
///     families: &[Family::Unix, Family::Netlink],
///     namespaces: Namespaces::Network,
///     mounts: Mounts::Own(OwnMounts {
///         writable: &["/run/example".as_ref()],
///         devices: Devices::Only(&[]),
///         hidden: &[],
///         private_tmp: false,
///     }),
///     user: None,
///     open_files: None,
/// })?;
/// # Ok::<(), kernel::confine::ConfineError>(())
/// ```
///
/// # Errors
/// [`ConfineError`]: the process must end.
///
/// # Privileges
/// CAP_SYS_ADMIN for mounts and host name, CAP_SETPCAP for the bounding set, CAP_SETUID and
/// CAP_SETGID for another user, CAP_SYS_RESOURCE for more open files. Without them the steps are returned.
///
/// # Kernel
/// Seccomp filters (CONFIG_SECCOMP_FILTER). Before Linux 5.12, which has mount_setattr(2), mounts
/// become read-only one after the other.
pub fn confine(what: &Confinement<'_>) -> Result<Vec<UndoneStep>, ConfineError> {
    alone()?;
    let filters = calls::Filters::new(what)?;
    let mut undone = Vec::new();
    if let Some(count) = what.open_files
        && let Err(errno) = limit_open_files(count)
    {
        undone.push(UndoneStep::new(Step::OpenFiles(count), errno));
    }
    // These need the capabilities that the process then gives up.
    if let Mounts::Own(own) = &what.mounts {
        mounts::enter(own, &mut undone);
    }
    // SAFETY: no table of descriptors is unshared (UnshareFlags::FILES), only the host name.
    if let Err(errno) = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUTS) } {
        undone.push(UndoneStep::new(Step::HostName, errno));
    }
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let keep = what
        .capabilities
        .iter()
        .fold(CapabilitySet::empty(), |set, capability| set | capability.set());
    if let Err(errno) = cut_bounding_set(keep) {
        undone.push(UndoneStep::new(Step::BoundingSet, errno));
    }
    if let Some(user) = what.user
        && let Err(errno) = become_user(user)
    {
        undone.push(UndoneStep::new(Step::User(user.uid), errno));
    }
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| ConfineError::NoNewPrivileges { source: errno.into() })?;
    cut_capabilities(keep).map_err(|errno| ConfineError::Capabilities { source: errno.into() })?;
    // Last, since they refuse most of the calls above.
    filters.apply()?;
    Ok(undone)
}

/// Makes sure that the process has one thread: capabilities and mounts are a thread's own.
fn alone() -> Result<(), ConfineError> {
    let threads = std::fs::read_dir("/proc/self/task")
        .map_err(|source| ConfineError::CountThreads { source })?;
    match threads.count() {
        1 => Ok(()),
        count => Err(ConfineError::Threads { count }),
    }
}

/// Sets both limits, as `LimitNOFILE=` does; if that is not permitted, comes as near as possible.
fn limit_open_files(count: u64) -> Result<(), Errno> {
    let both = Rlimit { current: Some(count), maximum: Some(count) };
    rustix::process::setrlimit(Resource::Nofile, both).inspect_err(|_| {
        let Rlimit { maximum, .. } = rustix::process::getrlimit(Resource::Nofile);
        let nearest = Rlimit { current: maximum, maximum };
        // The first error is the one to report.
        let _ = rustix::process::setrlimit(Resource::Nofile, nearest);
    })
}

/// Reports whether the process may give files to another user, and become that user.
#[must_use]
pub fn may_become_another() -> bool {
    let needed = CapabilitySet::CHOWN | CapabilitySet::SETUID | CapabilitySet::SETGID;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// Becomes a user for good; the process has one thread, so it is the whole process.
fn become_user(user: User) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    // A namespace may know the group and not the user, or neither.
    let (before, groups) = (rustix::process::getgid(), rustix::process::getgroups()?);
    rustix::thread::set_thread_groups(&[])?;
    let became = rustix::thread::set_thread_res_gid(gid, gid, gid)
        .and_then(|()| rustix::thread::set_thread_res_uid(uid, uid, uid));
    if became.is_err() {
        let _ = rustix::thread::set_thread_res_gid(before, before, before);
        let _ = rustix::thread::set_thread_groups(&groups);
    }
    became
}

/// Removes all other capabilities from the bounding set, or as many as possible.
fn cut_bounding_set(keep: CapabilitySet) -> Result<(), Errno> {
    let mut first = Ok(());
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::capability_is_in_bounding_set(capability) {
            // The kernel knows no further ones.
            Err(_) => break,
            Ok(true) if !keep.contains(capability) => {
                let removed = rustix::thread::remove_capability_from_bounding_set(capability);
                first = first.and(removed);
            }
            Ok(_) => {}
        }
    }
    first
}

/// Gives up all other capabilities. The ambient set follows the permitted and the inheritable one
/// (`man 7 capabilities`).
fn cut_capabilities(keep: CapabilitySet) -> Result<(), Errno> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective &= keep;
    sets.permitted &= keep;
    sets.inheritable &= keep;
    rustix::thread::set_capabilities(None, sets)
}
