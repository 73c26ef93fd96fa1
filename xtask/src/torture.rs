//! What the fault injection tests tried: kills at system calls, failed calls, corrupted files,
//! interleavings.
//!
//! Tests print it (`testkit::Tally`). A run that tried too little has not shown that nothing leaks.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use crate::ci::Extent;
use crate::matrix::read_log;
use crate::run::{shown, target_dir};

/// The mark of a line.
const MARK: &str = "TORTURE ";

/// One line: the program, the operation, the fault, how often it was injected, and how often
/// something was left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TortureRow {
    who: String,
    what: String,
    how: String,
    count: u64,
    found: u64,
}

/// The minimum that a run must have tried: faults at system calls and corrupted files, in every run
/// and in a full one, which tries a share of them in each round (`testkit::share`).
const LEAST: [(&str, [u64; 2]); 2] = [("calls", [1_300, 3_000]), ("files", [1_000, 3_000])];

/// Finds the lines in a run's output: `TORTURE bridge | ADD | killed | 120 | 0`.
pub(crate) fn find<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<TortureRow> {
    lines.into_iter().filter_map(parse).collect()
}

fn parse(line: &str) -> Option<TortureRow> {
    // Text may precede it: libtest prints `test name ... ` without an end of line when output is
    // not captured.
    let (_, rest) = line.split_once(MARK)?;
    let parts: Vec<&str> = rest.split(" | ").map(str::trim).collect();
    let [who, what, how, count, found] = parts[..] else { return None };
    let [who, what, how] = [who, what, how].map(str::to_owned);
    Some(TortureRow { who, what, how, count: count.parse().ok()?, found: found.parse().ok()? })
}

/// Builds the page again from the last run's log.
pub(crate) fn from_logs() -> Result<(), String> {
    let lines = read_log("tests")?;
    let tried = find(lines.iter().map(String::as_str));
    check(&tried, Extent::EveryChange).map(|note| println!("{note}"))
}

/// Writes `target/torture.md`, shows it, and fails if too little was tried or anything was found.
pub(crate) fn check(tried: &[TortureRow], extent: Extent) -> Result<String, String> {
    let path = target_dir().join("torture.md");
    let page = page(tried);
    fs::write(&path, &page).map_err(|error| format!("write {}: {error}", path.display()))?;
    print!("{page}");
    let wrong = wrong(tried, extent);
    if wrong.is_empty() {
        let all: u64 = tried.iter().map(|one| one.count).sum();
        return Ok(format!("{all} tries, nothing left; {}", shown(&path)));
    }
    Err(wrong.join("; "))
}

/// Verbs get faults at system calls. All else that is tried is a corrupted file or an order of
/// calls.
fn kind(tried: &TortureRow) -> &'static str {
    match (tried.what.as_str(), tried.how.as_str()) {
        ("ADD" | "DEL" | "GC", "killed" | "failed") => "calls",
        (_, "interleaved" | "something missing") => "orders",
        _ => "files",
    }
}

fn wrong(tried: &[TortureRow], extent: Extent) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, [every, full]) in LEAST {
        let least = if extent == Extent::Full { full } else { every };
        let count: u64 = tried.iter().filter(|one| kind(one) == name).map(|one| one.count).sum();
        if count < least {
            wrong.push(format!("{count} {name} tried, of at least {least}"));
        }
    }
    let found: u64 = tried.iter().map(|one| one.found).sum();
    if found != 0 {
        wrong.push(format!("{found} findings"));
    }
    wrong
}

/// A row for each program and operation, a column for each fault.
fn page(tried: &[TortureRow]) -> String {
    let mut page = "# What was tried\n\n\
                    Each with how often something was left, or was given twice, or panicked.\n\n\
                    | who | doing what | how | tries | findings |\n|---|---|---|---:|---:|\n"
        .to_owned();
    let mut rows: BTreeMap<[&str; 3], (u64, u64)> = BTreeMap::new();
    for TortureRow { who, what, how, count, found } in tried {
        let row = rows.entry([who, what, how]).or_default();
        *row = (row.0 + count, row.1 + found);
    }
    for ([who, what, how], (count, found)) in &rows {
        let _ = writeln!(page, "| {who} | {what} | {how} | {count} | {found} |");
    }
    let (count, found) = rows.values().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    let _ = writeln!(page, "| all | | | {count} | {found} |\n");
    page
}

#[cfg(test)]
mod tests {
    use super::{Extent, find, page, wrong};

    #[test]
    fn tries_are_found_summed_and_judged() {
        let output = "test a ... TORTURE bridge | ADD | killed | 1900 | 0\nTORTURE bridge | ADD | failed | 200 | 0\n\
                      TORTURE folder | lock | emptied | 1000 | 0\nTORTURE x\n";
        let tried = find(output.lines());
        assert_eq!(tried.len(), 3);
        assert!(page(&tried).contains("| bridge | ADD | failed | 200 | 0 |"));
        assert!(page(&tried).contains("| all | | | 3100 | 0 |"));
        assert_eq!(wrong(&tried, Extent::EveryChange), [""; 0]);
        assert_eq!(wrong(&tried, Extent::Full).len(), 2);
        assert_eq!(wrong(&tried[1..], Extent::EveryChange), ["200 calls tried, of at least 1300"]);
        let found =
            find(["TORTURE bridge | ADD | killed | 3000 | 1", "TORTURE f | g | h | 1000 | 0"]);
        assert_eq!(wrong(&found, Extent::EveryChange), ["1 findings"]);
    }
}
