//! Records that cannot be true. For each there is a sentence that names node, key and cause. Only
//! that peer is affected.

use std::sync::Arc;

use expect_test::expect;
use netwright_routing::annotation;
use netwright_routing::cluster::{Cluster, Event, NodeRecord};
use netwright_routing::file;
use netwright_routing::flannel::config::Config;
use netwright_routing::flannel::lease;
use netwright_routing::flannel::subnet_env::SubnetEnv;
use netwright_routing::kubernetes::{self, NodeFields};
use netwright_routing::settings::Source;
use netwright_routing::{Node, Settings};

use crate::support::{
    NOW, Random, fields, flannel, flannel_fields, flannel_settings, ip, net, node, own, seen,
    settings, v4_node,
};

/// Returns the sentences about a peer `x` beside two good peers, and asserts that nothing of these
/// changes.
fn refused(settings: &Settings, seen_node: NodeRecord) -> String {
    let mut cluster = Cluster::new(Arc::new(settings.clone()), own(settings));
    cluster.apply(Event::Listed(seen(&[node("b", 2), node("c", 3)])), NOW);
    let before: Vec<Node> = cluster.used().map(|(_, node)| node.clone()).collect();
    let name = seen_node.name.clone();
    let outcome = cluster.apply(Event::Changed(seen_node), NOW);
    let after: Vec<Node> = cluster.used().map(|(_, node)| node.clone()).collect();
    assert_eq!(before, after, "only {name} is affected");
    assert_eq!(outcome.affected.len(), 0, "nothing is planned");
    let [news] = outcome.news.as_slice() else { panic!("one sentence: {:?}", outcome.news) };
    assert!(news.warning, "{}", news.text);
    assert_eq!(news.node.as_deref(), Some(name.as_str()));
    format!("{}\n", news.text)
}

