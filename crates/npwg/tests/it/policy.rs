//! Which pods may use which networks, and what they may request.

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
        r#"pods of namespace "blue" may not ask for address 192.0.2.7 on network "red/net": no rule grants it ("addresses")"#
    );
    assert_eq!(
        refused("red", &select("red", &["192.0.2.7", "203.0.113.1"], None)),
        r#"pods of namespace "red" may not ask for address 203.0.113.1 on network "red/net": no rule grants it ("addresses")"#
    );
    assert_eq!(
        refused("red", &select("red", &[], Some("02:00:5f:00:00:01"))),
        r#"pods of namespace "red" may not ask for hardware address 02:00:5f:00:00:01 on network "red/net": no rule grants it ("macs")"#
    );
    assert_eq!(
        refused("blue", &select("shared", &[], mac)),
        r#"pods of namespace "blue" may not ask for hardware address 02:00:5e:00:00:01 on network "shared/net": no rule grants it ("macs")"#
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

/// Everything that a pod can request on a network, one at a time, and the rule that permits it.
const ASKED: [(&str, &str); 16] = [
    (r#""ips": ["192.0.2.7"]"#, r#""addresses": ["192.0.2.0/28"]"#),
    (r#""ips": ["192.0.2.7/28"]"#, r#""addresses": ["192.0.2.0/28"]"#),
    (r#""ips": ["192.0.2.7/24"]"#, r#""addresses": ["192.0.2.7/32"], "subnets": ["192.0.2.0/24"]"#),
    (r#""mac": "02:00:5e:00:00:01""#, r#""macs": ["02:00:5e"]"#),
    (r#""infiniband-guid": "c2:11:22:33:44:55:66:77""#, r#""guids": ["c2:11"]"#),
    (r#""portMappings": [{"hostPort": 22, "containerPort": 22}]"#, r#""hostPorts": ["22"]"#),
    (
        r#""portMappings": [{"hostPort": 31000, "containerPort": 1}]"#,
        r#""hostPorts": ["30000-32767"]"#,
    ),
    (r#""bandwidth": {"ingressRate": 1}"#, r#""bandwidth": true"#),
    (r#""default-route": ["192.0.2.1"]"#, r#""gateways": ["192.0.2.1/32"]"#),
    (r#""default-route": []"#, r#""gateways": ["192.0.2.1/32"]"#),
    (r#""cni-args": {"ips": ["192.0.2.7"]}"#, r#""addresses": ["192.0.2.0/28"]"#),
    (r#""cni-args": {"IPs": ["192.0.2.7"]}"#, r#""addresses": ["192.0.2.0/28"]"#),
    (r#""cni-args": {"mac": "02:00:5e:00:00:01"}"#, r#""macs": ["02:00:5e"]"#),
    (r#""cni-args": {"MAC": "02-00-5E-00-00-01"}"#, r#""macs": ["02:00:5e"]"#),
    (r#""cni-args": {"sysctl": {"net.core.somaxconn": "1"}}"#, r#""cniArgs": ["sysctl"]"#),
    (r#""cni-args": {"MTU": 9000}"#, r#""cniArgs": ["mtu"]"#),
];

fn element(asked: &str) -> Selection {
    let text = format!(r#"[{{"name": "net", {asked}}}]"#);
    netwright_npwg::annotation::parse(&text, "red").unwrap().remove(0)
}

fn rule(grants: &str) -> Policy {
    let comma = if grants.is_empty() { "" } else { ", " };
    policy(&format!(
        r#"{{"rules": [{{"namespaces": ["red"], "networks": ["red/net"]{comma}{grants}}}]}}"#
    ))
}

#[test]
fn whatever_a_pod_asks_for_needs_a_rule_that_grants_it() {
    for (asked, grants) in ASKED {
        let asked = element(asked);
        assert!(rule("").allow("red", &asked).is_err(), "{asked:?}");
        assert_eq!(rule(grants).allow("red", &asked), Ok(()), "{asked:?}");
        assert!(rule(grants).allow("blue", &asked).is_err(), "{asked:?}");
        // Another permission does not permit it.
        for (_, other) in ASKED.iter().filter(|(_, other)| !grants.contains(&other[..8])) {
            assert!(rule(other).allow("red", &asked).is_err(), "{other}: {asked:?}");
        }
        assert_eq!(Policy::default().allow("red", &asked), Ok(()), "{asked:?}");
    }
    // Network names only, without requests.
    assert_eq!(rule("").allow("red", &element(r#""interface": "data0""#)), Ok(()));
}

#[test]
fn arguments_cannot_be_written_so_that_the_rules_miss_them() {
    let grants = rule(
        r#""addresses": ["192.0.2.0/28", "::/0"], "macs": ["02:00:5e"], "cniArgs": ["ips", "mac", "mtu"]"#,
    );
    for asked in [
        r#"{"ips": ["192.0.2.7"], "IPS": ["203.0.113.1"]}"#,
        r#"{"ips": "203.0.113.1"}"#,
        r#"{"ips": [["203.0.113.1"]]}"#,
        r#"{"ips": ["192.0.2.7", "nothing"]}"#,
        // Go folds these letters to an s and a K.
        r#"{"ipſ": ["203.0.113.1"]}"#,
        r#"{"mac": ""}"#,
        r#"{"mac": ["02:00:5e:00:00:01"]}"#,
        r#"{"mac": "02:00:5f:00:00:01"}"#,
        r#"{"mtu": 1, "sysctl": {}}"#,
        r#"{"ips": ["192.0.2.7/1"]}"#,
        r#"{"ips": ["::ffff:203.0.113.1"]}"#,
        r#"{"ips": ["::ffff:192.0.2.7/97"]}"#,
    ] {
        let asked = element(&format!(r#""cni-args": {asked}"#));
        assert!(grants.allow("red", &asked).is_err(), "{asked:?}");
    }
}

#[test]
fn a_default_network_of_the_pods_own_choice_needs_a_rule() {
    let of_node =
        Selection { namespace: "kube-system".into(), ..element(r#""mac": "02:00:5e:00:00:01""#) };
    let plain = Selection { mac: None, ..of_node.clone() };
    let isolated = policy(r#"{"namespaceIsolation": true}"#);
    assert_eq!(isolated.allow_default("red", &of_node, "kube-system"), Ok(()));
    assert!(isolated.allow_default("red", &of_node, "other").is_err());
    let rules = |grants: &str| {
        policy(&format!(
            r#"{{"rules": [{{"namespaces": ["red"], "networks": ["kube-system/net"], {grants}}}]}}"#
        ))
    };
    let refused = rules(r#""macs": ["*"]"#).allow_default("red", &of_node, "kube-system");
    assert_eq!(
        refused.unwrap_err().to_string(),
        r#"pods of namespace "red" may not ask for a default network of their own on network "kube-system/net": no rule grants it ("defaultNetwork")"#
    );
    let granted = rules(r#""defaultNetwork": true"#);
    assert_eq!(granted.allow_default("red", &plain, "kube-system"), Ok(()));
    assert!(granted.allow_default("blue", &plain, "kube-system").is_err());
    assert!(granted.allow_default("red", &of_node, "kube-system").is_err(), "the address is not");
}

#[test]
fn a_device_that_was_not_allocated_needs_a_rule_whether_there_are_rules_or_not() {
    let id = "0000:03:00.0";
    let asked = element(&format!(r#""deviceID": "{id}""#));
    assert!(Policy::default().allow_device("red", &asked, id).is_err());
    assert!(rule(r#""devices": ["0000:03:00.1"]"#).allow_device("red", &asked, id).is_err());
    for granted in [id, "*"] {
        let policy = rule(&format!(r#""devices": ["{granted}"]"#));
        assert_eq!(policy.allow_device("red", &asked, id), Ok(()));
        assert!(policy.allow_device("blue", &asked, id).is_err());
    }
}

#[test]
fn definitions_that_tenants_may_write_can_be_kept_from_all_pods() {
    let policy = policy(r#"{"definitionNamespaces": ["shared"]}"#);
    policy.allow("red", &select("shared", &[], None)).unwrap();
    assert_eq!(
        policy.allow("red", &select("red", &[], None)).unwrap_err().to_string(),
        r#"no pod may use definitions of namespace "red": it is not among "definitionNamespaces""#
    );
    assert!(policy.allow_default("red", &select("red", &[], None), "kube-system").is_err());
    policy.allow_default("red", &select("kube-system", &[], None), "kube-system").unwrap();
}

#[test]
fn a_misspelt_policy_is_refused() {
    for text in [
        r#"{"namespaceIsolatoin": true}"#,
        r#"{"rules": [{"adresses": []}]}"#,
        r#"{"rules": [{"hostPorts": ["1-0"]}]}"#,
        r#"{"rules": [{"hostPorts": ["0"]}]}"#,
        r#"{"rules": [{"hostPorts": ["65536"]}]}"#,
    ] {
        serde_json::from_str::<Policy>(text).unwrap_err();
    }
}
