//! The client with the real server, and with servers that lie.

#![allow(clippy::unwrap_used)]

mod lying;
mod real;
#[cfg(feature = "tls")]
mod tls;
