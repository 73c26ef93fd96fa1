//! The wanted state of each thing that a plugin makes or changes.

use std::net::IpAddr;

use firewall::firewalld::Source;
use firewall::iptables::hostport::DesiredHostports as Chains;
use firewall::iptables::isolation::Isolation;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The wanted state of one thing. Links are known by name; a link of another identity under that
/// name is a difference of its [`State::Recorded`], [`State::Peer`] or [`State::Taken`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum State {
    /// A link exists and is of one of these kinds (IFLA_INFO_KIND); of any if there are none.
    Link {
        /// Its name.
        link: String,
        /// The kinds.
        kinds: Vec<String>,
    },
    /// A link is the one that ADD recorded, and no other under its name.
    Recorded {
        /// Its name.
        link: String,
    },
    /// A link of the host is the other end of the container's link.
    Peer {
        /// The host's link.
        link: String,
        /// The container's link.
        of: String,
    },
    /// A link has this hardware address, written as `02:00:00:00:00:01`.
    Mac {
        /// The link.
        link: String,
        /// The address.
        mac: String,
    },
    /// A link has this MTU, in bytes.
    Mtu {
        /// The link.
        link: String,
        /// The MTU.
        mtu: u32,
    },
    /// A link has this transmission queue length, in packets.
    QueueLength {
        /// The link.
        link: String,
        /// The length.
        length: u32,
    },
    /// Promiscuous mode of a link (IFF_PROMISC) is on or off.
    Promiscuous {
        /// The link.
        link: String,
        /// Whether it is on.
        on: bool,
    },
    /// All-multicast mode of a link (IFF_ALLMULTI) is on or off.
    AllMulticast {
        /// The link.
        link: String,
        /// Whether it is on.
        on: bool,
    },
    /// Kernel parameters have these values.
    Sysctls(Sysctls),
    /// A link is up (IFF_UP).
    Up {
        /// The link.
        link: String,
    },
    /// A link has its owner's mark as its alias (IFLA_IFALIAS).
    Mark {
        /// The link.
        link: String,
        /// The alias.
        alias: String,
    },
    /// A link has an address.
    Address(Address),
    /// A route exists.
    Route(Route),
    /// The host's packets to an address leave by a link: no other route covers its own.
    Path {
        /// The link.
        link: String,
        /// The address.
        to: IpAddr,
        /// The destination of the route by the link.
        by: IpNet,
    },
    /// The host reaches a container by the route to the subnet of a gateway's address on a link, or
    /// by another route by that link, and no route by another link covers it.
    SubnetRoute {
        /// The link with the gateway's address.
        link: String,
        /// The gateway's address with the length of the subnet's prefix.
        gateway: IpNet,
        /// The container's address.
        to: IpAddr,
    },
    /// No lasting neighbour entry of a link (permanent, or without ARP) leads from an address to
    /// another hardware address than this one.
    NoNeighbour {
        /// The link.
        link: String,
        /// The address.
        address: IpAddr,
        /// The hardware address.
        mac: String,
    },
    /// A bridge of the host exists, and is as its ports need it.
    Bridge(Bridge),
    /// A link of the host is a port of a bridge.
    Port(Port),
    /// A link of the host is one end of a veth pair whose other end is a port of a bridge, in one
    /// VLAN alone.
    VlanLink {
        /// The link.
        link: String,
        /// The bridge.
        bridge: String,
        /// The VLAN.
        vlan: u16,
    },
    /// A bridge, or the link of one of its VLANs, has the addresses of the containers' gateways.
    Gateways(Gateways),
    /// The MTU of a bridge is the wanted one, or the lowest of its ports'.
    BridgeMtu {
        /// The bridge.
        link: String,
        /// The attachment's port.
        port: String,
        /// The MTU that the configuration asks for, in bytes.
        mtu: Option<u32>,
    },
    /// A link of the container is the one that ADD took there: it has its owner's mark.
    Taken {
        /// The link.
        link: String,
        /// The alias.
        alias: String,
    },
    /// A bridge of Open vSwitch has a port, as the configuration asks for it.
    OvsPort {
        /// The port's name.
        port: String,
        /// The port is a link of this host with that name; otherwise the switch has created it.
        is_link: bool,
        /// The bridge.
        bridge: String,
        /// The hardware address of the container's interface.
        mac: Option<String>,
    },
    /// The link of a port that the switch has created is the container's interface, or beneath it.
    OvsInterface {
        /// The container's interface.
        link: String,
        /// The port's name.
        port: String,
        /// The hardware address.
        mac: Option<String>,
    },
    /// Mirrors of Open vSwitch, each by its name, have the attachment's port in these columns.
    OvsMirrors(Vec<(String, Vec<String>)>),
    /// IPv6 is on, and the link has the link-local address from which the kernel solicits its
    /// neighbours.
    LinkLocal {
        /// The link.
        link: String,
    },
    /// A link accepts no router advertisements (`accept_ra` is 0).
    NoAdvertisements {
        /// The link.
        link: String,
    },
    /// The host forwards packets of a family.
    Forwarding {
        /// Whether the family is IPv4.
        ipv4: bool,
        /// Whether it is to be switched off after the last attachment.
        restore: bool,
    },
    /// The packet filter has these elements, or the reference's rules of iptables for these
    /// addresses.
    Filter {
        /// The elements.
        plan: firewall::Plan,
        /// The rules are those of iptables.
        iptables: bool,
        /// The container's addresses.
        addresses: Vec<IpNet>,
        /// The source addresses of packets to the outside, for iptables.
        #[serde(default, skip_serializing_if = "firewall::masquerade::Sources::is_empty")]
        sources: firewall::masquerade::Sources,
    },
    /// Packet filters that are not ours have what the attachment needs of them.
    Foreign(ForeignPart),
    /// Ports of the host lead to the container.
    HostPorts(HostPorts),
    /// The attachment holds a claim on an address ([the name of the claim](State::Claim::object)),
    /// and no other living attachment does.
    Claim {
        /// The claim's name in the index.
        object: String,
    },
    /// A rule sends packets from an address to a table.
    Rule(Rule),
    /// The routes of a link are in tables of its addresses, and not in the main table.
    SourceTables(SourceTables),
    /// Token buckets limit what a pair carries.
    Shaping(Shaping),
    /// A bridge shows the packets between its ports to the packet filter of IP.
    ShownPackets(ShownPackets),
    /// Network policy judges what these addresses send and receive.
    Verdicts {
        /// The container's addresses.
        addresses: Vec<IpAddr>,
    },
    /// A link is in a routing domain (VRF), which is up, and has what it had before it moved there.
    Vrf(Vrf),
    /// The host itself does not have an address on any link.
    NotOfHost {
        /// The address.
        address: IpAddr,
        /// The link by which the host reaches the container.
        link: String,
    },
}

