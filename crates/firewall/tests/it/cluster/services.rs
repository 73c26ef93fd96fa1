//! Beside kube-proxy, and after flannel. kube-proxy's rules are those that its sources make, for
//! three services and a port:
//!
//! | service | endpoint | masqueraded by kube-proxy |
//! |---|---|---|
//! | 10.96.0.10 | 10.2.0.2, a pod of the other node | from outside the cluster |
//! | 10.96.0.11 | 10.1.0.2, the pod that asks | always: it would answer itself |
//! | 10.96.0.12 | 198.51.100.2, outside the cluster | always, as with `masqueradeAll` |
//! | port 30082 of the node | 10.2.0.2 | always |

use firewall::reference::remove_flannel;
use netwright_firewall as firewall;
use testkit::{Place, Snapshot, traffic};

use super::{Cluster, assert_seen, filter, servers};

/// `pkg/proxy/nftables/proxier.go`: chains at `dstnat` and `srcnat`, the mark's bit tested, cleared
/// and followed by a fully random masquerade.
const NFTABLES: &str = "nft -f - <<'X'
table ip kube-proxy {
  chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
  chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
  chain services {
    ip daddr 10.96.0.10 tcp dport 80 ip saddr != 10.0.0.0/14 meta mark set meta mark or 0x4000
    ip daddr 10.96.0.10 tcp dport 80 dnat to 10.2.0.2:80
    ip daddr 10.96.0.11 tcp dport 80 meta mark set meta mark or 0x4000
    ip daddr 10.96.0.11 tcp dport 80 dnat to 10.1.0.2:80
    ip daddr 10.96.0.12 tcp dport 80 meta mark set meta mark or 0x4000
    ip daddr 10.96.0.12 tcp dport 80 dnat to 198.51.100.2:80
    fib daddr type local tcp dport 30082 meta mark set meta mark or 0x4000
    fib daddr type local tcp dport 30082 dnat to 10.2.0.2:80
  }
  chain masquerading {
    meta mark and 0x4000 == 0 return
    meta mark set meta mark xor 0x4000
    masquerade fully-random
  }
}
X";

/// `pkg/proxy/iptables/proxier.go`.
const IPTABLES: &str = "iptables-restore --noflush <<'X'
*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-SERVICES ! -s 10.0.0.0/14 -d 10.96.0.10/32 -p tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp --dport 80 -j DNAT --to-destination 10.2.0.2:80
-A KUBE-SERVICES -d 10.96.0.11/32 -p tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SERVICES -d 10.96.0.11/32 -p tcp --dport 80 -j DNAT --to-destination 10.1.0.2:80
-A KUBE-SERVICES -d 10.96.0.12/32 -p tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SERVICES -d 10.96.0.12/32 -p tcp --dport 80 -j DNAT --to-destination 198.51.100.2:80
-A KUBE-SERVICES -p tcp --dport 30082 -m addrtype --dst-type LOCAL -j KUBE-MARK-MASQ
-A KUBE-SERVICES -p tcp --dport 30082 -m addrtype --dst-type LOCAL -j DNAT --to-destination 10.2.0.2:80
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-I PREROUTING -j KUBE-SERVICES
-I POSTROUTING -j KUBE-POSTROUTING
COMMIT
X";

/// Counts packets that leave with kube-proxy's mark: a tunnel would pass it on to the outer packet
/// (kubernetes#92035).
const MARKED: &str = "nft -f - <<'X'
table ip marked { chain post { type filter hook postrouting priority 300; meta mark and 0x4000 != 0 counter; }; }
X";

#[track_caller]
fn check(name: &str, proxy: &str, ours_first: bool) {
    let cluster = Cluster::new(name);
    let node = &cluster.node;
    let _servers = [servers(&node.c1, "c1"), servers(&cluster.b, "b"), servers(&node.outside, "o")];
    node.lab.sh("ip route add blackhole 10.96.0.0/12");
    if ours_first {
        cluster.bring(&filter());
        node.lab.sh(proxy);
    } else {
        node.lab.sh(proxy);
        cluster.bring(&filter());
    }
    node.lab.sh(MARKED);
    let seen =
        |from: &testkit::Container, to: &str| traffic::assert_tcp(from, to).seen.ip().to_string();
    assert_eq!(seen(&node.c1, "10.96.0.10:80"), "10.1.0.2", "a pod's address is seen by pods");
    assert_eq!(seen(&node.c1, "10.96.0.11:80"), "10.1.0.1", "a pod that asks itself");
    assert_eq!(seen(&node.c1, "10.96.0.12:80"), "198.51.100.1");
    assert_eq!(seen(&node.outside, "198.51.100.1:30082"), "192.0.2.1");
    assert_eq!(seen(&node.c1, "198.51.100.2:80"), "198.51.100.1", "no service at all");
    let counted = node.lab.sh("nft list table ip marked");
    assert!(counted.contains("counter packets 0 "), "{counted}");
}

#[test]
fn kube_proxys_nftables_mode() {
    testkit::require!("root");
    check("clkubenft", NFTABLES, true);
    check("clkubenft", NFTABLES, false);
}

#[test]
fn kube_proxys_iptables_mode() {
    testkit::require!("root");
    check("clkubeipt", IPTABLES, true);
    check("clkubeipt", IPTABLES, false);
}

