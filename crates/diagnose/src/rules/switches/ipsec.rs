//! Policies of IPsec (`man 8 ip-xfrm`): those that drop what containers send, and any at which a
//! probe ended.

use net::IpFamily;

use super::super::{containers, is_outbound};
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, Severity, WayKind};
use crate::model::Policy;
use crate::path::Site;
use crate::question::Answer;

/// What the kernel calls it (linux include/net/dropreason-core.h `SKB_DROP_REASON_XFRM_POLICY`).
const REASON: &str = "XFRM";

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (question, answer) in &look.answers.all {
        let (Answer::Silent { hops } | Answer::Unreachable { hops, .. }) = answer else { continue };
        let ended = hops.iter().find_map(|hop| {
            let (function, reason) = hop.dropped.as_ref()?;
            reason.contains(REASON).then_some((hop, function, reason))
        });
        let Some((hop, function, reason)) = ended else { continue };
        let inside = hop.container.as_deref().and_then(|id| look.scene.container(id));
        let (object, whose, tool) = match inside {
            None => ("this node".to_owned(), "this node", String::new()),
            Some(inside) => {
                let tool = within(inside.netns.as_str());
                (inside.id.clone(), inside.called(), tool)
            }
        };
        let what = if hop.back { "the answer to a probe" } else { "a probe" };
        let link = hop.link.as_deref().unwrap_or("a link");
        let says =
            format!("a policy of IPsec of {whose} drops what containers send, or the answers");
        let finding = Finding::error("ipsec-drops", object, says)
            .seen(format!("{what} ended at {link}: {function}, {reason}"))
            .advise(format!("find the policy, and except the pool from it: {tool}ip xfrm policy"))
            .breaks(WayKind::Outside, None)
            .breaks(WayKind::Names, None)
            .breaks(WayKind::Published, None);
        found.push(match &question.from {
            Some(container) => finding.hits(container.clone()),
            None => finding,
        });
    }
    let blocked = blocked(look);
    // What a probe shows is told with the policy, if that is known.
    if blocked.iter().any(|one| one.severity == Severity::Error) {
        found.retain(|one| one.object != "this node");
    }
    found.extend(blocked);
    found
}

/// Policies of the node that drop what containers send, or some of it. A person may have decided
/// that: only a probe that was lost there is an error.
fn blocked(look: Look<'_>) -> Vec<Finding> {
    let host = &look.scene.host;
    let mut found: Vec<Finding> = Vec::new();
    for policy in host.policies.iter().filter(|policy| policy.blocks) {
        let family = IpFamily::of(policy.to.addr());
        for container in containers(look).filter(|one| is_outbound(look.scene, one, family)) {
            let sites = Site::all(look.scene, container, family);
            let is_hit = |site: &Site<'_>| {
                policy.from.contains(&site.address) && !is_exempt(&host.policies, policy, site)
            };
            if !sites.into_iter().any(|site| is_hit(&site)) {
                continue;
            }
            // Mostly there is one for what is forwarded, and the same for what leaves.
            let finding = told(look, policy, &container.id, family);
            match found.iter_mut().find(|known| known.object == finding.object) {
                Some(known) => add(known, finding),
                None => found.push(finding),
            }
        }
    }
    found
}

/// Adds what is said of the same addresses.
fn add(known: &mut Finding, more: Finding) {
    if more.severity < known.severity {
        (known.severity, known.breaks) = (more.severity, more.breaks);
    }
    let put = |all: &mut Vec<String>, one: String| {
        if !all.contains(&one) {
            all.push(one);
        }
    };
    let place = more.place.filter(|place| known.place.as_ref() != Some(place));
    place.into_iter().for_each(|one| put(&mut known.seen, one));
    more.hits.into_iter().for_each(|one| put(&mut known.hits, one));
    more.advice.into_iter().for_each(|one| put(&mut known.advice, one));
}

/// Says whether another policy comes first for all or some of a container's packets.
fn is_exempt(all: &[Policy], policy: &Policy, site: &Site<'_>) -> bool {
    all.iter().any(|other| {
        !other.blocks
            && other.forwarded == policy.forwarded
            && other.priority <= policy.priority
            && other.from.contains(&site.address)
            && (other.to.contains(&policy.to) || policy.to.contains(&other.to))
    })
}

