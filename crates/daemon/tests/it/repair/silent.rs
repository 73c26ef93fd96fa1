//! A server that is silent, and what `netwrightd repair` does meanwhile.

use std::time::{Duration, Instant};

use cni::NetworkList;
use serde_json::json;
use testkit::real::Ovs;
use testkit::{Place, traffic, wait_until};

use super::{Host, ready};

/// How many containers the switch has: each would be waited for.
const PORTS: usize = 8;

/// The database of a switch neither answers nor closes connections. The service notices that,
/// restores what does not need the switch, and listens again soon after the database answers.
#[test]
fn a_silent_switch_keeps_no_other_network_waiting_and_is_heard_again() {
    testkit::require!("root", "program:ovs-vswitchd", "program:ovsdb-server", "full");
    let host = Host::new("repair-silent");
    let mut ovs = Ovs::start(&host.node.lab);
    ovs.add_bridge("br0");
    let list = |name: &str, plugin: serde_json::Value| {
        let list = json!({ "cniVersion": "1.1.0", "name": name, "plugins": [plugin] });
        NetworkList::parse(&serde_json::to_vec(&list).unwrap()).unwrap()
    };
    let ipam = |subnet: &str| {
        json!({ "type": "host-local", "dataDir": host.node.dir("ipam"), "subnet": subnet,
                "routes": [{ "dst": "0.0.0.0/0" }] })
    };
    let plugin = json!({
        "type": "ovs", "bridge": "br0", "socket_file": ovs.remote(), "ipam": ipam("10.1.0.0/24"),
    });
    let switched = list("switched", plugin);
    // Its name comes last, so those of the switch are looked at first.
    let bridged =
        list("z", json!({ "type": "bridge", "isGateway": true, "ipam": ipam("10.2.0.0/24") }));
    let ports: Vec<_> =
        (0..PORTS).map(|number| host.node.container(&format!("c{number}"))).collect();
    let results: Vec<_> = ports.iter().map(|container| host.add(container, &switched)).collect();
    let sound = host.node.container("sound");
    host.add(&sound, &bridged);
    let daemon = host.daemon("repair", &["--ovsdb", &ovs.remote(), "--interval", "1h"]);
    ready(&daemon);
    wait_until("the service to listen", || daemon.log().contains("listening"));

    ovs.freeze_server(true);
    let since = Instant::now();
    let told = "ports are not restored until the switch's database answers";
    wait_until("the silence to be noticed", || daemon.log().contains(told));
    let noticed = since.elapsed();
    let since = Instant::now();
    sound.sh("ip route del default");
    let route = || sound.sh("ip route").contains("default via 10.2.0.1");
    wait_until("another network's route", route);
    let waited = since.elapsed();

    ovs.freeze_server(false);
    let since = Instant::now();
    let port = results[0]["interfaces"][0]["name"].as_str().unwrap();
    ovs.vsctl(&["del-port", "br0", port]);
    let address = results[1]["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap();
    wait_until("the port", || traffic::pings_within(&ports[0], address, Duration::ZERO));
    eprintln!(
        "MEASURED a silent switch: noticed after {:.1} s (wanted 30), another network's route back \
         after {:.1} s, a port back {:.1} s after the switch's return",
        noticed.as_secs_f64(),
        waited.as_secs_f64(),
        since.elapsed().as_secs_f64()
    );
}
