//! Policies of IPsec (`man 8 ip-xfrm`). They are not read; a probe that ended at one shows them.

use crate::Look;
use crate::finding::{Finding, WayKind};
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
                let tool = format!("nsenter --net={} ", inside.netns);
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
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::{Answers, Asked, Hop, Question};
    use scene::Scene;

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
            let asked = Asked::Echo { to: "198.51.100.1".parse().unwrap() };
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
