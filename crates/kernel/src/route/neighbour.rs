//! Neighbours (ARP and NDP entries) and forwarding entries of bridges (FDB).

use std::net::IpAddr;

use super::{AF_BRIDGE, IpFamily, RouteProtocol, af, ip_bytes, ip_from};
use crate::mac::MacAddr;
use crate::wire::{self, Message, Writer};

/// `linux include/uapi/linux/rtnetlink.h`.
pub(crate) const RTM_NEWNEIGH: u16 = 28;
pub(crate) const RTM_DELNEIGH: u16 = 29;
pub(crate) const RTM_GETNEIGH: u16 = 30;
/// Size of `struct ndmsg`.
pub(super) const NDMSG: usize = 12;
/// `linux include/uapi/linux/neighbour.h`.
pub(super) const NDA_DST: u16 = 1;
pub(super) const NDA_LLADDR: u16 = 2;
const NDA_VLAN: u16 = 5;
pub(super) const NDA_PORT: u16 = 6;
pub(super) const NDA_VNI: u16 = 7;
pub(super) const NDA_IFINDEX: u16 = 8;
const NDA_MASTER: u16 = 9;
const NDA_PROTOCOL: u16 = 12;
pub(super) const NTF_SELF: u8 = 2;
const NTF_MASTER: u8 = 4;
const NTF_PROXY: u8 = 8;
const NTF_EXT_LEARNED: u8 = 0x10;
/// Neighbours that need no address resolution, such as multicast groups.
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;

/// A neighbour of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// The link.
    pub ifindex: u32,
    /// Its IP address.
    pub address: IpAddr,
    /// Its hardware address; `None` while it is not known, and for a proxy entry.
    pub mac: Option<MacAddr>,
    /// The state of its entry.
    pub state: NeighbourState,
    /// We answer for it (NTF_PROXY).
    pub proxy: bool,
    /// Another program learnt it and keeps it, so that the kernel does not collect it as garbage
    /// (NTF_EXT_LEARNED). Unlike a permanent entry it goes when the link loses its carrier.
    pub ext_learned: bool,
    /// Its origin, as of a route (NDA_PROTOCOL); `None`: not said. A replacement without one leaves
    /// it as it was. Kernel: 5.0.
    pub protocol: Option<RouteProtocol>,
}

/// What is known about a neighbour (NUD_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NeighbourState(pub u16);

impl NeighbourState {
    /// It was configured and stays (NUD_PERMANENT).
    pub const PERMANENT: Self = Self(NUD_PERMANENT);
    /// It needs no resolution (NUD_NOARP).
    pub const NOARP: Self = Self(NUD_NOARP);
    /// It answered recently (NUD_REACHABLE).
    pub const REACHABLE: Self = Self(2);
    /// It answered once (NUD_STALE).
    pub const STALE: Self = Self(4);
    /// It was asked and has not answered yet; packets for it wait meanwhile (NUD_INCOMPLETE).
    pub const INCOMPLETE: Self = Self(1);
    /// It does not answer (NUD_FAILED).
    pub const FAILED: Self = Self(0x20);

    /// Whether the entry was configured and stays; other bits of the state do not matter.
    #[must_use]
    pub fn is_permanent(self) -> bool {
        self.0 & NUD_PERMANENT != 0
    }
}

/// A forwarding entry of a bridge: the port that leads to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fdb {
    /// The port.
    pub ifindex: u32,
    /// The address.
    pub mac: MacAddr,
    /// The VLAN.
    pub vlan: Option<u16>,
    /// What is known about it: permanent (the port's own), noarp (`static`), reachable (learnt, or
    /// `dynamic`).
    pub state: NeighbourState,
    /// The bridge; only reported by the kernel.
    pub master: Option<u32>,
}

impl Neighbour {
    /// A permanent entry without an origin.
    #[must_use]
    pub fn permanent(ifindex: u32, address: IpAddr, mac: MacAddr) -> Self {
        Self {
            ifindex,
            address,
            mac: Some(mac),
            state: NeighbourState::PERMANENT,
            proxy: false,
            ext_learned: false,
            protocol: None,
        }
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        let proxy = if self.proxy { NTF_PROXY } else { 0 };
        let flags = proxy | if self.ext_learned { NTF_EXT_LEARNED } else { 0 };
        let family = af(IpFamily::of(self.address));
        writer.raw(&header(family, self.ifindex, self.state.0, flags));
        writer.put(NDA_DST, &ip_bytes(self.address));
        if let Some(mac) = self.mac {
            writer.put(NDA_LLADDR, &mac.0);
        }
        if let Some(protocol) = self.protocol {
            writer.put_u8(NDA_PROTOCOL, protocol.0);
        }
    }

