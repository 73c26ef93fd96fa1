//! Signals that are meant for the command and reach us.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;
use signal_hook::iterator::{Handle, SignalsInfo};

/// The signals that are passed on.
const FORWARDED: [i32; 8] = [SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

/// Those of them that end a process by default.
const FATAL: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// A signal that the kernel made, as the terminal does for Ctrl-C
/// (linux include/uapi/asm-generic/siginfo.h).
const SI_KERNEL: i32 = 0x80;

/// Catches signals and passes them on to the command, once there is one.
pub(super) struct Signals {
    shared: Arc<Mutex<SignalState>>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct SignalState {
    child: Option<OwnedFd>,
    /// Signals that came before the command was known, each number once and in order: the command
    /// may be running by then.
    early: Vec<i32>,
}

impl Signals {
    pub(super) fn catch() -> io::Result<Self> {
        let ignored = ignored();
        let wanted = FORWARDED.iter().filter(|signal| !ignored.contains(signal));
        let mut caught = SignalsInfo::<WithRawSiginfo>::new(wanted)?;
        let handle = caught.handle();
        let shared = Arc::new(Mutex::new(SignalState::default()));
        let seen = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for info in caught.forever() {
                lock(&seen).receive(info.si_signo, info.si_code);
            }
        })?;
        Ok(Signals { shared, handle, thread: Some(thread) })
    }

    /// Returns a signal that asked us to end before there was a command.
    pub(super) fn fatal(&self) -> Option<i32> {
        lock(&self.shared).early.iter().copied().find(|signal| FATAL.contains(signal))
    }

    /// Passes on the signals that came and those that will come.
    pub(super) fn forward_to(&self, child: &Child) {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // By descriptor: once the command has ended, another process may have its number.
        let Some(Ok(pidfd)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else { return };
        lock(&self.shared).forward_to(pidfd);
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl SignalState {
    fn receive(&mut self, number: i32, code: i32) {
        match &self.child {
            // The terminal signals the whole foreground process group, to which the command
            // belongs.
            Some(_) if code == SI_KERNEL => {}
            Some(child) => pass_on(child, number),
            None if self.early.contains(&number) => {}
            None => self.early.push(number),
        }
    }

    fn forward_to(&mut self, child: OwnedFd) {
        for number in std::mem::take(&mut self.early) {
            pass_on(&child, number);
        }
        self.child = Some(child);
    }
}

fn pass_on(child: &OwnedFd, number: i32) {
    if let Some(signal) = Signal::from_named_raw(number) {
        // It fails when the command has ended: `wait` reports how.
        let _ = pidfd_send_signal(child, signal);
    }
}

fn lock(shared: &Mutex<SignalState>) -> std::sync::MutexGuard<'_, SignalState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the signals that we were started to ignore (`nohup`), which the command must go on
/// ignoring (`man 5 proc`, `SigIgn`).
fn ignored() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    FORWARDED.into_iter().filter(|signal| mask & (1 << (signal - 1)) != 0).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "only this handler can pass signals on")]
    fn what_comes_between_the_commands_start_and_our_knowing_it_is_passed_on() {
        let script = "trap 'echo usr1' USR1; trap 'echo term; exit' TERM; echo ready; while :; do sleep 0.01; done";
        let mut child =
            Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert_eq!(lines.next().as_deref(), Some("ready"));

        let mut shared = SignalState::default();
        shared.receive(SIGUSR1, 0);
        shared.receive(SIGUSR1, 0);
        let pid = Pid::from_child(&child);
        shared.forward_to(pidfd_open(pid, PidfdFlags::empty()).unwrap());
        assert_eq!(lines.next().as_deref(), Some("usr1"));
        shared.receive(SIGINT, SI_KERNEL);
        shared.receive(SIGTERM, 0);
        assert_eq!(lines.next().as_deref(), Some("term"));
        assert!(child.wait().unwrap().success());
    }
}
