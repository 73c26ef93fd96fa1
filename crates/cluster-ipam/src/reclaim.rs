//! Takes back the blocks of nodes that are gone.
//!
//! A node is given up when it is known to be gone (its object was deleted, or an administrator said
//! so) *and* its lease has certainly expired: its record was seen unchanged for longer than the
//! lease, by a clock that only counts. Then its record is fenced by compare-and-swap: a renewal on
//! its way fails, and a renewal that was faster makes the fencing fail. Only then are its blocks
//! removed, and its record last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::node::{Clock, lease_of, surely_over};
use crate::record::{self, BlockRecord, NodeRecord, node_key};
use crate::store::{Filter, Kind, Revision, Store, StoreError};

/// Takes over from nodes that no longer look after their blocks.
#[derive(Debug)]
pub struct Reclaimer {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    /// The revision in which a node's record was seen, and since when.
    seen: BTreeMap<String, (Revision, Duration)>,
}

/// What was reclaimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReclaimReport {
    /// The node.
    pub node: String,
    /// How many of its blocks are free.
    pub blocks: usize,
}

impl Reclaimer {
    /// Starts to watch nodes.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Reclaimer { store, clock, seen: BTreeMap::new() }
    }

    /// Looks once at every node except `me`, and takes back what may be taken back.
    ///
    /// # Errors
    /// [`StoreError`]: what was not done is done next time.
    pub fn look(&mut self, me: &str) -> Result<Vec<ReclaimReport>, StoreError> {
        let records = self.store.list(Kind::Node, Filter::All)?;
        let now = self.clock.now();
        let mut nodes = BTreeMap::new();
        for entry in records {
            let Some(node) = record::read::<NodeRecord>(&entry.value) else { continue };
            if node_key(&node.node) != entry.key {
                continue;
            }
            let name = node.node.clone();
            match self.seen.get(&name) {
                Some((revision, _)) if *revision == entry.revision => {}
                _ => {
                    self.seen.insert(name.clone(), (entry.revision.clone(), now));
                }
            }
            nodes.insert(name, (node, entry.revision));
        }
        self.seen.retain(|node, _| nodes.contains_key(node));
        let mut done = Vec::new();
        for (name, (node, revision)) in nodes {
            if name == me {
                continue;
            }
            let since = self.seen.get(&name).map_or(now, |(_, since)| *since);
            let over = surely_over(lease_of(&node)) <= now.saturating_sub(since);
            if !node.fenced {
                if !over || !(node.forgotten || self.store.is_gone(&name)?) {
                    continue;
                }
                let fenced = NodeRecord { fenced: true, ..node.clone() };
                match self.store.update(&node_key(&name), &revision, &record::write(&fenced)) {
                    Ok(_) => {}
                    // The node lives, or another process does this.
                    Err(StoreError::Conflict) => continue,
                    Err(error) => return Err(error),
                }
            }
            done.push(self.clear(&name, node.epoch)?);
        }
        Ok(done)
    }

    /// Looks for blocks of nodes that have no record and are known to be gone: their claim came
    /// late, or they were imported. The next look takes those blocks back.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn look_for_orphans(&self) -> Result<(), StoreError> {
        let mut nodes = BTreeSet::new();
        for entry in self.store.list(Kind::Block, Filter::All)? {
            let block = record::read::<BlockRecord>(&entry.value);
            nodes.extend(block.map(|block| block.node).filter(|node| !node.is_empty()));
        }
        for node in nodes {
            if self.store.get(&node_key(&node))?.is_none() && self.store.is_gone(&node)? {
                fence_unknown(&*self.store, &node)?;
            }
        }
        Ok(())
    }

    /// Removes the blocks of a fenced node, and its record.
    fn clear(&self, name: &str, epoch: u64) -> Result<ReclaimReport, StoreError> {
        let mut blocks = 0;
        for entry in self.store.list(Kind::Block, Filter::Node(name))? {
            let Some(block) = record::read::<BlockRecord>(&entry.value) else { continue };
            // A block of a later epoch belongs to a node that came back.
            if block.node != name || epoch < block.epoch {
                continue;
            }
            // The next owner of the block keeps the addresses that pods keep in it.
            let done = if block.kept.is_empty() {
                self.store.delete(&entry.key, &entry.revision)
            } else {
                let (addresses, held) = (Vec::new(), BTreeMap::new());
                let free = BlockRecord { node: String::new(), epoch: 0, addresses, held, ..block };
                let value = record::write(&free);
                self.store.update(&entry.key, &entry.revision, &value).map(|_| ())
            };
            match done {
                Ok(()) => blocks += 1,
                Err(StoreError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        let key = node_key(name);
        if let Some(entry) = self.store.get(&key)?
            && record::read::<NodeRecord>(&entry.value)
                .is_some_and(|node| node.fenced && node.epoch == epoch)
        {
            match self.store.delete(&key, &entry.revision) {
                Ok(()) | Err(StoreError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ReclaimReport { node: name.to_owned(), blocks })
    }
}

/// Declares that a node will not come back: its blocks are taken back once its lease has expired,
/// unless it renews it.
///
/// Returns how long that takes, or `None` when the node is unknown. A node with blocks and without
/// a lease has nothing that could expire.
///
/// # Errors
/// [`StoreError`].
pub fn forget(store: &dyn Store, node: &str) -> Result<Option<Duration>, StoreError> {
    let key = node_key(node);
    loop {
        let Some(entry) = store.get(&key)? else {
            return Ok(fence_unknown(store, node)?.then_some(Duration::ZERO));
        };
        let Some(found) = record::read::<NodeRecord>(&entry.value) else {
            return Err(StoreError::Refused(format!("the record {key} is not that of a node")));
        };
        let wait = surely_over(lease_of(&found));
        if found.forgotten || found.fenced {
            return Ok(Some(wait));
        }
        let forgotten = NodeRecord { forgotten: true, ..found };
        match store.update(&key, &entry.revision, &record::write(&forgotten)) {
            Ok(_) => return Ok(Some(wait)),
            Err(StoreError::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Fences a node without a record if blocks of it exist; says whether it did.
///
/// The blocks are listed first. A node that starts meanwhile writes its record before it takes a
/// block: then a record exists, and this does nothing.
fn fence_unknown(store: &dyn Store, node: &str) -> Result<bool, StoreError> {
    let all = store.list(Kind::Block, Filter::Node(node))?;
    let blocks = all.iter().filter_map(|entry| record::read::<BlockRecord>(&entry.value));
    let Some(epoch) = blocks.filter(|block| block.node == node).map(|block| block.epoch).max()
    else {
        return Ok(false);
    };
    let fenced = NodeRecord {
        node: node.to_owned(),
        identity: String::new(),
        epoch,
        beat: 0,
        lease_ms: 0,
        fenced: true,
        forgotten: true,
        run: String::new(),
        claim: String::new(),
    };
    match store.create(&node_key(node), &record::write(&fenced)) {
        Ok(_) => Ok(true),
        Err(StoreError::Conflict) => Ok(false),
        Err(error) => Err(error),
    }
}
