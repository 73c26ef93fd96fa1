//! `netwrightd repair` beside Debian's NetworkManager, which is configured to manage links of
//! containers.

use cni::NetworkList;
use testkit::{Container, Place};

use super::Host;
use crate::managers::NetworkManager;
use crate::rig::wait_for;

/// The content of its configuration folder, for [`NetworkManager::start`].
const NOTHING_MORE: &[&str] = &[];

/// A host with two containers and NetworkManager.
struct Scene<'h> {
    host: &'h Host,
    containers: [(Container, NetworkList); 2],
    /// The first container's port.
    port: String,
    _outside: Container,
}

impl<'h> Scene<'h> {
    fn new(host: &'h Host) -> Self {
        let lab = &host.node.lab;
        let outside = lab.outside();
        let containers = [("c1", 8081), ("c2", 8082)];
        let containers = containers.map(|(name, port)| (lab.container(name), host.list(port)));
        let results = containers.each_ref().map(|(container, list)| host.add(container, list));
        let port = results[0]["interfaces"][1]["name"].as_str().unwrap().to_owned();
        Scene { host, containers, port, _outside: outside }
    }

    /// The drifts that CHECK reports.
    fn drifts(&self) -> Vec<String> {
        let check = |(container, list): &(Container, NetworkList)| {
            let attachment = Host::attachment(container);
            let checked =
                self.host.node.lab.enter(|| self.host.runtime.check_list(list, &attachment, None));
            checked.err().map(|error| error.to_cni().to_string())
        };
        self.containers.iter().filter_map(check).collect()
    }

    /// Repairs; returns what was restored.
    fn repair(&self) -> Vec<String> {
        let repair = |(container, list): &(Container, NetworkList)| {
            let attachment = Host::attachment(container);
            let lab = &self.host.node.lab;
            let repaired = lab.enter(|| self.host.runtime.repair_list(list, &attachment, None));
            repaired.unwrap().put_back.into_iter().map(|(_, what)| what).collect::<Vec<_>>()
        };
        self.containers.iter().flat_map(repair).collect()
    }

    /// Whether both containers reach the outside, the host, and each other, by both families.
    fn has_traffic(&self) -> bool {
        let reaches = |container: &Container, address: &str| {
            container.try_sh(&format!("ping -n -q -c 1 -W 1 {address}")).status.success()
        };
        let [(c1, _), (c2, _)] = &self.containers;
        let outside = ["198.51.100.2", "2001:db8:ffff::2", "10.1.0.1", "fd00:1::1"];
        outside.iter().all(|address| reaches(c1, address) && reaches(c2, address))
            && ["10.1.0.3", "fd00:1::3"].iter().all(|address| reaches(c1, address))
    }

    #[track_caller]
    fn is_back(&self, what: &str) {
        wait_for(&format!("everything {what}: {:?}", self.drifts()), || {
            self.drifts().is_empty() && self.has_traffic()
        });
    }

    /// Detaches everything, and asserts that nothing stays.
    #[track_caller]
    fn end(self) {
        for (container, list) in &self.containers {
            self.host.del(container, list);
        }
        let owners = self.host.node.roots.run.join("owners");
        assert_eq!(std::fs::read_dir(owners).map_or(0, Iterator::count), 0);
        let links = self.host.node.lab.sh("ip -br link");
        assert!(!links.contains("cni0") && !links.contains(&self.port), "{links}");
    }
}

#[test]
fn what_networkmanager_takes_comes_back() {
    testkit::require!("root", "network-manager", "program:dbus-daemon");
    let host = Host::new("watch-nm");
    let lab = &host.node.lab;
    let manager = NetworkManager::start(lab, lab, NOTHING_MORE);
    let scene = Scene::new(&host);
    let daemon = host.daemon("repair", &["--interval", "1h"]);
    wait_for("the service to be ready", || daemon.log().contains("ready"));
    wait_for("NetworkManager to see the bridge", || manager.has("cni0:connected (externally)"));
    scene.is_back("at first");

    // It sets the bridge down, removes all its addresses and ports, and turns its link-local
    // address off.
    manager.does("device set cni0 managed yes");
    manager.does("device disconnect cni0");
    scene.is_back("behind a bridge that was disconnected");
    assert!(daemon.log().contains("put back network=n"), "{}", daemon.log());

    // It takes a container's end of a pair for a network card.
    let port = &scene.port;
    manager.does(&format!(
        "connection add type ethernet ifname {port} con-name taken ipv4.method manual ipv4.addresses 192.0.2.9/24 \
         ipv6.method disabled"
    ));
    manager.does("connection up taken");
    scene.is_back("behind a port that was taken");
    manager.does("connection delete taken");
    scene.is_back("behind a port that was let go");

    // It deletes the bridge.
    manager.does("device delete cni0");
    scene.is_back("behind a bridge that was deleted");

    // It releases everything.
    wait_for("NetworkManager to see the bridge", || manager.has("cni0:connected (externally)"));
    manager.does("networking off");
    scene.is_back("behind networking that was switched off");

    assert_eq!(daemon.stop(), Some(0));
    scene.end();
}

/// NetworkManager's connections for a bridge of ours, and what repair restores after each.
const CONNECTIONS: &[(&str, &[&str])] = &[
    // The connection that `nmcli` makes by default.
    ("", &["STP off", "port of bridge", "10.1.0.1", "fd00:1::1"]),
    (
        "ipv4.method disabled ipv6.method disabled",
        &["STP off", "IPv6 is switched off on link \"cni0\"", "link-local IPv6 address is gone"],
    ),
    (
        "ipv4.method manual ipv4.addresses 192.0.2.1/24 ipv6.method ignore 802-3-ethernet.mtu 1400 bridge.stp no",
        &["10.1.0.1", "fd00:1::1", "MTU 1500"],
    ),
    (
        "ipv4.method disabled ipv6.method link-local ethernet.cloned-mac-address 02:00:00:00:00:77",
        &["MAC address", "fd00:1::1"],
    ),
];

