//! The rules, one file for each family of faults.

mod asked;
mod attachments;
mod configuration;
mod filters;
mod flows;
mod holes;
mod inside;
mod links;
mod local_ports;
mod names;
mod neighbours;
mod open_vswitch;
mod overlays;
mod ports;
mod programs;
mod queues;
mod rates;
mod segments;
mod sizes;
mod switches;
mod tunnels;
mod unchecked;
mod unexamined;
mod vrfs;
mod ways;

use std::collections::BTreeSet;

use net::IpFamily;

pub(crate) use self::asked::NOT_ASKED;
pub use self::asked::not_tried;
pub(crate) use self::holes::{UNJUDGED, is_because_of};
pub(crate) use self::names::BLAMED;
pub(crate) use self::rates::LOSES_LARGE;
pub(crate) use self::unchecked::is_ipv6_off;
pub use self::unexamined::UnexaminedWay;
pub(crate) use self::unexamined::all as unexamined;
use crate::Look;
use crate::filter::{End, Payload, Port};
use crate::finding::Finding;
use crate::model::{Container, Hole, Part, Scene, Transport};
use crate::path::{self, Interface};
use crate::question::{Answer, Probe, Question};
use crate::routes::{RouteDecision, look_up};

/// A rule.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// What it judges, in words.
    pub judges: &'static str,
    /// The IDs of the findings that it returns.
    pub ids: &'static [&'static str],
    /// Parts of the node without which it would judge wrongly: it concludes from what is missing, or
    /// from what comes first. What it finds in a part that was read by halves is so all the same,
    /// and needs nothing.
    pub needs: &'static [Part],
    /// Such parts of each container.
    pub inside: &'static [Part],
    /// The probes that it wants.
    pub asks: fn(Look<'_>) -> Vec<Question>,
    /// Judges.
    pub judge: fn(Look<'_>) -> Vec<Finding>,
}

impl Rule {
    /// A rule that needs nothing, asks nothing and finds nothing.
    const NONE: Rule = Rule {
        judges: "",
        ids: &[],
        needs: &[],
        inside: &[],
        asks: nothing,
        judge: |_| Vec::new(),
    };

    /// Returns the questions that it has, if it could judge the answers.
    #[must_use]
    pub fn questions(&self, look: Look<'_>) -> Vec<Question> {
        if !self.missing(look).is_empty() {
            return Vec::new();
        }
        let mut asked = (self.asks)(look);
        let blind = self.blind(look);
        asked.retain(|question| question.from.as_ref().is_none_or(|id| !blind.contains(id)));
        asked
    }

    /// Judges what it can, and says of what else that it could not.
    #[must_use]
    pub fn findings(&self, look: Look<'_>) -> Vec<Finding> {
        let missing = self.missing(look);
        if !missing.is_empty() {
            return vec![holes::not_judged(self, missing)];
        }
        let mut found = (self.judge)(look);
        let blind = self.blind(look);
        if blind.is_empty() {
            return found;
        }
        found.retain_mut(|finding| {
            let hit = finding.hits.len();
            finding.hits.retain(|id| !blind.contains(id));
            hit == 0 || !finding.hits.is_empty()
        });
        found.push(holes::not_judged_of(self, look.scene.containers.len(), blind));
        found
    }

    /// Returns the parts of the node that it needs and that could not be read.
    fn missing(&self, look: Look<'_>) -> Vec<Part> {
        let needed = self.needs.iter().copied();
        needed.filter(|part| look.scene.lacks(*part, None)).collect()
    }

    /// Returns the containers of which it could not read what it needs.
    fn blind(&self, look: Look<'_>) -> BTreeSet<String> {
        if self.inside.is_empty() || look.scene.holes.is_empty() {
            return BTreeSet::new();
        }
        let is_needed =
            |hole: &&Hole| hole.part == Part::Namespace || self.inside.contains(&hole.part);
        let holes = look.scene.holes.iter().filter(is_needed);
        let mut of: BTreeSet<&str> = BTreeSet::new();
        of.extend(holes.filter_map(|hole| hole.container.as_deref()));
        let seen = containers(look).filter(|container| of.contains(container.id.as_str()));
        let mut blind = BTreeSet::new();
        blind.extend(seen.map(|container| container.id.clone()));
        blind
    }
}

/// The finding of what network policy denies.
pub(crate) const DENIED: &str = "policy-denies";

/// The finding of a rule that drops by who sends.
pub(crate) const BY_SENDER: &str = "sender-filtered";

/// The finding of a container's own filter, while nothing shows that it does harm.
pub(crate) const BY_ITSELF: &str = "inside-filtered";

/// Asks nothing.
fn nothing(_: Look<'_>) -> Vec<Question> {
    Vec::new()
}

/// Returns the living containers that are looked at.
fn containers(look: Look<'_>) -> impl Iterator<Item = &Container> {
    look.scene.containers.iter().filter(move |container| {
        container.alive != Some(false) && look.only.is_none_or(|only| container.id == only)
    })
}

/// Of so many containers it is asked who has their addresses: the answers of all are waited for.
const FEW: usize = 16;

/// Says whether it is asked on links who has an address.
fn asks_links(look: Look<'_>) -> bool {
    look.only.is_some() || look.scene.containers.len() <= FEW
}

/// Says whether a container has an address of a family on a network that leads beyond the node by the
/// node's own IP.
fn is_outbound(scene: &Scene, container: &Container, family: IpFamily) -> bool {
    container.attachments.iter().any(|attachment| {
        let of_family = |address: &std::net::IpAddr| IpFamily::of(*address) == family;
        let network = scene.networks.iter().find(|one| one.name == attachment.network);
        if attachment.has_plugin("bridge") || attachment.has_plugin("ptp") {
            return attachment.gateways.iter().any(of_family)
                && network.is_none_or(|network| network.outbound);
        }
        // What the keys of other plugins mean is not known here, so the routes decide.
        path::Site::of(scene, container, attachment, family).is_some_and(|site| {
            site.joint == path::Joint::Pair
                && (site.gateway.is_some() || site.is_routed())
                && has_default_route(container, attachment, family)
        })
    })
}

/// Says whether an address means another machine on each link: no router forwards packets to it.
fn is_link_local(address: std::net::IpAddr) -> bool {
    match address {
        std::net::IpAddr::V4(address) => address.is_link_local(),
        std::net::IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Says whether a container has a way beyond the node, by the node or by another machine.
fn leads_beyond(scene: &Scene, container: &Container, family: IpFamily) -> bool {
    is_outbound(scene, container, family)
        || (container.attachments.iter())
            .any(|attachment| has_default_route(container, attachment, family))
}

/// Says whether a container has a default route by the interface of an attachment.
fn has_default_route(
    container: &Container,
    attachment: &crate::model::Attachment,
    family: IpFamily,
) -> bool {
    let Some(inside) = &container.inside else { return false };
    let Some(link) = inside.link(&attachment.ifname) else { return false };
    inside.routes.iter().any(|route| {
        route.to.prefix_len() == 0
            && IpFamily::of(route.to.addr()) == family
            && route.hops.iter().any(|hop| hop.link == Some(link.index))
    })
}

/// Returns what a container has tried by an IP version, if nothing of all that it asked by that was
/// answered. Many firewalls drop echo requests, so these alone do not count.
fn unanswered(
    look: Look<'_>,
    container: &Container,
    family: IpFamily,
) -> Option<(std::net::IpAddr, Payload)> {
    let mut tried = None;
    for (asked, answer) in look.answers.from(Some(&container.id)) {
        let Some(to) = asked.destination().filter(|to| IpFamily::of(*to) == family) else {
            continue;
        };
        match answer {
            Answer::Silent { .. } | Answer::Unreachable { .. } => {
                let with = asked.program();
                let with = with.map(|(at, by)| (to, path::carries(by, Port::Is(at.port()))));
                tried = tried.or(with);
            }
            Answer::NotAsked { .. } => {}
            _ => return None,
        }
    }
    tried
}

/// Returns the addresses beyond the node with which a container's way outside is tried: what the
/// caller named, or else the container's servers of names that are neither on this node nor on a
/// network of its containers.
fn targets(look: Look<'_>, container: &Container) -> Vec<std::net::IpAddr> {
    if let Some(to) = look.to {
        return vec![to.ip()];
    }
    let servers = container.nameservers.iter().flatten().copied();
    let mut targets: Vec<std::net::IpAddr> =
        servers.filter(|server| !is_here(look.scene, *server)).collect();
    targets.truncate(2);
    targets
}

/// Says whether an address is this node's, or of a network of its containers.
pub(crate) fn is_here(scene: &Scene, address: std::net::IpAddr) -> bool {
    // The network of a parent link has other machines, too.
    let is_own = |network: &&crate::model::Network| {
        !is_on_parent(network.plugins.first().map(String::as_str))
    };
    let mut subnets = scene.networks.iter().filter(is_own).flat_map(|one| &one.subnets);
    address.is_loopback()
        || scene.host.owner_of(address).is_some()
        || subnets.any(|net| net.contains(&address))
}

/// Plugins that connect a container with the network of a link of the node.
const ON_PARENT: [&str; 4] = ["macvlan", "ipvlan", "vlan", "host-device"];

/// Says whether the first plugin of a network is one of these.
fn is_on_parent(first: Option<&str>) -> bool {
    first.is_some_and(|first| ON_PARENT.contains(&first))
}

/// Adds to the finding of a container whose packets to an address are not answered that the router
/// on the way there answers the node: of another machine it is not known whether that forwards
/// packets. If a rule may send the packets elsewhere, as to a Service, that says nothing.
fn with_router(
    look: Look<'_>,
    container: &Container,
    to: std::net::SocketAddr,
    transport: Transport,
    finding: Finding,
) -> Finding {
    let address = to.ip();
    let routed = look_up(&look.scene.host, None, address, None, Some(0));
    let RouteDecision::By { via: Some(router), .. } = routed else { return finding };
    let echo = Question { from: None, asked: Probe::Echo { to: router } };
    let is_own = container.inside.as_ref().is_some_and(|one| one.owner_of(address).is_some());
    match look.answers.to(&echo) {
        Some(Answer::Reached { .. })
            if !is_own && !may_be_led(look.scene, container, to, transport) =>
        {
            finding.seen(format!(
                "{router}, by which this node reaches {address}, answers an echo request"
            ))
        }
        _ => finding,
    }
}

/// Says whether a rule of the node may send a container's packets to an address elsewhere.
fn may_be_led(
    scene: &Scene,
    container: &Container,
    to: std::net::SocketAddr,
    transport: Transport,
) -> bool {
    let with = path::carries(transport, Port::Is(to.port()));
    path::Site::all(scene, container, IpFamily::of(to.ip())).any(|site| {
        let walked = site.enter(&scene.host, to.ip(), with);
        walked.destination.is_some() || matches!(walked.end, End::Lost(_))
    })
}

/// `ip` or `ip -6`.
fn ip(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ip",
        IpFamily::V6 => "ip -6",
    }
}

/// Returns the interfaces of the containers that are looked at, by which they ask others for hardware
/// addresses.
fn interfaces(look: Look<'_>) -> impl Iterator<Item = Interface<'_>> {
    containers(look).flat_map(move |container| {
        let families = IpFamily::ALL.into_iter();
        families.flat_map(move |family| Interface::every(look.scene, container, family))
    })
}

/// All rules.
pub const RULES: &[Rule] = &[
    holes::RULE,
    asked::RULE,
    local_ports::RULE,
    configuration::RULE,
    attachments::RULE,
    unchecked::RULE,
    unchecked::OF_NODE,
    switches::RULE,
    links::UPLINKS,
    links::RULE,
    segments::RULE,
    queues::RULE,
    programs::RULE,
    rates::RULE,
    tunnels::RULE,
    overlays::RULE,
    vrfs::RULE,
    ways::ROUTES,
    ways::GATEWAYS,
    ways::SILENT,
    ways::endpoints::RULE,
    ways::expired::RULE,
    filters::RULE,
    filters::denied::RULE,
    filters::sender::RULE,
    neighbours::RULE,
    ports::RULE,
    ports::ADDRESSES,
    flows::RULE,
    inside::RULE,
    inside::LISTENERS,
    names::RULE,
    open_vswitch::RULE,
    names::LOOPBACK,
    names::ROUTES,
    names::files::RULE,
    names::search::RULE,
    sizes::RULE,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Namespace;
    use crate::question::Answers;

    fn hole(part: Part, container: Option<&str>) -> Hole {
        let container = container.map(str::to_owned);
        Hole { part, container, reason: "Operation not permitted".to_owned() }
    }

    fn rule(needs: &'static [Part], inside: &'static [Part]) -> Rule {
        let judge = |look: Look<'_>| -> Vec<Finding> {
            let one = |container: &Container| {
                Finding::error("all", "all", "found").hits(container.id.clone())
            };
            let node = Finding::error("node", "node", "found");
            containers(look).map(one).chain([node]).collect()
        };
        let asks = |look: Look<'_>| -> Vec<Question> {
            let asked = || crate::Probe::Echo { to: "192.0.2.1".parse().unwrap() };
            let from = |one: &Container| Question { from: Some(one.id.clone()), asked: asked() };
            containers(look).map(from).collect()
        };
        Rule { judges: "ways", ids: &["all", "node"], needs, inside, asks, judge }
    }

    fn scene(holes: Vec<Hole>) -> Scene {
        let container = |id: &str| Container {
            id: id.to_owned(),
            alive: Some(true),
            inside: Some(Namespace::default()),
            ..Container::default()
        };
        Scene { containers: vec![container("c1"), container("c2")], holes, ..Scene::default() }
    }

    /// Each finding as its ID and whom it hits, and who asks.
    fn told(rule: &Rule, scene: &Scene, only: Option<&str>) -> (Vec<String>, Vec<String>) {
        let answers = Answers::default();
        let look = Look { scene, answers: &answers, only, to: None };
        let line = |one: Finding| format!("{} {}", one.id, one.hits.join(" ")).trim().to_owned();
        let asked = rule.questions(look).into_iter().filter_map(|question| question.from);
        (rule.findings(look).into_iter().map(line).collect(), asked.collect())
    }

    #[test]
    fn a_rule_judges_where_it_sees_what_it_needs() {
        let needs_routes = rule(&[Part::Routes], &[Part::Listeners]);
        let all = (vec!["all c1", "all c2", "node"], vec!["c1", "c2"]);
        let as_text = |(found, asked): (Vec<&str>, Vec<&str>)| {
            let text = |all: Vec<&str>| all.into_iter().map(str::to_owned).collect::<Vec<_>>();
            (text(found), text(asked))
        };
        // Holes of what it does not need.
        let other = scene(vec![hole(Part::Names, Some("c1")), hole(Part::Pools, None)]);
        assert_eq!(told(&needs_routes, &other, None), as_text(all));
        for part in [Part::Routes, Part::Namespace] {
            let blind = scene(vec![hole(part, None)]);
            let nothing = (vec!["not-judged"], vec![]);
            assert_eq!(told(&needs_routes, &blind, None), as_text(nothing));
        }
        for part in [Part::Listeners, Part::Namespace] {
            let half = scene(vec![hole(part, Some("c1"))]);
            let other = (vec!["all c2", "node", "not-judged c1"], vec!["c2"]);
            assert_eq!(told(&needs_routes, &half, None), as_text(other));
            // The container that could not be read was not asked for.
            let only = (vec!["all c2", "node"], vec!["c2"]);
            assert_eq!(told(&needs_routes, &half, Some("c2")), as_text(only));
        }
    }

    #[test]
    fn each_rule_says_what_it_judges_and_no_id_is_two_rules() {
        let mut known = BTreeSet::new();
        for rule in RULES {
            assert!(!rule.judges.is_empty() && !rule.ids.is_empty(), "{rule:?}");
            for id in rule.ids {
                assert!(known.insert(id), "{id}");
            }
        }
    }
}
