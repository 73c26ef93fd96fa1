//! A rule that gives packets of containers a source address that the node does not have: answers go
//! to another machine.
//!
//! Where a router leads that address to the node, all is well, so only a probe shows it: the
//! container's was not answered, and the node's own to the same end was.

use std::net::IpAddr;

use net::IpFamily;

use super::{fix, proved};
use crate::Look;
use crate::filter::{End, Layer, Payload, Place, Port, Truth, WalkOutcome, walk};
use crate::finding::{Finding, WayKind};
use crate::model::Transport;
use crate::model::filter::Hook;
use crate::path::{Outcome, Site, Trip, carries, echo, follow_filters};
use crate::question::{Answer, Probe, Question};
use crate::routes::{RouteDecision, look_up};
use crate::whose;

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let all = look.answers.all.iter();
    all.filter_map(|(question, answer)| of_probe(look, question, answer)).collect()
}

fn of_probe(look: Look<'_>, question: &Question, answer: &Answer) -> Option<Finding> {
    let (Answer::Silent { hops } | Answer::Unreachable { hops, .. }) = answer else { return None };
    // A rule drops it, or the answer.
    if hops.iter().any(|hop| proved::dropped_at(look, hop).is_some()) {
        return None;
    }
    let container = look.scene.container(question.from.as_deref()?)?;
    let (to, with) = match &question.asked {
        Probe::Echo { to } => (*to, echo(*to)),
        asked => match asked.program()? {
            (to, Transport::Tcp) => (to.ip(), carries(Transport::Tcp, Port::Is(to.port()))),
            _ => return None,
        },
    };
    let own = Question { from: None, asked: question.asked.clone() };
    if !matches!(look.answers.to(&own), Some(Answer::Reached { .. } | Answer::Refused)) {
        return None;
    }
    let family = IpFamily::of(to);
    let mut sites = Site::all(look.scene, container, family);
    let (site, (place, source)) =
        sites.find_map(|site| given(look, &site, to, with).map(|given| (site, given)))?;
    let called = container.called();
    let says = format!(
        "{} gives packets of {called} the source address {source}, which this node does not have",
        place.name()
    );
    let finding = Finding::error("source-wrong", place.name(), says)
        .at(place.to_string())
        .seen(format!("{to} answers this node, and did not answer {called}"))
        .hits(container.id.clone())
        .breaks(WayKind::Outside, Some(family))
        .breaks(WayKind::Names, Some(family));
    let finding = Finding { whose: whose::of_place(&place, look.scene), ..finding };
    if is_translated_without(look, &site, to, with, &place) {
        return Some(fix::removal(&place, None).into_iter().fold(finding, Finding::help));
    }
    Some(finding.advise(format!(
        "let the rule give an address that this node has; or let network {} translate what {called} sends (ipMasq), and then remove the rule, without which nothing does now: {}",
        site.attachment.network,
        fix::remove(&place, None)
    )))
}

/// Says whether another rule surely gives a packet a source, if one rule is not there.
fn is_translated_without(
    look: Look<'_>,
    site: &Site<'_>,
    to: IpAddr,
    with: Payload,
    place: &Place,
) -> bool {
    let trip = Trip::Outside { from: site, to, with };
    let outcome = follow_filters(look.scene, &trip, std::slice::from_ref(place));
    matches!(outcome, Outcome::Passes(passed) if passed.source == Truth::Yes)
}

/// Returns the rule that surely gives a packet to an address beyond the node a source that the node
/// does not have, and that source.
fn given(look: Look<'_>, site: &Site<'_>, to: IpAddr, with: Payload) -> Option<(Place, IpAddr)> {
    let [_, _, left] = through(look, site, to, with)?;
    left.source_to.filter(|(_, source)| look.scene.host.owner_of(*source).is_none())
}

/// Takes a container's packet to an address beyond the node through the node's hooks. One that goes
/// elsewhere, or that is surely not forwarded, is not followed.
pub(super) fn through(
    look: Look<'_>,
    site: &Site<'_>,
    to: IpAddr,
    with: Payload,
) -> Option<[WalkOutcome; 3]> {
    let host = &look.scene.host;
    let iif = Some(site.seen_by.name.as_str());
    let entered = site.enter(host, to, with);
    let goes_on = |walked: &WalkOutcome| matches!(walked.end, End::Passes | End::Unknown(_));
    if !goes_on(&entered) || entered.destination.is_some() {
        return None;
    }
    let packet = &entered.packet;
    let routed = look_up(host, Some(packet.source), packet.destination, iif, packet.mark);
    let RouteDecision::By { link, .. } = routed else { return None };
    let oif = Some(link.name.as_str());
    let sent = walk(host, Layer::Ip, Hook::Forward, &packet.between(iif, oif));
    if !goes_on(&sent) {
        return None;
    }
    let left = walk(host, Layer::Ip, Hook::Postrouting, &sent.packet.between(iif, oif));
    Some([entered, sent, left])
}

