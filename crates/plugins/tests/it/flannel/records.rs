//! Records: flannel's plugin detaches what ours attached, and ours detaches what flannel's
//! attached.
//!
//! Flannel's plugin is another project's and is not installed here. The tests do by hand the little
//! that it does: its ADD writes the delegate's configuration to a file and calls the delegate with
//! it, its DEL calls the delegate with the file's content and removes the file
//! (flannel-io/cni-plugin flannel.go `delegateAdd`, flannel_linux.go `doCmdDel`).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::reference::Release;
use testkit::{Container, Place, Snapshot};

use super::{SUBNET_ENV, add_witness, is_attached, log, node, of};
use crate::support::matrix::{self, assert_settles, look};
use crate::support::{Node, Run};

/// A file that flannel's plugin left in its folder on a node (published by several users), with
/// other addresses.
const GOLDEN: &str = r#"{"cniVersion":"0.3.1","hairpinMode":true,"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.0.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},"isDefaultGateway":true,"isGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}"#;

fn record(node: &Node, container: &str) -> PathBuf {
    node.lab.path(format!("/var/lib/cni/flannel/{container}"))
}

/// The plugin object of flannel's own conflist.
fn of_manifest<'n>(node: &'n Node, verb: &str, to: &Container) -> Run<'n> {
    let delegate = json!({ "hairpinMode": true, "isDefaultGateway": true });
    let run = node.run("flannel", verb).to(to).network("cbr0").version("0.3.1");
    run.config(json!({ "delegate": delegate }))
}

/// A host that fits this file, on which one container was attached and detached.
fn of_golden(name: &str) -> Node {
    let node = Node::new(name);
    node.sh(&format!(
        "mkdir -p /run/flannel && printf 'FLANNEL_NETWORK=10.244.0.0/16\\nFLANNEL_SUBNET=10.244.0.1/24\\n\
         FLANNEL_MTU=1450\\nFLANNEL_IPMASQ=true\\n' >{SUBNET_ENV}"
    ));
    let c0 = node.container("c0");
    of_manifest(&node, "ADD", &c0).call().ok();
    of_manifest(&node, "DEL", &c0).call().silent();
    of_manifest(&node, "DEL", &c0).call().silent();
    forget_last(&node);
    node
}

/// Asserts that the host is as it was. Host-local's note of the last address is not compared.
#[track_caller]
fn assert_as_before(before: &Snapshot, node: &Node) {
    forget_last(node);
    assert_settles(before, node);
}

fn forget_last(node: &Node) {
    node.sh("rm -f /var/lib/cni/networks/cbr0/last_reserved_ip.*");
}

fn plain(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap()
}

#[test]
fn a_record_is_what_flannels_plugin_writes_and_where_it_does() {
    testkit::require!("root");
    let node = of_golden("flannel-golden");
    let c1 = node.container("c1");
    of_manifest(&node, "ADD", &c1).call().ok();
    let path = record(&node, "c1");
    assert_eq!(plain(&fs::read(&path).unwrap()), plain(GOLDEN.as_bytes()));
    let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&path.parent().unwrap().to_owned())), (0o600, 0o700));
    of_manifest(&node, "DEL", &c1).call().silent();
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
    // The configuration names another folder.
    let own = node.dir("own");
    of_manifest(&node, "ADD", &c1).config(json!({ "dataDir": own })).call().ok();
    assert!(own.join("c1").exists() && !path.exists());
    of_manifest(&node, "DEL", &c1).config(json!({ "dataDir": own })).call().silent();
    assert!(!is_attached(&c1) && !own.join("c1").exists());
}

#[test]
fn what_flannels_plugin_attached_is_detached() {
    testkit::require!("root");
    let node = of_golden("flannel-taken-over");
    let before = look(&node);
    let c1 = node.container("c1");
    fs::write(record(&node, "c1"), GOLDEN).unwrap();
    let result = node.run("bridge", "ADD").to(&c1).stdin(GOLDEN).call().ok();
    of_manifest(&node, "CHECK", &c1).version("0.4.0").prev(&result).call().silent();
    of_manifest(&node, "DEL", &c1).prev(&result).call().silent();
    assert!(!is_attached(&c1));
    drop(c1);
    assert_as_before(&before, &node);
}

