//! The units that confine the services, and the services within them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use testkit::Place;

use super::Host;
use crate::rig::{Daemon, wait_for};

/// Units of services that need no more than these.
const UNITS: [&str; 2] = ["netwright-repair.service", "netwright-collect.service"];

fn unit(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd").join(name)
}

/// The words of a unit's setting.
fn setting(name: &str, key: &str) -> Vec<String> {
    let text = fs::read_to_string(unit(name)).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key}=")));
    let line = line.unwrap_or_else(|| panic!("{name} has no {key}"));
    line.split_whitespace().map(str::to_owned).collect()
}

/// The system calls that a unit allows, groups taken apart as systemd does it.
fn allowed_calls(place: &impl Place, name: &str) -> BTreeSet<String> {
    let mut calls = BTreeSet::new();
    let mut open = setting(name, "SystemCallFilter");
    while let Some(word) = open.pop() {
        if word.starts_with('@') {
            let text = place.sh(&format!("systemd-analyze --no-pager syscall-filter {word}"));
            let words = text.lines().skip(1).map(str::trim);
            open.extend(
                words.filter(|line| !line.starts_with('#') && !line.is_empty()).map(str::to_owned),
            );
        } else {
            calls.insert(word);
        }
    }
    calls
}

#[test]
fn the_units_are_whole_and_confine() {
    testkit::require!("program:systemd-analyze");
    let lab = testkit::Lab::new("units");
    for name in UNITS {
        let path = unit(name);
        // Ten times systemd's own measure of exposure: 10 is a service that is not confined at all.
        lab.sh(&format!(
            "systemd-analyze security --no-pager --offline=true --threshold=45 {}",
            path.display()
        ));
        assert_eq!(setting(name, "NoNewPrivileges"), ["true"]);
        assert_eq!(setting(name, "ProtectSystem"), ["strict"]);
        assert_eq!(setting(name, "RestrictNamespaces"), ["net"]);
        // A namespace that is not seen would be taken for gone.
        let text = fs::read_to_string(unit(name)).unwrap();
        for hides in ["\nPrivateTmp=", "\nProtectHome=", "\nProtectProc=", "\nInaccessiblePaths="] {
            assert!(!text.contains(hides), "{name}: {hides}");
        }
        // CVE-2023-27593: whoever took the daemon could replace the plugins, which run as root.
        for path in setting(name, "ReadWritePaths") {
            let path = path.trim_start_matches('-');
            assert!(
                !["/opt", "/usr", "/etc"].iter().any(|of| path.starts_with(of)),
                "{name}: {path}"
            );
        }
        for capability in setting(name, "CapabilityBoundingSet") {
            assert!(
                [
                    "SYS_ADMIN",
                    "SYS_PTRACE",
                    "NET_ADMIN",
                    "NET_RAW",
                    "NET_BROADCAST",
                    "DAC_OVERRIDE"
                ]
                .contains(&capability.trim_start_matches("CAP_")),
                "{name}: {capability}"
            );
        }
    }
}

/// With the unit's capabilities and no others it does its work, and makes no system call that the unit forbids.
#[test]
fn the_service_works_with_what_its_unit_allows() {
    testkit::require!("root", "program:systemd-analyze", "program:setpriv", "program:strace");
    let host = Host::new("confined");
    let lab = &host.node.lab;
    let c1 = lab.container("c1");
    host.add(&c1, &host.list(8081));
    let capabilities: Vec<String> = setting(UNITS[0], "CapabilityBoundingSet")
        .iter()
        .map(|name| format!("+{}", name.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    let trace = lab.dir().join("trace");
    let mut command = lab.command("strace");
    command
        .args(["-f", "-qq", "-o", trace.to_str().unwrap(), "setpriv", "--no-new-privs"])
        .arg(format!("--bounding-set=-all,{}", capabilities.join(",")))
        .arg(env!("CARGO_BIN_EXE_netwrightd"));
    host.flags(&mut command, "repair", &["-interval", "100ms"]);
    let daemon = Daemon::start(command, &lab.dir().join("repair.log"));
    wait_for("the service to be ready", || daemon.log().contains(" ready"));
    lab.sh("nft flush ruleset; sysctl -qw net.ipv4.ip_forward=0");
    c1.sh("ip route del default; sysctl -qw net.ipv4.conf.eth0.arp_filter=0");
    wait_for("everything to be put back", || {
        lab.sh("nft list ruleset").contains("tcp . 8081")
            && lab.sh("sysctl -n net.ipv4.ip_forward").trim() == "1"
            && c1.sh("ip route").contains("default")
            && c1.sh("sysctl -n net.ipv4.conf.eth0.arp_filter").trim() == "1"
    });
    assert!(!daemon.log().contains("CAP_NET_BROADCAST is missing"), "{}", daemon.log());
    drop(daemon);
    let allowed = allowed_calls(lab, UNITS[0]);
    let text = fs::read_to_string(&trace).unwrap();
    let made: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1)?.split_once('('))
        .map(|(name, _)| name)
        .filter(|name| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        })
        .collect();
    assert!(made.contains("setns") && made.contains("sendto"), "{made:?}");
    let forbidden: Vec<_> = made.iter().filter(|name| !allowed.contains(**name)).collect();
    assert!(forbidden.is_empty(), "the unit forbids {forbidden:?}");
}