    /// Reads RTM_NEWNEIGH; `None` if the message is another, or of another family.
    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        let (family, ifindex, state, flags) = read_header(message)?;
        if family == AF_BRIDGE {
            return None;
        }
        let (mut address, mut mac, mut protocol) = (None, None, None);
        for attribute in message.attributes(NDMSG) {
            match attribute.kind {
                NDA_DST => address = ip_from(attribute.value),
                NDA_LLADDR => mac = attribute.value.try_into().ok().map(MacAddr),
                NDA_PROTOCOL => protocol = attribute.u8().map(RouteProtocol),
                _ => {}
            }
        }
        Some(Self {
            ifindex,
            address: address?,
            mac,
            state: NeighbourState(state),
            proxy: flags & NTF_PROXY != 0,
            ext_learned: flags & NTF_EXT_LEARNED != 0,
            protocol,
        })
    }
}

impl Fdb {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.raw(&header(AF_BRIDGE, self.ifindex, self.state.0, NTF_MASTER));
        writer.put(NDA_LLADDR, &self.mac.0);
        if let Some(vlan) = self.vlan {
            writer.put_u16(NDA_VLAN, vlan);
        }
    }

    /// Reads RTM_NEWNEIGH; `None` if the message is another, or of another family.
    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        let (family, ifindex, state, _) = read_header(message)?;
        if family != AF_BRIDGE {
            return None;
        }
        let (mut mac, mut vlan, mut master) = (None, None, None);
        for attribute in message.attributes(NDMSG) {
            match attribute.kind {
                NDA_LLADDR => mac = attribute.value.try_into().ok().map(MacAddr),
                NDA_VLAN => vlan = attribute.u16(),
                NDA_MASTER => master = attribute.u32(),
                _ => {}
            }
        }
        Some(Self { ifindex, mac: mac?, vlan, state: NeighbourState(state), master })
    }
}

/// Writes a request for the neighbours of a family, or of one link.
pub(crate) fn encode_dump(writer: &mut Writer, family: IpFamily, ifindex: Option<u32>) {
    writer.raw(&header(af(family), 0, 0, 0));
    if let Some(ifindex) = ifindex {
        writer.put_u32(NDA_IFINDEX, ifindex);
    }
}

/// Writes a request for the addresses of a family for which this host answers (`ip neigh show proxy`).
pub(crate) fn encode_proxied_dump(writer: &mut Writer, family: IpFamily) {
    writer.raw(&header(af(family), 0, 0, NTF_PROXY));
}

/// Writes a request for one neighbour.
pub(crate) fn encode_get(writer: &mut Writer, ifindex: u32, address: IpAddr) {
    writer.raw(&header(af(IpFamily::of(address)), ifindex, 0, 0));
    writer.put(NDA_DST, &ip_bytes(address));
}

/// Writes a request for the forwarding entries of one port or tunnel.
pub(crate) fn encode_fdb_dump(writer: &mut Writer, port: u32) {
    writer.raw(&header(AF_BRIDGE, port, 0, 0));
}

pub(super) fn header(family: u8, ifindex: u32, state: u16, flags: u8) -> [u8; NDMSG] {
    let mut bytes = [0; NDMSG];
    bytes[0] = family;
    bytes[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    bytes[8..10].copy_from_slice(&state.to_ne_bytes());
    bytes[10] = flags;
    bytes
}

pub(super) fn read_header(message: &Message<'_>) -> Option<(u8, u32, u16, u8)> {
    if message.kind != RTM_NEWNEIGH {
        return None;
    }
    Some((
        *message.body.first()?,
        wire::u32_at(message.body, 4)?,
        wire::u16_at(message.body, 8)?,
        *message.body.get(10)?,
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn reads_what_it_writes(
            ifindex: u32, address: IpAddr, mac: Option<[u8; 6]>, state: u16, flags: [bool; 2],
            protocol: Option<u8>,
        ) {
            let [proxy, ext_learned] = flags;
            let (mac, state) = (mac.map(MacAddr), NeighbourState(state));
            let protocol = protocol.map(RouteProtocol);
            let entry = Neighbour { ifindex, address, mac, state, proxy, ext_learned, protocol };
            let mut writer = Writer::new();
            entry.encode(&mut writer);
            let message = Message { kind: RTM_NEWNEIGH, flags: 0, seq: 0, body: writer.bytes() };
            prop_assert_eq!(Neighbour::decode(&message), Some(entry));
        }
    }
}
