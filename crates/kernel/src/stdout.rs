//! Standard output as the process was given it.
//!
//! A process may be started with standard output closed (`>&-` in a shell). std then opens `/dev/null` in its place before
//! `main` runs, lest another file get its number (library/std/src/sys/pal/unix/mod.rs, `sanitize_standard_fds`), and whatever is
//! written seems to have been read. An answer that nobody can have been given must not count as given, so this is looked at
//! before std does that, and [`Stdout`] says so.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

/// Whether standard output was closed when the process was started.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Run by the C library before `main`, as every function in this section is (System V ABI, "Initialization and Termination
/// Functions").
// SAFETY: the section holds pointers to functions that need nothing which is set up later; this one makes one system call.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: the number alone is looked at, by a call that changes nothing (`man 2 fcntl`, F_GETFD).
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    CLOSED.store(flags < 0, Ordering::Relaxed);
}

/// Standard output that takes an answer in one piece, where std's is written to line by line. Writing fails with EBADF where it was
/// closed when the process was started.
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
