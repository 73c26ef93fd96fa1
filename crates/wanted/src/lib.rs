#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::fmt;
use std::net::IpAddr;

use firewall::firewalld::Source;
use firewall::iptables::hostport::Wanted as Chains;
use firewall::iptables::isolation::Isolation;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The version of the format. A reader that knows an older one ignores what it does not know; a
/// change that an older reader would misread has another version.
pub const FORMAT: u32 = 1;

/// Everything that one plugin wants for one attachment.
///
/// Items are in the order in which they are restored: an item needs only those before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// [`FORMAT`] when it was written.
    pub version: u32,
    /// The items.
    pub items: Vec<Item>,
}

impl Default for Wanted {
    fn default() -> Self {
        Wanted { version: FORMAT, items: Vec::new() }
    }
}

impl Wanted {
    /// Creates one without items.
    #[must_use]
    pub fn new() -> Self {
        Wanted::default()
    }

    /// Adds an item, to be restored after all others.
    pub fn push(&mut self, item: Item) {
        self.items.push(item);
    }
}

impl Extend<Item> for Wanted {
    fn extend<I: IntoIterator<Item = Item>>(&mut self, items: I) {
        self.items.extend(items);
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for item in &self.items {
            let place = match item.place {
                Place::Host => "host",
                Place::Container => "container",
            };
            writeln!(f, "{place}: {item} ({})", item.because)?;
        }
        Ok(())
    }
}

/// One thing that is as the plugin wants it, or differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Where it is.
    pub place: Place,
    /// What it is.
    pub state: State,
    /// Why the plugin wants it.
    pub because: Because,
}

impl Item {
    /// Creates an item of the host.
    #[must_use]
    pub fn host(state: State, because: Because) -> Self {
        Item { place: Place::Host, state, because }
    }

    /// Creates an item of the container.
    #[must_use]
    pub fn container(state: State, because: Because) -> Self {
        Item { place: Place::Container, state, because }
    }

    /// Returns how it is restored.
    #[must_use]
    pub fn restored(&self) -> Restored {
        match &self.state {
            State::Link { .. }
            | State::Recorded { .. }
            | State::Peer { .. }
            | State::Taken { .. } => Restored::ByHand("detach the container, and attach it anew"),
            State::Path { .. } => Restored::ByHand(
                "remove or narrow that route (`ip route`, `ip -6 route`), or give the network \
                 another subnet: repair leaves the routes of others alone",
            ),
            State::NotOfHost { .. } => Restored::ByHand(
                "give the network addresses that the host does not have, and attach the container \
                 anew",
            ),
            _ => Restored::ByRepair,
        }
    }
}

/// A network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// The one that the plugin runs in.
    Host,
    /// The container's.
    Container,
}

/// Why a plugin wants something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Because {
    /// ADD created it and reported it.
    Created,
    /// The IPAM plugin assigned it.
    Ipam,
    /// A key of the configuration asks for it.
    Key(String),
    /// The container reaches other hosts by it.
    Outbound,
    /// The host reaches the container by it.
    Inbound,
    /// What a container sends must not change the host.
    Safety,
    /// It shows which attachment owns what.
    Ownership,
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Because::Created => f.write_str("ADD created it"),
            Because::Ipam => f.write_str("the IPAM plugin assigned it"),
            Because::Key(key) => write!(f, "the configuration's {key} asks for it"),
            Because::Outbound => f.write_str("the container reaches others by it"),
            Because::Inbound => f.write_str("the host reaches the container by it"),
            Because::Safety => f.write_str("a container must not change the host"),
            Because::Ownership => f.write_str("it shows the owner"),
        }
    }
}

/// How an item is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restored {
    /// Repair restores it under the running container.
    ByRepair,
    /// A person does this.
    ByHand(&'static str),
}

