//! Containers that are not on a bridge of the node, or on one that a VRF or VLANs divide.

use super::super::samples::{access, in_vrf, on_parent, with_vlans};
use super::*;
use crate::model::filter::{Comparison, Header, Step};
use crate::model::{Ipvlan, IpvlanMode, IpvlanReach, MacvlanMode};
use crate::routes::samples::link;

fn macvlan(mode: MacvlanMode) -> Scene {
    on_parent("macvlan", |link| link.macvlan = Some(mode))
}

fn ipvlan(mode: IpvlanMode, reach: IpvlanReach) -> Scene {
    on_parent("ipvlan", |link| link.ipvlan = Some(Ipvlan { mode, reach }))
}

/// A filter of the uplink.
fn of_uplink(hook: Hook) -> Table {
    let mut chain = base("c", hook, 0, vec![rule(&[drop()])]);
    chain.base.as_mut().unwrap().device = Some("up0".to_owned());
    table(Kin::Netdev, "t", vec![chain])
}

#[test]
fn a_macvlan_leads_out_by_its_parent() {
    let scene = macvlan(MacvlanMode::Bridge);
    assert_eq!(v4(&scene, "outside"), "passes");
    assert_eq!(v4(&scene, "between"), "passes");
    assert_eq!(way(&scene, "outside", IpFamily::V6), "passes");
    // The node's IP does not see it.
    assert_eq!(v4(&scene, "from node"), "unknown");
    assert_eq!(v4(&scene, "resolve"), "unknown");
    for hook in [Hook::Prerouting, Hook::Forward, Hook::Output] {
        let filtered = with(scene.clone(), one(Kin::Inet, hook, &[drop()]));
        assert_eq!(v4(&filtered, "outside"), "passes", "{hook:?}");
    }
    let sent = with(scene.clone(), of_uplink(Hook::Egress));
    assert_eq!(v4(&sent, "outside"), "Device netdev t/c rule 1");
    assert_eq!(v4(&sent, "between"), "passes");
    let received = with(scene, of_uplink(Hook::Ingress));
    assert_eq!(v4(&received, "outside"), "answer: Device netdev t/c rule 1");
    assert_eq!(v4(&received, "between"), "Device netdev t/c rule 1");
}

#[test]
fn the_mode_says_which_macvlans_reach_each_other() {
    let between = |mode| v4(&macvlan(mode), "between");
    assert_eq!(between(MacvlanMode::Private), "apart on up0");
    assert_eq!(between(MacvlanMode::Vepa), "unknown");
    assert_eq!(v4(&macvlan(MacvlanMode::Private), "outside"), "passes");
    // On another parent there is another switch.
    let mut scene = macvlan(MacvlanMode::Bridge);
    scene.networks.clear();
    scene.containers[1].inside.as_mut().unwrap().links[1].peer = Some(9);
    assert_eq!(v4(&scene, "between"), "unknown");
}

#[test]
fn a_parent_is_no_gateway_of_its_macvlans() {
    let mut scene = macvlan(MacvlanMode::Bridge);
    let first = &mut scene.containers[0];
    first.attachments[0].gateways = vec![ip("192.0.2.2")];
    first.inside.as_mut().unwrap().routes[0].hops[0].via = Some(ip("192.0.2.2"));
    assert_eq!(v4(&scene, "outside"), "apart on up0");
}

#[test]
fn the_parent_is_the_one_that_the_network_names() {
    let mut scene = macvlan(MacvlanMode::Bridge);
    scene.networks[0].link = Some("tun0".to_owned());
    let container = &scene.containers[0];
    assert!(Site::of(&scene, container, &container.attachments[0], IpFamily::V4).is_none());
}

#[test]
fn an_ipvlan_switches_or_routes() {
    let reach = IpvlanReach::Bridge;
    let l2 = ipvlan(IpvlanMode::L2, reach);
    let output = one(Kin::Inet, Hook::Output, &[drop()]);
    let input = one(Kin::Inet, Hook::Input, &[drop()]);
    assert_eq!(v4(&with(l2.clone(), output.clone()), "outside"), "passes");
    assert_eq!(v4(&with(l2, of_uplink(Hook::Egress)), "outside"), "Device netdev t/c rule 1");
    let l3 = ipvlan(IpvlanMode::L3, reach);
    assert_eq!(v4(&l3, "outside"), "passes");
    assert_eq!(v4(&with(l3.clone(), output), "outside"), "Ip inet t/c rule 1");
    assert_eq!(v4(&with(l3, input.clone()), "outside"), "passes");
    let l3s = with(ipvlan(IpvlanMode::L3s, reach), input);
    assert_eq!(v4(&l3s, "outside"), "answer: Ip inet t/c rule 1");
    let between = |reach| v4(&ipvlan(IpvlanMode::L2, reach), "between");
    assert_eq!(between(IpvlanReach::Bridge), "passes");
    assert_eq!(between(IpvlanReach::Private), "apart on up0");
    assert_eq!(between(IpvlanReach::Vepa), "unknown");
}

