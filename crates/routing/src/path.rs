//! How packets to a peer go.
//!
//! The path is the first that both ends offer and that is possible: native, direct, a tunnel over an
//! underlay of the same address family, a tunnel over one of the other family. Every condition is
//! about both ends, so both choose alike. If one of two nodes asks for a native path, and both run
//! `netwrightd routing`, the path is native. If a routing daemon has learned a route to exactly the
//! prefix, that route takes precedence over all paths.
//!
//! `Direct` needs an underlay address of the pods' own family at both ends; a tunnel over the other
//! family serves what is left. There is no encrypted path; the table of backends has room for one.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::backends::Verdict;
use crate::node::{Dialect, Node};
use crate::settings::LinkName;
use net::IpFamily;

pub use crate::backends::BackendId;

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
    /// By a tunnel.
    Tunnel {
        /// What makes the tunnel.
        backend: BackendId,
        /// The family of the packets around it.
        underlay: IpFamily,
    },
    /// They do not go.
    None,
}

impl Path {
    /// Reports whether packets come by it as pods send them.
    #[must_use]
    pub fn is_plain(self) -> bool {
        !matches!(self, Path::Tunnel { .. } | Path::None)
    }

    /// Reports whether it needs a route of ours.
    #[must_use]
    pub fn has_route(self) -> bool {
        self.backend().is_some()
    }

    /// Reports whether it is a tunnel.
    #[must_use]
    pub fn is_tunnel(self) -> bool {
        matches!(self, Path::Tunnel { .. })
    }

    /// Returns the backend that it is by; `None` if nothing of ours is programmed.
    pub(crate) fn backend(self) -> Option<BackendId> {
        match self {
            Path::Direct => Some(BackendId::Direct),
            Path::Tunnel { backend, .. } => Some(backend),
            Path::Native | Path::Learned | Path::None => None,
        }
    }

    /// Returns the family of the underlay's packets that carry pods' packets of a family by it; `None`
    /// if none do.
    pub(crate) fn underlay(self, family: IpFamily) -> Option<IpFamily> {
        match self {
            Path::None => None,
            Path::Tunnel { underlay, .. } => Some(underlay),
            Path::Native | Path::Learned | Path::Direct => Some(family),
        }
    }
}

impl BackendId {
    /// Returns the path by it, with packets of a family around those of pods if it is a tunnel.
    pub(crate) fn path(self, underlay: IpFamily) -> Path {
        match self.backend().is_plain() {
            true => Path::Direct,
            false => Path::Tunnel { backend: self, underlay },
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Path::Native => "native",
            Path::Learned => "learned",
            Path::Direct => "direct",
            Path::Tunnel { backend, .. } => backend.name(),
            Path::None => "none",
        })?;
        match self {
            Path::Tunnel { underlay: IpFamily::V6, .. } => f.write_str("6"),
            _ => Ok(()),
        }
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
        let by = |backend: &BackendId| IpFamily::ALL.map(|of| backend.path(of));
        let ours = BackendId::ALL.iter().flat_map(by);
        let mut all = [Path::Native, Path::Learned, Path::None].into_iter().chain(ours);
        let known = all.find(|path| path.to_string() == word);
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
    /// What else the kernel has been told of the MTU, in bytes, if it is less: by an error that a
    /// router sent, or by a router advertisement. Anybody between the nodes can send these.
    pub learnt_mtu: Option<u32>,
}

/// How a peer is reached: it decides about the path, beside what both ends offer.
#[derive(Debug, Clone, Copy)]
pub struct Reachability<'a> {
    /// The way to the peer's underlay address of each family.
    pub ways: net::PerFamily<&'a Way>,
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
    pub passed_over: Vec<RejectedPath>,
}

/// A path that was not chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedPath {
    /// The path.
    pub path: Path,
    /// What stood against it.
    pub why: String,
}

