//! What real runtimes printed while tests drove them, in their own words.
//!
//! Tests print it (`testkit::real::tell`). A run must show a runtime's version, that a container
//! runs, and an answer; otherwise it has not shown that it works with that runtime.

use std::fmt::Write as _;
use std::fs;

use crate::ci::Extent;
use crate::matrix::read_log;
use crate::run::{shown, target_dir};

/// The runtimes that must appear: all but the last in every run, and the last one too in a full
/// run.
const RUNTIMES: [&str; 7] =
    ["podman", "containerd", "docker", "docker-unstable", "runc", "crun", "containerd-unstable"];
const IN_EVERY_RUN: usize = 6;

/// What each of them must have reported.
const TOLD: [&str; 3] = ["version", "running", "answered"];

/// The mark of a line.
const MARK: &str = "RUNTIME ";

/// One line of a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Words {
    runtime: String,
    what: String,
    words: String,
}

/// Finds the lines in a test run's output: `RUNTIME podman | version | podman version 4.3.1`.
pub(crate) fn find<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<Words> {
    let mut found: Vec<Words> = Vec::new();
    for line in lines {
        // Text may precede it: libtest prints `test name ... ` without an end of line when output
        // is not captured.
        let Some((_, rest)) = line.split_once(MARK) else { continue };
        let mut parts = rest.splitn(3, " | ").map(|part| part.trim().to_owned());
        if let (Some(runtime), Some(what), Some(words)) = (parts.next(), parts.next(), parts.next())
        {
            let words = Words { runtime, what, words };
            if !found.contains(&words) {
                found.push(words);
            }
        }
    }
    found
}

/// Builds the page again from the last run's log.
pub(crate) fn from_logs() -> Result<(), String> {
    let lines = read_log("tests")?;
    let found = find(lines.iter().map(String::as_str));
    check(&found, Extent::EveryChange).map(|note| println!("{note}"))
}

/// Writes `target/runtimes.md`, shows it, and fails with what is missing.
pub(crate) fn check(found: &[Words], extent: Extent) -> Result<String, String> {
    let path = target_dir().join("runtimes.md");
    let page = page(found);
    fs::write(&path, &page).map_err(|error| format!("write {}: {error}", path.display()))?;
    print!("{page}");
    let missing = missing(found, extent);
    if missing.is_empty() {
        return Ok(format!("{}; {}", wanted(extent).join(", "), shown(&path)));
    }
    Err(format!("no test printed: {}", missing.join(", ")))
}

fn wanted(extent: Extent) -> &'static [&'static str] {
    match extent {
        Extent::EveryChange => &RUNTIMES[..IN_EVERY_RUN],
        Extent::Full => &RUNTIMES,
    }
}

fn missing(found: &[Words], extent: Extent) -> Vec<String> {
    let pairs = wanted(extent).iter().flat_map(|runtime| TOLD.map(|what| (*runtime, what)));
    let told = |runtime: &str, what: &str| {
        found.iter().any(|words| words.runtime == runtime && words.what == what)
    };
    let missing = pairs.filter(|(runtime, what)| !told(runtime, what));
    missing.map(|(runtime, what)| format!("{runtime}: {what}")).collect()
}

/// Each runtime's words, in the order in which they were printed.
fn page(found: &[Words]) -> String {
    let mut page =
        "# What real runtimes said\n\nOn our plugins, while tests drove them.\n".to_owned();
    for runtime in RUNTIMES {
        let _ = writeln!(page, "\n## {runtime}\n");
        let mut told: Vec<&Words> = found.iter().filter(|words| words.runtime == runtime).collect();
        let place = |what: &str| TOLD.iter().position(|told| *told == what).unwrap_or(TOLD.len());
        told.sort_by_key(|words| place(&words.what));
        for Words { what, words, .. } in told {
            let _ = writeln!(page, "- {what}: `{words}`");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::{Extent, IN_EVERY_RUN, RUNTIMES, TOLD, Words, find, missing, page};

    #[test]
    fn words_are_found_in_any_output() {
        let output = "test a ... RUNTIME podman | version | podman version 4.3.1\n\
                      RUNTIME podman | version | podman version 4.3.1\n    RUNTIME runc | answered | a | b\nRUNTIME x\n";
        let found = find(output.lines());
        let told: Vec<_> = found.iter().map(|w| [&w.runtime[..], &w.what, &w.words]).collect();
        assert_eq!(
            told,
            [["podman", "version", "podman version 4.3.1"], ["runc", "answered", "a | b"]]
        );
        assert!(page(&found).contains("## runc\n\n- answered: `a | b`\n"));
    }

    #[test]
    fn who_said_nothing_is_named() {
        let all: Vec<String> = RUNTIMES
            .iter()
            .flat_map(|runtime| TOLD.map(|what| format!("RUNTIME {runtime} | {what} | x")))
            .collect();
        assert!(missing(&find(all.iter().map(String::as_str)), Extent::Full).is_empty());
        let some = all.iter().filter(|line| !line.contains("crun | answered"));
        let some = find(some.map(String::as_str));
        assert_eq!(missing(&some, Extent::Full), ["crun: answered"]);
        let of_every_run: Vec<Words> =
            some.into_iter().filter(|words| words.runtime != RUNTIMES[IN_EVERY_RUN]).collect();
        assert_eq!(missing(&of_every_run, Extent::EveryChange), ["crun: answered"]);
        assert_eq!(missing(&of_every_run, Extent::Full).len(), 1 + TOLD.len());
    }
}
