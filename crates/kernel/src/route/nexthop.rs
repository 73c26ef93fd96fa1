//! Nexthop objects: where routes lead, as objects of their own (`man 8 ip-nexthop`).
//!
//! Routes refer to one by its number ([`Route::nexthop`](super::Route::nexthop)). Replacing the
//! object moves all of them at once, and adding a route costs the kernel the same however many
//! there are.
//!
//! When a link goes down or away, the kernel removes the objects that leave by it, and with them
//! the routes that refer to them. It sends no message about IPv4 routes, nor about the objects when
//! the link goes down (linux net/ipv4/nexthop.c `nexthop_flush_dev`).
//!
//! Kernel: 5.3.

use std::fmt;
use std::net::IpAddr;

use super::routes::{RTNH_F_ONLINK, RouteProtocol};
use super::{AF_INET, AF_INET6, AF_UNSPEC, IpFamily, af, ip_bytes, ip_from};
use crate::wire::{self, Message, Writer};

/// `linux include/uapi/linux/rtnetlink.h`.
pub(crate) const RTM_NEWNEXTHOP: u16 = 104;
pub(crate) const RTM_DELNEXTHOP: u16 = 105;
pub(crate) const RTM_GETNEXTHOP: u16 = 106;
/// Size of `struct nhmsg` (`linux include/uapi/linux/nexthop.h`).
const NHMSG: usize = 8;
/// `linux include/uapi/linux/nexthop.h` NHA_*.
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_BLACKHOLE: u16 = 4;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
const NHA_ENCAP: u16 = 8;
const NHA_FDB: u16 = 11;

/// A nexthop object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NexthopObject {
    /// Its number, from 1, the same for both versions of IP. 0 in a new one: the kernel chooses,
    /// and does not tell; look it up.
    pub id: u32,
    /// Its origin, as of a route; whose it is.
    pub protocol: RouteProtocol,
    /// Where it leads.
    pub way: NexthopWay,
}

/// Where a nexthop object leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NexthopWay {
    /// To a gateway on a link. An IPv6 gateway serves routes of both versions of IP, an IPv4
    /// gateway those of IPv4.
    Gateway {
        /// The gateway (NHA_GATEWAY).
        address: IpAddr,
        /// The link (NHA_OIF). It must be up.
        oif: u32,
        /// The gateway is assumed to be on the link, even outside the link's prefixes
        /// (RTNH_F_ONLINK).
        onlink: bool,
    },
    /// To the hosts of a link.
    Link {
        /// The version of IP.
        family: IpFamily,
        /// The link (NHA_OIF). It must be up.
        oif: u32,
    },
    /// Nowhere: packets are dropped (NHA_BLACKHOLE). It leaves by the loopback link, which must be
    /// up.
    Blackhole {
        /// The version of IP.
        family: IpFamily,
    },
    /// To several others, through an encapsulation, or to hosts of a tunnel. Only reported by the
    /// kernel: such an object is not sent.
    Other,
}

/// Which nexthop objects to list; the default is all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NexthopFilter {
    /// Only those that leave by this link; the kernel selects them.
    pub oif: Option<u32>,
    /// Only those of this origin; selected here, the kernel cannot.
    pub protocol: Option<RouteProtocol>,
}

impl NexthopObject {
    /// Writes an object to add or replace.
    pub(crate) fn encode(&self, writer: &mut Writer) {
        let family = match self.way {
            NexthopWay::Gateway { address, .. } => af(IpFamily::of(address)),
            NexthopWay::Link { family, .. } | NexthopWay::Blackhole { family } => af(family),
            NexthopWay::Other => AF_UNSPEC,
        };
        let onlink = matches!(self.way, NexthopWay::Gateway { onlink: true, .. });
        let flags = if onlink { RTNH_F_ONLINK } else { 0 };
        writer.raw(&header(family, self.protocol.0, flags));
        writer.put_u32(NHA_ID, self.id);
        match self.way {
            NexthopWay::Gateway { address, oif, .. } => {
                writer.put_u32(NHA_OIF, oif);
                writer.put(NHA_GATEWAY, &ip_bytes(address));
            }
            NexthopWay::Link { oif, .. } => writer.put_u32(NHA_OIF, oif),
            NexthopWay::Blackhole { .. } => writer.put(NHA_BLACKHOLE, &[]),
            NexthopWay::Other => writer.set_problem("nexthop objects of this kind are only read"),
        }
    }

