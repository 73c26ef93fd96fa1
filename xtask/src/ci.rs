//! Runs all checks that a change must pass, and shows them in one table.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::musl::LinkSettings;
use crate::run::{Program, quiet};
use crate::runtimes::{self, Words};
use crate::skips::{self, Skip};
use crate::times::{self, TestTime};
use crate::torture::{self, TortureRow};
use crate::{
    arm64, book, dependencies, executable, fuzz, matrix, publish, release, semver, setup, spec,
    suite, vm, words,
};

/// How much a run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The checks that every change must pass.
    EveryChange,
    /// Adds soaks, large counts, the executables as they ship, and fuzzing.
    Full,
}

/// What a step counted. A check that is not a test counts as one.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// How many of the tests that the virtual machine passed had failed before, at their first try.
    pub(crate) flaky: u64,
    pub(crate) skips: Vec<Skip>,
    /// Each test's name within its crate, and whether its runner reports it as passed; a skip
    /// counts as passed.
    pub(crate) tests: Vec<(String, bool)>,
    /// The messages of failed tests.
    pub(crate) failures: Vec<String>,
    /// How long each test took.
    pub(crate) times: Vec<TestTime>,
    /// What real runtimes printed.
    pub(crate) runtimes: Vec<Words>,
    /// What the fault injection tests tried.
    pub(crate) tortures: Vec<TortureRow>,
    pub(crate) note: String,
}

impl Report {
    pub(crate) fn check(note: String) -> Self {
        Self { passed: 1, note, ..Self::default() }
    }

    /// The report of a skipped step; prints that it is skipped.
    pub(crate) fn skipped(name: &str, reason: &str) -> Self {
        println!("    SKIP {name}: {reason}");
        let skip = Skip { name: name.to_owned(), reason: reason.to_owned() };
        Self { passed: 1, skips: vec![skip], ..Self::default() }
    }
}

/// Why a run without `--full` skips a step.
pub(crate) const ONLY_FULL: &str = "only with --full";

/// One line of the table.
struct Line {
    name: &'static str,
    took: Duration,
    report: Report,
}

type Work = fn(Extent) -> Result<Report, String>;

/// A step's name and its function.
type Step = (&'static str, Work);

/// Steps that run side by side, each list of them in order.
type Stage = &'static [&'static [Step]];

/// What everything else needs.
const SETUP: Stage = &[&[("setup", |extent| setup::installed(extent).map(Report::check))]];

/// What the tests need. The build leaves no processor idle, and the downloads beside it hardly need
/// one.
const BUILD: Stage = &[
    &[("build", |_| suite::build())],
    &[
        ("downloads", |extent| downloads(extent).map(Report::check)),
        ("format", |_| cargo("cargo fmt --all --check", "fmt")),
        ("spec", |_| spec::check().map(Report::check)),
        ("words", |_| words::check().map(Report::check)),
        ("dependencies", |_| dependencies::check().map(Report::check)),
    ],
];

const TESTS: Step = ("tests", suite::unit_and_integration);
const VM: Step = ("vm", vm::tests);
const FUZZ: Step = ("fuzz", fuzz::run);
const CLIPPY: Step = ("clippy", |extent| match extent {
    Extent::EveryChange => suite::lints(),
    Extent::Full => {
        wait_for_both();
        clippy()
    }
});
const DOCS: Step = ("docs", docs);
/// Compiling the examples of the crates' documentation takes two minutes of one processor.
const DOCTESTS: Step = ("doctests", |extent| {
    if extent == Extent::EveryChange {
        return Ok(Report::skipped("doctests::examples", ONLY_FULL));
    }
    wait_for_both();
    suite::doctests(extent)
});
const EXECUTABLE: Step = ("executable", executable::ship);
const PUBLISH: Step = ("publish", publish::check);
const SEMVER: Step = ("semver", semver::check);
const RELEASE: Step = ("release", release::draft);
const AGAIN: Step = ("again", release::again);
const ARM64: Step = ("arm64", arm64::check);
const BOOK: Step = ("book", book::check);

/// The stages of a run, in order.
///
/// In every run the tests and the virtual machine run side by side: the tests wait for half of
/// their time and tolerate being slow. The machine uses one processor, and has priority ([`vm`]).
/// Clippy has compiled the tests by then. Steps that must begin after both have begun wait for that
/// ([`begun`]).
///
/// A full run has an hour of tests that leave no processor idle. Beside them an emulated machine
/// would get so little processor time that it would seem dead, so it runs after them.
fn stages(extent: Extent) -> &'static [Stage] {
    match extent {
        Extent::EveryChange => &[
            SETUP,
            BUILD,
            &[
                &[TESTS, FUZZ],
                &[VM],
                &[CLIPPY, DOCS, DOCTESTS, EXECUTABLE, PUBLISH, SEMVER, RELEASE, AGAIN, ARM64, BOOK],
            ],
        ],
        Extent::Full => &[
            SETUP,
            BUILD,
            &[&[TESTS]],
            &[
                &[VM],
                &[
                    CLIPPY, DOCS, DOCTESTS, EXECUTABLE, PUBLISH, SEMVER, RELEASE, AGAIN, ARM64,
                    BOOK, FUZZ,
                ],
            ],
        ],
    }
}

