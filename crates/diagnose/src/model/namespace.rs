//! A network namespace.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::model::filter::Ruleset;
use crate::model::segment::{Ipvlan, Loss, MacvlanMode, Peer, PortVlan, Redirect, TunnelEnd};

/// A network namespace at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Namespace {
    /// Links, by index.
    pub links: Vec<Link>,
    /// Routes of all tables, but of `local` only those of IPv4 that are not the kernel's own.
    pub routes: Vec<Route>,
    /// Routing rules, in the order in which the kernel asks them.
    pub rules: Vec<RouteRule>,
    /// Neighbours that an administrator or a program has configured, those that failed, and those
    /// of VXLAN tunnels.
    pub neighbours: Vec<Neighbour>,
    /// Addresses of others for which an entry lets the node answer (`ip neigh show proxy`).
    pub proxied: Vec<ProxiedAddress>,
    /// Forwarding entries of bridges that are not learnt.
    pub fdb: Vec<Fdb>,
    /// Kernel parameters by their names, such as `net.ipv4.ip_forward`.
    pub sysctls: BTreeMap<String, String>,
    /// Policies of IPsec that drop packets, with those that come before them; without those of some
    /// protocols alone.
    pub policies: Vec<Policy>,
    /// Packet filters.
    pub filter: Ruleset,
    /// The queues of packets that programs read; `None`: no rule fills one, or that is not known.
    pub queues: Option<Vec<u16>>,
    /// Those of them in which packets wait while the program judges none.
    pub stuck_queues: Vec<u16>,
    /// Sockets of programs that listen.
    pub listeners: Vec<Listener>,
    /// The table of tracked connections.
    pub conntrack: Option<ConntrackTable>,
}

/// A link.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Link {
    /// Its index in the namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its kind (IFLA_INFO_KIND), such as `veth`; `None` for hardware and loopback.
    pub kind: Option<String>,
    /// Its hardware address.
    pub mac: Option<String>,
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// Whether it is set up (IFF_UP).
    pub up: bool,
    /// Whether it has a carrier (IFF_LOWER_UP).
    pub carrier: bool,
    /// The index of the bridge, VRF or bond it belongs to.
    pub master: Option<u32>,
    /// The index of a veth's other end or of the parent, in the namespace `peer_netnsid`.
    pub peer: Option<u32>,
    /// The namespace of `peer`; `None`: this one.
    pub peer_netnsid: Option<i32>,
    /// Its alias, by which it names its owner.
    pub alias: Option<String>,
    /// STP state as port of a bridge: 0 disabled, 1 listening, 2 learning, 3 forwarding, 4 blocking.
    pub port_state: Option<u8>,
    /// Whether it is an isolated port of a bridge.
    pub isolated: bool,
    /// Whether it is a port to which the bridge sends no broadcasts.
    pub no_broadcasts: bool,
    /// Whether it is a port of a bridge that passes only the multicasts that a host behind it asked
    /// for.
    pub no_multicasts: bool,
    /// Whether it is a port behind which the bridge learns no hosts, and to which it sends only
    /// frames for hosts that it knows.
    pub no_unknown: bool,
    /// Whether it is a port from which the bridge takes only frames of senders that it has an entry
    /// for there.
    pub locked: bool,
    /// Whether it is a port by which the bridge sends no frame back that came in there: hairpin mode
    /// is off.
    pub no_hairpin: bool,
    /// Whether it neither asks nor answers for hardware addresses (IFF_NOARP).
    pub no_arp: bool,
    /// Whether it is a bridge that runs STP.
    pub stp: bool,
    /// Whether it is a bridge that distinguishes VLANs.
    pub vlan_filtering: bool,
    /// Whether it is a bridge that shows its frames of IPv4 to IP's filters, independently of the
    /// node's kernel parameter.
    pub shows_ipv4: bool,
    /// The same for IPv6.
    pub shows_ipv6: bool,
    /// The table of a VRF.
    pub vrf_table: Option<u32>,
    /// The VLAN of an 802.1Q link.
    pub vlan: Option<u16>,
    /// The VLANs of a port of a bridge that distinguishes them; of such a bridge: those in which the
    /// node itself takes part.
    pub vlans: Vec<PortVlan>,
    /// Which siblings a macvlan may talk to.
    pub macvlan: Option<MacvlanMode>,
    /// What an ipvlan does.
    pub ipvlan: Option<Ipvlan>,
    /// What loses its packets on purpose.
    pub losses: Vec<Loss>,
    /// What sends its frames to another link.
    pub redirects: Vec<Redirect>,
    /// How fast it may send, if a token bucket limits that.
    pub rate: Option<Rate>,
    /// How long a queueing discipline holds each packet that it sends, on purpose, in milliseconds.
    pub delay_ms: u32,
    /// What its queueing disciplines dropped while probes were sent; `None`: nothing, or that was not
    /// looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<QueueDrops>,
    /// The peers of a WireGuard tunnel; `None`: it is none, or they could not be read.
    pub peers: Option<Vec<Peer>>,
    /// Where a VXLAN tunnel sends frames for which it has no entry.
    pub remote: Option<IpAddr>,
    /// The UDP port at which a tunnel (VXLAN, WireGuard) receives; `None`: it is none, or that is
    /// not known.
    pub port: Option<u16>,
    /// The address from which a VXLAN tunnel sends, if it has one of its own.
    pub local: Option<IpAddr>,
    /// Where a VXLAN tunnel sends frames; `None`: it is none, it asks a program for what it has no
    /// entry for, or they could not be read.
    pub ends: Option<Vec<TunnelEnd>>,
    /// Whether a tunnel leaves the checksums of the packets in it to the links below; `None`: it is
    /// none, or that could not be read.
    pub tx_checksums: Option<bool>,
    /// The VXLAN tunnel takes its destinations from its user: a switch, or a program.
    pub external: bool,
    /// Whether it stands for a virtual function or a subfunction of a device, which a container may
    /// have.
    pub of_function: bool,
    /// Its addresses.
    pub addresses: Vec<Address>,
}

