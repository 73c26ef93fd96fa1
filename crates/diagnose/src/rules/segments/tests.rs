use super::*;
use crate::model::{Ipvlan, IpvlanMode, IpvlanReach, MacvlanMode, Route, Scene};
use crate::path::samples::{access, ip, node, on_parent, with_vlans};
use crate::question::Answers;
use crate::routes::samples::link;

fn macvlan() -> Scene {
    on_parent("macvlan", |link| link.macvlan = Some(MacvlanMode::Bridge))
}

/// A node whose bridge leads to a router by a port of its own.
fn bridged() -> Scene {
    let mut scene = node();
    scene.host.links.push(Link { master: Some(3), ..link(50, "up1", &[]) });
    scene.host.links.iter_mut().find(|link| link.name == "cni0").unwrap().addresses.clear();
    scene
}

/// What the rule says when everything that it asks is answered so.
fn found(scene: &Scene, answer: Option<fn() -> Answer>) -> Vec<String> {
    let answers = match answer {
        Some(answer) => {
            let nothing = Answers::default();
            let asked = asks(Look { scene, answers: &nothing, only: None, to: None });
            Answers { all: asked.into_iter().map(|question| (question, answer())).collect() }
        }
        None => Answers::default(),
    };
    let found = judge(Look { scene, answers: &answers, only: None, to: None });
    let sorted = crate::causes::sort(found, scene);
    let line = |one: &Finding| format!("{} {}: {}", one.id, one.object, one.hits.join(" "));
    sorted.causes.iter().map(|one| line(&one.finding)).collect()
}

fn reached() -> Answer {
    Answer::Reached { after_us: 100 }
}

fn unreachable() -> Answer {
    Answer::Unreachable { error: "No route to host".to_owned(), hops: Vec::new() }
}

fn silence() -> Answer {
    Answer::Silent { hops: Vec::new() }
}

fn nobody() -> Answer {
    Answer::Owners { macs: Vec::new() }
}

fn somebody() -> Answer {
    Answer::Owners { macs: vec!["02:00:00:00:00:fe".to_owned()] }
}

const ROUTER: Option<fn() -> Answer> = Some(reached);
const NOBODY: Option<fn() -> Answer> = Some(nobody);
const SOMEBODY: Option<fn() -> Answer> = Some(somebody);
const SILENCE: Option<fn() -> Answer> = Some(silence);
const REFUSAL: Option<fn() -> Answer> = Some(unreachable);

#[test]
fn a_router_of_another_machine_is_asked_for() {
    let scene = macvlan();
    let nothing = Answers::default();
    let asked = asks(Look { scene: &scene, answers: &nothing, only: None, to: None });
    assert_eq!(asked.len(), 8);
    let address = ip("10.88.0.254");
    let who = Probe::WhoHas { address, link: "eth0".to_owned() };
    for (question, asked) in asked.into_iter().zip([Probe::Echo { to: address }, who]) {
        assert_eq!(question, Question { from: Some("c2".to_owned()), asked });
    }
    assert_eq!(found(&scene, ROUTER), [""; 0]);
    assert_eq!(found(&scene, SOMEBODY), [""; 0]);
    assert_eq!(
        found(&scene, NOBODY),
        [
            "router-silent c2: 10.88.0.254 and fd00:88::fe: c2",
            "router-silent c3: 10.88.0.254 and fd00:88::fe: c3",
        ]
    );
    // Without a route by it, no container needs the gateway that a pool reports.
    let mut isolated = scene;
    for container in &mut isolated.containers {
        let routes: &mut Vec<Route> = &mut container.inside.as_mut().unwrap().routes;
        routes.retain(|route| route.hops[0].via.is_none());
    }
    assert_eq!(found(&isolated, NOBODY), [""; 0]);
    // The node is the gateway: another rule asks.
    assert_eq!(found(&node(), NOBODY), [""; 0]);
}

