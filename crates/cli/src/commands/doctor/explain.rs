//! What the page of findings says of one: a node may have no other copy of it.

use serde::Serialize;

use crate::shell::Report;

const PAGE: &str = include_str!("../../../../../docs/findings.md");

/// The section of a finding.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Section {
    id: String,
    text: &'static str,
}

impl Section {
    /// Finds the section of an ID.
    pub(super) fn of(id: &str) -> Option<Self> {
        let (_, rest) = PAGE.split_once(&format!("\n### `{id}`\n"))?;
        let end = rest.find("\n#").unwrap_or(rest.len());
        Some(Self { id: id.to_owned(), text: rest[..end].trim() })
    }
}

impl Report for Section {
    fn text(&self) -> String {
        format!("{}\n\n{}\n", self.id, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_has_a_section() {
        for id in diagnose::RULES.iter().flat_map(|rule| rule.ids) {
            let section = Section::of(id).unwrap_or_else(|| panic!("{id} has none"));
            assert!(section.text.contains("*Fix:*") && !section.text.contains("###"), "{id}");
        }
        assert_eq!(Section::of("no-finding"), None);
        assert_eq!(Section::of(""), None);
    }
}
