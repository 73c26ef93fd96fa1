//! Random policies.

use serde_json::{Value, json};
use testkit::Chance;

use super::super::PORT;
use super::{APPS, TEAMS};

const TYPES: [&[&str]; 3] = [&["Ingress"], &["Egress"], &["Ingress", "Egress"]];

/// A selector of pods by label, or of all pods.
fn selector(chance: &mut Chance) -> Value {
    match chance.once_in(3) {
        true => json!({}),
        false => json!({"matchLabels": {"app": chance.of(&APPS)}}),
    }
}

/// A selector of namespaces by label, or of all namespaces.
fn namespaces(chance: &mut Chance) -> Value {
    match chance.once_in(2) {
        true => json!({}),
        false => json!({"matchLabels": {"team": chance.of(&TEAMS)}}),
    }
}

/// A random `spec` of a NetworkPolicy.
pub(super) fn spec(chance: &mut Chance) -> Value {
    let types = *chance.of(&TYPES);
    let mut spec = json!({"podSelector": selector(chance), "policyTypes": types});
    for (of, key, ends) in [("Ingress", "ingress", "from"), ("Egress", "egress", "to")] {
        let count = chance.below(3);
        if types.contains(&of) {
            spec[key] = (0..count).map(|_| rule(chance, ends)).collect();
        }
    }
    spec
}

fn rule(chance: &mut Chance, ends: &str) -> Value {
    let mut rule = json!({});
    if !chance.once_in(5) {
        let end = match chance.below(4) {
            0 => json!({"podSelector": selector(chance)}),
            1 => json!({"namespaceSelector": namespaces(chance)}),
            2 => {
                let namespaces = namespaces(chance);
                json!({"namespaceSelector": namespaces, "podSelector": selector(chance)})
            }
            _ => json!({"ipBlock": {"cidr": "10.0.0.0/29", "except": ["10.0.0.4/31"]}}),
        };
        rule[ends] = json!([end]);
    }
    if chance.once_in(2) {
        let port = if chance.once_in(4) { PORT + 1 } else { PORT };
        rule["ports"] = json!([{"port": port}]);
    }
    rule
}

/// A random `spec` of a ClusterNetworkPolicy. No two of them have the same priority.
pub(super) fn spec_of_cluster(chance: &mut Chance, priority: usize) -> Value {
    let tier = *chance.of(&["Admin", "Baseline"]);
    let actions: &[&str] =
        if tier == "Admin" { &["Accept", "Deny", "Pass"] } else { &["Accept", "Deny"] };
    let mut spec = json!({"tier": tier, "priority": priority, "subject": pods_by_labels(chance)});
    for (key, ends) in [("ingress", "from"), ("egress", "to")] {
        if chance.once_in(2) {
            let mut rule = json!({"action": chance.of(actions)});
            rule[ends] = json!([pods_by_labels(chance)]);
            spec[key] = json!([rule]);
        }
    }
    spec
}

/// A subject or a peer of a ClusterNetworkPolicy.
fn pods_by_labels(chance: &mut Chance) -> Value {
    let namespaces = namespaces(chance);
    match chance.once_in(3) {
        true => json!({"namespaces": namespaces}),
        false => {
            json!({"pods": {"namespaceSelector": namespaces, "podSelector": selector(chance)}})
        }
    }
}
