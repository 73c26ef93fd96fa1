//! Firewalls that are switched on after containers were attached. The printed commands, run as they
//! stand, let through what the containers lost, and nothing else.

use serde_json::Value;
use testkit::traffic::{Server, assert_no_tcp};
use testkit::{Lab, Place, require};

use super::situations::node::{Node, Resolver, Way, findings};
use super::sound::firewalld;

/// What a firewall that knows nothing of the containers stops.
const LOST: &[Way] = &[Way::Out4, Way::Out6, Way::Names];

/// A node whose containers ask a program of the node for names, and with programs that nobody is to
/// reach from elsewhere.
struct GuardedNode {
    node: Node,
    _names: Resolver,
    _programs: [Server; 2],
}

impl GuardedNode {
    fn new(lab: Lab) -> Self {
        let node = Node::without_firewall(lab);
        let names = Resolver::start(&node.lab);
        std::fs::write(node.lab.path("/etc/netns/c1/resolv.conf"), "nameserver 10.88.0.1\n")
            .unwrap();
        node.lab.sh("ip -n outside route add 10.88.0.0/24 via 198.51.100.1");
        let programs =
            [Server::tcp(&node.lab, "[::]:83", "node"), Server::tcp(&node.c1, "[::]:81", "c1")];
        let complaints = node.complaints();
        assert!(complaints.is_empty(), "before the firewall: {complaints:#?}");
        GuardedNode { node, _names: names, _programs: programs }
    }

    /// Runs the printed commands after the firewall has stopped the traffic.
    #[track_caller]
    fn mends(&self) {
        assert_eq!(self.node.silent(LOST), LOST);
        self.protects();
        let found = findings(&self.node.doctor(&[]));
        let fixes = found.iter().flat_map(|one| one["fix"].as_array().into_iter().flatten());
        let mut commands: Vec<&str> = Vec::new();
        for fix in fixes.filter_map(Value::as_str) {
            if !commands.contains(&fix) {
                commands.push(fix);
            }
        }
        let (done, said) = self.node.run(&commands.join("\n"));
        assert!(done, "{commands:#?}: {said}");
        let complaints = self.node.complaints();
        assert!(complaints.is_empty(), "after {commands:#?}: {complaints:#?}");
        self.protects();
    }

    /// Asserts that nobody reaches the node's own program, or a port that is not published.
    #[track_caller]
    fn protects(&self) {
        let Node { server, c1, .. } = &self.node;
        assert_no_tcp(server, "198.51.100.1:83");
        assert_no_tcp(c1, "10.88.0.1:83");
        assert_no_tcp(server, &self.node.filled("{a1}:81"));
    }
}

#[test]
fn a_fix_for_ufw() {
    require!("root", "program:ufw", "program:iptables-nft");
    let guarded = GuardedNode::new(Lab::new("doctor-ufw-on"));
    guarded.node.lab.sh("ufw --force enable");
    guarded.mends();
}

/// The network's bridge is in a zone of its own, or in the one for links that have none.
#[test]
fn a_fix_for_firewalld() {
    require!("root", "program:firewalld", "program:dbus-daemon");
    let mends = |name: &str, zone: &str| {
        let guarded = GuardedNode::new(Lab::with_processes(name));
        let running = firewalld(&guarded.node.lab);
        guarded.node.lab.sh(zone);
        guarded.mends();
        drop(guarded);
        drop(running);
    };
    mends("doctor-firewalld-on", "true");
    let zone = "firewall-cmd --permanent --zone=work --add-interface=cni0 && firewall-cmd --reload";
    mends("doctor-firewalld-zone", zone);
}
