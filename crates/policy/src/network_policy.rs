//! NetworkPolicy of `networking.k8s.io/v1`.
//!
//! Authority: Kubernetes, `staging/src/k8s.io/api/networking/v1/types.go`, and its validation.
//!
//! A NetworkPolicy only allows. So a part that cannot be read allows nothing, and the rest of the
//! policy holds.

use std::collections::BTreeSet;

use ipnet::IpNet;
use serde_json::Value;

use crate::labels::Selector;
use crate::object::{Names, name_of, other_version};
use crate::policy::{
    Action, Block, Direction, Peer, PodSet, Policy, PolicyId, Ports, Protocol, Rule, Scope, Tier,
};
use crate::reader::{self, Fault, KeyedValue};
use crate::refused::{Cause, Effect, Refusal};

const KIND: &str = "NetworkPolicy";

/// The most selectors of peers and names of ports that a direction of a policy may have, each counted
/// once. Each is a set in the kernel of every node that has a pod of the policy, and a selector's has
/// all pods that match it: a megabyte of selectors such as "no label x" would be ten thousand times
/// all pods. What the API allows of a ClusterNetworkPolicy, 25 rules with 25 peers, is as many.
const MOST_SETS: usize = 625;

/// The versions that are read.
pub const VERSIONS: &[&str] = &["networking.k8s.io/v1"];

/// Reads a NetworkPolicy.
///
/// # Errors
/// It has no name or no namespace. Everything else that is wrong is among the policy's faults.
pub fn read(object: &Value) -> Result<Policy, Refusal> {
    let at = KeyedValue::root(object);
    let names = name_of(KIND, &at, true)?;
    let id =
        PolicyId::Network { namespace: names.namespace.to_owned(), name: names.name.to_owned() };
    let mut policy = read_spec(&at, &names, id);
    close_if_other(&at, &names, VERSIONS, &mut policy);
    Ok(policy)
}

/// Reads a NetworkPolicy from JSON.
///
/// # Errors
/// It is not JSON, or is too long; what [`read`] says.
pub fn read_document(text: &[u8]) -> Result<Policy, Refusal> {
    read(&document(KIND, text)?)
}

/// Closes a policy of another version: what its rules mean in that version is not known.
pub(crate) fn close_if_other(
    object: &KeyedValue<'_>,
    names: &Names<'_>,
    versions: &[&str],
    policy: &mut Policy,
) {
    let Some(fault) = other_version(object, versions) else { return };
    policy.faults.insert(0, Refusal::new(&names.object, fault, Effect::AllowsNothing));
    (policy.ingress, policy.egress) = (Some(Vec::new()), Some(Vec::new()));
    policy.notices.clear();
}

/// Reads the JSON of an object.
pub(crate) fn document(kind: &str, text: &[u8]) -> Result<Value, Refusal> {
    let refused =
        |cause| Refusal::new(&format!("a {kind}"), (String::new(), cause), Effect::PassedOver);
    reader::json(text).map_err(refused)
}

/// Reads `spec`, which MultiNetworkPolicies have too.
pub(crate) fn read_spec(object: &KeyedValue<'_>, names: &Names<'_>, id: PolicyId) -> Policy {
    let mut policy = Policy {
        id,
        tier: Tier::Namespaced,
        priority: 0,
        subject: Some(PodSet::own(names.namespace, Selector::all())),
        ingress: Some(Vec::new()),
        egress: Some(Vec::new()),
        faults: Vec::new(),
        notices: Vec::new(),
    };
    let mut faults: Vec<(Fault, Effect)> = Vec::new();
    match object.required("spec") {
        Ok(spec) => read_parts(&spec, names.namespace, &mut policy, &mut faults),
        Err(fault) => faults.push((fault, Effect::AllowsNothingReadable)),
    }
    let refused = |(fault, effect)| Refusal::new(&names.object, fault, effect);
    policy.faults = faults.into_iter().map(refused).collect();
    policy
}

