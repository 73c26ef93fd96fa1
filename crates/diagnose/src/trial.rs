//! What probes that were really sent have shown of the ways of containers. Only they say that a way
//! works, or that it fails: what is computed from rules, or differs from what ADD made, says neither.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use net::IpFamily;

use crate::Look;
use crate::finding::WayKind;
use crate::model::{Attachment, Container, Transport};
use crate::question::{Answer, Probe, Question};
use crate::rules::is_here;

/// What came of the probes that were sent on a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// One was answered, and none was lost.
    Works,
    /// One was lost, or refused.
    Fails,
    /// None was sent, or those that were sent show nothing.
    Never,
}

impl Trial {
    /// Returns what both show.
    #[must_use]
    pub fn and(self, other: Trial) -> Trial {
        match (self, other) {
            (Trial::Fails, _) | (_, Trial::Fails) => Trial::Fails,
            (Trial::Works, _) | (_, Trial::Works) => Trial::Works,
            (Trial::Never, Trial::Never) => Trial::Never,
        }
    }
}

/// The answers, by who has sent the question.
#[derive(Debug)]
pub struct Trials<'l> {
    look: Look<'l>,
    answers: HashMap<Option<&'l str>, Vec<(&'l Probe, &'l Answer)>>,
    /// The network of each address of a container.
    networks: HashMap<IpAddr, &'l str>,
}

