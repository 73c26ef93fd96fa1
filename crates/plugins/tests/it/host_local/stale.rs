//! Reservations of containers that are gone, when no other address is left.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;

use rustix::fs::XattrFlags;
use serde_json::{Value, json};
use testkit::traffic::{self, Server};
use testkit::{Container, Place as _};

use crate::support::Node;

const NAMES: [&str; 2] = ["user.netwright.reserved", "trusted.netwright.reserved"];

/// Changes the line in a reservation's mark that identifies its namespace: device, inode, boot,
/// cookie, and the path.
fn note(file: &Path, change: impl Fn(&mut Vec<String>, &mut String)) {
    let mut bytes = [0; 1024];
    for name in NAMES {
        let Ok(length) = rustix::fs::getxattr(file, name, &mut bytes[..]) else { continue };
        let text = String::from_utf8(bytes[..length].to_vec()).unwrap();
        let mut lines: Vec<String> = text.splitn(6, '\n').map(str::to_owned).collect();
        let mut words: Vec<String> = lines[4].split(' ').map(str::to_owned).collect();
        let mut path = lines[5].clone();
        change(&mut words, &mut path);
        (lines[4], lines[5]) = (words.join(" "), path);
        let bytes = lines.join("\n");
        rustix::fs::setxattr(file, name, bytes.as_bytes(), XattrFlags::REPLACE).unwrap();
        return;
    }
    panic!("{} has no mark", file.display());
}

/// Once a container is gone, another namespace may have the inode number of its namespace, which
/// does not keep its address for ever. Only a namespace that may be the container's own keeps it.
#[test]
fn another_namespace_with_the_number_of_one_that_is_gone_keeps_no_address() {
    testkit::require!("root");
    let node = Node::new("stale-number");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let folder = node.dir("ipam");
    let ipam = json!({ "type": "host-local", "dataDir": folder, "subnet": "10.2.0.0/30" });
    let run = |verb, container| {
        node.run("host-local", verb).to(container).config(json!({ "ipam": ipam }))
    };
    run("ADD", &c1).call().ok();
    let reserved = folder.join("n/10.2.0.2");
    assert!(fs::exists(&reserved).unwrap());
    note(&reserved, |words, path| {
        assert!(4 <= words.len(), "{words:?}");
        *path = "/run/netns/gone".to_owned();
    });
    // The namespace may still be the container's: the mark cannot decide it.
    run("ADD", &c2).call().error();
    note(&reserved, |words, _| {
        let cookie: u64 = words[3].parse().unwrap();
        words[3] = (cookie + 1_000_000).to_string();
    });
    let result = run("ADD", &c2).call().ok();
    assert_eq!(result["ips"][0]["address"], "10.2.0.2/30");
}

