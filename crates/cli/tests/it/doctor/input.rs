//! What `doctor` writes, reads and refuses. It changes nothing.

use std::io::Read as _;
use std::process::Stdio;

use diagnose::model::{FORMAT, Scene};
use serde_json::Value;
use testkit::{Place, Snapshot, require};

use super::situations::node::{Node, findings};
use crate::support::{EXECUTABLE, Scratch, call_in, command_in, said};

/// `doctor` sends probes and writes files, and the node is as before.
#[test]
fn probes_leave_nothing() {
    require!("root", "program:nft");
    let node = Node::new("doctor-still");
    let before = Snapshot::take(&node.lab);
    let inside = Snapshot::of(&node.c1);
    let bundle = node.lab.dir().join("bundle.json");
    let to = ["--to", "203.0.113.2:80"];
    let path = bundle.to_str().unwrap();
    for arguments in [
        &["doctor"][..],
        &["doctor", "c1", "--verbose"],
        &[&["doctor"], to.as_slice()].concat(),
        &["doctor", "--bundle", path],
        &["doctor", "--no-probe", "--strict", "--ignore", "port-hidden", "--output", "json"],
        &["doctor", "--from", path],
    ] {
        call_in(&node.lab, arguments).succeeded();
    }
    assert_eq!(before.diff(&Snapshot::take(&node.lab)), [""; 0]);
    assert_eq!(inside.diff(&Snapshot::of(&node.c1)), [""; 0]);
    // It follows unanswered probes, with tables and traces of its own.
    let (done, broken) = node.run(
        "nft 'add table ip other; add chain ip other forward { type filter hook forward priority 0; }; \
         add rule ip other forward oifname up0 drop'",
    );
    assert!(done, "{broken}");
    let before = Snapshot::take(&node.lab);
    node.doctor(&[]).failed(1);
    assert_eq!(before.diff(&Snapshot::take(&node.lab)), [""; 0]);
    assert_eq!(inside.diff(&Snapshot::of(&node.c1)), [""; 0]);
    assert!(node.lab.processes().is_empty(), "{:?}", node.lab.processes());
}

