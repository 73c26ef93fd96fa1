#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod frame;
mod hex;
mod names;
mod option;
mod random;
mod received;
mod saved;
mod setback;
mod time;
pub mod v4;
pub mod v6;

pub use net::{MacAddr, MacAddrError};
pub use option::RawOption;
pub use received::{IgnoreReason, ReceiveOutcome};
pub use saved::SavedLeaseError;
pub use time::{Moment, Now, Timestamp, UnixTime};
