//! ADD, DEL, CHECK and GC, in every order.

use std::net::IpAddr;
use std::rc::Rc;
use std::thread;

use kernel::conntrack::{ConntrackSocket, FlowFilter};
use kernel::route::IpFamily;
use serde_json::json;
use state::Index;
use testkit::{Place, traffic};

use super::{Pod, closed, keys, links, no_bridge_shows, shows, verdicts};
use crate::support::Node;
use crate::support::matrix::look;

/// If no daemon cuts them, connections end with their container: the next container with the
/// address does not inherit them.
#[test]
fn connections_end_with_their_container() {
    testkit::require!("root");
    let node = Node::new("policy-flows");
    let (c1, c2) = (Pod::new(&node, "c1", "ptp"), Pod::new(&node, "c2", "ptp"));
    c1.add();
    c2.add();
    let mut conntrack = node.lab.enter(|| ConntrackSocket::open().unwrap());
    let mut of = |pod: &Pod<'_>| -> usize {
        let addresses = pod.addresses().into_iter().map(|text| text.parse::<IpAddr>().unwrap());
        let flows = addresses.map(|address| {
            let all = FlowFilter::all(IpFamily::of(address));
            conntrack.flows(&FlowFilter { reply_source: Some(address), ..all }).unwrap().len()
        });
        flows.sum()
    };
    for pod in [&c1, &c2] {
        // The node reaches a closed container.
        pod.addresses().iter().for_each(|address| traffic::assert_pings(&node.lab, address));
        assert!(2 <= of(pod), "{pod:?}");
    }
    assert!(c1.policy("DEL").call().succeeded());
    assert_eq!(of(&c1), 0);
    assert!(2 <= of(&c2), "another container's go on");
}

/// The same for a link that the host routes.
#[test]
fn containers_by_ptp_are_isolated() {
    testkit::require!("root");
    let node = Node::new("policy-ptp");
    let (c1, c2, c3) =
        (Pod::new(&node, "c1", "ptp"), Pod::new(&node, "c2", "ptp"), Pod::new(&node, "c3", "ptp"));
    c1.assert_open(&[&c2, &c3]);
    c1.add();
    assert_eq!(verdicts(&node), closed(&c1));
    c1.assert_closed(&[&c2, &c3]);
    c2.add();
    c2.assert_closed(&[&c1, &c3]);
    c2.check();
    c1.check();
    let recorded = c1.recorded().unwrap();
    assert_eq!(recorded.started.interface, Some(c1.host_ifname()));
    assert_eq!(recorded.bridge, None);
    c1.del();
    c1.detach();
    c2.del();
    c2.detach();
    assert_eq!((verdicts(&node), links(&node)), (Vec::new(), String::new()));
}

/// The address belonged to another pod, whose verdict was left behind and lets everything pass.
#[test]
fn a_verdict_of_a_former_pod_does_not_count() {
    testkit::require!("root");
    let node = Node::new("policy-stale");
    let (c1, c2) = (Pod::new(&node, "c1", "ptp"), Pod::new(&node, "c2", "ptp"));
    c2.add();
    node.sh(
        "nft add chain inet netwright-policy ci-x; nft add rule inet netwright-policy ci-x accept; \
         nft add chain inet netwright-policy co-x; nft add rule inet netwright-policy co-x accept",
    );
    for address in c1.addresses() {
        let family = if address.contains(':') { 6 } else { 4 };
        for way in ["in", "out"] {
            let chain = format!("c{}-x", &way[..1]);
            node.sh(&format!(
                "nft 'add element inet netwright-policy {way}{family} {{ {address} : goto {chain} }}'"
            ));
        }
    }
    c1.add();
    let mut both = closed(&c1);
    both.extend(closed(&c2));
    both.sort();
    assert_eq!(verdicts(&node), both);
    c1.assert_closed(&[&c2]);
}