/// Many routers answer no echo request, or refuse it.
#[test]
fn a_router_that_is_silent_may_be_there() {
    let mut scene = macvlan();
    assert_eq!(found(&scene, SILENCE), [""; 0]);
    assert_eq!(found(&scene, REFUSAL), [""; 0]);
    let inside = scene.containers[0].inside.as_mut().unwrap();
    inside.neighbours.push(crate::model::Neighbour {
        link: 2,
        address: ip("10.88.0.254"),
        mac: None,
        permanent: false,
        failed: true,
    });
    assert_eq!(found(&scene, SILENCE), ["router-silent c2: 10.88.0.254: c2"]);
    assert_eq!(found(&scene, REFUSAL), ["router-silent c2: 10.88.0.254: c2"]);
    // The kernel asked some time ago, and a machine answers now.
    assert_eq!(found(&scene, SOMEBODY), [""; 0]);
}

#[test]
fn an_ipvlan_that_routes_has_no_gateway_to_ask_for() {
    let with = |mode| {
        let ipvlan = Some(Ipvlan { mode, reach: IpvlanReach::Bridge });
        found(&on_parent("ipvlan", |link| link.ipvlan = ipvlan), NOBODY).len()
    };
    assert_eq!((with(IpvlanMode::L2), with(IpvlanMode::L3)), (2, 0));
}

#[test]
fn a_parent_that_carries_nothing_explains_the_silence() {
    let mut scene = macvlan();
    scene.host.links[1].carrier = false;
    assert_eq!(found(&scene, NOBODY), ["parent-down up0: c2 c3"]);
    // A VLAN of it is the parent.
    let vlan = Link {
        kind: Some("vlan".to_owned()),
        peer: Some(2),
        vlan: Some(7),
        carrier: false,
        ..link(51, "up0.7", &[])
    };
    scene.host.links.push(vlan);
    scene.networks[0].link = Some("up0.7".to_owned());
    for container in &mut scene.containers {
        container.inside.as_mut().unwrap().links[1].peer = Some(51);
    }
    assert_eq!(found(&scene, NOBODY), ["parent-down up0: c2 c3"]);
    scene.host.links[1].carrier = true;
    scene.host.links.last_mut().unwrap().up = false;
    assert_eq!(found(&scene, NOBODY), ["parent-down up0.7: c2 c3"]);
}

#[test]
fn the_last_port_of_a_bridge_that_leads_to_the_router() {
    let mut scene = bridged();
    assert_eq!(found(&scene, ROUTER), [""; 0]);
    scene.host.links.last_mut().unwrap().up = false;
    assert_eq!(found(&scene, NOBODY), ["parent-down up1: c2 c3"]);
    // Another port is left.
    scene.host.links.push(Link { master: Some(3), ..link(52, "up2", &[]) });
    assert_eq!(found(&scene, ROUTER), [""; 0]);
}

#[test]
fn a_parents_own_address_is_no_gateway() {
    let mut scene = macvlan();
    scene.containers.truncate(1);
    let first = &mut scene.containers[0];
    first.attachments[0].gateways = vec![ip("192.0.2.2")];
    first.inside.as_mut().unwrap().routes[0].hops[0].via = Some(ip("192.0.2.2"));
    assert_eq!(found(&scene, None), ["router-silent c2: 192.0.2.2: c2"]);
}

#[test]
fn a_vlan_that_a_link_of_a_bridge_lacks() {
    let port = |scene: &mut Scene, name: &str, vlans: &[u16]| {
        let port = scene.host.links.iter_mut().find(|link| link.name == name).unwrap();
        port.vlans = vlans.iter().copied().map(access).collect();
    };
    // The node is the gateway.
    let mut scene = with_vlans();
    assert_eq!(found(&scene, None), ["vlan-missing cni0 VLAN 7: c2 c3"]);
    port(&mut scene, "cni0", &[7]);
    assert_eq!(found(&scene, None), [""; 0]);
    port(&mut scene, "veth2", &[]);
    assert_eq!(found(&scene, None), ["vlan-missing veth2 without a tag: c2"]);
    let answers = Answers::default();
    let look = Look { scene: &scene, answers: &answers, only: None, to: None };
    assert_eq!(judge(look)[0].fix, ["bridge vlan add dev veth2 vid 7 pvid untagged"]);

    // A router is, behind a port that carries many VLANs.
    let mut scene = with_vlans();
    scene.host.links.iter_mut().find(|link| link.name == "cni0").unwrap().addresses.clear();
    scene.host.links.push(Link { master: Some(3), ..link(50, "up1", &[]) });
    port(&mut scene, "up1", &[1, 7]);
    assert_eq!(found(&scene, ROUTER), [""; 0]);
    port(&mut scene, "up1", &[1]);
    assert_eq!(found(&scene, NOBODY), ["vlan-missing up1 VLAN 7: c2 c3"]);
    // A machine answers all the same.
    assert_eq!(found(&scene, ROUTER), [""; 0]);
}

