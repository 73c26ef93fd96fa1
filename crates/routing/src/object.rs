//! What a node's kernel has for routing, as data.
//!
//! An object has a [`Key`], which nothing else of ours has, and a [`Value`]. Keys are in the order
//! in which objects are made: each needs only what comes before it. They go in the reverse order.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::backends::BackendId;
use crate::settings::LinkName;
use net::MacAddr;

/// The protocol of the routes and nexthops that reach peers (`linux rtnetlink.h`, RTPROT_*: no
/// other program uses it).
pub const PROTOCOL: u8 = 78;

/// The protocol of the route for this node's own prefix: what a routing daemon announces to routers
/// of the network, and nothing else.
pub const PROTOCOL_OWN: u8 = 79;

/// The metric of routes to peers, in both families. It is higher than what people and routing
/// daemons use: a route of theirs is never replaced, and wins.
pub const METRIC: u32 = 2000;

/// The metric of `unreachable` routes: every other route to the same prefix wins.
pub const METRIC_WORST: u32 = u32::MAX;

/// The first id of the nexthops that are ours; the range has [`NEXTHOPS`].
pub const NEXTHOP_FIRST: u32 = 0x4e00_0000;

/// How many ids are ours.
pub const NEXTHOPS: u32 = 1 << 24;

/// The alias of our tunnels.
pub const ALIAS: &str = "netwright:routing";

/// The device group of a tunnel of ours until it is finished: the kernel takes a group with the
/// message that makes a link, and an alias only afterwards.
pub const GROUP_UNFINISHED: u32 = 0x4e00_0000;

/// The nftables table of routing, of family `inet`.
pub const TABLE: &str = "netwright-routing";

/// A set of the packet filter's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Set {
    /// The ranges of all pods: `cluster4`, `cluster6`. Intervals.
    Cluster,
    /// Further ranges to which nothing is masqueraded: `exempt4`, `exempt6`. Intervals.
    Exempt,
    /// The underlay addresses of the nodes: `nodes4`, `nodes6`. Single addresses.
    Nodes,
    /// Further addresses of the nodes: `addresses4`, `addresses6`. Single addresses.
    Addresses,
    /// What this node's pods have addresses of: `local4`, `local6`. Intervals.
    Local,
    /// What pods have addresses of whose packets come without a tunnel: `plain4`, `plain6`.
    /// Intervals.
    Plain,
    /// Where the kernel's routes decide by which uplink packets from pods' addresses come: `routed4`,
    /// `routed6`. Intervals.
    Routed,
}

/// Which object it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// An element of a set of the packet filter; the prefix of a single address is its whole
    /// length.
    Element {
        /// The set, of the prefix's family.
        set: Set,
        /// The element.
        prefix: IpNet,
    },
    /// An element of the packet filter's set `underlay`: a link by which packets of other nodes come.
    Link {
        /// The link.
        link: LinkName,
    },
    /// A route to a prefix that says it is unreachable, with [`METRIC_WORST`].
    Unreachable {
        /// The destination.
        prefix: IpNet,
    },
    /// A tunnel of this node.
    Tunnel {
        /// The link.
        link: LinkName,
    },
    /// An address of a tunnel, with its whole length.
    Address {
        /// The tunnel.
        link: LinkName,
        /// The address.
        address: IpAddr,
    },
    /// A forwarding entry of a tunnel.
    Fdb {
        /// The tunnel.
        link: LinkName,
        /// The hardware address of the peer's end.
        mac: MacAddr,
    },
    /// A permanent neighbour of a tunnel.
    Neighbour {
        /// The tunnel.
        link: LinkName,
        /// The peer's tunnel address.
        address: IpAddr,
    },
    /// A nexthop object.
    Nexthop {
        /// Its number.
        id: u32,
    },
    /// A route to a prefix of a peer, with [`METRIC`].
    Route {
        /// The destination.
        prefix: IpNet,
    },
}

impl Key {
    /// Reports whether it is of this node itself, and needed with any peers or none. Every other
    /// object is one peer's.
    #[must_use]
    pub fn is_of_node(&self) -> bool {
        match self {
            Key::Link { .. }
            | Key::Unreachable { .. }
            | Key::Tunnel { .. }
            | Key::Address { .. } => true,
            Key::Element { set, .. } => {
                matches!(set, Set::Cluster | Set::Exempt | Set::Local | Set::Routed)
            }
            Key::Fdb { .. } | Key::Neighbour { .. } | Key::Nexthop { .. } | Key::Route { .. } => {
                false
            }
        }
    }
}

impl Key {
    /// Reports whether it is of the packet filter: all of these are one transaction.
    #[must_use]
    pub fn is_filter(&self) -> bool {
        matches!(self, Key::Element { .. } | Key::Link { .. })
    }
}

/// How an object is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Value {
    /// An element or an address has no more than its key.
    There,
    /// [`Key::Unreachable`]
    Unreachable {
        /// Its protocol.
        protocol: u8,
    },
    /// [`Key::Tunnel`]
    Tunnel(Box<Tunnel>),
    /// [`Key::Fdb`]
    Fdb {
        /// The peer's underlay address.
        to: IpAddr,
    },
    /// [`Key::Neighbour`]
    Neighbour {
        /// The hardware address of the peer's end.
        mac: MacAddr,
    },
    /// [`Key::Nexthop`]
    Nexthop(Nexthop),
    /// [`Key::Route`]
    Route {
        /// The nexthop object; `None` in what is observed if the route has none of ours.
        nexthop: Option<u32>,
        /// What fits, in bytes, where it is less than the link carries.
        mtu: Option<u32>,
    },
}

