//! DEL that undoes a failed ADD: an extension of ours, so that it leaves less than the DEL of a
//! container that lived.

/// The key that tells DEL that it undoes an ADD that has just failed, or whose answer could not be
/// read: no program has relied on what that ADD changed. A plugin that does not know the key
/// removes as usual.
pub const UNDO: &str = "netwright/undo";
