//! Selectors.

use netwright_policy::labels::Labels;
use serde_json::{Value, json};

use crate::support::network;

fn selects(selector: Value, labels: Value) -> bool {
    let policy = network("shop/x", json!({"podSelector": selector}));
    let labels = labels.as_object().unwrap();
    let labels: Labels = labels
        .iter()
        .map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()))
        .collect();
    policy.subject.unwrap().pods.matches(&labels)
}

#[test]
fn each_operator_means_what_kubernetes_says() {
    let expression = |operator: &str, values: Value| json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]});
    let (web, db, other, none) =
        (json!({"app": "web"}), json!({"app": "db"}), json!({"app": ""}), json!({"x": "web"}));
    for (selector, expected) in [
        (json!({}), [true, true, true, true]),
        (json!({"matchLabels": {"app": "web"}}), [true, false, false, false]),
        (json!({"matchLabels": {"app": ""}}), [false, false, true, false]),
        (expression("In", json!(["web", "db"])), [true, true, false, false]),
        (expression("NotIn", json!(["web"])), [false, true, true, true]),
        (expression("Exists", json!([])), [true, true, true, false]),
        (expression("DoesNotExist", Value::Null), [false, false, false, true]),
    ] {
        let found =
            [&web, &db, &other, &none].map(|labels| selects(selector.clone(), labels.clone()));
        assert_eq!(found, expected, "{selector}");
    }
}

#[test]
fn all_requirements_have_to_be_met() {
    let selector = json!({
        "matchLabels": {"app": "web", "example.com/tier": "a"},
        "matchExpressions": [{"key": "old", "operator": "DoesNotExist"}],
    });
    assert!(selects(selector.clone(), json!({"app": "web", "example.com/tier": "a", "x": "y"})));
    assert!(!selects(selector.clone(), json!({"app": "web", "example.com/tier": "b"})));
    assert!(!selects(selector.clone(), json!({"app": "web"})));
    let old = json!({"app": "web", "example.com/tier": "a", "old": ""});
    assert!(!selects(selector, old));
}

/// The order and the form in which a selector is written do not matter: equal selectors share their
/// sets.
#[test]
fn equal_selectors_are_equal_values() {
    let read =
        |selector: Value| network("shop/x", json!({"podSelector": selector})).subject.unwrap().pods;
    let one = read(json!({"matchLabels": {"app": "web", "tier": "a"}}));
    let other = read(json!({"matchExpressions": [
        {"key": "tier", "operator": "In", "values": ["a"]},
        {"key": "app", "operator": "In", "values": ["web", "web"]},
        {"key": "app", "operator": "In", "values": ["web"]},
    ]}));
    assert_eq!(one, other);
    assert_eq!(one.to_string(), "app=web, tier=a");
}
