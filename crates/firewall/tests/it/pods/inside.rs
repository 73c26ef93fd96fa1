//! The table in a container's own namespace, with real packets between macvlans of one parent,
//! which do not pass the node's filter.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use expect_test::expect;
use firewall::pods::{self, DroppedPackets, PodsTable};
use kernel::conntrack::{ConntrackSocket, FlowFilter};
use kernel::netns::Netns;
use kernel::route::IpFamily;
use netwright_firewall as firewall;
use policy::multi_policy::{self, MultiPolicy};
use policy::networks::{Attachment, NetworkInterface};
use policy::{Networks, Program, World};
use serde_json::{Value, json};
use testkit::probe::{Ends, Packet, Station};
use testkit::traffic::{Server, assert_no_tcp, assert_pings, assert_tcp};
use testkit::{Container, Lab, Place, wait_until};

use super::clusters::NODE;
use super::clusters::support::{namespace, pod};

/// How long a packet may be on its way on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);
const PORT: u16 = 80;
const FAMILIES: [usize; 2] = [0, 1];

/// Three containers with the interface `net1`; policies apply to the first.
struct Macvlans {
    lab: Lab,
    containers: Vec<Container>,
    table: PodsTable,
    conntrack: ConntrackSocket,
}

/// The addresses of a container, by its number from 1.
fn of(number: usize) -> [String; 2] {
    [format!("172.16.0.{number}"), format!("fd00:16::{number}")]
}

fn at(number: usize, family: usize) -> SocketAddr {
    SocketAddr::new(of(number)[family].parse().unwrap(), PORT)
}

impl Macvlans {
    fn new(name: &str) -> Self {
        let lab = Lab::new(name);
        lab.sh("ip link add p0 type veth peer name p0x && ip link set p0x up && ip link set p0 up");
        let attach = |number: usize| {
            let container = lab.container(&format!("c{number}"));
            lab.sh(&format!(
                "ip link add m{number} link p0 type macvlan mode bridge && \
                 ip link set m{number} netns c{number} name net1"
            ));
            let [v4, v6] = of(number);
            container.sh(&format!(
                "ip link set lo up && ip addr add {v4}/24 dev net1 && \
                 ip addr add {v6}/64 dev net1 nodad && ip link set net1 up"
            ));
            container
        };
        let containers: Vec<Container> = (1..=3).map(attach).collect();
        let netns = Netns::open(&containers[0].netns_path()).unwrap();
        let table = PodsTable::open_inside(&netns).unwrap();
        let conntrack = ConntrackSocket::open_in(&netns).unwrap();
        Macvlans { lab, containers, table, conntrack }
    }

    /// Asserts whether one container reaches another by ping, with new neighbour discovery.
    #[track_caller]
    fn pings(&self, from: usize, to: usize, arrive: bool) {
        let container = &self.containers[from - 1];
        container.sh("ip neigh flush all && ip -6 neigh flush all");
        match arrive {
            true => of(to).iter().for_each(|address| assert_pings(container, address)),
            false => silent(container, &of(to).join(" ")),
        }
    }
}

/// Asserts that none of these addresses answers. All are tried at once.
#[track_caller]
fn silent(from: &impl Place, addresses: &str) {
    let answered = from.sh(&format!(
        "for to in {addresses}; do (ping -n -q -c 1 -W 0.4 $to >/dev/null 2>&1 && echo $to) & done; \
         wait"
    ));
    assert_eq!(answered, "", "answers {}", from.place_name());
}

/// The further network `shop/a`, with `shop/db` as the first container and `shop/web` as the
/// second.
struct Cluster {
    own: World,
    networks: Networks,
}

impl Cluster {
    fn new() -> Self {
        let own = World::of(None, [namespace("shop", json!({})).into()]);
        let mut networks = Networks::new(NODE);
        for (number, name) in [(1, "shop/db"), (2, "shop/web")] {
            let addresses = of(number);
            let pod =
                pod(name, NODE, json!({"app": name[5..]}), &addresses.each_ref().map(|a| &**a));
            let attachment = Attachment {
                network: Some("shop/a".to_owned()),
                pod: Some(pod.uid.clone()),
                interface: "net1".to_owned(),
                inside: true,
                addresses: pod.addresses.clone(),
            };
            networks.attachment(name, Some(attachment), &own);
            let on = NetworkInterface {
                network: "shop/a".to_owned(),
                interface: "net1".to_owned(),
                addresses: pod.addresses.clone(),
            };
            networks.pod(&pod.uid.clone(), Some((pod, vec![on])), &own);
        }
        Cluster { own, networks }
    }

