//! Which links, addresses, routes, neighbours and nexthop objects change in one namespace, object
//! by object.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::Socket;

use super::{MESSAGE, NETLINK_NETFILTER, NETLINK_ROUTE, NFT_GROUP, drain, of_filter, open};
use crate::bpf::{self, Instruction, jump, step};
use crate::netlink::NetlinkError;
use crate::route::{
    AF_UNSPEC, Address, Link, Neighbour, NexthopObject, Route, RouteSocket, VxlanFdb,
};
use crate::wire::Message;

/// `linux include/uapi/linux/rtnetlink.h` RTNLGRP_LINK, _NEIGH, _IPV4_IFADDR, _IPV4_ROUTE,
/// _IPV6_IFADDR, _IPV6_ROUTE, _NEXTHOP.
const GROUPS: [u32; 7] = [1, 3, 5, 7, 9, 11, 32];
/// `linux include/uapi/linux/rtnetlink.h`: the first type of each kind of object, RTM_NEW*. RTM_DEL*
/// is the number after it.
const NEW_TYPES: [u16; 5] = [NEWLINK, 20, 24, NEWNEIGH, 104];
const NEWLINK: u16 = 16;
const NEWNEIGH: u16 = 28;
/// Offsets into a message (`man 7 netlink` struct nlmsghdr, `man 7 rtnetlink` struct ndmsg).
const NLMSG_TYPE: u32 = 4;
const NLMSG_PID: u32 = 12;
const NDM_IFINDEX: u32 = 16 + 4;
/// How many links and sockets the kernel's filter distinguishes: a jump reaches 255 instructions.
const FILTERED: usize = 64;

/// How much may be queued for us: the kernel reports each forwarding entry of a tunnel also to the
/// process that made it, and thousands of nodes have two each. Best effort.
const RECEIVE_BUFFER: usize = 32 << 20;

/// An object that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Object {
    /// A link.
    Link(Box<Link>),
    /// An address of a link.
    Address(Address),
    /// A route.
    Route(Box<Route>),
    /// A neighbour. A change of what is known about it counts too.
    Neighbour(Neighbour),
    /// A forwarding entry of a VXLAN tunnel.
    VxlanFdb(VxlanFdb),
    /// A nexthop object.
    Nexthop(NexthopObject),
}

/// What happened to an object.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObjectEvent {
    /// It was created, replaced or changed; this is what it was then.
    Changed(Object),
    /// It was removed; this is what it was.
    Removed(Object),
    /// A table, chain, rule, set or element of the packet filter was deleted.
    FilterRemoved,
    /// Some events were lost: look at everything.
    Lost,
}

/// Two sockets: one for events of links, addresses, routes, neighbours, forwarding entries of
/// tunnels and nexthop objects, one for removals from the packet filter, of one namespace.
///
/// An event says what an object was when it was sent. Events may come late and be lost, so a
/// listener reads the state before it changes anything.
///
/// **What the kernel does not report:** when a link goes down, its IPv4 routes, its nexthop objects
/// and the routes that refer to them vanish without a message; the only one is the link's
/// ([`Object::Link`], [`Link::up`] false). IPv4 routes also vanish silently with a nexthop object
/// or a link that is removed, and with the address that they have as their source. Treat a link
/// that is down or gone as the removal of everything that leaves by it.
///
/// A listener that reads everything reads links first, then nexthop objects, then routes. If one of
/// them is removed meanwhile, its event tells of an object that was read; read in another order, it
/// may have been found gone while its routes were found there.
///
/// ```no_run
/// use kernel::events::{Object, ObjectEvent, ObjectListener};
/// use kernel::route::RouteSocket;
///
/// let netlink = RouteSocket::open()?;
/// let mut listener = ObjectListener::open()?;
/// listener.ignore(&netlink)?;
/// // … once one of its descriptors is readable:
/// for event in listener.heard()? {
///     match event {
///         ObjectEvent::Lost => { /* look at everything */ }
///         ObjectEvent::Changed(Object::Link(link)) if !link.up() => { /* and at what it carried */ }
///         _ => {}
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ObjectListener {
    route: Socket,
    filter: Socket,
    buffer: Vec<u8>,
    ignored_ports: BTreeSet<u32>,
    neighbour_links: Option<BTreeSet<u32>>,
}

impl ObjectListener {
    /// Starts to listen in the calling thread's namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    ///
    /// # Privileges
    /// CAP_NET_ADMIN for the packet filter.
    pub fn open() -> Result<Self, NetlinkError> {
        Self::with_queue(RECEIVE_BUFFER)
    }

    /// The same, with this many bytes that may be queued: events beyond that are lost, and reported
    /// as [`ObjectEvent::Lost`].
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    pub fn with_queue(queue_bytes: usize) -> Result<Self, NetlinkError> {
        Ok(Self {
            route: open(NETLINK_ROUTE, &GROUPS, queue_bytes)?,
            filter: open(NETLINK_NETFILTER, &[NFT_GROUP], queue_bytes)?,
            buffer: Vec::with_capacity(MESSAGE),
            ignored_ports: BTreeSet::new(),
            neighbour_links: None,
        })
    }

