//! VXLAN tunnels (RFC 7348) and their forwarding entries: which host a frame for a MAC address is
//! sent to.
//!
//! A tunnel link has no peers of its own: each remote host needs a forwarding entry ([`VxlanFdb`])
//! for the MAC address of its end, and a neighbour for the IP address that routes name as their
//! gateway.
//!
//! ```no_run
//! use kernel::route::{
//!     Change, LinkKind, Neighbour, NewLink, NeighbourState, RouteSocket, VxlanFdb, VxlanOptions,
//! };
//!
//! let mut netlink = RouteSocket::open()?;
//! let eth0 = netlink.link_by_name("eth0")?.ok_or("no eth0")?;
//! let options = VxlanOptions {
//!     local: Some("192.0.2.1".parse()?),
//!     underlay: Some(eth0.index),
//!     ..VxlanOptions::new(1, 8472)
//! };
//! let link = NewLink {
//!     mac: Some("02:00:00:00:00:01".parse()?),
//!     mtu: Some(1450),
//!     up: true,
//!     ..NewLink::new("vxlan1", LinkKind::Vxlan(options))
//! };
//! let ifindex = netlink.create_link(&link)?.index;
//! let mac = "02:00:00:00:00:02".parse()?;
//! netlink.apply(&[
//!     Change::SetVxlanFdb(VxlanFdb::new(ifindex, mac, "192.0.2.2".parse()?)),
//!     Change::SetNeighbour(Neighbour::permanent(ifindex, "10.244.2.0".parse()?, mac)),
//! ])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::net::IpAddr;

use super::neighbour::{
    NDA_DST, NDA_IFINDEX, NDA_LLADDR, NDA_PORT, NDA_VNI, NDMSG, NTF_SELF, header, read_header,
};
use super::{AF_BRIDGE, NeighbourState, ip_bytes, ip_from};
use crate::mac::MacAddr;
use crate::wire::{Attribute, Message, Writer};

/// `linux include/uapi/linux/if_link.h` IFLA_VXLAN_*.
mod info {
    pub(super) const ID: u16 = 1;
    pub(super) const GROUP: u16 = 2;
    pub(super) const LINK: u16 = 3;
    pub(super) const LOCAL: u16 = 4;
    pub(super) const LEARNING: u16 = 7;
    pub(super) const PORT: u16 = 15;
    pub(super) const GROUP6: u16 = 16;
    pub(super) const LOCAL6: u16 = 17;
    pub(super) const UDP_CSUM: u16 = 18;
    pub(super) const UDP_ZERO_CSUM6_TX: u16 = 19;
    pub(super) const UDP_ZERO_CSUM6_RX: u16 = 20;
}

/// Settings that [`VxlanOptions`] lacks, off by default, with the words of `ip link` for them.
const SWITCHES: [(u16, &str); 16] = [
    (5, "ttl"),
    (6, "tos"),
    (11, "proxy"),
    (12, "rsc"),
    (13, "l2miss"),
    (14, "l3miss"),
    (21, "remcsumtx"),
    (22, "remcsumrx"),
    (23, "gbp"),
    (24, "remcsum_nopartial"),
    (25, "external"),
    (26, "flowlabel"),
    (27, "gpe"),
    (28, "ttl inherit"),
    (29, "df"),
    (30, "vnifilter"),
];

/// Settings of a VXLAN tunnel. VNI, port and checksums cannot be changed later; the rest by
/// [`VxlanSet`].
///
/// Kernel: CONFIG_VXLAN, and CONFIG_IPV6 for a local IPv6 address. Without an address the tunnel
/// carries its packets over IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VxlanOptions {
    /// The network identifier, below 2^24 (IFLA_VXLAN_ID); the kernel refuses larger ones with
    /// ERANGE. Two tunnels of a namespace with the same VNI, port, version of IP and settings for
    /// receiving exclude each other (EEXIST).
    pub vni: u32,
    /// The UDP port that the tunnel receives on, and sends to unless a forwarding entry says
    /// otherwise (IFLA_VXLAN_PORT). The kernel's own default is 8472, IANA's number is 4789.
    pub port: u16,
    /// The source address of its packets (IFLA_VXLAN_LOCAL, IFLA_VXLAN_LOCAL6); its version is the
    /// version of all of them.
    pub local: Option<IpAddr>,
    /// The link that carries its packets (IFLA_VXLAN_LINK). The tunnel's largest MTU follows from
    /// it. The tunnel is removed with it.
    pub underlay: Option<u32>,
    /// Whether the tunnel learns forwarding entries from packets: from every host that can send one
    /// to the port (IFLA_VXLAN_LEARNING).
    pub learning: bool,
    /// Over IPv4: packets carry a UDP checksum (IFLA_VXLAN_UDP_CSUM).
    pub checksum: bool,
    /// Over IPv6: packets are sent without a UDP checksum (IFLA_VXLAN_UDP_ZERO_CSUM6_TX, RFC 6935).
    pub zero_checksum6_tx: bool,
    /// Over IPv6: packets without a UDP checksum are accepted (IFLA_VXLAN_UDP_ZERO_CSUM6_RX).
    pub zero_checksum6_rx: bool,
}

