//! The executable called as cnitool.

use std::os::unix::fs::symlink;
use std::process::Command;

use testkit::{Lab, Place};

use crate::support::{CommandOutput, EXECUTABLE, said};

/// A laboratory with cnitool, the plugins and a network.
fn lab(name: &str) -> Lab {
    let lab = Lab::new(name);
    let bin = lab.dir().join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    symlink(EXECUTABLE, lab.dir().join("cnitool")).unwrap();
    for plugin in plugins::all() {
        symlink(EXECUTABLE, bin.join(plugin.name())).unwrap();
    }
    std::fs::create_dir_all(lab.dir().join("net.d")).unwrap();
    let document = r#"{"cniVersion": "1.0.0", "name": "blue", "plugins": [
        {"type": "bridge", "bridge": "br0", "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}}]}"#;
    std::fs::write(lab.dir().join("net.d/10-blue.conflist"), document).unwrap();
    lab
}

fn command(lab: &Lab, args: &[&str]) -> Command {
    let mut command = lab.command(lab.dir().join("cnitool").to_str().unwrap());
    command
        .args(args)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("CNI_PATH", lab.dir().join("bin"))
        .env("NETCONFPATH", lab.dir().join("net.d"));
    command
}

fn cnitool(lab: &Lab, args: &[&str]) -> CommandOutput {
    said(command(lab, args))
}

#[test]
fn it_attaches_and_detaches_as_the_original_does() {
    testkit::require!("root");
    let lab = lab("cli-cnitool");
    let c1 = lab.container("c1");
    let said = cnitool(&lab, &["add", "blue", "/run/netns/c1"]).succeeded();
    assert!(said.stdout.starts_with("{\n    \"cniVersion\": \"1.0.0\",\n"), "{said:#?}");
    assert!(said.stdout.ends_with('}'), "no newline at the end");
    assert_eq!(said.json()["ips"][0]["address"], "10.9.0.2/24");
    // The container ID and the result's path are the original's.
    let id = format!("cnitool-{}", cni::owner::sha512_hex("/run/netns/c1", 20));
    lab.sh(&format!("test -f /var/lib/cni/results/blue-{id}-eth0"));
    let said = cnitool(&lab, &["check", "blue", "/run/netns/c1"]).succeeded();
    assert_eq!(said.both(), "");
    let said = cnitool(&lab, &["del", "blue", "/run/netns/c1", "ignored"]).succeeded();
    assert_eq!(said.both(), "");
    assert_eq!(c1.sh("ip -br link | wc -l").trim(), "1");
}

#[test]
fn interface_names_come_from_flag_or_environment() {
    testkit::require!("root");
    let lab = lab("cli-cnitool-ifname");
    let c1 = lab.container("c1");
    cnitool(&lab, &["-i", "net0", "add", "blue", "/run/netns/c1"]).succeeded();
    let mut by_environment = command(&lab, &["add", "blue", "/run/netns/c1"]);
    by_environment.env("CNI_IFNAME", "net1");
    said(by_environment).succeeded();
    c1.sh("ip link show net0 && ip link show net1");
    // Without a list of valid attachments GC removes all.
    cnitool(&lab, &["gc", "blue", "/run/netns/c1"]).succeeded();
    assert_eq!(c1.sh("ip -br link | wc -l").trim(), "1");
}

#[test]
fn errors_are_one_line_and_exit_with_one() {
    testkit::require!("root");
    let lab = lab("cli-cnitool-errors");
    let said = cnitool(&lab, &["add", "blue"]).failed(1);
    assert!(said.stderr.starts_with("usage: cnitool add|check|del"), "{said:#?}");
    let said = cnitool(&lab, &["add", "green", "/run/netns/c1"]).failed(1);
    let dir = lab.dir().join("net.d");
    assert_eq!(
        said.stderr,
        format!("no net configuration with name \"green\" in {}\n", dir.display())
    );
    // An embedded network does not stand in for a missing one.
    cnitool(&lab, &["add", "netwright", "/run/netns/c1"]).failed(1);
    let mut bad = command(&lab, &["add", "blue", "/run/netns/c1"]);
    bad.env("CNI_ARGS", "A;B");
    let said = crate::support::said(bad).failed(1);
    assert!(said.stderr.starts_with("invalid CNI_ARGS pair \"A\""), "{said:#?}");
}
