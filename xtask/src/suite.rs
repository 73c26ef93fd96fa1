//! Runs the tests on this machine, linked like what ships.
//!
//! Clippy's driver compiles the crates of the workspace in the compiler's place
//! (`RUSTC_WORKSPACE_WRAPPER`, as `cargo clippy` calls it), and so lints what it compiles: `cargo
//! clippy` would compile all dependencies again, because `cargo check` and `cargo build` do not
//! share their metadata. Cargo repeats the warnings of crates that it does not compile again. A
//! warning fails the run at its end, so that the results of the tests are seen too. The compiler
//! itself compiles what ships, because the driver switches optimisations off. Only `--full` checks
//! all targets and builds rustdoc's pages, so only it finds a link in a comment that leads nowhere.

use std::env;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::ci::{Extent, Report};
use crate::matrix::read_log;
use crate::musl::LinkSettings;
use crate::run::{Program, ProgramFailure, exists, log_dir, quiet, shown};
use crate::{ci, runtimes, skips, times, torture};

/// How long all tests together may take, on a machine that is busy with other work; nextest ends a
/// hanging test long before.
const DEADLINE: Duration = Duration::from_secs(2700);
/// The same with soaks and large counts, and with all the cases of which a full run otherwise tries
/// a share.
const FULL_DEADLINE: Duration = Duration::from_secs(9000);
const EVERY_DEADLINE: Duration = Duration::from_secs(24 * 3600);

/// The variable that tests too long for every run check.
pub(crate) const FULL_VARIABLE: &str = "NETWRIGHT_FULL";

/// The variables with the share of cases that tests try (`testkit::share`), and with whether they
/// try all.
pub(crate) const ROUND_VARIABLE: &str = "NETWRIGHT_ROUND";
const EVERY_VARIABLE: &str = "NETWRIGHT_EVERY";

/// Returns the round of a full run: the day's number, unless the caller sets another.
pub(crate) fn round() -> u64 {
    let told = env::var(ROUND_VARIABLE).ok().and_then(|round| round.parse().ok());
    told.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_secs() / (24 * 3600)
    })
}

/// Whether a full run does what it does in one of several rounds, at this place among them. A run that
/// does everything always does.
pub(crate) fn is_of_this_round(place: u64, rounds: u64) -> bool {
    is_every() || round() % rounds == place
}

/// Why a step of another round is skipped.
pub(crate) const OTHER_ROUND: &str = "in another round of --full";

/// What is built when no package is named.
const WHOLE: &str = "--workspace";

/// Builds the tests; afterwards this machine and the virtual one each run theirs.
pub(crate) fn build() -> Result<Report, String> {
    let line = if exists("cargo-nextest") {
        "cargo nextest run --profile ci --workspace --locked --no-run"
    } else {
        "cargo test --workspace --locked --no-run"
    };
    LinkSettings::prepare()?.tests(line).deadline(DEADLINE).logged("build", quiet)?;
    Ok(Report { passed: 1, ..Report::default() })
}

/// Checks that clippy, which compiled the tests, gave no warning.
pub(crate) fn lints() -> Result<Report, String> {
    let build = read_log("build")?;
    let said = warnings(&build);
    if said.is_empty() {
        return Ok(Report { passed: 1, note: "by the build".to_owned(), ..Report::default() });
    }
    Err(format!("{} lines of warnings:\n{}", said.len(), said.join("\n")))
}

/// If there is a warning, returns what cargo printed without its progress. Cargo repeats the
/// warnings of crates that it does not compile again.
fn warnings(build: &[String]) -> Vec<&str> {
    let is_progress = |line: &&str| {
        let verb = line.trim_start().split(' ').next().unwrap_or_default();
        line.starts_with("  ") && PROGRESS.contains(&verb)
    };
    if !build.iter().any(|line| line.starts_with("warning")) {
        return Vec::new();
    }
    build.iter().map(String::as_str).filter(|line| !is_progress(line)).collect()
}

/// The verbs with which cargo says what it does.
const PROGRESS: [&str; 8] = [
    "Updating",
    "Downloading",
    "Downloaded",
    "Compiling",
    "Checking",
    "Finished",
    "Executable",
    "Blocking",
];

