//! The DHCPv4 client (RFC 2131).

mod action;
mod client;
mod config;
mod conflict;
mod exchange;
mod lease;
mod message;
mod reply;
mod send;
mod terms;

pub use crate::{Ignored, Received};
pub use action::{Action, FailReason, How, LostReason, MessageKind, Transmit};
pub use client::{Client, Start, State};
pub use config::{Config, DEFAULT_REQUEST, Defence, ProbeTiming, Timing, key_client_id};
pub use lease::{Lease, RawOption, Route, SavedLease, SavedLeaseError, Scope};
pub use send::release_message;

/// The port clients listen on.
pub const CLIENT_PORT: u16 = 68;

/// The port servers listen on.
pub const SERVER_PORT: u16 = 67;
