//! Objects of the API server of which only what matters is kept while they are read: a pod has some
//! 4 KB, and a cluster 100,000 of them.

use std::fmt;

use cluster_client::objects::{self, FollowedObject, ObjectKind};
use policy::multi_policy::POLICY_FOR;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::{Map, Value};

use super::further::ANNOTATIONS;
use super::kinds::STATIC;

/// Which parts of a value are kept.
#[derive(Debug, Clone, Copy)]
enum Mask {
    All,
    /// Of an object these keys.
    Keys(&'static [(&'static str, Mask)]),
    /// Of a list this of each entry.
    Each(&'static Mask),
}

const NAME: (&str, Mask) = ("name", Mask::All);
const NAMESPACE: (&str, Mask) = ("namespace", Mask::All);
const UID: (&str, Mask) = ("uid", Mask::All);
const VERSION: (&str, Mask) = ("resourceVersion", Mask::All);
const LABELS: (&str, Mask) = ("labels", Mask::All);
const GENERATION: (&str, Mask) = ("generation", Mask::All);
const SECURITY: Mask =
    Mask::Keys(&[("privileged", Mask::All), ("capabilities", Mask::Keys(&[("add", Mask::All)]))]);
const CONTAINER: Mask = Mask::Keys(&[
    ("ports", Mask::All),
    ("restartPolicy", Mask::All),
    ("securityContext", SECURITY),
]);
/// One that is added to a running pod.
const EPHEMERAL: Mask = Mask::Keys(&[("securityContext", SECURITY)]);

const POD: Mask = Mask::Keys(&[
    (
        "metadata",
        Mask::Keys(&[
            NAME,
            NAMESPACE,
            UID,
            VERSION,
            LABELS,
            ("deletionTimestamp", Mask::All),
            (
                "annotations",
                Mask::Keys(&[
                    (STATIC, Mask::All),
                    (ANNOTATIONS[0], Mask::All),
                    (ANNOTATIONS[1], Mask::All),
                    (ANNOTATIONS[2], Mask::All),
                    (ANNOTATIONS[3], Mask::All),
                    (ANNOTATIONS[4], Mask::All),
                ]),
            ),
        ]),
    ),
    (
        "spec",
        Mask::Keys(&[
            ("nodeName", Mask::All),
            ("hostNetwork", Mask::All),
            ("containers", Mask::Each(&CONTAINER)),
            ("initContainers", Mask::Each(&CONTAINER)),
            ("ephemeralContainers", Mask::Each(&EPHEMERAL)),
        ]),
    ),
    ("status", Mask::Keys(&[("phase", Mask::All), ("podIP", Mask::All), ("podIPs", Mask::All)])),
]);

const NODE: Mask = Mask::Keys(&[
    ("metadata", Mask::Keys(&[NAME, VERSION, LABELS])),
    ("status", Mask::Keys(&[("addresses", Mask::All)])),
]);

const NAMESPACE_OBJECT: Mask = Mask::Keys(&[(
    "metadata",
    Mask::Keys(&[NAME, UID, VERSION, LABELS, ("annotations", Mask::All)]),
)]);

const POLICY: Mask = Mask::Keys(&[
    ("metadata", Mask::Keys(&[NAME, NAMESPACE, UID, VERSION, GENERATION])),
    ("spec", Mask::All),
    ("status", Mask::Keys(&[("conditions", Mask::All)])),
]);

const MULTI_POLICY: Mask = Mask::Keys(&[
    (
        "metadata",
        Mask::Keys(&[
            NAME,
            NAMESPACE,
            UID,
            VERSION,
            GENERATION,
            ("annotations", Mask::Keys(&[(POLICY_FOR, Mask::All)])),
        ]),
    ),
    ("spec", Mask::All),
]);

impl<'de> DeserializeSeed<'de> for Mask {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        match self {
            Mask::All => Value::deserialize(from),
            _ => from.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Mask {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let Mask::Keys(keys) = self else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Value::Null);
        };
        let mut kept = Map::new();
        while let Some(key) = map.next_key_seed(MaskKeys(keys))? {
            match key {
                Some((name, want)) => {
                    kept.insert((*name).to_owned(), map.next_value_seed(*want)?);
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Value::Object(kept))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let Mask::Each(want) = self else {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Value::Null);
        };
        let mut kept = Vec::new();
        while let Some(value) = list.next_element_seed(*want)? {
            kept.push(value);
        }
        Ok(Value::Array(kept))
    }

