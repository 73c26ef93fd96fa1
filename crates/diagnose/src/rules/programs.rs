//! Programs of BPF that drop packets. What they do is not read; a probe that ended at one shows it.

use scene::{Link, Namespace};

use super::{Rule, family_of};
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::question::{Answer, Asked, Hop, Question};

pub(super) const RULE: Rule =
    Rule { judges: "programs of BPF", ids: &["program-drops"], judge, ..Rule::NONE };

/// The kernel's names for such ends (linux include/net/dropreason-core.h): where that is, as a
/// person looks for it, and what drops there. What is dropped as it leaves was not yet seen at that
/// link, so nothing is said of that.
const ENDS: [(&str, &str, &str); 2] = [
    (INGRESS, "ingress", "a program or filter of traffic control"),
    ("XDP", "XDP", "a program of BPF (XDP)"),
];

const INGRESS: &str = "TC_INGRESS";

fn judge(look: Look<'_>) -> Vec<Finding> {
    let all = look.answers.all.iter();
    all.filter_map(|(question, answer)| of_probe(look, question, answer)).collect()
}

fn of_probe(look: Look<'_>, question: &Question, answer: &Answer) -> Option<Finding> {
    let (Answer::Silent { hops } | Answer::Unreachable { hops, .. }) = answer else { return None };
    let to = match &question.asked {
        Asked::Name { server } => *server,
        Asked::Connect { to } => to.ip(),
        // It may drop echo requests, and let all else pass.
        Asked::Echo { to } if !is_answered(look, question.from.as_deref()) => *to,
        _ => return None,
    };
    let (hop, place, program) = hops.iter().find_map(|hop| {
        let (_, reason) = hop.dropped.as_ref()?;
        let (_, place, program) = ENDS.iter().find(|(name, ..)| name == reason)?;
        (!is_judged(look, hop, reason)).then_some((hop, *place, *program))
    })?;
    let inside = hop.container.as_deref().and_then(|id| look.scene.container(id));
    let link = hop.link.as_deref().unwrap_or("a link");
    let (object, whose, tool) = match inside {
        None => (format!("{link} {place}"), "this node", String::new()),
        Some(inside) => {
            let tool = format!("nsenter --net={} ", inside.netns);
            (format!("{}: {link} {place}", inside.id), inside.called(), tool)
        }
    };
    let (function, reason) = hop.dropped.as_ref()?;
    let what = if hop.back { "the answer to a probe" } else { "a probe" };
    let family = Some(family_of(to));
    let says = format!("{program} drops what comes in by {link} of {whose}");
    let finding = Finding::error("program-drops", object, says)
        .seen(format!("{what} to {to} ended there: {function}, {reason}"))
        .fix(format!(
            "find out whose it is: {tool}bpftool net show dev {link}; {tool}tc filter show dev {link} ingress"
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
    let is_answer = |answer: &Answer| {
        matches!(answer, Answer::Reached { .. } | Answer::Refused | Answer::Named { .. })
    };
    look.answers.from(from).any(|(_, answer)| is_answer(answer))
}

/// Says whether a filter of traffic control is there that is known to drop.
fn is_judged(look: Look<'_>, hop: &Hop, reason: &str) -> bool {
    let namespace: Option<&Namespace> = match &hop.container {
        Some(id) => look.scene.container(id).and_then(|container| container.inside.as_ref()),
        None => Some(&look.scene.host),
    };
    let link = namespace.zip(hop.link.as_deref()).and_then(|(inside, name)| inside.link(name));
    let drops = |link: &Link| link.losses.iter().any(|loss| loss.filter && !loss.leaving);
    reason == INGRESS && link.is_some_and(drops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::samples::{ip, node};
    use crate::question::Answers;
    use scene::{Loss, Scene};

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

    fn told(scene: &Scene, all: Vec<(Asked, Answer)>) -> Vec<String> {
        let of = |(asked, answer)| (Question { from: Some("c2".to_owned()), asked }, answer);
        let answers = Answers { all: all.into_iter().map(of).collect() };
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|finding| finding.object).collect()
    }

    #[test]
    fn a_probe_that_ended_at_a_program() {
        let name = || Asked::Name { server: ip("198.51.100.53") };
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
    fn a_program_may_drop_echo_requests_alone() {
        let echo = || (Asked::Echo { to: ip("10.88.0.1") }, ended("TC_INGRESS"));
        assert_eq!(told(&node(), vec![echo()]), ["veth2 ingress"]);
        let named = Answer::Named { after_us: 900, error: None };
        let name = (Asked::Name { server: ip("198.51.100.53") }, named);
        assert_eq!(told(&node(), vec![echo(), name]), [""; 0]);
    }
}
