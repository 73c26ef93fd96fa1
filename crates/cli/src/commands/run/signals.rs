//! Signals meant for the command, which reach us.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;
use signal_hook::iterator::{Handle, SignalsInfo};

/// What is passed on.
const FORWARDED: [i32; 8] = [SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

/// Of these, what ends a process that does not care.
const FATAL: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// A signal that the kernel made, as the terminal does for Ctrl-C (linux include/uapi/asm-generic/siginfo.h).
const SI_KERNEL: i32 = 0x80;

/// Catches signals and passes them on to the command, once there is one.
pub(super) struct Signals {
    shared: Arc<Mutex<Shared>>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    child: Option<OwnedFd>,
    fatal: Option<i32>,
}

impl Signals {
    pub(super) fn catch() -> io::Result<Self> {
        let ignored = ignored();
        let wanted = FORWARDED.iter().filter(|signal| !ignored.contains(signal));
        let mut caught = SignalsInfo::<WithRawSiginfo>::new(wanted)?;
        let handle = caught.handle();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let seen = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for info in caught.forever() {
                receive(&seen, info.si_signo, info.si_code);
            }
        })?;
        Ok(Signals { shared, handle, thread: Some(thread) })
    }

    /// Returns a signal that asked us to end before there was a command.
    pub(super) fn fatal(&self) -> Option<i32> {
        lock(&self.shared).fatal
    }

    /// Passes on what came and what will come.
    pub(super) fn forward_to(&self, child: &Child) {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // By descriptor: once the command has ended its number may be another's.
        let Some(Ok(pidfd)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else { return };
        let mut shared = lock(&self.shared);
        if let Some(signal) = shared.fatal.and_then(Signal::from_named_raw) {
            let _ = pidfd_send_signal(&pidfd, signal);
        }
        shared.child = Some(pidfd);
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

fn receive(shared: &Mutex<Shared>, number: i32, code: i32) {
    let mut shared = lock(shared);
    match &shared.child {
        // The terminal sends to the whole foreground process group, to which the command belongs.
        Some(_) if code == SI_KERNEL => {}
        Some(child) => {
            if let Some(signal) = Signal::from_named_raw(number) {
                let _ = pidfd_send_signal(child, signal);
            }
        }
        None if FATAL.contains(&number) => shared.fatal = Some(number),
        None => {}
    }
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the signals that we were told to ignore (`nohup`), which the command must go on ignoring
/// (`man 5 proc`, `SigIgn`).
fn ignored() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    FORWARDED.into_iter().filter(|signal| mask & (1 << (signal - 1)) != 0).collect()
}
