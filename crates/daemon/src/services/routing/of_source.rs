//! What a source says of this node, before it is known by which of its addresses others reach it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use routing::kubernetes::{self, NodeFields, POD_CIDRS};
use routing::node::Node;
use routing::{Family, MacAddr, PerFamily, Settings, annotation, flannel};

/// What the source says of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OfSource {
    pub(super) uid: String,
    pub(super) prefixes: Vec<IpNet>,
    pub(super) kept: Vec<IpNet>,
    pub(super) zone: Option<String>,
    /// What the network carries to it, in bytes, where an administrator has set it.
    pub(super) mtu: Option<u32>,
    /// Its addresses; of each family, the first that a link has counts.
    pub(super) addresses: Vec<IpAddr>,
    /// The hardware addresses of its tunnels over each family, as others know them.
    pub(super) macs: PerFamily<Option<MacAddr>>,
    /// flannel's annotations of its Node.
    pub(super) annotations: BTreeMap<String, String>,
}

impl From<Node> for OfSource {
    fn from(node: Node) -> Self {
        OfSource {
            addresses: node.underlay.iter().collect(),
            macs: PerFamily::with(|family: Family| node.offers.vxlan?.mac(family)),
            annotations: BTreeMap::new(),
            uid: node.uid,
            prefixes: node.prefixes,
            kept: node.kept,
            zone: node.zone,
            mtu: node.mtu,
        }
    }
}

impl OfSource {
    /// Returns what leases in etcd say of this node: the prefixes of its own lease, and in its
    /// value the hardware addresses. `before` is what they said until then.
    pub(super) fn of_lease(
        prefixes: Vec<IpNet>,
        value: &[u8],
        addresses: &PerFamily<Option<IpAddr>>,
        before: Option<&OfSource>,
    ) -> Self {
        let mac = |family: Family| {
            let before = || before.and_then(|before| *before.macs.get(family));
            flannel::lease::mac(value, family).or_else(before)
        };
        // Two hosts may have the same name, but not the same address. The first address stays the
        // identity, because tunnels' hardware addresses follow from it: also when this node had no
        // address for a moment.
        let first = || addresses.v4.map_or_else(String::new, |address| address.to_string());
        let uid = before.map(|before| before.uid.clone()).filter(|uid| !uid.is_empty());
        OfSource {
            uid: uid.unwrap_or_else(first),
            prefixes,
            kept: Vec::new(),
            zone: None,
            mtu: None,
            addresses: addresses.iter().filter_map(|(_, address)| *address).collect(),
            macs: PerFamily::with(mac),
            annotations: BTreeMap::new(),
        }
    }

    /// Reads this node's Node.
    ///
    /// # Errors
    /// Why it has no prefix, in a sentence.
    pub(super) fn of_fields(fields: &NodeFields, settings: &Settings) -> Result<Self, String> {
        let name = &fields.name;
        let prefixes = kubernetes::prefixes(fields).map_err(|refused| {
            format!("Node {name}, which is this one: {}: {}", refused.key, refused.cause)
        })?;
        if prefixes.is_empty() {
            return Err(format!(
                "Node {name}, which is this one, has no {POD_CIDRS}: the cluster's controller \
                 manager gives them (--allocate-node-cidrs)"
            ));
        }
        let mut of_flannel = fields.annotations.clone();
        of_flannel.remove(annotation::KEY);
        Ok(OfSource {
            uid: fields.uid.clone(),
            prefixes,
            kept: Vec::new(),
            zone: fields.zone.clone(),
            mtu: None,
            addresses: fields
                .addresses
                .iter()
                .filter_map(|text| cni::text::parse_ip(text))
                .collect(),
            macs: PerFamily::with(|family| {
                flannel::annotations::mac(fields, settings.flannel.as_ref()?, family)
            }),
            annotations: of_flannel,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(address: Option<&str>) -> PerFamily<Option<IpAddr>> {
        PerFamily { v4: address.map(|address| address.parse().unwrap()), v6: None }
    }

    /// Tunnels' hardware addresses follow from it: a node that had no address for a moment, and is
    /// started with another one, is the same.
    #[test]
    fn a_node_with_another_address_has_the_identity_of_before() {
        let of = |address, before: Option<&OfSource>| {
            OfSource::of_lease(Vec::new(), b"{}", &with(address), before)
        };
        let none = of(None, None);
        assert_eq!(none.uid, "");
        let first = of(Some("192.0.2.1"), Some(&none));
        assert_eq!(first.uid, "192.0.2.1");
        let other = of(Some("192.0.2.2"), Some(&first));
        assert_eq!((other.uid.as_str(), other.addresses.len()), ("192.0.2.1", 1));
    }
}
