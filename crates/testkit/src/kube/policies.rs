//! What a server checks in policies that a request sends.
//!
//! Sources: Kubernetes, `pkg/apis/networking/validation`; network-policy-api v0.2.0,
//! `apis/v1alpha2/clusternetworkpolicy_types.go` (its validation markers); for conditions `meta/v1`
//! Condition.

use std::net::IpAddr;

use serde_json::{Map, Value};

use super::kinds::{Kind, NETWORKING, POLICY};
use super::status::Refusal;
use super::store::Part;

/// A fault: the field, and what is wrong with it.
type Fault = (String, String);
type CheckOutcome = Result<(), Fault>;

/// Refuses a part of a policy if a server refuses it. Parts that the request does not write are not
/// checked.
pub(super) fn check(kind: &Kind, part: Part, name: &str, object: &Value) -> Result<(), Refusal> {
    let checked = match (kind.group, part) {
        (NETWORKING, Part::Main) => network_policy(&object["spec"]),
        (POLICY, Part::Main) => cluster_policy(&object["spec"]),
        (POLICY, Part::Status) => conditions(object.pointer("/status")),
        _ => Ok(()),
    };
    checked.map_err(|(field, what)| Refusal::invalid(kind, name, &field, &what))
}

fn invalid<T>(field: impl Into<String>, value: &Value, why: &str) -> Result<T, Fault> {
    Err((field.into(), format!("Invalid value: {value}: {why}")))
}

fn required<T>(field: impl Into<String>) -> Result<T, Fault> {
    Err((field.into(), "Required value".to_owned()))
}

fn one_of(field: &str, value: &Value, allowed: &[&str]) -> CheckOutcome {
    match value.as_str() {
        Some(text) if allowed.contains(&text) => Ok(()),
        _ => Err((
            field.to_owned(),
            format!("Unsupported value: {value}: supported values: {allowed:?}"),
        )),
    }
}

/// Calls a function with each entry of a list that may be missing.
fn each(
    of: &Value,
    key: &str,
    path: &str,
    mut check: impl FnMut(&str, &Value) -> CheckOutcome,
) -> CheckOutcome {
    let path = format!("{path}.{key}");
    match &of[key] {
        Value::Null => Ok(()),
        Value::Array(all) => {
            all.iter().enumerate().try_for_each(|(n, one)| check(&format!("{path}[{n}]"), one))
        }
        other => invalid(path, other, "must be an array"),
    }
}

/// Requires an object with only these keys, as many of them as the range allows.
fn object<'v>(
    path: &str,
    value: &'v Value,
    keys: &[&str],
    count: std::ops::RangeInclusive<usize>,
) -> Result<&'v Map<String, Value>, Fault> {
    let Some(map) = value.as_object() else { return invalid(path, value, "must be an object") };
    // A server removes keys that the kind does not have.
    let there = map.keys().filter(|key| keys.contains(&key.as_str())).count();
    if !count.contains(&there) {
        return invalid(path, value, &format!("must have {count:?} of {keys:?}"));
    }
    Ok(map)
}

fn length(path: &str, value: &Value, count: std::ops::RangeInclusive<usize>) -> CheckOutcome {
    match value {
        Value::Null => Ok(()),
        Value::Array(all) if count.contains(&all.len()) => Ok(()),
        other => invalid(path, other, &format!("must have {count:?} items")),
    }
}

// Parts of both kinds.

/// `meta/v1` LabelSelector.
fn selector(path: &str, value: &Value) -> CheckOutcome {
    let selector = object(path, value, &["matchLabels", "matchExpressions"], 0..=2)?;
    for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten()
    {
        label_key(&format!("{path}.matchLabels"), key)?;
        label_value(&format!("{path}.matchLabels"), value)?;
    }
    each(value, "matchExpressions", path, |path, expression| {
        let Some(key) = expression["key"].as_str() else {
            return required(format!("{path}.key"));
        };
        label_key(&format!("{path}.key"), key)?;
        let count = expression["values"].as_array().map_or(0, Vec::len);
        let values = format!("{path}.values");
        match expression["operator"].as_str() {
            Some("In" | "NotIn") if count == 0 => required(values),
            Some("Exists" | "DoesNotExist") if 0 < count => {
                Err((values, "Forbidden: may not be specified".to_owned()))
            }
            Some("In" | "NotIn" | "Exists" | "DoesNotExist") => Ok(()),
            _ => {
                invalid(format!("{path}.operator"), &expression["operator"], "not a valid operator")
            }
        }
    })
}

