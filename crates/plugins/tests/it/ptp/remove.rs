//! DEL, GC, and what a failed ADD leaves: nothing.

use serde_json::json;
use testkit::traffic::assert_pings;
use testkit::{Place, Snapshot};

use super::{attach, dual, host_ifname, ptp};
use crate::support::fixed::{self, succeeds};
use crate::support::matrix::{self, Family};
use crate::support::{Answer, Node};

/// Makes what stays: the empty tables, iptables' own chains.
fn settled(node: &Node, backend: &str) -> Snapshot {
    let c0 = node.container("c0");
    let config = json!({ "ipMasq": true, "ipMasqBackend": backend });
    attach(node, &c0, &dual(9), config.clone());
    ptp(node, "DEL", &c0).config(config).call().silent();
    c0.delete();
    fixed::forget(node);
    Snapshot::take(&node.lab)
}

/// Row: with the reference, masquerade rules stay when the namespace is gone before DEL.
#[test]
fn del_removes_masquerade_when_the_namespace_is_gone() {
    for backend in ["nftables", "iptables"] {
        let node = Node::new(&format!("ptp-gone-{backend}"));
        let before = settled(&node, backend);
        let config = json!({ "ipMasq": true, "ipMasqBackend": backend });
        let file = node.dir("x").join("netns");
        std::fs::write(&file, "").unwrap();
        let file = file.to_str().unwrap();
        for (netns, records) in [
            ("", true),
            ("/run/netns/nowhere", true),
            ("/run/netns/c1", true),
            (file, true),
            ("", false),
        ] {
            let c1 = node.container("c1");
            attach(&node, &c1, &dual(2), config.clone());
            if !records {
                node.sh(&format!("rm -r {}/owners", node.roots.run.display()));
            }
            c1.delete();
            fixed::forget(&node);
            let del = || node.run("ptp", "DEL").netns(netns).config(fixed::ipam());
            for _ in 0..2 {
                del().config(config.clone()).call().silent();
            }
            assert_eq!(fixed::verbs(&node), "DEL DEL");
            before.assert_same(&Snapshot::take(&node.lab));
        }
    }
}

#[test]
fn del_needs_neither_records_nor_configuration() {
    let node = Node::new("ptp-del");
    let before = settled(&node, "nftables");
    for (records, netns) in [(false, true), (true, false), (false, false)] {
        let c1 = node.container("c1");
        attach(&node, &c1, &dual(2), json!({ "ipMasq": true }));
        if !records {
            node.sh(&format!("rm -r {}/owners", node.roots.run.display()));
        }
        // The configuration mentions neither masquerade nor addresses.
        let del = node.run("ptp", "DEL").to(&c1);
        let del = if netns { del } else { del.netns("") };
        del.call().silent();
        assert!(!succeeds(&c1, "ip link show eth0"));
        c1.delete();
        before.assert_same(&Snapshot::take(&node.lab));
    }
}

/// Row: the reference's DEL of `ptp` releases the address while the link still answers for it.
#[test]
fn del_takes_the_link_before_the_address() {
    let node = Node::new("ptp-order");
    let c1 = node.container("c1");
    attach(&node, &c1, &dual(2), json!({}));
    let seen = node.dir("log").join("seen");
    node.stub(
        "fixed",
        &format!("cat >/dev/null; nsenter --net=$CNI_NETNS ip -o link show >>{}", seen.display()),
    );
    ptp(&node, "DEL", &c1).call().silent();
    let seen = std::fs::read_to_string(seen).unwrap();
    assert!(seen.contains("lo") && !seen.contains("eth0"), "{seen}");
}

#[test]
fn del_removes_what_the_references_plugin_made() {
    let node = Node::new("ptp-foreign");
    fixed::gives(&node, &json!([]));
    let c1 = node.container("c1");
    node.sh("ip link add veth12345678 type veth peer name eth0 netns c1");
    ptp(&node, "DEL", &c1).call().silent();
    assert!(!succeeds(&node.lab, "ip link show veth12345678"));
}

#[test]
fn del_leaves_an_interface_of_another_attachment_alone() {
    let node = Node::new("ptp-other");
    let c1 = node.container("c1");
    attach(&node, &c1, &dual(2), json!({}));
    let answer = ptp(&node, "DEL", &c1).id("old").call();
    assert!(answer.stderr().contains("belongs to n/c1/eth0"), "{answer:?}");
    answer.silent();
    c1.sh("ip link show eth0");
}

