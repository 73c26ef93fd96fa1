//! Which peer has which blocks: what records say of holders, and what the source says of peers, put
//! together.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::tell::tell_own;
use super::{Cluster, Outcome, Peer, Work};
use crate::blocks::{Block, Event, HolderNode};
use crate::node::Node;
use crate::time::Time;

impl Cluster {
    /// Takes what the records of spaces say.
    pub fn apply_blocks(&mut self, event: Event, now: Time) -> Outcome {
        let mut work = Work::default();
        work.holders = self.blocks.take(event, &self.settings, now, &mut work.news);
        self.settle(work, now)
    }

    /// Takes the blocks of this node that the disk has.
    pub fn restore_own_blocks(&mut self, blocks: Vec<Block>, now: Time) -> Outcome {
        let own = self.own.node.name.clone();
        self.blocks.restore(&own, blocks, &self.settings);
        let holders = self.blocks.judge_restored(&self.settings);
        self.settle(Work { holders, ..Work::default() }, now)
    }

    /// Reports whether the records of all spaces were read once. Without spaces they were.
    #[must_use]
    pub fn blocks_listed(&self) -> bool {
        self.blocks.listed(&self.settings)
    }

    /// Returns the prefixes of all blocks, of every holder.
    pub fn block_prefixes(&self) -> impl Iterator<Item = IpNet> {
        self.blocks.prefixes()
    }

    /// Returns what an administrator should look at in the records of spaces.
    pub(crate) fn block_warnings(&self) -> Vec<String> {
        self.blocks.warnings(self.listed)
    }

    /// Gives the peers that an event has touched, and those whose blocks it has, the blocks that
    /// they hold; and this node its own.
    pub(super) fn give_blocks(&mut self, work: &mut Work) {
        let mut holders = std::mem::take(&mut work.holders);
        if self.blocks.is_empty() && holders.is_empty() {
            return;
        }
        let mut peers: BTreeSet<String> = work.befores.keys().cloned().collect();
        for (name, before) in &work.befores {
            holders.insert(name.clone());
            let used = self.peers.get(name).and_then(Peer::used);
            for node in before.used.as_deref().into_iter().chain(used) {
                for address in node.underlay.iter() {
                    holders.extend(self.blocks.with_address(address).map(str::to_owned));
                }
            }
        }
        for holder in &holders {
            let is = self.whose(holder);
            let was = match self.blocks.forget_empty(holder) {
                Some(was) => Some(was),
                None => self.blocks.set_whose(holder, is.clone()),
            };
            for whose in was.into_iter().chain([is]) {
                if let HolderNode::Peer(name) = whose {
                    peers.insert(name);
                }
            }
        }
        for name in peers {
            let Some(used) = self.peers.get(&name).and_then(Peer::used_shared) else { continue };
            let blocks = self.blocks.of(&HolderNode::Peer(name.clone()));
            if used.blocks == blocks {
                continue;
            }
            work.touch(&self.peers, &name);
            if let Some(peer) = self.peers.get_mut(&name) {
                peer.used = Some(Arc::new(Node { blocks, ..(*used).clone() }));
            }
        }
        let own = self.blocks.of(&HolderNode::Own);
        if own != self.own.node.blocks {
            work.news.extend(tell_own(&self.own.node.blocks, &own));
            Arc::make_mut(&mut self.own).node.blocks = own;
            work.is_own_changed = true;
        }
    }

    /// Finds which node a holder is: this one or a peer, by its name, or else by its addresses.
    fn whose(&self, holder: &str) -> HolderNode {
        if holder == self.own.node.name {
            return HolderNode::Own;
        }
        if self.peers.contains_key(holder) {
            return HolderNode::Peer(holder.to_owned());
        }
        let is_own = |address: &IpAddr| self.own.node.underlay.iter().any(|own| own == *address);
        if self.blocks.addresses(holder).any(|address| is_own(&address)) {
            return HolderNode::Own;
        }
        let mut addresses = self.blocks.addresses(holder);
        let found = addresses.find_map(|address| self.claims.of_underlay(address));
        found.map_or(HolderNode::Nobody, |name| HolderNode::Peer(name.to_owned()))
    }
}