fn read_parts(
    spec: &KeyedValue<'_>,
    namespace: &str,
    policy: &mut Policy,
    faults: &mut Vec<(Fault, Effect)>,
) {
    let mut selecting = Vec::new();
    match spec.get("podSelector") {
        Ok(Some(selector)) => {
            let pods = Selector::read(&selector, &mut selecting);
            policy.subject = Some(PodSet::own(namespace, pods));
        }
        Ok(None) => {}
        Err(fault) => return faults.push((fault, Effect::AllowsNothingReadable)),
    }
    // With a fault in the selector, the policy may select pods that its author did not mean. Its
    // rules would allow these pods more than the author meant.
    let is_whole = selecting.is_empty();
    faults.extend(selecting.into_iter().map(|fault| (fault, Effect::AllowsNothingReadable)));
    let unknown = spec.only(&["podSelector", "policyTypes", "ingress", "egress"]);
    let types = read_types(spec);
    let mut wrong: Vec<Fault> = unknown.into_iter().collect();
    let has = |key: &str| spec.get(key).is_ok_and(|list| list.is_some());
    let (ingress, egress) = match types {
        Ok(Some(types)) => (types.contains("Ingress"), types.contains("Egress")),
        Ok(None) => (true, is_list_with_entries(spec, "egress")),
        Err(fault) => {
            wrong.push(fault);
            (true, true)
        }
    };
    if !wrong.is_empty() || !is_whole {
        faults.extend(wrong.into_iter().map(|fault| (fault, Effect::AllowsNothing)));
        // With a fault in the selector alone, the directions are known.
        let both = is_whole;
        policy.ingress = (both || ingress).then(Vec::new);
        policy.egress = (both || egress).then(Vec::new);
        return;
    }
    for (key, meant) in [("ingress", ingress), ("egress", egress)] {
        if has(key) && !meant {
            let name = if key == "egress" { "Egress" } else { "Ingress" };
            policy.notices.push(format!(
                "{} has {key} rules, and {name} is not among its policyTypes: they have no effect",
                policy.id
            ));
        }
    }
    let mut loose = Vec::new();
    let mut read = |direction| read_rules(spec, direction, namespace, faults, &mut loose);
    policy.ingress = ingress.then(|| read(Direction::Ingress));
    policy.egress = egress.then(|| read(Direction::Egress));
    if let Some(first) = loose.first() {
        let more = match loose.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        policy.notices.push(format!(
            "{} has bits set after a prefix's length, which are ignored: {first}{more}",
            policy.id
        ));
    }
}

/// Without `policyTypes`, a policy is about egress if it has a rule for that; the API server fills
/// the field in by the same rule.
fn is_list_with_entries(spec: &KeyedValue<'_>, key: &str) -> bool {
    match spec.get(key) {
        Ok(Some(list)) => list.list().map_or(true, |list| !list.is_empty()),
        _ => false,
    }
}

fn read_types<'a>(spec: &KeyedValue<'a>) -> Result<Option<BTreeSet<&'a str>>, Fault> {
    let Some(list) = spec.get("policyTypes")? else { return Ok(None) };
    let mut types = BTreeSet::new();
    for entry in list.list()? {
        let name = entry.text()?;
        if !["Ingress", "Egress"].contains(&name) {
            return Err(entry.fault(Cause::not_a(name, "one of Ingress, Egress")));
        }
        types.insert(name);
    }
    // An empty list is as none.
    Ok((!types.is_empty()).then_some(types))
}

fn read_rules(
    spec: &KeyedValue<'_>,
    direction: Direction,
    namespace: &str,
    faults: &mut Vec<(Fault, Effect)>,
    loose: &mut Vec<String>,
) -> Vec<Rule> {
    let (key, peers) = match direction {
        Direction::Ingress => ("ingress", "from"),
        Direction::Egress => ("egress", "to"),
    };
    let list = spec.get(key).and_then(|list| list.map_or(Ok(Vec::new()), |list| list.list()));
    let list = match list {
        Ok(list) => list,
        Err(fault) => {
            faults.push((fault, Effect::AllowsNone(direction)));
            return Vec::new();
        }
    };
    let mut rules = Vec::new();
    for entry in &list {
        match read_rule(entry, peers, namespace, loose) {
            Ok(rule) => rules.push(rule),
            Err(fault) => faults.push((fault, Effect::RuleAllowsNothing)),
        }
    }
    let count = sets(&rules);
    if MOST_SETS < count {
        let cause = Cause::TooManySets { count, most: MOST_SETS };
        faults.push(((format!("{}.{key}", spec.path()), cause), Effect::AllowsNone(direction)));
        return Vec::new();
    }
    rules
}

/// Counts the sets that rules need for selectors of peers and for names of ports.
fn sets(rules: &[Rule]) -> usize {
    let peers = rules.iter().filter_map(|rule| rule.peers.as_ref()).flatten();
    let peers: BTreeSet<&Peer> = peers.filter(|peer| !matches!(peer, Peer::Block(_))).collect();
    let ports = rules.iter().filter_map(|rule| rule.ports.as_ref()).flatten();
    let names = ports.filter_map(|port| match port {
        Ports::Named { name, .. } => Some(name.as_str()),
        _ => None,
    });
    peers.len() + names.collect::<BTreeSet<&str>>().len()
}