    // A value of a wrong type counts as missing.

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

/// Finds a key among those that are kept, without a copy of it.
struct MaskKeys(&'static [(&'static str, Mask)]);

impl<'de> DeserializeSeed<'de> for MaskKeys {
    type Value = Option<&'static (&'static str, Mask)>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_identifier(self)
    }
}

impl Visitor<'_> for MaskKeys {
    type Value = Option<&'static (&'static str, Mask)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().find(|(wanted, _)| *wanted == key))
    }
}

/// An object of a kind: what is kept of it.
pub(super) trait SlimObject: FollowedObject {
    const KIND: ObjectKind;

    fn object(&self) -> &Value;
}

/// Makes a type of a kind of objects.
macro_rules! slim {
    ($name:ident, $want:expr, $kind:expr) => {
        #[derive(Debug, Clone)]
        pub(super) struct $name(Value);

        impl SlimObject for $name {
            const KIND: ObjectKind = $kind;

            fn object(&self) -> &Value {
                &self.0
            }
        }

        impl FollowedObject for $name {
            fn resource_version(&self) -> Option<&str> {
                self.0.resource_version()
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $want.deserialize(from).map($name)
            }
        }
    };
}

const NETWORK_POLICY: ObjectKind = ObjectKind {
    group: "networking.k8s.io",
    version: "v1",
    kind: "NetworkPolicy",
    plural: "networkpolicies",
};

const fn cluster_policy(version: &'static str) -> ObjectKind {
    ObjectKind {
        group: "policy.networking.k8s.io",
        version,
        kind: "ClusterNetworkPolicy",
        plural: "clusternetworkpolicies",
    }
}

const fn multi_policy(version: &'static str) -> ObjectKind {
    ObjectKind {
        group: "k8s.cni.cncf.io",
        version,
        kind: "MultiNetworkPolicy",
        plural: "multi-networkpolicies",
    }
}

slim!(Pods, POD, objects::POD);
slim!(Nodes, NODE, objects::NODE);
slim!(Namespaces, NAMESPACE_OBJECT, objects::NAMESPACE);
slim!(NetworkPolicies, POLICY, NETWORK_POLICY);
slim!(ClusterNetworkPolicies, POLICY, cluster_policy("v1beta1"));
slim!(EarlierClusterNetworkPolicies, POLICY, cluster_policy("v1alpha2"));
slim!(MultiNetworkPolicies, MULTI_POLICY, multi_policy("v1beta2"));
slim!(EarlierMultiNetworkPolicies, MULTI_POLICY, multi_policy("v1beta1"));

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_matters_is_kept() {
        let whole = json!({
            "kind": "Pod",
            "metadata": {
                "name": "a", "namespace": "b", "uid": "u", "resourceVersion": "7",
                "labels": {"app": "a"}, "deletionTimestamp": null, "managedFields": [{"a": 1}],
                "annotations": {STATIC: "s", ANNOTATIONS[0]: "[]", "other": "long"},
            },
            "spec": {
                "nodeName": "n", "volumes": [{"name": "v"}],
                "containers": [{"name": "c", "image": "i", "ports": [{"name": "p"}]}],
                "initContainers": "none",
            },
            "status": {"podIP": "10.0.0.1", "conditions": []},
        });
        let kept: Pods = serde_json::from_str(&whole.to_string()).unwrap();
        assert_eq!(
            *kept.object(),
            json!({
                "metadata": {
                    "name": "a", "namespace": "b", "uid": "u", "resourceVersion": "7",
                    "labels": {"app": "a"}, "deletionTimestamp": null,
                    "annotations": {STATIC: "s", ANNOTATIONS[0]: "[]"},
                },
                "spec": {
                    "nodeName": "n", "containers": [{"ports": [{"name": "p"}]}],
                    "initContainers": null,
                },
                "status": {"podIP": "10.0.0.1"},
            })
        );
        assert_eq!(kept.resource_version(), Some("7"));
        // A watch's objects are buffered first.
        let kept: Pods = serde_json::from_value(whole).unwrap();
        assert_eq!(kept.object()["metadata"]["name"], "a");
        let odd: Nodes = serde_json::from_str("{\"metadata\":7,\"status\":[1,{}]}").unwrap();
        assert_eq!(*odd.object(), json!({"metadata": null, "status": null}));
    }
}
