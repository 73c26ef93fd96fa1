//! Decides whether a network namespace still exists. All code that acts on a container's end uses
//! this one decision.
//!
//! The answer has three values ([`Life`]), and *unknown is never gone*: code that removes, gives
//! away or forgets something does so only for [`Life::Gone`].
//!
//! - A path that leads nowhere, or to another namespace, proves nothing: its process may have
//!   ended, or its name may have been removed, while other processes or mounts hold the namespace.
//! - A namespace is the recorded one if device, inode and cookie agree. The kernel may give the
//!   inode of a namespace that is gone to a new one, but never its cookie.
//! - A namespace is gone when no process or thread is in it and it is mounted nowhere. One pass
//!   over `/proc` finds that out. A [`Census`] makes the pass at most once, when a path first gives
//!   no answer.
//! - The count is valid only where everything can be seen: `/proc` shows the machine's own PID
//!   namespace, or the one in which the namespace was recorded (a container that plays a node), it
//!   shows the first process, and nothing is mounted over a process in it. Then processes of every
//!   mount namespace are counted, and their mounts with them. Elsewhere the answer is unknown.
//! - A container in a PID namespace of its own plays a node only if no process outside it uses its
//!   network. If a Unix socket in that network is held by no process that `/proc` shows, a process
//!   outside does: then the container is a helper on a real node, whose containers live outside.
//! - A process may refuse to show its namespaces, for example one with more capabilities than the
//!   caller (`man 2 ptrace`, "Ptrace access mode checking"), or, where the caller is in a user
//!   namespace (rootless), every one outside of it. Every process can read its view of its network
//!   and its mounts. So it is known to be in a namespace that another process is in, or to be in
//!   another one than that whose view was recorded ([`Netns::sight`]), or the answer is unknown; a
//!   namespace that is mounted in its view may be living.
//! - A process of a user whom the caller's user namespace does not have is in no namespace of a
//!   container there: those belong to this user namespace, or to one within it, and from outside
//!   only the machine's root can enter them (`man 2 setns`).
//! - A namespace through which an interface only passes on its way to a container is not the
//!   container's. If it is gone, the answer is unknown.
//!
//! An open descriptor or a socket may keep a namespace alive that no process is in and no path
//! leads to. Nothing can run there; it counts as gone.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::mac::MacAddr;
use crate::netlink::NetlinkError;
use crate::netns::{Netns, NetnsError, NetnsId};
use crate::route::RouteSocket;
use crate::users;

/// The inode of the machine's own PID namespace (linux include/linux/proc_ns.h, PROC_PID_INIT_INO).
const INITIAL_PID_NS: u64 = 0xefff_fffc;

/// The state of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It exists.
    Living,
    /// It is known that it no longer exists.
    Gone,
    /// It is not known. Act as if it exists.
    Unknown,
}

/// What was recorded about a namespace while it existed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetnsNote {
    /// The path that led to it.
    pub path: PathBuf,
    /// Its device and inode, recorded in this boot.
    pub id: Option<NetnsId>,
    /// Its cookie ([`Netns::cookie`]).
    pub cookie: Option<u64>,
    /// The PID namespace of the process that recorded it, unless that is the machine's own
    /// ([`own_pid_ns`]).
    pub pid_ns: Option<u64>,
    /// What every process in it sees ([`Netns::sight`]).
    pub sight: Option<u64>,
    /// The interface was only made in it, and the container is in another one.
    pub passage: bool,
}

impl NetnsNote {
    /// Says whether a namespace may be the recorded one. If neither inode nor cookie is known, any
    /// namespace may be, except the caller's own: a container has a namespace of its own.
    #[must_use]
    pub fn is(&self, found: &Netns) -> bool {
        let Some(id) = self.id else {
            return Netns::current_id().is_ok_and(|own| own != found.id());
        };
        id == found.id()
            && self.cookie.is_none_or(|own| found.cookie().is_none_or(|cookie| cookie == own))
    }