/// Packets that a queueing discipline has dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueDrops {
    /// The discipline, as `tc` calls it: `tbf`, `ingress`.
    pub kind: String,
    /// How many packets.
    pub packets: u32,
}

/// A token bucket (`man 8 tc-tbf`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rate {
    /// Bytes in a second.
    pub bytes_per_s: u64,
    /// The size of the bucket, in bytes. A larger packet does not pass.
    pub burst: u32,
    /// It is inside another discipline, so it may get only some of the packets.
    #[serde(default)]
    pub of_some: bool,
}

/// An address of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// The address with its subnet's length.
    pub address: IpNet,
    /// Another node has the address: duplicate address detection failed (IFA_F_DADFAILED).
    #[serde(default)]
    pub duplicate: bool,
    /// Duplicate address detection has not ended (IFA_F_TENTATIVE).
    #[serde(default)]
    pub tentative: bool,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// The destination; of prefix length 0: the default route.
    pub to: IpNet,
    /// The routing table.
    pub table: u32,
    /// What happens to the packets.
    pub kind: RouteKind,
    /// The metric; lower is preferred.
    pub metric: u32,
    /// Where they go; several for a multipath route.
    pub hops: Vec<NextHop>,
    /// The preferred source address.
    pub source: Option<IpAddr>,
    /// The path's MTU, in bytes.
    pub mtu: Option<u32>,
    /// The origin (RTPROT_*).
    pub protocol: Option<u8>,
}

/// A next hop of a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NextHop {
    /// The gateway.
    pub via: Option<IpAddr>,
    /// The index of the link.
    pub link: Option<u32>,
}

/// What happens to the packets of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum RouteKind {
    /// They are sent on.
    Unicast,
    /// They are dropped.
    Blackhole,
    /// They are refused as unreachable.
    Unreachable,
    /// They are refused as prohibited.
    Prohibit,
    /// The next table is asked.
    Throw,
    /// Anything else.
    Other,
}

