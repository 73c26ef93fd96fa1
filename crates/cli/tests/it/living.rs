//! When a container counts as gone. A container whose path does not exist may live.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};
use testkit::{Container, Lab, Place, Snapshot, traffic};

use crate::support::{assert_as_before, call_in, command_in, said, said_with};

const BLUE: &str = r#"{
    "cniVersion": "1.1.0", "name": "blue", "plugins": [
        {"type": "bridge", "bridge": "br-blue", "isGateway": true,
         "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}},
        {"type": "portmap", "capabilities": {"portMappings": true}}
    ]}"#;

/// A network with one address.
const ONE: &str = r#"{
    "cniVersion": "1.1.0", "name": "one", "plugins": [
        {"type": "bridge", "bridge": "br-one", "ipam": {"type": "host-local",
         "ranges": [[{"subnet": "10.8.0.0/24", "rangeStart": "10.8.0.2", "rangeEnd": "10.8.0.2"}]]}}
    ]}"#;

fn network(lab: &Lab, name: &str, document: &str) {
    lab.sh("mkdir -p /etc/cni/net.d");
    std::fs::write(lab.path(format!("/etc/cni/net.d/{name}.conflist")), document).unwrap();
}

fn states(lab: &Lab) -> Vec<String> {
    let json = call_in(lab, &["list", "-o", "json"]).succeeded().json();
    let rows = json["attachments"].as_array().unwrap();
    rows.iter().map(|row| row["state"].as_str().unwrap().to_owned()).collect()
}

fn count(done: &Value, what: &str) -> usize {
    done[what].as_array().unwrap().len()
}

/// A container on `blue` in which a process lives, with host port 8080.
fn attached(lab: &Lab) -> Container {
    let mut c1 = lab.container("c1");
    c1.pid();
    call_in(lab, &["add", "blue", "c1", "-p", "8080:80"]).succeeded();
    c1
}

#[test]
fn a_container_that_lost_only_its_path_keeps_its_network() {
    testkit::require!("root");
    let lab = Lab::new("living-path");
    network(&lab, "blue", BLUE);
    let before = Snapshot::take(&lab);
    let c1 = attached(&lab);
    c1.delete();
    assert_eq!(states(&lab), ["alive"]);
    let done = call_in(&lab, &["gc", "-o", "json"]).succeeded().json();
    assert_eq!((count(&done, "removed"), count(&done, "kept")), (0, 1), "{done}");
    // No other container gets its host port either.
    let c2 = lab.container("c2");
    let said = call_in(&lab, &["add", "blue", "c2", "-p", "8080:80"]).failed(1);
    assert!(said.stderr.contains("8080"), "{said:#?}");
    call_in(&lab, &["add", "blue", "c2"]).succeeded();
    traffic::assert_pings(&c2, "10.9.0.2");
    call_in(&lab, &["del", "blue", "c2"]).succeeded();

    drop(c1);
    assert_eq!(states(&lab), ["gone"]);
    let done = call_in(&lab, &["gc", "-o", "json"]).succeeded().json();
    assert_eq!((count(&done, "removed"), count(&done, "kept")), (1, 0), "{done}");
    drop(c2);
    call_in(&lab, &["gc", "--all"]).succeeded();
    assert_as_before(&before, &lab);
}

/// Plugins work for a container of Docker's in a namespace of Docker's driver, from which Docker
/// moves the interface into the container: the end of that namespace is not the container's.
#[test]
fn a_container_of_dockers_outlives_the_namespace_of_the_driver() {
    testkit::require!("root");
    let lab = Lab::new("living-docker");
    network(&lab, "blue", BLUE);
    network(&lab, "one", ONE);
    let mut c1 = lab.container("c1");
    c1.pid();
    let path = |name: &str| format!("/run/netwright/docker/netns/{name}");
    let attached = [("blue", "nwd0", &["-p", "8080:80"][..]), ("one", "nwd1", &[])];
    for (network, name, options) in attached {
        let (passage, at) = (lab.container("passage"), path(name));
        lab.sh(&format!(
            "mkdir -p /run/netwright/docker/netns && touch {at} && mount --bind /run/netns/passage {at}"
        ));
        drop(passage);
        call_in(&lab, &[&["add", network, at.as_str()][..], options].concat()).succeeded();
        lab.sh(&format!(
            "nsenter --net={at} ip link set eth0 netns c1 name {name} && umount {at} && rm {at}"
        ));
    }
    assert_eq!(states(&lab), ["unknown", "unknown"]);
    let done = call_in(&lab, &["gc", "-o", "json"]).succeeded().json();
    assert_eq!((count(&done, "removed"), count(&done, "kept")), (0, 2), "{done}");
    // No other container gets its host port or its address.
    let _c2 = lab.container("c2");
    let said = call_in(&lab, &["add", "blue", "c2", "-p", "8080:80"]).failed(1);
    assert!(said.stderr.contains("8080"), "{said:#?}");
    let said = call_in(&lab, &["add", "one", "c2"]);
    assert_ne!(said.code, 0, "{said:#?}");
    // The driver's DEL removes everything.
    for (network, name, _) in attached {
        call_in(&lab, &["del", network, &path(name)]).succeeded();
    }
    assert!(states(&lab).is_empty());
    assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
    call_in(&lab, &["add", "one", "c2"]).succeeded();
}

