//! Programs of BPF that drop packets. What they do is not read; a probe that ended at one shows it.

use std::net::IpAddr;

use net::IpFamily;

use super::Rule;
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, WayKind};
use crate::model::{Link, Namespace};
use crate::question::{Answer, Hop, Probe, Question};
use crate::routes::{RouteDecision, look_up};

pub(super) const RULE: Rule =
    Rule { judges: "programs of BPF", ids: &["program-drops"], judge, ..Rule::NONE };

/// The kernel's names for such ends (linux include/net/dropreason-core.h): where that is, as a
/// person looks for it, and what drops there.
const ENDS: [(&str, &str, &str); 3] = [
    ("TC_INGRESS", INGRESS, "a program or filter of traffic control"),
    ("TC_EGRESS", EGRESS, "a program or filter of traffic control"),
    ("XDP", "XDP", "a program of BPF (XDP)"),
];

const INGRESS: &str = "ingress";
const EGRESS: &str = "egress";

fn judge(look: Look<'_>) -> Vec<Finding> {
    let all = look.answers.all.iter();
    all.filter_map(|(question, answer)| of_probe(look, question, answer)).collect()
}

fn of_probe(look: Look<'_>, question: &Question, answer: &Answer) -> Option<Finding> {
    let (Answer::Silent { hops } | Answer::Unreachable { hops, .. }) = answer else { return None };
    let to = match &question.asked {
        asked if asked.program().is_some() => asked.destination()?,
        // It may drop echo requests, and let all else pass.
        Probe::Echo { to } if !is_answered(look, question.from.as_deref()) => *to,
        _ => return None,
    };
    let (hop, link, place, program) = hops.iter().find_map(|hop| {
        let (_, reason) = hop.dropped.as_ref()?;
        let (_, place, program) = ENDS.iter().find(|(name, ..)| name == reason)?;
        let link = match *place {
            EGRESS => leaves_by(look, hop, to)?,
            _ => hop.link.as_deref().unwrap_or("a link"),
        };
        (!is_judged(look, hop, link, place)).then_some((hop, link, *place, *program))
    })?;
    let inside = hop.container.as_deref().and_then(|id| look.scene.container(id));
    let (object, whose, tool) = match inside {
        None => (format!("{link} {place}"), "this node", String::new()),
        Some(inside) => {
            let tool = within(inside.netns.as_str());
            (format!("{}: {link} {place}", inside.id), inside.called(), tool)
        }
    };
    let (function, reason) = hop.dropped.as_ref()?;
    let what = if hop.back { "the answer to a probe" } else { "a probe" };
    let family = Some(IpFamily::of(to));
    let (does, side) = match place {
        EGRESS => ("leaves", EGRESS),
        _ => ("comes in", INGRESS),
    };
    let says = format!("{program} drops what {does} by {link} of {whose}");
    let finding = Finding::error("program-drops", object, says)
        .seen(format!("{what} to {to} ended there: {function}, {reason}"))
        .advise(format!(
            "find out whose it is: {tool}bpftool net show dev {link}; {tool}tc filter show dev {link} {side}"
        ))
        .breaks(WayKind::Gateway, family)
        .breaks(WayKind::Outside, family)
        .breaks(WayKind::Names, family);
    Some(match &question.from {
        Some(container) => finding.hits(container.clone()),
        None => finding,
    })
}

/// Says whether anything that a container, or the node, asked was answered.
fn is_answered(look: Look<'_>, from: Option<&str>) -> bool {
    look.answers.from(from).any(|(_, answer)| answer.is_of_other_end())
}

fn namespace_of<'l>(look: Look<'l>, hop: &Hop) -> Option<&'l Namespace> {
    match &hop.container {
        Some(id) => look.scene.container(id)?.inside.as_ref(),
        None => Some(&look.scene.host),
    }
}

