//! Programs that manage the host's links beside the service. The service restores what they remove.
//! With our files they remove nothing.

use std::fs;
use std::path::PathBuf;

use testkit::{Container, Place as _, RunningProgram, Service, wait_until};

use super::{Fabric, Node};
use crate::managers::{NetworkManager, Networkd};

/// systemd-networkd's configuration of node `a`'s uplink, by an administrator who did not think of
/// tunnels.
const NETWORKD: [(&str, &str); 2] = [
    (
        "50-uplink.network",
        "[Match]\nName=eth0\n[Network]\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n\
         Gateway=192.0.2.1\nGateway=2001:db8:0::1\n[Address]\nAddress=192.0.2.11/26\nBroadcast=no\n\
         [Address]\nAddress=2001:db8:0::10/64\nDuplicateAddressDetection=none\n\
         [Address]\nAddress=fe80::1/64\nDuplicateAddressDetection=none\n",
    ),
    ("60-tunnels.network", "[Match]\nKind=vxlan\n[Network]\nLinkLocalAddressing=no\n"),
];

/// The service's objects in a node's kernel.
fn ours(node: &Node) -> Vec<String> {
    let script = "for of in 78 79; do ip -4 route show proto $of; ip -6 route show proto $of; done; \
                  ip nexthop show proto 78; \
                  for dev in nw-vxlan4 nw-vxlan6; do \
                    ip -o link show dev $dev | sed 's/^[0-9]*: //'; ip -o addr show dev $dev | sed 's/^[0-9]*: //'; \
                    ip neigh show dev $dev nud permanent; bridge fdb show dev $dev; \
                  done";
    let text = node.host.try_sh(script);
    let mut lines: Vec<String> =
        String::from_utf8_lossy(&text.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Waits until all objects of the service are as they were, and asserts that pods reach each other.
#[track_caller]
fn is_whole(fabric: &Fabric, whole: &[String], what: &str) {
    let node = &fabric.nodes[0];
    let mut now = Vec::new();
    let begin = std::time::Instant::now();
    wait_until(what, || {
        now = ours(node);
        now == whole || super::SOON < begin.elapsed()
    });
    let log = || node.service.as_ref().map_or(String::new(), Service::log);
    assert!(now == whole, "{what}:\nwas {whole:#?}\nis {now:#?}\n{}", log());
    for other in &fabric.nodes[1..] {
        node.assert_reaches(other);
    }
}

/// `ip monitor` on a node.
struct Monitor<'f> {
    node: &'f Node,
    _monitor: RunningProgram,
    said: PathBuf,
    marks: u8,
}

impl<'f> Monitor<'f> {
    fn start(fabric: &'f Fabric, node: &'f Node) -> Self {
        let said = fabric.lab.dir().join("monitor");
        let command =
            format!("exec ip -o monitor link address route nexthop neigh >{}", said.display());
        let monitor = node.host.start("sh", &["-c", &command]);
        let mut monitor = Monitor { node, _monitor: monitor, said, marks: 0 };
        monitor.says_all();
        monitor
    }

    /// Waits until it has printed everything that has happened so far; returns its output.
    fn says_all(&mut self) -> String {
        self.marks += 1;
        let mark = format!("127.9.9.{}/32", self.marks);
        let change = format!("ip addr replace {mark} dev lo; ip addr del {mark} dev lo");
        let mut said = String::new();
        wait_until("the monitor", || {
            self.node.host.sh(&change);
            said = fs::read_to_string(&self.said).unwrap_or_default();
            said.contains(&mark)
        });
        said
    }

    /// Returns the service's objects that were removed after this much output. Nexthops and routes
    /// by the uplink do not count, because they vanish with the uplink's addresses.
    fn removed_since(&mut self, bytes: usize) -> Vec<String> {
        let said = self.says_all();
        let of_ours = ["proto 78", "proto 79", "nw-vxlan4", "nw-vxlan6"];
        let counts = |line: &&str| {
            line.starts_with("Deleted")
                && of_ours.iter().any(|mark| line.contains(mark))
                && !line.contains("dev eth0")
                // The kernel's own neighbours of multicast addresses.
                && !line.contains("NOARP")
        };
        said[bytes..].lines().filter(counts).map(str::to_owned).collect()
    }
}

/// Lets systemd-networkd configure the uplink of node `a` in every way. Each time waits until it
/// has done so, and the service's objects are there.
fn configure(
    fabric: &Fabric,
    whole: &[String],
    networkd: &mut Networkd<'_, Container>,
    tunnels: &str,
) {
    let is_done = |networkd: &Networkd<'_, Container>, what: &str| {
        networkd.has("eth0", "configured");
        networkd.has("nw-vxlan4", tunnels);
        is_whole(fabric, whole, what);
    };
    is_done(networkd, "a start");
    // systemd-networkd takes a rewritten file for a new one.
    let uplink = fabric.lab.path("/etc/systemd/network/50-uplink.network");
    fs::write(uplink, format!("{}# again\n", NETWORKD[0].1)).unwrap();
    networkd.does("reload");
    is_done(networkd, "a reload");
    networkd.does("reconfigure eth0 nw-vxlan4 nw-vxlan6");
    is_done(networkd, "another configuration of all");
    networkd.starts_again();
    is_done(networkd, "another start");
}

