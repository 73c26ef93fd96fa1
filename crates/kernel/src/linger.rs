//! What the kernel still does when a call is done, left to somebody who outlives it.
//!
//! Deleting a link takes the kernel 10 to 20 ms, of which the link is out of sight after a tenth of one: the rest is grace
//! periods (linux net/core/dev.c `netdev_run_todo`), and whoever sends the request waits for them. Closing an nftables socket
//! while the kernel destroys what a transaction deleted waits likewise (`nft_rcv_nl_event`). So somebody else does both:
//!
//! - a thread, in a process that goes on: a library, a daemon, the command line while a container runs;
//! - a process, in one that ends with its call ([`by_process`]): a thread would not let it end.
//!
//! That process shares memory and open files with ours, so starting it copies nothing, and what ours leaves open when it ends
//! is closed by the other, when that is free of charge. It is nobody's child to wait for: once ours has ended, whoever adopts
//! orphans there reaps it. It holds the files that ours was started with, unless ours closes them ([`end`]).

use std::ffi::{c_int, c_void};
use std::mem;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Pid, WaitOptions};
use rustix::thread::Timespec;

/// How long the other process holds what ours left open after ours has ended: several times what the kernel needs to destroy
/// things, with room for a busy machine.
const HOLD: Duration = Duration::from_millis(100);

/// What a helper has for a stack: it makes system calls, no more.
const STACK: usize = 64 * 1024;

/// Whether this process ends with its call.
static BY_PROCESS: AtomicBool = AtomicBool::new(false);
/// Whether somebody holds our open files.
static HELD: AtomicBool = AtomicBool::new(false);

/// Tells that this process ends when its call is done, and so leaves things to another process.
///
/// To be said by an executable's own `main`, which says [`end`] as its last word.
pub fn by_process() {
    BY_PROCESS.store(true, Ordering::Relaxed);
}