/// Returns the link by which a packet was to leave: what is dropped there was not yet seen at that
/// link. Of answers it is not known.
fn leaves_by<'l>(look: Look<'l>, hop: &Hop, to: IpAddr) -> Option<&'l str> {
    let here = hop.link.as_deref();
    match look_up(namespace_of(look, hop)?, None, to, here, Some(0)) {
        RouteDecision::By { link, .. } if !hop.back && here != Some(link.name.as_str()) => {
            Some(link.name.as_str())
        }
        _ => None,
    }
}

/// Says whether a filter of traffic control is there that is known to drop.
fn is_judged(look: Look<'_>, hop: &Hop, link: &str, place: &str) -> bool {
    let link = namespace_of(look, hop).and_then(|namespace| namespace.link(link));
    let leaves = place == EGRESS;
    let drops = |link: &Link| link.losses.iter().any(|loss| loss.filter && loss.leaving == leaves);
    (leaves || place == INGRESS) && link.is_some_and(drops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Loss, Scene};
    use crate::path::samples::{ip, node};
    use crate::question::Answers;

    fn ended(reason: &str) -> Answer {
        let hop = Hop {
            container: None,
            link: Some("veth2".to_owned()),
            dropped: Some(("__netif_receive_skb_core".to_owned(), reason.to_owned())),
            rule: None,
            back: false,
        };
        Answer::Silent { hops: vec![hop] }
    }

    fn told(scene: &Scene, all: Vec<(Probe, Answer)>) -> Vec<String> {
        let of = |(asked, answer)| (Question { from: Some("c2".to_owned()), asked }, answer);
        let answers = Answers { all: all.into_iter().map(of).collect() };
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|finding| finding.object).collect()
    }

    #[test]
    fn a_probe_that_ended_at_a_program() {
        let name = || Probe::Name { server: ip("198.51.100.53") };
        let mut scene = node();
        assert_eq!(told(&scene, vec![(name(), ended("TC_INGRESS"))]), ["veth2 ingress"]);
        assert_eq!(told(&scene, vec![(name(), ended("XDP"))]), ["veth2 XDP"]);
        assert_eq!(told(&scene, vec![(name(), ended("NETFILTER_DROP"))]), [""; 0]);
        // A filter of traffic control that drops is told by another rule.
        let link = scene.host.links.iter_mut().find(|link| link.name == "veth2").unwrap();
        link.losses.push(Loss {
            kind: "flower".to_owned(),
            filter: true,
            leaving: false,
            preference: 10,
            protocol: None,
            per_mille: None,
        });
        assert_eq!(told(&scene, vec![(name(), ended("TC_INGRESS"))]), [""; 0]);
        assert_eq!(told(&scene, vec![(name(), ended("XDP"))]), ["veth2 XDP"]);
    }

    #[test]
    fn a_program_that_drops_what_leaves() {
        let at = |container: Option<&str>, link: Option<&str>| {
            let hop = Hop {
                container: container.map(str::to_owned),
                link: link.map(str::to_owned),
                dropped: Some(("__dev_queue_xmit".to_owned(), "TC_EGRESS".to_owned())),
                rule: None,
                back: false,
            };
            let name = Probe::Name { server: ip("198.51.100.53") };
            told(&node(), vec![(name, Answer::Silent { hops: vec![hop] })])
        };
        // The container's own link has not sent it.
        assert_eq!(at(Some("c2"), None), ["c2: eth0 egress"]);
        assert_eq!(at(None, Some("cni0")), ["up0 egress"]);
        assert_eq!(at(None, Some("up0")), [""; 0]);
    }

    #[test]
    fn a_program_may_drop_echo_requests_alone() {
        let echo = || (Probe::Echo { to: ip("10.88.0.1") }, ended("TC_INGRESS"));
        assert_eq!(told(&node(), vec![echo()]), ["veth2 ingress"]);
        let named = Answer::Named { after_us: 900, error: None };
        let name = (Probe::Name { server: ip("198.51.100.53") }, named);
        assert_eq!(told(&node(), vec![echo(), name]), [""; 0]);
    }
}
