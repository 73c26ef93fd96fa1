//! Runs an untrusted program: with a deadline, limits on its output, and measurements of its cost.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// How long a pipe may stay open after the program has ended. A runtime reads to the end of the
/// pipe: a program whose child keeps it open makes the runtime wait.
const LINGER: Duration = Duration::from_millis(500);

/// How much memory a process may hold before it has become the program.
const NOT_YET_KIB: u64 = 64;

/// How often the memory of a running program is read.
const SAMPLE: Duration = Duration::from_millis(2);

/// The program to run.
#[derive(Debug, Clone)]
pub(crate) struct Program<'a> {
    pub(crate) executable: &'a Path,
    pub(crate) arguments: &'a [OsString],
    /// Its whole environment.
    pub(crate) environment: &'a [(OsString, OsString)],
    pub(crate) stdin: &'a [u8],
    pub(crate) deadline: Duration,
    /// How much it may write to standard output, and to standard error.
    pub(crate) limit: usize,
}

/// How a program ended, and its output until then.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProgramOutput {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// The exit code; `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) trouble: Option<Trouble>,
    pub(crate) elapsed: Duration,
    /// The most memory that it was seen to hold, in KiB.
    pub(crate) peak_kib: u64,
}

/// What a program must not do in any call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    NotStarted(String),
    Deadline(Duration),
    TooMuch(usize),
    KeepsPipeOpen,
    Signal(i32),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::NotStarted(why) => write!(f, "it could not be started: {why}"),
            Trouble::Deadline(allowed) => {
                write!(f, "it did not end within {} s and was killed", allowed.as_secs())
            }
            Trouble::TooMuch(limit) => {
                write!(f, "it wrote more than {} MiB and was killed", limit >> 20)
            }
            Trouble::KeepsPipeOpen => f.write_str(
                "it ended, but a process it left behind keeps its standard output or error open",
            ),
            Trouble::Signal(signal) => write!(f, "signal {signal} ended it"),
        }
    }
}

impl Program<'_> {
    /// Runs it until it ends, or until the deadline.
    pub(crate) fn run(&self) -> ProgramOutput {
        let started = Instant::now();
        let mut child = match self.spawn() {
            Ok(child) => child,
            Err(error) => {
                let trouble = Some(Trouble::NotStarted(error.to_string()));
                return ProgramOutput { trouble, ..ProgramOutput::default() };
            }
        };
        let mut finished = ProgramOutput::default();
        let talked = Conversation::new(&mut child, self)
            .and_then(|talk| talk.run(started, &mut finished, self));
        if let Err(error) = talked {
            finished.trouble = Some(Trouble::NotStarted(error.to_string()));
        }
        // This also ends the processes that it left behind.
        kill(&mut child);
        if let Ok(status) = child.wait() {
            finished.code = status.code();
            if finished.trouble.is_none() {
                finished.trouble = status.signal().map(Trouble::Signal);
            }
        }
        finished.elapsed = finished.elapsed.min(started.elapsed());
        finished
    }

    #[expect(clippy::disallowed_methods, reason = "plugins and cases are started here alone")]
    fn spawn(&self) -> io::Result<Child> {
        Command::new(self.executable)
            .args(self.arguments)
            .env_clear()
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
    }
}

/// Kills a program and its process group. It has not been waited for, so its process ID cannot
/// belong to another one.
fn kill(child: &mut Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // A failure means that the group is empty.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

struct Conversation<'a> {
    stdin: Option<ChildStdin>,
    input: &'a [u8],
    pipes: [Option<OwnedFd>; 2],
    process: OwnedFd,
    status_file: String,
}