/// Closes standard input, output and error if another process holds them with us: their reader waits for their end.
///
/// Nothing may be read or written afterwards.
pub fn end() {
    if HELD.load(Ordering::Relaxed) {
        for number in 0..3 {
            // SAFETY: the process ends next, as this function demands, so nobody uses these descriptors again.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
}

/// Leaves something open beyond the end of this process, for another to close.
///
/// # Errors
/// Gives it back if nobody would: this process does not end with its call, or the other could not be started.
pub fn leave_open<T: AsFd>(open: T) -> Result<(), T> {
    if BY_PROCESS.load(Ordering::Relaxed) && (HELD.load(Ordering::Relaxed) || start(None).is_some())
    {
        mem::forget(open);
        return Ok(());
    }
    Err(open)
}

/// Has a datagram sent by somebody else, who waits for what the kernel does with it. Its replies come to the socket; before
/// each the caller asks [`Sent::wait`].
///
/// Sent by us if nobody else can be started: slow and right.
pub(crate) fn send(socket: impl AsFd, datagram: &[u8]) -> Result<Sent, Errno> {
    let own = rustix::io::fcntl_dupfd_cloexec(&socket, 0)?;
    let state = Arc::new(AtomicU8::new(PENDING));
    let sending =
        Sending { socket: own.as_raw_fd(), datagram: datagram.to_vec(), state: Arc::clone(&state) };
    let started = if BY_PROCESS.load(Ordering::Relaxed) {
        start(Some(sending)).map(Some)
    } else {
        start_thread(sending).then_some(None)
    };
    let Some(process) = started else {
        transmit(&own, datagram)?;
        return Ok(Sent { state: None, process: None, waited: Duration::ZERO });
    };
    // The other closes it.
    mem::forget(own);
    Ok(Sent { state: Some(state), process, waited: Duration::ZERO })
}

/// A datagram that somebody else was given to send.
#[derive(Debug)]
pub(crate) struct Sent {
    /// What became of it; nothing once it is known to be the kernel's.
    state: Option<Arc<AtomicU8>>,
    /// Who sends it, if that is a process.
    process: Option<Pid>,
    waited: Duration,
}

/// The datagram may not have been sent yet.
const PENDING: u8 = 0;
/// The kernel has it.
const DONE: u8 = 1;
/// The kernel did not take it.
const FAILED: u8 = 2;

/// After how long without a reply it is asked the first time what became of a datagram; twice as long each time after.
const FIRST_LOOK: Duration = Duration::from_millis(10);

impl Sent {
    /// Waits until there is something to receive, or nothing more to learn about the sending: the socket's own deadline is
    /// for that. What the other could not send, or has died over, is sent by us.
    ///
    /// `ETIMEDOUT` after `longest`.
    pub(crate) fn wait(
        &mut self,
        socket: impl AsFd,
        datagram: &[u8],
        longest: Duration,
    ) -> Result<(), Errno> {
        while self.state.is_some() {
            if longest <= self.waited {
                return Err(Errno::TIMEDOUT);
            }
            let slice = self.waited.max(FIRST_LOOK);
            let time = Timespec::try_from(slice).map_err(|_| Errno::INVAL)?;
            let mut polled = [PollFd::new(&socket, PollFlags::IN)];
            match rustix::event::poll(&mut polled, Some(&time)) {
                Ok(0) => self.waited = self.waited.saturating_add(slice),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            }
            if self.is_lost() {
                self.state = None;
                return transmit(&socket, datagram);
            }
        }
        Ok(())
    }

    /// Whether nobody will send it any more.
    fn is_lost(&mut self) -> bool {
        // Asked first: what a process says before it ends is said by then.
        let has_ended = self.process.is_some_and(has_ended);
        match self.state.as_deref().map(|state| state.load(Ordering::Acquire)) {
            Some(FAILED) => true,
            Some(PENDING) => has_ended,
            _ => {
                self.state = None;
                false
            }
        }
    }
}

/// Whether a helper process has ended: it is a child whose end is told to nobody unasked.
fn has_ended(process: Pid) -> bool {
    let unasked = WaitOptions::from_bits_retain(libc::__WALL.cast_unsigned());
    !matches!(rustix::process::waitpid(Some(process), WaitOptions::NOHANG | unasked), Ok(None))
}

/// One datagram, and the descriptor that is its helper's to close.
struct Sending {
    socket: RawFd,
    datagram: Vec<u8>,
    state: Arc<AtomicU8>,
}

impl Sending {
    /// Sends it. What the kernel says is told to the socket's owner by the socket.
    fn run(&self) {
        // SAFETY: the descriptor is open and nobody else's: who handed it over has forgotten it.
        let socket = unsafe { OwnedFd::from_raw_fd(self.socket) };
        let state = if transmit(&socket, &self.datagram).is_ok() { DONE } else { FAILED };
        self.state.store(state, Ordering::Release);
    }
}

fn transmit(socket: impl AsFd, datagram: &[u8]) -> Result<(), Errno> {
    loop {
        match rustix::net::send(&socket, datagram, SendFlags::empty()) {
            Err(Errno::INTR) => {}
            other => return other.map(|_| ()),
        }
    }
}

fn start_thread(sending: Sending) -> bool {
    let builder = thread::Builder::new().name("linger".to_owned());
    builder.spawn(move || sending.run()).is_ok()
}

/// What a helper process does.
struct Task {
    sending: Option<Sending>,
    /// The process whose files it holds, until that has ended.
    holds_for: Option<Pid>,
}

/// Starts a helper process, and says which it is; the first also holds our open files.
fn start(sending: Option<Sending>) -> Option<Pid> {
    let holds_for = (!HELD.load(Ordering::Relaxed)).then(rustix::process::getpid);
    // Both are the helper's for as long as it lives, which is longer than we do: not freed.
    let task: *mut Task = Box::into_raw(Box::new(Task { sending, holds_for }));
    // Reserved, not filled: its pages are the kernel's to touch. Sixteen bytes are every architecture's alignment.
    let stack = Vec::<u128>::with_capacity(STACK / size_of::<u128>()).leak();
    let top = stack.as_mut_ptr().wrapping_byte_add(STACK);
    // SAFETY: the helper runs on a stack of its own, aligned and large enough for a few system calls, which nothing else ever
    // uses; what it reads stays in place. It shares this thread's thread-local storage, and so calls nothing that uses it:
    // rustix makes system calls itself and has no errno. Without CLONE_SIGHAND and CLONE_THREAD it is a process.
    let started =
        unsafe { libc::clone(helper, top.cast(), libc::CLONE_VM | libc::CLONE_FILES, task.cast()) };
    let process = Pid::from_raw(started.max(0))?;
    HELD.store(true, Ordering::Relaxed);
    Some(process)
}

/// The helper. It must not allocate, free, panic or use thread-local storage.
extern "C" fn helper(task: *mut c_void) -> c_int {
    // SAFETY: who started us gave us this and never touches it again.
    let task = unsafe { &*task.cast::<Task>() };
    if let Some(sending) = &task.sending {
        sending.run();
    }
    if task.holds_for.is_some() {
        // Whoever adopts us is another; our parent's number cannot be anybody else's before that.
        while rustix::process::getppid() == task.holds_for {
            hold();
        }
        hold();
    }
    0
}

fn hold() {
    let time = Timespec { tv_sec: 0, tv_nsec: HOLD.subsec_nanos().into() };
    let _ = rustix::thread::nanosleep(&time);
}
