//! `netwright setup` on hosts with systemd, and with a `systemctl` that fails.

mod booted;
mod faults;

use std::fs;

use serde_json::Value;
use testkit::{Lab, Place as _, Snapshot, traffic};

use crate::support::{Said, call_in};

/// Where setup may leave something, besides the folders that every snapshot has.
const FILES: [&str; 12] = [
    "/etc/NetworkManager",
    "/etc/cni",
    "/etc/netwright",
    "/etc/systemd",
    "/etc/tmpfiles.d",
    "/opt/cni",
    "/run/cni",
    "/run/docker",
    "/run/netwright",
    "/usr/local/bin",
    "/var/lib/cni",
    "/var/lib/netwright",
];

/// What is expected to stay: a folder that runtimes may watch, and what host-local keeps, as with
/// the reference.
const STAYS: [&str; 2] = ["files: /etc/cni is new", "files: /etc/cni/net.d is new"];

#[track_caller]
fn assert_as_before(before: &Snapshot, lab: &Lab) {
    let lines = before.diff(&Snapshot::with_files(lab, &FILES));
    let left: Vec<&String> = lines
        .iter()
        .filter(|line| !STAYS.iter().any(|text| line.contains(text)))
        .filter(|line| !line.contains("/var/lib/cni"))
        .collect();
    assert!(left.is_empty(), "the host is not as it was: {left:#?}");
}

fn setup(lab: &Lab, more: &[&str]) -> Said {
    call_in(lab, &[&["setup", "--bin-dir", "/opt/cni/bin"], more].concat())
}

fn undo(lab: &Lab) -> Said {
    call_in(lab, &["setup", "--undo", "--yes"])
}

/// The names of the steps of a report in JSON.
fn steps(report: &Value) -> Vec<&str> {
    report["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect()
}

#[test]
fn a_machine_is_set_up_and_is_as_before_afterwards() {
    testkit::require!("root", "file:/lib/systemd/systemd");
    let lab = &Lab::with_systemd("setup");
    let before = Snapshot::with_files(lab, &FILES);
    let planned = setup(lab, &["--dry-run", "-o", "json"]).succeeded().json();
    assert_eq!(planned["isDone"], false, "{planned}");
    assert_as_before(&before, lab);

    let done = setup(lab, &["--yes", "-o", "json"]).succeeded().json();
    assert_eq!(steps(&done), steps(&planned));
    let packets = done["packets"].to_string();
    assert!(packets.contains("gateway 10.63.0.1: answers after"), "{done}");
    let installed = |words: &str| lab.sh(&format!("/usr/local/bin/netwright {words}"));
    let status = installed("agent status --wait");
    assert!(status.contains("collect  ready") && status.contains("repair   ready"), "{status}");

    // A second time.
    let written = "find /etc/systemd /etc/netwright /usr/local/bin /opt/cni /var/lib/netwright -printf '%p %i %T@\\n' | sort";
    let files = lab.sh(written);
    let again = setup(lab, &["--yes"]).succeeded();
    assert!(again.stderr.starts_with("everything is as it should be: nothing to do"), "{again:#?}");
    assert_eq!(lab.sh(written), files);

    // A container outlives it.
    let c1 = lab.container("c1");
    installed("add netwright c1 --container-id web");
    let refused = call_in(lab, &["uninstall", "--bin-dir", "/opt/cni/bin"]).failed(1);
    assert!(refused.stderr.contains("hint: `netwright setup --undo` removes both"), "{refused:#?}");
    let said = undo(lab).failed(4);
    assert!(
        said.stderr
            .contains("containers are attached, and keep their networks: netwright/web/eth0"),
        "{said:#?}"
    );
    traffic::assert_pings(&c1, "10.63.0.1");
    let units = lab.sh(
        "ls -A /etc/systemd/system; systemctl list-units --all --plain --no-legend 'netwright*'",
    );
    assert!(!units.contains("netwright"), "{units}");
    installed("del netwright c1 --container-id web");
    drop(c1);
    undo(lab).succeeded();
    assert_as_before(&before, lab);
    let said = undo(lab).failed(1);
    assert!(said.stderr.starts_with("error: nothing was set up here"), "{said:#?}");
}

/// A unit of the reference's package makes room, and comes back.
#[test]
fn the_references_daemon_is_replaced_and_given_back() {
    testkit::require!(
        "root",
        "file:/lib/systemd/systemd",
        "file:/lib/systemd/system/cni-dhcp.socket"
    );
    let lab = &Lab::with_systemd("setup-dhcp");
    lab.sh("cp /lib/systemd/system/cni-dhcp.* /etc/systemd/system/ && systemctl daemon-reload && \
            systemctl enable --now cni-dhcp.socket");
    let state = |unit: &str| {
        let of = |word: &str| lab.sh(&format!("systemctl {word} {unit} || true")).trim().to_owned();
        (of("is-enabled"), of("is-active"))
    };
    let on = ("enabled".to_owned(), "active".to_owned());
    assert_eq!(state("cni-dhcp.socket"), on);
    let before = Snapshot::with_files(lab, &FILES);
    setup(lab, &["--yes", "--no-packet", "--no-config"]).succeeded();
    assert_eq!(state("cni-dhcp.socket"), ("disabled".to_owned(), "inactive".to_owned()));
    assert_eq!(state("netwrightd@dhcp.socket").1, "active");
    let said = lab.sh("/usr/local/bin/netwrightd agent status --wait");
    assert!(said.contains("dhcp     ready"), "{said}");
    undo(lab).succeeded();
    assert_eq!(state("cni-dhcp.socket"), on);
    assert_as_before(&before, lab);
}

/// What a person has changed since stays and is named; what was there before comes back.
#[test]
fn files_of_others_are_kept() {
    testkit::require!("root", "file:/lib/systemd/systemd");
    let lab = &Lab::with_systemd("setup-files");
    lab.sh("mkdir -p /usr/local/bin && echo theirs >/usr/local/bin/netwright && chmod 711 /usr/local/bin/netwright");
    let inode = || lab.sh("stat -c '%i %a %Y' /usr/local/bin/netwright");
    let theirs = inode();
    let before = Snapshot::with_files(lab, &FILES);
    let quick = ["--yes", "--no-packet", "--no-config"];
    setup(lab, &quick).succeeded();
    assert_ne!(inode(), theirs);
    let write = |path: &str, text: &str| fs::write(lab.path(path), text).unwrap();
    write("/etc/netwright/netwrightd.toml", "[repair]\nenable = true\ninterval = \"7s\"\n");
    write("/etc/systemd/system/netwright.target", "[Unit]\nDescription=changed\n");
    let said = setup(lab, &quick).succeeded();
    assert!(
        said.stderr
            .contains("netwright.target was changed since setup wrote it: it stays as it is"),
        "{said:#?}"
    );
    let said = undo(lab).succeeded();
    for path in ["/etc/netwright/netwrightd.toml", "/etc/systemd/system/netwright.target"] {
        assert!(
            said.stderr.contains(&format!("{path} was changed since setup wrote it: it stays")),
            "{said:#?}"
        );
        assert!(lab.path(path).exists());
    }
    assert_eq!(inode(), theirs);
    lab.sh("rm -r /etc/netwright /etc/systemd/system/netwright.target");
    assert_as_before(&before, lab);
}
