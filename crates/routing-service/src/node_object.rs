//! A Node, of which only what matters here is kept while it is read: one has some 20 KB, most of it
//! images and what others have written, and a page of a list has two hundred.

use std::borrow::Cow;
use std::collections::BTreeMap;

use cluster_client::objects::FollowedObject;
use routing::Time;
use routing::kubernetes::NodeFields;
use serde::{Deserialize, Deserializer};

/// The condition that says whether pods of a node have a network.
pub(super) const CONDITION: &str = "NetworkUnavailable";

/// A Node.
#[derive(Debug, Clone)]
pub(super) struct NodeObject {
    resource_version: Option<String>,
    /// What routing reads, with all annotations.
    pub(super) fields: NodeFields,
    /// The [`CONDITION`].
    pub(super) condition: Option<Condition>,
}

/// What a condition says.
#[derive(Debug, Clone)]
pub(super) struct Condition {
    pub(super) status: String,
    pub(super) reason: String,
}

/// A Node as it is read. What is only compared is not copied.
#[derive(Deserialize)]
struct Document<'a> {
    metadata: Metadata,
    spec: Option<Spec>,
    #[serde(borrow)]
    status: Option<Status<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<String>,
    labels: Option<Labels>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Labels {
    /// Kubernetes, "Well-Known Labels, Annotations and Taints".
    #[serde(rename = "topology.kubernetes.io/zone")]
    zone: Option<String>,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
struct Status<'a> {
    #[serde(borrow)]
    addresses: Option<Vec<Address<'a>>>,
    #[serde(borrow)]
    conditions: Option<Vec<AnyCondition<'a>>>,
}

#[derive(Deserialize)]
struct Address<'a> {
    #[serde(rename = "type", default, borrow)]
    kind: Cow<'a, str>,
    #[serde(default)]
    address: String,
}

#[derive(Deserialize)]
struct AnyCondition<'a> {
    #[serde(rename = "type", default, borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    status: Cow<'a, str>,
    reason: Option<String>,
}

impl From<Document<'_>> for NodeObject {
    fn from(whole: Document<'_>) -> Self {
        let Document { metadata, spec, status } = whole;
        let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        let pod_cidrs = match spec.pod_cidrs {
            Some(all) if !all.is_empty() => all,
            _ => spec.pod_cidr.into_iter().collect(),
        };
        let created = metadata.creation_timestamp.and_then(|text| text.parse().ok());
        let created = created.and_then(|at: jiff::Timestamp| u64::try_from(at.as_second()).ok());
        let mut addresses = status.addresses.unwrap_or_default();
        // A cloud's controller may list a node's address in the internet first.
        addresses.sort_by_key(|of| of.kind != "InternalIP");
        let mut conditions = status.conditions.unwrap_or_default().into_iter();
        let condition = conditions.find(|of| of.kind == CONDITION);
        NodeObject {
            resource_version: metadata.resource_version,
            fields: NodeFields {
                name: metadata.name.unwrap_or_default(),
                uid: metadata.uid.unwrap_or_default(),
                created: created.map(Time::from_seconds),
                pod_cidrs,
                addresses: addresses.into_iter().map(|of| of.address).collect(),
                zone: metadata.labels.and_then(|labels| labels.zone),
                annotations: metadata.annotations.unwrap_or_default(),
            },
            condition: condition.map(|of| Condition {
                status: of.status.into_owned(),
                reason: of.reason.unwrap_or_default(),
            }),
        }
    }
}

impl<'de> Deserialize<'de> for NodeObject {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Document::deserialize(from).map(NodeObject::from)
    }
}

impl FollowedObject for NodeObject {
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_matters_of_a_node_is_kept() {
        let whole = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": "a", "uid": "u", "resourceVersion": "7", "managedFields": [{"a": 1}],
                "creationTimestamp": "2023-11-14T22:13:20Z",
                "labels": {"topology.kubernetes.io/zone": "west", "other": "label"},
                "annotations": {"b": "c"},
            },
            "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00::/64"]},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
                "conditions": [
                    {"type": "Ready", "status": "True", "lastHeartbeatTime": null},
                    {"type": "NetworkUnavailable", "status": "False", "reason": "RoutingIsUp"},
                ],
                "images": [{"names": ["i"], "sizeBytes": 1}], "nodeInfo": {"osImage": "o"},
            },
        });
        let text = whole.to_string();
        // A watch's objects are buffered first.
        for node in [serde_json::from_str(&text), serde_json::from_value(whole)] {
            let NodeObject { resource_version, fields, condition } = node.unwrap();
            assert_eq!(resource_version.as_deref(), Some("7"));
            let expected = NodeFields {
                name: "a".to_owned(),
                uid: "u".to_owned(),
                created: Some(Time::from_seconds(1_700_000_000)),
                pod_cidrs: vec!["10.244.1.0/24".to_owned(), "fd00::/64".to_owned()],
                addresses: vec!["192.0.2.1".to_owned()],
                zone: Some("west".to_owned()),
                annotations: BTreeMap::from([("b".to_owned(), "c".to_owned())]),
            };
            assert_eq!(fields, expected);
            let Condition { status, reason } = condition.unwrap();
            assert_eq!((&*status, &*reason), ("False", "RoutingIsUp"));
        }
    }

    /// As the controllers of some clouds list them.
    #[test]
    fn an_address_inside_the_cluster_comes_before_one_in_the_internet() {
        let node = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "status": {"addresses": [
                {"type": "Hostname", "address": "a"},
                {"type": "ExternalIP", "address": "198.51.100.7"},
                {"type": "InternalIP", "address": "192.0.2.7"},
                {"type": "InternalIP", "address": "2001:db8::7"},
            ]},
        }));
        let NodeObject { fields, .. } = node.unwrap();
        assert_eq!(fields.addresses, ["192.0.2.7", "2001:db8::7", "a", "198.51.100.7"]);
    }

    #[test]
    fn a_node_may_lack_nearly_everything() {
        let texts = [
            r#"{"metadata":{"name":"a"}}"#,
            r#"{"metadata":{"name":"a","labels":null},"spec":null,"status":{"addresses":null}}"#,
        ];
        for text in texts {
            let node: NodeObject = serde_json::from_str(text).unwrap();
            assert_eq!(node.fields, NodeFields { name: "a".to_owned(), ..NodeFields::default() });
        }
        let old = r#"{"metadata":{},"spec":{"podCIDR":"10.244.1.0/24","podCIDRs":[]}}"#;
        let old: NodeObject = serde_json::from_str(old).unwrap();
        assert_eq!(old.fields.pod_cidrs, ["10.244.1.0/24"]);
    }
}
