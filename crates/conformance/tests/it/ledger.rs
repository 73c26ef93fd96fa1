//! Every MUST and SHOULD has a case or a reason, and the documentation says so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use conformance::ledger::{WITHOUT_CASE, cases_of, list_of_rules_without_case, reason_of};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Identifier, level and section of each rule.
fn rules() -> Vec<(String, String, String)> {
    let text = std::fs::read_to_string(docs().join("spec/cni-1.1.0.toml")).unwrap();
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(&format!("{key} = \"")));
        line.unwrap().trim_end_matches('"').to_owned()
    };
    let blocks = text.split("[[rule]]").skip(1);
    blocks.map(|b| (value(b, "id"), value(b, "level"), value(b, "section"))).collect()
}

#[test]
fn every_rule_has_a_case_or_a_reason() {
    let rules = rules();
    assert!(100 < rules.len());
    for (id, level, _) in &rules {
        let (cases, reason) = (cases_of(id).count(), reason_of(id));
        assert!(0 < cases || reason.is_some() || level == "MAY", "{id} has neither");
        assert!(cases == 0 || reason.is_none(), "{id} has a case and a reason");
    }
    let known = |id: &str| rules.iter().any(|(rule, _, _)| rule == id);
    for case in conformance::cases() {
        assert!(case.rules.iter().all(|id| known(id)), "{} names no rule", case.id);
    }
    assert!(WITHOUT_CASE.iter().flat_map(|(_, ids)| *ids).all(|id| known(id)));
}

/// The list of `docs/conformance.md` is made from the code.
#[test]
fn the_documentation_lists_the_rules_without_a_case() {
    let path = docs().join("conformance.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let marker = "<!-- made by the test conformance::ledger; UPDATE_EXPECT=1 writes it anew -->\n";
    let (before, _) = text.split_once(marker).expect("the page has its marker");
    let made = format!(
        "{before}{marker}\n## Rules of CNI 1.1.0 without a case\n\n{}",
        list_of_rules_without_case()
    );
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, made).unwrap();
    } else {
        assert!(made == text, "docs/conformance.md is not what the code says (UPDATE_EXPECT=1)");
    }
}

/// A list that a test compares a subject's failures with: each as `plugin/case` after an optional
/// `fault: `, with the reason.
fn list(file: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once(" # "));
    pairs.map(|(what, why)| (what.trim().to_owned(), why.trim().to_owned())).collect()
}

/// The suite's word alone is not enough: `docs/evidence/conformance-by-hand.md` has each of the
/// reference's failures below its reason, with the commands and their output, and no others.
#[test]
fn each_of_the_references_failures_was_looked_at_by_hand() {
    let path = docs().join("evidence/conformance-by-hand.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let mut known = list("go.txt");
    let mut looked_at = Vec::new();
    for section in page.split("\n## ").skip(1) {
        let (why, rest) = section.split_once('\n').unwrap();
        let mut parts = rest.trim_start().split("\n```console\n");
        let cases = parts.next().unwrap().trim();
        assert!(parts.clone().next().is_some(), "{why}: nothing was typed");
        assert!(parts.all(|typed| typed.starts_with("# ")), "{why}: nothing was typed");
        let cases = cases.split(", ").map(|case| case.trim_matches('`').to_owned());
        looked_at.extend(cases.map(|case| (case, why.to_owned())));
    }
    known.sort();
    looked_at.sort();
    assert_eq!(looked_at, known, "{}", path.display());
}

/// How many checks each plugin got and passed: plugins, ours and the reference's, from `asked.txt`.
fn table_of_counts() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/asked.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let mut counts: BTreeMap<&str, [&str; 2]> = BTreeMap::new();
    for line in text.lines() {
        let (who, count) = line.split_once(": ").unwrap();
        let (subject, plugin) = who.split_once(' ').unwrap();
        counts.entry(plugin).or_default()[usize::from(subject == "go")] = count;
    }
    let rows =
        counts.iter().map(|(plugin, [ours, go])| format!("| `{plugin}` | {ours} | {go} |\n"));
    format!("| plugin | ours | the reference's |\n|---|---|---|\n{}", rows.collect::<String>())
}

/// A plugin's list of failures is as long as its counts say. Other tests compare the lists with the
/// plugins themselves, those of the reference only with `--full`.
#[test]
fn the_counts_are_those_of_the_lists() {
    let text = include_str!("../asked.txt");
    for (subject, file) in [("ours", "ours.txt"), ("go", "go.txt")] {
        let known = list(file);
        for line in text.lines() {
            let (who, counts) = line.split_once(": ").unwrap();
            let Some(plugin) = who.strip_prefix(&format!("{subject} ")) else { continue };
            let failed: u32 = counts
                .split(", ")
                .map(|count| {
                    let words: Vec<&str> = count.split(' ').collect();
                    words[3].parse::<u32>().unwrap() - words[1].parse::<u32>().unwrap()
                })
                .sum();
            let of = format!("{plugin}/");
            let named = known.iter().filter(|(what, _)| what.starts_with(&of)).count();
            assert_eq!(usize::try_from(failed).unwrap(), named, "{who}");
        }
    }
}

/// `docs/evidence/conformance-report.md` is made from the lists that the other tests compare the
/// three subjects with.
#[test]
fn the_report_says_what_passes_and_why_ours_fail() {
    let path = docs().join("evidence/conformance-report.md");
    let [ours, broken] = ["ours.txt", "broken.txt"].map(list);
    let faults: BTreeSet<&str> =
        broken.iter().filter_map(|(what, _)| what.split(':').next()).collect();
    let mut page = format!(
        "# What the acceptance suite finds\n\n\
        Made from the lists that tests compare the subjects with (`crates/conformance/tests/*.txt`): our\n\
        plugins, the reference's (Debian's `containernetworking-plugins` 1.1.1), and our `bridge` with one\n\
        of {} faults switched on, each of which the suite notices.\n\
        [conformance-by-hand.md](conformance-by-hand.md) lists what the reference's plugins fail, and why.\n\n\
        ## How much was tested and passed\n\n\
        On a machine whose kernel has what a plugin needs. Our `dummy`, `ipvlan`, `vlan` and `vrf` are tested\n\
        in the virtual machine, where nothing is skipped. They pass everything except what\n\
        [conformance.md](../conformance.md) says of `vrf`.\n\n\
        {}\n\
        ## What ours fail, and why\n\n",
        faults.len(),
        table_of_counts()
    );
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for (what, why) in &ours {
        match reasons.iter_mut().find(|(known, _)| known == why) {
            Some((_, all)) => all.push(what),
            None => reasons.push((why, vec![what])),
        }
    }
    for (why, all) in reasons {
        page += &format!("- {why} `{}`\n", all.join("`, `"));
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, page).unwrap();
    } else {
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == page, "{} is not what the lists say (UPDATE_EXPECT=1)", path.display());
    }
}
