//! Routing rules of the node that lead what a container sends, or what its gateway answers,
//! elsewhere than the node's own packets go. A probe that was lost shows that nothing comes back
//! from there: without one it may be meant, and work.

use std::net::SocketAddr;

use net::IpFamily;

use super::super::{containers, is_here, targets};
use super::taken::{Refusal, Turn, taken};
use super::{diverted, exception, object_of, rule_text, text};
use crate::Look;
use crate::filter::Place;
use crate::finding::{Finding, WayKind};
use crate::model::{Container, Link, Route, RouteRule, Transport};
use crate::path::Site;
use crate::question::{Answer, Probe, Question};
use crate::routes::{RouteDecision, look_up};
use crate::whose;

/// The node itself asks a server of names that containers ask by another way.
pub(super) fn asks(look: Look<'_>) -> Vec<Question> {
    let mut all = Vec::new();
    for container in containers(look) {
        for server in targets(look, container).into_iter().filter(|_| look.to.is_none()) {
            let way = taken(look, container, SocketAddr::new(server, 53), Transport::Udp);
            let question = Question { from: None, asked: Probe::Name { server } };
            if way.is_some_and(|way| way.turn.is_some()) && !all.contains(&question) {
                all.push(question);
            }
        }
    }
    all
}

pub(super) fn judge(look: Look<'_>, mark: Option<u32>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in containers(look) {
        found.extend(gateways(look, container, mark));
        for (asked, answer) in look.answers.from(Some(&container.id)) {
            if let Some((to, transport)) = beyond(look, asked)
                && answer.is_lost()
            {
                found.extend(refused_on_way(look, container, to, transport));
                if is_answered(look, asked) {
                    found.extend(out(look, container, to, transport));
                }
            }
        }
    }
    found
}

/// Whom beyond the node a question asks, and how.
fn beyond(look: Look<'_>, asked: &Probe) -> Option<(SocketAddr, Transport)> {
    asked.program().filter(|(to, _)| !is_here(look.scene, to.ip()))
}

/// Says whether the node itself gets an answer to the same question.
fn is_answered(look: Look<'_>, asked: &Probe) -> bool {
    let own = look.answers.to(&Question { from: None, asked: asked.clone() });
    own.is_some_and(Answer::is_of_other_end)
}

/// What a container sends beyond the node goes by a routing rule's table.
fn out(
    look: Look<'_>,
    container: &Container,
    to: SocketAddr,
    transport: Transport,
) -> Option<Finding> {
    let way = taken(look, container, to, transport)?;
    let Turn { rule, route, link, own, site, marked } = way.turn?;
    let family = Some(site.family());
    let says = format!(
        "routing rule {} leads what containers of {} send beyond this node to {}, and no answer comes back",
        rule.priority, site.attachment.network, link.name
    );
    let text = text(route, &look.scene.host);
    let finding = Finding::error("rule-diverts", object_of(rule), says)
        .at(format!("rule {}; then route {text}", rule_text(rule)))
        .seen(format!(
            "{to} does not answer {}; it answers this node, whose own packets go by {}",
            container.called(),
            own.name
        ));
    let finding = match marked {
        Some(place) => finding.seen(format!("the packets get their mark by {place}")),
        None => finding,
    };
    let finding = Finding { whose: whose::of_link(link, look.scene), ..finding };
    Some(
        finding
            .hits(container.id.clone())
            .advise(format!(
                "look at what is behind {}; or, if containers are to go by {} as this node does: {}",
                link.name,
                own.name,
                exception(look, &site, rule, "from")
            ))
            .breaks(WayKind::Outside, family)
            .breaks(WayKind::Names, family),
    )
}

/// What a container sends is refused because a packet filter gives it the mark of a routing rule.
fn refused_on_way(
    look: Look<'_>,
    container: &Container,
    to: SocketAddr,
    transport: Transport,
) -> Option<Finding> {
    let way = taken(look, container, to, transport)?;
    let Refusal { rule, route, site, marked } = way.refusal?;
    let rule = rule.filter(|rule| rule.mark.is_some())?;
    Some(refused_by_mark(look, &site, route, rule, &marked?))
}

/// A routing rule refuses what a packet filter has given its mark, or looks it up in a table that does.
pub(super) fn refused_by_mark(
    look: Look<'_>,
    site: &Site<'_>,
    route: Option<&Route>,
    rule: &RouteRule,
    marked: &Place,
) -> Finding {
    let family = Some(site.family());
    let says = format!(
        "routing rule {} refuses what containers of {} send beyond this node: {} gives it the mark for which the rule asks",
        rule.priority,
        site.attachment.network,
        marked.name()
    );
    let then = route.map(|route| format!("; then route {}", text(route, &look.scene.host)));
    let finding = Finding::error("route-refuses", object_of(rule), says)
        .at(format!("rule {}{}", rule_text(rule), then.unwrap_or_default()))
        .seen(format!("the packets get their mark by {marked}"))
        .hits(site.container.id.clone())
        .fix(exception(look, site, rule, "from"))
        .advise("the command lets these containers past what the rule is for, such as a VPN that shall get all; otherwise let the filter, or the program of the rule, use another bit of the mark")
        .breaks(WayKind::Outside, family)
        .breaks(WayKind::Names, family)
        .breaks(WayKind::Published, family);
    Finding { whose: whose::of_place(marked, look.scene), ..finding }
}

