//! Random changes of the seeds, as many as the options say.
//!
//! ```text
//! smoke [--iterations N] [--seed N] [--target NAME]…
//! ```
//!
//! The program prints the seed first: the same seed runs the same inputs again. When a target
//! panics, the program writes the input beside the seeds as `crash-…` and exits with 1.

use std::io::Write as _;
use std::process::ExitCode;

use netwright_fuzz::smoke::{random_seed, try_target};
use netwright_fuzz::{TARGETS, Target};

/// About twenty seconds for all targets in a release build on a slow machine.
const DEFAULT_ITERATIONS: u64 = 700_000;

struct Options {
    iterations: u64,
    seed: u64,
    targets: Vec<&'static Target>,
}

fn parse_options(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options =
        Options { iterations: DEFAULT_ITERATIONS, seed: random_seed(), targets: Vec::new() };
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|error| format!("{word} {value}: {error}"));
        match word.as_str() {
            "--iterations" => options.iterations = number()?,
            "--seed" => options.seed = number()?,
            "--target" => {
                let target = TARGETS.iter().find(|target| target.name == value);
                options.targets.push(target.ok_or_else(|| format!("no target {value:?}"))?);
            }
            _ => return Err(format!("unknown option {word}")),
        }
    }
    if options.targets.is_empty() {
        options.targets = TARGETS.iter().collect();
    }
    Ok(options)
}

fn main() -> ExitCode {
    let mut out = std::io::stdout();
    let options = match parse_options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "smoke: {error}");
            return ExitCode::from(2);
        }
    };
    let _ = writeln!(out, "seed {} iterations {}", options.seed, options.iterations);
    let mut failed = false;
    for target in options.targets {
        let started = std::time::Instant::now();
        let tried = try_target(target, options.seed, options.iterations);
        let name = target.name;
        let _ = match &tried {
            Ok(seeds) => writeln!(out, "{name}: ok, {seeds} seeds, {:.1?}", started.elapsed()),
            Err(what) => writeln!(out, "{name}: {what}"),
        };
        failed |= tried.is_err();
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