/// Runs the unit and integration tests of the whole workspace.
pub(crate) fn unit_and_integration(extent: Extent) -> Result<Report, String> {
    let linked = LinkSettings::prepare()?;
    let program = if exists("cargo-nextest") {
        linked.tests(&nextest_line(extent, WHOLE))
    } else {
        linked.tests(
            "cargo test --workspace --locked --lib --bins --tests --examples --no-fail-fast -- --nocapture",
        )
    };
    let program = with_extent(program, extent).deadline(deadline(extent));
    let show = |line: &str| {
        // `Starting 2742 tests across 30 binaries`, or libtest's `running 12 tests`.
        if ["Starting ", "running "].iter().any(|start| line.trim_start().starts_with(start)) {
            ci::begun("tests");
        }
        is_news(line)
    };
    count(program.logged("tests", show), |lines| nextest(lines).or_else(|| libtest(lines)))
}

/// `cargo xtask only [--full] FILTER…`: runs some of the tests as [`unit_and_integration`] runs
/// all.
pub(crate) fn command(extent: Extent, chosen: &[&str]) -> Result<(), String> {
    if chosen.is_empty() {
        return Err("only needs a part of a test's name, or options of cargo-nextest".to_owned());
    }
    let is_package = |word: &&str| word.starts_with("-p") || word.starts_with("--package");
    let what = if chosen.iter().any(is_package) { "" } else { WHOLE };
    let program = LinkSettings::prepare()?.tests(&nextest_line(extent, what));
    let program = chosen.iter().fold(program, |program, word| program.arg(*word));
    let program = with_extent(program, extent).deadline(deadline(Extent::Full));
    let (passed, failed) = match program.logged("only", is_news) {
        Ok(lines) => nextest(&lines).unwrap_or_default(),
        Err(failed) => nextest(&failed.lines).ok_or(failed.message)?,
    };
    println!(
        "{passed} passed, {failed} failed; the output is in {}",
        shown(&log_dir()?.join("only.log"))
    );
    if failed == 0 { Ok(()) } else { Err(String::new()) }
}

/// The examples in the documentation.
pub(crate) fn doctests(extent: Extent) -> Result<Report, String> {
    let linked = LinkSettings::prepare()?;
    let program =
        with_extent(linked.tests("cargo test --workspace --locked --doc --no-fail-fast"), extent);
    count(program.logged("doctests", |line| line.starts_with("test result: F")), libtest)
}

fn with_extent(program: Program, extent: Extent) -> Program {
    match extent {
        Extent::EveryChange => program,
        Extent::Full => {
            program.variable(FULL_VARIABLE, "1").variable(ROUND_VARIABLE, round().to_string())
        }
    }
}

/// The profiles differ in how long one test may take (`.config/nextest.toml`).
fn nextest_line(extent: Extent, what: &str) -> String {
    let profile = match extent {
        Extent::EveryChange => "ci",
        Extent::Full if is_every() => "every",
        Extent::Full => "full",
    };
    format!("cargo nextest run --profile {profile} --locked {what}")
}

fn deadline(extent: Extent) -> Duration {
    match extent {
        Extent::EveryChange => DEADLINE,
        Extent::Full if is_every() => EVERY_DEADLINE,
        Extent::Full => FULL_DEADLINE,
    }
}

/// Whether a full run must try everything, however long it takes.
pub(crate) fn is_every() -> bool {
    env::var_os(EVERY_VARIABLE).is_some()
}

fn is_news(line: &str) -> bool {
    let line = line.trim_start();
    ["FAIL", "TRY", "FLAKY", "SLOW", "TIMEOUT", "LEAK", "SIG", "Summary", "test result: F"]
        .iter()
        .any(|start| line.starts_with(start))
}

/// A failed run still counts its tests; one that ran none is an error.
fn count(
    result: Result<Vec<String>, ProgramFailure>,
    parse: impl Fn(&[String]) -> Option<(u64, u64)>,
) -> Result<Report, String> {
    let (lines, failure) = match result {
        Ok(lines) => (lines, None),
        Err(failed) => (failed.lines, Some(failed.message)),
    };
    let found = report(&lines);
    let Some((passed, failed)) = parse(&lines) else {
        return Err(failure.unwrap_or_else(|| "no test was run".to_owned()));
    };
    if passed == 0 && failed == 0 {
        return Err("no test was run".to_owned());
    }
    // The runner counted a test that skipped itself as passed.
    let skipped = u64::try_from(found.skips.len()).unwrap_or(u64::MAX);
    let failed = if failure.is_some() { failed.max(1) } else { failed };
    let flaky = flaky(&lines).map(flaky_note);
    Ok(Report {
        passed: passed.saturating_sub(skipped),
        failed,
        note: failure.or(flaky).unwrap_or_default(),
        ..found
    })
}

