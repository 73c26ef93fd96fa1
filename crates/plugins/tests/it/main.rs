//! Plugins called as runtimes call them: an environment and a configuration in, an answer out.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "skips are announced on stderr")]

mod support;
