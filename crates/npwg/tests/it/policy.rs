//! Who may use and ask for what.

use netwright_npwg::Selection;
use netwright_npwg::policy::Policy;

fn policy(text: &str) -> Policy {
    serde_json::from_str(text).unwrap()
}

fn select(namespace: &str, ips: &[&str], mac: Option<&str>) -> Selection {
    Selection {
        namespace: namespace.to_owned(),
        name: "net".to_owned(),
        ips: ips.iter().map(|ip| (*ip).to_owned()).collect(),
        mac: mac.map(str::to_owned),
        ..Selection::default()
    }
}

#[test]
fn without_isolation_every_definition_is_everybodys() {
    Policy::default().allow("red", &select("blue", &["10.0.0.1"], None)).unwrap();
}

#[test]
fn isolation_keeps_pods_to_their_own_and_the_global_namespaces() {
    let policy = policy(r#"{"namespaceIsolation": true, "globalNamespaces": ["shared"]}"#);
    for definition in ["red", "shared", "default"] {
        policy.allow("red", &select(definition, &[], None)).unwrap();
    }
    assert_eq!(
        policy.allow("red", &select("blue", &[], None)).unwrap_err().to_string(),
        r#"pods of namespace "red" may not use definitions of namespace "blue" ("namespaceIsolation")"#
    );
}

#[test]
fn addresses_need_a_rule_once_there_is_one() {
    let policy = policy(
        r#"{"rules": [
            {"namespaces": ["red"], "networks": ["red/net"], "addresses": ["192.0.2.0/24", "2001:db8::/64"], "macs": ["02:00:5e"]},
            {"namespaces": ["*"], "networks": ["shared/*"], "addresses": ["198.51.100.0/24"]}
        ]}"#,
    );
    policy.allow("blue", &select("blue", &[], None)).unwrap();
    let mac = Some("02:00:5e:00:00:01");
    policy.allow("red", &select("red", &["192.0.2.7/24", "2001:db8::7"], mac)).unwrap();
    policy.allow("blue", &select("shared", &["198.51.100.9"], None)).unwrap();
    let refused =
        |pod: &str, selection: &Selection| policy.allow(pod, selection).unwrap_err().to_string();
    assert_eq!(
        refused("blue", &select("red", &["192.0.2.7"], None)),
        r#"pods of namespace "blue" may not ask for address 192.0.2.7 on network "red/net""#
    );
    assert_eq!(
        refused("red", &select("red", &["192.0.2.7", "203.0.113.1"], None)),
        r#"pods of namespace "red" may not ask for address 203.0.113.1 on network "red/net""#
    );
    assert_eq!(
        refused("red", &select("red", &[], Some("02:00:5f:00:00:01"))),
        r#"pods of namespace "red" may not ask for hardware address 02:00:5f:00:00:01 on network "red/net""#
    );
    assert_eq!(
        refused("blue", &select("shared", &[], mac)),
        r#"pods of namespace "blue" may not ask for hardware address 02:00:5e:00:00:01 on network "shared/net""#
    );
}

#[test]
fn a_beginning_of_a_hardware_address_is_of_whole_bytes() {
    let rule = |begin: &str| {
        policy(&format!(
            r#"{{"rules": [{{"namespaces": ["*"], "networks": ["*"], "macs": ["{begin}"]}}]}}"#
        ))
    };
    let select = select("n", &[], Some("02:05:00:00:00:01"));
    for (begin, granted) in [
        ("02:05", true),
        ("02:05:", true),
        ("02:0", false),
        ("*", true),
        ("02:05:00:00:00:01", true),
        ("", false),
    ] {
        assert_eq!(rule(begin).allow("n", &select).is_ok(), granted, "{begin}");
    }
}
