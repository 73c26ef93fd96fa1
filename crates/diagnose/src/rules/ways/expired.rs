//! Answers that come to this node with so few hops left that it may not send them on.

use std::net::{IpAddr, Ipv4Addr};

use net::IpFamily;

use super::super::{FEW, Rule, containers, is_outbound, targets};
use crate::Look;
use crate::filter::Port;
use crate::finding::{Finding, WayKind};
use crate::model::{Container, Part, Transport};
use crate::path::{Outcome, Site, StopCause, Trip, carries, follow_filters, uplink};
use crate::question::{Answer, Hop, NAMES, Probe, Question};

pub(in crate::rules) const RULE: Rule = Rule {
    judges: "hops that answers have left",
    ids: &["answers-expire"],
    needs: &[Part::Links, Part::Routes],
    asks,
    judge,
    ..Rule::NONE
};

/// A router drops what has so many hops left (RFC 1812 §5.3.1).
const LAST: u8 = 1;

/// The kernel's function that drops such a packet (linux net/ipv4/ip_forward.c).
const FORWARD: &str = "ip_forward";

/// The node asks whom its containers ask: the answers to both come with as many hops.
fn asks(look: Look<'_>) -> Vec<Question> {
    let mut all: Vec<Question> = Vec::new();
    for container in containers(look).take(FEW) {
        for to in ends(look, container) {
            let question = Question { from: None, asked: Probe::HopsLeft { to } };
            if !all.contains(&question) {
                all.push(question);
            }
        }
    }
    all
}

fn ends(look: Look<'_>, container: &Container) -> Vec<Ipv4Addr> {
    if !is_outbound(look.scene, container, IpFamily::V4) {
        return Vec::new();
    }
    let of_v4 = |to: IpAddr| match to {
        IpAddr::V4(to) if !to.is_loopback() => Some(to),
        _ => None,
    };
    targets(look, container).into_iter().filter_map(of_v4).collect()
}

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in containers(look) {
        for to in ends(look, container) {
            let asked = Question { from: None, asked: Probe::HopsLeft { to } };
            if let Some(Answer::HopsLeft { left }) = look.answers.to(&asked)
                && *left <= LAST
                && let Some(kind) = lost(look, container, to)
            {
                found.push(told(look, container, to, *left).breaks(kind, Some(IpFamily::V4)));
            }
        }
    }
    found
}

/// Returns which way of a container to an address is broken, if nothing shows another reason.
fn lost(look: Look<'_>, container: &Container, to: Ipv4Addr) -> Option<WayKind> {
    if is_by_rule(look, container, to) {
        return None;
    }
    let is_elsewhere = |hop: &Hop| {
        hop.dropped.as_ref().is_some_and(|(function, _)| !function.starts_with(FORWARD))
    };
    look.answers.from(Some(&container.id)).find_map(|(asked, answer)| {
        let Answer::Silent { hops } = answer else { return None };
        let (end, _) = asked.program()?;
        (end.ip() == IpAddr::V4(to) && !hops.iter().any(is_elsewhere)).then(|| asked.way())
    })
}

/// Says whether a rule of this node takes the hops of a container's packets, or of the answers: another
/// finding tells of the rule.
fn is_by_rule(look: Look<'_>, container: &Container, to: Ipv4Addr) -> bool {
    let with = carries(Transport::Udp, Port::Is(NAMES));
    Site::all(look.scene, container, IpFamily::V4).any(|site| {
        let trip = Trip::Outside { from: &site, to: IpAddr::V4(to), with };
        let stopped = follow_filters(look.scene, &trip, &[]);
        matches!(stopped, Outcome::Stopped(stop) if matches!(stop.why, StopCause::Expires { .. }))
    })
}

fn told(look: Look<'_>, container: &Container, to: Ipv4Addr, left: u8) -> Finding {
    let called = container.called();
    let says = format!(
        "answers of {to} come to this node with a TTL of {left}, so it sends none of them on to {called}"
    );
    let by = uplink(look.scene, true).map_or("UPLINK", |link| link.name.as_str());
    Finding::error("answers-expire", to.to_string(), says)
        .seen(format!(
            "the answer to an echo request of this node had a TTL of {left}, and {called} got no answer from {to}"
        ))
        .hits(container.id.clone())
        .advise(format!(
            "ask who runs the network beyond {by} why its packets come with so few hops: some providers do that so that a customer connects one machine alone"
        ))
        .advise(format!(
            "or set it on this node, in a chain of nft at hook prerouting: iifname \"{by}\" ip ttl 1 ip ttl set 64; then a packet that goes in circles lives longer"
        ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::samples::{base, rule, table, ttl};
    use crate::model::filter::{Family as Kin, Hook};
    use crate::model::{MacvlanMode, Scene};
    use crate::path::samples::{node, on_parent, with};
    use crate::question::Answers;

    const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

    fn look<'s>(scene: &'s Scene, answers: &'s Answers) -> Look<'s> {
        let to = Some((SERVER, 80).into());
        Look { scene, answers, only: Some("c2"), to }
    }

    fn told(left: u8, own: Answer) -> Vec<String> {
        judged(&node(), left, own)
    }

    fn judged(scene: &Scene, left: u8, own: Answer) -> Vec<String> {
        let asked = Question { from: None, asked: Probe::HopsLeft { to: SERVER } };
        let connect = Probe::Connect { to: (SERVER, 80).into() };
        let of_container = Question { from: Some("c2".to_owned()), asked: connect };
        let all = vec![(asked, Answer::HopsLeft { left }), (of_container, own)];
        let answers = Answers { all };
        judge(look(scene, &answers)).into_iter().map(|one| one.says).collect()
    }

    fn dropped(function: &str) -> Answer {
        let dropped = Some((function.to_owned(), "IP_INHDR".to_owned()));
        let link = Some("up0".to_owned());
        let hop = Hop { container: None, link, dropped, rule: None, back: true };
        Answer::Silent { hops: vec![hop] }
    }

    #[test]
    fn answers_with_their_last_hop_are_not_sent_on() {
        let silent = || Answer::Silent { hops: Vec::new() };
        let says = "answers of 198.51.100.1 come to this node with a TTL of 1, so it sends none of them on to c2";
        assert_eq!(told(1, silent()), [says]);
        assert_eq!(told(1, dropped("ip_forward")), [says]);
        // Another reason is known, nothing is lost, or they have hops enough.
        assert_eq!(told(1, dropped("nft_do_chain")), [""; 0]);
        assert_eq!(told(1, Answer::Reached { after_us: 1 }), [""; 0]);
        assert_eq!(told(2, silent()), [""; 0]);
    }

    #[test]
    fn a_rule_of_this_node_that_takes_the_hops_comes_first() {
        let chain = base("hops", Hook::Prerouting, -150, vec![rule(&[ttl(1)])]);
        let scene = with(node(), table(Kin::Ip, "own", vec![chain]));
        assert_eq!(judged(&scene, 1, Answer::Silent { hops: Vec::new() }), [""; 0]);
    }

    #[test]
    fn who_is_on_the_parents_network_gets_the_answers_itself() {
        let none = Answers::default();
        let asked = asks(look(&node(), &none)).len();
        let macvlan = on_parent("macvlan", |link| link.macvlan = Some(MacvlanMode::Bridge));
        assert_eq!((asked, asks(look(&macvlan, &none)).len()), (1, 0));
    }
}
