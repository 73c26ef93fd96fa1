//! What this node is: what its source says of it, on the links that have its addresses.
//!
//! Other nodes know a node by its addresses, and by the hardware addresses of its tunnels. So a
//! tunnel that is there keeps its name and its hardware address, whoever made it; the address that
//! the source has counts before the link's, which another program may have changed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::backends::BackendId;
use crate::earlier::EarlierPrefixes;
use crate::flannel;
use crate::object::Numbers;
use crate::settings::{ExistingTunnel, LinkName, NodeFacts, OwnNode, Settings, Uplink};
use crate::source_node::SourceNode;
use net::{IpFamily, MacAddr, PerFamily};

/// What the host shows of this node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostFacts {
    /// By which link packets from an address leave, of the addresses that the source names and the
    /// host has.
    pub uplinks: BTreeMap<IpAddr, Uplink>,
    /// The links that may be tunnels and are there, in the order of their indices.
    pub tunnels: Vec<TunnelLink>,
}

/// A link that is there, and of a backend's kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelLink {
    /// Its name.
    pub name: LinkName,
    /// The backend.
    pub backend: BackendId,
    /// Its numbers.
    pub numbers: Numbers,
    /// The outer source address.
    pub local: Option<IpAddr>,
    /// Its hardware address.
    pub mac: Option<MacAddr>,
    /// Whose mark it has.
    pub mark: Mark,
}

/// Whose mark a link has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Ours: the alias, or the group until the link is finished.
    Ours,
    /// Another program's alias.
    Others,
    /// It has none.
    None,
}

impl TunnelLink {
    /// Reports whether it is a tunnel of this node's: by its mark, or by its name and hardware
    /// address.
    #[must_use]
    pub fn is_of(&self, own: &OwnNode) -> bool {
        let is_named = own.tunnel_named(&self.name).is_some_and(|of| of.backend == self.backend);
        let has_mac = own.node.macs().any(|mac| self.mac == Some(mac));
        let has_id = own.numbers(self.backend).is_some_and(|of| of.id == self.numbers.id);
        // flanneld's tunnel has no mark, and another program may have changed its hardware address.
        let is_flannels = has_flannels_name(&self.name) && has_id;
        // An earlier version made its tunnel without the group, and may have been killed before it
        // gave it the alias. The hardware address shows that only once this node is known.
        let is_unmarked = self.mark == Mark::None && has_id;
        self.mark == Mark::Ours || (is_named && (has_mac || is_flannels || is_unmarked))
    }
}

/// Reports whether a link is called as flanneld calls its tunnels.
#[must_use]
pub fn has_flannels_name(link: &str) -> bool {
    link.starts_with("flannel")
}

/// What is known of this node beside what its source says now.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    /// Its tunnels with hardware addresses, once they are known: other nodes reach it by these.
    tunnels: PerFamily<Option<ExistingTunnel>>,
    /// The hardware addresses of its tunnels, as the disk has them.
    pub(crate) recorded: PerFamily<Option<MacAddr>>,
    /// The prefixes that it had before.
    pub(crate) earlier: EarlierPrefixes,
}

