//! What a source says of this node, before it is known by which of its addresses others reach it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::cluster::NodeRecord;
use crate::kubernetes::{self, ADDRESSES, NodeFields, POD_CIDRS};
use crate::node::Node;
use crate::refused::Refusal;
use crate::settings::Settings;
use crate::{annotation, flannel};
use net::{IpFamily, MacAddr, PerFamily};

/// What the source says of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceNode {
    /// What tells it from an earlier node of the same name.
    pub uid: String,
    /// Its prefixes.
    pub prefixes: Vec<IpNet>,
    /// Prefixes that it had before, where the source has them.
    pub kept: Vec<IpNet>,
    /// Its zone.
    pub zone: Option<String>,
    /// What the network carries to it, in bytes, where an administrator has set it.
    pub mtu: Option<u32>,
    /// Its prefixes of families of which the cluster has no range. With flanneld's configuration
    /// that is as usual.
    pub unused: Vec<IpNet>,
    /// Its addresses; of each family, the first that a link has counts.
    pub addresses: Vec<IpAddr>,
    /// The addresses by which flannelds reach it although it is not said to have them.
    pub unlisted: Vec<IpAddr>,
    /// The hardware addresses of its tunnels over each family, as others know them.
    pub macs: PerFamily<Option<MacAddr>>,
    /// flannel's annotations of its Node.
    pub annotations: BTreeMap<String, String>,
}

impl From<Node> for SourceNode {
    fn from(node: Node) -> Self {
        SourceNode {
            addresses: node.underlay.iter().collect(),
            unlisted: Vec::new(),
            unused: Vec::new(),
            macs: PerFamily::with(|family: IpFamily| node.mac(family)),
            annotations: BTreeMap::new(),
            uid: node.uid,
            prefixes: node.prefixes,
            kept: node.kept,
            zone: node.zone,
            mtu: node.mtu,
        }
    }
}

impl SourceNode {
    /// Finds this node in a list of nodes; `list` is how a message calls that.
    ///
    /// # Errors
    /// Why this node is not in the list, in a sentence.
    pub fn of_list(nodes: &[NodeRecord], name: &str, list: &str) -> Result<Self, String> {
        match nodes.iter().find(|node| node.name == name) {
            Some(NodeRecord { node: Ok(node), .. }) => Ok(node.clone().into()),
            Some(NodeRecord { node: Err(unusable), .. }) => {
                Err(format!("{list}: node {name}, which is this one: {unusable}"))
            }
            None => Err(format!(
                "{list} has no node {name:?}, which is this one's name: add it, or set node"
            )),
        }
    }

    /// Reads this node's Node, if the cluster has it.
    ///
    /// # Errors
    /// Why this node has no prefix, in a sentence.
    pub fn of_cluster(
        fields: Option<&NodeFields>,
        name: &str,
        settings: &Settings,
    ) -> Result<Self, String> {
        let missing =
            || format!("the cluster has no Node {name:?}, which is this one's name: set node");
        Self::of_fields(fields.ok_or_else(missing)?, settings)
    }

    /// Returns what leases in etcd say of this node: the prefixes of its own lease, and in its
    /// value the hardware addresses. `before` is what they said until then.
    #[must_use]
    pub fn of_lease(
        prefixes: Vec<IpNet>,
        value: &[u8],
        addresses: &PerFamily<Option<IpAddr>>,
        before: Option<&SourceNode>,
    ) -> Self {
        let mac = |family: IpFamily| {
            let before = || before.and_then(|before| *before.macs.get(family));
            flannel::lease::mac(value, family).or_else(before)
        };
        // Two hosts may have the same name, but not the same address. The first address stays the
        // identity, because tunnels' hardware addresses follow from it: also when this node had no
        // address for a moment.
        let first = || addresses.v4.map_or_else(String::new, |address| address.to_string());
        let uid = before.map(|before| before.uid.clone()).filter(|uid| !uid.is_empty());
        SourceNode {
            uid: uid.unwrap_or_else(first),
            prefixes,
            kept: Vec::new(),
            zone: None,
            mtu: None,
            addresses: addresses.iter().filter_map(|(_, address)| *address).collect(),
            unlisted: Vec::new(),
            unused: Vec::new(),
            macs: PerFamily::with(mac),
            annotations: BTreeMap::new(),
        }
    }

