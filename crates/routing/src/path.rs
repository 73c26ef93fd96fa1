//! How packets to a peer go.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::family::Family;
use crate::node::{Dialect, Node};
use crate::settings::LinkName;

/// How packets to the pods of a peer go, for one family of their addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Path {
    /// The network between the nodes knows the way; nothing of ours is programmed.
    Native,
    /// A routing daemon on this node has a route to the prefix; nothing of ours is programmed.
    Learned,
    /// By a route to its underlay address, which is on the same segment.
    Direct,
    /// By a VXLAN tunnel.
    Vxlan {
        /// The family of the packets around it.
        underlay: Family,
    },
    /// They do not go.
    None,
}

impl Path {
    /// Reports whether it needs a route of ours.
    #[must_use]
    pub fn has_route(self) -> bool {
        matches!(self, Path::Direct | Path::Vxlan { .. })
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Path::Native => "native",
            Path::Learned => "learned",
            Path::Direct => "direct",
            Path::Vxlan { underlay: Family::V4 } => "vxlan",
            Path::Vxlan { underlay: Family::V6 } => "vxlan6",
            Path::None => "none",
        })
    }
}

impl From<Path> for String {
    fn from(path: Path) -> String {
        path.to_string()
    }
}

impl TryFrom<String> for Path {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        let [v4, v6] = Family::ALL.map(|underlay| Path::Vxlan { underlay });
        let all = [Path::Native, Path::Learned, Path::Direct, v4, v6, Path::None];
        let known = all.into_iter().find(|path| path.to_string() == word);
        known.ok_or_else(|| format!("path {word:?} is not known"))
    }
}

/// What this node's kernel says about the way to an underlay address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// It has not been asked.
    Unknown,
    /// It has no route there.
    Missing,
    /// The address is on a link's segment.
    OnLink(Hop),
    /// A gateway is in between.
    ByGateway(Hop),
}

/// The link by which an underlay address is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The link.
    pub link: LinkName,
    /// The MTU of the way, in bytes: the route's if it has one, else the link's.
    pub mtu: u32,
}

/// How a peer is reached: it decides about the path, beside what both ends offer.
#[derive(Debug, Clone, Copy)]
pub struct Reachability<'a> {
    /// The way to the peer's underlay address of each family.
    pub ways: crate::family::PerFamily<&'a Way>,
    /// A routing daemon has a route to exactly its prefix of this family.
    pub learned: bool,
}

/// The path to a peer, and what stood against the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The path.
    pub path: Path,
    /// Why it is this one, or why there is none.
    pub because: String,
    /// The paths that would have come first, each with what stood against it.
    pub passed_over: Vec<PassedOver>,
}

/// A path that was not chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// The path.
    pub path: Path,
    /// What stood against it.
    pub why: String,
}

/// Chooses the path to a peer for one family of its pods' addresses.
///
/// Both ends choose the same if they reach each other alike: every condition is one of both ends,
/// or of what is between them. The order is native, learned, direct, VXLAN over the family's own
/// underlay, VXLAN over the other.
#[must_use]
pub fn choose(own: &Node, peer: &Node, family: Family, reach: Reachability<'_>) -> Choice {
    let mut choosing = Choosing { own, peer, passed_over: Vec::new() };
    if let Some((path, because)) = choosing.native() {
        return choosing.chosen(path, because);
    }
    if reach.learned {
        return choosing.chosen(Path::Learned, "a routing daemon has a route to it".to_owned());
    }
    match choosing.direct(family, reach.ways.get(family)) {
        Ok(because) => return choosing.chosen(Path::Direct, because),
        Err(why) => choosing.pass_over(Path::Direct, why),
    }
    let mut last_resort = None;
    for underlay in [family, family.other()] {
        let path = Path::Vxlan { underlay };
        match choosing.vxlan(family, underlay) {
            Err(why) => choosing.pass_over(path, why),
            Ok(address) if **reach.ways.get(underlay) == Way::Missing => {
                choosing.pass_over(path, format!("this node has no route to {address}"));
                last_resort = last_resort.or(Some((path, address)));
            }
            Ok(address) => {
                return choosing.chosen(path, format!("both offer it, by way of {address}"));
            }
        }
    }
    // A route that is missing now comes back as it went; the tunnel need not be told.
    if let Some((path, address)) = last_resort {
        choosing.passed_over.retain(|passed| passed.path != path);
        let because = format!("both offer it; now this node has no route to {address}");
        return choosing.chosen(path, because);
    }
    let because = choosing.passed_over.iter().map(|passed| passed.why.as_str());
    let mut reasons: Vec<&str> = Vec::new();
    for why in because {
        if !reasons.contains(&why) {
            reasons.push(why);
        }
    }
    let because = reasons.join("; ");
    choosing.chosen(Path::None, because)
}

