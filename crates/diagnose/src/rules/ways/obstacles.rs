//! What surely keeps a container from an address beyond its network, and what a probe of it that was
//! lost shows: an address of its own parent, a translation past which the answers go, a link that has
//! the address's subnet.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use net::IpFamily;

use super::samples;
use super::taken::{PacketWay, taken};
use super::{exceptions, in_table, rule_text, text};
use crate::Look;
use crate::command::within;
use crate::filter::{Layer, NewDestination, Packet, Port, Truth, walk};
use crate::finding::{Finding, Help};
use crate::model::filter::Hook;
use crate::model::{
    Attachment, Container, IpvlanReach, Link, MacvlanMode, Namespace, Part, Route, Scene, Transport,
};
use crate::path::{Joint, Site, carries, links_of_containers, may_ask, uplink};
use crate::question::{Answer, Question};
use crate::routes::{RouteDecision, TABLE_MAIN, look_up};
use crate::rules::{asks_links, containers, ip};
use crate::whose;

/// What keeps a container from an address.
#[derive(Debug)]
pub(in crate::rules) struct Obstacle {
    /// It in words, as a sentence of a finding.
    says: String,
    seen: Vec<String>,
    whose: Option<String>,
    help: Vec<Help>,
}

impl Obstacle {
    /// Puts it in the place of what a finding says, and of what helps.
    pub(in crate::rules) fn tell(self, finding: Finding) -> Finding {
        let Obstacle { says, seen, whose, help } = self;
        let finding = Finding { says, advice: Vec::new(), fix: Vec::new(), ..finding };
        let finding = seen.into_iter().fold(finding, Finding::seen);
        let finding = help.into_iter().fold(finding, Finding::help);
        Finding { whose: whose.or(finding.whose.clone()), ..finding }
    }
}

/// Asks on links that have an address's subnet, and on which nobody may have it.
pub(in crate::rules) fn asks(
    look: Look<'_>,
    container: &Container,
    to: SocketAddr,
) -> Vec<Question> {
    if !asks_links(look) {
        return Vec::new();
    }
    let way = taken(look, container, to, Transport::Tcp);
    let on_node = way.and_then(|way| way.shadow(look)).map(|shadow| shadow.link);
    let on_node = on_node.filter(|link| may_ask(link, IpFamily::of(to.ip()), None));
    let within = container.inside.as_ref().and_then(|inside| near_inside(inside, to.ip()));
    let within =
        within.map(|(link, _)| link).filter(|link| may_ask(link, IpFamily::of(to.ip()), None));
    let of_node = on_node.map(|link| Question::who_has(None, &link.name, to.ip()));
    let within = within.map(|link| Question::who_has(Some(container), &link.name, to.ip()));
    of_node.into_iter().chain(within).collect()
}

/// Finds what keeps a container from an address that it was not answered from. `of_node` says whether
/// the node itself is answered there, if it has asked.
pub(in crate::rules) fn obstacle(
    look: Look<'_>,
    container: &Container,
    to: SocketAddr,
    transport: Transport,
    of_node: Option<bool>,
) -> Option<Obstacle> {
    apart(look, container, to)
        .or_else(|| bridged_past(look, container, to, transport))
        .or_else(|| {
            let shadow = shadow_inside(container, to.ip())?;
            shadowed(look, Some(container), container, to, of_node, &shadow)
        })
        .or_else(|| {
            let way = taken(look, container, to, transport).filter(|_| of_node != Some(true))?;
            match way.shadow(look) {
                Some(shadow) => shadowed(look, None, container, to, of_node, &shadow),
                None => led(look, container, to, of_node, &way),
            }
        })
        .or_else(|| by_other_router(look, container, to, of_node))
}

/// The container's gateway is another machine than the router by which the node is answered, in the
/// same subnet: it is there, and need not be a router.
fn by_other_router(
    look: Look<'_>,
    container: &Container,
    to: SocketAddr,
    of_node: Option<bool>,
) -> Option<Obstacle> {
    let inside = container.inside.as_ref()?;
    let routed = look_up(inside, None, to.ip(), None, Some(0));
    let RouteDecision::By { link, via: Some(via), .. } = routed else { return None };
    let attachment = container.attachments.iter().find(|one| one.ifname == link.name)?;
    let is_meant = of_node == Some(true) && attachment.gateways.contains(&via);
    let router = node_router(look.scene, link, via, to.ip()).filter(|_| is_meant)?;
    let called = container.called();
    Some(Obstacle {
        says: format!(
            "{to} answers this node, and not {called}: {called} sends it to {via}, the gateway of network {}, and this node to {router}, in the same subnet",
            attachment.network
        ),
        seen: Vec::new(),
        whose: None,
        help: vec![Help::Advice(instead(look.scene, container, attachment, via, router))],
    })
}

