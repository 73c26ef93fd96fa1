//! The page of findings describes each finding that a rule may return.

use std::collections::BTreeSet;
use std::path::Path;

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/findings.md");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_page_has_each_finding_once() {
    let page = page();
    let told: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`')).collect();
    let ids: Vec<&str> = diagnose::RULES.iter().flat_map(|rule| rule.ids).copied().collect();
    let sorted = |ids: &[&str]| -> BTreeSet<String> {
        let different: BTreeSet<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        assert_eq!(different.len(), ids.len(), "one is there twice: {ids:?}");
        different
    };
    assert_eq!(sorted(&told), sorted(&ids));
}

/// The page says what a finding means, how it arises, and what to do.
#[test]
fn each_paragraph_says_how_it_arises_and_what_to_do() {
    let page = page();
    for part in page.split("\n### `").skip(1) {
        let (id, text) = part.split_once('`').unwrap();
        let text: Vec<&str> = text.split_whitespace().collect();
        let text = text.join(" ");
        for words in ["*How it arises:*", "*Fix:*"] {
            assert!(text.contains(words), "{id} does not have {words}");
        }
    }
}
