//! Network namespaces: open, identify, enter, create, remove.
//!
//! A [`Netns`] is an open descriptor, so the namespace stays alive (and means the same namespace)
//! as long as the value exists, even if the path is removed or leads elsewhere. Almost nothing
//! needs to run *inside* a namespace: a netlink socket keeps the namespace it was created in
//! ([`RouteSocket::open_in`](crate::route::RouteSocket::open_in)). Only sysctls and other kinds of
//! sockets need [`within`].
//!
//! A namespace belongs to the calling thread, not to the process: everything here names
//! `/proc/thread-self`, never `/proc/self`. Do not call [`within`] or [`unshare_net`] from a thread
//! that an async runtime owns.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::fs;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use thiserror::Error;

/// `linux include/uapi/linux/magic.h` NSFS_MAGIC: a namespace, by bind mount or through /proc.
const NSFS_MAGIC: u64 = 0x6e73_6673;
/// `linux include/uapi/linux/magic.h` PROC_SUPER_MAGIC: the reference accepts this as a namespace
/// too.
const PROC_SUPER_MAGIC: u64 = 0x9fa0;
/// How often a thread tries to return to its own namespace: a machine in trouble may lack memory
/// for a moment.
const RETURN_TRIES: u32 = 10;
/// The namespace of the calling thread, `man 7 namespaces`.
const OWN_NETNS: &str = "/proc/thread-self/ns/net";
/// Where `ip netns` keeps named namespaces, under both of the folder's names; shared between mount
/// namespaces.
const IPROUTE2_DIRS: [&str; 2] = ["/run/netns", "/var/run/netns"];

/// Returns the other path of a named namespace on a host where `/var/run` is a link to `/run`. In
/// an image without that link, one of the two leads nowhere.
#[must_use]
pub fn other_path(path: &Path) -> Option<PathBuf> {
    let [short, long] = IPROUTE2_DIRS;
    let below = |from: &str, to: &str| Some(Path::new(to).join(path.strip_prefix(from).ok()?));
    below(short, long).or_else(|| below(long, short))
}

/// An open network namespace. Cloning is cheap and shares the descriptor.
#[derive(Clone)]
pub struct Netns {
    fd: Arc<SharedNetns>,
    id: NetnsId,
    path: Option<Arc<Path>>,
}

/// What all clones of a [`Netns`] share.
struct SharedNetns {
    fd: OwnedFd,
    /// What was read in it, once that was asked for.
    read: OnceLock<ReadInside>,
}

/// What tells a namespace from others, read by a thread that has entered it.
#[derive(Debug, Clone, Copy, Default)]
struct ReadInside {
    cookie: Option<u64>,
    sight: Option<u64>,
}

impl From<OwnedFd> for SharedNetns {
    fn from(fd: OwnedFd) -> Self {
        SharedNetns { fd, read: OnceLock::new() }
    }
}

/// Distinguishes one living network namespace from another: device and inode of its nsfs file.
///
/// The kernel may give the number to a new namespace once the old one is gone. So compare it only
/// while something keeps the namespace alive, or together with another mark of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetnsId {
    /// `st_dev`.
    pub dev: u64,
    /// `st_ino`; the number in `net:[4026531840]`.
    pub ino: u64,
}

