//! `dhcp`, with dnsmasq and kea.

mod daemon;
mod lasting;
mod late;
mod matrix;
mod options;
mod v6;

use serde_json::json;
use testkit::{Place, traffic};

use crate::rig::{Rig, address, wait_for};

const ROUTER: &str = "dhcp-option=option:router,192.0.2.1";

#[test]
fn add_gives_a_lease_and_del_gives_it_back() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-lease");
    let server = rig.dnsmasq(&format!(
        "{ROUTER}\ndhcp-option=option:dns-server,192.0.2.53\ndomain=example.org\ndhcp-option=option:mtu,1400\n\
         dhcp-option=option:domain-search,a.example.org,b.example.org"
    ));
    let _daemon = rig.daemon();
    let c1 = rig.node.container("c1");
    let added = rig.bridge("ADD").to(&c1).call().ok();
    assert_eq!(server.leased(), [address(&added)]);
    assert_eq!(added["ips"][0]["gateway"], "192.0.2.1");
    assert_eq!(added["routes"], json!([{ "dst": "0.0.0.0/0", "gw": "192.0.2.1", "mtu": 1400 }]));
    assert_eq!(
        added["dns"],
        json!({ "nameservers": ["192.0.2.53"], "domain": "example.org", "search": ["a.example.org", "b.example.org"] })
    );
    traffic::assert_pings(&c1, "192.0.2.1");
    rig.bridge("CHECK").to(&c1).prev(&added).call().silent();
    rig.bridge("DEL").to(&c1).prev(&added).call().silent();
    wait_for("the lease to be given back", || server.leased().is_empty());
    rig.bridge("DEL").to(&c1).prev(&added).call().silent();
    assert!(rig.kept().is_empty());
    assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
}

/// A container on the bridge answers for DHCP, and names the gateway that the host then is. The host
/// has that address only as long as somebody may need it.
#[test]
fn the_gateway_that_a_lease_names_leaves_the_host_with_it() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-gateway");
    rig.node.sh("ip addr del 192.0.2.1/24 dev br0");
    let server = rig.node.container("server");
    let own = json!({ "type": "static", "addresses": [{ "address": "198.51.100.9/24" }] });
    let own = json!({ "bridge": "br0", "ipam": own });
    rig.node.run("bridge", "ADD").to(&server).config(own).call().ok();
    server.sh("ip addr add 192.0.2.1/24 dev eth0");
    let _dnsmasq = rig.dnsmasq_in(&server, "dhcp-option=option:router,192.0.2.77");
    let _daemon = rig.daemon();
    let (c1, c2) = (rig.node.container("c1"), rig.node.container("c2"));
    let gateway = json!({ "isGateway": true });
    let run = |verb: &str| rig.bridge(verb).config(gateway.clone());
    let has = || rig.node.sh("ip -4 addr show br0").contains("192.0.2.77/24");
    let results = [&c1, &c2].map(|container| run("ADD").to(container).call().ok());
    assert!(has());
    run("DEL").to(&c1).prev(&results[0]).call().silent();
    assert!(has(), "the other has it as its gateway");
    run("CHECK").to(&c2).prev(&results[1]).call().silent();
    run("DEL").to(&c2).prev(&results[1]).call().silent();
    assert!(!has());
}

/// The reference sends its first DISCOVER before the fresh link has a carrier, and the next ten
/// seconds later.
#[test]
fn the_first_discover_arrives() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-first");
    let server = rig.dnsmasq(ROUTER);
    let daemon = rig.daemon();
    let c1 = rig.plugged("c1");
    rig.dhcp("ADD").to(&c1).call().ok();
    assert_eq!(server.logged("DHCPDISCOVER(br0)"), 1, "{}", server.log());
    assert_eq!(daemon.log().matches("kind=DHCPDISCOVER").count(), 1);
}

