//! `add`, `del`, `check`, `list`, `inspect`, `status` and `gc`, each test on a host of its own.

use expect_test::expect;
use serde_json::Value;
use testkit::{Lab, Place, Snapshot, traffic};

use crate::support::{assert_as_before, call_in, command_in, said};

/// Writes a network into the laboratory's folder of configurations.
fn network(lab: &Lab, name: &str, document: &str) {
    lab.sh("mkdir -p /etc/cni/net.d");
    std::fs::write(lab.path(format!("/etc/cni/net.d/{name}.conflist")), document).unwrap();
}

const BLUE: &str = r#"{
    "cniVersion": "1.1.0", "name": "blue", "plugins": [
        {"type": "bridge", "bridge": "br-blue", "isGateway": true,
         "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}
    ]}"#;

fn rows(lab: &Lab) -> Vec<Value> {
    let json = call_in(lab, &["list", "-o", "json"]).succeeded().json();
    json["attachments"].as_array().unwrap().clone()
}

#[test]
fn a_container_is_attached_checked_listed_and_detached() {
    testkit::require!("root");
    let lab = Lab::new("cli-attach");
    network(&lab, "blue", BLUE);
    let before = Snapshot::take(&lab);
    let c1 = lab.container("c1");

    let said = call_in(&lab, &["add", "blue", "c1"]).succeeded();
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert!(lines[0].starts_with("IFNAME  MAC"), "{said:#?}");
    assert!(lines[1].starts_with("eth0 "), "{said:#?}");
    assert!(lines[1].contains("10.9.0.2/24  10.9.0.1"), "{said:#?}");
    traffic::assert_pings(&c1, "10.9.0.1");

    // The container's name and its path lead to the same attachment.
    for name in ["c1", "/run/netns/c1"] {
        call_in(&lab, &["check", "blue", name]).succeeded();
        let said = call_in(&lab, &["list", name, "-o", "json"]).succeeded().json();
        assert_eq!(said["attachments"][0]["addresses"][0], "10.9.0.2/24", "{said}");
    }
    let row = &rows(&lab)[0];
    assert_eq!(row["state"], "alive");
    let id = row["containerID"].as_str().unwrap();
    assert!(id.starts_with("cnitool-"), "{row}");
    let json = call_in(&lab, &["inspect", id, "-o", "json"]).succeeded().json();
    assert_eq!(json["attachments"][0]["attachment"]["ifname"], "eth0");
    assert_eq!(json["attachments"][0]["config"]["name"], "blue");
    assert!(json["attachments"][0]["records"]["bridge"].is_object(), "{json}");

    // A second `add` fails, and breaks nothing.
    call_in(&lab, &["add", "blue", "c1"]).failed(1);
    traffic::assert_pings(&c1, "10.9.0.1");

    call_in(&lab, &["del", "blue", "c1"]).succeeded();
    let again = call_in(&lab, &["del", "blue", "c1", "-o", "json"]).succeeded().json();
    assert_eq!(again["outcome"], "absent");
    let said = call_in(&lab, &["check", "blue", "c1"]).failed(1);
    assert!(said.stderr.contains("is not attached to network \"blue\""), "{said:#?}");
    assert!(rows(&lab).is_empty());
    drop(c1);
    // Locks stay until GC finds that they are not needed.
    call_in(&lab, &["gc"]).succeeded();
    assert_as_before(&before, &lab);
}

const UNDER_POLICY: &str = r#"{
    "cniVersion": "1.1.0", "name": "blue", "plugins": [
        {"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}},
        {"type": "policy"}
    ]}"#;

