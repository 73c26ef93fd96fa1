//! A store that vanishes without closing connections.

use std::time::Instant;

use testkit::real::Etcd;
use testkit::{Place as _, wait_until};

use super::rig::Cluster;

/// All members of etcd vanish without closing a connection, and come back. The daemon notices that,
/// gives out the addresses that it has, and then asks for more again.
#[test]
fn an_etcd_that_is_gone_without_a_word_is_noticed_and_heard_again() {
    testkit::require!("root", "program:etcd", "program:curl", "program:nft", "full");
    let cluster = Cluster::new("ipam-etcd-silent");
    let etcd = Etcd::start(&cluster.lab);
    let n1 = cluster.daemon_with_etcd("n1", &etcd, &[]);
    n1.assign("c0").unwrap();
    let ports: Vec<String> = etcd
        .endpoints()
        .iter()
        .filter_map(|url| url.rsplit_once(':').map(|(_, port)| port.to_owned()))
        .collect();
    let ports = ports.join(", ");
    cluster.lab.sh(&format!(
        "nft 'table inet cut {{ chain input {{ type filter hook input priority 0; \
         tcp dport {{ {ports} }} drop; tcp sport {{ {ports} }} drop; }}; }}'"
    ));
    let since = Instant::now();
    // The node has this address, and its record must still be written.
    assert_eq!(n1.assign("c1").unwrap().len(), 2);
    let told = "addresses are given as long as the lease holds";
    wait_until("the loss to be noticed", || n1.said().contains(told));
    let noticed = since.elapsed();
    assert_eq!(n1.assign("c2").unwrap().len(), 2);
    n1.release("c0");

    cluster.lab.sh("nft delete table inet cut");
    let since = Instant::now();
    wait_until("the return to be noticed", || n1.said().contains("the store answers again"));
    let heard = since.elapsed();
    // The node's blocks do not have this many addresses, so the daemon asks the store.
    for index in 3..30 {
        assert_eq!(n1.assign(&format!("c{index}")).unwrap().len(), 2);
    }
    eprintln!(
        "MEASURED an etcd gone without a word: noticed after {:.1} s (wanted 30), heard again \
         {:.1} s after its return",
        noticed.as_secs_f64(),
        heard.as_secs_f64()
    );
}
