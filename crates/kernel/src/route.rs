//! Links, addresses, routes, nexthop objects, rules, neighbours, bridge VLANs and traffic control,
//! over rtnetlink (`man 7 rtnetlink`).
//!
//! [`RouteSocket`] queries and changes them. Changes are plain values ([`Change`]), so that a plan
//! can be printed, compared and tested without a kernel. [`RouteSocket::apply`] sends a whole plan
//! at once.
//!
//! The quick way to attach a container is one [`NewLink`] for the pair, with its far end created
//! directly in the container's namespace, then one [`RouteSocket::apply`] on a socket that was
//! opened there:
//!
//! ```no_run
//! use kernel::netns::Netns;
//! use kernel::route::{AddressOptions, Change, LinkKind, LinkSet, NewLink, Route, RouteSocket, VethPeer};
//!
//! let container = Netns::open("/run/netns/example".as_ref())?;
//! let mut host = RouteSocket::open()?;
//! let mut inside = RouteSocket::open_in(&container)?;
//!
//! let peer = VethPeer { mac: Some("02:00:00:00:00:01".parse()?), netns: Some(container), ..VethPeer::new("eth0") };
//! let link = host.create_link(&NewLink { up: true, ..NewLink::new("veth1", LinkKind::Veth(peer)) })?;
//! let eth0 = link.peer_index.ok_or("a veth has a peer")?;
//! inside.apply(&[
//!     Change::AddAddress {
//!         ifindex: eth0,
//!         address: "192.0.2.2/24".parse()?,
//!         options: AddressOptions { nodad: true, ..AddressOptions::default() },
//!     },
//!     Change::SetLink { ifindex: eth0, set: LinkSet::default().up(true) },
//!     Change::AddRoute(Route { gateway: Some("192.0.2.1".parse()?), ..Route::new("0.0.0.0/0".parse()?) }),
//! ])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
mod bridge_vlan;
mod change;
mod link;
mod link_kind;
mod link_set;
mod link_settings;
mod neighbour;
mod new_link;
mod nexthop;
mod routes;
mod rule;
mod socket;
mod tc;
mod tunnel;
mod uplink;
mod vxlan;

pub use address::{Address, AddressOptions};
pub use bridge_vlan::{BridgeVlan, BridgeVlanSide};
pub use change::{ApplyError, Change};
pub use link::{BridgeInfo, BridgePort, Link, OperState, TunInfo, VlanInfo};
pub use link_kind::{
    BridgeOptions, IpvlanMode, IpvlanOptions, IpvlanReach, LinkKind, MacvlanMode, MacvlanOptions,
    VethPeer, VlanOptions, VlanProtocol,
};
pub use link_set::LinkSet;
pub use link_settings::{Ipv4Settings, Ipv6Settings, LinkSettings};
pub use neighbour::{Fdb, Neighbour, NeighbourState};
pub use net::IpFamily;
pub use new_link::NewLink;
pub use nexthop::{NexthopFilter, NexthopObject, NexthopWay};
pub use routes::{
    NextHop, Route, RouteFilter, RouteKind, RouteProtocol, Scope, TABLE_DEFAULT, TABLE_LOCAL,
    TABLE_MAIN,
};
pub use rule::{Rule, RuleAction};
pub use socket::RouteSocket;
pub use tc::{
    ClassInfo, FilterInfo, FqCodel, Peak, Qdisc, QdiscInfo, QdiscKind, QdiscStats, Redirect, Tbf,
    TcHandle, TickRate,
};
pub use tunnel::TunnelOptions;
pub use uplink::default_link;
pub use vxlan::{VxlanFdb, VxlanInfo, VxlanOptions, VxlanSet};

/// Address families as rtnetlink names them (`man 7 socket`).
pub(crate) const AF_UNSPEC: u8 = 0;
pub(crate) const AF_INET: u8 = 2;
pub(crate) const AF_BRIDGE: u8 = 7;
pub(crate) const AF_INET6: u8 = 10;

/// Returns how rtnetlink numbers a version of IP.
pub(crate) const fn af(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => AF_INET,
        IpFamily::V6 => AF_INET6,
    }
}

/// Reports whether an address is a link-local IPv6 address (RFC 4291 §2.5.6). The kernel gives one to
/// each link, and it means another neighbour on each.
#[must_use]
pub fn is_link_local_v6(address: std::net::IpAddr) -> bool {
    match address {
        std::net::IpAddr::V4(_) => false,
        std::net::IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The bytes of an address as attributes contain them. They need no heap: thousands of messages have
/// them.
pub(crate) enum IpBytes {
    V4([u8; 4]),
    V6([u8; 16]),
}

impl std::ops::Deref for IpBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::V4(octets) => octets.as_slice(),
            Self::V6(octets) => octets.as_slice(),
        }
    }
}

/// Returns the bytes of an address.
pub(crate) fn ip_bytes(address: std::net::IpAddr) -> IpBytes {
    match address {
        std::net::IpAddr::V4(v4) => IpBytes::V4(v4.octets()),
        std::net::IpAddr::V6(v6) => IpBytes::V6(v6.octets()),
    }
}

/// Reads an address by its length.
pub(crate) fn ip_from(bytes: &[u8]) -> Option<std::net::IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(Into::into)
}
