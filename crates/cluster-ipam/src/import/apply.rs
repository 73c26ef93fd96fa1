//! Writes the import.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Plan, SkippedAllocation};
use crate::record::{self, BlockId, BlockRecord, SpaceRecord, space_key};
use crate::store::{Store, StoreError};

/// How often to retry writing a space's record after another writer changed it.
const TRIES: usize = 16;

/// What [`apply`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ImportReport {
    /// How many addresses were imported.
    pub taken: usize,
    /// How many had been imported before.
    pub known: usize,
    /// What could not be imported because it has an owner by now.
    pub refused: Vec<SkippedAllocation>,
}

/// Writes the plan. What an earlier run wrote is left unchanged, so that the import can be
/// repeated.
///
/// # Errors
/// [`StoreError`]: what was done is done; do it again.
pub fn apply(store: &dyn Store, plan: &Plan) -> Result<ImportReport, StoreError> {
    let mut applied = ImportReport::default();
    let mut cut = BTreeMap::new();
    for space in &plan.spaces {
        cut.insert(space.space.as_str(), write_space(store, space)?);
    }
    for block in &plan.blocks {
        let refused = |why: String| SkippedAllocation {
            of: block.space.clone(),
            address: Some(block.block.addr()),
            why,
        };
        let is_alone =
            cut.get(block.space.as_str()).and_then(|space| space.block_of(block.block.addr()));
        if is_alone != Some(block.block) {
            applied.refused.push(refused(format!(
                "the space {} has other block sizes: netwrightd gave addresses of it before the import",
                block.space
            )));
            continue;
        }
        let key = BlockId { space: block.space.clone(), block: block.block }.key();
        match store.create(&key, &record::write(block)) {
            Ok(_) => applied.taken += 1,
            Err(StoreError::Conflict) => {
                let found = store.get(&key)?;
                let found = found.and_then(|entry| record::read::<BlockRecord>(&entry.value));
                match found {
                    Some(theirs) if theirs.node == block.node && same_holders(&theirs, block) => {
                        applied.known += 1;
                    }
                    Some(theirs) => applied.refused.push(refused(format!(
                        "node {} has the block {} already",
                        theirs.node, theirs.block
                    ))),
                    None => applied.refused.push(refused("its record is not valid".to_owned())),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(applied)
}

fn same_holders(theirs: &BlockRecord, ours: &BlockRecord) -> bool {
    ours.held.iter().all(|(address, holder)| {
        let found = theirs.held.get(address);
        found.is_some_and(|found| {
            found.container == holder.container && found.ifname == holder.ifname
        })
    })
}

/// Cuts a space, as far as it is not cut yet.
fn write_space(store: &dyn Store, wanted: &SpaceRecord) -> Result<SpaceRecord, StoreError> {
    let key = space_key(&wanted.space);
    for _ in 0..TRIES {
        let found = store.get(&key)?;
        let (record, written) = match found {
            None => (wanted.clone(), store.create(&key, &record::write(wanted)).map(drop)),
            Some(entry) => {
                let Some(mut record) = record::read::<SpaceRecord>(&entry.value) else {
                    return Err(StoreError::Refused(format!(
                        "the record {key} is not that of a space"
                    )));
                };
                let before = record.parts.len();
                for part in &wanted.parts {
                    if !record.covers(&part.subnet) {
                        record.add(part.clone());
                    }
                }
                if record.parts.len() == before {
                    return Ok(record);
                }
                let value = record::write(&record);
                let written = store.update(&key, &entry.revision, &value).map(drop);
                (record, written)
            }
        };
        match written {
            Ok(()) => return Ok(record),
            Err(StoreError::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
    Err(StoreError::Away(format!("the record {key} keeps changing")))
}
