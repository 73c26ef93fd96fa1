//! The messages to a person who lacks a right, mistyped a word, or asks for what no plugin
//! provides.

use std::path::Path;

use expect_test::{expect, expect_file};
use testkit::{Lab, Place, Snapshot};

use crate::support::{
    CommandOutput, EXECUTABLE, Scratch, assert_as_before, call_in, command_in, said,
};

/// A user without rights; `nobody` on most systems.
const NOBODY: &str = "65534";

fn network(lab: &Lab, name: &str, plugins: &str) {
    lab.sh("mkdir -p /etc/cni/net.d");
    let document =
        format!(r#"{{"cniVersion": "1.1.0", "name": "{name}", "plugins": [{plugins}]}}"#);
    std::fs::write(lab.path(format!("/etc/cni/net.d/{name}.conflist")), document).unwrap();
}

const BRIDGE: &str = r#"{"type": "bridge", "bridge": "br0",
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}"#;

fn as_nobody(lab: &Lab, args: &[&str]) -> CommandOutput {
    let mut command = lab.command("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", EXECUTABLE]);
    command.args(args).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    said(command)
}

#[test]
fn who_is_not_root_is_told_to_be() {
    testkit::require!("root");
    let lab = Lab::new("cli-told-rights");
    network(&lab, "blue", BRIDGE);
    let _c1 = lab.container("c1");
    call_in(&lab, &["add", "blue", "c1"]).succeeded();
    lab.sh("chmod 700 /var/lib/cni /run/netwright");
    for args in [
        &["list"][..],
        &["inspect", "c1"],
        &["gc"],
        &["repair"],
        &["del", "blue", "c1"],
        &["check", "blue", "c1"],
        &["add", "blue", "c1"],
        &["run", "--", "true"],
        &["install", "--bin-dir", "/opt/plugins"],
    ] {
        let said = as_nobody(&lab, args);
        assert_ne!(said.code, 0, "{args:?}: {said:#?}");
        assert!(said.stderr.contains("\nhint: run as root\n"), "{args:?}: {said:#?}");
    }
    let said = as_nobody(&lab, &["status"]).failed(3);
    assert!(!said.stdout.contains("not ready"), "{said:#?}");
    assert!(said.stdout.contains("  unknown  "), "{said:#?}");
    assert!(said.stdout.contains("run as root"), "{said:#?}");
    let json = as_nobody(&lab, &["status", "-o", "json"]).failed(3).json();
    assert!(json["networks"][0]["ready"].is_null(), "{json}");
    call_in(&lab, &["status"]).succeeded();
}

#[test]
fn a_full_disk_is_told_as_one() {
    testkit::require!("root");
    let lab = Lab::new("cli-told-full");
    // There is room for the folder, but for none of the links in it.
    lab.sh("mkdir -p /run/full && mount -t tmpfs -o nr_inodes=4 tmpfs /run/full");
    let mut command = command_in(&lab, &["run", "--", "true"]);
    command.env("NETWRIGHT_RUN_DIR", "/run/full");
    let said = said(command).failed(125);
    assert!(said.stderr.contains("\nhint: the disk is full: make room"), "{said:#?}");
    assert!(!said.stderr.contains("root"), "{said:#?}");
}

#[test]
fn a_file_system_that_is_mounted_read_only_is_told_as_that() {
    testkit::require!("root");
    let lab = Lab::new("cli-told-readonly");
    lab.sh("mkdir -p /run/ro && mount -t tmpfs -o ro tmpfs /run/ro");
    let mut command = command_in(&lab, &["run", "--", "true"]);
    command.env("NETWRIGHT_RUN_DIR", "/run/ro");
    let told = said(command).failed(125);
    assert!(told.stderr.contains("mounted read-only"), "{told:#?}");
    let read_only = "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys";
    lab.sh(read_only);
    let told = call_in(&lab, &["run", "--", "true"]);
    assert!(!told.both().contains("ipv6.disable"), "{told:#?}");
}

