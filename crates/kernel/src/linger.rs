//! Lets a thread or process that outlives a call wait for what the kernel still does after the
//! call.
//!
//! Deleting a link takes the kernel 10 to 20 ms. The link is out of sight after a tenth of that;
//! the rest is grace periods (linux net/core/dev.c `netdev_run_todo`), for which the sender of the
//! request waits. Closing an nftables socket while the kernel destroys what a transaction deleted
//! waits likewise (`nft_rcv_nl_event`). So both are left to a helper:
//!
//! - a thread, in a process that goes on: a library, a daemon, the command line while a container
//!   runs;
//! - a process, in one that ends with its call ([`by_process`]): a thread would keep it from
//!   ending.
//!
//! That process shares memory and open files with ours. So starting it copies nothing, and it
//! closes what ours leaves open, once closing costs nothing. It is reparented when our process
//! exits, and the reaper of orphans there reaps it. It keeps open the files with which our process
//! was started, unless ours closes them ([`end`]).
//!
//! With it, a plain DEL takes 1.9 ms in place of 22, and the name is free when DEL returns. ADD of
//! the plugin `policy` uses it too: the service deletes rules at each ADD, and the kernel makes
//! whoever closes a socket next wait for that. A socket whose closing waits also stops the
//! transactions of all others, so each call of that plugin opens only one nftables socket.

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

/// How long the helper process keeps what ours left open after ours has ended: several times what
/// the kernel needs to destroy things, with room for a busy machine.
const HOLD: Duration = Duration::from_millis(100);

/// A helper's stack: it only makes system calls.
const STACK: usize = 64 * 1024;

/// Whether this process ends with its call.
static BY_PROCESS: AtomicBool = AtomicBool::new(false);
/// Whether a helper process holds our open files.
static HELD: AtomicBool = AtomicBool::new(false);
/// Whether something stays open for a helper process to close.
static LEFT: AtomicBool = AtomicBool::new(false);

/// Declares that this process ends when its call is done, so that work is left to another process.
///
/// Called by an executable's own `main`, which calls [`end`] last of all.
pub fn by_process() {
    BY_PROCESS.store(true, Ordering::Relaxed);
}

