#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod family;
mod mac;

pub use family::{IpFamily, PerFamily};
pub use mac::{MacAddr, MacAddrError};
