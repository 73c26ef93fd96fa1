//! DEL, GC, and what a failed ADD leaves: nothing.

use std::time::Duration;

use cni::AttachmentKey;
use serde_json::json;
use state::Index;
use testkit::{Place, Snapshot};

use super::{attach, host, macvlan};
use crate::support::fixed::{self, succeeds};
use crate::support::matrix::{self, Family};
use crate::support::versions;

#[test]
fn a_failed_add_leaves_nothing() {
    let node = host("macvlan-undo");
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    // The address plugin fails, returns no address, or returns one that the kernel refuses.
    fixed::fails(&node, "ADD", &json!({ "code": 11, "msg": "pool is empty" }));
    let add = || macvlan(&node, "ADD", &c1).config(fixed::ipam()).call();
    add().fails(11, "pool is empty");
    assert!(!succeeds(&c1, "ip link show eth0"));
    fixed::gives(&node, &json!([]));
    add().fails(7, "IPAM plugin returned missing IP config");
    assert!(!succeeds(&c1, "ip link show eth0"));
    fixed::forget(&node);
    fixed::answers(
        &node,
        &json!({ "ips": [{ "address": "10.1.0.2/24" }], "routes": [{ "dst": "10.7.0.0/16", "gw": "224.0.0.1" }] }),
    );
    add().fails(100, "configure interface \"eth0\"");
    assert!(!succeeds(&c1, "ip link show eth0"));
    assert_eq!(fixed::verbs(&node), "ADD DEL");
    before.assert_same(&Snapshot::take(&node.lab));
    let run = node.roots.run.display();
    assert_eq!(node.sh(&format!("find {run}/owners -type f 2>/dev/null || true")), "");
}

#[test]
fn an_interface_that_is_there_is_left_alone() {
    let node = host("macvlan-exists");
    let c1 = node.container("c1");
    c1.sh("ip link add eth0 type veth peer name eth1");
    fixed::gives(&node, &json!([{ "address": "10.1.0.2/24" }]));
    let again = macvlan(&node, "ADD", &c1).config(fixed::ipam()).call();
    again.fails(106, "failed to create macvlan: interface \"eth0\" already exists");
    assert_eq!(fixed::verbs(&node), "");
    let del = macvlan(&node, "DEL", &c1).call();
    assert!(del.stderr().contains("is a veth and not what this plugin makes"), "{del:?}");
    del.silent();
    c1.sh("ip link show eth0");
}

#[test]
fn del_leaves_an_interface_of_another_attachment_alone() {
    let node = host("macvlan-other");
    let c1 = node.container("c1");
    macvlan(&node, "ADD", &c1).call().ok();
    let answer = macvlan(&node, "DEL", &c1).id("old").call();
    assert!(answer.stderr().contains("belongs to n/c1/eth0"), "{answer:?}");
    answer.silent();
    c1.sh("ip link show eth0");
}

#[test]
fn del_removes_what_the_references_plugin_made() {
    let node = host("macvlan-foreign");
    let c1 = node.container("c1");
    node.sh("ip link add link p0 name eth0 netns c1 type macvlan mode bridge");
    macvlan(&node, "DEL", &c1).call().silent();
    assert!(!succeeds(&c1, "ip link show eth0"));
}

/// Row: the reference's DEL of `macvlan` releases the address while the link still answers for it.
#[test]
fn del_takes_the_link_before_the_address() {
    let node = host("macvlan-order");
    let c1 = node.container("c1");
    attach(&node, &c1, 2, json!({}));
    let seen = node.dir("log").join("seen");
    node.stub(
        "fixed",
        &format!("cat >/dev/null; nsenter --net=$CNI_NETNS ip -o link show >>{}", seen.display()),
    );
    macvlan(&node, "DEL", &c1).config(fixed::ipam()).call().silent();
    let seen = std::fs::read_to_string(seen).unwrap();
    assert!(seen.contains("lo") && !seen.contains("eth0"), "{seen}");
}

