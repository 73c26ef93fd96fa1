//! Docker's containers on bridges of Open vSwitch, made in one step, together with containers of
//! `netwright add`.

use testkit::real::{Docker, Engine, Ovs, tell};
use testkit::traffic::{Server, assert_no_ping, assert_pings, assert_tcp};
use testkit::{Lab, Place, Snapshot};

use super::life::{needs_docker, needs_newest};
use super::support::{Driver, assert_nothing_left_but, write_network};
use crate::support::call_in;
use crate::system::{address_of, install};

/// The same VLAN for CNI runtimes.
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
    // The packet filter has nothing of ours, so no check finds whether the folder is in use.
    let folders = ["claims", "owners"].map(|one| format!("files: /run/netwright/{one} is new"));
    assert_nothing_left_but(&lab, &before, &folders.each_ref().map(String::as_str));
}

#[test]
fn vlans_of_open_vswitch_are_made_in_one_step() {
    needs_docker!();
    testkit::require!("program:ovs-vswitchd", "program:ovsdb-server");
    vlans(Engine::Installed, "docker-ovs", "veth");
}

#[test]
fn vlans_of_open_vswitch_with_the_newest_engine() {
    testkit::require!("full");
    needs_newest!();
    testkit::require!("program:ovs-vswitchd", "program:ovsdb-server");
    vlans(Engine::Newest, "docker-ovs-new", "veth");
}

/// The same network on the other host, for a CNI runtime.
const FAR: &str = r#"{
  "cniVersion": "1.1.0", "name": "far",
  "plugins": [{ "type": "ovs", "bridge": "br0", "vlan": 100, "mtu": 1400, "vni": 5000, "remotes": ["192.0.2.1"],
    "ipam": { "type": "host-local", "subnet": "10.73.0.0/24", "rangeStart": "10.73.0.100" } }]
}"#;

/// Docker on one host, a CNI runtime on another, one network with a VNI, made in one step on each.
fn tunnel(engine: Engine, name: &str) {
    let (near, far) = (Lab::with_processes(name), Lab::new(&format!("{name}-far")));
    let path = near.netns_path();
    let thread = path.components().nth(2).unwrap().as_os_str().to_str().unwrap().to_owned();
    far.sh(&format!("ip link add up0 type veth peer name up0 netns {thread}"));
    let switches = [(&near, 1), (&far, 2)].map(|(lab, end)| {
        install(lab);
        let ovs = Ovs::start(lab);
        ovs.add_bridge("br0");
        // The user-space switch sends its encapsulated packets by a separate bridge, which has the
        // host's address.
        ovs.add_bridge("br-up");
        ovs.vsctl(&["add-port", "br-up", "up0"]);
        lab.sh(&format!(
            "ip link set up0 addrgenmode none && ip link set up0 up && \
             ip addr add 192.0.2.{end}/24 dev br-up && ip link set br-up up"
        ));
        ovs.at_its_usual_place();
        ovs
    });
    let [ovs, far_ovs] = &switches;
    let _driver = Driver::start(&near);
    let docker = Docker::of(&near, engine, &[]);
    let (database, far_database) = (ovs.content(), far_ovs.content());
    docker.create_network(
        r#"--opt type=ovs --opt bridge=br0 --opt vlan=100 --opt mtu=1400 --opt vni=5000
           --opt remotes=["192.0.2.2"] --ipam-driver netwright --subnet 10.73.0.0/24 over"#,
    );
    let one = docker.start_container("one", &["--network", "over"]);
    let tunnels = |ovs: &Ovs<'_>| {
        ovs.vsctl(&["--columns=options", "--bare", "find", "interface", "type=vxlan"])
    };
    assert_eq!(tunnels(ovs), "key=5000 remote_ip=192.0.2.2");
    write_network(&far, "far", FAR);
    let two = far.container("two");
    call_in(&far, &["add", "far", "two"]).succeeded();
    assert_eq!(tunnels(far_ovs), "key=5000 remote_ip=192.0.2.1");
    assert_pings(&one, &address_of(&two, "eth0", "inet").to_string());
    let to = address_of(&one, "eth0", "inet").to_string();
    assert_pings(&two, &to);
    let web = Server::tcp(&one, "0.0.0.0:80", "one");
    assert_eq!(assert_tcp(&two, &format!("{to}:80")).server, "one");
    tell(engine.name(), "answered", "a container on a VXLAN tunnel of Open vSwitch");
    call_in(&far, &["del", "far", "two"]).succeeded();
    drop((web, one));
    docker.remove(&["one"]);
    docker.run(&["network", "rm", "over"]);
    assert_eq!([database, far_database], switches.each_ref().map(Ovs::content));
}

#[test]
fn a_network_with_a_vni_reaches_another_host() {
    needs_docker!();
    testkit::require!("program:ovs-vswitchd", "program:ovsdb-server");
    tunnel(Engine::Installed, "docker-ovs-vni");
}

#[test]
fn a_network_with_a_vni_reaches_another_host_with_the_newest_engine() {
    testkit::require!("full");
    needs_newest!();
    testkit::require!("program:ovs-vswitchd", "program:ovsdb-server");
    tunnel(Engine::Newest, "docker-ovs-vni-new");
}
