//! Follows a program from system call to system call.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::act::Blow;
use super::name::name;

/// How long a program may take. It is longer than any timeout of ours, so that tests see those
/// timeouts at work.
const TIMEOUT: Duration = Duration::from_secs(100);

/// What a pipe holds (man 7 pipe), so that writing to one never blocks.
const PIPE: usize = 64 * 1024;

/// `PTRACE_EVENT_STOP`: a program that was seized or interrupted, or a new process (man 2 ptrace).
const EVENT_STOP: i32 = 128;

/// A process or thread was started, and the event's message is its ID.
const STARTS: [i32; 3] =
    [libc::PTRACE_EVENT_FORK, libc::PTRACE_EVENT_VFORK, libc::PTRACE_EVENT_CLONE];

/// A system call of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Which of the program's processes and threads, in the order in which they were started; 0 is
    /// the first.
    pub task: usize,
    /// The index of the call among that task's calls, from 0.
    pub number: usize,
    /// The system call's number.
    pub call: i64,
    /// The index of the call among that task's calls with the same number, from 0.
    pub nth: usize,
    /// Its first argument, usually a descriptor.
    pub first: u64,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Moment { task, number, call, .. } = self;
        let call = name(*call);
        match task {
            0 => write!(f, "{call} ({number})"),
            task => write!(f, "{call} ({number} of process {task})"),
        }
    }
}

/// How a program ended.
#[derive(Debug, Clone)]
pub struct ProgramEnd {
    /// Its exit code, if it ended by itself.
    pub code: Option<i32>,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// Whether it did not end in time and was killed for that.
    pub hung: bool,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// The calls it made, in the order in which they began.
    pub moments: Vec<Moment>,
    /// Whether something other than [`Blow::Spare`] happened.
    pub struck: bool,
}

/// Decides at each call what happens. Meanwhile the process is stopped: the closure may inspect
/// things and run other programs.
///
/// It is called until it injects an error; after that the program runs on its own.
pub type Hand<'h> = &'h mut dyn FnMut(Moment) -> Blow;

/// Runs a program to its end, and returns what it did.
#[must_use]
pub fn watch(program: Command, input: &[u8]) -> ProgramEnd {
    follow(program, input, &mut |_| Blow::Spare)
}

impl Moment {
    /// Says whether this is the same moment in another run of the same program: the same call of
    /// the same process.
    #[must_use]
    pub fn is(&self, other: &Moment) -> bool {
        (self.task, self.call, self.nth) == (other.task, other.call, other.nth)
    }
}

/// Runs a program, and injects one fault, at that moment.
#[must_use]
pub fn strike(program: Command, input: &[u8], at: Moment, blow: Blow) -> ProgramEnd {
    follow(program, input, &mut |moment| {
        if moment.is(&at) { blow } else { Blow::Spare }
    })
}

/// Runs a program with `hand` called at every system call from its first read of standard input on.
///
/// # Panics
/// When the program cannot be started or traced, for example because it ends before it reads.
#[must_use]
#[expect(clippy::zombie_processes, reason = "the trace waits for it")]
pub fn follow(mut program: Command, input: &[u8], hand: Hand<'_>) -> ProgramEnd {
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = program.spawn().unwrap_or_else(|error| panic!("start {program:?}: {error}"));
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process ID is small"));
    let watchdog = Watchdog::start(child.id());
    let mut trace = Trace::begin(pid);
    // The input is written only once the program is traced: until it reads, it has done nothing for
    // its request.
    let mut stdin = child.stdin.take().expect("it is piped");
    assert!(input.len() <= PIPE, "an input that a pipe does not hold");
    // The program may die before it has read everything.
    let _ = stdin.write_all(input);
    drop(stdin);
    trace.run(hand);
    let hung = watchdog.stop();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    // Its answer is smaller than a pipe; otherwise it would have blocked.
    let _ = child.stdout.take().expect("it is piped").read_to_end(&mut stdout);
    let _ = child.stderr.take().expect("it is piped").read_to_end(&mut stderr);
    let Trace { end, moments, struck, .. } = trace;
    let (code, signal) = match end {
        Some(WaitStatus::Exited(_, code)) => (Some(code), None),
        Some(WaitStatus::Signaled(_, signal, _)) => (None, Some(signal as i32)),
        _ => (None, None),
    };
    ProgramEnd { code, signal, hung, stdout, stderr, moments, struck }
}