    /// The program of the first container under a policy.
    fn under(&mut self, spec: &Value) -> Program {
        let mut spec = spec.clone();
        spec["podSelector"] = json!({"matchLabels": {"app": "db"}});
        let annotations = json!({"k8s.v1.cni.cncf.io/policy-for": "a"});
        let metadata = json!({"namespace": "shop", "name": "x", "annotations": annotations});
        let policy: MultiPolicy =
            multi_policy::read(&json!({"metadata": metadata, "spec": spec})).unwrap();
        self.networks.policy(&policy.policy.id.clone(), Some(policy), &self.own);
        self.networks.settle();
        self.networks.inside(["shop/db"])
    }
}

fn web() -> Value {
    json!([{"podSelector": {"matchLabels": {"app": "web"}}}])
}

#[test]
fn packets_that_do_not_pass_the_node_are_judged_in_the_container() {
    testkit::require!("root");
    let mut macvlans = Macvlans::new("podsinside");
    macvlans.pings(2, 1, true);
    pods::close_interface(&mut macvlans.table, "net1").unwrap();
    macvlans.pings(1, 2, false);
    macvlans.pings(1, 1, true);
    macvlans.pings(2, 3, true);
    // Unrecorded addresses do not bypass the policy.
    let link_local = macvlans.containers[0]
        .sh("ip -j -6 addr show dev net1 scope link | jq -r '.[0].addr_info[0].local'");
    let link_local = format!("{}%net1", link_local.trim());
    silent(&macvlans.containers[1], &format!("{} {link_local}", of(1).join(" ")));
    let judged = pods::interfaces(&mut macvlans.table).unwrap();
    assert_eq!(judged, BTreeSet::from(["net1".to_owned()]));
    // The node's packet filter has nothing of it.
    assert_eq!(macvlans.lab.sh("nft list ruleset"), "");

    let mut cluster = Cluster::new();
    let program = cluster.under(&json!({"ingress": [{"from": web(), "ports": [{"port": PORT}]}]}));
    macvlans.table.bring(&program).unwrap();
    assert!(macvlans.table.observe(&program).unwrap().is_empty());
    let before = macvlans.table.dropped().unwrap();
    for family in FAMILIES {
        let listen = if family == 0 { "0.0.0.0:80" } else { "[::]:80" };
        let _server = Server::tcp(&macvlans.containers[0], listen, "db");
        assert_tcp(&macvlans.containers[1], &at(1, family).to_string());
        assert_no_tcp(&macvlans.containers[2], &at(1, family).to_string());
    }
    silent(&macvlans.containers[1], &format!("{} {link_local}", of(1).join(" ")));
    // Egress is not limited, and replies come back.
    macvlans.pings(1, 3, true);
    let after = macvlans.table.dropped().unwrap();
    assert!(before.incoming < after.incoming && before.outgoing == after.outgoing, "{after:?}");

    let out = json!({"policyTypes": ["Egress"], "egress": [{"to": web()}]});
    macvlans.table.bring(&cluster.under(&out)).unwrap();
    macvlans.pings(1, 2, true);
    macvlans.pings(1, 3, false);
    macvlans.pings(3, 1, true);
    pods::forget_interface(&mut macvlans.table, "net1").unwrap();
    macvlans.pings(1, 3, true);
    macvlans.table.remove().unwrap();
    assert_eq!(macvlans.containers[0].sh("nft list ruleset"), "");
}

/// Packets that a container forwards in or out by this interface are judged like its own.
#[test]
fn a_container_that_forwards_is_no_way_around() {
    testkit::require!("root");
    let mut macvlans = Macvlans::new("podsrouter");
    macvlans.lab.sh("ip link add h0 type veth peer name eth0 netns c1 && ip link set h0 up && \
         ip addr add 192.0.2.1/24 dev h0 && ip route add 172.16.0.0/24 via 192.0.2.2");
    macvlans.containers[0].sh("ip addr add 192.0.2.2/24 dev eth0 && ip link set eth0 up && \
         echo 1 > /proc/sys/net/ipv4/ip_forward");
    macvlans.containers[1].sh("ip route add 192.0.2.0/24 via 172.16.0.1");
    assert_pings(&macvlans.lab, "172.16.0.2");
    pods::close_interface(&mut macvlans.table, "net1").unwrap();
    silent(&macvlans.lab, "172.16.0.2");
    silent(&macvlans.containers[1], "192.0.2.1");
    // The container's other interfaces are not affected.
    assert_pings(&macvlans.lab, "192.0.2.2");
}

