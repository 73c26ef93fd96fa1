//! Fault injection: whatever happens to a call, one DEL or one GC leaves the host as it was, and
//! the next ADD works.
//!
//! The executable runs as runtimes run it, a process for each call, under [`testkit::fault`]: at
//! one moment after the other it is killed, or its system call fails. The tests count their tries
//! and print them ([`testkit::Tally`]); `cargo xtask ci` shows the table.

#![allow(clippy::unwrap_used, reason = "tests")]
#![expect(clippy::disallowed_methods, reason = "the program is what is tested")]
#![expect(clippy::print_stderr, reason = "tests print seeds and figures")]

mod anywhere;
mod cycles;
mod files;
mod found;
mod orders;
mod reserved;
mod scenario;
mod soak;
mod strike;
mod subsets;
mod world;
