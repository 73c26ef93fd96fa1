//! A link as the kernel describes it.

use super::AF_INET6;
use super::link_kind::{
    BR_BOOLOPT_NO_LL_LEARN, IFLA_IPVLAN_FLAGS, IFLA_IPVLAN_MODE, IFLA_MACVLAN_MODE, IpvlanMode,
    IpvlanReach, MacvlanMode,
};
use super::vxlan::VxlanInfo;
use crate::mac::MacAddr;
use crate::wire::{self, Attribute, Message};

/// `linux include/uapi/linux/rtnetlink.h` RTM_NEWLINK: also the reply to RTM_GETLINK.
pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_DELLINK: u16 = 17;
pub(crate) const RTM_DELLINKPROP: u16 = 109;
pub(crate) const RTM_GETLINK: u16 = 18;
pub(crate) const RTM_SETLINK: u16 = 19;
/// Size of `struct ifinfomsg`.
pub(crate) const IFINFOMSG: usize = 16;
/// `linux include/uapi/linux/if_link.h`.
const IN6_ADDR_GEN_MODE_EUI64: u8 = 0;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;

/// `linux include/uapi/linux/if_link.h` IFLA_*.
pub(crate) mod ifla {
    pub(crate) const ADDRESS: u16 = 1;
    pub(crate) const IFNAME: u16 = 3;
    pub(crate) const MTU: u16 = 4;
    pub(crate) const LINK: u16 = 5;
    pub(crate) const MASTER: u16 = 10;
    pub(crate) const TXQLEN: u16 = 13;
    pub(crate) const OPERSTATE: u16 = 16;
    pub(crate) const LINKINFO: u16 = 18;
    pub(crate) const IFALIAS: u16 = 20;
    pub(crate) const AF_SPEC: u16 = 26;
    pub(crate) const GROUP: u16 = 27;
    pub(crate) const NET_NS_FD: u16 = 28;
    pub(crate) const EXT_MASK: u16 = 29;
    pub(crate) const PROMISCUITY: u16 = 30;
    pub(crate) const NUM_TX_QUEUES: u16 = 31;
    pub(crate) const NUM_RX_QUEUES: u16 = 32;
    pub(crate) const LINK_NETNSID: u16 = 37;
    pub(crate) const PHYS_PORT_NAME: u16 = 38;
    pub(crate) const XDP: u16 = 43;
    pub(crate) const MIN_MTU: u16 = 50;
    pub(crate) const MAX_MTU: u16 = 51;
    pub(crate) const PROP_LIST: u16 = 52;
    pub(crate) const ALT_IFNAME: u16 = 53;
    pub(crate) const PERM_ADDRESS: u16 = 54;
    pub(crate) const PARENT_DEV_NAME: u16 = 56;
    pub(crate) const PARENT_DEV_BUS_NAME: u16 = 57;
    pub(crate) const ALLMULTI: u16 = 61;

    /// In XDP: how a program is attached; 0: none is.
    pub(crate) const XDP_ATTACHED: u16 = 2;

    /// In AF_SPEC, for AF_INET: IPv4 parameters by number.
    pub(crate) const INET_CONF: u16 = 1;
    /// In AF_SPEC, for AF_INET6: IPv6 parameters by number.
    pub(crate) const INET6_CONF: u16 = 2;
    /// In AF_SPEC, for AF_INET6: how the link generates its own IPv6 addresses.
    pub(crate) const INET6_ADDR_GEN_MODE: u16 = 8;

    pub(crate) const INFO_KIND: u16 = 1;
    pub(crate) const INFO_DATA: u16 = 2;
    pub(crate) const INFO_SLAVE_KIND: u16 = 4;
    pub(crate) const INFO_SLAVE_DATA: u16 = 5;

    pub(crate) const BR_STP_STATE: u16 = 5;
    pub(crate) const BR_VLAN_FILTERING: u16 = 7;
    pub(crate) const BR_MULTI_BOOLOPT: u16 = 46;
    pub(crate) const BR_MCAST_SNOOPING: u16 = 23;
    pub(crate) const BR_NF_CALL_IPTABLES: u16 = 36;
    pub(crate) const BR_NF_CALL_IP6TABLES: u16 = 37;
    pub(crate) const BR_VLAN_DEFAULT_PVID: u16 = 39;

