//! Golden files, one folder per version: what we write, to the byte, and what we read.
//!
//! `UPDATE_EXPECT=1 cargo test -p netwright-cni` writes them anew; check the difference before you
//! keep it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use expect_test::expect_file;
use netwright_cni::version::ResultFamily;
use netwright_cni::{
    AddResult, Dns, DropKind, Error, GcAttachment, Injection, Interface, IpConfig, NetworkList,
    Route, Version, text,
};
use serde_json::value::RawValue;

fn golden(version: Version, file: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/golden", version.as_str(), file].iter().collect()
}

fn route(dst: &str) -> Route {
    Route::new(text::parse_cidr(dst).unwrap(), None)
}

fn ip(address: &str, gateway: Option<&str>, interface: Option<usize>) -> IpConfig {
    let gateway = gateway.map(|gateway| text::parse_ip(gateway).unwrap());
    IpConfig { interface, ..IpConfig::new(text::parse_cidr(address).unwrap(), gateway) }
}

fn links() -> Vec<Interface> {
    let link = |name: &str, mac: &str, sandbox: &str| Interface {
        name: name.into(),
        mac: mac.into(),
        sandbox: sandbox.into(),
        ..Interface::default()
    };
    vec![
        Interface { mtu: 1500, ..link("cni0", "02:00:00:00:00:01", "") },
        link("veth0a1b2c3d", "02:00:00:00:00:02", ""),
        Interface {
            socket_path: "/run/vhost.sock".into(),
            pci_id: "0000:00:1f.6".into(),
            ..link("eth0", "02:00:00:00:00:03", "/run/netns/blue")
        },
    ]
}

/// Two addresses of each family, name servers, links on both sides.
fn dual_stack() -> AddResult {
    AddResult {
        interfaces: links(),
        ips: vec![
            ip("192.0.2.2/24", Some("192.0.2.1"), Some(2)),
            ip("2001:db8::2/64", Some("2001:db8::1"), Some(2)),
            ip("198.51.100.2/24", None, Some(0)),
            ip("2001:db8:1::2/64", None, None),
        ],
        routes: vec![route("0.0.0.0/0"), route("::/0")],
        dns: Dns {
            nameservers: vec!["192.0.2.53".into(), "2001:db8::53".into()],
            domain: "example.com".into(),
            search: vec!["a.example.com".into(), "example.com".into()],
            options: vec!["ndots:5".into()],
        },
    }
}

/// Links alone: neither addresses nor name servers.
fn l2_only() -> AddResult {
    AddResult { interfaces: links(), ..AddResult::default() }
}

/// The result of delegated IPAM, with a route that has every attribute and one whose attributes are
/// 0.
fn routes() -> AddResult {
    let full = Route {
        gw: Some(text::parse_ip("192.0.2.1").unwrap()),
        mtu: Some(1400),
        advmss: Some(1300),
        priority: Some(3),
        table: Some(5),
        scope: Some(253),
        ..route("0.0.0.0/0")
    };
    let zero = Route {
        mtu: Some(0),
        advmss: Some(0),
        priority: Some(0),
        table: Some(0),
        scope: Some(0),
        ..route("198.51.100.0/24")
    };
    AddResult {
        ips: vec![
            ip("192.0.2.2/29", Some("192.0.2.1"), None),
            ip("2001:db8::2/64", Some("2001:db8::1"), None),
        ],
        routes: vec![full, zero, route("2001:db8:2::/48")],
        ..AddResult::default()
    }
}

fn check(file: &str, result: &AddResult) {
    for version in Version::ALL.iter().copied() {
        let Ok(written) = result.write_indented(version) else {
            assert_eq!(version.family(), ResultFamily::V0_2);
            assert!(!golden(version, file).exists());
            continue;
        };
        let mut text = String::from_utf8(written.clone()).unwrap();
        assert!(!text.ends_with('\n'));
        text.push('\n');
        expect_file![golden(version, file)].assert_eq(&text);
        // The parser reads what was written, and writing it again changes nothing.
        let read = AddResult::parse(text.as_bytes(), Version::V0_1_0).unwrap();
        assert_eq!(read.write_indented(version).unwrap(), written);
        assert_eq!(read, result.through(version).unwrap());
        // The compact form has the same content.
        let compact = result.write(version).unwrap();
        let value = |json: &[u8]| serde_json::from_slice::<serde_json::Value>(json).unwrap();
        assert_eq!(value(&compact), value(&written));
        assert!(!compact.contains(&b'\n'));
    }
}

#[test]
fn dual_stack_results_have_each_versions_shape() {
    check("result-dual-stack.json", &dual_stack());
}

