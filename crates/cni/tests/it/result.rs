//! Reading results, and the losses of conversions.

use netwright_cni::{AddResult, Interface, Version};

fn read(text: &str) -> AddResult {
    AddResult::parse(text.as_bytes(), Version::CURRENT).unwrap()
}

#[track_caller]
fn refused(text: &str, start: &str) {
    let error = AddResult::parse(text.as_bytes(), Version::CURRENT).unwrap_err();
    assert_eq!(error.code, 6, "{text}");
    assert!(error.msg.starts_with(start), "{text}: {}", error.msg);
}

#[test]
fn results_that_cannot_be_read_say_why() {
    refused("{", "error parsing result: it ends");
    refused("[]", "error parsing result: found a list, wanted an object");
    refused(r#"{"cniVersion":1}"#, "error parsing result: cniVersion: found 1, wanted a string");
    refused(r#"{"cniVersion":"1.0"}"#, r#"unsupported CNI result version "1.0""#);
    refused(r#"{"cniVersion":"9.9.0"}"#, r#"unsupported CNI result version "9.9.0""#);
    refused(
        r#"{"ips":[{"address":"192.0.2.1"}]}"#,
        "error parsing result: ips[0].address: invalid CIDR address: 192.0.2.1",
    );
    refused(r#"{"ips":[null]}"#, "error parsing result: ips[0]: \"address\" is missing");
    refused(r#"{"ips":[{}]}"#, "error parsing result: ips[0]: \"address\" is missing");
    refused(
        r#"{"ips":[{"address":"192.0.2.1/24","gateway":"x"}]}"#,
        "error parsing result: ips[0].gateway: invalid IP address: x",
    );
    refused(
        r#"{"routes":[{"gw":"192.0.2.1"}]}"#,
        "error parsing result: routes[0]: \"dst\" is missing",
    );
    refused(
        r#"{"routes":[{"dst":"default"}]}"#,
        "error parsing result: routes[0].dst: invalid CIDR",
    );
    refused(
        r#"{"routes":[{"dst":"::/0","scope":256}]}"#,
        "error parsing result: routes[0].scope: found 256, wanted",
    );
    refused(r#"{"dns":[]}"#, "error parsing result: dns: found a list");
}

#[test]
fn null_and_empty_text_are_nothing() {
    assert_eq!(read("null"), AddResult::default());
    assert_eq!(
        read(r#"{"interfaces":null,"ips":null,"routes":null,"dns":null}"#),
        AddResult::default()
    );
    let result = read(
        r#"{"ips":[{"address":"192.0.2.1/24","gateway":"","interface":null,"version":null}],
            "routes":[{"dst":"::/0","gw":null,"mtu":null,"table":null,"priority":0}]}"#,
    );
    assert_eq!(result.ips[0].gateway, None);
    assert_eq!(result.ips[0].interface, None);
    assert_eq!(result.routes[0].gw, None);
    assert_eq!(result.routes[0].priority, None);
}

#[test]
fn the_interface_index_zero_is_printed_and_a_negative_one_is_none() {
    let result = read(
        r#"{"ips":[{"address":"192.0.2.1/24","interface":0},{"address":"192.0.2.2/24","interface":-1}]}"#,
    );
    assert_eq!(result.ips[0].interface, Some(0));
    assert_eq!(result.ips[1].interface, None);
    let text = String::from_utf8(result.write(Version::CURRENT).unwrap()).unwrap();
    assert_eq!(
        text,
        r#"{"cniVersion":"1.1.0","ips":[{"interface":0,"address":"192.0.2.1/24"},{"address":"192.0.2.2/24"}]}"#
    );
}

#[test]
fn the_name_of_an_interface_is_always_printed() {
    let result = AddResult { interfaces: vec![Interface::default()], ..AddResult::default() };
    for version in &Version::ALL[2..] {
        let text = String::from_utf8(result.write(*version).unwrap()).unwrap();
        assert!(text.contains(r#""interfaces":[{"name":""}]"#), "{text}");
    }
}

#[test]
fn dns_is_always_printed_before_1_0_0_and_only_when_set_since() {
    let empty = AddResult::default();
    for version in Version::ALL {
        match empty.write(*version) {
            Ok(text) => assert_eq!(
                String::from_utf8(text).unwrap().contains(r#""dns":{}"#),
                *version < Version::V1_0_0,
                "{version}"
            ),
            Err(error) => assert_eq!(error.msg, "cannot convert: no valid IP addresses"),
        }
    }
}

#[test]
fn going_down_to_0_4_0_loses_what_interfaces_have_learned_since() {
    let new = read(
        r#"{"interfaces":[{"name":"eth0","mac":"m","mtu":1500,"sandbox":"s","socketPath":"p","pciID":"i"}],
            "routes":[{"dst":"::/0","mtu":1400,"table":0}]}"#,
    );
    let old = new.through(Version::V0_4_0).unwrap();
    let link = Interface {
        name: "eth0".into(),
        mac: "m".into(),
        sandbox: "s".into(),
        ..Interface::default()
    };
    assert_eq!(old.interfaces, [link]);
    assert_eq!(old.routes, new.routes);
    // A 0.4.0 result that has them anyway loses them on the way up.
    let forged = r#"{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","mtu":1500,"pciID":"i"}]}"#;
    assert_eq!(
        read(forged).interfaces[0],
        Interface { name: "eth0".into(), ..Interface::default() }
    );
    // 1.0.0 does not have them either, but is written by the same code everywhere.
    assert_eq!(new.through(Version::V1_0_0).unwrap(), new);
}

#[test]
fn going_down_to_0_2_0_keeps_the_first_address_of_a_family_and_its_routes() {
    let new = read(
        r#"{"interfaces":[{"name":"eth0"}],
            "ips":[{"address":"192.0.2.2/24","gateway":"192.0.2.1","interface":0},
                   {"address":"198.51.100.2/24"}],
            "routes":[{"dst":"0.0.0.0/0","gw":"192.0.2.9","mtu":1400},{"dst":"::/0"}]}"#,
    );
    assert_eq!(
        String::from_utf8(new.write(Version::V0_2_0).unwrap()).unwrap(),
        r#"{"cniVersion":"0.2.0","ip4":{"ip":"192.0.2.2/24","gateway":"192.0.2.1","routes":[{"dst":"0.0.0.0/0","gw":"192.0.2.9"}]},"dns":{}}"#
    );
}

#[test]
fn going_up_from_0_2_0_puts_ipv4_first() {
    let new = read(
        r#"{"cniVersion":"0.2.0",
            "ip6":{"ip":"2001:db8::2/64","routes":[{"dst":"::/0"}]},
            "ip4":{"ip":"192.0.2.2/24","gateway":"192.0.2.1","routes":[{"dst":"0.0.0.0/0"}]},
            "dns":{"domain":"d"}}"#,
    );
    assert_eq!(
        String::from_utf8(new.write(Version::V0_3_1).unwrap()).unwrap(),
        r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"192.0.2.2/24","gateway":"192.0.2.1"},{"version":"6","address":"2001:db8::2/64"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"dns":{"domain":"d"}}"#
    );
}

#[test]
fn the_version_of_an_address_is_its_family_whatever_was_said() {
    let result = read(
        r#"{"cniVersion":"0.4.0","ips":[{"version":"","address":"192.0.2.2/24"},{"address":"2001:db8::2/64"}]}"#,
    );
    let text = String::from_utf8(result.write(Version::V0_2_0).unwrap()).unwrap();
    assert!(text.contains(r#""ip4":{"ip":"192.0.2.2/24"}"#), "{text}");
    assert!(text.contains(r#""ip6":{"ip":"2001:db8::2/64"}"#), "{text}");
}

#[test]
fn the_version_is_told_without_reading_the_rest() {
    let version = |text: &str| AddResult::version_of(text.as_bytes());
    assert_eq!(version(r#"{"cniVersion":"0.4.0","ips":5}"#), Ok(Some(Version::V0_4_0)));
    assert_eq!(version("{}"), Ok(None));
    assert_eq!(version(r#"{"cniVersion":""}"#), Ok(None));
    assert!(version("[]").is_err());
    assert!(version(r#"{"cniVersion":"x"}"#).is_err());
}

#[test]
fn the_containers_addresses_are_told_from_the_hosts() {
    let result = read(
        r#"{"interfaces":[{"name":"br0"},{"name":"eth0"},{"name":"eth0","sandbox":"/ns"},{"name":"eth1","sandbox":"/ns"}],
            "ips":[{"address":"192.0.2.1/32","interface":0},{"address":"192.0.2.2/32","interface":1},
                   {"address":"192.0.2.3/32","interface":2},{"address":"192.0.2.4/32","interface":3},
                   {"address":"192.0.2.5/32"},{"address":"192.0.2.6/32","interface":9}]}"#,
    );
    let addresses: Vec<String> =
        result.container_ips("eth0").map(|ip| ip.address.addr().to_string()).collect();
    assert_eq!(addresses, ["192.0.2.3", "192.0.2.5", "192.0.2.6"]);
    assert_eq!(result.container_interface("eth0").unwrap().sandbox, "/ns");
    assert_eq!(result.container_interface("br0"), None);
}

#[test]
fn default_routes_are_known_by_their_destination() {
    let result = read(
        r#"{"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"},{"dst":"192.0.2.0/24"},{"dst":"192.0.2.0/0"}]}"#,
    );
    let default: Vec<bool> = result.routes.iter().map(netwright_cni::Route::is_default).collect();
    assert_eq!(default, [true, true, false, false]);
}
