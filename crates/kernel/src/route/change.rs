//! Changes as values.

use std::error::Error;
use std::fmt;

use ipnet::IpNet;

use super::link::{RTM_DELLINK, RTM_DELLINKPROP, RTM_NEWLINK, RTM_SETLINK, ifla};
use super::link_kind::header;
use super::{
    AF_UNSPEC, AddressOptions, BridgeVlan, BridgeVlanSide, Fdb, LinkSet, Neighbour, NewLink,
    NexthopObject, Qdisc, Redirect, Route, Rule, TcHandle, VxlanFdb, address, neighbour, nexthop,
    routes, rule, tc,
};
use crate::netlink::NetlinkError;
use crate::wire::{Emitter, Writer};

/// `man 7 netlink`.
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;

/// One change, as a value; plans consist of these.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Creates a link; fails with EEXIST if the name is taken. See also
    /// [`RouteSocket::create_link`](super::RouteSocket::create_link), which returns the index and
    /// also sets what the kernel does not accept with a new link: alias, hairpin, isolated.
    NewLink(NewLink),
    /// Changes a link.
    SetLink {
        /// The link.
        ifindex: u32,
        /// The settings to change.
        set: LinkSet,
    },
    /// Removes a link; fails with ENODEV if it is gone. Waits for grace periods of the kernel (16
    /// ms and more).
    DelLink {
        /// The link.
        ifindex: u32,
    },
    /// Removes an alternative name from a link (kernel 5.5); fails with EINVAL if the link does not
    /// have it.
    DelAltName {
        /// The link.
        ifindex: u32,
        /// The name.
        name: String,
    },
    /// Adds an address to a link; fails with EEXIST if the link has it.
    AddAddress {
        /// The link.
        ifindex: u32,
        /// The address with its prefix length.
        address: IpNet,
        /// Its options.
        options: AddressOptions,
    },
    /// Removes an address from a link; fails with EADDRNOTAVAIL if the link does not have it.
    DelAddress {
        /// The link.
        ifindex: u32,
        /// The address with its prefix length.
        address: IpNet,
    },
    /// Adds a route; fails with EEXIST if one to the destination exists with that priority (and for
    /// IPv6 gateway).
    AddRoute(Route),
    /// Adds a route beside others to the same destination: an IPv6 route becomes a further next hop
    /// of theirs (ECMP), an IPv4 route is kept after them. Fails with EEXIST only if exactly the
    /// same one exists.
    AppendRoute(Route),
    /// Adds a route or replaces the one to the destination with that priority.
    ReplaceRoute(Route),
    /// Removes a route; fails with ESRCH if none matches.
    DelRoute(Route),
    /// Adds a nexthop object; fails with EEXIST if its number is taken. See
    /// [`NexthopObject`] for kernels.
    AddNexthop(NexthopObject),
    /// Adds a nexthop object or replaces the one with its number; the routes that refer to it
    /// follow at once, and no packet is lost. Fails with EINVAL if routes that refer to it could
    /// not use the new one.
    ReplaceNexthop(NexthopObject),
    /// Removes a nexthop object, and every route that refers to it; the kernel sends listeners no
    /// message about the IPv4 routes. Fails with ENOENT if it does not exist.
    DelNexthop {
        /// Its number.
        id: u32,
    },
    /// Adds a routing rule; fails with EEXIST if exactly the same one exists.
    AddRule(Rule),
    /// Removes a routing rule; fails with ENOENT if none matches.
    DelRule(Rule),
    /// Adds or replaces a neighbour.
    SetNeighbour(Neighbour),
    /// Removes a neighbour; fails with ENOENT if it does not exist.
    DelNeighbour(Neighbour),
    /// Adds or replaces a forwarding entry of a bridge.
    SetFdb(Fdb),
    /// Removes a forwarding entry of a bridge; fails with ENOENT if it does not exist.
    DelFdb(Fdb),
    /// Adds or replaces the forwarding entry of a VXLAN tunnel for a MAC address. Fails with
    /// EOPNOTSUPP for a multicast or all-zero address that has one: these may have several.
    SetVxlanFdb(VxlanFdb),
    /// Removes a forwarding entry of a VXLAN tunnel; fails with ENOENT if the address has none, or
    /// none with this destination, VNI, port and link.
    DelVxlanFdb(VxlanFdb),
    /// Adds a port, or the bridge itself, to VLANs.
    AddBridgeVlan {
        /// The port or the bridge.
        ifindex: u32,
        /// The side of the bridge.
        side: BridgeVlanSide,
        /// The VLANs.
        vlan: BridgeVlan,
    },
    /// Removes a port, or the bridge itself, from VLANs; a VLAN it is not in is not an error.
    DelBridgeVlan {
        /// The port or the bridge.
        ifindex: u32,
        /// The side of the bridge.
        side: BridgeVlanSide,
        /// The VLANs.
        vlan: BridgeVlan,
    },
    /// Adds a queueing discipline; fails with EEXIST if one was configured there.
    AddQdisc(Qdisc),
    /// Adds or replaces a queueing discipline: one with the same number and kind gets the new
    /// settings, another is removed.
    ReplaceQdisc(Qdisc),
    /// Removes the queueing discipline at a parent, with everything in it; fails with ENOENT (at
    /// the root) or EINVAL if none was configured there.
    DelQdisc {
        /// The link.
        ifindex: u32,
        /// The place.
        parent: TcHandle,
        /// Its number; [`TcHandle::UNSPECIFIED`]: any.
        handle: TcHandle,
    },
    /// Adds a filter that sends packets to another link, beside others with its preference.
    AddRedirect(Redirect),
    /// Removes all filters with a redirection's parent and preference; fails with ENOENT if none
    /// exists.
    DelRedirect(Redirect),
}