/// A namespace could not be opened, entered, created or removed.
///
/// The texts of the first four are those of the reference plugins, because callers match them.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NetnsError {
    /// The path does not exist, or its process is gone.
    #[error("failed to open netns {path:?}: failed to Statfs {path:?}: no such file or directory")]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// The path exists but is not a namespace, for instance because the bind mount is gone and only
    /// its file is left.
    #[error("failed to open netns {path:?}: unknown FS magic on {path:?}: {magic:x}")]
    NotANamespace {
        /// The path.
        path: PathBuf,
        /// The `f_type` of its file system.
        magic: u64,
    },
    /// The path exists but could not be examined.
    #[error("failed to open netns {path:?}: failed to Statfs {path:?}")]
    Statfs {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The namespace could not be opened.
    #[error("failed to open netns {path:?}")]
    Open {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The path is that of a namespace of another kind, such as a process's PID namespace.
    #[error("netns {netns} is a namespace of another kind, and no network namespace")]
    OtherKind {
        /// The namespace, as [`Netns`] prints it.
        netns: String,
    },
    /// The thread could not move into the namespace: it lacks CAP_SYS_ADMIN.
    #[error("enter netns {netns}")]
    Enter {
        /// The namespace, as [`Netns`] prints it.
        netns: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No new namespace could be created (CAP_SYS_ADMIN, or the limit `user.max_net_namespaces`).
    #[error("make a network namespace")]
    Unshare {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A namespace could not be given a path.
    #[error("create netns {path:?}: {step}")]
    Create {
        /// The path.
        path: PathBuf,
        /// The operation.
        step: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A namespace's path could not be removed.
    #[error("remove netns {path:?}: {step}")]
    Remove {
        /// The path.
        path: PathBuf,
        /// The operation.
        step: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl NetnsError {
    /// Whether the path leads to no namespace for any caller: nothing is there, or something else,
    /// or the path is invalid (ELOOP, ENAMETOOLONG). DEL takes that for "already gone". Any other
    /// failure may be the caller's alone (EACCES), or temporary.
    #[must_use]
    pub fn leads_nowhere(&self) -> bool {
        let errno = match self {
            Self::Missing { .. } | Self::NotANamespace { .. } => return true,
            Self::Statfs { source, .. } | Self::Open { source, .. } => Errno::from_io_error(source),
            _ => None,
        };
        matches!(errno, Some(Errno::LOOP | Errno::NAMETOOLONG))
    }
}

impl Netns {
    /// Opens the namespace at a path: a bind mount as `ip netns add` makes it, or
    /// `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// [`NetnsError::Missing`] if nothing is there (including a dangling link, a file where a
    /// directory should be and a process that is gone), [`NetnsError::NotANamespace`] if something
    /// else is there, [`NetnsError::Statfs`] and [`NetnsError::Open`] if it cannot be examined or
    /// opened.
    ///
    /// See [`hold`] for a namespace that one call opens several times.
    pub fn open(path: &Path) -> Result<Self, NetnsError> {
        if let Some(held) = held_at(path) {
            return Ok(held);
        }
        // Examined before it is opened, since opening a FIFO or a device would act on it.
        let magic = match rustix::fs::statfs(path) {
            Ok(found) => magic(&found),
            Err(Errno::NOENT | Errno::NOTDIR) => {
                return Err(NetnsError::Missing { path: path.to_owned() });
            }
            Err(errno) => {
                return Err(NetnsError::Statfs { path: path.to_owned(), source: errno.into() });
            }
        };
        if magic != NSFS_MAGIC && magic != PROC_SUPER_MAGIC {
            return Err(NetnsError::NotANamespace { path: path.to_owned(), magic });
        }
        let open = |errno: Errno| NetnsError::Open { path: path.to_owned(), source: errno.into() };
        let fd = match rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => fd,
            // A process may end between the two calls.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::SRCH) => {
                return Err(NetnsError::Missing { path: path.to_owned() });
            }
            Err(errno) => return Err(open(errno)),
        };
        // Unlike the reference: other files of /proc are not namespaces.
        if magic != NSFS_MAGIC {
            let opened = magic_of_fd(fd.as_fd()).map_err(open)?;
            if opened != NSFS_MAGIC {
                return Err(NetnsError::NotANamespace { path: path.to_owned(), magic: opened });
            }
        }
        let id = id_of(fd.as_fd()).map_err(open)?;
        Ok(Self { fd: Arc::new(fd.into()), id, path: Some(path.into()) })
    }

    /// Opens the namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetnsError::Open`]; `/proc` must be mounted.
    pub fn current() -> Result<Self, NetnsError> {
        let open = |errno: Errno| NetnsError::Open { path: OWN_NETNS.into(), source: errno.into() };
        let fd = rustix::fs::open(OWN_NETNS, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(open)?;
        let id = id_of(fd.as_fd()).map_err(open)?;
        Ok(Self { fd: Arc::new(fd.into()), id, path: None })
    }

    /// Returns what distinguishes the calling thread's namespace. Within the life of [`hold`] the
    /// namespace is opened, once, and kept for [`within`] to return to; otherwise it is only
    /// examined.
    ///
    /// # Errors
    /// [`NetnsError::Open`]; `/proc` must be mounted.
    pub fn current_id() -> Result<NetnsId, NetnsError> {
        if HELD.with_borrow(Option::is_some) {
            let home = HOME.take().map_or_else(Self::current, Ok)?;
            let id = home.id;
            HOME.set(Some(home));
            return Ok(id);
        }
        rustix::fs::stat(OWN_NETNS)
            .map(|found| identity(&found))
            .map_err(|errno| NetnsError::Open { path: OWN_NETNS.into(), source: errno.into() })
    }

    /// Opens the namespace of a process, or of a thread by its thread ID.
    ///
    /// # Errors
    /// [`NetnsError::Missing`] if the process does not exist, otherwise those of [`Netns::open`].
    ///
    /// # Privileges
    /// Those of ptrace over the process (`man 2 ptrace`, "access mode checking").
    pub fn of_pid(pid: u32) -> Result<Self, NetnsError> {
        Self::open(Path::new(&format!("/proc/{pid}/ns/net")))
    }

    /// Returns what distinguishes this namespace from every other living one.
    #[must_use]
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// Returns its cookie, a number that no other namespace of this boot has, has had or will have
    /// (`SO_NETNS_COOKIE`, include/uapi/asm-generic/socket.h). [`Netns::id`] may belong to another
    /// namespace once this one is gone.
    ///
    /// `None` when it cannot be entered, or when the kernel has no cookies (before Linux 5.14). It
    /// is read once: clones share the answer.
    ///
    /// # Privileges
    /// As for [`within`].
    #[must_use]
    pub fn cookie(&self) -> Option<u64> {
        self.read_inside().cookie
    }

    /// Returns the number of a file that every process in it sees, and none in another namespace
    /// ([`crate::living`]): it shows whether a process is in it whose namespaces cannot be looked
    /// at. Another namespace may get the number once this one is gone. It is read with the cookie.
    #[must_use]
    pub fn sight(&self) -> Option<u64> {
        self.read_inside().sight
    }

    fn read_inside(&self) -> ReadInside {
        *self.fd.read.get_or_init(|| {
            let kind = (AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC);
            let read = within(self, || {
                let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None);
                (socket.ok(), crate::living::own_sight())
            });
            let (socket, sight) = read.unwrap_or_default();
            let cookie = socket.and_then(|socket| cookie_of(socket.as_fd()));
            ReadInside { cookie, sight }
        })
    }

    /// Returns its cookie if it has been read through this value or a clone, and does not ask the
    /// kernel.
    #[must_use]
    pub fn cookie_if_asked(&self) -> Option<u64> {
        self.fd.read.get().and_then(|read| read.cookie)
    }

    /// Returns its sight if that has been read through this value or a clone, and does not ask the
    /// kernel.
    #[must_use]
    pub fn sight_if_asked(&self) -> Option<u64> {
        self.fd.read.get().and_then(|read| read.sight)
    }

    /// The path it was opened by, if it was opened by a path.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns the descriptor, borrowed.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.fd.as_fd()
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.fd.as_fd()
    }
}

/// Two values are equal when they are the same namespace, however they were opened.
impl PartialEq for Netns {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Netns {}

impl fmt::Display for Netns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{path:?}"),
            None => write!(f, "net:[{}]", self.id.ino),
        }
    }
}

impl fmt::Debug for Netns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Netns({self}, {})", self.id)
    }
}

