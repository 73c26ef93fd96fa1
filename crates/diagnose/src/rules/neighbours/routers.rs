//! Machines to which routes lead: the node's own router, and those of routes that were given to a
//! container.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;

use super::super::ways::{answers_elsewhere, in_table, samples, text};
use super::super::{asks_links, containers, ip, is_outbound, targets};
use super::replaced::made;
use super::{configured, differs, sites};
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, Help, WayKind};
use crate::model::{Container, Link, Namespace, Neighbour, Route, RouteKind};
use crate::path::{Interface, Joint, Site};
use crate::question::{Answer, Probe, Question};
use crate::routes::{RouteDecision, TABLE_MAIN, hops_of, look_up};

/// The origin of a route that the kernel has learnt from a router's advertisement (linux
/// include/uapi/linux/rtnetlink.h).
const RTPROT_RA: u8 = 9;

/// The origin of a route that a DHCP client made (the same).
const RTPROT_DHCP: u8 = 16;

pub(super) fn asks(look: Look<'_>) -> Vec<Question> {
    let mut all: Vec<Question> = Vec::new();
    for own in own(look) {
        // The only one of the default route is asked for an echo elsewhere.
        let is_asked = own.is_one_of_several || own.route.is_some();
        all.extend((is_asked && !is_of_link_alone(own.address)).then(|| own.echo()));
        all.push(own.question);
    }
    for given in given(look) {
        all.extend(given.is_direct.then(|| given.echo()));
        all.push(given.question);
    }
    all
}

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let own = own(look).into_iter().filter_map(|own| of_node(look, own));
    let given = given(look);
    let of_containers = given.iter().filter_map(|given| of_container(look, given));
    own.chain(of_containers).chain(not_forwarded(look)).collect()
}

/// The router of the node, by which containers reach others.
struct NodeRouter<'l> {
    question: Question,
    address: IpAddr,
    link: &'l Link,
    family: IpFamily,
    hits: Vec<String>,
    /// Each gets some of the connections.
    is_one_of_several: bool,
    /// The route, if it is not the default one: to a server of names, or to what the caller named, or
    /// in a table that a routing rule asks.
    route: Option<&'l Route>,
    /// No router: what the route leads to is asked for on the link itself.
    is_direct: bool,
}

impl NodeRouter<'_> {
    fn echo(&self) -> Question {
        Question { from: None, asked: Probe::Echo { to: self.address } }
    }
}

fn own(look: Look<'_>) -> Vec<NodeRouter<'_>> {
    let mut all = Vec::new();
    for family in IpFamily::ALL {
        let outbound = || containers(look).filter(move |one| is_outbound(look.scene, one, family));
        let hits: Vec<String> = outbound().map(|container| container.id.clone()).collect();
        if hits.is_empty() {
            continue;
        }
        let [sample, ..] = samples(family);
        let host = &look.scene.host;
        add(host, &mut all, look_up(host, None, sample, None, Some(0)), sample, &hits);
        // With many containers, no machine is asked.
        if !asks_links(look) {
            continue;
        }
        // A routing rule may lead what containers send elsewhere.
        if host.rules.iter().any(|rule| rule.from.is_some() || rule.iif.is_some()) {
            for site in outbound().flat_map(|one| Site::all(look.scene, one, family)) {
                let iif = Some(site.seen_by.name.as_str());
                let routed = look_up(host, Some(site.address), sample, iif, Some(0));
                add(host, &mut all, routed, sample, std::slice::from_ref(&site.container.id));
            }
        }
        let mut others: BTreeMap<IpAddr, Vec<String>> = BTreeMap::new();
        for container in outbound() {
            let of_family = targets(look, container).into_iter();
            for to in of_family.filter(|to| IpFamily::of(*to) == family) {
                others.entry(to).or_default().push(container.id.clone());
            }
        }
        for (to, hits) in others {
            add(host, &mut all, look_up(host, None, to, None, Some(0)), to, &hits);
            all.extend(direct(look, to, hits));
        }
    }
    all
}

/// Adds the routers to which the node sends what is for an address, each once.
fn add<'l>(
    host: &'l Namespace,
    all: &mut Vec<NodeRouter<'l>>,
    routed: RouteDecision<'l>,
    to: IpAddr,
    hits: &[String],
) {
    let RouteDecision::By { route, .. } = routed else { return };
    let is_one_of_several = 1 < route.hops.len();
    for (hop, link) in hops_of(host, route) {
        // On links without hardware addresses, or that do not ask for them, no machine is asked,
        // and the kernel leaves out one of several that is down.
        let carries = link.up && link.carrier;
        let is_asked = link.mac.is_some() && !link.no_arp && (carries || !is_one_of_several);
        let Some(address) = hop.via.filter(|_| is_asked) else { continue };
        if is_only_advertised(host, route, link, address) {
            continue;
        }
        let is_known =
            |own: &&mut NodeRouter<'_>| own.address == address && own.link.index == link.index;
        if let Some(known) = all.iter_mut().find(is_known) {
            let more = hits.iter().filter(|hit| !known.hits.contains(hit)).cloned();
            let more: Vec<String> = more.collect();
            known.hits.extend(more);
            continue;
        }
        all.push(NodeRouter {
            question: Question::who_has(None, &link.name, address),
            address,
            link,
            family: IpFamily::of(to),
            hits: hits.to_vec(),
            is_one_of_several,
            route: Some(route)
                .filter(|route| 0 < route.to.prefix_len() || route.table != TABLE_MAIN),
            is_direct: false,
        });
    }
}

