//! Routes and routing rules that lead a container's packets elsewhere, or nowhere, and what
//! probes found broken.

mod back;
mod diverted;
pub(super) mod endpoints;
pub(super) mod expired;
mod inside;
pub(in crate::rules) mod obstacles;
pub(in crate::rules) mod routers;
mod several;
mod silent;
mod sources;
pub(super) mod taken;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;

pub(super) use self::several::{answers_elsewhere, links_out};
pub(super) use self::silent::next_router;
use super::unchecked::{ipv6_switch, is_ipv6_off_on_all};
use super::{Rule, asks_links, containers, ip, is_outbound, leads_beyond, targets, unanswered};
use crate::Look;
use crate::command::within;
use crate::filter::{End, Place, Port};
use crate::finding::{Finding, Help, Severity, WayKind};
use crate::model::filter::Step;
use crate::model::{
    Container, Link, Namespace, Part, Route, RouteKind, RouteRule, RuleAction, Scene, Transport,
};
use crate::path::{self, Site};
use crate::routes::{RouteDecision, TABLE_LOCAL, TABLE_MAIN, look_up};
use crate::whose;

/// Routes and routing rules.
pub(super) const ROUTES: Rule = Rule {
    judges: "routes",
    ids: &[
        "default-route-silent",
        inside::ID,
        "no-default-route",
        "no-way-back",
        "router-advertisements",
        "route-covers-pool",
        "route-refuses",
        "rule-diverts",
        "source-rule-missing",
    ],
    needs: &[Part::Links, Part::Routes],
    inside: &[Part::Links, Part::Routes],
    asks: |look| [several::asks(look), diverted::asks(look), inside::asks(look)].concat(),
    judge,
};

/// Gateways that do not answer. Filters that were not read may drop what asks them.
pub(super) const GATEWAYS: Rule = Rule {
    judges: "answers of gateways",
    ids: &["gateway-silent"],
    needs: &[Part::Nftables, Part::LegacyIptables, Part::OtherFilters],
    asks: silent::asks_gateways,
    judge: silent::gateways,
    ..Rule::NONE
};

/// What else probes find broken.
pub(super) const SILENT: Rule = Rule {
    judges: "answers to probes",
    ids: &["outside-silent", "port-silent", "container-silent"],
    asks: silent::asks,
    judge: silent::judge,
    ..Rule::NONE
};

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = routers::expiring(look);
    let scene = look.scene;
    let mark = if may_mark(scene) { None } else { Some(0) };
    for family in IpFamily::ALL {
        for container in containers(look) {
            found.extend(refused_by_itself(look, container, family));
            for site in Site::all(scene, container, family) {
                if let Some(missing) = back::missing(look, &site) {
                    found.push(missing);
                    continue;
                }
                let from_node = look_up(&scene.host, None, site.address, None, mark);
                found.extend(answered(look, &site, from_node, WayKind::FromNode));
                found.extend(kept(look, &site));
                if is_outbound(scene, container, family) {
                    found.extend(outside(look, &site, mark));
                }
            }
        }
    }
    found.extend(diverted::judge(look, mark));
    found.extend(inside::judge(look));
    found.extend(several::judge(look));
    found.extend(sources::judge(look));
    found.extend(routers::unheard(look, &found));
    found
}

/// Says whether a filter of the node may mark packets: then rules that ask for marks are not clear.
pub(super) fn may_mark(scene: &Scene) -> bool {
    let tables = scene.host.filter.tables.iter().filter(|table| table.name != "netwright");
    let mut steps = tables
        .flat_map(|table| &table.chains)
        .flat_map(|chain| &chain.rules)
        .flat_map(|rule| &rule.steps);
    let marks = |step: &Step| match step {
        Step::Mark { .. } => true,
        Step::Effect { name } | Step::Unknown { name } => {
            name.to_ascii_lowercase().contains("mark")
        }
        _ => false,
    };
    let mut legacy = scene.host.filter.legacy.iter().flat_map(|table| &table.rules);
    scene.lacks(Part::Nftables, None)
        || steps.any(marks)
        || legacy.any(|rule| rule.contains("MARK"))
}

