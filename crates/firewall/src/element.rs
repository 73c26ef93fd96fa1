//! What we put into sets and maps, as data.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::masquerade::Outbound;

/// A set or map of ours. The names are those `nft list ruleset` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Set {
    /// Map of (interface, source address) to the chain that masquerades, IPv4.
    Masquerade4,
    /// The same for IPv6.
    Masquerade6,
    /// Map of (protocol, port) to the container's address and port, IPv4.
    Hostports4,
    /// The same for IPv6.
    Hostports6,
    /// Map of (host address, protocol, port) to the container's address and port, IPv4.
    HostportsAt4,
    /// The same for IPv6.
    HostportsAt6,
    /// (In, out, container's address) of flows that enter and leave by one interface and are
    /// masqueraded.
    Hairpin4,
    /// The same for IPv6.
    Hairpin6,
    /// (Out, container's address) of flows from the host's loopback addresses that are masqueraded.
    LocalSnat4,
    /// The same for IPv6.
    LocalSnat6,
    /// (Protocol, port) forwarded from ::1: such packets get a source that may leave this host.
    Loopback6,
    /// (Out, container's address) of forwarded ports whose every flow is masqueraded.
    SnatAll4,
    /// The same for IPv6.
    SnatAll6,
    /// Interfaces on which 127.0.0.0/8 must not arrive although `route_localnet` is on.
    Localnet,
    /// Bridges between which nothing is forwarded.
    PolicyBridges,
    /// (Bridge, the same bridge): exempt from [`Set::PolicyBridges`].
    PolicySame,
    /// (Bridge, the same bridge) within which nothing is forwarded.
    PolicyIsolated,
    /// Bridge ports whose source addresses are checked.
    SpoofPorts,
    /// (Bridge port, source hardware address) that may send.
    SpoofAllowed,
    /// Bridge ports that do not reach each other.
    IsolatedPorts,
    /// Links of pods under network policy for which the host routes, and bridge ports.
    PodLinks,
    /// (Such a link, address) that packets may come from and go to, IPv4.
    PodAddresses4,
    /// The same for IPv6.
    PodAddresses6,
    /// Bridge ports of pods under network policy.
    PodPorts,
    /// (Such a port, address) that packets may come from and go to, IPv4.
    PortAddresses4,
    /// The same for IPv6.
    PortAddresses6,
    /// Bridge ports of containers that the host does not hear as routers.
    NoRouters,
}

/// One of our two tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// `inet netwright`: address translation and forwarding.
    Inet,
    /// `bridge netwright`: frames between the ports of a bridge.
    Bridge,
}

/// The type of one part of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An interface's name.
    Ifname,
    /// An IPv4 address.
    Address4,
    /// An IPv6 address.
    Address6,
    /// A transport protocol.
    Protocol,
    /// A port.
    Port,
    /// A hardware address.
    Mac,
}

/// What a set maps its keys to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maps {
    /// Nothing: a plain set.
    Nothing,
    /// A jump to a chain.
    Verdict,
    /// An address of this kind and a port.
    Endpoint(Kind),
}

/// One part of a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Field {
    /// An interface's name.
    Ifname(String),
    /// An address; its family is the set's.
    Address(IpAddr),
    /// A transport protocol.
    Protocol(Protocol),
    /// A port.
    Port(u16),
    /// A hardware address.
    Mac([u8; 6]),
}

/// A transport protocol that has ports and that the kernel translates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// What an element maps to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Value {
    /// Nothing: an element of a plain set.
    Nothing,
    /// A container's address and port.
    Endpoint {
        /// The container's address.
        address: IpAddr,
        /// The container's port.
        port: u16,
    },
    /// The chain that masquerades what leaves a prefix of a network.
    Masquerade {
        /// The network's name.
        network: String,
        /// The prefix.
        prefix: IpNet,
        /// The address that packets take, if it is not that of the link by which they leave.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<IpAddr>,
    },
}

