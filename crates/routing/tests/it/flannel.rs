//! flannel's annotations, leases, configuration and `subnet.env`, byte for byte.

use std::collections::BTreeMap;

use expect_test::expect;
use netwright_routing::flannel::annotations;
use netwright_routing::flannel::config::{Config, LeaseRange};
use netwright_routing::flannel::lease;
use netwright_routing::flannel::subnet_env::SubnetEnv;
use netwright_routing::kubernetes;
use netwright_routing::node::{Dialect, Offers, Vxlan};
use netwright_routing::settings::{Backend, FlannelSettings};
use netwright_routing::{IpFamily, Node, Settings};

use crate::support::{flannel, flannel_fields, flannel_settings, ip, net, node, v4_node};

/// A node of ours with flanneld's hardware addresses.
fn taken_over(mut node: Node) -> Node {
    if let Some(vxlan) = &mut node.offers.vxlan {
        vxlan.mac4 = vxlan.mac4.map(|_| "02:00:00:00:04:02".parse().unwrap());
        vxlan.mac6 = vxlan.mac6.map(|_| "02:00:00:00:06:02".parse().unwrap());
    }
    node
}

fn shown(annotations: &BTreeMap<String, String>) -> String {
    annotations.iter().map(|(key, value)| format!("{key}: {value}\n")).collect()
}