/// Returns the router to which the node sends what is for an address, if a container's link has it in
/// the subnet of its gateway, which is another machine, and not the node.
pub(in crate::rules) fn node_router(
    scene: &Scene,
    link: &Link,
    gateway: IpAddr,
    to: IpAddr,
) -> Option<IpAddr> {
    let routed = look_up(&scene.host, None, to, None, Some(0));
    let RouteDecision::By { via: Some(router), .. } = routed else { return None };
    let is_other = router != gateway && scene.host.owner_of(gateway).is_none();
    subnet_of(link, router).filter(|net| is_other && net.contains(&gateway)).map(|_| router)
}

/// What to do if a network's gateway is mistyped.
pub(in crate::rules) fn instead(
    scene: &Scene,
    container: &Container,
    attachment: &Attachment,
    gateway: IpAddr,
    router: IpAddr,
) -> String {
    let Attachment { network, ifname, .. } = attachment;
    let file = scene.networks.iter().find(|one| one.name == *network);
    let file = file.and_then(|network| network.file.as_deref()).unwrap_or("its configuration");
    let tool = format!("{}{}", within(container.netns.as_str()), ip(IpFamily::of(router)));
    let metric = container.inside.iter().flat_map(|inside| &inside.routes).find_map(|route| {
        let is_it =
            route.to.prefix_len() == 0 && route.hops.iter().any(|hop| hop.via == Some(gateway));
        (is_it && route.metric != 0).then(|| format!(" metric {}", route.metric))
    });
    format!(
        "if {gateway}, the gateway of network {network}, is mistyped ({file}), and {router} is the router: \"gateway\": \"{router}\" there, and in {} now: {tool} route replace default via {router} dev {ifname}{}",
        container.called(),
        metric.unwrap_or_default()
    )
}

/// A routing rule leads what both the container and the node send there elsewhere than the main
/// table's default route, as that of `wg-quick` into its tunnel.
fn led(
    look: Look<'_>,
    container: &Container,
    to: SocketAddr,
    of_node: Option<bool>,
    way: &PacketWay<'_>,
) -> Option<Obstacle> {
    let ((link, _, route), rule) = (way.leaves?, way.by_rule?);
    let out = uplink(look.scene, to.is_ipv4()).filter(|out| out.index != link.index)?;
    if of_node != Some(false) || route.table == TABLE_MAIN || route.to.prefix_len() != 0 {
        return None;
    }
    let (called, name) = (container.called(), &link.name);
    let past = exceptions(look, rule, std::slice::from_ref(&container.id), way.to);
    Some(Obstacle {
        says: format!(
            "{to} answers neither {called} nor this node: routing rule {} leads what both send there to {name}, and no answer comes from there",
            rule.priority
        ),
        seen: vec![format!(
            "rule {}; then route {}",
            rule_text(rule),
            text(route, &look.scene.host)
        )],
        whose: whose::of_link(link, look.scene),
        help: vec![Help::Advice(format!(
            "look at what is behind {name}; or, if what {called} sends is to go by {} instead, past a VPN that {name} may be: {}",
            out.name,
            past.join("; ")
        ))],
    })
}

/// The address is the parent's own, and the container's link lies on that parent.
fn apart(look: Look<'_>, container: &Container, to: SocketAddr) -> Option<Obstacle> {
    let inside = container.inside.as_ref()?;
    let RouteDecision::By { link, via: None, .. } = look_up(inside, None, to.ip(), None, Some(0))
    else {
        return None;
    };
    let mut sites = Site::every(look.scene, container, IpFamily::of(to.ip()));
    let site = sites.find(|site| site.link.index == link.index)?;
    if let Some(sibling) = sibling(look, &site, to.ip()) {
        return kept_apart(&site, &sibling, to);
    }
    let owner = look.scene.host.owner_of(to.ip()).filter(|_| site.is_beside_parent())?;
    // A link of the node beside the parent may answer for it.
    let is_beside = |link: &Link| {
        let is_on = link.peer == Some(owner.index) && link.peer_netnsid.is_none();
        is_on && link.up && matches!(link.kind.as_deref(), Some("macvlan" | "ipvlan"))
    };
    if owner.index != site.host_end.index || look.scene.host.links.iter().any(is_beside) {
        return None;
    }
    let (called, parent) = (container.called(), &owner.name);
    let (kind, beside) = match site.joint {
        Joint::Ipvlan(_) => ("ipvlan", "ipvlan mode l2"),
        _ => ("macvlan", "macvlan mode bridge"),
    };
    Some(Obstacle {
        says: format!(
            "{called} cannot reach {to}: {} is this node's address on {parent}, and {} of {called} is a link on {parent} ({kind}), which never reaches the addresses of {parent} itself",
            to.ip(),
            link.name
        ),
        seen: Vec::new(),
        whose: None,
        help: vec![Help::Advice(format!(
            "give this node a link beside it, with an address of its own and a route to {} (ip link add NAME link {parent} type {beside}), or {called} a second network that leads to this node",
            site.address
        ))],
    })
}

