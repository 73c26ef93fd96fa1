//! What changes on this node, as the kernel reports it to listeners.
//!
//! An event does not say what the state is now: events may be lost, come late and come in bursts. A
//! listener that gets one must read the state.
//!
//! ```no_run
//! use kernel::events::{Event, Listener};
//! let mut listener = Listener::open()?;
//! // … once its descriptor is readable:
//! for event in listener.heard()? {
//!     if event == Event::Removed { /* look after everything */ }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Listener`] hears that something changed, in all namespaces. An [`ObjectListener`] hears
//! which object changed, in one namespace. A [`LinkListener`] hears which links change there. A
//! [`TableListener`] hears of one table of the packet filter. A [`ChangeListener`] hears of every
//! change, additions too.

mod changes;
mod links;
mod objects;
mod table;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::{Socket, SocketAddr};
use rustix::buffer::spare_capacity;
use rustix::io::Errno as SysErrno;
use rustix::net::{RecvFlags, sockopt};

use crate::netlink::NetlinkError;
use crate::wire::{self, Message};

pub use changes::ChangeListener;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use links::of_link;
pub use links::{LinkEvent, LinkListener};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use objects::of_object;
pub use objects::{Object, ObjectEvent, ObjectListener};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use table::of_table;
pub use table::{TableEvent, TableListener};

/// `man 7 netlink`.
const NETLINK_ROUTE: isize = 0;
const NETLINK_NETFILTER: isize = 12;
/// `linux include/uapi/linux/rtnetlink.h` RTNLGRP_LINK, _TC, _IPV4_IFADDR, _IPV4_ROUTE, _IPV4_RULE,
/// _IPV6_IFADDR, _IPV6_ROUTE, _IPV6_RULE, _IPV4_NETCONF, _IPV6_NETCONF.
const ROUTE_GROUPS: [u32; 10] = [1, 4, 5, 7, 8, 9, 11, 19, 24, 25];
/// `linux include/uapi/linux/netfilter/nfnetlink.h` NFNLGRP_NFTABLES.
const NFT_GROUP: u32 = 7;

/// `linux include/uapi/linux/rtnetlink.h` RTM_*.
mod rtm {
    pub(super) const NEWLINK: u16 = 16;
    pub(super) const DELLINK: u16 = 17;
    pub(super) const DELADDR: u16 = 21;
    pub(super) const DELROUTE: u16 = 25;
    pub(super) const DELRULE: u16 = 33;
    pub(super) const DELQDISC: u16 = 37;
    pub(super) const DELTFILTER: u16 = 45;
    pub(super) const NEWNETCONF: u16 = 80;
}

/// The header of a link's message (`man 7 rtnetlink` struct ifinfomsg), where its flags are, and
/// IFF_UP.
const IFINFOMSG: usize = 16;
const IFI_FLAGS: usize = 8;
const IFF_UP: u32 = 1;
/// `linux include/uapi/linux/if_link.h` IFLA_IFNAME.
const IFLA_IFNAME: u16 = 3;

/// `linux include/uapi/linux/netfilter/nf_tables.h` NFT_MSG_DELTABLE, _DELCHAIN, _DELRULE, _DELSET,
/// _DELSETELEM.
const NFT_REMOVALS: [u16; 5] = [2, 5, 8, 11, 14];

/// How much may be queued for us: all changes of a busy node in a few seconds. Best effort.
const RECEIVE_BUFFER: usize = 4 << 20;

/// The largest message of a group: the kernel's pages of one.
const MESSAGE: usize = 64 * 1024;

/// A change.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A link was created or changed, here or in another namespace.
    Link {
        /// Its name there.
        name: String,
        /// Whether it is up.
        up: bool,
    },
    /// A link, address, route, rule, queueing discipline or filter was deleted, here or in another
    /// namespace.
    Removed,
    /// A table, chain, rule, set or element of the packet filter was deleted.
    FilterRemoved,
    /// A sysctl of an interface, or of all interfaces, such as forwarding.
    Switch,
    /// Some events were lost.
    Lost,
}

/// Two sockets. One is for events of links, addresses, routes, rules and queueing disciplines, here
/// and in every namespace that has an ID here (those of containers with a link from here). The
/// other is for the packet filter of this namespace.
///
/// It keeps only its own namespace alive.
#[derive(Debug)]
pub struct Listener {
    route: Socket,
    filter: Socket,
    buffer: Vec<u8>,
    everywhere: bool,
}

