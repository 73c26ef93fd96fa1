//! How the device is chosen: by name, hardware address, kernel path, PCI address, device ID.

use serde_json::{Value, json};

use super::{device, link};
use crate::support::Node;

/// A host whose `/sys/bus` and `/sys/devices/platform` are the test's, with devices `nic0` to
/// `nic5`.
fn node(name: &str) -> Node {
    let node = Node::new(name);
    node.sh(
        "mount -t tmpfs bus /sys/bus && mount -t tmpfs platform /sys/devices/platform && \
         mkdir -p /sys/bus/pci/devices /sys/bus/pci/drivers/ixgbe /sys/bus/auxiliary/devices /sys/devices/platform/soc/net",
    );
    for number in 0..6 {
        device(&node, &format!("nic{number}"));
    }
    node
}

/// Makes a PCI device whose links are in `net` below `folder`.
fn pci(node: &Node, address: &str, folder: &str, nic: &str) {
    let device = format!("/sys/bus/pci/devices/{address}");
    shown(node, &format!("{device}/{folder}"), nic);
    node.sh(&format!("ln -s ../../drivers/ixgbe {device}/driver"));
}

/// Makes a device's folder `net` show a link of the host, as sysfs does.
fn shown(node: &Node, net: &str, nic: &str) {
    node.sh(&format!("mkdir -p {net}/{nic} && cp /sys/class/net/{nic}/ifindex /sys/class/net/{nic}/address {net}/{nic}"));
}

/// Attaches a new container; returns the device's name and the result's interface.
#[track_caller]
fn chosen(node: &Node, keys: Value) -> (String, Value) {
    let c1 = node.container("c1");
    let result = node.run("host-device", "ADD").to(&c1).config(keys.clone()).call().ok();
    let name = link(&c1, "eth0")["ifalias"].as_str().unwrap().to_owned();
    node.run("host-device", "DEL").to(&c1).config(keys).call().silent();
    (name, result["interfaces"][0].clone())
}

#[test]
fn by_name() {
    let node = node("hd-name");
    assert_eq!(chosen(&node, json!({ "device": "nic3" })).0, "nic3");
    // An alternative name works, as with the reference.
    node.sh("ip link property add dev nic4 altname enp7s0f0np0s1d2");
    assert_eq!(chosen(&node, json!({ "device": "enp7s0f0np0s1d2" })).0, "nic4");
}

#[test]
fn by_hardware_address() {
    let node = node("hd-mac");
    let mac = link(&node.lab, "nic2")["address"].as_str().unwrap().to_owned();
    for text in [mac.clone(), mac.to_uppercase(), mac.replace(':', "-")] {
        assert_eq!(chosen(&node, json!({ "hwaddr": text })).0, "nic2");
    }
}

#[test]
fn by_kernel_path() {
    let node = node("hd-path");
    shown(&node, "/sys/devices/platform/soc/net", "nic1");
    assert_eq!(chosen(&node, json!({ "kernelpath": "/sys/devices/platform/soc" })).0, "nic1");
}

#[test]
fn by_pci_address() {
    let node = node("hd-pci");
    pci(&node, "0000:3b:00.1", "net", "nic1");
    let (name, interface) = chosen(&node, json!({ "pciBusID": "0000:3b:00.1" }));
    assert_eq!((name.as_str(), &interface["pciID"]), ("nic1", &json!("0000:3b:00.1")));
}

#[test]
fn by_pci_address_of_a_virtio_device() {
    let node = node("hd-virtio");
    pci(&node, "0000:00:03.0", "virtio7/net", "nic1");
    let (name, interface) = chosen(&node, json!({ "pciBusID": "0000:00:03.0" }));
    assert_eq!((name.as_str(), &interface["pciID"]), ("nic1", &json!("0000:00:03.0")));
}

#[test]
fn pci_devices_without_links_are_named() {
    let node = node("hd-none");
    node.sh("cd /sys/bus/pci/devices && mkdir -p 0000:3b:00.1/net/elsewhere && ln -s ../../drivers/ixgbe 0000:3b:00.1/driver");
    node.sh("mkdir /sys/bus/pci/devices/0000:3b:00.2 && ln -s ../../drivers/ixgbe /sys/bus/pci/devices/0000:3b:00.2/driver");
    for (address, words) in [
        ("0000:3b:00.1", "failed to find device name for pci address 0000:3b:00.1"),
        ("0000:3b:00.2", "no net directory under pci device 0000:3b:00.2"),
        ("0000:3b:00.3", "error with host device: lstat /sys/bus/pci/devices/0000:3b:00.3/driver"),
    ] {
        let c1 = node.container("c1");
        let run = node.run("host-device", "ADD").to(&c1).config(json!({ "pciBusID": address }));
        run.call().fails(7, words);
    }
}