#[test]
fn a_failed_add_leaves_nothing() {
    let node = Node::new("ptp-undo");
    let before = settled(&node, "nftables");
    let c1 = node.container("c1");
    let add = || ptp(&node, "ADD", &c1).config(json!({ "ipMasq": true })).call();
    fixed::fails(&node, "ADD", &json!({ "code": 11, "msg": "pool is empty" }));
    add().fails(11, "pool is empty");
    fixed::gives(&node, &json!([]));
    add().fails(7, "IPAM plugin returned missing IP config");
    fixed::forget(&node);
    let mut answer = dual(2);
    answer["routes"] = json!([{ "dst": "10.7.0.0/16", "gw": "224.0.0.1" }]);
    fixed::answers(&node, &answer);
    add().fails(100, "configure interface \"eth0\"");
    assert_eq!(fixed::verbs(&node), "ADD DEL");
    assert!(!succeeds(&c1, "ip link show eth0"));
    c1.delete();
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(node.sh(&format!("find {}/owners -type f || true", node.roots.run.display())), "");
}

#[test]
fn gc_collects_exactly_the_orphans() {
    let node = Node::new("ptp-gc");
    let containers: Vec<_> = (0..4).map(|n| node.container(&format!("c{n}"))).collect();
    let names: Vec<_> = (2..)
        .zip(&containers)
        .map(|(last, at)| host_ifname(&attach(&node, at, &dual(last), json!({ "ipMasq": true }))))
        .collect();
    // Their records are lost too: only the marks on their links and elements name the owner.
    node.sh(&format!("rm -r {}/owners", node.roots.run.display()));
    fixed::forget(&node);
    let gc = || {
        node.run("ptp", "GC")
            .config(fixed::ipam())
            .valid(&[("c1", "eth0"), ("c3", "eth0")])
            .call()
            .silent();
    };
    gc();
    let alive: Vec<_> =
        names.iter().map(|name| succeeds(&node.lab, &format!("ip link show {name}"))).collect();
    assert_eq!(alive, [false, true, false, true]);
    let rules = node.sh("nft list ruleset");
    for (last, there) in [(2, false), (3, true), (4, false), (5, true)] {
        assert_eq!(rules.contains(&format!("10.1.0.{last} ")), there, "{rules}");
        assert_eq!(rules.contains(&format!("fd00:1::{last} ")), there, "{rules}");
    }
    gc();
    assert_eq!(fixed::verbs(&node), "GC GC");
}

/// The links are gone, so nothing carries the addresses, whatever else GC could not undo.
#[test]
fn gc_releases_addresses_though_something_else_could_not_be_undone() {
    let node = Node::new("ptp-gc-rest");
    node.sh("sysctl -qw net.ipv4.ip_forward=0");
    let config = json!({ "ipMasq": true, "ipam": matrix::ipam(&node, Family::V4) });
    let c1 = node.container("c1");
    ptp(&node, "ADD", &c1).config(config.clone()).call().ok();
    assert_eq!(matrix::addresses(&node), "10.1.0.2\n");
    // GC cannot take the lock of the forwarding sysctl.
    let lock = node.sh(&format!("ls {}/locks/*ip_forward*", node.roots.run.display()));
    let lock = lock.trim();
    node.sh(&format!("rm {lock} && mkdir {lock}"));
    let gc = || node.run("ptp", "GC").config(config.clone()).valid(&[]).call();
    gc().fails(105, "collect n/c1/eth0: release forwarding");
    assert_eq!(matrix::addresses(&node), "");
    node.sh(&format!("rmdir {lock}"));
    gc().silent();
    let objects = state::Index::new(&node.roots).objects().found;
    assert!(objects.is_empty(), "{objects:?}");
}

#[test]
fn fifty_at_once_come_and_go() {
    let node = Node::new("ptp-50");
    node.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0");
    let before = settled(&node, "nftables");
    let config = json!({ "ipMasq": true, "ipam": matrix::ipam(&node, Family::Dual) });
    let containers: Vec<_> = (0..50).map(|n| node.container(&format!("c{n}"))).collect();
    let call = |verb: &'static str| {
        std::thread::scope(|scope| {
            let calls: Vec<_> = containers
                .iter()
                .map(|at| {
                    let run = ptp(&node, verb, at).config(config.clone());
                    scope.spawn(move || run.call())
                })
                .collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let mut addresses: Vec<_> =
        call("ADD").into_iter().map(|added| added.ok()["ips"][0]["address"].to_string()).collect();
    let first = addresses[0].clone();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 50);
    assert_pings(&containers[49], first.trim_matches('"').trim_end_matches("/24"));
    call("DEL").into_iter().for_each(Answer::silent);
    drop(containers);
    before.assert_same(&Snapshot::take(&node.lab));
}