impl fmt::Display for NetnsId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.dev, self.ino)
    }
}

thread_local! {
    /// The namespace that [`hold`] holds.
    static HELD: RefCell<Option<Netns>> = const { RefCell::new(None) };
    /// The thread's namespace, if it was read since [`hold`]; `None` while the thread is away.
    static HOME: Cell<Option<Netns>> = const { Cell::new(None) };
}

/// While it lives, the thread's [`Netns::open`] of one path returns one namespace; see [`hold`].
#[derive(Debug)]
#[must_use]
pub struct NetnsHold {
    outer: bool,
    /// Bound to the thread that made it.
    thread: PhantomData<*const ()>,
}

/// Makes every [`Netns::open`] of this namespace's path on this thread return this namespace until
/// the value is dropped. So all parts of a call use the same namespace, and opening it again costs
/// nothing.
///
/// Within the life of another such value it changes nothing.
pub fn hold(netns: &Netns) -> NetnsHold {
    HELD.with_borrow_mut(|held| {
        let outer = held.is_none() && netns.path.is_some();
        if outer {
            *held = Some(netns.clone());
        }
        NetnsHold { outer, thread: PhantomData }
    })
}

impl Drop for NetnsHold {
    fn drop(&mut self) {
        if self.outer {
            HELD.with_borrow_mut(|held| *held = None);
            HOME.set(None);
        }
    }
}

