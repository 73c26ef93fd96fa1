//! Kinds of links and the settings of each at creation.

use super::link::{IFINFOMSG, ifla};
use super::new_link::put_name;
use super::vxlan::VxlanOptions;
use crate::mac::MacAddr;
use crate::netns::Netns;
use crate::wire::Writer;

/// `linux include/uapi/linux/veth.h` VETH_INFO_PEER.
const VETH_INFO_PEER: u16 = 1;
/// `linux include/uapi/linux/if_link.h`.
pub(crate) const IFLA_MACVLAN_MODE: u16 = 1;
const IFLA_MACVLAN_BC_QUEUE_LEN: u16 = 7;
pub(crate) const IFLA_IPVLAN_MODE: u16 = 1;
pub(crate) const IFLA_IPVLAN_FLAGS: u16 = 2;

/// `linux include/uapi/linux/if_bridge.h` BR_BOOLOPT_NO_LL_LEARN, as a bit.
pub(crate) const BR_BOOLOPT_NO_LL_LEARN: u32 = 1;

/// The kind of a new link, with its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkKind {
    /// A bridge.
    Bridge(BridgeOptions),
    /// One end of a pair; it contains the description of the other.
    Veth(VethPeer),
    /// A link with a hardware address of its own on a parent
    /// ([`NewLink::parent`](super::NewLink::parent)).
    Macvlan(MacvlanOptions),
    /// A link that shares the address of its parent. Kernel: CONFIG_IPVLAN.
    Ipvlan(IpvlanOptions),
    /// The tagged frames of a parent. Kernel: CONFIG_VLAN_8021Q.
    Vlan(VlanOptions),
    /// A link that leads nowhere. Kernel: CONFIG_DUMMY.
    Dummy,
    /// A link for shaping incoming traffic. Kernel: CONFIG_IFB.
    Ifb,
    /// A routing domain with its table. Kernel: CONFIG_NET_VRF.
    Vrf {
        /// The routing table of the links in it.
        table: u32,
    },
    /// A tunnel over UDP that carries Ethernet frames (RFC 7348). Kernel: CONFIG_VXLAN.
    Vxlan(VxlanOptions),
}

/// Settings of a bridge; `None` is left to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BridgeOptions {
    /// Distinguishes VLANs (IFLA_BR_VLAN_FILTERING). Kernel: CONFIG_BRIDGE_VLAN_FILTERING.
    pub vlan_filtering: Option<bool>,
    /// VLAN of the untagged frames of new ports, 0 for none (IFLA_BR_VLAN_DEFAULT_PVID).
    pub default_pvid: Option<u16>,
    /// Watches multicast memberships (IFLA_BR_MCAST_SNOOPING).
    pub multicast_snooping: Option<bool>,
    /// Looks for loops by STP; a new port carries no frames for twice the forward delay
    /// (IFLA_BR_STP_STATE).
    pub stp: Option<bool>,
    /// Learns source addresses from frames to 01:80:c2:00:00:00 to :0f, some of which no packet
    /// filter sees (bit BR_BOOLOPT_NO_LL_LEARN of IFLA_BR_MULTI_BOOLOPT, inverted). Kernel: 5.0;
    /// older ones ignore it.
    pub link_local_learning: Option<bool>,
    /// Shows IPv4 packets within its frames to the hooks of IPv4 (IFLA_BR_NF_CALL_IPTABLES),
    /// independently of `net.bridge.bridge-nf-call-iptables`. Kernel: CONFIG_BRIDGE_NETFILTER, and
    /// the module `br_netfilter`.
    pub shows_ipv4: Option<bool>,
    /// The same for IPv6 (IFLA_BR_NF_CALL_IP6TABLES).
    pub shows_ipv6: Option<bool>,
}

/// The other end of a new veth pair. It is created down: the kernel links the two as a pair only
/// after it has created both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VethPeer {
    /// Its name.
    pub name: String,
    /// Its address; `None`: random.
    pub mac: Option<MacAddr>,
    /// Its MTU in bytes.
    pub mtu: Option<u32>,
    /// Where it is created; `None`: beside this end.
    pub netns: Option<Netns>,
    /// Length of its transmit queue in packets.
    pub tx_queue_len: Option<u32>,
    /// The number of its queues, in each direction; see
    /// [`NewLink::queues`](super::NewLink::queues).
    pub queues: Option<u32>,
}

