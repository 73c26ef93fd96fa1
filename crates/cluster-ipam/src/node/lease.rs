//! The node's lease, and how the node comes back after losing it.
//!
//! # A copied machine
//!
//! A machine may be copied with its disk, under the same name, and both then hold the same blocks.
//! So the node's record says which process wrote it (`run`), and the node's disk says which
//! processes have written it since the last boot. A machine that does not find the record's process
//! on its disk, because it has just booted or is a copy, writes a `claim` and waits 25 s for an
//! answer; the first ADD after a boot may wait that long. A running machine reads its record every
//! ten seconds and answers a claim, and the copy then gives no address. There is no quicker way:
//! after a boot a copy looks like the original until the original answers. A daemon that only
//! starts again does not wait.

use std::sync::PoisonError;
use std::time::Duration;

use node_api::Refusal;
use node_api::ipam::Owner;

use super::claim::away;
use super::table::{Block, Table};
use super::{Node, STATE};
use crate::local::{HeldFile, HeldName, NodeFile};
use crate::record::{self, BlockId, BlockRecord, NodeRecord, SpaceRecord, node_key, space_key};
use crate::store::{Entry, Filter, Key, Kind, Revision, StoreError};

/// How often to retry writing a record because other writers were faster.
const TRIES: u32 = 16;

/// How often a node checks whether another process wrote its record.
const WATCH: Duration = Duration::from_secs(10);
/// How long a machine that has started waits to see whether another machine is the same node: two
/// checks, and time for them.
const CLAIM_TIME: Duration = Duration::from_secs(25);
/// The interval between two such checks, and how many an ADD waits for: less than a plugin waits.
const CLAIM_POLL_INTERVAL: Duration = Duration::from_secs(1);
const CLAIM_LOOKS: u32 = 40;
/// How long no blocks are taken after the store was restored: each node checks its record three
/// times meanwhile.
const SETTLE: Duration = Duration::from_secs(30);

/// What a node's record means to the process that reads it.
#[derive(Debug)]
enum RecordStanding {
    /// The process may write it: over this revision, with this epoch, after this beat.
    Ours { was: Option<Revision>, epoch: u64, beat: u64 },
    /// The process first asks whether another machine is this node.
    Claim { was: Revision, record: NodeRecord },
}

/// How long a lease must be seen unchanged before it has certainly expired, even if two clocks run
/// at different speeds.
pub(crate) fn surely_over(lease: Duration) -> Duration {
    lease + lease / 4 + Duration::from_millis(500).min(lease / 4)
}

/// Reads a record's seconds, which may have been written by hand.
pub(crate) fn lease_of(record: &NodeRecord) -> Duration {
    // Longer than any machine runs counts as for ever.
    Duration::from_millis(record.lease_ms).min(Duration::from_secs(u64::from(u32::MAX)))
}

/// Returns the refusal for an error of the node's own record.
fn not_now(error: &StoreError) -> Refusal {
    match error {
        StoreError::Refused(why) => Refusal::for_now(why),
        error => away(error),
    }
}

impl Node {
    /// Makes sure that the lease holds.
    pub(super) fn ensure_lease(&self) -> Result<(), Refusal> {
        self.lease_within(CLAIM_LOOKS)
    }

    /// Does the same; after a boot it checks this often whether another machine is this node.
    pub(super) fn lease_within(&self, looks: u32) -> Result<(), Refusal> {
        if self.lock().lease_holds(self.clock.now()) {
            return Ok(());
        }
        let mut renewed = self.renew();
        for _ in 0..looks {
            if renewed.is_ok() || self.lock().claimed.is_none() {
                break;
            }
            self.clock.pause(CLAIM_POLL_INTERVAL);
            renewed = self.renew();
        }
        renewed.map_err(|error| match error {
            StoreError::Refused(why) => Refusal::for_now(why),
            error => {
                let mut refusal = away(&error);
                refusal.details =
                    "its lease has run out: other nodes may have given its addresses by now"
                        .to_owned();
                refusal
            }
        })
    }