#[test]
fn add_twice_is_add_once() {
    testkit::require!("root");
    for by in ["bridge", "ptp"] {
        let node = Node::new(&format!("policy-twice-{by}"));
        no_bridge_shows(&node);
        let (c1, c2) = (Pod::new(&node, "c1", by), Pod::new(&node, "c2", by));
        c1.add();
        let once = look(&node);
        c1.add();
        once.assert_same(&look(&node));
        c1.assert_closed(&[&c2]);
        // A second ADD with other addresses leaves nothing of the former ones.
        let mut other = c1.prev.clone();
        other["ips"].as_array_mut().unwrap().pop();
        c1.policy("ADD").prev(&other).call().ok();
        let mut one = closed(&c1);
        one.retain(|verdict| verdict.contains(&c1.addresses()[0]));
        assert_eq!(verdicts(&node), one);
        c1.del();
        assert_eq!((verdicts(&node), links(&node)), (Vec::new(), String::new()));
    }
}

/// DEL finds what ADD made, with as little as a runtime may pass.
#[test]
fn del_with_less_and_less() {
    testkit::require!("root");
    for by in ["bridge", "ptp"] {
        let node = Node::new(&format!("policy-del-{by}"));
        no_bridge_shows(&node);
        let c1 = Pod::new(&node, "c1", by);
        let is_up = || node.sh(&format!("ip link show {}", c1.host_ifname())).contains(",UP");
        let assert_gone = |what: &str, off: bool| {
            assert_eq!(
                (verdicts(&node), links(&node)),
                (Vec::new(), String::new()),
                "{by}: {what}"
            );
            assert_eq!(is_up(), !off, "{by}: {what}");
            assert_eq!(c1.recorded(), None, "{by}: {what}");
            if by == "bridge" {
                assert_eq!(shows(&node, "br0"), "0 0", "{what}");
            }
            node.sh(&format!("ip link set {} up", c1.host_ifname()));
        };
        // Without ADD.
        c1.del();
        assert_gone("no ADD", false);
        c1.policy("DEL").without("prevResult").netns("").call().silent();
        assert_gone("no ADD, and no prevResult", false);
        // Without prevResult and namespace.
        c1.add();
        c1.policy("DEL").without("prevResult").netns("").call().silent();
        assert_gone("only the key", true);
        c1.del();
        // The record is lost: the link's mark shows whose it is.
        c1.add();
        let forget = || {
            let index = Index::new(&node.roots);
            assert!(index.remove(&c1.key(), "policy").unwrap());
            assert!(index.remove(&c1.key(), by).unwrap());
        };
        forget();
        c1.del();
        assert_gone("no record", true);
        // Without the mark and prevResult, the daemon or GC removes the verdicts, which close an
        // address.
        c1.add();
        let index = Index::new(&node.roots);
        assert!(index.remove(&c1.key(), "policy").unwrap());
        c1.policy("DEL").without("prevResult").call().silent();
        assert_eq!(verdicts(&node), closed(&c1));
        assert!(is_up(), "{by}");
        node.run("policy", "GC").of_network().valid(&[]).call().silent();
        assert_eq!((verdicts(&node), links(&node)), (Vec::new(), String::new()));
        assert!(!is_up(), "{by}: GC has taken the verdicts of a link that is up");
        // Here only GC runs, and the other plugin's record is not lost.
        let c2 = Pod::new(&node, "c2", by);
        c2.add();
        assert!(index.remove(&c2.key(), "policy").unwrap());
        node.run("policy", "GC").of_network().valid(&[]).call().silent();
        assert_eq!((verdicts(&node), links(&node)), (Vec::new(), String::new()));
        if by == "bridge" {
            assert_eq!(shows(&node, "br0"), "0 0", "GC");
        }
    }
}