/// Addresses that stand for the Internet. Nothing is sent to them: what is so for all of them is so
/// for whatever has no route of its own.
pub(super) fn samples(family: IpFamily) -> [IpAddr; 3] {
    match family {
        IpFamily::V4 => {
            [[45_u8, 0, 0, 1].into(), [93_u8, 184, 0, 1].into(), [185_u8, 0, 0, 1].into()]
        }
        IpFamily::V6 => [
            [0x2400_u16, 0, 0, 0, 0, 0, 0, 1].into(),
            [0x2600_u16, 0, 0, 0, 0, 0, 0, 1].into(),
            [0x2a00_u16, 0, 0, 0, 0, 0, 0, 1].into(),
        ],
    }
}

/// Judges how a container reaches beyond the node, and how answers come back.
fn outside(look: Look<'_>, site: &Site<'_>, mark: Option<u32>) -> Vec<Finding> {
    beyond(look, site.container, site.family(), |to| to_and_back(look, site, to, mark))
}

/// Judges what is sent to the Internet, and to what a container asks.
fn beyond(
    look: Look<'_>,
    container: &Container,
    family: IpFamily,
    judged: impl Fn(IpAddr) -> Vec<Finding>,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let all = samples(family).map(&judged);
    // What one of them does not meet depends on the address.
    if let Some((first, others)) = all.split_first() {
        let is_common = |finding: &&Finding| {
            others.iter().all(|other| {
                other.iter().any(|one| one.id == finding.id && one.object == finding.object)
            })
        };
        found.extend(first.iter().filter(is_common).cloned());
    }
    for to in targets(look, container) {
        if IpFamily::of(to) == family {
            found.extend(judged(to).into_iter().filter(|one| one.id != "no-default-route"));
        }
    }
    found
}

/// A route or a rule of a container refuses what it sends beyond the node, by whatever it is
/// connected.
fn refused_by_itself(look: Look<'_>, container: &Container, family: IpFamily) -> Vec<Finding> {
    let Some(inside) = &container.inside else { return Vec::new() };
    let is_default = |route: &Route| {
        route.to.prefix_len() == 0
            && route.metric != u32::MAX
            && IpFamily::of(route.to.addr()) == family
            && matches!(
                route.kind,
                RouteKind::Blackhole | RouteKind::Unreachable | RouteKind::Prohibit
            )
    };
    // Who has such a route in the place of the default one may be meant to have none.
    let is_missed =
        || inside.routes.iter().any(is_default) && unanswered(look, container, family).is_some();
    if !leads_beyond(look.scene, container, family) && !is_missed() {
        return Vec::new();
    }
    let decided = |from: Option<IpAddr>, to: IpAddr| look_up(inside, from, to, None, Some(0));
    beyond(look, container, family, |to| {
        // The kernel asks once more with the source that it has chosen.
        let routed = match decided(None, to) {
            RouteDecision::By { link, route, .. } => {
                decided(route.source.or_else(|| path::address_of(link, to.is_ipv4())), to)
            }
            other => other,
        };
        let (route, rule) = match routed {
            RouteDecision::By { link, route, rule, .. } if discards(link, route) => {
                (Some(route), rule)
            }
            RouteDecision::Refused { route, rule } => (route, rule),
            _ => return Vec::new(),
        };
        vec![refused_inside(container, inside, family, route, rule)]
    })
}