#[test]
fn flannels_plugin_detaches_what_this_one_attached() {
    testkit::require!("root");
    let node = of_golden("flannel-given-back");
    let before = look(&node);
    let c1 = node.container("c1");
    of_manifest(&node, "ADD", &c1).call().ok();
    let recorded = fs::read(record(&node, "c1")).unwrap();
    node.run("bridge", "DEL").to(&c1).stdin(recorded).call().silent();
    fs::remove_file(record(&node, "c1")).unwrap();
    assert!(!is_attached(&c1));
    of_manifest(&node, "DEL", &c1).call().silent();
    drop(c1);
    assert_as_before(&before, &node);
}

/// The delegate may be the Go plugin that flannel's manifest expects on the node, or ours. It may
/// be one at ADD and the other at DEL.
#[test]
fn whichever_bridge_attached_either_detaches() {
    testkit::require!("root", "go-plugins");
    let node = of_golden("flannel-bridges");
    let (ours, go) = (node.bin().to_owned(), Release::Unstable.directory());
    let path = |dir: &PathBuf| dir.to_str().unwrap().to_owned();
    for (number, (adds, deletes)) in
        [(&go, &ours), (&ours, &go), (&go, &go)].into_iter().enumerate()
    {
        let c1 = node.container("c1");
        let call = |verb: &str, dir| of_manifest(&node, verb, &c1).path(&path(dir));
        let result = call("ADD", adds).call().ok();
        assert_eq!(result["ips"].as_array().unwrap().len(), 1, "{number}");
        assert!(is_attached(&c1), "{number}");
        call("DEL", deletes).prev(&result).call().silent();
        assert!(!is_attached(&c1) && !record(&node, "c1").exists(), "{number}");
        let held = node.sh("ls /var/lib/cni/networks/cbr0 | grep '^[0-9]' || true");
        assert_eq!(held, "", "{number}");
    }
}

/// Flannel's plugin writes the file in place, and older versions do not flush it: after a power cut
/// the file has a part of its content, or none. At that time flanneld has written nothing yet
/// either.
#[test]
fn a_torn_or_lost_record_does_not_keep_a_container_attached() {
    testkit::require!("root");
    let node = of_golden("flannel-torn");
    let before = look(&node);
    let env = fs::read(node.lab.path(SUBNET_ENV)).unwrap();
    let half = &GOLDEN[..GOLDEN.len() / 2];
    for torn in [Some(""), Some(half), Some("\0\0\0\0"), Some("[]"), Some("{}"), None] {
        let c1 = node.container("c1");
        of_manifest(&node, "ADD", &c1).call().ok();
        match torn {
            Some(text) => fs::write(record(&node, "c1"), text).unwrap(),
            None => fs::remove_file(record(&node, "c1")).unwrap(),
        }
        fs::remove_file(node.lab.path(SUBNET_ENV)).unwrap();
        let answer = of_manifest(&node, "DEL", &c1).call();
        assert_eq!(answer.stderr().contains("by the present configuration"), torn.is_some());
        answer.silent();
        assert!(!is_attached(&c1) && !record(&node, "c1").exists(), "{torn:?}");
        fs::write(node.lab.path(SUBNET_ENV), &env).unwrap();
        drop(c1);
        assert_as_before(&before, &node);
    }
}

