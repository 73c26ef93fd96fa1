//! Containers whose way out does not end at the node's IP: on a parent link, on a bridge that leads
//! to a router, at a port of Open vSwitch; and bridges that distinguish VLANs.

#[cfg(test)]
mod tests;
mod unheard;

use std::collections::BTreeMap;
use std::net::IpAddr;

use net::IpFamily;

use super::{Rule, asks_links, containers};
use crate::Look;
use crate::finding::{Finding, Help, WayKind};
use crate::model::{Container, Link, Namespace, Part};
use crate::path::{
    Joint, Outcome, Site, StopCause, Trip, follow, has_vlan, untagged_vlan, uplinks_of,
};
use crate::question::{Answer, Probe, Question};

pub(super) const RULE: Rule = Rule {
    judges: "parent links, VLANs and routers of other machines",
    ids: &["parent-down", "vlan-missing", "router-silent", "switch-decides"],
    needs: &[Part::Links],
    inside: &[Part::Links, Part::Routes],
    asks,
    judge,
};

/// How many links may lie below each other.
const DEEP: usize = 8;

fn sites(look: Look<'_>) -> impl Iterator<Item = Site<'_>> {
    let families = IpFamily::ALL.into_iter();
    families.flat_map(move |family| {
        containers(look).flat_map(move |container| Site::every(look.scene, container, family))
    })
}

/// A container asks its router for an answer, and who has its address; at a port of Open vSwitch it
/// asks another container of its network instead of the latter.
fn asks(look: Look<'_>) -> Vec<Question> {
    let of_site = |site: Site<'_>| {
        let asks_link = asks_links(look) && site.joint != Joint::Switch;
        let router = site.router(look.scene).filter(|_| asks_link);
        let who =
            router.map(|router| Question::who_has(Some(site.container), &site.link.name, router));
        questions(look, &site).into_iter().chain(who)
    };
    sites(look).flat_map(of_site).chain(unheard::asks(look)).collect()
}

fn questions(look: Look<'_>, site: &Site<'_>) -> Vec<Question> {
    let is_switched = site.joint == Joint::Switch;
    let neighbour = is_switched.then(|| neighbour(look, site)).flatten();
    // The node may be the gateway, by the switch.
    let gateway = site.gateway.filter(|gateway| is_switched && site.has_route_by(*gateway));
    let all = site.router(look.scene).or(gateway).into_iter().chain(neighbour);
    all.map(|to| question(site, to)).collect()
}

/// The address of another container of the network.
fn neighbour(look: Look<'_>, site: &Site<'_>) -> Option<IpAddr> {
    let mut others = sites(Look { only: None, ..look }).filter(|other| {
        other.container.id != site.container.id
            && other.attachment.network == site.attachment.network
            && other.family() == site.family()
    });
    others.next().map(|other| other.address)
}

fn question(site: &Site<'_>, to: IpAddr) -> Question {
    echo(site.container, to)
}

fn echo(container: &Container, to: IpAddr) -> Question {
    Question { from: Some(container.id.clone()), asked: Probe::Echo { to } }
}

/// Says whether a container hears a gateway by a link of its own; `None` if that is not known: many
/// answer no echo request, or refuse it. A machine that is not there does not say its hardware
/// address either.
pub(in crate::rules) fn hears(
    look: Look<'_>,
    container: &Container,
    link: &Link,
    gateway: IpAddr,
) -> Option<bool> {
    let echo = look.answers.to(&echo(container, gateway));
    if matches!(echo, Some(Answer::Reached { .. } | Answer::Refused)) {
        return Some(true);
    }
    let who = Question::who_has(Some(container), &link.name, gateway);
    if let Some(heard) = look.answers.to(&who).and_then(Answer::has_owner) {
        return Some(heard);
    }
    let entries = container.inside.iter().flat_map(|inside| &inside.neighbours);
    let mut of_gateway = entries.filter(|one| one.link == link.index && one.address == gateway);
    // It has asked in vain for the hardware address.
    let is_failed = of_gateway.any(|one| one.failed);
    (is_failed && echo.is_some_and(Answer::is_lost)).then_some(false)
}

/// Says whether a container's requests for a gateway's hardware address are not answered. It may get
/// through all the same, while it has learnt the address from a packet of the gateway.
pub(in crate::rules) fn is_unanswered(
    look: Look<'_>,
    container: &Container,
    link: &Link,
    gateway: IpAddr,
) -> bool {
    let who = Question::who_has(Some(container), &link.name, gateway);
    let heard = look.answers.to(&who).and_then(Answer::has_owner);
    heard.or_else(|| hears(look, container, link, gateway)) == Some(false)
}

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    // Of each bridge they are looked for once: that goes through all containers.
    let mut uplinks: BTreeMap<u32, Vec<&Link>> = BTreeMap::new();
    for site in sites(look) {
        let ports: &[&Link] = match site.bridge {
            Some(bridge) => {
                let known = uplinks.entry(bridge.index);
                known.or_insert_with(|| uplinks_of(look.scene, bridge)).as_slice()
            }
            None => &[],
        };
        found.extend(down(look, &site, ports));
        found.extend(gap(look, &site, ports).map(|gap| missing(look, &site, &gap)));
        found.extend(apart(look, &site));
        if site.joint == Joint::Switch {
            found.extend(decided(look, &site));
        }
    }
    found.extend(unheard::judge(look));
    found
}