/// The wanted state of one thing. Links are known by name; a link of another identity under that
/// name is a difference of its [`State::Link`] or [`State::Peer`].
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
        /// The port is a link of this host by that name; the switch has created it otherwise.
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
    },
    /// Packet filters that are not ours have what the attachment needs of them.
    Foreign(Foreign),
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
    /// It is a gateway of containers: whatever its prefix, it counts.
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
    pub satisfied_by: SatisfiedBy,
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
    /// The next hop is on the link, whatever the link's prefixes.
    pub onlink: bool,
}

impl Route {
    /// Creates one with the kernel's defaults.
    #[must_use]
    pub fn new(link: &str, destination: IpNet) -> Self {
        Route {
            link: link.to_owned(),
            destination,
            gateway: None,
            satisfied_by: SatisfiedBy::Link,
            source: None,
            scope: None,
            table: None,
            priority: None,
            mtu: None,
            advmss: None,
            onlink: false,
        }
    }
}

/// Which route counts as the wanted one, besides an equal one. It always has the destination, in
/// whatever table: plugins later in the chain move routes to tables of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SatisfiedBy {
    /// One by the same link.
    Link,
    /// One through the same next hop, by whatever link.
    Gateway,
    /// Any: a later plugin may have replaced it.
    Any,
}

