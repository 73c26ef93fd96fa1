//! The table in the kernel.

use kernel::nft::NftError;

use super::{Change, ClusterFilter, Difference, layout, state};
use crate::declared::KernelTable;
use crate::error::FirewallError;

/// The table `inet netwright-routing` of the network namespace in which the caller opened it.
///
/// One process at a time may use it: there is no lock.
#[derive(Debug)]
pub struct ClusterTable {
    table: KernelTable,
}

impl ClusterTable {
    /// Opens a socket in the caller's network namespace. Creates nothing.
    ///
    /// **Privileges**: `CAP_NET_ADMIN` there.
    ///
    /// # Errors
    /// [`FirewallError::Open`].
    pub fn open() -> Result<Self, FirewallError> {
        KernelTable::open(layout::table()).map(|table| ClusterTable { table })
    }

    /// Says whether there is a table at all.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel does not answer.
    pub fn exists(&mut self) -> Result<bool, FirewallError> {
        self.table.exists()
    }

    /// Compares the kernel with a filter. The cost grows with the number of elements.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel does not answer.
    pub fn observe(&mut self, filter: &ClusterFilter) -> Result<Difference, FirewallError> {
        Ok(state::difference(&self.table.read()?, filter))
    }

    /// Brings the kernel to a filter: finds what is different, and repairs it in one transaction.
    /// Returns what it found.
    ///
    /// **Idempotence**: nothing is written if nothing is different.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel refuses; nothing has changed then.
    pub fn bring(&mut self, filter: &ClusterFilter) -> Result<Difference, FirewallError> {
        let difference = self.observe(filter)?;
        match self.table.commit(difference.repair()) {
            // Another program changed the table between our look and our change.
            Err(error) if is_another_table(&error) => self.table.commit(&filter.batch()),
            other => other,
        }
        .map_err(|error| self.table.failed(error))?;
        Ok(difference)
    }

    /// Makes a change in a filter and in the kernel, whose table must be what the filter was. If
    /// another program has changed the table meanwhile, it is brought to the filter. Returns what
    /// was different then.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel refuses. The filter has the change, the kernel has
    /// not: [`ClusterTable::bring`] makes up for it.
    pub fn change(
        &mut self,
        filter: &mut ClusterFilter,
        change: &Change,
    ) -> Result<Option<Difference>, FirewallError> {
        match self.table.commit(&filter.change(change)) {
            Ok(()) => Ok(None),
            Err(error) if is_another_table(&error) => self.bring(filter).map(Some),
            Err(error) => Err(self.table.failed(error)),
        }
    }

    /// Removes the table with everything in it. Success when it is gone already.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel refuses.
    pub fn remove(&mut self) -> Result<(), FirewallError> {
        self.table.remove()
    }
}

/// Says whether a transaction failed because the table is not what it was planned for.
fn is_another_table(error: &NftError) -> bool {
    error.is_not_found() || error.is_exists()
}
