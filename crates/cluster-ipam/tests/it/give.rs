//! Which addresses one node assigns, and two.

use std::collections::BTreeSet;
use std::time::Duration;

use cni::GcAttachment;
use netwright_cluster_ipam::network::Network;
use netwright_cluster_ipam::record::{self, BlockRecord};
use netwright_cluster_ipam::store::{Fault, Filter, Kind, Memory, Store as _};
use node_api::ipam::CollectRequest;

use crate::support::*;

#[test]
fn an_address_of_each_range_and_the_same_again() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let node = node(dir.path(), &store, &clock, "n1");
    let blue = in_blocks(&["10.0.0.0/24", "2001:db8::/64"]);
    let first = assign(&node, &blue, "c1").unwrap();
    assert!(first[0].is_ipv4() && first[1].is_ipv6());
    assert_eq!(assign(&node, &blue, "c1").unwrap(), first);
    assert_eq!(held(&node, &blue, "c1").unwrap(), first);
    let second = assign(&node, &blue, "c2").unwrap();
    assert!(first.iter().all(|address| !second.contains(address)));
    node.release(&owner("c1")).unwrap();
    node.release(&owner("c1")).unwrap();
    assert!(held(&node, &blue, "c1").unwrap().is_empty());
    // A released address is not assigned again while there are others.
    assert_ne!(assign(&node, &blue, "c3").unwrap(), first);
}

#[test]
fn a_small_range_serves_nodes_to_the_last_address_and_says_who_has_them() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let nodes = ["n1", "n2", "n3"].map(|name| node(dir.path(), &store, &clock, name));
    let blue = network(&["10.0.0.0/28"]);
    let mut given = BTreeSet::new();
    for index in 0..14 {
        let address = assign(&nodes[index % 3], &blue, &format!("c{index}")).unwrap()[0];
        assert!(given.insert(address), "{address} is assigned twice");
    }
    let refusal = assign(&nodes[0], &blue, "late").unwrap_err();
    assert_eq!(refusal.msg, "no address of 10.0.0.0/28 is free: its 14 blocks are held by 3 nodes");
    assert!(refusal.details.contains("blocks by node: n1 5, n2 5, n3 4"), "{}", refusal.details);
    assert_eq!(refusal.code, 102);
    // Any node can assign a released address.
    nodes[1].release(&owner("c1")).unwrap();
    nodes[1].release(&owner("c4")).unwrap();
    clock.pass(Duration::from_secs(20));
    nodes[1].tend().unwrap();
    let address = assign(&nodes[0], &blue, "late").unwrap()[0];
    assert!(given.contains(&address));
}

#[test]
fn blocks_go_back_once_they_were_empty_for_long() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let node = node(dir.path(), &store, &clock, "n1");
    let blue = in_blocks(&["10.0.0.0/16"]);
    for index in 0..40 {
        assign(&node, &blue, &format!("c{index}")).unwrap();
    }
    let blocks = || store.records().keys().filter(|key| key.kind == Kind::Block).count();
    assert!(5 <= blocks());
    for index in 0..40 {
        node.release(&owner(&format!("c{index}"))).unwrap();
    }
    node.tend().unwrap();
    assert!(5 <= blocks(), "they rest for a while");
    clock.pass(Duration::from_secs(11));
    node.tend().unwrap();
    assert_eq!(blocks(), 0);
}

#[test]
fn the_store_shows_who_holds_what() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let node = node(dir.path(), &store, &clock, "n1");
    let address = assign(&node, &in_blocks(&["10.0.0.0/24"]), "c1").unwrap()[0];
    node.tend().unwrap();
    let records = store.records();
    let block = records.iter().find(|(key, _)| key.kind == Kind::Block).unwrap().1;
    assert_eq!(block["node"], "n1");
    assert_eq!(block["held"][address.to_string()]["container"], "c1");
}