/// What an attachment needs in one part of a packet filter that is not ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Foreign {
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
    /// No other next hop counts: else the default route that the link had may have another.
    pub replaces: bool,
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
            // The link of a VLAN is created with the addresses.
            State::VlanLink { .. }
            | State::OvsPort { .. }
            | State::Gateways(_)
            | State::Forwarding { .. }
            | State::Filter { .. }
            | State::Foreign(_)
            | State::HostPorts(_)
            | State::Claim { .. } => None,
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = match self.place {
            Place::Host => "link",
            Place::Container => "interface",
        };
        match &self.state {
            State::Link { link: name, kinds } => {
                write!(f, "{link} {name:?}")?;
                if kinds.is_empty() { Ok(()) } else { write!(f, " ({})", kinds.join(" or ")) }
            }
            State::Recorded { link: name } => write!(f, "{link} {name:?}, as ADD recorded it"),
            State::Peer { link: name, of } => {
                write!(f, "{link} {name:?}, the other end of interface {of:?}")
            }
            State::Mac { link: name, mac } => write!(f, "MAC address {mac} of {link} {name:?}"),
            State::Mtu { link: name, mtu } => write!(f, "MTU {mtu} of {link} {name:?}"),
            State::Up { link: name } => write!(f, "{link} {name:?} up"),
            State::QueueLength { link: name, length } => {
                write!(f, "transmission queue length {length} of {link} {name:?}")
            }
            State::Promiscuous { link: name, on } => {
                write!(f, "promiscuous mode {} of {link} {name:?}", on_off(*on))
            }
            State::AllMulticast { link: name, on } => {
                write!(f, "all-multicast mode {} of {link} {name:?}", on_off(*on))
            }
            State::Sysctls(sysctls) => {
                let values = sysctls.values.iter().map(ToString::to_string);
                f.write_str(&values.collect::<Vec<_>>().join(", "))
            }
            State::Mark { link: name, .. } => write!(f, "the owner's mark of {link} {name:?}"),
            State::Address(Address { link: name, address, gateway: true, .. }) => {
                write!(f, "gateway address {} of {name:?}", address.addr())
            }
            State::Address(Address { link: name, address, .. }) => {
                write!(f, "address {address} of {link} {name:?}")
            }
            State::Route(route) if self.place == Place::Host => {
                write!(f, "the host's route to {} by {:?}", route.destination, route.link)
            }
            State::Route(route) => {
                write!(f, "route {}", route.destination)?;
                if let (SatisfiedBy::Gateway, Some(gateway)) = (route.satisfied_by, route.gateway) {
                    write!(f, " via {gateway}")?;
                }
                write!(f, " of {link} {:?}", route.link)
            }
            State::Path { link: name, to, .. } => {
                write!(f, "the host's packets to {to} leave by {name:?}")
            }
            State::SubnetRoute { link: name, gateway, .. } => {
                write!(f, "the host's route to {} by {name:?}", gateway.trunc())
            }
            State::NoNeighbour { link: name, address, mac } => {
                write!(f, "no lasting neighbour entry of {address} on {name:?} but {mac}")
            }
            State::Bridge(bridge) => write!(f, "bridge {:?}", bridge.link),
            State::Port(port) => {
                write!(f, "link {:?}: port of bridge {:?}", port.link, port.bridge)
            }
            State::VlanLink { link: name, bridge, vlan } => {
                write!(f, "link {name:?} to VLAN {vlan} of bridge {bridge:?}")
            }
            State::Gateways(gateways) => {
                let addresses = gateways.addresses.iter().map(|net| net.addr().to_string());
                let addresses: Vec<String> = addresses.collect();
                write!(f, "gateway addresses {} of {:?}", addresses.join(", "), gateways.link)
            }
            State::Taken { link: name, .. } => write!(f, "{link} {name:?}, which ADD took"),
            State::OvsPort { port, bridge, .. } => write!(f, "port {port:?} of bridge {bridge:?}"),
            State::OvsInterface { link: name, port, .. } => {
                write!(f, "link of port {port:?} as interface {name:?}")
            }
            State::BridgeMtu { link: name, mtu: Some(mtu), .. } => {
                write!(f, "MTU {mtu} of bridge {name:?}")
            }
            State::BridgeMtu { link: name, .. } => write!(f, "MTU of bridge {name:?}"),
            State::LinkLocal { link: name } => write!(f, "link-local IPv6 address of {name:?}"),
            State::NoAdvertisements { link: name } => {
                write!(f, "no router advertisements by {link} {name:?} (accept_ra 0)")
            }
            State::Forwarding { ipv4, .. } => {
                write!(f, "{} forwarding", if *ipv4 { "IPv4" } else { "IPv6" })
            }
            State::Filter { plan, iptables, addresses } => {
                f.write_str("packet filter:")?;
                let mut elements = elements(plan);
                if *iptables {
                    let of = addresses.iter().map(|address| format!("iptables rules of {address}"));
                    elements.extend(of);
                }
                write!(f, " {}", elements.join(", "))
            }
            State::Foreign(foreign) => write!(f, "packet filter: {foreign}"),
            State::HostPorts(ports) => {
                let mut elements = elements(&ports.plan);
                elements.extend(ports.chains.iter().map(|_| "the reference's chains".to_owned()));
                write!(f, "host ports: {}", elements.join(", "))
            }
            State::Claim { object } => write!(f, "the claim {object:?}"),
            State::Rule(Rule { from, table, .. }) => {
                write!(f, "rule that sends packets from {from} to table {table}")
            }
            State::Vrf(Vrf { link: name, vrf, .. }) => write!(f, "{link} {name:?} in VRF {vrf:?}"),
            State::Shaping(Shaping { link: name, limits, .. }) => {
                let to = [("to", limits.ingress), ("from", limits.egress)];
                let to = to.iter().filter_map(|(way, limit)| {
                    let rate = limit.as_ref()?.rate_bits_per_s;
                    Some(format!("{rate} bit/s {way} the container"))
                });
                write!(f, "{link} {name:?} limited to {}", to.collect::<Vec<_>>().join(", "))
            }
            State::SourceTables(SourceTables { link: name, tables, .. }) => {
                let tables: Vec<String> =
                    tables.iter().map(|own| format!("{} of {}", own.table, own.address)).collect();
                write!(f, "routes of {link} {name:?} in table {}", tables.join(" and table "))
            }
            State::NotOfHost { address, .. } => write!(f, "{address} is not the host's own"),
        }
    }
}

