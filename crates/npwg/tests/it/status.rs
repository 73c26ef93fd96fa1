//! The status of a pod's networks.

use cni::json::Object;
use cni::{AddResult, Version};
use expect_test::{Expect, expect};
use netwright_npwg::status::{self, Form, Status};
use serde_json::Value;

fn statuses(name: &str, default: bool, result: &str) -> Vec<Status> {
    let result = AddResult::parse(result.as_bytes(), Version::V1_0_0).unwrap();
    status::of_result(name, "net1", default, &result, None)
}

#[track_caller]
fn check(name: &str, default: bool, result: &str, expected: Expect) {
    let statuses = statuses(name, default, result);
    expected.assert_eq(&status::write(&statuses, Form::Library));
}

/// NPWG standard §5.4: the results of the three networks, and the standard's status of them.
#[test]
fn the_standards_example() {
    let mut all = statuses(
        "cluster-wide-default",
        true,
        r#"{"cniVersion": "1.0.0", "interfaces": [{"name": "eth5", "mac": "02:11:22:33:44:54", "sandbox": "/n"}],
            "ips": [{"address": "1.2.3.1/24", "interface": 0}, {"address": "2001:abba::2230/64", "interface": 0}]}"#,
    );
    all.extend(statuses(
        "some-network",
        false,
        r#"{"cniVersion": "1.0.0", "interfaces": [{"name": "eth1", "mac": "02:11:22:33:44:55", "sandbox": "/n"}],
            "ips": [{"address": "1.2.3.4/24", "interface": 0}, {"address": "2001:abba::2234/64", "interface": 0}],
            "dns": {"nameservers": ["4.2.2.1", "2001:4860:4860::8888"], "search": ["eng.foobar.com", "foobar.com"]}}"#,
    ));
    all.extend(statuses(
        "other-ns/an-ip-over-infiniband-network",
        false,
        r#"{"cniVersion": "1.0.0",
            "interfaces": [{"name": "ib0", "mac": "80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22", "sandbox": "/n"}],
            "ips": [{"address": "5.4.3.2/16", "interface": 0}]}"#,
    ));
    let example: Value = serde_json::from_str(
        r#"[
        {
          "name": "cluster-wide-default",
          "interface": "eth5",
          "ips": ["1.2.3.1/24", "2001:abba::2230/64"],
          "mac": "02:11:22:33:44:54",
          "default": true
        },
        {
          "name": "some-network",
          "interface": "eth1",
          "ips": ["1.2.3.4/24", "2001:abba::2234/64"],
          "mac": "02:11:22:33:44:55",
          "dns": {
            "nameservers": ["4.2.2.1", "2001:4860:4860::8888"],
            "search": ["eng.foobar.com", "foobar.com"]
          },
          "default": false
        },
        {
          "name": "other-ns/an-ip-over-infiniband-network",
          "interface": "ib0",
          "ips": ["5.4.3.2/16"],
          "mac": "80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22",
          "default": false
        }
      ]"#,
    )
    .unwrap();
    let written: Value = serde_json::from_str(&status::write(&all, Form::Text)).unwrap();
    assert_eq!(written, example);
    // The library's status is the same, but addresses have no prefix length.
    expect![[r#"
        [{
            "name": "cluster-wide-default",
            "interface": "eth5",
            "ips": [
                "1.2.3.1",
                "2001:abba::2230"
            ],
            "mac": "02:11:22:33:44:54",
            "default": true,
            "dns": {}
        },{
            "name": "some-network",
            "interface": "eth1",
            "ips": [
                "1.2.3.4",
                "2001:abba::2234"
            ],
            "mac": "02:11:22:33:44:55",
            "dns": {
                "nameservers": [
                    "4.2.2.1",
                    "2001:4860:4860::8888"
                ],
                "search": [
                    "eng.foobar.com",
                    "foobar.com"
                ]
            }
        },{
            "name": "other-ns/an-ip-over-infiniband-network",
            "interface": "ib0",
            "ips": [
                "5.4.3.2"
            ],
            "mac": "80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22",
            "dns": {}
        }]"#]]
    .assert_eq(&status::write(&all, Form::Library));
}

#[test]
fn an_interface_with_everything() {
    let result = r#"{"cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1450, "sandbox": "/n"}],
        "ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.1.0.7"}, {"dst": "::/0", "gw": "fd00::1"}],
        "dns": {"nameservers": ["10.1.0.1"], "domain": "d", "search": ["s"], "options": ["o"]}}"#;
    let parsed = AddResult::parse(result.as_bytes(), Version::V1_1_0).unwrap();
    let device =
        Object::parse(br#"{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:03:02.1"}}"#);
    let told = status::of_result("ns/net", "eth0", true, &parsed, Some(&device.unwrap()));
    expect![[r#"
        [{
            "name": "ns/net",
            "interface": "eth0",
            "ips": [
                "10.1.0.2"
            ],
            "mac": "02:00:00:00:00:01",
            "mtu": 1450,
            "default": true,
            "dns": {
                "nameservers": [
                    "10.1.0.1"
                ],
                "domain": "d",
                "search": [
                    "s"
                ],
                "options": [
                    "o"
                ]
            },
            "device-info": {
                "type": "pci",
                "version": "1.1.0",
                "pci": {"pci-address":"0000:03:02.1"}
            },
            "gateway": [
                "10.1.0.1",
                "fd00::1"
            ]
        }]"#]]
    .assert_eq(&status::write(&told, Form::Library));
}

#[test]
fn one_interface_has_every_address() {
    check(
        "n",
        false,
        r#"{"cniVersion": "1.0.0", "interfaces": [{"name": "net1", "sandbox": "/n"}],
            "ips": [{"address": "10.1.0.2/24"}, {"address": "10.1.0.3/24", "interface": 0}, {"address": "10.1.0.4/24", "interface": 7}]}"#,
        expect![[r#"
            [{
                "name": "n",
                "interface": "net1",
                "ips": [
                    "10.1.0.2",
                    "10.1.0.3",
                    "10.1.0.4"
                ],
                "dns": {}
            }]"#]],
    );
}

#[test]
fn links_of_the_host_are_not_told() {
    check(
        "n",
        true,
        r#"{"cniVersion": "1.0.0",
            "interfaces": [{"name": "br0"}, {"name": "veth1"}, {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/n"}],
            "ips": [{"address": "10.1.0.2/24", "interface": 2}, {"address": "10.1.0.9/24", "interface": 0}]}"#,
        expect![[r#"
            [{
                "name": "n",
                "interface": "eth0",
                "ips": [
                    "10.1.0.2"
                ],
                "mac": "02:00:00:00:00:01",
                "default": true,
                "dns": {}
            }]"#]],
    );
}

#[test]
fn several_interfaces_in_the_pod_are_told_one_by_one() {
    check(
        "n",
        true,
        r#"{"cniVersion": "1.0.0",
            "interfaces": [{"name": "veth1"}, {"name": "eth0", "sandbox": "/n"}, {"name": "eth1", "sandbox": "/n"}],
            "ips": [{"address": "10.1.0.2/24", "interface": 1}, {"address": "10.2.0.2/24", "gateway": "10.2.0.1", "interface": 2}, {"address": "10.3.0.2/24"}],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.2.0.1"}]}"#,
        expect![[r#"
            [{
                "name": "n",
                "interface": "eth0",
                "ips": [
                    "10.1.0.2"
                ],
                "dns": {},
                "gateway": [
                    "10.2.0.1"
                ]
            },{
                "name": "n",
                "interface": "eth1",
                "ips": [
                    "10.2.0.2",
                    "10.3.0.2"
                ],
                "default": true,
                "dns": {},
                "gateway": [
                    "10.2.0.1"
                ]
            }]"#]],
    );
}

#[test]
fn results_without_interfaces() {
    // A result of a version that has none.
    check(
        "n",
        false,
        r#"{"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.2/24", "gateway": "10.1.0.1"}, "ip6": {"ip": "fd00::2/64"}}"#,
        expect![[r#"
            [{
                "name": "n",
                "interface": "net1",
                "ips": [
                    "10.1.0.2",
                    "fd00::2"
                ],
                "dns": {}
            }]"#]],
    );
    // A device that is not a link.
    check(
        "n",
        false,
        r#"{"cniVersion": "1.0.0"}"#,
        expect![[r#"
        [{
            "name": "n",
            "dns": {}
        }]"#]],
    );
    check(
        "n",
        false,
        r#"{"cniVersion": "1.0.0", "interfaces": [{"name": "veth1"}, {"name": "br0"}]}"#,
        expect![[r#"
            [{
                "name": "n",
                "dns": {}
            }]"#]],
    );
}