/// Says whether all that is known of a router is its advertisement. Such a router is not asked: one
/// that calls itself none in its answer (RFC 4861 §4.4) loses the routes that were learnt from it
/// (§7.2.5), and would lose them by the question.
fn is_only_advertised(host: &Namespace, route: &Route, link: &Link, address: IpAddr) -> bool {
    let is_known = |one: &Neighbour| {
        one.link == link.index && one.address == address && (one.mac.is_some() || one.failed)
    };
    route.protocol == Some(RTPROT_RA) && !host.neighbours.iter().any(is_known)
}

/// Returns what the node is to ask for on a link itself, since a route leads there without a router.
/// On a sound node a router answers for all addresses (proxy ARP), or the link has no hardware
/// addresses.
fn direct(look: Look<'_>, to: IpAddr, hits: Vec<String>) -> Option<NodeRouter<'_>> {
    let (link, route) = without_router(&look.scene.host, None, to)?;
    // The finding of the routing rule, or of the route, says more.
    let is_led = match route.to.prefix_len() {
        0 => route.table != TABLE_MAIN,
        length => length == 1,
    };
    if is_led && answers_elsewhere(look, to, link) {
        return None;
    }
    Some(NodeRouter {
        question: Question::who_has(None, &link.name, to),
        address: to,
        link,
        family: IpFamily::of(to),
        hits,
        is_one_of_several: false,
        route: Some(route),
        is_direct: true,
    })
}

/// Returns the link on which an address is asked for that is in none of its subnets, and the route
/// that says so: the default one, or any other. A subnet of which no link has all the machines does
/// not count: the prefix length is wrong.
fn without_router(
    namespace: &Namespace,
    from: Option<IpAddr>,
    to: IpAddr,
) -> Option<(&Link, &Route)> {
    let routed = look_up(namespace, from, to, None, Some(0));
    let RouteDecision::By { link, via: None, route, .. } = routed else { return None };
    let is_near =
        link.addresses.iter().any(|own| own.address.contains(&to) && !is_too_short(own.address));
    let carries = link.up && link.carrier;
    let is_asked = carries && link.mac.is_some() && !link.no_arp && link.name != "lo";
    (route.hops.len() == 1 && is_asked && !is_near).then_some((link, route))
}

/// Says whether a prefix is shorter than any that is given out (IANA's registries: at least /8 of
/// IPv4, and /12 of IPv6).
fn is_too_short(prefix: IpNet) -> bool {
    prefix.prefix_len() < if prefix.addr().is_ipv4() { 8 } else { 12 }
}

fn of_node(look: Look<'_>, own: NodeRouter<'_>) -> Option<Finding> {
    let (address, link) = (own.address, &own.link.name);
    let echo = look.answers.to(&own.echo());
    let entries = &look.scene.host.neighbours;
    let has_failed = entries
        .iter()
        .any(|one| one.failed && one.link == own.link.index && one.address == address);
    let is_reached = matches!(echo, Some(Answer::Reached { .. }));
    let is_silent = matches!(echo, Some(Answer::Silent { .. }));
    // The kernel says so if it has not found the router until then.
    let is_lost = is_silent || matches!(echo, Some(Answer::Unreachable { .. }));
    let entry = configured(&look.scene.host, own.link.index, address);
    let finding = match look.answers.to(&own.question) {
        Some(Answer::Owners { macs }) => match macs.as_slice() {
            // A machine with a configured entry need not answer requests.
            [] if entry.is_none() && (is_lost || (has_failed && !is_reached)) => silent(look, &own),
            [] => return None,
            // A machine passes on what is for others.
            _ if own.is_direct => return None,
            [mac] => {
                let found = entry?;
                differs(found, mac).then(|| wrong(&own, found, mac))?
            }
            several => {
                let says =
                    format!("several machines answer for {address}, the router of this node");
                Finding::warning("address-claimed", address.to_string(), says)
                    .at(format!("link {link}"))
                    .seen(format!("{} answered for {address}", several.join(" and ")))
                    .advise(format!(
                        "find out which of them is the router: ip neigh show {address} dev {link}"
                    ))
            }
        },
        // It was not asked on the link, and the kernel has asked there.
        _ if has_failed && is_silent => silent(look, &own),
        _ => return None,
    };
    let family = Some(own.family);
    let is_of_some = |route: &&Route| !own.is_direct && 0 < route.to.prefix_len();
    let kinds: &[WayKind] = match own.route.filter(is_of_some) {
        None => &[WayKind::Outside, WayKind::Names, WayKind::Published, WayKind::Nodes],
        Some(_) => &[WayKind::Outside, WayKind::Names],
    };
    let finding = kinds.iter().fold(finding, |finding, kind| finding.breaks(*kind, family));
    Some(Finding { hits: own.hits, ..finding })
}

fn silent(look: Look<'_>, own: &NodeRouter<'_>) -> Finding {
    let (address, link) = (own.address, &own.link.name);
    if let Some(route) = own.route.filter(|_| own.is_direct) {
        let evidence =
            "neither a request for its hardware address was answered, nor an echo request";
        if let Some(subnet) = subnet_of(own.link, address) {
            return too_short(address, link, subnet, None).seen(evidence);
        }
        let host = &look.scene.host;
        let router = default_router(host, own.link.index, own.family);
        let text = text(route, host);
        let says =
            format!("route {text} has no router, and no machine on {link} answers for {address}");
        return Finding::error("hop-silent", text.clone(), says)
            .at(format!("route {text}"))
            .seen(evidence)
            .advise(format!("give the route its router: {}", by_router(route, link, router)));
    }
    let which = if own.is_one_of_several { "one of the routers" } else { "the router" };
    let look_at = Help::Advice(format!("look at {address}, and at what is between it and {link}"));
    let (which, place, fix) = match own.route {
        None => (which.to_owned(), format!("link {link}"), look_at),
        // The command would remove the way by the others, too.
        Some(route) if own.is_one_of_several => {
            let to = route.to;
            (format!("{which} for {to}"), format!("route {to} via {address} dev {link}"), look_at)
        }
        Some(route) => {
            let version = ip(IpFamily::of(address));
            let text = text(route, &look.scene.host);
            let fix = Help::Command(format!("{version} route del {text}"));
            (format!("{which} for {}", route.to), format!("route {text}"), fix)
        }
    };
    let says = format!("no machine answers for {address}, {which} of this node on {link}");
    let finding = Finding::error("hop-silent", address.to_string(), says)
        .at(place)
        .seen("neither a request for its hardware address was answered, nor an echo request");
    let is_removed = matches!(fix, Help::Command(_));
    let finding = finding.help(fix);
    match own.route.filter(|route| is_removed && route.table != TABLE_MAIN) {
        Some(route) => finding.advise(format!(
            "then what a routing rule leads to table {} goes by the tables after it, past a VPN that {link} may be",
            route.table
        )),
        None => finding,
    }
}

/// Returns the subnet of a link that an address is in.
fn subnet_of(link: &Link, address: IpAddr) -> Option<IpNet> {
    let mut subnets = link.addresses.iter().map(|own| own.address);
    subnets.find(|subnet| subnet.contains(&address))
}

/// The prefix of a link's own address is so short that other networks count as the link's. `inside`
/// is the container whose link it is.
fn too_short(address: IpAddr, link: &str, subnet: IpNet, inside: Option<&Container>) -> Finding {
    let (object, who, place, ip) = match inside {
        None => (String::new(), "this node", String::new(), "ip".to_owned()),
        Some(own) => {
            let called = own.called();
            let ip = format!("{}ip", within(own.netns.as_str()));
            (format!("{}: ", own.id), called, format!("in {called}: "), ip)
        }
    };
    let says = format!(
        "{link} has {subnet}, so {who} asks no router for {address}, and no machine on {link} \
         answers for it"
    );
    let (own, length) = (subnet.addr(), subnet.prefix_len());
    Finding::error("hop-silent", format!("{object}{link}: {subnet}"), says)
        .at(format!("{place}address {subnet} dev {link}"))
        .seen(format!(
            "with a prefix length of {length}, all of {} counts as the subnet of {link}",
            subnet.trunc()
        ))
        .advise(format!(
            "give {own} the prefix length of its own subnet: {ip} addr add {own}/LENGTH dev {link} \
             && {ip} addr del {subnet} dev {link}"
        ))
}

/// The command that gives a route a router. Without one that is known, the text says ROUTER.
fn by_router(route: &Route, link: &str, router: Option<IpAddr>) -> String {
    let version = ip(IpFamily::of(route.to.addr()));
    let router = router.map_or("ROUTER".to_owned(), |router| router.to_string());
    let table = in_table(route.table);
    let metric = match route.metric {
        0 => String::new(),
        metric => format!(" metric {metric}"),
    };
    format!("{version} route replace {} via {router} dev {link}{table}{metric}", route.to)
}

/// The router of the default route that leaves by a link.
fn default_router(namespace: &Namespace, link: u32, family: IpFamily) -> Option<IpAddr> {
    let is_default = |route: &&Route| {
        route.to.prefix_len() == 0
            && route.table == TABLE_MAIN
            && IpFamily::of(route.to.addr()) == family
    };
    let hops = namespace.routes.iter().filter(is_default).flat_map(|route| &route.hops);
    let mut routers = hops.filter(|hop| hop.link == Some(link)).filter_map(|hop| hop.via);
    // An IPv4 route may have a router's IPv6 address.
    routers.find(|router| IpFamily::of(*router) == family)
}

/// Another hardware address is configured for the router than it has.
fn wrong(own: &NodeRouter<'_>, found: &str, mac: &str) -> Finding {
    let (address, link) = (own.address, &own.link.name);
    let says = format!(
        "this node sends packets for its router ({address}) to {found}, but {mac} answers for it"
    );
    Finding::error("neighbour-wrong", format!("{address} on {link}"), says)
        .at(format!("neighbour {address} dev {link} lladdr {found} PERMANENT"))
        .seen(format!("{mac} answered for {address}"))
        .fix(format!("ip neigh del {address} dev {link}"))
}

/// A machine to which a container's route leads, and that is neither the node nor a gateway of ADD.
pub(super) struct RouteTarget<'l> {
    pub(super) question: Question,
    pub(super) container: &'l Container,
    pub(super) link: &'l str,
    pub(super) route: &'l Route,
    pub(super) via: IpAddr,
    /// No router: it is asked for on the link itself.
    pub(super) is_direct: bool,
}

