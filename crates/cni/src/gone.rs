//! DEL by a collector: an extension of ours, so that it does not remove an attachment that came
//! back or is being made.

use serde::{Deserialize, Serialize};

/// The key that tells DEL which namespaces of the attachment are known to be gone, or are to be
/// left. If a plugin has recorded another one since, it refuses with code 11 and changes nothing:
/// the container came back under its ID. A plugin that cannot have the attachment's lock does the
/// same. A plugin that does not know the key removes.
pub const GONE: &str = "netwright/gone";

/// A namespace that is gone, as the plugin's record names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoneNetns {
    /// The device of nsfs.
    pub dev: u64,
    /// The inode.
    pub ino: u64,
    /// The cookie, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cookie: Option<u64>,
    /// The container has another life under the same network, ID and interface, by plugins that
    /// are not ours. What they find by these names alone is that life's: DEL removes only what is
    /// known to be of the namespace that is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renewed: bool,
}