#[test]
fn del_needs_nothing_but_the_key() {
    let node = host("macvlan-del");
    let before = Snapshot::take(&node.lab);
    let run = node.roots.run.display().to_string();
    for (what, netns, records) in
        [("all", true, true), ("no records", true, false), ("no namespace", false, true)]
    {
        let c1 = node.container("c1");
        attach(&node, &c1, 2, json!({}));
        if !records {
            node.sh(&format!("rm -r {run}/owners"));
        }
        let del = || {
            // DEL without the parent's name, and DEL a second time.
            let del = node.run("macvlan", "DEL").to(&c1).config(fixed::ipam());
            if netns { del } else { del.netns("") }
        };
        fixed::forget(&node);
        del().call().silent();
        assert!(!succeeds(&c1, "ip link show eth0"), "{what}: the link is still there");
        del().call().silent();
        assert_eq!(fixed::verbs(&node), "DEL DEL", "{what}");
        assert_eq!(
            node.sh(&format!("find {run}/owners -type f 2>/dev/null || true")),
            "",
            "{what}"
        );
        c1.delete();
        before.assert_same(&Snapshot::take(&node.lab));
    }
}

#[test]
fn del_with_the_namespace_or_the_parent_gone() {
    let node = host("macvlan-gone");
    for netns in ["/run/netns/nowhere", "/run/netns/c1", ""] {
        let c1 = node.container("c1");
        attach(&node, &c1, 2, json!({}));
        c1.delete();
        fixed::forget(&node);
        let del = node.run("macvlan", "DEL").netns(netns).config(fixed::ipam());
        del.config(json!({ "master": "p0" })).call().silent();
        assert_eq!(fixed::verbs(&node), "DEL", "{netns}");
    }
    // A regular file is in the namespace's place.
    let c1 = node.container("c1");
    attach(&node, &c1, 2, json!({}));
    c1.delete();
    let file = node.dir("x").join("netns");
    std::fs::write(&file, "").unwrap();
    node.run("macvlan", "DEL").netns(&file).config(fixed::ipam()).call().silent();
    // The kernel deletes the children with the parent.
    let c2 = node.container("c2");
    attach(&node, &c2, 3, json!({}));
    node.sh("ip link del p0");
    fixed::forget(&node);
    macvlan(&node, "DEL", &c2).config(fixed::ipam()).call().silent();
    assert_eq!(fixed::verbs(&node), "DEL");
}

#[test]
fn gc_collects_links_whose_containers_are_still_there() {
    let node = host("macvlan-gc");
    let containers: Vec<_> = (0..4).map(|n| node.container(&format!("c{n}"))).collect();
    for (last, container) in (2..).zip(&containers) {
        attach(&node, container, last, json!({}));
    }
    fixed::forget(&node);
    let gc = node.run("macvlan", "GC").config(json!({ "master": "p0" })).config(fixed::ipam());
    gc.valid(&[("c1", "eth0"), ("c3", "eth0")]).call().silent();
    let alive: Vec<_> = containers.iter().map(|at| succeeds(at, "ip link show eth0")).collect();
    assert_eq!(alive, [false, true, false, true]);
    assert_eq!(fixed::verbs(&node), "GC");
}

/// One container's link may still exist and answer for its address; the others' addresses are free.
#[test]
fn gc_releases_all_addresses_but_those_that_a_link_may_still_carry() {
    let node = host("macvlan-gc-left");
    let config = json!({ "master": "p0", "ipam": matrix::ipam(&node, Family::V4) });
    let containers: Vec<_> = (0..3).map(|n| node.container(&format!("c{n}"))).collect();
    for container in &containers {
        macvlan(&node, "ADD", container).config(config.clone()).call().ok();
    }
    let reserved =
        || matrix::addresses(&node).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(reserved(), ["10.1.0.2", "10.1.0.3", "10.1.0.4"]);
    // Another call works on this attachment: GC cannot know whether the link will be gone.
    containers[1].delete();
    let key = AttachmentKey {
        network: "n".parse().unwrap(),
        container_id: "c1".parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
    };
    let lock = Index::new(&node.roots).begin_attachment(&key, Duration::ZERO).unwrap();
    let gc = || node.run("macvlan", "GC").config(config.clone()).valid(&[("c0", "eth0")]).call();
    let answer = gc();
    assert!(answer.stderr().contains("the addresses of n/c1/eth0 stay reserved"), "{answer:?}");
    answer.fails(11, "held by");
    assert_eq!(reserved(), ["10.1.0.2", "10.1.0.3"]);
    drop(lock);
    // A path that leads to itself leads nowhere.
    node.sh("ln -s c1 /run/netns/c1");
    gc().silent();
    assert_eq!(reserved(), ["10.1.0.2"]);
}

#[test]
fn every_version_is_spoken() {
    let node = host("macvlan-versions");
    versions::all_are_spoken(&node, "macvlan", &json!({ "master": "p0" }));
}

#[test]
fn misspelt_keys_are_found() {
    versions::a_misspelt_key_is_found("macvlan", "linkInContainer", "linkInContaner");
}
