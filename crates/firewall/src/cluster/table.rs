//! The table in the kernel.

use kernel::netlink::NetlinkError;
use kernel::nft::{Batch, NftError};

use super::{Change, ClusterFilter, Difference, layout, state};
use crate::close::LateSocket;
use crate::declared::TableState;
use crate::error::FirewallError;
use crate::tables::TablesError;

/// The table `inet netwright-routing` of the network namespace in which the caller opened it.
///
/// One process at a time may use it: there is no lock.
#[derive(Debug)]
pub struct ClusterTable {
    socket: LateSocket,
}

impl ClusterTable {
    /// Opens a socket in the caller's network namespace. Creates nothing.
    ///
    /// **Privileges**: `CAP_NET_ADMIN` there.
    ///
    /// # Errors
    /// [`FirewallError::Open`].
    pub fn open() -> Result<Self, FirewallError> {
        LateSocket::open()
            .map(|socket| ClusterTable { socket })
            .map_err(|error| FirewallError::Open(Box::new(error)))
    }

    /// Says whether there is a table at all.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel does not answer.
    pub fn exists(&mut self) -> Result<bool, FirewallError> {
        let found = self.socket.ask().get_table(&layout::table());
        found.map(|table| table.is_some()).map_err(unread)
    }

    /// Compares the kernel with a filter. The cost grows with the number of elements.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel does not answer.
    pub fn observe(&mut self, filter: &ClusterFilter) -> Result<Difference, FirewallError> {
        let found = TableState::read(self.socket.ask(), &layout::table()).map_err(unread)?;
        Ok(state::difference(&found, filter))
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
        match self.commit(difference.repair()) {
            // Another program changed the table between our look and our change.
            Err(error) if is_another_table(&error) => self.commit(&filter.batch()),
            other => other,
        }
        .map_err(failed)?;
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
        match self.commit(&filter.change(change)) {
            Ok(()) => Ok(None),
            Err(error) if is_another_table(&error) => self.bring(filter).map(Some),
            Err(error) => Err(failed(error)),
        }
    }

    /// Removes the table with everything in it. Success when it is gone already.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel refuses.
    pub fn remove(&mut self) -> Result<(), FirewallError> {
        let mut batch = Batch::new();
        batch.delete_table(&layout::table());
        match self.commit(&batch) {
            Err(error) if !error.is_not_found() => Err(failed(error)),
            _ => Ok(()),
        }
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), NftError> {
        for operation in batch.operations() {
            tracing::debug!(%operation, "nftables");
        }
        self.socket.commit(batch)
    }
}

/// Says whether a transaction failed because the table is not what it was planned for.
fn is_another_table(error: &NftError) -> bool {
    error.is_not_found() || error.is_exists()
}

fn unread(error: NetlinkError) -> FirewallError {
    FirewallError::Tables(TablesError {
        operation: format!("read table {}", layout::table()),
        absent: error.is_not_found(),
        source: Box::new(error),
    })
}

fn failed(error: NftError) -> FirewallError {
    FirewallError::Tables(TablesError {
        operation: format!("change table {}", layout::table()),
        absent: error.is_not_found(),
        source: Box::new(error),
    })
}
