//! Sound nodes: where others have rules too, `doctor` finds nothing. A false alarm costs more than
//! a fault that is not found.

use testkit::{Lab, Place, Running, require, wait_until};

use super::situations::node::Node;
use crate::foreign_forward::{dockerd, ufw_enable};

/// Asserts that a node on which something else was first has traffic, and no finding.
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

/// As netavark 1.12 writes it (`src/firewall/nft.rs`), for one network and a port.
const NETAVARK: &str = "nft -f - <<'X'
table inet netavark {
  chain INPUT {
    type filter hook input priority filter; policy accept;
    ip saddr 10.89.0.0/24 meta l4proto { tcp, udp } th dport 53 accept
  }
  chain FORWARD {
    type filter hook forward priority filter; policy accept;
    ct state invalid drop
    jump NETAVARK-ISOLATION-1
    ip daddr 10.89.0.0/24 ct state established,related accept
    ip saddr 10.89.0.0/24 accept
  }
  chain POSTROUTING {
    type nat hook postrouting priority srcnat; policy accept;
    meta mark & 0x00002000 == 0x00002000 masquerade
    ip saddr 10.89.0.0/24 jump nv_2f259bab_10_89_0_0_nm24
  }
  chain PREROUTING {
    type nat hook prerouting priority dstnat; policy accept;
    fib daddr type local jump NETAVARK-HOSTPORT-DNAT
  }
  chain OUTPUT {
    type nat hook output priority -100; policy accept;
    fib daddr type local jump NETAVARK-HOSTPORT-DNAT
  }
  chain NETAVARK-HOSTPORT-DNAT {
    tcp dport 8088 jump nv_2f259bab_10_89_0_0_nm24_dnat
  }
  chain NETAVARK-HOSTPORT-SETMARK { meta mark set meta mark | 0x00002000; }
  chain NETAVARK-ISOLATION-1 { iifname \"podman1\" oifname != \"podman1\" jump NETAVARK-ISOLATION-2; }
  chain NETAVARK-ISOLATION-2 { oifname \"podman1\" drop; }
  chain NETAVARK-ISOLATION-3 { oifname \"podman1\" drop; jump NETAVARK-ISOLATION-2; }
  chain nv_2f259bab_10_89_0_0_nm24 {
    ip daddr 10.89.0.0/24 accept
    ip daddr != 224.0.0.0/4 masquerade
  }
  chain nv_2f259bab_10_89_0_0_nm24_dnat {
    ip saddr 10.89.0.0/24 tcp dport 8088 jump NETAVARK-HOSTPORT-SETMARK
    ip saddr 127.0.0.1 tcp dport 8088 jump NETAVARK-HOSTPORT-SETMARK
    tcp dport 8088 dnat ip to 10.89.0.2:80
  }
}
X";

#[test]
fn beside_podmans_rules() {
    require!("root", "program:nft");
    is_sound("doctor-podman", |lab| {
        lab.sh(NETAVARK);
    });
}

/// As kube-proxy's `pkg/proxy/nftables/proxier.go` writes it, for one service.
const KUBE_PROXY_NFTABLES: &str = "nft -f - <<'X'
table ip kube-proxy {
  chain filter-forward {
    type filter hook forward priority -110; policy accept;
    ct state new jump cluster-ips-check
  }
  chain filter-input {
    type filter hook input priority -110; policy accept;
    ct state new jump cluster-ips-check
  }
  chain cluster-ips-check { ip daddr 10.96.0.0/12 reject; }
  chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; jump services; }
  chain nat-output { type nat hook output priority -100; policy accept; jump services; }
  chain nat-postrouting { type nat hook postrouting priority srcnat; policy accept; jump masquerading; }
  chain services {
    ip daddr 10.96.0.10 tcp dport 80 ip saddr != 10.244.0.0/16 meta mark set meta mark or 0x4000
    ip daddr 10.96.0.10 tcp dport 80 dnat to 10.244.1.2:80
    fib daddr type local tcp dport 30080 meta mark set meta mark or 0x4000
    fib daddr type local tcp dport 30080 dnat to 10.244.1.2:80
  }
  chain masquerading {
    meta mark and 0x4000 == 0 return
    meta mark set meta mark xor 0x4000
    masquerade fully-random
  }
}
X";

#[test]
fn beside_kube_proxys_rules_in_nftables() {
    require!("root", "program:nft");
    is_sound("doctor-kube-nft", |lab| {
        lab.sh(KUBE_PROXY_NFTABLES);
    });
}

/// As kube-proxy's `pkg/proxy/iptables/proxier.go` and the kubelet write it, for one service.
const KUBE_PROXY_IPTABLES: &str = "iptables-restore --noflush <<'X'
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-SERVICES -d 10.96.0.11/32 -p tcp -m comment --comment \"shop/none has no endpoints\" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
COMMIT
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-ONE - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ONE - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment \"shop/one cluster IP\" -m tcp --dport 80 -j KUBE-SVC-ONE
-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m comment --comment shop/one -m tcp --dport 30080 -j KUBE-SVC-ONE
-A KUBE-SVC-ONE ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-ONE -m comment --comment \"shop/one -> 10.244.1.2:80\" -j KUBE-SEP-ONE
-A KUBE-SEP-ONE -s 10.244.1.2/32 -m comment --comment shop/one -j KUBE-MARK-MASQ
-A KUBE-SEP-ONE -p tcp -m comment --comment shop/one -m tcp -j DNAT --to-destination 10.244.1.2:80
COMMIT
X";

#[test]
fn beside_kube_proxys_rules_in_iptables() {
    require!("root", "program:iptables-restore");
    is_sound("doctor-kube-ipt", |lab| {
        lab.sh(KUBE_PROXY_IPTABLES);
    });
}

/// A bus that permits every client everything and starts no services.
const BUS: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/></policy>
</busconfig>"#;

/// Starts Debian's firewalld, and waits until its rules are there.
fn firewalld(lab: &Lab) -> [Running; 2] {
    lab.sh("mkdir -p /run/dbus /var/log /etc/firewalld");
    let config = lab.dir().join("bus.xml");
    std::fs::write(&config, BUS).unwrap();
    let config = format!("--config-file={}", config.display());
    let bus = lab.start("dbus-daemon", &[&config, "--nofork", "--nopidfile"]);
    let succeeds = |command: &str| lab.try_sh(command).status.success();
    wait_until("the bus", || succeeds("test -S /run/dbus/system_bus_socket"));
    let address = "DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/dbus/system_bus_socket";
    let daemon = lab.start("env", &[address, "firewalld", "--nofork"]);
    wait_until("firewalld", || succeeds(&format!("{address} firewall-cmd --state")));
    [daemon, bus]
}

/// The plugin `firewall` makes each container a source of a zone that lets it through.
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

/// A bridge that nobody is on, an isolated network, and one without a way out, all by intent.
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
         ip addr add 10.93.0.1/24 dev idle0; ip link set idle0 up",
    );
    assert!(done, "{said}");
    let complaints = node.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}
