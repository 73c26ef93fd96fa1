//! Taking blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::PoisonError;

use cni::line::Refusal;
use ipnet::IpNet;

use super::table::Block;
use super::{ADDRESS, Node, unwritten};
use crate::network::{Network, Range};
use crate::record::{self, BlockId, BlockRecord, Part, SpaceRecord, space_key};
use crate::store::{Filter, Kind, StoreError};

/// How many blocks are tried before all that are taken are listed: in a range that is mostly free the first is free.
const PROBES: u32 = 3;
/// How often they are listed, when others were quicker.
const LISTS: u32 = 50;
/// How often a space's record is written, when others were quicker.
const SPACE_TRIES: u32 = 100;
/// How many nodes a message names.
const NAMED: usize = 5;

/// What came of trying to take a block.
enum Tried {
    Ours,
    Theirs,
}

impl Node {
    /// Takes one more block of a range, or waits for one that is being taken and will do.
    pub(super) fn claim(
        &self,
        network: &Network,
        range: &Range,
        space: &str,
        wanted: Option<IpAddr>,
    ) -> Result<(), Refusal> {
        let lot = (space.to_owned(), range.subnet());
        let spare_bits = range.family().bits() - network.block_prefix(range);
        let of_block = 1_u128.checked_shl(spare_bits.into()).unwrap_or(u128::MAX);
        {
            let mut table = self.lock();
            let claims = table.claims.entry(lot.clone()).or_default();
            // Each that runs has one for who started it, and the rest for who waits.
            if wanted.is_none() && claims.waiting < claims.running.saturating_mul(of_block - 1) {
                claims.waiting += 1;
                let seen = claims.ended;
                let table = self
                    .changed
                    .wait_while(table, |table| {
                        table.claims.get(&lot).is_some_and(|claims| claims.ended == seen)
                    })
                    .unwrap_or_else(PoisonError::into_inner);
                let mut table = table;
                let claims = table.claims.entry(lot).or_default();
                claims.waiting -= 1;
                return match &claims.failed {
                    Some((when, refusal)) if seen < *when => Err(refusal.clone()),
                    _ => Ok(()),
                };
            }
            claims.running += 1;
        }
        let result = self.claim_one(network, range, space, wanted);
        let mut table = self.lock();
        let claims = table.claims.entry(lot).or_default();
        claims.running -= 1;
        claims.ended += 1;
        if let Err(refusal) = &result
            && wanted.is_none()
        {
            claims.failed = Some((claims.ended, refusal.clone()));
        }
        drop(table);
        self.changed.notify_all();
        result
    }

    fn claim_one(
        &self,
        network: &Network,
        range: &Range,
        space: &str,
        wanted: Option<IpAddr>,
    ) -> Result<(), Refusal> {
        self.ensure_lease()?;
        let record = self.space(network, range, space)?;
        if let Some(wanted) = wanted {
            return self.claim_wanted(&record, space, wanted);
        }
        let (first, last) = range.bounds();
        let count = (last - first).saturating_add(1);
        for _ in 0..PROBES {
            let at = first + self.draw_below(count);
            let Some(at) = range.next(at).or_else(|| range.next(first)) else { break };
            let Some(id) = block_at(&record, space, range, at) else { break };
            if self.knows(&id) {
                continue;
            }
            if matches!(self.try_claim(&id)?, Tried::Ours) {
                return Ok(());
            }
        }
        for _ in 0..LISTS {
            let taken = self.taken(space)?;
            let at = range.next(first + self.draw_below(count)).unwrap_or(first);
            let free = self
                .first_free(&record, space, range, &taken, at, last)
                .or_else(|| self.first_free(&record, space, range, &taken, first, at));
            let Some(id) = free else {
                // One of ours may be unknown here: its claim was not answered, or its file is garbled.
                let unknown = taken.iter().any(|(block, node)| {
                    let id = BlockId { space: space.to_owned(), block: *block };
                    *node == self.settings.node && !self.knows(&id)
                });
                if !unknown {
                    return Err(full(network, range, &taken));
                }
                return self.sweep().map_err(|error| away(&error));
            };
            if matches!(self.try_claim(&id)?, Tried::Ours) {
                return Ok(());
            }
        }
        let text = format!("other nodes took every block of {} that was free", range.subnet());
        Err(Refusal::for_now(text))
    }

