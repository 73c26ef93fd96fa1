//! The DHCPv4 client (RFC 2131).

mod action;
#[expect(dead_code, reason = "used as soon as the machine is filled in")]
mod client;
mod config;
mod lease;

pub use action::{Action, FailReason, How, LostReason, MessageKind, Transmit};
pub use client::{Client, Start, State, release_message};
pub use config::{Config, DEFAULT_REQUEST, Defence, ProbeTiming, Timing, key_client_id};
pub use lease::{Lease, RawOption, Route, SavedLease, SavedLeaseError, Scope};

/// The port clients listen on.
pub const CLIENT_PORT: u16 = 68;

/// The port servers listen on.
pub const SERVER_PORT: u16 = 67;