#[test]
fn an_address_that_is_wanted_is_given_or_refused() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let nodes = ["n1", "n2"].map(|name| node(dir.path(), &store, &clock, name));
    let mut blue = in_blocks(&["10.0.0.0/24", "2001:db8::/64"]);
    blue.ranges[0].gateway = Some("10.0.0.1".parse().unwrap());
    let given = ask(&nodes[0], &blue, "c1", &["10.0.0.77"]).unwrap();
    assert_eq!(given[0].to_string(), "10.0.0.77");
    assert!(given[1].is_ipv6());
    let refused = |node: usize, container: &str, wanted: &[&str]| {
        let refusal = ask(&nodes[node], &blue, container, wanted).unwrap_err();
        assert_eq!((refusal.code, refusal.retry), (102, false), "{refusal}");
        refusal.msg
    };
    assert_eq!(
        refused(0, "c2", &["10.0.0.77"]),
        "the address 10.0.0.77 is taken by container c1 (eth0)"
    );
    assert_eq!(
        refused(1, "c2", &["10.0.0.78"]),
        "the address 10.0.0.78 is of the block 10.0.0.72/29, which node n1 gives"
    );
    let outside =
        "the requested address 10.0.0.1 is in no range of network \"blue\" that may give it";
    assert_eq!(refused(0, "c2", &["10.0.0.1"]), outside);
    assert_eq!(
        refused(0, "c1", &["10.0.0.78"]),
        "10.0.0.78 is wanted by an interface that has 10.0.0.77 already"
    );
    // A refused request leaves nothing.
    assert!(held(&nodes[0], &blue, "c2").unwrap().is_empty());
    assert_eq!(ask(&nodes[0], &blue, "c1", &["10.0.0.77"]).unwrap(), given);
    assert_eq!(
        ask(&nodes[0], &blue, "c3", &["2001:db8::5"]).unwrap()[1].to_string(),
        "2001:db8::5"
    );
}

#[test]
fn overlapping_subnets_share_a_space_and_cut_it_alike() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let nodes = ["n1", "n2"].map(|name| node(dir.path(), &store, &clock, name));
    let mut small = network(&["10.0.0.0/28"]);
    small.network = "small".into();
    let wide = in_blocks(&["10.0.0.0/27"]);
    let mut given = BTreeSet::new();
    for index in 0..20 {
        let (node, spec) = (&nodes[index % 2], if index % 3 == 0 { &small } else { &wide });
        let address = assign(node, spec, &format!("c{index}")).unwrap()[0];
        assert!(given.insert(address), "{address} is assigned twice");
    }
    // Each network is separate if the configuration says so.
    let mut alone = small.clone();
    alone.overlapping = false;
    let address = ask(&nodes[0], &alone, "d1", &["10.0.0.2"]).unwrap()[0];
    assert_eq!(address.to_string(), "10.0.0.2");
    // The same for a space with a name of its own.
    alone.overlapping = true;
    alone.space = "other".into();
    assert_eq!(ask(&nodes[1], &alone, "d2", &["10.0.0.2"]).unwrap()[0], address);
}

/// The wider range's block around the small one would contain addresses that the other node gives.
#[test]
fn a_wider_range_that_is_used_later_gives_no_address_twice() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let nodes = ["n1", "n2"].map(|name| node(dir.path(), &store, &clock, name));
    let (small, mut wide) = (network(&["10.0.0.0/29"]), network(&["10.0.0.0/27"]));
    (wide.network, wide.block_v4) = ("wide".into(), Some(28));
    let mut given = BTreeSet::new();
    for index in 0..6 {
        given.extend(assign(&nodes[0], &small, &format!("small-{index}")).unwrap());
    }
    while let Ok(address) = assign(&nodes[1], &wide, &format!("wide-{}", given.len())) {
        assert!(given.insert(address[0]), "{address:?} is assigned twice");
    }
    assert_eq!(given.len(), 30, "{given:?}");
}

#[test]
fn gc_frees_what_is_not_valid_in_its_network_only() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let node = node(dir.path(), &store, &clock, "n1");
    let blue = in_blocks(&["10.0.0.0/24"]);
    let mut red = blue.clone();
    red.network = "red".into();
    for container in ["a", "b"] {
        assign(&node, &blue, container).unwrap();
    }
    assign(&node, &red, "r").unwrap();
    let valid = vec![GcAttachment { container_id: "a".into(), ifname: "eth0".into() }];
    node.collect(&CollectRequest { network: "blue".into(), valid }).unwrap();
    assert_eq!(held(&node, &blue, "a").unwrap().len(), 1);
    assert_eq!(held(&node, &blue, "b").unwrap().len(), 0);
    assert_eq!(held(&node, &red, "r").unwrap().len(), 1);
}