#[test]
fn results_without_addresses_have_each_versions_shape() {
    check("result-l2-only.json", &l2_only());
    for version in [Version::V0_1_0, Version::V0_2_0] {
        let error = l2_only().write(version).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (6, "cannot convert: no valid IP addresses"));
    }
}

#[test]
fn routes_have_each_versions_attributes() {
    check("result-routes.json", &routes());
}

/// The oldest results have no place for the type, and leave the route out.
#[test]
fn routes_that_drop_packets_keep_their_type() {
    let dropping = Route { drops: Some(DropKind::Prohibit), ..route("203.0.113.0/24") };
    let result = AddResult { routes: vec![dropping.clone()], ..dual_stack() };
    for version in Version::ALL.iter().copied() {
        let expected = match version.family() {
            ResultFamily::V0_2 => Vec::new(),
            _ => vec![dropping.clone()],
        };
        assert_eq!(result.through(version).unwrap().routes, expected, "{version}");
    }
    for (keys, drops) in [("", None), (r#", "type": """#, None), (r#", "type": "unicast""#, None)] {
        let text = format!(r#"{{"dst": "203.0.113.0/24"{keys}}}"#);
        assert_eq!(serde_json::from_str::<Route>(&text).unwrap().drops, drops);
    }
    for wrong in [r#""type": "throw""#, r#""type": "blackhole", "gw": "192.0.2.1""#] {
        serde_json::from_str::<Route>(&format!(r#"{{"dst": "203.0.113.0/24", {wrong}}}"#))
            .unwrap_err();
    }
}

#[test]
fn error_objects_may_name_their_version() {
    for version in Version::ALL.iter().copied() {
        let error = Error {
            cni_version: Some(version.to_string()),
            ..Error::new(7, "invalid configuration")
                .with_details("network 192.0.2.0/31 is too small to allocate from")
        };
        let text = String::from_utf8(error.to_json()).unwrap() + "\n";
        expect_file![golden(version, "error.json")].assert_eq(&text);
        assert_eq!(Error::parse(text.as_bytes()).unwrap(), error);
    }
}

#[test]
fn each_versions_configuration_becomes_the_plugins_requests() {
    for version in Version::ALL.iter().copied() {
        let single = version.family() == ResultFamily::V0_2;
        let list = if single {
            NetworkList::from_plugin(&std::fs::read(golden(version, "config.conf")).unwrap())
        } else {
            NetworkList::parse(&std::fs::read(golden(version, "config.conflist")).unwrap())
        };
        let list = list.unwrap();
        assert_eq!(list.cni_version, version.as_str());
        assert_eq!(list.disable_check, matches!(version, Version::V0_4_0 | Version::V1_0_0));
        assert_eq!(list.disable_gc, version == Version::V1_1_0);
        assert_eq!(list.plugins.len(), if single { 1 } else { 3 });

        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let args: BTreeMap<String, Box<RawValue>> = [
            ("mac".to_owned(), raw(r#""02:00:00:00:00:03""#)),
            ("portMappings".to_owned(), raw(r#"[{"hostPort":8080,"containerPort":80}]"#)),
            ("unused".to_owned(), raw("1")),
        ]
        .into();
        let previous = raw(&String::from_utf8(dual_stack().write(version).unwrap()).unwrap());
        let valid = [GcAttachment { container_id: "c1".into(), ifname: "eth0".into() }];
        let mut text = String::new();
        for (index, plugin) in list.plugins.iter().enumerate() {
            let injection = Injection {
                capability_args: Some(&args),
                prev_result: (index != 0).then_some(&*previous),
                valid_attachments: (version == Version::V1_1_0).then_some(&valid[..]),
                ..Injection::default()
            };
            let request = plugin.request(&list.name, &list.cni_version, &injection);
            text += std::str::from_utf8(&request).unwrap();
            text.push('\n');
        }
        expect_file![golden(version, "requests.txt")].assert_eq(&text);
    }
}

/// The example of the specification's appendix, read and written.
#[test]
fn a_result_without_version_is_read_in_the_assumed_versions_shape() {
    let text = br#"{"ips":[{"address":"10.1.0.5/16","gateway":"10.1.0.1"}],
        "routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["10.1.0.1"]}}"#;
    let result = AddResult::parse(text, Version::V1_0_0).unwrap();
    assert_eq!(result.ips, [ip("10.1.0.5/16", Some("10.1.0.1"), None)]);
    let old = AddResult::parse(text, Version::V0_2_0).unwrap();
    assert!(old.ips.is_empty());
}