impl Identity {
    /// Finds out what this node is, if its source says this; without earlier prefixes, blocks, and
    /// the links on the segments of its addresses.
    ///
    /// # Errors
    /// Why it cannot be a node of the cluster, in a sentence.
    pub(crate) fn decide(
        &mut self,
        settings: &Settings,
        name: &str,
        source: &SourceNode,
        host: &HostFacts,
    ) -> Result<OwnNode, String> {
        // A configuration of flanneld's is for all nodes.
        let of_flannel = settings.flannel.as_ref().and_then(|of_flannel| of_flannel.mtu);
        let most = source.mtu.or(of_flannel).unwrap_or(u32::MAX);
        let uplinks = PerFamily::with(|family| {
            let mut addresses = source.addresses.iter().filter(|of| IpFamily::of(**of) == family);
            addresses.find_map(|address| {
                let Uplink { name, mtu } = host.uplinks.get(address)?.clone();
                Some((Uplink { name, mtu: mtu.min(most) }, *address))
            })
        });
        if uplinks.iter().all(|(_, uplink)| uplink.is_none()) {
            let addresses: Vec<String> = source.addresses.iter().map(ToString::to_string).collect();
            return Err(format!(
                "no link of this host has the address {}, by which others are to reach it",
                addresses.join(" or ")
            ));
        }
        let unlisted = source.unlisted.iter().find(|address| host.uplinks.contains_key(address));
        if let (Some(of_flannel), Some(address)) = (&settings.flannel, unlisted) {
            let key = flannel::annotations::overwrite_key(of_flannel, IpFamily::of(*address));
            return Err(format!(
                "flannelds reach this node by {address}, which is none of the addresses in its Node's \
                 status: set the annotation {key} to it first"
            ));
        }
        let wrong = settings.outside_ranges(&source.prefixes);
        if let Some(wrong) = wrong.or_else(|| settings.overlap_with_services(&source.prefixes)) {
            return Err(wrong);
        }
        let taken_over = PerFamily::with(|family| {
            let known = self.tunnels.get(family).clone();
            known.or_else(|| self.tunnel_before(settings, source, host, family))
        });
        let facts = NodeFacts {
            name: name.to_owned(),
            uid: source.uid.clone(),
            prefixes: source.prefixes.clone(),
            kept: Vec::new(),
            zone: source.zone.clone(),
            uplinks,
            taken_over,
        };
        let own = OwnNode::new(settings, facts);
        for family in IpFamily::ALL {
            let found = own.node.macs_over().find(|(_, over, _)| *over == family);
            if let (Some((backend, _, mac)), None) = (found, self.tunnels.get(family))
                && let Some(name) = own.tunnel(backend, family).cloned()
            {
                *self.tunnels.get_mut(family) = Some(ExistingTunnel { name, mac: Some(mac) });
            }
        }
        Ok(own)
    }

    /// Returns the tunnel by which others reach this node already, an earlier run's or flanneld's;
    /// if there is none, the one that is to be made. `None` if no tunnel has a hardware address.
    fn tunnel_before(
        &self,
        settings: &Settings,
        source: &SourceNode,
        host: &HostFacts,
        family: IpFamily,
    ) -> Option<ExistingTunnel> {
        let mut backends = BackendId::ALL.iter().map(|id| id.backend());
        let there = backends.find_map(|of| of.known_tunnel(settings, &host.tunnels, family))?;
        // Other nodes know no hardware address while this node has no address of the family.
        let mac = source.macs.get(family).or(there.mac).or(*self.recorded.get(family));
        Some(ExistingTunnel { name: there.name, mac })
    }
}

#[cfg(test)]
mod tests {
    use crate::flannel::config::Config;
    use crate::mac::mac_of_tunnel;
    use crate::node::Node;

    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn settings() -> Settings {
        Settings::new(vec!["10.244.0.0/16".parse().unwrap()])
    }

    fn in_flannels_place() -> Settings {
        let config = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;
        Config::read(config).unwrap().settings("f/")
    }

    /// What a source says of a node with these addresses.
    fn source(addresses: &[&str]) -> SourceNode {
        SourceNode {
            uid: "uid-a".to_owned(),
            prefixes: vec!["10.244.1.0/24".parse().unwrap()],
            addresses: addresses.iter().map(|text| ip(text)).collect(),
            ..SourceNode::of_lease(Vec::new(), b"{}", &PerFamily::default(), None)
        }
    }

    /// A host that has these addresses, all on one link.
    fn host(addresses: &[&str]) -> HostFacts {
        let uplink = Uplink { name: "eth0".into(), mtu: 1500 };
        let uplinks = addresses.iter().map(|text| (ip(text), uplink.clone())).collect();
        HostFacts { uplinks, tunnels: Vec::new() }
    }

    fn numbers(vni: u32, port: u16) -> Numbers {
        Numbers { id: Some(vni), port: Some(port) }
    }

    fn vxlan(name: &str, mark: Mark) -> TunnelLink {
        let (local, mac) = (Some(ip("192.0.2.1")), Some(MAC));
        let (backend, numbers) = (BackendId::Vxlan, numbers(1, 8472));
        TunnelLink { name: name.into(), backend, numbers, local, mac, mark }
    }

    fn mac4(node: &Node) -> MacAddr {
        node.offers.vxlan.unwrap().mac4.unwrap()
    }