/// Chooses the path to a peer for one family of its pods' addresses.
///
/// Both ends choose the same if they reach each other alike: every condition is about both ends, or
/// about the network between them. The order is native, learned, and that of the backends, each over
/// the family's own underlay before the other.
#[must_use]
pub fn choose(own: &Node, peer: &Node, family: IpFamily, reach: Reachability<'_>) -> Choice {
    let Decision { path, because, passed_over } = decide(own, peer, family, reach, true);
    let told = |(path, why): (Path, Argument<'_>)| RejectedPath { path, why: why.to_string() };
    let passed_over: Vec<RejectedPath> = passed_over.into_iter().map(told).collect();
    let because = because.map_or_else(|| all_reasons(&passed_over), |because| because.to_string());
    Choice { path, because, passed_over }
}

/// Chooses as [`choose`] does, and says nothing of why: for thousands of peers that takes longer
/// than the choice.
#[must_use]
pub fn choose_path(own: &Node, peer: &Node, family: IpFamily, reach: Reachability<'_>) -> Path {
    decide(own, peer, family, reach, false).path
}

/// Reports whether both ends offer a path by a backend.
pub(crate) fn is_offered(own: &Node, peer: &Node, family: IpFamily, path: Path) -> bool {
    let (Some(backend), Some(underlay)) = (path.backend(), path.underlay(family)) else {
        return false;
    };
    backend.backend().offered(Ends { own, peer }, family, underlay).is_ok()
}

fn all_reasons(passed_over: &[RejectedPath]) -> String {
    let mut reasons: Vec<&str> = Vec::new();
    for passed in passed_over {
        if !reasons.contains(&passed.why.as_str()) {
            reasons.push(&passed.why);
        }
    }
    reasons.join("; ")
}

/// A choice, before it is put into words.
struct Decision<'a> {
    path: Path,
    /// `None`: what stood against all others.
    because: Option<Argument<'a>>,
    passed_over: Vec<(Path, Argument<'a>)>,
}

/// With `tells`, it keeps what stood against other paths.
fn decide<'a>(
    own: &'a Node,
    peer: &'a Node,
    family: IpFamily,
    reach: Reachability<'a>,
    tells: bool,
) -> Decision<'a> {
    let ends = Ends { own, peer };
    let mut passed_over = Vec::new();
    let mut pass_over = |path: Path, why: Argument<'a>| {
        if tells {
            passed_over.push((path, why));
        }
    };
    let plain = |path, because| Decision { path, because: Some(because), passed_over: Vec::new() };
    if let Some((path, because)) = ends.native() {
        return plain(path, because);
    }
    if reach.learned {
        return plain(Path::Learned, Argument::Learned);
    }
    let mut last_resort = None;
    for id in BackendId::ALL {
        let backend = id.backend();
        let underlays = if backend.crosses_families() { 2 } else { 1 };
        for underlay in [family, family.other()].into_iter().take(underlays) {
            let path = id.path(underlay);
            let offered = backend.offered(ends, family, underlay);
            let verdict = match offered {
                Ok(address) => backend.carried(address, reach.ways.get(underlay)),
                Err(why) => Verdict::Impossible(why),
            };
            match verdict {
                Verdict::Possible(because) => {
                    return Decision { path, because: Some(because), passed_over };
                }
                Verdict::Impossible(why) => pass_over(path, why),
                Verdict::LastResort(address) => {
                    pass_over(path, Argument::NoRoute(address));
                    last_resort = last_resort.or(Some((path, address)));
                }
            }
        }
    }
    // A route that is missing now may come back by itself; then the tunnel needs no change.
    if let Some((path, address)) = last_resort {
        passed_over.retain(|(passed, _)| *passed != path);
        let because = Some(Argument::BothOfferWithoutRoute(address));
        return Decision { path, because, passed_over };
    }
    Decision { path: Path::None, because: None, passed_over }
}

