//! `netwrightd repair` with Docker: it restores a container's network as Docker had set it.

use std::cell::Cell;
use std::fs;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::real::{Docker, Engine, Ovs};
use testkit::traffic::{Server, assert_pings, assert_tcp, pings_within};
use testkit::{Lab, Place, Snapshot, Visit, wait_until};

use super::life::{assert_neighbours, needs_docker, published};
use super::support::{Driver, LAN, assert_nothing_left_but, write_network};
use crate::system::{NETWRIGHT, address_of, install, netwrightd};

/// What the service leaves when it is killed.
const LEFT: [&str; 2] =
    ["files: /run/netwright/agent/repair.sock is new", "files: /run/netwright/plugins"];

/// How long a repair may take on a busy machine.
const BACK: Duration = Duration::from_secs(60);

/// A running `netwrightd repair`.
#[derive(Debug)]
struct Repairs<'lab> {
    lab: &'lab Lab,
    child: Child,
    lies: Cell<u8>,
}

impl<'lab> Repairs<'lab> {
    fn start(lab: &'lab Lab, flags: &[&str]) -> Self {
        let log = fs::File::create(lab.dir().join("repair.log")).unwrap();
        let child = lab
            .command(netwrightd().to_str().unwrap())
            .args(["repair", "--interval", "1s", "--netwright", NETWRIGHT])
            .args(flags)
            .env("NETWRIGHT_LOG", "info")
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Repairs { lab, child, lies: Cell::new(0) }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.lab.dir().join("repair.log")).unwrap_or_default()
    }

    /// Waits until a command succeeds in a place.
    #[track_caller]
    fn wait(&self, place: &impl Place, command: &str) {
        self.wait_for(command, || place.try_sh(command).status.success());
    }

    #[track_caller]
    fn wait_for(&self, what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + BACK;
        while !holds() {
            let log = self.log();
            assert!(Instant::now() < deadline, "{what}: not put back; the log:\n{log}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the service has looked at everything once more: a look removes a false neighbour
    /// entry for the gateway, and a look that began later removes a second one. The two entries
    /// differ, as the service backs off when a change repeats.
    #[track_caller]
    fn looks(&self, container: &Visit, gateway: &str) {
        for _ in 0..2 {
            let lie = self.lies.get() + 1;
            self.lies.set(lie);
            container.sh(&format!(
                "ip neigh replace {gateway} lladdr 02:00:00:00:00:{lie:02x} dev eth0 nud permanent"
            ));
            self.wait(container, "! ip neigh show nud permanent | grep -q lladdr");
        }
    }
}

impl Drop for Repairs<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sets the age of the driver's record of a container's endpoint to that of a container that was
/// started long ago.
fn age(lab: &Lab, docker: &Docker<'_>, container: &str, network: &str) {
    let said = docker.inspect(container);
    let id =
        said["NetworkSettings"]["Networks"][network]["EndpointID"].as_str().unwrap().to_owned();
    let file = lab.path(format!("/var/lib/netwright/docker/endpoints/{id}.json"));
    let mut record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    // Earlier drivers wrote no checksums: without one the copy does not count.
    record.as_object_mut().unwrap().remove("sum");
    record["sinceS"] = 0.into();
    fs::write(&file, serde_json::to_vec(&record).unwrap()).unwrap();
}

#[test]
fn what_is_flushed_comes_back() {
    needs_docker!();
    flushed(Engine::Installed);
}

pub(super) fn flushed(engine: Engine) {
    let lab = Lab::with_processes("docker-mended");
    install(&lab);
    write_network(&lab, "lan", LAN);
    let driver = Driver::start(&lab);
    let docker = Docker::of(&lab, engine, &[]);
    let before = Snapshot::take(&lab);
    docker.create_network("--opt conflist=lan --ipv6 --ipam-driver netwright --ipam-opt conflist=lan --subnet 10.71.0.0/24 --subnet fd71::/64 lan");
    docker.create_network("--opt type=ptp --ipam-driver netwright --subnet 10.72.0.0/24 zone");
    let web = docker.start_container("web", &["--network", "lan", "--publish", "8080:80"]);
    let other = docker.start_container("other", &["--network", "lan"]);
    docker.run(&["network", "connect", "zone", "web"]);
    published(&lab, &web, &other, 8080);
    for (container, network) in [("web", "lan"), ("web", "zone"), ("other", "lan")] {
        age(&lab, &docker, container, network);
    }
    // Docker and the plugin differ in the source address and the protocol of a routed pair's
    // routes.
    let shown = || {
        web.sh(
            "{ ip -o addr show scope global | grep -o 'eth.*' | sort; ip route; ip -6 route show dev eth0; } | \
             sed 's/ noprefixroute//; s/ src [^ ]*//'",
        )
    };
    // Chains come back in another order.
    let sorted = || lab.sh("nft list table inet netwright | grep -v counter | sort");
    let (is, rules) = (shown(), sorted());
    let repairs = Repairs::start(&lab, &[]);
    repairs.looks(&other, "10.71.0.1");

    // The repair does not take a link that the container made for the interface, even if it has its
    // hardware address and comes first in every list.
    web.sh("ip link add fake0 address $(ip -br link show eth0 | awk '{print $3}') type veth peer name fake1");

    // In the container: its addresses, and with them every route.
    web.sh("ip addr flush dev eth0 scope global && ip addr flush dev eth1 scope global");
    repairs.wait(&web, "ip route | grep -q '^default'");
    repairs.looks(&other, "10.71.0.1");
    assert_eq!(shown(), is, "{}", repairs.log());
    web.sh("ip link set eth0 down");
    repairs.wait(&web, "ip route | grep -q '^default' && ip -6 addr show eth0 | grep -q fd71::");
    published(&lab, &web, &other, 8080);

    // On the host: the packet filter, the bridge's port, the route to a routed pair.
    lab.sh("nft delete table inet netwright");
    repairs.wait(&lab, "nft list table inet netwright 2>/dev/null | grep -q 8080");
    repairs.wait_for("the rules of all containers", || sorted() == rules);
    repairs.looks(&other, "10.71.0.1");
    assert_eq!(sorted(), rules, "{}", repairs.log());
    lab.sh("for port in $(ls /sys/class/net/lan0/brif); do ip link set $port nomaster; done");
    repairs.wait(&lab, "test $(ls /sys/class/net/lan0/brif | wc -l) = 2");
    let zone = address_of(&web, "eth1", "inet").to_string();
    lab.sh(&format!("ip route del {zone}"));
    repairs.wait(&lab, &format!("ip route show {zone} | grep -q {zone}"));
    assert_pings(&lab, &zone);
    published(&lab, &web, &other, 8080);
    assert_neighbours(&web, &other);

    // The repair leaves a starting container alone, with its port and its address.
    let young = docker.start_container("young", &["--network", "lan"]);
    young.sh("ip addr flush dev eth0 scope global");
    lab.sh("for port in $(ls /sys/class/net/lan0/brif); do ip link set $port nomaster; done");
    // The two older containers lose their ports for the second time, so the service may back off
    // for one of them.
    repairs.wait(&lab, "test $(ls /sys/class/net/lan0/brif | wc -l) -ge 2");
    repairs.looks(&other, "10.71.0.1");
    assert!(!young.sh("ip -4 addr show dev eth0").contains("inet "), "{}", repairs.log());
    assert_eq!(lab.sh("ls /sys/class/net/lan0/brif").lines().count(), 2);
    age(&lab, &docker, "young", "lan");
    repairs.wait(&young, "ip -4 addr show dev eth0 | grep -q inet");
    assert_neighbours(&web, &young);

    // The repair does not restore what Docker has removed.
    docker.run(&["network", "disconnect", "zone", "web"]);
    repairs.looks(&other, "10.71.0.1");
    assert!(!lab.sh("ip route").contains(&zone), "{}", repairs.log());
    let log = repairs.log();
    assert!(!log.contains("cannot be put back"), "{log}");
    drop(repairs);
    drop((web, other, young));
    docker.remove(&["web", "other", "young"]);
    docker.run(&["network", "rm", "lan", "zone"]);
    // These are left by the killed service itself.
    assert_nothing_left_but(&lab, &before, &LEFT);
    drop(driver);
}

/// A route of the host covers a container's address: the repair reports it, and neither the
/// published port nor a sysctl follows it.
#[test]
fn a_route_that_covers_a_containers_address_is_not_followed() {
    testkit::require!("full");
    needs_docker!();
    covered(Engine::Installed);
}

pub(super) fn covered(engine: Engine) {
    let lab = Lab::with_processes("docker-covered");
    install(&lab);
    write_network(&lab, "lan", LAN);
    let driver = Driver::start(&lab);
    let docker = Docker::of(&lab, engine, &[]);
    let before = Snapshot::take(&lab);
    docker.create_network(
        "--opt conflist=lan --ipam-driver netwright --ipam-opt conflist=lan --subnet 10.71.0.0/24 lan",
    );
    let web = docker.start_container("web", &["--network", "lan", "--publish", "8080:80"]);
    let other = docker.start_container("other", &["--network", "lan"]);
    for container in ["web", "other"] {
        age(&lab, &docker, container, "lan");
    }
    let repairs = Repairs::start(&lab, &[]);
    repairs.looks(&other, "10.71.0.1");
    lab.sh(
        "ip link add tun0 type veth peer name tun1 && ip link set tun0 up && ip link set tun1 up",
    );
    // Chains come back in another order.
    let look = || {
        lab.sh("nft list table inet netwright | grep -v counter | sort; \
             grep . /proc/sys/net/ipv4/conf/*/route_localnet")
    };
    let is = look();
    let to = address_of(&web, "eth0", "inet");
    for (route, words) in [
        (format!("{to}/32 dev tun0"), format!("the host reaches {to} by \"tun0\"")),
        (format!("blackhole {to}/32"), format!("the host drops what is for {to}")),
    ] {
        lab.sh(&format!("ip route add {route}"));
        lab.sh("nft delete element inet netwright hostports4 '{ tcp . 8080 }'");
        repairs.wait(&lab, "nft list map inet netwright hostports4 | grep -q 8080");
        wait_until("the route to be told of", || {
            // The log writes a text in quotation marks, and escapes those in it.
            repairs.log().replace('\\', "").contains(&words)
        });
        repairs.looks(&other, "10.71.0.1");
        assert_eq!(look(), is, "{route}: {}", repairs.log());
        lab.sh(&format!("ip route del {route}"));
    }
    {
        let _server = Server::tcp(&web, "0.0.0.0:80", "web");
        assert_eq!(assert_tcp(&lab, "127.0.0.1:8080").server, "web");
    }
    lab.sh("ip link del tun0");

    // Another program unmounts the namespaces that the driver keeps for DEL.
    lab.sh("cd /run/netwright/docker/netns && umount * && rm *");
    web.sh("ip addr flush dev eth0 scope global");
    repairs.wait(&web, "ip route | grep -q '^default'");
    drop(repairs);
    drop((web, other));
    docker.remove(&["web", "other"]);
    docker.run(&["network", "rm", "lan"]);
    assert_nothing_left_but(&lab, &before, &LEFT);
    drop(driver);
}

/// Another program removes ports from the switch.
#[test]
fn ports_of_open_vswitch_come_back() {
    needs_docker!();
    testkit::require!("program:ovs-vswitchd", "program:ovsdb-server");
    let lab = Lab::with_processes("docker-mended-ovs");
    install(&lab);
    let ovs = Ovs::start(&lab);
    ovs.add_bridge("br0");
    ovs.at_its_usual_place();
    let _driver = Driver::start(&lab);
    let docker = Docker::of(&lab, Engine::Installed, &[]);
    docker.create_network(
        "--opt type=ovs --opt bridge=br0 --opt vlan=100 --ipam-driver netwright --subnet 10.73.0.0/24 vlan100",
    );
    let one = docker.start_container("one", &["--network", "vlan100"]);
    let two = docker.start_container("two", &["--network", "vlan100"]);
    let to = address_of(&two, "eth0", "inet").to_string();
    assert_pings(&one, &to);
    for container in ["one", "two"] {
        age(&lab, &docker, container, "vlan100");
    }
    let repairs = Repairs::start(&lab, &["--ovsdb", &ovs.remote()]);
    for port in ovs.vsctl(&["list-ports", "br0"]).lines() {
        ovs.vsctl(&["del-port", "br0", port]);
    }
    assert!(pings_within(&one, &to, BACK), "{}", repairs.log());
    two.sh("ip addr flush dev eth0");
    assert!(pings_within(&one, &to, BACK), "{}", repairs.log());
    drop(repairs);
    drop((one, two));
    docker.remove(&["one", "two"]);
    docker.run(&["network", "rm", "vlan100"]);
}
