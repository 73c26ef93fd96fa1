//! Hosts that drop forwarded packets.

use firewall::cluster::Opener;
use firewall::firewalld::{Firewalld, TIMEOUT, TRUSTED};
use firewall::forward::Blocker;
use ipnet::IpNet;
use netwright_firewall as firewall;
use testkit::{Place, Snapshot, traffic};

use super::{Cluster, assert_seen, filter, servers};

impl Cluster {
    /// Calls the function with the value that opens the lab's host for forwarding. No firewalld
    /// runs there.
    fn opener<'c, T: Send>(&'c self, work: impl FnOnce(&Opener<'c>, &[IpNet]) -> T + Send) -> T {
        let bus = format!("unix:path={}/none", self.node.lab.dir().display());
        self.node.lab.enter(|| {
            let opener = Opener {
                index: &self.node.index,
                firewalld: Firewalld::new(Some(&bus), TIMEOUT),
                zone: TRUSTED.to_owned(),
            };
            work(&opener, &filter().forwarded())
        })
    }

    #[track_caller]
    fn open(&self) -> Vec<Blocker> {
        self.opener(Opener::open).unwrap()
    }

    #[track_caller]
    fn missing(&self) -> Vec<String> {
        self.opener(Opener::check).unwrap()
    }

    #[track_caller]
    fn close(&self) {
        self.opener(Opener::close).unwrap();
    }
}

/// Pods are reached, and reach others. Packets that do not concern pods are still dropped.
#[track_caller]
fn check(name: &str, drop: &str) {
    let cluster = Cluster::new(name);
    let (node, b) = (&cluster.node, &cluster.b);
    let _servers = [servers(&node.outside, "o"), servers(b, "b"), servers(&node.c1, "c1")];
    cluster.bring(&filter());
    assert_eq!(cluster.missing(), [""; 0]);
    assert_eq!(cluster.open(), []);
    node.lab.sh(&format!(
        "{drop}; nft 'table ip ports {{ chain pre {{ type nat hook prerouting priority dstnat; \
         meta l4proto {{ tcp, udp }} th dport 30081 dnat to 10.2.0.2:80; }}; }}'"
    ));
    let before = Snapshot::take(&node.lab);
    traffic::assert_no_tcp(&node.c1, "198.51.100.2:80");
    assert_eq!(cluster.missing().len(), 4, "{:?}", cluster.missing());
    // A second call leaves what exists.
    for _ in 0..2 {
        assert_eq!(cluster.open(), []);
        assert_eq!(cluster.missing(), [""; 0]);
    }
    assert_seen(&node.c1, "198.51.100.2:80", "198.51.100.1");
    assert_seen(&node.c1, "[2001:db8:ffff::2]:80", "2001:db8:ffff::1");
    assert_seen(&node.c1, "10.2.0.2:80", "10.1.0.2");
    assert_seen(b, "10.1.0.2:80", "192.0.2.2");
    assert_seen(b, "[fd00:1::2]:80", "2001:db8:2::2");
    // To a port of this node that leads to a pod of the other.
    assert_seen(&node.outside, "198.51.100.1:30081", "198.51.100.2");
    traffic::assert_no_tcp(&node.outside, "192.0.2.2:80");
    // Other ranges replace them.
    let narrow: [IpNet; 1] = ["10.1.0.0/24".parse().unwrap()];
    cluster.opener(|opener, _| opener.open(&narrow)).unwrap();
    assert_eq!(cluster.opener(|opener, _| opener.check(&narrow)).unwrap(), [""; 0]);
    assert_ne!(cluster.missing(), [""; 0]);
    // The rules are removed, and removed a second time.
    cluster.open();
    for _ in 0..2 {
        cluster.close();
        before.assert_same(&Snapshot::take(&node.lab));
    }
}

/// Row: `flannel.md` §7, "FORWARD policy DROP host still forwards pod traffic".
#[test]
fn the_clusters_packets_pass_where_forward_drops() {
    testkit::require!("root");
    check("clfwd", "iptables -P FORWARD DROP && ip6tables -P FORWARD DROP");
}

#[test]
fn the_clusters_packets_pass_dockers_rules() {
    testkit::require!("root");
    check(
        "clfwddocker",
        "for it in iptables ip6tables; do $it -N DOCKER-USER && $it -A DOCKER-USER -j RETURN && \
         $it -A FORWARD -j DOCKER-USER && $it -P FORWARD DROP; done",
    );
}

#[test]
fn the_clusters_packets_pass_legacy_iptables() {
    testkit::require!("root", "program:iptables-legacy");
    check("clfwdlegacy", "iptables-legacy -P FORWARD DROP && ip6tables-legacy -P FORWARD DROP");
}

#[test]
fn who_has_no_place_for_our_rules_is_named() {
    testkit::require!("root");
    let cluster = Cluster::new("clfwdown");
    cluster.node.lab.sh(
        "nft 'table inet wall { chain strict { type filter hook forward priority 0; policy drop; }; }'",
    );
    let table = "inet wall".to_owned();
    assert_eq!(cluster.open(), [Blocker::Nftables { table, chain: "strict".to_owned() }]);
}
