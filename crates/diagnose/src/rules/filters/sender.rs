//! Rules of a container's own packet filter that drop by who sends. A probe is sent by root, in a
//! control group of the node, so it does not show what becomes of a program's packets.

use super::super::{Rule, containers};
use super::fix;
use crate::Look;
use crate::filter::Place;
use crate::finding::Finding;
use crate::model::Container;
use crate::model::filter::{Hook, Meta, Rule as FilterRule, Step, Table, Verdict};

pub(in crate::rules) const RULE: Rule = Rule {
    judges: "rules about the senders of packets",
    ids: &[crate::rules::BY_SENDER],
    judge,
    ..Rule::NONE
};

/// linux include/uapi/linux/netfilter/nf_tables.h: `NFT_META_SKUID`, `NFT_META_SKGID` and
/// `NFT_META_CGROUP`.
const SENDERS: [u32; 3] = [10, 11, 23];

/// The expression that compares control groups of version 2 (`socket cgroupv2`), and the matches of
/// iptables (`man 8 iptables-extensions`).
const BY_NAME: [&str; 3] = ["socket", "owner", "cgroup"];

/// Where packets of programs pass that send. A chain without a hook may be asked from there.
const HOOKS: [Hook; 2] = [Hook::Output, Hook::Postrouting];

fn judge(look: Look<'_>) -> Vec<Finding> {
    containers(look).flat_map(of_container).collect()
}

fn of_container(container: &Container) -> Vec<Finding> {
    let tables = container.inside.iter().flat_map(|inside| &inside.filter.tables);
    let places = tables.filter(|table| !table.dormant).flat_map(dropping);
    places.map(|place| told(container, &place)).collect()
}

/// Returns the rules of a table that drop what some senders send.
fn dropping(table: &Table) -> Vec<Place> {
    let mut found = Vec::new();
    for chain in &table.chains {
        let hook = chain.base.as_ref().map_or(Hook::Output, |base| base.hook);
        if !HOOKS.contains(&hook) {
            continue;
        }
        for (index, rule) in chain.rules.iter().enumerate() {
            if let Some(says) = ends(rule).filter(|_| asks_who_sends(rule)) {
                let names = [chain.name.as_str(), chain.name.as_str()];
                found.push(Place::of_rule(table, hook, names, index, rule).saying(says));
            }
        }
    }
    found
}

fn ends(rule: &FilterRule) -> Option<&'static str> {
    rule.steps.iter().find_map(|step| match step {
        Step::Verdict(Verdict::Drop) => Some("drop"),
        Step::Reject { .. } => Some("reject"),
        _ => None,
    })
}

fn asks_who_sends(rule: &FilterRule) -> bool {
    rule.steps.iter().any(|step| match step {
        Step::Meta { key: Meta::Other(number), .. } => SENDERS.contains(number),
        Step::Unknown { name } => BY_NAME.contains(&name.as_str()),
        _ => false,
    })
}

fn told(container: &Container, place: &Place) -> Finding {
    let (called, name) = (container.called(), place.name());
    let handle = place.rule.map(|(_, handle)| handle).unwrap_or_default();
    let says = format!(
        "{name} of {called} drops packets by the user or the control group of the program that sends them"
    );
    let object = format!("{}: {name}", container.id);
    Finding::warning(crate::rules::BY_SENDER, object, says)
        .at(format!("{place} (handle {handle})"))
        .of(format!("{}, or who set it up", container.id))
        .seen("probes are sent by root, in a control group of the node, and may fare otherwise")
        .hits(container.id.clone())
        .advise(format!(
            "if a program there has no network, and that is not meant, remove the rule: {}",
            fix::remove(place, Some(container.netns.as_str()))
        ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::samples::{accept, base, chain, drop, reject, rule, table, unknown};
    use crate::model::Scene;
    use crate::model::filter::{Chain, Family as Kin};
    use crate::path::samples::node;
    use crate::question::Answers;

    fn user() -> Vec<Step> {
        vec![Step::Meta { key: Meta::Other(10), to: 0 }]
    }

    fn inside(chains: Vec<Chain>) -> Scene {
        let mut scene = node();
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.filter.tables = vec![table(Kin::Inet, "own", chains)];
        scene
    }

    fn told(scene: &Scene) -> Vec<String> {
        let answers = Answers::default();
        let found = RULE.findings(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|one| one.object).collect()
    }

    #[test]
    fn a_rule_that_drops_by_who_sends() {
        let out =
            |parts: &[Vec<Step>]| inside(vec![base("out", Hook::Output, 0, vec![rule(parts)])]);
        assert_eq!(told(&out(&[user(), drop()])), ["c2: inet own/out rule 1"]);
        assert_eq!(told(&out(&[unknown("socket"), reject()])), ["c2: inet own/out rule 1"]);
        assert_eq!(told(&out(&[unknown("owner"), drop()])), ["c2: inet own/out rule 1"]);
        assert_eq!(told(&out(&[user(), accept()])), [""; 0]);
        assert_eq!(told(&out(&[unknown("string"), drop()])), [""; 0]);
        let by = vec![rule(&[user(), drop()])];
        assert_eq!(told(&inside(vec![chain("by", by.clone())])), ["c2: inet own/by rule 1"]);
        // No program of the container sends what comes in.
        assert_eq!(told(&inside(vec![base("in", Hook::Input, 0, by)])), [""; 0]);
    }

    #[test]
    fn it_is_a_note_with_its_handle() {
        let scene = inside(vec![base("out", Hook::Output, 0, vec![rule(&[user(), drop()])])]);
        let answers = Answers::default();
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        let found = crate::diagnose(look, &[]);
        let [note] = found.notes.as_slice() else { panic!("{found:#?}") };
        let place = "table inet own, chain out, rule 1: drop (handle 7)";
        assert_eq!((note.id, note.place.as_deref()), (crate::rules::BY_SENDER, Some(place)));
        assert!(note.advice[0].ends_with(" nft delete rule inet own out handle 7"), "{note:#?}");
        let is_it = |finding: &Finding| finding.id == crate::rules::BY_SENDER;
        assert!(!found.causes.iter().any(|cause| is_it(&cause.finding)), "{found:#?}");
    }
}
