//! Taking blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use node_api::Refusal;
use serde_json::Value;

use super::table::{Block, NODES_KNOWN};
use super::{ADDRESS, Node, unwritten};
use crate::network::{Network, Range, address_of};
use crate::record::{
    self, BlockId, BlockRecord, NodeRecord, Part, SpaceRecord, WantedBlock, node_key, space_key,
};
use crate::store::{Filter, Key, Kind, Revision, StoreError};

/// How many blocks are tried before all taken blocks are listed: in a mostly free range the first
/// is free.
const PROBES: u32 = 3;
/// With at most this many blocks, listing them takes one request, and only one block is tried.
const FEW_BLOCKS: u128 = 500;
/// How often a node that wants another node's empty block checks whether it is free, and the time
/// between two checks. Other nodes look for wants every two seconds (`upkeep`).
const LOOKS: u32 = 6;
const LOOK_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often a node that finds no empty block checks again: the records of other nodes' blocks are
/// a second old, and a block of its own may be on its way back.
const LOOKS_AGAIN: u32 = 2;
/// How often blocks are listed again because other nodes were faster.
const LISTS: u32 = 50;
/// How often to retry writing a space's record because other nodes were faster.
const SPACE_TRIES: u32 = 100;
/// The maximum number of wants in a space's record: one per subnet.
const MAX_WANTS: usize = 64;
/// How many nodes a message names.
const NAMED: usize = 5;

/// The result of trying to take a block.
enum Attempt {
    Ours,
    Theirs,
}

/// The owner of a block, as far as it is known before the block is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockOwner {
    /// Probably never had one: there is no record.
    Free,
    /// Has none: there is no record, or one that says so.
    FreeNow,
}

/// A block that a node owns.
#[derive(Debug)]
pub(super) struct TakenBlock {
    node: String,
    /// Whether its record says that none of its addresses is in use.
    empty: bool,
}

/// The lists of one space's blocks, which callers share: in a full range each ADD needs several.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// How many have begun, and how many have ended; only one runs.
    begun: u64,
    ended: u64,
    /// How many callers wait for one.
    waiting: usize,
    /// The result of the last one, as long as a caller waits for it.
    found: Option<Result<Arc<BTreeMap<IpNet, TakenBlock>>, Refusal>>,
}

