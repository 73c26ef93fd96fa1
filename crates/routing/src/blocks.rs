//! Blocks of spaces: further prefixes of nodes. Each block has a record that says which node holds
//! it.
//!
//! A space is one of `cluster-ipam`: the addresses of a secondary network, for instance. Its nodes
//! take blocks and give them back while nothing of the nodes themselves changes, so blocks are kept
//! apart from nodes. A record makes no peer. Its block belongs to the peer with the holder's name,
//! or else to the one that has an address of the holder.
//!
//! A pod may keep its address when it is made anew on another node. Then that node has this one
//! address, and another node may hold the block. The address is a block of one address here, with a
//! record of its own.
//!
//! The records of all blocks decide what a block loses to, never their order. A block that a list
//! lacks yields to one that is there. A smaller block yields to a larger one that contains it. Of
//! equal ones the first name of a space counts. An address that a pod keeps yields to nothing.
//!
//! A record only gives a peer one more prefix, so a wrong record leads packets at worst to a wrong
//! node of the cluster. Blocks outside the ranges of the spaces are refused. While records cannot
//! be read, blocks stay, and a list that would remove more than half of them, and more than three,
//! is held back. For a moment other nodes answer "unreachable" for a new block; while a route leads
//! to its former holder, `ptp` refuses its addresses with "try again".

mod judge;
mod tell;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::cluster::{BRAKE, FEW, News};
use crate::refused::Refusal;
use crate::settings::Settings;
use crate::time::Time;

/// A block of a space's addresses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Block {
    /// Its addresses.
    pub prefix: IpNet,
    /// The space.
    pub space: String,
    /// It is one address, which a pod keeps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kept {
            true => write!(f, "{}", self.prefix.addr()),
            false => write!(f, "{}", self.prefix),
        }
    }
}

/// Records that are read together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Records {
    /// The space.
    pub space: String,
    /// They are of addresses that pods keep, and not of blocks.
    pub kept: bool,
}

impl Records {
    /// Returns those of some spaces.
    pub fn of(spaces: &[String]) -> impl Iterator<Item = Records> {
        let of_space =
            |space: &String| [false, true].map(|kept| Records { space: space.clone(), kept });
        spaces.iter().flat_map(of_space)
    }

    fn has(&self, block: &Block) -> bool {
        (&self.space, self.kept) == (&block.space, block.kept)
    }
}

impl fmt::Display for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.kept { "kept addresses" } else { "blocks" };
        write!(f, "records of {what} of space {}", self.space)
    }
}

/// The node that holds a block, as its record says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holder {
    /// The node's name.
    pub node: String,
    /// The addresses by which others reach the node; none if the record does not say.
    pub addresses: Vec<IpAddr>,
}

/// What a record says of its block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockState {
    /// A node holds it.
    By(Holder),
    /// No node holds it, or there is no record.
    Nobody,
    /// The record cannot be read: why. What was known of the block counts.
    Unreadable(String),
}

/// What records say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// These are all.
    Listed(Records, Vec<(Block, BlockState)>),
    /// Some have changed. Changes that happened together come together.
    Changed(Vec<(Block, BlockState)>),
    /// They cannot be asked for.
    Silent(Records),
    /// They can again, and nothing has changed.
    Answers(Records),
}

/// Which node a holder is here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum HolderNode {
    /// None that the source knows.
    #[default]
    Nobody,
    /// This node.
    Own,
    /// A peer.
    Peer(String),
}

/// All blocks of the spaces that are routed.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    all: BTreeMap<Block, KnownBlock>,
    holders: BTreeMap<String, Holdings>,
    /// The holders that have an address.
    by_address: BTreeMap<IpAddr, BTreeSet<String>>,
    /// The holders by the node that each is, or by [`HolderNode::Nobody`].
    of: BTreeMap<HolderNode, BTreeSet<String>>,
    /// The lengths of their prefixes, each with how many have it.
    lengths: BTreeMap<u8, usize>,
    /// The records of which there was a complete list.
    listed: BTreeSet<Records>,
    silent: BTreeMap<Records, Time>,
    /// The holders that the log already has as nodes that the source does not know.
    told: BTreeSet<String>,
}