/// Runs GC with `unshare` in namespaces of its own, in which nothing is mounted below `/run/netns`.
fn gc_elsewhere(lab: &Lab, unshare: &str) -> Value {
    let mut command = lab.command("unshare");
    command.args(unshare.split(' ')).args(["--propagation", "private", "sh", "-c"]);
    let script = "for at in /run/netns/*; do umount -l $at; done; exec \"$0\" gc -o json";
    command.args([script, env!("CARGO_BIN_EXE_netwright")]);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("CNI_PATH", "/run/stub");
    said(command).succeeded().json()
}

#[test]
fn where_the_node_is_not_seen_nothing_is_collected() {
    testkit::require!("root");
    let lab = Lab::new("living-elsewhere");
    network(&lab, "blue", BLUE);
    let c1 = lab.container("c1");
    call_in(&lab, &["add", "blue", "c1"]).succeeded();
    // With other mounts GC uses the view of the node's processes.
    let mounts = "--mount";
    let done = gc_elsewhere(&lab, mounts);
    assert_eq!((count(&done, "removed"), count(&done, "kept")), (0, 1), "{done}");
    // With other processes too, as in a container, GC cannot know.
    let done = gc_elsewhere(&lab, "--mount --pid --fork --mount-proc");
    assert_eq!((count(&done, "removed"), count(&done, "kept")), (0, 1), "{done}");
    assert!(c1.sh("ip -br addr show eth0").contains("10.9.0.2"));
}

#[test]
fn del_leaves_what_its_path_leads_to_by_now_alone() {
    testkit::require!("root");
    let lab = Lab::new("living-another");
    network(&lab, "blue", BLUE);
    let before = Snapshot::take(&lab);
    // The path is a link to `/proc/PID/ns/net`; another process may get the PID.
    let (c1, c2) = (lab.container("c1"), lab.container("c2"));
    let lead = |to: &str| lab.sh(&format!("ln -sfn {to} /run/process"));
    for by_now in ["/proc/self/ns/net", "/run/netns/c2"] {
        lead("/run/netns/c1");
        call_in(&lab, &["add", "blue", "/run/process"]).succeeded();
        call_in(&lab, &["add", "blue", "c2"]).succeeded();
        lead(by_now);
        // CHECK does not take that process for the container, and a repair changes nothing.
        call_in(&lab, &["check", "blue", "/run/process"]).failed(1);
        for _ in 0..2 {
            call_in(&lab, &["del", "blue", "/run/process"]).succeeded();
        }
        call_in(&lab, &["check", "blue", "c2"]).succeeded();
        call_in(&lab, &["del", "blue", "c2"]).succeeded();
    }
    lab.sh("rm /run/process");
    drop((c1, c2));
    call_in(&lab, &["gc", "--all"]).succeeded();
    assert_as_before(&before, &lab);
}

#[test]
fn an_add_that_was_refused_leaves_nothing() {
    testkit::require!("root");
    let lab = Lab::new("living-refused");
    let before = Snapshot::take(&lab);
    let ipam = r#""ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}"#;
    let c1 = lab.container("c1");
    for refused in [
        r#""type": "bridge", "vlan": 9999"#,
        r#""type": "bridge", "mtu": "large""#,
        r#""type": "bridge", "bridge": "a/b""#,
        r#""type": "ptp", "mtu": "large""#,
        r#""type": "macvlan", "mode": "none""#,
        r#""type": "macvlan", "master": "none""#,
        r#""type": "ipvlan", "mode": "l9""#,
        r#""type": "vlan", "vlanId": 9999"#,
        r#""type": "dummy", "mtu": "large""#,
        r#""type": "tap", "owner": "x""#,
        r#""type": "host-device", "device": 5"#,
        r#""type": "host-device""#,
        r#""type": "tuning", "sysctl": 5"#,
        r#""type": "sbr", "table": "x""#,
        r#""type": "vrf", "table": "x""#,
        r#""type": "portmap", "snat": "x""#,
        r#""type": "firewall", "backend": "x""#,
        r#""type": "bandwidth", "ingressRate": "x""#,
        r#""type": "ovs", "vlan": "x""#,
        r#""type": "cnm", "driver": 5"#,
        r#""type": "chain", "plugins": 5"#,
        r#""type": "multi", "networks": 5"#,
    ] {
        network(
            &lab,
            "blue",
            &format!(
                r#"{{"cniVersion": "1.1.0", "name": "blue", "plugins": [{{{refused}, {ipam}}}]}}"#
            ),
        );
        let said = call_in(&lab, &["add", "blue", "c1"]);
        assert_ne!(said.code, 0, "{refused}: {said:#?}");
        assert!(states(&lab).is_empty(), "{refused}: {said:#?}");
    }
    // The runtime does not undo a failed ADD: DEL or GC does.
    network(
        &lab,
        "blue",
        r#"{"cniVersion": "1.1.0", "name": "blue", "plugins": [{"type": "bridge", "vlan": 9999}]}"#,
    );
    lab.sh("rm /etc/cni/net.d/blue.conflist && rmdir /etc/cni/net.d /etc/cni");
    drop(c1);
    call_in(&lab, &["gc", "--all"]).succeeded();
    assert_as_before(&before, &lab);
}

