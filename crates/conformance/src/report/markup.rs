//! Tables for people, and JUnit's XML.

use std::fmt::Write as _;

use super::{CaseReport, PluginReport, Report};
use crate::case::{Level, Verdict};

/// Returns the verdict in one word.
fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "pass",
        Verdict::Failed { .. } => "FAIL",
        Verdict::Skipped { .. } => "skip",
        Verdict::NotApplicable { .. } => "n/a",
    }
}

/// Returns why the verdict is not simply passed.
fn words(case: &CaseReport) -> String {
    match &case.verdict {
        Verdict::Passed => String::new(),
        Verdict::Failed { expected, found, .. } => format!("expected: {expected}; found: {found}"),
        Verdict::Skipped { reason } | Verdict::NotApplicable { reason } => reason.clone(),
    }
}

impl Report {
    /// Writes the table that a run ends with.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:<14} {:>9} {:>9} {:>8} {:>5}  {:>10} {:>9}\n",
            "PLUGIN", "MUST", "SHOULD", "SKIPPED", "N/A", "ADD", "MEMORY"
        );
        for plugin in &self.plugins {
            let (must, should) = (plugin.tally(Level::Must), plugin.tally(Level::Should));
            let score =
                |tally: super::Tally| format!("{}/{}", tally.passed, tally.passed + tally.failed);
            let add = plugin.costs.get("ADD").map(|cost| millis(cost.median_micros));
            let peak = plugin.costs.values().map(|cost| cost.peak_kib).max().unwrap_or_default();
            let _ = writeln!(
                text,
                "{:<14} {:>9} {:>9} {:>8} {:>5}  {:>10} {:>9}",
                plugin.plugin,
                score(must),
                score(should),
                must.skipped + should.skipped,
                must.not_applicable + should.not_applicable,
                add.unwrap_or_default(),
                format!("{} KiB", peak),
            );
        }
        text
    }

    /// Writes it as JUnit's XML: one suite per plugin.
    #[must_use]
    pub fn junit(&self) -> String {
        let mut text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n".to_owned();
        for plugin in &self.plugins {
            let (must, should) = (plugin.tally(Level::Must), plugin.tally(Level::Should));
            let out = must.skipped + must.not_applicable + should.skipped + should.not_applicable;
            let _ = writeln!(
                text,
                "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{out}\">",
                escaped(&plugin.plugin),
                plugin.cases.len(),
                must.failed + should.failed,
            );
            for case in &plugin.cases {
                junit_case(&mut text, plugin, case);
            }
            text.push_str("  </testsuite>\n");
        }
        text + "</testsuites>\n"
    }

    /// Writes it as a page of Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "# Conformance of {}\n\n```text\n{}```\n",
            self.bin_dir.display(),
            self.table()
        );
        for plugin in &self.plugins {
            let _ = write!(
                text,
                "\n## {}\n\n| case | level | § | verdict | |\n|---|---|---|---|---|\n",
                plugin.plugin
            );
            for case in &plugin.cases {
                let _ = writeln!(
                    text,
                    "| `{}` | {} | {} | {} | {} |",
                    case.id,
                    case.level,
                    case.section,
                    word(&case.verdict),
                    cell(&words(case))
                );
            }
            text.push_str(
                "\n| verb | calls | median | longest | memory |\n|---|---|---|---|---|\n",
            );
            for (verb, cost) in &plugin.costs {
                let _ = writeln!(
                    text,
                    "| {} | {} | {} | {} | {} KiB |",
                    cell(verb),
                    cost.calls,
                    millis(cost.median_micros),
                    millis(cost.longest_micros),
                    cost.peak_kib
                );
            }
        }
        text
    }

    /// Writes it as a self-contained page of HTML.
    #[must_use]
    pub fn html(&self) -> String {
        let mut text = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>CNI conformance</title><style>\n\
             body{{font-family:sans-serif;max-width:70em;margin:auto}}td,th{{text-align:left;padding:.2em .6em;\
             vertical-align:top}}.FAIL{{background:#fdd}}.pass{{color:#060}}.skip,.na{{color:#666}}\n\
             </style></head><body>\n<h1>Conformance of {}</h1>\n<pre>{}</pre>\n",
            escaped(&self.bin_dir.display().to_string()),
            escaped(&self.table())
        );
        for plugin in &self.plugins {
            let _ = write!(text, "<h2>{}</h2>\n<table>\n", escaped(&plugin.plugin));
            for case in &plugin.cases {
                let word = word(&case.verdict);
                let _ = writeln!(
                    text,
                    "<tr class=\"{}\"><td><code>{}</code></td><td>{}</td><td>{}</td><td>{word}</td>\
                     <td>{}</td></tr>",
                    word.replace('/', ""),
                    case.id,
                    case.level,
                    escaped(case.section),
                    escaped(&words(case))
                );
            }
            text.push_str("</table>\n");
        }
        text + "</body></html>\n"
    }
}

