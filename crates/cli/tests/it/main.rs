//! What the executable does, seen from outside.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;
