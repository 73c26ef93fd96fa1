//! Background work: updates records and returns blocks.
//!
//! While a node keeps an empty block, other nodes find the space full. So a node returns an empty
//! block after `--idle`, and after a second or two if the range has fewer than four addresses for
//! each node. A node that finds a space full says so in the space's record, which nodes with empty
//! blocks read every two seconds: they return theirs within five seconds, and the ADD waits up to
//! six before it fails with code 102. Reading a record needs no right to watch, and an older daemon
//! ignores what it does not know in it.
//!
//! A node that returns a block first records that on its disk, and does not use the block from then
//! on, because the store may forget the block although no answer comes. It asks again until the
//! store has answered. In the worst case no node uses the block for a while.

use std::sync::PoisonError;
use std::time::Duration;

use super::Node;
use crate::record::{self, BlockId, BlockRecord, SpaceRecord, space_key};
use crate::store::StoreError;

/// How often to retry writing a record because other writers were faster.
const TRIES: u32 = 16;
/// How often a node with empty blocks checks whether another one wants them. A node that wants one
/// waits for six seconds (`claim`).
const LOOK_FOR_WANTS: Duration = Duration::from_secs(2);
/// How long a block stays empty where addresses are scarce: it was taken for a caller that is about
/// to get an address of it.
const GRACE: Duration = Duration::from_secs(1);

impl Node {
    /// Says whether the lease should be renewed: a third of it is over, or this process has not yet
    /// announced its length.
    pub fn is_due(&self) -> bool {
        let table = self.lock();
        let now = self.clock.now();
        !table.trusted
            || table.revision.is_none()
            || table
                .until
                .is_none_or(|until| until.saturating_sub(now) <= self.settings.lease / 3 * 2)
    }

    /// Renews the lease if it is due, reports the holders of addresses to the store, and returns
    /// blocks that have been empty for long.
    ///
    /// # Errors
    /// [`StoreError`]; the rest is done next time.
    pub fn tend(&self) -> Result<(), StoreError> {
        let _one = self.tending.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_due() {
            let renewed = self.renew();
            if renewed.is_err() && self.lock().claimed.is_some() {
                // This is not an error: the next call tries again.
                return Ok(());
            }
            renewed?;
        }
        self.watch_own()?;
        self.settle()?;
        self.publish()?;
        let unsure = std::mem::take(&mut self.lock().unsure);
        if unsure && let Err(error) = self.sweep() {
            self.lock().unsure = true;
            return Err(error);
        }
        if std::mem::take(&mut self.lock().freed) {
            self.sweep_sticky()?;
        }
        self.give_back()
    }

    fn publish(&self) -> Result<(), StoreError> {
        let dirty: Vec<BlockId> = {
            let table = self.lock();
            let of = table.blocks.iter();
            of.filter(|(_, block)| block.dirty && !block.returning)
                .map(|(id, _)| id.clone())
                .collect()
        };
        for id in dirty {
            self.publish_block(&id)?;
        }
        Ok(())
    }

    pub(super) fn publish_block(&self, id: &BlockId) -> Result<(), StoreError> {
        let (record, revision) = {
            let mut table = self.lock();
            let epoch = table.epoch;
            let held = table.holders_in(id);
            let addresses = table.addresses.clone();
            let Some(block) = table.blocks.get_mut(id) else { return Ok(()) };
            // A block of an earlier epoch is compared first.
            if block.returning || block.epoch != epoch {
                return Ok(());
            }
            block.dirty = false;
            let record = BlockRecord {
                space: id.space.clone(),
                block: id.block,
                node: self.settings.node.clone(),
                epoch,
                addresses,
                held,
                kept: block.kept.clone(),
            };
            (record, block.revision.take())
        };
        let written = self.write_ours(id, &record, revision);
        let mut table = self.lock();
        let Some(block) = table.blocks.get_mut(id) else { return Ok(()) };
        match written {
            Ok(Some(revision)) => {
                block.revision = Some(revision);
                Ok(())
            }
            // It is no longer ours, as `write_ours` has found.
            Ok(None) => {
                drop(table);
                let found = self.store.get(&id.key())?;
                let by = found.as_ref().and_then(|entry| record::read::<BlockRecord>(&entry.value));
                if found.is_none() || by.as_ref().is_some_and(|by| by.node == self.settings.node) {
                    // Either it was removed, or another machine of this name wrote it: the node's
                    // record tells which.
                    self.lock().distrust();
                    return Ok(());
                }
                self.lose(id, by.map(|record| record.node).as_deref())
            }
            Err(error) => {
                block.dirty = true;
                Err(error)
            }
        }
    }

