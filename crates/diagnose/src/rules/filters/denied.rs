//! What network policy denies: people decided it, so it is no fault, and a person who looks for the
//! reason is told.

use std::collections::HashMap;
use std::net::IpAddr;

use net::IpFamily;

use super::super::{Rule, containers};
use super::{caught, proved};
use crate::Look;
use crate::filter::{Payload, Place, Port};
use crate::finding::Finding;
use crate::model::{Container, Scene};
use crate::path::{Site, Trip, carries};
use crate::question::{Answer, Probe};
use crate::whose;

pub(in crate::rules) const RULE: Rule = Rule {
    judges: "what network policy denies",
    ids: &[crate::rules::DENIED],
    judge,
    ..Rule::NONE
};

const FIX: &str = "if that is not meant, change the policy: netwright policy drops names it";

/// Who has which address of all containers: it is looked up for each probe that was not answered.
#[derive(Debug)]
pub(in crate::rules) struct Owners<'s>(HashMap<IpAddr, Vec<&'s Container>>);

impl<'s> Owners<'s> {
    pub(in crate::rules) fn of(scene: &'s Scene) -> Self {
        let mut by_address: HashMap<IpAddr, Vec<&'s Container>> = HashMap::new();
        for container in &scene.containers {
            for net in container.attachments.iter().flat_map(|one| &one.addresses) {
                by_address.entry(net.addr()).or_default().push(container);
            }
        }
        Owners(by_address)
    }
}

fn judge(look: Look<'_>) -> Vec<Finding> {
    let owners = Owners::of(look.scene);
    let mut found = Vec::new();
    for container in containers(look) {
        for (asked, answer) in look.answers.from(Some(&container.id)) {
            let (whom, what) = match asked {
                Probe::Name { server } | Probe::NameByTcp { server } => {
                    (server.to_string(), ", which it asks for names")
                }
                Probe::Connect { to } => (to.to_string(), ""),
                _ => continue,
            };
            if is_denied(look, &owners, container, asked, answer) {
                let called = container.called();
                let says = format!("network policy keeps {called} from {whom}{what}");
                let object = format!("{}: {whom}", container.id);
                let finding = Finding::warning(crate::rules::DENIED, object, says)
                    .seen("a rule that carries out policy drops the packets")
                    .hits(container.id.clone())
                    .advise(FIX);
                found.push(finding);
            }
        }
    }
    found
}

/// Says whether network policy keeps a container from what it asked for, and was not answered: the
/// question ended at a rule that carries out policy, or such a rule surely stops it.
pub(in crate::rules) fn is_denied(
    look: Look<'_>,
    owners: &Owners<'_>,
    container: &Container,
    asked: &Probe,
    answer: &Answer,
) -> bool {
    let Some((at, by)) = asked.program() else { return false };
    let (to, with) = (at.ip(), carries(by, Port::Is(at.port())));
    match answer {
        Answer::Silent { hops } | Answer::Unreachable { hops, .. } => {
            let ended = hops.iter().rev().find_map(|hop| proved::dropped_at(look, hop));
            let is_policy =
                ended.is_some_and(|(hop, place, _)| is_policy(&place, hop.back, look.scene));
            is_policy || is_stopped(look.scene, owners, container, to, with)
        }
        Answer::Refused => is_stopped(look.scene, owners, container, to, with),
        _ => false,
    }
}

/// Says whether a rule carries out network policy. One of ours in another table, such as a guard
/// against foreign senders, does not: what it drops is a fault until a person knows better.
fn is_policy(place: &Place, back: bool, scene: &Scene) -> bool {
    let is_ours = place.table.starts_with(whose::OUR_TABLE);
    (!is_ours || place.table == whose::OUR_POLICY_TABLE) && whose::is_policy(place, back, scene)
}

