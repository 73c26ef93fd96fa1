//! `netwrightd repair` beside Debian's NetworkManager, which is told to take links of containers.

use testkit::{Lab, Place, Running, reference};

use super::Host;
use crate::rig::wait_for;

/// A bus that lets everybody do everything and starts nobody.
const BUS: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/></policy>
</busconfig>"#;

/// It changes nothing that is not of its namespace, and nothing unasked.
const CONFIG: &str = "[main]\nplugins=keyfile\nauth-polkit=false\nno-auto-default=*\ndhcp=internal\ndns=none\n\
                      rc-manager=unmanaged\nhostname-mode=none\n[logging]\nlevel=WARN\n[connectivity]\nenabled=false\n";

/// NetworkManager on a bus of its own, in a lab.
struct NetworkManager<'l> {
    lab: &'l Lab,
    _bus: Running,
    _daemon: Running,
}

impl<'l> NetworkManager<'l> {
    fn start(lab: &'l Lab) -> Self {
        let usr: Vec<String> = reference::network_manager()
            .unwrap()
            .iter()
            .map(|folder| folder.canonicalize().unwrap().display().to_string())
            .collect();
        // It waits for nobody to tell it of links where it may not write to /sys.
        lab.sh(&format!(
            "mount -t overlay overlay -o lowerdir={}:/usr /usr && mount -o remount,bind,ro /sys && \
             mkdir -p /run/dbus /run/NetworkManager /var/lib/NetworkManager /etc/NetworkManager/system-connections",
            usr.join(":")
        ));
        let [bus, config] = ["bus.xml", "nm.conf"].map(|name| lab.dir().join(name));
        std::fs::write(&bus, BUS).unwrap();
        std::fs::write(&config, CONFIG).unwrap();
        let bus = format!("--config-file={}", bus.display());
        let bus = lab.start("dbus-daemon", &[&bus, "--nofork", "--nopidfile"]);
        wait_for("the bus", || lab.try_sh("test -S /run/dbus/system_bus_socket").status.success());
        let config = format!("--config={}", config.display());
        let state = format!("--state-file={}", lab.dir().join("nm.state").display());
        let daemon = lab.start("NetworkManager", &["--no-daemon", &config, &state]);
        wait_for("NetworkManager", || lab.try_sh("nmcli general status").status.success());
        NetworkManager { lab, _bus: bus, _daemon: daemon }
    }

    /// Has it do something.
    #[track_caller]
    fn does(&self, what: &str) {
        self.lab.sh(&format!("nmcli --wait 30 {what}"));
    }
}

#[test]
fn what_networkmanager_takes_comes_back() {
    testkit::require!("root", "network-manager", "program:dbus-daemon");
    let host = Host::new("watch-nm");
    let lab = &host.node.lab;
    let _outside = lab.outside();
    let containers = ["c1", "c2"].map(|name| lab.container(name));
    let [c1, c2] = &containers;
    let manager = NetworkManager::start(lab);
    let result = host.add(c1, &host.list(8081));
    host.add(c2, &host.list(8082));
    let port = result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    let daemon = host.daemon("repair", &["-interval", "1h"]);
    wait_for("the service to be ready", || daemon.log().contains("ready"));
    let known = |what: &str| lab.sh("nmcli -t -f DEVICE,STATE device").contains(what);
    wait_for("NetworkManager to see the bridge", || known("cni0:connected (externally)"));
    let is_back = |what: &str| {
        wait_for(&format!("everything {what}"), || {
            let bridge = lab.sh("ip -br addr show dev cni0; ip -br link show master cni0; sysctl net.ipv4.ip_forward");
            bridge.contains("10.1.0.1/24")
                && bridge.contains("fd00:1::1/64")
                && bridge.contains(&port)
                && bridge.contains("ip_forward = 1")
                && containers.iter().all(|container| {
                    // Not by IPv6: the bridge's link-local address, which NetworkManager takes too, does not come back by itself.
                    let ping = "ping -n -q -c 1 -W 1 198.51.100.2";
                    container.try_sh(ping).status.success()
                })
        });
    };
    is_back("at first");

    // It takes the bridge down, and all addresses and ports from it.
    manager.does("device set cni0 managed yes");
    manager.does("device disconnect cni0");
    is_back("behind a bridge that was disconnected");
    assert!(daemon.log().contains("put back network=n"), "{}", daemon.log());

    // It takes a container's cable for a network card.
    manager.does(&format!(
        "connection add type ethernet ifname {port} con-name taken ipv4.method manual ipv4.addresses 192.0.2.9/24 \
         ipv6.method disabled"
    ));
    manager.does("connection up taken");
    is_back("behind a port that was taken");
    manager.does("connection delete taken");
    is_back("behind a port that was let go");

    assert_eq!(daemon.stop(), Some(0));
    for (container, port) in containers.iter().zip(8081..) {
        host.del(container, &host.list(port));
    }
    assert_eq!(std::fs::read_dir(host.node.roots.run.join("owners")).map_or(0, Iterator::count), 0);
    drop(manager);
}