    /// Renews the lease, and compares our blocks if that was not done yet.
    ///
    /// # Errors
    /// [`StoreError`]: the lease holds as long as it did.
    pub fn renew(&self) -> Result<(), StoreError> {
        let asked = self.clock.now();
        let _one = self.renewing.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have renewed it while we waited.
        let due = {
            let table = self.lock();
            let renewed = table.until.and_then(|until| until.checked_sub(self.settings.lease));
            let just_now = renewed.is_some_and(|at| asked <= at) && table.revision.is_some();
            !(table.lease_holds(self.clock.now()) && just_now)
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
                    self.look_back();
                    match self.standing(found)? {
                        RecordStanding::Ours { was, epoch, beat } => (was, epoch, beat),
                        RecordStanding::Claim { was, record } => {
                            match self.claim_name(&key, &was, record) {
                                Err(StoreError::Conflict) => continue,
                                Err(error) => return Err(error),
                                Ok(()) => return Err(self.claiming(CLAIM_TIME)),
                            }
                        }
                    }
                }
            };
            let record = self.record(epoch, beat + 1);
            let (known_epoch, renewed, until) = {
                let table = self.lock();
                (table.epoch, table.renewed, table.until.unwrap_or_default())
            };
            if epoch != known_epoch {
                self.begin_epoch(epoch)?;
            } else if !renewed {
                // By this, a later process knows that the record is not another machine's.
                let file = self.node_file(until);
                self.files.write_node(&file).map_err(|error| self.unwritten(&error))?;
            }
            // The lease counts from before it was requested.
            let sent = self.clock.now();
            let value = record::write(&record);
            self.lock().tried = record.beat;
            let written = match &was {
                None => self.store.create(&key, &value),
                Some(was) => self.store.update(&key, was, &value),
            };
            let mut table = self.lock();
            match written {
                Ok(revision) => {
                    table.revision = Some(revision);
                    table.beat = record.beat;
                    table.renewed = true;
                    table.claimed = None;
                    table.watched = Some(sent);
                    let until = sent + self.settings.lease;
                    table.until = Some(until);
                    drop(table);
                    // It matters only to a daemon that restarts while the store is unreachable.
                    if let Err(error) = self.files.write_node(&self.node_file(until)) {
                        self.note(format!("cannot {error}"));
                    }
                    return Ok(());
                }
                // The record is read again next time.
                Err(StoreError::Conflict) => table.revision = None,
                Err(error) => {
                    table.revision = None;
                    return Err(error);
                }
            }
        }
        Err(StoreError::Away(format!("the record {key} keeps changing")))
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
            run: self.settings.run.clone(),
            claim: String::new(),
        }
    }

    fn node_file(&self, until: Duration) -> NodeFile {
        let table = self.lock();
        NodeFile {
            identity: table.identity.clone(),
            epoch: table.epoch,
            boot: self.settings.boot.clone(),
            until,
            run: self.settings.run.clone(),
            run_before: table.runs_before.first().cloned().unwrap_or_default(),
            moment: self.store.moment(),
            ..NodeFile::default()
        }
    }

    /// Asks whether another machine is this node: such a machine writes the record again.
    fn claim_name(&self, key: &Key, was: &Revision, record: NodeRecord) -> Result<(), StoreError> {
        let claim = NodeRecord { claim: self.settings.run.clone(), ..record };
        let asked = self.clock.now();
        let revision = self.store.update(key, was, &record::write(&claim))?;
        self.lock().claimed = Some((revision, asked));
        Ok(())
    }

    fn claiming(&self, left: Duration) -> StoreError {
        StoreError::Refused(format!(
            "this machine has started: for {} s it checks whether another machine is node {} too",
            left.as_secs() + 1,
            self.settings.node
        ))
    }

    /// Reads the node's record and decides whether this process may write it.
    fn standing(&self, found: Option<Entry>) -> Result<RecordStanding, StoreError> {
        let mut table = self.lock();
        let now = self.clock.now();
        // The node is new, or was given up and its record removed.
        let Some(entry) = found else {
            return Ok(RecordStanding::Ours { was: None, epoch: table.epoch + 1, beat: 0 });
        };
        // A record written by hand may contain numbers that cannot be incremented.
        let read = record::read::<NodeRecord>(&entry.value);
        let Some(record) = read.filter(|it| it.epoch.max(it.beat) < u64::MAX) else {
            let text = format!(
                "the store's record {} is not that of a node: remove or correct it",
                entry.key
            );
            return Err(StoreError::Refused(text));
        };
        let same_identity = record.identity == table.identity;
        // Beats only grow. A backup may be restored with a higher revision than the store ever had.
        let of_ours = record.run == self.settings.run
            || table.runs_before.contains(&record.run)
            || table.run_found.as_ref() == Some(&record.run);
        let lacks_ours = of_ours && record.beat < table.beat;
        if same_identity && table.renewed && lacks_ours && !record.fenced && !table.restored {
            self.note_restored(&mut table);
        }
        if !table.renewed && record.run != self.settings.run {
            table.run_found = Some(record.run.clone());
        }
        let next = record.epoch.max(table.epoch) + 1;
        let (was, beat) = (Some(entry.revision.clone()), record.beat);
        if record.fenced {
            return Ok(RecordStanding::Ours { was, epoch: next, beat });
        }
        if same_identity && self.is_ours(&table, &record) {
            table.stranger = None;
            // The disk may contain less than the record, if it was restored from a copy: then what
            // it says does not count. After the store was restored, nothing is ours until it was
            // compared.
            let same = record.epoch == table.epoch && !table.restored;
            let epoch = if same { record.epoch } else { next };
            if record.forgotten && same {
                table
                    .notices
                    .push("an administrator gave this node up, but it is not gone".to_owned());
            }
            return Ok(RecordStanding::Ours { was, epoch, beat });
        }
        if same_identity && !table.renewed && table.stranger.is_none() {
            // This machine before it was restarted, or another one with a copy of its disk.
            match table.claimed.clone() {
                None => return Ok(RecordStanding::Claim { was: entry.revision, record }),
                Some((revision, since))
                    if revision == entry.revision || record.claim == self.settings.run =>
                {
                    let waited = now.saturating_sub(since);
                    if CLAIM_TIME <= waited {
                        return Ok(RecordStanding::Ours { was, epoch: next, beat });
                    }
                    table.claimed = Some((entry.revision, since));
                    return Err(self.claiming(CLAIM_TIME.saturating_sub(waited)));
                }
                Some(_) => table.claimed = None,
            }
        }
        // Another machine has this name, or this one lost its disk. The other's lease must expire.
        if table.trusted {
            table.notices.push(format!(
                "another machine is node {} too: this one no longer gives addresses",
                self.settings.node
            ));
        }
        (table.trusted, table.until) = (false, None);
        let since = match &table.stranger {
            Some((revision, since)) if *revision == entry.revision => *since,
            _ => {
                table.stranger = Some((entry.revision.clone(), now));
                now
            }
        };
        let wait = surely_over(lease_of(&record));
        if wait <= now.saturating_sub(since) {
            table.stranger = None;
            table.notices.push(format!(
                "took the place of another machine that was node {}, whose lease ran out",
                self.settings.node
            ));
            return Ok(RecordStanding::Ours { was, epoch: next, beat });
        }
        let left = wait.saturating_sub(now.saturating_sub(since)).as_secs() + 1;
        let node = &self.settings.node;
        Err(StoreError::Refused(if same_identity {
            format!(
                "another machine is node {node} too, with a copy of this one's disk or of its state: no addresses for {left} s, unless the other one renews its lease; give one of them another -node and remove what it keeps below -state"
            )
        } else {
            format!(
                "another machine is node {node} too, or this one lost its disk: no addresses for {left} s, unless the other one renews its lease"
            )
        }))
    }

    /// Whether a record with this identity was written by this process, or by an earlier one that
    /// this one certainly follows.
    fn is_ours(&self, table: &Table, record: &NodeRecord) -> bool {
        let last = record.beat == table.beat || record.beat == table.tried;
        if table.restored {
            // It shows an earlier state.
            return true;
        }
        if record.run.is_empty() {
            // Its writer does not know of runs: it wrote before us, or over what we wrote.
            return !table.renewed || last;
        }
        let before = !table.renewed && table.runs_before.contains(&record.run);
        before || (record.run == self.settings.run && last)
    }

    /// Checks whether another process wrote the node's record, and whether the store was restored.
    pub(super) fn watch_own(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        {
            let table = self.lock();
            let due = table.watched.is_none_or(|at| WATCH <= now.saturating_sub(at));
            if !due || !table.trusted {
                return Ok(());
            }
        }
        let key = node_key(&self.settings.node);
        let all = self.store.list(Kind::Node, Filter::Node(&self.settings.node))?;
        let found = all.into_iter().find(|entry| entry.key == key).map(|entry| entry.revision);
        self.look_back();
        {
            let mut table = self.lock();
            table.watched = Some(now);
            if table.revision.is_some() && table.revision == found {
                return Ok(());
            }
            table.revision = None;
        }
        self.renew()
    }

    /// Notices that the store was restored from a copy: then nothing is ours until it was compared.
    pub(super) fn look_back(&self) {
        let count = self.store.went_back();
        let mut table = self.lock();
        if table.went_back == count {
            return;
        }
        table.went_back = count;
        self.note_restored(&mut table);
    }

    /// Distrusts all that is known until it was compared with the store, which was restored.
    fn note_restored(&self, table: &mut Table) {
        table.restored = true;
        table.distrust();
        table.settling = Some(self.clock.now() + SETTLE);
        for block in table.blocks.values_mut() {
            block.revision = None;
        }
        table.notices.push(format!(
            "the store was put back to an earlier state: what this node has is compared, and no blocks are taken for {} s",
            SETTLE.as_secs()
        ));
    }

    /// Checks now whether the node's record is what this process wrote last.
    pub(super) fn look_at_own(&self) -> Result<(), Refusal> {
        self.lock().watched = None;
        self.watch_own().map_err(|error| not_now(&error))
    }

    /// Renews the lease if it is not known what the store's record of this node is.
    pub(super) fn know_own(&self) -> Result<(), Refusal> {
        if self.lock().revision.is_some() {
            return Ok(());
        }
        self.renew().map_err(|error| not_now(&error))
    }

    /// Returns how long no blocks are taken yet after the store was restored.
    pub(super) fn settling(&self) -> Option<Duration> {
        let now = self.clock.now();
        let until = self.lock().settling?;
        (now < until).then(|| until.saturating_sub(now))
    }

    /// Compares what belonged to another node, once all nodes had time to announce their blocks.
    pub(super) fn settle(&self) -> Result<(), StoreError> {
        let (ids, epoch) = {
            let table = self.lock();
            if table.settling.is_none_or(|until| self.clock.now() < until) {
                return Ok(());
            }
            let of = table.blocks.iter();
            let old = of.filter(|(_, block)| block.epoch != table.epoch && !block.returning);
            (old.map(|(id, _)| id.clone()).collect::<Vec<_>>(), table.epoch)
        };
        for id in ids {
            self.compare_block(&id, epoch)?;
        }
        self.lock().settling = None;
        Ok(())
    }

    /// Restores the parts of spaces that the store has lost: other nodes must not cut them
    /// differently.
    fn put_spaces_back(&self) -> Result<(), StoreError> {
        let spaces = self.lock().spaces.clone();
        for (space, known) in spaces {
            for _ in 0..TRIES {
                let key = space_key(&space);
                let found = self.store.get(&key)?;
                let mut record = match &found {
                    Some(entry) => record::read::<SpaceRecord>(&entry.value).unwrap_or_default(),
                    None => SpaceRecord { space: space.clone(), ..SpaceRecord::default() },
                };
                let missing = known.parts.iter().filter(|part| !record.parts.contains(part));
                let missing: Vec<_> = missing.cloned().collect();
                let is_whole = missing.is_empty();
                record.parts.extend(missing);
                let written = match &found {
                    _ if is_whole => Ok(()),
                    Some(entry) => {
                        let value = record::write(&record);
                        self.store.update(&key, &entry.revision, &value).map(|_| ())
                    }
                    None => self.store.create(&key, &record::write(&record)).map(|_| ()),
                };
                match written {
                    Ok(()) => {
                        self.lock().spaces.insert(space.clone(), record);
                        break;
                    }
                    Err(StoreError::Conflict) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Starts an epoch: nothing of the earlier one is ours until it was compared.
    fn begin_epoch(&self, epoch: u64) -> Result<(), StoreError> {
        let file = {
            let mut table = self.lock();
            table.trusted = false;
            table.until = None;
            table.epoch = epoch;
            drop(table);
            self.node_file(Duration::ZERO)
        };
        self.files.write_node(&file).map_err(|error| self.unwritten(&error))
    }

    /// Compares what is ours according to the disk with the store.
    fn compare(&self) -> Result<(), StoreError> {
        let (ids, epoch): (Vec<BlockId>, u64) = {
            let table = self.lock();
            (table.blocks.keys().cloned().collect(), table.epoch)
        };
        let restored = self.lock().restored;
        if restored {
            self.put_spaces_back()?;
        }
        for id in &ids {
            self.compare_block(id, epoch)?;
        }
        self.sweep_of(epoch)?;
        self.compare_sticky(epoch)?;
        let mut table = self.lock();
        if table.epoch == epoch {
            table.trusted = true;
            table.restored = false;
            table.released.clear();
        }
        Ok(())
    }

    fn compare_block(&self, id: &BlockId, epoch: u64) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let found = self.store.get(&id.key())?;
            let (returning, kept, addresses) = {
                let table = self.lock();
                let Some(block) = table.blocks.get(id) else { return Ok(()) };
                (block.returning, block.kept.clone(), table.addresses.clone())
            };
            let mut record = BlockRecord {
                space: id.space.clone(),
                block: id.block,
                node: self.settings.node.clone(),
                epoch,
                addresses,
                held: self.lock().holders_in(id),
                kept,
            };
            let written = match found {
                None if returning => return self.forget(id),
                // Our block was taken from us, and no node has it now.
                None => self.store.create(&id.key(), &record::write(&record)),
                Some(entry) => match record::read::<BlockRecord>(&entry.value) {
                    Some(theirs) if theirs.node == self.settings.node => {
                        record.kept.extend(theirs.kept.clone());
                        self.learn(id, &theirs);
                        self.store.update(&id.key(), &entry.revision, &record::write(&record))
                    }
                    // Its node may have taken it before the store was restored, and may still give
                    // it up.
                    Some(_) if self.settling().is_some() => return Ok(()),
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
        Err(StoreError::Away(format!("the record {} keeps changing", id.key())))
    }

    /// Learns from a record the holders of addresses with garbled files.
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
                let mut held = super::table::AddressHolder::new(&holder.network, &owner);
                held.written = true;
                table.insert(&name, held);
            }
        }
    }

    /// Drops a block that belongs to another node by now.
    pub(super) fn lose(&self, id: &BlockId, by: Option<&str>) -> Result<(), StoreError> {
        let lost = {
            let mut table = self.lock();
            table.blocks.remove(id);
            let lost = table.set_lost(id, true);
            let by = by.unwrap_or("an unknown node");
            table.notices.push(format!(
                "the block {} of the space {} now belongs to node {by}: this node was given up while it was away",
                id.block, id.space
            ));
            for (name, held) in &lost {
                table.notices.push(format!(
                    "node {by} may give the address {} of {held} to another container: start it again",
                    name.address
                ));
            }
            lost
        };
        self.files.remove_block(id).map_err(|error| self.unwritten(&error))?;
        self.mark(lost)
    }

    /// Drops a block that belongs to no node by now.
    pub(super) fn forget(&self, id: &BlockId) -> Result<(), StoreError> {
        self.lock().blocks.remove(id);
        self.files.remove_block(id).map_err(|error| self.unwritten(&error))
    }

    /// Records which addresses may have another owner as well.
    pub(super) fn mark(
        &self,
        changed: Vec<(HeldName, super::table::AddressHolder)>,
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

    /// Looks for blocks of ours that the disk does not contain: their claim was not answered, or
    /// the disk was lost.
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
                // A thread that takes it records it first.
                let table = self.lock();
                if table.blocks.contains_key(&id) || table.claiming.contains(&id) {
                    continue;
                }
                // The store was restored: a block that the disk does not contain was returned
                // since, and may be another node's.
                if table.restored && theirs.epoch != 0 && table.held_in(&id).next().is_none() {
                    drop(table);
                    match self.store.delete(&id.key(), &entry.revision) {
                        Ok(()) | Err(StoreError::Conflict) => continue,
                        Err(error) => return Err(error),
                    }
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
        let addresses = self.lock().addresses.clone();
        let record = BlockRecord { epoch, addresses, ..theirs };
        let revision = match self.store.update(&id.key(), was, &record::write(&record)) {
            Ok(revision) => revision,
            // The next sweep looks at it again.
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
            self.lock().insert(&name, super::table::AddressHolder::read(file));
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
