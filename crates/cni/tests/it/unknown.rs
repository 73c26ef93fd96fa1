//! Keys that no plugin reads.

use std::collections::BTreeMap;

use netwright_cni::json::{UnknownKey, unknown_keys};
use serde::Deserialize;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    #[serde(rename = "isGateway")]
    _is_gateway: bool,
    #[serde(rename = "ipMasq")]
    _ip_masq: bool,
    #[serde(rename = "mtu")]
    _mtu: u32,
    #[serde(rename = "ipam")]
    _ipam: Ipam,
    #[serde(rename = "ranges")]
    _ranges: Vec<Ipam>,
    #[serde(rename = "byName")]
    _by_name: BTreeMap<String, Ipam>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ipam {
    #[serde(rename = "subnet")]
    _subnet: String,
}

fn find(text: &str) -> Vec<UnknownKey> {
    unknown_keys::<Config>(text).unwrap()
}

#[test]
fn unknown_keys_are_listed_in_order_with_parent_and_place() {
    let text = "{\n  \"foo\" : 1,\n  \"ipam\": {\"sub\\\"net\\\\\":\n 2}, \"MTU\": 3,\n\
                  \"ranges\": [{}, {\"gateway\": 4}],\"byName\":{\"x\":{\"y\":5}}, \"bar\"\n:\n6}";
    let listed: Vec<(String, String, usize, usize)> =
        find(text).into_iter().map(|k| (k.parent, k.key, k.line, k.column)).collect();
    let expected = [
        ("", "foo", 2, 3),
        ("ipam", "sub\"net\\", 3, 12),
        ("ranges[1]", "gateway", 5, 17),
        ("byName.x", "y", 5, 47),
        ("", "bar", 5, 56),
    ];
    let expected = expected
        .map(|(parent, key, line, column)| (parent.to_owned(), key.to_owned(), line, column));
    assert_eq!(listed, expected);
}

#[test]
fn the_place_is_where_the_key_stands() {
    let text = "{\"mtu\": 1,\n\t\"a\\\"b\": {\"x\": \"\\\"\"}}";
    let found = &find(text)[0];
    let line = text.lines().nth(found.line - 1).unwrap();
    assert!(line[found.column - 1..].starts_with("\"a\\\"b\""), "{line} {}", found.column);
}

#[test]
fn a_document_that_cannot_be_read_is_an_error() {
    assert!(unknown_keys::<Config>(r#"{"foo":1,"mtu":"x"}"#).is_err());
    assert!(unknown_keys::<Config>("{").is_err());
    assert!(find("{}").is_empty());
    assert!(find("null").is_empty());
}

#[test]
fn the_key_that_was_meant_is_suggested() {
    let table = [
        ("isGatway", Some("isGateway")),
        ("isgatewya", Some("isGateway")),
        ("IPMASK", Some("ipMasq")),
        ("ipMsq", Some("ipMasq")),
        ("mut", Some("mtu")),
        ("mt", Some("mtu")),
        ("ipma", Some("ipam")),
        ("range", Some("ranges")),
        ("x", None),
        ("", None),
        ("bridge", None),
        ("defaultRoute", None),
    ];
    for (written, meant) in table {
        let found = find(&format!(r#"{{"{written}":1}}"#));
        assert_eq!(found[0].nearest(), meant, "{written}");
    }
    let long = "isGateway".repeat(100_000);
    assert_eq!(find(&format!(r#"{{"{long}":1}}"#))[0].nearest(), None);
}

#[test]
fn many_unknown_keys_cost_little_and_are_cut_off() {
    // Searching for each key from the start of the document would take hours here.
    let keys: Vec<String> = (0..100_000).map(|n| format!("\n\"k{n}\":1")).collect();
    let found = find(&format!("{{{}}}", keys.join(",")));
    assert_eq!(found.len(), 1000);
    assert_eq!((found[999].key.as_str(), found[999].line), ("k999", 1001));
    let deep_key = "x".repeat(100_000);
    let found = find(&format!(r#"{{"byName":{{"{deep_key}":{{{}}}}}}}"#, keys.join(",")));
    assert!(found.iter().all(|key| key.parent.len() < 100));
}
