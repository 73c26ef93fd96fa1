//! The suite, run against plugins whose faults are known.

#![allow(clippy::unwrap_used)]

mod broken;
mod go;
mod ledger;
mod ours;
mod support;
