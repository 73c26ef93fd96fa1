//! Routes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{AF_INET, AF_INET6, IpFamily, af, ip_bytes, ip_from};
use crate::wire::{self, Attribute, Message, Writer};

/// `linux include/uapi/linux/rtnetlink.h`.
pub(crate) const RTM_NEWROUTE: u16 = 24;
pub(crate) const RTM_DELROUTE: u16 = 25;
pub(crate) const RTM_GETROUTE: u16 = 26;
/// Size of `struct rtmsg`.
const RTMSG: usize = 12;
/// Size of `struct rtnexthop`.
const RTNEXTHOP: usize = 8;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const RTA_NH_ID: u16 = 30;
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;
pub(crate) const RTNH_F_ONLINK: u32 = 4;
/// In RTM_GETROUTE: report the table of the found route. IPv6 always does, and refuses the flag.
const RTM_F_LOOKUP_TABLE: u32 = 0x1000;
/// The answer is an entry of the table, not what happens to a packet (kernel 4.13).
pub(crate) const RTM_F_FIB_MATCH: u32 = 0x2000;
/// In replies: a cache entry, not a configured route. In requests for a dump: those alone (kernel
/// 5.3).
const RTM_F_CLONED: u32 = 0x200;

/// The table of ordinary routes (RT_TABLE_MAIN).
pub const TABLE_MAIN: u32 = 254;
/// The table of the host's own addresses (RT_TABLE_LOCAL).
pub const TABLE_LOCAL: u32 = 255;
/// The table that is asked last, and is empty unless an administrator uses it (RT_TABLE_DEFAULT).
pub const TABLE_DEFAULT: u32 = 253;

/// A route. Build it with [`Route::new`] and set what differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The destination; `0.0.0.0/0` and `::/0` are the default routes. Bits after the prefix are
    /// not sent.
    pub destination: IpNet,
    /// The next hop; may be an IPv6 address for an IPv4 destination (RTA_VIA).
    pub gateway: Option<IpAddr>,
    /// The link to leave by (RTA_OIF).
    pub oif: Option<u32>,
    /// The routing table (RTA_TABLE).
    pub table: u32,
    /// Metric (RTA_PRIORITY); `None`: 0 for IPv4, 1024 for IPv6.
    pub priority: Option<u32>,
    /// The scope of the destination; `None`: link without gateway, universe with one, any when
    /// deleting.
    pub scope: Option<Scope>,
    /// Its origin; `None`: boot as `ip route` sets it, any when deleting.
    pub protocol: Option<RouteProtocol>,
    /// What happens to the packets.
    pub kind: RouteKind,
    /// Path MTU in bytes (RTAX_MTU).
    pub mtu: Option<u32>,
    /// TCP segment size announced, in bytes (RTAX_ADVMSS).
    pub advmss: Option<u32>,
    /// The gateway is assumed to be on the link, even outside the link's prefixes (RTNH_F_ONLINK).
    pub onlink: bool,
    /// Preferred source address (RTA_PREFSRC).
    pub source: Option<IpAddr>,
    /// The next hops of a multipath route (RTA_MULTIPATH); empty for an ordinary one.
    pub next_hops: Vec<NextHop>,
    /// The nexthop object that says where the route leads (RTA_NH_ID, kernel 5.3). Then gateway,
    /// link and next hops are not sent. The kernel reports those of the object too, unless sysctl
    /// `net.ipv4.nexthop_compat_mode` is off.
    pub nexthop: Option<u32>,
}

/// One next hop of a multipath route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextHop {
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// The link to leave by.
    pub oif: Option<u32>,
    /// Share of the traffic, from 1 (`rtnh_hops` + 1).
    pub weight: u16,
    /// The gateway is assumed to be on the link.
    pub onlink: bool,
}

/// The scope in which something is valid (RT_SCOPE_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope(pub u8);

impl Scope {
    /// Everywhere (0).
    pub const UNIVERSE: Self = Self(0);
    /// In this site (200).
    pub const SITE: Self = Self(200);
    /// On this link (253).
    pub const LINK: Self = Self(253);
    /// On this host (254).
    pub const HOST: Self = Self(254);
    /// Nowhere; when deleting: any (255).
    pub const NOWHERE: Self = Self(255);
}

/// The origin of a route (RTPROT_*, `/etc/iproute2/rt_protos`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RouteProtocol(pub u8);

impl RouteProtocol {
    /// The kernel, for an address (2).
    pub const KERNEL: Self = Self(2);
    /// `ip route` (3).
    pub const BOOT: Self = Self(3);
    /// An administrator (4).
    pub const STATIC: Self = Self(4);
    /// A router advertisement (9).
    pub const RA: Self = Self(9);
    /// A DHCP client (16).
    pub const DHCP: Self = Self(16);
}

