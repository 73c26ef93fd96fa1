//! ClusterNetworkPolicy of `policy.networking.k8s.io`, v1alpha2 and v1beta1, which have the same
//! fields.
//!
//! Authority: network-policy-api v0.2.0, `apis/v1alpha2/clusternetworkpolicy_types.go`, and
//! `apis/v1beta1/clusternetworkpolicy_types.go` after it.
//!
//! What cannot be read fails closed as the API asks ("ClusterNetworkPolicyIngressPeer"): a rule
//! that accepts matches nothing, and one that denies or passes denies everything.

use serde_json::Value;

use crate::labels::Selector;
use crate::network_policy::document;
use crate::object::{name_of, other_version};
use crate::policy::{
    Action, Block, Direction, Peer, PodSet, Policy, PolicyId, Ports, Protocol, Rule, Scope, Tier,
};
use crate::reader::{Fault, KeyedValue};
use crate::refused::{Cause, Effect, Refusal};

const KIND: &str = "ClusterNetworkPolicy";

/// The versions that are read.
pub const VERSIONS: &[&str] =
    &["policy.networking.k8s.io/v1alpha2", "policy.networking.k8s.io/v1beta1"];

/// The most rules of a direction, peers and protocols of a rule, and prefixes of a peer.
const MOST: usize = 25;

/// The highest number of a priority, which is asked last.
const LAST_PRIORITY: u16 = 1000;

/// The longest name of a rule.
const LONGEST_NAME: usize = 100;

/// Reads a ClusterNetworkPolicy.
///
/// # Errors
/// It has no name. Everything else that is wrong is among the policy's faults.
pub fn read(object: &Value) -> Result<Policy, Refusal> {
    let at = KeyedValue::root(object);
    let names = name_of(KIND, &at, false)?;
    let mut policy = Policy {
        id: PolicyId::Cluster { name: names.name.to_owned() },
        tier: Tier::Admin,
        priority: 0,
        subject: None,
        ingress: None,
        egress: None,
        faults: Vec::new(),
        notices: Vec::new(),
    };
    let mut faults: Vec<(Fault, Effect)> = Vec::new();
    match at.required("spec") {
        Ok(spec) => read_spec(&spec, &mut policy, &mut faults),
        Err(fault) => faults.push((fault, Effect::SelectsNone)),
    }
    if let Some(fault) = other_version(&at, VERSIONS) {
        // What its rules mean in that version is not known.
        let effect = match policy.subject {
            Some(_) => Effect::DeniesAll,
            None => Effect::SelectsNone,
        };
        faults.insert(0, (fault, effect));
        policy.ingress = Some(vec![deny("spec")]);
        policy.egress = Some(vec![deny("spec")]);
    }
    let refused = |(fault, effect)| Refusal::new(&names.object, fault, effect);
    policy.faults = faults.into_iter().map(refused).collect();
    Ok(policy)
}

/// Reads a ClusterNetworkPolicy from JSON.
///
/// # Errors
/// It is not JSON, or is too long; what [`read`] says.
pub fn read_document(text: &[u8]) -> Result<Policy, Refusal> {
    read(&document(KIND, text)?)
}

fn read_spec(spec: &KeyedValue<'_>, policy: &mut Policy, faults: &mut Vec<(Fault, Effect)>) {
    let mut closed = false;
    let mut close = |fault: Fault, effect: Effect| {
        closed = true;
        faults.push((fault, effect));
    };
    if let Some(fault) = spec.only(&["tier", "priority", "subject", "ingress", "egress"]) {
        close(fault, Effect::DeniesAll);
    }
    match read_tier(spec) {
        Ok(tier) => policy.tier = tier,
        Err(fault) => close(fault, Effect::DeniesAll),
    }
    match spec.required("priority").and_then(|at| at.number(0, LAST_PRIORITY)) {
        Ok(priority) => policy.priority = priority,
        Err(fault) => close(fault, Effect::DeniesAll),
    }
    let mut selecting = Vec::new();
    policy.subject = spec
        .required("subject")
        .and_then(|subject| read_pods(&subject, &mut selecting))
        .map_err(|fault| selecting.push(fault))
        .ok();
    if !selecting.is_empty() && policy.subject.as_ref().is_some_and(selects_all) {
        // Nothing of it is readable. To close all pods of the cluster would harm every user.
        policy.subject = None;
    }
    let effect = match policy.subject {
        Some(_) => Effect::DeniesAllReadable,
        None => Effect::SelectsNone,
    };
    for fault in selecting {
        close(fault, effect);
    }
    if closed {
        policy.ingress = Some(vec![deny("spec")]);
        policy.egress = Some(vec![deny("spec")]);
        return;
    }
    policy.ingress = read_rules(spec, Direction::Ingress, faults);
    policy.egress = read_rules(spec, Direction::Egress, faults);
}

