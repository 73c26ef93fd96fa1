//! Address pools, and the folder in which the reference's `host-local` plugin keeps them.
//!
//! Two independent halves, [`keys`], by which a configuration names its pools, and [`host`], which
//! knows what addresses hosts can have:
//!
//! - [`range`] and [`plan`] are arithmetic: which addresses exist, and which one is next. Their
//!   only input from outside is [`plan::Occupancy`].
//! - [`store`] is the folder: byte for byte what the reference writes and reads, so that a node can
//!   switch from the Go plugins to ours, and back, with containers running.
//!
//! [`store::LockedStore::allocate`] joins them: while it holds the network's lock once, it reads,
//! plans for *all* range sets, and only then writes. Nothing here knows about links, or where the
//! folder is: paths are passed in.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! use netwright_ipam::{Owner, RangeSets, RangeSpec, Store};
//! use std::time::Duration;
//!
//! let range = RangeSpec { subnet: Some("192.0.2.0/29".parse()?), ..RangeSpec::default() };
//! let sets = RangeSets::new(vec![vec![range]])?;
//! let store = Store::new(dir.path(), &cni::NetworkName::new("blue")?);
//! let owner = Owner::new("c1", "eth0");
//!
//! let locked = store.lock_or_create(Duration::from_secs(5))?;
//! let assigned = locked.allocate(&sets, &[], &owner)?;
//! assert_eq!(assigned[0].address.to_string(), "192.0.2.2/29");
//! assert_eq!(locked.release(&owner)?.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod host;
pub mod keys;
pub mod plan;
pub mod range;
pub mod store;

pub use keys::{DATA_DIR, Keys};
pub use plan::{Assignment, PlanError, SetError};
pub use range::{Range, RangeError, RangeSet, RangeSetError, RangeSets, RangeSetsError, RangeSpec};
pub use store::{
    AllocateError, CollectReport, Holder, LockedStore, Origin, Owner, Reservation, Store,
    StoreError,
};
