//! Frees what a pod keeps.

use crate::record::{self, StickyRecord};
use crate::store::{Filter, Kind, Store, StoreError};

/// The result of freeing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReleaseOutcome {
    /// The addresses that are no longer kept.
    pub free: Vec<std::net::IpAddr>,
    /// Addresses that a container has: they stay.
    pub held: Vec<std::net::IpAddr>,
}

/// Frees the addresses that a pod keeps, except those that one of its containers has.
///
/// # Errors
/// [`StoreError`].
pub fn release(
    store: &dyn Store,
    namespace: &str,
    name: &str,
) -> Result<ReleaseOutcome, StoreError> {
    let mut released = ReleaseOutcome::default();
    for entry in store.list(Kind::Sticky, Filter::All)? {
        let Some(found) = record::read::<StickyRecord>(&entry.value) else { continue };
        if found.namespace != namespace || found.name != name {
            continue;
        }
        let done = match found.holder {
            Some(_) => Err(StoreError::Conflict),
            None => store.delete(&entry.key, &entry.revision),
        };
        match done {
            Ok(()) => released.free.extend(found.address),
            Err(StoreError::Conflict) => released.held.extend(found.address),
            Err(error) => return Err(error),
        }
    }
    Ok(released)
}