struct Choosing<'a> {
    own: &'a Node,
    peer: &'a Node,
    passed_over: Vec<PassedOver>,
}

impl Choosing<'_> {
    fn chosen(self, path: Path, because: String) -> Choice {
        Choice { path, because, passed_over: self.passed_over }
    }

    fn pass_over(&mut self, path: Path, why: String) {
        self.passed_over.push(PassedOver { path, why });
    }

    /// A node that asks for native paths has them with every node of ours.
    fn native(&self) -> Option<(Path, String)> {
        let (own, peer) = (self.own, self.peer);
        let asks = match (own.offers.native, peer.offers.native) {
            (false, false) => return None,
            (true, _) => "this node",
            (false, true) => peer.name.as_str(),
        };
        for node in [own, peer] {
            if node.dialect == Dialect::Flannel {
                let because = format!(
                    "{asks} takes native paths only, and flanneld on {} has none",
                    node.name
                );
                return Some((Path::None, because));
            }
        }
        Some((Path::Native, format!("{asks} leaves it to the network between the nodes")))
    }

    fn direct(&self, family: Family, way: &Way) -> Result<String, String> {
        self.both_offer("direct paths", |node| node.offers.direct)?;
        let address = self.both_have_underlay(family)?;
        match way {
            Way::OnLink(hop) => Ok(format!("{address} is on the segment of {}", hop.link)),
            Way::ByGateway(hop) => Err(format!("{address} is behind a gateway on {}", hop.link)),
            Way::Missing => Err(format!("this node has no route to {address}")),
            Way::Unknown => Err(format!("the way to {address} is not known yet")),
        }
    }

    fn vxlan(&self, family: Family, underlay: Family) -> Result<IpAddr, String> {
        self.both_offer("VXLAN", |node| node.offers.vxlan.is_some())?;
        let (Some(own), Some(peer)) = (self.own.offers.vxlan, self.peer.offers.vxlan) else {
            unreachable!("both offer it");
        };
        if own.vni != peer.vni {
            return Err(format!("{} has VNI {}, this node {}", self.peer.name, peer.vni, own.vni));
        }
        if own.port != peer.port {
            let name = &self.peer.name;
            return Err(format!("{name} has VXLAN's port {}, this node {}", peer.port, own.port));
        }
        if family != underlay {
            for node in [self.own, self.peer] {
                if node.dialect == Dialect::Flannel {
                    let name = &node.name;
                    return Err(format!("flanneld on {name} has no {family} over {underlay}"));
                }
            }
        }
        let address = self.both_have_underlay(underlay)?;
        self.both_offer(&format!("VXLAN over {underlay}"), |node| {
            node.offers.vxlan.is_some_and(|vxlan| vxlan.mac(underlay).is_some())
        })?;
        Ok(address)
    }

    fn both_offer(&self, what: &str, offers: impl Fn(&Node) -> bool) -> Result<(), String> {
        match (offers(self.own), offers(self.peer)) {
            (true, true) => Ok(()),
            (false, true) => Err(format!("this node does not offer {what}")),
            (true, false) => Err(format!("{} does not offer {what}", self.peer.name)),
            (false, false) => Err(format!("neither end offers {what}")),
        }
    }

    /// Returns the peer's underlay address of a family, if both ends have one.
    fn both_have_underlay(&self, family: Family) -> Result<IpAddr, String> {
        match (self.own.underlay.get(family), self.peer.underlay.get(family)) {
            (Some(_), Some(address)) => Ok(address),
            (None, _) => Err(format!("this node has no underlay address of {family}")),
            (Some(_), None) => {
                Err(format!("{} has no underlay address of {family}", self.peer.name))
            }
        }
    }
}
