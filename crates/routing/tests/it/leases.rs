//! Which lease belongs to a node, and which prefix a node without one takes.

use std::collections::BTreeSet;

use expect_test::expect;
use ipnet::IpNet;
use netwright_routing::flannel::config::Config;
use netwright_routing::flannel::lease;
use netwright_routing::flannel::leases::{Lease, Leases, Windows};
use netwright_routing::settings::Source;
use netwright_routing::{Settings, Time};

use crate::support::{flannel_settings, ip, net};

/// The windows of a configuration with these keys.
fn windows(keys: &str) -> Windows {
    let text = format!(r#"{{{keys},"Backend":{{"Type":"vxlan"}}}}"#);
    Config::read(&text).unwrap().windows().unwrap()
}

fn v4() -> Windows {
    windows(r#""Network":"10.244.0.0/16""#)
}

fn dual() -> Windows {
    windows(r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48""#)
}

/// A lease of the node with an address.
fn lease(key: &str, address: &str, grant: Option<&str>) -> Lease {
    let value = format!(
        r#"{{"PublicIP":"{address}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"02:00:00:00:04:02"}}}}"#
    );
    Lease {
        key: key.to_owned(),
        value: value.into_bytes(),
        created: 5,
        modified: 7,
        grant: grant.map(str::to_owned),
    }
}

fn leases(all: Vec<Lease>) -> Leases {
    let mut leases = Leases::default();
    leases.list(all, 9);
    leases
}

/// Leases of other nodes with these keys.
fn of_others(keys: impl IntoIterator<Item = String>) -> Leases {
    leases(keys.into_iter().map(|key| lease(&key, "192.0.2.99", Some("1"))).collect())
}

fn choose(leases: &Leases, before: &[&[IpNet]], windows: &Windows, random: u64) -> Vec<IpNet> {
    leases.choose(before.iter().copied(), windows, random).unwrap()
}

#[test]
fn a_nodes_lease_is_the_one_with_its_address() {
    let own = ip("192.0.2.1");
    let all = leases(vec![
        lease("10.244.1.0-24", "192.0.2.1", Some("1")),
        lease("10.244.2.0-24", "192.0.2.2", Some("2")),
        lease("10.244.3.0-24", "192.0.2.1", Some("3")),
        lease("10.244.4.0-24", "192.0.2.1", None),
        lease("10.99.1.0-24", "192.0.2.1", Some("4")),
        lease("10.99.2.0-24", "192.0.2.1", None),
    ]);
    let key =
        |before: &[IpNet]| all.own(own, None, &[], before, &v4()).map(|lease| lease.key.clone());
    // The node takes its former lease, or else the one that an administrator has reserved for it.
    assert_eq!(key(&[net("10.244.3.0/24")]).unwrap(), "10.244.3.0-24");
    assert_eq!(key(&[]).unwrap(), "10.244.4.0-24");
    assert_eq!(key(&[net("10.244.2.0/24")]).unwrap(), "10.244.4.0-24");
    assert_eq!(all.own(ip("192.0.2.3"), None, &[], &[], &v4()), None);
    // A lease of one family does not fit a configuration with two.
    assert_eq!(all.own(own, None, &[], &[], &dual()), None);
    // A lease outside the cluster's networks is deleted, unless an administrator has reserved it.
    let outdated: Vec<&str> = all.outdated(own, &v4()).map(|lease| lease.key.as_str()).collect();
    assert_eq!(outdated, ["10.99.1.0-24"]);
    let with_address: Vec<&str> = all.with_address(own).map(|lease| lease.key.as_str()).collect();
    assert_eq!(with_address, ["10.244.1.0-24", "10.244.3.0-24", "10.99.1.0-24"]);
}

#[test]
fn a_node_whose_address_changes_keeps_the_lease_that_nobody_has_changed() {
    let held = lease("10.244.1.0-24", "192.0.2.1", Some("1"));
    let mut all = leases(vec![held.clone()]);
    let before = [net("10.244.1.0/24")];
    let new = ip("192.0.2.7");
    assert_eq!(all.own(new, Some(&held), &[], &before, &v4()), Some(&held));
    assert_eq!(all.own(new, None, &[], &before, &v4()), None);
    // The node wrote a lease with one address, and then has its former address again, with that
    // lease still there.
    let late = Lease { modified: 10, ..lease("10.244.1.0-24", "192.0.2.7", Some("1")) };
    all.put(late.clone());
    let (old, written) = (ip("192.0.2.1"), [held.value.clone(), late.value.clone()]);
    assert_eq!(all.own(old, Some(&held), &[], &before, &v4()), None);
    assert_eq!(all.own(old, Some(&held), &written, &before, &v4()), Some(&late));
    // By now the prefix belongs to another node.
    all.put(Lease { modified: 11, ..lease("10.244.1.0-24", "192.0.2.9", Some("2")) });
    assert_eq!(all.own(new, Some(&held), &written, &before, &v4()), None);
    assert_eq!(all.revision(), 11);
    all.remove("10.244.1.0-24", 12);
    assert_eq!((all.revision(), all.get("10.244.1.0-24")), (12, None));
}

#[test]
fn a_prefix_is_drawn_from_the_first_hundred_that_are_free() {
    let none = Leases::default();
    // The first subnet is the network's own.
    assert_eq!(choose(&none, &[], &v4(), 0), [net("10.244.1.0/24")]);
    assert_eq!(choose(&none, &[], &v4(), 99), [net("10.244.100.0/24")]);
    let drawn: BTreeSet<IpNet> =
        (0..1000).flat_map(|random| choose(&none, &[], &v4(), random)).collect();
    assert_eq!(drawn.len(), 100);
    let taken = of_others(["10.244.1.0-24".to_owned(), "10.244.3.0-24".to_owned()]);
    assert_eq!(choose(&taken, &[], &v4(), 0), [net("10.244.2.0/24")]);
    assert_eq!(choose(&taken, &[], &v4(), 1), [net("10.244.4.0/24")]);
    // The prefixes of both families are drawn separately.
    let both = choose(&none, &[], &dual(), 3 + 100 * 7);
    assert_eq!(both, [net("10.244.4.0/24"), net("fd00:244:0:8::/64")]);
}

#[test]
fn the_last_free_prefix_is_found_and_then_there_is_none() {
    let window = windows(
        r#""Network":"10.244.0.0/16","SubnetLen":26,"SubnetMin":"10.244.8.64","SubnetMax":"10.244.9.128""#,
    );
    let all: Vec<String> =
        (1..=6).map(|place| format!("10.244.{}.{}-26", 8 + place / 4, place % 4 * 64)).collect();
    assert_eq!((all[0].as_str(), all[5].as_str()), ("10.244.8.64-26", "10.244.9.128-26"));
    for left in &all {
        let others = of_others(all.iter().filter(|key| *key != left).cloned());
        for random in [0, 1, u64::MAX] {
            let prefix = choose(&others, &[], &window, random)[0];
            assert_eq!(format!("{}-{}", prefix.addr(), prefix.prefix_len()), *left);
        }
    }
    let full = of_others(all);
    let none = full.choose([], &window, 7).unwrap_err();
    expect!["no IPv4 prefix of length 26 is free from 10.244.8.64 to 10.244.9.128"]
        .assert_eq(&none.to_string());
    // The range may reach to the last of all addresses.
    let last = windows(r#""Network":"255.255.255.0/24","SubnetLen":26"#);
    let others = of_others(["255.255.255.64-26".to_owned(), "255.255.255.128-26".to_owned()]);
    assert_eq!(choose(&others, &[], &last, 5), [net("255.255.255.192/26")]);
    // If IPv6 has no room, there is no lease either.
    let both = windows(
        r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/62","IPv6SubnetLen":64,
           "IPv6SubnetMin":"fd00::","IPv6SubnetMax":"fd00::""#,
    );
    let others = of_others(["10.244.1.0-24&fd00::-64".to_owned()]);
    let none = others.choose([], &both, 7).unwrap_err();
    expect!["no IPv6 prefix of length 64 is free from fd00:: to fd00::"]
        .assert_eq(&none.to_string());
}

#[test]
fn large_and_nested_leases_take_all_that_they_overlap() {
    let others = of_others(
        ["10.244.0.0-18", "10.244.1.0-24", "10.244.64.0-30", "10.244.66.128-25"].map(str::to_owned),
    );
    assert_eq!(choose(&others, &[], &v4(), 0), [net("10.244.65.0/24")]);
    assert_eq!(choose(&others, &[], &v4(), 1), [net("10.244.67.0/24")]);
    // The search does not try all subnets: there are 2⁴⁰ of them.
    let wide = windows(
        r#""Network":"10.0.0.0/8","EnableIPv6":true,"IPv6Network":"fd00::/16","IPv6SubnetLen":64"#,
    );
    let others = of_others(["10.1.0.0-24&fd00::-17".to_owned()]);
    assert_eq!(choose(&others, &[], &wide, 0)[1], net("fd00:8000::/64"));
    let all = of_others(["10.1.0.0-24&fd00::-16".to_owned()]);
    assert!(all.choose([], &wide, 0).is_err());
}

#[test]
fn the_prefix_that_a_node_had_is_taken_again_if_it_is_free() {
    let others = of_others(["10.244.9.0-24".to_owned()]);
    let had = [net("10.244.77.0/24")];
    let taken = [net("10.244.9.0/24")];
    assert_eq!(choose(&others, &[&had], &v4(), 0), had);
    assert_eq!(choose(&others, &[&taken, &had], &v4(), 0), had);
    for wrong in [
        vec![],
        vec![net("10.244.0.0/24")],
        vec![net("10.244.77.0/25")],
        vec![net("10.99.1.0/24")],
        vec![net("10.244.77.0/24"), net("10.244.78.0/24")],
        vec![net("10.244.77.0/24"), net("fd00:244:0:1::/64")],
    ] {
        assert_eq!(choose(&others, &[&wrong], &v4(), 0), [net("10.244.1.0/24")], "{wrong:?}");
    }
    // With two families, both prefixes must be free.
    let had = [net("10.244.77.0/24"), net("fd00:244:0:7::/64")];
    assert_eq!(choose(&others, &[&had], &dual(), 0), had);
    let others = of_others(["10.244.9.0-24&fd00:244:0:7::-64".to_owned()]);
    assert_eq!(choose(&others, &[&had], &dual(), 0)[0], net("10.244.1.0/24"));
}

#[test]
fn leases_of_others_are_peers_and_the_older_goes_first() {
    let settings = Settings { source: Source::Etcd, ..flannel_settings() };
    let all = leases(vec![
        lease("10.244.1.0-24", "192.0.2.1", Some("1")),
        lease("10.244.2.0-24", "192.0.2.2", None),
        lease("10.244.3.7-24", "192.0.2.3", None),
    ]);
    let seen = all.others(Some("10.244.1.0-24"), &settings);
    let names: Vec<&str> = seen.iter().map(|seen| seen.name.as_str()).collect();
    assert_eq!(names, ["10.244.2.0-24", "10.244.3.7-24"]);
    assert_eq!(seen[0].node.as_ref().unwrap().created, Some(Time(5)));
    expect![
        "refused: key: 10.244.3.7/24 has bits set after its length: 10.244.3.0/24 may be meant"
    ]
    .assert_eq(&seen[1].node.as_ref().unwrap_err().to_string());
    assert_eq!(all.others(None, &settings).len(), 3);
    // A lease with an unreadable key occupies no prefix.
    assert_eq!(all.prefixes().count(), 2);
}

#[test]
fn a_cluster_without_ipv4_has_no_leases_in_etcd() {
    let text = r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48","Backend":{"Type":"vxlan"}}"#;
    let (key, cause) = Config::read(text).unwrap().windows().unwrap_err();
    assert_eq!(key, "EnableIPv4");
    expect!["keys of leases in etcd begin with an IPv4 prefix, and there are none"]
        .assert_eq(&cause.to_string());
}

#[test]
fn an_address_and_hardware_addresses_are_read_as_far_as_they_can_be() {
    use netwright_routing::IpFamily;
    let value = br#"{"publicip":"192.0.2.1","BackendV6Data":{"VtepMAC":"02:00:00:00:06:02"}}"#;
    assert_eq!(lease::address(value), Some(ip("192.0.2.1")));
    assert_eq!(lease::mac(value, IpFamily::V6), Some("02:00:00:00:06:02".parse().unwrap()));
    assert_eq!(lease::mac(value, IpFamily::V4), None);
    for value in ["", "{", "[]", r#"{"PublicIP":7}"#, r#"{"PublicIP":"x"}"#] {
        assert_eq!(lease::address(value.as_bytes()), None, "{value}");
        assert_eq!(lease::mac(value.as_bytes(), IpFamily::V4), None, "{value}");
    }
}