/// Leaves to a helper process what [stays open](stays_open). Closes standard input, output and
/// error if such a process holds them too: their reader waits for the end of the stream.
///
/// Nothing may be read or written afterwards.
pub fn end() {
    if LEFT.load(Ordering::Relaxed) && !HELD.load(Ordering::Relaxed) {
        // Without a helper the kernel closes everything as we end, which may take a moment.
        let _ = start(None);
    }
    if HELD.load(Ordering::Relaxed) {
        for number in 0..3 {
            // SAFETY: the process ends next, as this function demands, so nothing uses these
            // descriptors again.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
}

/// Lets what is open at the end of this process stay open for a while, for a helper to close.
/// Reports whether it will: not if this process does not end with its call.
///
/// The helper is started at the end of the call. So nothing that a killed process had open stays
/// open: it might be a lock.
#[must_use]
pub fn stays_open() -> bool {
    let stays = BY_PROCESS.load(Ordering::Relaxed);
    if stays {
        LEFT.store(true, Ordering::Relaxed);
    }
    stays
}

/// Leaves a descriptor open beyond the end of this process ([`stays_open`]).
///
/// # Errors
/// Returns it if this process does not end with its call.
pub fn leave_open<T: AsFd>(open: T) -> Result<(), T> {
    if stays_open() {
        mem::forget(open);
        return Ok(());
    }
    Err(open)
}

/// Lets a helper send a datagram and wait for the kernel to process it. The replies arrive at the
/// socket; before reading each one the caller calls [`SentDatagram::wait`].
///
/// If no helper can be started, we send it ourselves: slow but correct.
pub(crate) fn send(socket: impl AsFd, datagram: &[u8]) -> Result<SentDatagram, Errno> {
    let own = rustix::io::fcntl_dupfd_cloexec(&socket, 0)?;
    let state = Arc::new(AtomicU8::new(PENDING));
    let sending = PendingDatagram {
        socket: own.as_raw_fd(),
        datagram: datagram.to_vec(),
        state: Arc::clone(&state),
    };
    let started = if BY_PROCESS.load(Ordering::Relaxed) {
        start(Some(sending)).map(Some)
    } else {
        start_thread(sending).then_some(None)
    };
    let Some(process) = started else {
        transmit(&own, datagram)?;
        return Ok(SentDatagram { state: None, process: None, waited: Duration::ZERO });
    };
    // The other closes it.
    mem::forget(own);
    Ok(SentDatagram { state: Some(state), process, waited: Duration::ZERO })
}

/// A datagram that a helper was given to send.
#[derive(Debug)]
pub(crate) struct SentDatagram {
    /// The state of the sending; `None` once the kernel is known to have the datagram.
    state: Option<Arc<AtomicU8>>,
    /// The sender, if it is a process.
    process: Option<Pid>,
    waited: Duration,
}

/// The datagram may not have been sent yet.
const PENDING: u8 = 0;
/// The kernel has it.
const DONE: u8 = 1;
/// The kernel did not accept it.
const FAILED: u8 = 2;

/// How long to wait without a reply before the first check of a datagram's state; the interval
/// doubles each time.
const FIRST_LOOK: Duration = Duration::from_millis(10);

impl SentDatagram {
    /// Waits until there is something to receive, or until nothing more can be learned about the
    /// sending: from then on the socket's own timeout applies. What the helper could not send, or
    /// died before sending, we send ourselves.
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

    /// Whether no helper will send it from now on.
    fn is_lost(&mut self) -> bool {
        // Checked first: what a process reports before it ends is visible by then.
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

/// Says whether a helper process has ended: it is a child whose end the kernel does not signal, so
/// it must be asked for.
fn has_ended(process: Pid) -> bool {
    let unasked = WaitOptions::from_bits_retain(libc::__WALL.cast_unsigned());
    !matches!(rustix::process::waitpid(Some(process), WaitOptions::NOHANG | unasked), Ok(None))
}

/// One datagram, and the descriptor that its helper must close.
struct PendingDatagram {
    socket: RawFd,
    datagram: Vec<u8>,
    state: Arc<AtomicU8>,
}

impl PendingDatagram {
    /// Sends it. The kernel's answer reaches the socket's owner through the socket.
    fn run(&self) {
        // SAFETY: the descriptor is open and has no other owner: the thread that handed it over has
        // forgotten it.
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

fn start_thread(sending: PendingDatagram) -> bool {
    let builder = thread::Builder::new().name("linger".to_owned());
    builder.spawn(move || sending.run()).is_ok()
}

/// What a helper process does.
struct Task {
    sending: Option<PendingDatagram>,
    /// The process whose files it keeps open until that process has ended.
    holds_for: Option<Pid>,
}

/// Starts a helper process and returns its ID; the first helper also holds our open files.
fn start(sending: Option<PendingDatagram>) -> Option<Pid> {
    let holds_for = (!HELD.load(Ordering::Relaxed)).then(rustix::process::getpid);
    // The helper uses both as long as it lives, which is longer than we do: they are not freed.
    let task: *mut Task = Box::into_raw(Box::new(Task { sending, holds_for }));
    // Reserved, not filled: the kernel touches its pages. Sixteen bytes satisfy every
    // architecture's alignment.
    let stack = Vec::<u128>::with_capacity(STACK / size_of::<u128>()).leak();
    let top = stack.as_mut_ptr().wrapping_byte_add(STACK);
    // SAFETY: the helper runs on a stack of its own, aligned and large enough for a few system
    // calls, which nothing else ever uses; what it reads stays in place. It shares this thread's
    // thread-local storage, and so calls nothing that uses it: rustix makes system calls itself and
    // has no errno. Without CLONE_SIGHAND and CLONE_THREAD it is a process.
    let started =
        unsafe { libc::clone(helper, top.cast(), libc::CLONE_VM | libc::CLONE_FILES, task.cast()) };
    let process = Pid::from_raw(started.max(0))?;
    HELD.store(true, Ordering::Relaxed);
    Some(process)
}

/// The helper. It must not allocate, free, panic or use thread-local storage.
extern "C" fn helper(task: *mut c_void) -> c_int {
    // SAFETY: the thread that started us passed us this and never touches it again.
    let task = unsafe { &*task.cast::<Task>() };
    if let Some(sending) = &task.sending {
        sending.run();
    }
    if task.holds_for.is_some() {
        // After reparenting, our parent's ID is another; until then no other process can have that
        // ID.
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
