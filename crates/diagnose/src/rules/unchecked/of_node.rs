//! What ADD made on the node for a container, and what is down or gone: the bridge, the node's end of
//! the pair, its place in the bridge, and the gateway's address.

use std::collections::BTreeMap;
use std::net::IpAddr;

use net::IpFamily;

use super::{ipv6_switch, is_ipv6_off_on_all};
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::model::{Container, Link};
use crate::path::{Joint, Site, uplinks_of};
use crate::rules::segments::hears;
use crate::rules::{containers, ip};

pub(super) const ID: &str = "node-differs";

/// A port of a bridge that forwards (linux include/uapi/linux/if_bridge.h `BR_STATE_FORWARDING`).
const FORWARDING: u8 = 3;

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut bridges = LeadingBridges::default();
    for family in IpFamily::ALL {
        for container in containers(look) {
            let sites = Site::every(look.scene, container, family);
            for site in sites.filter(is_unchecked) {
                found.extend(of_site(look, &mut bridges, &site));
            }
        }
    }
    found
}

/// Whether a bridge has ports that do not lead to containers. That is found out once of each: it goes
/// through all containers.
#[derive(Debug, Default)]
struct LeadingBridges {
    known: BTreeMap<u32, bool>,
}

impl LeadingBridges {
    fn lead_out(&mut self, look: Look<'_>, bridge: &Link) -> bool {
        let known = self.known.entry(bridge.index);
        *known.or_insert_with(|| !uplinks_of(look.scene, bridge).is_empty())
    }
}

/// CHECK of our own plugins tells all of this.
fn is_unchecked(site: &Site<'_>) -> bool {
    let attachment = site.attachment;
    let is_read = site.joint == Joint::Pair;
    let is_reported = !attachment.drifts.is_empty() && !attachment.by_others;
    is_read && !is_reported && attachment.unfinished.is_none()
}

fn of_site(look: Look<'_>, bridges: &mut LeadingBridges, site: &Site<'_>) -> Vec<Finding> {
    let gateway = lost_gateway(look, bridges, site);
    let own = format!("the end of {} of {} on this node", site.link.name, site.container.called());
    let end = &site.host_end.name;
    let network = &site.attachment.network;
    let mut found = Vec::new();
    if let Some(bridge) = left(look, site) {
        let name = &bridge.name;
        let says = format!("{end}, {own}, is no port of {name}, the bridge of {network}");
        let finding = Finding::error(ID, format!("{end} without {name}"), says)
            .at(format!("link {end}"))
            .fix(format!("ip link set {end} master {name}"));
        found.push(by_link(finding, site));
    }
    // The same link may have several of these parts.
    let seen_by = site.seen_by;
    let mut parts = vec![(site.host_end, own)];
    parts.extend(site.bridge.map(|bridge| (bridge, format!("the bridge of {network}"))));
    parts.extend(site.node_port.map(|port| (port, format!("a port of the bridge of {network}"))));
    let is_apart = parts.iter().all(|(link, _)| link.index != seen_by.index);
    parts.extend(is_apart.then(|| (seen_by, format!("this node's link to {network}"))));
    let down: Vec<&(&Link, String)> = parts.iter().filter(|(link, _)| !link.up).collect();
    let mut is_mended = false;
    for (link, what) in &down {
        let says = format!("{}, {what}, is down", link.name);
        let finding = Finding::error(ID, link.name.clone(), says)
            .at(format!("link {}", link.name))
            .fix(format!("ip link set {} up", link.name));
        // The kernel removes the IPv6 addresses of a link that is set down.
        let finding = match gateway.filter(|_| link.index == seen_by.index) {
            Some(gateway) => {
                is_mended = true;
                with_address(finding, site, gateway)
            }
            None => finding,
        };
        found.push(by_link(finding, site));
    }
    if let Some(gateway) = gateway.filter(|_| !is_mended) {
        let name = &seen_by.name;
        let lacks =
            format!("{name} has no address {gateway}, the gateway of containers of {network}");
        let object = format!("{name}: {gateway}");
        let finding = match ipv6_switch(&look.scene.host, seen_by, site.family()) {
            Some(switch) => {
                let says = format!("IPv6 is switched off on {name}: {lacks}");
                let finding = Finding::error(ID, object, says)
                    .at(format!("{switch} is 1"))
                    .fix(format!("sysctl -w {switch}=0"));
                match is_ipv6_off_on_all(&look.scene.host) {
                    true => finding.advise("then restart what configures the other links of this node: the kernel has removed their addresses of IPv6"),
                    false => finding,
                }
            }
            None => Finding::error(ID, object, lacks).at(format!("link {name}")),
        };
        let finding = with_address(finding, site, gateway);
        found.push(broken(finding, site.container, &WayKind::BY_NODE, site.family()));
    }
    found.extend(waiting(site).filter(|_| down.is_empty()));
    found
}