impl Node {
    /// Takes one more block of a range, or waits for another claim that will serve as well.
    pub(super) fn claim(
        &self,
        network: &Network,
        range: &Range,
        space: &str,
        wanted: Option<IpAddr>,
    ) -> Result<(), Refusal> {
        let lot = (space.to_owned(), range.clone());
        {
            let mut table = self.lock();
            let cut = table.spaces.get(space).and_then(|cut| cut.block_of(range.first()));
            let block = cut.map_or_else(
                || network.block_prefix(range, table.nodes_or_one()),
                |block| block.prefix_len(),
            );
            let spare_bits = range.family().bits() - block;
            let of_block = 1_u128.checked_shl(spare_bits.into()).unwrap_or(u128::MAX);
            let claims = table.claims.entry(lot.clone()).or_default();
            // Each running claim serves the caller that started it, and its other addresses serve
            // those that wait.
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
        if result.is_ok() {
            table.kept_back.remove(&lot);
        }
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
        self.refuse_while_settling()?;
        let record = self.space(network, range, space)?;
        if let Some(wanted) = wanted {
            return self.claim_wanted(&record, space, wanted);
        }
        let (first, last) = range.bounds();
        let count = (last - first).saturating_add(1);
        let of_block = record.block_of(range.first()).map_or(1, |block| {
            let (low, high) = crate::network::bounds(&block);
            (high - low).saturating_add(1)
        });
        let probes = if count / of_block <= FEW_BLOCKS { 1 } else { PROBES };
        for _ in 0..probes {
            let at = first + self.draw_below(count);
            let Some(at) = range.next(at).or_else(|| range.next(first)) else { break };
            let Some(id) = block_at(&record, space, range, at) else { break };
            if self.knows(&id) {
                continue;
            }
            // If it has an owner, the list shows which.
            if matches!(self.try_claim(&id, BlockOwner::Free)?, Attempt::Ours) {
                return Ok(());
            }
        }
        let (mut looks, mut announced) = (0, false);
        for _ in 0..LISTS {
            let taken = self.taken(space)?;
            let at = range.next(first + self.draw_below(count)).unwrap_or(first);
            let free = self
                .first_free(&record, space, range, &taken, at, last)
                .or_else(|| self.first_free(&record, space, range, &taken, first, at));
            if let Some(id) = free {
                if matches!(self.try_claim(&id, BlockOwner::FreeNow)?, Attempt::Ours) {
                    return Ok(());
                }
                continue;
            }
            // One of ours may be unknown here: its claim was not answered, or its file is garbled.
            let unknown = taken.iter().any(|(block, taken)| {
                let id = BlockId { space: space.to_owned(), block: *block };
                taken.node == self.settings.node && !self.knows(&id)
            });
            if unknown {
                return self.sweep().map_err(|error| away(&error));
            }
            let empty = self.empty_elsewhere(range, &taken);
            let most = if empty.is_empty() { LOOKS_AGAIN } else { LOOKS };
            if most <= looks {
                let refusal = full(network, range, &taken, empty.len());
                self.lock().kept_back.insert((space.to_owned(), range.clone()), empty);
                return Err(refusal);
            }
            if !empty.is_empty() && !std::mem::replace(&mut announced, true) {
                self.want(space, range.subnet()).map_err(|error| away(&error))?;
            }
            looks += 1;
            self.clock.pause(LOOK_POLL_INTERVAL);
            // A container of this node may have left one.
            if self.lock().has_room(space, range, self.clock.now()) {
                return Ok(());
            }
        }
        let text = format!("other nodes took every block of {} that was free", range.subnet());
        Err(Refusal::for_now(text))
    }

    fn refuse_while_settling(&self) -> Result<(), Refusal> {
        let Some(left) = self.settling() else { return Ok(()) };
        Err(Refusal::for_now(format!(
            "the store was put back to an earlier state: this node takes no more addresses for {} s, so that other nodes can record theirs",
            left.as_secs() + 1
        )))
    }

    /// Says whether a block could be taken, without taking one. An empty block of another node does
    /// not count if an ADD has waited for it in vain: that node is dead, or does not know wants.
    pub(super) fn could_claim(
        &self,
        network: &Network,
        range: &Range,
        space: &str,
    ) -> Result<(), Refusal> {
        let key = space_key(space);
        let known = self.lock().spaces.get(space).cloned();
        let record = match known.filter(|known| known.covers(&range.subnet())) {
            Some(known) => Some(known),
            None => {
                let found = self.store.get(&key).map_err(|error| away(&error))?;
                found.and_then(|entry| record::read::<SpaceRecord>(&entry.value))
            }
        };
        // No node has requested the range yet: all of it is free.
        let Some(record) = record.filter(|record| record.covers(&range.subnet())) else {
            return Ok(());
        };
        let taken = self.taken(space)?;
        let (first, last) = range.bounds();
        if self.first_free(&record, space, range, &taken, first, last).is_some() {
            return Ok(());
        }
        let empty = self.empty_elsewhere(range, &taken);
        let mut table = self.lock();
        let kept_back = table.kept_back.entry((space.to_owned(), range.clone())).or_default();
        // One that was used meanwhile is that of a node that lives.
        kept_back.retain(|one| empty.contains(one));
        if kept_back.len() < empty.len() {
            return Ok(());
        }
        Err(full(network, range, &taken, empty.len()))
    }

    /// Lists the blocks of other nodes that seem to have no address in use, with these nodes.
    fn empty_elsewhere(
        &self,
        range: &Range,
        taken: &BTreeMap<IpNet, TakenBlock>,
    ) -> BTreeSet<(IpNet, String)> {
        let of_range = taken.iter().filter(|(block, _)| range.overlaps(block));
        of_range
            .filter(|(_, taken)| taken.empty && taken.node != self.settings.node)
            .map(|(block, taken)| (*block, taken.node.clone()))
            .collect()
    }

    /// Announces to other nodes that a subnet is full, so that they return their empty blocks.
    fn want(&self, space: &str, subnet: IpNet) -> Result<(), StoreError> {
        let key = space_key(space);
        let mut seen = None;
        for _ in 0..SPACE_TRIES {
            let Some(entry) = self.store.get(&key)? else { return Ok(()) };
            let Some(mut record) = record::read::<SpaceRecord>(&entry.value) else { return Ok(()) };
            let before = record.wanted.iter().find(|want| want.subnet == subnet).cloned();
            if seen.is_some_and(|seen| seen != before) {
                // Another node announced the same just now.
                return Ok(());
            }
            seen = Some(before);
            record.wanted.retain(|want| want.subnet != subnet);
            // A number that fits JavaScript's and Kubernetes' int64 too.
            let turn = self.draw() >> 12;
            record.wanted.push(WantedBlock { subnet, node: self.settings.node.clone(), turn });
            let surplus = record.wanted.len().saturating_sub(MAX_WANTS);
            record.wanted.drain(..surplus);
            match self.store.update(&key, &entry.revision, &record::write(&record)) {
                Err(StoreError::Conflict) => {}
                other => return other.map(|_| ()),
            }
        }
        Ok(())
    }

    /// Returns the number of nodes, at most a few minutes old.
    pub(super) fn nodes(&self) -> Result<usize, StoreError> {
        let now = self.clock.now();
        if let Some((nodes, at)) = self.lock().nodes
            && now.saturating_sub(at) < NODES_KNOWN
        {
            return Ok(nodes);
        }
        let all = self.store.list(Kind::Node, Filter::All)?;
        let living = all.iter().filter_map(|entry| record::read::<NodeRecord>(&entry.value));
        let nodes = living.filter(|node| !node.fenced).count().max(1);
        self.lock().nodes = Some((nodes, now));
        Ok(nodes)
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
        match self.try_claim(&id, BlockOwner::FreeNow)? {
            Attempt::Ours => Ok(()),
            Attempt::Theirs => {
                let found = self.store.get(&id.key()).map_err(|error| away(&error))?;
                let found = found.and_then(|entry| record::read::<BlockRecord>(&entry.value));
                let Some(found) = found.filter(|found| !found.node.is_empty()) else {
                    return Ok(());
                };
                if found.node == self.settings.node {
                    return Err(Refusal::for_now(format!(
                        "the block of {wanted} is being checked"
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

    /// Returns the record of a space that contains a range's subnet.
    fn space(&self, network: &Network, range: &Range, space: &str) -> Result<SpaceRecord, Refusal> {
        let subnet = range.subnet();
        if let Some(known) = self.lock().spaces.get(space)
            && known.covers(&subnet)
        {
            return Ok(known.clone());
        }
        let key = space_key(space);
        // The number of nodes matters only if no block size is configured.
        let nodes = match network.asked_block_prefix(range) {
            Some(_) => 1,
            None => self.nodes().map_err(|error| away(&error))?,
        };
        let usual = Part { subnet, block: network.block_prefix(range, nodes) };
        for _ in 0..SPACE_TRIES {
            let found = self.store.get(&key).map_err(|error| away(&error))?;
            let (record, written) = match found {
                None => {
                    let mut record =
                        SpaceRecord { space: space.to_owned(), ..SpaceRecord::default() };
                    record.add(self.as_it_was_cut(&record, usual.clone())?);
                    let written = self.store.create(&key, &record::write(&record));
                    (record, written)
                }
                Some(entry) => {
                    let Some(mut record) = record::read::<SpaceRecord>(&entry.value) else {
                        let text = format!("the store's record {key} is not that of a space");
                        return Err(
                            Refusal::new(ADDRESS, text).with_details("remove or correct it")
                        );
                    };
                    if record.covers(&subnet) {
                        (record, Ok(entry.revision))
                    } else {
                        record.add(self.as_it_was_cut(&record, usual.clone())?);
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
        Err(Refusal::for_now(format!("the record of the space {space} keeps changing")))
    }

    /// Returns the part to add to a space. Blocks of the subnet that no part of the record contains
    /// were cut by a part that was removed: other blocks would overlap them.
    fn as_it_was_cut(&self, record: &SpaceRecord, part: Part) -> Result<Part, Refusal> {
        let all = self.store.list(Kind::Block, Filter::Space(&record.space));
        let all = all.map_err(|error| away(&error))?;
        let blocks = all.iter().filter_map(|entry| record::read::<BlockRecord>(&entry.value));
        let mut lengths: BTreeSet<u8> = blocks
            .map(|block| block.block)
            .filter(|block| part.subnet.contains(block) && record.part_of(block.addr()).is_none())
            .map(|block| block.prefix_len())
            .collect();
        match (lengths.pop_first(), lengths.is_empty()) {
            (None, _) => Ok(part),
            (Some(block), true) => Ok(Part { block, ..part }),
            (Some(_), false) => {
                let text = format!(
                    "the store's record {} no longer says how {} is cut, and there are blocks of several sizes",
                    space_key(&record.space),
                    part.subnet
                );
                Err(Refusal::new(ADDRESS, text).with_details("write its \"parts\" again"))
            }
        }
    }

    /// Returns the owner of each block of a space, by a list that begins after this call. All that
    /// wait at the same time share one.
    fn taken(&self, space: &str) -> Result<Arc<BTreeMap<IpNet, TakenBlock>>, Refusal> {
        let mut table = self.lock();
        let lists = table.lists.entry(space.to_owned()).or_default();
        lists.waiting += 1;
        // One that runs may have passed a block that was freed since.
        let needed = lists.begun + 1;
        loop {
            let lists = table.lists.entry(space.to_owned()).or_default();
            if needed <= lists.ended {
                lists.waiting -= 1;
                let is_last = lists.waiting == 0;
                let found = if is_last { lists.found.take() } else { lists.found.clone() };
                return found.expect("it is kept as long as a caller waits for it");
            }
            if lists.begun == lists.ended {
                lists.begun += 1;
                drop(table);
                let found = self.list_taken(space).map(Arc::new);
                table = self.lock();
                let lists = table.lists.entry(space.to_owned()).or_default();
                lists.ended += 1;
                lists.found = Some(found);
                self.changed.notify_all();
            } else {
                table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn list_taken(&self, space: &str) -> Result<BTreeMap<IpNet, TakenBlock>, Refusal> {
        let all = self.store.list(Kind::Block, Filter::Space(space));
        let all = all.map_err(|error| away(&error))?;
        let records = all.iter().filter_map(|entry| record::read::<BlockRecord>(&entry.value));
        Ok(records
            .filter(|record| record.space == space && !record.node.is_empty())
            .map(|record| {
                let empty = record.held.is_empty() && record.kept.is_empty();
                (record.block, TakenBlock { node: record.node, empty })
            })
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
        taken: &BTreeMap<IpNet, TakenBlock>,
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

    /// Tries to take a block.
    fn try_claim(&self, id: &BlockId, whose: BlockOwner) -> Result<Attempt, Refusal> {
        self.know_own()?;
        self.refuse_while_settling()?;
        let epoch = {
            let mut table = self.lock();
            if table.blocks.contains_key(id) || !table.claiming.insert(id.clone()) {
                return Ok(Attempt::Theirs);
            }
            table.epoch
        };
        let result = self.try_claim_noted(id, epoch, whose);
        self.lock().claiming.remove(id);
        result
    }

    /// Writes the record of a block that belongs to no node, if this node's own record is what it
    /// wrote last: creates it, or replaces one of this revision.
    fn write_claim(
        &self,
        key: &Key,
        was: Option<&Revision>,
        value: &Value,
        epoch: u64,
    ) -> Result<Revision, StoreError> {
        let own = node_key(&self.settings.node);
        let known = {
            let table = self.lock();
            table.revision.clone().filter(|_| table.epoch == epoch)
        };
        // Another thread may just have found that it is not.
        let revision = known.ok_or(StoreError::Conflict)?;
        self.store.put_while(key, was, value, (&own, &revision))
    }

    fn try_claim_noted(
        &self,
        id: &BlockId,
        epoch: u64,
        whose: BlockOwner,
    ) -> Result<Attempt, Refusal> {
        let mut record = BlockRecord {
            space: id.space.clone(),
            block: id.block,
            node: self.settings.node.clone(),
            epoch,
            addresses: self.lock().addresses.clone(),
            held: BTreeMap::new(),
            kept: BTreeMap::new(),
        };
        let mut written = self.write_claim(&id.key(), None, &record::write(&record), epoch);
        if written == Err(StoreError::Conflict) && whose == BlockOwner::FreeNow {
            let found = self.store.get(&id.key()).map_err(|error| away(&error))?;
            // The cause may not be the block: this node's record may not be what it wrote.
            self.look_at_own()?;
            self.refuse_while_settling()?;
            if self.lock().epoch != epoch {
                return Ok(Attempt::Theirs);
            }
            let free_now = found.and_then(|entry| {
                let found = record::read::<BlockRecord>(&entry.value)?;
                found.node.is_empty().then_some((entry.revision, found.kept))
            });
            if let Some((was, kept)) = free_now {
                record.kept = kept;
                let value = record::write(&record);
                written = self.write_claim(&id.key(), Some(&was), &value, epoch);
            }
        }
        let revision = match written {
            Ok(revision) => revision,
            // It may be an earlier claim of ours whose answer was lost: `sweep` finds it.
            Err(StoreError::Conflict) => return Ok(Attempt::Theirs),
            Err(error) => {
                self.lock().unsure |= matches!(error, StoreError::Away(_));
                return Err(away(&error));
            }
        };
        self.look_back();
        if self.settling().is_some() {
            // None of its addresses was assigned. If the record is not removed, the next comparison
            // removes it.
            let _ = self.store.delete(&id.key(), &revision);
            self.refuse_while_settling()?;
        }
        let block = Block {
            epoch,
            revision: Some(revision),
            kept: record.kept,
            ..Block::new(self.clock.now())
        };
        if let Err(error) = self.write_block(id, &block) {
            // None of its addresses was assigned, and the next ADD would take another block. If the
            // record stays, `sweep` finds it once there is room.
            if self.files.remove_block(id).is_ok()
                && block.kept.is_empty()
                && let Some(revision) = &block.revision
            {
                let _ = self.store.delete(&id.key(), revision);
            }
            return Err(unwritten(&error));
        }
        let again = {
            let mut table = self.lock();
            table.blocks.entry(id.clone()).or_insert(block);
            // Addresses of ours without a block: it was lost, and is ours again.
            table.recount(id);
            table.set_lost(id, false)
        };
        // An address whose mark is not updated is reported once more, at most.
        let _ = self.mark(again);
        Ok(Attempt::Ours)
    }
}

fn block_at(record: &SpaceRecord, space: &str, range: &Range, at: u128) -> Option<BlockId> {
    let block = record.block_of(address_of(range.family(), at))?;
    Some(BlockId { space: space.to_owned(), block })
}

fn full(
    network: &Network,
    range: &Range,
    taken: &BTreeMap<IpNet, TakenBlock>,
    empty: usize,
) -> Refusal {
    let of_range = taken.iter().filter(|(block, _)| range.overlaps(block));
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    let mut blocks = 0_usize;
    for (_, taken) in of_range {
        *nodes.entry(&taken.node).or_default() += 1;
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
    let kept = match empty {
        0 => String::new(),
        _ => format!("; {empty} of them looked empty, and their nodes did not give them back"),
    };
    Refusal::new(ADDRESS, text).with_details(format!(
        "network {:?}; blocks by node: {}{more}{kept}; enlarge the range, use smaller blocks, or `netwrightd ipam --forget NODE` for nodes that are gone",
        network.name(),
        named.join(", "),
    ))
}

/// Returns the refusal for a store's error.
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    use crate::store::{Fault, Kind, Memory};
    use crate::{Clock, Node, Settings};

    #[derive(Debug)]
    struct StillClock;

    impl Clock for StillClock {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
    }

    #[test]
    fn all_who_wait_share_a_list_that_begins_after_they_asked() {
        let (dir, store) = (tempfile::tempdir().unwrap(), Memory::default());
        let (begin, begun) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        store.misbehave(move |verb, key| {
            if verb == "list" && key.kind == Kind::Block {
                begin.send(()).unwrap();
                ended.recv().unwrap();
            }
            Fault::None
        });
        let settings = Settings::new("n1", "boot", "machine");
        let node = Node::open(dir.path(), Arc::new(store), Arc::new(StillClock), settings).unwrap();
        let node = &node;
        let ask = move || drop(node.taken("s").unwrap());
        let waiting = || node.lock().lists.get("s").map_or(0, |lists| lists.waiting);
        thread::scope(|scope| {
            let first = scope.spawn(ask);
            begun.recv().unwrap();
            let others = [scope.spawn(ask), scope.spawn(ask), scope.spawn(ask)];
            while waiting() < 4 {
                thread::yield_now();
            }
            end.send(()).unwrap();
            first.join().unwrap();
            begun.recv().unwrap();
            end.send(()).unwrap();
            others.into_iter().for_each(|other| other.join().unwrap());
        });
        assert!(begun.try_recv().is_err(), "there was a third list");
        assert_eq!(waiting(), 0);
    }
}
