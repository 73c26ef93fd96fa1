//! The clients with model servers, on a virtual clock; the formats compared with second
//! implementations.

#![allow(clippy::unwrap_used, reason = "tests")]

mod bench;
mod chance;
mod chaos;
mod cross;
mod frames;
mod saved;
mod support;
mod support6;
mod v4_conflict;
mod v4_golden;
mod v4_hostile;
mod v4_machine;
mod v4_random;
mod v4_terms;
mod v6_hostile;
mod v6_machine;
mod v6_random;
