//! Code that several plugins share.

pub mod advertisements;
pub mod attachment;
pub mod claim;
pub(crate) mod common_keys;
pub mod container;
pub(crate) mod device;
pub mod dns;
pub mod dropping;
pub mod failure;
pub mod failures;
pub(crate) mod files;
pub mod filter;
pub mod forwarding;
pub(crate) mod gate;
pub mod host_name;
pub mod host_side;
pub mod identity;
pub mod mac;
pub mod mtu;
pub mod namespaces;
pub mod netns_lock;
pub(crate) mod outer_args;
pub mod owner;
pub mod pair;
pub mod parent;
pub mod policy;
pub(crate) mod readiness;
pub mod rules;
pub mod shared_object;
pub mod steps;
pub mod trial;
pub(crate) mod unusable;

use cni_plugin::codes;

use failure::Failure;

/// Returns an error of CHECK: something is not as ADD left it.
#[must_use]
pub fn drift(message: String) -> Failure {
    Failure::new(codes::DRIFT, message)
}