fn held_at(path: &Path) -> Option<Netns> {
    HELD.with_borrow(|held| held.as_ref().filter(|held| held.path() == Some(path)).cloned())
}

/// Runs `f` with the calling thread inside `netns`, then returns the thread to its namespace.
///
/// Only this thread moves. If it cannot return in ten tries, the process aborts: going on in the
/// wrong namespace would change the wrong network. A panic of `f` continues once the thread is
/// back.
///
/// ```no_run
/// use kernel::netns::{Netns, within};
///
/// let container = Netns::open("/run/netns/example".as_ref())?;
/// let socket = within(&container, || std::net::UdpSocket::bind("192.0.2.1:68"))?;
/// # Ok::<(), kernel::netns::NetnsError>(())
/// ```
///
/// # Errors
/// [`NetnsError::Enter`], and those of [`Netns::current`]; `f` has not run then.
///
/// # Privileges
/// CAP_SYS_ADMIN in the user namespaces that own both network namespaces, and in the caller's own.
pub fn within<T>(netns: &Netns, f: impl FnOnce() -> T) -> Result<T, NetnsError> {
    struct WayBack(Netns);
    impl Drop for WayBack {
        #[expect(
            clippy::disallowed_methods,
            reason = "worse than dying is to change the wrong network"
        )]
        fn drop(&mut self) {
            if (0..RETURN_TRIES).all(|_| enter(&self.0).is_err()) {
                std::process::abort();
            }
        }
    }
    let home = HOME.take().map_or_else(Netns::current, Ok)?;
    enter(netns)?;
    let way_back = WayBack(home.clone());
    let value = f();
    drop(way_back);
    HELD.with_borrow(|held| held.is_some().then(|| HOME.set(Some(home))));
    Ok(value)
}

/// Moves the calling thread into a new namespace that contains only a loopback link, which is down.
///
/// The thread cannot return: meant for a thread or a process that ends there.
///
/// # Errors
/// [`NetnsError::Unshare`].
///
/// # Privileges
/// CAP_SYS_ADMIN.
pub fn unshare_net() -> Result<(), NetnsError> {
    HOME.set(None);
    // SAFETY: what makes `unshare` unsafe is UnshareFlags::FILES, which unshares the table of
    // descriptors behind the back of code that owns them (I/O safety). NEWNET changes only which
    // network namespace this thread uses.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|errno| NetnsError::Unshare { source: errno.into() })
}

/// Creates a namespace that is mounted at `path`, as `ip netns add` does, and opens it.
///
/// The folder is created if it is missing. If it is `ip netns`' own (`/run/netns`), it is made a
/// shared mount as well, so that the namespace can be removed from every mount namespace; any other
/// folder is left as it is.
///
/// # Errors
/// [`NetnsError::Create`] with an `AlreadyExists` source if something is at the path; no failure
/// leaves anything behind. [`NetnsError::Unshare`] if the kernel creates no namespace.
///
/// # Privileges
/// CAP_SYS_ADMIN.
pub fn create_at(path: &Path) -> Result<Netns, NetnsError> {
    let failed = |step, source| NetnsError::Create { path: path.to_owned(), step, source };
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(parent)
            .map_err(|source| failed("make its folder", source))?;
        if IPROUTE2_DIRS.iter().any(|dir| parent == Path::new(dir)) {
            share_mount(parent).map_err(|errno| failed("share its folder", errno.into()))?;
        }
    }
    fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(path)
        .map_err(|source| failed("make its file", source))?;
    let made = mount_new_netns(path).and_then(|()| Netns::open(path));
    if made.is_err() {
        // The first error is the one to report; what is left is an empty file.
        let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
        let _ = fs::remove_file(path);
    }
    made
}