impl Value {
    /// Returns what a masquerade chain is for, if it is one.
    #[must_use]
    pub fn outbound(&self) -> Option<Outbound> {
        match self {
            Value::Masquerade { network, prefix, source } => {
                Some(Outbound { network: network.clone(), prefix: *prefix, source: *source })
            }
            Value::Nothing | Value::Endpoint { .. } => None,
        }
    }
}

/// An element of one of our sets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Element {
    /// The set.
    pub set: Set,
    /// The key, part by part.
    pub key: Vec<Field>,
    /// What the key maps to.
    pub value: Value,
}

impl Set {
    /// Every set, in the order they are made.
    pub const ALL: &'static [Set] = &[
        Set::Masquerade4,
        Set::Masquerade6,
        Set::Hostports4,
        Set::Hostports6,
        Set::HostportsAt4,
        Set::HostportsAt6,
        Set::Hairpin4,
        Set::Hairpin6,
        Set::LocalSnat4,
        Set::LocalSnat6,
        Set::Loopback6,
        Set::SnatAll4,
        Set::SnatAll6,
        Set::Localnet,
        Set::PolicyBridges,
        Set::PolicySame,
        Set::PolicyIsolated,
        Set::SpoofPorts,
        Set::SpoofAllowed,
        Set::IsolatedPorts,
        Set::PodLinks,
        Set::PodAddresses4,
        Set::PodAddresses6,
        Set::PodPorts,
        Set::PortAddresses4,
        Set::PortAddresses6,
        Set::NoRouters,
    ];

    /// Returns the set's name in nftables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Set::Masquerade4 => "masquerade4",
            Set::Masquerade6 => "masquerade6",
            Set::Hostports4 => "hostports4",
            Set::Hostports6 => "hostports6",
            Set::HostportsAt4 => "hostports_at4",
            Set::HostportsAt6 => "hostports_at6",
            Set::Hairpin4 => "hairpin4",
            Set::Hairpin6 => "hairpin6",
            Set::LocalSnat4 => "local_snat4",
            Set::LocalSnat6 => "local_snat6",
            Set::Loopback6 => "loopback6",
            Set::SnatAll4 => "snat_all4",
            Set::SnatAll6 => "snat_all6",
            Set::Localnet => "localnet",
            Set::PolicyBridges => "policy_bridges",
            Set::PolicySame => "policy_same",
            Set::PolicyIsolated => "policy_isolated",
            Set::SpoofPorts => "spoof_ports",
            Set::SpoofAllowed => "spoof_allowed",
            Set::IsolatedPorts => "isolated_ports",
            Set::PodLinks => "pod_links",
            Set::PodAddresses4 => "pod_addresses4",
            Set::PodAddresses6 => "pod_addresses6",
            Set::PodPorts => "pod_ports",
            Set::PortAddresses4 => "port_addresses4",
            Set::PortAddresses6 => "port_addresses6",
            Set::NoRouters => "no_routers",
        }
    }

    /// Returns the table the set is in.
    #[must_use]
    pub const fn table(self) -> Table {
        match self {
            Set::SpoofPorts
            | Set::SpoofAllowed
            | Set::IsolatedPorts
            | Set::PodPorts
            | Set::PortAddresses4
            | Set::PortAddresses6
            | Set::NoRouters => Table::Bridge,
            _ => Table::Inet,
        }
    }

    /// Returns the parts of the set's keys.
    #[must_use]
    pub const fn key(self) -> &'static [Kind] {
        use Kind::{Address4, Address6, Ifname, Mac, Port, Protocol};
        match self {
            Set::Masquerade4
            | Set::LocalSnat4
            | Set::SnatAll4
            | Set::PodAddresses4
            | Set::PortAddresses4 => &[Ifname, Address4],
            Set::Masquerade6
            | Set::LocalSnat6
            | Set::SnatAll6
            | Set::PodAddresses6
            | Set::PortAddresses6 => &[Ifname, Address6],
            Set::Hostports4 | Set::Hostports6 | Set::Loopback6 => &[Protocol, Port],
            Set::HostportsAt4 => &[Address4, Protocol, Port],
            Set::HostportsAt6 => &[Address6, Protocol, Port],
            Set::Hairpin4 => &[Ifname, Ifname, Address4],
            Set::Hairpin6 => &[Ifname, Ifname, Address6],
            Set::PolicySame | Set::PolicyIsolated => &[Ifname, Ifname],
            Set::Localnet
            | Set::PolicyBridges
            | Set::SpoofPorts
            | Set::IsolatedPorts
            | Set::PodLinks
            | Set::PodPorts
            | Set::NoRouters => &[Ifname],
            Set::SpoofAllowed => &[Ifname, Mac],
        }
    }

    /// Returns what the set maps its keys to.
    #[must_use]
    pub const fn maps(self) -> Maps {
        match self {
            Set::Masquerade4 | Set::Masquerade6 => Maps::Verdict,
            Set::Hostports4 | Set::HostportsAt4 => Maps::Endpoint(Kind::Address4),
            Set::Hostports6 | Set::HostportsAt6 => Maps::Endpoint(Kind::Address6),
            _ => Maps::Nothing,
        }
    }

    /// Says whether an element belongs to the attachment that came first, for as long as that
    /// attachment lives. In other sets the key holds an interface or an address that already has
    /// one owner, so an older element is a leftover.
    #[must_use]
    pub const fn is_exclusive(self) -> bool {
        matches!(
            self,
            Set::Hostports4
                | Set::Hostports6
                | Set::HostportsAt4
                | Set::HostportsAt6
                | Set::Loopback6
        )
    }
}

