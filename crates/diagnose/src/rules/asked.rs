//! Questions that could not be asked: nothing is known of what they would have shown.

use std::collections::BTreeMap;

use super::{Rule, containers};
use crate::Look;
use crate::finding::Finding;
use crate::model::{Container, Link, Scene};
use crate::question::{Answer, Probe, Question};
use crate::whose::{self, Owner};

/// The finding of questions that could not be asked.
pub(crate) const NOT_ASKED: &str = "not-asked";

pub(super) const RULE: Rule =
    Rule { judges: "questions", ids: &[NOT_ASKED, "not-attached"], judge, ..Rule::NONE };

/// How many of the questions are named that could not be sent for the same reason.
const SHOWN: usize = 3;

fn judge(look: Look<'_>) -> Vec<Finding> {
    let bare = containers(look).filter(|container| container.attachments.is_empty());
    bare.map(|container| not_attached(look, container))
        .chain(unsent(look))
        .chain(untried(look))
        .collect()
}

/// A container that the caller named, and of which no attachment is recorded.
fn not_attached(look: Look<'_>, container: &Container) -> Finding {
    let called = container.called();
    if let Some(bridge) = bridge_of_runtime(look.scene, container) {
        let name = &bridge.name;
        let says = format!(
            "{called} is on {name}, a network that no CNI plugin made: doctor examines only what one attached"
        );
        let finding = Finding::unknown("not-attached", container.id.clone(), says)
            .at(container.netns.clone())
            .hits(container.id.clone())
            .advise("ask the runtime whose network it is: docker network inspect, podman network inspect");
        return Finding { whose: whose::of_link(bridge, look.scene), ..finding };
    }
    let links = container.inside.iter().flat_map(|inside| &inside.links);
    let others: Vec<&str> =
        links.map(|link| link.name.as_str()).filter(|name| *name != "lo").collect();
    let seen = match others.is_empty() {
        true => "it has no interface but loopback".to_owned(),
        false => format!("it has {}, which no recorded ADD has made", others.join(", ")),
    };
    let says = format!("no network is recorded to which {called} is attached");
    Finding::unknown("not-attached", container.id.clone(), says)
        .at(container.netns.clone())
        .seen(seen)
        .hits(container.id.clone())
        .advise("ask its runtime why ADD was refused, or which other program connects it")
}

/// Returns the bridge of a container of which no attachment is recorded, if Docker or podman made that
/// for a network of its own.
pub(super) fn bridge_of_runtime<'s>(scene: &'s Scene, container: &Container) -> Option<&'s Link> {
    let host = &scene.host;
    let own = container.inside.iter().flat_map(|inside| &inside.links);
    let mut pairs = own.filter(|link| link.kind.as_deref() == Some("veth"));
    pairs.find_map(|link| {
        let end = host.link_of(link.peer?)?;
        let bridge = host.link_of(end.master?)?;
        let is_end = end.peer == Some(link.index) && end.peer_netnsid.is_some();
        let is_theirs = matches!(whose::owner_of_link(bridge), Some(Owner::Docker | Owner::Podman));
        (is_end && is_theirs).then_some(bridge)
    })
}

/// Questions that could not be sent.
fn unsent(look: Look<'_>) -> Vec<Finding> {
    let mut by_reason: BTreeMap<(Option<&str>, &str), Vec<String>> = BTreeMap::new();
    for (question, answer) in &look.answers.all {
        if let Answer::NotAsked { reason } = answer {
            let same = by_reason.entry((question.from.as_deref(), reason)).or_default();
            same.push(text(&question.asked));
        }
    }
    let told = by_reason.into_iter().map(|((from, reason), mut asked)| {
        let all = asked.len();
        asked.truncate(SHOWN);
        let more = if SHOWN < all { format!(", and {} more", all - SHOWN) } else { String::new() };
        let called =
            from.map_or("this node", |id| look.scene.container(id).map_or(id, Container::called));
        let says = format!("{called} could not ask: {}{more}", asked.join(", "));
        let object = format!("{}: {reason}", from.unwrap_or("this node"));
        let finding = Finding::unknown(NOT_ASKED, object, says).seen(reason);
        match from {
            Some(id) => finding.hits(id),
            None => finding,
        }
    });
    told.collect()
}