#[test]
fn a_repeated_add_returns_the_same_lease() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-repeat");
    let server = rig.dnsmasq(ROUTER);
    let _daemon = rig.daemon();
    let c1 = rig.plugged("c1");
    let first = rig.dhcp("ADD").to(&c1).call().ok();
    assert_eq!(rig.dhcp("ADD").to(&c1).call().ok(), first);
    assert_eq!(server.logged("DHCPREQUEST(br0)"), 1);
    // Another namespace under the same name is another container: the daemon releases the old
    // lease.
    c1.delete();
    drop(c1);
    // The kernel removes a namespace some time after it was deleted.
    rig.node.sh("timeout 30 sh -c 'while ip link show vc1; do sleep 0.01; done' >&2");
    let again = rig.plugged("c1");
    rig.dhcp("ADD").to(&again).call().ok();
    assert_eq!(server.logged("DHCPREQUEST(br0)"), 2);
}

#[test]
fn every_version_of_results() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-versions");
    let _server = rig.dnsmasq(ROUTER);
    let _daemon = rig.daemon();
    let c1 = rig.plugged("c1");
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let result = rig.dhcp("ADD").to(&c1).version(version).call().ok();
        assert_eq!(result["cniVersion"], version);
        let text = result.to_string();
        assert!(text.contains("192.0.2.1") && text.contains("0.0.0.0/0"), "{text}");
    }
}

#[test]
fn two_containers_on_one_bridge() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-two");
    let server = rig.dnsmasq(ROUTER);
    let _daemon = rig.daemon();
    let (c1, c2) = (rig.node.container("c1"), rig.node.container("c2"));
    let results = std::thread::scope(|scope| {
        [&c1, &c2]
            .map(|c| scope.spawn(|| rig.bridge("ADD").to(c).call().ok()))
            .map(|one| one.join().unwrap())
    });
    let mut addresses: Vec<String> = results.iter().map(address).collect();
    addresses.sort();
    assert_eq!(server.leased(), addresses);
    traffic::assert_pings(&c1, &address(&results[1]));
    rig.bridge("DEL").to(&c1).prev(&results[0]).call().silent();
    wait_for("one lease to be given back", || server.leased() == [address(&results[1])]);
    traffic::assert_pings(&c2, "192.0.2.1");
}

#[test]
fn vm_two_containers_on_one_parent() {
    testkit::require!("root", "full", "program:dnsmasq", "macvlan");
    let rig = Rig::new("dhcp-macvlan");
    // The server is at the other end of the parent's veth pair.
    rig.node.sh("ip link add p0 type veth peer name p1 && ip link set p1 master br0 up && ip link set p0 up");
    let server = rig.dnsmasq(ROUTER);
    let daemon = rig.daemon();
    let (c1, c2) = (rig.node.container("c1"), rig.node.container("c2"));
    let config =
        json!({ "master": "p0", "ipam": { "type": "dhcp", "daemonSocketPath": rig.socket } });
    let run = |verb: &str| rig.node.run("macvlan", verb).config(config.clone());
    let (first, second) = (run("ADD").to(&c1).call().ok(), run("ADD").to(&c2).call().ok());
    let mut addresses = vec![address(&first), address(&second)];
    addresses.sort();
    assert_eq!(server.leased(), addresses);
    traffic::assert_pings(&c1, &address(&second));
    traffic::assert_pings(&c2, "192.0.2.1");
    run("DEL").to(&c1).prev(&first).call().silent();
    wait_for("one lease to be given back", || server.leased() == [address(&second)]);
    // The other container vanishes: the daemon releases its lease through a temporary macvlan.
    daemon.kill();
    c2.delete();
    drop(c2);
    let _daemon = rig.daemon();
    wait_for("the other lease to be given back", || server.leased().is_empty());
}

#[test]
fn check_knows_what_is_leased() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-check");
    let _server = rig.dnsmasq(ROUTER);
    let _daemon = rig.daemon();
    let c1 = rig.plugged("c1");
    let check = || rig.dhcp("CHECK").to(&c1);
    check().call().fails(104, "the daemon has no lease for n/c1/eth0");
    let mut added = rig.dhcp("ADD").to(&c1).call().ok();
    check().call().silent();
    check().prev(&added).call().silent();
    added["ips"][0]["gateway"] = json!("192.0.2.7");
    check()
        .prev(&added)
        .call()
        .fails(104, "the lease's gateway is 192.0.2.1, ADD reported 192.0.2.7");
    let leased = address(&added);
    added["ips"][0]["address"] = json!("192.0.2.7/24");
    check()
        .prev(&added)
        .call()
        .fails(104, &format!("the lease is for {leased}/24, ADD reported 192.0.2.7/24"));
    rig.dhcp("DEL").to(&c1).call().silent();
    check().call().fails(104, "no lease");
}

