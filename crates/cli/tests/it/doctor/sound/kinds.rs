//! What other programs set up on a node: their rules, links and routes, as their sources make them
//! (see [`super::kube`]).

use testkit::{Lab, Place as _};

use super::kube;
use crate::foreign_forward::dockerd;

/// Something that another program sets up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) make: fn(&Lab),
}

const fn kind(name: &'static str, make: fn(&Lab)) -> Kind {
    Kind { name, make }
}

/// Programs that let through packets that they do not know. A node has at most one program of each
/// group.
pub(super) const OPEN: &[&[Kind]] = &[
    &[kind("podman", podman)],
    &[
        kind("kube-proxy in nftables", kube::proxy_nftables),
        kind("kube-proxy in iptables", kube::proxy_iptables),
        kind("kube-proxy in legacy iptables", kube::proxy_legacy_iptables),
    ],
    &[
        kind("Calico in iptables", kube::calico_iptables),
        kind("Calico in nftables", kube::calico_nftables),
    ],
    &[kind("Cilium", kube::cilium)],
    &[kind("libvirt in iptables", libvirt_iptables), kind("libvirt in nftables", libvirt_nftables)],
    &[kind("Tailscale", tailscale)],
    &[kind("fail2ban", fail2ban)],
];

/// Programs that drop packets that they do not know.
pub(super) const CLOSED: &[&[Kind]] = &[
    &[
        kind("Docker 20", |lab| dockerd(lab, "")),
        kind("Docker 20 in legacy iptables", |lab| dockerd(lab, "-legacy")),
        kind("Docker 28", docker),
        kind("Docker in nftables", docker_nftables),
    ],
    &[kind("ufw", ufw), kind("rules of the administrator", administrator)],
];

/// Gives a text to `iptables-restore`, which adds it to the existing rules.
pub(super) fn restore(lab: &Lab, program: &str, rules: &str) {
    lab.sh(&format!("{program} --noflush <<'X'\n{rules}X"));
}

/// Gives a text to `nft`.
pub(super) fn nft(lab: &Lab, rules: &str) {
    lab.sh(&format!("nft -f - <<'X'\n{rules}X"));
}

/// Makes a bridge without containers.
fn bridge(lab: &Lab, name: &str, address: &str) {
    let set = format!("ip link set {name} up && ip addr add {address} dev {name}");
    lab.sh(&format!("ip link add {name} type bridge && {set}"));
}

/// As netavark 1.12 writes it (`src/firewall/nft.rs`), for one network and a port.
const PODMAN: &str = r#"
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
  chain NETAVARK-ISOLATION-1 { iifname "podman1" oifname != "podman1" jump NETAVARK-ISOLATION-2; }
  chain NETAVARK-ISOLATION-2 { oifname "podman1" drop; }
  chain NETAVARK-ISOLATION-3 { oifname "podman1" drop; jump NETAVARK-ISOLATION-2; }
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
"#;

pub(super) fn podman(lab: &Lab) {
    bridge(lab, "podman1", "10.89.0.1/24");
    nft(lab, PODMAN);
}

