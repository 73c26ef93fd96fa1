//! A table in the kernel.

use kernel::netlink::NetlinkError;
use kernel::netns::Netns;
use kernel::nft::{Batch, NftError, NftSocket, TableRef};

use super::TableState;
use crate::close::LateSocket;
use crate::error::FirewallError;
use crate::tables::TablesError;

/// One table of ours in one network namespace. There is no lock here.
#[derive(Debug)]
pub(crate) struct KernelTable {
    name: TableRef,
    socket: LateSocket,
}

impl KernelTable {
    /// Opens a socket in the caller's network namespace. Creates nothing.
    ///
    /// **Privileges**: `CAP_NET_ADMIN` there.
    ///
    /// # Errors
    /// [`FirewallError::Open`].
    pub(crate) fn open(name: TableRef) -> Result<Self, FirewallError> {
        LateSocket::open().map(|socket| KernelTable { name, socket })
    }

    /// Opens a socket in another network namespace. Creates nothing.
    ///
    /// # Errors
    /// [`FirewallError::Open`].
    pub(crate) fn open_in(netns: &Netns, name: TableRef) -> Result<Self, FirewallError> {
        LateSocket::open_in(netns).map(|socket| KernelTable { name, socket })
    }

    /// Says whether there is a table at all.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel does not answer.
    pub(crate) fn exists(&mut self) -> Result<bool, FirewallError> {
        let found = self.socket.ask().get_table(&self.name);
        found.map(|table| table.is_some()).map_err(|error| self.unread(error))
    }

    /// Reads the whole table. The cost grows with the number of rules and elements.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel does not answer.
    pub(crate) fn read(&mut self) -> Result<TableState, FirewallError> {
        let found = TableState::read(self.socket.ask(), &self.name);
        found.map_err(|error| self.unread(error))
    }

    /// Commits a transaction.
    ///
    /// # Errors
    /// The kernel's; nothing has changed then. [`failed`](Self::failed) says what failed.
    pub(crate) fn commit(&mut self, batch: &Batch) -> Result<(), NftError> {
        self.socket.commit(batch)
    }

    /// Removes the table with everything in it. Success when it is gone already.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel refuses.
    pub(crate) fn remove(&mut self) -> Result<(), FirewallError> {
        let mut batch = Batch::new();
        batch.delete_table(&self.name);
        match self.commit(&batch) {
            Err(error) if !error.is_not_found() => Err(self.failed(error)),
            _ => Ok(()),
        }
    }

    /// Returns the socket, for queries.
    pub(crate) fn ask(&mut self) -> &mut NftSocket {
        self.socket.ask()
    }

    /// Says that the table could not be read.
    pub(crate) fn unread(&self, error: NetlinkError) -> FirewallError {
        TablesError::read(format_args!("table {}", self.name), error).into()
    }

    /// Says that the table could not be changed.
    pub(crate) fn failed(&self, error: NftError) -> FirewallError {
        TablesError::change(format_args!("table {}", self.name), error).into()
    }
}