/// Settings of a VXLAN tunnel to change while it carries packets; `None` leaves one unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VxlanSet {
    /// The source address of its packets. The kernel refuses one of the other version of IP
    /// (EOPNOTSUPP).
    pub local: Option<IpAddr>,
    /// The link that carries its packets.
    pub underlay: Option<u32>,
    /// Whether forwarding entries are learnt from packets.
    pub learning: Option<bool>,
}

/// A VXLAN tunnel as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VxlanInfo {
    /// The settings that we know how to make. What the kernel does not report is off or unset.
    pub options: VxlanOptions,
    /// Where frames without a forwarding entry are sent (IFLA_VXLAN_GROUP, IFLA_VXLAN_GROUP6).
    pub group: Option<IpAddr>,
    /// Which of the settings that [`VxlanOptions`] lacks are on, in the words of `ip link`: `gbp`,
    /// `l2miss`, `external`, … Empty for a tunnel that we made.
    pub switches: Vec<&'static str>,
}

/// A forwarding entry of a VXLAN tunnel: the host that frames for a MAC address are sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VxlanFdb {
    /// The tunnel.
    pub ifindex: u32,
    /// The MAC address. All zero: every address without an entry.
    pub mac: MacAddr,
    /// The host (NDA_DST); its version of IP must be the tunnel's.
    pub destination: IpAddr,
    /// The VNI of the packets (NDA_VNI); `None`: the tunnel's, which the kernel does not report.
    pub vni: Option<u32>,
    /// The UDP port they are sent to (NDA_PORT); `None`: the tunnel's, which the kernel does not
    /// report.
    pub port: Option<u16>,
    /// The link they leave by (NDA_IFINDEX); `None`: as routed.
    pub oif: Option<u32>,
    /// Permanent or reachable, no other, but iproute2 adds noarp: ask
    /// [`NeighbourState::is_permanent`]. An entry that the tunnel learnt is reachable.
    pub state: NeighbourState,
}

impl VxlanOptions {
    /// A tunnel with nothing but VNI and port set: no learning, and checksums as `ip link` makes
    /// them by default (IPv4 with, IPv6 with).
    #[must_use]
    pub fn new(vni: u32, port: u16) -> Self {
        Self {
            vni,
            port,
            local: None,
            underlay: None,
            learning: false,
            checksum: true,
            zero_checksum6_tx: false,
            zero_checksum6_rx: false,
        }
    }

    /// Writes the contents of IFLA_INFO_DATA.
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.put_u32(info::ID, self.vni);
        let set =
            VxlanSet { local: self.local, underlay: self.underlay, learning: Some(self.learning) };
        set.encode(writer);
        writer.put(info::PORT, &self.port.to_be_bytes());
        writer.put_u8(info::UDP_CSUM, self.checksum.into());
        writer.put_u8(info::UDP_ZERO_CSUM6_TX, self.zero_checksum6_tx.into());
        writer.put_u8(info::UDP_ZERO_CSUM6_RX, self.zero_checksum6_rx.into());
    }
}

impl VxlanSet {
    /// Writes the contents of IFLA_INFO_DATA.
    pub(crate) fn encode(&self, writer: &mut Writer) {
        if let Some(underlay) = self.underlay {
            writer.put_u32(info::LINK, underlay);
        }
        if let Some(local) = self.local {
            let kind = if local.is_ipv4() { info::LOCAL } else { info::LOCAL6 };
            writer.put(kind, &ip_bytes(local));
        }
        if let Some(on) = self.learning {
            writer.put_u8(info::LEARNING, on.into());
        }
    }
}

impl VxlanInfo {
    /// Reads the contents of IFLA_INFO_DATA.
    pub(crate) fn decode(data: &Attribute<'_>) -> Self {
        let mut options = VxlanOptions { checksum: false, ..VxlanOptions::new(0, 0) };
        let (mut group, mut switches) = (None, Vec::new());
        for attribute in data.nested() {
            // Some settings are numbers, others are on by being there.
            let on = attribute.value.is_empty() || attribute.value.iter().any(|byte| *byte != 0);
            match attribute.kind {
                info::ID => options.vni = attribute.u32().unwrap_or_default(),
                info::PORT => options.port = attribute.u16_be().unwrap_or_default(),
                info::LINK => options.underlay = attribute.u32().filter(|&index| index != 0),
                info::LOCAL | info::LOCAL6 => options.local = ip_from(attribute.value),
                info::GROUP | info::GROUP6 => group = ip_from(attribute.value),
                info::LEARNING => options.learning = on,
                info::UDP_CSUM => options.checksum = on,
                info::UDP_ZERO_CSUM6_TX => options.zero_checksum6_tx = on,
                info::UDP_ZERO_CSUM6_RX => options.zero_checksum6_rx = on,
                kind if on => {
                    let known = SWITCHES.iter().find(|switch| switch.0 == kind);
                    switches.extend(known.map(|switch| switch.1));
                }
                _ => {}
            }
        }
        Self { options, group, switches }
    }
}

