//! Docker's containers on bridges of Open vSwitch, in one step, and beside containers of `netwright add`.

use testkit::real::{Docker, Engine, Ovs, tell};
use testkit::traffic::{Server, assert_no_ping, assert_pings, assert_tcp};
use testkit::{Lab, Snapshot};

use super::life::needs_docker;
use super::support::{Driver, assert_nothing_left_but, write_network};
use crate::support::call_in;
use crate::system::{address_of, install};

/// The same VLAN for runtimes of CNI.
const VLAN_100: &str = r#"{
  "cniVersion": "1.1.0", "name": "vlan100",
  "plugins": [{ "type": "ovs", "bridge": "br0", "vlan": 100,
    "ipam": { "type": "host-local", "subnet": "10.73.0.0/24", "rangeStart": "10.73.0.100" } }]
}"#;

fn vlans(engine: Engine, name: &str, port: &str) {
    let lab = Lab::with_processes(name);
    install(&lab);
    write_network(&lab, "vlan100", VLAN_100);
    let ovs = Ovs::start(&lab);
    ovs.add_bridge("br0");
    ovs.at_its_usual_place();
    let _driver = Driver::start(&lab);
    let docker = Docker::of(&lab, engine, &[]);
    let (before, database) = (Snapshot::take(&lab), ovs.content());
    for (vlan, subnet) in [(100, "10.73.0.0/24"), (200, "10.74.0.0/24")] {
        docker.create_network(&format!(
            "--opt type=ovs --opt bridge=br0 --opt vlan={vlan} --opt port={port} \
             --ipam-driver netwright --subnet {subnet} vlan{vlan}"
        ));
    }
    let one = docker.start_container("one", &["--network", "vlan100"]);
    let two = docker.start_container("two", &["--network", "vlan100"]);
    let far = docker.start_container("far", &["--network", "vlan200", "--ip", "10.74.0.9"]);
    let to = address_of(&two, "eth0", "inet").to_string();
    assert_pings(&one, &to);
    let web = Server::tcp(&two, "0.0.0.0:80", "two");
    assert_eq!(assert_tcp(&one, &format!("{to}:80")).server, "two");
    assert_no_ping(&one, "10.74.0.9");
    tell(engine.name(), "answered", "a container on a VLAN of Open vSwitch");
    assert_eq!(ovs.vsctl(&["--columns=tag", "find", "port", "tag=100"]).lines().count(), 3);

    let c1 = lab.container("c1");
    call_in(&lab, &["add", "vlan100", "c1"]).succeeded();
    assert_pings(&c1, &to);
    assert_eq!(assert_tcp(&c1, &format!("{to}:80")).server, "two");
    call_in(&lab, &["check", "vlan100", "c1"]).succeeded();
    call_in(&lab, &["del", "vlan100", "c1"]).succeeded();

    drop((web, one, two, far, c1));
    docker.remove(&["one", "two", "far"]);
    docker.run(&["network", "rm", "vlan100", "vlan200"]);
    assert_eq!(database, ovs.content());
    // Nothing of ours is in the packet filter, so nothing asks whether the folder is in use.
    assert_nothing_left_but(&lab, &before, &["files: /run/netwright/owners is new"]);
}

#[test]
fn vlans_of_open_vswitch_are_made_in_one_step() {
    needs_docker!();
    testkit::require!("program:ovs-vswitchd", "program:ovsdb-server");
    vlans(Engine::Installed, "docker-ovs", "veth");
}
