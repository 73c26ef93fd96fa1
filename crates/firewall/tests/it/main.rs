//! Plans in the kernel of the test's own host, with real traffic.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "skips are announced on stderr")]

mod cluster;
mod engine;
mod hostport;
mod masquerade;
mod support;