/// A damaged record may have the address too. Then the address's verdict stays, and DEL and a
/// second ADD say so and succeed. Records of other plugins do not matter, nor does the record of
/// the attachment that is removed.
#[test]
fn del_beside_a_damaged_record() {
    testkit::require!("root");
    let node = Node::new("policy-damaged");
    let (c1, c2) = (Pod::new(&node, "c1", "ptp"), Pod::new(&node, "c2", "ptp"));
    c1.add();
    c2.add();
    let damage = |plugin: &str| {
        let path = node.roots.run.join("owners").join(c2.key().hash()).join(plugin);
        std::fs::write(path, b"{").unwrap();
    };
    damage("policy.json");
    let mut both = [closed(&c1), closed(&c2)].concat();
    both.sort();
    let mut fewer = c1.prev.clone();
    fewer["ips"].as_array_mut().unwrap().pop();
    for run in [c1.policy("ADD").prev(&fewer), c1.policy("DEL")] {
        let answer = run.call();
        let told = answer.stderr().contains("verdicts of network policy stay");
        assert!(answer.succeeded() && told, "{answer:?}");
        assert_eq!(verdicts(&node), both);
    }
    assert_eq!(c1.recorded(), None);
    // The next ADD of the container writes the record again.
    c2.add();
    damage("ptp.json");
    node.run("policy", "GC").of_network().valid(&[("c2", "eth0")]).call().silent();
    assert_eq!(verdicts(&node), closed(&c2));
    damage("policy.json");
    c2.del();
    assert_eq!((verdicts(&node), links(&node)), (Vec::new(), String::new()));
}

/// DEL finds the link that ADD saw, and not another one that has its name by now.
#[test]
fn del_after_the_link_was_renamed_or_replaced() {
    testkit::require!("root");
    let node = Node::new("policy-renamed");
    let c1 = Pod::new(&node, "c1", "ptp");
    let host = c1.host_ifname();
    c1.add();
    // Kernels before 6.2 rename no link that is up.
    node.sh(&format!(
        "ip link set {host} down && ip link set {host} name other && ip link set other up && \
         ip link add {host} type bridge && ip link set {host} up"
    ));
    c1.del();
    assert!(!node.sh("ip link show other").contains(",UP"), "the link of the container is up");
    assert!(node.sh(&format!("ip link show {host}")).contains(",UP"), "another's link is down");
    assert_eq!((verdicts(&node), links(&node)), (Vec::new(), String::new()));
    node.sh(&format!(
        "ip link del {host} && ip link set other name {host} && ip link set {host} up"
    ));
    c1.add();
    // The namespace is gone, and the link with it.
    let (prev, id) = (c1.prev.clone(), c1.c.name().to_owned());
    c1.c.delete();
    node.run("policy", "DEL").id(&id).netns("/run/netns/none").prev(&prev).call().silent();
    assert_eq!((verdicts(&node), links(&node)), (Vec::new(), String::new()));
}

/// ADD and DEL run at once. Whichever ends last, the verdicts and the record agree.
#[test]
fn add_and_del_at_once() {
    testkit::require!("root");
    let node = Node::new("policy-at-once");
    let c1 = Pod::new(&node, "c1", "ptp");
    let host = c1.host_ifname();
    for _ in 0..6 {
        thread::scope(|scope| {
            for verb in ["ADD", "DEL", "ADD", "DEL"] {
                let run = c1.policy(verb);
                scope.spawn(move || assert!(run.call().succeeded()));
            }
        });
        let (mut there, mut own) = (Vec::new(), String::new());
        if c1.recorded().is_some() {
            there = closed(&c1);
            own = format!(
                "inet netwright pod_links \"{host}\"\ninet netwright pod_addresses4 \"{host}\"\n"
            );
        }
        assert_eq!((verdicts(&node), links(&node)), (there, own));
    }
    c1.del();
    assert_eq!((verdicts(&node), links(&node)), (Vec::new(), String::new()));
}

