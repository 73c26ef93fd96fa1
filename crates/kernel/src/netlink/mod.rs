//! What all netlink sockets share: how they are opened, asked and answered, and how they fail.
//!
//! Every request carries a sequence number and only replies with that number count; extended acknowledgements are on,
//! so an error keeps the kernel's own words ([`ExtAck`]); a dump that the kernel calls interrupted is asked for again,
//! a bounded number of times; every wait is bounded.

mod by_name;
mod errno;
mod error;
mod socket;

pub use errno::Errno;
pub use error::{ExtAck, NetlinkError};
pub(crate) use socket::{Outcome, Request, Socket};
