//! Bridges: frames between two ports of a pods' bridge pass through the packet filter, and those of
//! other bridges do not.

use serde_json::json;
use testkit::{Container, Place, traffic};

use super::{Pod, bridge, closed, links, no_bridge_shows, shows, verdicts};
use crate::support::matrix::{Family, ipam};
use crate::support::{Answer, Node};

/// Two containers on one bridge, in both families, and with link-local addresses.
#[test]
fn containers_of_one_bridge_are_isolated() {
    testkit::require!("root");
    let node = Node::new("policy-bridge");
    no_bridge_shows(&node);
    let (c1, c2, c3) = (
        Pod::new(&node, "c1", "bridge"),
        Pod::new(&node, "c2", "bridge"),
        Pod::new(&node, "c3", "bridge"),
    );
    let linklocal = |pod: &Pod<'_>| {
        let text = pod.c.sh("ip -br -6 addr show dev eth0 scope link");
        text.split_whitespace().nth(2).unwrap().split('/').next().unwrap().to_owned() + "%eth0"
    };
    let (local1, local2) = (linklocal(&c1), linklocal(&c2));
    c1.assert_open(&[&c2, &c3]);
    traffic::assert_pings(&*c1.c, &local2);
    let told = c1.add();
    assert!(told.contains("only this node reaches the container"), "{told}");
    assert_eq!((shows(&node, "br0").as_str(), verdicts(&node)), ("1 1", closed(&c1)));
    c1.assert_closed(&[&c2, &c3]);
    super::assert_silent(&*c1.c, std::slice::from_ref(&local2));
    super::assert_silent(&*c2.c, std::slice::from_ref(&local1));
    c2.add();
    c2.assert_closed(&[&c1, &c3]);
    super::assert_silent(&*c1.c, &[local2]);
    super::assert_silent(&*c2.c, &[local1]);
    // Containers without policy work as before, and the sysctl for all bridges is not needed.
    traffic::assert_pings(&*c3.c, &c3.gateways()[0]);
    assert_eq!(node.sh("cat /proc/sys/net/bridge/bridge-nf-call-iptables").trim(), "0");
    c1.check();
    c2.check();

    // The last of the two containers gives the bridge its former settings back.
    c1.del();
    assert_eq!((shows(&node, "br0").as_str(), verdicts(&node)), ("1 1", closed(&c2)));
    c2.del();
    assert_eq!((shows(&node, "br0").as_str(), verdicts(&node)), ("0 0", Vec::new()));
    assert_eq!(links(&node), "");
}

/// A filter that drops forwarded packets does not get the frames of a bridge without pods.
#[test]
fn other_bridges_stay_as_they_are() {
    testkit::require!("root");
    let node = Node::new("policy-others");
    no_bridge_shows(&node);
    let attach = |name: &str, last: u8| -> Container {
        let container = node.container(name);
        node.sh(&format!(
            "test -e /sys/class/net/other || ip link add other type bridge && ip link set other up; \
             ip link add o{name} type veth peer name eth0 netns {name} && ip link set o{name} master other up"
        ));
        container.sh(&format!(
            "ip addr add 192.0.2.{last}/24 dev eth0 && ip addr add 2001:db8::{last}/64 dev eth0 nodad && \
             ip link set eth0 up"
        ));
        container
    };
    let (a, _b) = (attach("a", 2), attach("b", 3));
    node.sh("nft 'add table inet wall; add chain inet wall forward { type filter hook forward priority 0; policy drop; }'");
    let c1 = Pod::new(&node, "c1", "bridge");
    c1.add();
    assert_eq!((shows(&node, "br0"), shows(&node, "other")), ("1 1".to_owned(), "0 0".to_owned()));
    for to in ["192.0.2.3", "2001:db8::3"] {
        traffic::assert_pings(&a, to);
    }
    // With the sysctl for all bridges it would get them.
    node.sh("echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables");
    traffic::assert_no_ping(&a, "192.0.2.3");
}

/// A bridge that another program made, and whose settings another program has changed.
#[test]
fn a_bridge_gets_its_switches_back() {
    testkit::require!("root");
    let node = Node::new("policy-back");
    no_bridge_shows(&node);
    node.sh("ip link add br0 type bridge nf_call_iptables 1 && ip link set br0 up");
    let c1 = Pod::new(&node, "c1", "bridge");
    c1.add();
    assert_eq!(shows(&node, "br0"), "1 1");
    // A second ADD records nothing new.
    c1.add();
    c1.del();
    assert_eq!(shows(&node, "br0"), "1 0");
    // Only one family is needed.
    node.sh("ip link set br0 type bridge nf_call_iptables 0");
    c1.detach();
    let keys = json!({ "bridge": "br0", "isGateway": true, "ipam": ipam(&node, Family::V4) });
    let c2 = Pod::of(&node, node.container("c2"), "bridge", keys, ("n", "eth0"));
    c2.add();
    assert_eq!(shows(&node, "br0"), "1 0");
    c2.check();
    c2.del();
    assert_eq!(shows(&node, "br0"), "0 0");
}

