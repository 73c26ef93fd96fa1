//! Questions for names that do not come to the server, so that the server is not at fault.

use std::net::IpAddr;

use net::IpFamily;

use super::{NameQuestion, PORT};
use crate::Look;
use crate::finding::Finding;
use crate::model::{Container, Link, Transport};
use crate::question::{Answer, Hop, Probe, Question};
use crate::routes::{RouteDecision, look_up};
use crate::rules::is_here;
use crate::rules::segments::hears;
use crate::rules::ways::obstacles::{obstacle, subnet_of};
use crate::rules::ways::taken::refused_at;

/// Says in the finding of a server that is silent what keeps the question from it, if that was seen.
pub(super) fn mend(question: NameQuestion<'_>, finding: Finding) -> Finding {
    let NameQuestion { look, container, server, by, answer } = question;
    if finding.id != "nameserver-silent" {
        return finding;
    }
    if *answer == Answer::Refused
        && by == Transport::Udp
        && question.leader().is_none()
        && answers_by_tcp(look, container, server)
    {
        return by_tcp_alone(container, server, finding);
    }
    if !answer.is_lost() {
        return finding;
    }
    let asked = Probe::name(container, server);
    let of_node = look.answers.to(&Question { from: None, asked });
    let of_node = of_node.map(|answer| !answer.is_lost());
    if let Some(obstacle) = obstacle(look, container, question.to(), by, of_node) {
        return obstacle.tell(finding);
    }
    if let Some(hop) = dropped_here(look, server, answer) {
        return dropped(question, hop, finding);
    }
    if let Some((next, link)) = unheard(look, container, server) {
        let called = container.called();
        let says = format!(
            "{called} does not reach {server}, which it asks for names: {next} does not answer its requests for a hardware address"
        );
        let advice =
            vec![format!("look at {next}, and at what is behind {} of {called}", link.name)];
        let finding = Finding { says, advice, ..finding };
        return match subnet_of(link, server).filter(|_| next == server) {
            Some(own) => finding.advise(format!(
                "{server} counts as a machine behind {}, which has {own}: if it is elsewhere, give the network another subnet",
                link.name
            )),
            None => finding,
        };
    }
    if question.leader().is_some() {
        return finding;
    }
    match answer {
        Answer::Unreachable { .. } => {
            let advice = format!("look at the way of {} to {server}", container.called());
            Finding { advice: vec![advice], ..finding }
        }
        // What is on this node has no way beyond it.
        _ if is_here(look.scene, server) => finding,
        _ if by == Transport::Udp && answers_by_tcp(look, container, server) => {
            by_tcp_alone(container, server, finding)
        }
        _ => as_seen(question, finding),
    }
}

/// Says whether a server took a connection of a container.
fn answers_by_tcp(look: Look<'_>, container: &Container, server: IpAddr) -> bool {
    let asked = Probe::NameByTcp { server };
    let question = Question { from: Some(container.id.clone()), asked };
    matches!(look.answers.to(&question), Some(Answer::Reached { .. }))
}

/// The way to the server is there, so a filter of UDP, or the server, keeps the answer.
fn by_tcp_alone(container: &Container, server: IpAddr, finding: Finding) -> Finding {
    let called = container.called();
    let says = format!(
        "{server} takes connections of {called} at port {PORT} by TCP, and does not answer by UDP, by which programs ask for names"
    );
    Finding { says, advice: Vec::new(), ..finding }.advise(format!(
        "let {server} serve UDP, too, or find the filter on the way that drops UDP; with \"options use-vc\" in resolv.conf of {called}, programs ask by TCP"
    ))
}

/// The server may be at fault if the question was seen leaving as it should, or if another server
/// answers by the same way. Otherwise that is not known.
fn as_seen(question: NameQuestion<'_>, finding: Finding) -> Finding {
    let NameQuestion { look, container, server, answer, .. } = question;
    let called = container.called();
    let way = question.way();
    if let Some(left) = way.as_ref().and_then(|way| way.left(answer)) {
        return finding.seen(format!("the question was seen leaving by {left}"));
    }
    if let Some(other) = question.other()
        && IpFamily::of(other) == IpFamily::of(server)
        && !is_here(look.scene, other)
        && [server, other].into_iter().all(|server| {
            NameQuestion { server, ..question }.way().is_some_and(|way| !way.is_unusual())
        })
    {
        return finding.seen(format!("{other} answers by the same way"));
    }
    let says = format!(
        "{called} asks {server} for names, and no answer comes: it is not known from where"
    );
    let finding = Finding { says, advice: Vec::new(), ..finding };
    match way {
        Some(way) => way.tell(finding.help(way.help(called, answer)), answer),
        None => finding.advise(format!("look at the way of {called} to {server}")),
    }
}

