//! What other programs remove from one table of the packet filter.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::Socket;

use super::{MESSAGE, NETLINK_NETFILTER, NFT_GROUP, NFT_REMOVALS, drain_from, open};
use crate::netlink::NetlinkError;
use crate::nft::NFGENMSG;
use crate::wire::Message;

/// `linux include/uapi/linux/netfilter/nf_tables.h` NFT_MSG_DELTABLE.
const DELTABLE: u16 = 2;
/// The same: NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, NFTA_SET_TABLE,
/// NFTA_SET_ELEM_LIST_TABLE are all of this number.
pub(super) const TABLE: u16 = 1;

/// How much may be queued for us: the changes of all tables of a busy node. Best effort.
const RECEIVE_BUFFER: usize = 8 << 20;

/// What happened to a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum TableEvent {
    /// It was deleted, as `nft flush ruleset` does.
    Deleted,
    /// A chain, rule, set or element of it was deleted.
    Reduced,
    /// Some events were lost: look at it.
    Lost,
}

/// A socket that hears when another program removes something from the tables of one name, in all
/// families of one namespace.
///
/// It does not hear of additions.
///
/// ```no_run
/// use kernel::events::{TableEvent, TableListener};
/// use kernel::nft::NftSocket;
///
/// let nft = NftSocket::open()?;
/// let mut listener = TableListener::open("mine")?;
/// listener.ignore(nft.port()?);
/// // … once its descriptor is readable:
/// if listener.heard()?.contains(&TableEvent::Deleted) { /* make it again */ }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TableListener {
    socket: Socket,
    buffer: Vec<u8>,
    table: String,
    ignored_ports: BTreeSet<u32>,
}

impl TableListener {
    /// Starts to listen in the calling thread's namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    ///
    /// # Privileges
    /// CAP_NET_ADMIN.
    pub fn open(table: &str) -> Result<Self, NetlinkError> {
        Ok(TableListener {
            socket: open(NETLINK_NETFILTER, &[NFT_GROUP], RECEIVE_BUFFER)?,
            buffer: Vec::with_capacity(MESSAGE),
            table: table.to_owned(),
            ignored_ports: BTreeSet::new(),
        })
    }

    /// Leaves out, from now on, what is done through the socket of this number
    /// ([`NftSocket::port`](crate::nft::NftSocket::port)). Idempotent.
    pub fn ignore(&mut self, port: u32) {
        self.ignored_ports.insert(port);
    }

    /// Returns the descriptor to poll.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns what has happened, without waiting; each kind once.
    ///
    /// # Errors
    /// [`NetlinkError::Transfer`]. Then events may have been lost.
    pub fn heard(&mut self) -> Result<BTreeSet<TableEvent>, NetlinkError> {
        let mut events = BTreeSet::new();
        let (table, ignored) = (&self.table, &self.ignored_ports);
        let read = |port: u32, message: &Message<'_>| {
            if ignored.contains(&port) { None } else { of_table(message, table) }
        };
        drain_from(&self.socket, &mut self.buffer, TableEvent::Lost, read, |event| {
            events.insert(event);
        })?;
        Ok(events)
    }
}

pub(crate) fn of_table(message: &Message<'_>, table: &str) -> Option<TableEvent> {
    let kind = message.kind & 0xff;
    if !NFT_REMOVALS.contains(&kind) {
        return None;
    }
    let name = message.attributes(NFGENMSG).find(|attribute| attribute.kind == TABLE)?;
    if name.text() != table {
        return None;
    }
    Some(if kind == DELTABLE { TableEvent::Deleted } else { TableEvent::Reduced })
}