/// A bridge with VLANs sends tagged frames through its trunk: the packet filter sees these too.
#[test]
fn vm_frames_with_a_tag_are_shown_where_vlans_are_distinguished() {
    testkit::require!("root", "full", "bridge-vlan-filtering", "vlan", "br_netfilter");
    let node = Node::new("policy-vlan");
    no_bridge_shows(&node);
    let tagged =
        || node.sh("cat /proc/sys/net/bridge/bridge-nf-filter-vlan-tagged").trim().to_owned();
    node.sh("echo 0 > /proc/sys/net/bridge/bridge-nf-filter-vlan-tagged");
    // The trunk leads to another machine in VLAN 10.
    let far = node.container("far");
    node.sh("ip link add br0 type bridge vlan_filtering 1 && ip link set br0 up && \
             ip link add trunk type veth peer name eth0 netns far && ip link set trunk master br0 up && \
             bridge vlan add vid 10 dev trunk && bridge vlan add vid 10 dev br0 self");
    far.sh("ip link set eth0 up && ip link add eth0.10 link eth0 type vlan id 10 && \
            ip addr add 10.1.0.200/24 dev eth0.10 && ip addr add fd00:1::200/64 dev eth0.10 nodad && \
            ip link set eth0.10 up");
    let keys = json!({ "bridge": "br0", "vlan": 10, "ipam": ipam(&node, Family::Dual) });
    let c1 = Pod::of(&node, node.container("c1"), "bridge", keys, ("n", "eth0"));
    let far_away = ["10.1.0.200".to_owned(), "fd00:1::200".to_owned()];
    for to in &far_away {
        traffic::assert_pings(&*c1.c, to);
    }
    c1.add();
    assert_eq!((shows(&node, "br0").as_str(), tagged().as_str()), ("1 1", "1"));
    super::assert_silent(&*c1.c, &far_away);
    super::assert_silent(&far, &c1.addresses());
    c1.check();
    node.sh("echo 0 > /proc/sys/net/bridge/bridge-nf-filter-vlan-tagged");
    c1.policy("CHECK").call().fails(104, "sysctl net.bridge.bridge-nf-filter-vlan-tagged is off");
    c1.repair();
    super::assert_silent(&far, &c1.addresses());
    c1.del();
    assert_eq!((shows(&node, "br0").as_str(), tagged().as_str()), ("0 0", "0"));
}

/// CHECK names a setting that was switched off, and a repair switches it on again.
#[test]
fn what_is_switched_off_is_noticed_and_restored() {
    testkit::require!("root");
    let node = Node::new("policy-drift");
    no_bridge_shows(&node);
    let (c1, c2) = (Pod::new(&node, "c1", "bridge"), Pod::new(&node, "c2", "bridge"));
    c1.add();
    let four = "bridge \"br0\" does not show IPv4 packets between its ports to the packet filter";
    let six = "bridge \"br0\" does not show IPv6 packets between its ports to the packet filter";
    let set = |values: &str| node.sh(&format!("ip link set br0 type bridge {values}"));
    for (damage, words) in [
        ("nf_call_iptables 0", vec![four]),
        ("nf_call_ip6tables 0", vec![six]),
        ("nf_call_iptables 0 nf_call_ip6tables 0", vec![four, six]),
    ] {
        set(damage);
        let said = c1.policy("CHECK").call();
        for words in words {
            said.clone().fails(104, words);
        }
        let repaired = c1.repair();
        assert_eq!(
            repaired,
            ["IPv4 and IPv6 packets within bridge \"br0\" shown to the packet filter"],
            "{damage}"
        );
        c1.check();
        c1.assert_closed(&[&c2]);
    }
    // The isolation does not come from the sysctl for all bridges.
    for value in [1, 0] {
        node.sh(&format!("echo {value} > /proc/sys/net/bridge/bridge-nf-call-iptables"));
        c1.check();
        c1.assert_closed(&[&c2]);
    }
}

/// Without `br_netfilter` policies cannot be enforced on a bridge: ADD says so and does nothing.
#[test]
fn a_bridge_is_refused_without_br_netfilter() {
    testkit::require!("root");
    let node = Node::new("policy-module");
    let c1 = Pod::of(&node, node.container("c1"), "bridge", bridge(&node), ("n", "eth0"));
    let c2 = Pod::new(&node, "c2", "ptp");
    let hide = || node.sh("mount -t tmpfs none /proc/sys/net/bridge");
    hide();
    c1.policy("ADD").call().fails(100, "the kernel's module br_netfilter is not loaded");
    assert_eq!((c1.recorded(), verdicts(&node), links(&node)), (None, Vec::new(), String::new()));
    // A link that the host routes does not need it.
    c2.add();
    super::ready(&node);
    let status: Answer = node.run("policy", "STATUS").of_network().call();
    assert!(status.succeeded() && status.stderr().contains("br_netfilter"), "{status:?}");
    node.sh("umount /proc/sys/net/bridge");
    c1.add();
    hide();
    c1.policy("CHECK").call().fails(104, "the kernel's module br_netfilter is not loaded");
    // DEL does not need it either.
    c1.del();
    node.sh("umount /proc/sys/net/bridge");
    assert_eq!(shows(&node, "br0"), "0 0");
}