fn label_key(path: &str, key: &str) -> CheckOutcome {
    let (prefix, name) = key.split_once('/').map_or(("", key), |(prefix, name)| (prefix, name));
    let is_prefix = prefix.is_empty()
        || prefix.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c));
    let is_whole = is_prefix && !name.is_empty() && is_label(name) && !key.starts_with('/');
    if is_whole { Ok(()) } else { invalid(path, &Value::from(key), "not a qualified name") }
}

fn label_value(path: &str, value: &Value) -> CheckOutcome {
    match value.as_str() {
        Some(text) if is_label(text) => Ok(()),
        _ => invalid(path, value, "not a valid label value"),
    }
}

fn is_label(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && edge(text.chars().next())
        && edge(text.chars().next_back())
}

fn port(path: &str, value: &Value) -> Result<u64, Fault> {
    match value.as_u64() {
        Some(port @ 1..=65_535) => Ok(port),
        _ => invalid(path, value, "must be between 1 and 65535, inclusive"),
    }
}

/// A prefix: whether it is an IPv4 prefix, its bits from the left, and its length.
#[derive(Debug, Clone, Copy)]
struct Cidr(bool, u128, u32);

impl Cidr {
    fn parse(text: &str) -> Option<Self> {
        let (address, length) = text.split_once('/')?;
        let length: u32 = length.parse().ok()?;
        let (is_v4, bits, most) = match address.parse().ok()? {
            IpAddr::V4(address) => (true, u128::from(u32::from(address)) << 96, 32),
            IpAddr::V6(address) => (false, u128::from(address), 128),
        };
        // A server accepts host bits, with a warning.
        let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
        (length <= most).then_some(Cidr(is_v4, bits & mask, length))
    }

    /// Reports whether another prefix is a proper part of this one.
    fn has_part(self, other: Self) -> bool {
        let mask = u128::MAX.checked_shl(128 - self.2).unwrap_or(0);
        self.0 == other.0 && self.2 < other.2 && other.1 & mask == self.1
    }
}

fn cidr(path: &str, value: &Value) -> Result<Cidr, Fault> {
    match value.as_str().and_then(Cidr::parse) {
        Some(cidr) => Ok(cidr),
        None => invalid(path, value, "must be a valid CIDR value"),
    }
}

// NetworkPolicy.

fn network_policy(spec: &Value) -> CheckOutcome {
    selector("spec.podSelector", spec.get("podSelector").unwrap_or(&Value::Object(Map::new())))?;
    for (key, peers) in [("ingress", "from"), ("egress", "to")] {
        each(spec, key, "spec", |path, rule| {
            each(rule, "ports", path, policy_port)?;
            each(rule, peers, path, policy_peer)
        })?;
    }
    length("spec.policyTypes", &spec["policyTypes"], 0..=2)?;
    each(spec, "policyTypes", "spec", |path, kind| one_of(path, kind, &["Ingress", "Egress"]))
}

fn policy_port(path: &str, entry: &Value) -> CheckOutcome {
    if !entry["protocol"].is_null() {
        one_of(&format!("{path}.protocol"), &entry["protocol"], &["TCP", "UDP", "SCTP"])?;
    }
    let first = match &entry["port"] {
        Value::Null => None,
        Value::String(name) if is_port_name(name) => None,
        other => Some(port(&format!("{path}.port"), other)?),
    };
    if entry["endPort"].is_null() {
        return Ok(());
    }
    let last = format!("{path}.endPort");
    match first {
        None => invalid(last, &entry["endPort"], "may not be specified without a numeric port"),
        Some(first) if port(&last, &entry["endPort"])? < first => {
            invalid(last, &entry["endPort"], "must be greater than or equal to `port`")
        }
        Some(_) => Ok(()),
    }
}

