//! What could not be read, and what could not be judged because of that: unknown is not fine.

use std::collections::BTreeSet;

use super::{Rule, containers};
use crate::Look;
use crate::finding::Finding;
use crate::model::filter::{Step, Verdict};
use crate::model::{Namespace, Part};

/// How many of the sets and tables that were not read whole are named.
const SHOWN: usize = 3;

/// `not-judged` is what a rule says whose needs have holes.
pub(super) const RULE: Rule = Rule {
    judges: "what was read",
    ids: &["not-seen", "not-judged", UNJUDGED],
    judge,
    ..Rule::NONE
};

/// The finding of filters that cannot be judged. Many sound nodes have some.
pub(crate) const UNJUDGED: &str = "filter-unknown";

/// Says that a rule has not judged, since parts of the node could not be read.
pub(super) fn not_judged(rule: &Rule, missing: Vec<Part>) -> Finding {
    let says = format!("{} could not be judged", rule.judges);
    let parts = missing.into_iter().map(|part| part.as_str().to_owned());
    Finding { seen: parts.collect(), ..Finding::unknown("not-judged", rule.judges, says) }
}

/// Says of which containers a rule has judged nothing. `all`: how many there are.
pub(super) fn not_judged_of(rule: &Rule, all: usize, blind: BTreeSet<String>) -> Finding {
    let (judges, count) = (rule.judges, blind.len());
    let says = format!("{judges} could not be judged for {count} of {all} containers");
    let finding = Finding::unknown("not-judged", format!("{judges} of containers"), says);
    Finding { hits: blind.into_iter().collect(), ..finding }
}

/// Says whether a rule has not judged because of a hole that is told.
pub(crate) fn is_because_of(judged: &Finding, hole: &Finding) -> bool {
    judged.id == "not-judged"
        && hole.id == "not-seen"
        && match hole.hits.is_empty() {
            true => judged.hits.is_empty() && is_of_part(judged, &hole.object),
            false => hole.hits.iter().any(|id| judged.hits.contains(id)),
        }
}

fn is_of_part(judged: &Finding, part: &str) -> bool {
    part == Part::Namespace.as_str() || judged.seen.iter().any(|missing| missing == part)
}

/// Conditions of iptables that look into packets or run a program, as nft and iptables-save name them.
const OF_CONTENT: [&str; 3] = ["bpf", "string", "u32"];

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = holes(look);
    found.extend(left_out("this node", &look.scene.host));
    found.extend(of_content("this node", "this node", &look.scene.host));
    for container in containers(look) {
        let inside = container.inside.as_ref();
        let content =
            inside.and_then(|inside| of_content(&container.id, container.called(), inside));
        found.extend(content.map(|finding| finding.hits(container.id.clone())));
        let left_out = inside.and_then(|inside| left_out(container.called(), inside));
        found.extend(left_out.map(|finding| {
            let object = format!("a part of the packet filter of {}", container.id);
            Finding { object, ..finding }.hits(container.id.clone())
        }));
    }
    found
}

/// Rules that drop or refuse packets by their content: which ones, is not known here. A probe may not
/// have what others have.
fn of_content(id: &str, whose: &str, namespace: &Namespace) -> Option<Finding> {
    let is_of = |name: &str| OF_CONTENT.iter().any(|one| name.split(' ').any(|word| word == *one));
    let ends = |step: &Step| matches!(step, Step::Reject { .. } | Step::Verdict(Verdict::Drop));
    let mut seen = Vec::new();
    for table in &namespace.filter.tables {
        for chain in &table.chains {
            for (number, rule) in chain.rules.iter().enumerate() {
                let mut names = rule.steps.iter().filter_map(|step| match step {
                    Step::Unknown { name } if is_of(name) => Some(name),
                    _ => None,
                });
                if let Some(name) = names.next().filter(|_| rule.steps.iter().any(ends)) {
                    let (family, table, chain) = (table.family.as_str(), &table.name, &chain.name);
                    seen.push(format!("{family} {table}/{chain} rule {}: {name}", number + 1));
                }
            }
        }
    }
    for table in &namespace.filter.legacy {
        let rules = table.rules.iter().filter(|rule| {
            let has = |words: String| rule.contains(&words);
            OF_CONTENT.iter().any(|name| has(format!(" -m {name} ")))
                && ["DROP", "REJECT"].iter().any(|target| has(format!(" -j {target}")))
        });
        seen.extend(rules.map(|rule| format!("iptables {}: {rule}", table.name)));
    }
    if seen.is_empty() {
        return None;
    }
    let more = seen.len().saturating_sub(SHOWN);
    seen.truncate(SHOWN);
    seen.extend((more != 0).then(|| format!("and {more} more")));
    let says = format!("{whose} has rules that drop packets by their content, which is not judged");
    let object = format!("content of packets: {id}");
    let finding = Finding::unknown(UNJUDGED, object, says).advise(
        "look at whether they drop what is lost: the counters of iptables -vnL or nft list ruleset",
    );
    Some(Finding { seen, ..finding })
}