    /// Reads this node's Node.
    ///
    /// # Errors
    /// Why it has no prefix, in a sentence.
    fn of_fields(fields: &NodeFields, settings: &Settings) -> Result<Self, String> {
        let name = &fields.name;
        let wrong = |refused: Refusal| {
            format!("Node {name}, which is this one: {}: {}", refused.key, refused.cause)
        };
        let prefixes = kubernetes::used_prefixes(fields, settings).map_err(wrong)?;
        let mut unused = kubernetes::prefixes(fields).map_err(wrong)?;
        unused.retain(|prefix| settings.flannel.is_none() && !prefixes.contains(prefix));
        if prefixes.is_empty() {
            return Err(format!(
                "Node {name}, which is this one, has no {POD_CIDRS}: the cluster's controller \
                 manager gives them (--allocate-node-cidrs)"
            ));
        }
        let listed: Vec<IpAddr> =
            fields.addresses.iter().filter_map(|text| cni::text::parse_ip(text)).collect();
        if listed.is_empty() {
            return Err(format!(
                "Node {name}, which is this one, has no address in {ADDRESSES}: its kubelet, or the \
                 cloud's controller, has not set one yet"
            ));
        }
        let [overwritten, published] = addresses_of_flannel(fields, settings);
        let is_listed = |address: &IpAddr| listed.contains(address);
        // A node that has published how ours reach it is no longer as flanneld left it.
        let is_flannels = !fields.annotations.contains_key(annotation::KEY);
        let is_unlisted =
            |address: &IpAddr| is_flannels && !is_listed(address) && !overwritten.contains(address);
        let unlisted = published.iter().copied().filter(is_unlisted).collect();
        // Those that flannelds use stay in use.
        let first = overwritten.into_iter().chain(published.into_iter().filter(is_listed));
        let mut addresses = Vec::new();
        for address in first.chain(listed.iter().copied()) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        let mut of_flannel = fields.annotations.clone();
        of_flannel.remove(annotation::KEY);
        Ok(SourceNode {
            uid: fields.uid.clone(),
            prefixes,
            kept: Vec::new(),
            zone: fields.zone.clone(),
            mtu: None,
            addresses,
            unlisted,
            unused,
            macs: PerFamily::with(|family| {
                flannel::annotations::mac(fields, settings.flannel.as_ref()?, family)
            }),
            annotations: of_flannel,
        })
    }
}