    /// Leaves out, from now on, changes that were made through a socket: addresses, routes,
    /// neighbours, nexthop objects. The kernel does not say which socket changed a link or a
    /// forwarding entry of a tunnel. Idempotent; 64 sockets at most.
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    pub fn ignore(&mut self, socket: &RouteSocket) -> Result<(), NetlinkError> {
        let failed = |source| NetlinkError::Open { step: "getsockname", source };
        self.ignored_ports.insert(socket.port().map_err(failed)?);
        self.attach()
    }

    /// From now on reports neighbours and forwarding entries only of these links, instead of those
    /// of an earlier call: what is known about the neighbours of other links changes all the time.
    /// With more than 64 links nothing is left out.
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    pub fn only_neighbours_of(
        &mut self,
        links: impl IntoIterator<Item = u32>,
    ) -> Result<(), NetlinkError> {
        let links: BTreeSet<u32> = links.into_iter().collect();
        if self.neighbour_links.as_ref() == Some(&links) {
            return Ok(());
        }
        self.neighbour_links = Some(links);
        self.attach()
    }

    /// Returns the descriptors to poll.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.route.as_fd(), self.filter.as_fd()]
    }

    /// Returns the pending events without waiting, in the order of the kernel. One that repeats
    /// the one before it is left out.
    ///
    /// # Errors
    /// [`NetlinkError::Transfer`]. Then events may have been lost.
    pub fn heard(&mut self) -> Result<Vec<ObjectEvent>, NetlinkError> {
        let mut events = Vec::new();
        drain(&self.route, &mut self.buffer, ObjectEvent::Lost, of_object, |event| {
            // Only neighbours: comparing each with all would cost a square.
            if events.last() != Some(&event) {
                events.push(event);
            }
        })?;
        let of_filter =
            |message: &Message<'_>| of_filter(message).map(|_| ObjectEvent::FilterRemoved);
        drain(&self.filter, &mut self.buffer, ObjectEvent::Lost, of_filter, |event| {
            if events.last() != Some(&event) {
                events.push(event);
            }
        })?;
        Ok(events)
    }

    fn attach(&self) -> Result<(), NetlinkError> {
        let program = program(&self.ignored_ports, self.neighbour_links.as_ref());
        bpf::attach(self.route.as_fd(), &program)
            .map_err(|errno| NetlinkError::Open { step: "SO_ATTACH_FILTER", source: errno.into() })
    }
}

/// Reads an event; `None` if the message is about something else.
pub(crate) fn of_object(message: &Message<'_>) -> Option<ObjectEvent> {
    let new = message.kind & !1;
    if !NEW_TYPES.contains(&new) {
        return None;
    }
    let as_new = Message { kind: new, ..*message };
    let object = match new {
        // A bridge reports its ports with messages of its own family: a port that leaves it, as a
        // link that was removed.
        NEWLINK if message.body.first() != Some(&AF_UNSPEC) => None,
        NEWLINK => Link::decode(&as_new).map(|link| Object::Link(Box::new(link))),
        20 => Address::decode(&as_new).map(Object::Address),
        24 if Route::is_cached(&as_new) => None,
        24 => Route::decode(&as_new).map(|route| Object::Route(Box::new(route))),
        NEWNEIGH => Neighbour::decode(&as_new)
            .map(Object::Neighbour)
            .or_else(|| VxlanFdb::decode(&as_new).map(Object::VxlanFdb)),
        _ => NexthopObject::decode(&as_new).map(Object::Nexthop),
    }?;
    let removed = message.kind != new;
    Some(if removed { ObjectEvent::Removed(object) } else { ObjectEvent::Changed(object) })
}

/// The program that leaves out the messages that the listener does not want. A datagram to a
/// listener has one message.
fn program(ports: &BTreeSet<u32>, links: Option<&BTreeSet<u32>>) -> Vec<Instruction> {
    // Values are stored in the byte order of the machine, and loaded as if in that of the network.
    let loaded = |value: u32| u32::from_be_bytes(value.to_ne_bytes());
    let loaded_half = |value: u16| u32::from(u16::from_be_bytes(value.to_ne_bytes()));
    let (keep, drop) = (step(bpf::RETURN, u32::MAX), step(bpf::RETURN, 0));
    let mut program = vec![step(bpf::LOAD_WORD, NLMSG_PID)];
    for port in ports.iter().take(FILTERED) {
        program.extend([jump(bpf::JUMP_IF_EQUAL, loaded(*port), 0, 1), drop]);
    }
    if let Some(links) = links.filter(|links| links.len() <= FILTERED) {
        program.extend([
            step(bpf::LOAD_HALF, NLMSG_TYPE),
            jump(bpf::JUMP_IF_EQUAL, loaded_half(NEWNEIGH), 2, 0),
            jump(bpf::JUMP_IF_EQUAL, loaded_half(NEWNEIGH + 1), 1, 0),
            keep,
            step(bpf::LOAD_WORD, NDM_IFINDEX),
        ]);
        for link in links {
            program.extend([jump(bpf::JUMP_IF_EQUAL, loaded(*link), 0, 1), keep]);
        }
        program.push(drop);
    } else {
        program.push(keep);
    }
    program
}
