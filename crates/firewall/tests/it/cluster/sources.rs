//! By which links packets from pods' addresses may come in.

use std::net::UdpSocket;

use firewall::cluster::Member;
use netwright_firewall as firewall;
use testkit::{Container, Place, traffic};

use super::{Cluster, comes, counted, filter, goes, sends};

/// The pods' addresses belong to pods of this node, of the other node, or to none.
const PODS: [[&str; 2]; 3] =
    [["10.1.0.3", "fd00:1::3"], ["10.2.0.9", "fd00:2::9"], ["10.3.0.9", "fd00:3::9"]];

/// Gives a place the addresses of pods, to forge packets from them.
fn forges(place: &impl Place) {
    let all =
        PODS.map(|[v4, v6]| format!("addr add {v4}/32 dev lo\naddr add {v6}/128 dev lo nodad\n"));
    place.sh(&format!("ip -batch - <<END\n{}END\n", all.concat()));
}

/// Adds the routes that the service has where no pod is.
fn unreachable(host: &impl Place) {
    host.sh("ip route add unreachable 10.0.0.0/14 metric 4294967295 && \
         ip -6 route add unreachable fd00::/16 metric 4294967295");
}

/// The pod `c1` takes packets, and an address of this node does.
struct Ends {
    sockets: Vec<(String, UdpSocket)>,
}

impl Ends {
    fn new(cluster: &Cluster) -> Self {
        let at = |place: &dyn Fn(&str) -> UdpSocket, to: &str| {
            let socket = place(to);
            socket.set_read_timeout(Some(traffic::ANSWER_DEADLINE)).unwrap();
            (to.to_owned(), socket)
        };
        let (c1, host) = (&cluster.node.c1, &cluster.node.lab);
        let in_pod = |to: &str| c1.enter(|| UdpSocket::bind(to).unwrap());
        let on_host = |to: &str| host.enter(|| UdpSocket::bind(to).unwrap());
        Ends {
            sockets: vec![
                at(&in_pod, "10.1.0.2:7"),
                at(&in_pod, "[fd00:1::2]:7"),
                at(&on_host, "192.0.2.1:7"),
                at(&on_host, "[2001:db8:2::1]:7"),
            ],
        }
    }

    /// Asserts whether packets from some pods' addresses arrive.
    #[track_caller]
    fn assert(&self, cluster: &Cluster, from: &Container, pods: [&str; 2], arrive: bool) {
        self.assert_at(cluster, from, pods, [arrive; 2]);
    }

    /// Asserts whether they arrive at a pod, and at the host.
    #[track_caller]
    fn assert_at(&self, cluster: &Cluster, from: &Container, pods: [&str; 2], arrive: [bool; 2]) {
        for (number, (to, socket)) in self.sockets.iter().enumerate() {
            let arrive = arrive[number / 2];
            let source = pods[usize::from(to.starts_with('['))];
            let before = counted(&cluster.node.lab, "sources");
            sends(from, source, to, source.as_bytes());
            if arrive {
                let mut buffer = [0; 64];
                let (length, _) = socket.recv_from(&mut buffer).unwrap();
                assert_eq!(&buffer[..length], source.as_bytes(), "to {to}");
            } else {
                testkit::wait_until("it to be dropped", || {
                    counted(&cluster.node.lab, "sources") == before + 1
                });
            }
        }
    }
}

