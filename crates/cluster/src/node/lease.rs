//! The node's lease, and coming back after it was lost.

use std::sync::PoisonError;
use std::time::Duration;

use cni::line::Refusal;

use super::claim::away;
use super::table::Block;
use super::{Node, STATE};
use crate::local::{HeldFile, HeldName, NodeFile};
use crate::record::{self, BlockId, BlockRecord, NodeRecord, node_key};
use crate::store::{Entry, Filter, Kind, Revision, StoreError};
use crate::wire::Owner;

/// How often a record is written, when others were quicker.
const TRIES: u32 = 16;

/// How long a lease must be seen unchanged before it has surely run out, whatever the speed of two clocks.
pub(crate) fn surely_over(lease: Duration) -> Duration {
    lease + lease / 4 + Duration::from_millis(500).min(lease / 4)
}

/// Reads a record's seconds, which somebody may have written by hand.
pub(crate) fn lease_of(record: &NodeRecord) -> Duration {
    // Longer than any machine runs is for ever.
    Duration::from_millis(record.lease_ms).min(Duration::from_secs(u64::from(u32::MAX)))
}

impl Node {
    /// Sees to it that the lease holds.
    pub(super) fn ensure_lease(&self) -> Result<(), Refusal> {
        if self.lock().lease_holds(self.clock.now()) {
            return Ok(());
        }
        self.renew().map_err(|error| match error {
            StoreError::Refused(why) => Refusal::for_now(why),
            error => {
                let mut refusal = away(&error);
                refusal.details = "its lease has run out: addresses that it may give might be somebody else's by now".to_owned();
                refusal
            }
        })
    }

    /// Renews the lease, and compares what is ours if that was not done yet.
    ///
    /// # Errors
    /// [`StoreError`]: the lease holds as long as it did.
    pub fn renew(&self) -> Result<(), StoreError> {
        let asked = self.clock.now();
        let _one = self.renewing.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have, while we waited.
        let due = {
            let table = self.lock();
            let renewed = table.until.and_then(|until| until.checked_sub(self.settings.lease));
            !(table.lease_holds(self.clock.now()) && renewed.is_some_and(|at| asked <= at))
        };
        if due {
            self.renew_record()?;
        }
        if !self.lock().trusted {
            self.compare()?;
        }
        Ok(())
    }

    fn renew_record(&self) -> Result<(), StoreError> {
        let key = node_key(&self.settings.node);
        for _ in 0..TRIES {
            let known = {
                let table = self.lock();
                table.revision.clone().map(|revision| (revision, table.epoch, table.beat))
            };
            let (was, epoch, beat) = match known {
                Some((revision, epoch, beat)) => (Some(revision), epoch, beat),
                None => {
                    let found = self.store.get(&key)?;
                    self.epoch_for(found)?
                }
            };
            let record = self.record(epoch, beat + 1);
            if epoch != self.lock().epoch {
                self.begin_epoch(epoch)?;
            }
            // The lease counts from before it was asked for.
            let sent = self.clock.now();
            let value = record::write(&record);
            let written = match &was {
                None => self.store.create(&key, &value),
                Some(was) => self.store.update(&key, was, &value),
            };
            let mut table = self.lock();
            match written {
                Ok(revision) => {
                    table.revision = Some(revision);
                    table.beat = record.beat;
                    let until = sent + self.settings.lease;
                    table.until = Some(until);
                    let file = NodeFile {
                        identity: table.identity.clone(),
                        epoch: table.epoch,
                        boot: self.settings.boot.clone(),
                        until,
                        ..NodeFile::default()
                    };
                    drop(table);
                    // It matters to a daemon that starts again while the store is away, no more.
                    if let Err(error) = self.files.write_node(&file) {
                        self.note(format!("cannot {error}"));
                    }
                    return Ok(());
                }
                // It is read again.
                Err(StoreError::Conflict) => table.revision = None,
                Err(error) => {
                    table.revision = None;
                    return Err(error);
                }
            }
        }
        Err(StoreError::Away(format!("the record {key} changes all the time")))
    }

    fn record(&self, epoch: u64, beat: u64) -> NodeRecord {
        NodeRecord {
            node: self.settings.node.clone(),
            identity: self.lock().identity.clone(),
            epoch,
            beat,
            lease_ms: u64::try_from(self.settings.lease.as_millis()).unwrap_or(u64::MAX),
            fenced: false,
            forgotten: false,
        }
    }