/// A routing rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteRule {
    /// Whether it is of IPv4.
    pub ipv4: bool,
    /// Its priority: lower first.
    pub priority: u32,
    /// Only packets from here.
    pub from: Option<IpNet>,
    /// Only packets to here.
    pub to: Option<IpNet>,
    /// Only packets that came in by this link.
    pub iif: Option<String>,
    /// Only packets bound to this link.
    pub oif: Option<String>,
    /// Only packets with this mark, under this mask.
    pub mark: Option<(u32, u32)>,
    /// It applies to the packets that do not match.
    #[serde(default)]
    pub invert: bool,
    /// Routes of at most this prefix length do not count, and the next rule is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suppress: Option<u32>,
    /// What it does.
    pub action: RuleAction,
}

/// What a routing rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum RuleAction {
    /// It asks a table.
    Table(u32),
    /// It drops the packets.
    Blackhole,
    /// It refuses them as unreachable.
    Unreachable,
    /// It refuses them as prohibited.
    Prohibit,
    /// Anything else.
    Other,
}

/// A neighbour entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Neighbour {
    /// The index of the link.
    pub link: u32,
    /// The address.
    pub address: IpAddr,
    /// The hardware address.
    pub mac: Option<String>,
    /// It was configured and stays.
    pub permanent: bool,
    /// The neighbour does not answer.
    pub failed: bool,
}

/// An address of another machine for which a link answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxiedAddress {
    /// The index of the link on which it is asked for.
    pub link: u32,
    /// The address.
    pub address: IpAddr,
}

/// A forwarding entry of a bridge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fdb {
    /// The index of the port.
    pub port: u32,
    /// The hardware address.
    pub mac: String,
    /// The VLAN.
    pub vlan: Option<u16>,
    /// It is the port's own address.
    pub own: bool,
}

/// A policy of IPsec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// It is about packets that are forwarded; otherwise about those that leave.
    pub forwarded: bool,
    /// From where.
    pub from: IpNet,
    /// To where.
    pub to: IpNet,
    /// Of several the one with the smallest number counts.
    pub priority: u32,
    /// It drops the packets; otherwise it lets them pass, or protects them.
    pub blocks: bool,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// Returns the name, as `tcp`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        }
    }

    /// Returns the number in IP's header.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Transport::Tcp => 6,
            Transport::Udp => 17,
        }
    }
}

/// A socket that listens, or that is bound and not connected (UDP).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// The protocol.
    pub transport: Transport,
    /// Where; `[::]` is also IPv4 unless `v6only`.
    pub at: SocketAddr,
    /// An IPv6 socket that does not serve IPv4.
    #[serde(default)]
    pub v6only: bool,
    /// The process that has it, if it could be found.
    pub pid: Option<u32>,
    /// The process's name.
    pub program: Option<String>,
    /// How many connections wait for the program to accept them, if so many do that the kernel
    /// drops further ones.
    #[serde(default)]
    pub full: Option<u32>,
    /// Each process that has it, as far as they were found, is stopped (SIGSTOP).
    #[serde(default)]
    pub stopped: bool,
    /// The processes that have it do not run because their control group is frozen: the file that
    /// says so.
    #[serde(default)]
    pub frozen: Option<String>,
}

/// A tracked flow of UDP to a port of the node that is published, or of a container to an address
/// that is translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// Who sends.
    pub client: SocketAddr,
    /// The node's address and port.
    pub to: SocketAddr,
    /// Where the packets go, and answers come from.
    pub leads_to: SocketAddr,
}

/// How full the table of tracked connections is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConntrackTable {
    /// How many connections are tracked.
    pub count: u64,
    /// How many may be.
    pub max: u64,
}

impl Namespace {
    /// Returns the link of a name.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// Returns the link of an index.
    #[must_use]
    pub fn link_of(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// Returns the link that has an address.
    #[must_use]
    pub fn owner_of(&self, address: IpAddr) -> Option<&Link> {
        let has = |link: &&Link| link.addresses.iter().any(|own| own.address.addr() == address);
        self.links.iter().find(has)
    }

    /// Returns a kernel parameter as a number.
    #[must_use]
    pub fn number(&self, sysctl: &str) -> Option<i64> {
        self.sysctls.get(sysctl)?.trim().parse().ok()
    }
}