    /// Opens the namespace by the recorded path; `None` when the path leads nowhere, or to another
    /// namespace.
    ///
    /// # Errors
    /// [`NetnsError`] when what is there cannot be examined.
    pub fn open(&self) -> Result<Option<Netns>, NetnsError> {
        match Netns::open(&self.path) {
            Ok(found) => Ok(Some(found).filter(|found| self.is(found))),
            Err(error) if error.leads_nowhere() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens it by the path in the view of the machine's first process, which may see paths that we
    /// do not.
    fn open_as_the_first(&self) -> Option<Netns> {
        let seen = Path::new("/proc/1/root").join(self.path.strip_prefix("/").ok()?);
        Netns::open(&seen).ok().filter(|found| self.is(found))
    }
}

/// Returns the PID namespace of this process, for [`NetnsNote::pid_ns`]: `None` in the machine's own,
/// where it need not be recorded. It is read once in the life of a process.
#[must_use]
pub fn own_pid_ns() -> Option<u64> {
    static OWN: OnceLock<Option<u64>> = OnceLock::new();
    let look = || fs::metadata("/proc/self/ns/pid").ok().map(|found| found.ino());
    OWN.get_or_init(look).filter(|own| *own != INITIAL_PID_NS)
}

/// Returns the PID namespace that `/proc` shows: this process's own, if `/proc` shows the process
/// under the ID that it has for itself.
fn shown_pid_ns(proc: &Path) -> Option<u64> {
    let number = fs::read_link(proc.join("self")).ok()?;
    let own = std::process::id().to_string();
    if number.as_os_str() != own.as_str() {
        return None;
    }
    fs::metadata(proc.join("self/ns/pid")).ok().map(|found| found.ino())
}

/// What identifies an interface in a container when nothing identifies the namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sign {
    /// Its name; empty matches any.
    pub ifname: String,
    /// Its hardware address.
    pub mac: Option<MacAddr>,
    /// Its addresses, used only when the hardware address is not known.
    pub addresses: Vec<IpAddr>,
}

impl Sign {
    /// Says whether the namespace that a path leads to, from here or for the machine's first
    /// process, has the interface. A path alone proves nothing: another container may have it by
    /// now. A namespace that cannot be examined does not have it.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        let noted = NetnsNote { path: path.to_owned(), ..NetnsNote::default() };
        let found = noted.open().ok().flatten().or_else(|| noted.open_as_the_first());
        found.is_some_and(|netns| self.is_in(&netns).unwrap_or(false))
    }

