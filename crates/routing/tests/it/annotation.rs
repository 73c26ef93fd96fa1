//! Our annotation.

use expect_test::expect;
use netwright_routing::annotation::{self, Annotation};
use netwright_routing::cluster::RecordFault;
use netwright_routing::kubernetes::{self, NodeFields};
use netwright_routing::node::{Offers, Underlay};

use netwright_routing::Settings;

use crate::support::{fields, flannel_settings, net, node, own, settings, v4_node};

#[test]
fn a_node_writes_what_others_read() {
    let mut node = own(&settings()).node;
    node.kept = vec![net("10.244.9.0/24")];
    node.zone = Some("west".to_owned());
    let text = annotation::write(&node);
    expect![[r#"{"version":1,"underlay":["192.0.2.1","2001:db8::1"],"mtu":1500,"zone":"west","offers":{"direct":{},"vxlan":{"vni":1,"port":8472,"mac4":"16:41:38:d8:ba:42","mac6":"1e:8d:25:42:b8:eb"}},"kept":["10.244.9.0/24"]}"#]].assert_eq(&text);
    let read = annotation::read(&text).unwrap();
    assert_eq!(read.underlay, node.underlay);
    assert_eq!(read.offers, node.offers);
    assert_eq!((read.mtu, read.zone, read.kept), (Some(1500), node.zone, node.kept));
}

#[test]
fn a_nodes_record_is_read_back_whole() {
    for original in [node("b", 2), v4_node("b", 2)] {
        let seen = kubernetes::read(&fields(&original), &settings());
        assert_eq!(seen.node, Ok(original));
        assert_eq!(seen.faults, []);
    }
}

#[test]
fn what_a_newer_node_says_besides_is_passed_over() {
    let text = r#"{"version":1,"underlay":["192.0.2.7"],"colour":"red",
        "offers":{"direct":{"later":true},"wireguard":{"keys":[]}}}"#;
    let mut underlay = Underlay::default();
    underlay.set("192.0.2.7".parse().unwrap());
    let offers = Offers { direct: true, ..Default::default() };
    let expected = Annotation { underlay, mtu: None, zone: None, offers, kept: Vec::new() };
    assert_eq!(annotation::read(text), Ok(expected));
}

#[test]
fn a_node_that_is_just_starting_is_incomplete() {
    let starting = NodeFields { name: "b".to_owned(), ..NodeFields::default() };
    let why =
        |fields: &NodeFields, settings: &Settings| match kubernetes::read(fields, settings).node {
            Err(RecordFault::Incomplete(why)) => why,
            other => panic!("{other:?}"),
        };
    assert_eq!(why(&starting, &settings()), "spec.podCIDRs is empty");
    let without_daemon = NodeFields { pod_cidrs: vec!["10.244.2.0/24".to_owned()], ..starting };
    assert_eq!(why(&without_daemon, &settings()), "no annotation routing.netwright.io/node");
    assert_eq!(
        why(&without_daemon, &flannel_settings()),
        "no annotation routing.netwright.io/node or flannel.alpha.coreos.com/*"
    );
}

#[test]
fn an_administrator_may_set_an_address_that_the_node_does_not_have() {
    let original = v4_node("b", 2);
    let mut fields = fields(&original);
    fields.addresses = vec!["198.51.100.2".to_owned()];
    assert!(kubernetes::read(&fields, &flannel_settings()).node.is_err());
    let key = "flannel.alpha.coreos.com/public-ip-overwrite".to_owned();
    fields.annotations.insert(key, "192.0.2.2".to_owned());
    // Nothing but nodes sends packets of tunnels to the other one either.
    let addresses = vec!["198.51.100.2".parse().unwrap()];
    let read = netwright_routing::Node { addresses, ..original };
    assert_eq!(kubernetes::read(&fields, &flannel_settings()).node, Ok(read));
}

#[test]
fn only_our_annotations_are_kept() {
    let flannel = flannel_settings();
    for (key, ours, with_flannel) in [
        ("routing.netwright.io/node", true, true),
        ("flannel.alpha.coreos.com/backend-data", false, true),
        ("flannel.alpha.coreos.com/public-ipv6-overwrite", false, true),
        ("flannel.alpha.coreos.com/other", false, false),
        ("kubernetes.io/x", false, false),
    ] {
        assert_eq!(kubernetes::is_ours(key, &settings()), ours, "{key}");
        assert_eq!(kubernetes::is_ours(key, &flannel), with_flannel, "{key}");
    }
}
