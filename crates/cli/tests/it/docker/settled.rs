//! The driver applies settings that Docker does not know.

use testkit::real::{Docker, Engine};
use testkit::traffic::assert_pings;
use testkit::{Lab, Place, Snapshot};

use super::life::needs_docker;
use super::support::{Driver, assert_nothing_left, write_network};
use crate::system::{address_of, install};

/// A routed pair with two more addresses than Docker can express, a route, sysctls and an MTU.
const RICH: &str = r#"{
  "cniVersion": "1.0.0", "name": "rich",
  "plugins": [
    {"type": "ptp", "ipMasq": true,
     "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "198.51.100.0/24"}],
              "ranges": [[{"subnet": "10.78.0.0/24"}], [{"subnet": "10.79.0.0/24"}], [{"subnet": "fd78::/64"}]]}},
    {"type": "tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.rp_filter": "2"}},
    {"type": "firewall"}
  ]
}"#;

#[test]
fn addresses_routes_and_switches() {
    needs_docker!();
    rich_network(Engine::Installed);
}

pub(super) fn rich_network(engine: Engine) {
    let lab = Lab::with_processes("docker-settled");
    install(&lab);
    write_network(&lab, "rich", RICH);
    let driver = Driver::start(&lab);
    let docker = Docker::of(&lab, engine, &[]);
    let before = Snapshot::take(&lab);
    docker.create_network("--opt conflist=rich --ipam-driver null rich");
    let one = docker.start_container("one", &["--network", "rich"]);
    let two = docker.start_container("two", &["--network", "rich"]);
    // The driver adds it after the start.
    one.sh("timeout 10 sh -c 'until ip addr show eth0 | grep -q 10.79.0; do sleep 0.02; done'");
    two.sh("timeout 10 sh -c 'until ip addr show eth0 | grep -q 10.79.0; do sleep 0.02; done'");
    let link = one.sh("ip link show eth0; cat /proc/sys/net/ipv4/conf/eth0/rp_filter");
    assert!(link.contains("mtu 1400") && link.trim_end().ends_with('2'), "{link}");
    let routes = one.sh("ip route show");
    assert!(routes.contains("default via 10.78.0.1 dev eth0"), "{routes}");
    assert!(routes.contains("198.51.100.0/24 via 10.78.0.1 dev eth0"), "{routes}");
    // Every destination is behind the gateway of a routed pair, its own subnet too.
    assert!(routes.contains("10.78.0.0/24 via 10.78.0.1 dev eth0"), "{routes}");
    for family in ["inet", "inet6"] {
        assert_pings(&one, &address_of(&two, "eth0", family).to_string());
    }
    let further = two.sh("ip -4 -o addr show eth0 | grep -o '10\\.79\\.[0-9.]*' | head -1");
    assert_pings(&one, further.trim());
    drop((one, two));
    docker.remove(&["one", "two"]);
    docker.run(&["network", "rm", "rich"]);
    assert_nothing_left(&lab, &before);
    drop(driver);
}

/// Packets leave by the network whose address they carry.
const SOURCED: &str = r#"{
  "cniVersion": "1.0.0", "name": "NAME",
  "plugins": [
    {"type": "bridge", "bridge": "NAME0", "isGateway": true,
     "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
              "ranges": [[{"subnet": "10.SUBNET.0.0/24"}], [{"subnet": "fdSUBNET::/64"}]]}},
    {"type": "sbr"}
  ]
}"#;

#[test]
fn source_based_routing() {
    needs_docker!();
    two_ways(Engine::Installed);
}

pub(super) fn two_ways(engine: Engine) {
    let lab = Lab::with_processes("docker-sourced");
    install(&lab);
    for (name, subnet) in [("east", "83"), ("west", "84")] {
        write_network(&lab, name, &SOURCED.replace("NAME", name).replace("SUBNET", subnet));
    }
    let driver = Driver::start(&lab);
    let docker = Docker::of(&lab, engine, &[]);
    let before = Snapshot::take(&lab);
    for name in ["east", "west"] {
        let list = format!("conflist={name}");
        let head = ["network", "create", "--driver", "netwright", "--ipam-driver", "null"];
        docker.run(&[&head[..], &["--opt", &list, name]].concat());
    }
    let one = docker.start_container("one", &["--network", "east"]);
    docker.run(&["network", "connect", "west", "one"]);
    // The driver adds it after the start; both plugins chose the same tables.
    one.sh("timeout 10 sh -c 'until test $(ip -6 rule | grep -c fd8) = 2; do sleep 0.02; done'");
    for (ifname, subnet) in [("eth0", "83"), ("eth1", "84")] {
        for (family, gateway) in
            [("-4", format!("10.{subnet}.0.1")), ("-6", format!("fd{subnet}::1"))]
        {
            let kind = if family == "-4" { "inet" } else { "inet6" };
            let address = address_of(&one, ifname, kind).to_string();
            // A destination that is on no link, for packets from this address.
            let far = if family == "-4" { "192.0.2.9" } else { "2001:db8::9" };
            let route = one.sh(&format!("ip {family} route get {far} from {address}"));
            assert!(route.contains(&format!("via {gateway} dev {ifname}")), "{route}");
            assert_pings(&lab, &address);
        }
    }
    docker.run(&["network", "disconnect", "west", "one"]);
    let rules = one.sh("ip -4 rule; ip -6 rule");
    assert!(rules.contains("10.83.0.") && rules.contains("fd83::"), "{rules}");
    assert!(!rules.contains("10.84.0.") && !rules.contains("fd84::"), "{rules}");
    drop(one);
    docker.remove(&["one"]);
    docker.run(&["network", "rm", "east", "west"]);
    assert_nothing_left(&lab, &before);
    drop(driver);
}