/// A change that failed. Every change before it was made; later ones may have been made.
#[derive(Debug)]
#[non_exhaustive]
pub struct ApplyError {
    /// Its place among the changes.
    pub index: usize,
    /// The reason; the text names the change.
    pub source: NetlinkError,
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl Error for ApplyError {
    /// The source of the netlink error, whose text is this error's text.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.source()
    }
}

impl Change {
    /// Passes its messages to `emit`: one, or two where the kernel needs two steps for one change.
    pub(crate) fn encode(&self, emit: Emitter<'_>) {
        if let Self::SetLink { ifindex, set } = self
            && let Some((first, second)) = set.split()
        {
            emit(RTM_NEWLINK, 0, &|writer| first.encode(*ifindex, writer));
            return emit(RTM_NEWLINK, 0, &|writer| second.encode(*ifindex, writer));
        }
        let (kind, flags) = self.kind();
        emit(kind, flags, &|writer| self.encode_body(writer));
    }

    /// Message type and flags beside NLM_F_REQUEST and NLM_F_ACK.
    fn kind(&self) -> (u16, u16) {
        match self {
            Self::NewLink(_) => (RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL),
            Self::SetLink { .. } => (RTM_NEWLINK, 0),
            Self::DelLink { .. } | Self::DelBridgeVlan { .. } => (RTM_DELLINK, 0),
            Self::DelAltName { .. } => (RTM_DELLINKPROP, 0),
            Self::AddAddress { .. } => (address::RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL),
            Self::DelAddress { .. } => (address::RTM_DELADDR, 0),
            Self::AddRoute(_) => (routes::RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL),
            Self::AppendRoute(_) => (routes::RTM_NEWROUTE, NLM_F_CREATE | NLM_F_APPEND),
            Self::ReplaceRoute(_) => (routes::RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE),
            Self::DelRoute(_) => (routes::RTM_DELROUTE, 0),
            Self::AddNexthop(_) => (nexthop::RTM_NEWNEXTHOP, NLM_F_CREATE | NLM_F_EXCL),
            Self::ReplaceNexthop(_) => (nexthop::RTM_NEWNEXTHOP, NLM_F_CREATE | NLM_F_REPLACE),
            Self::DelNexthop { .. } => (nexthop::RTM_DELNEXTHOP, 0),
            Self::AddRule(_) => (rule::RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL),
            Self::DelRule(_) => (rule::RTM_DELRULE, 0),
            Self::SetNeighbour(_) | Self::SetFdb(_) | Self::SetVxlanFdb(_) => {
                (neighbour::RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE)
            }
            Self::DelNeighbour(_) | Self::DelFdb(_) | Self::DelVxlanFdb(_) => {
                (neighbour::RTM_DELNEIGH, 0)
            }
            Self::AddBridgeVlan { .. } => (RTM_SETLINK, 0),
            Self::AddQdisc(_) => (tc::RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL),
            Self::ReplaceQdisc(_) => (tc::RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE),
            Self::DelQdisc { .. } => (tc::RTM_DELQDISC, 0),
            Self::AddRedirect(_) => (tc::RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL),
            Self::DelRedirect(_) => (tc::RTM_DELTFILTER, 0),
        }
    }

