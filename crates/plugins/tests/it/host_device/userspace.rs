//! Devices that a program drives (DPDK): the plugin moves no link, and reserves addresses.

use std::fs;

use serde_json::{Value, json};
use testkit::{Container, Place, Snapshot};

use super::{fixed, verbs};
use crate::support::{Node, Run, kill};

const PCI: &str = "0000:3b:00.1";

/// A host with one PCI device bound to `driver`.
fn node(name: &str, driver: &str) -> Node {
    let node = Node::new(name);
    node.sh(&format!(
        "mount -t tmpfs bus /sys/bus && mkdir -p /sys/bus/pci/devices/{PCI} /sys/bus/pci/drivers/{driver} && \
         ln -s ../../drivers/{driver} /sys/bus/pci/devices/{PCI}/driver"
    ));
    node
}

fn run<'n>(node: &'n Node, verb: &str, container: &Container) -> Run<'n> {
    let run = node.run("host-device", verb).to(container).config(json!({ "pciBusID": PCI }));
    run.config(fixed(node))
}

#[track_caller]
fn life(node: &Node, keys: &Value, pci: &Value) {
    let before = Snapshot::take(&node.lab);
    let c1 = node.container("c1");
    let result = run(node, "ADD", &c1).config(keys.clone()).call().ok();
    let interface = &result["interfaces"][0];
    assert_eq!(interface["name"], "eth0");
    assert_eq!(interface["sandbox"], c1.netns().to_str().unwrap());
    assert_eq!(&interface["pciID"], pci);
    assert_eq!(result["ips"][0]["address"], "10.1.0.2/24");
    assert_eq!(c1.sh("ip -o link | wc -l").trim(), "1");
    run(node, "CHECK", &c1).config(keys.clone()).prev(&result).call().silent();
    run(node, "DEL", &c1).config(keys.clone()).prev(&result).call().silent();
    run(node, "DEL", &c1).config(keys.clone()).netns("").call().silent();
    c1.delete();
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(verbs(node), "ADD CHECK DEL DEL ");
}

#[test]
fn each_userspace_driver_is_recognised() {
    for driver in ["vfio-pci", "uio_pci_generic", "igb_uio"] {
        life(&node("hd-dpdk", driver), &json!({}), &json!(PCI));
    }
}

#[test]
fn the_key_dpdk_mode_counts_where_there_is_no_pci_address() {
    let node = node("hd-mode", "ixgbe");
    life(&node, &json!({ "pciBusID": "", "device": "none", "dpdkMode": true }), &Value::Null);
}

#[test]
fn the_driver_overrides_the_key() {
    let node = node("hd-over", "ixgbe");
    let c1 = node.container("c1");
    let run = run(&node, "ADD", &c1).config(json!({ "DPDKMode": true }));
    run.call().fails(7, "no net directory under pci device");
}

#[test]
fn without_ipam_there_is_nothing_but_the_interface() {
    let node = node("hd-noip", "vfio-pci");
    let c1 = node.container("c1");
    let result = run(&node, "ADD", &c1).without("ipam").call().ok();
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 1);
    assert!(result.get("ips").is_none_or(|ips| ips.as_array().unwrap().is_empty()));
    run(&node, "CHECK", &c1).without("ipam").prev(&result).call().silent();
    run(&node, "DEL", &c1).without("ipam").call().silent();
}

#[test]
fn check_sees_that_another_driver_has_it() {
    let node = node("hd-bind", "vfio-pci");
    let c1 = node.container("c1");
    let result = run(&node, "ADD", &c1).call().ok();
    node.sh(&format!("mkdir /sys/bus/pci/drivers/ixgbe; ln -sfn ../../drivers/ixgbe /sys/bus/pci/devices/{PCI}/driver"));
    run(&node, "CHECK", &c1).prev(&result).call().fails(104, "is gone");
}

#[test]
fn a_second_container_is_refused_while_the_first_lives() {
    let node = node("hd-two", "vfio-pci");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    run(&node, "ADD", &c1).call().ok();
    run(&node, "ADD", &c2).call().fails(108, "in use by n/c1/eth0");
    c1.delete();
    run(&node, "ADD", &c2).call().ok();
}

/// An ADD reads no attachment's record, however many the node has.
#[test]
fn who_has_a_device_is_known_without_a_look_at_every_record() {
    testkit::require!("root", "program:strace");
    let node = node("hd-many", "vfio-pci");
    let containers = ["c1", "c2", "c3"].map(|name| node.container(name));
    let other =
        |number| json!({ "pciBusID": "", "device": format!("none{number}"), "dpdkMode": true });
    for (number, container) in containers[..2].iter().enumerate() {
        run(&node, "ADD", container).config(other(number)).call().ok();
    }
    let owners = node.roots.run.join("owners");
    let read = |container: &Container| {
        let options = ["-e", "trace=open,openat"].map(str::to_owned);
        let add = run(&node, "ADD", container).without("ipam");
        let (status, trace) = kill::traced(&node, add, &options);
        assert!(status.success(), "{status}: {trace}");
        let lines = trace.lines().filter(|line| line.contains(owners.to_str().unwrap()));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let own = cni::AttachmentKey {
        network: "n".parse().unwrap(),
        container_id: "c3".parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
    };
    let lines = read(&containers[2]);
    assert!(!lines.is_empty());
    assert!(lines.iter().all(|line| line.contains(&own.hash())), "{lines:#?}");
    // The record is lost: DEL finds the device by the configuration.
    fs::remove_dir_all(&owners).unwrap();
    run(&node, "DEL", &containers[2]).without("ipam").call().silent();
    let held = node.sh(&format!("ls {}/shared", node.roots.run.display()));
    assert_eq!(held.lines().count(), 2, "{held}");
}

/// An ADD may be killed between making the folder of the device's holders and holding it.
#[test]
fn what_a_killed_add_left_of_a_device_goes_with_del() {
    let node = node("hd-killed", "vfio-pci");
    let c1 = node.container("c1");
    run(&node, "ADD", &c1).call().ok();
    let shared = fs::read_dir(node.roots.run.join("shared")).unwrap();
    let mut objects = shared.map(|entry| entry.unwrap().path());
    let of_device = objects.find(|path| path.to_string_lossy().contains("/device%20")).unwrap();
    run(&node, "DEL", &c1).call().silent();
    assert!(!of_device.exists());
    fs::create_dir_all(&of_device).unwrap();
    run(&node, "DEL", &c1).call().silent();
    assert!(!of_device.exists());
}

/// The device may be unbound or gone by then: DEL still releases the addresses.
#[test]
fn del_needs_no_driver() {
    let node = node("hd-unbound", "vfio-pci");
    let c1 = node.container("c1");
    run(&node, "ADD", &c1).call().ok();
    node.sh(&format!("rm -r /sys/bus/pci/devices/{PCI}"));
    run(&node, "DEL", &c1).call().silent();
    assert_eq!(verbs(&node), "ADD DEL ");
}