#[test]
fn what_a_switch_decides_is_neither_sound_nor_broken() {
    let mut scene = bridged();
    for container in &mut scene.containers {
        container.attachments[0].plugins = vec!["ovs".to_owned()];
    }
    let told = ["switch-decides c2: mynet: c2", "switch-decides c3: mynet: c3"];
    assert_eq!(found(&scene, None), told);
    assert_eq!(found(&scene, NOBODY), told);
    assert_eq!(found(&scene, SILENCE), told);
    assert_eq!(found(&scene, ROUTER), [""; 0]);
    // There is no machine to ask, and other things were asked.
    let mut alone = scene.clone();
    alone.containers.truncate(1);
    alone.containers[0].inside.as_mut().unwrap().routes.clear();
    let other = Question { from: None, asked: Probe::Echo { to: ip("192.0.2.1") } };
    let answers = Answers { all: vec![(other, reached())] };
    let look = Look { scene: &alone, answers: &answers, only: None, to: None };
    assert!(asks(look).is_empty() && judge(look).is_empty());
    let answers = Answers::default();
    let look = Look { scene: &scene, answers: &answers, only: None, to: None };
    assert!(judge(look).iter().all(|one| one.severity == crate::Severity::Unknown));
}

/// A switch without flows drops what is for the node, too.
#[test]
fn the_node_may_be_the_gateway_behind_a_switch() {
    let mut scene = node();
    scene.containers.truncate(1);
    scene.containers[0].attachments[0].plugins = vec!["ovs".to_owned()];
    assert_eq!(found(&scene, SILENCE), ["switch-decides c2: mynet: c2"]);
    assert_eq!(found(&scene, ROUTER), [""; 0]);
}

/// What is told if the gateway of c2 does not answer it, and this node hears these addresses for it.
fn contrast(scene: &Scene, link: &str, macs: &[&str]) -> Vec<(String, String)> {
    let address = ip("10.88.0.254");
    let who = |from: Option<&str>, link: &str, macs: &[&str]| {
        let asked = Probe::WhoHas { address, link: link.to_owned() };
        let macs = macs.iter().map(|mac| (*mac).to_owned()).collect();
        (Question { from: from.map(str::to_owned), asked }, Answer::Owners { macs })
    };
    let all = vec![who(Some("c2"), "eth0", &[]), who(None, link, macs)];
    let nothing = Answers::default();
    let asked = asks(Look { scene, answers: &nothing, only: None, to: None });
    assert!(all.iter().all(|(question, _)| asked.contains(question)), "{asked:?}");
    let answers = Answers { all };
    let found = judge(Look { scene, answers: &answers, only: None, to: None });
    found.into_iter().map(|one| (one.says, one.advice.join("; "))).collect()
}

/// The parent's own address passes, and that of a link on it does not.
#[test]
fn a_gateway_that_answers_this_node_is_there() {
    let mut scene = macvlan();
    scene.host.links[1].mac = Some("02:00:00:00:00:50".to_owned());
    let told = contrast(&scene, "up0", &["02:00:00:00:00:fe"]);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].0, "the gateway 10.88.0.254 answers this node by up0, and not c2");
    let begins = "let what is behind up0 take frames of 02:00:00:00:00:02, too";
    assert!(told[0].1.starts_with(begins), "{told:?}");
    let told = contrast(&scene, "up0", &[]);
    assert_eq!(told[0].0, "the gateway 10.88.0.254, another machine, does not answer c2");
    assert_eq!(told[0].1, "look at 10.88.0.254, and at the switch behind up0");
}

