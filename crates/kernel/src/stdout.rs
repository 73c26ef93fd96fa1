//! Standard output as the process got it.
//!
//! A process may be started with standard output closed (`>&-` in a shell). std then opens
//! `/dev/null` in its place before `main` runs, so that no other file gets its number
//! (library/std/src/sys/pal/unix/mod.rs, `sanitize_standard_fds`). Then every write seems to
//! succeed. An answer that no process can have received must not count as delivered. So this module
//! checks before std does that, and [`Stdout`] reports it.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

/// Whether standard output was closed when the process was started.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// The C library runs it before `main`, like every function in this section (System V ABI,
/// "Initialization and Termination Functions").
// SAFETY: the section contains pointers to functions that need nothing that is set up later; this
// one makes one system call.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: only the number is examined, by a call that changes nothing (`man 2 fcntl`, F_GETFD).
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    CLOSED.store(flags < 0, Ordering::Relaxed);
}

/// Standard output that writes an answer in one piece, where std's writes line by line. Writing
/// fails with EBADF if it was closed when the process was started.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if CLOSED.load(Ordering::Relaxed) {
            return Err(Errno::BADF.into());
        }
        Ok(rustix::io::write(io::stdout(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
