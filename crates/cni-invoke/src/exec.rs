//! Runs each call by starting a process.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::trust::unproved;
use crate::{Executor, InvokeError, Output, Request, Status};

/// How much a plugin may write to standard output or to standard error. Results are a few
/// kilobytes; a plugin that writes without end must not exhaust the runtime's memory.
const OUTPUT_LIMIT: usize = 16 << 20;

/// How long to read on after the plugin has ended, while a process that it left behind keeps a pipe
/// open.
const LINGER: Duration = Duration::from_millis(200);

/// How long to retry starting a busy executable (one that is being written, `ETXTBSY`): the
/// reference gives an installer six tries a second apart.
const BUSY_TIMEOUT: Duration = Duration::from_secs(6);

/// The pause between two such tries.
const BUSY_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The variables of [`cni::CallEnv`] besides trace context.
const PROTOCOL_VARIABLES: [&str; 7] = [
    "CNI_COMMAND",
    "CNI_CONTAINERID",
    "CNI_NETNS",
    "CNI_IFNAME",
    "CNI_ARGS",
    "CNI_PATH",
    "CNI_NETNS_OVERRIDE",
];

/// Starts a process for each call.
///
/// The process gets the environment given here, with the protocol's variables replacing those of
/// the same name, a process group of its own, and pipes for its three standard files.
#[derive(Debug, Clone, Default)]
pub struct Exec {
    environment: Vec<(OsString, OsString)>,
    refuse_untrusted: Option<PathBuf>,
}

impl Exec {
    /// Creates it with the environment that plugins inherit, normally the caller's own. The
    /// variables that a [`Request`] carries come only from the request. All others are inherited,
    /// even those that begin with `CNI_`: a delegate gets the environment of the plugin that calls
    /// it (CNI 1.1.0 §4).
    pub fn new(environment: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut environment: Vec<_> = environment.into_iter().collect();
        let carried = |key: &str| {
            PROTOCOL_VARIABLES.contains(&key) || cni::call::TRACE_VARIABLES.contains(&key)
        };
        environment.retain(|(key, _)| key.to_str().is_none_or(|key| !carried(key)));
        Exec { environment, refuse_untrusted: None }
    }

    /// Refuses to run anything that a user other than root could have changed
    /// ([`crate::distrust`]), or of which a user namespace does not show whose it is, as long as
    /// there is a file at `setting`. Each call checks for the file.
    #[must_use]
    pub fn refusing_untrusted_if(mut self, setting: impl Into<PathBuf>) -> Self {
        self.refuse_untrusted = Some(setting.into());
        self
    }

