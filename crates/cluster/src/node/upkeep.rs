//! What is done behind the answers: records are brought up to date, blocks given back.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use super::Node;
use crate::record::{self, BlockId, BlockRecord};
use crate::store::StoreError;

/// How often a record is written, when others were quicker.
const TRIES: u32 = 16;

impl Node {
    /// Says whether the lease should be renewed: a third of it is over.
    pub fn is_due(&self) -> bool {
        let table = self.lock();
        let now = self.clock.now();
        !table.trusted
            || table
                .until
                .is_none_or(|until| until.saturating_sub(now) <= self.settings.lease / 3 * 2)
    }

    /// Renews the lease if it is due, tells the store who holds what, and gives back what has been empty for long.
    ///
    /// # Errors
    /// [`StoreError`]; what was not done is done next time.
    pub fn tend(&self) -> Result<(), StoreError> {
        let _one = self.tending.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_due() {
            self.renew()?;
        }
        self.publish()?;
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
            let Some(block) = table.blocks.get_mut(id) else { return Ok(()) };
            // One of an earlier epoch is compared first.
            if block.returning || block.epoch != epoch {
                return Ok(());
            }
            block.dirty = false;
            let record = BlockRecord {
                space: id.space.clone(),
                block: id.block,
                node: self.settings.node.clone(),
                epoch,
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
            // Somebody else's: that was found out while it was looked at.
            Ok(None) => {
                drop(table);
                let found = self.store.get(&id.key())?;
                let by = found.and_then(|entry| record::read::<BlockRecord>(&entry.value));
                self.lose(id, by.map(|record| record.node).as_deref())
            }
            Err(error) => {
                block.dirty = true;
                Err(error)
            }
        }
    }

    /// Replaces our record; `None` when it is not ours any more.
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
        Err(StoreError::Away(format!("the record {} changes all the time", id.key())))
    }

    /// Gives back blocks that have been empty for long, all but the spare ones.
    fn give_back(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let surplus: Vec<BlockId> = {
            let mut table = self.lock();
            let mut spare: BTreeMap<(String, bool), usize> = BTreeMap::new();
            let mut surplus = Vec::new();
            let epoch = table.epoch;
            for (id, block) in &mut table.blocks {
                if block.returning {
                    surplus.push(id.clone());
                    continue;
                }
                if 0 < block.used || !block.kept.is_empty() || block.epoch != epoch {
                    continue;
                }
                let kept = spare.entry((id.space.clone(), id.block.addr().is_ipv4())).or_default();
                if *kept < self.settings.spare {
                    *kept += 1;
                    continue;
                }
                if self.settings.idle <= now.saturating_sub(block.empty_since) {
                    // From here on nothing of it is given.
                    block.returning = true;
                    surplus.push(id.clone());
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
        // First the disk: a daemon that starts while the store is away must not use it.
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
        Err(StoreError::Away(format!("the record {} changes all the time", id.key())))
    }
}

fn is_same(found: &BlockRecord, ours: &BlockRecord) -> bool {
    found.node == ours.node && found.epoch == ours.epoch
}
