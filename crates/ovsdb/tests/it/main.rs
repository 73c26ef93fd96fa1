//! The client against the real server, and against servers that lie.

#![allow(clippy::unwrap_used)]

mod lying;
mod real;
