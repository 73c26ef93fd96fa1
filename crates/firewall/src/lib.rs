//! The packet filter rules of attachments.
//!
//! There are six concerns. Each is a module that turns what an attachment wants into a [`Plan`]
//! (pure data). One engine, [`Firewall`], applies, checks, removes and garbage-collects plans:
//!
//! | module | purpose |
//! |---|---|
//! | [`masquerade`] | packets that leave a network take the host's address |
//! | [`hostport`] | a port of the host leads to a port of a container |
//! | [`spoof`] | a bridge port sends with its own hardware address |
//! | [`policy`] | which bridges and ports reach each other |
//! | [`pod_link`] | what passes the link of a pod under network policy has an address of the pod |
//! | [`routers`] | the host hears no container as a router |
//!
//! Everything lives in two tables of our own, `inet netwright` and `bridge netwright`, created on
//! first use. Rules are fixed; what attachments want are elements of sets and maps, so that a verb
//! costs the same with ten attachments and with ten thousand. Each element's comment names its
//! owner ([`owner`]), and nothing with another owner is deleted. `docs/firewall.md` shows the
//! tables and their priorities.
//!
//! [`cluster`] is the packet filter of a node whose pods other nodes reach: a table of its own that
//! no attachment owns. [`pods`] is network policy: what the crate `policy` decides about which pods
//! may talk to each other, in a table of its own too.
//!
//! The other modules deal with other software: [`iptables`] writes the reference plugins' rules
//! where a configuration asks for them, [`mod@reference`] removes what the reference plugins left,
//! [`forward`] finds out which packet filters drop forwarded packets, [`firewalld`] makes firewalld
//! let them through, [`mod@ruleset`] reads packet filters as data, [`taken`] finds ports that programs of the host listen on.
//!
//! Nothing of an attachment is made without an owner. This crate knows nothing of how plugins are called. It
//! starts no program but those of iptables, and those only when it must.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may panic"))]

mod close;
pub mod cluster;
mod declared;
mod difference;
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
mod meaning;
mod nft;
pub mod owner;
mod plan;
pub mod pod_link;
pub mod pods;
pub mod policy;
pub mod reference;
pub mod routers;
pub mod ruleset;
pub mod spoof;
pub mod tables;
pub mod taken;

pub use close::others_delete;
pub use engine::{CollectReport, Exchange, Firewall, LOCK_TIMEOUT, is_live, owners};
pub use error::FirewallError;
pub use nft::{try_frames, usable};
pub use plan::{Concern, Plan, SharedObject};
