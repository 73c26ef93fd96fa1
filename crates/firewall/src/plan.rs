//! What an attachment wants from the firewall, as data.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::element::{Element, Protocol, Set, Table, ifname};
use crate::{hostport, masquerade, pod_link, policy, routers, spoof};

/// Everything one attachment wants from the firewall: its own elements, and the shared objects.
///
/// Pure functions make plans ([`masquerade::plan`] and its like), [`Plan::join`] joins them,
/// [`Firewall::add`](crate::Firewall::add) applies them in one transaction and
/// [`Firewall::remove`](crate::Firewall::remove) undoes them. A plugin keeps the plan in its record
/// of the attachment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Elements that carry the attachment's hash.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<Element>,
    /// Objects that exist as long as an attachment wants them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<SharedObject>,
}

/// An object that several attachments share. [`state::Index`] counts its holders, under
/// [`SharedObject::object`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SharedObject {
    /// A bridge whose containers other bridges with a policy cannot reach.
    Policy(String),
    /// A bridge whose containers cannot reach each other.
    Isolation(String),
    /// An interface towards containers by which flows from 127.0.0.0/8 leave.
    Localnet(String),
    /// An interface towards containers by which flows from ::1 leave.
    Loopback6(String),
    /// A port that is forwarded at some address of the host, so that it cannot be forwarded at all
    /// of them.
    Hostport {
        /// The protocol.
        protocol: Protocol,
        /// The port.
        port: u16,
        /// Whether IPv4 or IPv6 is meant.
        ipv4: bool,
    },
    /// A port that iptables forwards: no element of ours shows it.
    IptablesHostport {
        /// The protocol.
        protocol: Protocol,
        /// The port.
        port: u16,
        /// The host's address; an unspecified one is every address of its family.
        at: IpAddr,
    },
}

/// A group of sets that one plugin looks after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concern {
    /// [`crate::masquerade`].
    Masquerade,
    /// [`crate::hostport`].
    Hostport,
    /// [`crate::spoof`].
    Spoof,
    /// [`crate::policy`].
    Policy,
    /// [`crate::pod_link`].
    PodLink,
    /// [`crate::routers`].
    Routers,
}

impl Concern {
    /// Every concern.
    pub const ALL: &'static [Concern] = &[
        Concern::Masquerade,
        Concern::Hostport,
        Concern::Spoof,
        Concern::Policy,
        Concern::PodLink,
        Concern::Routers,
    ];

    /// Returns the concern's sets.
    #[must_use]
    pub const fn sets(self) -> &'static [Set] {
        match self {
            Concern::Masquerade => masquerade::SETS,
            Concern::Hostport => hostport::SETS,
            Concern::Spoof => spoof::SETS,
            Concern::Policy => policy::SETS,
            Concern::PodLink => pod_link::SETS,
            Concern::Routers => routers::SETS,
        }
    }
}

impl SharedObject {
    /// Returns the name under which holders are counted.
    #[must_use]
    pub fn object(&self) -> String {
        match self {
            SharedObject::Policy(bridge) => format!("policy {bridge}"),
            SharedObject::Isolation(bridge) => format!("isolation {bridge}"),
            SharedObject::Localnet(ifname) => format!("localnet {ifname}"),
            SharedObject::Loopback6(ifname) => format!("loopback6 {ifname}"),
            SharedObject::Hostport { protocol, port, ipv4 } => {
                format!("hostport {protocol} {port} {}", if *ipv4 { "ipv4" } else { "ipv6" })
            }
            SharedObject::IptablesHostport { protocol, port, at } => {
                format!("iptables-hostport {protocol} {port} {at}")
            }
        }
    }