fn is_port_name(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && name.chars().any(|c| c.is_ascii_lowercase())
        && !name.contains("--")
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn policy_peer(path: &str, peer: &Value) -> CheckOutcome {
    let there = |key: &str| !peer[key].is_null();
    if there("ipBlock") && (there("podSelector") || there("namespaceSelector")) {
        return Err((
            path.to_owned(),
            "Forbidden: may not specify both ipBlock and another peer".to_owned(),
        ));
    }
    if !there("ipBlock") && !there("podSelector") && !there("namespaceSelector") {
        return Err((path.to_owned(), "Required value: must specify a peer".to_owned()));
    }
    for key in ["podSelector", "namespaceSelector"] {
        if there(key) {
            selector(&format!("{path}.{key}"), &peer[key])?;
        }
    }
    if !there("ipBlock") {
        return Ok(());
    }
    let path = format!("{path}.ipBlock");
    let whole = cidr(&format!("{path}.cidr"), &peer["ipBlock"]["cidr"])?;
    each(&peer["ipBlock"], "except", &path, |path, value| {
        let except = cidr(path, value)?;
        match whole.has_part(except) {
            true => Ok(()),
            false => invalid(path, value, "must be a strict subset of `cidr`"),
        }
    })
}

// ClusterNetworkPolicy.

const ACTIONS: [&str; 3] = ["Accept", "Deny", "Pass"];
const MOST: usize = 25;

fn cluster_policy(spec: &Value) -> CheckOutcome {
    if !spec.is_object() {
        return required("spec");
    }
    one_of("spec.tier", &spec["tier"], &["Admin", "Baseline"])?;
    match spec["priority"].as_i64() {
        Some(0..=1000) => {}
        _ => return invalid("spec.priority", &spec["priority"], "must be between 0 and 1000"),
    }
    pods("spec.subject", &spec["subject"])?;
    for (key, peers) in [("ingress", "from"), ("egress", "to")] {
        length(&format!("spec.{key}"), &spec[key], 0..=MOST)?;
        each(spec, key, "spec", |path, rule| {
            one_of(&format!("{path}.action"), &rule["action"], &ACTIONS)?;
            if rule["name"].as_str().is_some_and(|name| 100 < name.chars().count()) {
                return invalid(format!("{path}.name"), &rule["name"], "too long");
            }
            let list = format!("{path}.{peers}");
            if rule[peers].is_null() {
                return required(list);
            }
            length(&list, &rule[peers], 1..=MOST)?;
            length(&format!("{path}.protocols"), &rule["protocols"], 1..=MOST)?;
            let mut without_ports = false;
            each(rule, peers, path, |path, peer| match key {
                "ingress" => pods(path, peer),
                _ => {
                    without_ports |= !(peer["pods"].is_object() || peer["namespaces"].is_object());
                    egress_peer(path, peer)
                }
            })?;
            each(rule, "protocols", path, |path, entry| {
                if without_ports && !entry["destinationNamedPort"].is_null() {
                    return invalid(
                        path,
                        entry,
                        "networks/nodes/domainNames peer cannot be set with namedPorts since there are no namedPorts for networks/nodes/domainNames",
                    );
                }
                protocol(path, entry)
            })
        })?;
    }
    Ok(())
}

fn pods(path: &str, value: &Value) -> CheckOutcome {
    if value.is_null() {
        return required(path);
    }
    object(path, value, &["namespaces", "pods"], 1..=1)?;
    if value["namespaces"].is_object() {
        return schema_selector(&format!("{path}.namespaces"), &value["namespaces"]);
    }
    let path = format!("{path}.pods");
    if value["pods"]["podSelector"].is_null() {
        return required(format!("{path}.podSelector"));
    }
    for key in ["namespaceSelector", "podSelector"] {
        if !value["pods"][key].is_null() {
            schema_selector(&format!("{path}.{key}"), &value["pods"][key])?;
        }
    }
    Ok(())
}

/// A definition's schema describes the shape of a selector, but neither its operators nor its
/// labels.
fn schema_selector(path: &str, value: &Value) -> CheckOutcome {
    let selector = object(path, value, &["matchLabels", "matchExpressions"], 0..=2)?;
    for (_, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
        if !value.is_string() {
            return invalid(format!("{path}.matchLabels"), value, "must be of type string");
        }
    }
    each(value, "matchExpressions", path, |path, expression| {
        for key in ["key", "operator"] {
            if !expression[key].is_string() {
                return required(format!("{path}.{key}"));
            }
        }
        Ok(())
    })
}

fn egress_peer(path: &str, peer: &Value) -> CheckOutcome {
    let keys = ["namespaces", "pods", "nodes", "networks", "domainNames"];
    object(path, peer, &keys, 1..=1)?;
    if peer["namespaces"].is_object() || peer["pods"].is_object() {
        return pods(path, peer);
    }
    if peer["nodes"].is_object() {
        return schema_selector(&format!("{path}.nodes"), &peer["nodes"]);
    }
    for key in ["networks", "domainNames"] {
        length(&format!("{path}.{key}"), &peer[key], 1..=MOST)?;
    }
    each(peer, "networks", path, |path, value| cidr(path, value).map(drop))
}

fn protocol(path: &str, entry: &Value) -> CheckOutcome {
    object(path, entry, &["tcp", "udp", "sctp", "destinationNamedPort"], 1..=1)?;
    for key in ["tcp", "udp", "sctp"] {
        if entry[key].is_null() {
            continue;
        }
        let path = format!("{path}.{key}");
        object(&path, &entry[key], &["destinationPort"], 1..=1)?;
        let (path, of) = (format!("{path}.destinationPort"), &entry[key]["destinationPort"]);
        object(&path, of, &["number", "range"], 1..=1)?;
        if of["range"].is_null() {
            return port(&format!("{path}.number"), &of["number"]).map(drop);
        }
        let first = port(&format!("{path}.range.start"), &of["range"]["start"])?;
        if port(&format!("{path}.range.end"), &of["range"]["end"])? <= first {
            return invalid(path, of, "Start port must be less than End port");
        }
    }
    Ok(())
}

/// `meta/v1` Condition, in a list that has each type once.
fn conditions(status: Option<&Value>) -> CheckOutcome {
    let Some(status) = status.filter(|status| !status.is_null()) else { return Ok(()) };
    let path = "status.conditions";
    let Some(all) = status["conditions"].as_array() else { return required(path) };
    for (number, one) in all.iter().enumerate() {
        let path = format!("{path}[{number}]");
        let text = |key: &str| match one[key].as_str() {
            Some(text) => Ok(text),
            None => required(format!("{path}.{key}")),
        };
        let (kind, reason) = (text("type")?, text("reason")?);
        one_of(&format!("{path}.status"), &one["status"], &["True", "False", "Unknown"])?;
        if 32_768 < text("message")?.len() {
            return invalid(format!("{path}.message"), &Value::from("…"), "Too long");
        }
        let is_time = |text: &str| {
            let digits = "dddd-dd-ddTdd:dd:ddZ";
            let fits =
                |(c, wanted)| if wanted == 'd' { char::is_ascii_digit(&c) } else { c == wanted };
            text.len() == digits.len() && text.chars().zip(digits.chars()).all(fits)
        };
        if !is_time(text("lastTransitionTime")?) {
            let path = format!("{path}.lastTransitionTime");
            return invalid(path, &one["lastTransitionTime"], "must be of type date-time");
        }
        let inner = |c: char| c.is_ascii_alphanumeric() || "_,:".contains(c);
        let is_reason = reason.starts_with(|c: char| c.is_ascii_alphabetic())
            && reason.len() <= 1024
            && reason.chars().all(inner)
            && !reason.ends_with([',', ':']);
        if !is_reason {
            return invalid(format!("{path}.reason"), &one["reason"], "does not match");
        }
        if 316 < kind.len() || label_key("", kind).is_err() {
            return invalid(format!("{path}.type"), &one["type"], "does not match");
        }
        let generation = &one["observedGeneration"];
        if !generation.is_null() && generation.as_u64().is_none() {
            return invalid(format!("{path}.observedGeneration"), generation, "must be at least 0");
        }
        if all[..number].iter().any(|other| other["type"] == one["type"]) {
            return Err((path, format!("Duplicate value: {{\"type\":{}}}", one["type"])));
        }
    }
    Ok(())
}