/// Kills a program that takes too long.
struct Watchdog {
    stop: mpsc::Sender<()>,
    thread: thread::JoinHandle<bool>,
}

impl Watchdog {
    fn start(pid: u32) -> Self {
        let (stop, stopped) = mpsc::channel();
        // A descriptor, not a number, which may belong to another process by then.
        let raw = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
        let process = raw.and_then(|pid| {
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
        });
        let thread = thread::spawn(move || {
            let late = stopped.recv_timeout(TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout);
            if let (true, Some(process)) = (late, process) {
                let _ = rustix::process::pidfd_send_signal(process, rustix::process::Signal::KILL);
            }
            late
        });
        Watchdog { stop, thread }
    }

    fn stop(self) -> bool {
        let _ = self.stop.send(());
        self.thread.join().unwrap_or(false)
    }
}

/// A process or thread.
#[derive(Debug, Clone, Copy)]
struct Task {
    ordinal: usize,
    /// The next call's index; `None` until the first read of standard input.
    next: Option<usize>,
    is_inside: bool,
    /// The result that its call must return.
    answer: Option<i32>,
}

impl Task {
    fn new(ordinal: usize, next: Option<usize>) -> Self {
        Task { ordinal, next, is_inside: false, answer: None }
    }
}

struct Trace {
    main: Pid,
    tasks: BTreeMap<Pid, Task>,
    started: usize,
    moments: Vec<Moment>,
    /// How many calls with each number each task has made.
    counts: BTreeMap<(usize, i64), usize>,
    struck: bool,
    end: Option<WaitStatus>,
}

impl Trace {
    fn begin(main: Pid) -> Self {
        let options = ptrace::Options::PTRACE_O_TRACESYSGOOD
            | ptrace::Options::PTRACE_O_TRACEFORK
            | ptrace::Options::PTRACE_O_TRACEVFORK
            | ptrace::Options::PTRACE_O_TRACECLONE
            | ptrace::Options::PTRACE_O_TRACEEXEC
            | ptrace::Options::PTRACE_O_EXITKILL;
        ptrace::seize(main, options).unwrap_or_else(|errno| panic!("trace {main}: {errno}"));
        // It may have ended already because it could not start.
        let _ = ptrace::interrupt(main);
        let tasks = BTreeMap::from([(main, Task::new(0, None))]);
        let (moments, counts) = (Vec::new(), BTreeMap::new());
        Trace { main, tasks, started: 1, moments, counts, struck: false, end: None }
    }

