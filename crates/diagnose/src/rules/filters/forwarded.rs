//! Rules that send a container's frames out by another link (`fwd`), so that they do not get where
//! they should.
//!
//! What is sent may come back in a way that is not seen here, so this is told only of a container
//! that got no answer at all.

use net::IpFamily;

use super::super::queues::ALL;
use super::super::{containers, unanswered};
use super::fix;
use super::position::Ending;
use crate::Look;
use crate::filter::{AddedRule, Change, End, Layer, Packet, Place, walk_changed};
use crate::finding::Finding;
use crate::model::Namespace;
use crate::model::filter::{Chain, Hook, Rule, Step, Table};
use crate::path::Site;
use crate::whose;

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let chains = look.scene.host.filter.tables.iter().flat_map(|table| &table.chains);
    if !chains.flat_map(|chain| &chain.rules).any(sends_on_all) {
        return found;
    }
    for family in IpFamily::ALL {
        for container in containers(look) {
            let Some((to, with)) = unanswered(look, container, family) else { continue };
            for site in Site::all(look.scene, container, family) {
                let packet = Packet::first(site.address, to, with);
                let packet = Packet { macs: site.macs_out(), ..packet };
                found.extend(sent_on(look, &site, &packet));
            }
        }
    }
    found
}

/// Tells the rule at the node's end of a container's link that sends a packet of it elsewhere.
fn sent_on(look: Look<'_>, site: &Site<'_>, packet: &Packet) -> Option<Finding> {
    let host = &look.scene.host;
    let packet = packet.between(Some(&site.host_end.name), None);
    let walked = |added: &[AddedRule]| {
        let change = Change { added, ..Change::default() };
        walk_changed(host, None, Layer::Device, Hook::Ingress, &packet, change).end
    };
    let End::Unknown(place) = walked(&[]) else { return None };
    if !forwards(host, &place) {
        return None;
    }
    let place = place.saying("fwd");
    let (called, family) = (site.container.called(), site.family());
    let says = format!(
        "{} sends what {called} sends out by another link, and it does not get where it should",
        place.name()
    );
    let finding = Finding::error("bridge-dropped", place.name(), says)
        .at(place.to_string())
        .seen(format!("nothing that {called} asked by {family} was answered"))
        .hits(site.container.id.clone());
    let finding = ALL.iter().fold(finding, |one, kind| one.breaks(*kind, Some(family)));
    let finding = Finding { whose: whose::of_place(&place, look.scene), ..finding };
    let ending = |added: &[AddedRule]| Ending::of_walk(walked(added), &place);
    Some(fix::sent(look.scene, site, &place, &ending).into_iter().fold(finding, Finding::help))
}

/// Says whether a rule sends frames out by another link, of a chain whose link is known.
fn forwards(host: &Namespace, place: &Place) -> bool {
    let Some((_, handle)) = place.rule else { return false };
    let is_table =
        |table: &&Table| table.name == place.table && table.family.as_str() == place.family;
    let is_base = |chain: &Chain| {
        chain.name == place.base && chain.base.as_ref().is_some_and(|base| base.device.is_some())
    };
    host.filter.tables.iter().filter(is_table).any(|table| {
        let chains = table.chains.iter().filter(|chain| chain.name == place.chain);
        let mut rules = chains.flat_map(|chain| &chain.rules).filter(|one| one.handle == handle);
        table.chains.iter().any(is_base) && rules.any(sends_on_all)
    })
}

/// Says whether a rule sends out by another link all frames that it takes. Of a rate, or of a
/// condition that is not known, that is not known either.
fn sends_on_all(rule: &Rule) -> bool {
    let is_forward = |step: &Step| matches!(step, Step::Unknown { name } if name == "fwd");
    let is_open = |step: &Step| matches!(step, Step::Unknown { .. } | Step::Limit { .. });
    let place = rule.steps.iter().position(is_forward);
    place.is_some_and(|place| !rule.steps[..place].iter().any(is_open))
}

#[cfg(test)]
mod tests {
    use crate::model::Scene;
    use crate::model::filter::Family as Kin;

    use super::*;
    use crate::filter::samples::{base, drop, rule, table, unknown};
    use crate::path::samples::{ip, node, with};
    use crate::question::{Answer, Answers, Probe, Question};

    fn at(link: &str, parts: &[Vec<Step>]) -> Scene {
        let mut chain = base("in", Hook::Ingress, 0, vec![rule(parts)]);
        chain.base.as_mut().unwrap().device = Some(link.to_owned());
        with(node(), table(Kin::Netdev, "own", vec![chain]))
    }

    fn told(scene: &Scene, all: Vec<(Probe, Answer)>) -> Vec<String> {
        let of = |(asked, answer)| (Question { from: Some("c2".to_owned()), asked }, answer);
        let answers = Answers { all: all.into_iter().map(of).collect() };
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|one| one.fix.join("; ")).collect()
    }

    #[test]
    fn a_rule_that_sends_frames_elsewhere_is_told_of_who_gets_no_answer() {
        let name = || Probe::Name { server: ip("198.51.100.53") };
        let echo = || Probe::Echo { to: ip("10.88.0.1") };
        let silent = || Answer::Silent { hops: Vec::new() };
        let reached = || Answer::Reached { after_us: 1 };
        let all = at("veth2", &[unknown("fwd")]);
        let fix = "nft insert rule netdev own in handle 7 arp saddr ip 10.88.0.2 accept; \
                   nft insert rule netdev own in handle 7 ip saddr 10.88.0.2 accept";
        assert_eq!(told(&all, vec![(name(), silent()), (echo(), silent())]), [fix]);
        // It may be brought back.
        assert_eq!(told(&all, vec![(name(), silent()), (echo(), reached())]), [""; 0]);
        assert_eq!(told(&all, Vec::new()), [""; 0]);
        // Many firewalls drop echo requests alone.
        assert_eq!(told(&all, vec![(echo(), silent())]), [""; 0]);
        for scene in [at("veth3", &[unknown("fwd")]), at("veth2", &[drop()]), node()] {
            assert_eq!(told(&scene, vec![(name(), silent())]), [""; 0]);
        }
        // Only some are sent elsewhere.
        let some = [vec![Step::Limit { over: true, says: None }], unknown("fwd")];
        let perhaps = [unknown("other"), unknown("fwd")];
        for parts in [some, perhaps, [unknown("other"), drop()]] {
            assert_eq!(told(&at("veth2", &parts), vec![(name(), silent())]), [""; 0]);
        }
    }
}
