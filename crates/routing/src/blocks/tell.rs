//! What the log and `netwright routes` say of blocks, beside what becomes of each peer.

use std::collections::BTreeSet;

use super::{Block, Blocks, HolderNode, KnownBlock};
use crate::cluster::News;

impl Blocks {
    /// Says once of each holder that the source does not know a node of this name.
    pub(crate) fn tell_strangers(&mut self) -> Vec<News> {
        let strangers = self.of.get(&HolderNode::Nobody);
        self.told.retain(|name| strangers.is_some_and(|strangers| strangers.contains(name)));
        let new = strangers.into_iter().flatten().filter(|name| !self.told.contains(*name));
        let new: Vec<String> = new.cloned().collect();
        let news = few(new.iter().map(|name| (name.clone(), self.stranger(name))).collect());
        self.told.extend(new);
        news
    }

    fn stranger(&self, holder: &str) -> String {
        let blocks = self.holders.get(holder).map(|held| &held.blocks);
        let count = blocks.map_or(0, BTreeSet::len);
        let first = blocks.and_then(BTreeSet::first);
        let first = first.map_or(String::new(), Block::to_string);
        format!(
            "node {holder} is none that the source knows: its blocks are not routed ({count}, \
             {first} first)"
        )
    }

    /// Returns what an administrator should look at, in sentences.
    pub(crate) fn warnings(&self, nodes_are_known: bool) -> Vec<String> {
        let mut warnings = Vec::new();
        for (records, since) in &self.silent {
            warnings.push(format!("the {records} cannot be read since {since}"));
        }
        let braked = || self.all.values().filter_map(|known| known.until);
        if let Some(until) = braked().max() {
            let count = braked().count();
            warnings.push(format!(
                "held: {count} blocks that their spaces' records lack; none is removed until \
                 {until}, or until `netwright routes accept`"
            ));
        }
        let refused = self.all.values().filter_map(KnownBlock::refused);
        warnings.extend(first_of_many(refused.map(ToString::to_string)));
        if nodes_are_known {
            let strangers = self.of.get(&HolderNode::Nobody).into_iter().flatten();
            warnings.extend(first_of_many(strangers.map(|name| self.stranger(name))));
        }
        warnings
    }
}

/// How many sentences of one kind people are shown, and how many the log gets of one event.
const SHOWN: usize = 4;
const LOGGED: usize = 20;

/// Returns the first of some sentences, and how many more there are.
fn first_of_many(mut sentences: impl Iterator<Item = String>) -> Vec<String> {
    let mut shown: Vec<String> = sentences.by_ref().take(SHOWN).collect();
    let more = sentences.count();
    if 0 < more {
        shown.push(format!("… and {more} more of this kind"));
    }
    shown
}

/// Returns warnings about nodes, each with its sentence. If there are very many, it returns the
/// first ones and how many more there are.
pub(super) fn few(all: Vec<(String, String)>) -> Vec<News> {
    let more = all.len().saturating_sub(LOGGED);
    let mut news: Vec<News> = all
        .iter()
        .take(LOGGED)
        .map(|(node, text)| News::warning(Some(node), text.clone()))
        .collect();
    if 0 < more {
        news.push(News::warning(None, format!("… and {more} more of this kind")));
    }
    news
}
