//! Leases released late: the daemon was down, or the interface or the namespace is gone.

use std::fs;
use std::sync::atomic::AtomicBool;

use testkit::Place as _;

use crate::rig::{Rig, RunningProgram, StopGuard, address, flood, wait_for};

const ROUTER: &str = "dhcp-option=option:router,192.0.2.1";

/// The reference's DEL fails, and the chain with it.
#[test]
fn del_with_the_daemon_down_is_done_when_it_starts() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-down");
    let server = rig.dnsmasq(ROUTER);
    let daemon = rig.daemon();
    let c1 = rig.node.container("c1");
    let added = rig.bridge("ADD").to(&c1).call().ok();
    daemon.kill();
    let answer = rig.bridge("DEL").to(&c1).prev(&added).call();
    assert!(answer.succeeded(), "{answer:?}");
    assert!(answer.stderr().contains("the lease is released when the daemon starts"), "{answer:?}");
    assert!(rig.bridge("DEL").to(&c1).call().succeeded(), "and again");
    assert_eq!(server.leased(), [address(&added)]);
    // The interface is now gone: the daemon releases the lease through a temporary link on the
    // bridge.
    let _daemon = rig.daemon();
    wait_for("the lease to be given back", || server.leased().is_empty());
    wait_for("the link to be gone", || !rig.node.sh("ip -o link").contains("nwdhcp"));
    assert!(rig.kept().is_empty());
    let todo = format!("{}.todo", rig.socket.display());
    wait_for("the note to be gone", || fs::read_dir(&todo).unwrap().next().is_none());
}

#[test]
fn a_container_that_vanished_gives_its_lease_back() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-vanished");
    let server = rig.dnsmasq(ROUTER);
    let daemon = rig.daemon();
    let (c1, c2) = (rig.plugged("c1"), rig.plugged("c2"));
    rig.dhcp("ADD").to(&c1).call().ok();
    let second = rig.dhcp("ADD").to(&c2).call().ok();
    // The daemon does not keep the namespace alive.
    drop(c1);
    wait_for("the link to go with its namespace", || !rig.node.sh("ip -o link").contains("vc1"));
    daemon.kill();
    let _daemon = rig.daemon();
    wait_for("the lease to be given back", || server.leased() == [address(&second)]);
    rig.dhcp("DEL").id("c1").call().silent();
}

#[test]
fn a_link_that_was_deleted_gives_its_lease_back() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-unplugged");
    let server = rig.dnsmasq(ROUTER);
    let _daemon = rig.daemon();
    let c1 = rig.plugged("c1");
    rig.dhcp("ADD").to(&c1).call().ok();
    rig.node.sh("ip link del vc1");
    rig.dhcp("DEL").to(&c1).call().silent();
    wait_for("the lease to be given back", || server.leased().is_empty());
}

#[test]
fn leases_of_another_boot_are_given_back() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-reboot");
    let server = rig.dnsmasq(ROUTER);
    let daemon = rig.daemon();
    let c1 = rig.plugged("c1");
    rig.dhcp("ADD").to(&c1).call().ok();
    daemon.kill();
    let file = fs::read_dir(rig.state.join("leases")).unwrap().next().unwrap().unwrap().path();
    let mut lease = rig.kept().remove(0);
    lease["bootId"] = "another".into();
    fs::write(&file, lease.to_string()).unwrap();
    // The folder also has a file that is not a lease: the daemon ignores it, and keeps it for the
    // administrator.
    fs::write(rig.state.join("leases/0123.json"), "{").unwrap();
    let _daemon = rig.daemon();
    wait_for("the lease to be given back", || server.leased().is_empty());
    assert!(!file.exists());
    rig.dhcp("ADD").to(&c1).call().ok();
}

#[test]
fn del_of_what_is_unknown_succeeds() {
    testkit::require!("root");
    let rig = Rig::new("dhcp-unknown");
    // No daemon ever ran here, so DEL leaves no note.
    assert!(rig.dhcp("DEL").call().succeeded());
    assert!(!rig.node.lab.dir().join("d.sock.todo").exists());
    let _daemon = rig.daemon();
    rig.dhcp("DEL").call().silent();
    rig.dhcp("DEL").netns("/run/netns/gone").call().silent();
}

/// A router advertisement to all nodes (RFC 4861 §4.2), from fe80::bad: lifetime 1800 s, and a
/// prefix for addresses.
const ADVERTISEMENT: &[u8] = b"\
    \x33\x33\x00\x00\x00\x01\x02\x00\x00\x00\x0b\xad\x86\xdd\
    \x60\x00\x00\x00\x00\x30\x3a\xff\
    \xfe\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0b\xad\
    \xff\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\
    \x86\x00\x90\x10\x40\x00\x07\x08\x00\x00\x00\x00\x00\x00\x00\x00\
    \x03\x04\x40\xc0\x00\x00\x0e\x10\x00\x00\x0e\x10\x00\x00\x00\x00\
    \x20\x01\x0d\xb8\x0b\xad\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";

/// CVE-2020-10749, in the moment in which the host has an interface of its own on the bridge.
#[test]
fn a_link_made_for_an_instant_takes_no_router_advertisements() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-advertised");
    rig.node.sh("sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.default.accept_ra=1 \
         net.ipv6.conf.br0.accept_ra=0 net.ipv6.conf.k1.accept_ra=0");
    let server = rig.dnsmasq(ROUTER);
    let daemon = rig.daemon();
    let (c1, c2) = (rig.plugged("c1"), rig.plugged("c2"));
    rig.dhcp("ADD").to(&c1).call().ok();
    let told = rig.node.lab.dir().join("told");
    let mut command = rig.node.lab.command("ip");
    command.args(["-6", "-o", "monitor", "address", "route"]);
    let _monitor = RunningProgram::telling(command, &told);
    let told = || fs::read_to_string(&told).unwrap();
    wait_for("the monitor to tell", || {
        rig.node.sh("ip addr replace 2001:db8:1::1/64 dev lo; ip addr del 2001:db8:1::1/64 dev lo");
        told().contains("2001:db8:1::1")
    });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopped = StopGuard(&stop);
        scope.spawn(|| flood(&c2, ADVERTISEMENT, &stop));
        daemon.kill();
        drop(c1);
        wait_for("the link to go", || !rig.node.sh("ip -o link").contains("vc1"));
        let _daemon = rig.daemon();
        wait_for("the lease to be given back", || server.leased().is_empty());
        wait_for("the link to be gone", || !rig.node.sh("ip -o link").contains("nwdhcp"));
        drop(stopped);
    });
    // The monitor reports this change after all earlier ones.
    rig.node.sh("ip addr add 2001:db8:2::2/64 dev lo");
    wait_for("the monitor to tell", || told().contains("2001:db8:2::2"));
    let told = told();
    let taken: Vec<&str> =
        told.lines().filter(|line| line.contains("bad") || line.contains("nwdhcp")).collect();
    assert!(taken.is_empty(), "{taken:#?}");
}
