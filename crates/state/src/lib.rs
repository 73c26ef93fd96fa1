//! The files that a node's networking keeps.
//!
//! Containers outlive the calls that connect them, so each call must know what earlier calls did.
//! This crate owns how that is written down: whole files or none ([`write_atomic`]; [`publish()`]
//! where other programs watch), one writer at a time ([`Lock`]), and who owns what ([`Index`]). It
//! knows nothing of links, addresses or rules: it stores what plugins pass to it.
//!
//! There are two roots, passed as values and never constants ([`Roots`]): a reboot empties `run`,
//! as it does the kernel's objects, and keeps `lib`.
//!
//! | path | contents |
//! |---|---|
//! | `<run>/owners/<attachment>/<plugin>.json` | what a plugin made for an attachment: a [`Record`] |
//! | `<run>/shared/<object>/<attachment>` | an attachment uses a shared object, such as a bridge |
//! | `<run>/shared/<object>.made` | what we changed for that object, and the state before |
//! | `<run>/locks/<object>.lock` | held while the above is read and changed; never removed |
//! | `<run>/addresses/<folder>` | what is known of an address pool without reading it; `ipam`'s, and only a hint |
//!
//! `<attachment>` is [`cni::AttachmentKey::hash`]. Directories are 0700, files 0600.
//!
//! Readers never fail because of a file's content: a truncated, empty or foreign file is skipped
//! and reported as [`Damaged`] beside what could be read. Only writing returns errors, where going
//! on would lose something.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let roots = netwright_state::Roots::new(dir.path().join("run"), dir.path().join("lib"));
//! use netwright_state::{Index, Record, Release};
//! use std::time::Duration;
//!
//! let index = Index::new(&roots);
//! let key = cni::AttachmentKey {
//!     network: cni::NetworkName::new("blue")?,
//!     container_id: cni::ContainerId::new("c1")?,
//!     ifname: cni::IfName::new("eth0")?,
//! };
//! let record = Record::new(key.clone(), "bridge", "boot", serde_json::json!({"host": "veth1"}));
//! index.put(&record)?;
//! assert_eq!(index.get(&key, "bridge").found, Some(record));
//!
//! let lock = index.lock("bridge:br0", Duration::from_secs(5))?;
//! if index.hold("bridge:br0", &key)? && !index.is_held_by_others("bridge:br0", &key)? {
//!     index.note("bridge:br0", &serde_json::json!({"created": true}))?;
//! }
//! assert_eq!(index.release("bridge:br0", &key)?, Release::Last);
//! assert!(index.take_note("bridge:br0")?.found.is_some());
//! # drop(lock);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod file;
mod index;
mod lock;
mod name;
mod publish;
mod record;
mod roots;

pub use file::{
    Durability, FileError, MAX_FILE_SIZE, create_directory, read_optional, remove_abandoned,
    remove_directory, remove_file, sync_directory, write_atomic,
};
pub use index::{AttachmentLock, Claimed, Index, Release};
pub use lock::{Holder, Lock, LockError};
pub use name::{file_name_of, object_of};
pub use publish::{publish, withdraw};
pub use record::{Damaged, NetnsIdentity, Read, Record, noted_in};
pub use roots::{Roots, boot_id};