    #[test]
    fn the_first_address_that_a_link_has_counts() {
        let mut identity = Identity::default();
        let mut decide = |node: &SourceNode, has: &[&str]| {
            let own = identity.decide(&settings(), "a", node, &host(has))?;
            Ok::<_, String>(own.node.underlay.v4.unwrap().to_string())
        };
        let node = source(&["192.0.2.1", "192.0.2.2"]);
        assert_eq!(decide(&node, &["192.0.2.1", "192.0.2.2"]).unwrap(), "192.0.2.1");
        assert_eq!(decide(&node, &["192.0.2.2"]).unwrap(), "192.0.2.2");
        assert_eq!(
            decide(&node, &[]).unwrap_err(),
            "no link of this host has the address 192.0.2.1 or 192.0.2.2, by which others are to \
             reach it"
        );
    }

    /// Of the node's own setting, flanneld's for all nodes, and the link's.
    #[test]
    fn what_an_administrator_says_of_the_mtu_counts_where_it_is_less() {
        let of = |own: Option<u32>, of_flannel: Option<u32>| {
            let mut settings = in_flannels_place();
            settings.flannel.as_mut().unwrap().mtu = of_flannel;
            let node = SourceNode { mtu: own, ..source(&["192.0.2.1"]) };
            let own = Identity::default().decide(&settings, "a", &node, &host(&["192.0.2.1"]));
            own.unwrap().uplinks.v4.unwrap().mtu
        };
        let all = [(None, None), (None, Some(1400)), (Some(1450), Some(1400)), (Some(9000), None)];
        assert_eq!(all.map(|(own, of_flannel)| of(own, of_flannel)), [1500, 1400, 1450, 1500]);
    }

    #[test]
    fn a_node_that_flannelds_reach_by_another_address_waits() {
        let node = SourceNode { unlisted: vec![ip("198.51.100.1")], ..source(&["192.0.2.1"]) };
        let decide = |has: &[&str]| {
            Identity::default().decide(&in_flannels_place(), "a", &node, &host(has)).map(drop)
        };
        assert_eq!(decide(&["192.0.2.1"]), Ok(()));
        let why = decide(&["192.0.2.1", "198.51.100.1"]).unwrap_err();
        assert!(why.ends_with("set the annotation f/public-ip-overwrite to it first"), "{why}");
    }

    #[test]
    fn a_prefix_outside_the_ranges_is_refused() {
        let node = SourceNode {
            prefixes: vec!["10.245.1.0/24".parse().unwrap()],
            ..source(&["192.0.2.1"])
        };
        let own = Identity::default().decide(&settings(), "a", &node, &host(&["192.0.2.1"]));
        assert!(own.unwrap_err().starts_with("this node's prefix "));
    }

    #[test]
    fn flannelds_tunnel_is_taken_over_with_its_hardware_address() {
        let there =
            HostFacts { tunnels: vec![vxlan("flannel.1", Mark::None)], ..host(&["192.0.2.1"]) };
        let decide = |settings: &Settings, there: &HostFacts| {
            let node = source(&["192.0.2.1"]);
            let own = Identity::default().decide(settings, "a", &node, there).unwrap();
            (own.tunnels[0].name.to_string(), mac4(&own.node))
        };
        let taken = ("flannel.1".to_owned(), MAC);
        assert_eq!(decide(&in_flannels_place(), &there), taken);
        let ours = mac_of_tunnel("uid-a", IpFamily::V4);
        // Without its configuration it is another program's.
        assert_eq!(decide(&settings(), &there), ("nw-vxlan4".to_owned(), ours));
        // What an earlier run made keeps its name, and another program may have changed its address.
        let marked = HostFacts { tunnels: vec![vxlan("flannel.1", Mark::Ours)], ..there.clone() };
        assert_eq!(decide(&settings(), &marked), ("flannel.1".to_owned(), ours));
        // That of another cluster is none of ours.
        for other in [
            TunnelLink { numbers: numbers(2, 8472), ..vxlan("flannel.1", Mark::Ours) },
            TunnelLink { numbers: numbers(1, 4789), ..vxlan("flannel.1", Mark::Ours) },
            TunnelLink { local: Some(ip("2001:db8::1")), ..vxlan("flannel.1", Mark::Ours) },
            TunnelLink { local: None, ..vxlan("flannel.1", Mark::Ours) },
        ] {
            let there = HostFacts { tunnels: vec![other], ..there.clone() };
            assert_eq!(decide(&settings(), &there), ("nw-vxlan4".to_owned(), ours));
        }
    }

