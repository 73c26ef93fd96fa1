//! DEL by who undoes an ADD that was refused: an extension of ours, so that it leaves less than the DEL of a container that lived.

/// The key that tells DEL that it undoes an ADD that has just failed, or whose answer nobody could read: nobody has relied on what
/// that changed. A plugin that does not know the key removes as ever.
pub const UNDO: &str = "netwright/undo";