/// Returns the container that has an address on the same parent.
fn sibling<'s>(look: Look<'s>, site: &Site<'_>, address: IpAddr) -> Option<Site<'s>> {
    if !matches!(site.joint, Joint::Macvlan(_) | Joint::Ipvlan(_)) {
        return None;
    }
    let everybody = containers(Look { only: None, ..look });
    let mut sites = everybody.flat_map(|one| Site::every(look.scene, one, IpFamily::of(address)));
    sites.find(|other| {
        other.address == address
            && other.container.id != site.container.id
            && other.host_end.index == site.host_end.index
    })
}

/// The mode of two links on one parent keeps them apart, or leaves it to the switch behind the parent
/// (linux drivers/net/macvlan.c `macvlan_queue_xmit`, `macvlan_multicast_rx`; ipvlan/ipvlan_core.c).
fn kept_apart(site: &Site<'_>, other: &Site<'_>, to: SocketAddr) -> Option<Obstacle> {
    let private = |of: &Site<'_>| match of.joint {
        Joint::Macvlan(mode) => mode == MacvlanMode::Private,
        Joint::Ipvlan(ipvlan) => ipvlan.reach == IpvlanReach::Private,
        _ => false,
    };
    let by_switch = |of: &Site<'_>| match of.joint {
        Joint::Macvlan(mode) => mode == MacvlanMode::Vepa,
        Joint::Ipvlan(ipvlan) => ipvlan.reach == IpvlanReach::Vepa,
        _ => false,
    };
    let both = [site, other];
    let parent = &site.host_end.name;
    let (of, mode, does) = match both.iter().find(|of| private(of)) {
        Some(of) => (of, "private", "which reaches no other link there".to_owned()),
        None => (
            both.iter().find(|of| by_switch(of))?,
            "vepa",
            format!(
                "which sends all to the switch behind {parent}, and that sends nothing back unless its port does so (hairpin)"
            ),
        ),
    };
    let (called, kind) = (site.container.called(), of.link.kind.as_deref().unwrap_or_default());
    let set = |of: &&Site<'_>| {
        let (name, tool) = (&of.link.name, within(of.container.netns.as_str()));
        match of.joint {
            Joint::Ipvlan(_) => None,
            _ => Some(format!("{tool}ip link set {name} type {kind} mode bridge")),
        }
    };
    let now: Vec<String> =
        both.iter().filter(|of| private(of) || by_switch(of)).filter_map(set).collect();
    let now = match now.is_empty() {
        true => String::new(),
        false => format!(", and for these two now: {}", now.join("; ")),
    };
    Some(Obstacle {
        says: format!(
            "{called} does not reach {to}: it is {}, also a link on {parent}, and {} of {} is of mode {mode}, {does}",
            other.container.called(),
            of.link.name,
            of.container.called()
        ),
        seen: Vec::new(),
        whose: None,
        help: vec![Help::Advice(format!(
            "the mode may be meant to keep containers apart; if they are to reach each other, \"mode\": \"bridge\" for network {} where containers are made{now}",
            of.attachment.network
        ))],
    })
}

