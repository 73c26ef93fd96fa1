//! What all netlink sockets share: opening, requests, replies and errors.
//!
//! Every request carries a sequence number, and only replies with that number count. Extended
//! acknowledgements are on, so an error keeps the kernel's own words ([`ExtAck`]). A dump that the
//! kernel reports as interrupted is repeated for a bounded time. Every wait is bounded.

mod by_name;
mod errno;
mod error;
mod socket;

pub(crate) use by_name::bind as bind_to_link;
pub use errno::Errno;
pub use error::{ExtAck, NetlinkError, nothing_if};
pub(crate) use socket::{Outcome, Request, Socket};
