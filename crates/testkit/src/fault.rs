//! Fault injection: a program is killed, or one of its system calls fails, at a moment that the
//! test chooses.
//!
//! The program runs under `ptrace`. The first moment is its first read of standard input: what it
//! does before that is done by its loader and does not depend on the request. At every system call
//! of the program, and of each process and thread it starts, the test decides what happens
//! ([`Blow`]). The moments are the same in every run, so a test can go through all of them:
//!
//! ```no_run
//! use testkit::fault::{self, Blow, Moment};
//!
//! let program = || std::process::Command::new("/opt/cni/bin/bridge");
//! let all = fault::watch(program(), b"{}").moments;
//! for moment in all {
//!     let ended = fault::strike(program(), b"{}", moment, Blow::Kill);
//!     assert!(ended.struck);
//!     // … whatever must hold now …
//! }
//! ```
//!
//! Under `strace` a program takes 30 ms and more; here it takes its own time plus two context
//! switches per call. The thread that starts the program also traces it.

mod act;
mod name;
mod trace;

pub use act::{Blow, failures};
pub use name::{changes, name};
pub use trace::{Hand, Moment, ProgramEnd, follow, strike, watch};

/// Whether programs can be traced like this on this kind of machine: the registers differ.
#[must_use]
pub const fn available() -> bool {
    cfg!(target_arch = "x86_64")
}
