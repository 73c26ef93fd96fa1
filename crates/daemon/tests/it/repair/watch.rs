//! `netwrightd repair`.

use testkit::{Place, Snapshot, traffic};

use super::{Host, ready};
use crate::rig::wait_for;

/// It reacts to events, without its periodic look: an hour is longer than any test.
const DEAF_FOR: [&str; 2] = ["--interval", "1h"];

#[test]
fn what_is_changed_comes_back_unasked() {
    testkit::require!("root");
    let host = Host::new("watch");
    let lab = &host.node.lab;
    let _outside = lab.outside();
    let (c1, c2) = (lab.container("c1"), lab.container("c2"));
    let result = host.add(&c1, &host.list(8081));
    host.add(&c2, &host.list(8082));
    let port = result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    let rules = || lab.sh("nft list ruleset");
    let before = rules();
    let daemon = host.daemon("repair", &DEAF_FOR);
    ready(&daemon);
    traffic::assert_pings(&c1, "198.51.100.2");

    lab.sh("nft flush ruleset");
    wait_for("the packet filter", || {
        let now = rules();
        before.lines().all(|line| now.contains(line.trim()))
    });
    c1.sh("ip route del default");
    wait_for("a route", || c1.sh("ip route").contains("default via 10.1.0.1"));
    c2.sh("ip link set eth0 down");
    wait_for("a link", || {
        c2.sh("ip route").contains("default") && c2.sh("ip link show eth0").contains(",UP")
    });
    lab.sh(&format!("ip link set {port} nomaster"));
    wait_for("a port", || lab.sh(&format!("ip link show {port}")).contains("master cni0"));
    lab.sh("ip link del cni0");
    wait_for("the bridge with both ports", || {
        let bridge = lab.try_sh("ip -br addr show dev cni0; ip -br link show master cni0");
        let text = String::from_utf8_lossy(&bridge.stdout).into_owned();
        text.contains("10.1.0.1/24") && text.lines().count() == 3
    });
    lab.sh("sysctl -qw net.ipv4.ip_forward=0");
    wait_for("forwarding", || lab.sh("sysctl -n net.ipv4.ip_forward").trim() == "1");
    lab.sh("nft delete element inet netwright hostports4 '{ tcp . 8081 }'");
    wait_for("a host port", || rules().contains("tcp . 8081"));
    for container in [&c1, &c2] {
        traffic::assert_pings(container, "198.51.100.2");
    }
    let log = daemon.log();
    assert!(log.contains("put back network=n container_id=c1 ifname=eth0 plugin=bridge"), "{log}");
    assert!(!log.contains("cannot be put back") && !log.contains("ERROR"), "{log}");
    assert_eq!(daemon.stop(), Some(0));
}

/// A link of the host that comes while it forwards would never hear a router.
#[test]
fn a_link_that_comes_later_listens_to_routers() {
    testkit::require!("root");
    let host = Host::new("watch-routers");
    let lab = &host.node.lab;
    let (c1, _router) = (lab.container("c1"), lab.container("router"));
    lab.sh("sysctl -qw net.ipv6.conf.all.forwarding=0");
    host.add(&c1, &host.list(8081));
    let daemon = host.daemon("repair", &["--interval", "1s"]);
    ready(&daemon);
    lab.sh("ip link add up0 type veth peer name eth0 netns router; ip link set up0 up");
    wait_for("the link to listen", || {
        lab.sh("sysctl -n net.ipv6.conf.up0.accept_ra").trim() == "2"
    });
    let log = daemon.log();
    assert!(log.contains("the link listens to routers link=up0"), "{log}");
    assert_eq!(daemon.stop(), Some(0));
}

/// The kernel reports neither the sysctls of a container, nor what happened before.
#[test]
fn what_nobody_tells_of_is_found_by_looking() {
    testkit::require!("root");
    let host = Host::new("watch-look");
    let c1 = host.node.container("c1");
    host.add(&c1, &host.list(8081));
    c1.sh("ip route del default");
    let daemon = host.daemon("repair", &["--interval", "50ms"]);
    wait_for("a route", || c1.sh("ip route").contains("default via 10.1.0.1"));
    c1.sh("sysctl -qw net.ipv4.conf.eth0.arp_filter=0");
    wait_for("a sysctl", || c1.sh("sysctl -n net.ipv4.conf.eth0.arp_filter").trim() == "1");
    assert_eq!(daemon.stop(), Some(0));
}

