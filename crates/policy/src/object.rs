//! Namespaces, pods and nodes, in the fields that matter here.
//!
//! The API server has checked these objects, and a policy must not fail for a field that does not
//! concern it. So a field that cannot be read counts as missing. Only an object without a name is
//! refused.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use serde_json::Value;

use crate::isolation;
use crate::labels::{Labels, NAMESPACE_NAME};
use crate::policy::Protocol;
use crate::reader::{Fault, KeyedValue};
use crate::refused::{Cause, Effect, Refusal};

/// Returns made-up addresses of both families for a pod that has none, such as a pod of a file.
/// They are of 0.0.0.0/8 and 100::/64, from which no packet comes (RFC 1122 §3.2.1.3, RFC 6666 §4).
/// Explanations do not show them.
#[must_use]
pub fn stand_ins(number: u32) -> [IpAddr; 2] {
    let [_, a, b, c] = number.to_be_bytes();
    let v6 = Ipv6Addr::from((0x100 << 112) | u128::from(number));
    [IpAddr::from([0, a, b, c]), IpAddr::V6(v6)]
}

/// Reports whether an address is one of [`stand_ins`].
#[must_use]
pub fn is_stand_in(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[0] == 0,
        IpAddr::V6(v6) => v6.segments()[..4] == [0x100, 0, 0, 0],
    }
}

/// The UID of a pod: unlike its name and its addresses, no other pod ever has it.
pub type Uid = Arc<str>;

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// Its labels. That of its name is among them.
    pub labels: Labels,
    /// Whether the annotation of 2016 isolates its pods.
    pub default_deny: bool,
    /// What is wrong with the annotation.
    pub faults: Vec<Refusal>,
}

impl Namespace {
    /// Creates a namespace with these labels, and the one of its name.
    #[must_use]
    pub fn new(name: &str, mut labels: Labels) -> Self {
        labels.entry(NAMESPACE_NAME.to_owned()).or_insert_with(|| name.to_owned());
        Namespace { name: name.to_owned(), labels, default_deny: false, faults: Vec::new() }
    }

    /// Reads a Namespace.
    ///
    /// # Errors
    /// It has no name.
    pub fn read(object: &Value) -> Result<Self, Refusal> {
        let name = required("Namespace", object, "/metadata/name", "metadata.name")?;
        let mut namespace = Namespace::new(name, labels(object));
        let annotation = find(object, "/metadata/annotations")
            .and_then(|annotations| annotations.get(isolation::ANNOTATION))
            .and_then(Value::as_str);
        if let Some(text) = annotation {
            namespace.default_deny = isolation::read_annotation(text).unwrap_or_else(|cause| {
                let path = format!("metadata.annotations: {}", isolation::ANNOTATION);
                let object = format!("Namespace {name}");
                namespace.faults.push(Refusal::new(&object, (path, cause), Effect::DefaultDeny));
                true
            });
        }
        Ok(namespace)
    }
}

/// A port that a container has given a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedPort {
    /// The name.
    pub name: String,
    /// The protocol.
    pub protocol: Protocol,
    /// The number.
    pub port: u16,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Uid,
    /// The node that it is on, or will be.
    pub node: Option<Arc<str>>,
    /// Its labels. Pods of one template share them.
    pub labels: Arc<Labels>,
    /// Its addresses, of both families.
    pub addresses: Vec<IpAddr>,
    /// Whether it has its node's network in place of one of its own.
    pub host_network: bool,
    /// Whether its containers have ended for good.
    pub finished: bool,
    /// Whether it is to be deleted.
    pub terminating: bool,
    /// The ports that its containers have given names.
    pub ports: Arc<Vec<NamedPort>>,
}

impl Pod {
    /// Reads a Pod.
    ///
    /// # Errors
    /// It has no name, namespace or UID.
    pub fn read(object: &Value) -> Result<Self, Refusal> {
        let namespace = required("Pod", object, "/metadata/namespace", "metadata.namespace")?;
        let name = required("Pod", object, "/metadata/name", "metadata.name")?;
        let uid = required("Pod", object, "/metadata/uid", "metadata.uid")?;
        let text = |pointer: &str| find(object, pointer).and_then(Value::as_str);
        Ok(Pod {
            namespace: namespace.into(),
            name: name.to_owned(),
            uid: uid.into(),
            node: text("/spec/nodeName").filter(|node| !node.is_empty()).map(Arc::from),
            labels: Arc::new(labels(object)),
            addresses: pod_addresses(object),
            host_network: find(object, "/spec/hostNetwork")
                .and_then(Value::as_bool)
                .unwrap_or_default(),
            finished: text("/status/phase")
                .is_some_and(|phase| ["Succeeded", "Failed"].contains(&phase)),
            terminating: find(object, "/metadata/deletionTimestamp")
                .is_some_and(|time| !time.is_null()),
            ports: Arc::new(named_ports(object)),
        })
    }

    /// Returns the addresses that are this pod's alone: none while it has none, once it has
    /// finished, and in the host's network.
    #[must_use]
    pub fn own_addresses(&self) -> &[IpAddr] {
        if self.host_network || self.finished { &[] } else { &self.addresses }
    }

    /// Returns namespace and name, as people write them.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: Labels,
    /// Its addresses, of `status.addresses`.
    pub addresses: BTreeSet<IpAddr>,
}