/// The ways that end if a container does not reach what is beyond its link.
fn broken(finding: Finding, site: &Site<'_>, kinds: &[WayKind]) -> Finding {
    let finding = finding.hits(site.container.id.clone());
    kinds.iter().fold(finding, |finding, kind| finding.breaks(*kind, Some(site.family())))
}

const OUT: [WayKind; 3] = [WayKind::Gateway, WayKind::Outside, WayKind::Names];

/// The parent of a container's link, or each port by which its bridge leads to its router, is down.
fn down(look: Look<'_>, site: &Site<'_>, ports: &[&Link]) -> Option<Finding> {
    let host = &look.scene.host;
    let (fault, by, kinds) = match site.joint {
        Joint::Macvlan(_) | Joint::Ipvlan(_) | Joint::Vlan => {
            let kinds = [&OUT[..], &[WayKind::Between]].concat();
            (fault(host, site.host_end)?, site.host_end, kinds)
        }
        Joint::Pair => {
            let router = site.router(look.scene)?;
            let faults = ports.iter().copied().map(|port| fault(host, port));
            let faults: Option<Vec<&Link>> = faults.collect();
            // Last, as it goes through all containers.
            let first = faults?.first().copied().filter(|_| is_beyond(look, router))?;
            (first, ports.first().copied()?, OUT.to_vec())
        }
        Joint::Switch => return None,
    };
    let (name, network) = (&fault.name, &site.attachment.network);
    let (what, fix) = if fault.up {
        (
            "has no carrier",
            Help::Advice(format!("look at the cable of {name}, or at its other end")),
        )
    } else {
        ("is down", Help::Command(format!("ip link set {name} up")))
    };
    let says = format!("{name} {what}, and containers of {network} reach others only by it");
    let finding = Finding::error("parent-down", name.clone(), says).help(fix);
    let finding = if by.index == fault.index {
        finding
    } else {
        finding.seen(format!("{} lies above it", by.name))
    };
    Some(broken(finding, site, &kinds))
}

/// Returns the lowest link that carries nothing, of a link and those below it.
fn fault<'s>(host: &'s Namespace, link: &'s Link) -> Option<&'s Link> {
    let below = |link: &&'s Link| {
        let is_on_parent =
            matches!(link.kind.as_deref(), Some("vlan" | "macvlan" | "ipvlan" | "macvtap"));
        let parent = link.peer.filter(|_| is_on_parent && link.peer_netnsid.is_none());
        parent.and_then(|index| host.link_of(index))
    };
    let all = std::iter::successors(Some(link), below).take(DEEP);
    all.filter(|link| !link.up || !link.carrier).last()
}

/// Says whether an address is no container's.
fn is_beyond(look: Look<'_>, address: IpAddr) -> bool {
    let mut insides = look.scene.containers.iter().filter_map(|one| one.inside.as_ref());
    !insides.any(|inside| inside.owner_of(address).is_some())
}

/// A link of a bridge that lacks a VLAN.
struct Gap<'s> {
    port: &'s Link,
    /// The VLAN; `None`: it takes no frames without a tag.
    vlan: Option<u16>,
    /// The options of `bridge vlan add` that fill it.
    options: &'static str,
}

fn gap<'s>(look: Look<'s>, site: &Site<'s>, ports: &[&'s Link]) -> Option<Gap<'s>> {
    let bridge = site.bridge.filter(|bridge| bridge.vlan_filtering)?;
    let port = site.host_end;
    let is_read = look.scene.host.links.iter().any(|link| !link.vlans.is_empty());
    if !is_read {
        return None;
    }
    let Some(vlan) = untagged_vlan(port) else {
        // A container may make links of its own for the VLANs of a trunk.
        let of_container = |link: &Link| link.peer == Some(site.link.index) && link.vlan.is_some();
        let is_trunk = site.inside.links.iter().any(of_container);
        return (!is_trunk).then_some(Gap { port, vlan: None, options: " pvid untagged" });
    };
    if let Some(router) = site.router(look.scene) {
        let lacks = |port: &&Link| has_vlan(port, vlan).is_none();
        let is_lost = !ports.is_empty() && ports.iter().all(lacks) && is_beyond(look, router);
        if !is_lost || hears(look, site.container, site.link, router) == Some(true) {
            return None;
        }
        let port = if let [only] = ports { *only } else { bridge };
        return Some(Gap { port, vlan: Some(vlan), options: "" });
    }
    site.gateway?;
    let outcome = follow(look.scene, &Trip::Resolve { from: site });
    let Outcome::Stopped(stop) = outcome else { return None };
    let StopCause::Vlan { port, vlan } = stop.why else { return None };
    // The reference is to the scene; the outcome borrows the site as well.
    let port = look.scene.host.link_of(port.index)?;
    let options = match (port.index == bridge.index, site.seen_by.index == bridge.index) {
        (true, true) => " pvid untagged self",
        (true, false) => " self",
        (false, _) => " pvid untagged",
    };
    Some(Gap { port, vlan, options })
}

