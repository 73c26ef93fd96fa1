//! Attacks on Docker's containers, and by them, with real engines.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use testkit::real::{Docker, Engine};
use testkit::traffic::{Server, assert_pings, assert_tcp};
use testkit::{Lab, Place, Snapshot};

use super::life::{assert_neighbours, needs_docker, published};
use super::support::{Driver, LAN, assert_nothing_left, write_network};
use crate::system::{NETWRIGHT, install};

/// Makes a place send packets for its own loopback addresses to another host, by TCP and UDP, and
/// does not wait for a reply.
fn send_to_loopback_of(place: &impl Place, host: &str, port: u16) {
    place.sh(&format!(
        "ip addr flush dev lo && for i in all eth0; do echo 1 > /proc/sys/net/ipv4/conf/$i/route_localnet; \
         echo 0 > /proc/sys/net/ipv4/conf/$i/rp_filter; done; \
         ip route replace 127.0.0.0/8 via {host} dev eth0"
    ));
    place.enter(|| {
        let to = SocketAddr::from(([127, 0, 0, 1], port));
        UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"?", to).unwrap();
        assert!(TcpStream::connect_timeout(&to, Duration::from_millis(1)).is_err());
    });
    // The packets of the reply come later on the same path.
    assert_pings(place, host);
}

#[test]
fn a_port_at_a_loopback_address_is_for_the_host_alone() {
    testkit::require!("full");
    needs_docker!();
    loopback(Engine::Installed);
}

pub(super) fn loopback(engine: Engine) {
    let lab = Lab::with_processes("docker-loopback");
    let outside = lab.outside();
    install(&lab);
    let driver = Driver::start(&lab);
    let docker = Docker::of(&lab, engine, &[]);
    let before = Snapshot::take(&lab);
    for (number, name) in ["one", "two"].into_iter().enumerate() {
        docker.create_network(&format!(
            "--opt bridge={name}0 --ipam-driver netwright --subnet 10.7{number}.0.0/24 {name}"
        ));
    }
    let web = docker.start_container(
        "web",
        &[
            "--network",
            "one",
            "--publish",
            "127.0.0.1:8080:80",
            "--publish",
            "127.0.0.1:8080:80/udp",
        ],
    );
    let beside = docker.start_container("beside", &["--network", "one"]);
    let elsewhere = docker.start_container("elsewhere", &["--network", "two"]);
    web.sh("nft add table inet probe; \
            nft 'add chain inet probe in { type filter hook prerouting priority -400; }'; \
            nft 'add rule inet probe in iifname eth0 meta l4proto { tcp, udp } counter'");
    for localnet in [0, 1] {
        // Another program has changed this sysctl.
        lab.sh(&format!("echo {localnet} >/proc/sys/net/ipv4/conf/up0/route_localnet"));
        send_to_loopback_of(&outside, "198.51.100.1", 8080);
        send_to_loopback_of(&beside, "10.70.0.1", 8080);
        send_to_loopback_of(&elsewhere, "10.71.0.1", 8080);
    }
    let arrived = web.sh("nft list chain inet probe in; nft delete table inet probe");
    assert!(arrived.contains("counter packets 0 "), "{arrived}");
    {
        let _server = Server::tcp(&web, "0.0.0.0:80", "web");
        assert_eq!(assert_tcp(&lab, "127.0.0.1:8080").server, "web");
    }
    lab.sh("echo 0 >/proc/sys/net/ipv4/conf/up0/route_localnet");
    drop((web, beside, elsewhere));
    docker.remove(&["web", "beside", "elsewhere"]);
    docker.run(&["network", "rm", "one", "two"]);
    assert_nothing_left(&lab, &before);
    drop((driver, outside));
}

/// Some program unmounts the namespace that the driver keeps for the container's DEL.
#[test]
fn a_container_outlives_the_namespace_of_the_driver() {
    testkit::require!("full");
    needs_docker!();
    unmounted(Engine::Installed);
}

pub(super) fn unmounted(engine: Engine) {
    let lab = Lab::with_processes("docker-unmounted");
    install(&lab);
    write_network(&lab, "lan", LAN);
    let driver = Driver::start(&lab);
    let docker = Docker::of(&lab, engine, &[]);
    let before = Snapshot::take(&lab);
    docker.create_network("--opt conflist=lan --ipv6 --ipam-driver netwright --ipam-opt conflist=lan --subnet 10.71.0.0/24 --subnet fd71::/64 lan");
    let web = docker.start_container("web", &["--network", "lan", "--publish", "8080:80"]);
    let other = docker.start_container("other", &["--network", "lan"]);
    lab.sh("cd /run/netwright/docker/netns && umount * && rm *");
    let collected = lab.sh(&format!("{NETWRIGHT} gc"));
    assert!(collected.contains("removed 0, kept 2"), "{collected}");
    let c1 = lab.container("c1");
    let said = lab.try_sh(&format!("{NETWRIGHT} add lan c1 --publish 8080:80"));
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.status.success() && text.contains("8080"), "{text}");
    published(&lab, &web, &other, 8080);
    assert_neighbours(&web, &other);
    drop((web, other, c1));
    docker.remove(&["web", "other"]);
    docker.run(&["network", "rm", "lan"]);
    assert_nothing_left(&lab, &before);
    drop(driver);
}

/// Docker accepts any subnet that its user names: the uplink's, of which the driver makes no network,
/// and one that covers the uplink's, with the addresses of the node and of its router.
#[test]
fn a_container_gets_no_address_of_the_node_or_of_its_neighbours() {
    testkit::require!("full");
    needs_docker!();
    addresses(Engine::Installed);
}

pub(super) fn addresses(engine: Engine) {
    let lab = Lab::with_processes("docker-addresses");
    let outside = lab.outside();
    install(&lab);
    write_network(&lab, "lan", LAN);
    let driver = Driver::start(&lab);
    let docker = Docker::of(&lab, engine, &[]);
    let before = Snapshot::take(&lab);
    let uplinks = ["--opt", "bridge=near0", "--subnet", "198.51.100.0/24", "near"];
    let create = ["network", "create", "--driver", "netwright"];
    let said = docker.refused(&[&create[..], &uplinks].concat());
    assert!(said.contains("which is on the host's link \"up0\""), "{said}");
    docker
        .create_network("--opt bridge=near0 --subnet 198.51.0.0/16 --gateway 198.51.255.254 near");
    docker.create_network("--opt conflist=lan --subnet 10.71.0.0/24 lan");
    let c1 = lab.container("c1");
    lab.sh(&format!("{NETWRIGHT} add lan c1 --ip 10.71.0.9"));
    for (network, address) in [
        ("near", "198.51.100.1"),
        ("near", "198.51.100.2"),
        ("near", "198.51.100.77"),
        ("lan", "10.71.0.9"),
    ] {
        let run = ["run", "--rm", "--network", network, "--ip", address, Docker::IMAGE, "true"];
        let said = docker.refused(&run);
        assert!(said.contains("netwright: ") && said.contains(address), "{address}: {said}");
        docker.run(&["container", "prune", "--force"]);
        assert_pings(&lab, "198.51.100.2");
        assert!(!lab.sh("ip -o addr").contains("198.51.255.254"));
    }
    assert_pings(&c1, "10.71.0.1");
    lab.sh(&format!("{NETWRIGHT} del lan c1"));
    docker.run(&["network", "rm", "near", "lan"]);
    drop(c1);
    assert_nothing_left(&lab, &before);
    drop((driver, outside));
}