    pub(crate) const BRPORT_STATE: u16 = 1;
    pub(crate) const BRPORT_MODE: u16 = 4;
    pub(crate) const BRPORT_LEARNING: u16 = 8;
    pub(crate) const BRPORT_UNICAST_FLOOD: u16 = 9;
    pub(crate) const BRPORT_MCAST_FLOOD: u16 = 27;
    pub(crate) const BRPORT_BCAST_FLOOD: u16 = 30;
    pub(crate) const BRPORT_NEIGH_SUPPRESS: u16 = 32;
    pub(crate) const BRPORT_ISOLATED: u16 = 33;
    pub(crate) const BRPORT_LOCKED: u16 = 39;

    pub(crate) const VLAN_ID: u16 = 1;
    pub(crate) const VLAN_PROTOCOL: u16 = 5;

    pub(crate) const VRF_TABLE: u16 = 1;

    pub(crate) const TUN_OWNER: u16 = 1;
    pub(crate) const TUN_GROUP: u16 = 2;
    pub(crate) const TUN_TYPE: u16 = 3;
    pub(crate) const TUN_VNET_HDR: u16 = 5;
    pub(crate) const TUN_PERSIST: u16 = 6;
    pub(crate) const TUN_MULTI_QUEUE: u16 = 7;
    pub(crate) const TUN_NUM_QUEUES: u16 = 8;
    pub(crate) const TUN_NUM_DISABLED_QUEUES: u16 = 9;
}

/// `linux include/uapi/linux/if.h` IFF_*.
pub(crate) mod iff {
    pub(crate) const UP: u32 = 1;
    pub(crate) const LOOPBACK: u32 = 8;
    pub(crate) const NOARP: u32 = 0x80;
    pub(crate) const PROMISC: u32 = 0x100;
    pub(crate) const ALLMULTI: u32 = 0x200;
    pub(crate) const MULTICAST: u32 = 0x1000;
    pub(crate) const LOWER_UP: u32 = 0x1_0000;
}

/// A link.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Link {
    /// Number in its namespace (`ifi_index`).
    pub index: u32,
    /// Name (IFLA_IFNAME).
    pub name: String,
    /// Further names (IFLA_ALT_IFNAME).
    pub alt_names: Vec<String>,
    /// Its kind (IFLA_INFO_KIND): `veth`, `bridge`, …; `None` for hardware and loopback.
    pub kind: Option<String>,
    /// Hardware address (IFLA_ADDRESS), if it is an Ethernet one.
    pub mac: Option<MacAddr>,
    /// The hardware's own address (IFLA_PERM_ADDRESS).
    pub permanent_mac: Option<MacAddr>,
    /// The device it is a function of (IFLA_PARENT_DEV_NAME, kernel 5.14), as its bus names it: a
    /// PCI address, …
    pub parent_device: Option<String>,
    /// The bus of that device (IFLA_PARENT_DEV_BUS_NAME): `pci`, `virtio`, `auxiliary`, …
    pub parent_bus: Option<String>,
    /// Largest packet, in bytes (IFLA_MTU).
    pub mtu: u32,
    /// Smallest MTU the link accepts, in bytes (IFLA_MIN_MTU).
    pub min_mtu: Option<u32>,
    /// Largest MTU the link accepts, in bytes (IFLA_MAX_MTU); zero or `None` if it is not limited.
    pub max_mtu: Option<u32>,
    /// IFF_* as the kernel sends them.
    pub flags: u32,
    /// RFC 2863 state (IFLA_OPERSTATE).
    pub oper_state: OperState,
    /// The bridge, VRF or bond it belongs to (IFLA_MASTER).
    pub master: Option<u32>,
    /// The other end of a veth, the parent of a macvlan or VLAN (IFLA_LINK); an index in the
    /// namespace that [`link_netnsid`](Self::link_netnsid) names.
    pub peer_index: Option<u32>,
    /// The namespace in which `peer_index` is valid (IFLA_LINK_NETNSID); `None`: the link's own.
    pub link_netnsid: Option<i32>,
    /// The kernel has withdrawn the ID of that namespace: it deletes the namespace, and then this
    /// link (`linux net/core/net_namespace.c` NETNSA_NSID_NOT_ASSIGNED).
    pub(crate) is_netnsid_withdrawn: bool,
    /// Free text (IFLA_IFALIAS).
    pub alias: Option<String>,
    /// How many users want it promiscuous (IFLA_PROMISCUITY), including taps and bridges.
    pub promiscuity: u32,
    /// How many users want all multicast (IFLA_ALLMULTI, kernel 6.0).
    pub all_multicast_count: Option<u32>,
    /// Length of the transmit queue in packets (IFLA_TXQLEN).
    pub tx_queue_len: u32,
    /// Number of transmit queues (IFLA_NUM_TX_QUEUES).
    pub tx_queues: u32,
    /// Number of receive queues (IFLA_NUM_RX_QUEUES).
    pub rx_queues: u32,
    /// Device group (IFLA_GROUP).
    pub group: u32,
    /// Its role in the link it belongs to (IFLA_INFO_SLAVE_KIND): `bridge`, `vrf`, …
    pub port_kind: Option<String>,
    /// Its settings as port of a bridge.
    pub port: Option<BridgePort>,
    /// Its settings, if it is a bridge.
    pub bridge: Option<BridgeInfo>,
    /// Its settings, if it is an 802.1Q link.
    pub vlan: Option<VlanInfo>,
    /// Its routing table, if it is a VRF.
    pub vrf_table: Option<u32>,
    /// Its settings, if it is a VXLAN tunnel.
    pub vxlan: Option<Box<VxlanInfo>>,
    /// Its settings, if it is a tun or tap.
    pub tun: Option<TunInfo>,
    /// Its mode, if it is a macvlan (IFLA_MACVLAN_MODE); `None` also for a mode that has no name
    /// here.
    pub macvlan_mode: Option<MacvlanMode>,
    /// How it forwards, if it is an ipvlan (IFLA_IPVLAN_MODE).
    pub ipvlan_mode: Option<IpvlanMode>,
    /// Which ipvlans it may talk to, if it is an ipvlan (IFLA_IPVLAN_FLAGS).
    pub ipvlan_reach: Option<IpvlanReach>,
    /// How it generates link-local IPv6 addresses (sysctl `addr_gen_mode`); `None` without IPv6.
    addr_gen_mode: Option<u8>,
}