/// The ICMPv6 messages that a host needs on its link pass, and no others: none from beyond the link
/// comes in, and no router's message goes out.
#[test]
fn a_closed_container_hears_of_neighbours_and_routers_alone() {
    testkit::require!("root");
    let mut macvlans = Macvlans::new("podsinsidend");
    macvlans.pings(2, 1, true);
    pods::close_interface(&mut macvlans.table, "net1").unwrap();
    let [one, two] = [1, 2].map(|number| of(number)[1].parse::<IpAddr>().unwrap());
    let from = |source, destination| {
        move |kind: u8, hop_limit: u8| -> Packet {
            let mut packet = Ends { source, destination }.icmp6(kind, 7);
            packet.bytes[7] = hop_limit;
            packet
        }
    };
    // Into the container: the messages that may not pass are counted one after the other, and the
    // others are not.
    let (station, packet) = (Station::at(&macvlans.containers[1]), from(two, one));
    let before = macvlans.table.dropped().unwrap().incoming;
    let may = [(134, 255), (135, 255), (136, 255)];
    let may_not = [(133, 255), (137, 255), (134, 254), (135, 64), (136, 1), (130, 1), (143, 1)];
    // A multicast listener query comes from the link.
    station.send(&from("fe80::2".parse().unwrap(), one)(130, 1));
    for (kind, hop_limit) in may.into_iter().chain(may_not) {
        station.send(&packet(kind, hop_limit));
    }
    let mut dropped = 0;
    wait_until("the last one to be dropped", || {
        dropped = macvlans.table.dropped().unwrap().incoming - before;
        may_not.len() <= usize::try_from(dropped).unwrap()
    });
    assert_eq!(usize::try_from(dropped).unwrap(), may_not.len());
    // Out of the container: the kernel reports to the sender.
    let (station, packet) = (Station::at(&macvlans.containers[0]), from(one, two));
    for (kind, hop_limit) in [(133, 255), (135, 255), (136, 255)] {
        assert!(station.sends(&packet(kind, hop_limit)), "{kind} {hop_limit}");
    }
    for (kind, hop_limit) in [(134, 255), (137, 255), (135, 64), (130, 1), (131, 1), (143, 1)] {
        assert!(!station.sends(&packet(kind, hop_limit)), "{kind} {hop_limit}");
    }
}

/// For an interface in a VRF the kernel reports the VRF's name.
#[test]
fn vm_an_interface_in_a_vrf_is_judged_in_the_container() {
    testkit::require!("root", "vrf");
    let mut macvlans = Macvlans::new("podsinsidevrf");
    let [v4, v6] = of(1);
    // A link that joins a VRF loses its IPv6 addresses.
    macvlans.containers[0].sh(&format!(
        "ip link add red type vrf table 10 && ip link set red up && \
         ip link set net1 master red && ip addr replace {v4}/24 dev net1 && \
         ip addr replace {v6}/64 dev net1 nodad"
    ));
    let leaves = |macvlans: &Macvlans, to: &str| {
        let ping = format!("ping -n -q -c 1 -W 0.4 -I red {to}");
        macvlans.containers[0].try_sh(&ping).status.success()
    };
    macvlans.pings(2, 1, true);
    for address in of(2) {
        wait_until("the other one to answer", || leaves(&macvlans, &address));
    }
    pods::close_interface(&mut macvlans.table, "net1").unwrap();
    macvlans.pings(2, 1, false);
    assert!(of(2).iter().all(|address| !leaves(&macvlans, address)));
    // Forwarded packets do not bypass the policy either.
    macvlans.containers[0].sh("ip link add h0 type veth peer name h0x && ip link set h0x up && ip link set h0 master red up && \
         ip addr add 192.0.2.1/24 dev h0 && echo 1 > /proc/sys/net/ipv4/ip_forward");
    macvlans.containers[1].sh("ip route add 192.0.2.0/24 via 172.16.0.1");
    let before = macvlans.table.dropped().unwrap();
    silent(&macvlans.containers[1], "192.0.2.1 192.0.2.9");
    let after = macvlans.table.dropped().unwrap();
    assert!(before.incoming + 1 < after.incoming, "{after:?}");
}