/// A boot ends containers without a DEL: namespaces, links, rules and what is below `/run` are
/// gone, and the disk has what it had. The next container gets address and host port.
#[test]
fn what_a_boot_ended_is_in_nobodys_way() {
    testkit::require!("root");
    let node = Node::new("stale-boot");
    let folder = node.dir("ipam");
    let bridge = json!({
        "bridge": "br0", "isGateway": true,
        "ipam": { "type": "host-local", "dataDir": folder, "subnet": "10.2.0.0/30" },
    });
    let port = json!({ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" });
    let ports = json!({ "runtimeConfig": { "portMappings": [port] } });
    let add = |to: &Container| {
        let result = node.run("bridge", "ADD").to(to).config(bridge.clone()).call().ok();
        node.run("portmap", "ADD").to(to).config(ports.clone()).prev(&result).call().ok()
    };
    let c1 = node.container("c1");
    assert_eq!(add(&c1)["ips"][0]["address"], "10.2.0.2/30");
    drop(c1);
    note(&folder.join("n/10.2.0.2"), |words, _| words[2] = "an-earlier-boot".to_owned());
    // The kernel deletes the pair too, at some time.
    node.sh("nft flush ruleset; ip link del br0; \
         ip -o link show type veth | sed 's/^[0-9]*: //; s/[@:].*//' | xargs -rn1 ip link del; \
         timeout 20 sh -c 'while ip -o link show type veth | grep -q .; do sleep 0.02; done'");
    fs::remove_dir_all(&node.roots.run).unwrap();
    let next = node.container("c2");
    assert_eq!(add(&next)["ips"][0]["address"], "10.2.0.2/30");
    let _server = Server::tcp(&next, "0.0.0.0:80", "next");
    assert_eq!(traffic::assert_tcp(&node.lab, "127.0.0.1:8080").server, "next");
}

/// A network of one address of each family, on a bridge.
fn pool_of_one(node: &Node) -> Value {
    let ranges = json!([[{ "subnet": "10.2.0.0/30" }], [{ "subnet": "fd00:2::/126", "rangeEnd": "fd00:2::2" }]]);
    json!({
        "bridge": "br0", "isGateway": true,
        "ipam": { "type": "host-local", "dataDir": node.dir("ipam"), "ranges": ranges },
    })
}

/// The link that `bandwidth` makes leads into no container, and stays when the container has ended.
#[test]
fn a_link_that_outlives_its_container_keeps_no_address() {
    testkit::require!("root");
    let node = Node::new("stale-ifb");
    let bridge = pool_of_one(&node);
    let rate = json!({ "egressRate": 8_000_000, "egressBurst": 800_000 });
    let add = |to: &Container| {
        let result = node.run("bridge", "ADD").to(to).config(bridge.clone()).call().ok();
        node.run("bandwidth", "ADD").to(to).config(rate.clone()).prev(&result).call().ok()
    };
    let had = add(&node.container("c1"));
    node.sh("timeout 20 sh -c 'while ip -o link show type veth | grep -q .; do sleep 0.02; done'");
    assert!(node.sh("ip -br link show type ifb").contains("bwp"), "the link stays");
    assert_eq!(add(&node.container("c2"))["ips"], had["ips"]);
}

/// The kernel deletes a container's links some time after its namespace has ended. Until then the
/// container answers for its address: its link goes first.
#[test]
fn a_container_that_has_just_ended_keeps_no_address() {
    testkit::require!("root");
    let node = Node::new("stale-ending");
    let bridge = pool_of_one(&node);
    let add = |to: &Container| node.run("bridge", "ADD").to(to).config(bridge.clone()).call();
    let c1 = node.container("c1");
    let had = add(&c1).ok();
    let c2 = node.container("c2");
    node.keep_busy();
    drop(c1);
    assert_eq!(add(&c2).ok()["ips"], had["ips"]);
    assert_eq!(node.sh("ip -o link show type veth | wc -l").trim(), "1", "traffic ends first");
}

/// The kernel frees a socket some time after it was closed, and the socket keeps its namespace until
/// then.
#[test]
fn a_container_whose_last_socket_was_just_closed_keeps_no_address() {
    testkit::require!("root");
    let node = Node::new("stale-socket");
    let bridge = pool_of_one(&node);
    let add = |to: &Container| node.run("bridge", "ADD").to(to).config(bridge.clone()).call();
    let mut before = node.container("c0");
    let had = add(&before).ok();
    for number in 1..=10 {
        let next = node.container(&format!("c{number}"));
        let sockets = [(); 50].map(|()| before.enter(|| UdpSocket::bind("[::]:0").unwrap()));
        drop(std::mem::replace(&mut before, next));
        drop(sockets);
        assert_eq!(add(&before).ok()["ips"], had["ips"], "turn {number}");
    }
}

/// No process is in the namespace, and no path leads to it: a program that has it open may still
/// use it.
#[test]
fn a_container_whose_namespace_somebody_has_open_keeps_its_address() {
    testkit::require!("root");
    let node = Node::new("stale-open");
    let bridge = pool_of_one(&node);
    let add = |to: &Container| node.run("bridge", "ADD").to(to).config(bridge.clone()).call();
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    add(&c1).ok();
    let open = fs::File::open(c1.netns_path()).unwrap();
    drop(c1);
    add(&c2).error();
    assert_eq!(node.sh("ip -o link show type veth | wc -l").trim(), "1");
    drop(open);
    add(&c2).ok();
}
