//! The networks that definitions give.

use expect_test::{Expect, expect};
use netwright_npwg::definition::Definition;

#[track_caller]
fn check(config: &str, expected: Expect) {
    match Definition::of("a-bridge-network", Some(config), &|_| false).unwrap() {
        Definition::Here(list) => expected.assert_eq(&format!("{list:?}")),
        Definition::OnNode(name) => expected.assert_eq(&format!("on node: {name}")),
    }
}

#[test]
fn the_standards_example_of_one_plugin() {
    check(
        r#"{
            "cniVersion": "0.3.0", "name": "a-bridge-network", "type": "bridge", "bridge": "br0", "isGateway": true,
            "ipam": { "type": "host-local", "subnet": "192.168.5.0/24", "dataDir": "/mnt/cluster-ipam" }
        }"#,
        expect![[
            r#"{"cniVersion":"0.3.0","name":"a-bridge-network","plugins":[{"cniVersion":"0.3.0","name":"a-bridge-network","type":"bridge","bridge":"br0","isGateway":true,"ipam":{ "type": "host-local", "subnet": "192.168.5.0/24", "dataDir": "/mnt/cluster-ipam" }}]}"#
        ]],
    );
}

#[test]
fn the_standards_example_of_a_list() {
    check(
        r#"{
            "cniVersion": "0.3.0", "name": "another-bridge-network",
            "plugins": [
                { "type": "bridge", "bridge": "br0", "ipam": { "type": "host-local", "subnet": "192.168.5.0/24" } },
                { "type": "port-forwarding" },
                { "type": "tuning", "sysctl": { "net.ipv4.conf.all.log_martians": "1" } }
            ]
        }"#,
        expect![[r#"
            {"cniVersion":"0.3.0","name":"another-bridge-network","plugins":[
                            { "type": "bridge", "bridge": "br0", "ipam": { "type": "host-local", "subnet": "192.168.5.0/24" } },
                            { "type": "port-forwarding" },
                            { "type": "tuning", "sysctl": { "net.ipv4.conf.all.log_martians": "1" } }
                        ]}"#]],
    );
}

#[test]
fn a_configuration_without_a_name_gets_the_definitions() {
    check(
        r#"{ "cniVersion": "0.3.0", "type": "awesome-plugin" }"#,
        expect![[
            r#"{"cniVersion":"0.3.0","name":"a-bridge-network","plugins":[{"cniVersion":"0.3.0","type":"awesome-plugin","name":"a-bridge-network"}]}"#
        ]],
    );
    check(
        r#"{ "name": "", "plugins": [{ "type": "awesome-plugin" }] }"#,
        expect![[r#"{"name":"a-bridge-network","plugins":[{ "type": "awesome-plugin" }]}"#]],
    );
}

#[test]
fn without_a_configuration_the_node_has_it() {
    for config in [None, Some(""), Some(" \n")] {
        let read = Definition::of("a-bridge-network", config, &|_| false).unwrap();
        assert_eq!(read, Definition::OnNode("a-bridge-network".to_owned()));
    }
}