/// Returns the tests named in a run's output, and those that skipped themselves, without counting
/// them.
pub(crate) fn report(lines: &[String]) -> Report {
    Report {
        skips: skips::find(lines.iter().map(String::as_str)),
        runtimes: runtimes::find(lines.iter().map(String::as_str)),
        tortures: torture::find(lines.iter().map(String::as_str)),
        times: times::find(lines.iter().map(String::as_str)),
        // After `TRY 1`, which failed, comes `TRY 2`.
        tests: (lines.iter().filter(|line| !line.trim_start().starts_with("TRY 1 ")))
            .filter_map(|line| one(line))
            .collect(),
        failures: failures(lines),
        ..Report::default()
    }
}

/// How many panics of a failed test are repeated, and how many lines of each.
const PANICS: usize = 3;
const PANIC_LINES: usize = 8;

/// Returns the messages of failed tests, for the end of the output: each test's line, and below it
/// the beginnings of its first panics. A test that passes may panic too; its panics are left out.
fn failures(lines: &[String]) -> Vec<String> {
    let (mut said, mut is_failed, mut panics, mut left) = (Vec::new(), false, 0, 0);
    for line in lines {
        // nextest repeats a failed test's output at the end of the run.
        if line.trim_start().starts_with("Summary [") {
            break;
        }
        if let Some((_, passed)) = one(line) {
            (is_failed, panics, left) = (!passed, 0, 0);
            if is_failed {
                said.push(line.trim().to_owned());
            }
        } else if is_failed && line.contains("panicked at") && panics < PANICS {
            (panics, left) = (panics + 1, PANIC_LINES);
        }
        if left > 0 {
            left -= 1;
            said.push(line.clone());
        }
    }
    said
}

/// Returns a test's name within its crate, and whether it passed.
///
/// `PASS [ 0.1s] (1/2) netwright-plugins::it bridge::gateway` or `test bridge::gateway ... ok`. A
/// test that failed is tried once more: `TRY 1 FAIL [ 0.1s] …`, then `TRY 2 PASS [ 0.1s] …`.
fn one(line: &str) -> Option<(String, bool)> {
    if let Some((name, result)) =
        line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
    {
        return Some((name.to_owned(), result.ends_with("ok")));
    }
    let (result, rest) = line.trim_start().split_once(" [")?;
    let (tried, result) = match result.strip_prefix("TRY ").and_then(|rest| rest.split_once(' ')) {
        Some((_, result)) => (true, result),
        None => (false, result),
    };
    let passed = match result {
        "PASS" => true,
        _ if tried => false,
        "FAIL" | "TIMEOUT" | "ABORT" => false,
        signal if signal.starts_with("SIG") => false,
        _ => return None,
    };
    let (_, name) = rest.split_once("] ")?;
    Some((name.rsplit(' ').next()?.to_owned(), passed))
}

/// `Summary [ 4.0s] 14 tests run: 13 passed (1 slow), 1 failed, 0 skipped`
fn nextest(lines: &[String]) -> Option<(u64, u64)> {
    let summary = lines.iter().rev().find(|line| line.trim_start().starts_with("Summary ["))?;
    let counts = summary.rsplit_once("run: ")?.1;
    let number = |what: &str| {
        let found = counts.split(", ").find(|part| part.contains(what));
        found.and_then(|part| part.split(' ').next()?.parse().ok()).unwrap_or(0)
    };
    Some((number(" passed"), number(" failed") + number(" timed out") + number("exec failed")))
}

/// What the table says of tests that failed once and passed at the second try.
pub(crate) fn flaky_note(count: u64) -> String {
    format!("{count} FLAKY: passed when tried once more")
}

/// How many tests failed once and passed at the second try: `Summary [ 4.0s] 14 tests run: 13
/// passed (1 slow, 1 flaky), 1 failed, 0 skipped`
fn flaky(lines: &[String]) -> Option<u64> {
    let summary = lines.iter().rev().find(|line| line.trim_start().starts_with("Summary ["))?;
    summary.split_once(" flaky")?.0.rsplit(['(', ' ']).next()?.parse().ok()
}