    fn is_in(&self, netns: &Netns) -> Result<bool, NetlinkError> {
        let mut inside = RouteSocket::open_in(netns)?;
        let links = if self.ifname.is_empty() {
            inside.links()?
        } else {
            inside.link_by_name(&self.ifname)?.into_iter().collect()
        };
        for link in links {
            // Networks that are never connected may use equal addresses.
            if self.mac.is_some() {
                if link.mac == self.mac {
                    return Ok(true);
                }
                continue;
            }
            let found = inside.addresses(Some(link.index))?;
            if found.iter().any(|found| self.addresses.contains(&found.address.addr())) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The namespaces in use on this machine: read once, then queried any number of times.
#[derive(Debug, Default)]
pub struct Census {
    counted: OnceLock<ProcScan>,
}

/// What one pass over `/proc` found.
#[derive(Debug, Default)]
struct ProcScan {
    /// The namespaces that processes are in or that are mounted, each with paths to it.
    living: BTreeMap<NetnsId, Vec<PathBuf>>,
    /// The files of [`SIGHT`] of processes that refused to show their namespaces.
    refused: BTreeSet<u64>,
    /// The PID namespace that `/proc` shows.
    pid_ns: Option<u64>,
    /// Whether something could not be examined.
    hidden: bool,
    /// Those of the refused that are in no namespace that another process is in.
    unplaced: BTreeSet<u64>,
    /// The namespace that this pass is for, if it is for one. The kernel gives the number of one
    /// that is gone to the next that is made (linux fs/proc/generic.c, `proc_alloc_inum`): a
    /// process that has it is asked for the cookie at once, before it leaves too.
    sought: Option<NetnsNote>,
}

/// A file in every process's view of its network, different for each namespace: the kernel creates
/// it with the namespace, and no other has its inode (linux fs/proc/proc_net.c, `proc_net_ns_init`;
/// fs/proc/generic.c, `proc_alloc_inum`). Reading it needs no permission over the process
/// (`get_proc_task_net`).
const SIGHT: &str = "net/dev";

/// Returns the inode of that file for the calling thread.
pub(crate) fn own_sight() -> Option<u64> {
    fs::metadata(Path::new("/proc/thread-self").join(SIGHT)).ok().map(|found| found.ino())
}

impl Census {
    /// Creates an empty census; nothing is read yet.
    #[must_use]
    pub fn new() -> Self {
        Census::default()
    }

    /// Says whether a namespace lives. If its path leads to it, nothing else is read.
    #[must_use]
    pub fn life(&self, noted: &NetnsNote) -> Life {
        let life = match Self::life_at_path(noted) {
            Life::Unknown => self.life_off_path(noted),
            known => known,
        };
        match life {
            Life::Gone if noted.passage => Life::Unknown,
            life => life,
        }
    }

    /// Says the same by the path alone, without reading anything else: only [`Life::Living`] or
    /// [`Life::Unknown`].
    #[must_use]
    pub fn life_at_path(noted: &NetnsNote) -> Life {
        let there = !noted.path.as_os_str().is_empty() && matches!(noted.open(), Ok(Some(_)));
        if there { Life::Living } else { Life::Unknown }
    }

    /// Says whether a namespace lives to which its path does not lead.
    fn life_off_path(&self, noted: &NetnsNote) -> Life {
        let counted = self.counted();
        let Some(id) = noted.id else {
            let there = noted.open_as_the_first().is_some();
            return if there { Life::Living } else { Life::Unknown };
        };
        if let Some(life) = counted.life(id, noted) {
            return life;
        }
        // The process through which it was seen has ended since, or its mount was removed: read
        // again what exists now.
        let again = || ProcScan::seeking(Path::new("/proc"), Some(noted)).life(id, noted);
        (0..RECOUNTS).find_map(|_| again()).unwrap_or(Life::Unknown)
    }

    /// Finds a recorded namespace, wherever something still leads to it.
    #[must_use]
    pub fn find(&self, noted: &NetnsNote) -> Option<Netns> {
        if let Ok(Some(found)) = noted.open() {
            return Some(found);
        }
        let paths = self.counted().living.get(&noted.id?)?;
        paths.iter().filter_map(|path| Netns::open(path).ok()).find(|found| noted.is(found))
    }

    /// Says whether a container lives if only its interface was recorded. Searches every namespace
    /// of the machine except the caller's own: living if one has the interface, gone if none has.
    /// `pid_ns` is as in [`NetnsNote::pid_ns`]. With neither a hardware address nor addresses the
    /// answer is unknown.
    #[must_use]
    pub fn seek(&self, sign: &Sign, pid_ns: Option<u64>) -> Life {
        let (counted, Ok(own)) = (self.counted(), Netns::current_id()) else {
            return Life::Unknown;
        };
        if !counted.is_whole(pid_ns, None) || (sign.mac.is_none() && sign.addresses.is_empty()) {
            return Life::Unknown;
        }
        let mut life = Life::Gone;
        for (id, paths) in counted.living.iter().filter(|(id, _)| **id != own) {
            let mut opened = paths.iter().filter_map(|path| Netns::open(path).ok());
            // If its processes ended meanwhile, no process is in it.
            let Some(netns) = opened.find(|found| found.id() == *id) else { continue };
            match sign.is_in(&netns) {
                Ok(false) => {}
                Ok(true) => return Life::Living,
                Err(_) => life = Life::Unknown,
            }
        }
        life
    }

    /// Says whether all processes and mounts can be seen from here of the machine, or of the PID
    /// namespace where something was recorded. `pid_ns` is as in [`NetnsNote::pid_ns`].
    #[must_use]
    pub fn sees_everything(&self, pid_ns: Option<u64>) -> bool {
        self.counted().is_whole(pid_ns, None)
    }

    fn counted(&self) -> &ProcScan {
        self.counted.get_or_init(|| ProcScan::of(Path::new("/proc")))
    }
}

/// How often to count again because a process ended meanwhile.
const RECOUNTS: usize = 3;

/// How many paths to one namespace are kept: more than one, since a process may end before its path
/// is followed.
const PATHS: usize = 3;

impl ProcScan {
    fn of(proc: &Path) -> Self {
        ProcScan::seeking(proc, None)
    }

    fn seeking(proc: &Path, sought: Option<&NetnsNote>) -> Self {
        let (pid_ns, sought) = (shown_pid_ns(proc), sought.cloned());
        let mut counted = ProcScan { pid_ns, sought, ..ProcScan::default() };
        // Where `hidepid` hides processes, the first is among the hidden ones.
        let first_is_shown = fs::symlink_metadata(proc.join("1")).is_ok();
        let mounts = fs::read(proc.join("self/mountinfo"));
        counted.hidden = !first_is_shown || mounts.map_or(true, |mounts| covers_one(&mounts, proc));
        // A process that ended during a pass may have left a child with an ID that the pass had
        // gone beyond.
        if counted.pass(proc) {
            counted.pass(proc);
        }
        counted.unplaced = counted.not_placed();
        // The machine's own PID namespace shows every process.
        counted.hidden |= counted.pid_ns != Some(INITIAL_PID_NS) && has_hidden_company(proc);
        counted
    }

    /// Returns those of the refused that are in no namespace that another process is in.
    fn not_placed(&self) -> BTreeSet<u64> {
        // Most are in the caller's namespace.
        let own = Path::new("/proc/thread-self");
        let threads = self.living.values().flatten().filter(|path| path.ends_with("ns/net"));
        let others = threads.filter_map(|path| path.ancestors().nth(2));
        let mut left = self.refused.clone();
        for thread in std::iter::once(own).chain(others) {
            if left.is_empty() {
                break;
            }
            if let Ok(found) = fs::metadata(thread.join(SIGHT)) {
                left.remove(&found.ino());
            }
        }
        left
    }

    /// Says whether no process can have been missed, in the namespace with that sight if it is
    /// known.
    fn is_whole(&self, noted_in: Option<u64>, sight: Option<u64>) -> bool {
        let same = self.pid_ns.is_some_and(|shown| {
            shown == INITIAL_PID_NS || (noted_in == Some(shown) && own_pid_ns() == Some(shown))
        });
        let placed = match sight {
            Some(sight) => !self.unplaced.contains(&sight),
            None => self.unplaced.is_empty(),
        };
        same && placed && !self.hidden
    }

    /// Says whether a namespace lives; `None` when none of the paths that led to it still does.
    fn life(&self, id: NetnsId, noted: &NetnsNote) -> Option<Life> {
        let Some(paths) = self.living.get(&id) else {
            let is_whole = self.is_whole(noted.pid_ns, noted.sight);
            return Some(if is_whole { Life::Gone } else { Life::Unknown });
        };
        if paths.is_empty() {
            return Some(Life::Unknown); // mounted where no process can reach it
        }
        let mut opened = paths.iter().filter_map(|path| Netns::open(path).ok());
        let found = opened.find(|found| found.id() == id)?;
        Some(if noted.is(&found) { Life::Living } else { Life::Gone })
    }

    /// Examines every process; says whether one ended meanwhile.
    fn pass(&mut self, proc: &Path) -> bool {
        let mut ended = false;
        let mut mounts = BTreeSet::new();
        let Ok(entries) = fs::read_dir(proc) else {
            self.hidden = true;
            return false;
        };
        for entry in entries {
            let Ok(entry) = entry else {
                self.hidden = true;
                continue;
            };
            let name = entry.file_name();
            if !name.as_bytes().iter().all(u8::is_ascii_digit) {
                continue;
            }
            for thread in threads(&proc.join(&name), &name) {
                match self.look_at(&thread, &mut mounts) {
                    Ok(()) => {}
                    Err(error) if is_ended(&error, &thread) => ended = true,
                    Err(_) => match self.look_from_outside(&thread) {
                        Ok(()) => {}
                        Err(error) if is_ended(&error, &thread) => ended = true,
                        Err(_) => self.hidden = true,
                    },
                }
            }
        }
        ended
    }

    /// Examines one thread: its namespace, and what is mounted in its view.
    fn look_at(&mut self, thread: &Path, mounts: &mut BTreeSet<(u64, PathBuf)>) -> io::Result<()> {
        let path = thread.join("ns/net");
        let found = fs::metadata(&path)?;
        let id = NetnsId { dev: found.dev(), ino: found.ino() };
        if !self.has_anothers_number(id, &path)? {
            let living = self.living.entry(id).or_default();
            // Before the mounts: those may be within a file system of the container's own.
            if !living.contains(&path) {
                living.insert(0, path);
                living.truncate(PATHS);
            }
        }
        let whose = fs::metadata(thread.join("ns/mnt"))?;
        // Only the link is read. To follow it, the kernel would ask the file system, which a
        // container may serve and leave without an answer.
        let root = fs::read_link(thread.join("root"))?;
        // A process with a root of its own sees only its part of the mounts.
        if mounts.insert((whose.ino(), root)) {
            let table = fs::read(thread.join("mountinfo"))?;
            for (ino, place) in mounted(&table) {
                let place = place.strip_prefix("/").unwrap_or(&place);
                let path = thread.join("root").join(place);
                let id = NetnsId { dev: found.dev(), ino };
                // One that cannot be opened may be it.
                if !self.has_anothers_number(id, &path).unwrap_or(false) {
                    self.note(id, path);
                }
            }
        }
        Ok(())
    }

    /// Reports whether a path leads to another namespace that has the number of the one that is
    /// sought.
    fn has_anothers_number(&self, id: NetnsId, path: &Path) -> io::Result<bool> {
        match &self.sought {
            Some(sought) if sought.id == Some(id) => {
                let found = Netns::open(path).map_err(io::Error::other)?;
                Ok(!sought.is(&found))
            }
            _ => Ok(false),
        }
    }

    /// Examines what a thread that refused shows to every process.
    fn look_from_outside(&mut self, thread: &Path) -> io::Result<()> {
        if users::outside() == Some(fs::metadata(thread)?.uid()) {
            return Ok(());
        }
        self.refused.insert(fs::metadata(thread.join(SIGHT))?.ino());
        let dev = fs::metadata("/proc/self/ns/net")?.dev();
        for (ino, _) in mounted(&fs::read(thread.join("mountinfo"))?) {
            // The path to it leads through the thread's root, which is refused too.
            self.living.entry(NetnsId { dev, ino }).or_default();
        }
        Ok(())
    }

    fn note(&mut self, id: NetnsId, path: PathBuf) {
        let paths = self.living.entry(id).or_default();
        if paths.len() < PATHS && !paths.contains(&path) {
            paths.push(path);
        }
    }
}

/// Says whether a process that `proc` does not show uses the caller's network: no process that it
/// shows holds a Unix socket there. A socket in transit from one process to another has no holder
/// either, and counts as a hidden user.
fn has_hidden_company(proc: &Path) -> bool {
    let Some(mut sockets) = unix_sockets(proc) else { return true };
    let Ok(processes) = fs::read_dir(proc) else { return true };
    for process in processes.flatten() {
        if !process.file_name().as_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        // A process that has ended holds nothing, and one that refuses may hold anything: its
        // sockets stay listed.
        for open in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            let Ok(what) = fs::read_link(open.path()) else { continue };
            let number = what.to_str().and_then(|what| {
                what.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
            });
            number.map(|number| sockets.remove(&number));
        }
    }
    // A socket that was closed meanwhile has no holder.
    !sockets.is_empty()
        && unix_sockets(proc).is_none_or(|left| left.intersection(&sockets).next().is_some())
}

/// Lists the Unix sockets of the caller's network by their inodes (linux net/unix/af_unix.c,
/// `unix_seq_show`). A socket that no process has accepted yet has none.
fn unix_sockets(proc: &Path) -> Option<BTreeSet<u64>> {
    let table = fs::read(proc.join("self/net/unix")).ok()?;
    let lines = table.split(|byte| *byte == b'\n').skip(1);
    let inode = |line: &[u8]| {
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        std::str::from_utf8(words.nth(6)?).ok()?.parse::<u64>().ok()
    };
    let mut found: BTreeSet<u64> = BTreeSet::new();
    found.extend(lines.filter_map(inode).filter(|inode| *inode != 0));
    Some(found)
}

/// Lists the folders of a process's threads, which may each be in a namespace of their own.
fn threads(process: &Path, pid: &OsStr) -> Vec<PathBuf> {
    let task = process.join("task");
    // The folder's link count includes each thread's folder (linux fs/proc/base.c,
    // `proc_task_getattr`).
    let alone = fs::metadata(&task).is_ok_and(|found| found.nlink() == 3);
    let listed = if alone { None } else { fs::read_dir(&task).ok() };
    match listed {
        Some(threads) => threads.flatten().map(|thread| thread.path()).collect(),
        // A thread that cannot be listed fails when it is examined.
        None => vec![task.join(pid)],
    }
}

/// Says whether an error means that a thread has ended: it is no longer in any namespace. While it
/// ends the kernel returns EACCES or EINVAL too (linux fs/proc/namespaces.c, `proc_ns_get_link`;
/// fs/proc_namespace.c, `mounts_open_common`).
fn is_ended(error: &io::Error, thread: &Path) -> bool {
    const ESRCH: i32 = 3;
    let tells = |error: &io::Error| {
        error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH)
    };
    tells(error)
        || fs::metadata(thread).is_err_and(|error| tells(&error))
        || fs::metadata(thread.join("ns/net")).is_err_and(|error| tells(&error))
}

/// Reads which network namespaces are mounted, and where.
fn mounted(table: &[u8]) -> impl Iterator<Item = (u64, PathBuf)> {
    mounts(table).filter_map(|(what, place)| {
        let number = what.strip_prefix(b"net:[")?.strip_suffix(b"]")?;
        let ino = std::str::from_utf8(number).ok()?.parse().ok()?;
        Some((ino, place))
    })
}

/// Says whether something is mounted over a process, or a part of one, that `proc` shows.
fn covers_one(table: &[u8], proc: &Path) -> bool {
    let is_process = |place: PathBuf| {
        let below = place.strip_prefix(proc).ok().and_then(|below| below.components().next());
        below.is_some_and(|name| name.as_os_str().as_bytes().iter().all(u8::is_ascii_digit))
    };
    mounts(table).any(|(_, place)| is_process(place))
}

/// Reads which part of a file system is mounted, and where (`man 5 proc_pid_mountinfo`).
fn mounts(table: &[u8]) -> impl Iterator<Item = (&[u8], PathBuf)> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ').skip(3);
        let (what, place) = (words.next()?, words.next()?);
        Some((what, PathBuf::from(std::ffi::OsString::from_vec(unescaped(place)))))
    })
}