/// As libvirt's `src/network/network_iptables.c` makes it for its default network.
const LIBVIRT_IPTABLES: &str = r#"*mangle
:LIBVIRT_PRT - [0:0]
-A POSTROUTING -j LIBVIRT_PRT
-A LIBVIRT_PRT -o virbr0 -p udp -m udp --dport 68 -j CHECKSUM --checksum-fill
COMMIT
*nat
:LIBVIRT_PRT - [0:0]
-A POSTROUTING -j LIBVIRT_PRT
-A LIBVIRT_PRT -s 192.168.122.0/24 -d 224.0.0.0/24 -j RETURN
-A LIBVIRT_PRT -s 192.168.122.0/24 -d 255.255.255.255/32 -j RETURN
-A LIBVIRT_PRT -s 192.168.122.0/24 ! -d 192.168.122.0/24 -p tcp -j MASQUERADE --to-ports 1024-65535
-A LIBVIRT_PRT -s 192.168.122.0/24 ! -d 192.168.122.0/24 -p udp -j MASQUERADE --to-ports 1024-65535
-A LIBVIRT_PRT -s 192.168.122.0/24 ! -d 192.168.122.0/24 -j MASQUERADE
COMMIT
*filter
:LIBVIRT_FWI - [0:0]
:LIBVIRT_FWO - [0:0]
:LIBVIRT_FWX - [0:0]
:LIBVIRT_INP - [0:0]
:LIBVIRT_OUT - [0:0]
-A INPUT -j LIBVIRT_INP
-A FORWARD -j LIBVIRT_FWX
-A FORWARD -j LIBVIRT_FWI
-A FORWARD -j LIBVIRT_FWO
-A OUTPUT -j LIBVIRT_OUT
-A LIBVIRT_FWI -d 192.168.122.0/24 -o virbr0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A LIBVIRT_FWI -o virbr0 -j REJECT --reject-with icmp-port-unreachable
-A LIBVIRT_FWO -s 192.168.122.0/24 -i virbr0 -j ACCEPT
-A LIBVIRT_FWO -i virbr0 -j REJECT --reject-with icmp-port-unreachable
-A LIBVIRT_FWX -i virbr0 -o virbr0 -j ACCEPT
-A LIBVIRT_INP -i virbr0 -p udp -m udp --dport 53 -j ACCEPT
-A LIBVIRT_INP -i virbr0 -p tcp -m tcp --dport 53 -j ACCEPT
-A LIBVIRT_INP -i virbr0 -p udp -m udp --dport 67 -j ACCEPT
-A LIBVIRT_OUT -o virbr0 -p udp -m udp --dport 68 -j ACCEPT
COMMIT
"#;

/// As its `src/network/network_nftables.c` makes it.
const LIBVIRT_NFTABLES: &str = r#"
table ip libvirt_network {
  chain forward {
    type filter hook forward priority filter; policy accept;
    counter jump guest_cross
    counter jump guest_input
    counter jump guest_output
  }
  chain guest_output {
    ip saddr 192.168.122.0/24 iif "virbr0" counter accept
    iif "virbr0" counter reject
  }
  chain guest_input {
    oif "virbr0" ip daddr 192.168.122.0/24 ct state established,related counter accept
    oif "virbr0" counter reject
  }
  chain guest_cross {
    iif "virbr0" oif "virbr0" counter accept
  }
  chain guest_nat {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr 192.168.122.0/24 ip daddr 224.0.0.0/24 counter return
    ip saddr 192.168.122.0/24 ip daddr 255.255.255.255 counter return
    meta l4proto tcp ip saddr 192.168.122.0/24 ip daddr != 192.168.122.0/24 counter masquerade to :1024-65535
    ip saddr 192.168.122.0/24 ip daddr != 192.168.122.0/24 counter masquerade
  }
}
"#;

fn libvirt_iptables(lab: &Lab) {
    bridge(lab, "virbr0", "192.168.122.1/24");
    restore(lab, "iptables-nft-restore", LIBVIRT_IPTABLES);
}

pub(super) fn libvirt_nftables(lab: &Lab) {
    bridge(lab, "virbr0", "192.168.122.1/24");
    nft(lab, LIBVIRT_NFTABLES);
}

/// As Tailscale's `util/linuxfw/iptables_runner.go` makes it.
const TAILSCALE: &str = r#"*nat
:ts-postrouting - [0:0]
-A POSTROUTING -j ts-postrouting
-A ts-postrouting -m mark --mark 0x40000/0xff0000 -j MASQUERADE
COMMIT
*filter
:ts-forward - [0:0]
:ts-input - [0:0]
-I INPUT -j ts-input
-I FORWARD -j ts-forward
-A ts-forward -i tailscale0 -j MARK --set-xmark 0x40000/0xff0000
-A ts-forward -m mark --mark 0x40000/0xff0000 -j ACCEPT
-A ts-forward -s 100.64.0.0/10 -o tailscale0 -j DROP
-A ts-forward -o tailscale0 -j ACCEPT
-A ts-input -s 100.101.102.103/32 -i lo -j ACCEPT
-A ts-input -s 100.115.92.0/23 ! -i tailscale0 -j RETURN
-A ts-input -s 100.64.0.0/10 ! -i tailscale0 -j DROP
-A ts-input -i tailscale0 -j ACCEPT
-A ts-input -p udp -m udp --dport 41641 -j ACCEPT
COMMIT
"#;

