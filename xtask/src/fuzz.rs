//! Throwing inputs at every parser.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::ci::{Extent, Report};
use crate::run::{Program, exists, quiet, root};

/// Inputs a target for every change, fewer where they take files: some seconds for all of them.
const ITERATIONS: u64 = 100_000;

/// Inputs a target, and seconds a target of the fuzzer that is guided by coverage, when everything is run.
const FULL_ITERATIONS: u64 = 2_000_000;
const FULL_SECONDS: u64 = 30;

/// Building the fuzzer and its targets on a small machine.
const DEADLINE: Duration = Duration::from_secs(900);

/// Random changes of the seeds; when everything is run also libFuzzer, if this machine has it.
pub(crate) fn run(extent: Extent) -> Result<Report, String> {
    // A few inputs are run sooner than an optimised build is made; both have their assertions.
    let (iterations, profile) = match extent {
        Extent::EveryChange => (ITERATIONS, "dev"),
        Extent::Full => (FULL_ITERATIONS, "release"),
    };
    let line = format!(
        "cargo run --profile {profile} --locked --manifest-path fuzz/Cargo.toml --no-default-features --bin smoke -- \
         --iterations {iterations}"
    );
    Program::new(&line).deadline(DEADLINE).logged("fuzz", quiet)?;
    let mut report =
        Report { passed: 1, note: format!("{iterations} inputs a target"), ..Report::default() };
    if extent == Extent::Full {
        if exists("cargo-fuzz") && exists("c++") {
            guided(&mut report)?;
        } else {
            report.note.push_str(", no cargo-fuzz or c++ here");
        }
    }
    Ok(report)
}

/// Without sanitizers: those take a nightly compiler, and the parsers hold no unsafe code to watch.
fn guided(report: &mut Report) -> Result<(), String> {
    let fuzz = root().join("fuzz");
    for target in targets(&fuzz.join("fuzz_targets"))? {
        let corpus = fuzz.join("corpus").join(&target);
        fs::create_dir_all(&corpus)
            .map_err(|error| format!("create {}: {error}", corpus.display()))?;
        let line = format!(
            "cargo fuzz run --fuzz-dir fuzz --sanitizer none {target} fuzz/corpus/{target} fuzz/seeds/{target} -- \
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
