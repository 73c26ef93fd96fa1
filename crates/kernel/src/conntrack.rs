//! Connection tracking: finds and deletes flows.
//!
//! A flow keeps the translation it started with until it is deleted. So UDP to a hostport keeps
//! going to the old container, or past the new one, as long as packets come. Delete the flows of a
//! port when the port is added and when it is removed.
//!
//! ```no_run
//! use kernel::conntrack::{ConntrackSocket, FlowFilter};
//! use kernel::route::IpFamily;
//!
//! let mut conntrack = ConntrackSocket::open()?;
//! let udp = FlowFilter { protocol: Some(17), destination_port: Some(53), ..FlowFilter::all(IpFamily::V4) };
//! let forgotten = conntrack.delete_flows(&udp)?;
//! # Ok::<(), kernel::NetlinkError>(())
//! ```

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use crate::netlink::{Errno, NetlinkError, Request, Socket};
use crate::netns::Netns;
use crate::nft::{NFGENMSG, nfgenmsg};
use crate::route::{IpFamily, af, ip_bytes, ip_from};
use crate::wire::{Attribute, Message, Writer};

/// `linux include/uapi/linux/netlink.h` NETLINK_NETFILTER.
const NETLINK_NETFILTER: isize = 12;
/// `linux include/uapi/linux/netfilter/nfnetlink_conntrack.h`: NFNL_SUBSYS_CTNETLINK << 8 |
/// IPCTNL_MSG_CT_*.
const CT_NEW: u16 = 1 << 8;
const CT_GET: u16 = 1 << 8 | 1;
const CT_DELETE: u16 = 1 << 8 | 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_FILTER: u16 = 25;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const CTA_FILTER_REPLY_FLAGS: u16 = 2;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTO_ICMP_ID: u16 = 4;
const CTA_PROTO_ICMPV6_ID: u16 = 7;
/// `linux include/uapi/linux/netfilter/nf_conntrack_common.h` IPS_SEEN_REPLY.
const IPS_SEEN_REPLY: u32 = 1 << 1;
/// Which parts of a tuple the kernel compares: `linux net/netfilter/nf_internals.h` CTA_FILTER_F_*.
const CTA_FILTER_F_CTA_IP_SRC: u32 = 1 << 0;
const CTA_FILTER_F_CTA_IP_DST: u32 = 1 << 1;
const CTA_FILTER_F_CTA_PROTO_NUM: u32 = 1 << 3;
const CTA_FILTER_F_CTA_PROTO_DST_PORT: u32 = 1 << 5;

/// A blocking socket for connection tracking. It keeps the namespace it was opened in. Closing it
/// just after an nf_tables transaction has deleted something takes a moment, as closing an
/// nf_tables socket does: see [`crate::linger::leave_open`].
///
/// # Privileges
/// CAP_NET_ADMIN in the user namespace that owns the network namespace.
///
/// # Kernel
/// 5.8, CONFIG_NF_CT_NETLINK.
#[derive(Debug)]
pub struct ConntrackSocket {
    socket: Socket,
}

/// Selects flows; `None` matches any. Addresses and ports are those of the first packet, before any
/// translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowFilter {
    /// The IP version.
    pub family: IpFamily,
    /// The protocol above IP: 6 TCP, 17 UDP, 132 SCTP.
    pub protocol: Option<u8>,
    /// Who began.
    pub source: Option<IpAddr>,
    /// The destination of the first packet.
    pub destination: Option<IpAddr>,
    /// The destination port of the first packet.
    pub destination_port: Option<u16>,
    /// The source of the answers: the container behind a hostport.
    pub reply_source: Option<IpAddr>,
}

impl FlowFilter {
    /// All flows of an IP version.
    #[must_use]
    pub fn all(family: IpFamily) -> Self {
        Self {
            family,
            protocol: None,
            source: None,
            destination: None,
            destination_port: None,
            reply_source: None,
        }
    }