/// A rule translates the address to a container on the same bridge. That one answers by the bridge,
/// where the answer is translated back only if the bridge shows it to IP's filters. If the bridge does,
/// it is the bridge that sends the packet on (linux net/bridge/br_netfilter_hooks.c
/// `br_nf_pre_routing_finish`), to the sender itself only in hairpin mode.
fn bridged_past(
    look: Look<'_>,
    container: &Container,
    to: SocketAddr,
    transport: Transport,
) -> Option<Obstacle> {
    let host = &look.scene.host;
    if look.scene.lacks(Part::Sysctls, None) {
        return None;
    }
    let family = IpFamily::of(to.ip());
    let with = carries(transport, Port::Is(to.port()));
    Site::all(look.scene, container, family).find_map(|site| {
        let bridge = site.bridge?;
        let (key, shows) = match to.is_ipv4() {
            true => ("net.bridge.bridge-nf-call-iptables", bridge.shows_ipv4),
            false => ("net.bridge.bridge-nf-call-ip6tables", bridge.shows_ipv6),
        };
        let is_on = host.number(key).map(|value| value != 0);
        let routed = look_up(site.inside, Some(site.address), to.ip(), None, Some(0));
        let by_node = matches!(
            routed,
            RouteDecision::By { link, via: Some(via), .. }
                if link.index == site.link.index && host.owner_of(via).is_some()
        );
        let is_shown = shows || is_on == Some(true);
        if !by_node {
            return None;
        }
        let iif = Some(site.seen_by.name.as_str());
        let walked = site.enter(host, to.ip(), with);
        let (place, NewDestination::To(Some(address), port)) = walked.destination? else {
            return None;
        };
        if is_shown {
            let is_own = address == site.address && site.host_end.no_hairpin;
            return is_own.then(|| without_hairpin(&site, bridge, to));
        }
        let other = on_bridge(look, bridge, address)?;
        let is_back = look_up(other.inside, Some(address), site.address, None, Some(0));
        let goes_by_bridge = matches!(
            is_back,
            RouteDecision::By { link, via: None, .. } if link.index == other.link.index
        );
        let left = Packet { destination: address, ..walked.packet };
        let left = left.between(iif, Some(&bridge.name));
        let source = walk(host, Layer::Ip, Hook::Postrouting, &left).source;
        if other.container.id == container.id || !goes_by_bridge || source != Truth::No {
            return None;
        }
        let (called, end) = (container.called(), SocketAddr::new(address, port.unwrap_or(to.port())));
        let help = match is_on {
            Some(_) => vec![
                Help::Command(format!("sysctl -w {key}=1")),
                Help::Advice(
                    "with it, the packet filters of this node's IP see all that its bridges pass, also between containers of one bridge".to_owned(),
                ),
            ],
            None => vec![Help::Advice(format!(
                "load the kernel's module br_netfilter (modprobe br_netfilter), with which {key} is 1; then the packet filters of this node's IP see all that its bridges pass"
            ))],
        };
        let is = match is_on {
            Some(_) => format!("{key} is 0"),
            None => "the kernel's module br_netfilter is not loaded".to_owned(),
        };
        Some(Obstacle {
            says: format!(
                "the answers of {to} do not get back to {called} as such: {to} is translated to {end} of {}, which is on the same bridge {} and answers there, past the translation ({is})",
                other.container.called(),
                bridge.name
            ),
            seen: vec![format!("{place}; {is}")],
            whose: whose::of_place(&place, look.scene),
            help,
        })
    })
}

/// A container asks its own published port, and the bridge does not send the frames back to it.
fn without_hairpin(site: &Site<'_>, bridge: &Link, to: SocketAddr) -> Obstacle {
    let (called, port) = (site.container.called(), &site.host_end.name);
    let fix = Help::Command(format!("bridge link set dev {port} hairpin on"));
    let network = &site.attachment.network;
    let lasting = site.attachment.has_plugin("bridge").then(|| {
        Help::Advice(format!(
            "\"hairpinMode\": true for network {network} sets it where a container is made"
        ))
    });
    Obstacle {
        says: format!(
            "{called} does not reach itself by {to}: {} sends no frame back by {port}, by which it came (hairpin mode is off)",
            bridge.name
        ),
        seen: vec![format!(
            "{to} is translated to {called}, and the bridge sends that on itself, as it shows its frames to IP's filters (br_netfilter)"
        )],
        whose: None,
        help: std::iter::once(fix).chain(lasting).collect(),
    }
}

/// Returns the container that has an address on a bridge.
fn on_bridge<'s>(look: Look<'s>, bridge: &Link, address: IpAddr) -> Option<Site<'s>> {
    let everybody = containers(Look { only: None, ..look });
    let mut sites = everybody.flat_map(|one| Site::all(look.scene, one, IpFamily::of(address)));
    sites.find(|site| {
        site.address == address && site.bridge.is_some_and(|own| own.index == bridge.index)
    })
}

/// A link that has the subnet of an address which should be elsewhere, or a route that leads there.
#[derive(Debug, Clone)]
pub(super) struct Shadow<'s> {
    pub(super) link: &'s Link,
    pub(super) route: String,
    /// The route's table.
    table: u32,
    /// The link's own address in whose subnet it is.
    pub(super) subnet: Option<IpNet>,
}