/// Settings of a macvlan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MacvlanOptions {
    /// Which links it may talk to.
    pub mode: MacvlanMode,
    /// How many broadcast frames may wait at the parent (IFLA_MACVLAN_BC_QUEUE_LEN).
    pub broadcast_queue_len: Option<u32>,
}

/// Which links a macvlan may talk to (MACVLAN_MODE_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MacvlanMode {
    /// Not with its siblings.
    Private,
    /// With its siblings through an outer bridge.
    Vepa,
    /// With its siblings directly.
    Bridge,
    /// Takes over the parent.
    Passthru,
}

/// Settings of an ipvlan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpvlanOptions {
    /// How it forwards. The kernel has one mode for all ipvlans of a parent: the newest link sets
    /// it for all.
    pub mode: IpvlanMode,
    /// Which links it may talk to; `None`: as the parent's other ipvlans, or
    /// [`IpvlanReach::Bridge`] for the first. One setting for all of them too.
    pub reach: Option<IpvlanReach>,
}

/// Which links an ipvlan may talk to (IPVLAN_F_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpvlanReach {
    /// With its siblings directly.
    Bridge,
    /// Not with its siblings.
    Private,
    /// With its siblings through an outer bridge.
    Vepa,
}

/// How an ipvlan forwards (IPVLAN_MODE_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpvlanMode {
    /// Switching.
    L2,
    /// Routing.
    L3,
    /// Routing; the parent's namespace sees the packets.
    L3s,
}

/// Settings of an 802.1Q link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanOptions {
    /// VLAN ID.
    pub id: u16,
    /// The kind of tag.
    pub protocol: VlanProtocol,
}

/// The tag that contains a VLAN ID (`linux include/uapi/linux/if_ether.h` ETH_P_8021Q,
/// ETH_P_8021AD).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VlanProtocol {
    /// The customer's tag, IEEE 802.1Q.
    #[default]
    Dot1Q,
    /// The provider's tag, IEEE 802.1ad.
    Dot1Ad,
}

impl VlanProtocol {
    /// Its EtherType.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Dot1Q => 0x8100,
            Self::Dot1Ad => 0x88a8,
        }
    }
}

/// Writes IFLA_NUM_TX_QUEUES and IFLA_NUM_RX_QUEUES.
pub(crate) fn encode_queues(queues: Option<u32>, writer: &mut Writer) {
    if let Some(queues) = queues {
        writer.put_u32(ifla::NUM_TX_QUEUES, queues);
        writer.put_u32(ifla::NUM_RX_QUEUES, queues);
    }
}

impl VethPeer {
    /// A peer with only a name set.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            mac: None,
            mtu: None,
            netns: None,
            tx_queue_len: None,
            queues: None,
        }
    }
}

impl LinkKind {
    /// Returns the kernel's name for the kind (IFLA_INFO_KIND).
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bridge(_) => "bridge",
            Self::Veth(_) => "veth",
            Self::Macvlan(_) => "macvlan",
            Self::Ipvlan(_) => "ipvlan",
            Self::Vlan(_) => "vlan",
            Self::Dummy => "dummy",
            Self::Ifb => "ifb",
            Self::Vrf { .. } => "vrf",
            Self::Vxlan(_) => "vxlan",
        }
    }

    /// Writes IFLA_LINKINFO.
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.nest_plain(ifla::LINKINFO, |writer| {
            writer.put_text(ifla::INFO_KIND, self.name());
            if !matches!(self, Self::Dummy | Self::Ifb) {
                writer.nest_plain(ifla::INFO_DATA, |writer| self.encode_data(writer));
            }
        });
    }

    fn encode_data(&self, writer: &mut Writer) {
        match self {
            Self::Bridge(options) => options.encode(writer),
            Self::Veth(peer) => peer.encode(writer),
            Self::Macvlan(options) => {
                writer.put_u32(IFLA_MACVLAN_MODE, options.mode.number());
                if let Some(length) = options.broadcast_queue_len {
                    writer.put_u32(IFLA_MACVLAN_BC_QUEUE_LEN, length);
                }
            }
            Self::Ipvlan(options) => {
                writer.put_u16(IFLA_IPVLAN_MODE, options.mode.number());
                if let Some(reach) = options.reach {
                    writer.put_u16(IFLA_IPVLAN_FLAGS, reach.number());
                }
            }
            Self::Vlan(options) => {
                writer.put_u16(ifla::VLAN_ID, options.id);
                writer.put(ifla::VLAN_PROTOCOL, &options.protocol.number().to_be_bytes());
            }
            Self::Vrf { table } => writer.put_u32(ifla::VRF_TABLE, *table),
            Self::Vxlan(options) => options.encode(writer),
            Self::Dummy | Self::Ifb => {}
        }
    }
}