/// An address of a link, with what it was added with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The link.
    pub link: String,
    /// The address with the length of its prefix.
    pub address: IpNet,
    /// It is a gateway of containers: it counts with any prefix length.
    pub gateway: bool,
    /// IPv6: usable at once, without duplicate address detection.
    pub nodad: bool,
    /// Without a route to its prefix.
    pub noprefixroute: bool,
}

/// A route, with what it was added with. Fields that are `None` have the kernel's default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The link to leave by.
    pub link: String,
    /// The destination.
    pub destination: IpNet,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// Which other routes count as this one.
    pub satisfied_by: RouteMatch,
    /// The preferred source address.
    pub source: Option<IpAddr>,
    /// The scope (`linux include/uapi/linux/rtnetlink.h` `rt_scope_t`).
    pub scope: Option<u8>,
    /// The table; the main one if `None`.
    pub table: Option<u32>,
    /// The metric.
    pub priority: Option<u32>,
    /// The path MTU in bytes.
    pub mtu: Option<u32>,
    /// The TCP segment size announced, in bytes.
    pub advmss: Option<u32>,
    /// The next hop is on the link, even outside the link's prefixes.
    pub onlink: bool,
    /// What becomes of the packets, if they are dropped. Then the route leads to no link, and `link`
    /// is the interface that it came with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drops: Option<cni::DropKind>,
}

impl Route {
    /// Creates one with the kernel's defaults.
    #[must_use]
    pub fn new(link: &str, destination: IpNet) -> Self {
        Route {
            link: link.to_owned(),
            destination,
            gateway: None,
            satisfied_by: RouteMatch::Link,
            source: None,
            scope: None,
            table: None,
            priority: None,
            mtu: None,
            advmss: None,
            onlink: false,
            drops: None,
        }
    }
}

/// Which route counts as the wanted one, besides an equal one. It always has the destination, and
/// may be in any table: plugins later in the chain move routes to tables of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RouteMatch {
    /// One by the same link.
    Link,
    /// One through the same next hop, by any link.
    Gateway,
    /// Any: a later plugin may have replaced it.
    Any,
}

