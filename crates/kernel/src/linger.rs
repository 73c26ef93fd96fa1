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
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::Pid;
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
    if BY_PROCESS.load(Ordering::Relaxed) && (HELD.load(Ordering::Relaxed) || start(None)) {
        mem::forget(open);
        return Ok(());
    }
    Err(open)
}

/// Has a datagram sent by somebody else, who waits for what the kernel does with it. Its replies come to the socket.
///
/// Sent by us if nobody else can be started: slow and right.
pub(crate) fn send(socket: impl AsFd, datagram: &[u8]) -> Result<(), Errno> {
    let own = rustix::io::fcntl_dupfd_cloexec(&socket, 0)?;
    let by_process = BY_PROCESS.load(Ordering::Relaxed);
    let sending = Sending { socket: own.as_raw_fd(), datagram: datagram.to_vec() };
    let started = if by_process { start(Some(sending)) } else { start_thread(sending) };
    if started {
        // The other closes it.
        mem::forget(own);
        return Ok(());
    }
    transmit(&own, datagram)
}

/// One datagram, and the descriptor that is its helper's to close.
struct Sending {
    socket: RawFd,
    datagram: Vec<u8>,
}

impl Sending {
    /// Sends it. What the kernel says is told to the socket's owner by the socket.
    fn run(&self) {
        // SAFETY: the descriptor is open and nobody else's: who handed it over has forgotten it.
        let socket = unsafe { OwnedFd::from_raw_fd(self.socket) };
        let _ = transmit(&socket, &self.datagram);
    }
}

fn transmit(socket: &OwnedFd, datagram: &[u8]) -> Result<(), Errno> {
    loop {
        match rustix::net::send(socket, datagram, SendFlags::empty()) {
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

/// Starts a helper process; the first also holds our open files.
fn start(sending: Option<Sending>) -> bool {
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
    if started < 0 {
        return false;
    }
    HELD.store(true, Ordering::Relaxed);
    true
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