    /// Writes a request for a dump. The kernel compares what it can, so that it sends only few of
    /// many flows.
    ///
    /// It does not compare a port without a protocol, and it sends the flows whose IPv6 address is
    /// *not* the requested one (`ctnetlink_filter_match_tuple`, seen on 6.18): those are compared
    /// only here.
    fn encode(&self, writer: &mut Writer) {
        writer.raw(&nfgenmsg(af(self.family), 0));
        let port = self.destination_port.filter(|_| self.protocol.is_some());
        let v4 = |address: Option<IpAddr>| address.filter(IpAddr::is_ipv4);
        let (source, destination) = (v4(self.source), v4(self.destination));
        let reply_source = v4(self.reply_source);
        let original = [
            (source.is_some(), CTA_FILTER_F_CTA_IP_SRC),
            (destination.is_some(), CTA_FILTER_F_CTA_IP_DST),
            (self.protocol.is_some(), CTA_FILTER_F_CTA_PROTO_NUM),
            (port.is_some(), CTA_FILTER_F_CTA_PROTO_DST_PORT),
        ];
        let original = original.iter().filter(|flag| flag.0).fold(0, |all, flag| all | flag.1);
        let reply = if reply_source.is_some() { CTA_FILTER_F_CTA_IP_SRC } else { 0 };
        if original | reply == 0 {
            return;
        }
        writer.nest(CTA_TUPLE_ORIG, |writer| {
            put_addresses(writer, source, destination);
            if let Some(protocol) = self.protocol {
                writer.nest(CTA_TUPLE_PROTO, |writer| {
                    writer.put_u8(CTA_PROTO_NUM, protocol);
                    if let Some(port) = port {
                        writer.put(CTA_PROTO_DST_PORT, &port.to_be_bytes());
                    }
                });
            }
        });
        writer.nest(CTA_TUPLE_REPLY, |writer| put_addresses(writer, reply_source, None));
        writer.nest(CTA_FILTER, |writer| {
            writer.put_u32(CTA_FILTER_ORIG_FLAGS, original);
            writer.put_u32(CTA_FILTER_REPLY_FLAGS, reply);
        });
    }

    fn matches(&self, flow: &Flow) -> bool {
        fn fits<T: PartialEq>(wanted: Option<T>, found: Option<T>) -> bool {
            wanted.is_none() || wanted == found
        }
        fits(self.protocol, flow.original.protocol)
            && fits(self.source, flow.original.source)
            && fits(self.destination, flow.original.destination)
            && fits(self.destination_port, flow.original.destination_port)
            && fits(self.reply_source, flow.reply.source)
    }
}

/// Writes CTA_TUPLE_IP with IPv4 addresses, unless there is nothing to write.
fn put_addresses(writer: &mut Writer, source: Option<IpAddr>, destination: Option<IpAddr>) {
    if source.is_none() && destination.is_none() {
        return;
    }
    writer.nest(CTA_TUPLE_IP, |writer| {
        for (kind, address) in [(CTA_IP_V4_SRC, source), (CTA_IP_V4_DST, destination)] {
            if let Some(address) = address {
                writer.put(kind, &ip_bytes(address));
            }
        }
    });
}

/// A tracked flow.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flow {
    /// The packets from the side that opened the flow.
    pub original: Tuple,
    /// The answers.
    pub reply: Tuple,
    /// IPS_*.
    pub status: u32,
    key: FlowKey,
}

/// The endpoints of the packets of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Tuple {
    /// From where.
    pub source: Option<IpAddr>,
    /// To where.
    pub destination: Option<IpAddr>,
    /// The protocol above IP.
    pub protocol: Option<u8>,
    /// The source port.
    pub source_port: Option<u16>,
    /// The destination port.
    pub destination_port: Option<u16>,
    /// The identifier of echo requests.
    pub identifier: Option<u16>,
}

/// Identifies a flow to the kernel, in the kernel's own encoding.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct FlowKey {
    family: u8,
    original: Vec<u8>,
    id: Option<Vec<u8>>,
    zone: Option<Vec<u8>>,
}

impl AsFd for ConntrackSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl ConntrackSocket {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    pub fn open() -> Result<Self, NetlinkError> {
        Socket::open(NETLINK_NETFILTER).map(|socket| Self { socket })
    }

    /// Opens a socket in another namespace, without leaving the thread there.
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    pub fn open_in(netns: &Netns) -> Result<Self, NetlinkError> {
        Socket::open_in(netns, NETLINK_NETFILTER).map(|socket| Self { socket })
    }