#[test]
fn by_device_id() {
    let node = node("hd-id");
    pci(&node, "0000:3b:00.1", "net", "nic1");
    pci(&node, "0000:3b:00.2", "net", "nic2");
    let id = |id: &str| json!({ "runtimeConfig": { "deviceID": id }, "pciBusID": "0000:3b:00.2" });
    let (name, interface) = chosen(&node, id("0000:3b:00.1"));
    assert_eq!((name.as_str(), &interface["pciID"]), ("nic1", &json!("0000:3b:00.1")));
    shown(&node, "/sys/bus/auxiliary/devices/mlx5_core.sf.4/net", "nic3");
    assert_eq!(chosen(&node, id("mlx5_core.sf.4")).0, "nic3");
    let c1 = node.container("c1");
    let run = node.run("host-device", "ADD").to(&c1).config(id("mlx5_core.sf.5"));
    run.call().fails(7, "runtime config DeviceID mlx5_core.sf.5 not found or unsupported");
}

/// The link in a device's folder belongs to another namespace, and a link here has the same name.
#[test]
fn a_link_of_another_devices_name_is_not_taken() {
    let node = node("hd-foreign-names");
    let net = |device: &str| format!("/sys/bus/{device}/net");
    for device in ["pci/devices/0000:3b:00.1", "auxiliary/devices/mlx5_core.sf.4"] {
        shown(&node, &net(device), "nic1");
        node.sh(&format!("echo 4711 > {}/nic1/ifindex", net(device)));
    }
    node.sh("ln -s ../../drivers/ixgbe /sys/bus/pci/devices/0000:3b:00.1/driver");
    shown(&node, "/sys/devices/platform/soc/net", "nic1");
    node.sh("echo 02:00:00:00:00:99 > /sys/devices/platform/soc/net/nic1/address");
    for keys in [
        json!({ "pciBusID": "0000:3b:00.1" }),
        json!({ "runtimeConfig": { "deviceID": "mlx5_core.sf.4" } }),
        json!({ "kernelpath": "/sys/devices/platform/soc" }),
    ] {
        let c1 = node.container("c1");
        let run = node.run("host-device", "ADD").to(&c1).config(keys);
        run.call().fails(7, "failed to find");
        assert_eq!(link(&node.lab, "nic1")["ifname"], "nic1");
    }
    let c1 = node.container("c1");
    let by = json!({ "parent": { "pciBusID": "0000:3b:00.1" } });
    let run = node.run("macvlan", "ADD").to(&c1).config(by);
    run.call().fails(7, "no link has PCI address 0000:3b:00.1");
}

/// The links of `/sys` are those of the namespace that mounted it, which may be another one with
/// the same names.
#[test]
fn another_links_device_is_not_taken_for_its_own() {
    let node = node("hd-foreign-sys");
    let mac = link(&node.lab, "nic1")["address"].as_str().unwrap().to_owned();
    node.sh(&format!(
        "mount -t tmpfs net /sys/class/net && mkdir -p /sys/class/net/nic1 /sys/devices/platform/0000:3b:00.1 && \
         ln -s /sys/devices/platform/0000:3b:00.1 /sys/class/net/nic1/device && \
         echo 4711 > /sys/class/net/nic1/ifindex && echo {mac} > /sys/class/net/nic1/address"
    ));
    let (name, interface) = chosen(&node, json!({ "device": "nic1" }));
    assert_eq!((name.as_str(), interface.get("pciID")), ("nic1", None));
    // The driver in `/sys` belongs to another link, too.
    node.sh("ln -s /somewhere/drivers/ixgbe /sys/devices/platform/0000:3b:00.1/driver");
    let c2 = node.container("c2");
    let run = node.run("macvlan", "ADD").to(&c2).config(json!({ "parent": { "driver": "ixgbe" } }));
    run.call().fails(7, "driver \"ixgbe\"");
    // On a kernel that does not report a link's device, a folder that is the link's own does.
    let index = link(&node.lab, "nic1")["ifindex"].to_string();
    node.sh(&format!("echo {index} > /sys/class/net/nic1/ifindex"));
    let (_, interface) = chosen(&node, json!({ "device": "nic1" }));
    assert_eq!(interface["pciID"], "0000:3b:00.1");
}

/// DEL and GC come without `runtimeConfig`.
#[test]
fn a_device_by_its_id_comes_home_without_runtime_config() {
    let node = node("hd-idless");
    pci(&node, "0000:3b:00.1", "net", "nic1");
    let c1 = node.container("c1");
    let keys = json!({ "runtimeConfig": { "deviceID": "0000:3b:00.1" } });
    node.run("host-device", "ADD").to(&c1).config(keys).call().ok();
    node.run("host-device", "DEL").to(&c1).netns("").call().silent();
    node.sh("ip link show nic1");
}

#[test]
fn the_first_of_the_keys_counts() {
    let node = node("hd-order");
    pci(&node, "0000:3b:00.1", "net", "nic4");
    shown(&node, "/sys/devices/platform/soc/net", "nic3");
    let mac = link(&node.lab, "nic2")["address"].clone();
    let mut keys = json!({
        "device": "nic1", "hwaddr": mac, "kernelpath": "/sys/devices/platform/soc", "pciBusID": "0000:3b:00.1",
    });
    for (key, name) in
        [("device", "nic1"), ("hwaddr", "nic2"), ("kernelpath", "nic3"), ("pciBusID", "nic4")]
    {
        assert_eq!(chosen(&node, keys.clone()).0, name);
        keys.as_object_mut().unwrap().remove(key);
    }
}
