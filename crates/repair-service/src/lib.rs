//! Two services that look after attachments, for runtimes that do not: [`repair`] restores what other
//! programs take from running containers, and [`collect`] removes what deleted ones left behind.
//!
//! Both go through the caches of runtimes ([`cni_runtime`]) and call plugins in their own process.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod collect;
mod ovs;
pub mod repair;
mod runtimes;