#[test]
fn a_filter_in_such_a_container_is_found() {
    let mut scene = macvlan(MacvlanMode::Bridge);
    let inside = scene.containers[0].inside.as_mut().unwrap();
    inside.filter.tables.push(one(Kin::Inet, Hook::Output, &[drop()]));
    assert_eq!(v4(&scene, "outside"), "in c2: Ip inet t/c rule 1");
    assert_eq!(v4(&scene, "between"), "in c2: Ip inet t/c rule 1");
}

/// What the switch does is neither good nor bad.
#[test]
fn at_a_port_of_open_vswitch_the_switch_decides() {
    let mut scene = node();
    for container in &mut scene.containers {
        container.attachments[0].plugins = vec!["ovs".to_owned()];
    }
    for name in ["outside", "between", "from node", "published", "here", "resolve"] {
        assert_eq!(v4(&scene, name), "unknown", "{name}");
    }
    let filtered = with(scene.clone(), one(Kin::Inet, Hook::Forward, &[drop()]));
    assert_eq!(v4(&filtered, "outside"), "unknown");
    let inside = scene.containers[0].inside.as_mut().unwrap();
    inside.filter.tables.push(one(Kin::Inet, Hook::Output, &[drop()]));
    assert_eq!(v4(&scene, "outside"), "in c2: Ip inet t/c rule 1");
    // A port that another program has put there.
    let mut scene = node();
    let switch =
        crate::model::Link { kind: Some("openvswitch".to_owned()), ..link(30, "ovs-system", &[]) };
    scene.host.links.push(switch);
    for port in scene.host.links.iter_mut().filter(|link| link.master == Some(3)) {
        port.master = Some(30);
    }
    let container = &scene.containers[0];
    let site = Site::of(&scene, container, &container.attachments[0], IpFamily::V4).unwrap();
    assert_eq!((site.joint, site.host_end.name.as_str()), (Joint::Switch, "veth2"));
}

#[test]
fn a_vrf_has_a_table_and_a_name_of_its_own() {
    let scene = in_vrf(true);
    // Our own translation is by the bridge's name.
    assert_eq!(v4(&scene, "outside"), "passes");
    let by = |name: &str| one(Kin::Inet, Hook::Forward, &[iifname(name), drop()]);
    assert_eq!(v4(&with(scene.clone(), by("blue")), "outside"), "Ip inet t/c rule 1");
    assert_eq!(v4(&with(scene.clone(), by("cni0")), "outside"), "passes");
    let first = one(Kin::Inet, Hook::Prerouting, &[iifname("cni0"), drop()]);
    assert_eq!(v4(&with(scene.clone(), first), "outside"), "Ip inet t/c rule 1");
    for name in ["from node", "published", "here"] {
        assert_eq!(v4(&scene, name), "unknown", "{name}");
    }
    let mut without = scene;
    without.host.routes.remove(0);
    assert_eq!(v4(&without, "outside"), "no route");
    // The table has nothing for it, and the main table leads out: the answer does not come back.
    assert_eq!(v4(&in_vrf(false), "outside"), "unknown");
    // It is not one of those that the node reaches by itself.
    let container = &without.containers[0];
    assert_eq!(Site::all(&without, container, IpFamily::V4).count(), 0);
    assert_eq!(Site::every(&without, container, IpFamily::V4).count(), 1);
}

#[test]
fn a_bridge_takes_a_frame_where_its_vlan_is() {
    let scene = with_vlans();
    assert_eq!(v4(&scene, "between"), "passes");
    assert_eq!(v4(&scene, "resolve"), "cni0 lacks VLAN 7");
    assert_eq!(v4(&scene, "from node"), "veth2 lacks VLAN 1");
    let port = |scene: &mut Scene, name: &str, vlans: &[u16]| {
        let port = scene.host.links.iter_mut().find(|link| link.name == name).unwrap();
        port.vlans = vlans.iter().copied().map(access).collect();
    };
    let mut gone = scene.clone();
    port(&mut gone, "veth3", &[]);
    assert_eq!(v4(&gone, "between"), "veth3 lacks VLAN 7");
    port(&mut gone, "veth2", &[]);
    // Then it is not known whether they were read.
    assert_eq!(v4(&gone, "between"), "unknown");
    port(&mut gone, "veth3", &[7]);
    assert_eq!(v4(&gone, "between"), "veth2 takes only tags");
    let mut same = scene.clone();
    port(&mut same, "cni0", &[7]);
    assert_eq!(v4(&same, "resolve"), "passes");
    assert_eq!(v4(&same, "outside"), "passes, translated");
}