/// The bridge that ADD made the node's end a port of, if it is in none.
fn left<'s>(look: Look<'s>, site: &Site<'s>) -> Option<&'s Link> {
    let network = look.scene.networks.iter().find(|one| one.name == site.attachment.network)?;
    let name = network.link.as_ref().filter(|name| site.attachment.host_links.contains(name))?;
    let is_bridge = network.plugins.first().is_some_and(|first| first == "bridge");
    let bridge = look.scene.host.link(name)?;
    let is_out = is_bridge && site.host_end.master.is_none();
    (is_out && bridge.kind.as_deref() == Some("bridge")).then_some(bridge)
}

/// STP lets a port wait, or blocks it.
fn waiting(site: &Site<'_>) -> Option<Finding> {
    let (bridge, port) = (site.bridge?, site.host_end);
    let state = port.port_state.filter(|state| *state != FORWARDING)?;
    if !port.carrier {
        return None;
    }
    let word = match state {
        0 => "is disabled",
        1 | 2 => "waits",
        _ => "is blocked",
    };
    let name = &port.name;
    let says = format!("{name}, a port of {}, {word}, and carries nothing", bridge.name);
    let finding = Finding::error(ID, format!("{name} in {}", bridge.name), says)
        .at(format!("state {state} of port {name} of {}", bridge.name))
        .advise(format!(
            "if no other switch needs STP there, switch it off (ip link set {} type bridge stp_state 0)",
            bridge.name
        ));
    Some(by_link(finding, site))
}

/// Returns the gateway that the node should be and that no link of it has. Another machine may have
/// it, if the bridge leads to others.
fn lost_gateway(look: Look<'_>, bridges: &mut LeadingBridges, site: &Site<'_>) -> Option<IpAddr> {
    let scene = look.scene;
    let network = scene.networks.iter().find(|one| one.name == site.attachment.network)?;
    let mut gateways = site.attachment.gateways.iter().copied();
    let gateway = gateways.find(|gateway| IpFamily::of(*gateway) == site.family())?;
    if !network.routed || scene.host.owner_of(gateway).is_some() {
        return None;
    }
    let is_beyond = match hears(look, site.container, site.link, gateway) {
        Some(heard) => heard,
        None => site.bridge.is_some_and(|bridge| bridges.lead_out(look, bridge)),
    };
    (!is_beyond).then_some(gateway)
}

/// Adds the command that gives the node a gateway's address. In a bridge that distinguishes VLANs, it
/// belongs to a link above it.
fn with_address(finding: Finding, site: &Site<'_>, gateway: IpAddr) -> Finding {
    let link = &site.seen_by.name;
    let length = match (site.bridge, gateway) {
        (Some(_), _) => {
            let mut nets = site.attachment.addresses.iter();
            nets.find(|net| net.contains(&gateway)).map(ipnet::IpNet::prefix_len)
        }
        (None, IpAddr::V4(_)) => Some(32),
        (None, IpAddr::V6(_)) => Some(128),
    };
    let is_plain = site.bridge.is_none_or(|bridge| !bridge.vlan_filtering);
    let version = ip(site.family());
    let nodad = if gateway.is_ipv6() { " nodad" } else { "" };
    match length.filter(|_| is_plain) {
        Some(length) => {
            finding.fix(format!("{version} addr add {gateway}/{length} dev {link}{nodad}"))
        }
        None => finding.advise(format!("give {link}, or its VLAN, the address {gateway} again")),
    }
}

fn by_link(finding: Finding, site: &Site<'_>) -> Finding {
    broken(finding, site.container, &WayKind::BY_LINK, site.family())
}

