//! The client against the real server, and against servers that lie.

#![allow(clippy::unwrap_used)]

mod lying;
mod real;
#[cfg(feature = "tls")]
mod tls;
