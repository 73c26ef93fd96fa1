//! Sound nodes: `doctor` finds nothing, even if other programs have rules there too. A false alarm
//! costs more than a missed fault.
//!
//! Traffic first shows that a node is sound. Only then the test runs `doctor`.

mod kinds;
mod kube;
mod many;
mod ours;
mod ready;

use testkit::traffic::Server;
use testkit::{Lab, Place, RunningProgram, require, wait_until};

use super::situations::node::Node;
use crate::foreign_forward::{dockerd, ufw_enable};

/// Asserts that a node on which something else was set up first has traffic, and no finding.
#[track_caller]
fn is_sound(name: &str, prepare: impl FnOnce(&Lab)) {
    let node = Node::prepared(Lab::new(name), prepare);
    let complaints = node.complaints();
    assert!(complaints.is_empty(), "{name}: {complaints:#?}");
}

#[test]
fn beside_dockers_rules() {
    require!("root", "program:iptables-restore");
    is_sound("doctor-docker", |lab| dockerd(lab, ""));
}

#[test]
fn beside_ufws_rules() {
    require!("root", "program:iptables-restore");
    is_sound("doctor-ufw", ufw_enable);
}

#[test]
fn beside_podmans_rules() {
    require!("root", "program:nft");
    is_sound("doctor-podman", kinds::podman);
}

#[test]
fn beside_kube_proxys_rules_in_nftables() {
    require!("root", "program:nft");
    is_sound("doctor-kube-nft", kube::proxy_nftables);
}

#[test]
fn beside_kube_proxys_rules_in_iptables() {
    require!("root", "program:iptables-nft-restore");
    is_sound("doctor-kube-ipt", kube::proxy_iptables);
}

/// The programs with many chains, together on one node.
#[test]
fn beside_calico_cilium_libvirt_and_tailscale() {
    require!("root", "program:nft", "program:iptables-nft-restore", "file:/dev/net/tun");
    let all: [fn(&Lab); 4] =
        [kube::calico_iptables, kube::cilium, kinds::libvirt_nftables, kinds::tailscale];
    is_sound("doctor-chains", |lab| all.iter().for_each(|make| make(lab)));
}

/// A bus that permits every client everything and starts no services.
const BUS: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/></policy>
</busconfig>"#;

/// The bus's address for clients.
const BUS_ADDRESS: &str = "DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/dbus/system_bus_socket";

/// Starts Debian's firewalld, and waits until its rules are there.
pub(super) fn firewalld(lab: &Lab) -> [RunningProgram; 2] {
    lab.sh("mkdir -p /run/dbus /var/log /etc/firewalld");
    let config = lab.dir().join("bus.xml");
    std::fs::write(&config, BUS).unwrap();
    let config = format!("--config-file={}", config.display());
    let bus = lab.start("dbus-daemon", &[&config, "--nofork", "--nopidfile"]);
    let succeeds = |command: &str| lab.try_sh(command).status.success();
    wait_until("the bus", || succeeds("test -S /run/dbus/system_bus_socket"));
    let daemon = lab.start("env", &[BUS_ADDRESS, "firewalld", "--nofork"]);
    wait_until("firewalld", || succeeds(&format!("{BUS_ADDRESS} firewall-cmd --state")));
    [daemon, bus]
}

/// The plugin `firewall` adds each container to a zone that lets it through.
#[test]
fn beside_firewalld() {
    require!("root", "program:firewalld", "program:dbus-daemon");
    let lab = Lab::with_processes("doctor-firewalld");
    let mut running = None;
    let node = Node::prepared(lab, |lab| running = Some(firewalld(lab)));
    let complaints = node.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
    drop(node);
    drop(running);
}