impl<'l> Trials<'l> {
    /// Sorts the answers.
    #[must_use]
    pub fn of(look: Look<'l>) -> Self {
        let mut answers: HashMap<_, Vec<_>> = HashMap::new();
        for (question, answer) in &look.answers.all {
            let own = answers.entry(question.from.as_deref()).or_default();
            own.push((&question.asked, answer));
        }
        let attachments = look.scene.containers.iter().flat_map(|one| &one.attachments);
        let addresses = |one: &'l Attachment| {
            one.addresses.iter().map(move |net| (net.addr(), one.network.as_str()))
        };
        Trials { look, answers, networks: attachments.flat_map(addresses).collect() }
    }

    /// Returns what all probes show of a way of a container; `None` as its IP version: of both.
    #[must_use]
    pub fn of_way(&self, container: &Container, kind: WayKind, family: Option<IpFamily>) -> Trial {
        let all =
            self.sent(container, kind, family).map(|(asked, answer)| self.shows(asked, answer));
        let all: Vec<Trial> = all.collect();
        // A gateway that answers an echo request may be silent when it is asked for its address.
        match kind == WayKind::Gateway && all.contains(&Trial::Works) {
            true => Trial::Works,
            false => all.into_iter().fold(Trial::Never, Trial::and),
        }
    }

    /// Says whether any probe of a way was lost or refused, even if others of it were answered.
    #[must_use]
    pub fn loses(&self, container: &Container, kind: WayKind) -> bool {
        let mut sent = self.sent(container, kind, None);
        sent.any(|(asked, answer)| self.shows(asked, answer) == Trial::Fails)
    }

    /// Says whether a probe of a way was refused: by the container, or by the node if nothing leads it
    /// to the container.
    #[must_use]
    pub fn is_refused(&self, container: &Container, kind: WayKind, family: IpFamily) -> bool {
        let mut sent = self.sent(container, kind, Some(family));
        sent.any(|(_, answer)| *answer == Answer::Refused)
    }

    /// Returns the probes that try a way of a container.
    fn sent<'s>(
        &'s self,
        container: &'s Container,
        kind: WayKind,
        family: Option<IpFamily>,
    ) -> impl Iterator<Item = (&'l Probe, &'l Answer)> + 's {
        let sender = match kind {
            WayKind::FromNode | WayKind::Published | WayKind::PublishedHere => None,
            _ => Some(container.id.as_str()),
        };
        let sent = self.answers.get(&sender).into_iter().flatten().copied();
        sent.filter(move |(asked, _)| {
            family.is_none_or(|family| IpFamily::of(asked.address()) == family)
                && self.tries(container, asked) == Some(kind)
        })
    }

    /// Returns the way of a container that a probe of its own, or of the node, tries.
    fn tries(&self, container: &Container, asked: &Probe) -> Option<WayKind> {
        let (to, scene) = (asked.address(), self.look.scene);
        let attachments = || container.attachments.iter();
        let is_own =
            |to: IpAddr| attachments().any(|one| one.addresses.iter().any(|own| own.addr() == to));
        let is_published = |at: &SocketAddr| {
            let mut ports = attachments().flat_map(|one| &one.ports);
            ports.any(|port| port.host == at.port() && port.transport == Transport::Tcp)
        };
        match asked {
            // A gateway, or the container itself, may serve names.
            _ if asked.way() == WayKind::Names => Some(WayKind::Names),
            _ if is_own(to) => Some(WayKind::FromNode),
            Probe::Connect { to: at } if is_here(scene, to) && is_published(at) => {
                Some(match to.is_loopback() {
                    true => WayKind::PublishedHere,
                    false => WayKind::Published,
                })
            }
            _ if attachments().any(|one| one.gateways.contains(&to)) => Some(WayKind::Gateway),
            Probe::RarePort { .. } if to.is_loopback() => Some(WayKind::Inside),
            Probe::RarePort { .. } => Some(WayKind::Between),
            Probe::Echo { .. } | Probe::Connect { .. }
                if attachments()
                    .any(|one| self.networks.get(&to) == Some(&one.network.as_str())) =>
            {
                Some(WayKind::Between)
            }
            _ if is_here(scene, to) => None,
            _ => asked.destination().map(|_| WayKind::Outside),
        }
    }

    fn shows(&self, asked: &Probe, answer: &Answer) -> Trial {
        match answer {
            Answer::Reached { .. } | Answer::Named { error: None, .. } => Trial::Works,
            Answer::Owners { macs } if !macs.is_empty() => Trial::Works,
            Answer::Refused if matches!(asked, Probe::RarePort { .. }) => Trial::Works,
            // A machine that refuses is there; a rule refuses what another machine lets the node have.
            Answer::Refused if asked.way() == WayKind::Outside => {
                let own = Question { from: None, asked: asked.clone() };
                match self.look.answers.to(&own) {
                    Some(Answer::Reached { .. }) => Trial::Fails,
                    _ => Trial::Works,
                }
            }
            Answer::Addresses { .. } | Answer::HopsLeft { .. } | Answer::NotAsked { .. } => {
                Trial::Never
            }
            Answer::Owners { .. }
            | Answer::Refused
            | Answer::Unreachable { .. }
            | Answer::Silent { .. }
            | Answer::UpTo { .. }
            | Answer::OneKind { .. }
            | Answer::NoPort { .. }
            | Answer::Named { .. } => Trial::Fails,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::samples::{ip, node};
    use crate::question::Answers;

    fn shown(all: Vec<(Option<&str>, Probe, Answer)>, kind: WayKind) -> Trial {
        let scene = node();
        let all = all.into_iter().map(|(from, asked, answer)| {
            (Question { from: from.map(str::to_owned), asked }, answer)
        });
        let answers = Answers { all: all.collect() };
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        Trials::of(look).of_way(&scene.containers[0], kind, Some(IpFamily::V4))
    }

    #[test]
    fn only_what_was_sent_shows_a_way() {
        let reached = || Answer::Reached { after_us: 1 };
        let silent = || Answer::Silent { hops: Vec::new() };
        let echo = |to: &str| Probe::Echo { to: ip(to) };
        let c2 = Some("c2");
        assert_eq!(shown(Vec::new(), WayKind::Outside), Trial::Never);
        let router = vec![(c2, echo("192.0.2.1"), reached())];
        assert_eq!(shown(router.clone(), WayKind::Outside), Trial::Works);
        assert_eq!(shown(router.clone(), WayKind::Gateway), Trial::Never);
        // Of another IP version, or another container.
        let other =
            vec![(c2, echo("2001:db8::1"), reached()), (Some("c3"), echo("192.0.2.1"), reached())];
        assert_eq!(shown(other, WayKind::Outside), Trial::Never);
        let named = (c2, Probe::Connect { to: "198.51.100.1:80".parse().unwrap() }, silent());
        assert_eq!(shown([router, vec![named]].concat(), WayKind::Outside), Trial::Fails);
        let unsent = Answer::NotAsked { reason: "no address".to_owned() };
        assert_eq!(shown(vec![(c2, echo("192.0.2.1"), unsent)], WayKind::Outside), Trial::Never);
    }

    #[test]
    fn a_question_for_names_shows_nothing_of_the_way_outside() {
        let server = ip("198.51.100.53");
        for asked in [Probe::Name { server }, Probe::NameByTcp { server }] {
            let lost = vec![(Some("c2"), asked, Answer::Silent { hops: Vec::new() })];
            assert_eq!(shown(lost.clone(), WayKind::Outside), Trial::Never);
            assert_eq!(shown(lost, WayKind::Names), Trial::Fails);
        }
    }

    /// A machine that refuses is reached, but not if it refuses the container alone.
    #[test]
    fn what_refuses_the_container_alone_is_a_rule() {
        let asked = || Probe::Connect { to: "198.51.100.1:80".parse().unwrap() };
        let refused = (Some("c2"), asked(), Answer::Refused);
        assert_eq!(shown(vec![refused.clone()], WayKind::Outside), Trial::Works);
        let node = (None, asked(), Answer::Reached { after_us: 1 });
        assert_eq!(shown(vec![refused, node], WayKind::Outside), Trial::Fails);
    }

    #[test]
    fn what_is_sent_to_a_container_of_the_network_shows_nothing_of_the_way_outside() {
        let mut scene = node();
        scene.networks[0].plugins = vec!["macvlan".to_owned()];
        let echo =
            Question { from: Some("c2".to_owned()), asked: Probe::Echo { to: ip("10.88.0.3") } };
        let answers = Answers { all: vec![(echo, Answer::Reached { after_us: 1 })] };
        let trials = Trials::of(Look { scene: &scene, answers: &answers, only: None, to: None });
        let shown = |kind| trials.of_way(&scene.containers[0], kind, Some(IpFamily::V4));
        assert_eq!(shown(WayKind::Outside), Trial::Never);
        assert_eq!(shown(WayKind::Between), Trial::Works);
    }

    #[test]
    fn a_gateway_that_is_asked_for_names_shows_the_way_of_names() {
        let server = ip("10.88.0.1");
        for asked in [Probe::Name { server }, Probe::NameByTcp { server }] {
            let named = Answer::Named { after_us: 1, error: None };
            let answered = vec![(Some("c2"), asked.clone(), named)];
            assert_eq!(shown(answered.clone(), WayKind::Names), Trial::Works);
            assert_eq!(shown(answered, WayKind::Gateway), Trial::Never);
            let lost = vec![(Some("c2"), asked, Answer::Silent { hops: Vec::new() })];
            assert_eq!(shown(lost, WayKind::Names), Trial::Fails);
        }
    }

    #[test]
    fn a_gateway_that_answers_one_of_two_questions_works() {
        let who = Probe::WhoHas { address: ip("10.88.0.1"), link: "eth0".to_owned() };
        let nobody = (Some("c2"), who, Answer::Owners { macs: Vec::new() });
        assert_eq!(shown(vec![nobody.clone()], WayKind::Gateway), Trial::Fails);
        let echo =
            (Some("c2"), Probe::Echo { to: ip("10.88.0.1") }, Answer::Reached { after_us: 1 });
        assert_eq!(shown(vec![nobody, echo], WayKind::Gateway), Trial::Works);
    }
}