    /// Replaces our record; `None` when it is no longer ours.
    fn write_ours(
        &self,
        id: &BlockId,
        record: &BlockRecord,
        mut revision: Option<crate::store::Revision>,
    ) -> Result<Option<crate::store::Revision>, StoreError> {
        let value = record::write(record);
        for _ in 0..TRIES {
            let was = match revision.take() {
                Some(was) => was,
                None => {
                    let Some(entry) = self.store.get(&id.key())? else { return Ok(None) };
                    let ours = record::read::<BlockRecord>(&entry.value)
                        .is_some_and(|found| is_same(&found, record));
                    if !ours {
                        return Ok(None);
                    }
                    if entry.value == value {
                        return Ok(Some(entry.revision));
                    }
                    entry.revision
                }
            };
            match self.store.update(&id.key(), &was, &value) {
                Ok(revision) => return Ok(Some(revision)),
                Err(StoreError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Away(format!("the record {} keeps changing", id.key())))
    }

    /// Checks whether another node wants empty blocks of this one.
    fn look_for_wants(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let spaces: Vec<String> = {
            let table = self.lock();
            let due = |space: &String| {
                let last = table.looked.get(space);
                last.is_none_or(|last| LOOK_FOR_WANTS <= now.saturating_sub(*last))
            };
            table.spaces_with_empty().into_iter().filter(due).collect()
        };
        for space in spaces {
            let found = self.store.get(&space_key(&space))?;
            let record = found.and_then(|entry| record::read::<SpaceRecord>(&entry.value));
            let mut table = self.lock();
            table.note_wants(&space, &record.clone().unwrap_or_default(), now);
            if let Some(record) = record {
                table.spaces.insert(space, record);
            }
        }
        Ok(())
    }

    /// Returns blocks that have been empty for long; at once if addresses are scarce, or another
    /// node wants them.
    fn give_back(&self) -> Result<(), StoreError> {
        self.look_for_wants()?;
        let has_empty = !self.lock().spaces_with_empty().is_empty();
        let nodes = if has_empty { self.nodes()? } else { 1 };
        let now = self.clock.now();
        let surplus: Vec<BlockId> = {
            let mut table = self.lock();
            let of = table.blocks.iter().filter(|(id, block)| {
                if block.returning {
                    return true;
                }
                let short = table.is_scarce(id, nodes) || table.is_wanted(id, now);
                let timeout =
                    if short { GRACE.min(self.settings.idle) } else { self.settings.idle };
                table.is_empty(block) && timeout <= now.saturating_sub(block.empty_since)
            });
            let surplus: Vec<BlockId> = of.map(|(id, _)| id.clone()).collect();
            for id in &surplus {
                // From here on none of its addresses is assigned.
                if let Some(block) = table.blocks.get_mut(id) {
                    block.returning = true;
                }
            }
            surplus
        };
        for id in surplus {
            self.give_back_one(&id)?;
        }
        Ok(())
    }

    fn give_back_one(&self, id: &BlockId) -> Result<(), StoreError> {
        let Some(block) = self.lock().blocks.get(id).cloned() else { return Ok(()) };
        // The disk first: a daemon that starts while the store is unreachable must not use it.
        self.write_block(id, &block)
            .map_err(|error| StoreError::Refused(super::unwritten(&error).msg))?;
        let mut revision = block.revision;
        for _ in 0..TRIES {
            let was = match revision.take() {
                Some(was) => was,
                None => match self.store.get(&id.key())? {
                    None => return self.forget(id),
                    Some(entry) => match record::read::<BlockRecord>(&entry.value) {
                        Some(found) if found.node == self.settings.node => entry.revision,
                        _ => return self.forget(id),
                    },
                },
            };
            match self.store.delete(&id.key(), &was) {
                Ok(()) => return self.forget(id),
                Err(StoreError::Conflict) => {}
                Err(error) => {
                    if let Some(block) = self.lock().blocks.get_mut(id) {
                        block.revision = None;
                    }
                    return Err(error);
                }
            }
        }
        Err(StoreError::Away(format!("the record {} keeps changing", id.key())))
    }
}

fn is_same(found: &BlockRecord, ours: &BlockRecord) -> bool {
    found.node == ours.node && found.epoch == ours.epoch
}