fn selects_all(pods: &PodSet) -> bool {
    let everywhere = matches!(&pods.namespaces, Scope::Matching(selector) if selector.is_all());
    everywhere && pods.pods.is_all()
}

fn read_tier(spec: &KeyedValue<'_>) -> Result<Tier, Fault> {
    let at = spec.required("tier")?;
    match at.text()? {
        "Admin" => Ok(Tier::Admin),
        "Baseline" => Ok(Tier::Baseline),
        other => Err(at.fault(Cause::not_a(other, "one of Admin, Baseline"))),
    }
}

fn deny(path: &str) -> Rule {
    Rule { path: path.to_owned(), name: None, action: Action::Deny, peers: None, ports: None }
}

/// Reads a subject, or a peer that is pods.
fn read_pods(at: &KeyedValue<'_>, faults: &mut Vec<Fault>) -> Result<PodSet, Fault> {
    let (key, value) = at.exactly_one(&["namespaces", "pods"])?;
    if key == "namespaces" {
        return Ok(PodSet::matching(Selector::read(&value, faults), Selector::all()));
    }
    read_namespaced(&value, faults)
}

fn read_namespaced(at: &KeyedValue<'_>, faults: &mut Vec<Fault>) -> Result<PodSet, Fault> {
    if let Some(fault) = at.only(&["namespaceSelector", "podSelector"]) {
        faults.push(fault);
    }
    let namespaces = match at.get("namespaceSelector")? {
        Some(selector) => Selector::read(&selector, faults),
        None => Selector::all(),
    };
    let pods = match at.required("podSelector") {
        Ok(selector) => Selector::read(&selector, faults),
        Err(fault) => {
            faults.push(fault);
            Selector::all()
        }
    };
    Ok(PodSet::matching(namespaces, pods))
}

fn read_rules(
    spec: &KeyedValue<'_>,
    direction: Direction,
    faults: &mut Vec<(Fault, Effect)>,
) -> Option<Vec<Rule>> {
    let key = match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    };
    let list =
        match spec.get(key).and_then(|list| list.map(|at| at.short_list(0, MOST)).transpose()) {
            Ok(list) => list?,
            Err(fault) => {
                faults.push((fault, Effect::DeniesDirection(direction)));
                return Some(vec![deny(&format!("spec.{key}"))]);
            }
        };
    if list.is_empty() {
        return None;
    }
    let mut rules = Vec::new();
    for at in &list {
        let action = read_action(at);
        let accepts = matches!(action, Ok(Action::Accept));
        match action.and_then(|action| read_rule(at, direction, action)) {
            Ok(rule) => rules.push(rule),
            Err(fault) if accepts => faults.push((fault, Effect::RuleAllowsNothing)),
            Err(fault) => {
                faults.push((fault, Effect::RuleDeniesAll));
                rules.push(deny(at.path()));
            }
        }
    }
    Some(rules)
}

fn read_action(at: &KeyedValue<'_>) -> Result<Action, Fault> {
    let action = at.required("action")?;
    match action.text()? {
        "Accept" => Ok(Action::Accept),
        "Deny" => Ok(Action::Deny),
        "Pass" => Ok(Action::Pass),
        other => Err(action.fault(Cause::not_a(other, "one of Accept, Deny, Pass"))),
    }
}