/// systemd-networkd configures the uplink and takes over the tunnels, and removes what is on both.
#[test]
fn vm_what_systemd_networkd_takes_comes_back() {
    testkit::require!(
        "root",
        "vxlan",
        "vm-full",
        "program:bridge",
        "program:dbus-daemon",
        "program:networkctl",
        "file:/lib/systemd/systemd-networkd"
    );
    let mut fabric = Fabric::new("routing-networkd", &[2, 1]);
    fabric.start();
    fabric.assert_all_reach_all();
    let node = &fabric.nodes[0];
    let whole = ours(node);
    let mut networkd = Networkd::new(&fabric.lab, &node.host, &NETWORKD);
    networkd.starts();
    configure(&fabric, &whole, &mut networkd, "configured");
    let log = node.service.as_ref().unwrap().log();
    assert!(log.contains("put back what another program has changed"), "it took nothing: {log}");
}

/// With our files systemd-networkd does not touch tunnels, nor routes that it did not make.
#[test]
fn vm_with_our_files_systemd_networkd_takes_nothing() {
    testkit::require!(
        "root",
        "vxlan",
        "vm-full",
        "program:bridge",
        "program:dbus-daemon",
        "program:networkctl",
        "file:/lib/systemd/systemd-networkd"
    );
    // The nodes use tunnels: before version 256 systemd-networkd removes nexthops by the uplink,
    // whatever the files say.
    let mut fabric = Fabric::new("routing-networkd-files", &[2]).by("vxlan");
    fabric.start();
    fabric.assert_all_reach_all();
    let whole = ours(&fabric.nodes[0]);
    // Without the service nothing is restored.
    let service = fabric.nodes[0].service.take().unwrap();
    assert_eq!(service.stop(), Some(0));
    let node = &fabric.nodes[0];
    let mut monitor = Monitor::start(&fabric, node);
    let mut networkd = Networkd::new(&fabric.lab, &node.host, &NETWORKD);
    networkd.gets_our_files();
    networkd.starts();
    configure(&fabric, &whole, &mut networkd, "unmanaged");
    networkd.stops();
    let taken = monitor.removed_since(0);
    assert_eq!(taken, Vec::<String>::new(), "{}", networkd.log());

    // The files are what makes the difference.
    let before = monitor.says_all().len();
    networkd.loses_our_files();
    networkd.starts();
    networkd.has("nw-vxlan4", "configured");
    networkd.does("reconfigure eth0 nw-vxlan4");
    networkd.has("nw-vxlan4", "configured");
    networkd.has("eth0", "configured");
    networkd.stops();
    let taken = monitor.removed_since(before);
    for of_ours in ["proto 78", "proto 79", "nw-vxlan4"] {
        assert!(taken.iter().any(|line| line.contains(of_ours)), "{of_ours}: {taken:#?}");
    }
}

/// NetworkManager configures the uplink, and deletes a tunnel. With our file it does not touch
/// tunnels.
#[test]
fn vm_networkmanager_and_the_service_live_together() {
    testkit::require!(
        "root",
        "vxlan",
        "vm-full",
        "program:bridge",
        "network-manager",
        "program:dbus-daemon"
    );
    // This path does not change when NetworkManager configures the uplink.
    let mut fabric = Fabric::new("routing-nm", &[2]).by("vxlan");
    fabric.start();
    fabric.assert_all_reach_all();
    let node = &fabric.nodes[0];
    let whole = ours(node);
    let mut monitor = Monitor::start(&fabric, node);

    let manager = NetworkManager::start(&fabric.lab, &node.host, &[]);
    // The service `repair` takes care of the pods' own links.
    manager.does("device set nw-pods managed no");
    manager.does("device set p0 managed no");
    wait_until("it to see the tunnel", || manager.has("nw-vxlan4:connected (externally)"));
    manager.does("device delete nw-vxlan4");
    is_whole(&fabric, &whole, "a tunnel that was deleted");
    manager.does(
        "connection add type ethernet ifname eth0 con-name uplink ipv4.method manual \
         ipv4.addresses 192.0.2.11/26 ipv4.gateway 192.0.2.1 ipv6.method manual \
         ipv6.addresses 2001:db8:0::10/64 ipv6.gateway 2001:db8:0::1",
    );
    let everything = |manager: &NetworkManager<'_, Container>, all: &[&str]| {
        for what in all {
            manager.does(what);
            wait_until("the uplink", || manager.has("eth0:connected:uplink"));
            is_whole(&fabric, &whole, what);
        }
    };
    let uplink = ["connection up uplink", "device reapply eth0", "general reload"];
    everything(&manager, &uplink);
    manager.does("networking off");
    everything(&manager, &["networking on"]);
    assert_ne!(monitor.removed_since(0), Vec::<String>::new());

    manager.takes("90-netwright.conf");
    wait_until("it to leave the tunnel", || manager.has("nw-vxlan4:unmanaged"));
    is_whole(&fabric, &whole, "our file");
    // Without the service nothing is restored.
    fabric.lab.sh(&format!("kill -STOP {}", node.service.as_ref().unwrap().pid()));
    let before = monitor.says_all().len();
    manager.refuses("device disconnect nw-vxlan4");
    everything(&manager, &uplink);
    assert_eq!(monitor.removed_since(before), Vec::<String>::new());
}

