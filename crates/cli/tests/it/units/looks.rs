//! `netwright-repair.service` and `netwright-collect.service` start before any attachment, as at a
//! boot.

use testkit::{Lab, Place as _, wait_until};

use super::Host;
use crate::docker::support::write_network;
use crate::system::NETWRIGHT;

const NET: &str = r#"{
  "cniVersion": "1.0.0", "name": "net",
  "plugins": [
    {"type": "bridge", "bridge": "net0", "isGateway": true, "ipMasq": true,
     "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
              "ranges": [[{"subnet": "10.76.0.0/24"}], [{"subnet": "fd76::/64"}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "firewall", "ingressPolicy": "same-bridge"},
    {"type": "tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}
  ]
}"#;

fn start(host: &Host<'_>, name: &str) {
    host.lab.sh(&format!(
        "{NETWRIGHT} add net {name} --cap 'portMappings=[{{\"hostPort\":80{},\"containerPort\":80,\"protocol\":\"tcp\"}}]'",
        if name == "c1" { 81 } else { 82 }
    ));
}

#[test]
fn repair_works_within_its_unit() {
    const UNIT: &str = "netwright-repair.service";
    testkit::require!("root", "file:/lib/systemd/systemd");
    let lab = &Lab::with_systemd("unit-repair");
    let host = Host::new(lab, UNIT);
    write_network(lab, "net", NET);
    host.exec(UNIT, "repair --interval 100ms");
    host.systemctl(&format!("enable --now {UNIT}"));
    let c1 = lab.container("c1");
    start(&host, "c1");
    lab.sh("nft flush ruleset; sysctl -qw net.ipv4.ip_forward=0; rm /var/lib/cni/networks/net/10.76.0.2");
    c1.sh("ip route del default; sysctl -qw net.ipv4.conf.eth0.arp_filter=0; ip -6 addr flush dev eth0 scope global");
    wait_until("everything to be put back", || {
        lab.sh("nft list ruleset").contains("tcp . 8081")
            && lab.sh("sysctl -n net.ipv4.ip_forward").trim() == "1"
            && lab.try_sh("test -s /var/lib/cni/networks/net/10.76.0.2").status.success()
            && c1.sh("ip route").contains("default")
            && c1.sh("ip -6 addr show dev eth0").contains("fd76::2/")
            && c1.sh("sysctl -n net.ipv4.conf.eth0.arp_filter").trim() == "1"
    });
    lab.sh(&format!("{NETWRIGHT} check net c1"));
    let log = host.log(UNIT);
    assert!(!log.contains("CAP_NET_BROADCAST is missing"), "{log}");
    host.assert_confined(UNIT);
}

#[test]
fn collect_works_within_its_unit() {
    const UNIT: &str = "netwright-collect.service";
    testkit::require!("root", "file:/lib/systemd/systemd");
    let lab = &Lab::with_systemd("unit-collect");
    let host = Host::new(lab, UNIT);
    write_network(lab, "net", NET);
    host.exec(UNIT, "collect --act --grace 0 --interval 100ms");
    host.systemctl(&format!("enable --now {UNIT}"));
    let (c1, c2) = (lab.container("c1"), lab.container("c2"));
    start(&host, "c1");
    start(&host, "c2");
    drop(c2);
    wait_until("what is left of it to go", || {
        !lab.sh("nft list ruleset").contains("tcp . 8082")
            && !lab.try_sh("test -e /var/lib/cni/networks/net/10.76.0.3").status.success()
            && lab.sh("ls /var/lib/cni/results").lines().count() == 1
            && lab.sh("ls /run/cni/tuning").lines().count() == 1
    });
    lab.sh(&format!("{NETWRIGHT} check net c1"));
    assert!(c1.sh("ip route").contains("default"));
    host.assert_confined(UNIT);
}
