//! A real network card survives its container: the kernel gives it back to the initial namespace.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use testkit::traffic::assert_pings;
use testkit::{Container, Place};

use super::link;
use crate::support::{Node, Run};

/// Runs a script on the virtual machine itself.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "the test kit runs programs in laboratories only")]
fn machine(script: &str) -> String {
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The card as the machine shows it, with its addresses.
fn card(name: &str) -> Value {
    let text = machine(&format!("ip -d -j link show {name}"));
    let link = serde_json::from_str::<Value>(&text).unwrap()[0].clone();
    let up = link["flags"].as_array().unwrap().iter().any(|flag| flag == "UP");
    json!({ "mac": link["address"], "mtu": link["mtu"], "alias": link["ifalias"], "up": up })
}

struct Rig {
    node: Node,
    pci: String,
    keys: Value,
}

impl Rig {
    fn run(&self, verb: &str, id: &str, netns: PathBuf) -> Run<'_> {
        let run = self.node.run("host-device", verb).id(id).netns(netns);
        run.config(self.keys.clone()).on_machine()
    }

    fn add(&self, to: &Container) -> Value {
        let result = self.run("ADD", to.name(), to.netns_path()).call().ok();
        assert_eq!(result["interfaces"][0]["pciID"], self.pci);
        result
    }

    fn del(&self, id: &str, netns: PathBuf) {
        self.run("DEL", id, netns).call().silent();
    }
}

/// One test does everything with the one card, since tests run at the same time.
#[test]
fn vm_a_card_comes_home_from_living_and_dead_containers() {
    testkit::require!("root", "spare-nic");
    let virtio = machine("ls -d /sys/bus/virtio/drivers/virtio_net/virtio* | head -n 1");
    let called = machine(&format!("ls {virtio}/net"));
    // A name that no container's interface has.
    let name = "spare0";
    machine(&format!("ip link set {called} down && ip link set {called} name {name}"));
    let pci = machine(&format!("basename $(dirname $(readlink -f {virtio}))"));
    let ipam = json!({
        "type": "static",
        "addresses": [{ "address": "10.0.2.15/24", "gateway": "10.0.2.2" }],
        "routes": [{ "dst": "0.0.0.0/0" }],
    });
    let rig =
        Rig { node: Node::new("hd-card"), keys: json!({ "pciBusID": pci, "ipam": ipam }), pci };
    machine(&format!("ip link set {name} mtu 1400 alias 'to the world' && ip link set {name} up"));
    let found = card(name);

    // The container lives: traffic, CHECK, and the card's return.
    let c1 = rig.node.container("c1");
    let result = rig.add(&c1);
    assert_eq!(link(&c1, "eth0")["ifalias"], name);
    assert_pings(&c1, "10.0.2.2");
    rig.run("CHECK", "c1", c1.netns_path()).prev(&result).call().silent();
    rig.del("c1", c1.netns_path());
    assert_eq!(card(name), found);

    // The container changes what it can, and dies before DEL.
    for (number, taken) in [false, true].into_iter().enumerate() {
        let id = format!("d{number}");
        let dying = rig.node.container(&id);
        let path = dying.netns_path();
        if taken {
            // The name is taken, so the kernel calls the card devN.
            machine("ip link add eth0 type dummy");
        }
        rig.add(&dying);
        dying.sh("ip link set eth0 down; ip link set eth0 address 02:00:00:00:00:99 mtu 1300; ip link set eth0 up");
        drop(dying);
        rig.del(&id, path.clone());
        assert_eq!(card(name), found, "{taken}");
        rig.del(&id, path);
    }

    // The container dies and gets no DEL: GC returns the card, or the ADD of the next container
    // that requests it does.
    let dying = rig.node.container("e1");
    rig.add(&dying);
    drop(dying);
    let gc = rig.node.run("host-device", "GC").config(rig.keys.clone()).on_machine();
    let gc = gc.of_network();
    gc.valid(&[]).call().silent();
    assert_eq!(card(name), found);
    let dying = rig.node.container("e2");
    let path = dying.netns_path();
    rig.add(&dying);
    drop(dying);
    rig.add(&c1);
    rig.del("e2", path);
    assert_pings(&c1, "10.0.2.2");

    // The same without a record, as the reference leaves it: the name comes from the configuration.
    machine(&format!("find {} -type f -delete", rig.node.dir("run").display()));
    let path = c1.netns_path();
    drop(c1);
    let by_name = json!({ "device": name, "pciBusID": "" });
    let back = "for i in $(seq 600); do ip -o link | grep -q \"alias NAME\" && exit; sleep 0.1; done; exit 1";
    machine(&back.replace("NAME", name));
    let c2 = rig.node.container("c2");
    rig.run("DEL", "c1", path).config(by_name.clone()).call().silent();
    let result = rig.run("ADD", "c2", c2.netns_path()).config(by_name.clone()).call().ok();
    assert_eq!(result["interfaces"][0]["pciID"], rig.pci);
    rig.run("DEL", "c2", c2.netns_path()).config(by_name).call().silent();
    assert_eq!(card(name)["mac"], found["mac"]);
}