impl BridgeOptions {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        if let Some(on) = self.vlan_filtering {
            writer.put_u8(ifla::BR_VLAN_FILTERING, on.into());
        }
        if let Some(pvid) = self.default_pvid {
            writer.put_u16(ifla::BR_VLAN_DEFAULT_PVID, pvid);
        }
        if let Some(on) = self.multicast_snooping {
            writer.put_u8(ifla::BR_MCAST_SNOOPING, on.into());
        }
        if let Some(on) = self.stp {
            writer.put_u32(ifla::BR_STP_STATE, on.into());
        }
        if let Some(on) = self.link_local_learning {
            // `struct br_boolopt_multi`: the values, and a mask of those that count.
            let bit = BR_BOOLOPT_NO_LL_LEARN;
            let [value, mask] = [if on { 0 } else { bit }, bit].map(u32::to_ne_bytes);
            writer.put(ifla::BR_MULTI_BOOLOPT, &[value, mask].concat());
        }
        if let Some(on) = self.shows_ipv4 {
            writer.put_u8(ifla::BR_NF_CALL_IPTABLES, on.into());
        }
        if let Some(on) = self.shows_ipv6 {
            writer.put_u8(ifla::BR_NF_CALL_IP6TABLES, on.into());
        }
    }
}

impl VethPeer {
    fn encode(&self, writer: &mut Writer) {
        writer.nest_plain(VETH_INFO_PEER, |writer| {
            writer.raw(&header(super::AF_UNSPEC, 0, 0, 0));
            put_name(writer, &self.name);
            if let Some(mac) = self.mac {
                writer.put(ifla::ADDRESS, &mac.0);
            }
            if let Some(mtu) = self.mtu {
                writer.put_u32(ifla::MTU, mtu);
            }
            encode_queues(self.queues, writer);
            if let Some(length) = self.tx_queue_len {
                writer.put_u32(ifla::TXQLEN, length);
            }
            put_netns(writer, self.netns.as_ref());
        });
    }
}

impl MacvlanMode {
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        let all = [Self::Private, Self::Vepa, Self::Bridge, Self::Passthru];
        all.into_iter().find(|mode| mode.number() == number)
    }

    fn number(self) -> u32 {
        match self {
            Self::Private => 1,
            Self::Vepa => 2,
            Self::Bridge => 4,
            Self::Passthru => 8,
        }
    }
}

impl IpvlanMode {
    pub(crate) fn from_number(number: u16) -> Option<Self> {
        [Self::L2, Self::L3, Self::L3s].into_iter().find(|mode| mode.number() == number)
    }

    fn number(self) -> u16 {
        match self {
            Self::L2 => 0,
            Self::L3 => 1,
            Self::L3s => 2,
        }
    }
}

impl IpvlanReach {
    pub(crate) fn from_number(number: u16) -> Option<Self> {
        [Self::Bridge, Self::Private, Self::Vepa].into_iter().find(|way| way.number() == number)
    }

    fn number(self) -> u16 {
        match self {
            Self::Bridge => 0,
            Self::Private => 1,
            Self::Vepa => 2,
        }
    }
}

/// `struct ifinfomsg`.
pub(crate) fn header(family: u8, index: u32, flags: u32, change: u32) -> [u8; IFINFOMSG] {
    let mut bytes = [0; IFINFOMSG];
    bytes[0] = family;
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[12..16].copy_from_slice(&change.to_ne_bytes());
    bytes
}

/// Writes IFLA_NET_NS_FD. The value keeps the descriptor open until the message is sent.
pub(crate) fn put_netns(writer: &mut Writer, netns: Option<&Netns>) {
    use std::os::fd::AsRawFd;
    if let Some(netns) = netns {
        writer.put(ifla::NET_NS_FD, &netns.as_fd().as_raw_fd().to_ne_bytes());
    }
}