    /// Continues until the program has ended, then detaches from what it left running.
    fn run(&mut self, hand: Hand<'_>) {
        // Only children of this thread: other tests have children too.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        while self.end.is_none() {
            match waitpid(Pid::from_raw(-1), Some(flags)) {
                Ok(status) => self.on(status, hand),
                Err(Errno::EINTR) => {}
                Err(errno) => panic!("wait for {}: {errno}", self.main),
            }
        }
        let left: Vec<Pid> = self.tasks.keys().copied().collect();
        for task in left {
            release(task);
        }
    }

    fn on(&mut self, status: WaitStatus, hand: Hand<'_>) {
        let Some(pid) = status.pid() else { return };
        match status {
            WaitStatus::PtraceSyscall(_) => self.at_call(pid, hand),
            WaitStatus::PtraceEvent(_, _, event) => {
                if event == EVENT_STOP {
                    self.meet(pid);
                } else if let Ok(Ok(new)) = ptrace::getevent(pid).map(i32::try_from)
                    && STARTS.contains(&event)
                {
                    // The task is recorded before it has stopped itself: it is then known even if
                    // its parent is killed now.
                    self.meet(Pid::from_raw(new));
                }
                // The next stop is the end of `execve` even if its begin was before the trace.
                if event == libc::PTRACE_EVENT_EXEC
                    && let Some(task) = self.tasks.get_mut(&pid)
                {
                    task.is_inside = true;
                }
                self.resume(pid, None);
            }
            WaitStatus::Stopped(_, signal) => self.resume(pid, Some(signal)),
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => {
                self.tasks.remove(&pid);
                if pid == self.main {
                    self.end = Some(status);
                }
            }
            _ => {}
        }
    }

    /// Lets a process continue to its next call. Once the fault was injected, lets it run freely,
    /// because each stop costs two context switches. The next wait reports a process that was
    /// killed meanwhile.
    fn resume(&self, pid: Pid, signal: Option<Signal>) {
        let _ = if self.struck { ptrace::cont(pid, signal) } else { ptrace::syscall(pid, signal) };
    }

    fn meet(&mut self, pid: Pid) {
        let ordinal = self.started;
        self.tasks.entry(pid).or_insert_with(|| {
            self.started += 1;
            Task::new(ordinal, Some(0))
        });
    }

    fn at_call(&mut self, pid: Pid, hand: Hand<'_>) {
        let Some(task) = self.tasks.get_mut(&pid) else { return self.resume(pid, None) };
        if task.is_inside {
            task.is_inside = false;
            if let Some(errno) = task.answer.take() {
                registers::answer(pid, errno);
            }
            return self.resume(pid, None);
        }
        task.is_inside = true;
        let Some((call, first)) = registers::call(pid) else { return self.resume(pid, None) };
        if task.next.is_none() && (call, first) == (libc::SYS_read, 0) {
            task.next = Some(0);
        }
        let Some(number) = task.next else { return self.resume(pid, None) };
        task.next = Some(number + 1);
        let count = self.counts.entry((task.ordinal, call)).or_default();
        let nth = *count;
        *count += 1;
        let moment = Moment { task: task.ordinal, number, call, nth, first };
        self.moments.push(moment);
        let blow = hand(moment);
        self.struck |= blow != Blow::Spare;
        match blow {
            Blow::Spare => self.resume(pid, None),
            Blow::Fail(errno) => {
                if let Some(task) = self.tasks.get_mut(&pid) {
                    task.answer = Some(errno);
                }
                // The descriptor is closed whatever this returns (man 2 close).
                if call != libc::SYS_close {
                    registers::skip(pid);
                }
                // The process must stop once more at the call's end, where its result is set.
                let _ = ptrace::syscall(pid, None);
            }
            Blow::Kill => drop(kill(pid, Signal::SIGKILL)),
            Blow::KillAll => {
                for pid in self.tasks.keys() {
                    let _ = kill(*pid, Signal::SIGKILL);
                }
            }
        }
    }
}

/// Stops tracing a process that runs or is stopped at a call.
fn release(pid: Pid) {
    if ptrace::detach(pid, None).is_ok() || ptrace::interrupt(pid).is_err() {
        return;
    }
    match waitpid(pid, Some(WaitPidFlag::__WALL)) {
        Ok(WaitStatus::Stopped(_, signal)) => drop(ptrace::detach(pid, signal)),
        _ => drop(ptrace::detach(pid, None)),
    }
}

/// The registers with which a system call is made.
#[cfg(target_arch = "x86_64")]
mod registers {
    use nix::sys::ptrace;
    use nix::unistd::Pid;

    /// Returns the number of the call that a process is about to make, and its first argument.
    pub(super) fn call(pid: Pid) -> Option<(i64, u64)> {
        let registers = ptrace::getregs(pid).ok()?;
        Some((registers.orig_rax.cast_signed(), registers.rdi))
    }

    /// Makes the kernel skip the call.
    pub(super) fn skip(pid: Pid) {
        if let Ok(mut registers) = ptrace::getregs(pid) {
            registers.orig_rax = u64::MAX;
            let _ = ptrace::setregs(pid, registers);
        }
    }

    /// Makes the skipped call return an error.
    pub(super) fn answer(pid: Pid, errno: i32) {
        if let Ok(mut registers) = ptrace::getregs(pid) {
            registers.rax = i64::from(-errno).cast_unsigned();
            let _ = ptrace::setregs(pid, registers);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod registers {
    use nix::unistd::Pid;

    pub(super) fn call(_: Pid) -> Option<(i64, u64)> {
        None
    }

    pub(super) fn skip(_: Pid) {}

    pub(super) fn answer(_: Pid, _: i32) {}
}