fn to_and_back(look: Look<'_>, site: &Site<'_>, to: IpAddr, mark: Option<u32>) -> Vec<Finding> {
    let host = &look.scene.host;
    let inside =
        |route, rule| vec![refused_inside(site.container, site.inside, site.family(), route, rule)];
    let via = match look_up(site.inside, Some(site.address), to, None, Some(0)) {
        RouteDecision::By { link, via: Some(via), .. } if link.index == site.link.index => via,
        RouteDecision::By { link, route, rule, .. } if discards(link, route) => {
            return inside(Some(route), rule);
        }
        RouteDecision::Refused { route, rule } => return inside(route, rule),
        _ => return Vec::new(),
    };
    // Another machine of the network is the gateway.
    if host.owner_of(via).is_none() && !site.is_routed() {
        return Vec::new();
    }
    let iif = Some(site.seen_by.name.as_str());
    let given = if mark.is_none() { given_mark(look, site, to) } else { None };
    let first = given.as_ref().map_or(mark, |(given, _)| Some(*given));
    match look_up(host, Some(site.address), to, iif, first) {
        RouteDecision::By { link, route, rule, .. } if discards(link, route) => {
            vec![refused(look, site, WayKind::Outside, Some(route), rule)]
        }
        RouteDecision::By { link, .. } => {
            let back = look_up(host, Some(to), site.address, Some(&link.name), mark);
            answered(look, site, back, WayKind::Outside).into_iter().collect()
        }
        RouteDecision::Refused { route, rule } => {
            let by_mark = rule.filter(|rule| rule.mark.is_some()).zip(given.and_then(|(_, by)| by));
            let mut found = vec![match by_mark {
                Some((rule, by)) => diverted::refused_by_mark(look, site, route, rule, &by),
                None => refused(look, site, WayKind::Outside, route, rule),
            }];
            // What refuses may hide that there is no way out in any case.
            if look_up(host, None, to, None, mark) == RouteDecision::Nowhere {
                found.extend(nowhere(look, site));
            }
            found
        }
        RouteDecision::Nowhere => nowhere(look, site).into_iter().collect(),
        RouteDecision::Local(_) | RouteDecision::Unknown => Vec::new(),
    }
}

/// Returns the mark that what a container sends to an address surely has when it is routed, and the
/// rule that gives it. It matters only to routing rules that ask for marks.
fn given_mark(look: Look<'_>, site: &Site<'_>, to: IpAddr) -> Option<(u32, Option<Place>)> {
    let scene = look.scene;
    let hidden = [Part::Nftables, Part::LegacyIptables, Part::Unjudged];
    let is_hidden = hidden.iter().any(|part| scene.lacks(*part, None));
    let is_asked = |rule: &RouteRule| rule.ipv4 == to.is_ipv4() && rule.mark.is_some();
    if is_hidden || !asks_links(look) || !scene.host.rules.iter().any(is_asked) {
        return None;
    }
    // What is done to one port alone is not done to all that it sends.
    let with = path::carries(Transport::Tcp, Port::Is(path::RARE_PORT));
    let walked = site.enter(&scene.host, to, with);
    let is_sure = walked.end == End::Passes && walked.destination.is_none();
    is_sure.then_some((walked.packet.mark?, walked.marked))
}

/// Says whether a route leads to a link from which nothing comes back. Who has no other network has
/// its default route there on purpose.
fn discards(link: &Link, route: &Route) -> bool {
    let is_sink = link.name == "lo" || link.kind.as_deref() == Some("dummy");
    is_sink && 0 < route.to.prefix_len()
}

/// Judges where the node sends what is for a container.
fn answered(
    look: Look<'_>,
    site: &Site<'_>,
    routed: RouteDecision<'_>,
    kind: WayKind,
) -> Option<Finding> {
    let knows = knows(&look.scene.host, site);
    match routed {
        RouteDecision::By { link, .. } if !knows || link.index == site.seen_by.index => None,
        RouteDecision::By { link, rule: Some(rule), route, .. } => {
            Some(diverted(look, site, link, route, rule))
        }
        RouteDecision::By { link, route, .. } if 0 < route.to.prefix_len() => {
            Some(covered(look, site, link, route))
        }
        RouteDecision::Refused { route, rule } => Some(refused(look, site, kind, route, rule)),
        // The route to the network is gone: CHECK tells that.
        RouteDecision::By { .. }
        | RouteDecision::Nowhere
        | RouteDecision::Local(_)
        | RouteDecision::Unknown => None,
    }
}

/// Says whether the node has a route to a container by the link that leads there, or had one: it has
/// an address of the container's subnet there, and another route may have replaced its own. If
/// neither is so, it is not meant to have a route, or CHECK tells that the route is gone.
fn knows(host: &Namespace, site: &Site<'_>) -> bool {
    let is_gateway = site.seen_by.addresses.iter().any(|own| {
        let is_alone = own.address.prefix_len() == own.address.max_prefix_len();
        !is_alone && own.address.contains(&site.address)
    });
    is_gateway
        || host.routes.iter().any(|route| {
            route.to.contains(&site.address)
                && 0 < route.to.prefix_len()
                && route.hops.iter().any(|hop| hop.link == Some(site.seen_by.index))
        })
}

