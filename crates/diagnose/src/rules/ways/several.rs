//! Of several default routes the preferred one leads nowhere, as that of a link which came later: a
//! phone, a modem, another network card, or a tunnel to which a routing rule leads all. What does not
//! answer by its link answers by another one.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use net::IpFamily;

use super::super::{containers, targets};
use super::taken::taken;
use super::{exceptions, ip, object_of, rule_text, text};
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::model::{Link, Namespace, Route, RouteKind, RouteRule, Transport};
use crate::question::{Answer, Probe, Question};
use crate::routes::{RouteDecision, TABLE_MAIN, look_up};
use crate::whose;

/// How many machines are asked by each link.
const ASKED: usize = 2;

/// The length of the two prefixes by which programs of tunnels cover a default route.
const HALF: u8 = 1;

/// A machine that the node would ask by the preferred default route, and the other links that have
/// one.
struct Choice<'l> {
    to: IpAddr,
    route: &'l Route,
    /// The routing rule that asks the route's table.
    rule: Option<&'l RouteRule>,
    link: &'l Link,
    others: Vec<(&'l Route, &'l Link)>,
    hits: Vec<String>,
}

pub(super) fn asks(look: Look<'_>) -> Vec<Question> {
    let all = choices(look);
    let each = all.iter().flat_map(|one| {
        let others = one.others.iter().map(|(_, link)| *link);
        [one.link].into_iter().chain(others).map(|link| question(one.to, link))
    });
    each.collect()
}

fn question(to: IpAddr, link: &Link) -> Question {
    Question { from: None, asked: Probe::EchoBy { to, link: link.name.clone() } }
}

