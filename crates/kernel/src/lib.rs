//! The only door to Linux.
//!
//! Network namespaces ([`netns`]) and whether they still exist ([`living`]), links, addresses,
//! routes, rules, neighbours, bridge VLANs and traffic control ([`route`]), nftables ([`nft`]),
//! packets that rules log ([`nflog`]), connection tracking ([`conntrack`]), sysctls ([`sysctl`]), ports that programs listen on
//! ([`listen`]), whether addresses answer ([`echo`]), a process's own confinement ([`confine`]). Everything is blocking, bounded in time
//! and usable from a plain thread; nothing executes a program.
//!
//! This crate knows nothing of CNI. It contains the only unsafe code of the workspace, and reads
//! and writes every netlink byte here: no type of a netlink library appears in a public signature.
//!
//! Changes are plain values ([`route::Change`], [`nft::Batch`]), so that a planner can be tested
//! without a kernel.
//!
//! ```no_run
//! use kernel::netns::Netns;
//! use kernel::route::{Change, LinkSet, RouteSocket};
//!
//! let container = Netns::open("/run/netns/example".as_ref())?;
//! let mut netlink = RouteSocket::open_in(&container)?;
//! if let Some(lo) = netlink.link_by_name("lo")? {
//!     netlink.apply(&[Change::SetLink { ifindex: lo.index, set: LinkSet::default().up(true) }])?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may panic"))]

mod bpf;
pub mod confine;
pub mod conntrack;
pub mod echo;
pub mod ethtool;
pub mod events;
pub mod heap;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod hostile;
pub mod inherited;
pub mod linger;
pub mod listen;
pub mod living;
pub mod mac;
pub mod netlink;
pub mod netns;
pub mod nflog;
pub mod nft;
pub mod packet;
pub mod remedy;
pub mod route;
#[cfg(test)]
mod second_opinion;
pub mod stdout;
pub mod sysctl;
pub mod tun;
mod wire;

pub use mac::MacAddr;
pub use netlink::{Errno, NetlinkError};