/// Returns the addresses that flannel's annotations of a Node have: those that an administrator has
/// set, and those that flannelds use.
fn addresses_of_flannel(fields: &NodeFields, settings: &Settings) -> [Vec<IpAddr>; 2] {
    let Some(of_flannel) = &settings.flannel else { return [Vec::new(), Vec::new()] };
    let overwritten = |family| flannel::annotations::overwrite(fields, of_flannel, family);
    let published = |family| flannel::annotations::public_ip(fields, of_flannel, family);
    [
        IpFamily::ALL.into_iter().filter_map(overwritten).collect(),
        IpFamily::ALL.into_iter().filter_map(published).collect(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Node of two families with these addresses, and flannel's annotations.
    fn fields(addresses: &[&str], annotations: &[(&str, &str)]) -> NodeFields {
        let key = |name: &str| {
            if name == annotation::KEY { name.to_owned() } else { format!("f/{name}") }
        };
        NodeFields {
            name: "a".to_owned(),
            pod_cidrs: ["10.244.1.0/24", "fd00:244:1::/64"].map(str::to_owned).to_vec(),
            addresses: addresses.iter().map(|text| (*text).to_owned()).collect(),
            annotations: annotations
                .iter()
                .map(|(name, value)| (key(name), (*value).to_owned()))
                .collect(),
            ..NodeFields::default()
        }
    }

    fn in_flannels_place() -> Settings {
        let config = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;
        flannel::config::Config::read(config).unwrap().settings("f/")
    }

    /// Other nodes know it by that, and need not hear of a take-over.
    #[test]
    fn the_address_that_flannelds_use_stays_in_use() {
        let settings = in_flannels_place();
        let of = |annotations: &[(&str, &str)]| {
            let fields = fields(&["192.0.2.1", "192.0.2.2", "a"], annotations);
            let node = SourceNode::of_fields(&fields, &settings).unwrap();
            let shown = |list: Vec<IpAddr>| -> Vec<String> {
                list.iter().map(ToString::to_string).collect()
            };
            (shown(node.addresses).join(" "), shown(node.unlisted).join(" "))
        };
        let is = |addresses: &str, unlisted: &str| (addresses.to_owned(), unlisted.to_owned());
        assert_eq!(of(&[]), is("192.0.2.1 192.0.2.2", ""));
        assert_eq!(of(&[("public-ip", "192.0.2.2")]), is("192.0.2.2 192.0.2.1", ""));
        // flanneld was told another link (--iface) than the kubelet.
        let other = ("public-ip", "198.51.100.1");
        assert_eq!(of(&[other]), is("192.0.2.1 192.0.2.2", "198.51.100.1"));
        let told = ("public-ip-overwrite", "198.51.100.1");
        assert_eq!(of(&[other, told]), is("198.51.100.1 192.0.2.1 192.0.2.2", ""));
        // The service has taken the node over, and the node has another address since.
        assert_eq!(of(&[other, (annotation::KEY, "{}")]), is("192.0.2.1 192.0.2.2", ""));
    }

    #[test]
    fn a_family_without_a_range_of_the_cluster_does_not_count() {
        let settings = Settings::new(vec!["10.244.0.0/16".parse().unwrap()]);
        let unused: IpNet = "fd00:244:1::/64".parse().unwrap();
        for (settings, unused) in [(settings, vec![unused]), (in_flannels_place(), Vec::new())] {
            let node = SourceNode::of_fields(&fields(&["192.0.2.1"], &[]), &settings).unwrap();
            assert_eq!(node.prefixes, ["10.244.1.0/24".parse::<IpNet>().unwrap()]);
            assert_eq!(node.unused, unused);
        }
    }

    /// As it is until a cloud's controller has run.
    #[test]
    fn a_node_without_an_address_waits_for_one() {
        let settings = Settings::new(vec!["10.244.0.0/16".parse().unwrap()]);
        let why = SourceNode::of_fields(&fields(&["a"], &[]), &settings).unwrap_err();
        let begin = "Node a, which is this one, has no address in status.addresses: ";
        assert!(why.starts_with(begin), "{why}");
    }

    fn with(address: Option<&str>) -> PerFamily<Option<IpAddr>> {
        PerFamily { v4: address.map(|address| address.parse().unwrap()), v6: None }
    }

    /// Tunnels' hardware addresses follow from it: a node that had no address for a moment, and is
    /// started with another one, is the same.
    #[test]
    fn a_node_with_another_address_has_the_identity_of_before() {
        let of = |address, before: Option<&SourceNode>| {
            SourceNode::of_lease(Vec::new(), b"{}", &with(address), before)
        };
        let none = of(None, None);
        assert_eq!(none.uid, "");
        let first = of(Some("192.0.2.1"), Some(&none));
        assert_eq!(first.uid, "192.0.2.1");
        let other = of(Some("192.0.2.2"), Some(&first));
        assert_eq!((other.uid.as_str(), other.addresses.len()), ("192.0.2.1", 1));
    }
}