impl Listener {
    /// Starts to listen in the calling thread's namespace.
    ///
    /// **Privileges**: `CAP_NET_ADMIN` for the packet filter; `CAP_NET_BROADCAST` for other
    /// namespaces, without which only events of this one arrive ([`Listener::is_everywhere`]).
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    pub fn open() -> Result<Self, NetlinkError> {
        let route = open(NETLINK_ROUTE, &ROUTE_GROUPS, RECEIVE_BUFFER)?;
        let filter = open(NETLINK_NETFILTER, &[NFT_GROUP], RECEIVE_BUFFER)?;
        let everywhere = route.set_listen_all_namespaces(true).is_ok();
        Ok(Listener { route, filter, buffer: Vec::with_capacity(MESSAGE), everywhere })
    }

    /// Says whether events of other namespaces arrive.
    #[must_use]
    pub fn is_everywhere(&self) -> bool {
        self.everywhere
    }

    /// Returns the descriptors to poll.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.route.as_fd(), self.filter.as_fd()]
    }

    /// Returns the pending events without waiting, equal ones once.
    ///
    /// # Errors
    /// [`NetlinkError::Transfer`].
    pub fn heard(&mut self) -> Result<Vec<Event>, NetlinkError> {
        let mut events = Vec::new();
        let mut tell = |event: Event| {
            if !events.contains(&event) {
                events.push(event);
            }
        };
        drain(&self.route, &mut self.buffer, Event::Lost, of_route, &mut tell)?;
        drain(&self.filter, &mut self.buffer, Event::Lost, of_filter, &mut tell)?;
        Ok(events)
    }
}

/// Opens a socket for multicast groups, for which so many bytes may be queued.
fn open(protocol: isize, groups: &[u32], queue: usize) -> Result<Socket, NetlinkError> {
    let failed = |step| move |source| NetlinkError::Open { step, source };
    let mut socket = Socket::new(protocol).map_err(failed("socket"))?;
    socket.bind(&SocketAddr::new(0, 0)).map_err(failed("bind"))?;
    for group in groups {
        socket.add_membership(*group).map_err(failed("NETLINK_ADD_MEMBERSHIP"))?;
    }
    // Only privileged processes may exceed the limit; otherwise the limit must do.
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, queue);
    Ok(socket)
}

/// Passes what is pending to `tell`, and `lost` where something is missing.
fn drain<E: Clone>(
    socket: &Socket,
    buffer: &mut Vec<u8>,
    lost: E,
    read: impl Fn(&Message<'_>) -> Option<E>,
    tell: impl FnMut(E),
) -> Result<(), NetlinkError> {
    drain_from(socket, buffer, lost, |_, message| read(message), tell)
}

/// Does the same, and passes on the socket through which a change was made.
fn drain_from<E: Clone>(
    socket: &Socket,
    buffer: &mut Vec<u8>,
    lost: E,
    read: impl Fn(u32, &Message<'_>) -> Option<E>,
    mut tell: impl FnMut(E),
) -> Result<(), NetlinkError> {
    loop {
        buffer.clear();
        match rustix::net::recv(socket, spare_capacity(buffer), RecvFlags::DONTWAIT) {
            Ok(_) => {
                let messages = wire::messages_from(buffer);
                messages.filter_map(|(port, message)| read(port, &message)).for_each(&mut tell);
            }
            Err(SysErrno::AGAIN) => return Ok(()),
            Err(SysErrno::INTR) => {}
            Err(SysErrno::NOBUFS) => tell(lost.clone()),
            Err(errno) => {
                return Err(NetlinkError::Transfer {
                    operation: "listen for events".to_owned(),
                    step: "receive",
                    source: io::Error::from(errno),
                });
            }
        }
    }
}

pub(crate) fn of_route(message: &Message<'_>) -> Option<Event> {
    Some(match message.kind {
        rtm::NEWLINK => {
            let name = message.attributes(IFINFOMSG).find(|found| found.kind == IFLA_IFNAME)?;
            let up = wire::u32_at(message.body, IFI_FLAGS)? & IFF_UP != 0;
            Event::Link { name: name.text(), up }
        }
        rtm::DELLINK
        | rtm::DELADDR
        | rtm::DELROUTE
        | rtm::DELRULE
        | rtm::DELQDISC
        | rtm::DELTFILTER => Event::Removed,
        rtm::NEWNETCONF => Event::Switch,
        _ => return None,
    })
}

pub(crate) fn of_filter(message: &Message<'_>) -> Option<Event> {
    NFT_REMOVALS.contains(&(message.kind & 0xff)).then_some(Event::FilterRemoved)
}