/// The node takes part in a VLAN by a link of its own.
#[test]
fn the_gateway_of_a_vlan_is_a_link_above_the_bridge_or_the_end_of_a_pair() {
    let mut scene = with_vlans();
    let cni0 = scene.host.links.iter_mut().find(|link| link.name == "cni0").unwrap();
    let addresses = std::mem::take(&mut cni0.addresses);
    cni0.vlans.push(crate::model::PortVlan { pvid: false, untagged: false, ..access(7) });
    let gateway = crate::model::Link {
        kind: Some("vlan".to_owned()),
        peer: Some(3),
        vlan: Some(7),
        addresses,
        ..link(31, "cni0.7", &[])
    };
    scene.host.links.push(gateway);
    assert_eq!(v4(&scene, "resolve"), "passes");
    let cni0 = scene.host.links.iter_mut().find(|link| link.name == "cni0").unwrap();
    cni0.vlans.pop();
    assert_eq!(v4(&scene, "resolve"), "cni0 lacks VLAN 7");

    let port =
        crate::model::Link { master: Some(3), vlans: vec![access(7)], ..link(32, "gw0", &[]) };
    scene.host.links.push(crate::model::Link {
        kind: Some("veth".to_owned()),
        peer: Some(31),
        ..port
    });
    let gateway = scene.host.links.iter_mut().find(|link| link.name == "cni0.7").unwrap();
    (gateway.kind, gateway.peer, gateway.vlan) = (Some("veth".to_owned()), Some(32), None);
    assert_eq!(v4(&scene, "resolve"), "passes");
    let dropped = one(Kin::Bridge, Hook::Forward, &[oifname("gw0"), drop()]);
    assert_eq!(v4(&with(scene.clone(), dropped), "resolve"), "Bridge bridge t/c rule 1");
    let port = scene.host.links.iter_mut().find(|link| link.name == "gw0").unwrap();
    port.vlans = vec![access(8)];
    assert_eq!(v4(&scene, "resolve"), "gw0 lacks VLAN 7");
}

/// `vlan id ID`, as nft writes it for frames of a bridge.
fn vlan_id(id: u8) -> Vec<Step> {
    let load = |offset| Step::Payload { base: Header::Link, offset, len: 2, to: 0 };
    let equal =
        |with: [u8; 2]| Step::Compare { op: Comparison::Equal, from: 0, with: with.to_vec() };
    let mask = Step::Bitwise { from: 0, to: 0, mask: vec![0x0f, 0xff], xor: vec![0, 0] };
    vec![load(12), equal([0x81, 0]), load(14), mask, equal([0, id])]
}

#[test]
fn a_bridge_leads_to_a_router_by_the_port_that_no_container_has() {
    let mut scene = with_vlans();
    scene.host.links.iter_mut().find(|link| link.name == "cni0").unwrap().addresses.clear();
    let trunk = crate::model::PortVlan { pvid: false, untagged: false, ..access(7) };
    let port = crate::model::Link { master: Some(3), vlans: vec![trunk], ..link(50, "up1", &[]) };
    scene.host.links.push(port);
    assert_eq!(v4(&scene, "outside"), "passes");
    let tagged = |hook, id| one(Kin::Bridge, hook, &[vlan_id(id), drop()]);
    let seen = |hook, id| v4(&with(scene.clone(), tagged(hook, id)), "outside");
    assert_eq!(seen(Hook::Forward, 7), "Bridge bridge t/c rule 1");
    assert_eq!(seen(Hook::Forward, 8), "passes");
    // As it comes from the container it has no tag, and the answer has one.
    assert_eq!(seen(Hook::Prerouting, 7), "answer: Bridge bridge t/c rule 1");
    let mut gone = scene.clone();
    gone.host.links.last_mut().unwrap().vlans = vec![access(1)];
    assert_eq!(v4(&gone, "outside"), "up1 lacks VLAN 7");
    // Where frames leave without a tag, nothing shows the VLAN.
    let mut plain = scene.clone();
    plain.host.links.last_mut().unwrap().vlans = vec![access(7)];
    assert_eq!(v4(&with(plain, tagged(Hook::Forward, 7)), "outside"), "passes");
    // It is not known which of two ports it is.
    let mut two = scene;
    two.host.links.push(crate::model::Link { master: Some(3), ..link(51, "up2", &[]) });
    assert_eq!(v4(&two, "outside"), "unknown");
}