    /// Reads RTM_NEWNEXTHOP; `None` if the message is another.
    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        if message.kind != RTM_NEWNEXTHOP {
            return None;
        }
        let &[family, _, protocol, ..] = message.body else { return None };
        let family = match family {
            AF_INET => Some(IpFamily::V4),
            AF_INET6 => Some(IpFamily::V6),
            _ => None,
        };
        let onlink = wire::u32_at(message.body, 4)? & RTNH_F_ONLINK != 0;
        let (mut id, mut oif, mut gateway) = (None, None, None);
        let (mut blackhole, mut other) = (false, false);
        for attribute in message.attributes(NHMSG) {
            match attribute.kind {
                NHA_ID => id = attribute.u32(),
                NHA_OIF => oif = attribute.u32(),
                NHA_GATEWAY => gateway = ip_from(attribute.value),
                NHA_BLACKHOLE => blackhole = true,
                NHA_GROUP | NHA_ENCAP | NHA_FDB => other = true,
                _ => {}
            }
        }
        let way = match (gateway, oif, family) {
            _ if other => NexthopWay::Other,
            (_, _, Some(family)) if blackhole => NexthopWay::Blackhole { family },
            (Some(address), Some(oif), _) => NexthopWay::Gateway { address, oif, onlink },
            (None, Some(oif), Some(family)) => NexthopWay::Link { family, oif },
            _ => NexthopWay::Other,
        };
        Some(Self { id: id?, protocol: RouteProtocol(protocol), way })
    }
}

/// Writes what identifies one object.
pub(crate) fn encode_id(id: u32, writer: &mut Writer) {
    writer.raw(&header(AF_UNSPEC, 0, 0));
    writer.put_u32(NHA_ID, id);
}

impl NexthopFilter {
    /// Writes a request for a dump. The caller must filter by what the kernel does not.
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.raw(&header(AF_UNSPEC, 0, 0));
        if let Some(oif) = self.oif {
            writer.put_u32(NHA_OIF, oif);
        }
    }

    pub(crate) fn matches(&self, nexthop: &NexthopObject) -> bool {
        // The kernel lists groups with any links.
        let leaves_by = |oif| match nexthop.way {
            NexthopWay::Gateway { oif: found, .. } | NexthopWay::Link { oif: found, .. } => {
                found == oif
            }
            NexthopWay::Blackhole { .. } | NexthopWay::Other => false,
        };
        self.protocol.is_none_or(|protocol| nexthop.protocol == protocol)
            && self.oif.is_none_or(leaves_by)
    }
}

/// `struct nhmsg`.
fn header(family: u8, protocol: u8, flags: u32) -> [u8; NHMSG] {
    let mut bytes = [0; NHMSG];
    bytes[0] = family;
    bytes[2] = protocol;
    bytes[4..8].copy_from_slice(&flags.to_ne_bytes());
    bytes
}

/// The words of `ip nexthop`.
impl fmt::Display for NexthopObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)?;
        match self.way {
            NexthopWay::Gateway { address, oif, .. } => write!(f, " via {address} on link {oif}"),
            NexthopWay::Link { oif, .. } => write!(f, " on link {oif}"),
            NexthopWay::Blackhole { .. } => f.write_str(" blackhole"),
            NexthopWay::Other => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(nexthop: &NexthopObject) -> Vec<u8> {
        let mut writer = Writer::new();
        nexthop.encode(&mut writer);
        assert_eq!(writer.problem(), None);
        writer.bytes().to_vec()
    }

    fn decoded(body: &[u8]) -> Option<NexthopObject> {
        NexthopObject::decode(&Message { kind: RTM_NEWNEXTHOP, flags: 0, seq: 0, body })
    }

    /// The bytes that `ip nexthop add id 1 dev … via 10.244.2.0 onlink proto 78` sends.
    #[test]
    #[cfg(target_endian = "little")]
    fn as_iproute2_sends_it() {
        let address = "10.244.2.0".parse().unwrap();
        let way = NexthopWay::Gateway { address, oif: 4, onlink: true };
        let nexthop = NexthopObject { id: 1, protocol: RouteProtocol(78), way };
        let mut expected = vec![2, 0, 78, 0, 4, 0, 0, 0];
        expected.extend([8, 0, 1, 0, 1, 0, 0, 0, 8, 0, 5, 0, 4, 0, 0, 0]);
        expected.extend([8, 0, 6, 0, 10, 244, 2, 0]);
        assert_eq!(encoded(&nexthop), expected);
        // The kernel describes it (6.18) by the same bytes and its scope.
        expected[1] = 253;
        assert_eq!(decoded(&expected), Some(nexthop));
    }

    #[test]
    fn what_is_only_read_is_not_sent() {
        let nexthop = NexthopObject { id: 1, protocol: RouteProtocol(78), way: NexthopWay::Other };
        let mut writer = Writer::new();
        nexthop.encode(&mut writer);
        assert_eq!(writer.problem(), Some("nexthop objects of this kind are only read"));
    }

    fn ways() -> impl Strategy<Value = NexthopWay> {
        let family = || prop::sample::select(vec![IpFamily::V4, IpFamily::V6]);
        prop_oneof![
            (any::<IpAddr>(), 1..u32::MAX, any::<bool>())
                .prop_map(|(address, oif, onlink)| NexthopWay::Gateway { address, oif, onlink }),
            (family(), 1..u32::MAX).prop_map(|(family, oif)| NexthopWay::Link { family, oif }),
            family().prop_map(|family| NexthopWay::Blackhole { family }),
        ]
    }

    proptest! {
        #[test]
        fn reads_what_it_writes(id: u32, protocol: u8, way in ways()) {
            let nexthop = NexthopObject { id, protocol: RouteProtocol(protocol), way };
            prop_assert_eq!(decoded(&encoded(&nexthop)), Some(nexthop));
        }
    }
}
