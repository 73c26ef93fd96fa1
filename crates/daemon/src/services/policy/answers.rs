//! The answers to `netwright policy`, by HTTP at the service's status socket.

use firewall::pods::ipvs;

use crate::exchange::Answer;

use super::drops::{self, Drops, Page};
use super::listing::{PodRow, Under, Unknown, list};
use super::question::{Question, judge};
use super::shared::Shared;

/// The targets: all policies and this node's pods, what holds for a connection
/// (`SOURCE/DESTINATION/PROTOCOL/PORT`, and `/NETWORK` for a further one), what was dropped after a
/// number, and to let go what is kept although a list lacked it.
pub(crate) const POLICIES: &str = "/policies";
pub(crate) const EXPLAIN: &str = "/explain/";
pub(crate) const DROPS: &str = "/drops/";
pub(crate) const ACCEPT: &str = "POST /accept";

/// Answers a question, if it is one of these.
pub(super) fn answer(shared: &Shared, kept: &Drops, target: &str) -> Option<Answer> {
    if target == POLICIES {
        return Some(policies(shared));
    }
    if target == ACCEPT {
        // While files have faults, it is not known what the user would confirm.
        if let Some(why) = shared.engine().remarks().to_correct() {
            return Some(Answer::text(409, &format!("nothing is accepted: {why}")));
        }
        shared.accept();
        return Some(Answer::text(200, "accepted"));
    }
    if let Some(question) = target.strip_prefix(EXPLAIN) {
        return Some(explain(shared, question));
    }
    let number = target.strip_prefix(DROPS)?;
    Some(match number.parse() {
        Ok(number) => {
            let page = kept.after(number, kept.counted());
            Answer::json(&Page { inside: drops::in_containers(shared), ..page })
        }
        Err(_) => Answer::text(404, "ask /drops/NUMBER, from 0"),
    })
}

fn policies(shared: &Shared) -> Answer {
    let engine = shared.engine();
    let unknown = engine.attachments().filter_map(|attachment| {
        let is_unknown = |address: &std::net::IpAddr| {
            engine.is_closed(*address) && engine.world().claimants(*address).is_empty()
        };
        let addresses: Vec<_> = attachment.own().iter().copied().filter(is_unknown).collect();
        let name = attachment.label();
        (!addresses.is_empty()).then_some(Unknown { name, addresses })
    });
    let unknown = unknown.collect();
    let mut warnings = not_enforced(&engine.waits_for());
    warnings.extend(engine.notices());
    warnings.extend(ipvs::judged_wrongly().into_iter().map(str::to_owned));
    let node = Some(engine.node());
    let mut listing = list(engine.world(), node, unknown, warnings).with(engine.networks(), node);
    listing.pods.extend(engine.closed_further().map(|(attachment, why)| PodRow {
        pod: cni::text::one_line(format!("{} {}", attachment.label(), attachment.id.2)),
        addresses: attachment.addresses.clone(),
        ingress: Under::Closed(why.clone()),
        egress: Under::Closed(why),
    }));
    Answer::json(&listing)
}

fn explain(shared: &Shared, question: &str) -> Answer {
    let question = match Question::of_target(question) {
        Ok(question) => question,
        Err(why) => return Answer::text(404, &why),
    };
    let engine = shared.engine();
    let world = match question.world(engine.world(), engine.networks()) {
        Ok(world) => world,
        Err(why) => return Answer::text(404, &cni::text::one_line(why)),
    };
    match judge(world, &question) {
        Ok(mut judged) => {
            judged.notes.extend(not_enforced(&engine.waits_for()));
            Answer::json(&judged)
        }
        Err(why) => Answer::text(404, &cni::text::one_line(why)),
    }
}

/// Says what the service still waits for.
fn not_enforced(waits_for: &[String]) -> Vec<String> {
    let said = waits_for
        .iter()
        .map(|why| format!("what is known is not enforced yet, and new pods are closed: {why}"));
    said.collect()
}
