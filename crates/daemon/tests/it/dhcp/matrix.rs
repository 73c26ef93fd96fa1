//! `dhcp` in the table plugin × verb × address family.

use std::fs;

use serde_json::{Value, json};
use testkit::{Container, Place};

use crate::rig::{dnsmasq_config, wait_for};
use crate::support::Node;
use crate::support::matrix::{Family, Subject};

const SUBJECT: Subject = Subject {
    plugin: "dhcp",
    host,
    config,
    holds: |node, c1, family| leased(node, c1) == if family == Family::Dual { 2 } else { 1 },
    // The daemon forgets the lease, as if another client had released it.
    damage: |node, c1, _| {
        let del = node.run("dhcp", "DEL").to(c1).config(json!({ "ipam": ipam(node, Family::V4) }));
        del.call().silent();
    },
    unready: Some(|node, family| {
        let mut ipam = ipam(node, family);
        ipam["daemonSocketPath"] = "/nonexistent/socket".into();
        json!({ "ipam": ipam })
    }),
};

crate::support::matrix::each!(SUBJECT, "root", "program:dnsmasq";
    matrix_add_v4 add V4, matrix_add_v6 add V6, matrix_add_dual add Dual,
    matrix_del_v4 del V4, matrix_del_v6 del V6, matrix_del_dual del Dual,
    matrix_check_v4 check V4, matrix_check_v6 check V6, matrix_check_dual check Dual,
    matrix_gc_v4 gc V4, matrix_gc_v6 gc V6, matrix_gc_dual gc Dual,
    matrix_status_v4 status V4, matrix_status_v6 status V6, matrix_status_dual status Dual);
crate::support::matrix::each!(SUBJECT, "root", "program:dnsmasq", "program:strace";
    an_add_killed_anywhere_leaves_nothing killed V4);

/// A bridge with dnsmasq and the daemon, which end with the lab.
fn host(node: &Node, _: Family) {
    node.sh(
        "ip link add br0 address 02:00:00:00:00:01 type bridge && ip link set br0 addrgenmode none && ip link set br0 up && \
         ip link add k0 type veth peer name k1 && ip link set k0 master br0 && for k in k0 k1; do ip link set $k addrgenmode none && ip link set $k up; done && \
         ip addr add fe80::1/64 dev br0 nodad && ip addr add 192.0.2.1/24 dev br0 && ip addr add 2001:db8::1/64 dev br0 nodad",
    );
    let dir = node.dir("dnsmasq");
    let more = "dhcp-option=option:router,192.0.2.1\ndhcp-range=2001:db8::100,2001:db8::1ff,64,2m";
    fs::write(dir.join("conf"), dnsmasq_config(&dir, more)).unwrap();
    let (conf, log) = (dir.join("conf"), dir.join("log"));
    let (socket, state) = (socket(node), node.dir("state"));
    node.sh(&format!(
        "dnsmasq -k -C {} >/dev/null 2>&1 & \
         {} dhcp -socketpath {socket} -state {} >{}/daemon.log 2>&1 &",
        conf.display(),
        env!("CARGO_BIN_EXE_netwrightd"),
        state.display(),
        node.lab.dir().display(),
    ));
    wait_for("dnsmasq", || fs::read_to_string(&log).unwrap_or_default().contains("DHCP, IP range"));
    wait_for("the daemon", || {
        node.lab.enter(|| std::os::unix::net::UnixStream::connect(&socket).is_ok())
    });
}

fn socket(node: &Node) -> String {
    node.lab.dir().join("d.sock").display().to_string()
}

fn ipam(node: &Node, family: Family) -> Value {
    json!({ "type": "dhcp", "daemonSocketPath": socket(node), "families": family.pick("v4", "v6") })
}

/// Makes the container a port of the bridge, if it is not, as an interface plugin does before it
/// calls IPAM.
fn config(node: &Node, container: &Container, family: Family) -> Value {
    let name = container.name();
    let number = name.trim_start_matches('c');
    node.sh(&format!(
        "ip link show v{name} >/dev/null 2>&1 || {{ ip link add v{name} address 02:00:00:00:02:0{number} type veth \
         peer name eth0 address 02:00:00:00:03:0{number} netns {name} && \
         sysctl -q -w net.ipv6.conf.v{name}.disable_ipv6=1 && ip link set v{name} master br0 up; }}"
    ));
    // The link-local address is unique here: duplicate address detection, which takes a second, is
    // not needed.
    container.sh("sysctl -qw net.ipv6.conf.eth0.accept_dad=0");
    json!({ "ipam": ipam(node, family) })
}

/// How many leases the daemon keeps for a container.
fn leased(node: &Node, container: &Container) -> usize {
    let files = fs::read_dir(node.dir("state").join("leases")).into_iter().flatten();
    let leases = files.filter_map(|file| {
        serde_json::from_slice::<Value>(&fs::read(file.ok()?.path()).ok()?).ok()
    });
    let ours = leases.filter(|lease| lease["attachment"]["containerID"] == container.name());
    ours.map(|lease| ["v4", "v6"].into_iter().filter(|family| lease.get(family).is_some()).count())
        .sum()
}
