//! Paths that change between a tunnel and none.
//!
//! The packet filter takes pods' packets only as their path brings them, and both ends do not change
//! at once. So for a while this node takes what comes by either path. Before it sends without a tunnel
//! it waits as long: what comes by a tunnel is taken at any time.

use std::time::Duration;

use super::Routing;
use crate::node::Node;
use crate::path::{self, Path};
use crate::time::Time;
use net::IpFamily;

/// How long the other end has until it follows.
const WHILE: Duration = Duration::from_secs(10);

/// How far a change of a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It was noticed; [`Routing::tick`] has the time.
    Begins,
    /// Both ways are taken until then.
    Until(Time),
    /// The next plan is the last word.
    Over,
}

impl Routing {
    /// Returns by which path packets go to a peer now, and whether the path changes.
    pub(super) fn turn(&mut self, node: &Node, family: IpFamily, chosen: Path) -> (Path, bool) {
        let plan = self.plans.get(&node.name).and_then(|plan| plan.families.get(family).as_ref());
        let Some(before) = plan.map(|plan| plan.path) else { return (chosen, false) };
        let changes =
            (before.is_plain() && chosen.is_tunnel()) || (before.is_tunnel() && chosen.is_plain());
        if !changes && self.turns.is_empty() {
            return (chosen, false);
        }
        let key = (node.name.clone(), family);
        match self.turns.get(&key) {
            Some(Turn::Over) => {
                self.turns.remove(&key);
                return (chosen, false);
            }
            Some(_) => {}
            None if changes => {
                self.turns.insert(key, Turn::Begins);
            }
            None => return (chosen, false),
        }
        let own = &self.cluster.own().node;
        let stays = before.is_tunnel() && chosen == Path::Direct;
        let stays = stays && path::is_offered(own, node, family, before);
        (if stays { before } else { chosen }, true)
    }

    /// Ends the changes that are due, and returns their peers.
    pub(super) fn end_turns(&mut self, now: Time) -> Vec<String> {
        let mut over = Vec::new();
        for ((peer, _), turn) in &mut self.turns {
            match turn {
                Turn::Begins => *turn = Turn::Until(now.after(WHILE)),
                Turn::Until(end) if *end <= now => {
                    *turn = Turn::Over;
                    over.push(peer.clone());
                }
                Turn::Until(_) | Turn::Over => {}
            }
        }
        over
    }

    /// Returns when [`Routing::end_turns`] has something to do.
    pub(super) fn turns_due(&self) -> Option<Time> {
        let due = |turn: &Turn| match turn {
            Turn::Begins => Some(Time::default()),
            Turn::Until(end) => Some(*end),
            Turn::Over => None,
        };
        self.turns.values().filter_map(due).min()
    }
}