/// A cut connection ends at both ends, whichever sends first.
#[test]
fn a_connection_that_was_cut_in_a_container_stays_cut() {
    testkit::require!("root");
    let mut macvlans = Macvlans::new("podsinsidecut");
    let mut cluster = Cluster::new();
    let open = cluster.under(&json!({"ingress": [{"from": web()}]}));
    let shut = cluster.under(&json!({"ingress": []}));
    for (family, client_is_first) in [(0, true), (1, true), (0, false), (1, false)] {
        macvlans.table.bring(&open).unwrap();
        let address: IpAddr = at(1, family).ip();
        let listener = macvlans.containers[0].enter(|| TcpListener::bind((address, PORT)).unwrap());
        let client = macvlans.containers[1]
            .enter(|| TcpStream::connect_timeout(&at(1, family), DEADLINE).unwrap());
        let (server, _) = listener.accept().unwrap();
        let mut ends = [client, server];
        for end in &ends {
            end.set_read_timeout(Some(DEADLINE)).unwrap();
        }
        macvlans.table.bring(&shut).unwrap();
        // While its flow exists, the connection continues.
        ends[0].write_all(b"?").unwrap();
        ends[1].read_exact(&mut [0; 1]).unwrap();
        let all = FlowFilter::all(if family == 0 { IpFamily::V4 } else { IpFamily::V6 });
        assert!(0 < macvlans.conntrack.delete_flows(&all).unwrap());
        let first = &mut ends[usize::from(!client_is_first)];
        let said = first.write_all(b"?").and_then(|()| first.read_exact(&mut [0; 1]));
        said.unwrap_err();
        let DroppedPackets { incoming, revived, .. } = macvlans.table.dropped().unwrap();
        assert!(if client_is_first { 0 < incoming } else { 0 < revived }, "{incoming} {revived}");
    }
}

/// A user with rights in the container changes the table, and it is restored. A new element is one
/// transaction, and other elements stay.
#[test]
fn what_a_container_does_to_its_table_is_put_back() {
    testkit::require!("root");
    let mut macvlans = Macvlans::new("podsundone");
    let mut cluster = Cluster::new();
    let program = cluster.under(&json!({"ingress": [{"from": web()}]}));
    macvlans.table.bring(&program).unwrap();
    for damage in [
        "nft flush ruleset",
        "nft flush chain inet netwright-policy ingress",
        "nft delete element inet netwright-policy at-in '{ net1 }'",
        "nft insert rule inet netwright-policy deny-in accept",
    ] {
        macvlans.containers[0].sh(damage);
        assert!(!macvlans.table.observe(&program).unwrap().is_empty(), "{damage}");
        macvlans.table.bring(&program).unwrap();
        let difference = macvlans.table.observe(&program).unwrap();
        assert!(difference.is_empty(), "{damage}: {difference}");
    }
    let peer = pod("shop/web-2", "two", json!({"app": "web"}), &["172.16.0.3"]);
    let (network, interface) = ("shop/a".to_owned(), "net1".to_owned());
    let on = NetworkInterface { network, interface, addresses: peer.addresses.clone() };
    let uid = peer.uid.clone();
    let steps = cluster.networks.pod(&uid, Some((peer, vec![on])), &cluster.own);
    macvlans.pings(3, 1, false);
    macvlans.table.apply(&steps).unwrap();
    assert_pings(&macvlans.containers[2], "172.16.0.1");
    let now = cluster.networks.inside(["shop/db"]);
    assert!(macvlans.table.observe(&now).unwrap().is_empty());
}

/// The base chains as nft lists them. `docs/firewall.md` explains them.
#[test]
fn the_table_of_a_container_reads_well() {
    testkit::require!("root");
    let mut macvlans = Macvlans::new("podsinsidelist");
    pods::close_interface(&mut macvlans.table, "net1").unwrap();
    let listed = macvlans.containers[0].sh(
        "nft list map inet netwright-policy at-in && nft list chain inet netwright-policy ingress && \
         nft list chain inet netwright-policy revived",
    );
    expect![[r#"
        table inet netwright-policy {
        	map at-in {
        		type ifname : verdict
        		elements = { "net1" : goto unknown-in }
        	}
        }
        table inet netwright-policy {
        	chain ingress {
        		type filter hook input priority filter + 6; policy accept;
        		ct state established,related accept
        		tcp flags != syn / fin,syn,rst,ack jump revived
        		ct state new tcp flags != syn / fin,syn,rst,ack meta sdifname @has-at-out goto cut
        		icmpv6 type 134-136 ip6 hoplimit 255 accept
        		icmpv6 type mld-listener-query ip6 hoplimit 1 ip6 saddr fe80::/10 accept
        		iifname vmap @at-in
        		meta sdifname vmap @at-in
        	}
        }
        table inet netwright-policy {
        	chain revived {
        		ct state ! new return
        		oifname @has-at-in goto cut
        		iifname @has-at-out goto cut
        	}
        }
    "#]]
    .assert_eq(&listed);
}