/// What is known of a block.
#[derive(Debug)]
struct KnownBlock {
    holder: Holder,
    /// A list lacked it and more than half of its space: it is kept until this time.
    until: Option<Time>,
    judged: BlockVerdict,
}

/// Whether a block is used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum BlockVerdict {
    #[default]
    Used,
    /// It cannot be: why.
    Refused(Box<Refusal>),
    /// It needs no route: the block that contains the kept address leads to the same node, or a
    /// kept address with the same prefix is on another node.
    Covered,
}

impl KnownBlock {
    fn refused(&self) -> Option<&Refusal> {
        match &self.judged {
            BlockVerdict::Refused(refused) => Some(refused),
            BlockVerdict::Used | BlockVerdict::Covered => None,
        }
    }
}

/// What a holder has.
#[derive(Debug, Default)]
struct Holdings {
    blocks: BTreeSet<Block>,
    /// What the records of its blocks say together.
    addresses: BTreeSet<IpAddr>,
    whose: HolderNode,
}

/// What an event has touched.
#[derive(Debug, Default)]
struct EventScope {
    holders: BTreeSet<String>,
    prefixes: BTreeSet<IpNet>,
}

impl Blocks {
    /// Takes blocks of a node that the disk has, before any record was read.
    pub(crate) fn restore(
        &mut self,
        node: &str,
        blocks: impl IntoIterator<Item = Block>,
        settings: &Settings,
    ) {
        let holder = Holder { node: node.to_owned(), addresses: Vec::new() };
        for block in blocks {
            if settings.spaces.contains(&block.space) {
                self.put(block, holder.clone(), &mut EventScope::default());
            }
        }
    }

    /// Takes what records say. Returns the holders whose blocks or addresses may be others now.
    pub(crate) fn take(
        &mut self,
        event: Event,
        settings: &Settings,
        now: Time,
        news: &mut Vec<News>,
    ) -> BTreeSet<String> {
        let mut touched = EventScope::default();
        match event {
            Event::Silent(records) => {
                if !self.silent.contains_key(&records) {
                    let count = self.all.keys().filter(|block| records.has(block)).count();
                    let text = format!("the {records} cannot be read; kept as they were: {count}");
                    news.push(News::warning(None, text));
                    self.silent.insert(records, now);
                }
            }
            Event::Answers(records) => self.answers(&records, news),
            Event::Listed(records, shown) => {
                self.answers(&records, news);
                self.lack(&records, &shown, now, news, &mut touched);
                for (block, shown) in shown {
                    self.show(block, shown, news, &mut touched);
                }
                self.listed.insert(records);
            }
            Event::Changed(all) => {
                for (block, shown) in all {
                    self.show(block, shown, news, &mut touched);
                }
            }
        }
        self.judge(&touched, settings, news)
    }

    /// Judges all blocks that the disk has.
    pub(crate) fn judge_restored(&mut self, settings: &Settings) -> BTreeSet<String> {
        let touched = EventScope {
            holders: self.holders.keys().cloned().collect(),
            prefixes: self.all.keys().map(|block| block.prefix).collect(),
        };
        // The earlier run that wrote the disk has logged what this finds.
        self.judge(&touched, settings, &mut Vec::new())
    }

    /// Removes the blocks that were held long enough, or all that are held.
    pub(crate) fn remove_braked(
        &mut self,
        goes: impl Fn(Time) -> bool,
        settings: &Settings,
        news: &mut Vec<News>,
    ) -> BTreeSet<String> {
        let mut touched = EventScope::default();
        let braked = self.all.iter().filter(|(_, known)| known.until.is_some_and(&goes));
        let braked: Vec<Block> = braked.map(|(block, _)| block.clone()).collect();
        for block in braked {
            self.remove(&block, &mut touched);
        }
        self.judge(&touched, settings, news)
    }

