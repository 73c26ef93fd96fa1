#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod annotation;
pub mod definition;
pub mod device;
pub mod policy;
pub mod request;
pub mod selection;
pub mod status;

pub use selection::Selection;

/// Where networks of the node are by default: where runtimes look, and where Multus does.
pub const CONF_DIRS: [&str; 2] = ["/etc/cni/net.d", "/etc/cni/multus/net.d"];