fn choices(look: Look<'_>) -> Vec<Choice<'_>> {
    let host = &look.scene.host;
    let mut wanted: BTreeMap<IpAddr, Vec<String>> = BTreeMap::new();
    for container in containers(look) {
        for to in targets(look, container) {
            wanted.entry(to).or_default().push(container.id.clone());
        }
    }
    let all = wanted.into_iter().filter_map(|(to, hits)| {
        let RouteDecision::By { link, route, rule, .. } = look_up(host, None, to, None, Some(0))
        else {
            return None;
        };
        let is_main = route.table == TABLE_MAIN;
        if HALF < route.to.prefix_len() || (rule.is_none() && !is_main) {
            return None;
        }
        let mut others: Vec<(&Route, &Link)> = defaults(host, to).collect();
        if !is_main || 0 < route.to.prefix_len() {
            // Without the rule, or the route, the preferred one of them counts.
            others.sort_by_key(|(route, _)| route.metric);
            others.truncate(1);
        }
        others.retain(|(_, other)| other.index != link.index);
        (!others.is_empty()).then_some(Choice { to, route, rule, link, others, hits })
    });
    all.take(ASKED).collect()
}

/// Returns the links by which the node has a default route to an address, if they are several.
pub(in crate::rules) fn links_out(host: &Namespace, to: IpAddr) -> Option<Vec<&str>> {
    let mut names: Vec<&str> = defaults(host, to).map(|(_, link)| link.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    (1 < names.len()).then_some(names)
}

/// The default routes of the family of an address, each with its link, if that carries anything.
fn defaults(host: &Namespace, to: IpAddr) -> impl Iterator<Item = (&Route, &Link)> {
    let routes = host.routes.iter().filter(move |route| {
        route.kind == RouteKind::Unicast
            && route.table == TABLE_MAIN
            && route.to.prefix_len() == 0
            && IpFamily::of(route.to.addr()) == IpFamily::of(to)
    });
    routes.filter_map(|route| {
        let link = host.link_of(route.hops.first()?.link?)?;
        (link.up && link.carrier).then_some((route, link))
    })
}

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    choices(look).into_iter().filter_map(|choice| silent(look, choice)).collect()
}

/// Says whether an address that does not answer by a link answers by another one.
pub(in crate::rules) fn answers_elsewhere(look: Look<'_>, to: IpAddr, link: &Link) -> bool {
    look.answers.to(&question(to, link)).is_some_and(Answer::is_lost)
        && look.answers.all.iter().any(|(question, answer)| {
            let is_to = matches!(&question.asked, Probe::EchoBy { to: own, .. } if *own == to);
            is_to && matches!(answer, Answer::Reached { .. })
        })
}

/// Says whether a container was not answered by a machine to which a route leads what it sends, as far
/// as that is known.
fn is_lost(look: Look<'_>, container: &str, to: IpAddr, route: &Route) -> bool {
    let asked = look.answers.from(Some(container));
    let mut lost = asked.filter(|(_, answer)| answer.is_lost()).filter_map(|(asked, _)| {
        asked.program().filter(|(at, _): &(SocketAddr, Transport)| at.ip() == to)
    });
    lost.any(|(at, by)| {
        let container = look.scene.container(container);
        let way = container.and_then(|one| taken(look, one, at, by));
        way.is_some_and(|way| way.goes_by(route))
    })
}

fn silent(look: Look<'_>, choice: Choice<'_>) -> Option<Finding> {
    let Choice { to, route, rule, link, others, mut hits } = choice;
    // Some machines on the way answer no echo request, and pass all else on.
    hits.retain(|id| is_lost(look, id, to, route));
    let host = &look.scene.host;
    let is_silent = look.answers.to(&question(to, link)).is_some_and(Answer::is_lost);
    let answers = |other: &Link| {
        matches!(look.answers.to(&question(to, other)), Some(Answer::Reached { .. }))
    };
    let (other_route, other) = others.into_iter().find(|(_, other)| answers(other))?;
    if !is_silent || hits.is_empty() {
        return None;
    }
    let family = IpFamily::of(to);
    // Both halves go together.
    let is_of_it = |one: &&Route| {
        IpFamily::of(one.to.addr()) == family
            && (one.to.prefix_len(), one.table, &one.hops)
                == (route.to.prefix_len(), route.table, &route.hops)
    };
    let routes: Vec<String> = match route.to.prefix_len() {
        0 => vec![text(route, host)],
        _ => host.routes.iter().filter(is_of_it).map(|one| text(one, host)).collect(),
    };
    let preferred = routes.join(" and ");
    let (name, other_name) = (&link.name, &other.name);
    let finding = match rule {
        Some(rule) => {
            let says = format!(
                "routing rule {} leads what this node and its containers send beyond it to {name}, and no answer comes back: {to} answers by {other_name}",
                rule.priority
            );
            let finding = Finding::error("rule-diverts", object_of(rule), says)
                .at(format!("rule {}; then route {preferred}", rule_text(rule)));
            let finding = exceptions(look, rule, &hits, to).into_iter().fold(finding, Finding::fix);
            finding.advise(format!(
                "then these containers no longer send by {name}, which may be a VPN that protects what they send; to keep it, see why nothing comes back from {name}"
            ))
        }
        None => {
            let says = match route.to.prefix_len() {
                0 => format!(
                    "the default route by {name} is preferred, and leads nowhere: {to} answers by {other_name}"
                ),
                _ => format!(
                    "route {preferred} comes before the default route, and leads nowhere: {to} answers by {other_name}"
                ),
            };
            let finding = Finding::error("default-route-silent", preferred.clone(), says)
                .at(format!("route {preferred}"));
            let finding = routes.iter().fold(finding, |finding, route| {
                finding.fix(format!("{} route del {route}", ip(family)))
            });
            finding.advise(match route.to.prefix_len() {
                0 => format!(
                    "then let what configures {name} give it no default route, or one with a larger metric than {}",
                    other_route.metric
                ),
                _ => format!(
                    "then nothing is sent by {name}, which may be a VPN that protects what this node and its containers send; to keep it, see why nothing comes back from {name}"
                ),
            })
        }
    };
    let finding = finding.seen(format!(
        "{to} answers an echo request by {other_name} (route {}), and none by {name}",
        text(other_route, host)
    ));
    let finding = Finding { whose: whose::of_route(route, look.scene), hits, ..finding };
    let kinds = [WayKind::Outside, WayKind::Names, WayKind::Published];
    Some(kinds.into_iter().fold(finding, |finding, kind| finding.breaks(kind, Some(family))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Scene;
    use crate::path::samples::{ip as address, node};
    use crate::question::Answers;
    use crate::routes::samples::{link, route as route_of};

    /// A phone gives the node a second default route, which is preferred.
    fn with_phone() -> Scene {
        let mut scene = node();
        scene.containers[0].nameservers = Some(vec![address("198.51.100.53")]);
        for route in scene.host.routes.iter_mut().filter(|route| route.to.prefix_len() == 0) {
            route.metric = 100;
        }
        scene.host.links.push(link(30, "usb0", &["192.168.42.5/24"]));
        let phone = route_of("0.0.0.0/0", 30, Some("192.168.42.129"));
        scene.host.routes.push(Route { metric: 50, ..phone });
        scene
    }

    fn asked(link: &str, answer: Answer) -> (Question, Answer) {
        let (to, link) = (address("198.51.100.53"), link.to_owned());
        (Question { from: None, asked: Probe::EchoBy { to, link } }, answer)
    }

    /// What is said if the server of names does not answer c2.
    fn lost(scene: &Scene, mut all: Vec<(Question, Answer)>) -> Vec<Finding> {
        let asked = Probe::Name { server: address("198.51.100.53") };
        let name = Question { from: Some("c2".to_owned()), asked };
        all.push((name, Answer::Silent { hops: Vec::new() }));
        found(scene, all)
    }

    fn found(scene: &Scene, all: Vec<(Question, Answer)>) -> Vec<Finding> {
        let answers = Answers { all };
        super::super::ROUTES.findings(Look { scene, answers: &answers, only: None, to: None })
    }

    #[test]
    fn the_preferred_default_route_leads_nowhere() {
        let scene = with_phone();
        let silent = || Answer::Silent { hops: Vec::new() };
        let reached = || Answer::Reached { after_us: 1 };
        let answers = Answers::default();
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        let all: Vec<Question> = asks(look);
        let both = [asked("usb0", silent()).0, asked("up0", silent()).0];
        assert_eq!(all, both);
        let found = lost(&scene, vec![asked("usb0", silent()), asked("up0", reached())]);
        assert_eq!((found.len(), found[0].id), (1, "default-route-silent"));
        assert_eq!(found[0].object, "default via 192.168.42.129 dev usb0 metric 50");
        assert_eq!(found[0].fix, ["ip route del default via 192.168.42.129 dev usb0 metric 50"]);
        assert_eq!(found[0].hits, ["c2"]);
        // The container is answered: a machine on that way answers no echo request.
        let both = vec![asked("usb0", silent()), asked("up0", reached())];
        assert_eq!(self::found(&scene, both), []);
        for (one, other) in [(silent(), silent()), (reached(), reached()), (reached(), silent())] {
            assert_eq!(lost(&scene, vec![asked("usb0", one), asked("up0", other)]), []);
        }
    }

    #[test]
    fn one_default_route_is_no_choice() {
        let mut scene = with_phone();
        scene.host.routes.retain(|route| route.metric != 100);
        let answers = Answers::default();
        assert_eq!(asks(Look { scene: &scene, answers: &answers, only: None, to: None }), []);
    }

    /// `wg-quick` on the node: all that is not the tunnel's own goes into it.
    fn with_tunnel() -> Scene {
        use crate::model::RuleAction;
        use crate::routes::samples::rule;
        let mut scene = node();
        scene.containers[0].nameservers = Some(vec![address("198.51.100.53")]);
        scene.host.links.push(link(40, "wg0", &["10.9.0.2/24"]));
        scene.host.routes.push(Route { table: 51820, ..route_of("0.0.0.0/0", 40, None) });
        let main = RuleAction::Table(TABLE_MAIN);
        scene.host.rules = vec![
            rule(0, RuleAction::Table(255)),
            RouteRule { suppress: Some(0), ..rule(32764, main) },
            RouteRule {
                mark: Some((0xca6c, u32::MAX)),
                invert: true,
                ..rule(32765, RuleAction::Table(51820))
            },
            rule(32766, main),
        ];
        scene
    }

    fn silent() -> Answer {
        Answer::Silent { hops: Vec::new() }
    }

    fn reached() -> Answer {
        Answer::Reached { after_us: 1 }
    }

    #[test]
    fn a_rule_of_the_node_leads_all_into_a_tunnel_that_swallows_it() {
        let scene = with_tunnel();
        let found = lost(&scene, vec![asked("wg0", silent()), asked("up0", reached())]);
        assert_eq!((found.len(), found[0].id), (1, "rule-diverts"), "{found:#?}");
        assert_eq!(found[0].object, "IPv4 rule 32765");
        let place = "rule 32765: not from all fwmark 0xca6c/0xffffffff lookup 51820; then route default dev wg0 table 51820";
        assert_eq!(found[0].place.as_deref(), Some(place));
        // Before the rule that leaves default routes to the tunnel, too.
        assert_eq!(found[0].fix, ["ip rule add priority 32763 from 10.88.0.0/24 lookup main"]);
        assert!(found[0].advice[0].contains("a VPN"), "{found:#?}");
        assert_eq!(found[0].hits, ["c2"]);
        // It heals.
        let mut healed = scene.clone();
        let pool = Some("10.88.0.0/24".parse().unwrap());
        let past = RouteRule { from: pool, suppress: None, ..scene.host.rules[1].clone() };
        healed.host.rules.insert(1, RouteRule { priority: 32763, ..past });
        let (own, to) = (Some(address("10.88.0.2")), address("198.51.100.53"));
        let routed = look_up(&healed.host, own, to, Some("cni0"), Some(0));
        assert!(matches!(routed, RouteDecision::By { link, .. } if link.name == "up0"));
        // The server is dead, or the tunnel works.
        for (one, other) in [(silent(), silent()), (reached(), reached()), (reached(), silent())] {
            assert_eq!(lost(&scene, vec![asked("wg0", one), asked("up0", other)]), []);
        }
        // What this container sends goes another way.
        let found = lost(&healed, vec![asked("wg0", silent()), asked("up0", reached())]);
        assert_eq!(found, []);
    }

    #[test]
    fn two_routes_cover_the_default_route() {
        let mut scene = node();
        scene.containers[0].nameservers = Some(vec![address("198.51.100.53")]);
        scene.host.links.push(link(40, "wg0", &["10.9.0.2/24"]));
        scene.host.routes.push(route_of("0.0.0.0/1", 40, None));
        scene.host.routes.push(route_of("128.0.0.0/1", 40, None));
        let found = lost(&scene, vec![asked("wg0", silent()), asked("up0", reached())]);
        assert_eq!((found.len(), found[0].id), (1, "default-route-silent"), "{found:#?}");
        let fix = ["ip route del 0.0.0.0/1 dev wg0", "ip route del 128.0.0.0/1 dev wg0"];
        assert_eq!(found[0].fix, fix);
        assert!(found[0].advice[0].contains("a VPN"), "{found:#?}");
    }
}
