//! Network policy as values.

#![allow(clippy::unwrap_used, reason = "tests")]