/// A bridge without containers, an isolated network, and one without a way out, all by intent. The
/// files of names are as many have them.
#[test]
fn beside_networks_that_lead_nowhere() {
    require!("root");
    let node = Node::new("doctor-nowhere");
    let network = |name: &str, subnet: &str| {
        let text = r#"{"cniVersion": "1.0.0", "name": "NAME", "plugins": [
            {"type": "bridge", "bridge": "NAME0", "isGateway": true,
             "ipam": {"type": "host-local", "ranges": [[{"subnet": "SUBNET"}]]}}]}"#;
        let text = text.replace("NAME", name).replace("SUBNET", subnet);
        node.network(&format!("60-{name}"), &text);
    };
    network("alone", "10.94.0.0/24");
    network("empty", "10.95.0.0/24");
    let (done, said) = node.run(
        "netwright add alone c3 --container-id c3; ip link add idle0 type bridge; \
         ip addr add 10.93.0.1/24 dev idle0; ip link set idle0 up; \
         echo 'hosts: files mdns4_minimal [NOTFOUND=return] dns' >/etc/netns/c1/nsswitch.conf; \
         printf '127.0.0.1 localhost\\n::1 localhost\\n{a1} c1\\n' >/etc/netns/c1/hosts",
    );
    assert!(done, "{said}");
    let complaints = node.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// A program reads the queue that a rule fills, and lets all packets pass. Another program listens
/// where a rule sends connections. A routing rule leads to a router that exists.
#[test]
fn beside_a_queue_a_proxy_and_a_routing_rule() {
    require!("root", "full", "program:python3", "program:iptables-nft");
    let mut node = Node::new("doctor-queue");
    node.read_queue("accept");
    let _proxy = Server::tcp(&node.lab, "[::]:9443", "proxy");
    let (done, said) = node.run(
        "iptables-nft -I FORWARD -j NFQUEUE --queue-num 7; \
         iptables-nft -t nat -I PREROUTING -i cni0 -p tcp --dport 443 -j REDIRECT --to-ports 9443; \
         ip route add default via 198.51.100.2 table 100; \
         ip route add 10.88.0.0/24 dev cni0 table 100; \
         ip rule add pref 100 from 10.88.0.0/24 lookup 100",
    );
    assert!(done, "{said}");
    let complaints = node.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// Some connections go through one router, and others through another.
#[test]
fn between_two_routers() {
    require!("root", "full");
    let node = Node::new("doctor-routers");
    let (done, said) = node.run(
        "ip link add up1 type veth peer name eth9 netns outside; \
         ip addr add 192.0.2.1/24 dev up1; ip link set up1 up; \
         ip -n outside addr add 192.0.2.2/24 dev eth9; ip -n outside link set eth9 up; \
         ip route replace default nexthop via 198.51.100.2 dev up0 nexthop via 192.0.2.2 dev up1",
    );
    assert!(done, "{said}");
    let complaints = node.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// The default route has no router, and one answers for all addresses there (proxy ARP). A queue
/// that no program reads lets packets pass, and a rule gives them 64 hops. Others tell the first
/// packet of a connection from what follows it, and send frames for one address to another link.
#[test]
fn behind_a_router_that_answers_for_all() {
    require!("root", "full", "program:iptables-nft", "program:nft");
    let node = Node::new("doctor-proxy-arp");
    let (done, said) = node.run(
        "ip netns exec outside sysctl -qw net.ipv4.conf.eth0.proxy_arp=1 \
         net.ipv4.neigh.eth0.proxy_delay=0; ip route replace default dev up0; \
         iptables-nft -I FORWARD -j NFQUEUE --queue-num 7 --queue-bypass; \
         iptables-nft -t mangle -I PREROUTING -j TTL --ttl-set 64; \
         nft 'add table ip other; \
         add chain ip other forward { type filter hook forward priority 0; }; \
         add rule ip other forward ct state established,related accept; \
         add rule ip other forward ct direction reply drop'; \
         nft 'add table netdev own; \
         add chain netdev own in { type filter hook ingress device \"{p1}\" priority 0; }; \
         add rule netdev own in ip daddr 192.0.2.250 fwd to \"up0\"'",
    );
    assert!(done, "{said}");
    let complaints = node.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}