impl Table {
    /// Both tables.
    pub const ALL: &'static [Table] = &[Table::Inet, Table::Bridge];

    /// Returns the tables' name, the same in both families.
    #[must_use]
    pub const fn name(self) -> &'static str {
        "netwright"
    }
}

impl Protocol {
    /// Reads a name, in any case.
    #[must_use]
    pub fn parse(name: &str) -> Option<Protocol> {
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .into_iter()
            .find(|protocol| protocol.name().eq_ignore_ascii_case(name))
    }

    /// Returns the name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }

    /// Finds the protocol with a number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Protocol> {
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .into_iter()
            .find(|protocol| protocol.number() == number)
    }

    /// Returns the number (linux/in.h `IPPROTO_*`).
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }
}

impl Element {
    /// Makes an element of a plain set.
    #[must_use]
    pub fn new(set: Set, key: Vec<Field>) -> Self {
        Element { set, key, value: Value::Nothing }
    }

    /// Makes an element of a map.
    #[must_use]
    pub fn with_value(set: Set, key: Vec<Field>, value: Value) -> Self {
        Element { set, key, value }
    }

    /// Returns the name of the chain the element jumps to, if it does.
    #[must_use]
    pub fn chain(&self) -> Option<String> {
        self.value.outbound().map(|outbound| outbound.chain_name())
    }
}

/// Makes a key's part of an interface's name.
#[must_use]
pub fn ifname(name: &str) -> Field {
    Field::Ifname(name.to_owned())
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table(), self.name())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self {
            Table::Inet => "inet",
            Table::Bridge => "bridge",
        };
        write!(f, "{family} {}", self.name())
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Field::Ifname(name) => write!(f, "\"{name}\""),
            Field::Address(address) => write!(f, "{address}"),
            Field::Protocol(protocol) => write!(f, "{protocol}"),
            Field::Port(port) => write!(f, "{port}"),
            Field::Mac([a, b, c, d, e, g]) => {
                write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
            }
        }
    }
}

/// Written as nft writes it: `inet netwright hostports4 { tcp . 8080 : 10.1.0.2 . 80 }`.
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {{ ", self.set)?;
        for (index, field) in self.key.iter().enumerate() {
            if index != 0 {
                f.write_str(" . ")?;
            }
            write!(f, "{field}")?;
        }
        match &self.value {
            Value::Nothing => {}
            Value::Endpoint { address, port } => write!(f, " : {address} . {port}")?,
            Value::Masquerade { .. } => {
                write!(f, " : jump {}", self.chain().unwrap_or_default())?;
            }
        }
        f.write_str(" }")
    }
}
