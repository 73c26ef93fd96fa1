//! Containers that are not behind the node's IP: on a parent, on a bridge that leads to a router,
//! at a port of a switch. Each test really breaks one, and traffic shows that. `netwright doctor`
//! must name the cause first. Then the test mends it, and `doctor` must be silent.
//!
//! | | address | answers |
//! |---|---|---|
//! | router (`outside`) | 10.70.0.1 on `lan0`, or on VLAN 7 of it | echo requests |
//! | node | none on `up1`, the other end of `lan0` | |
//! | c1, c2 on `lan` | of 10.70.0.0/24 | echo requests |

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::Ovs;
use testkit::traffic::pings_within;
use testkit::{Container, Lab, Place, require, wait_until};

use super::situations::node::{Resolver, findings, host_end};
use crate::support::{CommandOutput, EXECUTABLE, call_in};
use crate::system::{address_of, netwrightd};

const ROUTER: &str = "10.70.0.1";

/// The command that gives the router its address.
const PLAIN: &str = "ip addr add 10.70.0.1/24 dev lan0";
const TAGGED: &str = "ip link add link lan0 name lan0.7 type vlan id 7 && \
     ip link set lan0.7 addrgenmode none && ip link set lan0.7 up && \
     ip addr add 10.70.0.1/24 dev lan0.7";

/// How long mended traffic may take to work, and how long broken traffic is tried.
const MENDED: Duration = Duration::from_secs(10);
const BROKEN: Duration = Duration::from_millis(500);

/// A node with a second cable.
struct Lan {
    lab: Lab,
    /// The machine at the other end of the cable, which answers questions for names.
    router: Container,
    _names: Resolver,
}

/// Two containers on it.
struct AttachedPair<'l> {
    lab: &'l Lab,
    c1: Container,
    c2: Container,
    /// The address of c2.
    other: IpAddr,
}

/// How a node is mended.
enum Remedy<'m> {
    /// By the printed fix.
    Printed,
    Sh(&'m str),
}

impl Lan {
    fn new(name: &str, router_address: &str, prepare: &str) -> Self {
        let lab = Lab::new(name);
        let router = lab.outside();
        lab.sh("ip link add up1 type veth peer name lan0 netns outside && \
             ip link set up1 addrgenmode none && ip link set up1 up");
        router.sh(&format!(
            "ip link set lan0 addrgenmode none && ip link set lan0 up && {router_address}"
        ));
        lab.sh(&format!("set -e; mkdir -p /etc/cni/net.d /opt/cni/bin\n{prepare}"));
        let names = Resolver::start(&router);
        Lan { lab, router, _names: names }
    }

    /// Writes the configuration of network `lan`.
    fn network(&self, plugin: &Value) {
        let list = json!({ "cniVersion": "1.0.0", "name": "lan", "plugins": [plugin] });
        let path = self.lab.path("/etc/cni/net.d/10-lan.conflist");
        std::fs::write(path, list.to_string()).unwrap();
    }

    fn container(&self, name: &str) -> Container {
        let names = format!("/etc/netns/{name}");
        self.lab.sh(&format!("mkdir -p {names} && echo nameserver {ROUTER} >{names}/resolv.conf"));
        let container = self.lab.container(name);
        container.sh("ip link set lo up");
        container
    }

    /// Attaches two containers by a plugin.
    fn attach(&self, mut plugin: Value) -> AttachedPair<'_> {
        plugin["ipam"] = json!({
            "type": "host-local",
            "ranges": [[{
                "subnet": "10.70.0.0/24", "rangeStart": "10.70.0.10", "gateway": ROUTER,
            }]],
            "routes": [{ "dst": "0.0.0.0/0" }],
        });
        self.network(&plugin);
        let [c1, c2] = ["c1", "c2"].map(|name| {
            let container = self.container(name);
            call_in(&self.lab, &["add", "lan", name, "--container-id", name]).succeeded();
            container
        });
        let other = address_of(&c2, "eth0", "inet");
        AttachedPair { lab: &self.lab, c1, c2, other }
    }
}

