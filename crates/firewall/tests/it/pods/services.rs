//! Policies beside kube-proxy, whose rules are those that its sources make, for these services:
//!
//! | service | endpoint |
//! |---|---|
//! | 10.96.0.11, port 80 | pod 1 |
//! | 10.96.0.12, port 80, and port 30080 of the node | pod 2 |
//!
//! A policy sees a packet after its destination was translated and before its source is.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use firewall::pods::log_prefix;
use kernel::nflog;
use netwright_firewall as firewall;
use policy::{Direction, Policy, Protocol, Traffic, explain};
use serde_json::json;
use testkit::Place as _;
use testkit::probe::{self, Ends};
use testkit::traffic::{Server, assert_tcp};

use super::clusters::support::{cluster, network};
use super::clusters::{PODS, of_pod};
use super::flows::{PORT, app, confined, guarded, program, world};
use super::lab::{PodLab, SYN, Site};

/// How long a packet may be on its way on a busy machine.
const DEADLINE: Duration = testkit::TIMEOUT;

const OF_ONE: &str = "10.96.0.11:80";
pub(super) const OF_TWO: &str = "10.96.0.12:80";
pub(super) const NODE_PORT: &str = "192.0.2.1:30080";
/// A client outside the cluster.
const CLIENT: &str = "203.0.113.7";

/// `pkg/proxy/iptables/proxier.go`.
const IPTABLES: &str = "iptables-nft-restore --noflush <<'X'
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:KUBE-EXT-TWO - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-ONE - [0:0]
:KUBE-SEP-TWO - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ONE - [0:0]
:KUBE-SVC-TWO - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-SERVICES -d 10.96.0.11/32 -p tcp -m comment --comment \"shop/one cluster IP\" -m tcp --dport 80 -j KUBE-SVC-ONE
-A KUBE-SERVICES -d 10.96.0.12/32 -p tcp -m comment --comment \"shop/two cluster IP\" -m tcp --dport 80 -j KUBE-SVC-TWO
-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m comment --comment shop/two -m tcp --dport 30080 -j KUBE-EXT-TWO
-A KUBE-EXT-TWO -m comment --comment \"masquerade traffic for shop/two external destinations\" -j KUBE-MARK-MASQ
-A KUBE-EXT-TWO -j KUBE-SVC-TWO
-A KUBE-SVC-ONE ! -s 10.244.0.0/16 -d 10.96.0.11/32 -p tcp -m comment --comment \"shop/one cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-ONE -m comment --comment \"shop/one -> 10.244.1.1:5432\" -j KUBE-SEP-ONE
-A KUBE-SEP-ONE -s 10.244.1.1/32 -m comment --comment shop/one -j KUBE-MARK-MASQ
-A KUBE-SEP-ONE -p tcp -m comment --comment shop/one -m tcp -j DNAT --to-destination 10.244.1.1:5432
-A KUBE-SVC-TWO ! -s 10.244.0.0/16 -d 10.96.0.12/32 -p tcp -m comment --comment \"shop/two cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-TWO -m comment --comment \"shop/two -> 10.244.1.2:5432\" -j KUBE-SEP-TWO
-A KUBE-SEP-TWO -s 10.244.1.2/32 -m comment --comment shop/two -j KUBE-MARK-MASQ
-A KUBE-SEP-TWO -p tcp -m comment --comment shop/two -m tcp -j DNAT --to-destination 10.244.1.2:5432
COMMIT
X";

