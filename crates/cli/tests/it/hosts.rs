//! Hosts that lack what networks need, and the commands that say so.

use std::fs;

use testkit::{Lab, Place};

use crate::support::call_in;

const NETWORK: &str = r#"{"cniVersion": "1.0.0", "name": "dual", "plugins": [{"type": "bridge",
  "bridge": "b0", "isGateway": true, "ipam": {"type": "host-local", "ranges": [
    [{"subnet": "10.30.0.0/24"}], [{"subnet": "fd00:30::/64"}]]}}]}"#;

const IPV6: [&str; 2] =
    ["sysctl -qw net.ipv6.conf.all.disable_ipv6=", "net.ipv6.conf.default.disable_ipv6="];

fn switch(lab: &Lab, off: u8) {
    lab.sh(&IPV6.map(|name| format!("{name}{off}")).join(" "));
}

#[test]
fn the_default_network_does_without_ipv6_where_it_is_off() {
    testkit::require!("root");
    let lab = Lab::new("cli-hosts-default");
    switch(&lab, 1);
    let why = "network \"netwright\" gives containers IPv4 addresses alone: IPv6 is switched off on \
               this host (net.ipv6.conf.default.disable_ipv6 is 1); ";
    let on = "to have both: sysctl -w net.ipv6.conf.default.disable_ipv6=0";
    let embedded = format!("{why}{on}\n");
    let said = call_in(&lab, &["run", "--", "ip", "-br", "addr", "show", "eth0"]).succeeded();
    assert!(said.stdout.contains("10.63.0.2/16") && !said.stdout.contains("fd63:"), "{said:#?}");
    assert!(said.stderr.contains(&embedded), "{said:#?}");
    let said = call_in(&lab, &["status"]).succeeded();
    assert!(said.stdout.contains(&format!("warning: {embedded}")), "{said:#?}");
    // The sysctl alone would not change the file.
    let file = format!("{why}its file has no IPv6 range; {on}, then `netwright install` again\n");
    let said = call_in(&lab, &["install", "--bin-dir", "/opt/cni/bin"]).succeeded();
    assert!(said.both().contains(&format!("note: {file}")), "{said:#?}");
    let written = || lab.sh("cat /etc/cni/net.d/99-netwright.conflist");
    assert!(written().contains("10.63.0.0/16") && !written().contains("fd63:"), "{}", written());
    let said = call_in(&lab, &["status", "netwright"]).succeeded();
    assert!(said.stdout.contains(&format!("warning: {file}")), "{said:#?}");
    let said = call_in(&lab, &["run", "--", "true"]).succeeded();
    assert_eq!(said.stderr, format!("warning: {file}"));
    // The file is updated once the host has both.
    switch(&lab, 0);
    call_in(&lab, &["install", "--bin-dir", "/opt/cni/bin"]).succeeded();
    assert!(written().contains("fd63:"), "{}", written());
    let said = call_in(&lab, &["run", "--", "ip", "-br", "addr", "show", "eth0"]).succeeded();
    assert!(said.stdout.contains("fd63:") && said.stderr.is_empty(), "{said:#?}");
}

/// By each of the ways to ask, from the embedded network and from its file.
#[test]
fn a_request_for_ipv6_says_that_the_host_has_none() {
    testkit::require!("root");
    let lab = Lab::new("cli-hosts-asked");
    lab.sh("ip netns add c1");
    switch(&lab, 1);
    let address = "fd63:b7c4:5e0a::9";
    let asked = |args: &[&str], text: &str| {
        let said = call_in(&lab, args);
        assert_ne!(said.code, 0, "{said:#?}");
        let why = format!(
            "error: {text} cannot be given: network \"netwright\" gives containers IPv4 addresses \
             alone: IPv6 is switched off on this host (net.ipv6.conf.default.disable_ipv6 is 1)\n\
             hint: sysctl -w net.ipv6.conf.default.disable_ipv6=0, or do not ask for an IPv6 \
             address\n"
        );
        assert_eq!(said.stderr, why, "{args:?}");
    };
    let spec = format!("netwright:ip={address}");
    let capability = format!("ips=[\"{address}/64\"]");
    for _ in 0..2 {
        asked(&["run", "--ip", address, "--", "true"], address);
        asked(&["run", "--ip", "10.63.4.4", "--ip", address, "--", "true"], address);
        asked(&["run", "--net", &spec, "--", "true"], address);
        asked(&["run", "--cap", &capability, "--", "true"], &format!("{address}/64"));
        asked(&["add", "netwright", "c1", "--ip", address], address);
        asked(&["add", "netwright", "c1", "--arg", &format!("IP={address}")], address);
        call_in(&lab, &["run", "--ip", "10.63.4.4", "--", "true"]).succeeded();
        call_in(&lab, &["install", "--bin-dir", "/opt/cni/bin"]).succeeded();
    }
    // What is not there is still not there with IPv6.
    switch(&lab, 0);
    call_in(&lab, &["install", "--bin-dir", "/opt/cni/bin"]).succeeded();
    call_in(&lab, &["run", "--ip", address, "--", "true"]).succeeded();
    let said = call_in(&lab, &["run", "--ip", "fd99::9", "--", "true"]);
    assert!(said.code != 0 && said.stderr.contains("lies in no range"), "{said:#?}");
}