/// The command passes labels to the plugins. Without its daemon, network policy closes the
/// container.
#[test]
fn a_container_with_labels_under_network_policy() {
    testkit::require!("root");
    let lab = Lab::new("cli-labels");
    network(&lab, "blue", UNDER_POLICY);
    let before = Snapshot::take(&lab);
    let (c1, c2) = (lab.container("c1"), lab.container("c2"));
    let labels = ["--label", "app=web", "--label", "tier="];
    let said = call_in(&lab, &[&["add", "blue", "c1"][..], &labels].concat()).succeeded();
    assert!(said.stderr.contains("only this node reaches the container"), "{said:#?}");
    call_in(&lab, &["add", "blue", "c2"]).succeeded();
    traffic::assert_pings(&lab, "10.9.0.2");
    traffic::assert_no_ping(&c2, "10.9.0.2");
    let shown = call_in(&lab, &["inspect", "c1", "-o", "json"]).succeeded().json();
    let recorded = &shown["attachments"][0]["records"]["policy"]["started"];
    assert_eq!(recorded["labels"], serde_json::json!({ "app": "web", "tier": "" }), "{shown}");
    for name in ["c1", "c2"] {
        call_in(&lab, &["check", "blue", name]).succeeded();
        call_in(&lab, &["del", "blue", name]).succeeded();
    }
    drop((c1, c2));

    // `run` does the same while its command runs.
    let show = ["--", "sh", "-c", "cat /run/netwright/owners/*/policy.json"];
    let run = [&["run", "--net", "blue"][..], &labels, &show].concat();
    let said = call_in(&lab, &run).succeeded();
    assert!(said.stdout.contains(r#""labels":{"app":"web","tier":""}"#), "{said:#?}");
    assert_as_before(&before, &lab);
    let twice = ["run", "--net", "blue", "--label", "a=1", "--label", "a=2", "--", "true"];
    let said = call_in(&lab, &twice).failed(125);
    assert!(said.stderr.contains("--label gives \"a\" two values"), "{said:#?}");
}

/// Whoever labels a container for network policy must not take it for protected by none.
#[test]
fn labels_that_nothing_reads_are_refused() {
    testkit::require!("root");
    let lab = Lab::new("cli-labels-unread");
    network(&lab, "blue", BLUE);
    let _c1 = lab.container("c1");
    let said = call_in(&lab, &["add", "blue", "c1", "--label", "app=web"]).failed(1);
    assert!(said.stderr.contains("no plugin of network \"blue\" reads labels"), "{said:#?}");
    let said = call_in(&lab, &["run", "--label", "app=web", "--", "true"]).failed(125);
    assert!(said.stderr.contains("no plugin of network \"netwright\" reads labels"), "{said:#?}");
    assert!(rows(&lab).is_empty());
    // One of several networks will do.
    let pods = UNDER_POLICY.replace("blue", "pods").replace("10.9.0.0", "10.7.0.0");
    network(&lab, "pods", &pods);
    let nets = ["run", "--net", "blue", "--net", "pods", "--label", "app=web", "--", "true"];
    call_in(&lab, &nets).succeeded();
}

#[test]
fn a_folder_and_a_network_that_are_not_there_are_refused() {
    testkit::require!("root");
    let lab = Lab::new("cli-not-there");
    network(&lab, "blue", BLUE);
    let _c1 = lab.container("c1");
    call_in(&lab, &["add", "blue", "c1"]).succeeded();
    for command in [
        &["status"][..],
        &["doctor"],
        &["list"],
        &["gc"],
        &["repair"],
        &["check", "blue", "c1"],
        &["inspect", "c1"],
        &["add", "blue", "c1", "--ifname", "eth1"],
    ] {
        let said = call_in(&lab, &[command, &["--conf-dir", "/nosuch"]].concat());
        assert_ne!(said.code, 0, "{command:?}: {said:#?}");
        assert!(said.stderr.contains("--conf-dir: /nosuch is not a folder"), "{said:#?}");
    }
    for command in [&["gc", "bleu"][..], &["gc", "bleu", "--all"], &["gc", "bleu", "--dry-run"]] {
        let said = call_in(&lab, command).failed(1);
        assert!(said.stderr.contains("no net configuration with name \"bleu\""), "{said:#?}");
        assert!(said.stderr.contains("did you mean \"blue\"?"), "{said:#?}");
    }
    // A network whose file is gone is known by its attachment, and one without attachments by its
    // file. Nothing that removes needs the folder.
    call_in(&lab, &["gc", "netwright"]).succeeded();
    lab.sh("rm /etc/cni/net.d/blue.conflist");
    call_in(&lab, &["gc", "blue"]).succeeded();
    call_in(&lab, &["del", "blue", "c1", "--conf-dir", "/nosuch"]).succeeded();
}

/// Labels used to get lost on the way to a network within the network's configuration, so that a
/// container that a policy closes was open.
#[test]
fn labels_reach_network_policy_however_a_network_is_wrapped() {
    testkit::require!("root");
    let lab = Lab::new("cli-labels-within");
    network(&lab, "blue", UNDER_POLICY);
    let link = r#"{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.7.0.0/24"}}"#;
    let chain = format!(r#"{{"type": "chain", "plugins": [{link}, {{"type": "policy"}}]}}"#);
    let _c1 = lab.container("c1");
    for (name, plugins) in [
        ("named", r#"{"type": "multi", "networks": [{"name": "blue"}]}"#.to_owned()),
        ("written", format!(r#"{{"type": "multi", "networks": [{{"config": {chain}}}]}}"#)),
        ("pods", r#"{"type": "netwright-multi", "clusterNetwork": "blue"}"#.to_owned()),
    ] {
        let list =
            format!(r#"{{"cniVersion": "1.1.0", "name": "{name}", "plugins": [{plugins}]}}"#);
        network(&lab, name, &list);
        call_in(&lab, &["add", name, "c1", "--label", "app=web"]).succeeded();
        let recorded = lab.sh("cat /run/netwright/owners/*/policy.json");
        assert!(recorded.contains(r#""labels":{"app":"web"}"#), "{name}: {recorded}");
        call_in(&lab, &["del", name, "c1"]).succeeded();
    }
}

/// A plugin between that of the link and `policy`: it tries whether the container reaches another.
const PROBE: &str = r#"#!/usr/bin/python3 -S
import json, os, subprocess, sys
config = json.load(sys.stdin)
if os.environ["CNI_COMMAND"] == "ADD":
    ping = ["nsenter", "--net=" + os.environ["CNI_NETNS"],
            "ping", "-n", "-q", "-c", "1", "-W", "1", "10.8.0.2"]
    done = subprocess.run(ping, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open("/run/reached", "a") as said:
        said.write("no\n" if done.returncode else "yes\n")
    print(json.dumps(config["prevResult"]))
"#;

/// Whoever walks the list, the command or the plugin `chain`, the link comes up closed.
#[test]
fn a_link_is_closed_from_the_beginning_where_policy_follows() {
    testkit::require!("root", "program:python3");
    let lab = Lab::new("cli-closed");
    lab.sh("mkdir -p /opt/cni/bin");
    std::fs::write(lab.path("/opt/cni/bin/probe"), PROBE).unwrap();
    lab.sh("chmod +x /opt/cni/bin/probe");
    let link = |subnet: &str| {
        format!(
            r#"{{"type": "ptp", "ipam": {{"type": "host-local", "ranges": [[{{"subnet": "{subnet}"}}]],
                 "routes": [{{"dst": "0.0.0.0/0"}}]}}}}"#
        )
    };
    let (probe, policy) = (r#"{"type": "probe"}"#, r#"{"type": "policy"}"#);
    let plain = format!("{}, {probe}", link("10.7.0.0/24"));
    let listed = format!("{}, {probe}, {policy}", link("10.9.0.0/24"));
    let inner =
        format!(r#"{{"type": "chain", "plugins": [{}, {probe}]}}, {policy}"#, link("10.6.0.0/24"));
    let chain =
        format!(r#"{{"type": "chain", "plugins": [{}, {probe}, {policy}]}}"#, link("10.5.0.0/24"));
    for (name, plugins) in [
        ("open", link("10.8.0.0/24")),
        ("plain", plain),
        ("listed", listed),
        ("inner", inner),
        ("chain", chain),
    ] {
        let list =
            format!(r#"{{"cniVersion": "1.1.0", "name": "{name}", "plugins": [{plugins}]}}"#);
        network(&lab, name, &list);
    }
    let _c1 = lab.container("c1");
    call_in(&lab, &["add", "open", "c1"]).succeeded();
    for (name, reached) in [("plain", "yes"), ("listed", "no"), ("inner", "no"), ("chain", "no")] {
        let container = lab.container(name);
        call_in(&lab, &["add", name, name]).succeeded();
        assert_eq!(lab.sh("cat /run/reached; rm /run/reached").trim(), reached, "{name}");
        call_in(&lab, &["del", name, name]).succeeded();
        drop(container);
    }
}

#[test]
fn check_says_who_else_has_the_address() {
    testkit::require!("root");
    let lab = Lab::new("cli-twice");
    network(&lab, "blue", BLUE);
    let _c1 = lab.container("c1");
    call_in(&lab, &["add", "blue", "c1"]).succeeded();
    lab.sh("ip link add p0 type veth peer name p1 && ip addr add 10.9.0.2/32 dev p0");
    let said = call_in(&lab, &["check", "blue", "c1"]).failed(1);
    let words = "address 10.9.0.2 is the host's own, on link \"p0\"";
    assert!(said.stderr.contains(words), "{said:#?}");
    lab.sh("ip link del p0");
    call_in(&lab, &["check", "blue", "c1"]).succeeded();
    call_in(&lab, &["del", "blue", "c1"]).succeeded();
}

#[test]
fn a_container_can_be_named_by_a_process() {
    testkit::require!("root");
    let lab = Lab::new("cli-pid");
    network(&lab, "blue", BLUE);
    let mut c1 = lab.container("c1");
    let pid = c1.pid().to_string();
    call_in(&lab, &["add", "blue", &pid, "--ifname", "net0", "-o", "json"]).succeeded();
    let row = &rows(&lab)[0];
    assert_eq!(row["netns"], format!("/proc/{pid}/ns/net"));
    assert_eq!(row["ifname"], "net0");
    // The name of the namespace leads to the same attachment.
    let said = call_in(&lab, &["list", "c1", "-o", "json"]).succeeded().json();
    assert_eq!(said["attachments"][0]["ifname"], "net0");
    call_in(&lab, &["del", "blue", &pid, "--ifname", "net0"]).succeeded();
    assert!(rows(&lab).is_empty());
}

#[test]
fn a_network_whose_configuration_is_gone_can_still_be_left() {
    testkit::require!("root");
    let lab = Lab::new("cli-gone-config");
    network(&lab, "blue", BLUE);
    let c1 = lab.container("c1");
    call_in(&lab, &["add", "blue", "c1", "--container-id", "web"]).succeeded();
    lab.sh("rm /etc/cni/net.d/blue.conflist");
    call_in(&lab, &["del", "blue", "web"]).succeeded();
    assert!(rows(&lab).is_empty());
    assert_eq!(c1.sh("ip -br link | wc -l").trim(), "1");
}

#[test]
fn what_is_asked_for_is_given() {
    testkit::require!("root");
    let lab = Lab::new("cli-asked");
    let c1 = lab.container("c1");
    let args = [
        "add",
        "netwright",
        "c1",
        "--ip",
        "10.63.9.9",
        "--mac",
        "02:00:00:00:00:07",
        "-p",
        "8080:80",
    ];
    let said = call_in(&lab, &args).succeeded();
    let words: Vec<&str> = said.stdout.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(words, ["eth0", "02:00:00:00:00:07", "10.63.9.9/16", "10.63.0.1"]);
    let server = traffic::Server::tcp(&c1, "10.63.9.9:80", "web");
    let answer = traffic::assert_tcp(&lab, "10.63.0.1:8080");
    drop((server, answer));
    let row = &rows(&lab)[0];
    assert_eq!(row["ports"][0], "8080:80/tcp");
    // The port is taken.
    let _c2 = lab.container("c2");
    let said = call_in(&lab, &["add", "netwright", "c2", "-p", "8080:80"]).failed(1);
    assert!(said.stderr.contains("8080"), "{said:#?}");
    assert_eq!(rows(&lab).len(), 1);
    call_in(&lab, &["del", "netwright", "c1"]).succeeded();
}

#[test]
fn a_missing_container_is_explained() {
    testkit::require!("root");
    let lab = Lab::new("cli-missing");
    let said = call_in(&lab, &["add", "netwright", "nobody"]).failed(1);
    expect![[r#"
        error: failed to open netns "/run/netns/nobody": failed to Statfs "/run/netns/nobody": no such file or directory
        hint: create it with `ip netns add nobody`, or name the container by the path of its namespace or a process ID
    "#]]
    .assert_eq(&said.stderr);
    // An existing namespace need not be created.
    lab.sh("mkdir -p /run/netns && touch /run/netns/file");
    let said = call_in(&lab, &["add", "netwright", "file"]).failed(1);
    assert!(said.stderr.contains("unknown FS magic"), "{said:#?}");
    assert!(!said.stderr.contains("hint: create it"), "{said:#?}");
    for kind in ["mnt", "pid", "ipc"] {
        let before = lab.sh("ip -o link; nft list ruleset");
        let said = call_in(&lab, &["add", "netwright", &format!("/proc/self/ns/{kind}")]);
        assert_ne!(said.code, 0, "{said:#?}");
        let words = "is a namespace of another kind, and no network namespace";
        assert!(said.stderr.contains(words), "{said:#?}");
        assert_eq!(lab.sh("ip -o link; nft list ruleset"), before);
        assert!(rows(&lab).is_empty());
    }
}

#[test]
fn status_says_which_networks_are_ready() {
    testkit::require!("root");
    let lab = Lab::new("cli-status");
    network(&lab, "blue", BLUE);
    network(
        &lab,
        "red",
        r#"{"cniVersion": "1.1.0", "name": "red", "plugins": [{"type": "nwt-none"}]}"#,
    );
    let said = call_in(&lab, &["status"]).failed(1);
    expect![[r#"
        NETWORK    VERSION  PLUGINS                  STATE      FROM
        blue       1.1.0    bridge                   ready      /etc/cni/net.d/blue.conflist
        red        1.1.0    nwt-none                 not ready  /etc/cni/net.d/red.conflist
        netwright  1.1.0    bridge,portmap,firewall  ready      (embedded)
    "#]]
    .assert_eq(&said.stdout.lines().take(4).map(|line| format!("{line}\n")).collect::<String>());
    assert!(said.stdout.contains("red: failed to find plugin \"nwt-none\" in "), "{said:#?}");
    call_in(&lab, &["status", "blue"]).succeeded();
}

/// The conflist of flannel's manifest (kube-flannel.yml), as it is.
#[test]
fn the_conflist_of_flannels_manifest_serves() {
    testkit::require!("root");
    let lab = Lab::new("cli-flannel");
    let conflist = r#"{
      "name": "cbr0",
      "cniVersion": "0.3.1",
      "plugins": [
        {
          "type": "flannel",
          "delegate": {
            "hairpinMode": true,
            "isDefaultGateway": true
          }
        },
        {
          "type": "portmap",
          "capabilities": {
            "portMappings": true
          }
        }
      ]
    }"#;
    network(&lab, "10-flannel", conflist);
    call_in(&lab, &["lint", "--strict"]).succeeded();
    let c1 = lab.container("c1");
    let said = call_in(&lab, &["status", "cbr0"]).failed(3);
    let words =
        "failed to load flannel 'subnet.env' file: open /run/flannel/subnet.env: no such file";
    assert!(said.stdout.contains(words), "{said:#?}");
    let said = call_in(&lab, &["add", "cbr0", "c1"]).failed(4);
    assert!(said.stderr.contains(words), "{said:#?}");
    lab.sh(
        "mkdir -p /run/flannel && printf 'FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\n\
         FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n' >/run/flannel/subnet.env",
    );
    call_in(&lab, &["status", "cbr0"]).succeeded();
    call_in(&lab, &["add", "cbr0", "c1", "-p", "8080:80"]).succeeded();
    traffic::assert_pings(&c1, "10.244.3.1");
    let row = &rows(&lab)[0];
    assert_eq!(row["addresses"][0], "10.244.3.2/24");
    assert_eq!(row["ports"][0], "8080:80/tcp");
    // The manifest's version has neither CHECK nor GC.
    network(&lab, "10-flannel", &conflist.replace("0.3.1", "1.1.0"));
    let c2 = lab.container("c2");
    call_in(&lab, &["add", "cbr0", "c2"]).succeeded();
    traffic::assert_pings(&c1, "10.244.3.3");
    c2.sh("ip route del 10.244.0.0/16");
    call_in(&lab, &["repair"]).succeeded();
    assert!(c2.sh("ip route").contains("10.244.0.0/16 via 10.244.3.1"));
    call_in(&lab, &["check", "cbr0", "c2"]).succeeded();
    // After the node has started, flanneld has written nothing yet.
    lab.sh("rm -r /run/flannel");
    call_in(&lab, &["del", "cbr0", "c1"]).succeeded();
    c1.sh("! ip link show eth0 2>/dev/null");
    drop(c2);
    call_in(&lab, &["gc"]).succeeded();
    lab.sh("! ls /var/lib/cni/flannel/* 2>/dev/null; ! ls -d /sys/class/net/cni0 2>/dev/null");
}

#[test]
fn gc_removes_what_containers_that_are_gone_left() {
    testkit::require!("root");
    let lab = Lab::new("cli-gc");
    network(&lab, "blue", BLUE);
    let before = Snapshot::take(&lab);
    let gone = lab.container("gone");
    let alive = lab.container("alive");
    call_in(&lab, &["add", "blue", "gone"]).succeeded();
    call_in(&lab, &["add", "netwright", "gone", "--ifname", "eth1", "-p", "8080:80"]).succeeded();
    call_in(&lab, &["add", "blue", "alive"]).succeeded();
    drop(gone);
    let states: Vec<String> =
        rows(&lab).iter().map(|row| row["state"].as_str().unwrap().to_owned()).collect();
    assert_eq!(states.iter().filter(|state| *state == "gone").count(), 2, "{states:?}");

    let would = call_in(&lab, &["gc", "--dry-run", "-o", "json"]).succeeded().json();
    assert_eq!(would["removed"].as_array().unwrap().len(), 2, "{would}");
    assert_eq!(rows(&lab).len(), 3, "a dry run removes nothing");

    let done = call_in(&lab, &["gc", "-o", "json"]).succeeded().json();
    assert_eq!(done["removed"], would["removed"]);
    assert_eq!(done["kept"].as_array().unwrap().len(), 1, "{done}");
    traffic::assert_pings(&alive, "10.9.0.1");
    assert_eq!(lab.sh("ls /var/lib/cni/networks/blue | grep -c ^10").trim(), "1");

    call_in(&lab, &["gc", "--all"]).succeeded();
    assert!(rows(&lab).is_empty());
    drop(alive);
    assert_as_before(&before, &lab);
}

#[test]
fn gc_keeps_what_is_named_valid() {
    testkit::require!("root");
    let lab = Lab::new("cli-gc-valid");
    network(&lab, "blue", BLUE);
    let (c1, c2) = (lab.container("c1"), lab.container("c2"));
    for container in ["c1", "c2"] {
        call_in(&lab, &["add", "blue", container]).succeeded();
    }
    let said = call_in(&lab, &["gc", "blue", "--valid", "c2:eth0", "--dry-run"]).succeeded();
    assert!(said.stdout.contains("would remove 1, kept 1"), "{said:#?}");
    call_in(&lab, &["gc", "blue", "--valid", "/run/netns/c2"]).succeeded();
    let left = rows(&lab);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0]["netns"], "/run/netns/c2");
    traffic::assert_pings(&c2, "10.9.0.1");
    assert_eq!(c1.sh("ip -br link | wc -l").trim(), "1");
    call_in(&lab, &["gc", "blue", "--all", "--valid", "c2"]).failed(2);
}

#[test]
fn the_plugins_installed_elsewhere_are_called_too() {
    testkit::require!("root");
    let lab = Lab::new("cli-foreign");
    // A foreign plugin is the last of the chain: a script that passes on the previous result.
    let script = "#!/bin/sh\n[ \"$CNI_COMMAND\" = ADD ] || exit 0\n\
                  echo called >> $(dirname $0)/log\nsed 's/.*\"prevResult\"://; s/}$//'\n";
    let dir = lab.dir().join("bin");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("theirs"), script).unwrap();
    lab.sh(&format!("chmod +x {}/theirs", dir.display()));
    network(
        &lab,
        "both",
        r#"{"cniVersion": "1.1.0", "name": "both", "plugins": [
            {"type": "bridge", "bridge": "br0", "ipam": {"type": "host-local", "subnet": "10.8.0.0/24"}},
            {"type": "theirs"}]}"#,
    );
    let _c1 = lab.container("c1");
    let mut command = command_in(&lab, &["add", "both", "c1", "-o", "json"]);
    command.env("CNI_PATH", &dir);
    let result = said(command).succeeded().json();
    assert_eq!(result["ips"][0]["address"], "10.8.0.2/24", "{result}");
    assert_eq!(std::fs::read_to_string(dir.join("log")).unwrap(), "called\n");
}

#[test]
fn gc_finds_attachments_that_no_cache_knows() {
    testkit::require!("root");
    let lab = Lab::new("cli-gc-records");
    network(&lab, "blue", BLUE);
    let before = Snapshot::take(&lab);
    let gone = lab.container("gone");
    call_in(&lab, &["add", "blue", "gone", "--container-id", "web"]).succeeded();
    // As if another runtime, whose cache is elsewhere, had attached it.
    lab.sh("rm /var/lib/cni/results/*");
    assert_eq!(rows(&lab)[0]["containerID"], "web");
    call_in(&lab, &["gc"]).succeeded();
    assert_eq!(rows(&lab).len(), 1, "it is alive");
    drop(gone);
    let done = call_in(&lab, &["gc", "-o", "json"]).succeeded().json();
    assert_eq!(done["removed"][0]["containerID"], "web", "{done}");
    assert_as_before(&before, &lab);
}

#[test]
fn garbage_in_the_state_is_told_and_stops_nothing() {
    testkit::require!("root");
    let lab = Lab::new("cli-garbage");
    network(&lab, "blue", BLUE);
    let c1 = lab.container("c1");
    call_in(&lab, &["add", "blue", "c1"]).succeeded();
    lab.sh("echo '{' > /var/lib/cni/results/blue-broken-eth0");
    lab.sh("mkdir /run/netwright/owners/x && : > /run/netwright/owners/x/bridge.json");
    let said = call_in(&lab, &["list"]).succeeded();
    assert!(
        said.stderr.contains("warning: ignored \"/var/lib/cni/results/blue-broken-eth0\""),
        "{said:#?}"
    );
    assert!(said.stderr.contains("/run/netwright/owners/x/bridge.json"), "{said:#?}");
    assert!(said.stdout.contains("10.9.0.2/24"), "{said:#?}");
    call_in(&lab, &["gc"]).succeeded();
    call_in(&lab, &["del", "blue", "c1"]).succeeded();
    assert_eq!(c1.sh("ip -br link | wc -l").trim(), "1");
}

/// `/run` is full: commands that free space must not need any.
#[test]
fn what_is_attached_goes_where_run_is_full() {
    testkit::require!("root");
    let lab = Lab::new("cli-full");
    network(&lab, "blue", BLUE);
    let before = Snapshot::take(&lab);
    lab.sh("mkdir -p /run/netwright && mount -t tmpfs -o size=1m tmpfs /run/netwright");
    let (c1, c2) = (lab.container("c1"), lab.container("c2"));
    for name in ["c1", "c2"] {
        call_in(&lab, &["add", "blue", name]).succeeded();
    }
    let fill = || {
        lab.sh("mount -o remount,nr_inodes=$(find /run/netwright | wc -l) /run/netwright");
    };
    fill();
    let said = call_in(&lab, &["add", "blue", "c1", "--ifname", "eth1"]).failed(3);
    assert!(said.stderr.contains("No space left on device"), "{said:#?}");
    assert_eq!(c1.sh("ip -o link | wc -l").trim(), "2");
    call_in(&lab, &["check", "blue", "c1"]).succeeded();
    call_in(&lab, &["del", "blue", "c1"]).succeeded();
    // The failed ADD left a record: it had no lock file yet for its undo to lock.
    call_in(&lab, &["del", "blue", "c1", "--ifname", "eth1"]).succeeded();
    assert_eq!(c1.sh("ip -o link | wc -l").trim(), "1");
    drop(c2);
    // Fills the space that the first `del` freed.
    fill();
    let said = call_in(&lab, &["gc"]).succeeded();
    assert_eq!(rows(&lab), Vec::<Value>::new(), "{said:#?}");
    assert_eq!(lab.sh("ls /dev/shm"), "");
    drop(c1);
    // The last call may have removed the folder; umount writes a note into /run/mount.
    lab.sh("umount /run/netwright; rm -rf /run/mount; rmdir /run/netwright; true");
    assert_as_before(&before, &lab);
}

#[test]
fn a_container_is_never_the_host() {
    testkit::require!("root");
    let lab = Lab::new("cli-host");
    let before = Snapshot::take(&lab);
    let said = call_in(&lab, &["add", "netwright", "/proc/self/ns/net"]).failed(1);
    assert!(said.stderr.contains("should not be the same"), "{said:#?}");
    call_in(&lab, &["gc"]).succeeded();
    assert_as_before(&before, &lab);
}

/// Other projects' plugins say 999 for any failure, or nothing.
#[test]
fn the_failure_of_anothers_plugin_is_no_bug_of_ours() {
    testkit::require!("root");
    let lab = Lab::new("cli-foreign");
    lab.sh("mkdir -p /run/bin /etc/cni/net.d");
    let pool = r#"{"type": "bridge", "bridge": "b0", "ipam": {"type": "base"}}"#;
    for (place, plugin) in [("itself", r#"{"type": "base"}"#), ("its pool", pool)] {
        let list = format!(r#"{{"cniVersion": "1.0.0", "name": "n", "plugins": [{plugin}]}}"#);
        std::fs::write(lab.path("/etc/cni/net.d/n.conflist"), list).unwrap();
        for (what, answer) in [
            ("code 999", r#"echo '{"code":999,"msg":"iptables failed"}'; exit 1"#),
            ("code 0", r#"echo '{"code":0,"msg":"iptables failed"}'; exit 1"#),
            ("an unknown code", r#"echo '{"code":4711,"msg":"iptables failed"}'; exit 1"#),
            ("no JSON", "echo iptables failed; exit 1"),
            ("nothing", "exit 1"),
            ("a signal", "kill -9 $$"),
        ] {
            let script = format!("#!/bin/sh\ncat >/dev/null\n{answer}\n");
            std::fs::write(lab.path("/run/bin/base"), script).unwrap();
            lab.sh("chmod +x /run/bin/base");
            let c1 = lab.container("c1");
            for verb in ["add", "del"] {
                let mut command = command_in(&lab, &[verb, "n", "c1"]);
                command.env("CNI_PATH", "/run/bin");
                let said = said(command);
                let what = format!("{verb}, {place} says {what}: {said:#?}");
                assert_eq!(said.code, 1, "{what}");
                assert!(!said.stderr.contains("bug"), "{what}");
            }
            lab.sh("rm -rf /var/lib/cni /run/netwright");
            drop(c1);
        }
    }
}

/// A container is known by the name that its runtime gave it, too: here by a file of Docker's.
#[test]
fn a_container_is_known_by_its_runtimes_name() {
    testkit::require!("root");
    let lab = Lab::new("cli-runtimes-name");
    network(&lab, "blue", BLUE);
    let mut c1 = lab.container("c1");
    call_in(&lab, &["add", "blue", "c1", "--container-id", "feed"]).succeeded();
    assert_ne!(call_in(&lab, &["check", "blue", "web"]).code, 0);
    lab.sh("mkdir -p /var/lib/docker/containers/feed");
    let file = format!(r#"{{"State": {{"Running": true, "Pid": {}}}, "Name": "/web"}}"#, c1.pid());
    std::fs::write(lab.path("/var/lib/docker/containers/feed/config.v2.json"), file).unwrap();
    for args in [&["inspect", "web"][..], &["list", "web"]] {
        let said = call_in(&lab, args).succeeded();
        assert!(said.stdout.contains("feed") && said.stdout.contains("10.9.0.2"), "{said:?}");
    }
    call_in(&lab, &["repair", "web"]).succeeded();
    let said = call_in(&lab, &["check", "blue", "web"]).succeeded();
    assert!(said.stderr.starts_with("eth0 of feed is attached"), "{said:?}");
}