#[test]
fn a_file_that_ends_too_early_is_not_waited_for() {
    let scratch = Scratch::new();
    scratch.write("net.d/1.conflist", r#"{"name": "blue", "plugins": [{"type": "#);
    let said = scratch.call(&["inspect", "blue"]);
    assert!(!said.stderr.contains("try again"), "{said:#?}");
    let said = scratch.call(&["status", "blue"]).failed(4);
    assert!(said.stderr.contains("its end is missing: write it again\n"), "{said:#?}");
}

#[test]
fn a_container_that_is_not_attached_is_no_empty_list() {
    let scratch = Scratch::new();
    let said = scratch.call(&["list", "NOSUCH"]).failed(1);
    expect![[r#"
        error: there is no attachment of "NOSUCH"
        hint: `netwright list` alone shows every attachment
    "#]]
    .assert_eq(&said.stderr);
}

#[test]
fn a_command_that_is_not_there_is_told_in_the_form_that_was_asked_for() {
    testkit::require!("root");
    let lab = Lab::new("cli-told-command");
    let said = call_in(&lab, &["-o", "json", "run", "--", "nosuchcmd"]).failed(127);
    assert_eq!(said.stderr, "");
    assert_eq!(said.json()["msg"], "run \"nosuchcmd\"");
    assert_eq!(said.json()["details"], "No such file or directory");
}

#[test]
fn a_plugin_that_is_missing_is_looked_for_in_nobodys_folder() {
    testkit::require!("root");
    let lab = Lab::new("cli-told-plugin");
    network(&lab, "blue", r#"{"type": "nwt-none"}"#);
    let said = call_in(&lab, &["run", "--net", "blue", "--", "true"]).failed(125);
    let line = said.stderr.lines().next().unwrap_or_default();
    assert!(line.contains("failed to find plugin \"nwt-none\" in /opt/cni/bin, "), "{said:#?}");
    assert!(!said.stderr.contains("/plugins/") && !said.stderr.contains('['), "{said:#?}");
}

#[test]
fn an_address_that_no_plugin_takes_is_refused() {
    testkit::require!("root");
    let lab = Lab::new("cli-told-asked");
    network(&lab, "shared", r#"{"type": "bridge", "bridge": "br0"}"#);
    let before = Snapshot::take(&lab);
    let told = call_in(&lab, &["run", "--net", "shared", "--ip", "10.4.0.9", "--", "true"]);
    let first = told.stderr.lines().next().unwrap_or_default().to_owned();
    expect![[r#"error: network "shared": the address 10.4.0.9 was asked for, and none was given"#]]
        .assert_eq(&first);
    assert_eq!(told.code, 125);
    assert_as_before(&before, &lab);

    let _c1 = lab.container("c1");
    let told = call_in(&lab, &["add", "shared", "c1", "--ip", "10.4.0.9"]).failed(1);
    assert!(told.stderr.contains("\ncause: the container was detached again\n"), "{told:#?}");
    let told = call_in(&lab, &["add", "shared", "c1", "--cap", "colour=1"]).failed(1);
    expect![[r#"
        error: no plugin of network "shared" takes the capability "colour"
        cause: its plugins take no capability
        hint: add "capabilities": {"colour": true} to the plugin that is to have it, or leave --cap colour out
    "#]]
    .assert_eq(&told.stderr);
    // A plugin of ours would get it, and not read it.
    let capabilities = r#"{"capabilities": {"colour": true, "mac": true}, "type": "bridge""#;
    network(&lab, "unread", &BRIDGE.replacen(r#"{"type": "bridge""#, capabilities, 1));
    let told = call_in(&lab, &["add", "unread", "c1", "--cap", "colour=1"]).failed(1);
    assert!(
        told.stderr.contains("takes the capability \"colour\"\ncause: its plugins take mac\n"),
        "{told:#?}"
    );
    let run = ["run", "--net", "shared", "--net", "netwright", "--cap", "colour=1", "--", "true"];
    let told = call_in(&lab, &run).failed(125);
    assert!(told.stderr.contains("takes the capability \"colour\""), "{told:#?}");
}

/// The words that bash offers after a line.
fn offered(lab: &Lab, script: &str, line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let last = words.len() - 1;
    let asked = format!(
        ". {script}; COMP_WORDS=({}); COMP_CWORD={last}; COMP_LINE='{line}'; \
         _netwright_names {EXECUTABLE} \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{}]}}\" 2>/dev/null; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        last - 1
    )
    .replace("COMP_WORDS=('netwright'", &format!("COMP_WORDS=('{EXECUTABLE}'"));
    let mut command = lab.command("bash");
    command.args(["-c", &asked]);
    let said = said(command);
    said.stdout.lines().map(str::to_owned).filter(|line| !line.is_empty()).collect()
}

#[test]
fn a_shell_offers_networks_and_containers() {
    testkit::require!("root");
    let lab = Lab::new("cli-told-offered");
    network(&lab, "blue", BRIDGE);
    let _c1 = lab.container("c1");
    let script = call_in(&lab, &["completions", "bash"]).succeeded().stdout;
    std::fs::write(lab.path("/run/script"), script).unwrap();
    let offered = |line: &str| offered(&lab, "/run/script", line);
    assert_eq!(offered("netwright add "), ["blue", "netwright"]);
    assert_eq!(offered("netwright add b"), ["blue"]);
    assert_eq!(offered("netwright add blue "), ["c1"]);
    assert_eq!(offered("netwright -o json del blue "), ["c1"]);
    assert_eq!(offered("netwright run --net "), ["blue", "netwright"]);
    assert_eq!(offered("netwright list "), ["c1"]);
    assert_eq!(offered("netwright inspect "), ["blue", "netwright", "c1"]);
    assert_eq!(offered("netwright stat"), ["status"]);
}

#[test]
fn a_manual_page_shows_what_an_option_takes() {
    let scratch = Scratch::new();
    let dir = scratch.path("man");
    scratch.call(&["man", dir.to_str().unwrap()]).succeeded();
    let page = std::fs::read_to_string(dir.join("netwright-add.1")).unwrap();
    let synopsis = page.split(".SH ").find(|part| part.starts_with("SYNOPSIS\n")).unwrap();
    let plain = synopsis.replace("\\fB", "").replace("\\fI", "").replace("\\fR", "");
    let plain = plain.replace("\\-", "-");
    assert!(plain.contains("[--ip ADDRESS...]"), "{plain}");
    assert!(plain.contains("[-p|--publish [IP:]HOST:CONTAINER[/PROTOCOL]...]"), "{plain}");
    assert!(plain.trim_end().ends_with("NETWORK CONTAINER"), "{plain}");
}

/// A wrong word in each option of the command line, one after the other; `--` separates a command's
/// own words.
const LINES: &[&str] = &[
    "lst",
    "--colour list",
    "--output xml list",
    "--timeout 0 list",
    "--timeout soon list",
    "--conf-dir",
    "run --net",
    "run --net :ip=10.0.0.1 -- true",
    "run --net blue:colour=red -- true",
    "run --net blue:ip=10.0.0 -- true",
    "run --net blue:mac=zz -- true",
    "run --net blue:ifname=a/b -- true",
    "run --net blue:default-route=x -- true",
    "run --net nosuch -- true",
    "run --net blue --net blue:ifname=eth0 -- true",
    "run --publish 80 -- true",
    "run --publish 0:80 -- true",
    "run --publish 99999:80 -- true",
    "run --publish 80:80/icmp -- true",
    "run --publish 10.0.0:80:80 -- true",
    "run --ip 10.0.0 -- true",
    "run --ip 10.0.0.1/33 -- true",
    "run --net blue --ip 10.8.0.1 -- true",
    "run --mac 02:00 -- true",
    "run --ifname a/b -- true",
    "run --ifname abcdefghijklmnopqrst -- true",
    "run --arg KEY -- true",
    "run --cap colour -- true",
    "run --cap mac=red -- true",
    "run --cap portMappings=[] -- true",
    "run --net blue --cap colour=1 -- true",
    "run --name a/b -- true",
    "run --to nowhere -- true",
    "run -- nosuchcmd",
    "probe --to nowhere",
    "add",
    "add blue",
    "add nosuch c1",
    "add blue nosuch",
    "add blue 4194305",
    "add blue /etc/hostname",
    "add blue c1 --container-id a/b",
    "del nosuch c1",
    "check blue c1",
    "status nosuch",
    "gc --valid c1",
    "gc blue --valid c1 --all",
    "repair nosuch",
    "repair --network nosuch",
    "list nosuch",
    "inspect",
    "inspect nosuch",
    "inspect nosuch --default",
    "lint /nosuch",
    "install --bin-dir /proc/nosuch",
    "install --also nosuch",
    "uninstall --bin-dir /nosuch",
    "conformance",
    "conformance --bin-dir /nosuch",
    "conformance --bin-dir /opt --case nosuch",
    "conformance --list --report xml",
    "conformance --list --workers many",
    "oci-hook createruntime",
    "completions csh",
    "man",
];

/// A wrong word in each key of plugins, as their part of a list.
const PLUGINS: &[&str] = &[
    r#"{"type": "brigde"}"#,
    r#"{"type": "bridge", "bridge": "abcdefghijklmnopqrstuvwxyz"}"#,
    r#"{"type": "bridge", "bridge": 5}"#,
    r#"{"type": "bridge", "mtu": 99999999}"#,
    r#"{"type": "bridge", "mtu": "1500"}"#,
    r#"{"type": "bridge", "vlan": 5000}"#,
    r#"{"type": "bridge", "vlanTrunk": [{"minID": 9, "maxID": 3}]}"#,
    r#"{"type": "bridge", "hairpinMode": true, "promiscMode": true}"#,
    r#"{"type": "bridge", "isGateway": "yes"}"#,
    r#"{"type": "bridge", "ipam": {"type": "nosuch"}}"#,
    r#"{"type": "bridge", "ipam": {"type": "host-local"}}"#,
    r#"{"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.1/24"}]]}}"#,
    r#"{"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0/24"}]]}}"#,
    r#"{"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/32"}]]}}"#,
    r#"{"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/24", "rangeStart": "10.1.0.1"}]]}}"#,
    r#"{"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.3"}]]}}"#,
    r#"{"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/24", "gateway": "x"}]]}}"#,
    r#"{"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.0.0/25"}]]}}"#,
    r#"{"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/24"}]], "routes": [{"dst": "x"}]}}"#,
    r#"{"type": "bridge", "ipam": {"type": "static"}}"#,
    r#"{"type": "bridge", "ipam": {"type": "static", "addresses": [{"address": "10.0.0.5"}]}}"#,
    r#"{"type": "macvlan", "master": "nosuch"}"#,
    r#"{"type": "macvlan", "master": "up0", "mode": "nosuch"}"#,
    r#"{"type": "macvlan", "master": "up0", "mtu": 99999}"#,
    r#"{"type": "macvlan", "master": "up0", "mtu": -1}"#,
    r#"{"type": "ipvlan", "master": "nosuch"}"#,
    r#"{"type": "ipvlan", "master": "up0", "mode": "nosuch"}"#,
    r#"{"type": "vlan", "master": "nosuch", "vlanId": 5}"#,
    r#"{"type": "vlan", "master": "up0", "vlanId": 5000}"#,
    r#"{"type": "vlan", "master": "up0"}"#,
    r#"{"type": "vlan"}"#,
    r#"{"type": "ptp", "mtu": -5}"#,
    r#"{"type": "ptp", "ipam": {}}"#,
    r#"{"type": "host-device"}"#,
    r#"{"type": "host-device", "device": "nosuch"}"#,
    r#"{"type": "loopback"}, {"type": "tuning", "mac": "zz"}"#,
    r#"{"type": "loopback"}, {"type": "tuning", "mtu": "big"}"#,
    r#"{"type": "loopback"}, {"type": "tuning", "sysctl": {"net.nosuch": "1"}}"#,
    r#"{"type": "loopback"}, {"type": "tuning", "sysctl": {"kernel.hostname": "x"}}"#,
    r#"{"type": "loopback"}, {"type": "bandwidth", "ingressRate": 1}"#,
    r#"{"type": "loopback"}, {"type": "bandwidth", "ingressRate": -1, "ingressBurst": 1}"#,
    r#"{"type": "loopback"}, {"type": "portmap", "backend": "nosuch"}"#,
    r#"{"type": "loopback"}, {"type": "firewall", "backend": "nosuch"}"#,
    r#"{"type": "loopback"}, {"type": "firewall", "backend": "firewalld"}"#,
    r#"{"type": "host-local"}"#,
];

/// Replaces process IDs and made-up values, which differ from run to run.
fn settled(text: &str) -> String {
    let mut settled = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("run-") {
        let (before, id) = rest.split_at(at);
        let digits = id[4..].find(|c: char| !c.is_ascii_hexdigit() && c != '-');
        let end = 4 + digits.unwrap_or(id.len() - 4);
        settled.push_str(before);
        settled.push_str(if 12 < end { "run-ID" } else { &id[..end] });
        rest = &id[end..];
    }
    settled.push_str(rest);
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let mut out = String::new();
    let mut rest = settled.as_str();
    while let Some(at) = rest.find("/proc/") {
        let (before, path) = rest.split_at(at + 6);
        out.push_str(before);
        let end = digits(path);
        let own = 0 < end && !path.starts_with("4194305");
        out.push_str(if own { "PID" } else { &path[..end] });
        rest = &path[end..];
        if let Some(task) = rest.strip_prefix("/task/").filter(|_| own) {
            out.push_str("/task/TID");
            rest = &task[digits(task)..];
        }
    }
    out.push_str(rest);
    out
}

/// The messages to a wrong word, from top to bottom. Read the list again after a change of a
/// message.
#[test]
fn a_wrong_word_is_told_so_that_nobody_reads_it_twice() {
    testkit::require!("root");
    let lab = Lab::new("cli-told-wrong");
    lab.sh("ip link add up0 type veth peer name up1 && ip link set up0 up && ip link set up1 up");
    lab.sh("rm -f /etc/resolv.conf && echo nameserver 192.0.2.53 >/etc/resolv.conf");
    network(&lab, "blue", BRIDGE);
    let _c1 = lab.container("c1");
    let before = Snapshot::take(&lab);
    let mut list = String::new();
    for line in LINES {
        let words: Vec<&str> = line.split(' ').collect();
        let said = call_in(&lab, &words);
        assert_ne!(said.code, 0, "{line}: {said:#?}");
        let told = settled(&said.both());
        list.push_str(&format!("$ netwright {line}    [{}]\n{}\n", said.code, told));
    }
    for plugins in PLUGINS {
        network(&lab, "wrong", plugins);
        let said = call_in(&lab, &["run", "--net", "wrong", "--", "true"]);
        let told = settled(&said.both());
        list.push_str(&format!("{plugins}    [{}]\n{told}\n", said.code));
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/told.txt");
    expect_file![file].assert_eq(&list);
    lab.sh("rm /etc/cni/net.d/wrong.conflist");
    assert_as_before(&before, &lab);
}