/// Returns where the node itself dropped the question, which is not for the node.
fn dropped_here<'a>(look: Look<'_>, server: IpAddr, answer: &'a Answer) -> Option<&'a Hop> {
    let (Answer::Silent { hops } | Answer::Unreachable { hops, .. }) = answer else { return None };
    let host = &look.scene.host;
    let is_here = |hop: &&Hop| {
        let link = hop.link.as_deref().and_then(|name| host.link(name));
        !hop.back && hop.container.is_none() && hop.dropped.is_some() && link.is_some()
    };
    hops.iter().find(is_here).filter(|_| host.owner_of(server).is_none())
}

fn dropped(question: NameQuestion<'_>, hop: &Hop, finding: Finding) -> Finding {
    let NameQuestion { container, server, answer, .. } = question;
    let called = container.called();
    let link = hop.link.as_deref().unwrap_or("a link");
    let (function, reason) = hop.dropped.clone().unwrap_or_default();
    let does = if refused_at(answer).is_some() { "refuses" } else { "drops" };
    let says = format!(
        "{called} does not reach {server}, which it asks for names: this node {does} the question"
    );
    let seen = format!("it ended at {link} of this node: {function}, {reason}");
    let finding = Finding { says, advice: Vec::new(), ..finding }.seen(seen);
    match question.way() {
        Some(way) if refused_at(answer).is_some() => {
            way.tell(finding.help(way.help(called, answer)), answer)
        }
        _ => finding.advise(format!("find what drops it there: {link} of this node")),
    }
}