/// Operational state, RFC 2863 (`linux Documentation/networking/operstates.rst`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OperState {
    /// The driver does not report it; loopback and tun are in this state while they work.
    #[default]
    Unknown,
    /// Cannot carry packets.
    Down,
    /// The link below is down.
    LowerLayerDown,
    /// Waits for an event, such as authentication.
    Dormant,
    /// Works.
    Up,
    /// Not present, in test, or a number unknown to this code.
    Other(u8),
}

/// Settings of a link as port of a bridge (IFLA_BRPORT_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BridgePort {
    /// STP state: 0 disabled, 1 listening, 2 learning, 3 forwarding, 4 blocking
    /// (IFLA_BRPORT_STATE).
    pub state: u8,
    /// Whether frames may leave by the port they came in (IFLA_BRPORT_MODE).
    pub hairpin: bool,
    /// Whether no frames go to other isolated ports (IFLA_BRPORT_ISOLATED).
    pub isolated: bool,
    /// Source addresses are learnt (IFLA_BRPORT_LEARNING).
    pub learning: bool,
    /// Whether unknown unicast is sent here (IFLA_BRPORT_UNICAST_FLOOD).
    pub unicast_flood: bool,
    /// Whether unknown multicast is sent here (IFLA_BRPORT_MCAST_FLOOD).
    pub multicast_flood: bool,
    /// Broadcast is sent here (IFLA_BRPORT_BCAST_FLOOD).
    pub broadcast_flood: bool,
    /// Whether the bridge answers ARP and neighbour solicitations (IFLA_BRPORT_NEIGH_SUPPRESS).
    pub neighbour_suppress: bool,
    /// Whether frames are taken only from senders that the bridge has an entry for, at this port
    /// (IFLA_BRPORT_LOCKED, kernel 5.18).
    pub locked: bool,
}

/// Settings of a bridge (IFLA_BR_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BridgeInfo {
    /// Whether it distinguishes VLANs (IFLA_BR_VLAN_FILTERING).
    pub vlan_filtering: bool,
    /// The VLAN of untagged frames of new ports (IFLA_BR_VLAN_DEFAULT_PVID); `None` without kernel
    /// support.
    pub default_pvid: Option<u16>,
    /// Multicast memberships are watched (IFLA_BR_MCAST_SNOOPING).
    pub multicast_snooping: bool,
    /// Whether STP looks for loops, in the kernel or in a program (IFLA_BR_STP_STATE).
    pub stp: bool,
    /// Whether source addresses are learnt from frames to link-local groups (see
    /// [`BridgeOptions::link_local_learning`](super::BridgeOptions::link_local_learning)).
    pub link_local_learning: bool,
    /// Whether IPv4 packets within its frames pass the hooks of IPv4, independently of the sysctl
    /// (see [`BridgeOptions::shows_ipv4`](super::BridgeOptions::shows_ipv4)).
    pub shows_ipv4: bool,
    /// The same for IPv6.
    pub shows_ipv6: bool,
}