/// A container whose plugins ended before they answered: only the cache has it, and no record.
#[test]
fn gc_removes_what_only_the_cache_knows() {
    testkit::require!("root");
    let lab = Lab::new("living-cache");
    network(&lab, "blue", BLUE);
    let c1 = lab.container("c1");
    call_in(&lab, &["add", "blue", "c1"]).succeeded();
    lab.sh("cp -r /var/lib/cni/results /run/kept");
    call_in(&lab, &["del", "blue", "c1"]).succeeded();
    for all in [false, true] {
        lab.sh("cp /run/kept/* /var/lib/cni/results/");
        // Its container lives, and has none of the attachment's links.
        assert_eq!(states(&lab), ["unknown"]);
        let args: &[&str] =
            if all { &["gc", "--all", "-o", "json"] } else { &["gc", "-o", "json"] };
        let done = call_in(&lab, args).succeeded().json();
        assert_eq!(count(&done, "removed"), usize::from(all), "{done}");
    }
    lab.sh("cp /run/kept/* /var/lib/cni/results/");
    drop(c1);
    assert_eq!(states(&lab), ["gone"]);
    let done = call_in(&lab, &["gc", "-o", "json"]).succeeded().json();
    assert_eq!(count(&done, "removed"), 1, "{done}");
}

