//! Frames through taps, with the test as the program that holds them.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::thread;

use kernel::netns::Netns;
use serde_json::json;
use testkit::traffic::{Server, assert_pings, assert_tcp};
use testkit::{Container, Place};

use super::add;
use crate::support::Node;
use crate::support::matrix::{Family, ipam};

/// Opens a container's tap as a program in it would.
fn open(container: &Container) -> OwnedFd {
    let netns = Netns::open(&container.netns_path()).unwrap();
    kernel::tun::open_tap(&netns, "eth0", false).unwrap()
}

/// Passes frames between two taps, both ways, until one of them is gone.
fn join(one: OwnedFd, other: OwnedFd) {
    let (one, other) = (File::from(one), File::from(other));
    let pass = |mut from: File, mut to: File| {
        move || {
            let mut frame = [0; 65_536];
            while let Ok(length) = from.read(&mut frame) {
                // A tap that is down takes no frames; it may come up.
                let _ = to.write_all(&frame[..length]);
            }
        }
    };
    thread::spawn(pass(one.try_clone().unwrap(), other.try_clone().unwrap()));
    thread::spawn(pass(other, one));
}

#[test]
fn two_containers_talk_through_a_program() {
    let node = Node::new("tap-two");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let config = json!({ "ipam": ipam(&node, Family::Dual) });
    let mut addresses = Vec::new();
    for container in [&c1, &c2] {
        let result = add(&node, container).config(config.clone()).call().ok();
        for ip in result["ips"].as_array().unwrap() {
            let text = ip["address"].as_str().unwrap();
            addresses.push(text.split('/').next().unwrap().to_owned());
        }
    }
    join(open(&c1), open(&c2));
    for (from, to) in [(&c1, 2), (&c1, 3), (&c2, 0), (&c2, 1)] {
        assert_pings(from, &addresses[to]);
    }
    let server = Server::tcp(&c2, &format!("{}:80", addresses[2]), "two");
    let seen = assert_tcp(&c1, &format!("{}:80", addresses[2]));
    assert_eq!((seen.server.as_str(), seen.seen.ip().to_string()), ("two", addresses[0].clone()));
    drop(server);
}

/// The setup of a virtual machine's container: its tap is a port of a bridge inside, and the
/// container's link is another port.
#[test]
fn a_guest_reaches_the_outside_through_the_bridge_in_its_container() {
    let node = Node::new("tap-guest");
    let _outside = node.lab.outside();
    let (pod, guest) = (node.container("pod"), node.container("guest"));
    node.sh(
        "ip link add vpod type veth peer name net0 netns pod && ip addr add 10.1.0.1/24 dev vpod && \
         ip addr add fd00:1::1/64 dev vpod nodad && ip link set vpod up && \
         sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 && \
         nft add table inet t && nft 'add chain inet t p { type nat hook postrouting priority 100; }' && \
         nft add rule inet t p oifname up0 masquerade",
    );
    pod.sh("ip link add k6t-eth0 type bridge && ip link set k6t-eth0 up && ip link set net0 master k6t-eth0 up");
    let keys = json!({ "bridge": "k6t-eth0", "owner": 107, "group": 107, "mtu": 1400 });
    add(&node, &pod).config(keys).call().ok();
    // The tap that the guest sees as its network card.
    let config = json!({ "ipam": ipam(&node, Family::Dual), "mtu": 1400 });
    add(&node, &guest).config(config).call().ok();
    join(open(&pod), open(&guest));
    for address in ["10.1.0.1", "fd00:1::1", "198.51.100.2", "2001:db8:ffff::2"] {
        assert_pings(&guest, address);
    }
}
