#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod client;
mod error;
pub mod frame;
pub mod message;
mod outcome;
mod remote;
pub mod schema;
mod stream;
#[cfg(feature = "tls")]
mod tls;
pub mod transaction;
pub mod value;
pub mod vswitch;

pub use client::{Client, Event, Limits, MonitorRequest, MonitorSelect, RowUpdate};
pub use error::{OvsdbError, ServerError};
pub use outcome::Outcome;
pub use remote::{DEFAULT_PORT, Keys, Remote};
pub use schema::Schema;
pub use transaction::{Condition, Function, Handle, Mutation, Transaction, WaitCondition};
pub use value::{Atom, Row, Uuid, Value};
