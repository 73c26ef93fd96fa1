//! DHCP clients as state machines: no sockets, no clock, no files. Time and packets are passed in.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod frame;
mod hex;
mod link;
mod names;
mod random;
mod received;
mod time;
pub mod v4;
pub mod v6;

pub use link::{MacAddr, MacAddrError};
pub use received::{Ignored, Received};
pub use time::{Moment, Now, Timestamp, UnixTime};
