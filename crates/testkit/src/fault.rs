//! A fault laboratory: a program that is killed, or whose system call fails, at a moment of the test's choosing.
//!
//! The program runs under `ptrace`, from the first read of its standard input on: what it does before that is its loader's
//! and the same whatever it is asked. At every system call of its own and of each process and thread it starts, the test is
//! asked what is to happen ([`Blow`]). The moments are the same in every run, so a test can go through all of them:
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
//! A program under `strace` takes 30 ms and more; here it takes what it takes alone and two switches for each call. The
//! thread that starts the program is the one that traces it.

mod act;
mod name;
mod trace;

pub use act::{Blow, failures};
pub use name::{changes, name};
pub use trace::{Ended, Hand, Moment, follow, strike, watch};

/// Whether programs can be traced so on this kind of machine: the registers differ.
#[must_use]
pub const fn available() -> bool {
    cfg!(target_arch = "x86_64")
}