fn read_rule(at: &KeyedValue<'_>, direction: Direction, action: Action) -> Result<Rule, Fault> {
    let key = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    if let Some(fault) = at.only(&["name", "action", key, "protocols"]) {
        return Err(fault);
    }
    let name = match at.get("name")? {
        Some(name) => {
            let text = name.text()?;
            if LONGEST_NAME < text.chars().count() {
                let why = format!("it is longer than {LONGEST_NAME} letters");
                return Err(name.fault(Cause::Invalid { why }));
            }
            Some(text.to_owned()).filter(|name| !name.is_empty())
        }
        None => None,
    };
    let mut peers = Vec::new();
    let mut without_ports = false;
    for peer in at.required(key)?.short_list(1, MOST)? {
        match direction {
            Direction::Ingress => peers.push(read_ingress_peer(&peer)?),
            Direction::Egress => peers.extend(read_egress_peer(&peer)?),
        }
        without_ports |= !matches!(peers.last(), Some(Peer::Pods(_)));
    }
    let mut ports = None;
    if let Some(list) = at.get("protocols")? {
        let mut read = Vec::new();
        for entry in list.short_list(1, MOST)? {
            let port = read_protocol(&entry)?;
            if without_ports && matches!(port, Ports::Named { .. }) {
                let why = "only pods have named ports, and networks or nodes are among the peers";
                return Err(entry.fault(Cause::Invalid { why: why.to_owned() }));
            }
            read.push(port);
        }
        ports = Some(read);
    }
    Ok(Rule { path: at.path().to_owned(), name, action, peers: Some(peers), ports })
}

fn read_ingress_peer(at: &KeyedValue<'_>) -> Result<Peer, Fault> {
    let mut faults = Vec::new();
    let pods = read_pods(at, &mut faults)?;
    faults.into_iter().next().map_or(Ok(Peer::Pods(pods)), Err)
}

fn read_egress_peer(at: &KeyedValue<'_>) -> Result<Vec<Peer>, Fault> {
    let (key, value) =
        at.exactly_one(&["namespaces", "pods", "nodes", "networks", "domainNames"])?;
    let mut faults = Vec::new();
    let peers = match key {
        "namespaces" => {
            let namespaces = Selector::read(&value, &mut faults);
            vec![Peer::Pods(PodSet::matching(namespaces, Selector::all()))]
        }
        "pods" => vec![Peer::Pods(read_namespaced(&value, &mut faults)?)],
        "nodes" => vec![Peer::Nodes(Selector::read(&value, &mut faults))],
        "networks" => {
            let list = value.short_list(1, MOST)?;
            let block = |at: &KeyedValue<'_>| Ok(Peer::Block(Block::whole(at.prefix()?)));
            list.iter().map(block).collect::<Result<_, Fault>>()?
        }
        _ => return Err(value.fault(Cause::DomainNames)),
    };
    faults.into_iter().next().map_or(Ok(peers), Err)
}

fn read_protocol(at: &KeyedValue<'_>) -> Result<Ports, Fault> {
    let (key, value) = at.exactly_one(&["tcp", "udp", "sctp", "destinationNamedPort"])?;
    let protocol = match key {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => {
            let name = value.port_name()?.to_owned();
            return Ok(Ports::Named { protocol: None, name });
        }
    };
    if let Some(fault) = value.only(&["destinationPort"]) {
        return Err(fault);
    }
    let port = value.required("destinationPort")?;
    let (key, value) = port.exactly_one(&["number", "range"])?;
    if key == "number" {
        let port = value.port()?;
        return Ok(Ports::Range { protocol, first: port, last: port });
    }
    if let Some(fault) = value.only(&["start", "end"]) {
        return Err(fault);
    }
    let (first, last) = (value.required("start")?.port()?, value.required("end")?.port()?);
    if last < first {
        return Err(value.fault(Cause::Reversed { first, last }));
    }
    if first == last {
        let why = format!("the range begins and ends at {first}: write number");
        return Err(value.fault(Cause::Invalid { why }));
    }
    Ok(Ports::Range { protocol, first, last })
}
