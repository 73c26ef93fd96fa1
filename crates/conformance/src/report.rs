//! The findings of the suite, and the formats in which they are written.

mod markup;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

pub use markup::side_by_side;

use crate::bench::Cost;
use crate::case::{Case, Kind, Level, Verdict};

/// The results of every case of every plugin.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The folder of the plugins.
    pub bin_dir: PathBuf,
    /// The plugins, by name.
    pub plugins: Vec<PluginReport>,
}

/// The results of a plugin's cases.
#[derive(Debug, Clone, Serialize)]
pub struct PluginReport {
    /// The plugin.
    pub plugin: String,
    /// What it is for.
    pub kind: Kind,
    /// Its cases, in the order they ran.
    pub cases: Vec<CaseReport>,
    /// The costs of its verbs.
    pub costs: BTreeMap<String, VerbCost>,
}

/// The result of a case.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// The case.
    pub id: &'static str,
    /// How binding it is.
    pub level: Level,
    /// Where the rule is written.
    pub section: &'static str,
    /// The requirement.
    pub text: &'static str,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// How long it took, including the creation of its machine.
    pub millis: u64,
    /// The suite's own machinery failed: the verdict says nothing about the plugin.
    pub broken: bool,
    /// The command that runs it again.
    pub again: String,
}

/// The cost of a plugin's verb.
#[derive(Debug, Clone, Default, Serialize)]
pub struct VerbCost {
    /// How often it was called.
    pub calls: usize,
    /// The median time of a call, in microseconds.
    pub median_micros: u64,
    /// The longest time of a call, in microseconds.
    pub longest_micros: u64,
    /// The most memory that a call was seen to hold, in KiB.
    pub peak_kib: u64,
    #[serde(skip)]
    times: Vec<u64>,
}

/// How many cases had which verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// The plugin meets the requirement.
    pub passed: usize,
    /// It does not.
    pub failed: usize,
    /// They could not be tested.
    pub skipped: usize,
    /// They do not apply to the plugin.
    pub not_applicable: usize,
}

impl Tally {
    fn add(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Failed { .. } => self.failed += 1,
            Verdict::Skipped { .. } => self.skipped += 1,
            Verdict::NotApplicable { .. } => self.not_applicable += 1,
        }
    }
}

impl CaseReport {
    pub(crate) fn new(case: &Case, verdict: Verdict) -> Self {
        let Case { id, level, section, text, .. } = *case;
        CaseReport {
            id,
            level,
            section,
            text,
            verdict,
            millis: 0,
            broken: false,
            again: String::new(),
        }
    }

    /// Says whether the plugin failed it.
    #[must_use]
    pub fn failed(&self) -> bool {
        matches!(self.verdict, Verdict::Failed { .. })
    }

    /// Returns one line, and below it what a reader of a failure needs.
    #[must_use]
    pub fn text(&self, plugin: &str) -> String {
        let head =
            |word: &str| format!("{word} {plugin} {} ({} §{})", self.id, self.level, self.section);
        match &self.verdict {
            Verdict::Passed => head("pass"),
            Verdict::Skipped { reason } => format!("{}: {reason}", head("skip")),
            Verdict::NotApplicable { reason } => format!("{}: {reason}", head("n/a ")),
            Verdict::Failed { expected, found, .. } => {
                let again = &self.again;
                format!(
                    "{}: {}\n     expected: {expected}\n     found:    {found}\n     again:    {again}",
                    head("FAIL"),
                    self.text
                )
            }
        }
    }
}

impl PluginReport {
    pub(crate) fn new(plugin: &str, kind: Kind) -> Self {
        let (cases, costs) = (Vec::new(), BTreeMap::new());
        PluginReport { plugin: plugin.to_owned(), kind, cases, costs }
    }

    pub(crate) fn add_costs(&mut self, costs: &[Cost]) {
        for cost in costs {
            let verb: &mut VerbCost = self.costs.entry(cost.verb.clone()).or_default();
            verb.times.push(cost.micros);
            verb.times.sort_unstable();
            verb.calls = verb.times.len();
            verb.median_micros = verb.times[verb.calls / 2];
            verb.longest_micros = verb.times.last().copied().unwrap_or_default();
            verb.peak_kib = verb.peak_kib.max(cost.peak_kib);
        }
    }

    /// Counts its cases of a level, by verdict.
    #[must_use]
    pub fn tally(&self, level: Level) -> Tally {
        let mut tally = Tally::default();
        for case in self.cases.iter().filter(|case| case.level == level) {
            tally.add(&case.verdict);
        }
        tally
    }

    /// Lists the cases that it failed.
    pub fn failures(&self) -> impl Iterator<Item = &CaseReport> {
        self.cases.iter().filter(|case| case.failed())
    }
}

impl Report {
    /// Counts the cases of a level, by verdict.
    #[must_use]
    pub fn tally(&self, level: Level) -> Tally {
        let mut tally = Tally::default();
        for case in self.plugins.iter().flat_map(|plugin| &plugin.cases) {
            if case.level == level {
                tally.add(&case.verdict);
            }
        }
        tally
    }

    /// Says whether every MUST that could be tested is met.
    #[must_use]
    pub fn conforms(&self) -> bool {
        self.tally(Level::Must).failed == 0
    }

    /// Says whether a case failed because of the suite's own machinery.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.plugins.iter().flat_map(|plugin| &plugin.cases).any(|case| case.broken)
    }

    /// Writes it as JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report with one case of each verdict.
    pub(crate) fn sample() -> Report {
        let verdicts = [
            Verdict::Passed,
            Verdict::Failed {
                expected: "1 < 2".to_owned(),
                found: "\"x\" & y".to_owned(),
                evidence: vec!["CNI_COMMAND='ADD' a|b".to_owned()],
            },
            Verdict::Skipped { reason: "no ifb".to_owned() },
            Verdict::NotApplicable { reason: "too old".to_owned() },
        ];
        let mut plugin = PluginReport::new("bridge", Kind::Interface);
        for (case, verdict) in crate::cases().zip(verdicts) {
            plugin.cases.push(CaseReport::new(case, verdict));
        }
        for micros in [3, 1, 2] {
            plugin.add_costs(&[Cost { verb: "ADD".to_owned(), micros, peak_kib: 100 * micros }]);
        }
        Report { bin_dir: "/x".into(), plugins: vec![plugin] }
    }

    #[test]
    fn verdicts_are_counted_and_costs_summed_up() {
        let report = sample();
        let (must, should) = (report.tally(Level::Must), report.tally(Level::Should));
        assert_eq!(must.passed + should.passed, 1);
        assert_eq!(must.failed + should.failed, 1);
        assert_eq!(must.skipped + should.skipped, 1);
        assert_eq!(must.not_applicable + should.not_applicable, 1);
        let add = &report.plugins[0].costs["ADD"];
        assert_eq!(
            (add.calls, add.median_micros, add.longest_micros, add.peak_kib),
            (3, 2, 3, 300)
        );
        assert_eq!(report.plugins[0].failures().count(), 1);
    }

    #[test]
    fn json_has_everything() {
        let report: serde_json::Value = serde_json::from_str(&sample().json()).unwrap();
        let cases = report["plugins"][0]["cases"].as_array().unwrap();
        assert_eq!(cases[1]["verdict"], "failed");
        assert_eq!(cases[1]["expected"], "1 < 2");
        assert_eq!(cases[2]["reason"], "no ifb");
    }
}
