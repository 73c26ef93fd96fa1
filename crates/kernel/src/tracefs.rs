//! What happens to packets, as the kernel's tracepoints report it (linux
//! Documentation/trace/events.rst), without BPF and without code of ours in the kernel.
//!
//! A [`Trace`] is a tracing instance of our own, so it does not disturb the tracing of other
//! programs. It reports packets of the requested lengths, in all network namespaces: each time a
//! link sends one (`net:net_dev_queue`) or receives one (`net:netif_receive_skb`), and where and
//! why the kernel drops one (`skb:kfree_skb`). The kernel keeps the same address for a packet on
//! its way from namespace to namespace, and gives it to another packet at once when the first is
//! gone.
//!
//! The name of a reason is the kernel's own: the numbers differ from version to version, and the
//! event's format says what they mean.
//!
//! ```no_run
//! use kernel::tracefs::Trace;
//!
//! let trace = Trace::open(&[201..=201, 215..=215])?;
//! trace.mark("first");
//! // … the same thread sends a packet of 201 bytes …
//! for event in trace.read()? { /* … */ }
//! # Ok::<(), kernel::tracefs::TracefsError>(())
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use thiserror::Error;

/// Where it is mounted by custom.
const TRACING: &str = "/sys/kernel/tracing";
/// `linux include/uapi/linux/magic.h`.
const TRACEFS_MAGIC: u64 = 0x7472_6163;
const SYSFS_MAGIC: u64 = 0x6265_6572;

/// Our instances have names of this form, with the process's number, its start time and a number.
const PREFIX: &str = "netwright-doctor-";
/// Distinguishes the instances of one process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// How often an instance is made that another process removes at once.
const TRIES: u32 = 4;

/// How much the kernel keeps for each processor, in KiB: some ten thousand events.
const BUFFER_KIB: &str = "512";
/// How many bytes of events are read: more than the buffers of a hundred processors hold.
const MOST_BYTES: u64 = 64 << 20;
/// How many events are kept.
const MOST_EVENTS: usize = 50_000;
/// The longest line that is looked at.
const LONGEST_LINE: u64 = 4096;

/// How events are written and kept; an administrator may have changed it for all new instances.
/// When the buffer is full, the first events stay. A kernel that does not know one of these does
/// not have it either.
const OPTIONS: [&str; 10] = [
    "nooverwrite",
    "context-info",
    "irq-info",
    "norecord-tgid",
    "noraw",
    "nohex",
    "nobin",
    "nofields",
    "noverbose",
    "nolatency-format",
];

const QUEUED: &str = "net/net_dev_queue";
const RECEIVED: &str = "net/netif_receive_skb";
const DROPPED: &str = "skb/kfree_skb";
/// Only drops of IPv4 and IPv6 (RFC 9542) count; the numbers are EtherTypes.
const IP_ONLY: &str = "protocol==2048||protocol==34525";

/// A line begins with the name of the process, which takes this many bytes, of any values.
const NAME: usize = 16;