/// Settings of an 802.1Q link (IFLA_VLAN_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct VlanInfo {
    /// VLAN ID.
    pub id: u16,
    /// EtherType of the tag: 0x8100 or 0x88a8.
    pub protocol: u16,
}

/// Settings of a tun or tap (IFLA_TUN_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TunInfo {
    /// Whether it carries Ethernet frames, not bare packets (IFLA_TUN_TYPE).
    pub tap: bool,
    /// The user who may open it (IFLA_TUN_OWNER).
    pub owner: Option<u32>,
    /// The group that may open it (IFLA_TUN_GROUP).
    pub group: Option<u32>,
    /// Whether it stays when no program has it open (IFLA_TUN_PERSIST).
    pub persistent: bool,
    /// Whether it can have several queues (IFLA_TUN_MULTI_QUEUE).
    pub multi_queue: bool,
    /// How many queues programs have open, also those that are switched off (IFLA_TUN_NUM_QUEUES,
    /// IFLA_TUN_NUM_DISABLED_QUEUES): the kernel says it of one that can have several.
    pub queues: u32,
    /// Whether frames carry a header with offloading hints (IFLA_TUN_VNET_HDR).
    pub vnet_hdr: bool,
}

impl Link {
    /// Whether it is set up (IFF_UP).
    #[must_use]
    pub fn up(&self) -> bool {
        self.flags & iff::UP != 0
    }

    /// Whether its link-local IPv6 address is derived from its hardware address (sysctl
    /// `addr_gen_mode` 0, the kernel's default). False without IPv6.
    #[must_use]
    pub fn link_local_of_mac(&self) -> bool {
        self.addr_gen_mode == Some(IN6_ADDR_GEN_MODE_EUI64)
    }

    /// Whether it generates no link-local IPv6 address (sysctl `addr_gen_mode` 1). False without
    /// IPv6.
    #[must_use]
    pub fn no_own_ipv6(&self) -> bool {
        self.addr_gen_mode == Some(IN6_ADDR_GEN_MODE_NONE)
    }

    /// Whether it generates a link-local IPv6 address in any way. False without IPv6.
    #[must_use]
    pub fn own_ipv6(&self) -> bool {
        self.addr_gen_mode.is_some() && !self.no_own_ipv6()
    }

    /// Whether it has a carrier (IFF_LOWER_UP).
    #[must_use]
    pub fn lower_up(&self) -> bool {
        self.flags & iff::LOWER_UP != 0
    }

    /// Returns the VLAN in which the ports of this bridge begin, untagged; 0 if in none.
    #[must_use]
    pub fn default_vlan(&self) -> u16 {
        self.bridge.as_ref().and_then(|bridge| bridge.default_pvid).unwrap_or(1)
    }

    /// Whether it was set promiscuous (IFF_PROMISC); see also [`promiscuity`](Self::promiscuity).
    #[must_use]
    pub fn promiscuous(&self) -> bool {
        self.flags & iff::PROMISC != 0
    }

    /// Whether it was set to receive all multicast (IFF_ALLMULTI).
    #[must_use]
    pub fn all_multicast(&self) -> bool {
        self.flags & iff::ALLMULTI != 0
    }

    /// Whether it neither asks nor answers for hardware addresses (IFF_NOARP).
    #[must_use]
    pub fn no_arp(&self) -> bool {
        self.flags & iff::NOARP != 0
    }

    /// Whether it can receive multicast (IFF_MULTICAST).
    #[must_use]
    pub fn multicast(&self) -> bool {
        self.flags & iff::MULTICAST != 0
    }

    /// Whether it is the loopback link (IFF_LOOPBACK).
    #[must_use]
    pub fn loopback(&self) -> bool {
        self.flags & iff::LOOPBACK != 0
    }

    /// Whether it is of the given kind.
    #[must_use]
    pub fn is_kind(&self, kind: &str) -> bool {
        self.kind.as_deref() == Some(kind)
    }

    /// Whether it is of a kind whose links are made on a parent, which [`peer_index`](Self::peer_index)
    /// names: a macvlan, an ipvlan, a tap of either, or a VLAN.
    #[must_use]
    pub fn is_on_parent(&self) -> bool {
        ["macvlan", "macvtap", "ipvlan", "ipvtap", "vlan"].iter().any(|kind| self.is_kind(kind))
    }