/// Returns the next machine on the way to a server, if it does not answer a container's requests for
/// its hardware address, and the container's interface.
fn unheard<'c>(
    look: Look<'_>,
    container: &'c Container,
    server: IpAddr,
) -> Option<(IpAddr, &'c Link)> {
    let inside = container.inside.as_ref()?;
    let RouteDecision::By { link, via, .. } = look_up(inside, None, server, None, Some(0)) else {
        return None;
    };
    let next = via.unwrap_or(server);
    let is_unheard = hears(look, container, link, next) == Some(false);
    is_unheard.then_some((next, link))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Scene;
    use crate::path::samples::{ip, node};
    use crate::question::Answers;

    const SERVER: &str = "198.51.100.53";

    /// What is judged of a server that does not answer, and what helps.
    fn judged(scene: &Scene, hops: Vec<Hop>, more: Vec<(Question, Answer)>) -> (String, String) {
        let asked = Probe::Name { server: ip(SERVER) };
        let question = Question { from: Some("c2".to_owned()), asked };
        let all = [vec![(question, Answer::Silent { hops })], more].concat();
        let answers = Answers { all };
        let look = Look { scene, answers: &answers, only: None, to: None };
        let found = super::super::judge(look);
        assert_eq!((found.len(), found[0].id), (1, "nameserver-silent"));
        (found[0].says.clone(), [found[0].fix.clone(), found[0].advice.clone()].concat().join("; "))
    }

    fn hop(link: &str, function: &str) -> Hop {
        let dropped = Some((function.to_owned(), "NOT_SPECIFIED".to_owned()));
        Hop { container: None, link: Some(link.to_owned()), dropped, rule: None, back: false }
    }

    fn asking() -> Scene {
        let mut scene = node();
        scene.containers.truncate(1);
        scene.containers[0].nameservers = Some(vec![ip(SERVER)]);
        scene
    }

    /// A place that the question has passed.
    fn passed(link: &str) -> Hop {
        Hop { dropped: None, ..hop(link, "") }
    }

    /// Who looks at the server first looks in vain if the question never left.
    #[test]
    fn a_server_is_blamed_if_the_question_was_seen_leaving() {
        let mut scene = asking();
        let out = || vec![passed("cni0"), passed("up0")];
        let (says, help) = judged(&scene, out(), Vec::new());
        assert_eq!(says, "198.51.100.53 does not answer c2 when it asks for names");
        assert!(help.starts_with("let 198.51.100.53 answer"), "{help}");
        for hops in [Vec::new(), vec![passed("cni0")]] {
            let (says, help) = judged(&scene, hops, Vec::new());
            assert!(says.ends_with("no answer comes: it is not known from where"), "{says}");
            let follow = "follow what c2 sends: it was not seen leaving this node";
            assert_eq!(help, follow);
        }
        // Its address stays that of the container.
        scene.host.filter.tables.clear();
        let (_, help) = judged(&scene, out(), Vec::new());
        assert!(help.starts_with("let the network translate what it sends"), "{help}");
    }

    #[test]
    fn a_server_that_answers_by_tcp_alone() {
        let asked = Probe::NameByTcp { server: ip(SERVER) };
        let question = Question { from: Some("c2".to_owned()), asked };
        let taken =
            |answer: Answer| judged(&asking(), Vec::new(), vec![(question.clone(), answer)]);
        let (says, help) = taken(Answer::Reached { after_us: 300 });
        assert!(
            says.starts_with("198.51.100.53 takes connections of c2 at port 53 by TCP"),
            "{says}"
        );
        assert!(help.contains("options use-vc"), "{help}");
        let name =
            Question { from: Some("c2".to_owned()), asked: Probe::Name { server: ip(SERVER) } };
        let all =
            vec![(name, Answer::Refused), (question.clone(), Answer::Reached { after_us: 9 })];
        let (scene, answers) = (asking(), Answers { all });
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        let says = super::super::judge(look).remove(0).says;
        assert!(says.contains("by TCP, and does not answer by UDP"), "{says}");
    }

    /// The containers' own network has the server's address.
    #[test]
    fn a_server_that_counts_as_a_machine_of_the_containers_network() {
        let near = "10.88.0.53";
        let mut scene = asking();
        scene.containers[0].nameservers = Some(vec![ip(near)]);
        let answers = Answers::default();
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        let who = Probe::WhoHas { address: ip(near), link: "eth0".to_owned() };
        let who = Question { from: Some("c2".to_owned()), asked: who };
        assert!(super::super::asks(look).contains(&who), "{:?}", super::super::asks(look));
        let name =
            Question { from: Some("c2".to_owned()), asked: Probe::Name { server: ip(near) } };
        let all = vec![
            (name, Answer::Silent { hops: Vec::new() }),
            (who, Answer::Owners { macs: Vec::new() }),
        ];
        let answers = Answers { all };
        let found = super::super::judge(Look { answers: &answers, ..look });
        assert!(found[0].advice[1].contains("behind eth0, which has 10.88.0.2/24"), "{found:?}");
    }

    #[test]
    fn a_server_is_not_blamed_for_what_the_node_drops() {
        let scene = asking();
        let (says, help) = judged(&scene, vec![passed("up0")], Vec::new());
        assert_eq!(says, "198.51.100.53 does not answer c2 when it asks for names");
        assert!(help.starts_with("let 198.51.100.53 answer"), "{help}");
        let (says, help) = judged(&scene, vec![hop("cni0", "ip_error")], Vec::new());
        assert!(says.ends_with("this node refuses the question"), "{says}");
        assert!(help.ends_with("ip route get 198.51.100.53 from 10.88.0.2 iif cni0"), "{help}");
        let (says, help) = judged(&scene, vec![hop("cni0", "nf_hook_slow")], Vec::new());
        assert!(says.ends_with("this node drops the question"), "{says}");
        assert!(!help.contains("answer"), "{help}");
        // Of the answer, and of a link that the node does not have, nothing follows.
        let back = Hop { back: true, ..hop("cni0", "ip_error") };
        let (_, help) = judged(&scene, vec![passed("up0"), back], Vec::new());
        assert!(help.starts_with("let 198.51.100.53 answer"), "{help}");
        let (says, _) = judged(&scene, vec![hop("other0", "ip_error")], Vec::new());
        assert!(says.ends_with("it is not known from where"), "{says}");
    }

    #[test]
    fn a_server_is_not_blamed_where_the_router_does_not_answer() {
        let asked = Probe::WhoHas { address: ip("10.88.0.1"), link: "eth0".to_owned() };
        let question = Question { from: Some("c2".to_owned()), asked };
        let who = |macs: Vec<String>| vec![(question.clone(), Answer::Owners { macs })];
        let (says, help) = judged(&asking(), Vec::new(), who(Vec::new()));
        assert!(says.starts_with("c2 does not reach 198.51.100.53"), "{says}");
        assert_eq!(help, "look at 10.88.0.1, and at what is behind eth0 of c2");
        let there = who(vec!["02:00:00:00:00:01".to_owned()]);
        let (_, help) = judged(&asking(), vec![passed("up0")], there);
        assert!(help.starts_with("let 198.51.100.53 answer"), "{help}");
    }

    /// It is the symptom of whatever keeps all from answering.
    #[test]
    fn what_reaches_nobody_explains_it() {
        let scene = asking();
        let lost = |asked: Probe, hops: Vec<Hop>| {
            (Question { from: Some("c2".to_owned()), asked }, Answer::Silent { hops })
        };
        let to = "198.51.100.1:80".parse().unwrap();
        let ids = |hops: Vec<Hop>| {
            let names = lost(Probe::Name { server: ip(SERVER) }, hops.clone());
            let node = Question { from: None, asked: Probe::Connect { to } };
            let reached = (node, Answer::Reached { after_us: 1 });
            let all = vec![names, lost(Probe::Connect { to }, hops), reached];
            let answers = Answers { all };
            let look = Look { scene: &scene, answers: &answers, only: None, to: Some(to) };
            let rules = [super::super::RULE, crate::rules::ways::SILENT];
            let found = rules.iter().flat_map(|rule| rule.findings(look)).collect();
            let causes = crate::causes::sort(found, &scene).causes.into_iter();
            causes.map(|one| one.finding.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(vec![hop("cni0", "ip_error")]), ["outside-silent"]);
        assert_eq!(ids(Vec::new()), ["outside-silent"]);
        assert_eq!(ids(vec![passed("up0")]), ["nameserver-silent", "outside-silent"]);
    }
}