/// Decodes escaped white space and backslashes: three octal digits after a backslash.
pub(crate) fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let number = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match number {
            Some(byte) => {
                plain.push(byte);
                rest = &after[3..];
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_namespaces_are_read_with_their_places() {
        let table = b"23 28 0:21 / /proc rw - proc proc rw\n\
            99 28 0:4 net:[4026532281] /run/netns/c\\0401 rw shared:9 - nsfs nsfs rw\n\
            98 28 0:4 mnt:[4026532282] /run/mnt rw - nsfs nsfs rw\n\
            97 28 0:4 net:[x] /a rw - nsfs nsfs rw\n";
        let found: Vec<_> = mounted(table).collect();
        assert_eq!(found, [(4_026_532_281, PathBuf::from("/run/netns/c 1"))]);
        assert_eq!(unescaped(b"a\\134b\\0"), b"a\\b\\0");
    }

    #[test]
    fn a_mount_over_a_process_is_found() {
        let covers = |place: &str| {
            let table = format!("23 28 0:21 / {place} rw - tmpfs tmpfs rw\n");
            covers_one(table.as_bytes(), Path::new("/proc"))
        };
        assert!(covers("/proc/12") && covers("/proc/12/task") && covers("/proc/12/ns/net"));
        assert!(!covers("/proc") && !covers("/proc/kcore") && !covers("/proc/sys/net"));
        assert!(!covers("/proc2/12") && !covers("/run/12"));
    }

    /// A `/proc` that shows these processes and this one. Their roots cannot be examined, like
    /// those of a file system that does not answer, and a namespace is mounted there.
    fn shown(name: &str, numbers: &[u32]) -> PathBuf {
        let own = std::process::id();
        let proc = std::env::temp_dir().join(format!("living-{name}-{own}"));
        for number in numbers.iter().chain([&own]) {
            let process = proc.join(number.to_string());
            let thread = process.join("task").join(number.to_string());
            for folder in [&process, &thread] {
                fs::create_dir_all(folder.join("ns")).unwrap();
                std::os::unix::fs::symlink("/proc/nowhere", folder.join("root")).unwrap();
                fs::create_dir_all(folder.join("net")).unwrap();
                for file in ["ns/net", "ns/mnt", "ns/pid", SIGHT] {
                    fs::write(folder.join(file), "").unwrap();
                }
                fs::write(folder.join("net/unix"), "Num RefCount …\n").unwrap();
                let mounts = "99 28 0:4 net:[77] /run/netns/c1 rw - nsfs nsfs rw\n";
                fs::write(folder.join("mountinfo"), mounts).unwrap();
            }
        }
        std::os::unix::fs::symlink(own.to_string(), proc.join("self")).unwrap();
        proc
    }

    fn counted_in(proc: &Path) -> ProcScan {
        let counted = ProcScan::of(proc);
        fs::remove_dir_all(proc).unwrap();
        assert!(counted.pid_ns.is_some());
        counted
    }

    #[test]
    fn where_the_first_process_is_not_shown_others_may_be_hidden() {
        assert!(!counted_in(&shown("shown", &[1])).hidden);
        assert!(counted_in(&shown("hidden", &[2])).hidden);
    }

    #[test]
    fn who_refuses_to_be_looked_at_is_where_another_is() {
        let refusing = |name: &str, change: fn(&Path)| {
            let proc = shown(name, &[1, 3]);
            for thread in [proc.join("3"), proc.join("3/task/3")] {
                fs::remove_dir_all(thread.join("ns")).unwrap();
                // An error that does not mean that it has ended.
                fs::write(thread.join("ns"), "").unwrap();
                fs::remove_file(thread.join(SIGHT)).unwrap();
                fs::hard_link(proc.join("1/task/1").join(SIGHT), thread.join(SIGHT)).unwrap();
                fs::write(thread.join("mountinfo"), "99 28 0:4 net:[78] /run/c2 rw - nsfs\n")
                    .unwrap();
                change(&thread);
            }
            counted_in(&proc)
        };
        let placed = refusing("placed", |_| {});
        assert!(!placed.hidden && placed.unplaced.is_empty(), "{placed:?}");
        // The path cannot be followed, and the namespace may be living.
        let kept = placed.living.iter().find(|(id, _)| id.ino == 78).expect("the mount is counted");
        assert!(kept.1.is_empty());
        let elsewhere = refusing("elsewhere", |thread| {
            fs::remove_file(thread.join(SIGHT)).unwrap();
            fs::write(thread.join(SIGHT), "").unwrap();
        });
        assert!(!elsewhere.hidden && elsewhere.unplaced.len() == 1, "{elsewhere:?}");
        let shut = refusing("shut", |thread| {
            fs::remove_file(thread.join("mountinfo")).unwrap();
            fs::create_dir(thread.join("mountinfo")).unwrap();
        });
        assert!(shut.hidden);
    }

    #[test]
    fn whose_network_others_use_who_are_not_shown_does_not_see_everybody() {
        let with = |name: &str, sockets: &str, held: &str| {
            let proc = shown(name, &[1]);
            let text =
                format!("Num       RefCount Protocol Flags    Type St Inode Path\n{sockets}");
            fs::write(proc.join("self/net/unix"), text).unwrap();
            fs::create_dir(proc.join("1/fd")).unwrap();
            std::os::unix::fs::symlink(held, proc.join("1/fd/3")).unwrap();
            counted_in(&proc).hidden
        };
        let line = "ffff8f0a: 00000002 00000000 00010000 0001 01 4711 /run/systemd/private\n";
        assert!(!with("held", line, "socket:[4711]"));
        assert!(with("unheld", line, "socket:[4712]"));
        let embryo = "ffff8f0b: 00000002 00000000 00000000 0001 02 0 /run/x\n";
        assert!(!with("embryo", embryo, "/dev/null"));
    }

    #[test]
    fn what_a_process_shows_of_its_network_tells_namespaces_apart() {
        let sight = || fs::metadata(Path::new("/proc/thread-self").join(SIGHT)).unwrap().ino();
        let here = sight();
        assert_eq!(std::thread::spawn(sight).join().unwrap(), here);
        assert_eq!(fs::metadata(Path::new("/proc/self").join(SIGHT)).unwrap().ino(), here);
        let there = std::thread::spawn(move || {
            crate::netns::unshare_net().unwrap();
            sight()
        });
        assert_ne!(there.join().unwrap(), here);
    }

    #[test]
    fn the_root_of_a_process_is_not_looked_at() {
        let counted = counted_in(&shown("root", &[1]));
        assert!(!counted.hidden);
        assert!(counted.living.keys().any(|id| id.ino == 77), "{counted:?}");
    }

    #[test]
    fn what_nobody_noted_is_unknown() {
        let census = Census::new();
        let at = |path: &str| census.life(&NetnsNote { path: path.into(), ..NetnsNote::default() });
        assert_eq!(at(""), Life::Unknown);
        assert_eq!(at("/nonexistent/netns"), Life::Unknown);
        // The caller's own namespace is not a container's.
        assert_eq!(at("/proc/self/ns/net"), Life::Unknown);
    }

    #[test]
    fn who_left_the_way_that_was_seen_is_looked_for_again() {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let inside = std::thread::spawn(move || {
            crate::netns::unshare_net().unwrap();
            ready.send(Netns::current_id().unwrap()).unwrap();
            let _ = ended.recv();
        });
        let id = is_ready.recv().unwrap();
        let living = BTreeMap::from([(id, vec![PathBuf::from("/proc/nobody/ns/net")])]);
        let counted = ProcScan { living, ..ProcScan::default() };
        let census = Census { counted: OnceLock::from(counted) };
        let noted = NetnsNote { path: "/none".into(), id: Some(id), ..NetnsNote::default() };
        assert_eq!(census.life(&noted), Life::Living);
        drop(end);
        inside.join().unwrap();
    }

    /// The process that has the number by now may end before the next look at it.
    #[test]
    fn who_has_the_number_of_the_one_that_is_sought_is_asked_at_once() {
        let own = Netns::open(Path::new("/proc/self/ns/net")).unwrap();
        let seen = |cookie| {
            let noted = NetnsNote { id: Some(own.id()), cookie, ..NetnsNote::default() };
            ProcScan::seeking(Path::new("/proc"), Some(&noted)).living.contains_key(&own.id())
        };
        let cookie = own.cookie().expect("Linux 5.14 and later tell cookies");
        assert!(seen(Some(cookie)));
        assert!(!seen(Some(cookie + 1)));
    }

    #[test]
    fn where_not_everything_is_seen_nothing_is_gone() {
        let id = NetnsId { dev: 4, ino: 7 };
        let noted = |pid_ns| NetnsNote {
            path: "/none".into(),
            id: Some(id),
            pid_ns,
            ..NetnsNote::default()
        };
        let own = own_pid_ns();
        let of = |counted: ProcScan| {
            let census = Census { counted: OnceLock::from(counted) };
            (census.life(&noted(None)), census.life(&noted(own)))
        };
        let shown = |pid_ns, hidden| ProcScan { pid_ns, hidden, ..ProcScan::default() };
        let (gone, unknown) = (Life::Gone, Life::Unknown);
        assert_eq!(of(shown(Some(INITIAL_PID_NS), false)), (gone, gone));
        assert_eq!(of(shown(Some(INITIAL_PID_NS), true)), (unknown, unknown));
        let counted = shown(Some(INITIAL_PID_NS), false);
        let census = Census { counted: OnceLock::from(counted) };
        assert_eq!(census.life(&NetnsNote { passage: true, ..noted(None) }), unknown);
        assert_eq!(of(shown(None, false)), (unknown, unknown));
        // Somebody who refuses is not where another sight was recorded.
        let unplaced = BTreeSet::from([7]);
        let counted = ProcScan { unplaced, ..shown(Some(INITIAL_PID_NS), false) };
        let census = Census { counted: OnceLock::from(counted) };
        let seen = |sight| census.life(&NetnsNote { sight, ..noted(None) });
        assert_eq!([seen(None), seen(Some(7)), seen(Some(8))], [unknown, unknown, gone]);
        // In a container, where only what was recorded there can be counted.
        let nested = ProcScan { pid_ns: Some(5), ..ProcScan::default() };
        assert_eq!(of(nested), (unknown, unknown));
        if own.is_some() {
            assert_eq!(of(shown(own, false)), (unknown, gone));
        }
    }
}
