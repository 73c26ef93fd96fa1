//! Whether a probe has tried what a filter stops by its rules. Where no other rule sends anything, it
//! asks.

use std::net::{IpAddr, SocketAddr};

use net::IpFamily;

use super::super::asks_links;
use super::say::Sort;
use super::{FilterStop, agreed, between, limit, pairs, sites};
use crate::Look;
use crate::model::Scene;
use crate::path::{Site, Trip, loopback};
use crate::question::{Answer, Probe, Question};
use crate::trial::Trial;

/// Asks where a filter is said to stop a container's own programs, the node, or another container.
pub(super) fn asks(look: Look<'_>) -> Vec<Question> {
    if !asks_links(look) {
        return Vec::new();
    }
    let scene = look.scene;
    let mut questions = Vec::new();
    for family in IpFamily::ALL {
        let own = sites(look, family, limit(scene));
        for site in &own {
            let each = [
                (Sort::Inside, Trip::Inside { of: site }),
                (Sort::FromNode, Trip::FromNode { to: site }),
            ];
            for (sort, trip) in each {
                let stopped = agreed(scene, &[trip]);
                if stopped.iter().any(|one| is_asked(scene, one, &sort)) {
                    questions.extend(question(site, &sort));
                }
            }
        }
        let others = sites(Look { only: None, ..look }, family, limit(scene));
        for (from, to) in pairs(&own, &others) {
            for (one, names) in between::stopped(scene, from, to) {
                let sort = Sort::Between(&names, to.address);
                if is_asked(scene, &one, &sort) {
                    questions.extend(question(from, &sort));
                }
            }
        }
    }
    questions
}

/// Says whether a filter that stops a way is a fault if it does. Whom a container lets in itself, its
/// owner decides.
fn is_asked(scene: &Scene, one: &FilterStop, sort: &Sort<'_>) -> bool {
    one.is_fault(scene) && (one.inside.is_none() || matches!(sort, Sort::Inside))
}

/// The question that nothing but the filter of a way keeps from an answer: a machine refuses a
/// connection to a port at which nothing listens.
fn question(site: &Site<'_>, sort: &Sort<'_>) -> Option<Question> {
    let own = Some(site.container.id.as_str());
    let (from, to) = match *sort {
        Sort::Inside => (own, loopback(site.address.is_ipv4())),
        Sort::FromNode => (None, site.address),
        Sort::Between(names, to) if names.contains(&between::TCP) => (own, to),
        _ => return None,
    };
    Some(Question { from: from.map(str::to_owned), asked: Probe::RarePort { to } })
}

/// Returns what probes show of a way that a filter stops. `refuses`: the filter does not drop what it
/// stops.
pub(super) fn tried(look: Look<'_>, site: &Site<'_>, sort: &Sort<'_>, refuses: bool) -> Trial {
    if let Some(question) = question(site, sort) {
        return look.answers.to(&question).map_or(Trial::Never, |answer| shown(answer, refuses));
    }
    let own = look.answers.from(Some(&site.container.id));
    let of = |is_meant: &dyn Fn(&Probe) -> bool| {
        own.filter(|(asked, _)| is_meant(asked))
            .map(|(_, answer)| shown(answer, refuses))
            .fold(Trial::Never, Trial::and)
    };
    let is_of = |to: IpAddr| to.is_ipv4() == site.address.is_ipv4();
    let is_gateway = |to: IpAddr| site.attachment.gateways.contains(&to);
    match sort {
        Sort::Resolve => of(&|asked| is_of(asked.address()) && is_gateway(asked.address())),
        Sort::Outside => {
            of(&|asked| asked.destination().is_some_and(|to| is_of(to) && !is_gateway(to)))
        }
        Sort::To(to, _) => {
            of(&|asked| asked.program().is_some_and(|(at, by)| at.ip() == *to && sort.is_by(by)))
        }
        Sort::PublishedHere(port) => {
            let to = SocketAddr::new(loopback(site.address.is_ipv4()), port.host);
            let asked = Question::connect(None, port.transport, to);
            let answer = asked.and_then(|question| look.answers.to(&question));
            answer.map_or(Trial::Never, |answer| shown(answer, refuses))
        }
        // The node has no probe that comes from another machine.
        _ => Trial::Never,
    }
}

fn shown(answer: &Answer, refuses: bool) -> Trial {
    match answer {
        Answer::NotAsked { .. } | Answer::NoPort { .. } => Trial::Never,
        Answer::Refused if refuses => Trial::Fails,
        answer if answer.is_of_other_end() => Trial::Works,
        Answer::Owners { macs } if !macs.is_empty() => Trial::Works,
        _ => Trial::Fails,
    }
}

