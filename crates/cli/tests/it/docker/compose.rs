//! Compose files: two services, one of them on two of our networks.

use testkit::real::{Docker, Engine};
use testkit::traffic::assert_pings;
use testkit::{Lab, Place as _, Snapshot};

use super::life::needs_newest;
use super::support::{CniContainer, Driver, LAN, assert_nothing_left, write_network};
use crate::system::{address_of, fetch, install};

/// A network made from options, and one that is a network list of the node.
const FILE: &str = r#"
name: shop
services:
  web:
    image: busybox:test
    pull_policy: never
    command: ["sh", "-c", "mkdir /www; echo hello from web >/www/index.html; exec httpd -f -p [::]:80 -h /www"]
    ports: ["8080:80"]
    stop_grace_period: 0s
    networks:
      front:
        ipv4_address: 10.81.0.80
        ipv6_address: fd81::80
        mac_address: 02:00:00:00:00:80
  client:
    image: busybox:test
    pull_policy: never
    stop_grace_period: 0s
    depends_on: [web]
    networks: [front, back]
networks:
  front:
    driver: netwright
    driver_opts: {bridge: front0, mtu: "1400"}
    enable_ipv6: true
    ipam:
      driver: netwright
      config: [{subnet: 10.81.0.0/24, gateway: 10.81.0.254}, {subnet: "fd81::/64"}]
  back:
    driver: netwright
    driver_opts: {conflist: lan}
    ipam:
      driver: netwright
      options: {conflist: lan}
      config: [{subnet: 10.71.0.0/24}]
"#;

const MAC: &str = "mac_address: 02:00:00:00:00:80";

#[test]
fn two_services() {
    testkit::require!("full");
    needs_newest!();
    services(Engine::Installed);
}

pub(super) fn services(engine: Engine) {
    let lab = Lab::with_processes("docker-compose");
    install(&lab);
    write_network(&lab, "lan", LAN);
    let driver = Driver::start(&lab);
    let docker = Docker::of(&lab, engine, &[]);
    let file = lab.dir().join("compose.yaml");
    // The older engine does not accept a hardware address for each network.
    let text = if engine == Engine::Installed { FILE.replace(MAC, "") } else { FILE.to_owned() };
    std::fs::write(&file, text).unwrap();
    let before = Snapshot::take(&lab);
    docker.compose(&file, &["up", "--detach", "--wait"]);
    let (web, client) = (docker.netns("shop-web-1"), docker.netns("shop-client-1"));
    let link = web.sh("ip link show eth0; ip -4 route show default");
    assert!(link.contains("mtu 1400") && link.contains("via 10.81.0.254"), "{link}");
    assert_eq!(link.contains("02:00:00:00:00:80"), engine == Engine::Newest, "{link}");
    for address in ["10.81.0.80", "fd81::80"] {
        assert_pings(&client, address);
    }
    for url in ["http://127.0.0.1:8080/", "http://10.81.0.80/", "http://[fd81::80]/"] {
        assert_eq!(fetch(&lab, url).trim(), "hello from web", "{url}");
    }
    assert_eq!(fetch(&client, "http://10.81.0.254:8080/").trim(), "hello from web");
    let said = docker.run(&["exec", "shop-client-1", "nslookup", "web", "127.0.0.11"]);
    assert!(said.contains("10.81.0.80"), "{said}");
    // The other network is the node's.
    let (run, cni) = CniContainer::run(&lab, &["--net", "lan"]);
    assert_pings(&client, &address_of(&cni, "eth0", "inet").to_string());
    drop(cni);
    run.end();
    drop((web, client));

    docker.compose(&file, &["restart", "--timeout", "0", "web"]);
    assert_pings(&docker.netns("shop-client-1"), "10.81.0.80");
    docker.compose(&file, &["down", "--timeout", "0"]);
    assert_nothing_left(&lab, &before);
    drop(driver);
}
