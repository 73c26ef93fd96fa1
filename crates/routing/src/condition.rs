//! The condition `NetworkUnavailable` of this node's Node.

use std::time::Duration;

use crate::time::Time;

/// How long no peer may answer, while their underlay addresses do, before the node is unavailable.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The condition, in Kubernetes' words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The status: `True` means that pods of this node have no network.
    pub unavailable: bool,
    /// The reason, one word.
    pub reason: &'static str,
    /// The message.
    pub message: String,
}

/// What the condition follows from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// This node's own objects are programmed; if not, why and since when.
    pub programmed: Result<(), NotProgrammed>,
    /// Peers that have a path.
    pub peers: usize,
    /// Of these, how many have answered by their path.
    pub answered: usize,
    /// Since when none answers by its path while the underlay address of at least one does.
    pub cut_off_since: Option<Time>,
}

/// Why this node's own objects are not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotProgrammed {
    /// They are not made yet.
    NotYet,
    /// They cannot be made.
    Failed(String),
}

/// Decides about the condition; `None`: it stays as it is.
#[must_use]
pub fn decide(health: &Health, now: Time) -> Option<Condition> {
    todo!()
}