#[test]
fn a_range_that_shrinks_or_moves_leaves_what_is_held() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let node = node(dir.path(), &store, &clock, "n1");
    let before = in_blocks(&["10.0.0.0/24"]);
    let old = ask(&node, &before, "c1", &["10.0.0.200"]).unwrap();
    let shrunk = in_blocks(&["10.0.0.0-10.0.0.9/24"]);
    assert_eq!(held(&node, &shrunk, "c1").unwrap(), old);
    assert_eq!(assign(&node, &shrunk, "c1").unwrap(), old);
    for index in 0..9 {
        let address = assign(&node, &shrunk, &format!("s{index}")).unwrap()[0];
        assert!(address <= "10.0.0.9".parse::<std::net::IpAddr>().unwrap(), "{address}");
    }
    assert_eq!(assign(&node, &shrunk, "s9").unwrap_err().code, 102);
    let moved = in_blocks(&["10.9.0.0/24"]);
    assert!(held(&node, &moved, "c1").unwrap().is_empty());
    assert!(assign(&node, &moved, "m1").unwrap()[0].to_string().starts_with("10.9.0."));
    node.release(&owner("c1")).unwrap();
    assert!(held(&node, &before, "c1").unwrap().is_empty());
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_taken() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let node = node(dir.path(), &store, &clock, "n1");
    let refusal = assign(&node, &network(&[]), "c1").unwrap_err();
    assert_eq!(
        (refusal.code, refusal.msg.as_str()),
        (7, "network \"blue\" has no range of addresses")
    );
    let refusal = assign(&node, &network(&["10.0.0.0/24"]), "").unwrap_err();
    assert_eq!(refusal.code, 4);
    assert!(store.records().is_empty());
}

#[test]
fn status_says_why_an_add_would_fail() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let nodes = ["n1", "n2"].map(|name| node(dir.path(), &store, &clock, name));
    let blue = network(&["10.0.0.0/30"]);
    let checked = Network::new(blue.clone()).unwrap();
    nodes[0].status(&checked).unwrap();
    for container in ["a", "b"] {
        assign(&nodes[0], &blue, container).unwrap();
    }
    nodes[0].tend().unwrap();
    assert_eq!(nodes[1].status(&checked).unwrap_err().code, 102);
    let faulty = store.view();
    faulty.misbehave(|_, _| Fault::Lost);
    let third = node(dir.path(), &faulty, &clock, "n3");
    let refusal = third.status(&checked).unwrap_err();
    assert!(refusal.retry, "{refusal}");
}

/// For programs that route blocks: the records say at which addresses the node of a block is
/// reached.
#[test]
fn a_blocks_record_has_its_nodes_addresses() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let blue = in_blocks(&["10.0.0.0/24", "2001:db8::/64"]);
    let of_records = || -> BTreeSet<String> {
        let all = store.list(Kind::Block, Filter::All).unwrap();
        assert_eq!(all.len(), 2);
        let records = all.iter().map(|entry| record::read::<BlockRecord>(&entry.value).unwrap());
        records.map(|record| format!("{:?}", record.addresses)).collect()
    };
    let all = |addresses: &str| BTreeSet::from([addresses.to_owned()]);
    let one = node(dir.path(), &store, &clock, "n1");
    assign(&one, &blue, "c1").unwrap();
    assert_eq!(of_records(), all("[]"));
    one.set_addresses(&["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]);
    one.tend().unwrap();
    assert_eq!(of_records(), all("[192.0.2.1, 2001:db8::1]"));
    one.set_addresses(&["192.0.2.2".parse().unwrap()]);
    one.tend().unwrap();
    assert_eq!(of_records(), all("[192.0.2.2]"));
    // Unchanged values are not written again.
    let before = store.list(Kind::Block, Filter::All).unwrap();
    one.set_addresses(&["192.0.2.2".parse().unwrap()]);
    one.tend().unwrap();
    assert_eq!(store.list(Kind::Block, Filter::All).unwrap(), before);
    // Another process of the node writes them.
    drop(one);
    let one = node(dir.path(), &store, &clock, "n1");
    one.set_addresses(&["192.0.2.3".parse().unwrap()]);
    one.tend().unwrap();
    assert_eq!(of_records(), all("[192.0.2.3]"));
}