/// Services of IPVS, whose addresses are the node's own and whose flows are tracked, as in
/// kube-proxy's IPVS mode (`pkg/proxy/ipvs/proxier.go`), but without its rules, which masquerade
/// besides: only our rules masquerade here. Endpoints are a pod of the other node (`.10` and the
/// port), the outside (`.12`), and a range that sees pods' own addresses (`.13`).
const IPVSADM: &str = "set -e
    ip link set lo up
    echo 1 >/proc/sys/net/ipv4/vs/conntrack
    for last in 10 12 13; do
        ip addr add 10.96.0.$last/32 dev lo
        ip addr add fd00:96::$last/128 dev lo nodad
    done
    serve() {
        for kind in -t -u; do
            ipvsadm -A $kind $1 -s rr
            ipvsadm -a $kind $1 -r $2 -m
        done
    }
    serve 10.96.0.10:80 10.2.0.2:80
    serve 10.96.0.12:80 198.51.100.2:80
    serve 10.96.0.13:80 203.0.113.2:80
    serve 198.51.100.1:30082 10.2.0.2:80
    serve [fd00:96::10]:80 [fd00:2::2]:80
    serve [fd00:96::12]:80 [2001:db8:ffff::2]:80
    serve [fd00:96::13]:80 [2001:db8:cafe::2]:80
    serve [2001:db8:ffff::1]:30082 [fd00:2::2]:80";

/// What IPVS translates is not forwarded: it comes in, and goes out as if the node had sent it. It
/// gets the node's address where it leaves the cluster, and nowhere else.
#[test]
fn vm_services_of_ipvs() {
    testkit::require!("root", "ip_vs", "program:ipvsadm");
    let cluster = Cluster::new("clipvs");
    let node = &cluster.node;
    let _servers = [servers(&cluster.b, "b"), servers(&node.outside, "o")];
    cluster.bring(&filter());
    node.lab.sh(IPVSADM);
    for (from, to, seen) in [
        (&node.c1, "10.96.0.10:80", "10.1.0.2"),
        (&node.c1, "10.96.0.12:80", "198.51.100.1"),
        (&node.c1, "10.96.0.13:80", "10.1.0.2"),
        (&node.outside, "198.51.100.1:30082", "198.51.100.2"),
        (&node.c1, "[fd00:96::10]:80", "fd00:1::2"),
        (&node.c1, "[fd00:96::12]:80", "2001:db8:ffff::1"),
        (&node.c1, "[fd00:96::13]:80", "fd00:1::2"),
        (&node.outside, "[2001:db8:ffff::1]:30082", "2001:db8:ffff::2"),
    ] {
        assert_seen(from, to, seen);
    }
}

/// `pkg/trafficmngr/iptables/iptables.go`.
const FLANNEL_IPTABLES: &str = "iptables-restore --noflush <<'X'
*nat
:FLANNEL-POSTRTG - [0:0]
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment \"flanneld masq\" -j RETURN
-A FLANNEL-POSTRTG -s 10.1.0.0/24 -d 10.0.0.0/14 -m comment --comment \"flanneld masq\" -j RETURN
-A FLANNEL-POSTRTG -s 10.0.0.0/14 ! -d 224.0.0.0/4 -m comment --comment \"flanneld masq\" -j MASQUERADE --random-fully
-A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG
COMMIT
*filter
:FLANNEL-FWD - [0:0]
-A FLANNEL-FWD -s 10.0.0.0/14 -m comment --comment \"flanneld forward\" -j ACCEPT
-A FLANNEL-FWD -d 10.0.0.0/14 -m comment --comment \"flanneld forward\" -j ACCEPT
-A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD
COMMIT
X";

/// `pkg/trafficmngr/nftables/nftables.go`.
const FLANNEL_NFTABLES: &str = "nft -f - <<'X'
table ip flannel-ipv4 {
  chain postrtg {
    type nat hook postrouting priority srcnat
    ip saddr 10.1.0.0/24 ip daddr 10.0.0.0/14 return
    ip saddr 10.0.0.0/14 ip daddr != 224.0.0.0/4 masquerade fully-random
  }
  chain forward { type filter hook forward priority filter; ip saddr 10.0.0.0/14 accept; }
}
table ip6 flannel-ipv6 { }
X";

/// Row: `flannel.md` §4. The rules that a flanneld leaves when it ends hide pods from nodes. The
/// take-over removes them, and leaves what others have in the same chains.
#[test]
fn flannels_rules_are_taken_away() {
    testkit::require!("root", "program:iptables-legacy");
    let cluster = Cluster::new("clflannel");
    let node = &cluster.node;
    let _b = servers(&cluster.b, "b");
    node.lab.sh("for it in iptables iptables-legacy; do \
         $it -t nat -A POSTROUTING -s 203.0.113.9 -j ACCEPT && $it -A FORWARD -s 203.0.113.9 -j DROP; done");
    cluster.bring(&filter());
    let before = Snapshot::take(&node.lab);
    let legacy = FLANNEL_IPTABLES.replacen("iptables-", "iptables-legacy-", 1);
    let seen = || traffic::assert_tcp(&node.c1, "192.0.2.2:80").seen.ip().to_string();
    for rules in [FLANNEL_IPTABLES, FLANNEL_NFTABLES, &legacy] {
        node.lab.sh(rules);
        assert_eq!(seen(), "192.0.2.1");
        for _ in 0..2 {
            node.lab.enter(remove_flannel).unwrap();
        }
        before.assert_same(&Snapshot::take(&node.lab));
        assert_eq!(seen(), "10.1.0.2");
    }
}