/// What speaks for a path, or against it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Argument<'a> {
    LeftToNetwork { asks: &'a str },
    NativeOnly { asks: &'a str, flannels: &'a str },
    Learned,
    OnSegment { address: IpAddr, hop: &'a Hop },
    BehindGateway { address: IpAddr, hop: &'a Hop },
    NoRoute(IpAddr),
    WayUnknown(IpAddr),
    BothOffer(IpAddr),
    BothOfferWithoutRoute(IpAddr),
    OwnLacks(Offer),
    PeerLacks(&'a str, Offer),
    BothLack(Offer),
    Differs { what: &'static str, peer: &'a str, there: u32, own: u32 },
    NotOver { flannels: &'a str, family: IpFamily, underlay: IpFamily },
    OwnWithoutAddress(IpFamily),
    PeerWithoutAddress(&'a str, IpFamily),
}

/// What an end may offer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    /// What a person calls it.
    pub(crate) name: &'static str,
    /// Over packets of this family.
    pub(crate) over: Option<IpFamily>,
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.over {
            Some(underlay) => write!(f, "{} over {underlay}", self.name),
            None => f.write_str(self.name),
        }
    }
}

impl fmt::Display for Argument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Argument::LeftToNetwork { asks } => {
                write!(f, "{asks} leaves it to the network between the nodes")
            }
            Argument::NativeOnly { asks, flannels } => {
                write!(f, "{asks} takes native paths only, and flanneld on {flannels} has none")
            }
            Argument::Learned => f.write_str("a routing daemon has a route to it"),
            Argument::OnSegment { address, hop } => {
                write!(f, "{address} is on the segment of {}", hop.link)
            }
            Argument::BehindGateway { address, hop } => {
                write!(f, "{address} is behind a gateway on {}", hop.link)
            }
            Argument::NoRoute(address) => write!(f, "this node has no route to {address}"),
            Argument::WayUnknown(address) => write!(f, "the way to {address} is not known yet"),
            Argument::BothOffer(address) => write!(f, "both offer it, by way of {address}"),
            Argument::BothOfferWithoutRoute(address) => {
                write!(f, "both offer it; now this node has no route to {address}")
            }
            Argument::OwnLacks(what) => write!(f, "this node does not offer {what}"),
            Argument::PeerLacks(name, what) => write!(f, "{name} does not offer {what}"),
            Argument::BothLack(what) => write!(f, "neither end offers {what}"),
            Argument::Differs { what, peer, there, own } => {
                write!(f, "{peer} has {what} {there}, this node {own}")
            }
            Argument::NotOver { flannels, family, underlay } => {
                write!(f, "flanneld on {flannels} has no {family} over {underlay}")
            }
            Argument::OwnWithoutAddress(family) => {
                write!(f, "this node has no underlay address of {family}")
            }
            Argument::PeerWithoutAddress(name, family) => {
                write!(f, "{name} has no underlay address of {family}")
            }
        }
    }
}

/// Both ends of a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends<'a> {
    pub(crate) own: &'a Node,
    pub(crate) peer: &'a Node,
}

impl<'a> Ends<'a> {
    /// A node that asks for native paths has them with every node of ours.
    fn native(self) -> Option<(Path, Argument<'a>)> {
        let (own, peer) = (self.own, self.peer);
        let asks = match (own.offers.native, peer.offers.native) {
            (false, false) => return None,
            (true, _) => "this node",
            (false, true) => peer.name.as_str(),
        };
        for node in [own, peer] {
            if node.dialect == Dialect::Flannel {
                return Some((Path::None, Argument::NativeOnly { asks, flannels: &node.name }));
            }
        }
        Some((Path::Native, Argument::LeftToNetwork { asks }))
    }

    /// Passes if something is the same at both ends.
    pub(crate) fn same(self, what: &'static str, own: u32, there: u32) -> Result<(), Argument<'a>> {
        let peer = self.peer.name.as_str();
        if own == there { Ok(()) } else { Err(Argument::Differs { what, peer, there, own }) }
    }

    /// Passes if both ends offer something.
    pub(crate) fn both_offer(
        self,
        what: Offer,
        offers: impl Fn(&Node) -> bool,
    ) -> Result<(), Argument<'a>> {
        match (offers(self.own), offers(self.peer)) {
            (true, true) => Ok(()),
            (false, true) => Err(Argument::OwnLacks(what)),
            (true, false) => Err(Argument::PeerLacks(&self.peer.name, what)),
            (false, false) => Err(Argument::BothLack(what)),
        }
    }

    /// Returns the peer's underlay address of a family, if both ends have one.
    pub(crate) fn both_have_underlay(self, family: IpFamily) -> Result<IpAddr, Argument<'a>> {
        match (self.own.underlay.get(family), self.peer.underlay.get(family)) {
            (Some(_), Some(address)) => Ok(address),
            (None, _) => Err(Argument::OwnWithoutAddress(family)),
            (Some(_), None) => Err(Argument::PeerWithoutAddress(&self.peer.name, family)),
        }
    }
}