/// A pod's address is valid at the pod's own link: for pods of this node, the link by which the host
/// reaches them; for others, the tunnel, or the links between the nodes where they are reached
/// without one. The outside and a container of another network cannot borrow it.
#[test]
fn a_pods_address_is_valid_at_its_own_links_alone() {
    testkit::require!("root");
    let cluster = Cluster::new("clsource");
    let (host, b, outside) = (&cluster.node.lab, &cluster.b, &cluster.node.outside);
    let other = host.container("other");
    host.sh("ip link add docker0 type bridge && ip link set docker0 up && \
         ip addr add 172.17.0.1/16 dev docker0 && ip addr add fd17::1/64 dev docker0 nodad && \
         ip link add vo type veth peer name eth0 netns other && ip link set vo master docker0 up && \
         ip link add vs type veth peer name eth1 netns c2 && ip link set vs up && \
         ip addr add 10.9.0.1/24 dev vs && ip addr add fd09::1/64 dev vs nodad");
    unreachable(host);
    other.sh("ip link set lo up && ip link set eth0 up && ip addr add 172.17.0.2/16 dev eth0 && \
         ip addr add fd17::2/64 dev eth0 nodad && ip route add default via 172.17.0.1 && \
         ip -6 route add default via fd17::1");
    forges(&other);
    forges(b);
    forges(outside);
    // A pod of this node forges the other node's, by its own link.
    cluster.node.c2.sh("ip addr add 10.2.0.9/32 dev lo && ip addr add fd00:2::9/128 dev lo nodad");
    let ends = Ends::new(&cluster);
    let mut filter = filter();
    cluster.bring(&filter);
    let [own, others, nobodys] = PODS;
    for from in [&other, outside] {
        for pods in PODS {
            ends.assert(&cluster, from, pods, false);
        }
    }
    ends.assert(&cluster, &cluster.node.c2, own, true);
    ends.assert(&cluster, &cluster.node.c2, others, false);
    // An administrator's route to the other node's pods leads by its link.
    ends.assert(&cluster, b, own, false);
    ends.assert(&cluster, b, others, true);
    // What pods of other nodes send to the node itself does not come out of a tunnel.
    ends.assert_at(&cluster, b, nobodys, [false, true]);
    // A pod's second link.
    cluster.node.c2.sh("ip link set eth1 up && ip addr add 10.9.0.2/24 dev eth1 && \
         ip addr add fd09::2/64 dev eth1 nodad && ip route replace default via 10.9.0.1 && \
         ip -6 route replace default via fd09::1 && ip route add 10.1.0.2/32 via 10.9.0.1 && \
         ip -6 route add fd00:1::2/128 via fd09::1");
    ends.assert(&cluster, &cluster.node.c2, own, false);

    // While a path changes, packets may come by either: the host's route leads elsewhere by now.
    host.sh("ip route replace 10.2.0.0/24 via 198.51.100.2 && \
         ip -6 route replace fd00:2::/64 via 2001:db8:ffff::2");
    ends.assert_at(&cluster, b, others, [false, true]);
    for plain in ["10.2.0.0/24", "fd00:2::/64"] {
        cluster.change(&mut filter, &comes(Member::Plain(plain.parse().unwrap())));
    }
    ends.assert(&cluster, b, others, true);
    ends.assert(&cluster, b, own, false);
    ends.assert(&cluster, &other, others, false);

    // Out of a tunnel, what another node's pods send, and nothing of this node's.
    cluster.change(&mut filter, &goes(Member::Underlay("n0".to_owned())));
    ends.assert(&cluster, b, others, false);
    cluster.change(&mut filter, &comes(Member::Tunnel("n0".to_owned())));
    ends.assert(&cluster, b, others, true);
    ends.assert(&cluster, b, own, false);
}

/// Machines beside the node give its kernel routes to pods' addresses, as router advertisements and
/// DHCP do. The routes decide nothing: neither where the node's pods are, nor those of a node behind
/// a tunnel, nor those of nobody. An administrator's routes do, and never for the node's own pods.
#[test]
fn a_route_by_an_uplink_makes_no_pods_address_valid_there() {
    testkit::require!("root");
    let cluster = Cluster::new("clrouted");
    let (host, b, outside) = (&cluster.node.lab, &cluster.b, &cluster.node.outside);
    unreachable(host);
    host.sh("ip route del 10.2.0.0/24 && ip -6 route del fd00:2::/64");
    forges(b);
    forges(outside);
    let ends = Ends::new(&cluster);
    let mut filter = filter();
    for routed in ["10.2.0.0/24", "fd00:2::/64"] {
        filter.note(&goes(Member::Routed(routed.parse().unwrap())));
    }
    cluster.bring(&filter);
    for (link, from) in [("n0", b), ("up0", outside)] {
        for [v4, v6] in PODS {
            host.sh(&format!(
                "ip route replace {v4}/32 dev {link} && \
                 ip -6 route replace {v6}/128 dev {link} proto kernel metric 256"
            ));
        }
        let [own, others @ ..] = PODS;
        ends.assert(&cluster, from, own, false);
        for pods in others {
            // What another node's pods send to the node itself comes without a tunnel.
            ends.assert_at(&cluster, from, pods, [false, link == "n0"]);
        }
    }
    for prefix in ["10.0.0.0/14", "fd00::/16"] {
        let routed = Member::Routed(prefix.parse().unwrap());
        cluster.change(&mut filter, &comes(routed));
    }
    let [own, others, nobodys] = PODS;
    ends.assert(&cluster, outside, own, false);
    ends.assert(&cluster, outside, others, true);
    ends.assert(&cluster, outside, nobodys, true);
}

/// What the host itself sends, by its loopback, from a pod's gateway, is not touched. Nor is a range
/// of the host's that an administrator has let overlap the pods'.
#[test]
fn the_host_and_a_network_that_overlaps_are_left_alone() {
    testkit::require!("root");
    let cluster = Cluster::new("clsame");
    let (host, b) = (&cluster.node.lab, &cluster.b);
    unreachable(host);
    let mut filter = filter();
    for prefix in ["10.3.7.0/24", "fd00:37::/64"] {
        filter.note(&comes(Member::Routed(prefix.parse().unwrap())));
    }
    cluster.bring(&filter);
    for address in ["10.1.0.1", "fd00:1::1"] {
        host.sh(&format!("ping -n -c 1 -W 5 -I {address} {address}"));
        host.sh(&format!(
            "ping -n -c 1 -W 5 -I {address} {}",
            if address.contains(':') { "fd00:1::2" } else { "10.1.0.2" }
        ));
    }
    host.sh("ip addr add 10.3.7.1/24 dev n0 && ip addr add fd00:37::1/64 dev n0 nodad");
    b.sh("ip addr add 10.3.7.2/24 dev eth0 && ip addr add fd00:37::2/64 dev eth0 nodad");
    for address in ["10.3.7.1", "fd00:37::1"] {
        traffic::assert_pings(b, address);
    }
    assert_eq!(counted(host, "sources"), 0);
}