    /// Lists flows. The kernel walks all flows of the IP version and sends those that match.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn flows(&mut self, filter: &FlowFilter) -> Result<Vec<Flow>, NetlinkError> {
        self.flows_if(filter, &|_| true)
    }

    /// Lists those of the flows for which `keep` returns true. Of many flows only these are in
    /// memory at once.
    fn flows_if(
        &mut self,
        filter: &FlowFilter,
        keep: &dyn Fn(&Flow) -> bool,
    ) -> Result<Vec<Flow>, NetlinkError> {
        let body = |writer: &mut Writer| filter.encode(writer);
        let request = Request { operation: &"list flows", kind: CT_GET, flags: 0, body: &body };
        let is_wanted = |flow: &Flow| filter.matches(flow) && keep(flow);
        self.socket.dump(&request, |message| Flow::decode(message).filter(is_wanted))
    }

    /// Deletes flows; returns how many. A flow that ends meanwhile is neither counted nor an error.
    ///
    /// # Errors
    /// Those of [`NetlinkError`]. All flows are tried; then the first failure is returned.
    pub fn delete_flows(&mut self, filter: &FlowFilter) -> Result<usize, NetlinkError> {
        self.delete_flows_if(filter, |_| true)
    }

    /// Deletes those of the flows for which `goes` returns true, as
    /// [`ConntrackSocket::delete_flows`] does.
    ///
    /// # Errors
    /// As [`ConntrackSocket::delete_flows`].
    pub fn delete_flows_if(
        &mut self,
        filter: &FlowFilter,
        goes: impl Fn(&Flow) -> bool,
    ) -> Result<usize, NetlinkError> {
        let mut deleted = 0;
        let mut first_error = None;
        for flow in self.flows_if(filter, &goes)? {
            match self.delete(&flow) {
                Ok(()) => deleted += 1,
                Err(error) if error.errno() == Some(Errno::NOENT) => {}
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.map_or(Ok(deleted), Err)
    }

    fn delete(&mut self, flow: &Flow) -> Result<(), NetlinkError> {
        let operation = std::fmt::from_fn(|f| write!(f, "delete the flow {}", flow.original));
        let body = |writer: &mut Writer| flow.key.encode(writer);
        let request = Request { operation: &operation, kind: CT_DELETE, flags: 0, body: &body };
        self.socket.execute(&request)
    }
}

impl FlowKey {
    fn encode(&self, writer: &mut Writer) {
        writer.raw(&nfgenmsg(self.family, 0));
        writer.nest(CTA_TUPLE_ORIG, |writer| writer.raw(&self.original));
        if let Some(zone) = &self.zone {
            writer.put(CTA_ZONE, zone);
        }
        // With the ID, the kernel deletes exactly this flow, and not a newer one between the same
        // endpoints.
        if let Some(id) = &self.id {
            writer.put(CTA_ID, id);
        }
    }
}

impl Flow {
    /// Says whether packets of both directions have been seen.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.status & IPS_SEEN_REPLY != 0
    }

    /// Says whether it is of a zone of its own, such as those of Open vSwitch, which translates by
    /// its own rules.
    #[must_use]
    pub fn has_zone(&self) -> bool {
        self.key.zone.is_some()
    }

    fn decode(message: &Message<'_>) -> Option<Self> {
        if message.kind != CT_NEW {
            return None;
        }
        let mut flow = Self {
            original: Tuple::default(),
            reply: Tuple::default(),
            status: 0,
            key: FlowKey { family: *message.body.first()?, ..FlowKey::default() },
        };
        for attribute in message.attributes(NFGENMSG) {
            match attribute.kind {
                CTA_TUPLE_ORIG => {
                    flow.original = Tuple::decode(&attribute);
                    flow.key.original = attribute.value.to_vec();
                }
                CTA_TUPLE_REPLY => flow.reply = Tuple::decode(&attribute),
                CTA_STATUS => flow.status = attribute.u32_be().unwrap_or_default(),
                CTA_ID => flow.key.id = Some(attribute.value.to_vec()),
                CTA_ZONE => flow.key.zone = Some(attribute.value.to_vec()),
                _ => {}
            }
        }
        (!flow.key.original.is_empty()).then_some(flow)
    }
}

impl Tuple {
    fn decode(tuple: &Attribute<'_>) -> Self {
        let mut decoded = Self::default();
        for attribute in
            tuple.nested().filter(|outer| outer.kind == CTA_TUPLE_IP).flat_map(|ip| ip.nested())
        {
            match attribute.kind {
                CTA_IP_V4_SRC | CTA_IP_V6_SRC => decoded.source = ip_from(attribute.value),
                CTA_IP_V4_DST | CTA_IP_V6_DST => decoded.destination = ip_from(attribute.value),
                _ => {}
            }
        }
        let protocols = tuple.nested().filter(|outer| outer.kind == CTA_TUPLE_PROTO);
        for attribute in protocols.flat_map(|protocol| protocol.nested()) {
            match attribute.kind {
                CTA_PROTO_NUM => decoded.protocol = attribute.u8(),
                CTA_PROTO_SRC_PORT => decoded.source_port = attribute.u16_be(),
                CTA_PROTO_DST_PORT => decoded.destination_port = attribute.u16_be(),
                CTA_PROTO_ICMP_ID | CTA_PROTO_ICMPV6_ID => decoded.identifier = attribute.u16_be(),
                _ => {}
            }
        }
        decoded
    }
}

impl fmt::Display for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn or_any<T: ToString>(value: Option<T>) -> String {
            value.map_or_else(|| "any".to_owned(), |value| value.to_string())
        }
        write!(
            f,
            "from {} port {} to {} port {} protocol {}",
            or_any(self.source),
            or_any(self.source_port),
            or_any(self.destination),
            or_any(self.destination_port),
            or_any(self.protocol)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn reading_anything_ends(body: Vec<u8>) {
            Flow::decode(&Message { kind: CT_NEW, flags: 0, seq: 0, body: &body });
        }
    }
}