/// `pkg/proxy/nftables/proxier.go`.
const NFTABLES: &str = "nft -f - <<'X'
table ip kube-proxy {
  map service-ips {
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = { 10.96.0.11 . tcp . 80 : goto service-one, 10.96.0.12 . tcp . 80 : goto service-two }
  }
  map service-nodeports {
    type inet_proto . inet_service : verdict
    elements = { tcp . 30080 : goto external-two }
  }
  chain filter-forward { type filter hook forward priority filter - 1; ct state new jump cluster-ips-check; }
  chain cluster-ips-check { }
  chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
  chain nat-output { type nat hook output priority -100; jump services; }
  chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
  chain services {
    ip daddr . meta l4proto . th dport vmap @service-ips
    fib daddr type local meta l4proto . th dport vmap @service-nodeports
  }
  chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
  chain masquerading {
    meta mark and 0x4000 == 0 return
    meta mark set meta mark xor 0x4000
    masquerade fully-random
  }
  chain external-two { jump mark-for-masquerade; goto service-two; }
  chain service-one {
    ip daddr 10.96.0.11 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade
    numgen random mod 1 vmap { 0 : goto endpoint-one }
  }
  chain service-two {
    ip daddr 10.96.0.12 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade
    numgen random mod 1 vmap { 0 : goto endpoint-two }
  }
  chain endpoint-one {
    ip saddr 10.244.1.1 jump mark-for-masquerade
    meta l4proto tcp dnat to 10.244.1.1:5432
  }
  chain endpoint-two {
    ip saddr 10.244.1.2 jump mark-for-masquerade
    meta l4proto tcp dnat to 10.244.1.2:5432
  }
}
X";

/// The fate of the first packet of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PacketFate {
    /// It arrived at a pod, with this source address.
    To(u8, IpAddr),
    /// It was dropped, with this source and this destination.
    Dropped(Direction, IpAddr, IpAddr),
}

/// A first packet: the place that sends it, its source and destination, and its fate.
type SentPacket = (Site, IpAddr, &'static str, PacketFate);

/// Sends the first packet of a connection, and follows it.
pub(super) fn send(lab: &mut PodLab, from: Site, source: IpAddr, to: &str) -> PacketFate {
    let to: SocketAddr = to.parse().unwrap();
    let (id, ends) = (lab.id(), Ends { source, destination: to.ip() });
    lab.station(from).send(&ends.tcp(id, to.port(), SYN));
    let deadline = Instant::now() + DEADLINE;
    loop {
        let mut came = None;
        for logged in lab.log.heard().unwrap().packets {
            let is = |direction: &Direction| log_prefix(*direction) == logged.prefix;
            let direction = Direction::ALL.into_iter().find(is).unwrap();
            let packet = logged.packet().unwrap();
            came = Some(PacketFate::Dropped(direction, packet.source, packet.destination));
        }
        for number in 1..=PODS {
            lab.station(Site::Pod(number)).heard(|bytes| {
                let Some(packet) = nflog::Packet::read(bytes) else { return };
                if packet.tcp_flags == Some(SYN) && packet.ports.map(|(_, to)| to) == Some(PORT) {
                    came = Some(PacketFate::To(number, packet.source));
                }
            });
        }
        if let Some(came) = came {
            return came;
        }
        let stations = (1..=PODS).map(|number| lab.station(Site::Pod(number)));
        let mut waiting: Vec<BorrowedFd<'_>> = vec![lab.log.as_fd()];
        waiting.extend(stations.flat_map(probe::Station::descriptors));
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(probe::wait(&waiting, left), "{source} to {to} is neither dropped nor heard");
    }
}

/// Only clients outside reach pod 2.
fn clients() -> Policy {
    let from = json!([{"ipBlock": {"cidr": "203.0.113.0/24"}}]);
    network("shop/clients", json!({"podSelector": app(2), "ingress": [{"from": from}]}))
}

/// No pod reaches pod 1.
fn lonely() -> Policy {
    cluster(
        "lonely",
        json!({
            "tier": "Admin", "priority": 1, "subject": {"pods": {"podSelector": app(1)}},
            "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}],
        }),
    )
}

/// Pod 1 reaches only itself.
fn selfish() -> Policy {
    let peer = json!([{"podSelector": app(1)}]);
    let rules = json!({
        "podSelector": app(1), "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": peer}], "egress": [{"to": peer}],
    });
    network("shop/selfish", rules)
}