impl RouteTarget<'_> {
    fn echo(&self) -> Question {
        Question { from: Some(self.container.id.clone()), asked: Probe::Echo { to: self.via } }
    }
}

fn given(look: Look<'_>) -> Vec<RouteTarget<'_>> {
    let mut all: Vec<RouteTarget<'_>> = Vec::new();
    let families = IpFamily::ALL.into_iter();
    let interfaces = families.flat_map(move |family| {
        containers(look).flat_map(move |one| Interface::every(look.scene, one, family))
    });
    for interface in interfaces.filter(Interface::may_ask) {
        let Interface { container, inside, link, family, .. } = interface;
        for route in inside.routes.iter().filter(|one| one.kind == RouteKind::Unicast) {
            let hops = route.hops.iter().filter(|hop| hop.link == Some(link.index));
            let foreign = hops.filter_map(|hop| hop.via).filter(|via| {
                IpFamily::of(*via) == family
                    && !is_of_link_alone(*via)
                    && !interface.attachment.gateways.contains(via)
                    && look.scene.host.owner_of(*via).is_none()
                    // With a configured entry no machine has to answer requests.
                    && configured(inside, link.index, *via).is_none()
            });
            all.extend(foreign.map(|via| {
                let question = Question::who_has(Some(container), &link.name, via);
                let link = link.name.as_str();
                RouteTarget { question, container, link, route, via, is_direct: false }
            }));
        }
    }
    let families = IpFamily::ALL.into_iter();
    let every = families.flat_map(move |family| {
        containers(look).flat_map(move |container| Site::every(look.scene, container, family))
    });
    all.extend(every.flat_map(|site| given_directly(look, &site)));
    all
}

/// A link on a parent (macvlan) has such routes, too.
fn given_directly<'l>(look: Look<'l>, site: &Site<'l>) -> Vec<RouteTarget<'l>> {
    let of_family = |to: &IpAddr| IpFamily::of(*to) == site.family();
    let (container, index) = (site.container, site.link.index);
    let direct = targets(look, container).into_iter().filter(of_family).filter_map(|to| {
        let found = without_router(site.inside, Some(site.address), to);
        let (link, route) = found.filter(|&(link, _)| link.index == index)?;
        let question = Question::who_has(Some(container), &link.name, to);
        let link = link.name.as_str();
        Some(RouteTarget { question, container, link, route, via: to, is_direct: true })
    });
    direct.collect()
}

/// Routes of a container to another one of its bridge that sends nothing on.
fn not_forwarded(look: Look<'_>) -> Vec<Finding> {
    let everybody = sites(Look { only: None, ..look });
    let mut found = Vec::new();
    for site in sites(look) {
        let Some(bridge) = site.bridge else { continue };
        let key = match site.family() {
            IpFamily::V4 => "net.ipv4.ip_forward",
            IpFamily::V6 => "net.ipv6.conf.all.forwarding",
        };
        for route in site.inside.routes.iter().filter(|one| one.kind == RouteKind::Unicast) {
            let [hop] = route.hops.as_slice() else { continue };
            let is_foreign = |via: &IpAddr| {
                hop.link == Some(site.link.index)
                    && IpFamily::of(*via) == site.family()
                    && !site.attachment.gateways.contains(via)
            };
            let Some(via) = hop.via.filter(is_foreign) else { continue };
            let is_mute = |other: &&Site<'_>| {
                other.bridge.is_some_and(|own| own.index == bridge.index)
                    && other.container.id != site.container.id
                    && other.inside.number(key) == Some(0)
                    && other.link.addresses.iter().any(|own| own.address.addr() == via)
            };
            if let Some(other) = everybody.iter().find(is_mute) {
                found.push(to_mute(&site, route, via, other.container, key));
            }
        }
    }
    found
}