fn told(look: Look<'_>, policy: &Policy, container: &str, family: IpFamily) -> Finding {
    let direction = if policy.forwarded { "fwd" } else { "out" };
    let addresses = format!("src {} dst {}", policy.from, policy.to);
    let says = format!(
        "a policy of IPsec of this node drops what containers send from {} to {}",
        policy.from, policy.to
    );
    let is_lost = look.answers.from(Some(container)).any(|(asked, answer)| {
        answer.is_lost() && asked.destination().is_some_and(|to| policy.to.contains(&to))
    });
    let severity = if is_lost { Severity::Error } else { Severity::Warning };
    let finding = Finding::error("ipsec-drops", format!("policy {addresses}"), says);
    let finding = Finding { severity, ..finding }
        .at(format!("{addresses} dir {direction} action block"))
        .seen("the action of the policy is block, and no policy comes before it")
        .hits(container)
        .advise("if the tunnel for these packets is to be up, restart its program")
        .advise(format!(
            "if there is none any more: ip xfrm policy delete {addresses} dir {direction}"
        ));
    match is_lost {
        true => finding.breaks(WayKind::Outside, Some(family)).breaks(WayKind::Names, Some(family)),
        false => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Scene;
    use crate::question::{Answers, Hop, Probe, Question};

    #[test]
    fn a_policy_that_blocks_what_containers_send() {
        let mut scene = crate::path::samples::node();
        let policy = |to: &str, priority: u32, blocks: bool| Policy {
            forwarded: true,
            from: "10.88.0.0/16".parse().unwrap(),
            to: to.parse().unwrap(),
            priority,
            blocks,
        };
        let told = |scene: &Scene, all: Vec<(Question, Answer)>| -> Vec<(Severity, String)> {
            let answers = Answers { all };
            let found = judge(Look { scene, answers: &answers, only: None, to: None });
            found.into_iter().map(|one| (one.severity, one.hits.join(" "))).collect()
        };
        let hits = || "c2 c3".to_owned();
        scene.host.policies = vec![policy("198.51.100.0/24", 7, true)];
        assert_eq!(told(&scene, Vec::new()), [(Severity::Warning, hits())]);
        let lost = |to: &str| {
            let asked = Probe::Connect { to: to.parse().unwrap() };
            let question = Question { from: Some("c2".to_owned()), asked };
            vec![(question, Answer::Silent { hops: Vec::new() })]
        };
        assert_eq!(told(&scene, lost("198.51.100.1:80")), [(Severity::Error, hits())]);
        assert_eq!(told(&scene, lost("203.0.113.1:80")), [(Severity::Warning, hits())]);
        // The same for what leaves.
        let mut leaving = policy("198.51.100.0/24", 7, true);
        leaving.forwarded = false;
        scene.host.policies.push(leaving);
        assert_eq!(told(&scene, lost("198.51.100.1:80")), [(Severity::Error, hits())]);
        scene.host.policies.pop();
        // Another policy lets them pass first.
        scene.host.policies.push(policy("0.0.0.0/0", 7, false));
        assert_eq!(told(&scene, Vec::new()), []);
        // It is about others.
        scene.host.policies = vec![policy("198.51.100.0/24", 7, true)];
        scene.host.policies[0].from = "10.99.0.0/16".parse().unwrap();
        assert_eq!(told(&scene, Vec::new()), []);
    }

    #[test]
    fn a_probe_that_ended_at_a_policy() {
        let told = |reason: &str| -> Vec<(String, String)> {
            let hop = Hop {
                container: None,
                link: Some("cni0".to_owned()),
                dropped: Some(("ip_forward".to_owned(), reason.to_owned())),
                rule: None,
                back: false,
            };
            let asked = Probe::Echo { to: "198.51.100.1".parse().unwrap() };
            let question = Question { from: Some("c1".to_owned()), asked };
            let answers = Answers { all: vec![(question, Answer::Silent { hops: vec![hop] })] };
            let scene = Scene::default();
            let found = judge(Look { scene: &scene, answers: &answers, only: None, to: None });
            found.into_iter().map(|one| (one.object, one.seen.join("; "))).collect()
        };
        assert_eq!(told("IP_INADDRERRORS"), []);
        let seen = "a probe ended at cni0: ip_forward, XFRM_POLICY".to_owned();
        assert_eq!(told("XFRM_POLICY"), [("this node".to_owned(), seen)]);
    }
}