    /// Reads a name made by [`SharedObject::object`]; returns `None` for other objects of the index.
    #[must_use]
    pub fn parse(object: &str) -> Option<SharedObject> {
        let (kind, rest) = object.split_once(' ')?;
        let name = || (!rest.is_empty()).then(|| rest.to_owned());
        match kind {
            "policy" => name().map(SharedObject::Policy),
            "isolation" => name().map(SharedObject::Isolation),
            "localnet" => name().map(SharedObject::Localnet),
            "loopback6" => name().map(SharedObject::Loopback6),
            "hostport" => {
                let (protocol, rest) = rest.split_once(' ')?;
                let (port, family) = rest.split_once(' ')?;
                let ipv4 = match family {
                    "ipv4" => true,
                    "ipv6" => false,
                    _ => return None,
                };
                let protocol = Protocol::parse(protocol)?;
                Some(SharedObject::Hostport { protocol, port: port.parse().ok()?, ipv4 })
            }
            "iptables-hostport" => {
                let (protocol, rest) = rest.split_once(' ')?;
                let (port, at) = rest.split_once(' ')?;
                let protocol = Protocol::parse(protocol)?;
                let (port, at) = (port.parse().ok()?, at.parse().ok()?);
                Some(SharedObject::IptablesHostport { protocol, port, at })
            }
            _ => None,
        }
    }

    /// Returns the elements that exist while an attachment holds the object.
    #[must_use]
    pub fn elements(&self) -> Vec<Element> {
        let one = |set, name: &str| Element::new(set, vec![ifname(name)]);
        let pair = |set, name: &str| Element::new(set, vec![ifname(name), ifname(name)]);
        match self {
            SharedObject::Policy(bridge) => {
                vec![one(Set::PolicyBridges, bridge), pair(Set::PolicySame, bridge)]
            }
            SharedObject::Isolation(bridge) => vec![pair(Set::PolicyIsolated, bridge)],
            SharedObject::Localnet(ifname) => vec![one(Set::Localnet, ifname)],
            SharedObject::Loopback6(_)
            | SharedObject::Hostport { .. }
            | SharedObject::IptablesHostport { .. } => Vec::new(),
        }
    }

    /// Returns the group it belongs to.
    #[must_use]
    pub const fn concern(&self) -> Concern {
        match self {
            SharedObject::Policy(_) | SharedObject::Isolation(_) => Concern::Policy,
            SharedObject::Localnet(_)
            | SharedObject::Loopback6(_)
            | SharedObject::Hostport { .. }
            | SharedObject::IptablesHostport { .. } => Concern::Hostport,
        }
    }
}

impl TryFrom<String> for SharedObject {
    type Error = String;

    fn try_from(object: String) -> Result<Self, String> {
        SharedObject::parse(&object).ok_or_else(|| format!("{object:?} is not a shared object"))
    }
}

impl From<SharedObject> for String {
    fn from(shared: SharedObject) -> String {
        shared.object()
    }
}

impl Plan {
    /// Says whether nothing is wanted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.shared.is_empty()
    }

    /// Lists the tables that its elements are in.
    pub fn tables(&self) -> impl Iterator<Item = Table> {
        Table::ALL.iter().copied().filter(|table| {
            self.own.iter().any(|element| element.set.table() == *table)
                || self
                    .shared
                    .iter()
                    .flat_map(SharedObject::elements)
                    .any(|e| e.set.table() == *table)
        })
    }

    /// Adds another plan of the same attachment, without duplicates.
    pub fn join(&mut self, other: Plan) {
        for element in other.own {
            self.push(element);
        }
        for shared in other.shared {
            self.share(shared);
        }
    }

    /// Adds an element, unless it is there already.
    pub fn push(&mut self, element: Element) {
        if !self.own.iter().any(|known| known.set == element.set && known.key == element.key) {
            self.own.push(element);
        }
    }

    /// Adds a shared object, unless it is there already.
    pub fn share(&mut self, shared: SharedObject) {
        if !self.shared.contains(&shared) {
            self.shared.push(shared);
        }
    }
}

/// One line for each element, as nft writes it; shared elements below their object.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for element in &self.own {
            writeln!(f, "{element}")?;
        }
        for shared in &self.shared {
            writeln!(f, "shared {}", shared.object())?;
            for element in shared.elements() {
                writeln!(f, "  {element}")?;
            }
        }
        Ok(())
    }
}
