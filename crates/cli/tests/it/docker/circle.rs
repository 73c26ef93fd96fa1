//! CNI → CNM → CNI: the plugin `cnm` drives our own driver, whose networks CNI plugins make again.
//! The test needs no engine.

use serde_json::Value;
use testkit::traffic::{Server, assert_pings, assert_tcp};
use testkit::{Lab, Place, Snapshot};

use super::support::{Driver, LAN, assert_nothing_left, write_network};
use crate::support::call_in;
use crate::system::{address_of, install};

/// A network that the driver makes from options, with pools of its own.
const ROUND: &str = r#"{
  "cniVersion": "1.1.0", "name": "round",
  "plugins": [
    {"type": "cnm", "driver": "netwright", "options": {"type": "bridge", "bridge": "round0"}, "ipamDriver": "netwright",
     "subnets": [{"subnet": "10.72.0.0/24"}, {"subnet": "fd72::/64"}],
     "capabilities": {"portMappings": true, "ips": true, "mac": true}}
  ]
}"#;

/// The administrator's network, through the driver.
const LAN_TOO: &str = r#"{
  "cniVersion": "1.1.0", "name": "lan-too",
  "plugins": [
    {"type": "cnm", "driver": "netwright", "options": {"conflist": "lan"}, "ipamDriver": "netwright",
     "ipamOptions": {"conflist": "lan"}, "subnets": [{"subnet": "10.71.0.0/24"}, {"subnet": "fd71::/64"}]}
  ]
}"#;

#[test]
fn containers_reach_each_other_through_our_own_driver() {
    testkit::require!("root");
    let lab = Lab::with_processes("circle");
    install(&lab);
    write_network(&lab, "round", ROUND);
    let mut driver = Driver::start(&lab);
    let before = Snapshot::take(&lab);

    let (c1, c2) = (lab.container("c1"), lab.container("c2"));
    call_in(&lab, &["status", "round"]).succeeded();
    call_in(&lab, &["add", "round", "c1", "--publish", "8080:80"]).succeeded();
    call_in(&lab, &["add", "round", "c2", "--ip", "10.72.0.77"]).succeeded();
    assert_eq!(address_of(&c2, "eth0", "inet").to_string(), "10.72.0.77");
    for family in ["inet", "inet6"] {
        assert_pings(&c1, &address_of(&c2, "eth0", family).to_string());
        assert_pings(&c2, &address_of(&c1, "eth0", family).to_string());
    }
    let outside = lab.outside();
    let web = Server::tcp(&c1, "[::]:80", "c1");
    assert_eq!(assert_tcp(&outside, "198.51.100.1:8080").server, "c1");
    drop(outside);

    // A restart of the driver changes nothing.
    driver.kill();
    driver.again();
    assert_pings(&c1, "10.72.0.77");
    call_in(&lab, &["check", "round", "c1"]).succeeded();
    let list: Value = call_in(&lab, &["list", "-o", "json"]).succeeded().json();
    // The list shows those of the driver's own networks as well, since the node is the same.
    let all = list["attachments"].as_array().unwrap();
    assert_eq!(all.iter().filter(|one| one["network"] == "round").count(), 2, "{list:#}");

    call_in(&lab, &["del", "round", "c1"]).succeeded();
    assert_pings(&c2, "10.72.0.1");
    call_in(&lab, &["del", "round", "c2"]).succeeded();
    drop((web, c1, c2));
    assert_nothing_left(&lab, &before);
}

/// Containers of `netwright add` on the list itself, and on it through driver and plugin, are on
/// one network.
#[test]
fn a_list_and_its_image_in_dockers_model_are_one_network() {
    testkit::require!("root");
    let lab = Lab::with_processes("circle-lan");
    install(&lab);
    write_network(&lab, "lan", LAN);
    write_network(&lab, "lan-too", LAN_TOO);
    let _driver = Driver::start(&lab);
    let (c1, c2) = (lab.container("c1"), lab.container("c2"));
    call_in(&lab, &["add", "lan", "c1"]).succeeded();
    call_in(&lab, &["add", "lan-too", "c2"]).succeeded();
    for family in ["inet", "inet6"] {
        let (one, two) = (address_of(&c1, "eth0", family), address_of(&c2, "eth0", family));
        assert_ne!(one, two);
        assert_pings(&c1, &two.to_string());
        assert_pings(&c2, &one.to_string());
    }
    call_in(&lab, &["del", "lan-too", "c2"]).succeeded();
    call_in(&lab, &["del", "lan", "c1"]).succeeded();
    let reserved = lab.sh("ls /var/lib/cni/networks/lan | grep '^[0-9f]' || true");
    assert_eq!(reserved, "", "addresses are still reserved");
    let left = lab.sh("find /var/lib/netwright -name '*.json' \
                       -not -path '*/pools/*' -not -path '*/installed/*' | sort");
    assert_eq!(left, "");
}