/// Our annotations, each in place of node x's.
#[test]
fn annotations_of_ours() {
    let good = annotation::write(&node("x", 7));
    let with = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replace(from, to)
    };
    let mac4 = good.split("\"mac4\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let annotations = [
        String::new(),
        "[]".to_owned(),
        "null".to_owned(),
        "{".to_owned(),
        good[..good.len() - 1].to_owned(),
        format!("{good}x"),
        format!("{}{}", good, " ".repeat(5000)),
        "[".repeat(2000),
        with("\"version\":1,", ""),
        with("\"version\":1", "\"version\":2"),
        with("\"version\":1", "\"version\":\"1\""),
        with("\"version\":1", "\"version\":-1"),
        with("\"underlay\":[\"192.0.2.7\",\"2001:db8::7\"],", ""),
        with("[\"192.0.2.7\",\"2001:db8::7\"]", "[]"),
        with("[\"192.0.2.7\",\"2001:db8::7\"]", "\"192.0.2.7\""),
        with("\"192.0.2.7\"", "7"),
        with("\"192.0.2.7\"", "\"192.0.2.7/24\""),
        with("\"192.0.2.7\"", "\"192.0.2.999\""),
        with("\"192.0.2.7\"", "\"2001:db8::8\""),
        with("\"192.0.2.7\"", "\"127.0.0.1\""),
        with("\"192.0.2.7\"", "\"0.0.0.0\""),
        with("\"192.0.2.7\"", "\"224.0.0.1\""),
        with("\"192.0.2.7\"", "\"255.255.255.255\""),
        with("\"2001:db8::7\"", "\"fe80::7\""),
        with("\"2001:db8::7\"", "\"::1\""),
        with("\"192.0.2.7\",", "\"192.0.2.7\",\"192.0.2.8\","),
        with("\"192.0.2.7\"", "\"192.0.2.77\""),
        with("\"mtu\":1500", "\"mtu\":20"),
        with("\"mtu\":1500", "\"mtu\":\"big\""),
        with("\"vni\":1", "\"vni\":0"),
        with("\"vni\":1", "\"vni\":16777216"),
        with("\"vni\":1,", ""),
        with("\"port\":8472", "\"port\":0"),
        with("\"port\":8472", "\"port\":70000"),
        with(&mac4, "02:00"),
        with(&mac4, "01:00:5e:00:00:01"),
        with(&mac4, "00:00:00:00:00:00"),
        with(&mac4, "\\u0000\\u001b[31m"),
        r#"{"version":1,"underlay":["192.0.2.7"],"offers":{}}"#.to_owned(),
        r#"{"version":1,"underlay":["192.0.2.7"],"offers":[]}"#.to_owned(),
        r#"{"version":1,"underlay":["192.0.2.7"],"offers":{"wireguard":{}}}"#.to_owned(),
        r#"{"version":1,"underlay":["192.0.2.7"],"offers":{"vxlan":{"vni":1,"port":8472}}}"#.to_owned(),
        r#"{"version":1,"underlay":["192.0.2.7"],"offers":{"vxlan":{"vni":1,"port":8472,"mac6":"02:00:00:00:00:07"}}}"#.to_owned(),
        with("\"offers\":", "\"kept\":[\"10.244.9.1/24\"],\"offers\":"),
        with("\"offers\":", "\"kept\":[\"10.244.8.0/23\",\"10.244.9.0/24\"],\"offers\":"),
        with("\"offers\":", "\"zone\":5,\"offers\":"),
    ];
    let mut text = String::new();
    for bad in annotations {
        let mut fields = fields(&node("x", 7));
        fields.annotations.insert(annotation::KEY.to_owned(), bad);
        text.push_str(&refused(&settings(), kubernetes::read(&fields, &settings())));
    }
    expect![[r#"
        node x: refused: routing.netwright.io/node: it cannot be read: it ends before it is complete at line 1 column 0
        node x: refused: routing.netwright.io/node: [] is not an object
        node x: refused: routing.netwright.io/node: null is not an object
        node x: refused: routing.netwright.io/node: it cannot be read: it ends before it is complete at line 1 column 1
        node x: refused: routing.netwright.io/node: it cannot be read: it ends before it is complete at line 1 column 169
        node x: refused: routing.netwright.io/node: it cannot be read: there is something behind its end at line 1 column 171
        node x: refused: routing.netwright.io/node: it has 5170 bytes, and at most 4096 are read
        node x: refused: routing.netwright.io/node: it cannot be read: recursion limit exceeded at line 1 column 128
        node x: refused: routing.netwright.io/node: version: it is missing
        node x: refused: routing.netwright.io/node: version: it has version 2, and this netwrightd reads version 1
        node x: refused: routing.netwright.io/node: version: "1" is not a whole number
        node x: refused: routing.netwright.io/node: version: -1 is not a whole number
        node x: refused: routing.netwright.io/node: underlay: it is missing
        node x: refused: routing.netwright.io/node: underlay: it is missing
        node x: refused: routing.netwright.io/node: underlay: "192.0.2.7" is not a list
        node x: refused: routing.netwright.io/node: underlay[0]: 7 is not a text
        node x: refused: routing.netwright.io/node: underlay[0]: "192.0.2.7/24" is not an address such as 192.0.2.1
        node x: refused: routing.netwright.io/node: underlay[0]: "192.0.2.999" is not an address such as 192.0.2.1
        node x: refused: routing.netwright.io/node: underlay[1]: there are two IPv6 addresses
        node x: refused: routing.netwright.io/node: underlay[0]: 127.0.0.1 is a loopback address, and no other node can reach it
        node x: refused: routing.netwright.io/node: underlay[0]: 0.0.0.0 is no host's, and no other node can reach it
        node x: refused: routing.netwright.io/node: underlay[0]: 224.0.0.1 is a multicast address, and no other node can reach it
        node x: refused: routing.netwright.io/node: underlay[0]: 255.255.255.255 is the broadcast address, and no other node can reach it
        node x: refused: routing.netwright.io/node: underlay[1]: fe80::7 is a link-local address, and no other node can reach it
        node x: refused: routing.netwright.io/node: underlay[1]: ::1 is a loopback address, and no other node can reach it
        node x: refused: routing.netwright.io/node: underlay: it has 3 entries, and at most 2 are taken
        node x: refused: routing.netwright.io/node: underlay: 192.0.2.77 is not among the Node's addresses (192.0.2.7, 2001:db8::7)
        node x: refused: routing.netwright.io/node: mtu: 20 is not in 576..65535
        node x: refused: routing.netwright.io/node: mtu: "big" is not a whole number
        node x: refused: routing.netwright.io/node: offers.vxlan.vni: 0 is not in 1..16777215
        node x: refused: routing.netwright.io/node: offers.vxlan.vni: 16777216 is not in 1..16777215
        node x: refused: routing.netwright.io/node: offers.vxlan.vni: it is missing
        node x: refused: routing.netwright.io/node: offers.vxlan.port: 0 is not in 1..65535
        node x: refused: routing.netwright.io/node: offers.vxlan.port: 70000 is not in 1..65535
        node x: refused: routing.netwright.io/node: offers.vxlan.mac4: "02:00" is not a hardware address such as 02:00:00:00:00:01
        node x: refused: routing.netwright.io/node: offers.vxlan.mac4: 01:00:5e:00:00:01 is not the hardware address of one link
        node x: refused: routing.netwright.io/node: offers.vxlan.mac4: 00:00:00:00:00:00 is not the hardware address of one link
        node x: refused: routing.netwright.io/node: offers.vxlan.mac4: "\0\u{1b}[31m" is not a hardware address such as 02:00:00:00:00:01
        node x: refused: routing.netwright.io/node: offers: nothing it offers is known here
        node x: refused: routing.netwright.io/node: offers: [] is not an object
        node x: refused: routing.netwright.io/node: offers: nothing it offers is known here
        node x: refused: routing.netwright.io/node: offers.vxlan: it has neither mac4 nor mac6
        node x: refused: routing.netwright.io/node: offers.vxlan.mac6: there is no underlay address of IPv6 for it
        node x: refused: routing.netwright.io/node: kept[0]: 10.244.9.1/24 has bits set after its length: 10.244.9.0/24 may be meant
        node x: refused: routing.netwright.io/node: kept[1]: 10.244.9.0/24 and 10.244.8.0/23 overlap
        node x: refused: routing.netwright.io/node: zone: 5 is not a text
    "#]].assert_eq(&text);
}

#[test]
fn what_a_node_says_and_is_not_its_own() {
    let mut settings = settings();
    settings.service_ranges = vec![net("10.244.240.0/20")];
    let own_mac = own(&settings).node.offers.vxlan.unwrap().mac4;
    let with = |change: &dyn Fn(&mut Node)| {
        let mut node = node("x", 7);
        change(&mut node);
        NodeRecord::whole(node)
    };
    let prefix = |text: &str| {
        let prefix = net(text);
        with(&move |node| node.prefixes = vec![prefix])
    };
    let tunnel_only = |node: &mut Node| node.offers.direct = false;
    let mut text = String::new();
    for bad in [
        prefix("10.99.0.0/24"),
        prefix("10.244.0.0/15"),
        prefix("fd00:245::/64"),
        prefix("0.0.0.0/0"),
        prefix("10.244.1.0/24"),
        prefix("10.244.1.128/25"),
        prefix("10.244.0.0/16"),
        prefix("10.244.250.0/24"),
        prefix("10.244.2.0/24"),
        prefix("10.244.2.64/26"),
        prefix("10.244.2.0/23"),
        with(&|node| node.underlay.v4 = Some("192.0.2.1".parse().unwrap())),
        with(&|node| node.underlay.v6 = Some("2001:db8::1".parse().unwrap())),
        with(&|node| node.underlay.v4 = Some("192.0.2.2".parse().unwrap())),
        with(&|node| node.underlay.v4 = Some("10.244.7.9".parse().unwrap())),
        with(&|node| node.underlay.v6 = Some("fd00:244:0:9::1".parse().unwrap())),
        with(&|node| node.offers.vxlan.as_mut().unwrap().mac4 = own_mac),
        with(&|node| node.offers.vxlan.as_mut().unwrap().mac6 = own_mac),
        with(&|node| node.offers.vxlan = v4_node("b", 2).offers.vxlan),
        with(&|node| {
            tunnel_only(node);
            node.offers.vxlan.as_mut().unwrap().vni = 9;
        }),
        with(&|node| {
            tunnel_only(node);
            node.offers.vxlan.as_mut().unwrap().port = 4789;
        }),
    ] {
        text.push_str(&refused(&settings, bad));
    }
    expect![[r#"
        node x: refused: spec.podCIDRs: 10.99.0.0/24 is outside the cluster's IPv4 ranges (10.244.0.0/16)
        node x: refused: spec.podCIDRs: 10.244.0.0/15 is outside the cluster's IPv4 ranges (10.244.0.0/16)
        node x: refused: spec.podCIDRs: fd00:245::/64 is outside the cluster's IPv6 ranges (fd00:244::/48)
        node x: refused: spec.podCIDRs: 0.0.0.0/0 is outside the cluster's IPv4 ranges (10.244.0.0/16)
        node x: refused: spec.podCIDRs: 10.244.1.0/24 overlaps 10.244.1.0/24, which is this node's
        node x: refused: spec.podCIDRs: 10.244.1.128/25 overlaps 10.244.1.0/24, which is this node's
        node x: refused: spec.podCIDRs: 10.244.0.0/16 overlaps 10.244.240.0/20, a range for services
        node x: refused: spec.podCIDRs: 10.244.250.0/24 overlaps 10.244.240.0/20, a range for services
        node x: refused: spec.podCIDRs: 10.244.2.0/24 overlaps 10.244.2.0/24, which is node b's since 12:00 UTC
        node x: refused: spec.podCIDRs: 10.244.2.64/26 overlaps 10.244.2.0/24, which is node b's since 12:00 UTC
        node x: refused: spec.podCIDRs: 10.244.2.0/23 overlaps 10.244.2.0/24, which is node b's since 12:00 UTC
        node x: refused: routing.netwright.io/node: underlay: 192.0.2.1 is this node's
        node x: refused: routing.netwright.io/node: underlay: 2001:db8::1 is this node's
        node x: refused: routing.netwright.io/node: underlay: 192.0.2.2 is node b's since 12:00 UTC
        node x: refused: routing.netwright.io/node: underlay: 10.244.7.9 is in the cluster's range 10.244.0.0/16: a tunnel to it would run through itself
        node x: refused: routing.netwright.io/node: underlay: fd00:244:0:9::1 is in the cluster's range fd00:244::/48: a tunnel to it would run through itself
        node x: refused: routing.netwright.io/node: offers.vxlan.mac4: 16:41:38:d8:ba:42 is this node's
        node x: refused: routing.netwright.io/node: offers.vxlan.mac6: 16:41:38:d8:ba:42 is this node's
        node x: refused: routing.netwright.io/node: offers.vxlan.mac4: 12:c1:a5:96:3f:91 is node b's since 12:00 UTC
        node x: refused: routing.netwright.io/node: offers.vxlan.vni: it is 9, and this node's is 1
        node x: refused: routing.netwright.io/node: offers.vxlan.port: it is 4789, and this node's is 8472
    "#]].assert_eq(&text);
}

/// If others would refuse something that this node publishes, this node says so itself.
#[test]
fn this_nodes_own_prefix_outside_the_ranges() {
    let said = |prefix: &str| settings().outside_ranges(&[net("10.244.1.0/24"), net(prefix)]);
    assert_eq!(said("fd00:244:0:1::/64"), None);
    expect!["this node's prefix 10.99.1.0/24 is outside the cluster's IPv4 ranges (10.244.0.0/16): other nodes refuse it"]
        .assert_eq(&said("10.99.1.0/24").unwrap());
}

/// A range of pods overlaps the host's, and an administrator has allowed that.
#[test]
fn a_prefix_that_has_this_nodes_address() {
    let mut settings = settings();
    settings.cluster_ranges.extend([net("192.0.2.0/24"), net("2001:db8::/32")]);
    settings.allow_overlap = true;
    let with =
        |prefix: &str| NodeRecord::whole(Node { prefixes: vec![net(prefix)], ..node("x", 7) });
    let bad = ["192.0.2.0/30", "2001:db8::/126"].map(|prefix| refused(&settings, with(prefix)));
    expect![[r#"
        node x: refused: spec.podCIDRs: 192.0.2.0/30 has this node's address 192.0.2.1 in it
        node x: refused: spec.podCIDRs: 2001:db8::/126 has this node's address 2001:db8::1 in it
    "#]]
    .assert_eq(&bad.concat());
}

/// Packets to such a node would go to another one, which may be reached through the first, or would
/// stay here.
#[test]
fn loops() {
    let mut settings = settings();
    settings.cluster_ranges.extend([net("192.0.2.0/24"), net("2001:db8::/32")]);
    settings.allow_overlap = true;
    let mut text = String::new();
    for (prefix, address) in [
        // In node b's prefix, and in node c's.
        ("10.244.7.0/24", "10.244.2.9"),
        ("10.244.7.0/24", "fd00:244:0:3::9"),
        // The reverse, and both.
        ("192.0.2.2/31", "192.0.2.7"),
        ("2001:db8::2/127", "192.0.2.7"),
        ("192.0.2.2/31", "10.244.2.9"),
        // The node's own.
        ("192.0.2.4/30", "192.0.2.7"),
        // This node's.
        ("10.244.7.0/24", "10.244.1.9"),
        ("10.244.7.0/24", "fd00:244:0:1::9"),
        ("192.0.2.0/31", "10.244.1.9"),
        ("10.244.7.0/24", "192.0.2.1"),
    ] {
        let mut node = node("x", 7);
        node.prefixes = vec![net(prefix)];
        node.underlay.set(ip(address));
        text.push_str(&refused(&settings, NodeRecord::whole(node)));
    }
    // What other sources call it.
    let of_file = Settings { source: Source::File, ..settings.clone() };
    let entry =
        "[[node]]\nname = \"x\"\nunderlay = [\"10.244.2.9\"]\nprefixes = [\"10.244.7.0/24\"]\n";
    let mut list = file::read(entry, &of_file).unwrap();
    let mut seen = list.remove(0);
    seen.node.as_mut().unwrap().created = Some(NOW);
    text.push_str(&refused(&of_file, seen));
    let of_flannel = Settings { flannel: Some(flannel()), ..settings };
    let of_etcd = Settings { source: Source::Etcd, ..of_flannel.clone() };
    let value = r#"{"PublicIP":"10.244.2.9","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:04:07"}}"#;
    let seen = lease::read("10.244.7.0-24", value.as_bytes(), &flannel(), &of_etcd);
    text.push_str(&refused(&of_etcd, seen));
    let mut fields = flannel_fields("x", 7);
    fields.pod_cidrs.truncate(1);
    fields.addresses.push("10.244.2.9".to_owned());
    let key = "flannel.alpha.coreos.com/public-ip".to_owned();
    fields.annotations.insert(key, "10.244.2.9".to_owned());
    text.push_str(&refused(&of_flannel, kubernetes::read(&fields, &of_flannel)));
    expect![[r#"
        node x: refused: routing.netwright.io/node: underlay: 10.244.2.9 is in 10.244.2.0/24, which is node b's since 12:00 UTC: packets to it would go there
        node x: refused: routing.netwright.io/node: underlay: fd00:244:0:3::9 is in fd00:244:0:3::/64, which is node c's since 12:00 UTC: packets to it would go there
        node x: refused: spec.podCIDRs: 192.0.2.2/31 has 192.0.2.2 in it, which is node b's since 12:00 UTC
        node x: refused: spec.podCIDRs: 2001:db8::2/127 has 2001:db8::2 in it, which is node b's since 12:00 UTC
        node x: refused: spec.podCIDRs: 192.0.2.2/31 has 192.0.2.2 in it, which is node b's since 12:00 UTC
        node x: refused: routing.netwright.io/node: underlay: 192.0.2.7 is in the cluster's range 192.0.2.4/30: a tunnel to it would run through itself
        node x: refused: routing.netwright.io/node: underlay: 10.244.1.9 is in 10.244.1.0/24, which is this node's: packets to it would stay here
        node x: refused: routing.netwright.io/node: underlay: fd00:244:0:1::9 is in fd00:244:0:1::/64, which is this node's: packets to it would stay here
        node x: refused: spec.podCIDRs: 192.0.2.0/31 has this node's address 192.0.2.1 in it
        node x: refused: routing.netwright.io/node: underlay: 192.0.2.1 is this node's
        node x: refused: underlay: 10.244.2.9 is in 10.244.2.0/24, which is node b's since 12:00 UTC: packets to it would go there
        node 10.244.7.0-24: refused: PublicIP: 10.244.2.9 is in 10.244.2.0/24, which is node b's since 12:00 UTC: packets to it would go there
        node x: refused: flannel.alpha.coreos.com/public-ip: 10.244.2.9 is in 10.244.2.0/24, which is node b's since 12:00 UTC: packets to it would go there
    "#]].assert_eq(&text);
}

#[test]
fn fields_of_a_node() {
    let mut text = String::new();
    let with = |change: &dyn Fn(&mut NodeFields)| {
        let mut fields = fields(&node("x", 7));
        change(&mut fields);
        kubernetes::read(&fields, &settings())
    };
    let cidrs = |list: &[&str]| {
        let list: Vec<String> = list.iter().map(|text| (*text).to_owned()).collect();
        with(&move |fields| fields.pod_cidrs.clone_from(&list))
    };
    for bad in [
        cidrs(&["10.244.7.1/24"]),
        cidrs(&["10.244.7.0"]),
        cidrs(&["10.244.7.0/33"]),
        cidrs(&["10.244.07.0/24"]),
        cidrs(&["blue"]),
        cidrs(&["10.244.7.0/24", "10.244.7.0/24"]),
        cidrs(&["10.244.7.0/24", "10.244.7.128/25"]),
        cidrs(&["10.244.7.0/24"; 9]),
        with(&|fields| fields.addresses.clear()),
        with(&|fields| fields.addresses = vec!["203.0.113.1".to_owned(), "x.example".to_owned()]),
    ] {
        text.push_str(&refused(&settings(), bad));
    }
    expect![[r#"
        node x: refused: spec.podCIDRs: 10.244.7.1/24 has bits set after its length: 10.244.7.0/24 may be meant
        node x: refused: spec.podCIDRs: "10.244.7.0" is not a prefix such as 10.244.1.0/24
        node x: refused: spec.podCIDRs: "10.244.7.0/33" is not a prefix such as 10.244.1.0/24
        node x: refused: spec.podCIDRs: "10.244.07.0/24" is not a prefix such as 10.244.1.0/24
        node x: refused: spec.podCIDRs: "blue" is not a prefix such as 10.244.1.0/24
        node x: refused: spec.podCIDRs: 10.244.7.0/24 and 10.244.7.0/24 overlap
        node x: refused: spec.podCIDRs: 10.244.7.128/25 and 10.244.7.0/24 overlap
        node x: refused: spec.podCIDRs: it has 9 entries, and at most 8 are taken
        node x: refused: routing.netwright.io/node: underlay: 192.0.2.7 is not among the Node's addresses (it has none)
        node x: refused: routing.netwright.io/node: underlay: 192.0.2.7 is not among the Node's addresses (203.0.113.1, x.example)
    "#]].assert_eq(&text);
}

#[test]
fn annotations_of_flannel() {
    let mut text = String::new();
    for (name, value) in [
        ("backend-type", Some("wireguard")),
        ("backend-type", Some("")),
        ("backend-type", None),
        ("backend-data", None),
        ("backend-data", Some("null")),
        ("backend-data", Some("")),
        ("backend-data", Some("{\"VNI\":1")),
        ("backend-data", Some("{\"VNI\":1}")),
        ("backend-data", Some("{\"VNI\":2,\"VtepMAC\":\"02:00:00:00:04:07\"}")),
        ("backend-data", Some("{\"VNI\":\"1\",\"VtepMAC\":\"02:00:00:00:04:07\"}")),
        ("backend-data", Some("{\"VNI\":1,\"VtepMAC\":\"33:33:00:00:00:01\"}")),
        ("backend-data", Some("{\"VNI\":1,\"VtepMAC\":17}")),
        ("public-ip", None),
        ("public-ip", Some("0.0.0.0")),
        ("public-ip", Some("2001:db8::7")),
        ("public-ip", Some("192.0.2.99")),
        ("public-ip", Some("somewhere")),
    ] {
        let mut fields = flannel_fields("x", 7);
        fields.pod_cidrs.truncate(1);
        let key = format!("flannel.alpha.coreos.com/{name}");
        match value {
            Some(value) => drop(fields.annotations.insert(key, value.to_owned())),
            None => drop(fields.annotations.remove(&key)),
        }
        text.push_str(&refused(
            &flannel_settings(),
            kubernetes::read(&fields, &flannel_settings()),
        ));
    }
    // A prefix that is valid by itself, but belongs to another node.
    let mut fields = flannel_fields("x", 7);
    fields.pod_cidrs = vec!["10.244.2.0/24".to_owned()];
    text.push_str(&refused(&flannel_settings(), kubernetes::read(&fields, &flannel_settings())));
    let own_mac = own(&flannel_settings()).node.offers.vxlan.unwrap().mac4.unwrap();
    let mut fields = flannel_fields("x", 7);
    fields.annotations.insert(
        "flannel.alpha.coreos.com/backend-data".to_owned(),
        format!("{{\"VNI\":1,\"VtepMAC\":\"{own_mac}\"}}"),
    );
    text.push_str(&refused(&flannel_settings(), kubernetes::read(&fields, &flannel_settings())));
    expect![[r#"
        node x: refused: flannel.alpha.coreos.com/backend-type: flanneld's backend "wireguard" is not one of vxlan and host-gw
        node x: refused: flannel.alpha.coreos.com/backend-type: flanneld's backend "" is not one of vxlan and host-gw
        node x: refused: flannel.alpha.coreos.com/backend-type: it is missing
        node x: refused: flannel.alpha.coreos.com/backend-data: it is missing
        node x: refused: flannel.alpha.coreos.com/backend-data: it is missing
        node x: refused: flannel.alpha.coreos.com/backend-data: it cannot be read: it ends before it is complete at line 1 column 0
        node x: refused: flannel.alpha.coreos.com/backend-data: it cannot be read: it ends before it is complete at line 1 column 8
        node x: refused: flannel.alpha.coreos.com/backend-data: VtepMAC: it is missing
        node x: refused: flannel.alpha.coreos.com/backend-data: VNI: it is 2, and this node's is 1
        node x: refused: flannel.alpha.coreos.com/backend-data: VNI: "1" is not a whole number
        node x: refused: flannel.alpha.coreos.com/backend-data: VtepMAC: 33:33:00:00:00:01 is not the hardware address of one link
        node x: refused: flannel.alpha.coreos.com/backend-data: VtepMAC: 17 is not a text
        node x: refused: flannel.alpha.coreos.com/public-ip: it is missing
        node x: refused: flannel.alpha.coreos.com/public-ip: 0.0.0.0 is no host's, and no other node can reach it
        node x: refused: flannel.alpha.coreos.com/public-ip: 2001:db8::7 is not an IPv4 address
        node x: refused: flannel.alpha.coreos.com/public-ip: 192.0.2.99 is not among the Node's addresses (192.0.2.7, 2001:db8::7, x)
        node x: refused: flannel.alpha.coreos.com/public-ip: "somewhere" is not an address such as 192.0.2.1
        node x: refused: spec.podCIDRs: 10.244.2.0/24 overlaps 10.244.2.0/24, which is node b's since 12:00 UTC
        node x: refused: flannel.alpha.coreos.com/backend-data: VtepMAC: 16:41:38:d8:ba:42 is this node's
    "#]].assert_eq(&text);
}

#[test]
fn leases() {
    let good = r#"{"PublicIP":"192.0.2.7","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:04:07"}}"#;
    let key = "10.244.7.0-24";
    let settings = Settings { source: Source::Etcd, ..flannel_settings() };
    let mut text = String::new();
    for (key, value) in [
        ("", good.to_owned()),
        ("blue", good.to_owned()),
        ("10.244.7.0", good.to_owned()),
        ("10.244.7.9-24", good.to_owned()),
        ("10.244.7.0-99", good.to_owned()),
        ("fd00:244:0:7::-64", good.to_owned()),
        ("10.244.7.0-24&10.244.8.0-24", good.to_owned()),
        ("10.244.7.0-24&fd00:244:0:7::-64&x", good.to_owned()),
        (key, String::new()),
        (key, "\u{fffd}".to_owned()),
        (key, good.replace("\"vxlan\"", "\"udp\"")),
        (key, r#"{"PublicIP":"192.0.2.7"}"#.to_owned()),
        (key, good.replace("192.0.2.7", "")),
        (key, good.replace("192.0.2.7", "0.0.0.0")),
        (key, good.replace("\"VNI\":1", "\"VNI\":3")),
        (key, good.replace("02:00:00:00:04:07", "fe:ed")),
        (key, good.replace("BackendData", "BackendDate")),
        (key, format!("{good}{}", "\n".repeat(5000))),
        ("10.99.7.0-24", good.to_owned()),
        ("10.244.2.0-24", good.to_owned()),
        (key, good.replace("192.0.2.7", "192.0.2.1")),
        (key, good.replace("192.0.2.7", "192.0.2.2")),
    ] {
        let seen = lease::read(key, value.as_bytes(), &flannel(), &settings);
        text.push_str(&refused(&settings, seen));
    }
    expect![[r#"
        node : refused: key: "" is not a lease's, such as 10.5.52.0-24 or 10.5.52.0-24&fd00::-64
        node blue: refused: key: "blue" is not a lease's, such as 10.5.52.0-24 or 10.5.52.0-24&fd00::-64
        node 10.244.7.0: refused: key: "10.244.7.0" is not a lease's, such as 10.5.52.0-24 or 10.5.52.0-24&fd00::-64
        node 10.244.7.9-24: refused: key: 10.244.7.9/24 has bits set after its length: 10.244.7.0/24 may be meant
        node 10.244.7.0-99: refused: key: "10.244.7.0-99" is not a lease's, such as 10.5.52.0-24 or 10.5.52.0-24&fd00::-64
        node fd00:244:0:7::-64: refused: key: fd00:244:0:7::/64 is not an IPv4 address
        node 10.244.7.0-24&10.244.8.0-24: refused: key: 10.244.8.0/24 is not an IPv6 address
        node 10.244.7.0-24&fd00:244:0:7::-64&x: refused: key: "10.244.7.0-24&fd00:244:0:7::-64&x" is not a lease's, such as 10.5.52.0-24 or 10.5.52.0-24&fd00::-64
        node 10.244.7.0-24: refused: value: it cannot be read: it ends before it is complete at line 1 column 0
        node 10.244.7.0-24: refused: value: it cannot be read: U+FFFD (�) is not allowed here at line 1 column 1
        node 10.244.7.0-24: refused: BackendType: flanneld's backend "udp" is not one of vxlan and host-gw
        node 10.244.7.0-24: refused: BackendType: flanneld's backend "udp" is not one of vxlan and host-gw
        node 10.244.7.0-24: refused: PublicIP: "" is not an address such as 192.0.2.1
        node 10.244.7.0-24: refused: PublicIP: 0.0.0.0 is no host's, and no other node can reach it
        node 10.244.7.0-24: refused: BackendData.VNI: it is 3, and this node's is 1
        node 10.244.7.0-24: refused: BackendData.VtepMAC: "fe:ed" is not a hardware address such as 02:00:00:00:00:01
        node 10.244.7.0-24: refused: BackendData: it is missing
        node 10.244.7.0-24: refused: value: it has 5118 bytes, and at most 4096 are read
        node 10.99.7.0-24: refused: key: 10.99.7.0/24 is outside the cluster's IPv4 ranges (10.244.0.0/16)
        node 10.244.2.0-24: refused: key: 10.244.2.0/24 overlaps 10.244.2.0/24, which is node b's since 12:00 UTC
        node 10.244.7.0-24: refused: PublicIP: 192.0.2.1 is this node's
        node 10.244.7.0-24: refused: PublicIP: 192.0.2.2 is node b's since 12:00 UTC
    "#]].assert_eq(&text);
}

#[test]
fn entries_of_the_file() {
    let settings = Settings { source: Source::File, ..settings() };
    let mut text = String::new();
    for bad in [
        "name = \"x\"\nprefixes = [\"10.244.7.0/24\"]",
        "name = \"x\"\nunderlay = [\"192.0.2.7\"]",
        "name = \"x\"\nunderlay = [\"192.0.2.7\"]\nprefixes = []",
        "name = \"x\"\nunderlay = [\"192.0.2.7\"]\nprefixes = \"10.244.7.0/24\"",
        "name = \"x\"\nunderlay = [\"192.0.2.7\"]\nprefixes = [\"10.244.7.1/24\"]",
        "name = \"x\"\nunderlay = [\"192.0.2.7\"]\nprefixes = [\"10.244.7.0/24\"]\nmtu = 0",
        "name = \"x\"\nunderlay = [\"192.0.2.7\"]\nprefixes = [\"10.244.7.0/24\"]\nzone = 1",
        "name = \"x\"\nunderlay = [\"192.0.2.7\"]\nprefix = [\"10.244.7.0/24\"]",
        "name = \"x\"\nunderlay = [\"192.0.2.7\"]\nprefixes = [\"10.244.7.0/24\"]\ncolour = 1",
        "name = \"x\"\nunderlay = [\"192.0.2.7\"]\nprefixes = [\"10.99.7.0/24\"]",
        "name = \"x\"\nunderlay = [\"192.0.2.3\"]\nprefixes = [\"10.244.7.0/24\"]",
        "name = \"x\"\nunderlay = [\"192.0.2.7\"]\nprefixes = [\"10.244.7.0/24\"]\n[[node]]\nname = \"x\"",
        "name = \"x y\"",
        "name = \"\"",
        "name = 7",
        "underlay = [\"192.0.2.7\"]",
    ] {
        let list = file::read(&format!("[[node]]\n{bad}\n"), &settings).unwrap();
        let [seen] = list.as_slice() else { panic!("one node: {list:?}") };
        let mut seen = seen.clone();
        if let Ok(node) = &mut seen.node {
            // The result is that of two good entries.
            node.created = Some(NOW);
        }
        text.push_str(&refused(&settings, seen));
    }
    expect![[r#"
        node x: refused: underlay: it is missing
        node x: refused: prefixes: it is missing
        node x: refused: prefixes: it is missing
        node x: refused: prefixes: "10.244.7.0/24" is not a list
        node x: refused: prefixes[0]: 10.244.7.1/24 has bits set after its length: 10.244.7.0/24 may be meant
        node x: refused: mtu: 0 is not in 576..65535
        node x: refused: zone: 1 is not a text
        node x: refused: prefix: it is not known here: "prefixes" may be meant
        node x: refused: colour: it is not known here
        node x: refused: prefixes: 10.99.7.0/24 is outside the cluster's IPv4 ranges (10.244.0.0/16)
        node x: refused: underlay: 192.0.2.3 is node c's since 12:00 UTC
        node x: refused: name: the entry before it has the name too
        node #1: refused: name: "x y" is not a name of letters, digits, "-" and "."
        node #1: refused: name: "" is not a name of letters, digits, "-" and "."
        node #1: refused: name: 7 is not a text
        node #1: refused: name: it is missing
    "#]].assert_eq(&text);
}

#[test]
fn files_that_say_nothing() {
    let mut text = String::new();
    for bad in [
        String::new(),
        "[[node]\nname = 1".to_owned(),
        "node = 1".to_owned(),
        "[[nodes]]\nname = \"x\"".to_owned(),
        "[[machine]]\nname = \"x\"".to_owned(),
        "#".repeat((1 << 20) + 1),
    ] {
        text.push_str(&file::read(&bad, &settings()).unwrap_err());
        text.push('\n');
    }
    expect![[r#"
        it has no [[node]]
        TOML parse error at line 1, column 8
          |
        1 | [[node]
          |        ^
        unclosed array table, expected `]`
        node: 1 is not a list
        nodes: it is not known here: "node" may be meant
        machine: it is not known here
        it has 1048577 bytes, and at most 1048576 are read
    "#]]
    .assert_eq(&text);
}

#[test]
fn network_configurations_and_subnet_files_of_flannel() {
    let mut text = String::new();
    for bad in [
        "",
        "[]",
        r#"{}"#,
        r#"{"Network":"10.244.0.0/16"}"#,
        r#"{"Network":"10.244.0.0/16","Backend":{}}"#,
        r#"{"Network":"10.244.0.0/16","Backend":{"Type":"ipsec"}}"#,
        r#"{"Network":"10.244.0.0/16","Backend":{"Type":"wireguard"}}"#,
        r#"{"Network":"10.244.0.0/16","Backend":{"Type":"ipip"}}"#,
        r#"{"Network":"10.244.0.0/16","Backend":{"Type":"extension"}}"#,
        r#"{"Network":"10.244.0.0/16","Backend":"vxlan"}"#,
        r#"{"Network":"10.244.0.0","Backend":{"Type":"vxlan"}}"#,
        r#"{"Network":"fd00::/48","Backend":{"Type":"vxlan"}}"#,
        r#"{"EnableIPv4":false,"Backend":{"Type":"vxlan"}}"#,
        r#"{"EnableIPv4":"yes","Backend":{"Type":"vxlan"}}"#,
        r#"{"EnableIPv6":true,"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#,
        r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":0}}"#,
        r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","Port":66000}}"#,
        r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","DirectRouting":1}}"#,
        r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","GBP":true}}"#,
        r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","MTU":50}}"#,
        r#"{"Network":"10.244.0.0/16","SubnetMin":"x","Backend":{"Type":"vxlan"}}"#,
        r#"{"Network":"10.244.0.0/16","SubnetMax":"fd00::","Backend":{"Type":"vxlan"}}"#,
        r#"{"Network":"10.244.0.0/16","SubnetLen":300,"Backend":{"Type":"vxlan"}}"#,
    ] {
        let (key, cause) = Config::read(bad).unwrap_err();
        text.push_str(&format!("{key}: {cause}\n"));
    }
    for window in [
        r#""SubnetLen":31"#,
        r#""SubnetLen":17"#,
        r#""SubnetMin":"10.1.0.0""#,
        r#""SubnetMin":"10.244.1.1""#,
        r#""SubnetMax":"10.245.0.0""#,
        r#""Network":"10.244.0.0/29""#,
    ] {
        let network = r#""Network":"10.244.0.0/16""#;
        let first = if window.contains("Network") {
            window.to_owned()
        } else {
            format!("{network},{window}")
        };
        let config = format!(r#"{{{first},"Backend":{{"Type":"vxlan"}}}}"#);
        let config = Config::read(&config).unwrap();
        let (key, cause) = config.leased(netwright_routing::IpFamily::V4).unwrap_err();
        text.push_str(&format!("{key}: {cause}\n"));
    }
    let good = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\n\
                FLANNEL_IPMASQ=true\n";
    for (from, to) in [
        ("FLANNEL_NETWORK=10.244.0.0/16\n", ""),
        ("FLANNEL_SUBNET=10.244.3.1/24\n", ""),
        ("FLANNEL_MTU=1450\n", ""),
        ("FLANNEL_IPMASQ=true\n", ""),
        ("1450", "many"),
        ("10.244.3.1/24", "10.244.3.1"),
        ("10.244.3.1/24", "fd00::1/64"),
    ] {
        let (key, cause) = SubnetEnv::read(&good.replace(from, to)).unwrap_err();
        text.push_str(&format!("{key}: {cause}\n"));
    }
    expect![[r#"
        the whole: it cannot be read: it ends before it is complete at line 1 column 0
        the whole: "[]" is not an object
        Network: it is missing
        Backend: flanneld's backend "udp" is not one of vxlan and host-gw
        Backend.Type: it is missing
        Backend.Type: flanneld's backend "ipsec" is not one of vxlan and host-gw
        Backend.Type: flanneld's backend "wireguard" is not one of vxlan and host-gw
        Backend.Type: flanneld's backend "ipip" is not one of vxlan and host-gw
        Backend.Type: flanneld's backend "extension" is not one of vxlan and host-gw
        Backend: "vxlan" is not an object
        Network: "10.244.0.0" is not a range such as 10.244.0.0/16
        Network: fd00::/48 is not an IPv4 address
        Network: it is missing
        EnableIPv4: "yes" is not true or false
        IPv6Network: it is missing
        Backend.VNI: 0 is not in 1..16777215
        Backend.Port: 66000 is not in 0..65535
        Backend.DirectRouting: 1 is not true or false
        Backend.GBP: VXLAN's group policy is not supported
        Backend.MTU: 50 is not in 576..65535
        SubnetMin: "x" is not an address
        SubnetMax: fd00:: is not an IPv4 address
        SubnetLen: 300 is not in 0..128
        SubnetLen: 31 is not in 18..30
        SubnetLen: 17 is not in 18..30
        SubnetMin: 10.1.0.0 is not in 10.244.0.0/16
        SubnetMin: 10.244.1.1 is not where a prefix of length 24 begins
        SubnetMax: 10.245.0.0 is not in 10.244.0.0/16
        Network: 10.244.0.0/29 has no room for four prefixes of nodes
        FLANNEL_NETWORK: it is missing
        FLANNEL_SUBNET: it is missing
        FLANNEL_MTU: it is missing
        FLANNEL_IPMASQ: it is missing
        FLANNEL_MTU: "many" is not a number of bytes
        FLANNEL_SUBNET: "10.244.3.1" is not a prefix such as 10.244.1.1/24
        FLANNEL_SUBNET: fd00::1/64 is not an IPv4 address
    "#]]
    .assert_eq(&text);
}

/// No text makes a parser panic, whatever is changed in it.
#[test]
fn damaged_texts_are_read_or_refused() {
    let mut random = Random(20_261_124);
    let node = node("x", 7);
    let annotation = annotation::write(&node);
    let value = lease::value(&node, &flannel());
    let config = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48",
        "SubnetLen":24,"SubnetMin":"10.244.10.0","IPv6SubnetMax":"fd00:0:0:99::",
        "Backend":{"Type":"vxlan","VNI":1,"Port":8472,"DirectRouting":true}}"#;
    let env = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\n\
               FLANNEL_IPMASQ=true\n";
    let list =
        "[[node]]\nname = \"x\"\nprefixes = [\"10.244.7.0/24\"]\nunderlay = [\"192.0.2.7\"]\n";
    let mut readable = 0;
    for _ in 0..3000 {
        let mut damage = |text: &str| {
            let mut bytes = [text.as_bytes(), b"   "].concat();
            for _ in 0..=random.below(3) {
                let place = random.below(bytes.len());
                match random.below(4) {
                    0 => bytes[place] ^= 1 << random.below(8),
                    1 => drop(bytes.remove(place)),
                    2 => bytes.insert(place, b"0/9:.\"{}[],-"[random.below(12)]),
                    _ => bytes[place] = b"0123456789abcdef"[random.below(16)],
                }
            }
            String::from_utf8_lossy(&bytes).trim_end().to_owned()
        };
        let mut of_flannel = flannel_fields(&damage("x"), 7);
        for text in of_flannel.annotations.values_mut().chain(&mut of_flannel.pod_cidrs) {
            *text = damage(text);
        }
        readable += usize::from(kubernetes::read(&of_flannel, &flannel_settings()).node.is_ok());
        readable += usize::from(annotation::read(&damage(&annotation)).is_ok());
        let key = damage("10.244.7.0-24&fd00:244:0:7::-64");
        let lease = lease::read(&key, damage(&value).as_bytes(), &flannel(), &flannel_settings());
        readable += usize::from(lease.node.is_ok());
        if let Ok(config) = Config::read(&damage(config)) {
            for family in netwright_routing::IpFamily::ALL {
                readable += usize::from(config.leased(family).is_ok());
            }
        }
        readable += usize::from(SubnetEnv::read(&damage(env)).is_ok());
        readable += usize::from(file::read(&damage(list), &settings()).is_ok());
    }
    assert!(500 < readable, "some damage is none: {readable}");
}