/// Tracing failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TracefsError {
    /// There is no tracing, or it is hidden, or locked.
    #[error("open the kernel's tracing")]
    Open(#[source] io::Error),
    /// No instance could be made.
    #[error("make an instance of the kernel's tracing")]
    Make(#[source] io::Error),
    /// An instance could not be set up.
    #[error("write {file:?} of an instance of the kernel's tracing")]
    Set {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The events could not be read.
    #[error("read an instance of the kernel's tracing")]
    Read(#[source] io::Error),
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The time, in microseconds of a clock of the kernel.
    pub at_us: u64,
    /// The thread that ran on the processor, by the number that it has outside of all PID
    /// namespaces.
    pub thread: u32,
    /// It happened in an interrupt, so the thread has nothing to do with it.
    pub interrupted: bool,
    /// What happened.
    pub what: PacketEvent,
}

/// What happened to a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PacketEvent {
    /// A link sends it.
    Queued {
        /// The packet.
        packet: u64,
        /// The link's name.
        link: String,
        /// Its length, in bytes, with the header of the link's layer.
        length: u32,
    },
    /// A link has received it.
    Received {
        /// The packet.
        packet: u64,
        /// The link's name.
        link: String,
        /// Its length, in bytes, without the header of the link's layer.
        length: u32,
    },
    /// It was dropped.
    Dropped {
        /// The packet.
        packet: u64,
        /// Its EtherType.
        protocol: u16,
        /// The kernel's function; empty if the kernel does not name it (before Linux 5.19).
        function: String,
        /// The kernel's name of the reason; empty if it gives none (before Linux 5.17).
        reason: String,
    },
    /// [`Trace::mark`] was called.
    Marked(String),
}

/// A tracing instance. It ends with the value. If a process is killed, the next process that makes
/// an instance removes what it left.
///
/// # Privileges
/// CAP_SYS_ADMIN and CAP_DAC_OVERRIDE outside of all user namespaces.
#[derive(Debug)]
pub struct Trace {
    instances: OwnedFd,
    dir: OwnedFd,
    name: String,
    /// While it is open, no program can remove the instance. `None` once we are about to remove it.
    marker: Option<File>,
}

impl Trace {
    /// Begins to trace packets of these lengths, and all drops of IP packets.
    ///
    /// Where nothing is mounted at `/sys/kernel/tracing`, a mount of our own is used, which other
    /// processes do not see. What is hidden there stays hidden.
    ///
    /// # Errors
    /// [`TracefsError`]; then nothing is left.
    pub fn open(lengths: &[RangeInclusive<u32>]) -> Result<Self, TracefsError> {
        let root = root().map_err(TracefsError::Open)?;
        let instances = folder(&root, "instances", OFlags::RDONLY).map_err(TracefsError::Open)?;
        remove_left(&instances);
        let mut tries = 0;
        let made = loop {
            tries += 1;
            match make(&instances) {
                // A process that does not see us, from another PID namespace, took it for one that
                // was left, before a file of it was open.
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
                made => break made,
            }
        };
        let (name, dir, marker) = made.map_err(TracefsError::Make)?;
        let trace = Trace { instances, dir, name, marker: Some(marker) };
        trace.start(lengths)?;
        Ok(trace)
    }

    fn start(&self, lengths: &[RangeInclusive<u32>]) -> Result<(), TracefsError> {
        for option in OPTIONS {
            let _ = self.set("trace_options", option);
        }
        self.set("buffer_size_kb", BUFFER_KIB)?;
        let lengths: Vec<String> = lengths
            .iter()
            .map(|range| format!("(len>={}&&len<={})", range.start(), range.end()))
            .collect();
        let lengths = lengths.join("||");
        for (event, filter) in [(QUEUED, &*lengths), (RECEIVED, &*lengths), (DROPPED, IP_ONLY)] {
            self.set(&format!("events/{event}/filter"), filter)?;
            self.set(&format!("events/{event}/enable"), "1")?;
        }
        Ok(())
    }

    fn set(&self, name: &str, value: &str) -> Result<(), TracefsError> {
        let written = file(&self.dir, name, OFlags::WRONLY | OFlags::TRUNC)
            .and_then(|mut file| file.write_all(value.as_bytes()));
        written.map_err(|source| TracefsError::Set { file: name.to_owned(), source })
    }

    /// Adds an event of the calling thread to the trace at this place. Best effort.
    pub fn mark(&self, text: &str) {
        if let Some(mut marker) = self.marker.as_ref() {
            let _ = marker.write_all(text.as_bytes());
        }
    }

    /// Returns what has happened, in its order. A drop counts only if an earlier event names the
    /// same packet, or if it happened in a thread that called [`Trace::mark`].
    ///
    /// # Errors
    /// [`TracefsError::Read`].
    pub fn read(&self) -> Result<Vec<Event>, TracefsError> {
        let file = file(&self.dir, "trace", OFlags::RDONLY).map_err(TracefsError::Read)?;
        events_of(BufReader::new(file.take(MOST_BYTES))).map_err(TracefsError::Read)
    }
}

impl Drop for Trace {
    /// The kernel removes no instance of which a file is open.
    fn drop(&mut self) {
        drop(self.marker.take());
        let _ = rustix::fs::unlinkat(&self.instances, &self.name, AtFlags::REMOVEDIR);
    }
}

/// Makes an instance, and opens its folder, and the file that keeps it in use.
fn make(instances: &OwnedFd) -> io::Result<(String, OwnedFd, File)> {
    let name = own_name()?;
    rustix::fs::mkdirat(instances, &name, Mode::RWXU)?;
    let opened = folder(instances, &name, OFlags::PATH).and_then(|dir| {
        let marker = file(&dir, "trace_marker", OFlags::WRONLY)?;
        Ok((dir, marker))
    });
    match opened {
        Ok((dir, marker)) => Ok((name, dir, marker)),
        Err(error) => {
            let _ = rustix::fs::unlinkat(instances, &name, AtFlags::REMOVEDIR);
            Err(error)
        }
    }
}

/// Opens the folder of the kernel's tracing.
fn root() -> io::Result<OwnedFd> {
    let found = rustix::fs::statfs(TRACING)?;
    match u64::try_from(found.f_type).unwrap_or_default() {
        TRACEFS_MAGIC => folder(CWD, TRACING, OFlags::PATH),
        SYSFS_MAGIC => {
            let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&context)?;
            let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
        }
        _ => Err(io::Error::new(io::ErrorKind::NotFound, "something else is mounted there")),
    }
}

fn folder(at: impl AsFd, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, path, flags, Mode::empty())?)
}

fn file(at: impl AsFd, path: &str, flags: OFlags) -> io::Result<File> {
    let opened = rustix::fs::openat(at, path, flags | OFlags::CLOEXEC, Mode::empty())?;
    Ok(File::from(opened))
}

fn own_name() -> io::Result<String> {
    let pid = std::process::id();
    let started = started(pid.into())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "/proc does not show us"))?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Ok(format!("{PREFIX}{pid}-{started}-{number}"))
}

