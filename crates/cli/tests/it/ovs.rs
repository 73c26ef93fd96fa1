//! `ovs` beside `bridge`, and beside the same steps made with `ovs-vsctl` and `ip`: what each costs, told and not judged.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::real::Ovs;
use testkit::{Lab, Place};

use crate::system::NETWRIGHT;

/// How often each is done; every way in turn, so that the machine is the same for all.
const ROUNDS: usize = 25;

/// Runs a plugin as a runtime does: a process.
fn call(lab: &Lab, plugin: &Value, verb: &str) -> Duration {
    let mut config = plugin.clone();
    config["cniVersion"] = json!("1.1.0");
    config["name"] = json!("n");
    let start = Instant::now();
    let mut command = lab.command(NETWRIGHT);
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
    lab.sh(&format!("mkdir -p /opt/cni/bin && ln -sf {NETWRIGHT} /opt/cni/bin/static"));
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
