//! Which blocks are used: what the records of all blocks say of each other.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::tell::few;
use super::{Block, BlockVerdict, Blocks, EventScope, KnownBlock};
use crate::cluster::News;
use crate::refused::{Cause, Refusal};
use crate::settings::Settings;

impl Blocks {
    /// Decides which blocks are used, of those that an event has touched and of those that overlap
    /// them. Returns the holders of all that this may change.
    pub(super) fn judge(
        &mut self,
        touched: &EventScope,
        settings: &Settings,
        news: &mut Vec<News>,
    ) -> BTreeSet<String> {
        let mut holders = touched.holders.clone();
        let mut affected: BTreeSet<(bool, Block)> = BTreeSet::new();
        let mut refusals = Vec::new();
        for prefix in &touched.prefixes {
            // Kept addresses come last: what they are depends on what their block is.
            let of_prefix = self.overlapping(*prefix).map(|(block, _)| (block.kept, block.clone()));
            affected.extend(of_prefix);
        }
        for (_, block) in affected {
            let Some(judged) = self.judge_one(&block, settings) else { continue };
            let Some(known) = self.all.get_mut(&block) else { continue };
            if known.judged == judged {
                continue;
            }
            if let BlockVerdict::Refused(refused) = &judged {
                refusals.push((known.holder.node.clone(), refused.to_string()));
            }
            known.judged = judged;
            holders.insert(known.holder.node.clone());
        }
        news.extend(few(refusals));
        holders
    }

    /// Finds whether a block can be used; `None` if there is no such block.
    fn judge_one(&self, block: &Block, settings: &Settings) -> Option<BlockVerdict> {
        let known = self.all.get(block)?;
        let refused = |cause| {
            let what = if block.kept { "address" } else { "block" };
            let key = format!("{what} {block} of space {}", block.space);
            BlockVerdict::Refused(Box::new(Refusal::new(&known.holder.node, key, cause)))
        };
        if !settings.is_of_space(block.prefix) {
            let ranges: Vec<String> =
                settings.space_ranges.iter().map(ToString::to_string).collect();
            return Some(refused(Cause::OutsideSpaces { ranges: ranges.join(", ") }));
        }
        let rank = |block: &Block, known: &KnownBlock| {
            (known.until.is_some(), block.prefix.prefix_len(), block.clone())
        };
        let own = rank(block, known);
        let mut is_covered = false;
        for (other, theirs) in self.overlapping(block.prefix) {
            let of_same_node = theirs.holder.node == known.holder.node;
            if other.kept == block.kept {
                if rank(other, theirs) < own {
                    return Some(refused(Cause::OverlapsBlock {
                        theirs: other.prefix,
                        space: other.space.clone(),
                        node: theirs.holder.node.clone(),
                    }));
                }
            } else if block.kept {
                is_covered |= theirs.judged == BlockVerdict::Used && of_same_node;
            } else {
                is_covered |= other.prefix == block.prefix && !of_same_node;
            }
        }
        Some(if is_covered { BlockVerdict::Covered } else { BlockVerdict::Used })
    }

    /// Returns the blocks that have addresses in common with a prefix.
    fn overlapping(&self, prefix: IpNet) -> impl Iterator<Item = (&Block, &KnownBlock)> {
        let last = prefix.broadcast();
        let inside = self.all.range(first_of(prefix)..);
        let inside = inside.take_while(move |(block, _)| block.prefix.addr() <= last);
        self.containing(prefix).filter(move |(block, _)| block.prefix != prefix).chain(inside)
    }

    /// Returns the blocks that a prefix is a part of, or all of, the largest first.
    pub(super) fn containing(&self, prefix: IpNet) -> impl Iterator<Item = (&Block, &KnownBlock)> {
        let lengths = self.lengths.range(..=prefix.prefix_len()).map(|(length, _)| *length);
        let larger = lengths.filter_map(move |length| IpNet::new(prefix.addr(), length).ok());
        larger.flat_map(|larger| {
            let larger = larger.trunc();
            let of_prefix = self.all.range(first_of(larger)..);
            of_prefix.take_while(move |(block, _)| block.prefix == larger)
        })
    }
}

/// Returns what comes before all blocks of a prefix, and after those of the one before it.
fn first_of(prefix: IpNet) -> Block {
    Block { prefix, space: String::new(), kept: false }
}