    /// Reads the node's record: what is to be replaced, by which epoch, after which beat.
    fn epoch_for(&self, found: Option<Entry>) -> Result<(Option<Revision>, u64, u64), StoreError> {
        let mut table = self.lock();
        // It is new, or was given up and cleared away.
        let Some(entry) = found else { return Ok((None, table.epoch + 1, 0)) };
        let Some(record) = record::read::<NodeRecord>(&entry.value) else {
            let text =
                format!("the store's record {} is none of a node: remove or mend it", entry.key);
            return Err(StoreError::Refused(text));
        };
        let next = record.epoch.max(table.epoch) + 1;
        if record.identity == table.identity {
            table.stranger = None;
            // The disk may say less than the record, if it was put back from a copy: then it says nothing.
            let same = !record.fenced && record.epoch == table.epoch;
            let epoch = if same { record.epoch } else { next };
            if record.forgotten && same {
                table
                    .notices
                    .push("an administrator said that this node is gone; it is not".to_owned());
            }
            return Ok((Some(entry.revision), epoch, record.beat));
        }
        if record.fenced {
            return Ok((Some(entry.revision), next, record.beat));
        }
        // Another machine has this name, or this one lost its disk. The other's lease must run out.
        let now = self.clock.now();
        let since = match &table.stranger {
            Some((revision, since)) if *revision == entry.revision => *since,
            _ => {
                table.stranger = Some((entry.revision.clone(), now));
                now
            }
        };
        let wait = surely_over(lease_of(&record));
        if wait <= now.saturating_sub(since) {
            table.notices.push(format!(
                "took the place of another machine that was node {}, whose lease ran out",
                self.settings.node
            ));
            return Ok((Some(entry.revision), next, record.beat));
        }
        let left = wait.saturating_sub(now.saturating_sub(since));
        Err(StoreError::Refused(format!(
            "another machine is node {} too, or this one lost its disk: no addresses for {} s, unless the other one renews its lease",
            self.settings.node,
            left.as_secs() + 1
        )))
    }

    /// Nothing that was ours is, until it was compared.
    fn begin_epoch(&self, epoch: u64) -> Result<(), StoreError> {
        let file = {
            let mut table = self.lock();
            table.trusted = false;
            table.until = None;
            table.epoch = epoch;
            NodeFile { identity: table.identity.clone(), epoch, ..NodeFile::default() }
        };
        self.files.write_node(&file).map_err(|error| self.unwritten(&error))
    }

    /// Compares what the disk says is ours with what the store says.
    fn compare(&self) -> Result<(), StoreError> {
        let (ids, epoch): (Vec<BlockId>, u64) = {
            let table = self.lock();
            (table.blocks.keys().cloned().collect(), table.epoch)
        };
        for id in &ids {
            self.compare_block(id, epoch)?;
        }
        self.sweep_of(epoch)?;
        self.compare_sticky(epoch)?;
        let mut table = self.lock();
        if table.epoch == epoch {
            table.trusted = true;
            table.released.clear();
        }
        Ok(())
    }

    fn compare_block(&self, id: &BlockId, epoch: u64) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let found = self.store.get(&id.key())?;
            let (returning, kept) = {
                let table = self.lock();
                let Some(block) = table.blocks.get(id) else { return Ok(()) };
                (block.returning, block.kept.clone())
            };
            let mut record = BlockRecord {
                space: id.space.clone(),
                block: id.block,
                node: self.settings.node.clone(),
                epoch,
                held: self.lock().holders_in(id),
                kept,
            };
            let written = match found {
                None if returning => return self.forget(id),
                // Somebody took it from us and nobody has it now.
                None => self.store.create(&id.key(), &record::write(&record)),
                Some(entry) => match record::read::<BlockRecord>(&entry.value) {
                    Some(theirs) if theirs.node == self.settings.node => {
                        record.kept.extend(theirs.kept.clone());
                        self.learn(id, &theirs);
                        self.store.update(&id.key(), &entry.revision, &record::write(&record))
                    }
                    other => return self.lose(id, other.map(|record| record.node).as_deref()),
                },
            };
            match written {
                Ok(revision) => {
                    let (block, found_again) = {
                        let mut table = self.lock();
                        let again = table.set_lost(id, false);
                        let Some(block) = table.blocks.get_mut(id) else { return Ok(()) };
                        block.epoch = epoch;
                        block.revision = Some(revision);
                        block.kept = record.kept.clone();
                        block.dirty = true;
                        (block.clone(), again)
                    };
                    self.write_block(id, &block).map_err(|error| self.unwritten(&error))?;
                    self.mark(found_again)?;
                    return Ok(());
                }
                Err(StoreError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Away(format!("the record {} changes all the time", id.key())))
    }

    /// Learns from a record who has the addresses whose files are garbled.
    fn learn(&self, id: &BlockId, record: &BlockRecord) {
        let mut table = self.lock();
        let garbled: Vec<HeldName> = table
            .held_in(id)
            .filter(|(_, (_, held))| held.owner.container.is_empty())
            .map(|(address, (hash, _))| HeldName {
                space: id.space.clone(),
                address,
                hash: hash.clone(),
            })
            .collect();
        for name in garbled {
            let Some(holder) = record.held.get(&name.address) else { continue };
            let owner = owner_of(holder);
            if owner.hash() == name.hash {
                let mut held = super::table::Held::new(&holder.network, &owner);
                held.written = true;
                table.insert(&name, held);
            }
        }
    }