/// `test result: ok. 13 passed; 1 failed; …`, once per binary.
fn libtest(lines: &[String]) -> Option<(u64, u64)> {
    let mut sum = None;
    for line in lines.iter().filter_map(|line| line.strip_prefix("test result: ")) {
        let number = |what: &str| {
            let found = line.split([';', '.']).find(|part| part.contains(what));
            found.and_then(|part| part.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
        };
        let (passed, failed) = sum.unwrap_or((0, 0));
        sum = Some((passed + number(" passed"), failed + number(" failed")));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::{PANIC_LINES, failures, flaky, libtest, nextest, one, report, warnings};

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn nextest_is_understood() {
        let text = "x\n     Summary [   4.423s] 15 tests run: 13 passed (1 slow, 1 leaky), 1 failed, 1 timed out, 7 skipped\n";
        assert_eq!(nextest(&lines(text)), Some((13, 2)));
        assert_eq!(
            nextest(&lines("Summary [ 0.1s] 1 test run: 1 passed, 0 skipped")),
            Some((1, 0))
        );
        assert_eq!(nextest(&lines("error: could not compile")), None);
    }

    #[test]
    fn results_are_found() {
        for (line, expected) in [
            ("        PASS [   0.015s] (  1/341) netwright-plugins::it a::b", Some(("a::b", true))),
            ("        PASS [   0.015s] netwright-plugins a::b", Some(("a::b", true))),
            ("     SIGABRT [   0.015s] netwright-plugins::it a::b", Some(("a::b", false))),
            ("  TRY 1 FAIL [   0.015s] (1/3) netwright-plugins::it a::b", Some(("a::b", false))),
            ("  TRY 2 PASS [   0.015s] (1/3) netwright-plugins::it a::b", Some(("a::b", true))),
            ("   TRY 1 TMT [   0.015s] (1/3) netwright-plugins::it a::b", Some(("a::b", false))),
            ("        SLOW [> 30.000s] netwright-plugins::it a::b", None),
            ("test a::b ... ok", Some(("a::b", true))),
            ("test a::b ... FAILED", Some(("a::b", false))),
            ("test result: ok. 3 passed", None),
        ] {
            let expected = expected.map(|(name, passed)| (name.to_owned(), passed));
            assert_eq!(one(line), expected, "{line}");
        }
    }

    #[test]
    fn a_test_that_passes_at_its_second_try_is_counted() {
        let text = "  TRY 1 FAIL [ 0.1s] (1/3) netwright-plugins::it a::b\n\
                    \x20 TRY 2 PASS [ 0.1s] (1/3) netwright-plugins::it a::b\n\
                    \x20    Summary [ 9.0s] 2 tests run: 2 passed (1 slow, 12 flaky), 0 skipped\n";
        assert_eq!(flaky(&lines(text)), Some(12));
        assert_eq!(report(&lines(text)).tests, [("a::b".to_owned(), true)]);
        assert_eq!(failures(&lines(text)), ["TRY 1 FAIL [ 0.1s] (1/3) netwright-plugins::it a::b"]);
        assert_eq!(
            flaky(&lines("Summary [ 9.0s] 2 tests run: 2 passed (1 slow), 0 skipped")),
            None
        );
    }

    #[test]
    fn what_failed_tests_said_is_found() {
        let text = "        PASS [ 0.015s] (1/3) netwright-plugins::it a::passes\n\
                    thread 'a::passes' panicked at a.rs:1:1:\n\
                    expected\n\
                    \x20       FAIL [ 8.668s] (2/3) netwright-plugins::it a::fails\n\
                    \x20 stdout ───\n\
                    \x20   thread 'a::fails' panicked at a.rs:2:2:\n\
                    \x20   the reason\n";
        let repeated = "     Summary [ 9.0s] 2 tests run: 1 passed, 1 failed, 0 skipped\n\
                        \x20       FAIL [ 8.668s] (2/3) netwright-plugins::it a::fails\n";
        let backtrace = "    0: main\n".repeat(20);
        let said = failures(&lines(&format!("{text}{backtrace}{repeated}")));
        assert_eq!(said[0], "FAIL [ 8.668s] (2/3) netwright-plugins::it a::fails");
        assert_eq!(said[2], "    the reason");
        assert_eq!(said.len(), 1 + PANIC_LINES);
    }

    #[test]
    fn warnings_of_a_build_are_found() {
        let sound =
            "   Compiling netwright-cni v0.1.0 (/w/crates/cni)\n    Finished `dev` profile\n";
        assert_eq!(warnings(&lines(sound)), Vec::<&str>::new());
        let said = "warning: unused variable: `a`\n --> crates/cni/src/lib.rs:1:5\n";
        let build = lines(&format!("{said}{sound}"));
        assert_eq!(warnings(&build), said.lines().collect::<Vec<_>>());
    }

    #[test]
    fn libtest_is_summed_over_binaries() {
        let text = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
                    test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        assert_eq!(libtest(&lines(text)), Some((4, 2)));
        assert_eq!(libtest(&lines("")), None);
    }
}
