//! What plugins share.

pub mod container;
pub mod dns;
pub mod failures;
pub mod filter;
pub mod mac;
pub mod owner;
pub mod shared_object;
pub mod undo;