fn elements(plan: &firewall::Plan) -> Vec<String> {
    let shared = plan.shared.iter().flat_map(firewall::Shared::elements);
    let own = plan.own.iter().map(ToString::to_string);
    own.chain(shared.map(|element| element.to_string())).collect()
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |words: Vec<String>| words.join(", ");
        let addresses = |of: &[IpAddr]| list(of.iter().map(ToString::to_string).collect());
        match self {
            Foreign::Chains { addresses: of, .. } => {
                write!(f, "the reference's chains accept {}", addresses(of))
            }
            Foreign::Isolation(of) => {
                let bridges = of.iter().map(|one| format!("{:?}", one.bridge)).collect();
                write!(f, "the reference's chains isolate {}", list(bridges))
            }
            Foreign::Accept { addresses: of, .. } => {
                write!(f, "iptables accepts {}", addresses(of))
            }
            Foreign::Zones(sources) => {
                let source = |one: &Source| format!("{} in {} zone", one.address, one.zone);
                f.write_str(&list(sources.iter().map(source).collect()))
            }
        }
    }
}

impl fmt::Display for Sysctl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sysctl {} = {:?}", self.paths.join(" or "), self.value)
    }
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_chained_plugins_are_read_back_and_say_what_they_are() {
        let address: IpAddr = "192.0.2.2".parse().unwrap();
        let sysctl = Sysctl {
            paths: vec!["net/core/somaxconn".to_owned()],
            value: "77".to_owned(),
            shown: None,
        };
        let source = Source { zone: "trusted".to_owned(), address };
        let link = || "eth0".to_owned();
        let net = IpNet::new(address, 24).unwrap();
        let table = SourceTable { address: net, table: 100, gateway: None, replaces: false };
        let egress = Some(Limit { rate_bits_per_s: 8000, burst_bytes: None });
        let limits = Limits { ingress: None, egress };
        for (state, text) in [
            (
                State::Sysctls(Sysctls { link: None, values: vec![sysctl] }),
                "sysctl net/core/somaxconn = \"77\"",
            ),
            (
                State::QueueLength { link: link(), length: 5 },
                "transmission queue length 5 of interface \"eth0\"",
            ),
            (
                State::AllMulticast { link: link(), on: false },
                "all-multicast mode off of interface \"eth0\"",
            ),
            (
                State::Foreign(Foreign::Zones(vec![source])),
                "packet filter: 192.0.2.2 in trusted zone",
            ),
            (
                State::Foreign(Foreign::Accept { addresses: vec![address], legacy: true }),
                "packet filter: iptables accepts 192.0.2.2",
            ),
            (
                State::Rule(Rule { link: link(), from: address, table: 100 }),
                "rule that sends packets from 192.0.2.2 to table 100",
            ),
            (
                State::SourceTables(SourceTables {
                    link: link(),
                    tables: vec![table],
                    hints: false,
                }),
                "routes of interface \"eth0\" in table 100 of 192.0.2.2/24",
            ),
            (
                State::Shaping(Shaping { link: link(), limits, fair: true, recorded: true }),
                "interface \"eth0\" limited to 8000 bit/s from the container",
            ),
            (
                State::Vrf(Vrf { link: link(), vrf: "blue".to_owned(), table: None }),
                "interface \"eth0\" in VRF \"blue\"",
            ),
        ] {
            let written = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<State>(&written).unwrap(), state);
            assert_eq!(Item::container(state, Because::Created).to_string(), text);
        }
    }

    #[test]
    fn a_picture_is_read_back_as_it_was_written() {
        let mut wanted = Wanted::new();
        wanted.push(Item::host(
            State::Forwarding { ipv4: true, restore: false },
            Because::Key("isGateway".to_owned()),
        ));
        wanted.push(Item::container(
            State::Route(Route {
                gateway: Some("192.0.2.1".parse().unwrap()),
                satisfied_by: SatisfiedBy::Any,
                ..Route::new("eth0", "0.0.0.0/0".parse().unwrap())
            }),
            Because::Ipam,
        ));
        let text = serde_json::to_string(&wanted).unwrap();
        assert_eq!(serde_json::from_str::<Wanted>(&text).unwrap(), wanted);
        assert_eq!(
            wanted.to_string(),
            "host: IPv4 forwarding (the configuration's isGateway asks for it)\n\
             container: route 0.0.0.0/0 of interface \"eth0\" (the IPAM plugin assigned it)\n"
        );
    }
}