#[test]
fn annotations_are_those_of_flanneld() {
    let there = BTreeMap::new();
    expect![[r#"
        flannel.alpha.coreos.com/backend-data: {"VNI":1,"VtepMAC":"02:00:00:00:04:02"}
        flannel.alpha.coreos.com/backend-type: vxlan
        flannel.alpha.coreos.com/kube-subnet-manager: true
        flannel.alpha.coreos.com/public-ip: 192.0.2.2
    "#]]
    .assert_eq(&shown(&annotations::write(&taken_over(v4_node("b", 2)), &flannel(), &there)));
    // Dual stack: we write what an unmodified flanneld has written.
    let written = annotations::write(&taken_over(node("b", 2)), &flannel(), &there);
    assert_eq!(written, flannel_fields("b", 2).annotations);
    let host_gw = FlannelSettings { backend: Backend::HostGw, ..flannel() };
    expect![[r#"
        flannel.alpha.coreos.com/backend-data: null
        flannel.alpha.coreos.com/backend-type: host-gw
        flannel.alpha.coreos.com/backend-v6-data: null
        flannel.alpha.coreos.com/kube-subnet-manager: true
        flannel.alpha.coreos.com/public-ip: 192.0.2.2
        flannel.alpha.coreos.com/public-ipv6: 2001:db8::2
    "#]]
    .assert_eq(&shown(&annotations::write(&node("b", 2), &host_gw, &there)));
}

#[test]
fn an_overwritten_address_is_published_as_flanneld_does() {
    let key = "flannel.alpha.coreos.com/public-ip-overwrite".to_owned();
    let there = BTreeMap::from([(key, "203.0.113.7".to_owned())]);
    let written = annotations::write(&v4_node("b", 2), &flannel(), &there);
    assert_eq!(written["flannel.alpha.coreos.com/public-ip"], "203.0.113.7");
}

#[test]
fn flannelds_node_is_a_peer_with_its_backend_and_no_other() {
    let seen = kubernetes::read(&flannel_fields("b", 2), &flannel_settings());
    let vxlan = Vxlan {
        vni: 1,
        port: 8472,
        mac4: Some("02:00:00:00:04:02".parse().unwrap()),
        mac6: Some("02:00:00:00:06:02".parse().unwrap()),
    };
    let offers = Offers { vxlan: Some(vxlan), ..Default::default() };
    let expected = Node { offers, mtu: None, dialect: Dialect::Flannel, ..node("b", 2) };
    assert_eq!(seen.node, Ok(expected.clone()));
    assert_eq!(seen.faults, []);

    let direct_routing = FlannelSettings { direct_routing: true, ..flannel() };
    let settings = Settings { flannel: Some(direct_routing), ..flannel_settings() };
    let read = kubernetes::read(&flannel_fields("b", 2), &settings).node.unwrap();
    assert_eq!(read.offers, Offers { direct: true, ..offers });

    let mut host_gw = flannel_fields("b", 2);
    for (name, value) in
        [("backend-type", "host-gw"), ("backend-data", "null"), ("backend-v6-data", "null")]
    {
        let key = format!("flannel.alpha.coreos.com/{name}");
        host_gw.annotations.insert(key, value.to_owned());
    }
    let read = kubernetes::read(&host_gw, &flannel_settings()).node.unwrap();
    assert_eq!(read.offers, Offers { direct: true, ..Default::default() });
    assert_eq!(read.underlay, expected.underlay);
}

#[test]
fn old_flannelds_and_large_identifiers_are_understood() {
    let key = "flannel.alpha.coreos.com/backend-data".to_owned();
    let mut old = flannel_fields("b", 2);
    old.annotations.insert(key.clone(), r#"{"VtepMAC":"02:00:00:00:04:02"}"#.to_owned());
    assert!(kubernetes::read(&old, &flannel_settings()).faults.is_empty());
    // flanneld's field has 16 bits.
    let mut settings = flannel_settings();
    settings.vxlan.vni = 0x2_0005;
    let mut large = flannel_fields("b", 2);
    large.pod_cidrs.truncate(1);
    large.annotations.insert(key, r#"{"VNI":5,"VtepMAC":"02:00:00:00:04:02"}"#.to_owned());
    let read = kubernetes::read(&large, &settings).node.unwrap();
    assert_eq!(read.offers.vxlan.unwrap().vni, 0x2_0005);
    let mut ours = taken_over(v4_node("b", 2));
    ours.offers.vxlan.as_mut().unwrap().vni = 0x2_0005;
    let written = annotations::write(&ours, &flannel(), &BTreeMap::new());
    assert_eq!(
        written,
        BTreeMap::from_iter(
            large.annotations.into_iter().filter(|(key, _)| { !key.contains("v6") })
        )
    );
}

#[test]
fn one_familys_fault_leaves_the_other() {
    let mut fields = flannel_fields("b", 2);
    let key = "flannel.alpha.coreos.com/backend-v6-data".to_owned();
    fields.annotations.insert(key, "{".to_owned());
    let seen = kubernetes::read(&fields, &flannel_settings());
    let node = seen.node.unwrap();
    assert_eq!((node.underlay.v4.is_some(), node.underlay.v6.is_some()), (true, false));
    assert_eq!(node.offers.vxlan.unwrap().mac6, None);
    expect!["node b: refused: flannel.alpha.coreos.com/backend-v6-data: it cannot be read: it ends before it is complete at line 1 column 1"]
        .assert_eq(&seen.faults[0].to_string());
}

/// The source is Nodes: flanneld then writes nothing about IPv4.
#[test]
fn a_cluster_may_have_ipv6_alone() {
    let text = r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{"Type":"vxlan"}}"#;
    let settings = Config::read(text).unwrap().settings("flannel.alpha.coreos.com");
    assert_eq!(settings.cluster_ranges, [net("fd00:244::/48")]);
    let mut fields = flannel_fields("b", 2);
    fields.pod_cidrs.remove(0);
    let of_v4 =
        ["backend-data", "public-ip"].map(|name| format!("flannel.alpha.coreos.com/{name}"));
    fields.annotations.retain(|key, _| !of_v4.contains(key));
    let seen = kubernetes::read(&fields, &settings);
    assert_eq!(seen.faults, []);
    let node = seen.node.unwrap();
    assert_eq!(node.prefixes, [net("fd00:244:0:2::/64")]);
    assert_eq!(node.underlay.v4, None);
    assert_eq!(node.underlay.v6, Some("2001:db8::2".parse().unwrap()));
    let vxlan = node.offers.vxlan.unwrap();
    assert_eq!(vxlan.mac4, None);
    assert_eq!(vxlan.mac6, Some("02:00:00:00:06:02".parse().unwrap()));
    assert_eq!(annotations::write(&node, &flannel(), &BTreeMap::new()), fields.annotations);
}

/// Nodes have prefixes of both families, and flanneld takes the one that its configuration names.
#[test]
fn nodes_may_have_a_family_that_flanneld_does_not() {
    let text = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
    let settings = Config::read(text).unwrap().settings("flannel.alpha.coreos.com");
    let mut fields = flannel_fields("b", 2);
    fields.annotations.retain(|key, _| !key.contains("v6"));
    let seen = kubernetes::read(&fields, &settings);
    assert_eq!(seen.faults, []);
    assert_eq!(seen.node.unwrap().prefixes, [net("10.244.2.0/24")]);
    // If a node has only the other family's prefix, the message names it.
    fields.pod_cidrs.remove(0);
    assert_eq!(kubernetes::used_prefixes(&fields, &settings), Ok(vec![net("fd00:244:0:2::/64")]));
}

#[test]
fn a_node_that_flanneld_does_not_manage_is_no_peer_of_flannel() {
    let mut fields = flannel_fields("b", 2);
    fields.annotations.remove("flannel.alpha.coreos.com/kube-subnet-manager");
    assert!(kubernetes::read(&fields, &flannel_settings()).node.is_err());
}

#[test]
fn leases_are_those_of_flanneld() {
    let v4 = taken_over(v4_node("b", 2));
    assert_eq!(lease::key(&v4).unwrap(), "10.244.2.0-24");
    expect![[r#"{"PublicIP":"192.0.2.2","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:04:02"}}"#]]
        .assert_eq(&lease::value(&v4, &flannel()));
    let dual = taken_over(node("b", 2));
    assert_eq!(lease::key(&dual).unwrap(), "10.244.2.0-24&fd00:244:0:2::-64");
    expect![[r#"{"PublicIP":"192.0.2.2","PublicIPv6":"2001:db8::2","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:04:02"},"BackendV6Data":{"VNI":1,"VtepMAC":"02:00:00:00:06:02"}}"#]]
        .assert_eq(&lease::value(&dual, &flannel()));
    let host_gw = FlannelSettings { backend: Backend::HostGw, ..flannel() };
    expect![[r#"{"PublicIP":"192.0.2.2","PublicIPv6":null,"BackendType":"host-gw"}"#]]
        .assert_eq(&lease::value(&v4, &host_gw));
    let mut v6_only = node("b", 2);
    v6_only.prefixes.remove(0);
    assert_eq!(lease::key(&v6_only), None);
}

#[test]
fn a_lease_is_read_back() {
    for original in [taken_over(v4_node("b", 2)), taken_over(node("b", 2))] {
        let key = lease::key(&original).unwrap();
        let value = lease::value(&original, &flannel());
        let seen = lease::read(&key, value.as_bytes(), &flannel(), &flannel_settings());
        let read = seen.node.unwrap();
        assert_eq!(seen.name, key);
        assert_eq!(read.prefixes, original.prefixes);
        assert_eq!(read.underlay, original.underlay);
        assert_eq!(read.offers.vxlan, original.offers.vxlan);
        assert_eq!(read.dialect, Dialect::Flannel);
    }
}

#[test]
fn net_conf_is_read_with_flannelds_defaults() {
    let text = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
    let config = Config::read(text).unwrap();
    assert_eq!((config.vni, config.port, config.direct_routing), (1, 8472, false));
    assert_eq!(config.backend, Backend::Vxlan);
    let settings = config.settings("flannel.alpha.coreos.com");
    assert_eq!(settings.cluster_ranges, [net("10.244.0.0/16")]);
    assert_eq!(settings.flannel.unwrap().prefix, "flannel.alpha.coreos.com/");
    assert_eq!(
        config.leased(IpFamily::V4),
        Ok(Some(LeaseRange { length: 24, first: ip("10.244.1.0"), last: ip("10.244.255.0") }))
    );
    assert_eq!(config.leased(IpFamily::V6), Ok(None));

    let text = r#"{"network":"10.0.3.7/8","EnableIPv6":true,"IPv6Network":"fd00::/48","SubnetLen":20,
        "SubnetMin":"10.10.0.0","SubnetMax":"10.99.0.0",
        "Backend":{"type":"host-gw","DirectRouting":true,"VNI":7,"Port":4789}}"#;
    let config = Config::read(text).unwrap();
    assert_eq!((config.vni, config.port, config.direct_routing), (7, 4789, true));
    assert_eq!(config.networks.v4, Some(net("10.0.0.0/8")));
    assert_eq!(
        config.leased(IpFamily::V4),
        Ok(Some(LeaseRange { length: 20, first: ip("10.10.0.0"), last: ip("10.99.0.0") }))
    );
    assert_eq!(
        config.leased(IpFamily::V6),
        Ok(Some(LeaseRange { length: 64, first: ip("fd00:0:0:1::"), last: ip("fd00:0:0:ffff::") }))
    );
    assert_eq!(config.settings("example.com/x").flannel.unwrap().prefix, "example.com/x-");

    // The MTU of the network between the nodes, which includes the tunnels' headers; host-gw does
    // not have this key.
    for (kind, mtu) in [("vxlan", Some(1400)), ("host-gw", None)] {
        let text =
            format!(r#"{{"Network":"10.0.0.0/8","Backend":{{"Type":"{kind}","MTU":1400}}}}"#);
        let settings = Config::read(&text).unwrap().settings("flannel.alpha.coreos.com");
        assert_eq!(settings.flannel.unwrap().mtu, mtu, "{kind}");
    }

    // Small networks are split into four subnets.
    for (network, length) in [("10.0.0.0/22", 24), ("10.0.0.0/23", 25), ("10.0.0.0/28", 30)] {
        let text = format!(r#"{{"Network":"{network}","Backend":{{"Type":"vxlan"}}}}"#);
        let leased = Config::read(&text).unwrap().leased(IpFamily::V4).unwrap().unwrap();
        assert_eq!(leased.length, length, "{network}");
    }
}

#[test]
fn subnet_env_is_flannelds() {
    let mut env = SubnetEnv {
        networks: vec![net("10.244.0.0/16")],
        subnets: vec![net("10.244.3.0/24")],
        mtu: 1450,
        ip_masq: true,
    };
    let text = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\n\
                FLANNEL_IPMASQ=true\n";
    assert_eq!(env.write(), text);
    assert_eq!(SubnetEnv::read(text), Ok(env.clone()));
    env.networks.push(net("fd00:244::/48"));
    env.subnets.push(net("fd00:244:0:3::/64"));
    let text = env.write();
    expect![[r#"
        FLANNEL_NETWORK=10.244.0.0/16
        FLANNEL_SUBNET=10.244.3.1/24
        FLANNEL_IPV6_NETWORK=fd00:244::/48
        FLANNEL_IPV6_SUBNET=fd00:244:0:3::1/64
        FLANNEL_MTU=1450
        FLANNEL_IPMASQ=true
    "#]]
    .assert_eq(&text);
    assert_eq!(SubnetEnv::read(&text), Ok(env));
    let many = "OTHER=1\nFLANNEL_NETWORK=10.1.0.0/16,10.2.0.0/16,10.1.0.0/16\n\
                FLANNEL_SUBNET=10.1.1.1/24\nFLANNEL_MTU=1400\nFLANNEL_IPMASQ=TRUE\n";
    let read = SubnetEnv::read(many).unwrap();
    assert_eq!(read.networks, [net("10.1.0.0/16"), net("10.2.0.0/16")]);
    assert!(!read.ip_masq, "only `true` is true");
}
