//! A short run of every fuzz target.

use std::fs;
use std::time::Duration;

use crate::ci::Report;
use crate::run::{Program, exists, root};

/// How long each target runs.
const SECONDS: u64 = 20;

/// Building the fuzzer and its targets on a small machine.
const BUILD: Duration = Duration::from_secs(900);

/// Runs each target for a while. Without sanitizers: those take a nightly compiler, and there is no unsafe code to watch.
pub(crate) fn smoke() -> Result<Report, String> {
    let dir = root().join("fuzz/fuzz_targets");
    let entries = fs::read_dir(&dir).map_err(|error| format!("read {}: {error}", dir.display()))?;
    let mut targets: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".rs")?.to_owned()))
        .collect();
    targets.sort();
    if !exists("cargo-fuzz") {
        println!("cargo install cargo-fuzz");
        Program::new("cargo install --quiet --locked cargo-fuzz")
            .deadline(BUILD)
            .logged("fuzz-install", |_| false)?;
    }
    let mut report = Report::default();
    for target in targets {
        let line = format!(
            "cargo fuzz run --sanitizer none {target} -- -max_total_time={SECONDS} -verbosity=0"
        );
        let result =
            Program::new(&line).deadline(BUILD).logged(&format!("fuzz-{target}"), |_| false);
        match result {
            Ok(_) => report.passed += 1,
            Err(failed) => {
                report.failed += 1;
                report.note = failed.message;
            }
        }
    }
    Ok(report)
}
