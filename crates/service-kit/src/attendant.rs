//! The thread beside a service's loop: it answers at the service's status socket, and reads the
//! configuration again when a signal asks for it (SIGHUP). It answers also while the loop hangs.
//!
//! A service answers HTTP at its own Unix socket, `/run/netwright/agent/SERVICE.sock`, so that the
//! supervisor, `netwrightd agent status`, probes and `curl` ask in the same way, whatever started
//! the service. `health` has the answers. In the time of `[agent] watchdog` the loop
//! begins at least four rounds, so this thread can say that the loop hangs.
//!
//! `READY=1` means that the service serves, not that nothing is missing: otherwise systemd would
//! end a service whose API server is away for long. `/readyz` and `agent status` have the stricter
//! meaning. If two processes of one service run on a node, the second does its work but has no
//! status.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use agent::report::LogLine;
use agent::{Config, rights};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::SIGHUP;
use state::{Durability, Roots};

use crate::bell::Bell;
use crate::exchange::Answer;
use crate::health;
use crate::listen::Listener;
use crate::talks::Talks;

/// How often a process that follows its configuration looks at its files, and how long at least is
/// between two looks.
const LOOK: Duration = Duration::from_secs(2);
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// Returns the folder of the status sockets.
pub fn folder(roots: &Roots) -> PathBuf {
    roots.run.join("agent")
}

/// Returns the folder of a service's status socket: its own, if the service is not root.
pub fn home(roots: &Roots, service: &str) -> PathBuf {
    match rights::of(service).and_then(|rights| rights.user) {
        Some(_) => folder(roots).join(service),
        None => folder(roots),
    }
}

/// Returns the path of a service's status socket.
pub fn socket(roots: &Roots, service: &str) -> PathBuf {
    home(roots, service).join(format!("{service}.sock"))
}

/// Returns the path of the file with the error with which a service ended last.
fn last_words(roots: &Roots, service: &str) -> PathBuf {
    home(roots, service).join(format!("{service}.error"))
}

/// Leaves the error with which a service ends, for `netwrightd agent status`.
pub fn leave_last_words(roots: &Roots, service: &str, error: &str) {
    let said = LogLine { at: health::now(), text: cni::text::one_line(error) };
    let text = serde_json::to_vec(&said).expect("our types serialise to JSON");
    // If this fails, the status does not say why the service ended; the log does.
    let _ = state::create_directory(&home(roots, service), 0o700).and_then(|()| {
        let path = last_words(roots, service);
        state::write_atomic(&path, &text, 0o600, Durability::Volatile)
    });
}

/// Reads the error with which a service ended last.
pub fn read_last_words(roots: &Roots, service: &str) -> Option<LogLine> {
    let text = state::read_optional(&last_words(roots, service)).ok().flatten()?;
    serde_json::from_slice(&text).ok()
}

/// Forgets the error with which a service ended last.
pub fn forget_last_words(roots: &Roots, service: &str) {
    let _ = state::remove_file(&last_words(roots, service));
}

/// What the thread does.
pub struct Duties {
    /// Answers a question.
    pub answer: Box<dyn Fn(&str) -> Answer + Send>,
    /// Reads the configuration again, for a process whose loop does not.
    pub reload: Option<Box<dyn FnMut() + Send>>,
    /// Says whether the configuration's files have changed, for a process that follows them.
    pub changed: Option<Box<dyn FnMut() -> bool + Send>>,
}

impl std::fmt::Debug for Duties {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Duties").finish_non_exhaustive()
    }
}

/// The thread. It ends, and its socket is removed, when this is dropped.
#[derive(Debug)]
pub struct Attendant {
    end: Bell,
    thread: Option<JoinHandle<()>>,
}