impl Node {
    /// Reads a Node.
    ///
    /// # Errors
    /// It has no name.
    pub fn read(object: &Value) -> Result<Self, Refusal> {
        let name = required("Node", object, "/metadata/name", "metadata.name")?;
        let addresses = list(object, "/status/addresses").filter_map(|entry| {
            // Names among them are passed over.
            entry.get("address").and_then(Value::as_str).and_then(cni::text::parse_ip)
        });
        Ok(Node { name: name.to_owned(), labels: labels(object), addresses: addresses.collect() })
    }
}

/// Returns what is at a path such as `/metadata/name`. Its keys are taken as they are, without the
/// escapes of RFC 6901: those would be a copy of each key of each pod.
fn find<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('/').skip(1).try_fold(object, |at, key| at.get(key))
}

fn list<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    find(object, pointer).and_then(Value::as_array).into_iter().flatten()
}

fn required<'a>(
    kind: &str,
    object: &'a Value,
    pointer: &str,
    path: &str,
) -> Result<&'a str, Refusal> {
    let text = find(object, pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    text.ok_or_else(|| {
        let name = called(kind, object);
        Refusal::new(&name, (path.to_owned(), Cause::Missing), Effect::PassedOver)
    })
}

/// Returns the kind of an object with its name, for messages.
fn called(kind: &str, object: &Value) -> String {
    let named = |pointer: &str| {
        find(object, pointer).and_then(Value::as_str).filter(|name| !name.is_empty())
    };
    match (named("/metadata/namespace"), named("/metadata/name")) {
        (Some(namespace), Some(name)) => format!("{kind} {namespace}/{name}"),
        (None, Some(name)) => format!("{kind} {name}"),
        _ => format!("a {kind}"),
    }
}

/// Reports that an object of a kind is passed over if it says another version than `v1`, which
/// namespaces, pods and nodes have. An API server's lists say none.
///
/// # Errors
/// The sentence.
pub fn require_v1(kind: &str, object: &Value) -> Result<(), Refusal> {
    match other_version(&KeyedValue::root(object), &["v1"]) {
        Some(fault) => Err(Refusal::new(&called(kind, object), fault, Effect::PassedOver)),
        None => Ok(()),
    }
}

/// Returns the name of an object with a namespace, or without, and the kind with it for messages.
pub(crate) fn name_of<'a>(
    kind: &str,
    at: &KeyedValue<'a>,
    namespaced: bool,
) -> Result<Names<'a>, Refusal> {
    let anonymous = format!("a {kind}");
    let refused = |fault: Fault| Refusal::new(&anonymous, fault, Effect::PassedOver);
    let metadata = at.required("metadata").map_err(refused)?;
    let text = |key: &str| {
        let value = metadata.required(key)?;
        let text = value.text()?;
        if text.is_empty() { Err(value.fault(Cause::Empty)) } else { Ok(text) }
    };
    let name = text("name").map_err(refused)?;
    if !namespaced {
        return Ok(Names { namespace: "", name, object: format!("{kind} {name}") });
    }
    let named = format!("{kind} {name}");
    let namespace =
        text("namespace").map_err(|fault| Refusal::new(&named, fault, Effect::PassedOver))?;
    Ok(Names { namespace, name, object: format!("{kind} {namespace}/{name}") })
}

/// Returns the fault that an object says a version that is not among these, if it does. Objects of
/// an API server's lists say none.
pub(crate) fn other_version(at: &KeyedValue<'_>, read: &[&str]) -> Option<Fault> {
    let version = match at.get("apiVersion") {
        Ok(version) => version?,
        Err(fault) => return Some(fault),
    };
    match version.text() {
        Ok(text) if read.contains(&text) => None,
        Ok(text) => {
            let (found, read) = (cni::text::shortened(text), read.join(" or "));
            Some(version.fault(Cause::OtherVersion { found, read }))
        }
        Err(fault) => Some(fault),
    }
}

/// What an object is called.
pub(crate) struct Names<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    /// Its kind and name, for messages.
    pub(crate) object: String,
}

fn labels(object: &Value) -> Labels {
    let labels = find(object, "/metadata/labels").and_then(Value::as_object);
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    labels.into_iter().flatten().filter_map(text).collect()
}

fn pod_addresses(object: &Value) -> Vec<IpAddr> {
    let of_list = list(object, "/status/podIPs").filter_map(|entry| entry.get("ip")?.as_str());
    let single = find(object, "/status/podIP").and_then(Value::as_str);
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in of_list.chain(single).filter_map(cni::text::parse_ip) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// Returns the named ports of containers, and of init containers that keep running.
fn named_ports(object: &Value) -> Vec<NamedPort> {
    let keeps_running = |container: &&Value| {
        container.get("restartPolicy").and_then(Value::as_str) == Some("Always")
    };
    let sidecars = list(object, "/spec/initContainers").filter(keeps_running);
    let containers = list(object, "/spec/containers").chain(sidecars);
    let ports = containers.flat_map(|container| list(container, "/ports"));
    let named = ports.filter_map(|port| {
        let number = port.get("containerPort")?.as_u64()?;
        Some(NamedPort {
            name: port.get("name")?.as_str()?.to_owned(),
            protocol: match port.get("protocol").and_then(Value::as_str) {
                Some(name) => Protocol::named(name)?,
                None => Protocol::Tcp,
            },
            port: u16::try_from(number).ok()?,
        })
    });
    named.filter(|port| !port.name.is_empty()).collect()
}