/// What happens to the packets of a route (RTN_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RouteKind {
    /// They are forwarded.
    Unicast,
    /// They are for this host.
    Local,
    /// They are broadcast.
    Broadcast,
    /// They are for this host as one of several.
    Anycast,
    /// They are for a group.
    Multicast,
    /// They are dropped.
    Blackhole,
    /// They are refused as unreachable.
    Unreachable,
    /// They are refused as prohibited.
    Prohibit,
    /// The next rule decides.
    Throw,
    /// A number unknown to this code.
    Other(u8),
}

/// Which routes to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteFilter {
    /// The IP version.
    pub family: IpFamily,
    /// Only of this table; `None`: of all.
    pub table: Option<u32>,
    /// Only those that leave by this link.
    pub oif: Option<u32>,
}

impl RouteFilter {
    /// All routes of a family.
    #[must_use]
    pub fn all(family: IpFamily) -> Self {
        Self { family, table: None, oif: None }
    }

    /// The main table of a family.
    #[must_use]
    pub fn main(family: IpFamily) -> Self {
        Self { table: Some(TABLE_MAIN), ..Self::all(family) }
    }
}

impl Route {
    /// A route of the main table with only the destination set.
    #[must_use]
    pub fn new(destination: IpNet) -> Self {
        Self {
            destination,
            gateway: None,
            oif: None,
            table: TABLE_MAIN,
            priority: None,
            scope: None,
            protocol: None,
            kind: RouteKind::Unicast,
            mtu: None,
            advmss: None,
            onlink: false,
            source: None,
            next_hops: Vec::new(),
            nexthop: None,
        }
    }

