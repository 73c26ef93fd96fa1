//! Feeds random inputs to every parser.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::ci::{Extent, Report};
use crate::matrix::read_log;
use crate::run::{Program, exists, quiet, root};
use crate::suite;

/// Inputs per target, and seconds per target of the coverage-guided fuzzer, in a full run.
const FULL_ITERATIONS: u64 = 400_000;
const FULL_SECONDS: u64 = 30;

/// Building the fuzzer and its targets on a small machine.
const DEADLINE: Duration = Duration::from_secs(900);

/// libFuzzer's targets, a package outside the workspace.
const LIBFUZZER: &str = "fuzz/libfuzzer";

/// The prefix of their tests, which every run includes.
const TESTS: &str = "smoke::";

/// Tries more random mutations of the seeds than the tests of every run do; also runs libFuzzer, if
/// this machine has it.
pub(crate) fn run(extent: Extent) -> Result<Report, String> {
    if extent == Extent::EveryChange {
        return tried_in_tests();
    }
    let line = format!(
        "cargo run --profile fuzz --locked --package netwright-fuzz --bin smoke -- --iterations {FULL_ITERATIONS}"
    );
    Program::new(&line).deadline(DEADLINE).logged("fuzz", quiet)?;
    let note = format!("{FULL_ITERATIONS} inputs a target");
    let mut report = Report { passed: 1, note, ..Report::default() };
    if exists("cargo-fuzz") && exists("c++") {
        guided(&mut report)?;
    } else {
        report.note.push_str(", no cargo-fuzz or c++ here");
    }
    Ok(report)
}

/// Checks whether the tests of this run have tried every target.
fn tried_in_tests() -> Result<Report, String> {
    let tests = suite::report(&read_log("tests")?).tests;
    let targets = targets(&root().join(LIBFUZZER).join("fuzz_targets"))?;
    let missing: Vec<&str> = targets
        .iter()
        .map(String::as_str)
        .filter(|target| {
            let name = format!("{TESTS}{target}");
            !tests.iter().any(|(test, passed)| *passed && *test == name)
        })
        .collect();
    if !missing.is_empty() {
        return Err(format!("not tried by any test that passed: {}", missing.join(", ")));
    }
    Ok(Report {
        passed: 1,
        note: format!("{} targets, in the tests", targets.len()),
        ..Report::default()
    })
}

/// No sanitizer is used: sanitizers need a nightly compiler, and the parsers contain no unsafe code
/// to watch.
fn guided(report: &mut Report) -> Result<(), String> {
    let fuzz = root().join(LIBFUZZER);
    for target in targets(&fuzz.join("fuzz_targets"))? {
        let corpus = fuzz.join("corpus").join(&target);
        fs::create_dir_all(&corpus)
            .map_err(|error| format!("create {}: {error}", corpus.display()))?;
        let line = format!(
            "cargo fuzz run --fuzz-dir {LIBFUZZER} --sanitizer none {target} {LIBFUZZER}/corpus/{target} fuzz/seeds/{target} -- \
             -max_total_time={FULL_SECONDS} -max_len=4096 -verbosity=0"
        );
        match Program::new(&line).deadline(DEADLINE).logged(&format!("fuzz-{target}"), quiet) {
            Ok(_) => report.passed += 1,
            Err(failed) => {
                report.failed += 1;
                report.note = failed.message;
            }
        }
    }
    Ok(())
}

fn targets(dir: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(dir).map_err(|error| format!("read {}: {error}", dir.display()))?;
    let name =
        |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".rs")?.to_owned());
    let mut targets: Vec<String> = entries.flatten().filter_map(name).collect();
    targets.sort();
    Ok(targets)
}