impl Attendant {
    /// Starts the thread. Without a listener it answers no client. `hung_up` says whether a SIGHUP
    /// came before.
    pub fn start(
        listener: Option<Listener>,
        duties: Duties,
        hung_up: &AtomicBool,
    ) -> std::io::Result<Self> {
        let (end, hangups) = (Bell::new()?, Bell::new()?);
        if duties.reload.is_some() {
            hangups.ring_at(SIGHUP)?;
            if hung_up.swap(false, Ordering::SeqCst) {
                hangups.ring();
            }
        }
        let thread = std::thread::Builder::new().name("attendant".to_owned());
        let ended = end.clone();
        let thread = thread.spawn(move || attend(listener, &hangups, &ended, duties))?;
        Ok(Attendant { end, thread: Some(thread) })
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        self.end.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Opens a status socket. If that is impossible, it logs why, and the service runs without one.
pub fn listen(path: &Path) -> Option<Listener> {
    match Listener::open(Vec::new(), path) {
        Ok(listener) => Some(listener),
        Err(error) => {
            let error = cni::Error::from_chain(0, &error).msg;
            tracing::warn!(error, "the service has no status");
            None
        }
    }
}

fn attend(listener: Option<Listener>, hangups: &Bell, ended: &Bell, mut duties: Duties) {
    let mut talks: Talks<UnixStream> = Talks::default();
    let mut looked = Instant::now();
    loop {
        let mut ready =
            vec![PollFd::new(ended, PollFlags::IN), PollFd::new(hangups, PollFlags::IN)];
        ready.extend(listener.as_ref().map(|of| PollFd::new(&of.socket, PollFlags::IN)));
        let first = ready.len();
        ready.extend(talks.waits());
        let pause = pause(duties.changed.is_some(), talks.until());
        match poll(&mut ready, pause.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                tracing::error!(error = %errno, "the service has no status from now on");
                break;
            }
        }
        let is_ready: Vec<bool> = ready.iter().map(|one| !one.revents().is_empty()).collect();
        if is_ready[0] {
            break;
        }
        let mut wanted = is_ready[1];
        if wanted {
            hangups.heard();
        }
        if let Some(changed) = &mut duties.changed
            && LOOK_AFTER <= looked.elapsed()
        {
            looked = Instant::now();
            wanted |= changed();
        }
        if let (true, Some(reload)) = (wanted, &mut duties.reload) {
            reload();
        }
        talks.go_on(&is_ready[first..], &mut |asked: &str| (duties.answer)(asked));
        if let (Some(listener), Some(true)) = (&listener, is_ready.get(2)) {
            talks.accept(|| {
                let (stream, _) = listener.socket.accept()?;
                stream.set_nonblocking(true)?;
                Ok(stream)
            });
        }
    }
    if let Some(listener) = listener {
        listener.close();
    }
}

/// Returns how long to wait at most: until the next look at files, or until the time of a client is
/// over.
fn pause(follows: bool, until: Option<Instant>) -> Option<Timespec> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let pause = match (follows.then_some(LOOK), left) {
        (Some(look), Some(left)) => Some(look.min(left)),
        (look, left) => look.or(left),
    };
    pause.and_then(|pause| Timespec::try_from(pause).ok())
}

/// A changed configuration on its way from the thread to the service's loop.
#[derive(Debug, Clone)]
pub struct Changes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: Mutex<Option<Config>>,
    bell: Bell,
}

impl Changes {
    /// Creates one without a change.
    pub fn new() -> std::io::Result<Self> {
        Ok(Changes(Arc::new(Inner { config: Mutex::new(None), bell: Bell::new()? })))
    }

    /// Returns what is readable while there is a change.
    pub fn descriptor(&self) -> impl AsFd + '_ {
        &self.0.bell
    }

    /// Leaves a configuration for the loop.
    pub fn put(&self, config: Config) {
        *self.0.config.lock().unwrap_or_else(PoisonError::into_inner) = Some(config);
        self.0.bell.ring();
    }

    /// Takes the last configuration that was left.
    pub fn take(&self) -> Option<Config> {
        self.0.bell.heard();
        self.0.config.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange;
    use crate::talks::MOST;
    use std::io::{Read as _, Write as _};

    /// More than a socket's buffers hold.
    const LONG: usize = 1 << 20;

    fn start(path: &Path) -> Attendant {
        let listener = Listener::open(Vec::new(), path).unwrap();
        let answer = Box::new(|target: &str| match target {
            "/long" => Answer::text(200, &"x".repeat(LONG)),
            _ => Answer::verdict(None),
        });
        let duties = Duties { answer, reload: None, changed: None };
        Attendant::start(Some(listener), duties, &AtomicBool::new(false)).unwrap()
    }

    fn assert_answers(path: &Path) {
        let (status, _) = exchange::ask(path, "/readyz", Duration::from_secs(60)).unwrap();
        assert_eq!(status, 200);
    }

    /// More clients than the thread listens to. It used to wait for each of them, for two seconds.
    #[test]
    fn clients_that_say_nothing_keep_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let attendant = start(&path);
        let connect = |_| UnixStream::connect(&path).unwrap();
        let silent: Vec<UnixStream> = (0..MOST * 2).map(connect).collect();
        assert_answers(&path);
        drop(silent);
        drop(attendant);
        assert!(!path.exists());
    }

    /// The thread used to wait for each client for two seconds, or for as long as it read a little
    /// at a time.
    #[test]
    fn clients_that_do_not_read_keep_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _attendant = start(&path);
        let ask = || {
            let mut stream = UnixStream::connect(&path).unwrap();
            // The thread may have closed the connection already, to make room for later clients.
            let _ = stream.write_all(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n");
            stream
        };
        let mut slow = ask();
        assert_answers(&path);
        let mut said = String::new();
        slow.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        slow.read_to_string(&mut said).unwrap();
        let (_, body) = said.split_once("\r\n\r\n").unwrap();
        assert_eq!(body.len(), LONG + 1, "it has the whole answer");
        let unread: Vec<UnixStream> = (0..MOST * 2).map(|_| ask()).collect();
        assert_answers(&path);
        drop(unread);
    }
}