    fn claim_wanted(
        &self,
        record: &SpaceRecord,
        space: &str,
        wanted: IpAddr,
    ) -> Result<(), Refusal> {
        let Some(block) = record.block_of(wanted) else {
            return Err(Refusal::for_now(format!("the space {space} changed while it was read")));
        };
        let id = BlockId { space: space.to_owned(), block };
        if self.lock().blocks.get(&id).is_some_and(|block| block.returning) {
            let text = format!("the block of {wanted} is just being given back");
            return Err(Refusal::for_now(text));
        }
        match self.try_claim(&id)? {
            Tried::Ours => Ok(()),
            Tried::Theirs => {
                let found = self.store.get(&id.key()).map_err(|error| away(&error))?;
                let found = found.and_then(|entry| record::read::<BlockRecord>(&entry.value));
                let Some(found) = found.filter(|found| !found.node.is_empty()) else {
                    return Ok(());
                };
                if found.node == self.settings.node {
                    return Err(Refusal::for_now(format!(
                        "the block of {wanted} is being looked at"
                    )));
                }
                let text = format!(
                    "the address {wanted} is of the block {block}, which node {} gives",
                    found.node
                );
                Err(Refusal::new(ADDRESS, text)
                    .with_details("ask for it on that node, or use blocks of one address"))
            }
        }
    }

    /// The record of a space, in which a range's subnet is.
    fn space(&self, network: &Network, range: &Range, space: &str) -> Result<SpaceRecord, Refusal> {
        let subnet = range.subnet();
        if let Some(known) = self.lock().spaces.get(space)
            && known.covers(&subnet)
        {
            return Ok(known.clone());
        }
        let key = space_key(space);
        let part = Part { subnet, block: network.block_prefix(range) };
        for _ in 0..SPACE_TRIES {
            let found = self.store.get(&key).map_err(|error| away(&error))?;
            let (record, written) = match found {
                None => {
                    let parts = vec![part.clone()];
                    let record = SpaceRecord { space: space.to_owned(), parts };
                    let written = self.store.create(&key, &record::write(&record));
                    (record, written)
                }
                Some(entry) => {
                    let Some(mut record) = record::read::<SpaceRecord>(&entry.value) else {
                        let text = format!("the store's record {key} is none of a space");
                        return Err(Refusal::new(ADDRESS, text).with_details("remove or mend it"));
                    };
                    if record.covers(&subnet) {
                        (record, Ok(entry.revision))
                    } else {
                        record.parts.push(part.clone());
                        let value = record::write(&record);
                        let written = self.store.update(&key, &entry.revision, &value);
                        (record, written)
                    }
                }
            };
            match written {
                Ok(_) => {
                    self.lock().spaces.insert(space.to_owned(), record.clone());
                    return Ok(record);
                }
                Err(StoreError::Conflict) => {}
                Err(error) => return Err(away(&error)),
            }
        }
        Err(Refusal::for_now(format!("the record of the space {space} changes all the time")))
    }

    /// Who has which block of a space.
    fn taken(&self, space: &str) -> Result<BTreeMap<IpNet, String>, Refusal> {
        let all = self.store.list(Kind::Block, Filter::Space(space));
        let all = all.map_err(|error| away(&error))?;
        let records = all.iter().filter_map(|entry| record::read::<BlockRecord>(&entry.value));
        Ok(records
            .filter(|record| record.space == space && !record.node.is_empty())
            .map(|record| (record.block, record.node))
            .collect())
    }

    /// Whether a block is ours, or about to be.
    fn knows(&self, id: &BlockId) -> bool {
        let table = self.lock();
        table.blocks.contains_key(id) || table.claiming.contains(id)
    }

    fn first_free(
        &self,
        record: &SpaceRecord,
        space: &str,
        range: &Range,
        taken: &BTreeMap<IpNet, String>,
        from: u128,
        to: u128,
    ) -> Option<BlockId> {
        let mut seen = BTreeSet::new();
        let mut at = from;
        loop {
            at = range.next(at).filter(|at| *at <= to)?;
            let id = block_at(record, space, range, at)?;
            if !taken.contains_key(&id.block) && seen.insert(id.block) && !self.knows(&id) {
                return Some(id);
            }
            at = id.bounds().1.checked_add(1)?;
        }
    }

