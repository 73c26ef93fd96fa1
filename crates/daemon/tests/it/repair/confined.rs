//! The units that confine the services, and the services within them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use testkit::Place;

use super::Host;
use crate::rig::{Daemon, wait_for};

/// The service whose work this test follows.
const REPAIR: &str = "netwrightd@repair.service";

/// The unit of every service, with the highest exposure that `systemd-analyze` may report, in
/// tenths: 100 is a service without any confinement.
const UNITS: [(&str, u32); 9] = [
    ("netwrightd@agent.service", 30),
    ("netwrightd@collect.service", 45),
    ("netwrightd@dhcp.service", 45),
    (DOCKER, 55),
    (IPAM, 30),
    ("netwrightd@multinet.service", 45),
    // It enters containers whose networks do not pass the node.
    (POLICY, 45),
    (REPAIR, 45),
    ("netwrightd@routing.service", 30),
];

/// It mounts namespaces for other processes, so it cannot have a private mount namespace.
const DOCKER: &str = "netwrightd@docker.service";
const IPAM: &str = "netwrightd@ipam.service";
const POLICY: &str = "netwrightd@policy.service";

/// They run no plugins and enter no namespaces.
const APART: [&str; 3] = ["netwrightd@agent.service", IPAM, "netwrightd@routing.service"];

fn unit(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd").join(name)
}

/// The words of a unit's setting, if it has it.
fn optional(name: &str, key: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(unit(&format!("{name}.d/10-netwright.conf"))).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key}=")))?;
    Some(line.split_whitespace().map(str::to_owned).collect())
}

/// The words of a unit's setting.
fn setting(name: &str, key: &str) -> Vec<String> {
    optional(name, key).unwrap_or_else(|| panic!("{name} has no {key}"))
}

/// The system calls that a unit allows, with groups resolved as systemd does.
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
    testkit::require!("root", "program:systemd-analyze");
    let lab = testkit::Lab::new("units");
    let folder = unit("");
    let mut found: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".d").map(str::to_owned))
        .collect();
    found.sort();
    assert_eq!(found, UNITS.map(|(name, _)| name));
    // `systemd-analyze` looks for the executable, and must find no other fault.
    lab.sh("mkdir -p /usr/local/bin && ln -s /bin/true /usr/local/bin/netwrightd");
    let dir = lab.dir().join("units");
    lab.sh(&format!("cp -r {} {}", folder.display(), dir.display()));
    for (name, exposure) in UNITS {
        // An instance as systemd loads it.
        lab.sh(&format!("cd {} && cp netwrightd@.service {name}", dir.display()));
        let said = lab.sh(&format!(
            "cd {} && systemd-analyze verify --man=no --recursive-errors=no {name} *.socket *.target 2>&1",
            dir.display()
        ));
        assert_eq!(said, "", "{name}");
        lab.sh(&format!(
            "cd {0} && cat {name}.d/10-netwright.conf >>{name} && \
             systemd-analyze security --no-pager --offline=true --threshold={exposure} {0}/{name}",
            dir.display()
        ));
        for sure in ["NoNewPrivileges", "LockPersonality", "MemoryDenyWriteExecute"] {
            assert_eq!(setting(name, sure), ["true"], "{name}: {sure}");
        }
        assert_eq!(setting(name, "SystemCallArchitectures"), ["native"], "{name}");
        assert_eq!(setting(name, "SystemCallFilter")[0], "@system-service", "{name}");
        let namespaces = if APART.contains(&name) { "true" } else { "net" };
        assert_eq!(setting(name, "RestrictNamespaces"), [namespaces], "{name}");
        let strict = (name != DOCKER).then(|| vec!["strict".to_owned()]);
        assert_eq!(optional(name, "ProtectSystem"), strict, "{name}");
        // A namespace that the service does not see would count as gone.
        let hides = ["PrivateTmp", "ProtectHome", "ProtectProc", "InaccessiblePaths"];
        for hides in hides.into_iter().filter(|_| !APART.contains(&name)) {
            assert_eq!(optional(name, hides), None, "{name}: {hides}");
        }
        // CVE-2023-27593: an intruder in the daemon could replace the plugins, which run as root.
        for path in optional(name, "ReadWritePaths").unwrap_or_default() {
            let path = path.trim_start_matches('-');
            assert!(
                !["/opt", "/usr", "/etc"].iter().any(|of| path.starts_with(of)),
                "{name}: {path}"
            );
        }
        for capability in setting(name, "CapabilityBoundingSet") {
            let needed = [
                "SYS_ADMIN",
                "SYS_PTRACE",
                "NET_ADMIN",
                "NET_RAW",
                "NET_BROADCAST",
                "NET_BIND_SERVICE",
                "DAC_OVERRIDE",
            ];
            assert!(
                needed.contains(&capability.trim_start_matches("CAP_")),
                "{name}: {capability}"
            );
        }
    }
}

/// With only the unit's capabilities the service does its work, and it makes no system call that
/// the unit forbids.
#[test]
fn the_service_works_with_what_its_unit_allows() {
    testkit::require!("root", "program:systemd-analyze", "program:setpriv", "program:strace");
    let host = Host::new("confined");
    let lab = &host.node.lab;
    let c1 = lab.container("c1");
    host.add(&c1, &host.list(8081));
    let capabilities: Vec<String> = setting(REPAIR, "CapabilityBoundingSet")
        .iter()
        .map(|name| format!("+{}", name.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    let trace = lab.dir().join("trace");
    let mut command = lab.command("strace");
    command
        .args(["-f", "-qq", "-o", trace.to_str().unwrap(), "setpriv", "--no-new-privs"])
        .arg(format!("--bounding-set=-all,{}", capabilities.join(",")))
        .arg(env!("CARGO_BIN_EXE_netwrightd"));
    host.flags(&mut command, "repair", &["--interval", "100ms"]);
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
    let allowed = allowed_calls(lab, REPAIR);
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