/// Both interfaces of a container are closed, and each is removed by itself.
#[test]
fn two_networks_of_one_container() {
    testkit::require!("root");
    let node = Node::new("policy-two");
    no_bridge_shows(&node);
    let c1 = Rc::new(node.container("c1"));
    let ranges = json!([[{ "subnet": "10.2.0.0/24" }], [{ "subnet": "fd00:2::/64" }]]);
    let second = json!({ "ipam": { "type": "host-local", "dataDir": node.dir("second"), "ranges": ranges } });
    let other = Pod::new(&node, "c2", "bridge");
    let third = Pod::of(&node, node.container("c3"), "ptp", second.clone(), ("m", "eth0"));
    third
        .c
        .sh("ip route replace default via 10.2.0.1 && ip -6 route replace default via fd00:2::1");
    let first = Pod::of(&node, Rc::clone(&c1), "bridge", keys(&node, "bridge"), ("n", "eth0"));
    let both = Pod::of(&node, c1, "ptp", second, ("m", "net1"));
    first.add();
    both.add();
    assert_eq!(first.recorded().unwrap().started.meets, None);
    assert_eq!(both.recorded().unwrap().started.meets, Some(both.host_ifname()));
    let mut all = closed(&first);
    all.extend(closed(&both));
    all.sort();
    assert_eq!(verdicts(&node), all);
    first.assert_closed(&[&other]);
    super::assert_silent(&*third.c, &both.addresses());
    for address in both.addresses() {
        traffic::assert_pings(&node.lab, &address);
    }
    first.check();
    both.check();
    first.del();
    assert_eq!(verdicts(&node), closed(&both));
    both.check();
    super::assert_silent(&*third.c, &both.addresses());
    both.del();
    assert_eq!(verdicts(&node), Vec::<String>::new());
}

/// Two further networks have the same addresses, each on a bridge of its own. An address counts
/// only on its own bridge, and lost verdicts are closed again.
#[test]
fn further_networks_may_have_the_same_addresses() {
    testkit::require!("root");
    let node = Node::new("policy-same");
    no_bridge_shows(&node);
    let ranges = json!([[{ "subnet": "10.2.0.0/24" }]]);
    let keys = |bridge: &str| {
        let ipam = json!({ "type": "host-local", "dataDir": node.dir(bridge), "ranges": ranges });
        json!({ "bridge": bridge, "ipam": ipam })
    };
    let one = Pod::of(&node, node.container("c1"), "bridge", keys("br0"), ("n", "net1"));
    let two = Pod::of(&node, node.container("c2"), "bridge", keys("br1"), ("m", "net2"));
    assert_eq!(one.addresses(), two.addresses());
    one.add();
    two.add();
    let at = |pod: &Pod<'_>| pod.recorded().unwrap().started.meets.unwrap();
    assert_eq!((at(&one), at(&two)), ("br0".to_owned(), "br1".to_owned()));
    let of_one = closed(&one);
    let of_two: Vec<String> = of_one.iter().map(|line| line.replace("br0", "br1")).collect();
    let mut all = [of_one.clone(), of_two.clone()].concat();
    all.sort();
    assert_eq!(verdicts(&node), all);
    one.check();
    node.sh("nft delete table inet netwright-policy");
    assert!(!one.repair().is_empty() && verdicts(&node) == of_one);
    two.add();
    assert_eq!(verdicts(&node), all);
    one.del();
    assert_eq!(verdicts(&node), of_two);
    two.del();
    assert_eq!(verdicts(&node), Vec::<String>::new());
}

/// Two records have the same address: its verdict is removed with the second.
#[test]
fn a_verdict_goes_with_the_last_that_has_the_address() {
    testkit::require!("root");
    let node = Node::new("policy-shared");
    let (c1, c2) = (Pod::new(&node, "c1", "ptp"), Pod::new(&node, "c2", "ptp"));
    let mut prev = c2.prev.clone();
    prev["ips"] = c1.prev["ips"].clone();
    c1.add();
    c2.policy("ADD").prev(&prev).call().ok();
    c1.del();
    assert_eq!(verdicts(&node), closed(&c1));
    c2.policy("DEL").prev(&prev).call().silent();
    assert_eq!(verdicts(&node), Vec::<String>::new());
}