impl<'s> PacketWay<'s> {
    /// Returns the node's link to which a more specific route leads the packets, unless that is the
    /// link to others or leads to containers.
    fn shadow(&self, look: Look<'s>) -> Option<Shadow<'s>> {
        let (link, via, route) = self.leaves?;
        let to = self.to;
        let of_containers = links_of_containers(look.scene);
        let mut networks = look.scene.networks.iter().filter_map(|one| one.link.as_deref());
        let is_out = uplink(look.scene, to.is_ipv4()).is_some_and(|out| out.index == link.index);
        let is_meant = is_out
            || of_containers.contains(link.name.as_str())
            || networks.any(|name| name == link.name)
            || route.to.prefix_len() == 0
            || via.is_some();
        let (table, route) = (route.table, text(route, &look.scene.host));
        (!is_meant).then(|| Shadow { link, route, table, subnet: subnet_of(link, to) })
    }
}

pub(in crate::rules) fn subnet_of(link: &Link, address: IpAddr) -> Option<IpNet> {
    let mut all = link.addresses.iter().map(|own| own.address);
    all.find(|own| own.contains(&address) && own.addr() != address)
}

/// Returns the link of a container on which a route of its own says that an address is, and the route.
pub(super) fn near_inside(inside: &Namespace, to: IpAddr) -> Option<(&Link, &Route)> {
    let RouteDecision::By { link, via: None, route, .. } = look_up(inside, None, to, None, Some(0))
    else {
        return None;
    };
    (link.name != "lo" && route.to.prefix_len() != 0).then_some((link, route))
}

/// Returns the link of a container that has the address's subnet, if its default route is by another.
fn shadow_inside(container: &Container, to: IpAddr) -> Option<Shadow<'_>> {
    let inside = container.inside.as_ref()?;
    let (link, route) = near_inside(inside, to)?;
    let [sample, ..] = samples(IpFamily::of(to));
    let RouteDecision::By { link: out, .. } = look_up(inside, None, sample, None, Some(0)) else {
        return None;
    };
    let subnet = subnet_of(link, to)?;
    (out.index != link.index).then(|| Shadow {
        link,
        route: text(route, inside),
        table: route.table,
        subnet: Some(subnet),
    })
}

/// Says that a link has the subnet of an address, and that no machine there has it, as far as that was
/// asked. `inside` is the container whose link it is.
fn shadowed(
    look: Look<'_>,
    inside: Option<&Container>,
    container: &Container,
    to: SocketAddr,
    of_node: Option<bool>,
    shadow: &Shadow<'_>,
) -> Option<Obstacle> {
    let Shadow { link, route, table, subnet } = shadow;
    let name = &link.name;
    let asked = Question::who_has(inside, name, to.ip());
    let nobody = match look.answers.to(&asked).and_then(Answer::has_owner) {
        Some(false) => "no machine there answers for it",
        Some(true) => return None,
        _ if !link.carrier => "it has no carrier",
        // Of links without hardware addresses nothing more is known.
        _ if inside.is_none() => "no answer comes from there",
        _ => return None,
    };
    let (called, ip) = (container.called(), to.ip());
    let of_whom = inside.map_or(String::new(), |one| format!(" of {}", one.called()));
    let counts = match subnet {
        Some(own) => format!("{ip} counts as a machine on {name}{of_whom}, which has {own}"),
        None => format!("route {route} leads what is for {ip} to {name}"),
    };
    let silent = match of_node {
        Some(false) => format!("{to} answers neither {called} nor this node"),
        _ => format!("{to} does not answer {called}"),
    };
    let whose = match inside {
        Some(_) => None,
        None => whose::of_link(link, look.scene)
            .or_else(|| Some(format!("another program or a person made {name}"))),
    };
    let past =
        past(look, inside, ip, *table).map(|command| format!(" ({command})")).unwrap_or_default();
    Some(Obstacle {
        says: format!("{silent}: {counts}, and {nobody}"),
        seen: Vec::new(),
        whose,
        help: vec![Help::Advice(format!(
            "if {ip} is not meant to be behind {name}, give the network of {name} another subnet, or {ip} a route of its own past it{past}"
        ))],
    })
}