fn broken(finding: Finding, container: &Container, kinds: &[WayKind], family: IpFamily) -> Finding {
    let finding = finding
        .seen("CHECK does not report this: it is off, or the plugin does not compare it")
        .hits(container.id.clone());
    kinds.iter().fold(finding, |finding, kind| finding.breaks(*kind, Some(family)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Scene;
    use crate::path::samples::{ip, node};
    use crate::question::{Answer, Answers, Question};

    /// Each finding as its object, whom it hits and what mends it.
    fn lines(scene: &Scene, all: Vec<(Question, Answer)>) -> Vec<String> {
        let answers = Answers { all };
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        let sorted = crate::causes::sort(found, scene).causes.into_iter().map(|one| one.finding);
        let line = |one: Finding| {
            format!("{} | {} | {}", one.object, one.hits.join(" "), one.fix.join("; "))
        };
        sorted.map(line).collect()
    }

    fn sound() -> Scene {
        let mut scene = node();
        scene.networks[0].routed = true;
        scene.networks[0].plugins = vec!["bridge".to_owned()];
        scene
    }

    fn link<'s>(scene: &'s mut Scene, name: &str) -> &'s mut Link {
        scene.host.links.iter_mut().find(|link| link.name == name).unwrap()
    }

    #[test]
    fn a_bridge_that_is_down_and_has_lost_its_addresses_of_ipv6() {
        assert_eq!(lines(&sound(), Vec::new()), [""; 0]);
        let mut scene = sound();
        link(&mut scene, "cni0").up = false;
        assert_eq!(lines(&scene, Vec::new()), ["cni0 | c2 c3 | ip link set cni0 up"]);
        link(&mut scene, "cni0").addresses.truncate(1);
        let fix = "ip link set cni0 up; ip -6 addr add fd00:88::1/64 dev cni0 nodad";
        assert_eq!(lines(&scene, Vec::new()), [format!("cni0 | c2 c3 | {fix}")]);
        // CHECK of our own plugins tells it, and that of others may tell something else.
        for container in &mut scene.containers {
            container.attachments[0].drifts = vec![crate::model::Drift {
                plugin: "bridge".to_owned(),
                code: 104,
                what: "bridge \"cni0\" is down".to_owned(),
                details: String::new(),
                items: Vec::new(),
            }];
        }
        assert_eq!(lines(&scene, Vec::new()), [""; 0]);
        scene.containers[0].attachments[0].by_others = true;
        assert_eq!(lines(&scene, Vec::new()), [format!("cni0 | c2 | {fix}")]);
    }

    #[test]
    fn a_gateway_that_the_node_should_be_and_is_not() {
        let mut scene = sound();
        link(&mut scene, "cni0").addresses.remove(0);
        let line = "cni0: 10.88.0.1 | c2 c3 | ip addr add 10.88.0.1/24 dev cni0";
        assert_eq!(lines(&scene, Vec::new()), [line]);
        // Another machine is it.
        let asked = crate::Probe::Echo { to: ip("10.88.0.1") };
        let question = |id: &str| Question { from: Some(id.to_owned()), asked: asked.clone() };
        let reached = |id: &str| (question(id), Answer::Reached { after_us: 1 });
        assert_eq!(lines(&scene, vec![reached("c2"), reached("c3")]), [""; 0]);
        let mut other = scene.clone();
        other.networks[0].routed = false;
        assert_eq!(lines(&other, Vec::new()), [""; 0]);
        // The bridge leads to others, of whom nothing was heard.
        link(&mut scene, "tun0").master = Some(3);
        assert_eq!(lines(&scene, Vec::new()), [""; 0]);
        let who = crate::Probe::WhoHas { address: ip("10.88.0.1"), link: "eth0".to_owned() };
        let question = Question { from: Some("c2".to_owned()), asked: who };
        let nobody = vec![(question, Answer::Owners { macs: Vec::new() })];
        assert_eq!(lines(&scene, nobody), [line.replace("c2 c3", "c2")]);
    }

    #[test]
    fn ipv6_may_be_switched_off_on_the_bridge() {
        let mut scene = sound();
        link(&mut scene, "cni0").addresses.truncate(1);
        let key = "net.ipv6.conf.cni0.disable_ipv6";
        scene.host.sysctls.insert(key.to_owned(), "1".to_owned());
        let fix = format!("sysctl -w {key}=0; ip -6 addr add fd00:88::1/64 dev cni0 nodad");
        assert_eq!(lines(&scene, Vec::new()), [format!("cni0: fd00:88::1 | c2 c3 | {fix}")]);
        let all = "net.ipv6.conf.all.disable_ipv6";
        scene.host.sysctls.insert(all.to_owned(), "1".to_owned());
        let fix = fix.replace(key, all);
        assert_eq!(lines(&scene, Vec::new()), [format!("cni0: fd00:88::1 | c2 c3 | {fix}")]);
    }

    #[test]
    fn the_nodes_end_of_a_pair() {
        let mut scene = sound();
        link(&mut scene, "veth2").up = false;
        assert_eq!(lines(&scene, Vec::new()), ["veth2 | c2 | ip link set veth2 up"]);
        let mut scene = sound();
        link(&mut scene, "veth2").master = None;
        let line = "veth2 without cni0 | c2 | ip link set veth2 master cni0";
        assert_eq!(lines(&scene, Vec::new()), [line]);
        // The network has another bridge by now, or it is not one.
        scene.networks[0].link = Some("cni1".to_owned());
        assert_eq!(lines(&scene, Vec::new()), [""; 0]);
        let mut scene = sound();
        link(&mut scene, "veth2").port_state = Some(4);
        assert_eq!(lines(&scene, Vec::new()), ["veth2 in cni0 | c2 | "]);
        link(&mut scene, "veth2").port_state = Some(FORWARDING);
        assert_eq!(lines(&scene, Vec::new()), [""; 0]);
    }

    /// It is what all that is lost by that link is a symptom of.
    #[test]
    fn it_explains_what_no_probe_reaches() {
        let mut scene = sound();
        link(&mut scene, "cni0").up = false;
        let answers = Answers::default();
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        let silent = |id: &'static str| {
            Finding::error(id, "c2", "silent")
                .hits("c2")
                .breaks(WayKind::Gateway, Some(IpFamily::V4))
        };
        let symptoms = ["gateway-silent", "router-silent", "outside-silent"].map(silent);
        let names = Finding::error("nameserver-silent", "192.0.2.53", "silent")
            .hits("c2")
            .breaks(WayKind::Names, Some(IpFamily::V4));
        let all = judge(look).into_iter().chain(symptoms).chain([names]).collect();
        let sorted = crate::causes::sort(all, &scene);
        assert_eq!(sorted.causes.len(), 1);
        assert_eq!((sorted.causes[0].finding.id, sorted.causes[0].explains.len()), (ID, 4));
    }
}
