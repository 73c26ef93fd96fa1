//! Namespaces that are isolated without a policy of theirs.
//!
//! Two ways lead there: the administrator's switch, and the annotation that the first network
//! policies of 2016 had. Both make policies of the Baseline tier, so that a NetworkPolicy decides
//! in their place for the pods that it selects.

use serde_json::Value;

use crate::labels::Selector;
use crate::object::Namespace;
use crate::policy::{Action, Direction, Peer, PodSet, Policy, PolicyId, Ports, Rule, Tier};
use crate::reader;
use crate::refused::Cause;

/// The annotation of 2016, of Kubernetes 1.3 to 1.6.
pub const ANNOTATION: &str = "net.beta.kubernetes.io/network-policy";

/// The priority of isolation: it comes after every ClusterNetworkPolicy's, which end at 1000.
const PRIORITY: u16 = 2000;

/// Which namespaces are isolated, and what their pods may do all the same.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Isolation {
    /// The namespaces.
    pub namespaces: Selector,
    /// Which ends outside the namespace reach their pods.
    pub from: Vec<Exemption>,
    /// Which ends outside the namespace their pods reach, such as the cluster's DNS.
    pub to: Vec<Exemption>,
}

/// An end outside the namespace that is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exemption {
    /// The other end.
    pub peer: Peer,
    /// The destination's ports; `None` is all traffic.
    pub ports: Option<Vec<Ports>>,
}

/// Returns the policies that a namespace has without a policy object.
pub(crate) fn policies(isolation: Option<&Isolation>, namespace: &Namespace) -> Vec<Policy> {
    let name = &namespace.name;
    let subject = PodSet::own(name, Selector::all());
    let policy = |id, priority, ingress, egress| Policy {
        id,
        tier: Tier::Baseline,
        priority,
        subject: Some(subject.clone()),
        ingress,
        egress,
        faults: Vec::new(),
        notices: Vec::new(),
    };
    let mut policies = Vec::new();
    if let Some(isolation) = isolation
        && isolation.namespaces.matches(&namespace.labels)
    {
        let id = PolicyId::Isolation { namespace: name.clone() };
        let rules = |direction, exemptions| Some(rules(&subject, direction, exemptions));
        let ingress = rules(Direction::Ingress, &isolation.from);
        let egress = rules(Direction::Egress, &isolation.to);
        policies.push(policy(id, PRIORITY, ingress, egress));
    }
    if namespace.default_deny {
        let id = PolicyId::DefaultDeny { namespace: name.clone() };
        let deny = rule("DefaultDeny".to_owned(), Action::Deny, None, None);
        // Before the other one, which is the weaker: it lets the own namespace in.
        policies.push(policy(id, PRIORITY - 1, Some(vec![deny]), None));
    }
    policies
}

fn rules(own: &PodSet, direction: Direction, exemptions: &[Exemption]) -> Vec<Rule> {
    let key = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let same =
        rule("own namespace".to_owned(), Action::Accept, Some(Peer::Pods(own.clone())), None);
    let exempt = exemptions.iter().enumerate().map(|(number, exemption)| {
        let Exemption { peer, ports } = exemption.clone();
        rule(format!("{key}[{number}]"), Action::Accept, Some(peer), ports)
    });
    let deny = rule("everything else".to_owned(), Action::Deny, None, None);
    [same].into_iter().chain(exempt).chain([deny]).collect()
}

fn rule(path: String, action: Action, peer: Option<Peer>, ports: Option<Vec<Ports>>) -> Rule {
    Rule { path, name: None, action, peers: peer.map(|peer| vec![peer]), ports }
}

/// Reads the annotation: whether it isolates the namespace's pods against ingress.
pub(crate) fn read_annotation(text: &str) -> Result<bool, Cause> {
    let value = reader::json(text.as_bytes())?;
    let not_a = |value: &Value, wanted: &str| {
        let text = crate::refused::printable(&value.to_string());
        Cause::NotA { text, wanted: wanted.to_owned() }
    };
    let object = value.as_object().ok_or_else(|| not_a(&value, "an object"))?;
    let Some(ingress) = object.get("ingress").filter(|ingress| !ingress.is_null()) else {
        return Ok(false);
    };
    let ingress = ingress.as_object().ok_or_else(|| not_a(ingress, "an object"))?;
    match ingress.get("isolation") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::String(kind)) if kind == "DefaultDeny" => Ok(true),
        Some(other) => Err(not_a(other, "DefaultDeny")),
    }
}