/// From a bundle `doctor` finds the same on another machine, without privileges.
#[test]
fn a_bundle_is_judged_as_the_node_was() {
    require!("root", "program:setpriv");
    let node = Node::new("doctor-bundle");
    let (done, broken) = node.run(
        "sysctl -qw net.ipv4.ip_forward=0; ip -n c1 link set lo down; ip -n c2 route del default",
    );
    assert!(done, "{broken}");
    let file = node.lab.dir().join("bundle.json");
    let path = file.to_str().unwrap();
    let here = node.doctor(&["--no-probe", "--bundle", path]).failed(1);
    let ids: Vec<String> =
        findings(&here).iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect();
    for id in ["forwarding-off", "loopback-down", "attachment-differs"] {
        assert!(ids.iter().any(|one| one == id), "{id}: {ids:?}");
    }
    let (code, elsewhere) = as_nobody(&node, path, "--from bundle.json");
    assert_eq!((code, elsewhere), (Some(1), here.json()));

    let only = node.doctor(&["c1", "--no-probe"]).failed(1).json();
    assert_eq!(only["container"], "c1");
    let objects: Vec<&str> = only["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["object"].as_str().unwrap())
        .collect();
    assert!(objects.contains(&"c1"), "{objects:?}");
    assert!(!objects.iter().any(|one| one.contains("c2")), "{objects:?}");
}

/// Calls `doctor` as a user without rights, in a folder with a copy of a file. Returns its exit
/// code and its output.
#[track_caller]
fn as_nobody(node: &Node, file: &str, arguments: &str) -> (Option<i32>, Value) {
    // Every user may read the executable and the file there.
    node.lab.sh(&format!(
        "mkdir /run/anybody; cp {EXECUTABLE} {file} /run/anybody; chmod -R a+rX /run/anybody"
    ));
    let output = node.lab.try_sh(&format!(
        "cd /run/anybody; exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin setpriv --reuid=65534 \
         --regid=65534 --clear-groups ./netwright doctor --output json {arguments}"
    ));
    node.lab.sh("rm -r /run/anybody");
    let said = serde_json::from_slice(&output.stdout);
    (output.status.code(), said.unwrap_or_else(|error| panic!("{error}: {output:?}")))
}

/// What only root may see is reported as not seen, neither as sound nor as wrong.
#[test]
fn who_has_no_rights_hears_what_was_not_seen() {
    require!("root", "program:setpriv");
    let node = Node::new("doctor-nobody");
    let (code, said) = as_nobody(&node, "/etc/hostname", "");
    let is_unknown = |one: &Value| one["severity"] == "unknown";
    let found = said["findings"].as_array().unwrap();
    assert!(!found.is_empty() && found.iter().all(is_unknown), "{said:#}");
    assert_eq!(code, Some(3), "{said:#}");
    // The kernel reports changes only to root.
    let (code, said) = as_nobody(&node, "/etc/hostname", "--watch");
    assert_eq!(code, Some(3), "{said:#}");
    assert!(said["msg"].as_str().unwrap().starts_with("listen for changes: "), "{said:#}");
    assert!(said["details"].as_str().unwrap().contains("root"), "{said:#}");
}

/// Without CAP_NET_RAW no echo request can be sent: that says nothing of those who would answer.
#[test]
fn without_the_right_to_ask_nobody_is_called_silent() {
    require!("root", "program:setpriv");
    let node = Node::new("doctor-unasked");
    let mut bare = node.lab.command("setpriv");
    bare.args(["--inh-caps=-net_raw", "--bounding-set=-net_raw", EXECUTABLE]);
    bare.args(["doctor", "c1", "--verbose", "--output", "json"]);
    let said = said(bare).json();
    let mut found = said["findings"].as_array().unwrap().iter();
    assert!(!found.any(|one| one["severity"] == "error"), "{said:#}");
}

/// The exit code follows from the findings.
#[test]
fn what_is_ignored_is_not_told() {
    require!("root");
    let node = Node::new("doctor-ignore");
    let (done, broken) = node.run("ip -n c1 link set lo down; ip -n c2 link set lo down");
    assert!(done, "{broken}");
    let told = |arguments: &[&str], code: i32| -> Vec<String> {
        let said = node.doctor(&[&["--no-probe"], arguments].concat()).failed(code);
        let object = |one: &Value| one["object"].as_str().unwrap().to_owned();
        findings(&said).iter().map(object).collect()
    };
    assert_eq!(told(&[], 1), ["c1", "c2"]);
    assert_eq!(told(&["--ignore", "loopback-down=c1"], 1), ["c2"]);
    assert_eq!(told(&["--ignore", "loopback-down"], 0), [""; 0]);
    node.lab.sh("mkdir -p /etc/netwright; echo '# known' >/etc/netwright/doctor.ignore; \
         echo loopback-down=c2 >>/etc/netwright/doctor.ignore");
    assert_eq!(told(&[], 1), ["c1"]);
}

/// The output is readable on any terminal, and its reader may stop reading.
#[test]
fn the_text_is_ascii_unless_the_terminal_takes_more() {
    require!("root", "program:nft", "program:script");
    let node = Node::new("doctor-text");
    let (done, broken) = node.run("ip -n c1 link set lo down");
    assert!(done, "{broken}");
    let text = |variable: &str, value: &str| {
        let mut command = command_in(&node.lab, &["doctor", "c1", "--no-probe"]);
        command.env(variable, value);
        said(command).failed(1).stdout
    };
    let plain = text("LC_ALL", "C");
    assert!(plain.is_ascii(), "{plain}");
    assert!(plain.contains("x loopback-down"), "{plain}");
    assert!(plain.contains("nsenter --net=/run/netns/c1 ip link set lo up"), "{plain}");
    // A name may contain anything.
    let table = "table ip other { chain forward { type filter hook forward priority 0; \
                 oifname up0 drop comment \\\"a\\033[31mb\\\"; }; }";
    let (done, broken) = node.run(&format!("printf \"{table}\" | nft -f -"));
    assert!(done, "{broken}");
    let named = text("LC_ALL", "C");
    assert!(named.contains("forward-dropped") && !named.contains('\u{1b}'), "{named}");
    let rich = text("LC_ALL", "C.UTF-8");
    assert!(rich.contains("✘ loopback-down"), "{rich}");

    let mut command = command_in(&node.lab, &["doctor", "--no-probe"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{errors}");
    assert_eq!(errors, "");

    // A narrow terminal gets whole lines.
    let doctor = format!("stty cols 40 rows 10; exec {EXECUTABLE} doctor c1 --no-probe");
    let mut script = node.lab.command("script");
    script.args(["-qec", &doctor, "/dev/null"]).env_clear().stdin(Stdio::null());
    script.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C").env("TERM", "dumb");
    let output = script.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let shown = String::from_utf8(output.stdout).unwrap().replace('\r', "");
    for line in ["x loopback-down", "    fix     nsenter --net=/run/netns/c1 ip link set lo up"] {
        assert!(shown.lines().any(|shown| shown.starts_with(line)), "{line}: {shown}");
    }
}

#[test]
fn what_cannot_be_written_or_found_is_refused() {
    require!("root");
    let node = Node::new("doctor-refused");
    let said = node.doctor(&["nobody", "--no-probe"]).failed(1);
    assert!(said.json()["msg"].as_str().unwrap().contains("nobody"), "{said:#?}");

    let folder = node.lab.dir().join("folder");
    std::fs::create_dir(&folder).unwrap();
    let said = call_in(&node.lab, &["doctor", "--no-probe", "--bundle", folder.to_str().unwrap()]);
    assert!(said.code != 0 && said.stderr.contains("folder"), "{said:#?}");
    let beside: Vec<String> = std::fs::read_dir(node.lab.dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("folder"))
        .collect();
    assert_eq!(beside, ["folder"], "something is half written");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);

    // The disk is full: the existing file stays, and no half-written file is beside it.
    node.lab.sh("mkdir /run/small && mount -t tmpfs -o size=16k none /run/small && \
                 echo old >/run/small/node.json");
    let full = "/run/small/node.json";
    let said = call_in(&node.lab, &["doctor", "--no-probe", "--bundle", full]).failed(3);
    assert!(said.stderr.contains("node.json"), "{said:#?}");
    assert_eq!(node.lab.sh("cd /run/small && ls -A && cat node.json"), "node.json\nold\n");

    for to in ["203.0.113.2", "203.0.113.2:99999"] {
        let said = call_in(&node.lab, &["doctor", "--to", to]).failed(2);
        assert!(said.stderr.contains(to), "{said:#?}");
    }
}

/// Needs neither a node nor rights.
#[test]
fn a_file_that_is_no_scene_is_refused() {
    let scratch = Scratch::new();
    let whole = Scene::default().to_json();
    let newer = whole.replacen(&format!("\"version\":{FORMAT}"), "\"version\":4711", 1);
    assert_ne!(newer, whole);
    for (name, text, words) in [
        ("cut", &whole[..whole.len() / 2], "read the scene"),
        ("garbled", "\u{0}\u{1}{{{", "read the scene"),
        ("empty", "", "read the scene"),
        ("newer", newer.as_str(), "format 4711"),
    ] {
        let path = scratch.write(name, text);
        let said = scratch.call(&["doctor", "--from", path.to_str().unwrap()]);
        assert!(said.code != 0 && said.stdout.is_empty(), "{name}: {said:#?}");
        assert!(said.stderr.contains(words), "{name}: {said:#?}");
    }
    let folder = scratch.path("");
    let said = scratch.call(&["doctor", "--from", folder.to_str().unwrap()]);
    assert!(said.code != 0 && said.stderr.contains("is not a file"), "{said:#?}");
    let said = scratch.call(&["doctor", "--from", "/dev/zero"]);
    assert!(said.code != 0 && said.stderr.contains("is not a file"), "{said:#?}");
    // The file takes no space on the disk.
    let large = scratch.write("large", "");
    std::fs::File::options().write(true).open(&large).unwrap().set_len(1 << 30).unwrap();
    let said = scratch.call(&["doctor", "--from", large.to_str().unwrap()]);
    assert!(said.code != 0 && said.stderr.contains("too large"), "{said:#?}");
    let absent = scratch.path("absent");
    let said = scratch.call(&["doctor", "--from", absent.to_str().unwrap()]);
    assert!(said.code != 0 && said.stderr.contains("absent"), "{said:#?}");

    let path = scratch.write("whole", &whole);
    let said = scratch.call(&["doctor", "--from", path.to_str().unwrap()]).succeeded();
    assert!(said.stdout.contains("all as they should be"), "{said:#?}");
    let both = ["doctor", "--from", path.to_str().unwrap(), "--bundle", "other"];
    scratch.call(&both).failed(2);
}
