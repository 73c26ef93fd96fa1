//! Counts and reports what was tried: `cargo xtask ci` finds it in the output of tests.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Findings beyond this number are counted, not shown.
const SHOWN: usize = 12;

/// What a test tried, by program, call and fault, and what it found.
#[derive(Debug, Default)]
pub struct Tally {
    tried: BTreeMap<(String, String, String), usize>,
    findings: Vec<String>,
}

impl Tally {
    /// Creates an empty tally.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one try: the program, the call and the fault.
    pub fn count(&mut self, who: &str, what: &str, how: &str) {
        *self.tried.entry((who.to_owned(), what.to_owned(), how.to_owned())).or_default() += 1;
    }

    /// Records that something is wrong. The text begins with the program, the call and the fault,
    /// as they were counted: `who what how:`.
    pub fn found(&mut self, finding: String) {
        if self.findings.len() < SHOWN {
            eprintln!("FOUND {finding}");
        }
        self.findings.push(finding);
    }

    /// Adds what another tally has counted and found.
    pub fn absorb(&mut self, other: Tally) {
        for (whom, count) in other.tried {
            *self.tried.entry(whom).or_default() += count;
        }
        self.findings.extend(other.findings);
    }

    /// Returns the number of findings.
    #[must_use]
    pub fn findings(&self) -> usize {
        self.findings.len()
    }

    /// Reports everything, and fails if something was found.
    ///
    /// # Panics
    /// With the findings.
    #[track_caller]
    pub fn finish(self) {
        for ((who, what, how), count) in &self.tried {
            let prefix = format!("{who} {what} {how}:");
            let found = self.findings.iter().filter(|one| one.starts_with(&prefix)).count();
            // No other line of the run begins like this.
            eprintln!("TORTURE {who} | {what} | {how} | {count} | {found}");
        }
        let mut text = String::new();
        for finding in self.findings.iter().take(SHOWN) {
            let _ = write!(text, "\n\n{finding}");
        }
        assert!(self.findings.is_empty(), "{} findings:{text}", self.findings.len());
    }
}
