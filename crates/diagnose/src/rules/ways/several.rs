//! Of several default routes the preferred one leads nowhere, as that of a link which came later: a
//! phone, a modem, another network card. What does not answer by its link answers by another one.

use std::collections::BTreeMap;
use std::net::IpAddr;

use net::IpFamily;

use super::super::{containers, targets};
use super::{ip, text};
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::model::{Link, Namespace, Route, RouteKind};
use crate::question::{Answer, Probe, Question};
use crate::routes::{RouteDecision, TABLE_MAIN, look_up};
use crate::whose;

/// How many machines are asked by each link.
const ASKED: usize = 2;

/// A machine that the node would ask by the preferred default route, and the other links that have
/// one.
struct Choice<'l> {
    to: IpAddr,
    route: &'l Route,
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
        let RouteDecision::By { link, route, .. } = look_up(host, None, to, None, Some(0)) else {
            return None;
        };
        if route.to.prefix_len() != 0 || route.table != TABLE_MAIN {
            return None;
        }
        let others: Vec<(&Route, &Link)> =
            defaults(host, to).filter(|(_, other)| other.index != link.index).collect();
        (!others.is_empty()).then_some(Choice { to, route, link, others, hits })
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

/// Says whether a container was not answered by a machine.
fn is_lost(look: Look<'_>, container: &str, to: IpAddr) -> bool {
    look.answers.from(Some(container)).any(|(asked, answer)| {
        answer.is_lost() && asked.program().is_some_and(|(at, _)| at.ip() == to)
    })
}

fn silent(look: Look<'_>, choice: Choice<'_>) -> Option<Finding> {
    let Choice { to, route, link, others, mut hits } = choice;
    // Some machines on the way answer no echo request, and pass all else on.
    hits.retain(|id| is_lost(look, id, to));
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
    let preferred = text(route, host);
    let says = format!(
        "the default route by {} is preferred, and leads nowhere: {to} answers by {}",
        link.name, other.name
    );
    let finding = Finding::error("default-route-silent", preferred.clone(), says)
        .at(format!("route {preferred}"))
        .seen(format!(
            "{to} answers an echo request by {} (route {}), and none by {}",
            other.name,
            text(other_route, host),
            link.name
        ))
        .fix(format!("{} route del {preferred}", ip(family)))
        .advise(format!(
            "then let what configures {} give it no default route, or one with a larger metric than {}",
            link.name, other_route.metric
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
    fn told(scene: &Scene, mut all: Vec<(Question, Answer)>) -> Vec<Finding> {
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
        let found = told(&scene, vec![asked("usb0", silent()), asked("up0", reached())]);
        assert_eq!((found.len(), found[0].id), (1, "default-route-silent"));
        assert_eq!(found[0].object, "default via 192.168.42.129 dev usb0 metric 50");
        assert_eq!(found[0].fix, ["ip route del default via 192.168.42.129 dev usb0 metric 50"]);
        assert_eq!(found[0].hits, ["c2"]);
        // The container is answered: a machine on that way answers no echo request.
        let both = vec![asked("usb0", silent()), asked("up0", reached())];
        assert_eq!(self::found(&scene, both), []);
        for (one, other) in [(silent(), silent()), (reached(), reached()), (reached(), silent())] {
            assert_eq!(told(&scene, vec![asked("usb0", one), asked("up0", other)]), []);
        }
    }

    #[test]
    fn one_default_route_is_no_choice() {
        let mut scene = with_phone();
        scene.host.routes.retain(|route| route.metric != 100);
        let answers = Answers::default();
        assert_eq!(asks(Look { scene: &scene, answers: &answers, only: None, to: None }), []);
    }
}