impl AttachedPair<'_> {
    fn doctor(&self) -> CommandOutput {
        call_in(self.lab, &["doctor", "--output", "json"])
    }

    /// Asserts that c1 reaches its router and c2, and that there is no finding.
    #[track_caller]
    fn assert_sound(&self) {
        for to in [ROUTER.to_owned(), self.other.to_string()] {
            assert!(pings_within(&self.c1, &to, MENDED), "c1 does not reach {to}");
        }
        assert!(pings_within(&self.c2, ROUTER, MENDED), "c2 does not reach its router");
        let said = self.doctor();
        let found = findings(&said);
        assert!(said.code == 0 && found.is_empty(), "{}: {found:#?}", said.code);
    }

    /// Breaks the path from c1 to an address, compares the first finding, and mends the path.
    #[track_caller]
    fn try_one(&self, breaks: &str, to: &str, (id, object): (&str, &str), mends: &Remedy<'_>) {
        self.lab.sh(&format!("set -e\n{breaks}"));
        assert!(!pings_within(&self.c1, to, BROKEN), "it is not broken: {breaks}");
        let said = self.doctor();
        let found = findings(&said);
        let Some(first) = found.first() else { panic!("{breaks}: nothing was found") };
        let named = first["object"].as_str().unwrap();
        // CHECK's words are less specific.
        let is_named = named == object || (id == "attachment-differs" && named.contains(object));
        assert!(first["id"] == id && is_named, "{breaks}: {found:#?}");
        let code = if first["severity"] == "unknown" { 3 } else { 1 };
        assert_eq!(said.code, code, "{breaks}: {found:#?}");
        match mends {
            Remedy::Sh(commands) => drop(self.lab.sh(&format!("set -e\n{commands}"))),
            Remedy::Printed => {
                let fixes = found.iter().take_while(|finding| finding["id"] == id);
                let fixes = fixes.flat_map(|finding| finding["fix"].as_array().unwrap());
                let fixes: Vec<&str> = fixes.map(|fix| fix.as_str().unwrap()).collect();
                let folder = Path::new(EXECUTABLE).parent().unwrap().display();
                self.lab.sh(&format!("PATH={folder}:$PATH\nset -e\n{}", fixes.join("\n")));
            }
        }
        self.assert_sound();
    }
}

/// The gateway is another machine, and this node forwards nothing: names are asked all the same.
#[test]
fn names_are_asked_by_a_router_that_is_another_machine() {
    require!("root", "program:nft");
    let bridge = "ip link add br7 type bridge && ip link set br7 addrgenmode none && \
                  ip link set br7 up && ip link set up1 master br7";
    let lan = Lan::new("doctor-lan-names", PLAIN, bridge);
    let attached = lan.attach(json!({ "type": "bridge", "bridge": "br7" }));
    attached.assert_sound();
    lan.router.sh(
        "nft 'add table ip deaf; add chain ip deaf in { type filter hook input priority 0; }; \
         add rule ip deaf in udp dport 53 drop'",
    );
    let said = attached.doctor().failed(1);
    let found = findings(&said);
    assert!(found.iter().any(|one| one["id"] == "nameserver-silent"), "{found:#?}");
}

/// The parent is a VLAN of a link; either of them is down.
#[test]
fn vm_the_parent_of_macvlans_is_down() {
    require!("root", "full", "macvlan", "vlan");
    let vlan = "ip link add link up1 name up1.7 type vlan id 7
        ip link set up1.7 addrgenmode none
        ip link set up1.7 up";
    let lan = Lan::new("doctor-parent", TAGGED, vlan);
    let on = lan.attach(json!({ "type": "macvlan", "master": "up1.7" }));
    on.assert_sound();
    for link in ["up1.7", "up1"] {
        let breaks = format!("ip link set {link} down");
        on.try_one(&breaks, ROUTER, ("parent-down", link), &Remedy::Printed);
    }
}

