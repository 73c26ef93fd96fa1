//! What the configuration says, and what is known of this node.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::backends::BackendId;
use crate::mac::mac_of_tunnel;
use crate::node::{Dialect, Node, Offers, Underlay};
use crate::object::{Encapsulation, Numbers};
use crate::reader::overlap;
use crate::refused::Cause;
use net::MacAddr;
use net::{IpFamily, PerFamily};

/// The port that flanneld's VXLAN uses, which is Linux's default.
pub const VXLAN_PORT: u16 = 8472;

/// The network identifier that flanneld's VXLAN uses by default.
pub const VNI: u32 = 1;

/// Where peers are learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// Nodes of Kubernetes.
    Kubernetes,
    /// flannel's leases in etcd.
    Etcd,
    /// A file with a list of nodes.
    File,
}

/// The configuration of the service, checked: what is the same for all its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where peers are learnt.
    pub source: Source,
    /// The ranges that all prefixes are in (`--cluster-cidr`).
    pub cluster_ranges: Vec<IpNet>,
    /// The spaces of `cluster-ipam` whose blocks are routed.
    pub spaces: Vec<String>,
    /// The ranges that these blocks are of. They have nothing in common with the cluster's.
    pub space_ranges: Vec<IpNet>,
    /// The ranges of services, which no prefix may touch; empty if the configuration names none.
    pub service_ranges: Vec<IpNet>,
    /// Further ranges to which pods' packets keep their source.
    pub exempt: Vec<IpNet>,
    /// Which paths this node offers.
    pub paths: Paths,
    /// The VXLAN tunnels of this cluster.
    pub vxlan: Tunnels,
    /// flanneld's dialect, if this node speaks it.
    pub flannel: Option<FlannelSettings>,
    /// What is to be done is shown, and not done: flanneld does this node's part.
    pub standby: bool,
    /// The MTU of pods.
    pub pod_mtu: PodMtu,
    /// Underlay addresses need not be among their Node's: nodes are believed.
    pub any_address: bool,
    /// Pod ranges may overlap what this host has: an administrator has allowed it.
    pub allow_overlap: bool,
    /// The MTU of the underlay as an administrator has set it, in bytes; `None` takes the links'.
    pub underlay_mtu: Option<u32>,
}

impl Settings {
    /// Creates those of a cluster with these ranges, with the defaults of everything else.
    #[must_use]
    pub fn new(cluster_ranges: Vec<IpNet>) -> Self {
        Settings {
            source: Source::Kubernetes,
            cluster_ranges,
            spaces: Vec::new(),
            space_ranges: Vec::new(),
            service_ranges: Vec::new(),
            exempt: Vec::new(),
            paths: Paths::Auto,
            vxlan: Tunnels { vni: VNI, port: VXLAN_PORT },
            flannel: None,
            standby: false,
            pod_mtu: PodMtu::Paths,
            any_address: false,
            allow_overlap: false,
            underlay_mtu: None,
        }
    }

    /// Returns the ranges of all pods: the cluster's, and those of spaces.
    pub fn ranges(&self) -> impl Iterator<Item = IpNet> {
        self.cluster_ranges.iter().chain(&self.space_ranges).copied()
    }

    /// Reports whether a prefix is of the ranges of spaces.
    #[must_use]
    pub fn is_of_space(&self, prefix: IpNet) -> bool {
        self.space_ranges.iter().any(|range| range.contains(&prefix))
    }

    /// Returns the cluster's ranges of a family, as a message lists them.
    #[must_use]
    pub fn ranges_of(&self, family: IpFamily) -> String {
        let of_family = |range: &&IpNet| IpFamily::of_prefix(**range) == family;
        let ranges: Vec<String> =
            self.cluster_ranges.iter().filter(of_family).map(ToString::to_string).collect();
        if ranges.is_empty() { "there are none".to_owned() } else { ranges.join(", ") }
    }

    /// Says which of this node's prefixes touches a range of services: a pod there could have a
    /// service's address.
    #[must_use]
    pub fn overlap_with_services(&self, prefixes: &[IpNet]) -> Option<String> {
        let found = prefixes.iter().copied().find_map(|prefix| {
            let range = self.services_at(prefix)?;
            Some(Cause::OverlapsServices { prefix, range })
        });
        found.map(|cause| format!("this node's prefix {cause}: give it another one"))
    }