/// A route was put into the table `local`, which is asked before all others: the node keeps what is
/// for a container.
fn kept(look: Look<'_>, site: &Site<'_>) -> Option<Finding> {
    let host = &look.scene.host;
    let keeps = |route: &&Route| route.table == TABLE_LOCAL && route.to.contains(&site.address);
    let route = host.routes.iter().find(keeps)?;
    let link = host.link_of(route.hops.first()?.link?)?;
    Some(covered(look, site, link, route))
}

/// The ways that break if packets to a container go elsewhere.
fn to_container(finding: Finding, site: &Site<'_>) -> Finding {
    let kinds = [
        WayKind::Gateway,
        WayKind::Outside,
        WayKind::Names,
        WayKind::FromNode,
        WayKind::Published,
        WayKind::PublishedHere,
    ];
    kinds.into_iter().fold(finding.hits(site.container.id.clone()), |finding, kind| {
        finding.breaks(kind, Some(site.family()))
    })
}

/// Writes a route as `ip route` does.
pub(super) fn text(route: &Route, host: &Namespace) -> String {
    let kind = match route.kind {
        RouteKind::Blackhole => "blackhole ",
        RouteKind::Unreachable => "unreachable ",
        RouteKind::Prohibit => "prohibit ",
        RouteKind::Throw => "throw ",
        _ => "",
    };
    let mut text = match route.to.prefix_len() {
        0 => format!("{kind}default"),
        _ => format!("{kind}{}", route.to),
    };
    if let Some(hop) = route.hops.first().filter(|_| route.kind == RouteKind::Unicast) {
        if let Some(via) = hop.via {
            text.push_str(&format!(" via {via}"));
        }
        if let Some(link) = hop.link.and_then(|index| host.link_of(index)) {
            text.push_str(&format!(" dev {}", link.name));
        }
    }
    text.push_str(&in_table(route.table));
    if route.metric != 0 {
        text.push_str(&format!(" metric {}", route.metric));
    }
    text
}

/// Writes a routing table as `ip route` does.
pub(super) fn in_table(table: u32) -> String {
    if table == TABLE_MAIN { String::new() } else { format!(" table {table}") }
}

/// Writes a routing rule as `ip rule` does.
pub(super) fn rule_text(rule: &RouteRule) -> String {
    let mut text = format!("{}:", rule.priority);
    if rule.invert {
        text.push_str(" not");
    }
    text.push_str(&rule.from.map_or(" from all".to_owned(), |net| format!(" from {net}")));
    if let Some(net) = rule.to {
        text.push_str(&format!(" to {net}"));
    }
    if let Some((value, mask)) = rule.mark {
        text.push_str(&format!(" fwmark {value:#x}/{mask:#x}"));
    }
    if let Some(link) = &rule.iif {
        text.push_str(&format!(" iif {link}"));
    }
    if let Some(link) = &rule.oif {
        text.push_str(&format!(" oif {link}"));
    }
    match rule.action {
        RuleAction::Table(table) => text.push_str(&format!(" lookup {table}")),
        RuleAction::Blackhole => text.push_str(" blackhole"),
        RuleAction::Unreachable => text.push_str(" unreachable"),
        RuleAction::Prohibit => text.push_str(" prohibit"),
        _ => {}
    }
    if let Some(length) = rule.suppress {
        text.push_str(&format!(" suppress_prefixlength {length}"));
    }
    text
}

fn covered(look: Look<'_>, site: &Site<'_>, link: &Link, route: &Route) -> Finding {
    let (network, to) = (&site.attachment.network, route.to);
    let says = format!(
        "a route to {to} leads packets for containers of {network} to {} instead of {}",
        link.name, site.seen_by.name
    );
    let text = text(route, &look.scene.host);
    let finding = Finding::error("route-covers-pool", format!("{to} dev {}", link.name), says)
        .at(text.clone())
        .seen(format!("the node's way to {} is by {}", site.address, link.name))
        .fix(format!("{} route del {text}", ip(site.family())))
        .advise(format!("or give network {network} a subnet that no route of this node has"));
    let finding = Finding { whose: whose::of_route(route, look.scene), ..finding };
    to_container(finding, site)
}

