//! The input of plugins, and whether they fulfilled it.

use cni::json::Object;
use cni::{AddResult, NetworkList, Version};
use expect_test::expect;
use netwright_npwg::request::NetworkRequest;

fn object(text: &str) -> Object {
    Object::parse(text.as_bytes()).unwrap()
}

fn list() -> NetworkList {
    NetworkList::parse(
        br#"{"cniVersion": "1.0.0", "name": "n", "plugins": [
            {"type": "macvlan", "capabilities": {"ips": true}, "args": {"cni": {"vrf": "blue", "mtu": 9000}, "other": 1}},
            {"type": "tuning", "capabilities": {"mac": true}}
        ]}"#,
    )
    .unwrap()
}

#[test]
fn arguments_reach_every_plugin_and_win() {
    let ask = NetworkRequest {
        cni_args: object(r#"{"vrf": "red", "n": 1}"#),
        ..NetworkRequest::default()
    };
    let applied = ask.apply(&list()).unwrap();
    let args = applied.plugins.iter().map(|plugin| plugin.object.get("args").unwrap().get());
    assert_eq!(
        args.collect::<Vec<_>>(),
        [r#"{"cni":{"vrf":"red","mtu":9000,"n":1},"other":1}"#, r#"{"cni":{"vrf":"red","n":1}}"#]
    );
    // The cache keeps the configuration of the call.
    assert_eq!(NetworkList::parse(&applied.source).unwrap().plugins, applied.plugins);
    assert_eq!(applied.plugins[0].capabilities, ["ips"]);
}

#[test]
fn an_allocated_device_reaches_every_plugin_under_both_names() {
    let ask =
        NetworkRequest { allocated: Some("0000:03:02.1".to_owned()), ..NetworkRequest::default() };
    for plugin in ask.apply(&list()).unwrap().plugins {
        assert_eq!(plugin.object.get("deviceID").unwrap().get(), r#""0000:03:02.1""#);
        assert_eq!(plugin.object.get("pciBusID").unwrap().get(), r#""0000:03:02.1""#);
    }
}

#[test]
fn a_list_of_which_nothing_is_asked_stays_as_it_is() {
    assert_eq!(NetworkRequest::default().apply(&list()).unwrap(), list());
}

#[test]
fn what_no_plugin_has_the_capability_for_is_refused() {
    let ask =
        |text: &str| NetworkRequest { runtime_config: object(text), ..NetworkRequest::default() };
    ask(r#"{"ips": ["192.0.2.5"], "mac": "02:00:00:00:00:01"}"#).refuse_unserved(&list()).unwrap();
    for (asked, expected) in [
        (
            r#"{"bandwidth": {}}"#,
            expect![[
                r#"network "n" cannot serve "bandwidth": none of its plugins has the capability"#
            ]],
        ),
        (
            r#"{"mac": "x", "portMappings": []}"#,
            expect![[
                r#"network "n" cannot serve "portMappings": none of its plugins has the capability"#
            ]],
        ),
        (
            r#"{"infinibandGUID": "x"}"#,
            expect![[
                r#"network "n" cannot serve "infinibandGUID": none of its plugins has the capability"#
            ]],
        ),
    ] {
        expected.assert_eq(&ask(asked).refuse_unserved(&list()).unwrap_err().to_string());
    }
}

#[test]
fn args_that_are_no_object_are_refused() {
    let list = NetworkList::parse(
        br#"{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "x", "args": 5}]}"#,
    );
    let ask = NetworkRequest { cni_args: object(r#"{"a": 1}"#), ..NetworkRequest::default() };
    expect![[r#"network "n": "args" of plugin "x" is not an object: found 5, wanted an object"#]]
        .assert_eq(&ask.apply(&list.unwrap()).unwrap_err().to_string());
}

#[test]
fn what_was_asked_for_must_have_been_given() {
    let given = |text: &str| AddResult::parse(text.as_bytes(), Version::V1_0_0).unwrap();
    let ask = NetworkRequest {
        runtime_config: object(r#"{"ips": ["192.0.2.5/24"], "mac": "02:00:00:00:00:01"}"#),
        ..NetworkRequest::default()
    };
    let good = given(
        r#"{"cniVersion": "1.0.0", "interfaces": [{"name": "net1", "mac": "02:00:00:00:00:01", "sandbox": "/n"}],
            "ips": [{"address": "192.0.2.5/25", "interface": 0}]}"#,
    );
    ask.verify("n", "net1", &good).unwrap();
    let other = given(r#"{"cniVersion": "1.0.0", "ips": [{"address": "192.0.2.6/24"}]}"#);
    expect![[r#"network "n" did not give the address 192.0.2.5 that was asked for"#]]
        .assert_eq(&ask.verify("n", "net1", &other).unwrap_err().to_string());
    let other = given(
        r#"{"cniVersion": "1.0.0", "interfaces": [{"name": "net1", "mac": "02:00:00:00:00:02", "sandbox": "/n"}],
            "ips": [{"address": "192.0.2.5/24", "interface": 0}]}"#,
    );
    expect![[
        r#"network "n" gave the hardware address 02:00:00:00:00:02 in place of 02:00:00:00:00:01"#
    ]]
    .assert_eq(&ask.verify("n", "net1", &other).unwrap_err().to_string());
}