#[cfg(test)]
mod tests {
    use crate::model::Scene;
    use crate::model::filter::{Family as Kin, Step, Table};

    use super::*;
    use crate::filter::samples::{base, drop, nat, rule, source, table};
    use crate::path::samples::{ip, node, with};
    use crate::question::Answers;

    /// A table that gives a container's packets another source.
    fn other(to: &str, priority: i32) -> Table {
        let IpAddr::V4(address) = ip(to) else { panic!("{to}") };
        let snat = vec![
            Step::Immediate { to: 0, data: address.octets().to_vec() },
            Step::SourceNatTo { address: 0 },
        ];
        let rules = vec![rule(&[source("10.88.0.2"), snat])];
        table(Kin::Ip, "other", vec![nat("post", Hook::Postrouting, priority, rules)])
    }

    fn translates(to: &str) -> Scene {
        with(node(), other(to, 90))
    }

    fn told(scene: &Scene, of_node: Answer) -> Vec<(String, String)> {
        let found = found(scene, of_node);
        found.into_iter().map(|one| (one.object, one.place.unwrap_or_default())).collect()
    }

    fn found(scene: &Scene, of_node: Answer) -> Vec<Finding> {
        let asked = || Probe::Echo { to: ip("192.0.2.1") };
        let of = |from: Option<&str>| Question { from: from.map(str::to_owned), asked: asked() };
        let silent = Answer::Silent { hops: Vec::new() };
        let all = vec![(of(Some("c2")), silent), (of(None), of_node)];
        let answers = Answers { all };
        judge(Look { scene, answers: &answers, only: None, to: None })
    }

    /// Without the rule nothing would translate what the containers send.
    #[test]
    fn a_rule_goes_if_another_one_translates() {
        let reached = || Answer::Reached { after_us: 300 };
        let mut scene = translates("192.0.2.77");
        let found_with = found(&scene, reached()).remove(0);
        assert_eq!(found_with.fix.len(), 1, "{found_with:#?}");
        let ours = &mut scene.host.filter.tables[1];
        ours.chains.iter_mut().for_each(|chain| chain.rules.clear());
        let found_alone = found(&scene, reached()).remove(0);
        assert_eq!(found_alone.fix, [""; 0]);
        let advice = "let the rule give an address that this node has; or let network mynet translate what c2 sends (ipMasq), and then remove the rule, without which nothing does now: ";
        let command = found_with.fix[0].as_str();
        assert_eq!(found_alone.advice, [format!("{advice}{command}")]);
    }

    #[test]
    fn a_source_that_the_node_does_not_have() {
        let reached = || Answer::Reached { after_us: 300 };
        let place = "table ip other, chain post, rule 1: snat to 192.0.2.77".to_owned();
        let expected = [("ip other/post rule 1".to_owned(), place)];
        assert_eq!(told(&translates("192.0.2.77"), reached()), expected);
        // The node has it; no probe is answered; ours translates to the uplink's address.
        assert_eq!(told(&translates("192.0.2.2"), reached()), []);
        let silent = Answer::Silent { hops: Vec::new() };
        assert_eq!(told(&translates("192.0.2.77"), silent), []);
        assert_eq!(told(&node(), reached()), []);
        // A rule says that it is not to go there at all.
        let denies = base("forward", Hook::Forward, 0, vec![rule(&[source("10.88.0.2"), drop()])]);
        let denied = with(translates("192.0.2.77"), table(Kin::Ip, "own", vec![denies]));
        assert_eq!(told(&denied, reached()), []);
    }

    /// Ours has the usual priority.
    #[test]
    fn of_chains_with_one_priority_the_newest_is_asked_first() {
        let reached = || Answer::Reached { after_us: 300 };
        let older = with(node(), other("192.0.2.77", 100));
        assert_eq!(told(&older, reached()), []);
        let mut newer = node();
        newer.host.filter.tables.push(other("192.0.2.77", 100));
        assert_eq!(told(&newer, reached())[0].0, "ip other/post rule 1");
    }
}