/// The interface in the container is a VLAN of the link itself.
#[test]
fn vm_the_parent_of_vlans_is_down() {
    require!("root", "full", "vlan");
    let lan = Lan::new("doctor-vlan", TAGGED, "");
    lan.network(&json!({
        "type": "vlan", "master": "up1", "vlanId": 7,
        "ipam": {
            "type": "static", "addresses": [{ "address": "10.70.0.10/24", "gateway": ROUTER }],
            "routes": [{ "dst": "0.0.0.0/0" }],
        },
    }));
    let c1 = lan.container("c1");
    call_in(&lan.lab, &["add", "lan", "c1", "--container-id", "c1"]).succeeded();
    assert!(pings_within(&c1, ROUTER, MENDED));
    let doctor = || call_in(&lan.lab, &["doctor", "--output", "json"]);
    let found = findings(&doctor());
    assert!(found.is_empty(), "{found:#?}");
    lan.lab.sh("ip link set up1 down");
    assert!(!pings_within(&c1, ROUTER, BROKEN));
    let found = findings(&doctor());
    assert!(found[0]["id"] == "parent-down" && found[0]["object"] == "up1", "{found:#?}");
    assert_eq!(found[0]["fix"], json!(["ip link set up1 up"]));
    lan.lab.sh("ip link set up1 up");
    assert!(pings_within(&c1, ROUTER, MENDED));
    // A VLAN goes down with its parent, and loses its routes.
    call_in(&lan.lab, &["repair"]).succeeded();
    let found = findings(&doctor());
    assert!(found.is_empty(), "{found:#?}");
}

/// The port that leads to the router lacks the containers' VLAN; then the port of a container does;
/// then a filter drops the VLAN's frames.
#[test]
fn vm_a_port_of_a_bridge_lacks_its_vlan() {
    require!("root", "full", "bridge-vlan-filtering", "vlan", "program:nft");
    let bridge = "ip link add cni0 type bridge vlan_filtering 1
        ip link set cni0 addrgenmode none
        ip link set cni0 up
        ip link set up1 master cni0
        bridge vlan add dev up1 vid 7";
    let lan = Lan::new("doctor-trunk", TAGGED, bridge);
    let on = lan.attach(json!({ "type": "bridge", "bridge": "cni0", "vlan": 7 }));
    on.assert_sound();
    let printed = Remedy::Printed;
    on.try_one("bridge vlan del dev up1 vid 7", ROUTER, ("vlan-missing", "up1 VLAN 7"), &printed);
    let port = host_end(&lan.lab, "c1");
    let untagged = format!("{port} without a tag");
    on.try_one(
        &format!("bridge vlan del dev {port} vid 7"),
        ROUTER,
        ("vlan-missing", untagged.as_str()),
        &printed,
    );
    on.try_one("ip link set up1 down", ROUTER, ("parent-down", "up1"), &printed);
    on.try_one(
        "nft 'add table bridge foreign
              add chain bridge foreign tags { type filter hook forward priority 0; }
              add rule bridge foreign tags vlan id 7 drop'",
        ROUTER,
        ("bridge-dropped", "bridge foreign/tags rule 1"),
        &printed,
    );
}

/// One ipvlan sets the mode of all ipvlans of a parent.
#[test]
fn vm_ipvlans_have_another_mode_than_was_asked_for() {
    require!("root", "full", "ipvlan");
    let lan = Lan::new("doctor-ipvlan", PLAIN, "");
    let on = lan.attach(json!({ "type": "ipvlan", "master": "up1", "mode": "l2" }));
    on.assert_sound();
    // The router does not know the containers' hardware addresses yet, as after a restart.
    on.try_one(
        "ip -n c1 link set eth0 type ipvlan mode l3; ip -n outside neigh flush all",
        ROUTER,
        ("attachment-differs", "ipvlan mode l3"),
        &Remedy::Sh("ip -n c1 link set eth0 type ipvlan mode l2"),
    );
    on.try_one(
        "ip -n c1 link set eth0 type ipvlan private",
        &on.other.to_string(),
        ("attachment-differs", "ipvlan flags private"),
        &Remedy::Sh("ip -n c1 link set eth0 type ipvlan bridge"),
    );
}