    /// Says which of this node's prefixes is in none of the cluster's ranges: other nodes refuse
    /// it.
    #[must_use]
    pub fn outside_ranges(&self, prefixes: &[IpNet]) -> Option<String> {
        let is_in = |prefix: &IpNet| self.cluster_ranges.iter().any(|range| range.contains(prefix));
        let prefix = prefixes.iter().copied().find(|prefix| !is_in(prefix))?;
        let family = IpFamily::of_prefix(prefix);
        let cause = Cause::OutsideRanges { prefix, family, ranges: self.ranges_of(family) };
        Some(format!("this node's prefix {cause}: other nodes refuse it"))
    }

    /// Returns the range of services that a prefix touches.
    pub(crate) fn services_at(&self, prefix: IpNet) -> Option<IpNet> {
        self.service_ranges.iter().copied().find(|range| overlap(*range, prefix))
    }

    /// Returns how a source calls what a record says.
    pub(crate) fn keys(&self, dialect: Dialect) -> Keys<'_> {
        Keys { settings: self, dialect }
    }

    /// Returns what a node of this cluster offers the others, if its tunnels have these hardware
    /// addresses.
    pub(crate) fn offers(&self, mac: &dyn Fn(IpFamily) -> Option<MacAddr>) -> Offers {
        let mut offers = Offers { native: self.paths == Paths::Native, ..Offers::default() };
        for id in BackendId::ALL {
            let backend = id.backend();
            let is_offered = match self.paths {
                Paths::Auto => backend.is_usual(),
                Paths::Only(only) => only == *id,
                Paths::Native => false,
            };
            if is_offered {
                backend.offer(self, mac, &mut offers);
            }
        }
        offers
    }

    /// Returns which packets belong to the tunnels that this node offers.
    pub fn encapsulations(&self) -> impl Iterator<Item = Encapsulation> {
        let offers = self.offers(&|_| None);
        BackendId::ALL.iter().filter_map(move |id| id.backend().encapsulation(&offers))
    }
}

/// What a source calls the keys of a record: messages name the key that an administrator has to
/// look at.
pub(crate) struct Keys<'a> {
    settings: &'a Settings,
    dialect: Dialect,
}

impl Keys<'_> {
    pub(crate) fn prefixes(&self) -> String {
        let key = match self.settings.source {
            Source::Kubernetes => crate::kubernetes::POD_CIDRS,
            Source::Etcd => "key",
            Source::File => "prefixes",
        };
        key.to_owned()
    }

    pub(crate) fn underlay(&self, family: IpFamily) -> String {
        let suffix = match family {
            IpFamily::V4 => "",
            IpFamily::V6 => "v6",
        };
        match (self.settings.source, self.dialect) {
            (Source::Kubernetes, Dialect::Flannel) => {
                self.of_flannel(&format!("public-ip{suffix}"))
            }
            (Source::Etcd, _) => format!("PublicIP{suffix}"),
            _ => self.of_ours("underlay"),
        }
    }

    /// Returns how a source of flannel's calls a value of its backend's data; `None` for our own
    /// records.
    pub(crate) fn of_data(&self, family: IpFamily, name: &str) -> Option<String> {
        let infix = match family {
            IpFamily::V4 => "",
            IpFamily::V6 => "v6-",
        };
        match (self.settings.source, self.dialect, family) {
            (Source::Kubernetes, Dialect::Flannel, _) => {
                Some(self.of_flannel(&format!("backend-{infix}data: {name}")))
            }
            (Source::Etcd, _, IpFamily::V4) => Some(format!("BackendData.{name}")),
            (Source::Etcd, _, IpFamily::V6) => Some(format!("BackendV6Data.{name}")),
            _ => None,
        }
    }

    /// Returns how our own records call what is at a path below the offers.
    pub(crate) fn of_offer(&self, path: &str) -> String {
        self.of_ours(&format!("offers.{path}"))
    }

    fn of_ours(&self, path: &str) -> String {
        match self.settings.source {
            Source::Kubernetes => format!("{}: {path}", crate::annotation::KEY),
            Source::Etcd | Source::File => path.to_owned(),
        }
    }

    fn of_flannel(&self, name: &str) -> String {
        let prefix = self.settings.flannel.as_ref().map_or("", |flannel| flannel.prefix.as_str());
        format!("{prefix}{name}")
    }
}

