//! Tests that report that they cannot run here, and which of them we accept.

use std::collections::BTreeSet;
use std::fs;

use crate::run::root;

/// A test printed `SKIP name: reason`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Skip {
    pub(crate) name: String,
    pub(crate) reason: String,
}

/// The file that lists what may be skipped: one `NAME: REASON` per line, `*` for anything.
const ALLOWED: &str = ".ci/allowed-skips.txt";

/// Finds the skips in a test run's output.
pub(crate) fn find<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<Skip> {
    let found = lines.into_iter().filter_map(|line| {
        // Text may precede it: libtest prints `test name ... ` without an end of line when output
        // is not captured.
        let rest = line.split_once("SKIP ")?.1;
        let (name, reason) = rest.split_once(": ")?;
        let named = !name.is_empty() && !name.contains(char::is_whitespace);
        named.then(|| Skip { name: name.to_owned(), reason: reason.trim().to_owned() })
    });
    found.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the skips that no line of the list allows.
pub(crate) fn disallowed(skips: &[Skip]) -> Result<Vec<Skip>, String> {
    let path = root().join(ALLOWED);
    let text =
        fs::read_to_string(&path).map_err(|error| format!("read {}: {error}", path.display()))?;
    Ok(skips.iter().filter(|skip| !is_allowed(&text, skip)).cloned().collect())
}

fn is_allowed(list: &str, skip: &Skip) -> bool {
    let entry = format!("{}: {}", skip.name, skip.reason);
    let patterns =
        list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    patterns.into_iter().any(|pattern| matches(pattern, &entry))
}

/// Whether a text matches a pattern in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut last = None;
    for part in parts {
        if let Some(part) = last.replace(part) {
            match rest.split_once(part) {
                Some((_, after)) => rest = after,
                None => return false,
            }
        }
    }
    match last {
        Some(part) => rest.ends_with(part),
        None => rest.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Skip, find, is_allowed, matches};

    #[test]
    fn skips_are_found_in_any_output() {
        let output = "    SKIP lab::vm_a: the kernel has no vlan\ntest lab::b ... SKIP lab::b: needs root\nSKIP this is prose\nok\n";
        let found = find(output.lines());
        let names: Vec<_> =
            found.iter().map(|skip| format!("{}|{}", skip.name, skip.reason)).collect();
        assert_eq!(names, ["lab::b|needs root", "lab::vm_a|the kernel has no vlan"]);
    }

    #[test]
    fn stars_match_anything() {
        for (pattern, text, expected) in [
            ("a: b", "a: b", true),
            ("a: b", "a: bc", false),
            ("a: b", "xa: b", false),
            ("*vm_*: the kernel has no *", "x::vm_y: the kernel has no vlan", true),
            ("*vm_*: the kernel has no *", "x::y: the kernel has no vlan", false),
            ("a*: b", "abc: b", true),
            ("a*: b", "abc: bb", false),
            ("*", "anything", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn the_reason_counts_too() {
        let skip = Skip { name: "t".to_owned(), reason: "no program podman".to_owned() };
        assert!(is_allowed("# t: *\n t: no program podman \n", &skip));
        assert!(!is_allowed("t: needs root\n", &skip));
    }
}