/// A device of the node's that the container has: the node reaches the same network by another one.
#[test]
fn a_gateway_behind_a_lent_device() {
    let set = |link: &mut Link| {
        link.kind = None;
        link.peer = None;
        link.peer_netnsid = None;
    };
    let mut scene = on_parent("host-device", set);
    scene.host.links[1].mac = Some("02:00:00:00:00:50".to_owned());
    scene.host.routes.push(crate::routes::samples::route("10.88.0.0/24", 2, None));
    let told = contrast(&scene, "up0", &["02:00:00:00:00:fe"]);
    assert_eq!(told[0].0, "the gateway 10.88.0.254 answers this node by up0, and not c2");
    assert!(told[0].1.starts_with("look at the switch's port behind eth0 of c2"), "{told:?}");
    assert_eq!(found(&scene, ROUTER), [""; 0]);
    assert_eq!(found(&scene, SOMEBODY), [""; 0]);
    // Its cable.
    let inside = scene.containers[0].inside.as_mut().unwrap();
    inside.links[1].carrier = false;
    let told = found(&scene, None);
    assert_eq!(told, ["router-silent c2: 10.88.0.254 and fd00:88::fe: c2"]);
}

/// The node's end of a pair leads to no other machine and to no switch.
#[test]
fn a_gateway_for_which_this_node_should_answer() {
    let mut scene = node();
    scene.containers.truncate(1);
    scene.containers[0].attachments[0].gateways = vec![ip("169.254.1.1")];
    let inside = scene.containers[0].inside.as_mut().unwrap();
    inside.routes[0].hops[0].via = Some(ip("169.254.1.1"));
    let end = scene.host.links.iter_mut().find(|link| link.name == "veth2").unwrap();
    end.master = None;
    let nothing = Answers::default();
    let asked = asks(Look { scene: &scene, answers: &nothing, only: None, to: None });
    let answers = Answers { all: asked.into_iter().map(|one| (one, nobody())).collect() };
    let found = judge(Look { scene: &scene, answers: &answers, only: None, to: None });
    let says = "the gateway 169.254.1.1, for which this node should answer, does not answer c2";
    assert_eq!((found.len(), found[0].says.as_str()), (1, says));
    assert!(!found[0].advice[0].contains("switch"), "{found:?}");
}

/// Nobody has the gateway that the network configures, and the node's router is in the same subnet.
#[test]
fn a_gateway_that_is_mistyped() {
    let mut scene = on_parent("macvlan", |link| {
        link.macvlan = Some(MacvlanMode::Bridge);
        link.addresses[0].address = "192.0.2.77/24".parse().unwrap();
    });
    scene.containers.truncate(1);
    scene.networks[0].file = Some("/etc/cni/net.d/10-lan.conflist".to_owned());
    let container = &mut scene.containers[0];
    container.attachments[0].gateways = vec![ip("192.0.2.11")];
    container.inside.as_mut().unwrap().routes[0].hops[0].via = Some(ip("192.0.2.11"));
    let nothing = Answers::default();
    let asked = asks(Look { scene: &scene, answers: &nothing, only: None, to: None });
    let all = asked.into_iter().map(|question| (question, nobody())).collect();
    let answers = Answers { all };
    let found = judge(Look { scene: &scene, answers: &answers, only: None, to: None });
    assert_eq!((found.len(), found[0].object.as_str()), (1, "c2: 192.0.2.11"));
    let advice = found[0].advice.last().unwrap();
    let begins = "if 192.0.2.11, the gateway of network mynet, is mistyped \
                  (/etc/cni/net.d/10-lan.conflist), and 192.0.2.1 is the router";
    assert!(advice.starts_with(begins), "{advice}");
}