#[test]
fn vm_macvlans_have_another_mode_than_was_asked_for() {
    require!("root", "full", "macvlan");
    let lan = Lan::new("doctor-macvlan", PLAIN, "");
    let on = lan.attach(json!({ "type": "macvlan", "master": "up1", "mode": "bridge" }));
    on.assert_sound();
    on.try_one(
        "for c in c1 c2; do ip -n $c link set eth0 type macvlan mode private; done",
        &on.other.to_string(),
        ("attachment-differs", "macvlan mode private"),
        &Remedy::Sh("for c in c1 c2; do ip -n $c link set eth0 type macvlan mode bridge; done"),
    );
    // A plugin that wants the parent for itself is refused, with the reason.
    lan.network(&json!({
        "type": "macvlan", "master": "up1", "mode": "passthru",
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.71.0.0/24" }]] },
    }));
    let _c3 = lan.container("c3");
    let said = call_in(&lan.lab, &["add", "lan", "c3", "--container-id", "c3"]);
    assert!(said.code != 0 && said.both().contains("passthru"), "{said:#?}");
}

/// CHECK reports what is wrong with a port. `doctor` cannot see what the switch does with the
/// port's packets.
#[test]
fn ports_of_open_vswitch() {
    require!("root", "full", "program:ovs-vswitchd", "program:ovsdb-server", "program:ovs-ofctl");
    let lan = Lan::new("doctor-ovs", PLAIN, "");
    let ovs = Ovs::start(&lan.lab);
    ovs.add_bridge("br0");
    ovs.vsctl(&["add-port", "br0", "up1", "tag=7"]);
    let on = lan.attach(json!({
        "type": "ovs", "bridge": "br0", "vlan": 7, "socket_file": ovs.socket(),
    }));
    on.assert_sound();
    let port = host_end(&lan.lab, "c1");
    let vsctl = format!("ovs-vsctl --timeout=20 --db={}", ovs.remote());
    on.try_one(
        &format!("{vsctl} set port {port} tag=8"),
        ROUTER,
        ("attachment-differs", "tag 8"),
        &Remedy::Sh(&format!("{vsctl} set port {port} tag=7")),
    );
    on.try_one(
        &format!("{vsctl} del-port br0 {port}"),
        ROUTER,
        ("attachment-differs", "is gone from bridge"),
        &Remedy::Printed,
    );
    let ofctl = format!("OVS_RUNDIR={} ovs-ofctl", ovs.dir().display());
    on.try_one(
        &format!("{ofctl} add-flow br0 priority=100,actions=drop; ip -n c1 neigh flush all"),
        ROUTER,
        ("switch-drops", "c1: lan"),
        &Remedy::Sh(&format!("{ofctl} --strict del-flows br0 priority=100")),
    );
}

/// ADD fails because no server offers an address, so `doctor` never meets such a container.
#[test]
fn vm_no_dhcp_server_answers() {
    require!("root", "full", "macvlan");
    let lan = Lan::new("doctor-dhcp", PLAIN, "mkdir -p /run/cni");
    let service = ["dhcp", "-timeout", "1s", "-resendtimeout", "4s"];
    let _service = lan.lab.start(netwrightd().to_str().unwrap(), &service);
    wait_until("the service", || lan.lab.try_sh("test -S /run/cni/dhcp.sock").status.success());
    lan.network(&json!({ "type": "macvlan", "master": "up1", "ipam": { "type": "dhcp" } }));
    let _c1 = lan.container("c1");
    let said = call_in(&lan.lab, &["add", "lan", "c1", "--container-id", "c1"]);
    let words = "no DHCP server offered an address";
    assert!(said.code != 0 && said.both().contains(words), "{said:#?}");
    // The router itself answers.
    assert!(lan.router.sh("ip -br addr show dev lan0").contains(ROUTER));
}