fn diverted(
    look: Look<'_>,
    site: &Site<'_>,
    link: &Link,
    route: &Route,
    rule: &RouteRule,
) -> Finding {
    let says = format!(
        "routing rule {} leads packets for containers of {} to {} instead of {}",
        rule.priority, site.attachment.network, link.name, site.seen_by.name
    );
    let finding = Finding::error("rule-diverts", object_of(rule), says)
        .at(format!("rule {}; then route {}", rule_text(rule), text(route, &look.scene.host)))
        .seen(format!("the node's way to {} is by {}", site.address, link.name))
        .fix(exception(look, site, rule, "to"));
    let finding = Finding { whose: whose::of_link(link, look.scene), ..finding };
    to_container(finding, site)
}

/// The command that takes a container's network out of what a rule leads. It comes before the rules
/// that leave default routes to that rule, as `wg-quick` makes one: who removes it by its priority would
/// remove theirs.
fn exception(look: Look<'_>, site: &Site<'_>, rule: &RouteRule, side: &str) -> String {
    let mut priority = rule.priority.saturating_sub(1);
    let leaves = |priority: u32| {
        let rules = look.scene.host.rules.iter();
        let mut same =
            rules.filter(|one| one.ipv4 == rule.ipv4 && one.priority == priority).peekable();
        same.peek().is_some() && same.all(|one| one.suppress.is_some())
    };
    while 0 < priority && leaves(priority) {
        priority -= 1;
    }
    format!(
        "{} rule add priority {priority} {side} {} lookup main",
        ip(site.family()),
        pool(look, site)
    )
}

/// The commands that take what some containers send to an address out of what a rule leads.
fn exceptions(look: Look<'_>, rule: &RouteRule, of: &[String], to: IpAddr) -> Vec<String> {
    let mut all = Vec::new();
    for container in of.iter().filter_map(|id| look.scene.container(id)) {
        let sites = Site::all(look.scene, container, IpFamily::of(to));
        let is_way = |site: &Site<'_>| {
            let routed = look_up(site.inside, None, to, None, Some(0));
            matches!(routed, RouteDecision::By { link, .. } if link.index == site.link.index)
        };
        for site in sites.filter(is_way) {
            let command = exception(look, &site, rule, "from");
            if !all.contains(&command) {
                all.push(command);
            }
        }
    }
    all
}

/// The subnet of a container's network; the container's own prefix if that is not known.
fn pool(look: Look<'_>, site: &Site<'_>) -> IpNet {
    let network = look.scene.networks.iter().find(|one| one.name == site.attachment.network);
    let mut nets = network.into_iter().flat_map(|network| &network.subnets).copied();
    nets.find(|net| net.contains(&site.address)).unwrap_or_else(|| IpNet::from(site.address))
}

fn object_of(rule: &RouteRule) -> String {
    format!("{} rule {}", if rule.ipv4 { "IPv4" } else { "IPv6" }, rule.priority)
}

/// A route or a rule of the node refuses.
fn refused(
    look: Look<'_>,
    site: &Site<'_>,
    kind: WayKind,
    route: Option<&Route>,
    rule: Option<&RouteRule>,
) -> Finding {
    let of_whom = format!("containers of {}", site.attachment.network);
    let (does, finding) = refusal(&look.scene.host, ip(site.family()), route, rule);
    let what = match kind {
        WayKind::Outside => format!("{of_whom} send beyond this node, or the answers"),
        _ => format!("this node sends to {of_whom}"),
    };
    let says = format!("{} {does} what {what}", finding.object);
    let whose = route.and_then(|route| whose::of_route(route, look.scene));
    let finding = Finding { says, whose, ..finding }
        .seen(format!("the way of packets of {} ends there", site.address))
        .hits(site.container.id.clone());
    match kind {
        WayKind::Outside => outbound(finding, site.family()),
        _ => to_container(finding, site),
    }
}