    /// Whether it is a default route.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.destination.prefix_len() == 0
    }

    fn family(&self) -> IpFamily {
        IpFamily::of(self.destination.addr())
    }

    /// Writes a route to add or replace.
    pub(crate) fn encode(&self, writer: &mut Writer) {
        let near = self.gateway.is_none()
            && self.nexthop.is_none()
            && self.next_hops.iter().all(|hop| hop.gateway.is_none());
        let sent =
            matches!(self.kind, RouteKind::Unicast | RouteKind::Broadcast | RouteKind::Multicast);
        let default_scope = match self.kind {
            RouteKind::Local => Scope::HOST,
            _ if near && sent && self.family() == IpFamily::V4 => Scope::LINK,
            _ => Scope::UNIVERSE,
        };
        let scope = self.scope.unwrap_or(default_scope);
        let protocol = self.protocol.unwrap_or(RouteProtocol::BOOT);
        self.encode_with(writer, scope, protocol.0, self.kind.number());
    }

    /// Writes a route that takes another's place.
    ///
    /// Without a list of metrics, the kernel takes those of any route by the same nexthop object,
    /// such as the one that is replaced (linux net/ipv4/fib_semantics.c `fib_find_info_nh`).
    pub(crate) fn encode_replacement(&self, writer: &mut Writer) {
        self.encode(writer);
        if self.nexthop.is_some() && self.mtu.is_none() && self.advmss.is_none() {
            writer.nest_plain(RTA_METRICS, |_| {});
        }
    }

    /// Writes what identifies a route to remove: unset fields match anything.
    pub(crate) fn encode_key(&self, writer: &mut Writer) {
        let scope = self.scope.unwrap_or(Scope::NOWHERE);
        let kind = match self.kind {
            RouteKind::Unicast => 0,
            other => other.number(),
        };
        self.encode_with(writer, scope, self.protocol.map_or(0, |protocol| protocol.0), kind);
    }

    fn encode_with(&self, writer: &mut Writer, scope: Scope, protocol: u8, kind: u8) {
        let mut header = [0; RTMSG];
        header[0] = af(self.family());
        header[1] = self.destination.prefix_len();
        header[4] = u8::try_from(self.table).unwrap_or(0);
        header[5] = protocol;
        header[6] = scope.0;
        header[7] = kind;
        let flags = if self.onlink && self.nexthop.is_none() { RTNH_F_ONLINK } else { 0 };
        header[8..12].copy_from_slice(&flags.to_ne_bytes());
        writer.raw(&header);
        if !self.is_default() {
            writer.put(RTA_DST, &ip_bytes(self.destination.network()));
        }
        writer.put_u32(RTA_TABLE, self.table);
        match self.nexthop {
            Some(id) => writer.put_u32(RTA_NH_ID, id),
            None => self.encode_way(writer),
        }
        if let Some(priority) = self.priority {
            writer.put_u32(RTA_PRIORITY, priority);
        }
        if let Some(source) = self.source {
            writer.put(RTA_PREFSRC, &ip_bytes(source));
        }
        if self.mtu.is_some() || self.advmss.is_some() {
            writer.nest_plain(RTA_METRICS, |writer| {
                if let Some(mtu) = self.mtu {
                    writer.put_u32(RTAX_MTU, mtu);
                }
                if let Some(advmss) = self.advmss {
                    writer.put_u32(RTAX_ADVMSS, advmss);
                }
            });
        }
    }

    fn encode_way(&self, writer: &mut Writer) {
        if let Some(gateway) = self.gateway {
            put_gateway(writer, self.family(), gateway);
        }
        if let Some(oif) = self.oif {
            writer.put_u32(RTA_OIF, oif);
        }
        if !self.next_hops.is_empty() {
            writer.nest_plain(RTA_MULTIPATH, |writer| {
                for hop in &self.next_hops {
                    hop.encode(writer, self.family());
                }
            });
        }
    }

    /// Reads RTM_NEWROUTE; `None` if the message is another, of another family or a cache entry.
    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        if message.kind != RTM_NEWROUTE {
            return None;
        }
        let &[family, prefix, _, _, table, protocol, scope, kind, ..] = message.body else {
            return None;
        };
        let flags = wire::u32_at(message.body, 8)?;
        let any = match family {
            AF_INET => IpNet::V4(Ipv4Net::new(Ipv4Addr::UNSPECIFIED, prefix).ok()?),
            AF_INET6 => IpNet::V6(Ipv6Net::new(Ipv6Addr::UNSPECIFIED, prefix).ok()?),
            _ => return None,
        };
        let mut route = Self {
            table: table.into(),
            scope: Some(Scope(scope)),
            protocol: Some(RouteProtocol(protocol)),
            kind: RouteKind::from_number(kind),
            onlink: flags & RTNH_F_ONLINK != 0,
            ..Self::new(any)
        };
        for attribute in message.attributes(RTMSG) {
            route.read(&attribute, prefix)?;
        }
        Some(route)
    }

    /// Whether a reply of a dump is a cache entry, not a configured route.
    pub(crate) fn is_cached(message: &Message<'_>) -> bool {
        wire::u32_at(message.body, 8).is_some_and(|flags| flags & RTM_F_CLONED != 0)
    }

    fn read(&mut self, attribute: &Attribute<'_>, prefix: u8) -> Option<()> {
        match attribute.kind {
            RTA_DST => self.destination = IpNet::new(ip_from(attribute.value)?, prefix).ok()?,
            RTA_GATEWAY => self.gateway = ip_from(attribute.value),
            RTA_VIA => self.gateway = attribute.value.get(2..).and_then(ip_from),
            RTA_OIF => self.oif = attribute.u32(),
            RTA_PRIORITY => self.priority = attribute.u32(),
            RTA_PREFSRC => self.source = ip_from(attribute.value),
            RTA_TABLE => self.table = attribute.u32().unwrap_or(self.table),
            RTA_METRICS => {
                self.mtu = attribute.find(RTAX_MTU).and_then(|mtu| mtu.u32());
                self.advmss = attribute.find(RTAX_ADVMSS).and_then(|advmss| advmss.u32());
            }
            RTA_MULTIPATH => self.next_hops = next_hops(attribute.value),
            RTA_NH_ID => self.nexthop = attribute.u32(),
            _ => {}
        }
        Some(())
    }
}

impl NextHop {
    fn encode(&self, writer: &mut Writer, family: IpFamily) {
        let mut attributes = Writer::new();
        if let Some(gateway) = self.gateway {
            put_gateway(&mut attributes, family, gateway);
        }
        // A header of 8 bytes and one gateway: far below 64 KiB.
        let length = u16::try_from(RTNEXTHOP + attributes.bytes().len()).unwrap_or(u16::MAX);
        let mut header = [0; RTNEXTHOP];
        header[0..2].copy_from_slice(&length.to_ne_bytes());
        header[2] = if self.onlink { 4 } else { 0 };
        header[3] = u8::try_from(self.weight.saturating_sub(1)).unwrap_or(u8::MAX);
        header[4..8].copy_from_slice(&self.oif.unwrap_or(0).to_ne_bytes());
        writer.raw(&header);
        writer.raw(attributes.bytes());
    }
}

/// Writes RTA_GATEWAY, or RTA_VIA if the gateway is of the other family.
fn put_gateway(writer: &mut Writer, family: IpFamily, gateway: IpAddr) {
    if IpFamily::of(gateway) == family {
        writer.put(RTA_GATEWAY, &ip_bytes(gateway));
        return;
    }
    let mut via = u16::from(af(IpFamily::of(gateway))).to_ne_bytes().to_vec();
    via.extend_from_slice(&ip_bytes(gateway));
    writer.put(RTA_VIA, &via);
}