/// Asserts that `policy explain` reports the actual fate of a pod's connection to itself through a
/// Service.
#[track_caller]
fn assert_explained(policies: Vec<Policy>, own: IpAddr, came: &PacketFate) {
    let (world, traffic) = (world(policies), Traffic::to(Protocol::Tcp, PORT));
    let denies =
        |direction: &Direction| explain::dropped(&world, own, own, traffic, *direction).1.is_some();
    let met = match came {
        PacketFate::Dropped(direction, ..) => Some(*direction),
        PacketFate::To(..) => None,
    };
    assert_eq!([Direction::Egress, Direction::Ingress].into_iter().find(denies), met);
    let explained = explain(&world, own, own, traffic).to_string();
    let start = "By a Service, where its packets leave the pod, it is";
    let verb = if met.is_some() { "denied: " } else { "allowed too." };
    assert!(explained.contains(&format!("{start} {verb}")), "{explained}");
}

fn check(name: &str, proxy: &str) {
    let mut lab = PodLab::new(name);
    lab.lab.sh(proxy);
    let [one, two, three] = [1, 2, 3].map(|number| of_pod(number)[0]);
    let [node, client]: [IpAddr; 2] = ["192.0.2.1", CLIENT].map(|text| text.parse().unwrap());
    let pod = Site::Pod;
    let dropped = |direction, from| PacketFate::Dropped(direction, from, two);
    let cases: [(&str, Vec<Policy>, Vec<SentPacket>); 6] = [
        (
            "no policies",
            vec![],
            vec![
                (pod(1), one, OF_TWO, PacketFate::To(2, one)),
                (pod(2), two, OF_TWO, PacketFate::To(2, node)),
                (Site::Outside, client, NODE_PORT, PacketFate::To(2, node)),
            ],
        ),
        (
            "only from pod 1, and only to pod 2",
            vec![guarded(true), confined(true)],
            vec![
                (pod(1), one, OF_TWO, PacketFate::To(2, one)),
                (pod(3), three, OF_TWO, dropped(Direction::Ingress, three)),
                // Through its own Service pod 1 calls itself, which is not the pod that it may
                // reach.
                (pod(1), one, OF_ONE, PacketFate::Dropped(Direction::Egress, one, one)),
                (Site::Outside, client, NODE_PORT, dropped(Direction::Ingress, client)),
            ],
        ),
        (
            "to nobody",
            vec![guarded(true), confined(false)],
            vec![(pod(1), one, OF_TWO, dropped(Direction::Egress, one))],
        ),
        (
            "only from outside",
            vec![clients()],
            vec![
                (pod(1), one, OF_TWO, dropped(Direction::Ingress, one)),
                (Site::Outside, client, NODE_PORT, PacketFate::To(2, node)),
            ],
        ),
        (
            "pod 1 by no pod, which it is itself",
            vec![lonely()],
            vec![
                (pod(1), one, OF_ONE, PacketFate::Dropped(Direction::Ingress, one, one)),
                (pod(1), one, OF_TWO, PacketFate::To(2, one)),
            ],
        ),
        (
            "pod 1 by itself alone",
            vec![selfish()],
            vec![(pod(1), one, OF_ONE, PacketFate::To(1, node))],
        ),
    ];
    for (what, policies, packets) in cases {
        lab.table.put(&program(policies.clone())).unwrap();
        for (from, source, to, came) in packets {
            assert_eq!(send(&mut lab, from, source, to), came, "{what}: {source} to {to}");
            if (source, to) == (one, OF_ONE) {
                assert_explained(policies.clone(), one, &came);
            }
        }
    }
    // A whole connection works, and not only its first packet; also from the node, whatever
    // policies say.
    let _server = Server::tcp(&lab.pods[1], &SocketAddr::new(two, PORT).to_string(), "two");
    lab.table.put(&program([guarded(true), confined(true)])).unwrap();
    assert_eq!(assert_tcp(&lab.pods[0], OF_TWO).seen.ip(), one);
    lab.table.put(&program([guarded(false)])).unwrap();
    assert_eq!(assert_tcp(&lab.lab, OF_TWO).seen.ip(), node);
}

#[test]
fn policies_hold_beside_kube_proxys_iptables_mode() {
    testkit::require!("root", "program:iptables-nft-restore");
    check("podskubeipt", IPTABLES);
}

#[test]
fn policies_hold_beside_kube_proxys_nftables_mode() {
    testkit::require!("root");
    check("podskubenft", NFTABLES);
}