/// The node's answers to a container, as its gateway, go by a routing rule's table.
fn gateways<'s>(
    look: Look<'s>,
    container: &'s Container,
    mark: Option<u32>,
) -> impl Iterator<Item = Finding> + 's {
    let families = IpFamily::ALL.into_iter();
    let sites = families.flat_map(move |family| Site::all(look.scene, container, family));
    sites.filter_map(move |site| {
        let gateway = site.gateway?;
        let asked = Probe::Echo { to: gateway };
        let echo = Question { from: Some(container.id.clone()), asked };
        if !look.answers.to(&echo).is_some_and(Answer::is_lost) {
            return None;
        }
        let routed = look_up(&look.scene.host, Some(gateway), site.address, None, mark);
        let RouteDecision::By { link, route, rule: Some(rule), .. } = routed else { return None };
        let is_led = |own: &Link| own.index == site.seen_by.index;
        let own = look_up(&look.scene.host, None, site.address, None, mark);
        let is_known = matches!(own, RouteDecision::By { link, .. } if is_led(link));
        (is_known && !is_led(link)).then(|| {
            let says = format!(
                "routing rule {} leads what this node answers containers of {} to {} instead of {}",
                rule.priority, site.attachment.network, link.name, site.seen_by.name
            );
            let finding = diverted(look, &site, link, route, rule);
            let finding = Finding { says, seen: Vec::new(), ..finding };
            finding.seen(format!(
                "{gateway} does not answer {}: its way to {} is by {}",
                container.called(),
                site.address,
                link.name
            ))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::samples::{base, rule as filter_rule, table};
    use crate::model::filter::{Family as Kin, Hook, Step};
    use crate::model::{RouteKind, RuleAction, Scene};
    use crate::path::samples::{ip as address, node, with};
    use crate::question::{Answers, Hop};
    use crate::routes::samples::{route, rule};

    const SERVER: &str = "198.51.100.1";

    /// A node with a rule that leads packets with a mark into a tunnel.
    fn marked(steps: Vec<Step>) -> Scene {
        let mut scene = node();
        scene.host.rules = vec![
            rule(0, RuleAction::Table(255)),
            RouteRule { mark: Some((0x80000, 0xff0000)), ..rule(5270, RuleAction::Table(52)) },
            rule(32766, RuleAction::Table(254)),
        ];
        scene.host.routes.push(Route { table: 52, ..route("0.0.0.0/0", 9, None) });
        let chain = base("pre", Hook::Prerouting, -150, vec![filter_rule(&[steps])]);
        with(scene, table(Kin::Inet, "ts", vec![chain]))
    }

    fn mark(value: u32) -> Vec<Step> {
        vec![Step::Immediate { to: 0, data: value.to_ne_bytes().to_vec() }, Step::Mark { from: 0 }]
    }

    fn asked(from: Option<&str>, asked: Probe, answer: Answer) -> (Question, Answer) {
        (Question { from: from.map(str::to_owned), asked }, answer)
    }

    fn silent() -> Answer {
        Answer::Silent { hops: Vec::<Hop>::new() }
    }

    /// The server of names answers the node, and not c2.
    fn lost() -> Vec<(Question, Answer)> {
        let server = address(SERVER);
        vec![
            asked(Some("c2"), Probe::Name { server }, silent()),
            asked(None, Probe::Name { server }, Answer::Named { after_us: 1, error: None }),
        ]
    }

    fn told(scene: &Scene, all: Vec<(Question, Answer)>) -> Vec<Finding> {
        let answers = Answers { all };
        judge(Look { scene, answers: &answers, only: None, to: None }, Some(0))
    }

    #[test]
    fn a_mark_leads_what_containers_send_into_a_tunnel() {
        let found = told(&marked(mark(0x80000)), lost());
        assert_eq!(
            (found.len(), found[0].id, &*found[0].object),
            (1, "rule-diverts", "IPv4 rule 5270")
        );
        assert_eq!(found[0].hits, ["c2"]);
        assert_eq!(
            found[0].says,
            "routing rule 5270 leads what containers of mynet send beyond this node to tun0, and no answer comes back"
        );
        assert!(found[0].seen[1].contains("table inet ts, chain pre, rule 1"), "{found:?}");
        let advice = "ip rule add priority 5269 from 10.88.0.0/24 lookup main";
        assert!(found[0].advice[0].ends_with(advice), "{found:?}");
        // Another mark, and one that is not known.
        assert_eq!(told(&marked(mark(0x40000)), lost()), []);
        let unknown = vec![Step::Effect { name: "meta mark".to_owned() }];
        assert_eq!(told(&marked(unknown), lost()), []);
    }

    #[test]
    fn the_node_asks_what_a_rule_leads_elsewhere() {
        let asked = |scene: &Scene| {
            let answers = Answers::default();
            asks(Look { scene, answers: &answers, only: None, to: None })
        };
        let mut scene = marked(mark(0x80000));
        let server = address(SERVER);
        scene.containers[0].nameservers = Some(vec![server]);
        assert_eq!(asked(&scene), [Question { from: None, asked: Probe::Name { server } }]);
        scene.host.rules.remove(1);
        assert_eq!(asked(&scene), []);
    }

    /// A VPN's rule for its own packets, and a filter that uses the same bit.
    #[test]
    fn a_mark_meets_a_rule_that_refuses() {
        let mut scene = marked(mark(0x80000));
        let last = scene.host.routes.last_mut().unwrap();
        (last.kind, last.hops) = (RouteKind::Unreachable, Vec::new());
        // The server need not answer the node.
        let server = address(SERVER);
        let lost = || vec![asked(Some("c2"), Probe::Name { server }, silent())];
        let found = told(&scene, lost());
        assert_eq!(
            (found.len(), found[0].id, &*found[0].object),
            (1, "route-refuses", "IPv4 rule 5270")
        );
        let place = "rule 5270: from all fwmark 0x80000/0xff0000 lookup 52; then route unreachable default table 52";
        assert_eq!(found[0].place.as_deref(), Some(place));
        assert_eq!(found[0].fix, ["ip rule add priority 5269 from 10.88.0.0/24 lookup main"]);
        assert!(found[0].seen[0].contains("table inet ts, chain pre, rule 1"), "{found:?}");
        // Without a probe, too, and once.
        let all = |scene: &Scene, all: Vec<(Question, Answer)>| -> Vec<String> {
            let answers = Answers { all };
            let look = Look { scene, answers: &answers, only: None, to: None };
            let found = crate::causes::sort(super::super::judge(look), scene).causes.into_iter();
            found.map(|one| format!("{} {}", one.finding.id, one.finding.object)).collect()
        };
        assert_eq!(all(&scene, lost()), ["route-refuses IPv4 rule 5270"]);
        assert_eq!(all(&scene, Vec::new()), ["route-refuses IPv4 rule 5270"]);
        // The rule itself refuses.
        scene.host.rules[1].action = RuleAction::Prohibit;
        assert_eq!(all(&scene, lost()), ["route-refuses IPv4 rule 5270"]);
        // Another mark, and one that is not known.
        let mut other = marked(mark(0x40000));
        other.host.routes.last_mut().unwrap().kind = RouteKind::Unreachable;
        assert_eq!(all(&other, lost()), [""; 0]);
        let mut unknown = marked(vec![Step::Effect { name: "meta mark".to_owned() }]);
        unknown.host.routes.last_mut().unwrap().kind = RouteKind::Unreachable;
        assert_eq!(all(&unknown, lost()), [""; 0]);
    }

    #[test]
    fn a_way_that_works_or_a_server_that_is_dead_is_no_fault_of_a_rule() {
        let scene = marked(mark(0x80000));
        let named = Answer::Named { after_us: 1, error: None };
        let works = vec![asked(Some("c2"), Probe::Name { server: address(SERVER) }, named)];
        assert_eq!(told(&scene, works), []);
        let mut dead = lost();
        dead[1].1 = silent();
        assert_eq!(told(&scene, dead), []);
    }

    #[test]
    fn a_rule_leads_the_answers_of_the_gateway_into_a_tunnel() {
        let mut scene = node();
        let from = Some("10.88.0.0/24".parse().unwrap());
        scene.host.rules = vec![
            rule(0, RuleAction::Table(255)),
            RouteRule { from, ..rule(100, RuleAction::Table(52)) },
            rule(32766, RuleAction::Table(254)),
        ];
        scene.host.routes.push(Route { table: 52, ..route("0.0.0.0/0", 9, None) });
        let echo = || Probe::Echo { to: address("10.88.0.1") };
        let found = told(&scene, vec![asked(Some("c2"), echo(), silent())]);
        assert_eq!((found.len(), &*found[0].object), (1, "IPv4 rule 100"));
        assert_eq!(found[0].fix, ["ip rule add priority 99 to 10.88.0.0/24 lookup main"]);
        let reached = Answer::Reached { after_us: 1 };
        assert_eq!(told(&scene, vec![asked(Some("c2"), echo(), reached)]), []);
    }
}
