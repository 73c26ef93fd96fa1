//! Every MUST and SHOULD has a case or a reason, and the documentation says so.

use std::path::{Path, PathBuf};

use conformance::ledger::{WITHOUT_CASE, cases_of, reason_of, table_of_cases, table_of_rules};

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

/// The tables of `docs/conformance.md` are made from the code.
#[test]
fn the_documentation_lists_every_case() {
    let path = docs().join("conformance.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let marker = "<!-- made by the test conformance::ledger; UPDATE_EXPECT=1 writes it anew -->\n";
    let (before, _) = text.split_once(marker).expect("the page has its marker");
    let made = format!(
        "{before}{marker}\n## Every case\n\n{}\n## Every rule of CNI 1.1.0\n\n{}",
        table_of_cases(),
        table_of_rules(&rules())
    );
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, made).unwrap();
    } else {
        assert!(made == text, "docs/conformance.md is not what the code says (UPDATE_EXPECT=1)");
    }
}