/// The result is the same as with flannel's plugin. A torn record shows that there is something to
/// detach.
#[test]
fn another_projects_delegate_is_asked_only_where_something_is_recorded() {
    testkit::require!("root");
    let node = node("flannel-unasked");
    add_witness(&node);
    let c1 = node.container("c1");
    let call =
        |verb: &str| of(&node, verb, &c1).config(json!({ "delegate": { "type": "theirs" } }));
    call("DEL").call().silent();
    assert_eq!(log(&node), [""; 0]);
    call("ADD").call().ok();
    fs::write(record(&node, "c1"), "{").unwrap();
    call("DEL").call().silent();
    assert_eq!(log(&node), ["ADD", "DEL"]);
    // A record that DEL has not finished stays.
    call("ADD").call().ok();
    super::fails(&node, "DEL", 11, "not yet");
    call("DEL").call().fails(11, "not yet");
    assert!(record(&node, "c1").exists());
    super::fails(&node, "DEL", 3, "unknown");
    call("DEL").call().silent();
    assert!(!record(&node, "c1").exists());
}

/// The file is named after the container only, so the second attachment's record replaces the first
/// one's.
#[test]
fn two_attachments_of_a_container_are_both_detached() {
    testkit::require!("root");
    let node = node("flannel-two");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let first = |verb: &str, to| of(&node, verb, to);
    let second = |verb: &str, to| {
        let keys =
            json!({ "delegate": { "bridge": "second" }, "subnetFile": "/run/flannel/second.env" });
        of(&node, verb, to).network("m").ifname("net1").config(keys)
    };
    node.sh(
        "sed 's/10.1.0/10.2.0/; s/fd00:1/fd00:2/' /run/flannel/subnet.env >/run/flannel/second.env",
    );
    for container in [&c1, &c2] {
        first("ADD", container).call().ok();
        second("ADD", container).call().ok();
    }
    first("DEL", &c1).call().silent();
    assert!(record(&node, "c1").exists(), "it is the second one's");
    second("DEL", &c1).call().silent();
    second("DEL", &c2).call().silent();
    first("DEL", &c2).call().silent();
    for container in [&c1, &c2] {
        assert_eq!(container.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
    }
    assert_eq!(matrix::addresses(&node), "");
    assert_eq!(
        node.sh(&format!("find {} -name '10.*' | wc -l", node.dir("ipam").display())).trim(),
        "0"
    );
    assert_eq!(node.sh("find /var/lib/cni/flannel -type f | wc -l").trim(), "0");
}

#[test]
fn gc_removes_only_this_networks_records_of_containers_that_are_gone() {
    testkit::require!("root");
    let node = node("flannel-gc");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    of(&node, "ADD", &c1).call().ok();
    of(&node, "ADD", &c2).call().ok();
    // The files are: one of flannel's plugin; one of another network; an illegible one; one of
    // another project's delegate; one that is not a record; one that a killed writer of ours left.
    let theirs = GOLDEN.replace("cbr0", "n");
    for (name, text) in [
        ("gone", theirs.as_str()),
        ("other", GOLDEN),
        ("torn", "{"),
        ("foreign", r#"{"name":"n","type":"theirs"}"#),
        (".hidden", theirs.as_str()),
        (".c9.999999999.1.tmp", "half"),
    ] {
        fs::write(record(&node, name), text).unwrap();
    }
    add_witness(&node);
    // After a reboot GC may come before flanneld.
    node.sh(&format!("rm {SUBNET_ENV}"));
    let gc = of(&node, "GC", &c1).of_network().valid(&[("c1", "eth0")]).call();
    assert!(gc.stderr().contains("ignored /var/lib/cni/flannel/torn"), "{gc:?}");
    gc.silent();
    let left = node.sh("ls -A /var/lib/cni/flannel");
    assert_eq!(
        left.split_whitespace().collect::<Vec<_>>(),
        [".hidden", "c1", "foreign", "other", "torn"]
    );
    assert!(is_attached(&c1) && !is_attached(&c2));
    assert_eq!(log(&node), ["GC"]);
    // GC reports a delegate that fails, and still collects the others.
    fs::write(record(&node, "gone"), &theirs).unwrap();
    super::fails(&node, "GC", 11, "not yet");
    let again = of(&node, "GC", &c1).of_network().valid(&[("c1", "eth0")]).call();
    again.fails(11, "plugin \"theirs\": not yet");
    assert!(!record(&node, "gone").exists() && record(&node, "foreign").exists());
}
