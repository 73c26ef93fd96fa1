//! The DHCPv4 client (RFC 2131).
//!
//! [`Client`] is the state machine, [`Action`] what it wants done, [`Lease`] what it got. The
//! crate's documentation has its states and what each part implements.
//!
//! The program that drives it needs a raw socket for [`Delivery::Broadcast`] and for receiving while
//! there is no address, a socket on port 68 of the address for [`Delivery::Unicast`], and one for ARP
//! while the client is in [`State::Probing`] (and after, to defend the address).
//! [`frame`](crate::frame) encodes and decodes the frames.

mod action;
mod client;
mod config;
mod conflict;
mod exchange;
mod held;
mod lease;
mod message;
mod reply;
mod send;
mod terms;

pub use crate::{IgnoreReason, ReceiveOutcome, SavedLeaseError};
pub use action::{Action, Delivery, FailReason, LostReason, MessageKind, Transmit};
pub use client::{Client, Start, State};
pub use config::{Config, DEFAULT_REQUEST, Defence, ProbeTiming, Timing, key_client_id};
pub use lease::{Lease, RawOption, Route, SavedLease, Scope};
pub use send::release_message;

/// The port clients listen on.
pub const CLIENT_PORT: u16 = 68;

/// The port servers listen on.
pub const SERVER_PORT: u16 = 67;