/// The command that leads an address by the default route's router, in the table that is asked for it.
pub(super) fn past(
    look: Look<'_>,
    inside: Option<&Container>,
    to: IpAddr,
    table: u32,
) -> Option<String> {
    let [sample, ..] = samples(IpFamily::of(to));
    let namespace: &Namespace = match inside {
        Some(one) => one.inside.as_ref()?,
        None => &look.scene.host,
    };
    let RouteDecision::By { link, via: Some(via), .. } =
        look_up(namespace, None, sample, None, Some(0))
    else {
        return None;
    };
    let tool = within(inside.map(|one| one.netns.as_str()));
    let version = ip(IpFamily::of(to));
    let net = IpNet::from(to);
    let table = in_table(table);
    Some(format!("{tool}{version} route add {net} via {via} dev {}{table}", link.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::samples::{dnat, nat, rule, table, tcp_port};
    use crate::model::filter::Family as Kin;
    use crate::model::{Ipvlan, IpvlanMode};
    use crate::path::samples::{ip, node, on_parent, with};
    use crate::question::Answers;
    use crate::question::Probe;
    use crate::routes::samples::{link, route};

    /// What is said of an address that does not answer c2, and what helps.
    fn said(scene: &Scene, to: &str, of_node: bool, all: Vec<(Question, Answer)>) -> String {
        let answers = Answers { all };
        let look = Look { scene, answers: &answers, only: None, to: None };
        let container = &scene.containers[0];
        let found = obstacle(look, container, to.parse().unwrap(), Transport::Tcp, Some(of_node));
        let finding = Finding::error("outside-silent", "c2", "silent").advise("look elsewhere");
        let finding = found.map(|found| found.tell(finding));
        finding.map_or(String::new(), |one| {
            format!("{} | {}", one.says, [one.fix, one.advice].concat().join("; "))
        })
    }

    #[test]
    fn a_macvlan_does_not_reach_its_parent() {
        let set = |link: &mut Link| link.macvlan = Some(MacvlanMode::Bridge);
        let mut scene = on_parent("macvlan", set);
        let subnet = route("192.0.2.0/24", 2, None);
        scene.containers[0].inside.as_mut().unwrap().routes.push(subnet);
        let says = said(&scene, "192.0.2.2:8080", true, Vec::new());
        let begins = "c2 cannot reach 192.0.2.2:8080: 192.0.2.2 is this node's address on up0";
        assert!(says.starts_with(begins), "{says}");
        // Another machine, and another address of the node.
        assert_eq!(said(&scene, "192.0.2.3:8080", true, Vec::new()), "");
        assert_eq!(said(&scene, "10.8.0.2:8080", true, Vec::new()), "");
        // By a link of the node beside it, it may.
        let shim =
            Link { kind: Some("macvlan".to_owned()), peer: Some(2), ..link(60, "shim", &[]) };
        scene.host.links.push(shim);
        assert_eq!(said(&scene, "192.0.2.2:8080", true, Vec::new()), "");
        assert_eq!(said(&node(), "192.0.2.2:8080", true, Vec::new()), "");
    }

    #[test]
    fn the_mode_of_a_link_keeps_two_containers_of_one_parent_apart() {
        let to = "10.88.0.3:80";
        let macvlan = |mode| on_parent("macvlan", |link| link.macvlan = Some(mode));
        let says = said(&macvlan(MacvlanMode::Private), to, false, Vec::new());
        let begins = "c2 does not reach 10.88.0.3:80: it is c3, also a link on up0, and eth0 of c2 \
                      is of mode private, which reaches no other link there | ";
        assert!(says.starts_with(begins), "{says}");
        let both = "now: nsenter --net=/run/netns/c2 ip link set eth0 type macvlan mode bridge; \
                    nsenter --net=/run/netns/c3 ip link set eth0 type macvlan mode bridge";
        assert!(says.ends_with(both), "{says}");
        let says = said(&macvlan(MacvlanMode::Vepa), to, false, Vec::new());
        assert!(says.contains("of mode vepa, which sends all to the switch behind up0"), "{says}");
        assert_eq!(said(&macvlan(MacvlanMode::Bridge), to, false, Vec::new()), "");
        // Only the other one is so.
        let mut mixed = macvlan(MacvlanMode::Bridge);
        let other = mixed.containers[1].inside.as_mut().unwrap();
        other.links[1].macvlan = Some(MacvlanMode::Private);
        let says = said(&mixed, to, false, Vec::new());
        assert!(says.contains("and eth0 of c3 is of mode private"), "{says}");
        assert_eq!(says.matches("ip link set").count(), 1, "{says}");
        let reach = IpvlanReach::Private;
        let ipvlan = |link: &mut Link| link.ipvlan = Some(Ipvlan { mode: IpvlanMode::L2, reach });
        let says = said(&on_parent("ipvlan", ipvlan), to, false, Vec::new());
        assert!(says.contains("is of mode private") && !says.contains("nsenter"), "{says}");
        // Another machine there.
        assert_eq!(said(&macvlan(MacvlanMode::Private), "10.88.0.9:80", true, Vec::new()), "");
    }

    #[test]
    fn answers_pass_by_the_bridge_without_being_translated_back() {
        let key = "net.bridge.bridge-nf-call-iptables";
        let service = |to: &str| {
            let rules = vec![rule(&[tcp_port(80), dnat(to, 80)])];
            let chains = vec![nat("pre", Hook::Prerouting, -100, rules)];
            let mut scene = node();
            // What it sends to its own network keeps its source.
            scene.host.filter.tables.clear();
            with(scene, table(Kin::Ip, "kube-proxy", chains))
        };
        let mut scene = service("10.88.0.3");
        scene.host.sysctls.insert(key.to_owned(), "0".to_owned());
        let says = said(&scene, "10.96.0.10:80", true, Vec::new());
        assert!(says.contains("is translated to 10.88.0.3:80 of c3"), "{says}");
        assert!(says.contains(&format!("| sysctl -w {key}=1; ")), "{says}");
        // The bridge shows its frames, by itself or by the parameter.
        let mut shown = scene.clone();
        shown.host.links.iter_mut().find(|link| link.name == "cni0").unwrap().shows_ipv4 = true;
        assert_eq!(said(&shown, "10.96.0.10:80", true, Vec::new()), "");
        scene.host.sysctls.insert(key.to_owned(), "1".to_owned());
        assert_eq!(said(&scene, "10.96.0.10:80", true, Vec::new()), "");
        // Without the module there is no parameter.
        scene.host.sysctls.clear();
        let says = said(&scene, "10.96.0.10:80", true, Vec::new());
        assert!(says.contains("| load the kernel's module br_netfilter"), "{says}");
        // On another machine, on no bridge of c2, and c2 itself.
        for to in ["192.0.2.9", "10.88.0.99", "10.88.0.2"] {
            assert_eq!(said(&service(to), "10.96.0.10:80", true, Vec::new()), "", "{to}");
        }
        // The other one answers by the node.
        let mut routed = service("10.88.0.3");
        let other = routed.containers[1].inside.as_mut().unwrap();
        other.routes.retain(|route| route.to.prefix_len() == 0);
        assert_eq!(said(&routed, "10.96.0.10:80", true, Vec::new()), "");
    }

    #[test]
    fn the_gateway_is_another_machine_than_the_nodes_router() {
        let set = |link: &mut Link| {
            link.macvlan = Some(MacvlanMode::Bridge);
            link.addresses[0].address = "192.0.2.77/24".parse().unwrap();
        };
        let mut scene = on_parent("macvlan", set);
        let mut lead = |to: &str| {
            let container = &mut scene.containers[0];
            container.attachments[0].gateways = vec![ip(to)];
            container.inside.as_mut().unwrap().routes[0].hops[0].via = Some(ip(to));
            said(&scene, "198.51.100.1:80", true, Vec::new())
        };
        let says = lead("192.0.2.11");
        let begins = "198.51.100.1:80 answers this node, and not c2: c2 sends it to 192.0.2.11, the \
                      gateway of network mynet, and this node to 192.0.2.1, in the same subnet | ";
        assert!(says.starts_with(begins), "{says}");
        let now = "nsenter --net=/run/netns/c2 ip route replace default via 192.0.2.1 dev eth0";
        assert!(says.ends_with(now), "{says}");
        assert_eq!(lead("192.0.2.1"), "");
        // In another subnet there may be another router.
        assert_eq!(lead("10.88.0.254"), "");
    }

    #[test]
    fn a_container_asks_its_own_port_without_hairpin_mode() {
        let key = "net.bridge.bridge-nf-call-iptables";
        let mut scene = node();
        scene.host.sysctls.insert(key.to_owned(), "1".to_owned());
        let ask = |scene: &Scene, to: &str| said(scene, to, true, Vec::new());
        assert_eq!(ask(&scene, "192.0.2.2:8080"), "");
        let port = |scene: &mut Scene, is_off: bool| {
            let port = scene.host.links.iter_mut().find(|link| link.name == "veth2").unwrap();
            port.no_hairpin = is_off;
        };
        port(&mut scene, true);
        let says = ask(&scene, "192.0.2.2:8080");
        let begins =
            "c2 does not reach itself by 192.0.2.2:8080: cni0 sends no frame back by veth2";
        assert!(says.starts_with(begins), "{says}");
        assert!(says.contains("| bridge link set dev veth2 hairpin on; "), "{says}");
        // What leads to nobody; and the node itself sends it on, not the bridge.
        assert_eq!(ask(&scene, "192.0.2.2:8081"), "");
        scene.host.sysctls.insert(key.to_owned(), "0".to_owned());
        assert_eq!(ask(&scene, "192.0.2.2:8080"), "");
    }

    /// Without a probe that shows that the server answers by another link.
    #[test]
    fn a_rule_leads_what_both_send_into_a_tunnel() {
        use crate::model::RuleAction;
        use crate::routes::samples::rule as rule_of;
        let mut scene = node();
        let table = RuleAction::Table(51820);
        scene.host.rules = vec![rule_of(90, table), rule_of(32766, RuleAction::Table(TABLE_MAIN))];
        scene.host.routes.push(Route { table: 51820, ..route("0.0.0.0/0", 9, None) });
        let says = said(&scene, "198.51.100.1:80", false, Vec::new());
        let begins = "198.51.100.1:80 answers neither c2 nor this node: routing rule 90 leads what \
                      both send there to tun0, and no answer comes from there | ";
        assert!(says.starts_with(begins), "{says}");
        let command = "ip rule add priority 89 from 10.88.0.0/24 lookup main";
        assert!(says.ends_with(command), "{says}");
        assert_eq!(said(&scene, "198.51.100.1:80", true, Vec::new()), "");
        // A route of the rule's table is passed by one of the same table.
        scene.host.routes.push(Route { table: 51820, ..route("198.51.100.0/24", 9, None) });
        scene.host.routes.last_mut().unwrap().hops[0].link = Some(9);
        scene.host.rules[0].to = Some("198.51.100.0/24".parse().unwrap());
        let says = said(&scene, "198.51.100.1:80", false, Vec::new());
        let command = "(ip route add 198.51.100.1/32 via 192.0.2.1 dev up0 table 51820)";
        assert!(says.ends_with(command), "{says}");
    }

    /// A bridge of another program with the server's subnet.
    fn with_bridge(carrier: bool) -> Scene {
        let mut scene = node();
        let bridge = link(70, "br-4f21c0", &["198.51.100.1/24"]);
        let mac = Some("02:00:00:00:00:70".to_owned());
        scene.host.links.push(Link { kind: Some("bridge".to_owned()), mac, carrier, ..bridge });
        scene.host.routes.push(route("198.51.100.0/24", 70, None));
        scene
    }

    #[test]
    fn a_link_has_the_servers_subnet() {
        let to = "198.51.100.10:80";
        let nobody = |macs: &[&str]| {
            let asked =
                Probe::WhoHas { address: ip("198.51.100.10"), link: "br-4f21c0".to_owned() };
            let macs = macs.iter().map(|mac| (*mac).to_owned()).collect();
            vec![(Question { from: None, asked }, Answer::Owners { macs })]
        };
        let scene = with_bridge(false);
        let says = said(&scene, to, false, Vec::new());
        let begins = "198.51.100.10:80 answers neither c2 nor this node: 198.51.100.10 counts as a \
                      machine on br-4f21c0, which has 198.51.100.1/24, and it has no carrier";
        assert!(says.starts_with(begins), "{says}");
        let command = "(ip route add 198.51.100.10/32 via 192.0.2.1 dev up0)";
        assert!(says.ends_with(command), "{says}");
        // Where there is a carrier, others there are asked.
        let scene = with_bridge(true);
        let answers = Answers::default();
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        let asked = asks(look, &scene.containers[0], to.parse().unwrap());
        assert_eq!(asked, [nobody(&[])[0].0.clone()]);
        let says = said(&scene, to, false, nobody(&[]));
        assert!(says.contains("and no machine there answers for it"), "{says}");
        // It is there, or the node reaches it, or it is beyond the uplink.
        assert_eq!(said(&scene, to, false, nobody(&["02:00:00:00:00:71"])), "");
        assert_eq!(said(&scene, to, true, Vec::new()), "");
        assert_eq!(said(&node(), to, false, Vec::new()), "");
        assert_eq!(said(&node(), "192.0.2.99:80", false, Vec::new()), "");
        assert_eq!(said(&node(), "10.88.0.99:80", false, Vec::new()), "");
    }

    #[test]
    fn a_second_interface_has_the_servers_subnet() {
        let mut scene = node();
        let inside = scene.containers[0].inside.as_mut().unwrap();
        let mac = Some("02:00:00:00:00:77".to_owned());
        inside.links.push(Link { mac, ..link(7, "net1", &["198.51.100.7/24"]) });
        inside.routes.push(route("198.51.100.0/24", 7, None));
        let asked = Probe::WhoHas { address: ip("198.51.100.10"), link: "net1".to_owned() };
        let question = Question { from: Some("c2".to_owned()), asked };
        let answered = |macs: &[&str]| {
            let macs = macs.iter().map(|mac| (*mac).to_owned()).collect();
            vec![(question.clone(), Answer::Owners { macs })]
        };
        let says = said(&scene, "198.51.100.10:80", true, answered(&[]));
        let begins = "198.51.100.10:80 does not answer c2: 198.51.100.10 counts as a machine on net1 \
                      of c2, which has 198.51.100.7/24, and no machine there answers for it";
        assert!(says.starts_with(begins), "{says}");
        assert_eq!(said(&scene, "198.51.100.10:80", true, answered(&["02:00:00:00:00:71"])), "");
        assert_eq!(said(&scene, "198.51.100.10:80", true, Vec::new()), "");
    }
}