#[cfg(test)]
mod tests {
    use crate::model::filter::{Family as Kin, Hook};

    use super::*;
    use crate::filter::samples::{base, destination, drop, protocol, reject, rule, table};
    use crate::finding::Severity;
    use crate::path::samples::{ip, node, with};
    use crate::question::Answers;

    fn look<'l>(scene: &'l Scene, answers: &'l Answers) -> Look<'l> {
        Look { scene, answers, only: None, to: None }
    }

    /// A rule for what the node sends to c2, which has no published port.
    fn closed(parts: &[Vec<crate::model::filter::Step>]) -> Scene {
        let parts = [&[destination("10.88.0.2")], parts].concat();
        let output = base("o", Hook::Output, 0, vec![rule(&parts)]);
        let mut scene = with(node(), table(Kin::Ip, "own", vec![output]));
        scene.containers[0].attachments[0].ports.clear();
        scene
    }

    fn of_node() -> Question {
        Question { from: None, asked: Probe::RarePort { to: ip("10.88.0.2") } }
    }

    #[test]
    fn what_a_filter_stops_is_asked() {
        let asked = |scene: &Scene| asks(look(scene, &Answers::default()));
        assert_eq!(asked(&node()), []);
        assert_eq!(asked(&closed(&[drop()])), [of_node()]);
        // No question by UDP suits.
        let between = |number: u8| {
            let forward = base("f", Hook::Forward, 0, vec![rule(&[protocol(number), drop()])]);
            with(node(), table(Kin::Bridge, "own", vec![forward]))
        };
        let of = |from: &str, to: &str| Question {
            from: Some(from.to_owned()),
            asked: Probe::RarePort { to: ip(to) },
        };
        assert_eq!(asked(&between(17)), []);
        let both = [
            of("c2", "10.88.0.3"),
            of("c3", "10.88.0.2"),
            of("c2", "fd00:88::3"),
            of("c3", "fd00:88::2"),
        ];
        assert_eq!(asked(&between(6)), both);
        let mut scene = node();
        let inside = scene.containers[0].inside.as_mut().unwrap();
        let input = base("i", Hook::Input, 0, vec![rule(&[protocol(6), drop()])]);
        inside.filter.tables = vec![table(Kin::Ip, "own", vec![input])];
        // Whom it lets in, its owner decides.
        assert_eq!(asked(&scene), [of("c2", "127.0.0.1")]);
    }

    #[test]
    fn only_a_probe_makes_an_error_of_what_the_node_alone_would_send() {
        let described = |scene: &Scene, answer: Option<Answer>| {
            let all = answer.into_iter().map(|answer| (of_node(), answer)).collect();
            let answers = Answers { all };
            let found = super::super::judge(look(scene, &answers));
            let line = |one: &crate::finding::Finding| (one.severity, one.seen[0].clone());
            let lines: Vec<_> = found.iter().map(line).collect();
            let [(severity, seen)] = lines.as_slice() else { panic!("{found:#?}") };
            (*severity, seen.split_once("ends there").unwrap().1.to_owned())
        };
        let scene = closed(&[drop()]);
        let silent = Answer::Silent { hops: Vec::new() };
        let untried = (Severity::Warning, "; no probe has tried it".to_owned());
        assert_eq!(described(&scene, None), untried);
        let reason = "the link is down".to_owned();
        assert_eq!(described(&scene, Some(Answer::NotAsked { reason })), untried);
        assert_eq!(described(&scene, Some(silent)), (Severity::Error, String::new()));
        let answered = "; a probe that should end there was answered".to_owned();
        assert_eq!(described(&scene, Some(Answer::Refused)), (Severity::Warning, answered));
        // The rule itself may have refused it.
        let refuses = closed(&[reject()]);
        assert_eq!(described(&refuses, Some(Answer::Refused)), (Severity::Error, String::new()));
    }

    /// Somebody needs it, whether it was tried or not.
    #[test]
    fn a_way_beyond_the_node_that_nothing_tried_is_an_error() {
        let forward = base("f", Hook::Forward, 0, vec![rule(&[drop()])]);
        let scene = with(node(), table(Kin::Ip, "own", vec![forward]));
        let answers = Answers::default();
        let found = super::super::judge(look(&scene, &answers));
        assert!(found.iter().all(|one| one.severity == Severity::Error), "{found:#?}");
        assert!(found.iter().all(|one| one.seen[0].ends_with("; no probe has tried it")));
    }
}