impl<'a> Conversation<'a> {
    fn new(child: &mut Child, program: &Program<'a>) -> io::Result<Self> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidData)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let stdin = child.stdin.take();
        if let Some(stdin) = &stdin {
            set_nonblocking(stdin)?;
        }
        let pipes =
            [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
        for pipe in pipes.iter().flatten() {
            set_nonblocking(pipe)?;
        }
        let status_file = format!("/proc/{}/status", child.id());
        Ok(Conversation { stdin, input: program.stdin, pipes, process, status_file })
    }

    fn run(
        mut self,
        started: Instant,
        out: &mut ProgramOutput,
        program: &Program<'_>,
    ) -> io::Result<()> {
        let mut ended: Option<Instant> = None;
        let mut looked = 0_u32;
        loop {
            if ended.is_some() && self.pipes.iter().all(Option::is_none) {
                break;
            }
            let now = Instant::now();
            let until = ended.map_or(started + program.deadline, |at| at + LINGER);
            if until <= now {
                out.trouble = Some(if ended.is_some() {
                    Trouble::KeepsPipeOpen
                } else {
                    Trouble::Deadline(program.deadline)
                });
                break;
            }
            // Check often in the beginning, then less: a plugin lives for milliseconds.
            let pause = SAMPLE * (1 + looked / 10).min(50);
            if self.wait(pause.min(until - now), ended.is_some())? && ended.is_none() {
                ended = Some(Instant::now());
                out.elapsed = started.elapsed();
            }
            if ended.is_none() {
                looked += 1;
                out.peak_kib = out.peak_kib.max(peak_of(&self.status_file));
            }
            self.write_some()?;
            let [stdout, stderr] = &mut self.pipes;
            for (pipe, text) in [(stdout, &mut out.stdout), (stderr, &mut out.stderr)] {
                if !read_some(pipe, text, program.limit)? {
                    out.trouble = Some(Trouble::TooMuch(program.limit));
                    return Ok(());
                }
            }
        }
        if ended.is_none() {
            out.elapsed = started.elapsed();
        }
        Ok(())
    }

    /// Waits for an event; says whether the process has ended.
    fn wait(&self, pause: Duration, ended: bool) -> io::Result<bool> {
        let mut fds = Vec::with_capacity(4);
        if !ended {
            fds.push(PollFd::new(&self.process, PollFlags::IN));
        }
        if let Some(stdin) = &self.stdin {
            fds.push(PollFd::new(stdin, PollFlags::OUT));
        }
        fds.extend(self.pipes.iter().flatten().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        let timeout = Timespec::try_from(pause).ok();
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
                // A program need not read what it does not want.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                Err(error) => return Err(error),
            }
        }
        self.stdin = None;
        Ok(())
    }
}

/// Reads what is there; `false` when it is too much.
fn read_some(pipe: &mut Option<OwnedFd>, text: &mut Vec<u8>, limit: usize) -> io::Result<bool> {
    let Some(fd) = pipe.take() else { return Ok(true) };
    let mut file = fs::File::from(fd);
    let mut buffer = [0; 8192];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(read) => text.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
        if limit < text.len() {
            return Ok(false);
        }
    }
    *pipe = Some(file.into());
    Ok(true)
}

/// Reads the most memory that a process has held so far (`man 5 proc`, VmHWM), in KiB; 0 when it no
/// longer has any.
fn peak_of(status_file: &str) -> u64 {
    let text = fs::read_to_string(status_file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    peak.filter(|peak| NOT_YET_KIB < *peak).unwrap_or_default()
}

fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> ProgramOutput {
        let program = Program {
            executable: Path::new("/bin/sh"),
            arguments: &["-c".into(), script.into()],
            environment: &[("PATH".into(), "/usr/bin:/bin".into())],
            stdin: b"words",
            deadline: Duration::from_secs(2),
            limit: 1 << 20,
        };
        program.run()
    }

    #[test]
    fn output_and_exit_code_are_returned() {
        let done = sh("cat; echo more >&2; exit 3");
        assert_eq!(
            (done.stdout.as_slice(), done.stderr.as_slice()),
            (&b"words"[..], &b"more\n"[..])
        );
        assert_eq!((done.code, done.trouble), (Some(3), None));
    }

    #[test]
    fn nothing_a_program_does_keeps_us_waiting() {
        let hang = sh("trap '' TERM; while :; do sleep 9; done");
        assert_eq!(hang.trouble, Some(Trouble::Deadline(Duration::from_secs(2))));
        let garbage = sh("exec cat /dev/zero");
        assert_eq!(garbage.trouble, Some(Trouble::TooMuch(1 << 20)));
        let child = sh("sleep 99 & echo done");
        assert_eq!(child.trouble, Some(Trouble::KeepsPipeOpen));
        assert_eq!(child.stdout, b"done\n");
        assert_eq!(sh("kill -SEGV $$").trouble, Some(Trouble::Signal(11)));
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        let program = Program {
            executable: Path::new("/nowhere"),
            arguments: &[],
            environment: &[],
            stdin: b"",
            deadline: LINGER,
            limit: 1,
        };
        assert!(matches!(program.run().trouble, Some(Trouble::NotStarted(_))));
    }
}