/// A route or a rule of a container refuses.
fn refused_inside(
    container: &Container,
    inside: &Namespace,
    family: IpFamily,
    route: Option<&Route>,
    rule: Option<&RouteRule>,
) -> Finding {
    let called = container.called();
    let tool = format!("{}{}", within(container.netns.as_str()), ip(family));
    let (does, finding) = refusal(inside, &tool, route, rule);
    let says = format!("{} of {called} {does} what it sends beyond this node", finding.object);
    let place = finding.place.clone().unwrap_or_default();
    let finding =
        Finding { says, object: format!("{}: {}", container.id, finding.object), ..finding }
            .at(format!("in {called}: {place}"))
            .seen("the way of its packets ends there")
            .hits(container.id.clone());
    outbound(finding, family)
}

/// What a route or a rule does, and the finding that names it.
fn refusal(
    namespace: &Namespace,
    tool: &str,
    route: Option<&Route>,
    rule: Option<&RouteRule>,
) -> (&'static str, Finding) {
    let (name, place, fix) = match (route, rule) {
        (Some(route), _) => {
            let text = text(route, namespace);
            let fix = Help::Command(format!("{tool} route del {text}"));
            (format!("route {text}"), text, fix)
        }
        (None, Some(rule)) => (
            object_of(rule),
            format!("rule {}", rule_text(rule)),
            Help::Command(format!("{tool} rule del priority {}", rule.priority)),
        ),
        (None, None) => (
            "a route".to_owned(),
            "unknown".to_owned(),
            Help::Advice(format!("look at the routes: {tool} route")),
        ),
    };
    let does = match route {
        Some(route) if route.kind == RouteKind::Unicast => "discards",
        _ => "refuses",
    };
    let finding = Finding::error("route-refuses", name, "").at(place).help(fix);
    // Routes of the main table are seldom made to keep packets from going past a VPN.
    let finding = match rule {
        Some(_) => finding.advise("then that passes for which it may have been made, such as what is to go by a VPN alone"),
        None => finding,
    };
    (does, finding)
}

/// What breaks if nothing of what containers send beyond the node leaves.
fn outbound(finding: Finding, family: IpFamily) -> Finding {
    let kinds = [WayKind::Outside, WayKind::Names, WayKind::Published];
    kinds.into_iter().fold(finding, |finding, kind| finding.breaks(kind, Some(family)))
}

