#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod import;
mod local;
pub mod network;
pub mod node;
pub mod reclaim;
pub mod record;
pub mod sticky;
pub mod store;

pub use node::{Clock, Node, Settings};
pub use reclaim::Reclaimer;