    /// Returns when [`Blocks::remove_braked`] has something to do.
    pub(crate) fn due(&self) -> Option<Time> {
        self.all.values().filter_map(|known| known.until).min()
    }

    /// Reports whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Reports whether all records were read once.
    pub(crate) fn listed(&self, settings: &Settings) -> bool {
        Records::of(&settings.spaces).all(|records| self.listed.contains(&records))
    }

    /// Returns the prefixes of all blocks, used or not.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = IpNet> {
        self.all.keys().map(|block| block.prefix)
    }

    /// Returns the names of all holders.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &str> {
        self.holders.keys().map(String::as_str)
    }

    /// Returns the holders that have an address.
    pub(crate) fn with_address(&self, address: IpAddr) -> impl Iterator<Item = &str> {
        self.by_address.get(&address).into_iter().flatten().map(String::as_str)
    }

    /// Returns the addresses of a holder.
    pub(crate) fn addresses(&self, holder: &str) -> impl Iterator<Item = IpAddr> {
        self.holders.get(holder).into_iter().flat_map(|held| &held.addresses).copied()
    }

    /// Says which node a holder is. Returns which one it was.
    pub(crate) fn set_whose(&mut self, holder: &str, whose: HolderNode) -> Option<HolderNode> {
        let held = self.holders.get_mut(holder)?;
        let was = std::mem::replace(&mut held.whose, whose.clone());
        if let Some(holders) = self.of.get_mut(&was) {
            holders.remove(holder);
        }
        self.of.entry(whose).or_default().insert(holder.to_owned());
        Some(was)
    }

    /// Returns the used blocks of a node, or of the holders that are no known node.
    pub(crate) fn of(&self, whose: &HolderNode) -> Vec<Block> {
        let is_used = |block: &&Block| {
            self.all.get(*block).is_some_and(|known| known.judged == BlockVerdict::Used)
        };
        let mut blocks: Vec<Block> = self.held_by(whose).filter(is_used).cloned().collect();
        blocks.sort_unstable();
        blocks
    }

    fn held_by(&self, whose: &HolderNode) -> impl Iterator<Item = &Block> {
        let holders = self.of.get(whose).into_iter().flatten();
        holders.filter_map(|name| self.holders.get(name)).flat_map(|held| &held.blocks)
    }

    /// Returns the block of a peer that an address is in, and the peer's name.
    pub(crate) fn of_address(&self, address: IpAddr) -> Option<(IpNet, &str)> {
        let containing = self.containing(IpNet::from(address));
        let used = containing.filter(|(_, known)| known.judged == BlockVerdict::Used);
        // The last is the smallest.
        let (block, known) = used.last()?;
        match &self.holders.get(&known.holder.node)?.whose {
            HolderNode::Peer(name) => Some((block.prefix, name.as_str())),
            HolderNode::Nobody | HolderNode::Own => None,
        }
    }

    fn answers(&mut self, records: &Records, news: &mut Vec<News>) {
        if let Some(since) = self.silent.remove(records) {
            let text = format!("the {records} can be read again; they could not since {since}");
            news.push(News { warning: false, node: None, text });
        }
    }

    fn show(
        &mut self,
        block: Block,
        shown: BlockState,
        news: &mut Vec<News>,
        touched: &mut EventScope,
    ) {
        match shown {
            BlockState::By(holder) => self.put(block, holder, touched),
            BlockState::Nobody => self.remove(&block, touched),
            BlockState::Unreadable(why) => {
                let text = format!("the record of {block} of space {}: {why}", block.space);
                news.push(News::warning(None, text));
            }
        }
    }

    /// Removes, or holds, what a complete list lacks.
    fn lack(
        &mut self,
        records: &Records,
        shown: &[(Block, BlockState)],
        now: Time,
        news: &mut Vec<News>,
        touched: &mut EventScope,
    ) {
        let is_there = |(block, shown): &(Block, BlockState)| {
            (*shown != BlockState::Nobody).then(|| block.clone())
        };
        let there: BTreeSet<Block> = shown.iter().filter_map(is_there).collect();
        let known = || self.all.keys().filter(|block| records.has(block));
        let all = known().count();
        let missing: Vec<Block> = known().filter(|block| !there.contains(block)).cloned().collect();
        if missing.len() <= FEW || missing.len() * 2 <= all {
            for block in &missing {
                self.remove(block, touched);
            }
            return;
        }
        let (until, mut newly) = (now.after(BRAKE), false);
        for block in missing {
            let Some(known) = self.all.get_mut(&block) else { continue };
            if known.until.is_none() {
                known.until = Some(until);
                touched.prefixes.insert(block.prefix);
                newly = true;
            }
        }
        if newly {
            let text = format!(
                "held: there are {} {records}, and there were {all}; nothing is removed until \
                 {until}, or until `netwright routes accept`",
                there.len()
            );
            news.push(News::warning(None, text));
        }
    }

    fn put(&mut self, block: Block, holder: Holder, touched: &mut EventScope) {
        if let Some(known) = self.all.get(&block)
            && known.holder == holder
            && known.until.is_none()
        {
            return;
        }
        self.remove(&block, touched);
        touched.holders.insert(holder.node.clone());
        touched.prefixes.insert(block.prefix);
        *self.lengths.entry(block.prefix.prefix_len()).or_default() += 1;
        let name = holder.node.clone();
        let held = self.holders.entry(name.clone()).or_insert_with(|| {
            self.of.entry(HolderNode::Nobody).or_default().insert(name.clone());
            Holdings::default()
        });
        held.blocks.insert(block.clone());
        self.all.insert(block, KnownBlock { holder, until: None, judged: BlockVerdict::Used });
        self.gather_addresses(&name);
    }

    fn remove(&mut self, block: &Block, touched: &mut EventScope) {
        let Some(known) = self.all.remove(block) else { return };
        let name = known.holder.node;
        touched.prefixes.insert(block.prefix);
        if let Some(count) = self.lengths.get_mut(&block.prefix.prefix_len()) {
            *count -= 1;
        }
        self.lengths.retain(|_, count| 0 < *count);
        if let Some(held) = self.holders.get_mut(&name) {
            held.blocks.remove(block);
        }
        self.gather_addresses(&name);
        touched.holders.insert(name);
    }

    /// Puts together the addresses of a holder. A holder without a block stays until a caller has
    /// asked which node it was ([`Blocks::forget_empty`]).
    fn gather_addresses(&mut self, name: &str) {
        let Some(held) = self.holders.get_mut(name) else { return };
        // A kept address's record is not written again when its node gets another address.
        let has_blocks = held.blocks.iter().any(|block| !block.kept);
        let blocks = held.blocks.iter().filter(|block| !(has_blocks && block.kept));
        let known = blocks.filter_map(|block| self.all.get(block));
        let addresses: BTreeSet<IpAddr> =
            known.flat_map(|known| known.holder.addresses.iter().copied()).collect();
        if addresses == held.addresses {
            return;
        }
        let was = std::mem::replace(&mut held.addresses, addresses.clone());
        for gone in was.difference(&addresses) {
            if let Some(names) = self.by_address.get_mut(gone) {
                names.remove(name);
                if names.is_empty() {
                    self.by_address.remove(gone);
                }
            }
        }
        for new in addresses.difference(&was) {
            self.by_address.entry(*new).or_default().insert(name.to_owned());
        }
    }

    /// Forgets a holder that no longer has a block. Returns which node it was.
    pub(crate) fn forget_empty(&mut self, name: &str) -> Option<HolderNode> {
        if !self.holders.get(name).is_some_and(|held| held.blocks.is_empty()) {
            return None;
        }
        let held = self.holders.remove(name)?;
        if let Some(holders) = self.of.get_mut(&held.whose) {
            holders.remove(name);
        }
        self.of.retain(|_, holders| !holders.is_empty());
        Some(held.whose)
    }
}
