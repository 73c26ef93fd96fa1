//! The stateful DHCPv6 client (RFC 8415).
//!
//! [`Client`] is the state machine, [`Action`] what it wants done, [`Lease`] what it got. The
//! crate's documentation has its states and what each part implements.
//!
//! The program that drives it needs a UDP socket on port 546 of a link-local address: everything is
//! sent to [`SERVERS`] from there.

mod action;
mod client;
mod config;
mod exchange;
mod held;
mod lease;
mod message;
mod reply;
mod send;
mod terms;

pub use action::{Action, FailReason, LostReason, MessageKind, Transmit};
pub use client::{Client, Start, State};
pub use config::{Config, DEFAULT_REQUEST, Duid, Timing, key_iaid};
pub use lease::{Address, Lease, RawOption, SavedLease};
pub use send::release_message;

pub use crate::{IgnoreReason, ReceiveOutcome, SavedLeaseError};

use std::net::Ipv6Addr;

/// The port clients listen on (RFC 8415 §7.2).
pub const CLIENT_PORT: u16 = 546;

/// The port servers listen on (RFC 8415 §7.2).
pub const SERVER_PORT: u16 = 547;

/// All_DHCP_Relay_Agents_and_Servers (RFC 8415 §7.1): the destination of every message.
pub const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
