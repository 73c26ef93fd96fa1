//! The release notes: what the CHANGELOG says of one version.

/// The CHANGELOG does not say what a version brings.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ChangelogError {
    #[error("CHANGELOG.md has no section \"## {version}\"")]
    NoSection { version: String },
    #[error("the section \"## {version}\" of CHANGELOG.md is empty")]
    Empty { version: String },
}

/// Returns the text of a version's section, whose title is `## VERSION`, perhaps with a day behind
/// it. `Unreleased` is a version too.
pub(crate) fn section<'c>(changelog: &'c str, version: &str) -> Result<&'c str, ChangelogError> {
    let is_title = |line: &str| {
        let title = line.strip_prefix("## ").map(|title| title.trim_matches(['[', ']']));
        title.is_some_and(|title| title.split([' ', ']']).next() == Some(version))
    };
    let mut start = None;
    let mut at = 0;
    let mut end = changelog.len();
    for line in changelog.split_inclusive('\n') {
        if start.is_some() && line.starts_with("## ") {
            end = at;
            break;
        }
        at += line.len();
        if start.is_none() && is_title(line.trim_end()) {
            start = Some(at);
        }
    }
    let version = || version.to_owned();
    let start = start.ok_or_else(|| ChangelogError::NoSection { version: version() })?;
    let text = changelog[start..end].trim();
    if text.is_empty() {
        return Err(ChangelogError::Empty { version: version() });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{ChangelogError, section};

    const TEXT: &str = "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-12-01\n\n### Added\n\n- More.\n\n\
                        ## [0.1.0]\n\n- All.\n";

    #[test]
    fn a_versions_section_is_cut_out() {
        assert_eq!(section(TEXT, "0.2.0"), Ok("### Added\n\n- More."));
        assert_eq!(section(TEXT, "0.1.0"), Ok("- All."));
    }

    #[test]
    fn a_version_that_is_not_there_is_an_error() {
        let version = || "0.2".to_owned();
        assert_eq!(section(TEXT, "0.2"), Err(ChangelogError::NoSection { version: version() }));
        let empty = ChangelogError::Empty { version: "Unreleased".to_owned() };
        assert_eq!(section(TEXT, "Unreleased"), Err(empty));
    }
}