/// Removes what [`create_at`] or `ip netns add` made at `path`; `false` if nothing was there.
///
/// The namespace itself lives on while a process is in it, or a socket or descriptor refers to it.
///
/// # Errors
/// [`NetnsError::Remove`].
///
/// # Privileges
/// CAP_SYS_ADMIN.
pub fn remove_at(path: &Path) -> Result<bool, NetnsError> {
    let failed = |step, source| NetnsError::Remove { path: path.to_owned(), step, source };
    match rustix::mount::unmount(path, UnmountFlags::DETACH) {
        // EINVAL: not a mount point, or no longer one; the file may still be there.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
        Err(errno) => return Err(failed("unmount it", errno.into())),
    }
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(failed("remove its file", source)),
    }
}

fn enter(netns: &Netns) -> Result<(), NetnsError> {
    rustix::thread::move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|errno| match errno {
            // The kernel compares the kinds (linux kernel/nsproxy.c `setns`).
            Errno::INVAL => NetnsError::OtherKind { netns: netns.to_string() },
            errno => NetnsError::Enter { netns: netns.to_string(), source: errno.into() },
        })
}

/// Creates a namespace on a thread that ends at once and mounts it on the (existing) file.
fn mount_new_netns(path: &Path) -> Result<(), NetnsError> {
    let failed = |step, source| NetnsError::Create { path: path.to_owned(), step, source };
    thread::scope(|scope| {
        let helper = thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, || {
            unshare_net()?;
            rustix::mount::mount_bind(OWN_NETNS, path)
                .map_err(|errno| failed("mount it", errno.into()))
        });
        let helper = helper.map_err(|source| failed("start a thread", source))?;
        helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Makes a folder a shared mount, turning it into a mount first if it is not one (iproute2
/// ip/ipnetns.c, `netns_add`).
fn share_mount(dir: &Path) -> Result<(), Errno> {
    let flags = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    match rustix::mount::mount_change(dir, flags) {
        Err(Errno::INVAL) => {
            rustix::mount::mount_bind_recursive(dir, dir)?;
            rustix::mount::mount_change(dir, flags)
        }
        other => other,
    }
}

/// The kernel's `f_type`, whose Rust type differs between architectures.
#[expect(clippy::cast_sign_loss, reason = "magic numbers are bit patterns")]
#[allow(clippy::unnecessary_cast, reason = "the type differs between architectures")]
fn magic(found: &rustix::fs::StatFs) -> u64 {
    found.f_type as u64
}

fn magic_of_fd(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    rustix::fs::fstatfs(fd).map(|found| magic(&found))
}

/// The cookie of the namespace in which a socket was made.
fn cookie_of(socket: BorrowedFd<'_>) -> Option<u64> {
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of_val(&cookie)).ok()?;
    // SAFETY: the kernel writes at most `length` bytes to `cookie`, which has as many, and says how
    // many it wrote.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            ptr::from_mut(&mut cookie).cast(),
            &raw mut length,
        )
    };
    (done == 0).then_some(cookie)
}

fn id_of(fd: BorrowedFd<'_>) -> Result<NetnsId, Errno> {
    rustix::fs::fstat(fd).map(|found| identity(&found))
}

#[allow(clippy::useless_conversion, reason = "the types differ between architectures")]
fn identity(found: &rustix::fs::Stat) -> NetnsId {
    NetnsId { dev: found.st_dev.into(), ino: found.st_ino.into() }
}
