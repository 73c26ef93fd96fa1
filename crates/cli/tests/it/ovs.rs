//! `ovs` by `netwright run`, beside `bridge`, and beside the same steps with `ovs-vsctl` and `ip`.
//! The test prints what each costs, and does not judge it.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::real::Ovs;
use testkit::{Lab, Place, traffic};

use crate::system::{NETWRIGHT, Run, install};

/// How often each way is measured. The ways take turns, so that the machine's load is the same for
/// all.
const ROUNDS: usize = 25;

/// The executable to measure: the one under test, or another that the environment names, such as
/// that of `cargo xtask dist`.
fn measured() -> String {
    std::env::var("NETWRIGHT_MEASURED").unwrap_or_else(|_| NETWRIGHT.to_owned())
}

/// Runs a plugin in a process, as a runtime does.
fn call(lab: &Lab, plugin: &Value, verb: &str) -> Duration {
    let mut config = plugin.clone();
    config["cniVersion"] = json!("1.1.0");
    config["name"] = json!("n");
    let start = Instant::now();
    let mut command = lab.command(&measured());
    let mut child = command
        .arg(plugin["type"].as_str().unwrap())
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", "c1")
        .env("CNI_IFNAME", "eth0")
        .env("CNI_NETNS", "/run/netns/c1")
        .env("CNI_PATH", "/opt/cni/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), config.to_string().as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let took = start.elapsed();
    assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stdout));
    took
}

/// The same steps by hand.
fn by_hand(lab: &Lab, socket: &str, verb: &str) -> Duration {
    let vsctl = format!("ovs-vsctl --timeout=20 --db={socket}");
    let script = match verb {
        "ADD" => format!(
            "ip link add h1 type veth peer name eth0 netns c1 && \
             {vsctl} add-port br0 h1 tag=100 vlan_mode=access external_ids:owner=me -- \
               set interface h1 external_ids:iface-id=x && \
             ip netns exec c1 ethtool -K eth0 tx off >/dev/null 2>&1; \
             ip -n c1 addr add 10.1.0.2/24 dev eth0 && ip -n c1 link set eth0 up && ip link set h1 up"
        ),
        _ => format!("{vsctl} del-port br0 h1 && ip link del h1"),
    };
    let start = Instant::now();
    lab.sh(&script);
    start.elapsed()
}

#[test]
fn what_a_port_costs_beside_a_bridge_and_by_hand() {
    testkit::require!("root", "program:ovs-vswitchd", "program:ovsdb-server", "program:ethtool");
    let lab = Lab::new("ovs-speed");
    let ovs = Ovs::start(&lab);
    ovs.add_bridge("br0");
    let _c1 = lab.container("c1");
    let ipam = json!({ "type": "static", "addresses": [{ "address": "10.1.0.2/24" }] });
    lab.sh(&format!("mkdir -p /opt/cni/bin && ln -sf {} /opt/cni/bin/static", measured()));
    let bridge = json!({ "type": "bridge", "bridge": "lb0", "ipam": ipam });
    let port = json!({ "type": "ovs", "bridge": "br0", "vlan": 100, "socket_file": ovs.socket(), "ipam": ipam });
    let mut times: [[Vec<Duration>; 2]; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (at, verb) in ["ADD", "DEL"].into_iter().enumerate() {
            times[0][at].push(call(&lab, &bridge, verb));
        }
        for (at, verb) in ["ADD", "DEL"].into_iter().enumerate() {
            times[1][at].push(call(&lab, &port, verb));
        }
        for (at, verb) in ["ADD", "DEL"].into_iter().enumerate() {
            times[2][at].push(by_hand(&lab, &ovs.remote(), verb));
        }
    }
    for (who, times) in ["bridge", "ovs", "ovs-vsctl and ip"].iter().zip(&mut times) {
        let [add, del] = times.each_mut().map(|times| {
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64() * 1000.0
        });
        eprintln!("MEASURED {who}: ADD {add:.1} ms, DEL {del:.1} ms (medians of {ROUNDS})");
    }
}

/// Commands on networks of two VLANs: those of one reach each other, and nothing is left.
#[test]
fn commands_run_on_vlans() {
    testkit::require!("root", "program:ovs-vswitchd", "program:ovsdb-server");
    let lab = Lab::new("ovs-run");
    install(&lab);
    let ovs = Ovs::start(&lab);
    ovs.add_bridge("br0");
    ovs.at_its_usual_place();
    let before = ovs.content();
    for vlan in [100, 200] {
        let list = json!({ "cniVersion": "1.1.0", "name": format!("vlan{vlan}"), "plugins": [{
            "type": "ovs", "bridge": "br0", "vlan": vlan,
            "ipam": { "type": "host-local", "ranges": [
                [{ "subnet": format!("10.{vlan}.0.0/24") }], [{ "subnet": format!("fd00:{vlan}::/64") }],
            ], "routes": [{ "dst": "0.0.0.0/0" }] },
        }]});
        lab.sh("mkdir -p /etc/cni/net.d");
        let path = lab.path(format!("/etc/cni/net.d/vlan{vlan}.conflist"));
        std::fs::write(path, list.to_string()).unwrap();
    }
    let mut runs = ["vlan100", "vlan100", "vlan200"].map(|net| Run::spawn(&lab, &["--net", net]));
    let [one, two, far] = runs.each_mut().map(Run::ready);
    traffic::assert_pings(&one.netns, &two.v4.to_string());
    traffic::assert_pings(&two.netns, &one.v6.to_string());
    let web = traffic::Server::tcp(&two.netns, "0.0.0.0:80", "two");
    assert_eq!(traffic::assert_tcp(&one.netns, &format!("{}:80", two.v4)).server, "two");
    // They do not reach each other even if the link has the other VLAN's addresses.
    one.netns.sh("ip route add 10.200.0.0/24 dev eth0 2>/dev/null; true");
    far.netns.sh("ip route add 10.100.0.0/24 dev eth0 2>/dev/null; true");
    traffic::assert_no_ping(&one.netns, &far.v4.to_string());
    assert_eq!(ovs.vsctl(&["list-ports", "br0"]).lines().count(), 3);
    drop((web, one, two, far));
    for run in runs {
        assert!(run.end().success());
    }
    assert_eq!(before, ovs.content());
}