/// Says that rules or elements are so many that not all were read.
fn left_out(of: &str, namespace: &Namespace) -> Option<Finding> {
    let lines = &namespace.filter.left_out;
    if lines.is_empty() {
        return None;
    }
    let says = format!("a part of the packet filter of {of} is too large, and was not read");
    let mut seen: Vec<String> = lines.iter().take(SHOWN).cloned().collect();
    if SHOWN < lines.len() {
        seen.push(format!("and {} more", lines.len() - SHOWN));
    }
    let object = "a part of the packet filter";
    Some(Finding { seen, ..Finding::unknown("not-seen", object, says) })
}

fn holes(look: Look<'_>) -> Vec<Finding> {
    let holes = look.scene.holes.iter().filter(|hole| {
        let container = hole.container.as_deref();
        look.only.is_none_or(|only| container.is_none_or(|id| id == only))
    });
    holes
        .map(|hole| {
            let part = hole.part.as_str();
            let called = |id| look.scene.container(id).map_or(id, crate::model::Container::called);
            let (id, object, says) = match (hole.part, hole.container.as_deref()) {
                (Part::Unjudged, id) => {
                    let whose = id.map_or("this node", called);
                    let says = format!("{whose} has filters whose effect is not known here");
                    (UNJUDGED, id.unwrap_or(whose).to_owned(), says)
                }
                (_, None) => {
                    ("not-seen", part.to_owned(), format!("{part} of this node could not be read"))
                }
                (_, Some(id)) => {
                    let says = format!("{part} of {} could not be read", called(id));
                    ("not-seen", format!("{part} of {id}"), says)
                }
            };
            let finding = Finding::unknown(id, object, says).seen(hole.reason.clone());
            let finding = match remedy(hole.part, &hole.reason) {
                Some(remedy) => finding.advise(remedy),
                None => finding,
            };
            match &hole.container {
                Some(id) => finding.hits(id.clone()),
                None => finding,
            }
        })
        .collect()
}