/// The node has no way out, although one of its links is on a network of this family.
fn nowhere(look: Look<'_>, site: &Site<'_>) -> Option<Finding> {
    let host = &look.scene.host;
    let family = site.family();
    let is_of = |address: IpAddr| address.is_ipv4() == (family == IpFamily::V4);
    // An administrator who gave it routes by gateways and no default route did so on purpose, unless
    // a container asked in vain for what no route leads to.
    let by_gateway =
        |route: &Route| is_of(route.to.addr()) && route.hops.iter().any(|hop| hop.via.is_some());
    if host.routes.iter().any(by_gateway) && !is_missed(look, site) {
        return None;
    }
    let is_meant = |address: IpAddr| is_of(address) && is_global(address);
    let attachments = look.scene.containers.iter().flat_map(|one| &one.attachments);
    let of_containers: Vec<&String> = attachments.flat_map(|one| &one.host_links).collect();
    let mut outer = host.links.iter().filter(|link| {
        link.name != "lo"
            && !of_containers.contains(&&link.name)
            && !matches!(link.kind.as_deref(), Some("bridge" | "dummy" | "tun" | "wireguard"))
    });
    let has_address =
        |link: &&Link| link.addresses.iter().map(|own| own.address.addr()).any(is_meant);
    let (uplink, seen) = match outer.clone().find(has_address) {
        Some(uplink) => (uplink, "has an address, and no route leads to other networks".to_owned()),
        // A node without IPv6 is not one that has lost it, and one with a way out by IPv6 may be
        // meant to have no IPv4. A container that tried it in vain misses it.
        None if is_missed(look, site)
            || (family == IpFamily::V6 && is_ipv6_off_on_all(host))
            || (family == IpFamily::V4 && !has_way_out(host)) =>
        {
            let is_ready = |link: &&Link| link.up && link.carrier && link.master.is_none();
            let other = path::uplink(look.scene, family == IpFamily::V4).filter(is_ready);
            let bare = other.or_else(|| outer.find(is_ready))?;
            // Where IPv6 works on the link itself, the node may have been given no more of it.
            let mut own = bare.addresses.iter().map(|own| own.address.addr());
            let is_given_none = own.any(is_of) && !routers::are_ignored(host, bare);
            let is_meant = || {
                let is_off = ipv6_switch(host, bare, family).is_some();
                !is_off && !is_missed(look, site)
            };
            if family == IpFamily::V6 && (is_given_none || is_meant()) {
                return None;
            }
            (bare, format!("is up, and neither it nor another link has an address of {family}"))
        }
        None => return None,
    };
    if let Some(switch) = ipv6_switch(host, uplink, family) {
        return Some(switched_off(look, site, &uplink.name, &switch));
    }
    if family == IpFamily::V6 && routers::are_ignored(host, uplink) {
        return Some(routers::ignored(site, &uplink.name, &seen));
    }
    let says = format!(
        "this node has no default route for {family}, so its containers do not reach beyond it"
    );
    Some(
        Finding::error("no-default-route", family.to_string(), says)
            .at("routing table main")
            .seen(format!("{} {seen}", uplink.name))
            .hits(site.container.id.clone())
            .advise(format!(
                "give this node its default route, {} route add default via GATEWAY dev {}, or restart what configures {}",
                ip(family),
                uplink.name,
                uplink.name
            ))
            .breaks(WayKind::Outside, Some(family))
            .breaks(WayKind::Names, Some(family))
            .breaks(WayKind::Published, Some(family)),
    )
}

/// A kernel parameter switches IPv6 off where the node's way out by it would be.
fn switched_off(look: Look<'_>, site: &Site<'_>, uplink: &str, switch: &str) -> Finding {
    let called = site.container.called();
    let says = format!(
        "IPv6 is switched off on {uplink}, so this node has no default route for it, and its containers do not reach beyond the node by it"
    );
    let (severity, seen) = match is_missed(look, site) {
        true => {
            (Severity::Error, format!("{uplink} is up, and a probe of {called} by IPv6 was lost"))
        }
        false => {
            (Severity::Warning, format!("{uplink} is up, and {called} has an address of IPv6"))
        }
    };
    let finding = Finding::error("no-default-route", format!("IPv6: {switch}"), says);
    Finding { severity, ..finding }
        .at(format!("{switch} is 1"))
        .seen(seen)
        .hits(site.container.id.clone())
        .fix(format!("sysctl -w {switch}=0"))
        .advise(format!(
            "then restart what configures {uplink}: the kernel has removed its addresses"
        ))
        .breaks(WayKind::Outside, Some(IpFamily::V6))
        .breaks(WayKind::Names, Some(IpFamily::V6))
        .breaks(WayKind::Published, Some(IpFamily::V6))
}

/// Says whether a container asked for a name, or tried to connect, in vain by this IP version, and this
/// node has no route there.
fn is_missed(look: Look<'_>, site: &Site<'_>) -> bool {
    look.answers.from(Some(&site.container.id)).any(|(asked, answer)| {
        let to = asked.program().map(|(at, _)| at.ip());
        let is_nowhere = |to: IpAddr| {
            IpFamily::of(to) == site.family()
                && look_up(&look.scene.host, None, to, None, Some(0)) == RouteDecision::Nowhere
        };
        answer.is_lost() && to.is_some_and(is_nowhere)
    })
}

/// Says whether a namespace has a default route of either family, in any table.
fn has_way_out(host: &Namespace) -> bool {
    let mut routes = host.routes.iter();
    routes.any(|route| route.kind == RouteKind::Unicast && route.to.prefix_len() == 0)
}

/// Says whether an address is neither of a link alone nor of loopback.
fn is_global(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_link_local() && !address.is_loopback(),
        IpAddr::V6(address) => address.segments()[0] & 0xffc0 != 0xfe80 && !address.is_loopback(),
    }
}