/// Reads an array of `struct rtnexthop`, each followed by attributes.
fn next_hops(mut bytes: &[u8]) -> Vec<NextHop> {
    let mut hops = Vec::new();
    while let Some(length) = wire::u16_at(bytes, 0).map(usize::from) {
        let Some(entry) = bytes.get(..length).filter(|entry| RTNEXTHOP <= entry.len()) else {
            break;
        };
        let mut hop = NextHop {
            gateway: None,
            oif: wire::u32_at(entry, 4).filter(|&oif| oif != 0),
            weight: u16::from(entry[3]) + 1,
            onlink: u32::from(entry[2]) & RTNH_F_ONLINK != 0,
        };
        for attribute in wire::attributes(&entry[RTNEXTHOP..]) {
            match attribute.kind {
                RTA_GATEWAY => hop.gateway = ip_from(attribute.value),
                RTA_VIA => hop.gateway = attribute.value.get(2..).and_then(ip_from),
                _ => {}
            }
        }
        hops.push(hop);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    hops
}

impl RouteKind {
    fn number(self) -> u8 {
        match self {
            Self::Unicast => 1,
            Self::Local => 2,
            Self::Broadcast => 3,
            Self::Anycast => 4,
            Self::Multicast => 5,
            Self::Blackhole => 6,
            Self::Unreachable => 7,
            Self::Prohibit => 8,
            Self::Throw => 9,
            Self::Other(number) => number,
        }
    }

    fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Unicast,
            2 => Self::Local,
            3 => Self::Broadcast,
            4 => Self::Anycast,
            5 => Self::Multicast,
            6 => Self::Blackhole,
            7 => Self::Unreachable,
            8 => Self::Prohibit,
            9 => Self::Throw,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.destination)?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        if let Some(oif) = self.oif {
            write!(f, " on link {oif}")?;
        }
        if let Some(id) = self.nexthop {
            write!(f, " by nexthop {id}")?;
        }
        if self.table != TABLE_MAIN {
            write!(f, " in table {}", self.table)?;
        }
        Ok(())
    }
}

impl RouteFilter {
    /// Writes a request for a dump, of the routes of one origin if one is given. The caller must
    /// filter by what the kernel does not.
    pub(crate) fn encode(&self, protocol: Option<RouteProtocol>, writer: &mut Writer) {
        let mut header = [0; RTMSG];
        header[0] = af(self.family);
        header[5] = protocol.map_or(0, |protocol| protocol.0);
        writer.raw(&header);
        if let Some(table) = self.table {
            writer.put_u32(RTA_TABLE, table);
        }
        if let Some(oif) = self.oif {
            writer.put_u32(RTA_OIF, oif);
        }
    }

    /// Reads an answer to such a request: a configured route that matches.
    pub(crate) fn read(
        &self,
        protocol: Option<RouteProtocol>,
        message: &Message<'_>,
    ) -> Option<Route> {
        if Route::is_cached(message) {
            return None;
        }
        let route = Route::decode(message).filter(|route| self.matches(route))?;
        protocol.is_none_or(|protocol| route.protocol == Some(protocol)).then_some(route)
    }

    fn matches(&self, route: &Route) -> bool {
        let oif = |wanted| {
            // The link of a nexthop object may not be reported; the kernel has selected by it.
            let unsaid = route.nexthop.is_some() && route.oif.is_none();
            unsaid
                || route.oif == Some(wanted)
                || route.next_hops.iter().any(|hop| hop.oif == Some(wanted))
        };
        self.table.is_none_or(|table| route.table == table) && self.oif.is_none_or(oif)
    }
}

/// Writes a request for what the kernel has learnt about single addresses, without routes.
pub(crate) fn encode_learnt(writer: &mut Writer, family: IpFamily) {
    let mut header = [0; RTMSG];
    header[0] = af(family);
    header[8..12].copy_from_slice(&RTM_F_CLONED.to_ne_bytes());
    writer.raw(&header);
}

/// Writes a request for the route that a packet to `destination` would take, in the table of a VRF
/// if one is given. The answer is the decision for the packet or, with `flags`, the entry of the
/// table ([`RTM_F_FIB_MATCH`]).
pub(crate) fn encode_lookup(
    writer: &mut Writer,
    destination: IpAddr,
    vrf: Option<u32>,
    flags: u32,
) {
    let bytes = ip_bytes(destination);
    let mut header = [0; RTMSG];
    header[0] = af(IpFamily::of(destination));
    header[1] = if destination.is_ipv4() { 32 } else { 128 };
    let flags = flags | if destination.is_ipv4() { RTM_F_LOOKUP_TABLE } else { 0 };
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    writer.raw(&header);
    writer.put(RTA_DST, &bytes);
    if let Some(vrf) = vrf {
        writer.put_u32(RTA_OIF, vrf);
    }
}