fn remedy(part: Part, reason: &str) -> Option<&'static str> {
    if reason.contains("not permitted") || reason.contains("ermission denied") {
        return Some("run netwright doctor as root");
    }
    match part {
        Part::LegacyIptables => Some("install iptables, whose iptables-legacy-save shows them"),
        Part::OtherFilters => {
            Some("look at them with tc filter show, bridge vlan show, nft list hooks")
        }
        Part::Unjudged => {
            Some("look at them with ebtables-legacy -L, arptables-legacy -L, bpftool net")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Container, Hole, Scene};
    use crate::question::Answers;

    #[test]
    fn what_was_not_judged_is_explained_by_what_was_not_read() {
        let judges = Rule { judges: "routes", ..RULE };
        let of_node = not_judged(&judges, vec![Part::Routes, Part::Links]);
        let of_some = not_judged_of(&judges, 2, BTreeSet::from(["c1".to_owned()]));
        assert_eq!(of_some.says, "routes could not be judged for 1 of 2 containers");
        let hole = |object: &str| Finding::unknown("not-seen", object, "not read");
        for object in ["routes", "links and addresses", "the network namespace"] {
            assert!(is_because_of(&of_node, &hole(object)), "{object}");
        }
        assert!(!is_because_of(&of_node, &hole("kernel parameters")));
        assert!(!is_because_of(&of_some, &hole("routes")));
        assert!(is_because_of(&of_some, &hole("routes of c1").hits("c1")));
        assert!(!is_because_of(&of_some, &hole("routes of c2").hits("c2")));
        assert!(!is_because_of(&of_node, &hole("routes of c1").hits("c1")));
    }

    #[test]
    fn a_hole_is_told_with_a_remedy() {
        let hole = Hole {
            part: Part::Nftables,
            container: None,
            reason: "Operation not permitted (os error 1)".to_owned(),
        };
        let scene = Scene { holes: vec![hole], ..Scene::default() };
        let answers = Answers::default();
        let found = judge(Look { scene: &scene, answers: &answers, only: None, to: None });
        assert_eq!(found[0].says, "the packet filter of this node could not be read");
        assert_eq!(found[0].advice, ["run netwright doctor as root"]);
    }

    /// A filter is there, and was read as far as that goes.
    #[test]
    fn a_filter_that_nobody_judges_is_no_hole_of_the_others() {
        let hole = |container: Option<&str>| Hole {
            part: Part::Unjudged,
            container: container.map(str::to_owned),
            reason: "a program of BPF (XDP) sees the packets of up0 first".to_owned(),
        };
        let holes = vec![hole(None), hole(Some("c1"))];
        let scene = Scene { holes, ..Scene::default() };
        let answers = Answers::default();
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        let told: Vec<(&str, String)> =
            judge(look).into_iter().map(|one| (one.id, one.says)).collect();
        let says =
            |whose: &str| (UNJUDGED, format!("{whose} has filters whose effect is not known here"));
        assert_eq!(told, [says("this node"), says("c1")]);
        // No rule goes without judging.
        let blind = crate::RULES.iter().flat_map(|rule| rule.findings(look));
        assert_eq!(blind.filter(|one| one.id != UNJUDGED).count(), 0);
        assert!(judge(look)[0].advice[0].contains("bpftool net"));
    }

    /// No probe shows that it does no harm.
    #[test]
    fn a_filter_that_nobody_judges_counts_if_nothing_was_tried() {
        use crate::question::{Answer, Probe, Question};
        let reason = "a program of BPF (XDP) sees the packets of up0 first".to_owned();
        let mut scene = crate::path::samples::node();
        scene.holes = vec![Hole { part: Part::Unjudged, container: None, reason }];
        let told = |answers: &Answers| {
            let found = crate::diagnose(Look { scene: &scene, answers, only: None, to: None }, &[]);
            let causes = found.causes.iter().filter(|one| one.finding.id == UNJUDGED).count();
            (causes, found.notes.iter().filter(|one| one.id == UNJUDGED).count())
        };
        assert_eq!(told(&Answers::default()), (1, 0));
        let asked = Probe::Echo { to: crate::path::samples::ip("10.88.0.1") };
        let question = Question { from: Some("c2".to_owned()), asked };
        let all = vec![(question, Answer::Reached { after_us: 300 })];
        assert_eq!(told(&Answers { all }), (0, 1));
    }

    /// A probe has not the content for which they look.
    #[test]
    fn rules_that_look_into_packets_are_not_judged() {
        use crate::filter::samples::{base, drop, rule, table, unknown};
        use crate::model::filter::{Family, Hook, LegacyTable};
        let lines = |scene: &Scene| {
            let answers = Answers::default();
            let found = judge(Look { scene, answers: &answers, only: None, to: None });
            let line = |one: Finding| format!("{} {}", one.id, one.seen.join("; "));
            found.into_iter().map(line).collect::<Vec<_>>()
        };
        let with = |steps: Vec<Step>| {
            let chain = base("FORWARD", Hook::Forward, 0, vec![rule(&[steps])]);
            let mut scene = Scene::default();
            scene.host.filter.tables = vec![table(Family::Ip, "filter", vec![chain])];
            scene
        };
        let drops = |name: &str| with([unknown(name), drop()].concat());
        assert_eq!(lines(&drops("string")), ["filter-unknown ip filter/FORWARD rule 1: string"]);
        // What only counts or marks, and what matches moments or users.
        assert_eq!(lines(&with(unknown("string"))), [""; 0]);
        assert_eq!(lines(&drops("statistic")), [""; 0]);
        let mut legacy = Scene::default();
        let rule = "-A FORWARD -p tcp -m string --string evil --algo bm -j DROP".to_owned();
        legacy.host.filter.legacy = vec![LegacyTable {
            ipv4: true,
            name: "filter".to_owned(),
            policies: Vec::new(),
            chains: Vec::new(),
            rules: vec![rule.clone()],
        }];
        assert_eq!(lines(&legacy), [format!("filter-unknown iptables filter: {rule}")]);
    }

    #[test]
    fn what_was_too_large_is_told() {
        let lines = |count: usize| (0..count).map(|n| format!("set many{n}")).collect();
        let mut scene = Scene::default();
        scene.host.filter.left_out = lines(5);
        let mut inside = Namespace::default();
        inside.filter.left_out = lines(1);
        let id = "c1".to_owned();
        scene.containers = vec![Container { id, inside: Some(inside), ..Container::default() }];
        let answers = Answers::default();
        let found = judge(Look { scene: &scene, answers: &answers, only: None, to: None });
        let told: Vec<(&str, &str)> = found
            .iter()
            .map(|one| (one.object.as_str(), one.seen.last().unwrap().as_str()))
            .collect();
        assert_eq!(
            told,
            [
                ("a part of the packet filter", "and 2 more"),
                ("a part of the packet filter of c1", "set many0"),
            ]
        );
        assert_eq!(found[1].hits, ["c1"]);
    }
}