fn read_rule(
    at: &KeyedValue<'_>,
    peers: &str,
    namespace: &str,
    loose: &mut Vec<String>,
) -> Result<Rule, Fault> {
    if let Some(fault) = at.only(&[peers, "ports"]) {
        return Err(fault);
    }
    let entries = |key: &str| -> Result<Vec<KeyedValue<'_>>, Fault> {
        at.get(key)?.map_or(Ok(Vec::new()), |list| list.list())
    };
    let peers = entries(peers)?;
    let peers = peers.iter().map(|peer| read_peer(peer, namespace, loose));
    let peers: Vec<Peer> = peers.collect::<Result<_, _>>()?;
    let ports: Vec<Ports> = entries("ports")?.iter().map(read_port).collect::<Result<_, _>>()?;
    Ok(Rule {
        path: at.path().to_owned(),
        name: None,
        action: Action::Accept,
        peers: (!peers.is_empty()).then_some(peers),
        ports: (!ports.is_empty()).then_some(ports),
    })
}

fn read_peer(at: &KeyedValue<'_>, namespace: &str, loose: &mut Vec<String>) -> Result<Peer, Fault> {
    let known = ["podSelector", "namespaceSelector", "ipBlock"];
    if let Some(fault) = at.only(&known) {
        return Err(fault);
    }
    let mut faults = Vec::new();
    let mut selector = |key: &str| -> Result<Option<Selector>, Fault> {
        Ok(at.get(key)?.map(|at| Selector::read(&at, &mut faults)))
    };
    let (pods, namespaces) = (selector("podSelector")?, selector("namespaceSelector")?);
    if let Some(fault) = faults.into_iter().next() {
        return Err(fault);
    }
    let peer = match (at.get("ipBlock")?, pods, namespaces) {
        (Some(block), None, None) => Peer::Block(read_block(&block, loose)?),
        (Some(_), _, _) => {
            let why = "ipBlock stands alone, without selectors".to_owned();
            return Err(at.fault(Cause::Invalid { why }));
        }
        (None, None, None) => {
            return Err(at.fault(Cause::NotOne { count: 0, known: known.join(", ") }));
        }
        (None, Some(pods), None) => Peer::Pods(PodSet::own(namespace, pods)),
        (None, pods, Some(namespaces)) => Peer::Pods(PodSet {
            namespaces: Scope::Matching(namespaces),
            pods: pods.unwrap_or_default(),
        }),
    };
    Ok(peer)
}

fn read_block(at: &KeyedValue<'_>, loose: &mut Vec<String>) -> Result<Block, Fault> {
    if let Some(fault) = at.only(&["cidr", "except"]) {
        return Err(fault);
    }
    let cidr = read_network(&at.required("cidr")?, loose)?;
    let mut except = BTreeSet::new();
    if let Some(list) = at.get("except")? {
        for entry in list.list()? {
            let part = read_network(&entry, loose)?;
            if !cidr.contains(&part) || part == cidr {
                return Err(entry.fault(Cause::NotInside { except: part, cidr }));
            }
            except.insert(part);
        }
    }
    Ok(Block { cidr, except })
}

/// Reads a prefix without the bits after its length. API servers accept such bits with a warning,
/// other implementations ignore them, and the API's own suite writes blocks such as `10.244.1.5/4`
/// (Kubernetes, `test/e2e/network/netpol/network_policy.go` "should enforce except clause").
fn read_network(at: &KeyedValue<'_>, loose: &mut Vec<String>) -> Result<IpNet, Fault> {
    let prefix = at.loose_prefix()?;
    let network = prefix.trunc();
    if network != prefix {
        loose.push(format!("{}: {prefix} is read as {network}", at.path()));
    }
    Ok(network)
}

fn read_port(at: &KeyedValue<'_>) -> Result<Ports, Fault> {
    if let Some(fault) = at.only(&["protocol", "port", "endPort"]) {
        return Err(fault);
    }
    let protocol = match at.get("protocol")? {
        Some(at) => {
            let name = at.text()?;
            let wanted = "one of TCP, UDP, SCTP";
            Protocol::named(name).ok_or_else(|| at.fault(Cause::not_a(name, wanted)))?
        }
        None => Protocol::Tcp,
    };
    let end = at.get("endPort")?;
    let Some(port) = at.get("port")? else {
        return match end {
            Some(end) => {
                let why = "a range needs port, its beginning".to_owned();
                Err(end.fault(Cause::Invalid { why }))
            }
            None => Ok(Ports::All(protocol)),
        };
    };
    if !port.is_number() {
        let name = port.port_name()?.to_owned();
        return match end {
            Some(end) => {
                let why = "a range begins with a number, and port is a name".to_owned();
                Err(end.fault(Cause::Invalid { why }))
            }
            None => Ok(Ports::Named { protocol: Some(protocol), name }),
        };
    }
    let first = port.port()?;
    let last = match end {
        Some(end) => {
            let last = end.port()?;
            if last < first {
                return Err(end.fault(Cause::Reversed { first, last }));
            }
            last
        }
        None => first,
    };
    Ok(Ports::Range { protocol, first, last })
}