/// Its link and its routing rules (`wgengine/router/router_linux.go`).
const TAILSCALE_LINKS: &str = "set -e
ip tuntap add tailscale0 mode tun
ip link set tailscale0 mtu 1280 up
ip addr add 100.101.102.103/32 dev tailscale0
ip rule add priority 5210 fwmark 0x80000/0xff0000 lookup main
ip rule add priority 5230 fwmark 0x80000/0xff0000 lookup default
ip rule add priority 5250 fwmark 0x80000/0xff0000 unreachable
ip rule add priority 5270 lookup 52
ip route add 100.100.100.100 dev tailscale0 table 52
ip route add throw 127.0.0.0/8 table 52
";

pub(super) fn tailscale(lab: &Lab) {
    lab.sh(TAILSCALE_LINKS);
    restore(lab, "iptables-nft-restore", TAILSCALE);
}

/// As fail2ban's `config/action.d/nftables.conf` makes it for one jail, with one host in it.
const FAIL2BAN: &str = r#"
table inet f2b-table {
  set addr-set-sshd {
    type ipv4_addr
    elements = { 203.0.113.77 }
  }
  chain f2b-chain {
    type filter hook input priority filter - 1; policy accept;
    tcp dport 22 ip saddr @addr-set-sshd reject with icmp port-unreachable
  }
}
"#;

fn fail2ban(lab: &Lab) {
    nft(lab, FAIL2BAN);
}

/// As dockerd 28 makes it (`daemon/libnetwork/drivers/bridge/internal/iptabler`), for its default
/// bridge with one container.
const DOCKER: &str = r#"*raw
-A PREROUTING -d 172.17.0.2/32 ! -i docker0 -j DROP
COMMIT
*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A DOCKER ! -i docker0 -p tcp -m tcp --dport 8085 -j DNAT --to-destination 172.17.0.2:80
COMMIT
*filter
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-INTERNAL - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-INTERNAL
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
COMMIT
"#;

fn docker(lab: &Lab) {
    bridge(lab, "docker0", "172.17.0.1/16");
    restore(lab, "iptables-nft-restore", DOCKER);
}

/// As dockerd 29 makes it with its back end for nftables
/// (`daemon/libnetwork/drivers/bridge/internal/nftabler`), for its default bridge.
const DOCKER_NFTABLES: &str = r#"
table ip docker-bridges {
  map filter-forward-in-jumps {
    type ifname : verdict
    elements = { "docker0" : jump filter-forward-in__docker0 }
  }
  map filter-forward-out-jumps {
    type ifname : verdict
    elements = { "docker0" : jump filter-forward-out__docker0 }
  }
  map nat-postrouting-in-jumps {
    type ifname : verdict
    elements = { "docker0" : jump nat-postrouting-in__docker0 }
  }
  chain filter-FORWARD {
    type filter hook forward priority filter; policy accept;
    iifname vmap @filter-forward-in-jumps
    oifname vmap @filter-forward-out-jumps
  }
  chain nat-OUTPUT {
    type nat hook output priority -100; policy accept;
    ip daddr != 127.0.0.0/8 fib daddr type local counter jump nat-prerouting-and-output
  }
  chain nat-POSTROUTING {
    type nat hook postrouting priority srcnat; policy accept;
    iifname vmap @nat-postrouting-in-jumps
  }
  chain nat-PREROUTING {
    type nat hook prerouting priority dstnat; policy accept;
    fib daddr type local counter jump nat-prerouting-and-output
  }
  chain nat-prerouting-and-output {
    iifname != "docker0" tcp dport 8085 counter dnat to 172.17.0.2:80 comment "DNAT"
  }
  chain raw-PREROUTING {
    type filter hook prerouting priority raw; policy accept;
    ip daddr 172.17.0.2 iifname != "docker0" counter drop comment "DROP DIRECT ACCESS"
  }
  chain filter-forward-in__docker0 {
    ct state established,related counter accept
    iifname "docker0" oifname "docker0" counter accept comment "ICC"
    iifname "docker0" counter accept comment "OUTGOING"
  }
  chain filter-forward-out__docker0 {
    ct state established,related counter accept
    ip daddr 172.17.0.2 tcp dport 80 counter accept comment "PUBLISHED PORT"
    counter drop comment "UNPUBLISHED PORT DROP"
  }
  chain nat-postrouting-in__docker0 {
    oifname != "docker0" ip saddr 172.17.0.0/16 counter masquerade comment "MASQUERADE"
  }
}
"#;