fn to_mute(site: &Site<'_>, route: &Route, via: IpAddr, other: &Container, key: &str) -> Finding {
    let (called, third) = (site.container.called(), other.called());
    let (netns, text) = (&site.container.netns, text(route, site.inside));
    let version = ip(IpFamily::of(via));
    let says = format!(
        "route {text} of {called} leads to {third}, which does not forward what is for others"
    );
    let family = Some(site.family());
    Finding::error("hop-silent", format!("{}: {text}", site.container.id), says)
        .at(format!("in {called}: route {text}"))
        .seen(format!("{via} is {third}, and {key} is 0 there"))
        .hits(site.container.id.clone())
        .fix(format!("{}{version} route del {text}", within(netns.as_str())))
        .breaks(WayKind::Outside, family)
        .breaks(WayKind::Names, family)
        .breaks(WayKind::Published, family)
}

fn is_of_link_alone(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn of_container(look: Look<'_>, given: &RouteTarget<'_>) -> Option<Finding> {
    if look.answers.to(&given.question).and_then(Answer::has_owner)? {
        return None;
    }
    if given.is_direct {
        return of_direct(look, given);
    }
    let RouteTarget { container, link, route, via, .. } = given;
    let called = container.called();
    let to = match route.to.prefix_len() {
        0 => "default".to_owned(),
        _ => route.to.to_string(),
    };
    let made = made(look, given);
    let instead = made.as_ref().map(|made| {
        format!("; ADD gave it {} on {} for that", made.gateway, made.attachment.ifname)
    });
    let says = format!(
        "{called} sends packets for {to} to {via}, for which no machine on {link} answers{}",
        instead.unwrap_or_default()
    );
    let version = ip(IpFamily::of(*via));
    let family = Some(IpFamily::of(*via));
    let fix = match (&made, route.to.prefix_len()) {
        (Some(made), 0) => made.instead_of(given),
        // Without it the container has no way out at all.
        (None, 0) => Help::Advice(match is_pair(look, given) {
            true => format!(
                "look at what should answer for {via}: proxy_{} of the other end",
                if via.is_ipv4() { "arp" } else { "ndp" }
            ),
            false => format!("look at {via}, and at what is behind {link} of {called}"),
        }),
        _ => Help::Command(format!(
            "{}{version} route del {to} via {via}{}",
            within(container.netns.as_str()),
            in_table(route.table)
        )),
    };
    let finding = Finding::error("hop-silent", format!("{}: {to} via {via}", container.id), says)
        .at(format!("in {called}: route {to} via {via} dev {link}{}", in_table(route.table)))
        .seen(format!("no request for the hardware address of {via} was answered"))
        .hits(container.id.clone())
        .help(fix)
        .breaks(WayKind::Outside, family);
    let finding = match asks_by(container, *via) {
        true => finding.breaks(WayKind::Names, family),
        false => finding,
    };
    Some(match route.protocol {
        Some(RTPROT_DHCP) => finding.of("a DHCP client in the container, by the route's protocol"),
        _ => finding,
    })
}

/// Says whether a container asks a server of names by a router, or whether that is not known.
fn asks_by(container: &Container, router: IpAddr) -> bool {
    let (Some(inside), Some(servers)) = (&container.inside, &container.nameservers) else {
        return true;
    };
    servers.iter().any(|server| {
        let routed = look_up(inside, None, *server, None, Some(0));
        matches!(routed, RouteDecision::By { via: Some(via), .. } if via == router)
    })
}

/// Says whether a route leaves by the end of a pair.
fn is_pair(look: Look<'_>, given: &RouteTarget<'_>) -> bool {
    let mut sites = Site::every(look.scene, given.container, IpFamily::of(given.via));
    sites.any(|site| site.link.name == given.link && site.joint == Joint::Pair)
}

/// A route of the container leads to a link without a router. What it leads to did not answer the
/// container either.
fn of_direct(look: Look<'_>, given: &RouteTarget<'_>) -> Option<Finding> {
    let RouteTarget { container, link, route, via, .. } = given;
    let inside = container.inside.as_ref()?;
    let is_it = |asked: &Probe| match asked {
        Probe::Size { .. } => false,
        asked => asked.destination() == Some(*via),
    };
    let all = look.answers.from(Some(&container.id)).filter(|&(asked, _)| is_it(asked));
    let lost: Vec<bool> = all.map(|(_, answer)| answer.is_lost()).collect();
    let its = inside.link(link)?;
    let is_configured = configured(inside, its.index, *via).is_some();
    if is_configured || lost.is_empty() || lost.contains(&false) {
        return None;
    }
    let (called, family) = (container.called(), Some(IpFamily::of(*via)));
    let finding = match subnet_of(its, *via) {
        Some(subnet) => too_short(*via, link, subnet, Some(*container)),
        None => {
            let router = default_router(inside, its.index, IpFamily::of(*via));
            let text = text(route, inside);
            let says = format!(
                "route {text} of {called} has no router, and no machine on {link} answers for {via}"
            );
            Finding::error("hop-silent", format!("{}: {text}", container.id), says)
                .at(format!("in {called}: route {text}"))
                .advise(format!(
                    "give the route its router: {}{}",
                    within(container.netns.as_str()),
                    by_router(route, link, router)
                ))
        }
    };
    Some(
        finding
            .seen(format!("no request for the hardware address of {via} was answered"))
            .hits(container.id.clone())
            .breaks(WayKind::Outside, family)
            .breaks(WayKind::Names, family)
            .breaks(WayKind::Published, family),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Neighbour, Scene};
    use crate::path::samples::{ip, node};
    use crate::question::Answers;
    use crate::routes::samples::route;

    fn told(scene: &Scene, all: Vec<(Question, Answer)>) -> Vec<(&'static str, String)> {
        let answers = Answers { all };
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|one| (one.id, [one.fix, one.advice].concat().join("; "))).collect()
    }

    fn with_router() -> Scene {
        let mut scene = node();
        let uplink = scene.host.links.iter_mut().find(|link| link.name == "up0").unwrap();
        uplink.mac = Some("02:00:00:00:00:20".to_owned());
        scene
    }

    fn who(from: Option<&str>, address: &str, link: &str) -> Question {
        let asked = Probe::WhoHas { address: ip(address), link: link.to_owned() };
        Question { from: from.map(str::to_owned), asked }
    }

    fn owners(macs: &[&str]) -> Answer {
        Answer::Owners { macs: macs.iter().map(|mac| (*mac).to_owned()).collect() }
    }

    #[test]
    fn the_nodes_router_is_one_and_answers() {
        let mut scene = with_router();
        let router = who(None, "192.0.2.1", "up0");
        let answers = Answers::default();
        let asked = asks(Look { scene: &scene, answers: &answers, only: None, to: None });
        assert!(asked.contains(&router));
        let answered = |macs: &[&str]| vec![(router.clone(), owners(macs))];
        let echo = Question { from: None, asked: Probe::Echo { to: ip("192.0.2.1") } };
        let silent = || {
            let silent = Answer::Silent { hops: Vec::new() };
            [answered(&[]), vec![(echo.clone(), silent)]].concat()
        };
        let (one, other) = ("02:00:00:00:00:21", "02:00:00:00:00:22");
        assert_eq!(told(&scene, answered(&[one])), []);
        assert_eq!(told(&scene, answered(&[one, other]))[0].0, "address-claimed");
        assert_eq!(told(&scene, silent())[0].0, "hop-silent");
        assert_eq!(told(&scene, answered(&[])), [], "no echo request was sent");
        let reached = Answer::Reached { after_us: 1 };
        let some_other_way = [answered(&[]), vec![(echo.clone(), reached)]].concat();
        assert_eq!(told(&scene, some_other_way), []);
        scene.host.neighbours = vec![Neighbour {
            link: 2,
            address: ip("192.0.2.1"),
            mac: Some(other.to_owned()),
            permanent: true,
            failed: false,
        }];
        let fix = "ip neigh del 192.0.2.1 dev up0".to_owned();
        assert_eq!(told(&scene, answered(&[one])), [("neighbour-wrong", fix)]);
        assert_eq!(told(&scene, answered(&[other])), []);
        assert_eq!(told(&scene, silent()), [], "it need not answer requests");
    }

    /// Some connections go by the one that is there, and others by the one that is not.
    #[test]
    fn each_of_several_routers_is_asked() {
        let mut scene = with_router();
        let second = crate::model::NextHop { via: Some(ip("192.0.2.9")), link: Some(2) };
        scene.host.routes[0].hops.push(second);
        let answers = Answers::default();
        let asked = asks(Look { scene: &scene, answers: &answers, only: None, to: None });
        let gone = who(None, "192.0.2.9", "up0");
        let echo = Question { from: None, asked: Probe::Echo { to: ip("192.0.2.9") } };
        assert!(asked.contains(&gone) && asked.contains(&echo), "{asked:?}");
        let silent = Answer::Silent { hops: Vec::new() };
        let all = vec![
            (who(None, "192.0.2.1", "up0"), owners(&["02:00:00:00:00:21"])),
            (gone, owners(&[])),
            (echo, silent),
        ];
        let look = |answers| Look { scene: &scene, answers, only: None, to: None };
        let answers = Answers { all };
        let found = judge(look(&answers));
        assert_eq!(found.len(), 1);
        let says = "no machine answers for 192.0.2.9, one of the routers of this node on up0";
        assert_eq!((found[0].id, found[0].says.as_str()), ("hop-silent", says));
    }

    /// Each of them may be on a link of its own.
    #[test]
    fn each_of_several_links_is_asked() {
        let mut scene = with_router();
        let tunnel = scene.host.links.iter_mut().find(|link| link.name == "tun0").unwrap();
        tunnel.mac = Some("02:00:00:00:00:30".to_owned());
        let second = crate::model::NextHop { via: Some(ip("10.8.0.99")), link: Some(9) };
        scene.host.routes[0].hops.push(second);
        let answers = Answers::default();
        let gone = who(None, "10.8.0.99", "tun0");
        let asked = |scene: &Scene| {
            let asked = asks(Look { scene, answers: &answers, only: None, to: None });
            (asked.contains(&who(None, "192.0.2.1", "up0")), asked.contains(&gone))
        };
        assert_eq!(asked(&scene), (true, true));
        let echo = Question { from: None, asked: Probe::Echo { to: ip("10.8.0.99") } };
        let all = vec![(gone.clone(), owners(&[])), (echo, Answer::Silent { hops: Vec::new() })];
        let fix = "look at 10.8.0.99, and at what is between it and tun0".to_owned();
        assert_eq!(told(&scene, all), [("hop-silent", fix)]);
        // The kernel sends nothing by a link that is down, and on some it asks no machine.
        let all = [(false, false, false), (true, true, false), (true, false, true)];
        for (up, no_arp, is_asked) in all {
            let tunnel = scene.host.links.iter_mut().find(|link| link.name == "tun0").unwrap();
            (tunnel.up, tunnel.no_arp) = (up, no_arp);
            assert_eq!(asked(&scene), (true, is_asked));
        }
    }

    /// A mistyped route, to where the server of names is.
    #[test]
    fn the_router_of_another_route_is_asked() {
        let mut scene = with_router();
        scene.host.routes.push(route("198.51.100.0/24", 2, Some("192.0.2.9")));
        let answers = Answers::default();
        let gone = who(None, "192.0.2.9", "up0");
        let asked = |scene: &Scene| {
            asks(Look { scene, answers: &answers, only: None, to: None }).contains(&gone)
        };
        assert!(!asked(&scene));
        scene.containers[0].nameservers = Some(vec![ip("198.51.100.53")]);
        assert!(asked(&scene));
        let echo = Question { from: None, asked: Probe::Echo { to: ip("192.0.2.9") } };
        // The kernel gave up meanwhile.
        let lost = Answer::Unreachable { error: "No route to host".to_owned(), hops: Vec::new() };
        let answers = Answers { all: vec![(gone.clone(), owners(&[])), (echo, lost)] };
        let found = judge(Look { scene: &scene, answers: &answers, only: None, to: None });
        let says =
            "no machine answers for 192.0.2.9, the router for 198.51.100.0/24 of this node on up0";
        assert_eq!((found.len(), found[0].says.as_str()), (1, says));
        assert_eq!(found[0].fix, ["ip route del 198.51.100.0/24 via 192.0.2.9 dev up0"]);
        assert_eq!(found[0].hits, ["c2"]);
    }

    /// A node with many containers does not ask on its links; the kernel has.
    #[test]
    fn what_the_kernel_knows_is_enough_with_an_echo() {
        let mut scene = with_router();
        let echo = Question { from: None, asked: Probe::Echo { to: ip("192.0.2.1") } };
        let silent = vec![(echo, Answer::Silent { hops: Vec::new() })];
        assert_eq!(told(&scene, silent.clone()), []);
        let failed = Neighbour {
            link: 2,
            address: ip("192.0.2.1"),
            mac: None,
            permanent: false,
            failed: true,
        };
        scene.host.neighbours = vec![failed];
        assert_eq!(told(&scene, silent)[0].0, "hop-silent");
    }

    /// What comes from containers is led elsewhere than what comes from the node.
    #[test]
    fn the_router_that_a_routing_rule_picks_is_asked() {
        use crate::model::{RouteRule, RuleAction};
        use crate::routes::samples::rule;
        let mut scene = with_router();
        let table = |priority, table| rule(priority, RuleAction::Table(table));
        let from = Some("10.88.0.0/24".parse().unwrap());
        scene.host.rules =
            vec![table(0, 255), RouteRule { from, ..table(100, 7) }, table(32766, 254)];
        scene.host.routes.push(Route { table: 7, ..route("0.0.0.0/0", 2, Some("192.0.2.9")) });
        let gone = who(None, "192.0.2.9", "up0");
        let echo = Question { from: None, asked: Probe::Echo { to: ip("192.0.2.9") } };
        let none = Answers::default();
        let asked = asks(Look { scene: &scene, answers: &none, only: None, to: None });
        assert!(asked.contains(&gone) && asked.contains(&echo), "{asked:?}");
        let silent = Answer::Silent { hops: Vec::new() };
        let answers = Answers { all: vec![(gone, owners(&[])), (echo, silent)] };
        let found = judge(Look { scene: &scene, answers: &answers, only: None, to: None });
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].hits, ["c2", "c3"]);
        assert_eq!(found[0].fix, ["ip route del default via 192.0.2.9 dev up0 table 7"]);
    }

    #[test]
    fn a_containers_route_by_another_one_that_does_not_forward() {
        let mut scene = node();
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.routes.push(route("198.51.100.0/24", 2, Some("10.88.0.3")));
        let mut forwards = |value: &str| {
            let sysctls = &mut scene.containers[1].inside.as_mut().unwrap().sysctls;
            sysctls.insert("net.ipv4.ip_forward".to_owned(), value.to_owned());
            told(&scene, Vec::new())
        };
        assert_eq!(forwards("1"), []);
        let fix = "nsenter --net=/run/netns/c2 ip route del 198.51.100.0/24 via 10.88.0.3 dev eth0";
        assert_eq!(forwards("0"), [("hop-silent", fix.to_owned())]);
    }

    #[test]
    fn a_containers_route_to_nobody() {
        let mut scene = node();
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.routes.push(route("198.51.100.0/24", 2, Some("10.88.0.99")));
        let nobody = who(Some("c2"), "10.88.0.99", "eth0");
        let fix = "nsenter --net=/run/netns/c2 ip route del 198.51.100.0/24 via 10.88.0.99";
        let said = told(&scene, vec![(nobody.clone(), owners(&[]))]);
        assert_eq!(said, [("hop-silent", fix.to_owned())]);
        let somebody = vec![(nobody, owners(&["02:00:00:00:00:99"]))];
        assert_eq!(told(&scene, somebody), []);
    }

    /// A pod of a network that gives each one a route to an address that no machine has, and an
    /// entry for it.
    #[test]
    fn a_default_route_to_an_address_that_nobody_has() {
        let mut scene = node();
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.routes = vec![route("0.0.0.0/0", 2, Some("169.254.1.1"))];
        let nobody = vec![(who(Some("c2"), "169.254.1.1", "eth0"), owners(&[]))];
        let fix = "look at what should answer for 169.254.1.1: proxy_arp of the other end";
        assert_eq!(told(&scene, nobody.clone()), [("hop-silent", fix.to_owned())]);
        scene.containers[0].inside.as_mut().unwrap().neighbours = vec![Neighbour {
            link: 2,
            address: ip("169.254.1.1"),
            mac: Some("02:00:00:00:00:12".to_owned()),
            permanent: true,
            failed: false,
        }];
        assert_eq!(told(&scene, nobody), []);
    }

    /// The link has the default route, or half of it, without a router.
    #[test]
    fn a_default_route_without_a_router() {
        let server = ip("198.51.100.53");
        let silent = || Answer::Silent { hops: Vec::new() };
        let mut scene = with_router();
        scene.containers[0].nameservers = Some(vec![server]);
        scene.host.routes[0] = route("0.0.0.0/0", 2, None);
        let asked = who(None, "198.51.100.53", "up0");
        let echo = Question { from: None, asked: Probe::Echo { to: server } };
        let answers = Answers::default();
        let all = asks(Look { scene: &scene, answers: &answers, only: None, to: None });
        assert!(all.contains(&asked) && all.contains(&echo), "{all:?}");
        let said = |macs: &[&str], echoed: Answer| {
            told(&scene, vec![(asked.clone(), owners(macs)), (echo.clone(), echoed)])
        };
        let fix = "give the route its router: ip route replace 0.0.0.0/0 via ROUTER dev up0";
        assert_eq!(said(&[], silent()), [("hop-silent", fix.to_owned())]);
        assert_eq!(said(&[], Answer::Reached { after_us: 1 }), []);
        // A router that answers for all of them (proxy ARP).
        assert_eq!(said(&["02:00:00:00:00:21"], silent()), []);

        let mut scene = node();
        scene.containers[0].nameservers = Some(vec![server]);
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.routes.push(route("128.0.0.0/1", 2, None));
        let asked = who(Some("c2"), "198.51.100.53", "eth0");
        let name = Question { from: Some("c2".to_owned()), asked: Probe::Name { server } };
        let said = |macs: &[&str], named: Answer| {
            told(&scene, vec![(asked.clone(), owners(macs)), (name.clone(), named)])
        };
        let fix = "give the route its router: nsenter --net=/run/netns/c2 ip route replace 128.0.0.0/1 via 10.88.0.1 dev eth0";
        assert_eq!(said(&[], silent()), [("hop-silent", fix.to_owned())]);
        assert_eq!(said(&[], Answer::Named { after_us: 1, error: None }), []);
        assert_eq!(said(&["02:00:00:00:00:01"], silent()), []);
    }

    #[test]
    fn another_route_without_a_router() {
        let mut scene = with_router();
        scene.containers[0].nameservers = Some(vec![ip("198.51.100.53")]);
        scene.host.routes.push(route("198.51.100.0/24", 2, None));
        let asked = who(None, "198.51.100.53", "up0");
        let echo = Question { from: None, asked: Probe::Echo { to: ip("198.51.100.53") } };
        let silent = Answer::Silent { hops: Vec::new() };
        let fix =
            "give the route its router: ip route replace 198.51.100.0/24 via 192.0.2.1 dev up0";
        let all = vec![(asked, owners(&[])), (echo, silent.clone())];
        assert_eq!(told(&scene, all.clone()), [("hop-silent", fix.to_owned())]);
        // In the table of a rule, and with a metric.
        use crate::model::RuleAction;
        use crate::routes::samples::rule;
        let table = |priority, table| rule(priority, RuleAction::Table(table));
        scene.host.rules = vec![table(0, 255), table(100, 51820), table(32766, 254)];
        let tunnel = Route { table: 51820, metric: 5, ..route("0.0.0.0/0", 2, None) };
        scene.host.routes.push(tunnel);
        let fix = "give the route its router: ip route replace 0.0.0.0/0 via 192.0.2.1 dev up0 table 51820 metric 5";
        assert_eq!(told(&scene, all.clone()), [("hop-silent", fix.to_owned())]);
        // What it leads there answers by another link: the rule is told.
        let by = |link: &str| {
            let (to, link) = (ip("198.51.100.53"), link.to_owned());
            Question { from: None, asked: Probe::EchoBy { to, link } }
        };
        let answered = [(by("up0"), silent), (by("up1"), Answer::Reached { after_us: 1 })];
        assert_eq!(told(&scene, [all, answered.to_vec()].concat()), []);
    }

    /// A prefix of four bits has machines of many networks.
    #[test]
    fn a_prefix_that_is_too_short_hides_the_router() {
        let mut scene = with_router();
        scene.containers[0].nameservers = Some(vec![ip("198.51.100.53")]);
        let asked = who(None, "198.51.100.53", "up0");
        let echo = Question { from: None, asked: Probe::Echo { to: ip("198.51.100.53") } };
        let silent = Answer::Silent { hops: Vec::new() };
        let all = vec![(asked, owners(&[])), (echo, silent)];
        let mut with = |prefix: &str| {
            let subnet: IpNet = prefix.parse().unwrap();
            let uplink = scene.host.links.iter_mut().find(|link| link.name == "up0").unwrap();
            uplink.addresses[0].address = subnet;
            scene.host.routes[1].to = subnet.trunc();
            told(&scene, all.clone())
        };
        let fix = "give 192.0.2.2 the prefix length of its own subnet: ip addr add \
                   192.0.2.2/LENGTH dev up0 && ip addr del 192.0.2.2/4 dev up0";
        assert_eq!(with("192.0.2.2/4"), [("hop-silent", fix.to_owned())]);
        assert_eq!(with("192.0.2.2/24"), []);

        let mut scene = node();
        scene.containers[0].nameservers = Some(vec![ip("10.99.0.53")]);
        let inside = scene.containers[0].inside.as_mut().unwrap();
        let eth0 = inside.links.iter_mut().find(|link| link.name == "eth0").unwrap();
        eth0.addresses[0].address = "10.88.0.2/4".parse().unwrap();
        inside.routes[1].to = "0.0.0.0/4".parse().unwrap();
        let asked = who(Some("c2"), "10.99.0.53", "eth0");
        let name = Probe::Name { server: ip("10.99.0.53") };
        let name = Question { from: Some("c2".to_owned()), asked: name };
        let silent = Answer::Silent { hops: Vec::new() };
        let fix = "give 10.88.0.2 the prefix length of its own subnet: nsenter \
                   --net=/run/netns/c2 ip addr add 10.88.0.2/LENGTH dev eth0 && nsenter \
                   --net=/run/netns/c2 ip addr del 10.88.0.2/4 dev eth0";
        let all = vec![(asked, owners(&[])), (name, silent)];
        assert_eq!(told(&scene, all), [("hop-silent", fix.to_owned())]);
    }

    /// It asks for no names there, so it sends an echo request.
    #[test]
    fn a_macvlan_without_a_router() {
        use crate::model::{Link, MacvlanMode};
        use crate::path::samples::on_parent;
        let mode = |link: &mut Link| link.macvlan = Some(MacvlanMode::Bridge);
        let mut scene = on_parent("macvlan", mode);
        scene.containers[0].nameservers = Some(vec![ip("198.51.100.53")]);
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.routes[0] = route("0.0.0.0/0", 2, None);
        let asked = who(Some("c2"), "198.51.100.53", "eth0");
        let to = ip("198.51.100.53");
        let echo = Question { from: Some("c2".to_owned()), asked: Probe::Echo { to } };
        let none = Answers::default();
        let all = asks(Look { scene: &scene, answers: &none, only: None, to: None });
        assert!(all.contains(&asked) && all.contains(&echo), "{all:?}");
        let said = |echoed: Answer| {
            told(&scene, vec![(asked.clone(), owners(&[])), (echo.clone(), echoed)])
        };
        assert_eq!(said(Answer::Reached { after_us: 1 }), []);
        assert_eq!(said(Answer::Silent { hops: Vec::new() })[0].0, "hop-silent");
    }
}