/// GC removes attachments that are not on its list, and verdicts without an owner. It removes
/// nothing of records that it cannot read.
#[test]
fn gc_removes_what_nobody_has() {
    testkit::require!("root");
    let node = Node::new("policy-gc");
    no_bridge_shows(&node);
    let (c1, c2, c3) = (
        Pod::new(&node, "c1", "bridge"),
        Pod::new(&node, "c2", "ptp"),
        Pod::new(&node, "c3", "ptp"),
    );
    for pod in [&c1, &c2, &c3] {
        pod.add();
    }
    let mut two = [closed(&c1), closed(&c2)].concat();
    two.sort();
    let gc = |valid: &[(&str, &str)]| node.run("policy", "GC").of_network().valid(valid).call();
    gc(&[("c1", "eth0"), ("c2", "eth0")]).silent();
    assert_eq!(verdicts(&node), two);
    // Attachments of another network are not on this list, and stay.
    node.run("policy", "GC").of_network().network("m").valid(&[]).call().silent();
    assert_eq!(verdicts(&node), two);
    // A plugin was killed between the verdict and the answer, and the record is lost.
    for way in ["in4", "out4"] {
        node.sh(&format!(
            "nft 'add element inet netwright-policy {way} {{ 192.0.2.9 : goto unknown-{} }}'",
            &way[..way.len() - 1]
        ));
    }
    let owners = node.roots.run.join("owners");
    let damaged = owners.join(c2.key().hash()).join("policy.json");
    let whole = std::fs::read(&damaged).unwrap();
    std::fs::write(&damaged, b"{").unwrap();
    let error = gc(&[("c1", "eth0"), ("c2", "eth0")]).error();
    assert_eq!(error.code, 105, "{error}");
    assert!(verdicts(&node).iter().any(|verdict| verdict.contains("192.0.2.9")));
    std::fs::write(&damaged, whole).unwrap();
    gc(&[("c1", "eth0"), ("c2", "eth0")]).silent();
    assert_eq!(verdicts(&node), two);
    c1.check();
    c2.check();
    gc(&[]).silent();
    assert_eq!((verdicts(&node), links(&node)), (Vec::new(), String::new()));
    assert_eq!(shows(&node, "br0"), "0 0");
}

/// What CHECK reports besides the bridge's settings, and what a repair restores.
#[test]
fn what_is_missing_is_noticed_and_restored() {
    testkit::require!("root");
    let node = Node::new("policy-missing");
    let (c1, c2) = (Pod::new(&node, "c1", "ptp"), Pod::new(&node, "c2", "ptp"));
    c1.add();
    let host = c1.host_ifname();
    for (damage, words) in [
        (
            format!("nft delete element inet netwright pod_links {{ {host} }}"),
            "missing: inet netwright pod_links",
        ),
        (
            format!(
                "nft delete element inet netwright pod_addresses4 {{ {host} . {} }}",
                c1.addresses()[0]
            ),
            "missing: inet netwright pod_addresses4",
        ),
        (
            "nft delete table inet netwright-policy".to_owned(),
            "the packet filter has no verdicts of network policy",
        ),
        ("nft flush ruleset".to_owned(), "the packet filter has no verdicts of network policy"),
        (
            "last=$(nft -a list chain inet netwright-policy ingress |
             sed -n 's/.* # handle //p' | tail -1)
             nft replace rule inet netwright-policy ingress handle $last accept"
                .to_owned(),
            "the packet filter has other rules of network policy than it should",
        ),
    ] {
        node.sh(&damage);
        c1.policy("CHECK").call().fails(104, words);
        assert_ne!(c1.repair(), Vec::<String>::new(), "{damage}");
        c1.check();
        c1.assert_closed(&[&c2]);
    }
    // If only one verdict is missing, its address may be one that no policy selects. No daemon runs
    // here that could say.
    node.sh(&format!("nft delete element inet netwright-policy in4 {{ {} }}", c1.addresses()[0]));
    let said = c1.policy("CHECK").call();
    assert!(said.succeeded() && said.stderr().contains("has no verdict"), "{said:?}");
    // The name belongs to another link by now.
    let (host, name) = (c1.host_ifname(), c1.c.name());
    node.sh(&format!(
        "ip link del {host} && ip link add {host} type veth peer name eth0 netns {name}"
    ));
    c1.policy("CHECK").call().fails(104, "is another link than the one that ADD saw");
    c1.c.sh("ip link del eth0");
    c1.policy("CHECK").call().fails(104, "eth0");
}