    fn encode_body(&self, writer: &mut Writer) {
        match self {
            Self::NewLink(link) => link.encode(writer),
            Self::SetLink { ifindex, set } => set.encode(*ifindex, writer),
            Self::DelLink { ifindex } => writer.raw(&header(AF_UNSPEC, *ifindex, 0, 0)),
            Self::DelAltName { ifindex, name } => {
                writer.raw(&header(AF_UNSPEC, *ifindex, 0, 0));
                writer.nest(ifla::PROP_LIST, |names| names.put_text(ifla::ALT_IFNAME, name));
            }
            Self::AddAddress { ifindex, address, options } => {
                address::encode(writer, *ifindex, *address, options);
            }
            Self::DelAddress { ifindex, address } => {
                address::encode_key(writer, *ifindex, *address);
            }
            Self::AddRoute(route) | Self::AppendRoute(route) => route.encode(writer),
            Self::ReplaceRoute(route) => route.encode_replacement(writer),
            Self::DelRoute(route) => route.encode_key(writer),
            Self::AddNexthop(nexthop) | Self::ReplaceNexthop(nexthop) => nexthop.encode(writer),
            Self::DelNexthop { id } => nexthop::encode_id(*id, writer),
            Self::AddRule(rule) | Self::DelRule(rule) => rule.encode(writer),
            Self::SetNeighbour(neighbour) | Self::DelNeighbour(neighbour) => {
                neighbour.encode(writer);
            }
            Self::SetFdb(entry) | Self::DelFdb(entry) => entry.encode(writer),
            Self::SetVxlanFdb(entry) | Self::DelVxlanFdb(entry) => entry.encode(writer),
            Self::AddBridgeVlan { ifindex, side, vlan }
            | Self::DelBridgeVlan { ifindex, side, vlan } => {
                vlan.encode(*ifindex, *side, writer);
            }
            Self::AddQdisc(qdisc) | Self::ReplaceQdisc(qdisc) => qdisc.encode(writer),
            Self::DelQdisc { ifindex, parent, handle } => {
                writer.raw(&tc::header(*ifindex, *handle, *parent, 0));
            }
            Self::AddRedirect(redirect) => redirect.encode(writer),
            Self::DelRedirect(redirect) => redirect.encode_key(writer),
        }
    }
}

/// The change's description, printed before the kernel's error.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NewLink(link) => write!(f, "create {} {:?}", link.kind.name(), link.name),
            Self::SetLink { ifindex, set } => write!(f, "change link {ifindex} ({set})"),
            Self::DelLink { ifindex } => write!(f, "delete link {ifindex}"),
            Self::DelAltName { ifindex, name } => {
                write!(f, "take name {name:?} from link {ifindex}")
            }
            Self::AddAddress { ifindex, address, .. } => {
                write!(f, "add address {address} to link {ifindex}")
            }
            Self::DelAddress { ifindex, address } => {
                write!(f, "delete address {address} from link {ifindex}")
            }
            Self::AddRoute(route) => write!(f, "add route {route}"),
            Self::AppendRoute(route) => write!(f, "append route {route}"),
            Self::ReplaceRoute(route) => write!(f, "replace route {route}"),
            Self::DelRoute(route) => write!(f, "delete route {route}"),
            Self::AddNexthop(nexthop) => write!(f, "add nexthop {nexthop}"),
            Self::ReplaceNexthop(nexthop) => write!(f, "replace nexthop {nexthop}"),
            Self::DelNexthop { id } => write!(f, "delete nexthop {id}"),
            Self::AddRule(rule) => write!(f, "add routing rule {rule}"),
            Self::DelRule(rule) => write!(f, "delete routing rule {rule}"),
            Self::SetNeighbour(neighbour) => {
                write!(f, "set neighbour {} of link {}", neighbour.address, neighbour.ifindex)
            }
            Self::DelNeighbour(neighbour) => {
                write!(f, "delete neighbour {} of link {}", neighbour.address, neighbour.ifindex)
            }
            Self::SetFdb(entry) => {
                write!(f, "set forwarding entry {} of port {}", entry.mac, entry.ifindex)
            }
            Self::DelFdb(entry) => {
                write!(f, "delete forwarding entry {} of port {}", entry.mac, entry.ifindex)
            }
            Self::SetVxlanFdb(VxlanFdb { ifindex, mac, destination, .. }) => {
                write!(f, "set forwarding entry {mac} to {destination} of tunnel {ifindex}")
            }
            Self::DelVxlanFdb(VxlanFdb { ifindex, mac, destination, .. }) => {
                write!(f, "delete forwarding entry {mac} to {destination} of tunnel {ifindex}")
            }
            Self::AddBridgeVlan { ifindex, vlan, .. } => {
                write!(f, "add VLAN {vlan} to port {ifindex}")
            }
            Self::DelBridgeVlan { ifindex, vlan, .. } => {
                write!(f, "delete VLAN {vlan} from port {ifindex}")
            }
            Self::AddQdisc(qdisc) => write!(f, "add {qdisc} of link {}", qdisc.ifindex),
            Self::ReplaceQdisc(qdisc) => write!(f, "set {qdisc} of link {}", qdisc.ifindex),
            Self::DelQdisc { ifindex, parent, .. } => {
                write!(f, "delete qdisc at {parent} of link {ifindex}")
            }
            Self::AddRedirect(redirect) => {
                write!(f, "redirect packets of link {} to link {}", redirect.ifindex, redirect.to)
            }
            Self::DelRedirect(redirect) => {
                write!(f, "delete redirection of packets of link {}", redirect.ifindex)
            }
        }
    }
}
