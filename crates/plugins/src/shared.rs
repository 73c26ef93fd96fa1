//! Code that several plugins share.

pub mod advertisements;
pub mod attachment;
pub mod claim;
pub mod container;
pub(crate) mod device;
pub mod dns;
pub mod failures;
pub mod filter;
pub mod forwarding;
pub mod host_side;
pub mod identity;
pub mod mac;
pub mod netns_lock;
pub mod owner;
pub mod pair;
pub mod parent;
pub mod policy;
pub mod rules;
pub mod shared_object;
pub mod steps;
pub mod trial;
pub mod undo;

use cni::Error;
use cni_plugin::codes;
use kernel::NetlinkError;

/// Returns the error object for a change or query that the kernel refused.
#[must_use]
pub fn kernel_error(error: NetlinkError) -> Error {
    Error::from_chain(codes::KERNEL, &error)
}

/// Returns an error of CHECK: something is not as ADD left it.
#[must_use]
pub fn drift(message: String) -> Error {
    Error::new(codes::DRIFT, message)
}