/// Runs every step, even if others failed, and sums up.
///
/// # Errors
/// When something failed; by then all of it has been printed.
pub(crate) fn run(extent: Extent) -> Result<(), String> {
    let started = Instant::now();
    if extent == Extent::Full {
        println!(
            "round {}, by which what is too much for one run is shared ({})",
            suite::round(),
            suite::ROUND_VARIABLE
        );
    }
    let mut lines: Vec<Line> = Vec::new();
    for lanes in stages(extent) {
        lines.extend(side_by_side(lanes, extent));
    }
    let skipped = not_run_anywhere(&lines);
    lines.push(step("skips", || judge(&skipped)));
    let covered = step("plugins", || plugins(&lines));
    lines.push(covered);
    let heard = step("runtimes", || heard(&lines, extent));
    lines.push(heard);
    let tortured = step("torture", || tortured(&lines, extent));
    lines.push(tortured);
    let (passed, failed) = table(&lines, started.elapsed());
    slowest(&lines, extent);
    for said in lines.iter().flat_map(|line| &line.report.failures) {
        println!("{said}");
    }
    println!("{passed} passed, {failed} failed, {} skipped", skipped.len());
    if failed == 0 { Ok(()) } else { Err(String::new()) }
}

/// Runs the lanes of a stage, each in a thread of its own.
fn side_by_side(lanes: &[&[Step]], extent: Extent) -> Vec<Line> {
    let run = |lane: &[Step]| -> Vec<Line> {
        lane.iter().map(|(name, work)| step(name, || work(extent))).collect()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = lanes.iter().map(|lane| scope.spawn(move || run(lane))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a step returns")).collect()
    })
}

/// The steps that need cargo's lock for a moment, before compiling steps take it for minutes.
const TESTING: [&str; 2] = ["tests", "vm"];

/// Which of [`TESTING`] have begun or ended.
static BEGUN: (Mutex<BTreeSet<&str>>, Condvar) = (Mutex::new(BTreeSet::new()), Condvar::new());

/// Declares that a step no longer needs cargo: its tests run.
pub(crate) fn begun(step: &'static str) {
    BEGUN.0.lock().unwrap_or_else(PoisonError::into_inner).insert(step);
    BEGUN.1.notify_all();
}

fn wait_for_both() {
    let begun = BEGUN.0.lock().unwrap_or_else(PoisonError::into_inner);
    let missing = |begun: &mut BTreeSet<&str>| !TESTING.iter().all(|step| begun.contains(step));
    drop(BEGUN.1.wait_while(begun, missing));
}

fn step(name: &'static str, work: impl FnOnce() -> Result<Report, String>) -> Line {
    println!("==> {name}");
    let started = Instant::now();
    let report = work().unwrap_or_else(|message| {
        println!("{message}");
        let note = message.lines().next().unwrap_or_default().to_owned();
        Report { failed: 1, note, ..Report::default() }
    });
    begun(name);
    let took = started.elapsed();
    println!("    {name}: {} in {}", result(&report), seconds(took));
    Line { name, took, report }
}

/// Returns the skips on this machine, without those of tests that the virtual machine ran.
///
/// A test that the virtual machine skips too is in its step's list.
fn not_run_anywhere(lines: &[Line]) -> Vec<Skip> {
    let in_vm = lines.iter().find(|line| line.name == "vm").map(|line| &line.report);
    let vm_ran = in_vm.is_some_and(|report| report.passed + report.failed > 0);
    let everywhere = lines.iter().flat_map(|line| {
        let elsewhere = vm_ran && line.name != "vm";
        line.report.skips.iter().filter(move |skip| !(elsewhere && skip.name.contains(vm::MARK)))
    });
    everywhere.cloned().collect::<BTreeSet<_>>().into_iter().collect()
}

/// Lists what was skipped and fails if a skip is not accepted.
fn judge(skipped: &[Skip]) -> Result<Report, String> {
    let disallowed = skips::disallowed(skipped)?;
    for skip in skipped {
        let verdict = if disallowed.contains(skip) { "NOT ALLOWED" } else { "allowed" };
        println!("SKIP {}: {} ({verdict})", skip.name, skip.reason);
    }
    if disallowed.is_empty() {
        Ok(Report::check(format!("{} tests, all on the list of allowed ones", skipped.len())))
    } else {
        Err(format!("{} tests skipped that .ci/allowed-skips.txt does not list", disallowed.len()))
    }
}