fn docker_nftables(lab: &Lab) {
    bridge(lab, "docker0", "172.17.0.1/16");
    nft(lab, DOCKER_NFTABLES);
}

/// As an enabled ufw makes it of its `before.rules`, `after.rules` and `user.rules`, with its
/// defaults and one open port; `PREFIX` and `ICMP` depend on the family.
const UFW: &str = r#"*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:PREFIX-after-forward - [0:0]
:PREFIX-after-input - [0:0]
:PREFIX-before-forward - [0:0]
:PREFIX-before-input - [0:0]
:PREFIX-before-output - [0:0]
:PREFIX-reject-forward - [0:0]
:PREFIX-track-forward - [0:0]
:PREFIX-user-forward - [0:0]
:PREFIX-user-input - [0:0]
-A INPUT -j PREFIX-before-input
-A INPUT -j PREFIX-after-input
-A FORWARD -j PREFIX-before-forward
-A FORWARD -j PREFIX-after-forward
-A FORWARD -j PREFIX-reject-forward
-A FORWARD -j PREFIX-track-forward
-A OUTPUT -j PREFIX-before-output
-A PREFIX-after-input -p udp -m udp --dport 137 -j DROP
-A PREFIX-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A PREFIX-before-forward -j PREFIX-user-forward
-A PREFIX-before-input -i lo -j ACCEPT
-A PREFIX-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
ICMP-A PREFIX-before-input -m conntrack --ctstate INVALID -j DROP
-A PREFIX-before-input -j PREFIX-user-input
-A PREFIX-before-output -o lo -j ACCEPT
-A PREFIX-before-output -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A PREFIX-user-input -p tcp -m tcp --dport 22 -j ACCEPT
COMMIT
"#;

const UFW_ICMP: &str = "\
-A ufw-before-input -p icmp -m icmp --icmp-type 3 -j ACCEPT
-A ufw-before-input -p icmp -m icmp --icmp-type 8 -j ACCEPT
";

/// Neighbour solicitations have a hop limit of 255.
const UFW_ICMP6: &str = "\
-A ufw6-before-input -p ipv6-icmp -m icmp6 --icmpv6-type 1 -j ACCEPT
-A ufw6-before-input -p ipv6-icmp -m icmp6 --icmpv6-type 128 -j ACCEPT
-A ufw6-before-input -p ipv6-icmp -m icmp6 --icmpv6-type 135 -m hl --hl-eq 255 -j ACCEPT
-A ufw6-before-input -p ipv6-icmp -m icmp6 --icmpv6-type 136 -m hl --hl-eq 255 -j ACCEPT
";

fn ufw(lab: &Lab) {
    let families =
        [("iptables-nft-restore", "ufw", UFW_ICMP), ("ip6tables-nft-restore", "ufw6", UFW_ICMP6)];
    for (program, prefix, icmp) in families {
        let rules = UFW.replace("ICMP-A", &format!("{icmp}-A")).replace("PREFIX", prefix);
        restore(lab, program, &rules);
    }
}

/// As nftables' own example for a workstation, which drops what it does not know.
const ADMINISTRATOR: &str = r#"
table inet filter {
  chain input {
    type filter hook input priority filter; policy drop;
    ct state established,related accept
    ct state invalid drop
    iif "lo" accept
    icmp type echo-request accept
    icmpv6 type { echo-request, nd-neighbor-solicit, nd-neighbor-advert, nd-router-advert } accept
    tcp dport 22 ct state new limit rate 15/minute accept
  }
  chain forward {
    type filter hook forward priority filter; policy accept;
    ct state invalid drop
  }
  chain output {
    type filter hook output priority filter; policy accept;
  }
}
"#;

fn administrator(lab: &Lab) {
    nft(lab, ADMINISTRATOR);
}