/// Which paths a node offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Paths {
    /// The usual ones: direct where no gateway is in between, VXLAN tunnels elsewhere.
    Auto,
    /// Those by one backend.
    Only(BackendId),
    /// None: the network between the nodes knows where pods are.
    Native,
}

impl Paths {
    /// Returns what the word of a setting means.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        match word {
            "auto" => Some(Paths::Auto),
            "native" => Some(Paths::Native),
            _ => BackendId::ALL.iter().find(|id| id.name() == word).map(|id| Paths::Only(*id)),
        }
    }
}

/// What all tunnels of a cluster share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tunnels {
    /// The network identifier.
    pub vni: u32,
    /// The UDP port.
    pub port: u16,
}

/// What this node has to know of flanneld's configuration to be one of its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlannelSettings {
    /// What annotations begin with, ending in `/` or `-`.
    pub prefix: String,
    /// The backend of this cluster's flannelds.
    pub backend: Backend,
    /// flannelds reach nodes of their own segment without the tunnel (`DirectRouting`).
    pub direct_routing: bool,
    /// What the network between the nodes carries, in bytes, where that is less than the links do.
    pub mtu: Option<u32>,
}

/// The backends of flanneld whose peers this node reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Backend {
    /// `vxlan`.
    #[serde(rename = "vxlan")]
    Vxlan,
    /// `host-gw`.
    #[serde(rename = "host-gw")]
    HostGw,
}

impl Backend {
    /// Its name, as flanneld writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Backend::Vxlan => "vxlan",
            Backend::HostGw => "host-gw",
        }
    }

    /// Returns the backend of a name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        [Backend::Vxlan, Backend::HostGw].into_iter().find(|backend| backend.name() == name)
    }
}

/// Which MTU pods get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodMtu {
    /// The lowest of the paths in use, so that every packet of a pod fits.
    Paths,
    /// The underlay's. The pod's own host reports by ICMP what fits in a tunnel.
    Underlay,
    /// So many bytes.
    Fixed(u32),
}

/// The name of a link. All that refers to it shares it; thousands of objects do, so it takes no more
/// than a pointer.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LinkName(Arc<Box<str>>);

impl Ord for LinkName {
    /// Names that are compared are nearly always the same one: what is on a tunnel is in order by it.
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl PartialOrd for LinkName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Deref for LinkName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for LinkName {
    fn borrow(&self) -> &str {
        self
    }
}

impl From<&str> for LinkName {
    fn from(name: &str) -> Self {
        LinkName(Arc::new(name.into()))
    }
}

impl From<String> for LinkName {
    fn from(name: String) -> Self {
        LinkName(Arc::new(name.into()))
    }
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl fmt::Debug for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// What this node is, as it finds out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnNode {
    /// What it publishes to other nodes.
    pub node: Node,
    /// The link that has the underlay address of each family.
    pub uplinks: PerFamily<Option<Uplink>>,
    /// The links by which packets of other nodes may come, as far as that follows from this node: the
    /// uplinks, and what is on the same segments.
    pub links: BTreeSet<LinkName>,
    /// Which tunnels it may have.
    pub tunnels: Vec<OwnTunnel>,
    /// The hardware addresses of its tunnels, also over a family in which it has no address now.
    pub macs: PerFamily<MacAddr>,
}

/// A tunnel that this node may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnTunnel {
    /// What makes it.
    pub backend: BackendId,
    /// The family of the packets around those of pods.
    pub underlay: IpFamily,
    /// The name of the link.
    pub name: LinkName,
}

/// A link by which this node reaches others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uplink {
    /// Its name.
    pub name: LinkName,
    /// Its MTU, in bytes.
    pub mtu: u32,
}

/// A tunnel that is there already: flanneld's, or one that an earlier run made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExistingTunnel {
    /// Its name.
    pub name: LinkName,
    /// Its hardware address, if peers may know it.
    pub mac: Option<MacAddr>,
}

