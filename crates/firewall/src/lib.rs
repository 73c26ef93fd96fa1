//! What we want of the packet filter.
//!
//! Four concerns, each a module that turns what an attachment wants into a [`Plan`] (pure data), and one engine,
//! [`Firewall`], that puts plans in place, verifies, removes and collects them:
//!
//! | module | what |
//! |---|---|
//! | [`masquerade`] | what leaves a network takes the host's address |
//! | [`hostport`] | a port of the host leads to a port of a container |
//! | [`spoof`] | a bridge port sends with its own hardware address |
//! | [`policy`] | which bridges and ports reach each other |
//!
//! Everything lives in two tables of our own, `inet netwright` and `bridge netwright`, made on first use. Rules are
//! fixed; what attachments want are elements of sets and maps, so that a verb costs the same with ten attachments and
//! with ten thousand. Each element's comment names its owner ([`owner`]), and nothing is deleted whose owner is another.
//! `docs/firewall.md` shows the tables and their priorities.
//!
//! The rest is for living with others: [`iptables`] writes the reference plugins' rules where a configuration asks for
//! them, [`mod@reference`] removes what the reference plugins left, [`forward`] finds out who drops forwarded packets,
//! [`firewalld`] has firewalld let them through, [`taken`] finds ports that programs of the host listen on.
//!
//! This crate must not be called without an owner, knows nothing of how plugins are called, and starts no program but
//! those of iptables, and those only when it must.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may panic"))]

mod close;
pub mod element;
mod engine;
pub mod error;
pub mod firewalld;
pub mod forward;
mod host_sysctl;
pub mod hostport;
pub mod iptables;
mod layout;
pub mod masquerade;
mod nft;
pub mod owner;
mod plan;
pub mod policy;
pub mod reference;
pub mod spoof;
pub mod tables;
pub mod taken;

pub use engine::{Collected, Firewall, LOCK_TIMEOUT, is_live};
pub use error::FirewallError;
pub use nft::usable;
pub use plan::{Concern, Plan, Shared};