    /// A block is somebody else's by now.
    pub(super) fn lose(&self, id: &BlockId, by: Option<&str>) -> Result<(), StoreError> {
        let lost = {
            let mut table = self.lock();
            table.blocks.remove(id);
            let lost = table.set_lost(id, true);
            let by = by.unwrap_or("nobody known");
            table.notices.push(format!(
                "the block {} of the space {} is node {by}'s by now: this node was given up while it was away",
                id.block, id.space
            ));
            for (name, held) in &lost {
                table.notices.push(format!(
                    "the address {} of {held} may be given to somebody else by node {by}: start it again",
                    name.address
                ));
            }
            lost
        };
        self.files.remove_block(id).map_err(|error| self.unwritten(&error))?;
        self.mark(lost)
    }

    /// A block is nobody's by now.
    pub(super) fn forget(&self, id: &BlockId) -> Result<(), StoreError> {
        self.lock().blocks.remove(id);
        self.files.remove_block(id).map_err(|error| self.unwritten(&error))
    }

    /// Writes down which addresses may be somebody else's as well.
    pub(super) fn mark(
        &self,
        changed: Vec<(HeldName, super::table::Held)>,
    ) -> Result<(), StoreError> {
        for (name, held) in changed {
            let file = HeldFile {
                boot: self.settings.boot.clone(),
                network: held.network,
                owner: held.owner,
                lost: held.lost,
                sticky: held.sticky,
                ..HeldFile::default()
            };
            self.files.write_held(&name, &file).map_err(|error| self.unwritten(&error))?;
        }
        Ok(())
    }

    /// Looks for blocks that are ours and that the disk does not know: their claim was not answered, or the disk was lost.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn sweep(&self) -> Result<(), StoreError> {
        let _one = self.renewing.lock().unwrap_or_else(PoisonError::into_inner);
        let epoch = self.lock().epoch;
        self.sweep_of(epoch)?;
        self.sweep_sticky()
    }

    fn sweep_of(&self, epoch: u64) -> Result<(), StoreError> {
        let all = self.store.list(Kind::Block, Filter::Node(&self.settings.node))?;
        for entry in all {
            let Some(theirs) = record::read::<BlockRecord>(&entry.value) else { continue };
            let id = BlockId { space: theirs.space.clone(), block: theirs.block };
            if theirs.node != self.settings.node || id.key() != entry.key {
                continue;
            }
            {
                // Whoever takes it notes it first.
                let table = self.lock();
                if table.blocks.contains_key(&id) || table.claiming.contains(&id) {
                    continue;
                }
            }
            self.adopt(&id, theirs, &entry.revision, epoch)?;
        }
        Ok(())
    }

    fn adopt(
        &self,
        id: &BlockId,
        theirs: BlockRecord,
        was: &Revision,
        epoch: u64,
    ) -> Result<(), StoreError> {
        let record = BlockRecord { epoch, ..theirs };
        let revision = match self.store.update(&id.key(), was, &record::write(&record)) {
            Ok(revision) => revision,
            // Looked at again at the next sweep.
            Err(StoreError::Conflict) => return Ok(()),
            Err(error) => return Err(error),
        };
        let block = Block {
            epoch,
            revision: Some(revision),
            kept: record.kept.clone(),
            ..Block::new(self.clock.now())
        };
        for (address, holder) in &record.held {
            let owner = owner_of(holder);
            let name = HeldName { space: id.space.clone(), address: *address, hash: owner.hash() };
            {
                let table = self.lock();
                if table.is_held(&name.space, name.address) || table.released.contains(&name.hash) {
                    continue;
                }
            }
            let file = HeldFile {
                boot: self.settings.boot.clone(),
                network: holder.network.clone(),
                owner,
                ..HeldFile::default()
            };
            self.files.write_held(&name, &file).map_err(|error| self.unwritten(&error))?;
            self.lock().insert(&name, super::table::Held::read(file));
        }
        self.write_block(id, &block).map_err(|error| self.unwritten(&error))?;
        let mut table = self.lock();
        table.blocks.entry(id.clone()).or_insert(block);
        table.recount(id);
        Ok(())
    }

    fn unwritten(&self, error: &state::FileError) -> StoreError {
        let refusal = super::unwritten(error);
        debug_assert_eq!(refusal.code, STATE);
        StoreError::Refused(refusal.msg)
    }

    pub(super) fn note(&self, text: String) {
        self.lock().notices.push(text);
    }
}

pub(super) fn owner_of(holder: &record::Holder) -> Owner {
    Owner {
        container: holder.container.clone(),
        ifname: holder.ifname.clone(),
        netns: String::new(),
        pod: holder.pod.clone(),
    }
}
