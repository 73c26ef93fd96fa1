//! Reports that something has changed, but not what.

use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::Socket;

use super::table::TABLE;
use super::{
    MESSAGE, NETLINK_NETFILTER, NETLINK_ROUTE, NFT_GROUP, RECEIVE_BUFFER, ROUTE_GROUPS, drain, open,
};
use crate::netlink::NetlinkError;
use crate::nft::NFGENMSG;
use crate::wire::Message;

/// `linux include/uapi/linux/netfilter/nf_tables.h` NFT_MSG_NEWGEN: the end of a change whose parts
/// were reported before.
const NEWGEN: u16 = 15;

/// Two sockets that hear when anything changes: links, addresses, routes, rules, queueing
/// disciplines, switches of interfaces, and the packet filter; here and in every namespace that has
/// an ID here (those of containers with a link from here).
///
/// ```no_run
/// use kernel::events::ChangeListener;
/// let mut listener = ChangeListener::open("my-own-")?;
/// // … once one of its descriptors is readable:
/// if listener.heard()? { /* look at everything */ }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ChangeListener {
    route: Socket,
    filter: Socket,
    buffer: Vec<u8>,
    ignored: String,
}

impl ChangeListener {
    /// Starts to listen in the calling thread's namespace. Tables of the packet filter whose names
    /// begin with `ignored` do not count: a caller that makes such tables would hear itself.
    ///
    /// **Privileges**: `CAP_NET_ADMIN` for the packet filter; `CAP_NET_BROADCAST` for other
    /// namespaces, without which only changes of this one are heard.
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    pub fn open(ignored: &str) -> Result<Self, NetlinkError> {
        let route = open(NETLINK_ROUTE, &ROUTE_GROUPS, RECEIVE_BUFFER)?;
        let filter = open(NETLINK_NETFILTER, &[NFT_GROUP], RECEIVE_BUFFER)?;
        for socket in [&route, &filter] {
            // Without the right for it, only this namespace is heard.
            let _ = socket.set_listen_all_namespaces(true);
        }
        let buffer = Vec::with_capacity(MESSAGE);
        Ok(ChangeListener { route, filter, buffer, ignored: ignored.to_owned() })
    }

    /// Returns the descriptors to poll.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.route.as_fd(), self.filter.as_fd()]
    }

    /// Takes note of all that is pending, without waiting, and says whether something changed.
    /// Events that were lost are a change.
    ///
    /// # Errors
    /// [`NetlinkError::Transfer`].
    pub fn heard(&mut self) -> Result<bool, NetlinkError> {
        let mut changed = false;
        drain(&self.route, &mut self.buffer, (), |_| Some(()), |()| changed = true)?;
        let ignored = self.ignored.as_str();
        let read = |message: &Message<'_>| counts(message, ignored).then_some(());
        drain(&self.filter, &mut self.buffer, (), read, |()| changed = true)?;
        Ok(changed)
    }
}

fn counts(message: &Message<'_>, ignored: &str) -> bool {
    if message.kind & 0xff == NEWGEN {
        return false;
    }
    let table = message.attributes(NFGENMSG).find(|attribute| attribute.kind == TABLE);
    ignored.is_empty() || !table.is_some_and(|table| table.text().starts_with(ignored))
}