#[test]
fn an_add_whose_result_nobody_can_read_is_undone() {
    testkit::require!("root");
    let lab = Lab::new("living-full");
    network(&lab, "blue", BLUE);
    let before = Snapshot::take(&lab);
    let c1 = lab.container("c1");
    let full = || Stdio::from(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let unread = || Stdio::from(std::io::pipe().unwrap().1);
    for arguments in [&["add", "blue", "c1"][..], &["add", "blue", "c1", "-o", "json"]] {
        for output in [full(), unread()] {
            let mut command = command_in(&lab, arguments);
            let said = command.stdin(Stdio::null()).stdout(output).output().unwrap();
            let text = String::from_utf8(said.stderr).unwrap();
            assert_eq!(said.status.code(), Some(3), "{arguments:?}: {text}");
            assert!(text.starts_with("error: write to standard output\ncause: "), "{text}");
            assert!(text.ends_with("the container was detached again\n"), "{text}");
            assert!(states(&lab).is_empty(), "{arguments:?}");
        }
    }
    // Calls the hook as an OCI runtime does.
    // The number is that of a process which is in the namespace already.
    let pid = lab.sh("ip netns exec c1 sh -c 'echo $$; exec sleep 1000 >/dev/null 2>&1' &");
    let state = json!({
        "id": "web", "status": "created", "pid": pid.trim().parse::<u32>().unwrap(),
        "annotations": { "dev.netwright.networks": "blue" },
    });
    for output in [full(), unread()] {
        let mut command = command_in(&lab, &["oci-hook", "-o", "json"]);
        let mut hook = command.stdin(Stdio::piped()).stdout(output).spawn().unwrap();
        serde_json::to_writer(hook.stdin.take().unwrap(), &state).unwrap();
        assert_eq!(hook.wait().unwrap().code(), Some(3));
        assert!(states(&lab).is_empty());
    }
    lab.sh(&format!("kill {pid}"));
    // Calls a plugin as a runtime does.
    let config = r#"{"cniVersion": "1.1.0", "name": "blue", "type": "bridge", "bridge": "br-blue", "isGateway": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}"#;
    let plugin = |verb, name| {
        let mut command = command_in(&lab, &[name]);
        command.env("CNI_COMMAND", verb).env("CNI_CONTAINERID", "c1").env("CNI_IFNAME", "eth0");
        command.env("CNI_NETNS", "/run/netns/c1").env("CNI_PATH", "/run/bin");
        command
    };
    call_in(&lab, &["install", "--bin-dir", "/run/bin", "--no-config"]).succeeded();
    for output in [full(), unread()] {
        let mut command = plugin("ADD", "bridge");
        let mut call = command.stdin(Stdio::piped()).stdout(output).spawn().unwrap();
        call.stdin.take().unwrap().write_all(config.as_bytes()).unwrap();
        assert!(!call.wait().unwrap().success());
        assert!(states(&lab).is_empty());
    }
    // The same with a plugin that calls others.
    let multi = format!(
        r#"{{"cniVersion": "1.1.0", "name": "both", "type": "multi", "networks": [{{"config": {config}}}]}}"#
    );
    for output in [full(), unread()] {
        let mut command = plugin("ADD", "multi");
        let mut call = command.stdin(Stdio::piped()).stdout(output).spawn().unwrap();
        call.stdin.take().unwrap().write_all(multi.as_bytes()).unwrap();
        assert!(!call.wait().unwrap().success());
        assert!(states(&lab).is_empty());
    }
    lab.sh("rm -r /run/bin /var/lib/netwright/installed && rmdir /var/lib/netwright/multi /var/lib/netwright");
    drop(c1);
    call_in(&lab, &["gc", "--all"]).succeeded();
    assert_as_before(&before, &lab);
}

/// Forwarding stays on after a container that has lived, but not after one that never did.
#[test]
fn a_refused_add_leaves_forwarding_as_it_was() {
    testkit::require!("root");
    let lab = Lab::new("living-refused");
    let forwarding = || {
        lab.sh("sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding net.ipv4.conf.up0.forwarding")
    };
    lab.sh("ip link add up0 type veth peer name up1; sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0");
    lab.sh("sysctl -qw net.ipv4.conf.up0.forwarding=1");
    let before = forwarding();
    assert_eq!(before, "0\n0\n1\n");
    let bridge = json!({
        "type": "bridge", "bridge": "br-blue", "isGateway": true, "ipam": { "type": "host-local",
        "ranges": [[{ "subnet": "10.9.0.0/24" }], [{ "subnet": "fd09::/64" }]] },
    });
    let tuning = json!({ "type": "tuning", "sysctl": { "net.ipv4.nosuch": "1" } });
    let write = |name: &str, plugins: Value| {
        let list = json!({ "cniVersion": "1.1.0", "name": name, "plugins": plugins });
        network(&lab, name, &list.to_string());
    };
    write("blue", json!([bridge]));
    write("list", json!([bridge, tuning]));
    write("chain", json!([{ "type": "chain", "plugins": [bridge, tuning] }]));
    write(
        "multi",
        json!([{ "type": "multi", "networks": [{ "config": {
            "cniVersion": "1.1.0", "name": "inner", "plugins": [bridge, tuning] } }] }]),
    );
    let refused = ["list", "chain", "multi"];
    let c1 = lab.container("c1");
    for network in refused {
        let said = call_in(&lab, &["add", network, "c1"]);
        assert!(said.code != 0 && said.stderr.contains("nosuch"), "{network}: {said:#?}");
        assert_eq!(forwarding(), before, "{network}");
    }
    let said = call_in(&lab, &["gc", "--all"]).succeeded();
    assert!(!said.stderr.contains("forwarding"), "{said:#?}");
    // A refused ADD does not switch off forwarding that a living container needs, or that a former
    // one needed.
    let c2 = lab.container("c2");
    call_in(&lab, &["add", "blue", "c2"]).succeeded();
    call_in(&lab, &["add", "list", "c1"]).failed(3);
    assert_eq!(forwarding(), "1\n1\n1\n");
    call_in(&lab, &["del", "blue", "c2"]).succeeded();
    call_in(&lab, &["add", "list", "c1"]).failed(3);
    assert_eq!(forwarding(), "1\n1\n1\n");
    drop((c1, c2));
}

/// The address plugin is not installed: it assigned nothing, so nothing needs to be released.
#[test]
fn an_add_without_its_address_plugin_leaves_nothing() {
    testkit::require!("root");
    let lab = Lab::new("living-no-ipam");
    let before = Snapshot::take(&lab);
    let c1 = lab.container("c1");
    for plugin in ["bridge", "ptp", "tap"] {
        let config = json!({
            "cniVersion": "1.1.0", "name": plugin,
            "plugins": [{ "type": plugin, "ipam": { "type": "nosuch" } }],
        });
        network(&lab, plugin, &config.to_string());
        let said = call_in(&lab, &["add", plugin, "c1"]);
        assert!(said.code != 0 && said.stderr.contains("nosuch"), "{plugin}: {said:#?}");
        assert!(!said.stderr.contains("failed, run DEL"), "{plugin}: {said:#?}");
        assert!(states(&lab).is_empty(), "{plugin}");
        lab.sh(&format!("rm /etc/cni/net.d/{plugin}.conflist"));
    }
    lab.sh("rmdir /etc/cni/net.d /etc/cni");
    drop(c1);
    call_in(&lab, &["gc", "--all"]).succeeded();
    assert_as_before(&before, &lab);
}

/// The records are lost, and the path leads to another container's namespace: it is not known
/// whether the first container lives.
#[test]
fn a_path_that_leads_to_another_namespace_is_no_life() {
    testkit::require!("root");
    let lab = Lab::new("living-another");
    network(&lab, "blue", BLUE);
    let c1 = lab.container("c1");
    call_in(&lab, &["add", "blue", "c1", "--container-id", "web"]).succeeded();
    lab.sh("rm -r /run/netwright");
    // Its interface is where the path leads.
    assert_eq!(states(&lab), ["alive"]);
    drop(c1);
    let c1 = lab.container("c1");
    assert_eq!(states(&lab), ["unknown"]);
    let said = call_in(&lab, &["list"]).succeeded();
    assert!(said.stdout.contains(" unknown "), "{said:#?}");
    let done = call_in(&lab, &["gc", "-o", "json"]).succeeded().json();
    assert_eq!((count(&done, "removed"), count(&done, "kept")), (0, 1), "{done}");
    // The present container has its own interface, with the same name and address.
    c1.sh("ip link add eth0 type bridge && ip addr add 10.9.0.2/24 dev eth0");
    assert_eq!(states(&lab), ["unknown"]);
    c1.sh("ip link del eth0");
    // The interface has moved to another namespace.
    let c2 = lab.container("c2");
    let file = lab.path("/var/lib/cni/results/blue-web-eth0");
    let text = std::fs::read_to_string(&file).unwrap();
    let entry: Value = serde_json::from_str(&text).unwrap();
    let mac = entry["result"]["interfaces"].as_array().unwrap().iter();
    let mac = mac.clone().find(|link| link["name"] == "eth0").unwrap()["mac"].as_str().unwrap();
    c2.sh(&format!("ip link add eth0 address {mac} type bridge"));
    assert_eq!(states(&lab), ["alive"]);
    c2.sh("ip link del eth0");
    assert_eq!(states(&lab), ["unknown"]);
    // The machine has booted since: the namespace at the path certainly belongs to another
    // container.
    let boot = entry["netwright/boot-id"].as_str().unwrap();
    std::fs::write(&file, text.replace(boot, "another-boot")).unwrap();
    assert_eq!(states(&lab), ["gone"]);
    let done = call_in(&lab, &["gc", "-o", "json"]).succeeded().json();
    assert_eq!(count(&done, "removed"), 1, "{done}");
    // `gc --all` and `del` by name remove an unknown one.
    for args in [&["gc", "--all"][..], &["del", "blue", "c1", "--container-id", "web"]] {
        call_in(&lab, &["add", "blue", "c1", "--container-id", "web"]).succeeded();
        c1.sh("ip link del eth0");
        lab.sh("rm -r /run/netwright");
        assert_eq!(states(&lab), ["unknown"]);
        call_in(&lab, args).succeeded();
        assert!(states(&lab).is_empty());
    }
}

/// The output names the attachment that failed, or the network if the failure concerns no
/// attachment.
#[test]
fn what_could_not_be_collected_is_named() {
    testkit::require!("root");
    let lab = Lab::new("living-named");
    lab.sh("mkdir -p /run/plugs");
    let stubborn = r#"#!/bin/sh
cat > /dev/null
case $CNI_COMMAND in
    ADD) echo '{"cniVersion": "1.1.0"}' ;;
    *) echo '{"cniVersion": "1.1.0", "code": 100, "msg": "I stay"}'; exit 1 ;;