    /// Tries to make a block ours.
    fn try_claim(&self, id: &BlockId) -> Result<Tried, Refusal> {
        let epoch = {
            let mut table = self.lock();
            if table.blocks.contains_key(id) || !table.claiming.insert(id.clone()) {
                return Ok(Tried::Theirs);
            }
            table.epoch
        };
        let result = self.try_claim_noted(id, epoch);
        self.lock().claiming.remove(id);
        result
    }

    fn try_claim_noted(&self, id: &BlockId, epoch: u64) -> Result<Tried, Refusal> {
        let mut record = BlockRecord {
            space: id.space.clone(),
            block: id.block,
            node: self.settings.node.clone(),
            epoch,
            held: BTreeMap::new(),
            kept: BTreeMap::new(),
        };
        let mut written = self.store.create(&id.key(), &record::write(&record));
        if written == Err(StoreError::Conflict) {
            let found = self.store.get(&id.key()).map_err(|error| away(&error))?;
            let nobodys = found.and_then(|entry| {
                let found = record::read::<BlockRecord>(&entry.value)?;
                found.node.is_empty().then_some((entry.revision, found.kept))
            });
            if let Some((was, kept)) = nobodys {
                record.kept = kept;
                written = self.store.update(&id.key(), &was, &record::write(&record));
            }
        }
        let revision = match written {
            Ok(revision) => revision,
            // It may be an earlier claim of ours whose answer was lost: `sweep` finds it.
            Err(StoreError::Conflict) => return Ok(Tried::Theirs),
            Err(error) => return Err(away(&error)),
        };
        let block = Block {
            epoch,
            revision: Some(revision),
            kept: record.kept,
            ..Block::new(self.clock.now())
        };
        if let Err(error) = self.write_block(id, &block) {
            // The store's record is ours: `sweep` finds it once there is room.
            let _ = self.files.remove_block(id);
            return Err(unwritten(&error));
        }
        let again = {
            let mut table = self.lock();
            table.blocks.entry(id.clone()).or_insert(block);
            // Addresses that are ours without a block: it was lost, and is ours again.
            table.recount(id);
            table.set_lost(id, false)
        };
        // What is not marked anew is told of once more, at most.
        let _ = self.mark(again);
        Ok(Tried::Ours)
    }
}

fn block_at(record: &SpaceRecord, space: &str, range: &Range, at: u128) -> Option<BlockId> {
    let block = record.block_of(range.family().address(at))?;
    Some(BlockId { space: space.to_owned(), block })
}

fn full(network: &Network, range: &Range, taken: &BTreeMap<IpNet, String>) -> Refusal {
    let (first, last) = range.bounds();
    let of_range = taken.iter().filter(|(block, _)| {
        let (low, high) = crate::network::bounds(block);
        block.addr().is_ipv4() == range.subnet().addr().is_ipv4() && low <= last && first <= high
    });
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    let mut blocks = 0_usize;
    for (_, node) in of_range {
        *nodes.entry(node).or_default() += 1;
        blocks += 1;
    }
    let mut most: Vec<(&str, usize)> = nodes.iter().map(|(node, count)| (*node, *count)).collect();
    most.sort_by_key(|(node, count)| (std::cmp::Reverse(*count), *node));
    let named: Vec<String> =
        most.iter().take(NAMED).map(|(node, count)| format!("{node} {count}")).collect();
    let more = if NAMED < most.len() {
        format!(", {} more nodes", most.len() - NAMED)
    } else {
        String::new()
    };
    let text = format!(
        "no address of {} is free: its {blocks} blocks are held by {} nodes",
        range.subnet(),
        most.len()
    );
    Refusal::new(ADDRESS, text).with_details(format!(
        "network {:?}; blocks by node: {}{more}; enlarge the range, use smaller blocks, or `netwrightd ipam -forget NODE` for nodes that are gone",
        network.name(),
        named.join(", "),
    ))
}

/// The refusal for what a store said.
pub(super) fn away(error: &StoreError) -> Refusal {
    match error {
        StoreError::Conflict | StoreError::Away(_) => Refusal::for_now(format!(
            "this node needs more addresses and cannot ask for them: {error}"
        )),
        StoreError::Refused(_) => {
            Refusal::new(ADDRESS, format!("this node is given no more addresses: {error}"))
        }
    }
}