    /// Reads RTM_NEWLINK; `None` if the message is another.
    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        if message.kind != RTM_NEWLINK {
            return None;
        }
        let mut link = Self {
            index: wire::u32_at(message.body, 4)?,
            flags: wire::u32_at(message.body, 8)?,
            ..Self::default()
        };
        for attribute in message.attributes(IFINFOMSG) {
            link.read(&attribute);
        }
        Some(link)
    }

    fn read(&mut self, attribute: &Attribute<'_>) {
        match attribute.kind {
            ifla::ADDRESS => self.mac = mac(attribute),
            ifla::PERM_ADDRESS => self.permanent_mac = mac(attribute),
            ifla::PARENT_DEV_NAME => self.parent_device = Some(attribute.text()),
            ifla::PARENT_DEV_BUS_NAME => self.parent_bus = Some(attribute.text()),
            ifla::IFNAME => self.name = attribute.text(),
            ifla::MTU => self.mtu = attribute.u32().unwrap_or_default(),
            ifla::MIN_MTU => self.min_mtu = attribute.u32(),
            ifla::MAX_MTU => self.max_mtu = attribute.u32(),
            // Zero: a veth whose peer is gone, a tunnel without a parent.
            ifla::LINK => self.peer_index = attribute.u32().filter(|&index| index != 0),
            ifla::LINK_NETNSID => {
                self.link_netnsid = attribute.i32().filter(|&id| 0 <= id);
                self.is_netnsid_withdrawn = self.link_netnsid.is_none();
            }
            ifla::MASTER => self.master = attribute.u32().filter(|&index| index != 0),
            ifla::TXQLEN => self.tx_queue_len = attribute.u32().unwrap_or_default(),
            ifla::NUM_TX_QUEUES => self.tx_queues = attribute.u32().unwrap_or_default(),
            ifla::NUM_RX_QUEUES => self.rx_queues = attribute.u32().unwrap_or_default(),
            ifla::GROUP => self.group = attribute.u32().unwrap_or_default(),
            ifla::OPERSTATE => self.oper_state = attribute.u8().map(oper_state).unwrap_or_default(),
            ifla::IFALIAS => self.alias = Some(attribute.text()).filter(|alias| !alias.is_empty()),
            ifla::PROMISCUITY => self.promiscuity = attribute.u32().unwrap_or_default(),
            ifla::ALLMULTI => self.all_multicast_count = attribute.u32(),
            ifla::PROP_LIST => {
                let names = attribute.nested().filter(|inner| inner.kind == ifla::ALT_IFNAME);
                self.alt_names.extend(names.map(|name| name.text()));
            }
            ifla::LINKINFO => self.read_info(attribute),
            ifla::AF_SPEC => {
                self.addr_gen_mode = attribute
                    .find(AF_INET6.into())
                    .and_then(|v6| v6.find(ifla::INET6_ADDR_GEN_MODE)?.u8());
            }
            _ => {}
        }
    }

    fn read_info(&mut self, info: &Attribute<'_>) {
        self.kind = info.find(ifla::INFO_KIND).map(|kind| kind.text());
        self.port_kind = info.find(ifla::INFO_SLAVE_KIND).map(|kind| kind.text());
        let data = info.find(ifla::INFO_DATA);
        match (self.kind.as_deref(), data) {
            (Some("bridge"), Some(data)) => self.bridge = Some(bridge_info(&data)),
            (Some("vlan"), Some(data)) => self.vlan = vlan_info(&data),
            (Some("vxlan"), Some(data)) => self.vxlan = Some(Box::new(VxlanInfo::decode(&data))),
            (Some("tun"), Some(data)) => self.tun = Some(tun_info(&data)),
            (Some("vrf"), Some(data)) => {
                self.vrf_table = data.find(ifla::VRF_TABLE).and_then(|table| table.u32());
            }
            (Some("macvlan"), Some(data)) => {
                let mode = data.find(IFLA_MACVLAN_MODE).and_then(|mode| mode.u32());
                self.macvlan_mode = mode.and_then(MacvlanMode::from_number);
            }
            (Some("ipvlan"), Some(data)) => {
                let mode = data.find(IFLA_IPVLAN_MODE).and_then(|mode| mode.u16());
                self.ipvlan_mode = mode.and_then(IpvlanMode::from_number);
                let flags = data.find(IFLA_IPVLAN_FLAGS).and_then(|flags| flags.u16());
                self.ipvlan_reach = flags.and_then(IpvlanReach::from_number);
            }
            _ => {}
        }
        if self.port_kind.as_deref() == Some("bridge") {
            self.port = info.find(ifla::INFO_SLAVE_DATA).map(|data| bridge_port(&data));
        }
    }
}