impl Value {
    /// Reports whether an object can become as this one says without being made anew.
    #[must_use]
    pub fn can_replace(&self, there: &Value) -> bool {
        match (self, there) {
            (Value::Tunnel(wanted), Value::Tunnel(there)) => {
                wanted.kind.can_replace(&there.kind)
                    && wanted.local.is_ipv4() == there.local.is_ipv4()
            }
            _ => true,
        }
    }
}

/// The link of a tunnel. It accepts no router advertisements, and is up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// How it carries packets.
    pub kind: TunnelKind,
    /// The outer source address. A link can get another one of its family.
    pub local: IpAddr,
    /// The link by which outer packets leave. A link can get another one.
    pub underlay: LinkName,
    /// The hardware address, if links of the kind have one.
    pub mac: Option<MacAddr>,
    /// The MTU, in bytes.
    pub mtu: u32,
    /// It is up.
    pub up: bool,
    /// Another program has made it a port, or has switched off its ARP or its forwarding.
    pub altered: bool,
}

/// How a tunnel carries packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TunnelKind {
    /// The backend, whose word is also the kernel's for such links.
    pub backend: BackendId,
    /// Its numbers. Only a new link can have others.
    pub numbers: Numbers,
    /// It learns from packets where peers are. Ours never do.
    pub learning: bool,
}

/// What tells a tunnel from others of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Numbers {
    /// The network identifier, if links of the kind have one.
    pub id: Option<u32>,
    /// The UDP port, if they have one.
    pub port: Option<u16>,
}

impl TunnelKind {
    /// Reports whether a link of that kind can be adjusted to be of this one.
    fn can_replace(&self, there: &TunnelKind) -> bool {
        (self.backend, self.numbers) == (there.backend, there.numbers)
    }
}

/// Which packets of the underlay belong to a tunnel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Encapsulation {
    /// The protocol above IP.
    pub protocol: u8,
    /// The port that they are sent to, if the protocol has ports.
    pub port: Option<u16>,
    /// Bytes that they have at an offset behind the header of IP, if only these are the tunnel's.
    pub content: Option<(u32, Vec<u8>)>,
}

/// A nexthop object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Nexthop {
    /// The link.
    pub link: LinkName,
    /// The gateway.
    pub gateway: IpAddr,
    /// The gateway is on the link, also outside the link's prefixes (RTNH_F_ONLINK).
    pub onlink: bool,
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Set::Cluster => "cluster",
            Set::Exempt => "exempt",
            Set::Nodes => "nodes",
            Set::Addresses => "addresses",
            Set::Local => "local",
            Set::Plain => "plain",
            Set::Routed => "routed",
        })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Element { set, prefix } => {
                let number = if prefix.addr().is_ipv4() { 4 } else { 6 };
                write!(f, "element {prefix} of {set}{number}")
            }
            Key::Link { link } => write!(f, "element {link} of underlay"),
            Key::Unreachable { prefix } => write!(f, "unreachable route {prefix}"),
            Key::Tunnel { link } => write!(f, "tunnel {link}"),
            Key::Address { link, address } => write!(f, "address {address} of {link}"),
            Key::Fdb { link, mac } => write!(f, "FDB entry {mac} of {link}"),
            Key::Neighbour { link, address } => write!(f, "neighbour {address} of {link}"),
            Key::Nexthop { id } => write!(f, "nexthop {id:#x}"),
            Key::Route { prefix } => write!(f, "route {prefix}"),
        }
    }
}

/// What follows the key's text.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::There => Ok(()),
            Value::Unreachable { protocol } => write!(f, " proto {protocol}"),
            Value::Tunnel(tunnel) => {
                let Tunnel { kind, local, underlay, mac, mtu, up, altered } = &**tunnel;
                let TunnelKind { backend, numbers: Numbers { id, port }, learning } = kind;
                f.write_str(": ")?;
                let name = backend.backend().id_name();
                id.map_or(Ok(()), |id| write!(f, "{name} {id}, "))?;
                port.map_or(Ok(()), |port| write!(f, "port {port}, "))?;
                write!(f, "local {local} dev {underlay}")?;
                mac.map_or(Ok(()), |mac| write!(f, ", {mac}"))?;
                write!(f, ", mtu {mtu}")?;
                f.write_str(if *up { "" } else { ", down" })?;
                f.write_str(if *learning { ", learning" } else { "" })?;
                f.write_str(if *altered { ", altered" } else { "" })
            }
            Value::Fdb { to } => write!(f, " to {to}"),
            Value::Neighbour { mac } => write!(f, " is {mac}"),
            Value::Nexthop(Nexthop { link, gateway, onlink }) => {
                write!(f, " via {gateway} dev {link}")?;
                f.write_str(if *onlink { " onlink" } else { "" })
            }
            Value::Route { nexthop, mtu } => {
                match nexthop {
                    Some(id) => write!(f, " by nexthop {id:#x}")?,
                    None => f.write_str(" without a nexthop of ours")?,
                }
                mtu.map_or(Ok(()), |mtu| write!(f, " mtu {mtu}"))
            }
        }
    }
}
