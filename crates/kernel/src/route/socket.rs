//! The rtnetlink socket.

use std::fmt::Display;
use std::mem;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;

use rustix::thread::{MembarrierCommand, membarrier};

use super::bridge_vlan::{self, BridgeVlan};
use super::link::{Link, RTM_DELLINK, RTM_GETLINK, ifla};
use super::link_kind::header;
use super::{
    AF_INET, AF_UNSPEC, Address, ApplyError, Change, ClassInfo, Fdb, FilterInfo, IpFamily,
    LinkKind, LinkSettings, Neighbour, NewLink, NexthopFilter, NexthopObject, QdiscInfo, Route,
    RouteFilter, RouteProtocol, Rule, Scope, TcHandle, TickRate, VxlanFdb, address, neighbour,
    nexthop, routes, rule, tc,
};
use crate::netlink::{Errno, NetlinkError, Outcome, Request, Socket, nothing_if};
use crate::netns::Netns;
use crate::wire::{self, Attribute, Message, Writer};

/// `linux include/uapi/linux/netlink.h` NETLINK_ROUTE.
const NETLINK_ROUTE: isize = 0;
/// `linux include/uapi/linux/rtnetlink.h`: changes of links.
const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_IPV4_NETCONF: u32 = 24;
/// `linux include/uapi/linux/rtnetlink.h`, `netconf.h`.
const RTM_DELNETCONF: u16 = 81;
const NETCONFA_IFINDEX: u16 = 1;
/// `linux include/uapi/linux/rtnetlink.h`, `net_namespace.h`: the IDs of namespaces.
const RTM_NEWNSID: u16 = 88;
const RTM_GETNSID: u16 = 90;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
/// Size of `struct rtgenmsg`, with its padding.
const RTGENMSG: usize = 4;
/// Size of `struct netconfmsg`, with its padding.
const NETCONFMSG: usize = 4;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_ECHO: u16 = 8;
/// `linux include/uapi/linux/rtnetlink.h`: omits counters, which cost the kernel most of a reply.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;
/// How many changes one datagram carries: what a socket's buffers hold without being enlarged.
const MAX_IN_FLIGHT: usize = 128;
/// How often the kernel may take to free sockets: on a busy machine more than once, and a few tens of
/// milliseconds each time.
const GRACE_PERIODS: usize = 8;

/// The namespace of a veth's other end.
#[derive(Debug, Clone, Copy)]
enum OtherEnd {
    /// The socket's own.
    Here,
    /// Another one, which something keeps.
    Held,
    /// One that nothing keeps.
    Ending,
}

/// A blocking rtnetlink socket.
///
/// It keeps the namespace it was opened in, even if the thread leaves it: open it inside, use it
/// anywhere.
///
/// # Privileges
/// None for queries; changes need CAP_NET_ADMIN in the user namespace that owns the network
/// namespace.
#[derive(Debug)]
pub struct RouteSocket {
    socket: Socket,
}

impl RouteSocket {
    /// Returns the number by which the kernel names the socket in messages to listeners.
    pub(crate) fn port(&self) -> std::io::Result<u32> {
        self.socket.port()
    }

    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    pub fn open() -> Result<Self, NetlinkError> {
        Socket::open(NETLINK_ROUTE).map(|socket| Self { socket })
    }

    /// Opens a socket in another namespace, without leaving the thread there.
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    pub fn open_in(netns: &Netns) -> Result<Self, NetlinkError> {
        Socket::open_in(netns, NETLINK_ROUTE).map(|socket| Self { socket })
    }

    /// From now on every list has at most this many entries: for a container's namespace, whose
    /// user may make any number. [`RouteSocket::take_cut`] says whether there were more.
    pub fn set_most(&mut self, most: usize) {
        self.socket.set_most(most);
    }

    /// Says whether a list since the last call of this function left entries out.
    pub fn take_cut(&mut self) -> bool {
        self.socket.take_cut()
    }

    /// Looks a link up by name or alternative name; `None` if it does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`]; an impossible name (longer than 15 bytes) is refused with ERANGE.
    pub fn link_by_name(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        self.link(&format_args!("look up link {name:?}"), &|writer| encode_by_name(writer, name))
    }

    /// Looks a link up by index; `None` if it does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn link_by_index(&mut self, ifindex: u32) -> Result<Option<Link>, NetlinkError> {
        self.link(&format_args!("look up link {ifindex}"), &|writer| {
            writer.raw(&header(AF_UNSPEC, ifindex, 0, 0));
            writer.put_u32(ifla::EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        })
    }

