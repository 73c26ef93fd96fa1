//! `netwright setup` on hosts with systemd, and with a `systemctl` that fails.

mod booted;
mod faults;

use serde_json::Value;
use testkit::{Lab, Place as _, Snapshot, traffic};

use crate::support::{CommandOutput, call_in};

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

/// What may stay: a folder that runtimes may watch, and host-local's files, as with the reference.
const STAYS: [&str; 2] = ["files: /etc/cni is new", "files: /etc/cni/net.d is new"];

/// Hides the machine's own programs behind an empty folder, because they are large.
fn empty_programs(lab: &Lab) {
    lab.sh("mkdir -p /usr/local/bin && mount -t tmpfs tmpfs /usr/local/bin");
}

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

fn setup(lab: &Lab, more: &[&str]) -> CommandOutput {
    call_in(lab, &[&["setup", "--bin-dir", "/opt/cni/bin"], more].concat())
}

fn undo(lab: &Lab) -> CommandOutput {
    call_in(lab, &["setup", "--undo", "--yes"])
}

/// The names of the steps of a report in JSON.
fn steps(report: &Value) -> Vec<&str> {
    report["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect()
}

/// Tried also beside the daemon of the reference's package, which setup stops and `--undo` starts
/// again.
#[test]
fn a_machine_is_set_up_and_is_as_before_afterwards() {
    testkit::require!(
        "root",
        "file:/lib/systemd/systemd",
        "file:/lib/systemd/system/cni-dhcp.socket"
    );
    let lab = &Lab::with_systemd("setup");
    empty_programs(lab);
    lab.sh("cp /lib/systemd/system/cni-dhcp.* /etc/systemd/system/ && systemctl daemon-reload && \
            systemctl --quiet enable --now cni-dhcp.socket");
    let theirs = || {
        lab.sh("systemctl is-enabled cni-dhcp.socket; systemctl is-active cni-dhcp.socket; true")
    };
    let before = Snapshot::with_files(lab, &FILES);
    let planned = setup(lab, &["--dry-run", "-o", "json"]).succeeded().json();
    assert_eq!(planned["isDone"], false, "{planned}");
    assert_as_before(&before, lab);

    let done = setup(lab, &["--yes", "-o", "json"]).succeeded().json();
    assert_eq!(steps(&done), steps(&planned));
    let packets = done["packets"].to_string();
    assert!(packets.contains("gateway 10.63.0.1: answers after"), "{done}");
    assert_eq!(theirs(), "disabled\ninactive\n");
    let installed = |words: &str| lab.sh(&format!("/usr/local/bin/netwright {words}"));
    let status = installed("agent status --wait");
    for service in ["collect  ready", "dhcp     ready", "repair   ready"] {
        assert!(status.contains(service), "{status}");
    }

    // The command runs a second time.
    let written = "find /etc/systemd /etc/netwright /usr/local/bin /opt/cni /var/lib/netwright -printf '%p %i %T@\\n' | sort";
    let files = lab.sh(written);
    let again = setup(lab, &["--yes"]).succeeded();
    assert!(again.stderr.starts_with("everything is as it should be: nothing to do"), "{again:#?}");
    assert_eq!(lab.sh(written), files);

    // A changed key counts after a reload, which is said.
    let drop_in = "/etc/netwright/netwrightd.d/interval.toml";
    lab.sh(&format!(
        "mkdir -p $(dirname {drop_in}) && printf '[repair]\\ninterval = \"7s\"\\n' >{drop_in}"
    ));
    let again = setup(lab, &["--yes"]).succeeded();
    let first = "everything is installed\nthe services have not read the changed configuration: \
                 `netwright agent reload` tells repair: interval\n";
    assert!(again.stderr.starts_with(first), "{again:#?}");
    assert_eq!(installed("agent reload"), "tells repair: interval\n");
    let again = setup(lab, &["--yes"]).succeeded();
    assert!(again.stderr.starts_with("everything is as it should be"), "{again:#?}");
    lab.sh(&format!("rm -r $(dirname {drop_in})"));
    installed("agent reload");

    // Docker would not be able to remove the containers of its networks: nothing is stopped.
    let network = "/var/lib/netwright/docker/networks/0123456789abcdef.json";
    lab.sh(&format!("mkdir -p $(dirname {network}) && touch {network}"));
    let refused = undo(lab).failed(1);
    assert!(refused.stderr.contains("docker network rm 0123456789ab`"), "{refused:#?}");
    assert_eq!(lab.sh("systemctl is-active netwright.target"), "active\n");
    lab.sh("rm -r /var/lib/netwright/docker");

    // A container outlives the removal.
    let c1 = lab.container("c1");
    installed("add netwright c1 --container-id web");
    let refused = call_in(lab, &["uninstall", "--bin-dir", "/opt/cni/bin"]).failed(1);
    assert!(refused.stderr.contains("hint: `netwright setup --undo` removes both"), "{refused:#?}");
    // An administrator's own file stays, and is named.
    let own = "/etc/netwright/netwrightd.d/own.toml";
    lab.sh(&format!("mkdir -p $(dirname {own}) && echo '[collect]' >{own}"));
    let said = undo(lab).failed(4);
    let first = "netwright setup --undo is done, but something is left\n";
    assert!(said.stderr.starts_with(first), "{said:#?}");
    let kept = "left: containers are attached, and keep their networks: netwright/web/eth0";
    assert!(said.stderr.contains(kept), "{said:#?}");
    assert!(said.stderr.contains(&format!("left: {own}: setup did not write it\n")), "{said:#?}");
    lab.sh(&format!("rm -r $(dirname {own})"));
    let said = undo(lab).failed(4);
    let first = "netwright setup --undo can undo nothing more now, and something is left\n";
    assert!(said.stderr.starts_with(first) && said.stderr.contains(kept), "{said:#?}");
    traffic::assert_pings(&c1, "10.63.0.1");
    let units = lab.sh(
        "ls -A /etc/systemd/system; systemctl list-units --all --plain --no-legend 'netwright*'",
    );
    assert!(!units.contains("netwright"), "{units}");
    assert_eq!(theirs(), "enabled\nactive\n");
    installed("del netwright c1 --container-id web");
    drop(c1);
    let said = undo(lab).succeeded();
    let is_whole = !said.stderr.contains("left: ");
    let first = said.stderr.lines().next().unwrap();
    assert_eq!(first == "netwright setup --undo is done", is_whole, "{said:#?}");
    assert_as_before(&before, lab);
    let said = undo(lab).failed(1);
    assert!(said.stderr.starts_with("error: nothing was set up here"), "{said:#?}");
}

/// As when the package of the executables goes: nothing leads to them any longer, and what is said of
/// the container is so.
#[test]
fn a_setup_goes_beside_containers_that_are_left() {
    testkit::require!("root", "file:/lib/systemd/systemd");
    let lab = &Lab::with_systemd("setup-left");
    empty_programs(lab);
    // No plugin of another project comes in the place of ours.
    lab.sh("! test -d /usr/lib/cni || mount -t tmpfs tmpfs /usr/lib/cni");
    let before = Snapshot::with_files(lab, &FILES);
    setup(lab, &["--yes", "--no-packet"]).succeeded();
    let c1 = lab.container("c1");
    lab.sh("/usr/local/bin/netwright add netwright c1 --container-id web -p 8080:80");
    lab.sh(r#"cat >/etc/cni/net.d/lan.conflist <<'E'
{"cniVersion": "1.0.0", "name": "lan", "plugins": [{"type": "bridge", "bridge": "lan0", "ipam": {"type": "static", "addresses": [{"address": "10.97.0.2/24"}]}}]}
E"#);
    lab.sh("/usr/local/bin/netwright add lan c1 --container-id web --ifname eth1");
    let lost = r#"/etc/cni/net.d/lan.conflist: the network "lan" needs "bridge", "static", which only Netwright has: runtimes will say: failed to find plugin "bridge", and no other plugin can detach what is attached: lan/web/eth1"#;
    let planned = call_in(lab, &["setup", "--undo", "--dry-run", "--force"]).succeeded();
    assert!(planned.stdout.contains(&format!("note: {lost}\n")), "{planned:#?}");
    let step =
        "  remove the plugins from /opt/cni/bin, and /opt/cni and /opt/cni/bin if empty then\n";
    assert!(planned.stdout.contains(step), "{planned:#?}");
    let said = call_in(lab, &["setup", "--undo", "--yes", "--force"]).succeeded();
    assert!(said.stderr.contains(&format!("warning: {lost}\n")), "{said:#?}");
    lab.sh("rm /etc/cni/net.d/lan.conflist");
    let stays = "left: lan/web/eth1, netwright/web/eth0 are attached, and keep their networks; their published";
    assert!(said.stderr.contains(stays), "{said:#?}");
    traffic::assert_pings(&c1, "10.63.0.1");
    let left = lab.sh("ls -A /opt/cni/bin /etc/cni/net.d /usr/local/bin 2>/dev/null; true");
    assert!(!left.contains("bridge") && !left.contains("netwright"), "{left}");
    drop(c1);
    assert!(lab.sh("nft list ruleset").contains("8080"), "it stays, as was said");
    let printed = said.stderr.split('`').nth(1).unwrap();
    lab.sh(printed);
    assert_as_before(&before, lab);
}
