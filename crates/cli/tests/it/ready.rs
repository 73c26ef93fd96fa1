//! `status` says "ready" of a network only if everything that ADD calls was asked.

use serde_json::{Value, json};
use testkit::{Lab, Place};

use crate::support::{CommandOutput, EXECUTABLE, call_in, said};

/// A foreign plugin that passes on what is before it, or makes nothing.
const FOREIGN: &str = r#"#!/usr/bin/python3 -S
import json, os, sys
verb = os.environ["CNI_COMMAND"]
given = json.load(sys.stdin)
version = given["cniVersion"]
if verb == "VERSION":
    print(json.dumps({"cniVersion": "1.0.0", "supportedVersions": VERSIONS}))
elif verb == "ADD":
    print(json.dumps(given.get("prevResult") or
        {"cniVersion": version, "ips": [{"address": "10.4.0.5/24"}]}))
"#;

/// A host with two foreign plugins of today's version, and one of the version with STATUS.
fn host(name: &str) -> Lab {
    let lab = Lab::new(name);
    lab.sh("mkdir -p /etc/cni/net.d /opt/cni/bin && ip link add eth0 type veth peer name far && \
            ip link set eth0 up && ip link set far up");
    for (name, versions) in [
        ("theirs", r#"["0.3.1","0.4.0","1.0.0"]"#),
        ("addresses", r#"["0.3.1","0.4.0","1.0.0"]"#),
        ("newer", r#"["0.4.0","1.0.0","1.1.0"]"#),
    ] {
        let path = lab.path(format!("/opt/cni/bin/{name}"));
        std::fs::write(path, FOREIGN.replace("VERSIONS", versions)).unwrap();
    }
    lab.sh(
        "chmod 755 /opt/cni/bin/* && \
         printf 'FLANNEL_NETWORK=10.7.0.0/16\nFLANNEL_SUBNET=10.7.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n' >/etc/subnet.env",
    );
    lab
}

fn write(lab: &Lab, version: &str, plugins: &Value) {
    let list = json!({ "cniVersion": version, "name": "n", "plugins": plugins });
    std::fs::write(lab.path("/etc/cni/net.d/n.conflist"), list.to_string()).unwrap();
}

fn status(lab: &Lab) -> CommandOutput {
    call_in(lab, &["status", "n"])
}

fn macvlan() -> Value {
    json!({ "type": "macvlan", "master": "nope", "ipam": pool("10.5.0.0/24") })
}

fn bridge() -> Value {
    json!({ "type": "bridge", "bridge": "br0", "isGateway": true, "ipam": pool("10.4.0.0/24") })
}

fn pool(subnet: &str) -> Value {
    json!({ "type": "host-local", "subnet": subnet })
}

/// Runtimes ask nothing of such a list. Ours answer nevertheless.
#[test]
fn what_add_refuses_is_said_of_every_version_and_within_networks() {
    testkit::require!("root");
    let lab = host("ready-refused");
    let _c1 = lab.container("c1");
    let theirs = json!({ "type": "theirs" });
    let missing = json!({ "type": "nosuch" });
    let delegate = |plugin: &Value| {
        let mut plugin = plugin.clone();
        plugin["cniVersion"] = json!("1.0.0");
        plugin["name"] = json!("c");
        json!([{ "type": "netwright-multi", "delegates": [plugin] }])
    };
    let several = |network: Value| json!([{ "type": "multi", "networks": [network] }]);
    let (nope, nosuch) = ("failed to lookup master \"nope\"", "failed to find plugin \"nosuch\"");
    for (plugins, words) in [
        (json!([macvlan(), theirs]), nope),
        (
            json!([{ "type": "host-device", "device": "nope" }, theirs]),
            "failed to find host device",
        ),
        (
            json!([{ "type": "bridge", "bridge": "br0", "ipam": { "type": "dhcp" } }, theirs]),
            "DHCP daemon",
        ),
        (json!([{ "type": "chain", "plugins": [missing] }]), nosuch),
        (json!([{ "type": "chain", "plugins": [macvlan()] }]), nope),
        (json!([{ "type": "chain", "plugins": [macvlan(), theirs] }]), nope),
        (
            json!([{ "type": "flannel", "subnetFile": "/etc/subnet.env", "delegate": missing }]),
            nosuch,
        ),
        (several(json!({ "config": missing })), nosuch),
        (several(json!({ "name": "nosuch" })), "no network \"nosuch\""),
        (several(json!({ "config": macvlan() })), nope),
        (several(json!({ "config": { "plugins": [macvlan(), theirs] } })), nope),
        (delegate(&missing), nosuch),
        (delegate(&macvlan()), nope),
    ] {
        for version in ["0.4.0", "1.0.0", "1.1.0"] {
            // STATUS of a chain in this version is passed on to each, which has none.
            if version == "1.1.0" && plugins[0]["plugins"][1] == theirs {
                continue;
            }
            write(&lab, version, &plugins);
            let said = status(&lab);
            assert!(
                said.code != 0 && said.stdout.contains("not ready") && said.stdout.contains(words),
                "{version} {plugins}: {said:#?}"
            );
            let add = call_in(&lab, &["add", "n", "c1"]);
            assert!(add.code != 0 && add.stderr.contains(words), "{version} {plugins}: {add:#?}");
            call_in(&lab, &["del", "n", "c1"]);
        }
    }
}

#[test]
fn who_was_not_asked_is_named_and_nobody_is_called_ready() {
    testkit::require!("root");
    let lab = host("ready-unasked");
    let _c1 = lab.container("c1");
    let theirs = json!({ "type": "theirs" });
    let of_theirs = json!({ "type": "bridge", "bridge": "br0", "ipam": { "type": "addresses" } });
    let no_verb = "which has no STATUS in version 1.0.0";
    let several = json!([{ "type": "multi", "networks": [
        { "config": bridge() }, { "config": { "plugins": [{ "type": "macvlan", "master": "eth0", "ipam": pool("10.6.0.0/24") }, theirs] } }] }]);
    for (version, plugins, unasked) in [
        ("1.0.0", json!([bridge()]), vec![]),
        ("1.1.0", json!([bridge(), { "type": "newer" }]), vec![]),
        ("1.0.0", json!([bridge(), theirs]), vec![format!("theirs ({no_verb})")]),
        ("1.1.0", json!([bridge(), theirs]), vec!["theirs (which has no STATUS)".to_owned()]),
        ("1.0.0", json!([of_theirs]), vec![format!("bridge (asks addresses, {no_verb})")]),
        (
            "1.0.0",
            json!([{ "type": "chain", "plugins": [bridge(), theirs] }]),
            vec![format!("theirs ({no_verb})")],
        ),
        ("1.0.0", several, vec![format!("theirs ({no_verb})")]),
    ] {
        write(&lab, version, &plugins);
        let said = status(&lab).succeeded();
        let json = call_in(&lab, &["status", "n", "-o", "json"]).succeeded().json();
        let state = &json["networks"][0];
        if unasked.is_empty() {
            assert!(said.stdout.contains("  ready  "), "{plugins}: {said:#?}");
            assert_eq!((&state["ready"], &state["notAsked"]), (&json!(true), &Value::Null));
        } else {
            assert!(said.stdout.contains("  partly asked  "), "{plugins}: {said:#?}");
            for one in &unasked {
                assert!(said.stdout.contains(&format!("n: not asked: {one}\n")), "{said:#?}");
            }
            assert_eq!((&state["ready"], &state["notAsked"]), (&Value::Null, &json!(unasked)));
        }
        call_in(&lab, &["add", "n", "c1"]).succeeded();
        call_in(&lab, &["del", "n", "c1"]).succeeded();
    }
}

/// Whether a runtime has the right is not known from here.
#[test]
fn without_the_right_to_make_links_nothing_is_called_ready() {
    testkit::require!("root", "program:setpriv");
    let lab = host("ready-rights");
    let _c1 = lab.container("c1");
    let bare = |args: &[&str]| {
        let mut command = lab.command("setpriv");
        command.args(["--bounding-set=-net_admin", "--inh-caps=-net_admin", EXECUTABLE]);
        command.args(args).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        said(command)
    };
    for version in ["1.0.0", "1.1.0"] {
        for plugins in [
            json!([bridge()]),
            json!([macvlan()]),
            json!([{ "type": "dummy", "ipam": pool("10.6.0.0/24") }]),
        ] {
            write(&lab, version, &plugins);
            let told = bare(&["status", "n"]).failed(3);
            let words = "runs without the capability CAP_NET_ADMIN";
            assert!(
                told.stdout.contains("  unknown  ") && told.stdout.contains(words),
                "{told:#?}"
            );
            assert_ne!(bare(&["add", "n", "c1"]).code, 0);
        }
    }
    write(&lab, "1.1.0", &json!([bridge()]));
    call_in(&lab, &["add", "n", "c1"]).succeeded();
    status(&lab).succeeded();
}

#[test]
fn where_no_attachment_can_be_recorded_nothing_is_ready() {
    testkit::require!("root");
    let lab = host("ready-room");
    let _c1 = lab.container("c1");
    write(&lab, "1.1.0", &json!([{ "type": "macvlan", "master": "eth0" }]));
    for (options, words) in [
        ("nr_inodes=1", "its file system takes no more files"),
        ("size=4k", "its file system has no space left"),
    ] {
        lab.sh(&format!(
            "mkdir -p /var/lib/cni/results && mount -t tmpfs -o {options} none /var/lib/cni/results && \
             {{ ! echo {options} | grep -q size || echo x >/var/lib/cni/results/fill; }}"
        ));
        let told = status(&lab).failed(3);
        assert!(told.stdout.contains("not ready") && told.stdout.contains(words), "{told:#?}");
        assert_ne!(call_in(&lab, &["add", "n", "c1"]).code, 0);
        lab.sh("umount /var/lib/cni/results");
        status(&lab).succeeded();
    }
    call_in(&lab, &["add", "n", "c1"]).succeeded();
}
