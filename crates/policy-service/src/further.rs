//! What pods say of further networks: the annotations of the Network Plumbing Working Group's
//! standard. The program that attaches the networks writes the status once they are attached; the
//! annotation that asks for them is there before.

use std::collections::BTreeMap;
use std::net::IpAddr;

use node_api::policy::is_further;
use npwg::annotation::{self, LEGACY_NETWORKS, LEGACY_STATUS, NETWORKS, STATUS};
use policy::networks::NetworkInterface;
use serde::Deserialize;
use serde_json::Value;

/// The annotations that are read.
pub(super) const ANNOTATIONS: [&str; 5] =
    [STATUS, LEGACY_STATUS, NETWORKS, LEGACY_NETWORKS[0], LEGACY_NETWORKS[1]];

/// Which further networks a pod has, and asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FurtherNetworks {
    /// Those that its status has.
    pub(super) says: Vec<NetworkInterface>,
    /// The interfaces that it asks for, with their networks.
    asks: Vec<(String, String)>,
}

/// An element of the status (NPWG 1.3 §4.1.2).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Element {
    name: String,
    interface: String,
    ips: Vec<String>,
    default: bool,
}

impl FurtherNetworks {
    /// Reads the annotations of a pod. An annotation that cannot be read says nothing: then a pod
    /// of this node stays closed on a network that no annotation names.
    pub(super) fn read(object: &Value) -> Self {
        let metadata = &object["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        let all = metadata.get("annotations");
        let known = ANNOTATIONS.into_iter().filter_map(|key| {
            let text = all?.get(key)?.as_str()?;
            Some((key.to_owned(), text.to_owned()))
        });
        let known: BTreeMap<String, String> = known.collect();
        if known.is_empty() {
            return FurtherNetworks::default();
        }
        let status = known.get(STATUS).or_else(|| known.get(LEGACY_STATUS));
        FurtherNetworks {
            says: status.map(|text| says(text)).unwrap_or_default(),
            asks: asks(&known, namespace).unwrap_or_default(),
        }
    }

    /// Returns the network that an interface of the pod is on, if that is known.
    pub(super) fn network_of(&self, interface: &str) -> Option<&str> {
        let says = self.says.iter().find(|on| on.interface == interface);
        let says = says.map(|on| on.network.as_str());
        says.or_else(|| {
            let asks = self.asks.iter().find(|(asked, _)| asked == interface);
            asks.map(|(_, network)| network.as_str())
        })
    }

    /// Returns its networks, also those that it asks for and whose addresses are not known. `make`
    /// makes addresses up.
    pub(super) fn all(&self, mut make: impl FnMut() -> Vec<IpAddr>) -> Vec<NetworkInterface> {
        let mut all = self.says.clone();
        for (interface, network) in &self.asks {
            if self.says.iter().all(|on| on.interface != *interface) {
                let (network, interface) = (network.clone(), interface.clone());
                all.push(NetworkInterface { network, interface, addresses: Vec::new() });
            }
        }
        for on in all.iter_mut().filter(|on| on.addresses.is_empty()) {
            on.addresses = make();
        }
        all
    }
}

fn says(text: &str) -> Vec<NetworkInterface> {
    let elements: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
    let read = |element: Value| serde_json::from_value::<Element>(element).ok();
    let further = elements.into_iter().filter_map(read).filter(|element| {
        !element.default && is_further(&element.interface) && !element.name.is_empty()
    });
    // Addresses may have their prefix length.
    let address = |text: &String| -> Option<IpAddr> {
        cni::text::parse_ip(text.split('/').next().unwrap_or_default())
    };
    let on = |element: Element| NetworkInterface {
        addresses: element.ips.iter().filter_map(address).collect(),
        network: element.name,
        interface: element.interface,
    };
    further.map(on).collect()
}

fn asks(known: &BTreeMap<String, String>, namespace: &str) -> Option<Vec<(String, String)>> {
    let (_, text) = annotation::networks(known)?;
    let selections = annotation::parse(text, namespace).ok()?;
    let asked: Vec<_> = selections.iter().map(|one| one.interface.clone()).collect();
    let names = annotation::interface_names(&asked, |name| !is_further(name));
    let names = names.iter().map(ToString::to_string);
    Some(names.zip(selections.iter().map(npwg::selection::Selection::full_name)).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(annotations: &Value) -> FurtherNetworks {
        FurtherNetworks::read(
            &json!({"metadata": {"namespace": "shop", "annotations": annotations}}),
        )
    }

    #[test]
    fn the_status_counts_before_what_is_asked_for() {
        let asks = pod(&json!({NETWORKS: "storage, other/backup@b0"}));
        assert_eq!(asks.network_of("net1"), Some("shop/storage"));
        assert_eq!(asks.network_of("b0"), Some("other/backup"));
        assert_eq!(asks.network_of("net2"), None);
        let made = vec!["192.0.2.1".parse().unwrap()];
        let all = asks.all(|| made.clone());
        let networks: Vec<&str> = all.iter().map(|on| on.network.as_str()).collect();
        assert_eq!(networks, ["shop/storage", "other/backup"]);
        assert!(all.iter().all(|on| on.addresses == made));
        let status = json!([
            {"name": "pods", "interface": "eth0", "ips": ["10.0.0.1"], "default": true},
            {"name": "shop/storage", "interface": "net1", "ips": ["172.16.0.1/24", "fd00::1", "?"]},
            {"name": "shop/late", "interface": "net9"},
            {"name": 7},
        ]);
        let both = pod(&json!({NETWORKS: "other/backup", STATUS: status.to_string()}));
        assert_eq!(both.network_of("net1"), Some("shop/storage"));
        assert_eq!(both.network_of("eth0"), None);
        let shown: Vec<String> = both.says.iter().map(|on| format!("{on:?}")).collect();
        assert_eq!(both.says.len(), 2, "{shown:?}");
        assert_eq!(both.says[0].addresses.len(), 2);
        assert_eq!(both.says[1].addresses.len(), 0);
    }

    #[test]
    fn what_cannot_be_read_says_nothing() {
        for annotations in [
            json!(null),
            json!({NETWORKS: "a/b/c"}),
            json!({NETWORKS: "[{]"}),
            json!({STATUS: "{}"}),
            json!({STATUS: 7}),
        ] {
            let further = pod(&annotations);
            assert_eq!(further.says, []);
            assert_eq!(further.network_of("net1"), None, "{annotations}");
        }
    }
}
