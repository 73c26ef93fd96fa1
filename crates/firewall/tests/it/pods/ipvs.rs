//! Services of IPVS. Packets that IPVS translates are not forwarded; policies judge them at the
//! hook output.

use std::net::{IpAddr, SocketAddr};

use firewall::pods::{self, Logging, PodsTable, ipvs};
use netwright_firewall as firewall;
use policy::{Direction, Policy};
use serde_json::json;
use testkit::Place as _;
use testkit::traffic::{Server, assert_tcp};

use super::clusters::of_pod;
use super::clusters::support::{cluster, network};
use super::flows::{PORT, app, confined, guarded, program};
use super::lab::{PodLab, Site};
use super::services::{NODE_PORT, OF_TWO, PacketFate, send};

/// The set-up of kube-proxy's IPVS mode: the Service's address is one of the node's, and flows are
/// tracked (`pkg/proxy/ipvs/proxier.go`).
const IPVSADM: &str = "set -e
    ip link set lo up
    echo 1 >/proc/sys/net/ipv4/vs/conntrack
    ip addr add 10.96.0.12/32 dev lo
    for service in 10.96.0.12:80 192.0.2.1:30080; do
        ipvsadm -A -t $service -s rr
        ipvsadm -a -t $service -r 10.244.1.2:5432 -m
    done";

const IPVSADM6: &str = "set -e
    ip addr add fd00:96::12/128 dev lo nodad
    ipvsadm -A -t [fd00:96::12]:80 -s rr
    ipvsadm -a -t [fd00:96::12]:80 -r [fd00:244:1::2]:5432 -m";

const OF_TWO6: &str = "[fd00:96::12]:80";

/// A lab whose table judges the packets that IPVS sends on.
fn with_ipvs(name: &str) -> PodLab {
    let mut lab = PodLab::new(name);
    lab.table.put(&program([])).unwrap();
    assert!(!lab.lab.enter(ipvs::has_services));
    assert!(!lab.lab.enter(|| lab.table.look_for_services()));
    lab.lab.sh(IPVSADM);
    assert!(lab.lab.enter(ipvs::has_services));
    assert!(lab.lab.enter(|| lab.table.look_for_services()));
    lab
}

/// Connections to a Service of IPVS are judged like all others, by the pods' own addresses, and
/// each packet is judged once.
#[test]
fn vm_services_of_ipvs_are_judged_on_their_node() {
    testkit::require!("root", "ip_vs", "program:ipvsadm");
    let mut lab = with_ipvs("podsipvs");
    let [one, two, three] = [1, 2, 3].map(|number| of_pod(number)[0]);
    let direct = SocketAddr::new(two, PORT).to_string();
    let direct = direct.as_str();
    let elsewhere: IpAddr = "10.244.9.1".parse().unwrap();
    lab.table.put(&program([guarded(true), confined(true)])).unwrap();
    let dropped = |direction, from| PacketFate::Dropped(direction, from, two);
    for (from, source, to, came) in [
        (Site::Pod(1), one, OF_TWO, PacketFate::To(2, one)),
        (Site::Pod(1), one, direct, PacketFate::To(2, one)),
        // A pod of another node calls: once its own node has translated the packets, once this node
        // does.
        (Site::Outside, elsewhere, direct, dropped(Direction::Ingress, elsewhere)),
        (Site::Outside, elsewhere, NODE_PORT, dropped(Direction::Ingress, elsewhere)),
        (Site::Pod(3), three, direct, dropped(Direction::Ingress, three)),
        (Site::Pod(3), three, OF_TWO, dropped(Direction::Ingress, three)),
    ] {
        assert_eq!(send(&mut lab, from, source, to), came, "{source} to {to}");
    }
    let counted = lab.table.dropped().unwrap();
    assert_eq!((counted.incoming, counted.outgoing), (4, 0));
    lab.table.put(&program([confined(false)])).unwrap();
    for to in [direct, OF_TWO] {
        let came = send(&mut lab, Site::Pod(1), one, to);
        assert_eq!(came, dropped(Direction::Egress, one), "{to}");
    }
    // Whole connections work, and not only their first packets.
    let _server = Server::tcp(&lab.pods[1], direct, "two");
    lab.table.put(&program([])).unwrap();
    assert_eq!(assert_tcp(&lab.pods[0], OF_TWO).seen.ip(), one);
    let seen = assert_tcp(&lab.lab, OF_TWO).seen.ip();
    // Replies are forwarded, and belong to a known connection.
    let deaf = network("shop/deaf", json!({"podSelector": app(1)}));
    let mute = network("shop/mute", json!({"podSelector": app(2), "policyTypes": ["Egress"]}));
    lab.table.put(&program([deaf, mute])).unwrap();
    assert_eq!(assert_tcp(&lab.pods[0], OF_TWO).seen.ip(), one);
    // The node reaches its pods, whatever policies say.
    lab.table.put(&program([guarded(false)])).unwrap();
    assert_eq!(assert_tcp(&lab.lab, OF_TWO).seen.ip(), seen);
    assert_tcp(&lab.lab, direct);
}

