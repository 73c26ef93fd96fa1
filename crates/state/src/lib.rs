#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod file;
mod index;
mod lock;
mod name;
mod obstacle;
mod publish;
mod record;
mod roots;
mod shared;

pub use file::{
    Durability, FileError, MAX_FILE_SIZE, create_directory, create_locked, read_optional,
    remove_abandoned, remove_directory, remove_file, replace_locked, sync_directory, write_atomic,
};
pub use index::{AttachmentLock, ClaimOutcome, Index, Release};
pub use lock::{Holder, Lock, LockError};
pub use name::{file_name_of, object_of};
pub use obstacle::obstacle;
pub use publish::{publish, withdraw};
pub use record::{DamagedFile, NetnsIdentity, ReadOutcome, Record, noted_in};
pub use roots::{PASSAGE, PASSAGES, Roots, boot_id, is_passage};
pub use shared::{LOCK_TIMEOUT, RestoreOutcome, SharedChange, SharedObject};