/// Attachments come and go meanwhile, some while everything is flushed: nothing of them is left.
#[test]
fn nothing_is_left_of_attachments_that_went_meanwhile() {
    testkit::require!("root");
    let host = Host::new("watch-del");
    let lab = &host.node.lab;
    let containers: Vec<_> = (1..=6).map(|n| lab.container(&format!("c{n}"))).collect();
    let before = Snapshot::take(lab);
    let daemon = host.daemon("repair", &["--interval", "20ms"]);
    ready(&daemon);
    for _ in 0..4 {
        for (container, port) in containers.iter().zip(8081..) {
            host.add(container, &host.list(port));
        }
        std::thread::scope(|scope| {
            scope.spawn(|| lab.sh("for i in 1 2 3 4 5 6 7 8; do nft flush ruleset; done"));
            for (container, port) in containers.iter().zip(8081..) {
                let host = &host;
                scope.spawn(move || host.del(container, &host.list(port)));
            }
        });
    }
    assert_eq!(daemon.stop(), Some(0));
    let rules = lab.sh("nft list ruleset");
    assert!(!rules.contains("elements"), "{rules}");
    assert_eq!(std::fs::read_dir(host.node.roots.run.join("owners")).map_or(0, Iterator::count), 0);
    lab.sh("nft flush ruleset");
    before.assert_same(&Snapshot::take(lab));
}

/// Repair backs off from a program that undoes it each time, and names it in the log.
#[test]
fn it_does_not_quarrel() {
    testkit::require!("root");
    let host = Host::new("watch-quarrel");
    let c1 = host.node.container("c1");
    host.add(&c1, &host.list(8081));
    let daemon = host.daemon("repair", &DEAF_FOR);
    ready(&daemon);
    wait_for("it to back off", || {
        c1.try_sh("ip route del default");
        daemon.log().contains("another program keeps changing it")
    });
    let looks = daemon.log().matches("put back").count();
    assert!(looks < 40, "{}", daemon.log());
}

/// A container that ends is not kept alive by the watch.
#[test]
fn no_container_is_kept_alive() {
    testkit::require!("root");
    let host = Host::new("watch-gone");
    let c1 = host.node.container("c1");
    let result = host.add(&c1, &host.list(8081));
    let port = result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    let daemon = host.daemon("repair", &["--interval", "20ms"]);
    ready(&daemon);
    drop(c1);
    wait_for("the pair to go with the container", || {
        !host.node.lab.try_sh(&format!("ip link show {port}")).status.success()
    });
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

/// Thousands of events and repairs do not increase its memory.
#[test]
fn its_memory_stays_flat() {
    testkit::require!("root", "full");
    let host = Host::new("watch-memory");
    let lab = &host.node.lab;
    let containers: Vec<_> = (1..=8).map(|n| lab.container(&format!("c{n}"))).collect();
    let daemon = host.daemon("repair", &["--interval", "1ms"]);
    ready(&daemon);
    let repairs = || daemon.log().matches("put back").count();
    let until = |count: usize| {
        while repairs() < count {
            for (container, port) in containers.iter().zip(8081..) {
                host.add(container, &host.list(port));
            }
            // Rarely enough that repair does not back off.
            for _ in 0..3 {
                let before = repairs();
                lab.sh("nft flush ruleset");
                for container in &containers {
                    container
                        .sh("ip route flush default; sysctl -qw net.ipv4.conf.eth0.arp_filter=0");
                }
                wait_for("repairs", || before + 3 * containers.len() <= repairs());
            }
            for (container, port) in containers.iter().zip(8081..) {
                host.del(container, &host.list(port));
            }
        }
    };
    until(200);
    let early = resident_kib(daemon.pid());
    until(2200);
    let late = resident_kib(daemon.pid());
    println!(
        "MEASURED resident memory of netwrightd repair after 200 repairs {early} KiB, after 2,200 {late} KiB"
    );
    assert!(late < early + early / 2 + 2048, "{early} KiB became {late} KiB");
}
