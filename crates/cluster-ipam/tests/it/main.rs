//! Nodes on one store in memory: what each assumes, and what is true.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod ahead;
mod crash;
mod faults;
mod give;
mod lease;
mod simulation;
mod spare;
mod sticky;
mod support;
