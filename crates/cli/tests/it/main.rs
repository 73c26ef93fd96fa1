//! What the executable does, seen from outside.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod attach;
mod cnitool;
mod cnitool_rows;
mod dispatch;
mod docs;
mod install;
mod interop;
mod lint;
mod oci_hook;
mod output;
mod run;
mod support;
