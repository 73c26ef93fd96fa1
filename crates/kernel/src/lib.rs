#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may panic"))]

mod bpf;
pub mod confine;
pub mod conntrack;
pub mod cover;
pub mod echo;
pub mod ethtool;
pub mod events;
pub mod heap;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod hostile;
pub mod inherited;
pub mod ipv6;
pub mod linger;
pub mod listen;
pub mod living;
pub mod mac;
pub mod netlink;
pub mod netns;
pub mod nflog;
pub mod nft;
pub mod opened;
pub mod packet;
pub mod peer;
pub mod refusals;
pub mod remedy;
pub mod route;
pub mod routers;
#[cfg(test)]
mod second_opinion;
pub mod sockets;
pub mod stdout;
pub mod sysctl;
pub mod tap;
pub mod tracefs;
pub mod tun;
pub mod users;
mod wire;
pub mod wireguard;
pub mod xfrm;

pub use net::{IpFamily, MacAddr};
pub use netlink::{Errno, NetlinkError};
