//! The kernel crate on the real kernel, checked with iproute2 and nft.
//!
//! Every test runs in a separate network namespace, on a separate thread; nothing leaves it.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "these are tests")]

mod addresses;
mod bridge;
mod confine;
mod conntrack;
mod echo;
mod events;
mod followed;
mod guard;
mod links;
mod listen;
mod looks;
mod netns;
mod nexthops;
mod nflog;
mod nft;
mod nft_objects;
mod packet;
mod routers;
mod routes;
mod sysctl;
mod tap;
mod tc;
mod tun;
mod vxlan;
