//! Which links change in one namespace.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::Socket;

use super::{MESSAGE, NETLINK_ROUTE, drain, open, rtm};
use crate::netlink::NetlinkError;
use crate::wire::{self, Message};

/// `linux include/uapi/linux/rtnetlink.h` RTNLGRP_LINK.
const GROUP: u32 = 1;
/// Where the index is in a link's message (`man 7 rtnetlink` struct ifinfomsg).
const IFI_INDEX: usize = 4;

/// How much may be queued for us: a busy node's pods come and go. Best effort.
const RECEIVE_BUFFER: usize = 4 << 20;

/// What happened to links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LinkEvent {
    /// The link with this index was created, changed or removed, or became or is no longer a port.
    Changed(u32),
    /// Some events were lost: look at all links.
    Lost,
}

/// A socket that hears when links of one namespace change, and nothing else. A change of the settings
/// of a bridge counts too, if the bridge is up; a change of a sysctl does not.
///
/// ```no_run
/// use kernel::events::{LinkEvent, LinkListener};
///
/// let mut listener = LinkListener::open()?;
/// // … once its descriptor is readable:
/// if listener.heard()?.contains(&LinkEvent::Changed(7)) { /* read link 7 */ }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LinkListener {
    socket: Socket,
    buffer: Vec<u8>,
}

impl LinkListener {
    /// Starts to listen in the calling thread's namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(LinkListener {
            socket: open(NETLINK_ROUTE, &[GROUP], RECEIVE_BUFFER)?,
            buffer: Vec::with_capacity(MESSAGE),
        })
    }

    /// Returns the descriptor to poll.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns what has happened, without waiting; each link once.
    ///
    /// # Errors
    /// [`NetlinkError::Transfer`]. Then events may have been lost.
    pub fn heard(&mut self) -> Result<BTreeSet<LinkEvent>, NetlinkError> {
        let mut events = BTreeSet::new();
        drain(&self.socket, &mut self.buffer, LinkEvent::Lost, of_link, |event| {
            events.insert(event);
        })?;
        Ok(events)
    }
}

pub(crate) fn of_link(message: &Message<'_>) -> Option<LinkEvent> {
    if !matches!(message.kind, rtm::NEWLINK | rtm::DELLINK) {
        return None;
    }
    wire::u32_at(message.body, IFI_INDEX).map(LinkEvent::Changed)
}
