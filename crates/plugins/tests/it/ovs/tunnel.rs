//! Networks that extend over two hosts.

use serde_json::json;

use super::{Datapath, add, address, assert_reaches, keys, require_switch};
use crate::support::Node;

pub(super) fn over(datapath: Datapath, kind: &str, vlan: u16) {
    let (one, two) = (Node::new("ovs-tunnel1"), Node::new("ovs-tunnel2"));
    // The cable between both hosts. The thread of each lab names the namespace of one end.
    one.sh(&format!("ip link add up0 type veth peer name up0 netns {}", namespace_of(&two)));
    let (ovs1, ovs2) = (datapath.switch(&one), datapath.switch(&two));
    for (node, ovs, end) in [(&one, &ovs1, 1), (&two, &ovs2, 2)] {
        node.sh("ip link set up0 addrgenmode none && ip link set up0 up");
        let uplink = match datapath {
            // The user-space switch sends its encapsulated packets by a separate bridge, which has
            // the host's address.
            Datapath::UserSpace => {
                ovs.add_bridge("br-up");
                ovs.vsctl(&["add-port", "br-up", "up0"]);
                "br-up"
            }
            Datapath::Kernel => "up0",
        };
        node.sh(&format!("ip addr add 192.0.2.{end}/24 dev {uplink} && ip link set {uplink} up"));
    }
    let before = ovs1.content();
    let hosts = ["192.0.2.1", "192.0.2.2"];
    let network = |node: &Node, ovs: &testkit::real::Ovs<'_>, end: usize| {
        let range = json!({
            "type": "host-local", "dataDir": node.dir("ipam"), "subnet": "10.1.0.0/24",
            "rangeStart": format!("10.1.0.{end}0"), "rangeEnd": format!("10.1.0.{end}9"),
        });
        let tunnel =
            json!({ "type": kind, "vni": 5000, "remotes": hosts, "local": hosts[end - 1] });
        keys(node, ovs, json!({ "vlan": vlan, "tunnel": tunnel, "ipam": range, "mtu": 1400 }))
    };
    let (c1, c2) = (one.container("c1"), two.container("c2"));
    let c3 = one.container("c3");
    let first = add(&one, &c1, &network(&one, &ovs1, 1)).call().ok();
    let second = add(&two, &c2, &network(&two, &ovs2, 2)).call().ok();
    assert_reaches(&c1, &c2, &address(&second));
    assert_reaches(&c2, &c1, &address(&first));
    if let Datapath::Kernel = datapath {
        let shown = one.sh(&format!("ip -o link show type {kind}"));
        assert_eq!(shown.lines().count(), 1, "it is not the kernel that wraps: {shown}");
    }
    // A second container of the host shares the tunnel, which goes with the last.
    add(&one, &c3, &network(&one, &ovs1, 1)).call().ok();
    assert_reaches(&c3, &c2, &address(&second));
    let tunnels = |ovs: &testkit::real::Ovs<'_>| {
        ovs.vsctl(&["--columns=name", "find", "interface", &format!("type={kind}")]).lines().count()
    };
    assert_eq!(tunnels(&ovs1), 1);
    one.run("ovs", "DEL").to(&c1).config(network(&one, &ovs1, 1)).call().silent();
    assert_eq!(tunnels(&ovs1), 1);
    one.run("ovs", "DEL").to(&c3).config(network(&one, &ovs1, 1)).call().silent();
    assert_eq!(before, ovs1.content());
}

/// The namespace of the lab's thread, by the thread's ID.
fn namespace_of(node: &Node) -> String {
    let path = node.lab.netns_path();
    let tid = path.components().nth(2).unwrap().as_os_str().to_str().unwrap();
    tid.to_owned()
}

#[test]
fn vxlan_joins_two_hosts() {
    require_switch!();
    over(Datapath::UserSpace, "vxlan", 100);
}

#[test]
fn geneve_joins_two_hosts() {
    require_switch!();
    over(Datapath::UserSpace, "geneve", 200);
}