#[test]
fn what_a_connection_changes_is_named_and_put_back() {
    testkit::require!("root", "network-manager", "program:dbus-daemon");
    let host = Host::new("nm-named");
    let lab = &host.node.lab;
    let manager = NetworkManager::start(lab, lab, NOTHING_MORE);
    let scene = Scene::new(&host);
    wait_for("NetworkManager to see the bridge", || manager.has("cni0:connected (externally)"));
    scene.is_back("at first");
    for (settings, words) in CONNECTIONS {
        manager.does(&format!("connection add type bridge ifname cni0 con-name own {settings}"));
        manager.does("connection up own");
        wait_for("CHECK to name something", || !scene.drifts().is_empty());
        // Repairs continue for a moment after the bridge has its ports again.
        let mut put_back = Vec::new();
        wait_for(&format!("everything behind {settings:?}"), || {
            put_back.extend(scene.repair());
            scene.drifts().is_empty() && scene.has_traffic()
        });
        for word in *words {
            let found = put_back.iter().any(|line| line.contains(word));
            assert!(found, "{settings:?}: {word:?} was not put back: {put_back:#?}");
        }
        manager.does("connection delete own");
        wait_for(&format!("everything without {settings:?}"), || {
            scene.repair();
            scene.drifts().is_empty() && scene.has_traffic()
        });
    }
    scene.end();
}

/// A connection that is activated repeatedly removes everything each time.
#[test]
fn what_a_connection_changes_again_and_again_comes_back() {
    testkit::require!("root", "network-manager", "program:dbus-daemon");
    let host = Host::new("nm-again");
    let lab = &host.node.lab;
    let manager = NetworkManager::start(lab, lab, NOTHING_MORE);
    let scene = Scene::new(&host);
    wait_for("NetworkManager to see the bridge", || manager.has("cni0:connected (externally)"));
    let daemon = host.daemon("repair", &["--interval", "1h"]);
    wait_for("the service to be ready", || daemon.log().contains("ready"));
    // It asks for an address by DHCP, once the bridge has a port, and fails when no server answers.
    manager.does(
        "connection add type bridge ifname cni0 con-name own ipv4.may-fail no ipv4.dhcp-timeout 1 ipv6.method disabled",
    );
    let times = || daemon.log().matches("10.1.0.1, fd00:1::1 are gone").count();
    for round in 0..3 {
        let before = times();
        manager.begins("connection up own");
        wait_for(&format!("round {round}"), || before < times());
        scene.is_back(&format!("in round {round}"));
    }
    manager.does("connection delete own");
    scene.is_back("behind the last time");
    let times = times();
    assert!(times < 40, "it was put back {times} times");
    assert_eq!(daemon.stop(), Some(0));
    scene.end();
}

/// `deploy/network-manager` keeps it away.
#[test]
fn with_our_file_networkmanager_leaves_links_alone() {
    testkit::require!("root", "network-manager", "program:dbus-daemon");
    let host = Host::new("nm-file");
    let lab = &host.node.lab;
    let manager = NetworkManager::start(lab, lab, &["90-netwright.conf"]);
    let scene = Scene::new(&host);
    let port = &scene.port;
    wait_for("NetworkManager to see the port", || manager.has(&format!("{port}:unmanaged")));
    assert!(manager.has("cni0:unmanaged"));
    assert!(manager.has("up0:unmanaged"), "what other files say stays");
    let daemon = host.daemon("repair", &["--interval", "1h"]);
    wait_for("the service to be ready", || daemon.log().contains("ready"));
    scene.is_back("at first");
    // It changes the loopback link as it likes.
    let picture = || {
        let link = |ifname| format!("ip -d -o link show {ifname}; ip -o addr show {ifname}");
        let links = ["cni0", "up0", port].map(link).join("; ");
        lab.sh(&format!(
            "({links}) | sed -E 's/(valid|preferred)_lft [^ ]+//g'; ip route; ip -6 route"
        ))
    };
    let before = picture();

    for (kind, ifname) in [("bridge", "cni0"), ("ethernet", port.as_str())] {
        manager.does(&format!("connection add type {kind} ifname {ifname} con-name {kind}"));
        let said = manager.refuses(&format!("connection up {kind}"));
        assert!(said.contains("unmanaged") || said.contains("not available"), "{said}");
        manager.refuses(&format!("device disconnect {ifname}"));
    }
    manager.does("networking off");
    manager.does("networking on");
    manager.does("general reload");
    assert_eq!(timeless(&picture()), timeless(&before));
    assert!(scene.has_traffic());
    assert!(!daemon.log().contains("put back"), "{}", daemon.log());
    assert_eq!(daemon.stop(), Some(0));
    scene.end();
}

/// Removes the timers that `ip` shows of bridges, and the flag of duplicate address detection.
fn timeless(shown: &str) -> Vec<String> {
    let lasting = |word: &&str| {
        let timer = word.contains('.') && !word.contains('/') && !word.contains(':');
        !timer && *word != "tentative"
    };
    shown
        .lines()
        .map(|line| line.split_whitespace().filter(lasting).collect::<Vec<_>>().join(" "))
        .collect()
}
