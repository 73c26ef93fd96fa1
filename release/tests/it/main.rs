//! The program as `cargo xtask release` calls it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod makers;
