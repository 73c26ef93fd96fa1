//! Nodes on one store, in memory: what each believes, and what is so.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod crash;
mod faults;
mod give;
mod lease;
mod simulation;
mod spare;
mod sticky;
mod support;