/// What the caller wanted to have tried, and no container has tried.
fn untried(look: Look<'_>) -> Option<Finding> {
    let to = look.to?;
    let is_tried = |(question, _): &(Question, Answer)| {
        question.from.is_some() && question.asked == Probe::Connect { to }
    };
    if look.answers.all.iter().any(is_tried) {
        return None;
    }
    let whose = look.only.and_then(|id| look.scene.container(id));
    let seen = match look.answers.all.is_empty() {
        true => "no probe was sent",
        false => "no container has a route there",
    };
    Some(not_tried(&to.to_string(), whose, seen))
}

/// Tells that nothing was tried to reach a machine, from a container that the caller asked for or
/// from any. `seen` says why.
#[must_use]
pub fn not_tried(to: &str, from: Option<&Container>, seen: &str) -> Finding {
    let says = match from {
        Some(container) => {
            format!("it is not known whether {} reaches {to}", container.called())
        }
        None => format!("no container has tried to reach {to}"),
    };
    let finding = Finding::unknown(NOT_ASKED, to, says).seen(seen);
    from.into_iter().fold(finding, |finding, container| finding.hits(container.id.clone()))
}

fn text(asked: &Probe) -> String {
    match asked {
        Probe::Echo { to } => format!("an echo of {to}"),
        Probe::EchoBy { to, link } => format!("an echo of {to} by {link}"),
        Probe::HopsLeft { to } => format!("how many hops answers of {to} have left"),
        Probe::Connect { to } => format!("a connection to {to}"),
        Probe::RarePort { to } => format!("a connection to {to}"),
        Probe::Size { to, .. } => format!("echoes of several sizes of {to}"),
        Probe::Name { server } => format!("{server} for a name"),
        Probe::NameByTcp { server } => format!("{server} for a name by TCP"),
        Probe::NameBelow { server, domain } => format!("{server} for a name below {domain}"),
        Probe::WhoHas { address, link } => format!("who has {address} on {link}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Scene;
    use crate::path::samples::{ip, node};
    use crate::question::Answers;

    fn told(scene: &Scene, all: Vec<(Question, Answer)>, only: Option<&str>) -> Vec<String> {
        let answers = Answers { all };
        let to = only.map(|_| "198.51.100.1:443".parse().unwrap());
        let found = judge(Look { scene, answers: &answers, only, to });
        found.into_iter().map(|one| format!("{} {}", one.id, one.says)).collect()
    }

    fn question(asked: Probe) -> Question {
        Question { from: Some("c2".to_owned()), asked }
    }

    #[test]
    fn what_could_not_be_asked_is_told() {
        let lost = || Answer::NotAsked { reason: "Operation not permitted".to_owned() };
        let all = vec![
            (question(Probe::Echo { to: ip("10.88.0.1") }), lost()),
            (question(Probe::Name { server: ip("198.51.100.53") }), lost()),
        ];
        let said = "not-asked c2 could not ask: an echo of 10.88.0.1, 198.51.100.53 for a name";
        assert_eq!(told(&node(), all, None), [said]);
        assert_eq!(told(&node(), Vec::new(), None), [""; 0]);
    }

    #[test]
    fn what_the_caller_named_is_never_dropped() {
        let unknown = "not-asked it is not known whether c2 reaches 198.51.100.1:443";
        assert_eq!(told(&node(), Vec::new(), Some("c2")), [unknown]);
        let asked = question(Probe::Connect { to: "198.51.100.1:443".parse().unwrap() });
        let all = vec![(asked, Answer::Refused)];
        assert_eq!(told(&node(), all, Some("c2")), [""; 0]);
    }

    #[test]
    fn who_is_attached_nowhere_is_not_sound() {
        let mut scene = node();
        scene.containers[0].attachments.clear();
        let says = "not-attached no network is recorded to which c2 is attached";
        assert_eq!(told(&scene, Vec::new(), None), [says]);
    }
}
