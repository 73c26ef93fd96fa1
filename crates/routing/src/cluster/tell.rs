//! What the log says of a peer: each change once.

use std::sync::Arc;

use super::{HoldReason, MANY, News, Peer, RecordFault};
use crate::blocks::Block;
use crate::node::Node;
use crate::refused::Refusal;

/// What a peer was before an event, as far as the log has it.
#[derive(Default, PartialEq)]
pub(super) struct FormerPeer {
    pub(super) used: Option<Arc<Node>>,
    refused: Option<Box<Refusal>>,
    unreadable: Option<Box<RecordFault>>,
    faults: Vec<Refusal>,
    held: Option<HoldReason>,
}

impl FormerPeer {
    pub(super) fn of(peer: Option<&Peer>) -> Self {
        let Some(peer) = peer else { return FormerPeer::default() };
        FormerPeer {
            used: peer.used.clone(),
            refused: peer.refused.clone(),
            unreadable: peer.unreadable.clone(),
            faults: peer.faults.clone(),
            held: peer.held.clone(),
        }
    }
}

/// Says what a peer has now that it did not have before.
fn changed(was: &Node, is: &Node) -> String {
    let list = |all: Vec<String>| all.join(", ");
    let mut parts = Vec::new();
    if was.uid != is.uid {
        parts.push("it was made anew".to_owned());
    }
    if (&was.prefixes, &was.kept) != (&is.prefixes, &is.kept) {
        let prefixes = is.prefixes.iter().chain(&is.kept).map(ToString::to_string);
        parts.push(format!("prefixes {}", list(prefixes.collect())));
    }
    if was.underlay != is.underlay {
        let addresses = is.underlay.iter().map(|address| address.to_string());
        parts.push(format!("underlay addresses {}", list(addresses.collect())));
    }
    if was.offers != is.offers {
        parts.push("other offers".to_owned());
    }
    if was.mtu != is.mtu {
        parts.push(is.mtu.map_or("no MTU".to_owned(), |mtu| format!("MTU {mtu}")));
    }
    parts.extend(changed_blocks(&was.blocks, &is.blocks));
    if parts.is_empty() { "changed".to_owned() } else { format!("changed: {}", parts.join("; ")) }
}

/// Says which blocks a node has that it did not have before, and the reverse.
fn changed_blocks(was: &[Block], is: &[Block]) -> Vec<String> {
    let list = |of: &[Block], but: &[Block]| {
        let differing = of.iter().filter(|block| !but.contains(block));
        differing.map(Block::to_string).collect::<Vec<_>>().join(", ")
    };
    let parts = [("has block", list(is, was)), ("gave up block", list(was, is))];
    let parts = parts.into_iter().filter(|(_, list)| !list.is_empty());
    parts.map(|(what, list)| format!("{what} {list}")).collect()
}

/// Says which blocks this node has that it did not have before, and the reverse.
pub(super) fn tell_own(was: &[Block], is: &[Block]) -> Option<News> {
    let parts = changed_blocks(was, is);
    let text = format!("this node: {}", parts.join("; "));
    (!parts.is_empty()).then_some(News { warning: false, node: None, text })
}

/// What the log says of an event. If it changes many peers, one line stands for everything that is
/// not a warning, and none of that is put into words.
pub(super) struct NewsDraft {
    news: Vec<News>,
    /// How many sentences there are about single peers, without warnings.
    of_peers: usize,
}

impl NewsDraft {
    /// Creates one with what else the log says.
    pub(super) fn new(news: Vec<News>) -> Self {
        let of_peers = news.iter().filter(|news| is_of_peer(news)).count();
        NewsDraft { news, of_peers }
    }

    /// Returns all that the log says.
    pub(super) fn end(mut self) -> Vec<News> {
        if MANY < self.of_peers {
            self.news.retain(|news| !is_of_peer(news));
            let text = format!("{} nodes are new, changed or gone", self.of_peers);
            self.news.push(News { warning: false, node: None, text });
        }
        self.news
    }

    fn say(&mut self, name: &str, text: impl FnOnce() -> String) {
        self.of_peers += 1;
        if self.of_peers <= MANY {
            self.news.push(News::of(name, text()));
        }
    }

    fn warn(&mut self, name: &str, text: String) {
        self.news.push(News::warning(Some(name), text));
    }

    /// Says what became of a peer.
    pub(super) fn tell(
        &mut self,
        name: &str,
        before: &FormerPeer,
        after: &FormerPeer,
        is_there: bool,
    ) {
        let list = |node: &Node| {
            let prefixes = node.prefixes.iter().chain(&node.kept).map(ToString::to_string);
            prefixes.collect::<Vec<_>>().join(", ")
        };
        if !is_there {
            if before.used.is_some() || before.refused.is_some() || before.unreadable.is_some() {
                self.say(name, || format!("node {name}: gone"));
            }
            return;
        }
        match (&before.used, &after.used) {
            (None, Some(used)) => self.say(name, || format!("node {name}: {}", list(used))),
            (Some(was), Some(used)) if was != used => {
                self.say(name, || format!("node {name}: {}", changed(was, used)));
            }
            _ => {}
        }
        if let (true, Some(refused)) = (before.refused != after.refused, &after.refused) {
            self.warn(name, refused.to_string());
        }
        if before.unreadable != after.unreadable {
            match after.unreadable.as_deref() {
                Some(RecordFault::Refused(refused)) => {
                    let kept =
                        if after.used.is_some() { "; its last readable record counts" } else { "" };
                    self.warn(name, format!("{refused}{kept}"));
                }
                Some(incomplete) => self.say(name, || format!("node {name}: {incomplete}")),
                None => {}
            }
        }
        if before.faults != after.faults {
            let faults = after.faults.iter().filter(|fault| !before.faults.contains(fault));
            for fault in faults {
                self.warn(name, fault.to_string());
            }
        }
    }
}

/// Reports whether news are of a single peer, and not a warning.
fn is_of_peer(news: &News) -> bool {
    !news.warning && news.node.is_some()
}