#[test]
fn the_default_network_has_the_mtu_of_the_uplink() {
    testkit::require!("root");
    let lab = Lab::new("cli-hosts-mtu");
    lab.sh("ip link add up0 mtu 1400 type veth peer name up1; ip link set up1 up; \
         ip link set up0 up; ip route add default dev up0");
    let has = |mtu: u32| {
        let shown = call_in(&lab, &["run", "--", "ip", "link", "show", "eth0"]).succeeded();
        assert!(shown.stdout.contains(&format!("mtu {mtu} ")), "{shown:#?}");
    };
    has(1400);
    assert!(call_in(&lab, &["inspect", "--default"]).succeeded().stdout.contains("\"mtu\": 1400,"));
    // A file has a number, which the Go plugins read too.
    let install = || call_in(&lab, &["install", "--bin-dir", "/opt/cni/bin"]).succeeded();
    let written = || lab.sh("cat /etc/cni/net.d/99-netwright.conflist");
    install();
    assert!(written().contains("\"mtu\": 1400,"), "{}", written());
    has(1400);
    lab.sh("ip link set up0 mtu 1500");
    install();
    assert!(!written().contains("mtu"), "{}", written());
    has(1500);
    // A file that somebody has changed stays.
    lab.sh("sed -i '/\"bridge\": \"nw0\",/a \"mtu\": 1380, \"vlan\": 0,' /etc/cni/net.d/99-netwright.conflist");
    install();
    has(1380);
}

#[test]
fn what_this_host_lacks_is_said_before_the_first_container() {
    testkit::require!("root");
    let lab = Lab::new("cli-hosts-lacks");
    lab.sh("mkdir -p /etc/cni/net.d; ip netns add c1");
    fs::write(lab.path("/etc/cni/net.d/dual.conflist"), NETWORK).unwrap();
    switch(&lab, 1);
    let off = "IPv6 is switched off on this host (net.ipv6.conf.default.disable_ipv6 is 1)";
    let command = "sysctl -w net.ipv6.conf.default.disable_ipv6=0";
    told(&lab, off, command);
    switch(&lab, 0);
    lab.sh("mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys");
    let lacks = "containers could become this host's router by router advertisements, and \
                 /proc/sys cannot be written";
    told(&lab, lacks, "sysctl -w net.ipv6.conf.default.accept_ra=0");
    lab.sh("umount /proc/sys");
    call_in(&lab, &["status", "dual"]).succeeded();
    call_in(&lab, &["add", "dual", "c1"]).succeeded();
    let said = call_in(&lab, &["lint"]).succeeded();
    assert!(said.stdout.contains("0 errors, 0 warnings"), "{said:#?}");
}

/// Asserts what all commands say of the network.
fn told(lab: &Lab, what: &str, command: &str) {
    let lint = call_in(lab, &["lint"]).succeeded();
    let warns = format!("warning: on this host plugin \"bridge\": {what}");
    assert!(lint.stdout.contains(&warns) && lint.stdout.contains(command), "{lint:#?}");
    let status = call_in(lab, &["status", "dual"]);
    assert_ne!(status.code, 0, "{status:#?}");
    assert!(status.stdout.contains(what) && status.stdout.contains(command), "{status:#?}");
    assert!(status.stdout.contains("not ready"), "{status:#?}");
    let doctor = call_in(lab, &["doctor", "-o", "json"]);
    let report = doctor.json();
    let findings = report["findings"].as_array().unwrap();
    let refused = findings.iter().find(|one| one["id"] == "network-refused");
    let refused = refused.unwrap_or_else(|| panic!("{doctor:#?}")).to_string();
    assert!(refused.contains(command), "{refused}");
    let add = call_in(lab, &["add", "dual", "c1"]);
    assert_ne!(add.code, 0, "{add:#?}");
    assert!(add.stderr.contains(what) && add.stderr.contains(command), "{add:#?}");
    for word in ["capability", "SELinux", "permission"] {
        assert!(!add.stderr.contains(word), "{add:#?}");
    }
}