impl VxlanFdb {
    /// A permanent entry that uses the tunnel's own VNI and port.
    #[must_use]
    pub fn new(ifindex: u32, mac: MacAddr, destination: IpAddr) -> Self {
        let state = NeighbourState::PERMANENT;
        Self { ifindex, mac, destination, vni: None, port: None, oif: None, state }
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        // NTF_SELF: the tunnel's own table, not that of a bridge it may be a port of.
        writer.raw(&header(AF_BRIDGE, self.ifindex, self.state.0, NTF_SELF));
        writer.put(NDA_LLADDR, &self.mac.0);
        writer.put(NDA_DST, &ip_bytes(self.destination));
        if let Some(port) = self.port {
            writer.put(NDA_PORT, &port.to_be_bytes());
        }
        if let Some(vni) = self.vni {
            writer.put_u32(NDA_VNI, vni);
        }
        if let Some(oif) = self.oif {
            writer.put_u32(NDA_IFINDEX, oif);
        }
    }

    /// Reads RTM_NEWNEIGH; `None` if the message is another, or an entry without a destination.
    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        let (family, ifindex, state, _) = read_header(message)?;
        if family != AF_BRIDGE {
            return None;
        }
        let (mut mac, mut destination) = (None, None);
        let (mut vni, mut port, mut oif) = (None, None, None);
        for attribute in message.attributes(NDMSG) {
            match attribute.kind {
                NDA_LLADDR => mac = attribute.value.try_into().ok().map(MacAddr),
                NDA_DST => destination = ip_from(attribute.value),
                NDA_PORT => port = attribute.u16_be(),
                NDA_VNI => vni = attribute.u32(),
                NDA_IFINDEX => oif = attribute.u32(),
                _ => {}
            }
        }
        let state = NeighbourState(state);
        Some(Self { ifindex, mac: mac?, destination: destination?, vni, port, oif, state })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::neighbour::RTM_NEWNEIGH;
    use super::*;

    fn info(write: impl FnOnce(&mut Writer)) -> VxlanInfo {
        let mut writer = Writer::new();
        write(&mut writer);
        VxlanInfo::decode(&Attribute { kind: 2, value: writer.bytes() })
    }

    /// The bytes that `bridge fdb add 02:00:00:00:00:02 dst 192.0.2.2 dev … self permanent` sends.
    #[test]
    #[cfg(target_endian = "little")]
    fn an_entry_as_iproute2_sends_it() {
        let state = NeighbourState(NeighbourState::PERMANENT.0 | NeighbourState::NOARP.0);
        let entry = VxlanFdb {
            state,
            ..VxlanFdb::new(4, MacAddr([2, 0, 0, 0, 0, 2]), [192, 0, 2, 2].into())
        };
        let mut writer = Writer::new();
        entry.encode(&mut writer);
        let mut expected = vec![7, 0, 0, 0, 4, 0, 0, 0, 0xc0, 0, 2, 0];
        expected.extend([10, 0, 2, 0, 2, 0, 0, 0, 0, 2, 0, 0]);
        expected.extend([8, 0, 1, 0, 192, 0, 2, 2]);
        assert_eq!(writer.bytes(), expected);
    }

    #[test]
    fn switches_are_numbers_or_flags() {
        let found = info(|writer| {
            VxlanOptions::new(1, 8472).encode(writer);
            writer.put_u8(11, 0);
            writer.put_u8(5, 0);
            writer.put_u8(6, 16);
            writer.put_u8(13, 1);
            writer.put(26, &[0, 0, 0, 7]);
            writer.put(23, &[]);
            writer.put_u8(31, 1);
            writer.put_u8(99, 1);
        });
        assert_eq!(found.switches, ["tos", "l2miss", "flowlabel", "gbp"]);
    }

    proptest! {
        #[test]
        fn reads_the_options_it_writes(
            vni: u32, port: u16, local: Option<std::net::IpAddr>, underlay in 0..u32::MAX,
            switches: [bool; 4],
        ) {
            let [learning, checksum, zero_checksum6_tx, zero_checksum6_rx] = switches;
            let underlay = Some(underlay).filter(|&index| index != 0);
            let options = VxlanOptions {
                vni, port, local, underlay, learning, checksum, zero_checksum6_tx, zero_checksum6_rx,
            };
            let found = info(|writer| options.encode(writer));
            prop_assert_eq!(found, VxlanInfo { options, group: None, switches: Vec::new() });
        }

        #[test]
        fn reads_the_entries_it_writes(
            ifindex: u32, mac: [u8; 6], destination: std::net::IpAddr, vni: Option<u32>,
            port: Option<u16>, oif: Option<u32>, state: u16,
        ) {
            let (mac, state) = (MacAddr(mac), NeighbourState(state));
            let entry = VxlanFdb { ifindex, mac, destination, vni, port, oif, state };
            let mut writer = Writer::new();
            entry.encode(&mut writer);
            let message = Message { kind: RTM_NEWNEIGH, flags: 0, seq: 0, body: writer.bytes() };
            prop_assert_eq!(VxlanFdb::decode(&message), Some(entry));
        }
    }
}