    /// Returns the index of a link by its name or alternative name (of at most 15 bytes); `None` if
    /// it does not exist. It takes a microsecond: it waits for no lock, the kernel describes
    /// nothing, and it looks for no module. This is the only way to ask whether a name is free.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn link_index(&self, name: &str) -> Result<Option<u32>, NetlinkError> {
        self.socket.link_index(name, &format_args!("look up link {name:?}"))
    }

    /// Says whether the kernel is about to delete a veth that was read with this socket: see
    /// [`RouteSocket::ending`].
    ///
    /// # Errors
    /// Those of [`NetlinkError`]; EINVAL before kernel 4.20.
    pub fn is_ending(&mut self, link: &Link) -> Result<bool, NetlinkError> {
        Ok(!self.ending(&[link])?.is_empty())
    }

    /// Returns those of some veths, read with this socket, that the kernel has deleted or is about to
    /// delete, because the namespace of their other end has ended: no process is in that, and no
    /// descriptor, mount or socket keeps it. Until then, tens of milliseconds later, the other end
    /// still answers.
    ///
    /// A socket that was closed keeps its namespace until the kernel has freed it, which it does when
    /// no processor can be using it any more (RCU). So while a namespace is held, this waits for as
    /// many such moments as `GRACE_PERIODS`.
    ///
    /// # Errors
    /// Those of [`NetlinkError`]; EINVAL before kernel 4.20.
    pub fn ending<'l>(&mut self, links: &[&'l Link]) -> Result<Vec<&'l Link>, NetlinkError> {
        let (mut ending, mut held) = (Vec::new(), Vec::new());
        for link in links.iter().filter(|link| link.is_kind("veth")) {
            match self.other_end(link)? {
                OtherEnd::Ending => ending.push(*link),
                OtherEnd::Held => held.push(*link),
                OtherEnd::Here => {}
            }
        }
        for _ in 0..GRACE_PERIODS {
            // The kernel refuses where processors run without its clock (`nohz_full`).
            if held.is_empty() || membarrier(MembarrierCommand::Global).is_err() {
                break;
            }
            for link in mem::take(&mut held) {
                // Another namespace may have the number by now.
                let now = self.link_by_index(link.index)?;
                match now.map_or(Ok(OtherEnd::Ending), |now| self.other_end(&now))? {
                    OtherEnd::Ending => ending.push(link),
                    OtherEnd::Held => held.push(link),
                    OtherEnd::Here => {}
                }
            }
        }
        Ok(ending)
    }

    /// Asks for the namespace of a veth's other end.
    fn other_end(&mut self, link: &Link) -> Result<OtherEnd, NetlinkError> {
        let id = match link.link_netnsid {
            Some(id) => id,
            None if link.is_netnsid_withdrawn => return Ok(OtherEnd::Ending),
            None => return Ok(OtherEnd::Here),
        };
        let operation = format_args!("look up network namespace {id}");
        let body = |writer: &mut Writer| {
            writer.raw(&[0; RTGENMSG]);
            writer.put_u32(NETNSA_NSID, id.cast_unsigned());
        };
        let request = Request { operation: &operation, kind: RTM_GETNSID, flags: 0, body: &body };
        // The kernel finds no namespace that nothing holds (`linux net/core/net_namespace.c`
        // `get_net_ns_by_id`).
        let found =
            self.socket.get(&request, |message| (message.kind == RTM_NEWNSID).then_some(()));
        let is_held = nothing_if(found, &[Errno::NOENT])?.is_some();
        Ok(if is_held { OtherEnd::Held } else { OtherEnd::Ending })
    }

    /// Lists all links. The cost grows with their number: look single links up where possible.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        let body = |writer: &mut Writer| {
            writer.raw(&header(AF_UNSPEC, 0, 0, 0));
            writer.put_u32(ifla::EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        };
        let request =
            Request { operation: &"list links", kind: RTM_GETLINK, flags: 0, body: &body };
        self.socket.dump(&request, Link::decode)
    }

    /// Returns the number by which the socket's namespace names another one, as in
    /// [`Link::link_netnsid`]; `None` if it has none for it. A namespace also has a number for
    /// itself only if a program gave it one.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn netns_id(&mut self, netns: &Netns) -> Result<Option<i32>, NetlinkError> {
        let body = |writer: &mut Writer| {
            writer.raw(&[0; RTGENMSG]);
            writer.put(NETNSA_FD, &netns.as_fd().as_raw_fd().to_ne_bytes());
        };
        let operation = "look up the number of a namespace";
        let request = Request { operation: &operation, kind: RTM_GETNSID, flags: 0, body: &body };
        let decode = |message: &Message<'_>| {
            let mut attributes = message.attributes(RTGENMSG);
            attributes.find(|attribute| attribute.kind == NETNSA_NSID)?.i32()
        };
        Ok(self.socket.get(&request, decode)?.filter(|&id| 0 <= id))
    }

    /// Lists all links, each with its kernel parameters.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn links_with_settings(&mut self) -> Result<Vec<(Link, LinkSettings)>, NetlinkError> {
        let body = |writer: &mut Writer| {
            writer.raw(&header(AF_UNSPEC, 0, 0, 0));
            writer.put_u32(ifla::EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        };
        let request =
            Request { operation: &"list links", kind: RTM_GETLINK, flags: 0, body: &body };
        self.socket.dump(&request, |message| {
            Link::decode(message).map(|link| (link, LinkSettings::decode(message)))
        })
    }

    /// Lists the links that belong to a bridge or VRF.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn links_of_master(&mut self, master: u32) -> Result<Vec<Link>, NetlinkError> {
        let body = |writer: &mut Writer| {
            writer.raw(&header(AF_UNSPEC, 0, 0, 0));
            writer.put_u32(ifla::EXT_MASK, RTEXT_FILTER_SKIP_STATS);
            writer.put_u32(ifla::MASTER, master);
        };
        let operation = format_args!("list the ports of link {master}");
        let request = Request { operation: &operation, kind: RTM_GETLINK, flags: 0, body: &body };
        // If the link to filter by is gone, the kernel ignores the filter and lists everything.
        let decode = |message: &Message<'_>| {
            Link::decode(message).filter(|link| link.master == Some(master))
        };
        self.socket.dump(&request, decode)
    }

    /// Lists the links of a kind, which the kernel picks if it knows that kind.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn links_of_kind(&mut self, kind: &str) -> Result<Vec<Link>, NetlinkError> {
        let body = |writer: &mut Writer| {
            writer.raw(&header(AF_UNSPEC, 0, 0, 0));
            writer.put_u32(ifla::EXT_MASK, RTEXT_FILTER_SKIP_STATS);
            writer.nest_plain(ifla::LINKINFO, |writer| writer.put_text(ifla::INFO_KIND, kind));
        };
        let operation = format_args!("list links of kind {kind}");
        let request = Request { operation: &operation, kind: RTM_GETLINK, flags: 0, body: &body };
        // Without a driver for that kind the kernel ignores the filter and lists everything.
        let decode =
            |message: &Message<'_>| Link::decode(message).filter(|link| link.is_kind(kind));
        self.socket.dump(&request, decode)
    }

    /// Makes all changes in order, in as few datagrams as possible; each is acknowledged.
    ///
    /// # Errors
    /// [`ApplyError`] names the first change that failed. Those before it are made, those after it
    /// may be: the kernel does not stop at an error.
    pub fn apply(&mut self, changes: &[Change]) -> Result<(), ApplyError> {
        for (number, chunk) in changes.chunks(MAX_IN_FLIGHT).enumerate() {
            self.apply_chunk(chunk).map_err(|error| ApplyError {
                index: error.index + number * MAX_IN_FLIGHT,
                source: error.source,
            })?;
        }
        Ok(())
    }

    /// Makes all changes in order, goes on after each that fails, and returns those: for many
    /// objects that do not depend on each other. Two system calls for each 128 changes, plus one
    /// for each that failed.
    ///
    /// # Errors
    /// [`ApplyError`] if replies were lost: changes from its index on may have been made or not, so
    /// look.
    pub fn apply_each(&mut self, changes: &[Change]) -> Result<Vec<ApplyError>, ApplyError> {
        let mut failed = Vec::new();
        for (number, chunk) in changes.chunks(MAX_IN_FLIGHT).enumerate() {
            let first = number * MAX_IN_FLIGHT;
            let at = |source| ApplyError { index: first, source };
            let found = self.apply_chunk_each(chunk).map_err(at)?;
            failed.extend(
                found
                    .into_iter()
                    .map(|error| ApplyError { index: error.index + first, source: error.source }),
            );
        }
        Ok(failed)
    }

    /// Makes one change.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn apply_one(&mut self, change: &Change) -> Result<(), NetlinkError> {
        self.apply_chunk(std::slice::from_ref(change)).map_err(|error| error.source)
    }

    /// Creates a link and describes it, including its index and that of a veth's peer
    /// ([`Link::peer_index`]).
    ///
    /// A second message sets alias, hairpin, isolated and `no_own_ipv6`, which the kernel does not
    /// accept with a new link; if that message fails the link is removed again. The description
    /// shows the link before that message, except for the alias.
    ///
    /// # Errors
    /// Those of [`NetlinkError`]; [`NetlinkError::is_exists`] if the name (of either end) is taken.
    pub fn create_link(&mut self, link: &NewLink) -> Result<Link, NetlinkError> {
        let mut made = match &link.netns {
            None => self.create_here(link)?,
            Some(netns) => self.create_elsewhere(link, netns)?,
        };
        let Some(mut set) = link.afterwards() else { return Ok(made) };
        let mut elsewhere = None;
        let socket = match &link.netns {
            None => self,
            Some(netns) => elsewhere.insert(Self::open_in(netns)?),
        };
        let ifindex = made.index;
        let mut done = socket.apply_one(&Change::SetLink { ifindex, set: set.clone() });
        if set.no_own_ipv6
            && done.as_ref().is_err_and(|error| error.errno() == Some(Errno::AFNOSUPPORT))
        {
            // A kernel without IPv6 gives it none anyway.
            set.no_own_ipv6 = false;
            done = socket.apply_one(&Change::SetLink { ifindex, set });
        }
        if let Err(error) = done {
            // Report what failed first; if this fails too, the caller finds the link by its name.
            let _ = socket.delete_link(made.index);
            return Err(error);
        }
        made.alias = link.alias.clone().filter(|alias| !alias.is_empty());
        Ok(made)
    }

    /// Removes a link, and with it the other end of a veth; `false` if it was gone.
    ///
    /// Returns when the link is out of sight and its name and addresses are free. The kernel needs
    /// 10 to 20 ms more, and a helper waits for that ([`crate::linger`]).
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn delete_link(&mut self, ifindex: u32) -> Result<bool, NetlinkError> {
        // A bridge reports its ports with messages of its own family.
        self.delete_until(ifindex, &[RTNLGRP_LINK], &|message: &Message<'_>| {
            message.kind == RTM_DELLINK
                && message.body.first() == Some(&AF_UNSPEC)
                && wire::u32_at(message.body, 4) == Some(ifindex)
        })
    }

    /// Removes a bridge, which has no port; `false` if it was gone.
    ///
    /// Returns when the bridge is out of sight and its name and addresses are free. The kernel
    /// reports that it is gone 20 to 40 ms later, once callbacks of its multicast tables have run
    /// (linux net/bridge/br_multicast.c `br_multicast_dev_del`). By then it has long reported that
    /// the bridge no longer has IPv4 settings, which is the last step before
    /// (net/ipv4/devinet.c `inetdev_destroy`).
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn delete_bridge(&mut self, ifindex: u32) -> Result<bool, NetlinkError> {
        self.delete_until(ifindex, &[RTNLGRP_LINK, RTNLGRP_IPV4_NETCONF], &|message| {
            let is_gone = message.kind == RTM_DELLINK
                && message.body.first() == Some(&AF_UNSPEC)
                && wire::u32_at(message.body, 4) == Some(ifindex);
            let of_link = |attribute: Attribute<'_>| {
                attribute.kind == NETCONFA_IFINDEX
                    && wire::u32_at(attribute.value, 0) == Some(ifindex)
            };
            let is_stripped = message.kind == RTM_DELNETCONF
                && message.body.first() == Some(&AF_INET)
                && message.attributes(NETCONFMSG).any(of_link);
            is_gone || is_stripped
        })
    }

    fn delete_until(
        &mut self,
        ifindex: u32,
        groups: &[u32],
        is_gone: &dyn Fn(&Message<'_>) -> bool,
    ) -> Result<bool, NetlinkError> {
        let change = Change::DelLink { ifindex };
        tracing::debug!(%change, "netlink");
        let body = |writer: &mut Writer| writer.raw(&header(AF_UNSPEC, ifindex, 0, 0));
        let request = Request { operation: &change, kind: RTM_DELLINK, flags: 0, body: &body };
        match self.socket.execute_lingering(&request, groups, is_gone) {
            Ok(Some(())) => Ok(true),
            // This takes the lock that the deletion holds: by then the link is gone, or the
            // deletion has failed.
            Ok(None) => match self.link_by_index(ifindex)? {
                None => Ok(true),
                Some(_) => self.apply_one(&change).map(|()| true),
            },
            Err(error) if error.errno() == Some(Errno::NODEV) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lists the addresses of a link, or of all; none if the link does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn addresses(&mut self, ifindex: Option<u32>) -> Result<Vec<Address>, NetlinkError> {
        let index = ifindex.unwrap_or(0);
        let body = |writer: &mut Writer| {
            writer.raw(&address::header(AF_UNSPEC, 0, Scope::UNIVERSE, index));
        };
        let operation = format_args!("list the addresses of link {index}");
        let request =
            Request { operation: &operation, kind: address::RTM_GETADDR, flags: 0, body: &body };
        let found = self.socket.dump(&request, Address::decode);
        let mut found = nothing_if(found, &[Errno::NODEV])?;
        found.retain(|address| ifindex.is_none_or(|ifindex| address.ifindex == ifindex));
        Ok(found)
    }

    /// Lists routes; none if the table or link does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn routes(&mut self, filter: RouteFilter) -> Result<Vec<Route>, NetlinkError> {
        self.dump_routes(filter, None, Some)
    }

    /// Lists what `take` makes of each route: a router's table has a million, which need not be held
    /// all at once. The list is empty if the table or link does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn routes_as<T>(
        &mut self,
        filter: RouteFilter,
        take: impl Fn(Route) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        self.dump_routes(filter, None, take)
    }

    /// Lists routes if there are at most this many; `None` if there are more, and then does not
    /// wait for the rest. The kernel goes on sending until the socket is closed, so this takes the
    /// socket. The list is empty if the table or link does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn routes_if_few(
        self,
        filter: RouteFilter,
        most: usize,
    ) -> Result<Option<Vec<Route>>, NetlinkError> {
        let body = |writer: &mut Writer| filter.encode(None, writer);
        let read = |message: &Message<'_>| filter.read(None, message);
        let found = self.socket.dump_first(&list_routes(&body), most, read);
        let (found, more) = nothing_if(found, &[Errno::NOENT, Errno::NODEV])?;
        Ok((!more).then_some(found))
    }

    /// Lists routes of one origin, of every kind; none if the table or link does not exist. The
    /// kernel selects them.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn routes_by(
        &mut self,
        protocol: RouteProtocol,
        filter: RouteFilter,
    ) -> Result<Vec<Route>, NetlinkError> {
        self.dump_routes(filter, Some(protocol), Some)
    }

    fn dump_routes<T>(
        &mut self,
        filter: RouteFilter,
        protocol: Option<RouteProtocol>,
        take: impl Fn(Route) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        let body = |writer: &mut Writer| filter.encode(protocol, writer);
        let read = |message: &Message<'_>| filter.read(protocol, message).and_then(&take);
        let found = self.socket.dump(&list_routes(&body), read);
        nothing_if(found, &[Errno::NOENT, Errno::NODEV])
    }

    /// Lists the addresses about which the kernel has learnt something: a router on the way has
    /// named a smaller MTU, or another gateway. What it has learnt is in the answer of
    /// [`RouteSocket::route_to`]. Kernel: 5.3; older ones list nothing.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn learnt_addresses(&mut self, family: IpFamily) -> Result<Vec<IpAddr>, NetlinkError> {
        let body = |writer: &mut Writer| routes::encode_learnt(writer, family);
        let request = Request {
            operation: &"list what was learnt of single addresses",
            kind: routes::RTM_GETROUTE,
            flags: 0,
            body: &body,
        };
        let decode = |message: &Message<'_>| {
            let route = Route::decode(message).filter(|_| Route::is_cached(message))?;
            Some(route.destination.addr())
        };
        nothing_if(self.socket.dump(&request, decode), &[Errno::NOENT])
    }

    /// Lists nexthop objects; none if the link does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`]; [`NetlinkError::is_unsupported`] before kernel 5.3.
    pub fn nexthops(&mut self, filter: NexthopFilter) -> Result<Vec<NexthopObject>, NetlinkError> {
        let body = |writer: &mut Writer| filter.encode(writer);
        let request = Request {
            operation: &"list nexthops",
            kind: nexthop::RTM_GETNEXTHOP,
            flags: 0,
            body: &body,
        };
        let mut found = self.socket.dump(&request, NexthopObject::decode)?;
        found.retain(|nexthop| filter.matches(nexthop));
        Ok(found)
    }

    /// Looks a nexthop object up by its number; `None` if it does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn nexthop(&mut self, id: u32) -> Result<Option<NexthopObject>, NetlinkError> {
        let body = |writer: &mut Writer| nexthop::encode_id(id, writer);
        let operation = format_args!("look up nexthop {id}");
        let request =
            Request { operation: &operation, kind: nexthop::RTM_GETNEXTHOP, flags: 0, body: &body };
        nothing_if(self.socket.get(&request, NexthopObject::decode), &[Errno::NOENT])
    }

    /// Looks up the route that a packet to an address would take: its link, gateway (`None`: the
    /// address is on the link), source address, and the MTU of the path if a route or a router on
    /// the way says one (in bytes). Returns `None` if there is none; an unreachable IPv4 route
    /// counts as none, an IPv6 one is returned with its kind.
    ///
    /// # Errors
    /// Those of [`NetlinkError`]; an IPv4 route that drops gives EINVAL (blackhole) or EACCES
    /// (prohibit).
    pub fn route_to(&mut self, destination: IpAddr) -> Result<Option<Route>, NetlinkError> {
        self.route_in(None, destination)
    }

    /// Looks up the route that a packet to an address would take in the table of the VRF with this
    /// index.
    ///
    /// # Errors
    /// As [`RouteSocket::route_to`].
    pub fn route_in(
        &mut self,
        vrf: Option<u32>,
        destination: IpAddr,
    ) -> Result<Option<Route>, NetlinkError> {
        self.look_up(vrf, destination, 0)
    }

    /// Looks up the entry of the tables that a packet to an address would follow; its destination
    /// is the whole prefix that it covers. The VRF is as for [`RouteSocket::route_in`].
    ///
    /// # Errors
    /// As [`RouteSocket::route_to`].
    pub fn route_entry_in(
        &mut self,
        vrf: Option<u32>,
        destination: IpAddr,
    ) -> Result<Option<Route>, NetlinkError> {
        self.look_up(vrf, destination, routes::RTM_F_FIB_MATCH)
    }

    fn look_up(
        &mut self,
        vrf: Option<u32>,
        destination: IpAddr,
        flags: u32,
    ) -> Result<Option<Route>, NetlinkError> {
        let body = |writer: &mut Writer| routes::encode_lookup(writer, destination, vrf, flags);
        let operation = format_args!("look up the route to {destination}");
        let request =
            Request { operation: &operation, kind: routes::RTM_GETROUTE, flags: 0, body: &body };
        let found = self.socket.get(&request, Route::decode);
        nothing_if(found, &[Errno::NETUNREACH, Errno::HOSTUNREACH])
    }

    /// Lists the routing rules of a family.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn rules(&mut self, family: IpFamily) -> Result<Vec<Rule>, NetlinkError> {
        let body = |writer: &mut Writer| rule::encode_dump(writer, family);
        let request = Request {
            operation: &"list routing rules",
            kind: rule::RTM_GETRULE,
            flags: 0,
            body: &body,
        };
        self.socket.dump(&request, Rule::decode)
    }

    /// Lists the neighbours of a family, on one link or all; none if the link does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn neighbours(
        &mut self,
        family: IpFamily,
        ifindex: Option<u32>,
    ) -> Result<Vec<Neighbour>, NetlinkError> {
        let body = |writer: &mut Writer| neighbour::encode_dump(writer, family, ifindex);
        let request = Request {
            operation: &"list neighbours",
            kind: neighbour::RTM_GETNEIGH,
            flags: 0,
            body: &body,
        };
        let mut found = nothing_if(self.socket.dump(&request, Neighbour::decode), &[Errno::NODEV])?;
        found.retain(|neighbour| ifindex.is_none_or(|ifindex| neighbour.ifindex == ifindex));
        Ok(found)
    }

    /// Lists the entries by which this host answers for addresses of others (proxy ARP, proxy NDP).
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn proxied(&mut self, family: IpFamily) -> Result<Vec<Neighbour>, NetlinkError> {
        let body = |writer: &mut Writer| neighbour::encode_proxied_dump(writer, family);
        let request = Request {
            operation: &"list proxied neighbours",
            kind: neighbour::RTM_GETNEIGH,
            flags: 0,
            body: &body,
        };
        let mut found = self.socket.dump(&request, Neighbour::decode)?;
        found.retain(|neighbour| neighbour.proxy);
        Ok(found)
    }

    /// Returns a neighbour of a link by its address; `None` if there is none, or no such link.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn neighbour(
        &mut self,
        ifindex: u32,
        address: IpAddr,
    ) -> Result<Option<Neighbour>, NetlinkError> {
        let body = |writer: &mut Writer| neighbour::encode_get(writer, ifindex, address);
        let operation = format_args!("look up the neighbour {address} of link {ifindex}");
        let request =
            Request { operation: &operation, kind: neighbour::RTM_GETNEIGH, flags: 0, body: &body };
        match self.socket.get(&request, Neighbour::decode) {
            // Kernels before 5.0 only list them.
            Err(error) if error.errno() == Some(Errno::OPNOTSUPP) => {
                let all = self.neighbours(IpFamily::of(address), Some(ifindex))?;
                Ok(all.into_iter().find(|found| found.address == address && !found.proxy))
            }
            found => nothing_if(found, &[Errno::NOENT, Errno::NODEV]),
        }
    }

    /// Lists the forwarding entries of a bridge port.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn fdb(&mut self, port: u32) -> Result<Vec<Fdb>, NetlinkError> {
        let body = |writer: &mut Writer| neighbour::encode_fdb_dump(writer, port);
        let operation = format_args!("list the forwarding entries of port {port}");
        let request =
            Request { operation: &operation, kind: neighbour::RTM_GETNEIGH, flags: 0, body: &body };
        let mut found = nothing_if(self.socket.dump(&request, Fdb::decode), &[Errno::NODEV])?;
        found.retain(|entry| entry.ifindex == port);
        Ok(found)
    }

    /// Lists the forwarding entries of all ports of all bridges, and of the bridges themselves. The
    /// kernel goes through a bridge's entries once for each of its ports.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn fdb_of_all(&mut self) -> Result<Vec<Fdb>, NetlinkError> {
        let body = |writer: &mut Writer| neighbour::encode_fdb_dump(writer, 0);
        let request = Request {
            operation: &"list forwarding entries",
            kind: neighbour::RTM_GETNEIGH,
            flags: 0,
            body: &body,
        };
        // What links filter by themselves, such as multicast groups, belongs to no bridge.
        let of_a_bridge =
            |message: &Message<'_>| Fdb::decode(message).filter(|entry| entry.master.is_some());
        self.socket.dump(&request, of_a_bridge)
    }

    /// Lists the forwarding entries of a VXLAN tunnel; none if the link does not exist or is no
    /// tunnel. An address with several destinations has an entry for each.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn vxlan_fdb(&mut self, ifindex: u32) -> Result<Vec<VxlanFdb>, NetlinkError> {
        let body = |writer: &mut Writer| neighbour::encode_fdb_dump(writer, ifindex);
        let operation = format_args!("list the forwarding entries of tunnel {ifindex}");
        let request =
            Request { operation: &operation, kind: neighbour::RTM_GETNEIGH, flags: 0, body: &body };
        let mut found = nothing_if(self.socket.dump(&request, VxlanFdb::decode), &[Errno::NODEV])?;
        found.retain(|entry| entry.ifindex == ifindex);
        Ok(found)
    }

    /// Lists the VLANs of a bridge port, or of a bridge itself; none if it is neither.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn bridge_vlans(&mut self, ifindex: u32) -> Result<Vec<BridgeVlan>, NetlinkError> {
        let operation = format_args!("list the VLANs of port {ifindex}");
        let request = Request {
            operation: &operation,
            kind: RTM_GETLINK,
            flags: 0,
            body: &bridge_vlan::encode_dump,
        };
        let found = self.socket.dump(&request, BridgeVlan::decode)?;
        let ours = found.into_iter().filter(|&(port, _)| port == ifindex);
        Ok(ours.flat_map(|(_, vlans)| vlans).collect())
    }

    /// Lists the VLANs of all bridges and their ports, each by its index. One may be there twice.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn vlans_of_ports(&mut self) -> Result<Vec<(u32, Vec<BridgeVlan>)>, NetlinkError> {
        let request = Request {
            operation: &"list the VLANs of bridges and their ports",
            kind: RTM_GETLINK,
            flags: 0,
            body: &bridge_vlan::encode_dump,
        };
        self.socket.dump(&request, BridgeVlan::decode)
    }

    /// Lists the queueing disciplines of all links; none if the kernel has no traffic control.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn qdiscs(&mut self) -> Result<Vec<QdiscInfo>, NetlinkError> {
        let ticks = TickRate::read();
        let body = |writer: &mut Writer| {
            let any = TcHandle::UNSPECIFIED;
            writer.raw(&tc::header(0, any, any, 0));
        };
        let request = Request {
            operation: &"list queueing disciplines",
            kind: tc::RTM_GETQDISC,
            flags: 0,
            body: &body,
        };
        let found = self.socket.dump(&request, |message| QdiscInfo::decode(message, ticks));
        nothing_if(found, &[Errno::OPNOTSUPP])
    }

    /// Returns the queueing discipline at a parent of a link; `None` if none was configured there.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn qdisc(
        &mut self,
        ifindex: u32,
        parent: TcHandle,
    ) -> Result<Option<QdiscInfo>, NetlinkError> {
        let ticks = TickRate::read();
        let body = |writer: &mut Writer| {
            writer.raw(&tc::header(ifindex, TcHandle::UNSPECIFIED, parent, 0));
        };
        let operation = format_args!("look up the qdisc at {parent} of link {ifindex}");
        // The answer is a notification: without NLM_F_ECHO only other sockets would get it. For a
        // discipline that the kernel set up itself and does not show, there may be only the
        // acknowledgement.
        let request = Request {
            operation: &operation,
            kind: tc::RTM_GETQDISC,
            flags: NLM_F_ECHO | NLM_F_ACK,
            body: &body,
        };
        let found = self.socket.get(&request, |message| QdiscInfo::decode(message, ticks));
        // EINVAL: another way to say that the kernel does not show it. Newer kernels show it,
        // without a number.
        let found = nothing_if(found, &[Errno::NOENT, Errno::INVAL, Errno::NODEV])?;
        Ok(found.filter(|found| found.qdisc.handle != TcHandle::UNSPECIFIED))
    }

    /// Lists the classes of the htb disciplines of a link; none if the link does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn classes(&mut self, ifindex: u32) -> Result<Vec<ClassInfo>, NetlinkError> {
        let body = |writer: &mut Writer| {
            let any = TcHandle::UNSPECIFIED;
            writer.raw(&tc::header(ifindex, any, any, 0));
        };
        let operation = format_args!("list the classes of link {ifindex}");
        let request =
            Request { operation: &operation, kind: tc::RTM_GETTCLASS, flags: 0, body: &body };
        let found = self.socket.dump(&request, ClassInfo::decode);
        nothing_if(found, &[Errno::OPNOTSUPP, Errno::INVAL, Errno::NODEV])
    }

    /// Lists the filters at a parent of a link; none if the parent or link does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn filters(
        &mut self,
        ifindex: u32,
        parent: TcHandle,
    ) -> Result<Vec<FilterInfo>, NetlinkError> {
        let body = |writer: &mut Writer| tc::encode_dump(writer, ifindex, parent);
        let operation = format_args!("list the filters at {parent} of link {ifindex}");
        let request =
            Request { operation: &operation, kind: tc::RTM_GETTFILTER, flags: 0, body: &body };
        let found = self.socket.dump(&request, FilterInfo::decode);
        nothing_if(found, &[Errno::NOENT, Errno::INVAL, Errno::NODEV])
    }

    fn link(
        &mut self,
        operation: &dyn Display,
        body: &dyn Fn(&mut Writer),
    ) -> Result<Option<Link>, NetlinkError> {
        let request = Request { operation, kind: RTM_GETLINK, flags: 0, body };
        nothing_if(self.socket.get(&request, Link::decode), &[Errno::NODEV])
    }

    /// Sends up to [`MAX_IN_FLIGHT`] changes and waits for all their acknowledgements.
    fn apply_chunk(&mut self, changes: &[Change]) -> Result<(), ApplyError> {
        let Some(first_change) = changes.first() else { return Ok(()) };
        let mut writer = Writer::new();
        // Sequence number and change of each message, and whether it has been answered.
        let mut messages = Vec::with_capacity(changes.len());
        for (index, change) in changes.iter().enumerate() {
            tracing::debug!(%change, "netlink");
            change.encode(&mut |kind, flags, body| {
                let seq = self.socket.next_seq();
                writer.message(kind, NLM_F_REQUEST | NLM_F_ACK | flags, seq, body);
                messages.push((seq, index, false));
            });
        }
        let at = |index| move |source| ApplyError { index, source };
        self.socket.send(&writer, messages.len(), first_change).map_err(at(0))?;
        let mut failed: Option<(usize, Outcome)> = None;
        let first_seq = messages[0].0;
        let sent = writer.bytes();
        let received =
            self.socket.receive_from(first_seq, first_change, sent, |message, outcome| {
                let place = messages.binary_search_by_key(&message.seq, |entry| entry.0);
                if let (Some(outcome), Ok(place)) = (outcome, place) {
                    messages[place].2 = true;
                    if matches!(outcome, Outcome::Refused(..)) && failed.is_none() {
                        failed = Some((messages[place].1, outcome));
                    }
                }
                messages.iter().all(|&(.., answered)| answered)
            });
        if let Err(source) = received {
            let index = messages.iter().find(|entry| !entry.2).map_or(0, |entry| entry.1);
            return Err(ApplyError { index, source });
        }
        match failed {
            Some((index, outcome)) => outcome.into_result(&changes[index]).map_err(at(index)),
            None => Ok(()),
        }
    }

    /// Sends up to [`MAX_IN_FLIGHT`] changes and collects the failures. The kernel works through a
    /// datagram in order and always answers a message that it refuses, so that only the last
    /// message must be acknowledged (linux net/netlink/af_netlink.c `netlink_rcv_skb`).
    fn apply_chunk_each(&mut self, changes: &[Change]) -> Result<Vec<ApplyError>, NetlinkError> {
        let Some(first_change) = changes.first() else { return Ok(Vec::new()) };
        let mut writer = Writer::new();
        // Sequence number and change of each message.
        let mut messages = Vec::with_capacity(changes.len());
        for (index, change) in changes.iter().enumerate() {
            tracing::debug!(%change, "netlink");
            change.encode(&mut |kind, flags, body| {
                let seq = self.socket.next_seq();
                writer.message(kind, NLM_F_REQUEST | flags, seq, body);
                messages.push((seq, index));
            });
        }
        writer.flag_last_message(NLM_F_ACK);
        let (first_seq, last_seq) = (messages[0].0, messages[messages.len() - 1].0);
        self.socket.take_overrun();
        self.socket.send(&writer, messages.len(), first_change)?;
        let mut refused = Vec::new();
        let sent = writer.bytes();
        self.socket.receive_from(first_seq, first_change, sent, |message, outcome| {
            let Some(outcome) = outcome else { return false };
            if let Ok(place) = messages.binary_search_by_key(&message.seq, |entry| entry.0) {
                refused.push((messages[place].1, outcome));
            }
            message.seq == last_seq
        })?;
        if self.socket.take_overrun() {
            return Err(NetlinkError::Transfer {
                operation: first_change.to_string(),
                step: "receive",
                source: rustix::io::Errno::NOBUFS.into(),
            });
        }
        let failed = refused.into_iter().filter_map(|(index, outcome)| {
            let source = outcome.into_result(&changes[index]).err()?;
            Some(ApplyError { index, source })
        });
        Ok(failed.collect())
    }

    /// Creates a link in the socket's namespace; the query for it and the answer travel with the
    /// message that creates it.
    fn create_here(&mut self, link: &NewLink) -> Result<Link, NetlinkError> {
        let operation = operation(link);
        tracing::debug!(change = %operation, "netlink");
        let (create, look) = (self.socket.next_seq(), self.socket.next_seq());
        let mut writer = Writer::new();
        Change::NewLink(link.clone()).encode(&mut |kind, flags, body| {
            writer.message(kind, NLM_F_REQUEST | NLM_F_ACK | flags, create, body);
        });
        writer
            .message(RTM_GETLINK, NLM_F_REQUEST, look, |writer| encode_by_name(writer, &link.name));
        self.socket.send(&writer, 2, &operation)?;
        let (mut created, mut looked, mut found) = (None, None, None);
        self.socket.receive_from(create, &operation, writer.bytes(), |message, outcome| {
            if message.seq == create {
                created = outcome;
                return false;
            }
            if message.seq == look {
                found = Link::decode(message);
                looked = outcome;
                return true;
            }
            false
        })?;
        created.map_or(Ok(()), |outcome| outcome.into_result(&operation))?;
        looked.map_or(Ok(()), |outcome| outcome.into_result(&operation))?;
        found.ok_or_else(|| NetlinkError::Incomplete {
            operation: operation.to_string(),
            what: "the new link",
        })
    }

    fn create_elsewhere(&mut self, link: &NewLink, netns: &Netns) -> Result<Link, NetlinkError> {
        // Opened first, so that a link that is created can also be found.
        let mut there = Self::open_in(netns)?;
        self.apply_one(&Change::NewLink(link.clone()))?;
        there.link_by_name(&link.name)?.ok_or_else(|| NetlinkError::Incomplete {
            operation: operation(link).to_string(),
            what: "the new link",
        })
    }
}

/// Returns a request for a list of routes.
fn list_routes(body: &dyn Fn(&mut Writer)) -> Request<'_> {
    Request { operation: &"list routes", kind: routes::RTM_GETROUTE, flags: 0, body }
}

/// The operation's description, with both names of a veth pair: either may be the one that is
/// taken.
fn operation(link: &NewLink) -> impl Display {
    std::fmt::from_fn(move |f| match &link.kind {
        LinkKind::Veth(peer) => write!(f, "create veth {:?} with peer {:?}", link.name, peer.name),
        kind => write!(f, "create {} {:?}", kind.name(), link.name),
    })
}

/// Writes a query for a link by name. IFLA_IFNAME takes 15 bytes, IFLA_ALT_IFNAME any name (kernel
/// 5.5).
fn encode_by_name(writer: &mut Writer, name: &str) {
    writer.raw(&header(AF_UNSPEC, 0, 0, 0));
    writer.put_text(if name.len() < 16 { ifla::IFNAME } else { ifla::ALT_IFNAME }, name);
    writer.put_u32(ifla::EXT_MASK, RTEXT_FILTER_SKIP_STATS);
}