#[test]
fn gc_gives_back_what_nobody_has() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-gc");
    let server = rig.dnsmasq(ROUTER);
    let _daemon = rig.daemon();
    let (c1, c2, c3) = (rig.plugged("c1"), rig.plugged("c2"), rig.plugged("c3"));
    let kept = rig.dhcp("ADD").to(&c1).call().ok();
    rig.dhcp("ADD").to(&c2).call().ok();
    let other = rig.dhcp("ADD").to(&c3).network("other").call().ok();
    assert_eq!(server.leased().len(), 3);
    rig.dhcp("GC").valid(&[("c1", "eth0"), ("c2", "eth1")]).call().silent();
    let mut want = vec![address(&kept), address(&other)];
    want.sort();
    wait_for("the lease to be given back", || server.leased() == want);
    rig.dhcp("GC").valid(&[]).call().silent();
    wait_for("the lease to be given back", || server.leased() == [address(&other)]);
}

/// A daemon that is replaced is away for a moment: if the node were NotReady at each update, its
/// pods would count as lost.
#[test]
fn status_bears_a_daemon_that_is_away_for_a_moment() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-status");
    let _server = rig.dnsmasq(ROUTER);
    let daemon = rig.daemon();
    rig.dhcp("STATUS").call().silent();
    rig.bridge("STATUS").call().silent();
    let ready = node_api::ready::file(&rig.socket);
    wait_for("the daemon to say that it is ready", || ready.exists());
    assert_eq!(daemon.stop(), Some(0));
    rig.dhcp("STATUS").call().silent();
    rig.bridge("STATUS").call().silent();
    // A killed daemon leaves its socket, on which no process listens.
    rig.daemon().kill();
    rig.dhcp("STATUS").call().silent();
    // An ADD waits for the next daemon.
    let c1 = rig.plugged("c1");
    std::thread::scope(|scope| {
        let added = scope.spawn(|| rig.dhcp("ADD").to(&c1).call());
        let daemon = rig.daemon();
        added.join().unwrap().ok();
        drop(daemon);
    });
    // STATUS succeeds for a minute. If the file's time is older, or from before a boot, the calls
    // fail.
    let now: u64 = std::fs::read_to_string(&ready).unwrap().parse().unwrap();
    for then in
        [now.saturating_sub(61_000).to_string(), (now + 3_600_000).to_string(), "soon".into()]
    {
        std::fs::write(&ready, then).unwrap();
        rig.dhcp("STATUS").call().fails(50, "error dialing DHCP daemon");
        rig.bridge("STATUS").call().fails(50, "start the daemon");
        rig.dhcp("ADD").to(&c1).call().fails(110, "error dialing DHCP daemon");
    }
}

#[test]
fn without_a_server_add_fails_and_leaves_nothing() {
    testkit::require!("root");
    let rig = Rig::new("dhcp-nobody");
    let _daemon =
        rig.daemon_with(&["-timeout", "200ms", "-resendmax=400ms", "--resendtimeout", "1s"]);
    let c1 = rig.node.container("c1");
    rig.bridge("ADD").to(&c1).call().fails(102, "error calling DHCP.Allocate: no more tries");
    assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
    assert!(rig.kept().is_empty());
    rig.bridge("DEL").to(&c1).call().silent();
}

#[test]
fn without_an_interface_add_says_so() {
    testkit::require!("root");
    let rig = Rig::new("dhcp-no-link");
    let _daemon = rig.daemon();
    let c1 = rig.node.container("c1");
    rig.dhcp("ADD").to(&c1).call().fails(108, "error looking up \"eth0\": Link not found");
}