esac
"#;
    std::fs::write(lab.path("/run/plugs/stubborn"), stubborn).unwrap();
    lab.sh("chmod +x /run/plugs/stubborn");
    network(
        &lab,
        "nh",
        r#"{"cniVersion": "1.1.0", "name": "nh", "plugins": [{"type": "stubborn"}]}"#,
    );
    let call = |args: &[&str]| {
        let mut command = command_in(&lab, args);
        command.env("CNI_PATH", "/run/plugs");
        said(command)
    };
    let _c1 = lab.container("c1");
    call(&["add", "nh", "c1", "--container-id", "web"]).succeeded();
    let done = call(&["gc", "nh", "--valid", "other"]);
    assert!(done.stdout.contains("failed to remove eth0 of web on nh: "), "{done:#?}");
    assert!(done.stdout.contains("failed to collect on network nh: "), "{done:#?}");
    let done = call(&["gc", "nh", "--valid", "other", "-o", "json"]).json();
    let failed = done["failed"].as_array().unwrap();
    assert_eq!(
        (&failed[0]["containerID"], &failed[0]["ifname"], &failed[0]["network"]),
        (&json!("web"), &json!("eth0"), &json!("nh"))
    );
    assert_eq!((failed[1].get("containerID"), &failed[1]["network"]), (None, &json!("nh")));
}

#[test]
fn a_bridge_that_was_renamed_goes_with_the_last() {
    testkit::require!("root");
    let lab = Lab::new("living-renamed");
    network(&lab, "blue", BLUE);
    let before = Snapshot::take(&lab);
    let (c1, c2) = (lab.container("c1"), lab.container("c2"));
    call_in(&lab, &["add", "blue", "c1"]).succeeded();
    call_in(&lab, &["add", "blue", "c2"]).succeeded();
    lab.sh("ip link set br-blue down && ip link set br-blue name br-red && ip link set br-red up");
    call_in(&lab, &["del", "blue", "c1"]).succeeded();
    traffic::assert_pings(&c2, "10.9.0.1");
    call_in(&lab, &["del", "blue", "c2"]).succeeded();
    drop((c1, c2));
    call_in(&lab, &["gc", "--all"]).succeeded();
    assert_as_before(&before, &lab);
}