    fn require_trust(&self, executable: &Path) -> Result<(), InvokeError> {
        if !self.refuse_untrusted.as_ref().is_some_and(|setting| setting.exists()) {
            return Ok(());
        }
        let why = unproved(executable);
        if why.is_empty() {
            return Ok(());
        }
        Err(InvokeError::Untrusted { executable: executable.to_owned(), why })
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place that starts plugins")]
    fn spawn(&self, executable: &Path, request: &Request) -> io::Result<Child> {
        Command::new(executable)
            .env_clear()
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .envs(request.env.to_vars())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
    }

    fn spawn_patiently(
        &self,
        executable: &Path,
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<Child, InvokeError> {
        let started = Instant::now();
        loop {
            match self.spawn(executable, request) {
                Ok(child) => return Ok(child),
                Err(error)
                    if error.kind() == io::ErrorKind::ExecutableFileBusy
                        && started.elapsed() < BUSY_TIMEOUT
                        && deadline.is_none_or(|deadline| Instant::now() < deadline) =>
                {
                    std::thread::sleep(BUSY_RETRY_DELAY);
                }
                Err(source) => {
                    return Err(InvokeError::Start { executable: executable.to_owned(), source });
                }
            }
        }
    }
}

impl Executor for Exec {
    fn call(
        &self,
        executable: &Path,
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<Output, InvokeError> {
        self.require_trust(executable)?;
        let started = Instant::now();
        let mut child = self.spawn_patiently(executable, request, deadline)?;
        let talk = |source| InvokeError::Talk { executable: executable.to_owned(), source };
        let ended = Conversation::new(&mut child, &request.stdin)
            .and_then(|conversation| conversation.run(deadline));
        let (stdout, stderr) = match ended {
            Ok(End::Done(stdout, stderr)) => (stdout, stderr),
            Ok(End::Deadline) => {
                kill(&mut child);
                return Err(InvokeError::Deadline {
                    executable: executable.to_owned(),
                    allowed: deadline
                        .map(|at| at.saturating_duration_since(started))
                        .unwrap_or_default(),
                });
            }
            Ok(End::TooMuch) => {
                kill(&mut child);
                return Err(InvokeError::TooMuchOutput {
                    executable: executable.to_owned(),
                    limit: OUTPUT_LIMIT,
                });
            }
            Err(source) => {
                kill(&mut child);
                return Err(talk(source));
            }
        };
        let status = child.wait().map_err(talk)?;
        Ok(Output { stdout, stderr, status: status_of(status) })
    }
}

fn status_of(status: ExitStatus) -> Status {
    match (status.code(), status.signal()) {
        (Some(0), _) => Status::Success,
        (Some(code), _) => Status::Exit(code),
        (None, signal) => Status::Signal(signal.unwrap_or_default()),
    }
}

/// Kills a plugin and its process group. It is our own child and not reaped yet, so its process ID
/// cannot belong to another process.
fn kill(child: &mut Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // A failure has no remedy: the process is gone or beyond our rights.
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let _ = child.wait();
}

enum End {
    Done(Vec<u8>, Vec<u8>),
    Deadline,
    TooMuch,
}

/// One exchange over the three pipes, without threads.
struct Conversation<'a> {
    stdin: Option<ChildStdin>,
    input: &'a [u8],
    pipes: [Sink; 2],
    process: OwnedFd,
}

struct Sink {
    pipe: Option<OwnedFd>,
    text: Vec<u8>,
}

impl<'a> Conversation<'a> {
    fn new(child: &mut Child, input: &'a [u8]) -> io::Result<Self> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let process = pidfd_open(pid.expect("a child has a process ID"), PidfdFlags::empty())?;
        let stdin = child.stdin.take();
        if let Some(stdin) = &stdin {
            set_nonblocking(stdin.as_fd())?;
        }
        let sink = |pipe: Option<OwnedFd>| -> io::Result<Sink> {
            if let Some(pipe) = &pipe {
                set_nonblocking(pipe.as_fd())?;
            }
            Ok(Sink { pipe, text: Vec::new() })
        };
        let pipes = [
            sink(child.stdout.take().map(OwnedFd::from))?,
            sink(child.stderr.take().map(OwnedFd::from))?,
        ];
        Ok(Conversation { stdin, input, pipes, process })
    }

    fn run(mut self, deadline: Option<Instant>) -> io::Result<End> {
        let mut process_ended = None;
        loop {
            let linger = process_ended.map(|at: Instant| at + LINGER);
            if self.pipes.iter().all(|sink| sink.pipe.is_none()) && process_ended.is_some() {
                break;
            }
            let until = [linger, deadline].into_iter().flatten().min();
            let timeout = until.map(|at| at.saturating_duration_since(Instant::now()));
            if timeout.is_some_and(|left| left.is_zero()) {
                if process_ended.is_some() {
                    break;
                }
                return Ok(End::Deadline);
            }
            if self.wait(timeout, process_ended.is_some())? {
                process_ended.get_or_insert_with(Instant::now);
            }
            self.write_some()?;
            for sink in &mut self.pipes {
                if !sink.read_some()? {
                    return Ok(End::TooMuch);
                }
            }
        }
        let [stdout, stderr] = self.pipes.map(|sink| sink.text);
        Ok(End::Done(stdout, stderr))
    }

    /// Waits for an event; returns whether the process has ended.
    fn wait(&self, timeout: Option<Duration>, ended: bool) -> io::Result<bool> {
        let mut fds = Vec::with_capacity(4);
        if !ended {
            fds.push(PollFd::new(&self.process, PollFlags::IN));
        }
        if let Some(stdin) = &self.stdin {
            fds.push(PollFd::new(stdin, PollFlags::OUT));
        }
        for pipe in self.pipes.iter().filter_map(|sink| sink.pipe.as_ref()) {
            fds.push(PollFd::new(pipe, PollFlags::IN));
        }
        let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(ended || fds.first().is_some_and(|process| !process.revents().is_empty()))
    }

    fn write_some(&mut self) -> io::Result<()> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        while !self.input.is_empty() {
            match stdin.write(self.input) {
                Ok(written) => self.input = &self.input[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A plugin need not read what it does not need (VERSION).
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                Err(error) => return Err(error),
            }
        }
        self.stdin = None;
        Ok(())
    }
}

impl Sink {
    /// Reads what is available; returns false when it is too much.
    fn read_some(&mut self) -> io::Result<bool> {
        let Some(pipe) = self.pipe.take() else { return Ok(true) };
        let mut file = std::fs::File::from(pipe);
        let mut buffer = [0; 8192];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(true),
                Ok(read) => self.text.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            if OUTPUT_LIMIT < self.text.len() {
                return Ok(false);
            }
        }
        self.pipe = Some(file.into());
        Ok(true)
    }
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(())
}