/// What systemd-networkd is told of the uplink of node `b`: its IPv4 address comes from a server.
const BY_DHCP: (&str, &str) = (
    "50-uplink.network",
    "[Match]\nName=eth0\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n\
     Gateway=2001:db8:1::1\n[Address]\nAddress=2001:db8:1::20/64\nDuplicateAddressDetection=none\n\
     [Address]\nAddress=fe80::2/64\nDuplicateAddressDetection=none\n\
     [DHCPv4]\nClientIdentifier=mac\nSendHostname=no\nUseHostname=no\n",
);

/// A DHCP server on the second segment, which has this address to give.
fn dhcp_server(fabric: &Fabric, address: &str) -> RunningProgram {
    let dir = fabric.lab.dir().join(format!("dnsmasq-{address}"));
    fs::create_dir(&dir).unwrap();
    let (config, leases, log) = (dir.join("conf"), dir.join("leases"), dir.join("log"));
    let text = format!(
        "interface=seg1\nbind-interfaces\nexcept-interface=lo\nport=0\nno-ping\ndhcp-authoritative\n\
         dhcp-range={address},{address},255.255.255.192,2m\ndhcp-option=option:router,192.0.2.65\n\
         dhcp-leasefile={}\nlog-facility={}\nuser=root\npid-file=\n",
        leases.display(),
        log.display()
    );
    fs::write(&config, text).unwrap();
    let server = fabric.lab.start("dnsmasq", &["-k", "-C", config.to_str().unwrap()]);
    wait_until("the DHCP server", || {
        fs::read_to_string(&log).unwrap_or_default().contains("DHCP, IP range")
    });
    server
}

/// A DHCP server gives a node another address, and systemd-networkd takes the old one away. Once
/// the list says so, the node is reached by the same tunnels.
#[test]
fn vm_a_node_that_gets_another_address_by_dhcp_is_reached() {
    testkit::require!(
        "root",
        "vxlan",
        "full",
        "program:bridge",
        "program:dbus-daemon",
        "program:dnsmasq",
        "program:networkctl",
        "file:/lib/systemd/systemd-networkd"
    );
    let mut fabric = Fabric::new("routing-dhcp", &[1, 1]);
    fabric.start();
    fabric.assert_all_reach_all();
    let node = &fabric.nodes[1];
    let ((old, _), new) = (node.underlay(), "192.0.2.114");
    let tunnels = || node.host.sh("ip -o link show type vxlan | cut -d: -f1,2");
    let before = tunnels();
    let server = dhcp_server(&fabric, &old);
    let mut networkd = Networkd::new(&fabric.lab, &node.host, &[BY_DHCP]);
    networkd.starts();
    let has = |networkd: &Networkd<'_, Container>, address: &str| {
        networkd.has("eth0", "configured");
        wait_until("the address of the server", || {
            let shown = node.host.sh("ip -4 -o addr show dev eth0");
            shown.lines().count() == 1
                && shown.contains(&format!("inet {address}/26"))
                && shown.contains("dynamic")
        });
    };
    has(&networkd, &old);
    fabric.assert_all_reach_all();

    drop(server);
    let _server = dhcp_server(&fabric, new);
    networkd.does("reconfigure eth0");
    has(&networkd, new);
    let list = fs::read_to_string(fabric.list()).unwrap();
    fabric.write_list(&list.replace(&format!("\"{old}\""), &format!("\"{new}\"")));
    wait_until("the other node to hear of it", || {
        let entries = fabric.nodes[0].host.sh("bridge fdb show dev nw-vxlan4");
        entries.contains(&format!("dst {new} ")) && !entries.contains(&format!("dst {old} "))
    });
    fabric.assert_all_reach_all();
    wait_until("the node to be ready", || fabric.routes(1)["phase"] == "ready");
    assert_eq!(tunnels(), before, "the tunnels are the same links");
}
