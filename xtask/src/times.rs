//! How long each test took, for whoever makes a run shorter.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use crate::run::{shown, target_dir};

/// A test and the seconds that it took, as its runner names both.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TestTime {
    /// The executable with the test, such as `netwright-plugins::it`.
    pub(crate) of: String,
    pub(crate) name: String,
    pub(crate) seconds: f64,
}

/// How many of the slowest tests are shown.
const SHOWN: usize = 20;

/// Finds the times in nextest's output: `PASS [ 0.1s] (1/2) netwright-plugins::it bridge::gateway`.
/// Each try of a test counts.
pub(crate) fn find<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<TestTime> {
    lines.into_iter().filter_map(parse).collect()
}

fn parse(line: &str) -> Option<TestTime> {
    let (result, rest) = line.trim_start().split_once(" [")?;
    let result = result.rsplit(' ').next()?;
    if !["PASS", "FAIL", "TMT", "TIMEOUT", "ABORT"].contains(&result) && !result.starts_with("SIG")
    {
        return None;
    }
    let (seconds, rest) = rest.split_once("s] ")?;
    let (before, name) = rest.rsplit_once(' ')?;
    let of = before.rsplit(' ').next()?;
    let seconds = seconds.trim().parse().ok()?;
    Some(TestTime { of: of.to_owned(), name: name.to_owned(), seconds })
}

/// Writes `target/times.md`, and returns its path and the slowest tests, a line each.
pub(crate) fn write(times: &[TestTime]) -> Result<(String, Vec<String>), String> {
    let path = target_dir().join("times.md");
    let page = page(times);
    fs::write(&path, &page).map_err(|error| format!("write {}: {error}", path.display()))?;
    let slowest = sorted(times).into_iter().take(SHOWN);
    let line = |TestTime { of, name, seconds }: &TestTime| format!("{seconds:>7.1} s  {of} {name}");
    Ok((shown(&path), slowest.map(line).collect()))
}

fn sorted(times: &[TestTime]) -> Vec<&TestTime> {
    let mut sorted: Vec<&TestTime> = times.iter().collect();
    sorted.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    sorted
}

/// The sum for each executable, and each test, the slowest first.
fn page(times: &[TestTime]) -> String {
    let mut sums: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for TestTime { of, seconds, .. } in times {
        let sum = sums.entry(of).or_default();
        *sum = (sum.0 + 1, sum.1 + seconds);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(_, (_, one)), (_, (_, other))| other.total_cmp(one));
    let mut page = "# How long the tests took\n\n\
                    Several run at a time, so the sums are longer than the run.\n\n\
                    | executable | tests | seconds |\n|---|---:|---:|\n"
        .to_owned();
    for (of, (count, seconds)) in sums {
        let _ = writeln!(page, "| {of} | {count} | {seconds:.1} |");
    }
    page.push_str("\n| test | seconds |\n|---|---:|\n");
    for TestTime { of, name, seconds } in sorted(times) {
        let _ = writeln!(page, "| {of} {name} | {seconds:.1} |");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::{find, page};

    #[test]
    fn times_are_found_summed_and_sorted() {
        let output = "        PASS [   0.015s] (  1/341) a::it b::c\n\
                      \x20 TRY 1 FAIL [   2.500s] (2/3) a::it b::d\n\
                      \x20 TRY 2 PASS [   1.000s] (2/3) a::it b::d\n\
                      \x20    SIGABRT [   9.000s] a e\n\
                      \x20       SLOW [> 30.000s] a::it b::c\n\
                      \x20    Summary [   4.423s] 15 tests run: 13 passed, 7 skipped\n\
                      test a::b ... ok\n";
        let times = find(output.lines());
        assert_eq!(times.len(), 4);
        let page = page(&times);
        assert!(page.contains("| a | 1 | 9.0 |\n| a::it | 3 | 3.5 |\n"), "{page}");
        assert!(page.contains("| a e | 9.0 |\n| a::it b::d | 2.5 |\n"), "{page}");
    }
}