/// Shows which verbs each plugin was seen to do, and fails if one is missing.
fn plugins(lines: &[Line]) -> Result<Report, String> {
    let report = |name| lines.iter().find(|line| line.name == name).map(|line| &line.report);
    matrix::check(&matrix::merge(report("tests"), report("vm"))).map(Report::check)
}

/// Shows what real runtimes printed, and fails if one is missing.
fn heard(lines: &[Line], extent: Extent) -> Result<Report, String> {
    let tests = lines.iter().find(|line| line.name == "tests");
    let said = tests.map_or(&[][..], |line| &line.report.runtimes);
    runtimes::check(said, extent).map(Report::check)
}

/// Shows what was tried, and fails if it was too little or something was left behind.
fn tortured(lines: &[Line], extent: Extent) -> Result<Report, String> {
    let tests = lines.iter().find(|line| line.name == "tests");
    let tried = tests.map_or(&[][..], |line| &line.report.tortures);
    torture::check(tried, extent).map(Report::check)
}

fn table(lines: &[Line], total: Duration) -> (u64, u64) {
    let width = lines.iter().map(|line| line.name.len()).max().unwrap_or(0);
    println!("\n{:width$}  {:>8}  result", "step", "time");
    for Line { name, took, report } in lines {
        let note =
            if report.note.is_empty() { String::new() } else { format!(" ({})", report.note) };
        println!("{name:width$}  {:>8}  {}{note}", seconds(*took), result(report));
    }
    println!("{:width$}  {:>8}\n", "all", seconds(total));
    let sum = |count: fn(&Report) -> u64| lines.iter().map(|line| count(&line.report)).sum();
    (sum(|report| report.passed), sum(|report| report.failed))
}

/// Writes how long each test took, and shows the slowest in a full run.
fn slowest(lines: &[Line], extent: Extent) {
    let times: Vec<TestTime> = lines.iter().flat_map(|line| &line.report.times).cloned().collect();
    match times::write(&times) {
        Ok((path, slowest)) if extent == Extent::Full => {
            println!("the slowest tests; all are in {path}\n{}\n", slowest.join("\n"));
        }
        Ok(_) => {}
        Err(message) => println!("{message}"),
    }
}

fn result(report: &Report) -> String {
    match (report.passed, report.failed, report.skips.len()) {
        (0, 0, 0) => "not run".to_owned(),
        (1, 0, 0) => "ok".to_owned(),
        (0, 1, 0) => "FAILED".to_owned(),
        (passed, 0, skipped) => format!("{passed} passed, {skipped} skipped"),
        (passed, failed, skipped) => format!("{passed} passed, {failed} FAILED, {skipped} skipped"),
    }
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Fetches what is not installed: other releases of the programs that ours are compared with, and a
/// kernel.
fn downloads(extent: Extent) -> Result<String, String> {
    Ok(format!("{}; {}", setup::unpacked(extent)?, vm::fetched()?))
}

fn cargo(line: &str, log: &str) -> Result<Report, String> {
    Program::new(line).logged(log, quiet)?;
    Ok(Report::check(String::new()))
}

/// How long clippy or rustdoc may take. They run at a low priority, so they may get no processor
/// until the tests beside them have ended.
const LINT_DEADLINE: Duration = Duration::from_secs(2700);

/// Clippy checks all targets, also those without tests. It checks them for the tests' target, so
/// that build scripts and procedural macros exist already from the tests' build. It runs at a low
/// priority, because tests run beside it.
pub(crate) fn clippy() -> Result<Report, String> {
    let line =
        "nice -n 5 cargo clippy --workspace --all-targets --locked --keep-going -- --deny warnings";
    let program = LinkSettings::prepare()?.program(line);
    program.deadline(LINT_DEADLINE).logged("clippy", quiet)?;
    Ok(Report::check(String::new()))
}

/// rustdoc uses the target and the flags with which clippy has checked the crates. With others,
/// checking the dependencies alone would take a minute of both processors.
fn docs(extent: Extent) -> Result<Report, String> {
    if extent == Extent::EveryChange {
        return Ok(Report::skipped("docs::rustdoc", ONLY_FULL));
    }
    let line = "nice -n 5 cargo doc --workspace --no-deps --document-private-items --locked";
    let program = LinkSettings::prepare()?.program(line).deadline(LINT_DEADLINE);
    program.variable("CARGO_ENCODED_RUSTDOCFLAGS", "--deny\u{1f}warnings").logged("docs", quiet)?;
    Ok(Report::check(String::new()))
}