/// Removes what killed processes have left. An instance of a process that we do not see, in another
/// PID namespace, stays: it is in use, so the kernel refuses to remove it.
fn remove_left(instances: &OwnedFd) {
    let Ok(entries) = Dir::read_from(instances) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_ok_and(is_left) {
            let _ = rustix::fs::unlinkat(instances, entry.file_name(), AtFlags::REMOVEDIR);
        }
    }
}

/// Says whether a name is that of an instance whose process is gone.
fn is_left(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let mut numbers = rest.split('-').map(str::parse::<u64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(pid)), Some(Ok(start))) => started(pid) != Some(start),
        _ => false,
    }
}

/// Returns when a process was started (`man 5 proc_pid_stat`, field 22); `None` if it is gone.
fn started(pid: u64) -> Option<u64> {
    let line = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The process's name may hold anything, also spaces and brackets.
    let end = line.iter().rposition(|byte| *byte == b')')?;
    let rest = str::from_utf8(line.get(end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Reads events, and leaves out the drops that do not matter.
fn events_of(mut lines: impl io::BufRead) -> io::Result<Vec<Event>> {
    let (mut events, mut line) = (Vec::new(), Vec::new());
    let (mut packets, mut threads) = (BTreeSet::new(), BTreeSet::new());
    while events.len() < MOST_EVENTS {
        line.clear();
        if lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let Some(event) = event_of(&line) else { continue };
        let counts = match &event.what {
            PacketEvent::Queued { packet, .. } | PacketEvent::Received { packet, .. } => {
                packets.insert(*packet);
                true
            }
            PacketEvent::Marked(_) => {
                threads.insert(event.thread);
                true
            }
            PacketEvent::Dropped { packet, .. } => {
                packets.contains(packet) || threads.contains(&event.thread)
            }
        };
        if counts {
            events.push(event);
        }
    }
    Ok(events)
}

/// Reads a line (linux kernel/trace/trace_output.c `trace_print_context`), such as
/// `         python3-1930    [000] ..s1. 63484.859948: netif_receive_skb: dev=br0 …`.
fn event_of(line: &[u8]) -> Option<Event> {
    let rest = str::from_utf8(line.get(NAME..)?).ok()?.trim_end_matches('\n');
    let (thread, rest) = rest.strip_prefix('-')?.split_once(' ')?;
    let (_, rest) = rest.split_once(']')?;
    let (context, rest) = rest.split_once(": ")?;
    let mut words = context.split_ascii_whitespace();
    let time = words.next_back()?;
    // The third flag: `.`, or the kind of interrupt.
    let flags = words.next().unwrap_or_default();
    let interrupted = flags.as_bytes().get(2).is_some_and(|flag| *flag != b'.');
    let (event, rest) = rest.split_once(": ")?;
    let what = match event {
        "net_dev_queue" => {
            let (packet, link, length) = passed(rest)?;
            PacketEvent::Queued { packet, link, length }
        }
        "netif_receive_skb" => {
            let (packet, link, length) = passed(rest)?;
            PacketEvent::Received { packet, link, length }
        }
        "kfree_skb" => dropped(rest)?,
        _ if event.starts_with("tracing_mark_write") => PacketEvent::Marked(rest.to_owned()),
        _ => return None,
    };
    let at_us = micros(time)?;
    Some(Event { at_us, thread: thread.parse().ok()?, interrupted, what })
}

/// Reads `63484.859948`.
fn micros(time: &str) -> Option<u64> {
    let (seconds, micros) = time.split_once('.')?;
    let seconds: u64 = seconds.parse().ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros.parse().ok()?)
}

/// Reads `dev=eth0 skbaddr=0000000040ed9fae len=215`.
fn passed(fields: &str) -> Option<(u64, String, u32)> {
    let link = field(fields, "dev=")?.to_owned();
    Some((packet(fields)?, link, field(fields, "len=")?.parse().ok()?))
}

/// Reads `skbaddr=0000000040ed9fae … protocol=2048 location=nft_do_chain+0x3e8/0x610 reason: …`.
fn dropped(fields: &str) -> Option<PacketEvent> {
    let location = field(fields, "location=").unwrap_or_default();
    // Without an offset it is a number, which says nothing.
    let function = location.split_once('+').map_or("", |(function, _)| function);
    let reason = fields.split_once("reason: ").map_or("", |(_, reason)| reason.trim());
    Some(PacketEvent::Dropped {
        packet: packet(fields)?,
        protocol: field(fields, "protocol=")?.parse().ok()?,
        function: function.to_owned(),
        reason: reason.to_owned(),
    })
}

fn packet(fields: &str) -> Option<u64> {
    u64::from_str_radix(field(fields, "skbaddr=")?, 16).ok()
}

fn field<'f>(fields: &'f str, name: &str) -> Option<&'f str> {
    fields.split_ascii_whitespace().find_map(|word| word.strip_prefix(name))
}

#[cfg(test)]
mod tests;
