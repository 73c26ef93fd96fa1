//! Whether the published crates stay compatible for their users, as `cargo-semver-checks` judges
//! it, with `--full` and where it is installed.
//!
//! They are compared with the last release: an incompatible change fails the run, unless the
//! version announces it. Before the first release no user depends on them: the run shows the
//! differences to the previous commit, and they do not fail it.

use std::time::Duration;

use crate::ci::{Extent, ONLY_FULL, Report};
use crate::publish::PUBLISHED;
use crate::run::{Program, exists, quiet};

/// The program that compares (`cargo install --locked cargo-semver-checks`).
const CHECKER: &str = "cargo-semver-checks";

/// The name of the step in the list of skips.
const NAME: &str = "semver::compared";

/// How long it may take: it documents every crate twice.
const DEADLINE: Duration = Duration::from_secs(1800);

/// The previous commit, used while there is no release.
const BEFORE: &str = "HEAD^";

/// Compares the published crates.
pub(crate) fn check(extent: Extent) -> Result<Report, String> {
    match extent {
        Extent::EveryChange => Ok(Report::skipped(NAME, ONLY_FULL)),
        Extent::Full if !exists(CHECKER) => {
            Ok(Report::skipped(NAME, "no program cargo-semver-checks"))
        }
        Extent::Full => compare().map(Report::check),
    }
}

fn compare() -> Result<String, String> {
    let tags = Program::new("git tag --list --sort=-version:refname v*").output()?;
    let released = last_release(&tags);
    let since = released.unwrap_or(BEFORE);
    let program = Program::new("nice cargo semver-checks --baseline-rev").arg(since);
    let names = PUBLISHED.map(|folder| format!("--package=netwright-{folder}"));
    let program = names.into_iter().fold(program.deadline(DEADLINE), Program::arg);
    match (program.logged("semver", quiet), released) {
        (Ok(_), _) => Ok(format!("{} crates are compatible with {since}", PUBLISHED.len())),
        (Err(failed), Some(_)) => Err(failed.message),
        (Err(failed), None) => Ok(format!("there is no release to keep to; {}", failed.message)),
    }
}

/// Returns the first of some tags, sorted from the newest, that is a release and not a candidate.
fn last_release(tags: &str) -> Option<&str> {
    tags.lines().find(|tag| !tag.contains('-'))
}

#[cfg(test)]
mod tests {
    use super::last_release;

    #[test]
    fn a_candidate_is_no_release() {
        assert_eq!(last_release("v0.3.0-rc.1\nv0.2.1\nv0.2.0\n"), Some("v0.2.1"));
        assert_eq!(last_release(""), None);
    }
}