    /// What others know counts before the link, the link before the disk, and all of them before
    /// what follows from the name.
    #[test]
    fn a_tunnel_keeps_the_hardware_address_that_others_know() {
        let [of_source, of_disk] = [MacAddr([2, 0, 0, 0, 0, 8]), MacAddr([2, 0, 0, 0, 0, 9])];
        let there =
            HostFacts { tunnels: vec![vxlan("flannel.1", Mark::None)], ..host(&["192.0.2.1"]) };
        let nothing = host(&["192.0.2.1"]);
        let of = |mac: Option<MacAddr>, there: &HostFacts, recorded: Option<MacAddr>| {
            let recorded = PerFamily { v4: recorded, v6: None };
            let mut identity = Identity { recorded, ..Identity::default() };
            let macs = PerFamily { v4: mac, v6: None };
            let node = SourceNode { macs, ..source(&["192.0.2.1"]) };
            mac4(&identity.decide(&in_flannels_place(), "a", &node, there).unwrap().node)
        };
        assert_eq!(of(Some(of_source), &there, Some(of_disk)), of_source);
        assert_eq!(of(None, &there, Some(of_disk)), MAC);
        assert_eq!(of(None, &nothing, Some(of_disk)), of_disk);
        assert_eq!(of(None, &nothing, None), mac_of_tunnel("uid-a", IpFamily::V4));
    }

    /// Other nodes have entries with it by then.
    #[test]
    fn a_tunnel_that_is_known_stays_as_it_is() {
        let mut identity = Identity::default();
        let node = source(&["192.0.2.1"]);
        let nothing = host(&["192.0.2.1"]);
        let first = identity.decide(&in_flannels_place(), "a", &node, &nothing).unwrap();
        let there = HostFacts { tunnels: vec![vxlan("flannel.1", Mark::None)], ..nothing };
        let other = SourceNode { uid: "uid-b".to_owned(), ..node };
        let later = identity.decide(&in_flannels_place(), "a", &other, &there).unwrap();
        assert_eq!(mac4(&first.node), mac4(&later.node));
        assert_eq!(first.tunnels, later.tunnels);
    }

    /// What this node is, with an address or right after the start.
    fn own(address: Option<&str>) -> OwnNode {
        let uplink = |address| (Uplink { name: "eth0".into(), mtu: 1500 }, ip(address));
        let found = NodeFacts {
            name: "a".to_owned(),
            uid: "uid-a".to_owned(),
            prefixes: Vec::new(),
            kept: Vec::new(),
            zone: None,
            uplinks: PerFamily { v4: address.map(uplink), v6: None },
            taken_over: PerFamily::default(),
        };
        OwnNode::new(&settings(), found)
    }

    /// The service may be killed after each message: the link is its own after the first one, under
    /// any name and before anything is known of the node.
    #[test]
    fn a_marked_tunnel_is_ours_under_any_name_and_number() {
        for name in ["nw-vxlan4", "flannel.1", "flannel.7"] {
            let other = TunnelLink { numbers: numbers(7, 8472), ..vxlan(name, Mark::Ours) };
            assert!(other.is_of(&own(None)), "{name}");
        }
    }

    #[test]
    fn a_tunnel_that_an_earlier_version_did_not_mark_is_ours_by_its_name_and_number() {
        let own = own(None);
        let unmarked = vxlan("nw-vxlan4", Mark::None);
        assert!(unmarked.is_of(&own));
        assert!(!TunnelLink { numbers: numbers(2, 8472), ..unmarked }.is_of(&own));
        assert!(!vxlan("nw-vxlan9", Mark::None).is_of(&own));
        assert!(!vxlan("nw-vxlan4", Mark::Others).is_of(&own));
    }

    #[test]
    fn a_tunnel_with_this_nodes_hardware_address_is_ours_whatever_became_of_its_mark() {
        let own = own(Some("192.0.2.1"));
        let altered = vxlan("nw-vxlan4", Mark::Others);
        assert!(!altered.is_of(&own));
        assert!(TunnelLink { mac: Some(mac4(&own.node)), ..altered }.is_of(&own));
    }
}