/// Writes several named reports beside each other: for each case, its result in each report, over
/// all of the report's plugins.
#[must_use]
pub fn side_by_side(subjects: &[(&str, &Report)]) -> String {
    let mut text = "| |".to_owned();
    for (name, _) in subjects {
        let _ = write!(text, " {name} |");
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(subjects.len()));
    for level in [Level::Must, Level::Should] {
        let _ = write!(text, "| {level}: passed / tested |");
        for (_, report) in subjects {
            let tally = report.tally(level);
            let _ = write!(text, " {} / {} |", tally.passed, tally.passed + tally.failed);
        }
        text.push('\n');
    }
    for case in crate::cases() {
        let cells: Vec<String> =
            subjects.iter().map(|(_, report)| summed_up(report, case.id)).collect();
        if cells.iter().any(|cell| cell.contains("FAIL")) {
            let _ = writeln!(text, "| `{}` ({}) | {} |", case.id, case.level, cells.join(" | "));
        }
    }
    text.push_str("\nAll of them pass every other case that could be tested.\n");
    text
}

/// Returns the result of a case over a report's plugins: `pass`, or the plugins that fail it.
fn summed_up(report: &Report, id: &str) -> String {
    let mut failed = Vec::new();
    let (mut passed, mut asked) = (0, 0);
    for plugin in &report.plugins {
        for case in plugin.cases.iter().filter(|case| case.id == id) {
            match case.verdict {
                Verdict::Passed => passed += 1,
                Verdict::Failed { .. } => failed.push(plugin.plugin.as_str()),
                _ => continue,
            }
            asked += 1;
        }
    }
    match (failed.len(), asked) {
        (_, 0) => "–".to_owned(),
        (0, _) => "pass".to_owned(),
        (_, all) if passed == 0 && 1 < all => "FAIL: all".to_owned(),
        _ => format!("FAIL: {}", failed.join(", ")),
    }
}

fn junit_case(text: &mut String, plugin: &PluginReport, case: &CaseReport) {
    let seconds = format!("{}.{:03}", case.millis / 1000, case.millis % 1000);
    let _ = write!(
        text,
        "    <testcase classname=\"{}\" name=\"{}\" time=\"{seconds}\"",
        escaped(&plugin.plugin),
        case.id
    );
    let _ = match &case.verdict {
        Verdict::Passed => writeln!(text, "/>"),
        Verdict::Failed { expected, found, evidence } => writeln!(
            text,
            ">\n      <failure message=\"{} §{}: {}\">{}</failure>\n    </testcase>",
            case.level,
            escaped(case.section),
            escaped(case.text),
            escaped(&format!(
                "expected: {expected}\nfound: {found}\nagain: {}\n{}",
                case.again,
                evidence.join("\n")
            ))
        ),
        Verdict::Skipped { reason } | Verdict::NotApplicable { reason } => {
            writeln!(text, ">\n      <skipped message=\"{}\"/>\n    </testcase>", escaped(reason))
        }
    };
}

fn millis(micros: u64) -> String {
    format!("{}.{} ms", micros / 1000, micros % 1000 / 100)
}

/// Escapes text for a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

/// Escapes text for XML and HTML, including attributes.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn markup_is_escaped() {
        let junit = sample().junit();
        assert!(junit.contains("failures=\"1\" skipped=\"2\""), "{junit}");
        assert!(junit.contains("expected: 1 &lt; 2\nfound: &quot;x&quot; &amp; y"), "{junit}");
        let html = sample().html();
        assert!(html.contains("1 &lt; 2") && html.contains("class=\"na\""), "{html}");
        let markdown = sample().markdown();
        assert!(markdown.contains("| FAIL | expected: 1 &lt; 2; found"), "{markdown}");
        assert_eq!(cell("a|b"), "a\\|b");
    }

    #[test]
    fn subjects_stand_beside_each_other() {
        let report = sample();
        let table = side_by_side(&[("ours", &report), ("theirs", &report)]);
        let failed = report.plugins[0].failures().next().unwrap().id;
        assert!(table.contains(&format!("| `{failed}` (")), "{table}");
        assert!(table.contains("| FAIL: bridge | FAIL: bridge |"), "{table}");
    }
}
