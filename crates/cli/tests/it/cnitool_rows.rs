//! The executable called as cnitool: the rows of cnitool's behaviour (`docs/spec/reference.toml`)
//! that `cnitool` does not have.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testkit::{Lab, Place};

use crate::support::{CommandOutput, EXECUTABLE, said};

/// A laboratory with cnitool and the plugins.
fn lab(name: &str) -> Lab {
    let lab = Lab::new(name);
    let bin = lab.dir().join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    symlink(EXECUTABLE, lab.dir().join("cnitool")).unwrap();
    for plugin in plugins::all() {
        symlink(EXECUTABLE, bin.join(plugin.name())).unwrap();
    }
    lab
}

/// Writes a list of plugins into a folder.
fn configure(dir: &Path, network: &str, plugins: &Value) {
    std::fs::create_dir_all(dir).unwrap();
    let document = json!({ "cniVersion": "1.1.0", "name": network, "plugins": plugins });
    std::fs::write(dir.join(format!("{network}.conflist")), document.to_string()).unwrap();
}

fn bridge(subnet: &str) -> Value {
    json!({ "type": "bridge", "bridge": "br0", "isGateway": true,
            "ipam": { "type": "host-local", "subnet": subnet } })
}

fn cnitool(lab: &Lab, variables: &[(&str, &str)], args: &[&str]) -> CommandOutput {
    let mut command: Command = lab.command(lab.dir().join("cnitool").to_str().unwrap());
    command
        .args(args)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("CNI_PATH", lab.dir().join("bin"))
        .envs(variables.iter().copied());
    said(command)
}

/// Rows: cnitool | add (a relative path starts at the current folder), container id, and
/// NETCONFPATH's default.
#[test]
fn paths_are_taken_from_the_current_folder_and_configurations_from_etc() {
    testkit::require!("root");
    let lab = lab("cli-cnitool-paths");
    configure(&lab.path("/etc/cni/net.d"), "blue", &json!([bridge("10.9.0.0/24")]));
    let a = lab.container("a");
    let variables = format!("CNI_PATH={}", lab.dir().join("bin").display());
    let tool = lab.dir().join("cnitool");
    lab.sh(&format!(
        "cd /run && env -u NETCONFPATH {variables} {} add blue netns/a",
        tool.display()
    ));
    a.sh("ip link show eth0");
    lab.sh("test -f /var/lib/cni/results/blue-cnitool-a145bc1ace582bff43bd-eth0");
    // A bare name is a path as well, and leads nowhere from this folder.
    let elsewhere = cnitool(&lab, &[], &["add", "blue", "a"]).failed(1);
    assert!(elsewhere.stderr.contains("failed to Statfs"), "{elsewhere:#?}");
    cnitool(&lab, &[], &["del", "blue", "/run/netns/a"]).succeeded();
    assert_eq!(a.sh("ip -br link | wc -l").trim(), "1");
}

/// Row: cnitool | status.
#[test]
fn status_is_silent_or_says_what_is_missing() {
    testkit::require!("root");
    let lab = lab("cli-cnitool-status");
    let dir = lab.dir().join("net.d");
    // One address besides the gateway's.
    configure(&dir, "blue", &json!([bridge("10.9.0.0/30")]));
    let variables = [("NETCONFPATH", dir.to_str().unwrap())];
    let status = || cnitool(&lab, &variables, &["status", "blue", "unused"]);
    assert_eq!(status().succeeded().both(), "");
    let _c1 = lab.container("c1");
    cnitool(&lab, &variables, &["add", "blue", "/run/netns/c1"]).succeeded();
    let exhausted = status().failed(1);
    assert_eq!(exhausted.stdout, "");
    assert!(exhausted.stderr.contains("no IP addresses available"), "{exhausted:#?}");
    cnitool(&lab, &variables, &["del", "blue", "/run/netns/c1"]).succeeded();
    assert_eq!(status().succeeded().both(), "");
}

/// Row: cnitool | CAP_ARGS.
#[test]
fn capability_arguments_reach_the_plugin_that_has_them() {
    testkit::require!("root");
    let lab = lab("cli-cnitool-caps");
    let dir = lab.dir().join("net.d");
    let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    configure(&dir, "blue", &json!([bridge("10.9.0.0/24"), portmap]));
    let _c1 = lab.container("c1");
    let ports = r#"{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}], "mac": "x"}"#;
    let variables = [("NETCONFPATH", dir.to_str().unwrap()), ("CAP_ARGS", ports)];
    cnitool(&lab, &variables, &["add", "blue", "/run/netns/c1"]).succeeded();
    let mapped = lab.sh("nft list map inet netwright hostports4");
    assert!(mapped.contains("tcp . 8080") && mapped.contains("10.9.0.2 . 80"), "{mapped}");
    let bad = [variables[0], ("CAP_ARGS", "[8080]")];
    let refused = cnitool(&lab, &bad, &["add", "blue", "/run/netns/c1"]).failed(1);
    assert!(refused.stderr.contains("CAP_ARGS"), "{refused:#?}");
    // Without the variable DEL reads them from the cache.
    cnitool(&lab, &variables[..1], &["del", "blue", "/run/netns/c1"]).succeeded();
    assert!(!lab.sh("nft list map inet netwright hostports4").contains("8080"));
}

/// Row: cnitool | CNI_IFNAME and -i.
#[test]
fn the_flag_comes_before_the_variable() {
    testkit::require!("root");
    let lab = lab("cli-cnitool-order");
    let dir = lab.dir().join("net.d");
    configure(&dir, "blue", &json!([bridge("10.9.0.0/24")]));
    let c1 = lab.container("c1");
    let variables = [("NETCONFPATH", dir.to_str().unwrap()), ("CNI_IFNAME", "net1")];
    for (flag, variables, ifname) in [
        (&["-i", "eth9"][..], &variables[..], "eth9"),
        (&["--ifname=eth8"], &variables, "eth8"),
        (&[], &variables, "net1"),
        (&[], &variables[..1], "eth0"),
    ] {
        let args = |verb: &'static str| [flag, &[verb, "blue", "/run/netns/c1"]].concat();
        cnitool(&lab, variables, &args("add")).succeeded();
        c1.sh(&format!("ip link show {ifname}"));
        cnitool(&lab, variables, &args("del")).succeeded();
        assert_eq!(c1.sh("ip -br link | wc -l").trim(), "1", "{ifname}");
    }
}