/// What the daemon found out about this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// The node's name.
    pub name: String,
    /// Its UID; empty if the source has none. Then the name stands for it.
    pub uid: String,
    /// Its prefixes, as the source says.
    pub prefixes: Vec<IpNet>,
    /// Earlier prefixes in which pods live.
    pub kept: Vec<IpNet>,
    /// Its zone.
    pub zone: Option<String>,
    /// The link of each family that carries packets to other nodes, with its address there.
    pub uplinks: PerFamily<Option<(Uplink, IpAddr)>>,
    /// The tunnels over each family that are there already.
    pub taken_over: PerFamily<Option<ExistingTunnel>>,
}

impl OwnNode {
    /// Returns what is known of a node at first: its name.
    pub(crate) fn unknown(settings: &Settings, name: &str) -> Self {
        let found = NodeFacts {
            name: name.to_owned(),
            uid: String::new(),
            prefixes: Vec::new(),
            kept: Vec::new(),
            zone: None,
            uplinks: PerFamily::default(),
            taken_over: PerFamily::default(),
        };
        OwnNode::new(settings, found)
    }

    /// Decides what this node publishes to other nodes, and the names of its tunnels.
    ///
    /// A tunnel that is there keeps its name and its hardware address: peers need not hear of it.
    #[must_use]
    pub fn new(settings: &Settings, found: NodeFacts) -> Self {
        let NodeFacts { name, uid, prefixes, kept, zone, uplinks, taken_over } = found;
        let mut underlay = Underlay::default();
        for (_, uplink) in uplinks.iter() {
            if let Some((_, address)) = uplink {
                underlay.set(*address);
            }
        }
        let ids = BackendId::ALL.iter().flat_map(|id| IpFamily::ALL.map(|over| (*id, over)));
        let tunnel = |(backend, underlay): (BackendId, IpFamily)| {
            let taken_over = taken_over.get(underlay).as_ref();
            let name = backend.backend().tunnel_name(settings, taken_over, underlay)?;
            Some(OwnTunnel { backend, underlay, name })
        };
        let tunnels = ids.filter_map(tunnel).collect();
        let identity = if uid.is_empty() { &name } else { &uid };
        let macs = PerFamily::with(|family| {
            let taken = taken_over.get(family).as_ref().and_then(|taken| taken.mac);
            taken.unwrap_or_else(|| mac_of_tunnel(identity, family))
        });
        let offers = settings.offers(&|family| underlay.get(family).map(|_| *macs.get(family)));
        let mtu = uplinks.iter().filter_map(|(_, uplink)| Some(uplink.as_ref()?.0.mtu)).min();
        let uplinks = PerFamily {
            v4: uplinks.v4.map(|(uplink, _)| uplink),
            v6: uplinks.v6.map(|(uplink, _)| uplink),
        };
        let links = uplinks.iter().filter_map(|(_, uplink)| Some(uplink.as_ref()?.name.clone()));
        let links = links.collect();
        let node = Node {
            name,
            uid,
            created: None,
            prefixes,
            kept,
            blocks: Vec::new(),
            underlay,
            addresses: Vec::new(),
            offers,
            mtu: settings.underlay_mtu.or(mtu),
            zone,
            dialect: Dialect::Netwright,
        };
        OwnNode { node, uplinks, links, tunnels, macs }
    }

    /// Returns the name of a tunnel.
    pub(crate) fn tunnel(&self, backend: BackendId, underlay: IpFamily) -> Option<&LinkName> {
        let is_it = |of: &&OwnTunnel| (of.backend, of.underlay) == (backend, underlay);
        self.tunnels.iter().find(is_it).map(|of| &of.name)
    }

    /// Returns the tunnel that a link has the name of.
    #[must_use]
    pub fn tunnel_named(&self, link: &str) -> Option<&OwnTunnel> {
        self.tunnels.iter().find(|of| *of.name == *link)
    }

    /// Returns the tunnels that it has, with these addresses.
    pub fn used_tunnels(&self) -> impl Iterator<Item = &OwnTunnel> {
        let node = &self.node;
        self.tunnels.iter().filter(|of| {
            of.backend.backend().numbers(&node.offers).is_some()
                && node.underlay.get(of.underlay).is_some()
        })
    }

    /// Returns the numbers of a backend's tunnels, if this node offers them.
    #[must_use]
    pub fn numbers(&self, backend: BackendId) -> Option<Numbers> {
        backend.backend().numbers(&self.node.offers)
    }
}
