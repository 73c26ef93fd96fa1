//! The list of intended differences, `docs/differences.toml`, and the page that is made of it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use testkit::reference::Release;

/// The test of random configurations, which the page calls `random`.
const RANDOM: &str = "crates/plugins/tests/it/differential/generated.rs::random_configurations";

/// The list. Each table for which an entry is must need each line of the entry.
#[derive(Debug)]
pub(super) struct Ledger {
    entries: Vec<Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    id: String,
    /// Patterns of cases' names.
    cases: Vec<String>,
    /// `installed`, `unstable`; both when empty.
    against: Vec<String>,
    /// Patterns of differences.
    lines: Vec<String>,
    /// Like `lines`, but of differences that depend on the kernel's own time: a run may lack them.
    sometimes: Vec<String>,
    /// Patterns of lines that random configurations may show ([`super::generated`]), in place of
    /// those of the tables.
    random: Option<Vec<String>>,
    /// Patterns of random configurations, as JSON: the entry counts only for those that match one.
    with: Vec<String>,
    /// Tests that show it, `FILE::FUNCTION`, where a configuration alone cannot show it.
    tests: Vec<String>,
    reason: String,
}

impl Ledger {
    pub(super) fn read() -> Self {
        let path = document("differences.toml");
        let text = fs::read_to_string(&path).unwrap();
        Self { entries: parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())) }
    }

    /// Whether an entry lists the difference.
    pub(super) fn lists(&self, case: &str, release: Release, line: &str) -> bool {
        self.of(case, release).any(|entry| {
            entry.lines.iter().chain(&entry.sometimes).any(|pattern| matches(pattern, line))
        })
    }

    /// Whether an entry explains a difference of a random configuration of these plugins: with its
    /// own patterns for that, or, if it has none, with those of the tables of the same plugins.
    /// Entries about how a call ends do not count for what is there after it.
    pub(super) fn explains(
        &self,
        plugins: &[String],
        written: &str,
        release: Release,
        line: &str,
    ) -> bool {
        let of_plugin = |entry: &Entry| {
            let named = |case: &String| {
                let plugin = case.split('/').next().unwrap_or_default();
                plugins.iter().any(|name| name == plugin)
            };
            entry.cases.iter().any(named)
        };
        let counts = |entry: &&Entry| {
            let is_with = entry.with.is_empty() || entry.with.iter().any(|at| matches(at, written));
            entry.is_against(release) && is_with && (entry.cases.is_empty() || of_plugin(entry))
        };
        self.entries.iter().filter(counts).any(|entry| {
            let by_end = entry.lines.iter().any(|line| line.contains(" ends: "));
            let of_tables = entry
                .lines
                .iter()
                .chain(&entry.sometimes)
                .filter(|_| !by_end && entry.random.is_none());
            of_tables.chain(entry.random.iter().flatten()).any(|pattern| matches(pattern, line))
        })
    }

    /// Returns what is wrong: differences that are not listed, and listed ones that none of these
    /// cases showed.
    pub(super) fn judge(&self, release: Release, seen: &[(&str, Vec<String>)]) -> Vec<String> {
        let mut wrong = Vec::new();
        for (case, lines) in seen {
            let unlisted = lines.iter().filter(|line| !self.lists(case, release, line));
            wrong.extend(unlisted.map(|line| format!("{case}: not listed: {line}")));
        }
        for entry in self.entries.iter().filter(|entry| entry.is_against(release)) {
            for cases in &entry.cases {
                let of: Vec<_> = seen.iter().filter(|(case, _)| matches(cases, case)).collect();
                let unseen = entry.lines.iter().filter(|pattern| {
                    !of.iter().flat_map(|(_, lines)| lines).any(|line| matches(pattern, line))
                });
                if !of.is_empty() {
                    let id = &entry.id;
                    wrong.extend(
                        unseen.map(|line| format!("{cases}: {id} lists what was not seen: {line}")),
                    );
                }
            }
        }
        wrong
    }

    fn of(&self, case: &str, release: Release) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| {
            entry.cases.iter().any(|pattern| matches(pattern, case)) && entry.is_against(release)
        })
    }

    /// The page for readers.
    fn page(&self) -> String {
        let mut page = "# What is different from the reference plugins\n\n\
            Tests give the same configurations, and random ones, to our plugins and to the Go plugins of Debian's\n\
            stable and unstable releases, on two equal hosts, and compare results, links, addresses, routes,\n\
            rules, sysctls, firewall rules, queueing disciplines and files. This page lists all the differences.\n\
            Each is intended: a test fails if it finds one that is not listed, or no longer finds one that is.\n\n\
            The tests `differential::…` of the crate `plugins` make the page from\n\
            [differences.toml](differences.toml), which also has the exact text of each difference. `where` names\n\
            configurations of these tests, random ones, or the test that shows the difference.\n\n\
            | where | against | what, and why |\n|---|---|---|\n"
            .to_owned();
        for entry in &self.entries {
            let against = match entry.against.as_slice() {
                [one] if one == "installed" => "stable",
                [one] if one == "unstable" => "unstable",
                _ => "both",
            };
            let place = |place: &String| match place.as_str() {
                RANDOM => "random".to_owned(),
                other => format!("`{other}`"),
            };
            let places: Vec<_> = entry.cases.iter().chain(&entry.tests).map(place).collect();
            writeln!(page, "| {} | {against} | {} |", places.join(", "), entry.reason).unwrap();
        }
        page
    }
}