fn mac(attribute: &Attribute<'_>) -> Option<MacAddr> {
    attribute.value.try_into().ok().map(MacAddr)
}

/// `linux include/uapi/linux/if.h` IF_OPER_*.
fn oper_state(number: u8) -> OperState {
    match number {
        0 => OperState::Unknown,
        2 => OperState::Down,
        3 => OperState::LowerLayerDown,
        5 => OperState::Dormant,
        6 => OperState::Up,
        other => OperState::Other(other),
    }
}

fn bridge_info(data: &Attribute<'_>) -> BridgeInfo {
    let mut info = BridgeInfo { link_local_learning: true, ..BridgeInfo::default() };
    for attribute in data.nested() {
        match attribute.kind {
            ifla::BR_VLAN_FILTERING => info.vlan_filtering = flag(&attribute),
            ifla::BR_VLAN_DEFAULT_PVID => info.default_pvid = attribute.u16(),
            ifla::BR_MCAST_SNOOPING => info.multicast_snooping = flag(&attribute),
            ifla::BR_STP_STATE => info.stp = attribute.u32().is_some_and(|state| state != 0),
            ifla::BR_MULTI_BOOLOPT => {
                let values = attribute.u32().unwrap_or_default();
                info.link_local_learning = values & BR_BOOLOPT_NO_LL_LEARN == 0;
            }
            ifla::BR_NF_CALL_IPTABLES => info.shows_ipv4 = flag(&attribute),
            ifla::BR_NF_CALL_IP6TABLES => info.shows_ipv6 = flag(&attribute),
            _ => {}
        }
    }
    info
}

fn bridge_port(data: &Attribute<'_>) -> BridgePort {
    let mut port = BridgePort::default();
    for attribute in data.nested() {
        match attribute.kind {
            ifla::BRPORT_STATE => port.state = attribute.u8().unwrap_or_default(),
            ifla::BRPORT_MODE => port.hairpin = flag(&attribute),
            ifla::BRPORT_ISOLATED => port.isolated = flag(&attribute),
            ifla::BRPORT_LEARNING => port.learning = flag(&attribute),
            ifla::BRPORT_UNICAST_FLOOD => port.unicast_flood = flag(&attribute),
            ifla::BRPORT_MCAST_FLOOD => port.multicast_flood = flag(&attribute),
            ifla::BRPORT_BCAST_FLOOD => port.broadcast_flood = flag(&attribute),
            ifla::BRPORT_NEIGH_SUPPRESS => port.neighbour_suppress = flag(&attribute),
            ifla::BRPORT_LOCKED => port.locked = flag(&attribute),
            _ => {}
        }
    }
    port
}

fn vlan_info(data: &Attribute<'_>) -> Option<VlanInfo> {
    Some(VlanInfo {
        id: data.find(ifla::VLAN_ID)?.u16()?,
        protocol: data.find(ifla::VLAN_PROTOCOL)?.u16_be()?,
    })
}

fn tun_info(data: &Attribute<'_>) -> TunInfo {
    /// `linux include/uapi/linux/if_tun.h`.
    const IFF_TAP: u8 = 2;
    let mut info = TunInfo::default();
    for attribute in data.nested() {
        match attribute.kind {
            ifla::TUN_OWNER => info.owner = attribute.u32(),
            ifla::TUN_GROUP => info.group = attribute.u32(),
            ifla::TUN_TYPE => info.tap = attribute.u8() == Some(IFF_TAP),
            ifla::TUN_VNET_HDR => info.vnet_hdr = flag(&attribute),
            ifla::TUN_PERSIST => info.persistent = flag(&attribute),
            ifla::TUN_MULTI_QUEUE => info.multi_queue = flag(&attribute),
            ifla::TUN_NUM_QUEUES | ifla::TUN_NUM_DISABLED_QUEUES => {
                info.queues = info.queues.saturating_add(attribute.u32().unwrap_or(0));
            }
            _ => {}
        }
    }
    info
}

fn flag(attribute: &Attribute<'_>) -> bool {
    attribute.u8().is_some_and(|value| value != 0)
}
