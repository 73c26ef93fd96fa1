//! The condition `NetworkUnavailable` of this node's Node.

use std::time::Duration;

use crate::time::Time;

/// How long no peer may answer, while their underlay addresses do, before the node is unavailable.
pub const GRACE_PERIOD: Duration = Duration::from_secs(30);

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
    /// This node's own objects are programmed; if not, why.
    pub programmed: Result<(), ProgrammingFault>,
    /// Which peers there are is known: from the source, or from the disk.
    pub peers_known: bool,
    /// Peers that have a path.
    pub peers: usize,
    /// Of these, how many have answered by their path.
    pub answered: usize,
    /// Since when none answers by its path while the underlay address of at least one does.
    pub cut_off_since: Option<Time>,
}

/// Why this node's own objects are not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgrammingFault {
    /// They are not made yet.
    NotYet,
    /// They cannot be made.
    Failed(String),
}

/// Decides about the condition; `None`: it stays as it is.
///
/// A peer that is down, a cluster of one node, and a network that drops probes never make a node
/// unavailable: without an answer from any underlay address, the condition stays as it is.
#[must_use]
pub fn decide(health: &Health, now: Time) -> Option<Condition> {
    let condition = |unavailable, reason, message| Some(Condition { unavailable, reason, message });
    match &health.programmed {
        Err(ProgrammingFault::Failed(error)) => {
            let message = format!("this node's part of the network cannot be programmed: {error}");
            return condition(true, "NotProgrammed", message);
        }
        Err(ProgrammingFault::NotYet) => return None,
        Ok(()) => {}
    }
    if 0 < health.answered {
        let message = format!("{} of {} nodes have answered", health.answered, health.peers);
        return condition(false, "RoutingIsUp", message);
    }
    if health.peers == 0 {
        let message = "there is no other node".to_owned();
        return if health.peers_known { condition(false, "RoutingIsUp", message) } else { None };
    }
    let since = health.cut_off_since.filter(|since| GRACE_PERIOD <= now.since(*since))?;
    let message = format!(
        "since {since} no node answers by its path, and underlay addresses of nodes do: something \
         between the nodes may drop the tunnels' packets, or packets with pods' addresses"
    );
    condition(true, "NoNodeAnswers", message)
}