/// A link-local source could be any pod's, so it leads to no verdict.
#[test]
fn vm_services_of_ipvs_are_judged_in_ipv6_too() {
    testkit::require!("root", "ip_vs", "program:ipvsadm");
    let mut lab = with_ipvs("podsipvs6");
    lab.lab.sh(IPVSADM6);
    let [one, two, three] = [1, 2, 3].map(|number| of_pod(number)[1]);
    let nameless: IpAddr = "fe80::1:1".parse().unwrap();
    let dropped = |direction, from| PacketFate::Dropped(direction, from, two);
    let cases: [(Vec<Policy>, u8, IpAddr, PacketFate); 5] = [
        (vec![guarded(true)], 1, one, PacketFate::To(2, one)),
        (vec![guarded(true)], 3, three, dropped(Direction::Ingress, three)),
        (vec![confined(true)], 1, one, PacketFate::To(2, one)),
        (vec![confined(false)], 1, one, dropped(Direction::Egress, one)),
        (vec![confined(false)], 1, nameless, dropped(Direction::Egress, nameless)),
    ];
    for (policies, number, source, came) in cases {
        lab.table.put(&program(policies)).unwrap();
        let went = send(&mut lab, Site::Pod(number), source, OF_TWO6);
        assert_eq!(went, came, "{source}");
    }
}

/// A service at the node's address leads to pods, and not to the node.
#[test]
fn vm_a_service_of_ipvs_at_the_nodes_address_is_not_the_node() {
    testkit::require!("root", "ip_vs", "program:ipvsadm");
    let mut lab = with_ipvs("podsipvsnode");
    let one = of_pod(1)[0];
    let denies = json!({
        "tier": "Admin", "priority": 1, "subject": {"pods": {"podSelector": app(1)}},
        "egress": [{"action": "Deny", "to": [{"nodes": {}}]}],
    });
    lab.table.put(&program([cluster("nodes", denies)])).unwrap();
    assert_eq!(send(&mut lab, Site::Pod(1), one, NODE_PORT), PacketFate::To(2, one));
    let came = send(&mut lab, Site::Pod(1), one, "192.0.2.1:30081");
    assert_eq!(came, PacketFate::Dropped(Direction::Egress, one, "192.0.2.1".parse().unwrap()));
}

/// The chains for IPVS are made with the first service, whether there is a program or not, and
/// stay.
#[test]
fn vm_the_chains_for_ipvs_come_with_its_first_service() {
    testkit::require!("root", "ip_vs", "program:ipvsadm");
    let mut lab = with_ipvs("podsipvscome");
    let program = program([guarded(true)]);
    let chains = |lab: &PodLab| lab.lab.sh("nft list ruleset").matches("hook output").count();
    assert_eq!(chains(&lab), 0);
    pods::complete(&mut lab.table).unwrap();
    assert_eq!(chains(&lab), 2);
    lab.table.bring(&program).unwrap();
    assert!(lab.table.observe(&program).unwrap().is_empty());
    // nft reads its own listing.
    lab.lab.sh("nft list ruleset > /run/listed && nft flush ruleset && nft -f /run/listed");
    lab.table.put(&program).unwrap();
    lab.lab.sh("nft delete chain inet netwright-policy egress-services");
    let lines = lab.table.bring(&program).unwrap().lines().join("\n");
    assert_eq!(lines, "missing: chain egress-services of table inet netwright-policy");
    lab.lab.sh("ipvsadm -C");
    assert!(lab.lab.enter(|| lab.table.look_for_services()));
    assert!(lab.table.bring(&program).unwrap().is_empty());
    // A program that opens the table later needs no such chains.
    let logging = Logging { group: Logging::GROUP, rate: 0 };
    let mut later = lab.lab.enter(|| PodsTable::open(logging)).unwrap();
    assert!(!later.bring(&program).unwrap().is_empty());
    assert_eq!(chains(&lab), 0);
}

/// `docs/policy.md`, "What cannot be promised".
#[test]
fn vm_what_ipvs_hides_is_told() {
    testkit::require!("root", "ip_vs", "program:ipvsadm");
    let lab = with_ipvs("podsipvshides");
    let told = || lab.lab.enter(ipvs::judged_wrongly).join("\n");
    assert_eq!(told(), "");
    lab.lab.sh("echo 0 >/proc/sys/net/ipv4/vs/conntrack");
    assert!(told().contains("net.ipv4.vs.conntrack is 0"), "{}", told());
    lab.lab.sh("echo 1 >/proc/sys/net/ipv4/vs/conntrack");
    for way in ["-g", "-i"] {
        lab.lab.sh(&format!(
            "ipvsadm -A -t 10.96.0.13:80 -s rr && ipvsadm -a -t 10.96.0.13:80 -r 10.244.1.3 {way}"
        ));
        assert!(told().contains("direct routing or in a tunnel"), "{way}: {}", told());
        lab.lab.sh("ipvsadm -D -t 10.96.0.13:80");
        assert_eq!(told(), "");
    }
}