/// GC finds a container gone, the container comes back under its ID, and GC continues: the plugin
/// looks again under the attachment's lock.
#[test]
fn what_came_back_since_it_was_looked_at_is_not_collected() {
    testkit::require!("root");
    let lab = Lab::new("living-back");
    network(&lab, "blue", BLUE);
    let c1 = lab.container("c1");
    call_in(&lab, &["add", "blue", "c1", "--container-id", "web"]).succeeded();
    let record = std::fs::read_dir(lab.path("/run/netwright/owners")).unwrap().next().unwrap();
    let record = std::fs::read(record.unwrap().path().join("bridge.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    let (dev, ino, cookie) =
        (&record["netnsId"]["dev"], &record["netnsId"]["ino"], &record["netnsCookie"]);
    let another = json!({ "dev": dev, "ino": ino, "cookie": cookie.as_u64().unwrap() + 1 });
    let this = json!({ "dev": dev, "ino": ino, "cookie": cookie });
    let del = |gone: Value| {
        let mut command = command_in(&lab, &["bridge"]);
        command.env("CNI_COMMAND", "DEL").env("CNI_CONTAINERID", "web").env("CNI_IFNAME", "eth0");
        command.env("CNI_PATH", "/run/bin");
        let config = json!({
            "cniVersion": "1.1.0", "name": "blue", "type": "bridge", "bridge": "br-blue",
            "netwright/gone": gone,
        });
        said_with(command, config.to_string().as_bytes())
    };
    for gone in [json!([]), json!([another])] {
        let said = del(gone).failed(1);
        assert_eq!(said.json()["code"], 11, "{said:#?}");
        call_in(&lab, &["check", "blue", "c1", "--container-id", "web"]).succeeded();
    }
    del(json!([another, this])).succeeded();
    assert_eq!(c1.sh("ip -br link | wc -l").trim(), "1");
}

/// A plugin that reports when it runs, and waits for the test to let it go on.
fn waiting_plugin(lab: &Lab) {
    lab.sh("mkdir -p /run/stub && mkfifo /run/here /run/go");
    let script = "#!/bin/sh\ncat >/dev/null\n[ $CNI_COMMAND = ADD ] || exit 0\n\
                  echo >/run/here\ncat /run/go >/dev/null\necho '{\"cniVersion\":\"1.1.0\"}'\n";
    std::fs::write(lab.path("/run/stub/wait"), script).unwrap();
    lab.sh("chmod 755 /run/stub/wait");
}

/// GC runs where it sees neither the container's path nor its runtime.
#[test]
fn an_add_that_is_under_way_is_left_alone_wherever_gc_runs() {
    testkit::require!("root");
    let lab = Lab::new("living-under-way");
    waiting_plugin(&lab);
    let bridge = json!({ "type": "bridge", "bridge": "br-blue", "ipam": {
        "type": "host-local", "ranges": [[{ "subnet": "10.9.0.0/24" }]] } });
    let wait = json!({ "type": "wait" });
    let (c1, _c2) = (lab.container("c1"), lab.container("c2"));
    // The plugin waits before the container's namespace is recorded, and after that.
    for plugins in [json!([wait, bridge]), json!([bridge, wait])] {
        let list = json!({ "cniVersion": "1.1.0", "name": "blue", "plugins": plugins });
        network(&lab, "blue", &list.to_string());
        let mut adding = command_in(&lab, &["add", "blue", "c1"]);
        adding.env("CNI_PATH", "/run/stub").stdin(Stdio::null()).stdout(Stdio::null());
        let mut adding = adding.spawn().unwrap();
        lab.sh("cat /run/here");
        let kept = [
            gc_elsewhere(&lab, "--mount"),
            gc_elsewhere(&lab, "--mount --pid --fork --mount-proc"),
            call_in(&lab, &["gc", "-o", "json"]).succeeded().json(),
            call_in(&lab, &["gc", "blue", "--valid", "c2", "-o", "json"]).json(),
        ];
        let all = call_in(&lab, &["gc", "--all", "-o", "json"]).json();
        lab.sh("echo >/run/go");
        assert!(adding.wait().unwrap().success());
        for done in kept {
            assert_eq!((count(&done, "removed"), count(&done, "kept")), (0, 1), "{done}");
        }
        assert_eq!(count(&all, "removed"), 0, "{all}");
        // GC does not even try an attachment that has no record yet.
        let failed = all["failed"].as_array().unwrap();
        let is_recorded = plugins[0]["type"] == "bridge";
        assert_eq!(failed.len(), usize::from(is_recorded), "{all}");
        assert!(failed.iter().all(|failed| failed["error"]["code"] == 11), "{all}");
        assert!(c1.sh("ip -br addr show eth0").contains("10.9.0."));
        let mut deleting = command_in(&lab, &["del", "blue", "c1"]);
        deleting.env("CNI_PATH", "/run/stub");
        said(deleting).succeeded();
    }
}

/// A killed ADD does not count as one that is running: GC removes what it left once its container
/// is gone, if GC can see that.
#[test]
fn what_an_add_left_that_was_killed_is_collected() {
    testkit::require!("root");
    let lab = Lab::new("living-killed");
    waiting_plugin(&lab);
    let list = json!({ "cniVersion": "1.1.0", "name": "blue", "plugins": [{ "type": "wait" }] });
    network(&lab, "blue", &list.to_string());
    let c1 = lab.container("c1");
    let mut adding = lab.command("sh");
    adding.args(["-c", "echo $$ >/run/adding; exec \"$0\" add blue c1"]);
    adding.arg(env!("CARGO_BIN_EXE_netwright")).env("CNI_PATH", "/run/stub");
    let mut adding = adding.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    lab.sh("cat /run/here; kill -KILL $(cat /run/adding)");
    adding.wait().unwrap();
    lab.sh("echo >/run/go");
    drop(c1);
    let done = gc_elsewhere(&lab, "--mount --pid --fork --mount-proc");
    assert_eq!((count(&done, "removed"), count(&done, "kept")), (0, 1), "{done}");
    assert_eq!(count(&done, "unseen"), 1, "{done}");
    let done = gc_elsewhere(&lab, "--mount");
    assert_eq!((count(&done, "removed"), count(&done, "kept")), (1, 0), "{done}");
}

/// A container that plays a node has a PID namespace of its own. Whoever sees all processes there
/// sees those of its containers, also where no plugin recorded anything.
#[test]
fn what_an_add_left_on_a_node_that_is_a_container_is_collected() {
    testkit::require!("root");
    let lab = Lab::with_processes("living-node");
    lab.sh("mkdir -p /run/stub");
    let script = "#!/bin/sh\ncat >/dev/null\n[ -e /run/up ] && exit 0\n\
                  echo '{\"code\":100,\"msg\":\"the database is down\"}'\nexit 1\n";
    std::fs::write(lab.path("/run/stub/base"), script).unwrap();
    lab.sh("chmod 755 /run/stub/base");
    let list = json!({ "cniVersion": "1.0.0", "name": "blue", "plugins": [{ "type": "base" }] });
    network(&lab, "blue", &list.to_string());
    let call = |args: &[&str]| {
        let mut command = command_in(&lab, args);
        command.env("CNI_PATH", "/run/stub");
        said(command)
    };
    // The path leads to another namespace: nobody knows what became of the first.
    for follows in [false, true] {
        lab.sh("rm -f /run/up");
        let c1 = lab.container("c1");
        let refused = call(&["add", "blue", "c1"]);
        assert!(refused.code != 0 && refused.stderr.contains("undoing"), "{refused:#?}");
        drop(c1);
        lab.sh("touch /run/up");
        if !follows {
            let done = call(&["gc"]).succeeded();
            assert!(done.stdout.contains("removed 1, kept 0"), "{done:#?}");
            assert!(states(&lab).is_empty());
            continue;
        }
        let _other = lab.container("c1");
        let done = call(&["gc"]).succeeded();
        let line = done.stdout.lines().find(|line| line.starts_with("kept eth0 of ")).unwrap();
        assert!(line.contains("it is not known whether its container exists"), "{line}");
        assert!(done.stdout.contains("removed 0, kept 1"), "{done:#?}");
        let printed = line.split(": netwright ").nth(1).unwrap();
        let words: Vec<&str> = printed.split(' ').collect();
        call(&words).succeeded();
        assert!(states(&lab).is_empty());
    }
}

/// A helper on a node has the node's network namespace and its own PID namespace: containers that
/// it attached may live on outside. A container that plays a node has a network namespace of its
/// own.
#[test]
fn a_helper_does_not_take_the_nodes_containers_for_gone() {
    testkit::require!("root");
    let lab = Lab::new("living-helper");
    network(&lab, "blue", BLUE);
    let mut c1 = lab.container("c1");
    c1.pid();
    let helper = || {
        let mut command = lab.command("unshare");
        command.args(["--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private"]);
        let script =
            "\"$0\" add blue c1 >/dev/null && umount -l /run/netns/c1 && \"$0\" gc -o json";
        command.args(["sh", "-c", script, env!("CARGO_BIN_EXE_netwright")]);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        said(command).succeeded().json()
    };
    let socket = lab.dir().join("socket");
    let nodes = lab.enter(|| std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let done = helper();
    assert_eq!((count(&done, "removed"), count(&done, "kept")), (0, 1), "{done}");
    assert!(c1.sh("ip -br addr show eth0").contains("10.9.0.2"));
    call_in(&lab, &["del", "blue", "c1"]).succeeded();
    drop(nodes);
    let done = helper();
    assert_eq!((count(&done, "removed"), count(&done, "kept")), (1, 0), "{done}");
}

/// DEL by a path that root itself may not follow finds the namespace by the record.
#[test]
fn del_by_a_path_that_may_not_be_followed_comes_to_its_end() {
    testkit::require!("root", "program:setpriv");
    let lab = Lab::new("living-closed");
    let before = Snapshot::take(&lab);
    lab.sh("ip link add p0 type dummy 2>/dev/null || ip link add p0 type veth peer name p1; ip link set p0 up");
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.9.0.0/24" }]] });
    call_in(&lab, &["install", "--bin-dir", "/run/bin", "--no-config"]).succeeded();
    // A folder of another user.
    lab.sh("mkdir /run/closed && ln -s /run/netns/c1 /run/closed/c1 && chown 7 /run/closed && chmod 700 /run/closed");
    let call = |plugin: &str, verb: &str, caps: &str| {
        let mut command = lab.command("setpriv");
        command.args([&format!("--bounding-set={caps}"), env!("CARGO_BIN_EXE_netwright"), plugin]);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("CNI_COMMAND", verb);
        command.env("CNI_CONTAINERID", "c1").env("CNI_IFNAME", "eth0").env("CNI_PATH", "/run/bin");
        command.env("CNI_NETNS", "/run/closed/c1");
        let config = json!({ "cniVersion": "1.1.0", "name": "blue", "type": plugin, "master": "p0",
            "bridge": "br-blue", "ipam": ipam });
        said_with(command, config.to_string().as_bytes())
    };
    let (all, few) = ("+all", "-dac_override,-dac_read_search");
    for plugin in ["macvlan", "bridge", "ptp"] {
        for gone in [false, true] {
            let c1 = lab.container("c1");
            call(plugin, "ADD", few).failed(1);
            // An attachment that was never made.
            call(plugin, "DEL", few).succeeded();
            call(plugin, "ADD", all).succeeded();
            let kept = gone.then(|| c1.delete()).is_none().then_some(&c1);
            call(plugin, "DEL", few).succeeded();
            assert_eq!(lab.sh("ls /var/lib/cni/networks/blue | grep -c ^10 || true").trim(), "0");
            let left = kept.map(|c1| c1.sh("ip -o link show | grep -v ' lo:' | wc -l"));
            assert_eq!(left.as_deref().map_or("0", str::trim), "0", "{plugin}");
        }
    }
    lab.sh("rm -r /run/closed /run/bin /var/lib/netwright; ip link del p0");
    call_in(&lab, &["gc", "--all"]).succeeded();
    lab.sh("rm -rf /var/lib/cni");
    assert_as_before(&before, &lab);
}

/// A closed descriptor is not read: std opens `/dev/null` in its place.
#[test]
fn an_answer_to_a_closed_standard_output_is_not_given() {
    testkit::require!("root");
    let lab = Lab::new("living-closed-output");
    network(&lab, "blue", BLUE);
    let before = Snapshot::take(&lab);
    let c1 = lab.container("c1");
    call_in(&lab, &["install", "--bin-dir", "/run/bin", "--no-config"]).succeeded();
    let closed = |arguments: &[&str], variables: &[(&str, &str)], input: &str| {
        let mut command = lab.command("sh");
        command.args(["-c", "exec \"$0\" \"$@\" >&-", env!("CARGO_BIN_EXE_netwright")]);
        command.args(arguments).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.envs(variables.iter().copied());
        said_with(command, input.as_bytes())
    };
    for arguments in [
        &["add", "blue", "c1"][..],
        &["add", "blue", "c1", "-o", "json"],
        &["list"],
        &["list", "-o", "json"],
        &["gc"],
        &["--list"],
        &["--help"],
        &["--version"],
        &["conformance", "--list"],
    ] {
        let said = closed(arguments, &[], "");
        assert_ne!(said.code, 0, "{arguments:?}: {said:#?}");
        assert!(said.stderr.contains("standard output"), "{arguments:?}: {said:#?}");
        assert!(states(&lab).is_empty(), "{arguments:?}");
    }
    let path = [("CNI_PATH", "/run/bin"), ("NETCONFPATH", "/etc/cni/net.d")];
    let said = closed(&["cnitool", "add", "blue", "/run/netns/c1"], &path, "");
    assert_ne!(said.code, 0, "{said:#?}");
    assert!(states(&lab).is_empty());
    // Calls a plugin as a runtime does.
    let config = json!({ "cniVersion": "1.1.0", "name": "blue", "type": "bridge", "bridge": "br-blue",
        "isGateway": true, "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.9.0.0/24" }]] } });
    let plugin = |plugin: &str, verb: &str| {
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/run/netns/c1"),
            ("CNI_PATH", "/run/bin"),
        ];
        closed(&[plugin], &variables, &config.to_string())
    };
    assert_ne!(plugin("bridge", "ADD").code, 0);
    assert!(states(&lab).is_empty());
    for name in call_in(&lab, &["--list"]).succeeded().stdout.lines() {
        assert_ne!(plugin(name, "VERSION").code, 0, "{name}");
    }
    // A verb without an answer succeeds.
    assert_eq!(plugin("bridge", "DEL").code, 0);
    lab.sh("rm -r /run/bin /var/lib/netwright");
    drop(c1);
    call_in(&lab, &["gc", "--all"]).succeeded();
    assert_as_before(&before, &lab);
}
