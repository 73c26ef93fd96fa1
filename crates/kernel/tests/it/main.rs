//! The kernel crate against the real kernel, seen with iproute2's and nft's eyes.
//!
//! Every test runs in a network namespace of its own, on a thread of its own; nothing leaves it.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "these are tests")]

mod addresses;
mod bridge;
mod conntrack;
mod events;
mod guard;
mod links;
mod listen;
mod netns;
mod nft;
mod nft_objects;
mod packet;
mod routes;
mod sysctl;
mod tc;
mod tun;