/// What an attachment needs in one part of a packet filter that is not ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ForeignPart {
    /// The reference's chains of iptables accept what these addresses forward.
    Chains {
        /// The addresses.
        addresses: Vec<IpAddr>,
        /// The chain for the administrator's own rules.
        admin_chain: String,
    },
    /// The reference's chains of iptables isolate these bridges.
    Isolation(Vec<Isolation>),
    /// The chain of iptables that drops forwarded packets accepts those of these addresses first.
    Accept {
        /// The addresses, of one family.
        addresses: Vec<IpAddr>,
        /// It is legacy iptables, which nftables does not show.
        legacy: bool,
    },
    /// Zones of firewalld have these addresses.
    Zones(Vec<Source>),
}

/// Ports of the host that lead to a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPorts {
    /// The elements of our tables, and the kernel parameters that go with them.
    pub plan: firewall::Plan,
    /// What the reference's chains of iptables have, if they have the ports.
    pub chains: Option<Chains>,
}

/// Kernel parameters of one namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sysctls {
    /// The link whose own they are; `None` for those of the whole namespace.
    pub link: Option<String>,
    /// Their values, in the order in which they are written.
    pub values: Vec<Sysctl>,
}

/// A kernel parameter and its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sysctl {
    /// Its path below `/proc/sys`. If there are several, the first one that exists is meant.
    pub paths: Vec<String>,
    /// The value that is written.
    pub value: String,
    /// The value that the kernel shows afterwards, if it sorts or merges what is written.
    pub shown: Option<String>,
}

/// A bridge as attachments need it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bridge {
    /// Its name.
    pub link: String,
    /// An attachment created it: it is created again if it is gone, and has nothing that was not
    /// asked for.
    pub ours: bool,
    /// Its hardware address, written as `02:00:00:00:00:01`.
    pub mac: Option<String>,
    /// The MTU with which it is created, in bytes.
    pub mtu: Option<u32>,
    /// Promiscuous mode is on.
    pub promiscuous: bool,
    /// It filters VLANs.
    pub vlan_filtering: bool,
    /// It does not learn from link-local frames: no filter has checked their source.
    pub no_link_local_learning: bool,
    /// The host hears its routers by it: the bridge may accept router advertisements, because the
    /// packet filter keeps those of the container from the host.
    #[serde(default)]
    pub hears_routers: bool,
    /// The VRF in which it is created.
    pub vrf: Option<String>,
}

/// A port of a bridge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The link that is the port.
    pub link: String,
    /// The bridge.
    pub bridge: String,
    /// Hairpin mode: frames may leave by the port they came by.
    pub hairpin: bool,
    /// Isolation: frames never go to another isolated port.
    pub isolated: bool,
    /// Its VLANs, if they are configured.
    pub vlans: Option<PortVlans>,
}

/// The VLANs of a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortVlans {
    /// The VLAN of frames without a tag.
    pub native: Option<u16>,
    /// The VLANs of frames with a tag.
    pub tagged: Vec<u16>,
    /// It stays in the bridge's default VLAN too.
    pub keep_default: bool,
}

/// The addresses of the gateways of a bridge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gateways {
    /// The link that carries them: the bridge, or the link of the VLAN.
    pub link: String,
    /// The bridge.
    pub bridge: String,
    /// The VLAN, if the link is that of a VLAN.
    pub vlan: Option<u16>,
    /// The hardware address with which the link of the VLAN is created.
    pub mac: Option<String>,
    /// The addresses with the length of their subnet's prefix.
    pub addresses: Vec<IpNet>,
    /// An attachment created the link: foreign addresses on it do not keep ours from it.
    pub ours: bool,
    /// The VRF in which the link of the VLAN is created.
    pub vrf: Option<String>,
}

/// A routing rule that matches on the source alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The link that has the address.
    pub link: String,
    /// The address that packets carry as their source.
    pub from: IpAddr,
    /// The table.
    pub table: u32,
}

/// The tables of a link's addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceTables {
    /// The link.
    pub link: String,
    /// The table of each address.
    pub tables: Vec<SourceTable>,
    /// The main table keeps the routes to the subnets, each with its address as the source.
    pub hints: bool,
    /// The main table keeps all routes of the link; otherwise those in the tables are not in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_main: bool,
}

/// The table of one address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceTable {
    /// The address with the length of its prefix.
    pub address: IpNet,
    /// The table.
    pub table: u32,
    /// The next hop of the default route, if there is to be one.
    pub gateway: Option<IpAddr>,
    /// No other next hop counts; otherwise the default route that the link had may use another one.
    pub replaces: bool,
    /// The routes into the address's subnet, and to the link's own prefix, that the link had: those
    /// without a next hop first, since the others need them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<SourceRoute>,
}

