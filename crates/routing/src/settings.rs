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

use crate::mac::mac_of_tunnel;
use crate::node::{Dialect, Node, Offers, Underlay, Vxlan};
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

    /// Returns what this node offers the others, before its hardware addresses are known.
    #[must_use]
    pub fn offers(&self) -> Offers {
        let vxlan = Vxlan { vni: self.vxlan.vni, port: self.vxlan.port, mac4: None, mac6: None };
        match self.paths {
            Paths::Auto => Offers { native: false, direct: true, vxlan: Some(vxlan) },
            Paths::Direct => Offers { native: false, direct: true, vxlan: None },
            Paths::Vxlan => Offers { native: false, direct: false, vxlan: Some(vxlan) },
            Paths::Native => Offers { native: true, direct: false, vxlan: None },
        }
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

    pub(crate) fn mac(&self, family: IpFamily) -> String {
        self.data(
            family,
            "VtepMAC",
            match family {
                IpFamily::V4 => "mac4",
                IpFamily::V6 => "mac6",
            },
        )
    }

    pub(crate) fn vni(&self) -> String {
        self.data(IpFamily::V4, "VNI", "vni")
    }

    /// flannel's records have no port: all flannelds of a cluster have the same.
    pub(crate) fn port(&self) -> String {
        self.data(IpFamily::V4, "Port", "port")
    }

    fn data(&self, family: IpFamily, flannels: &str, ours: &str) -> String {
        let infix = match family {
            IpFamily::V4 => "",
            IpFamily::V6 => "v6-",
        };
        match (self.settings.source, self.dialect, family) {
            (Source::Kubernetes, Dialect::Flannel, _) => {
                self.of_flannel(&format!("backend-{infix}data: {flannels}"))
            }
            (Source::Etcd, _, IpFamily::V4) => format!("BackendData.{flannels}"),
            (Source::Etcd, _, IpFamily::V6) => format!("BackendV6Data.{flannels}"),
            _ => self.of_ours(&format!("offers.vxlan.{ours}")),
        }
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Paths {
    /// Direct ones where no gateway is in between, VXLAN tunnels elsewhere.
    Auto,
    /// Direct ones only.
    Direct,
    /// VXLAN tunnels only.
    Vxlan,
    /// None: the network between the nodes knows where pods are.
    Native,
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
    /// The names of its tunnels over each family.
    pub tunnels: PerFamily<LinkName>,
    /// The hardware addresses of its tunnels, also over a family in which it has no address now.
    pub macs: PerFamily<MacAddr>,
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
        let tunnels = PerFamily::with(|family| match taken_over.get(family) {
            Some(taken) => taken.name.clone(),
            None => tunnel_name(settings, family).into(),
        });
        let identity = if uid.is_empty() { &name } else { &uid };
        let macs = PerFamily::with(|family| {
            let taken = taken_over.get(family).as_ref().and_then(|taken| taken.mac);
            taken.unwrap_or_else(|| mac_of_tunnel(identity, family))
        });
        let mac = |family: IpFamily| underlay.get(family).map(|_| *macs.get(family));
        let mut offers = settings.offers();
        if let Some(vxlan) = &mut offers.vxlan {
            (vxlan.mac4, vxlan.mac6) = (mac(IpFamily::V4), mac(IpFamily::V6));
        }
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
}

/// Returns how a tunnel is called that is not there yet: as flanneld calls it where this node
/// speaks its dialect, so that it can be given back.
#[must_use]
pub fn tunnel_name(settings: &Settings, underlay: IpFamily) -> String {
    let [ours, flannels] = tunnel_names(settings, underlay);
    if settings.flannel.is_some() { flannels } else { ours }
}

/// Returns how a tunnel of this cluster may be called: as ours are, and as flanneld's are.
#[must_use]
pub fn tunnel_names(settings: &Settings, underlay: IpFamily) -> [String; 2] {
    let vni = settings.vxlan.vni;
    match underlay {
        IpFamily::V4 => ["nw-vxlan4".to_owned(), format!("flannel.{vni}")],
        IpFamily::V6 => ["nw-vxlan6".to_owned(), format!("flannel-v6.{vni}")],
    }
}
