//! What a plugin is told of the plugins after it: an extension of ours, so that a plugin can leave
//! to a later one what that one decides.

/// The key that tells ADD which plugins follow in the list: the types of those that an earlier
/// plugin has to know of (`AWAITED`). Whoever walks a list writes it. Where that program does not
/// know the key, the list itself may have it.
pub const FOLLOWED_BY: &str = "netwright/followed-by";

/// The types of plugins of which those before them are told: `policy` opens links that came up
/// closed. A list without such a plugin is passed on without the key.
pub(crate) const AWAITED: &[&str] = &["policy"];