impl Entry {
    fn is_against(&self, release: Release) -> bool {
        let name = match release {
            Release::Installed => "installed",
            Release::Unstable => "unstable",
        };
        self.against.is_empty() || self.against.iter().any(|at| at == name)
    }
}

/// A file below `docs`.
fn document(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

/// Whether a text matches a pattern in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        match text.split_once(part) {
            Some((_, after)) => text = after,
            None => return false,
        }
    }
    text.ends_with(end)
}

/// TOML of a simple kind: `[[difference]]`, keys with texts on one line and lists of texts.
fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == "[[difference]]" {
            entries.push(Entry::default());
            continue;
        }
        let wrong = || format!("line {}: {line}", number + 1);
        let entry = entries.last_mut().ok_or_else(wrong)?;
        let (key, value) = line.split_once(" = ").ok_or_else(wrong)?;
        let mut value = value.to_owned();
        while value.starts_with('[') && !value.ends_with(']') {
            let (_, more) = lines.next().ok_or_else(wrong)?;
            value.push_str(more.trim());
        }
        // Our texts are valid JSON too, except for the comma after the last one of a list.
        let json = value.replace(",]", "]");
        let texts =
            match serde_json::from_str(&json).map_err(|error| format!("{}: {error}", wrong()))? {
                serde_json::Value::String(text) => vec![text],
                other => serde_json::from_value(other)
                    .map_err(|error| format!("{}: {error}", wrong()))?,
            };
        match key {
            "id" => entry.id = texts.concat(),
            "reason" => entry.reason = texts.concat(),
            "cases" => entry.cases = texts,
            "against" => entry.against = texts,
            "lines" => entry.lines = texts,
            "sometimes" => entry.sometimes = texts,
            "random" => entry.random = Some(texts),
            "with" => entry.with = texts,
            "tests" => entry.tests = texts,
            _ => return Err(wrong()),
        }
    }
    Ok(entries)
}

#[test]
fn the_page_is_made_from_the_list() {
    expect_test::expect_file![document("differences.md")].assert_eq(&Ledger::read().page());
}

#[test]
fn every_entry_says_what_where_and_why() {
    let entries = Ledger::read().entries;
    let mut ids = std::collections::BTreeSet::new();
    for entry in &entries {
        let id = &entry.id;
        assert!(ids.insert(id) && !id.is_empty(), "{id}");
        let patterns = entry.lines.len() + entry.sometimes.len();
        let in_tables = 0 < patterns && !entry.cases.is_empty();
        let complete = (in_tables || !entry.tests.is_empty()) && !entry.reason.is_empty();
        assert!(complete, "{id}");
        for test in &entry.tests {
            let (file, function) = test.split_once("::").unwrap_or_else(|| panic!("{id}: {test}"));
            let text = fs::read_to_string(document("..").join(file));
            let there = text.is_ok_and(|text| text.contains(&format!("\nfn {function}() {{")));
            assert!(there, "{id}: there is no test {test}");
        }
        assert!(entry.against.iter().all(|at| at == "installed" || at == "unstable"), "{id}");
    }
}

#[test]
fn patterns_match_whole_texts() {
    for (pattern, text, expected) in [
        ("a", "a", true),
        ("a", "ab", false),
        ("a*", "ab", true),
        ("a*c*e", "abcde", true),
        ("a*c*e", "abcd", false),
        ("*", "", true),
    ] {
        assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
    }
}