/// A route of an address's table, as the link had it, without its MTU. Fields that are `None` have
/// the kernel's default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRoute {
    /// The destination.
    pub destination: IpNet,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// The preferred source address.
    pub source: Option<IpAddr>,
    /// The scope (`linux include/uapi/linux/rtnetlink.h` `rt_scope_t`).
    pub scope: Option<u8>,
    /// The origin (`linux include/uapi/linux/rtnetlink.h` `RTPROT_*`).
    pub protocol: Option<u8>,
    /// The metric.
    pub priority: Option<u32>,
    /// The next hop is on the link, even outside the link's prefixes.
    pub onlink: bool,
}

/// What a bridge shows to the packet filter of IP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownPackets {
    /// The bridge.
    pub bridge: String,
    /// IPv4 packets.
    pub ipv4: bool,
    /// IPv6 packets.
    pub ipv6: bool,
    /// Those in frames with a tag too.
    pub tagged: bool,
}

/// A routing domain and a link in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vrf {
    /// The link.
    pub link: String,
    /// The VRF.
    pub vrf: String,
    /// Its table, if one is configured.
    pub table: Option<u32>,
}

/// The limits of what a pair carries, and what else is compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shaping {
    /// The host's end of the pair.
    pub link: String,
    /// The limits.
    pub limits: Limits,
    /// Packets queue fairly inside the buckets (fq_codel).
    pub fair: bool,
    /// ADD recorded it: another project's buckets for these limits do not count.
    pub recorded: bool,
}

/// A limit for each direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// For traffic to the container.
    pub ingress: Option<Limit>,
    /// For traffic from the container.
    pub egress: Option<Limit>,
}

impl Limits {
    /// Returns whether nothing is limited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none()
    }
}

/// A rate to enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The rate in bits per second, as configured.
    pub rate_bits_per_s: u64,
    /// How many bytes an idle sender may send at once, if configured; if not, the rate holds in
    /// every second.
    pub burst_bytes: Option<u32>,
}

impl Limit {
    /// Returns the rate as the kernel has it.
    #[must_use]
    pub fn bytes_per_s(&self) -> u64 {
        self.rate_bits_per_s / 8
    }
}

impl State {
    /// Reports whether the state is about which link has a name. Unless it is known, nothing else of
    /// that link is.
    #[must_use]
    pub fn identifies_link(&self) -> bool {
        matches!(
            self,
            State::Link { .. } | State::Recorded { .. } | State::Peer { .. } | State::Taken { .. }
        )
    }

    /// Returns the link that the state is about, without which it cannot exist.
    #[must_use]
    pub fn link(&self) -> Option<&str> {
        match self {
            State::Link { link, .. }
            | State::Recorded { link }
            | State::Peer { link, .. }
            | State::Mac { link, .. }
            | State::Mtu { link, .. }
            | State::Up { link }
            | State::QueueLength { link, .. }
            | State::Promiscuous { link, .. }
            | State::AllMulticast { link, .. }
            | State::Mark { link, .. }
            | State::Path { link, .. }
            | State::LinkLocal { link }
            | State::NoAdvertisements { link }
            | State::NotOfHost { link, .. }
            | State::SubnetRoute { link, .. }
            | State::NoNeighbour { link, .. }
            | State::BridgeMtu { link, .. }
            | State::Taken { link, .. }
            | State::OvsInterface { link, .. }
            | State::OvsPort { port: link, is_link: true, .. } => Some(link),
            State::Sysctls(sysctls) => sysctls.link.as_deref(),
            State::Bridge(bridge) => Some(&bridge.link),
            State::Port(port) => Some(&port.link),
            State::Address(address) => Some(&address.link),
            State::Route(route) => Some(&route.link),
            State::Rule(rule) => Some(&rule.link),
            State::SourceTables(tables) => Some(&tables.link),
            State::Shaping(shaping) => Some(&shaping.link),
            State::Vrf(vrf) => Some(&vrf.link),
            State::ShownPackets(shown) => Some(&shown.bridge),
            // The link of a VLAN is created with the addresses.
            State::VlanLink { .. }
            | State::OvsPort { .. }
            | State::OvsMirrors(_)
            | State::Gateways(_)
            | State::Forwarding { .. }
            | State::Filter { .. }
            | State::Foreign(_)
            | State::HostPorts(_)
            | State::Verdicts { .. }
            | State::Claim { .. } => None,
        }
    }
}
