//! `doctor --watch`: waits for changes, as the kernel tells them.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use cni_invoke::PLUGIN_DIRS;
use cni_plugin::codes;
use diagnose::{Diagnosis, Finding};
use kernel::NetlinkError;
use kernel::events::ChangeListener;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::failure::Failure;
use crate::net::session::Session;

/// The beginning of the names of the tables with which probes are followed.
const OWN_TABLES: &str = "netwright-doctor-";

/// Changes come in bursts: a look waits until nothing has changed for `QUIET`. Where something
/// changes all the time, it waits no longer than `MOST`.
const QUIET: Duration = Duration::from_millis(300);
const MOST: Duration = Duration::from_secs(3);

/// Where something changes all the time, looks take at most a sixth of the time: after each look it
/// rests `RESTS` times as long as the look took, and at least `LEAST`.
const RESTS: u32 = 5;
const LEAST: Duration = Duration::from_secs(1);

/// Hears of changes of the node and its containers, and of signals that ask to end.
#[derive(Debug)]
pub(super) struct Watch {
    changes: ChangeListener,
    inotify: OwnedFd,
    folders: Vec<PathBuf>,
    stop: UnixStream,
    /// When the present look began.
    since: Instant,
}

/// What came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchEvent {
    Stop,
    Change,
    Nothing,
}

impl Watch {
    /// Begins to listen. `ignored` is the file of findings that are not reported.
    pub(super) fn begin(session: &Session, ignored: &Path) -> Result<Self, Failure> {
        let failed = |what: &'static str| {
            move |error: std::io::Error| Failure::new(cni::code::IO_FAILURE, what).because(error)
        };
        let changes = ChangeListener::open(OWN_TABLES).map_err(|error| unheard(&error))?;
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(|errno| failed("watch folders")(errno.into()))?;
        let stop = signals().map_err(failed("catch signals"))?;
        let attachments = session.runtime.cache().results_dir().to_owned();
        let dockers = session.roots.run.join("docker/records/endpoints");
        let mut folders = vec![session.conf_dir.clone(), attachments, dockers];
        folders.extend(ignored.parent().map(Path::to_owned));
        folders.extend(PLUGIN_DIRS.iter().map(PathBuf::from));
        let watch = Watch { changes, inotify, folders, stop, since: Instant::now() };
        watch.renew();
        Ok(watch)
    }

    /// Watches the folders that are there by now; called before each look, so that no change is
    /// missed.
    fn renew(&self) {
        let events = WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE;
        for folder in &self.folders {
            // One that is missing may be there at the next look.
            let _ = inotify::add_watch(&self.inotify, folder, events);
        }
    }

    /// Rests after a look, then waits until something has changed and no further change comes.
    /// Changes during the rest are queued and count as one. Says whether to look again: not if a
    /// signal has ended the wait.
    pub(super) fn wait(&mut self) -> Result<bool, Failure> {
        let pause = self.since.elapsed().saturating_mul(RESTS).max(LEAST);
        if self.is_stopped_within(pause) {
            return Ok(false);
        }
        loop {
            match self.poll(None)? {
                WatchEvent::Stop => return Ok(false),
                WatchEvent::Change => break,
                WatchEvent::Nothing => {}
            }
        }
        let latest = Instant::now() + MOST;
        loop {
            let left = latest.saturating_duration_since(Instant::now());
            match self.poll(Some(left.min(QUIET)))? {
                WatchEvent::Stop => return Ok(false),
                WatchEvent::Change if !left.is_zero() => {}
                WatchEvent::Change | WatchEvent::Nothing => break,
            }
        }
        self.renew();
        self.since = Instant::now();
        Ok(true)
    }

    /// Rests after a look, also where the kernel tells of no change: another machine may have to
    /// mend what is wrong. Says whether to look again: not after this time, nor after a signal.
    pub(super) fn rest(&mut self, latest: Instant) -> bool {
        let pause = self.since.elapsed().max(LEAST);
        let left = latest.saturating_duration_since(Instant::now());
        let goes_on = !left.is_zero() && !self.is_stopped_within(pause.min(left));
        self.since = Instant::now();
        goes_on
    }

    /// Waits this long for a signal only, and says whether one came.
    fn is_stopped_within(&self, pause: Duration) -> bool {
        let latest = Instant::now() + pause;
        loop {
            let left = latest.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let timeout = Timespec::try_from(left).ok();
            let mut sources = [PollFd::new(&self.stop, PollFlags::IN)];
            let _ = poll(&mut sources, timeout.as_ref());
            if !sources[0].revents().is_empty() {
                return true;
            }
        }
    }

    /// Waits for the next event, no longer than this.
    fn poll(&mut self, timeout: Option<Duration>) -> Result<WatchEvent, Failure> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let [route, filter] = self.changes.descriptors();
        let mut sources = [
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&route, PollFlags::IN),
            PollFd::new(&filter, PollFlags::IN),
            PollFd::new(&self.inotify, PollFlags::IN),
        ];
        // A signal that interrupts it has written to its socket; otherwise the caller waits again.
        let _ = poll(&mut sources, timeout.as_ref());
        let is_stopped = !sources[0].revents().is_empty();
        if is_stopped {
            return Ok(WatchEvent::Stop);
        }
        let heard = self.changes.heard().map_err(|error| unheard(&error))?;
        let written = self.written();
        Ok(if heard || written { WatchEvent::Change } else { WatchEvent::Nothing })
    }

    /// Says whether something has changed in the folders. A temporary file that a program renames
    /// later does not count, nor do locks.
    fn written(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut written = false;
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
            written |= name.is_none_or(|name| !is_passing(&name));
        }
        written
    }
}

fn unheard(error: &NetlinkError) -> Failure {
    Failure::of(codes::KERNEL, error).context("listen for changes")
}

/// Says whether a file exists only while a program writes.
fn is_passing(name: &str) -> bool {
    name.starts_with('.') || name == "lock" || name.ends_with(".lock")
}

/// Returns a socket that becomes readable when a signal asks us to end. A second signal ends the
/// process at once, even during a look.
fn signals() -> std::io::Result<UnixStream> {
    #[expect(clippy::disallowed_methods, reason = "the handlers of the signals hold the other end")]
    let (signals, notices) = UnixStream::pair()?;
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // What is registered first is done first: the first signal finds the flag as it was.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&asked))?;
        signal_hook::flag::register(signal, Arc::clone(&asked))?;
        signal_hook::low_level::pipe::register(signal, notices.try_clone()?)?;
    }
    Ok(signals)
}

/// Returns what two looks are compared by: times and evidence differ each time.
pub(super) fn summary(diagnosis: &Diagnosis) -> Vec<String> {
    let line = |finding: &Finding| format!("{} {} {:?}", finding.id, finding.object, finding.hits);
    let mut told = Vec::new();
    for cause in &diagnosis.causes {
        told.extend(std::iter::once(&cause.finding).chain(&cause.explains).map(line));
    }
    // A policy that has begun to deny something is a change, too.
    told.extend(diagnosis.notes.iter().map(|note| format!("note: {}", line(note))));
    told.extend(diagnosis.unexamined.iter().map(|one| format!("not examined: {one:?}")));
    told
}