fn missing(look: Look<'_>, site: &Site<'_>, gap: &Gap<'_>) -> Finding {
    let (port, called) = (&gap.port.name, site.container.called());
    let is_own = gap.port.index == site.host_end.index;
    let (object, says, vlan) = match gap.vlan {
        Some(vlan) => (
            format!("{port} VLAN {vlan}"),
            format!("{port} is not in VLAN {vlan}, to which the frames of {called} belong"),
            vlan.to_string(),
        ),
        None => (
            format!("{port} without a tag"),
            format!("{port} takes no frames without a tag, but {called} sends only such"),
            usual(look, site).map_or("VLAN".to_owned(), |vlan| vlan.to_string()),
        ),
    };
    let bridge = site.bridge.map_or("the bridge", |bridge| bridge.name.as_str());
    let finding = Finding::error("vlan-missing", object, says)
        .at(format!("bridge vlan show dev {port}"))
        .seen(format!("{bridge} filters VLANs"))
        .fix(format!("bridge vlan add dev {port} vid {vlan}{}", gap.options));
    let mut kinds = OUT.to_vec();
    kinds.extend([WayKind::FromNode, WayKind::Published, WayKind::PublishedHere]);
    if is_own {
        kinds.push(WayKind::Between);
    }
    broken(finding, site, &kinds)
}

/// The VLAN of other containers of the network.
fn usual(look: Look<'_>, site: &Site<'_>) -> Option<u16> {
    let everybody = sites(Look { only: None, ..look });
    let mut others = everybody.filter(|other| other.attachment.network == site.attachment.network);
    others.find_map(|other| untagged_vlan(other.host_end))
}

/// A macvlan, or an ipvlan that switches, does not reach the address of its own parent.
fn apart(look: Look<'_>, site: &Site<'_>) -> Option<Finding> {
    let is_joined = site.is_beside_parent();
    let gateway = site.gateway.filter(|gateway| is_joined && site.has_route_by(*gateway))?;
    let owner = look.scene.host.owner_of(gateway)?;
    if owner.index != site.host_end.index {
        return None;
    }
    let (called, parent, network) =
        (site.container.called(), &owner.name, &site.attachment.network);
    let says = format!(
        "the gateway {gateway} of {called} is this node's address on {parent}, and links on top of {parent} cannot reach that"
    );
    let object = format!("{called}: {gateway}");
    let finding = Finding::error("router-silent", object, says)
        .seen(format!("{} of {called} is a link on {parent}", site.link.name))
        .advise(format!(
            "give network {network} the router of that network as its gateway, or give the address to a macvlan of this node on {parent}"
        ));
    Some(broken(finding, site, &OUT))
}

/// What Open vSwitch does with a container's packets is neither sound nor broken here. An answer
/// shows that they pass.
fn decided(look: Look<'_>, site: &Site<'_>) -> Option<Finding> {
    let called = site.container.called();
    // Then it is known what the switch does.
    if !site.attachment.switch_drops.is_empty() {
        return None;
    }
    let asked = questions(look, site);
    let answers: Vec<&Answer> = asked.iter().filter_map(|one| look.answers.to(one)).collect();
    // The node may drop echo requests, and what goes beyond it passes the switch, too. What passes by
    // one IP version shows nothing of the other.
    let mut of_container = look.answers.from(Some(&site.container.id));
    if of_container.any(|(asked, answer)| {
        answer.is_of_other_end() && IpFamily::of(asked.address()) == site.family()
    }) {
        return None;
    }
    let seen = if look.answers.all.is_empty() {
        "nothing was sent".to_owned()
    } else if answers.is_empty() {
        return None;
    } else {
        let to: Vec<String> = asked.iter().filter_map(to).collect();
        format!("no echo request of {called} was answered by {}", to.join(" or "))
    };
    let says = format!("Open vSwitch decides here what {called} reaches");
    let object = format!("{called}: {}", site.attachment.network);
    let networks = look.scene.networks.iter();
    let network = networks.into_iter().find(|one| one.name == site.attachment.network);
    let bridge = network.and_then(|network| network.link.as_deref()).unwrap_or("BRIDGE");
    let finding = Finding::unknown("switch-decides", object, says)
        .at(format!("port {}", site.host_end.name))
        .seen(seen)
        .advise(format!(
            "ask the switch: ovs-ofctl dump-flows {bridge} (a bridge without flows drops everything), ovs-vsctl list port {}, and ovs-appctl ofproto/trace",
            site.host_end.name
        ));
    Some(finding.hits(site.container.id.clone()))
}

fn to(question: &Question) -> Option<String> {
    match &question.asked {
        Probe::Echo { to } => Some(to.to_string()),
        _ => None,
    }
}