/// Says whether policy surely stops a packet of a container, or the answer.
fn is_stopped(
    scene: &Scene,
    owners: &Owners<'_>,
    container: &Container,
    to: IpAddr,
    with: Payload,
) -> bool {
    let ends = |trip: &Trip<'_>| {
        caught(scene, trip).iter().any(|one| is_policy(&one.place, one.back, scene))
    };
    let family = IpFamily::of(to);
    Site::every(scene, container, family).any(|from| {
        ends(&Trip::Outside { from: &from, to, with }) || {
            let others = owners.0.get(&to).into_iter().flatten().copied();
            let mut sites = others.flat_map(|other| Site::every(scene, other, family));
            sites.any(|other| ends(&Trip::Between { from: &from, to: &other, with }))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::samples::{base, drop, rule, source, table};
    use crate::model::filter::{Family as Kin, Hook};
    use crate::path::samples::{ip, node, with};
    use crate::question::{Answers, Hop, Question};
    use crate::rules::{names, ways};

    fn asked(asked: Probe) -> Question {
        Question { from: Some("c2".to_owned()), asked }
    }

    fn silent() -> Answer {
        Answer::Silent { hops: Vec::new() }
    }

    /// IDs of all that is said of filters, names and ways.
    fn told(scene: &Scene, all: Vec<(Question, Answer)>) -> Vec<&'static str> {
        let answers = Answers { all };
        let to = Some("198.51.100.1:443".parse().unwrap());
        let look = Look { scene, answers: &answers, only: None, to };
        let rules = [RULE, super::super::RULE, names::RULE, ways::SILENT];
        rules.iter().flat_map(|rule| rule.findings(look)).map(|one| one.id).collect()
    }

    /// Names and a connection that get no answer.
    fn questions() -> Vec<(Question, Answer)> {
        let name = asked(Probe::Name { server: ip("198.51.100.53") });
        let port = asked(Probe::Connect { to: "198.51.100.1:443".parse().unwrap() });
        vec![(name, silent()), (port, silent())]
    }

    #[test]
    fn what_our_policy_denies_is_told_as_that() {
        assert_eq!(told(&node(), questions()), ["nameserver-silent", "outside-silent"]);
        let egress = base("egress", Hook::Forward, 5, vec![rule(&[source("10.88.0.2"), drop()])]);
        let mut denied = with(node(), table(Kin::Inet, "netwright-policy", vec![egress]));
        denied.containers[0].attachments[0].ports.clear();
        assert_eq!(told(&denied, questions()), ["policy-denies", "policy-denies"]);
        let answers = Answers { all: questions() };
        let look = Look { scene: &denied, answers: &answers, only: None, to: None };
        assert_eq!(
            judge(look)[0].says,
            "network policy keeps c2 from 198.51.100.53, which it asks for names"
        );
        // A rule of ours for something else.
        denied.host.filter.tables[0].name = "netwright-routing".to_owned();
        assert_eq!(told(&denied, questions()), ["nameserver-silent", "outside-silent"]);
        // Another program's rule, which carries out no policy.
        denied.host.filter.tables[0].name = "own".to_owned();
        let ids = told(&denied, questions());
        assert!(ids.contains(&"forward-dropped") && ids.contains(&"nameserver-silent"), "{ids:?}");
        assert!(!ids.contains(&"policy-denies"), "{ids:?}");
    }

    /// The way is not known: the trace of the probe tells it.
    #[test]
    fn a_probe_that_ended_at_a_policy() {
        let deny = crate::filter::samples::chain("deny-out", vec![rule(&[drop()])]);
        let scene = with(node(), table(Kin::Inet, "netwright-policy", vec![deny]));
        let hop = Hop {
            container: None,
            link: Some("cni0".to_owned()),
            dropped: Some(("nft_do_chain".to_owned(), "NETFILTER_DROP".to_owned())),
            rule: Some(("inet netwright-policy".to_owned(), "deny-out".to_owned(), 7)),
            back: false,
        };
        let name = asked(Probe::Name { server: ip("198.51.100.53") });
        let ended = vec![(name, Answer::Silent { hops: vec![hop] })];
        assert_eq!(told(&scene, ended), ["policy-denies"]);
    }
}
