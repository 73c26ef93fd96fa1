//! Chooses which tests run in the virtual machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::MARK;
use crate::ci::ONLY_FULL;
use crate::musl::LinkSettings;
use crate::run::root;
use crate::skips;

/// Building all tests on a small machine.
const BUILD: Duration = Duration::from_secs(900);

/// Set to ask a test whether the machine would skip it without `--full`
/// (`testkit::feature::ASKED_VARIABLE`); if so, the test prints [`ONLY_FULL`]. Also, how many
/// seconds the tests of an executable may take to answer.
const ASKED: &str = "NETWRIGHT_ASKED";
const ASKING: &str = "120";

/// Something to run: a test, or a script.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Job {
    directory: String,
    program: String,
    name: String,
}

impl Job {
    /// A script of the shell.
    pub(super) fn script(script: &str) -> Self {
        Self {
            directory: root().display().to_string(),
            program: "-".to_owned(),
            name: script.replace('\n', "; "),
        }
    }

    /// Whether the test is in a module.
    pub(super) fn is_of(&self, module: &str) -> bool {
        self.name.starts_with(module)
    }

    /// The package's folder and the test's name, as [`said`] returns them.
    pub(super) fn label(&self) -> (String, String) {
        let folder = Path::new(&self.directory).file_name().unwrap_or_default();
        (folder.to_string_lossy().into_owned(), self.name.clone())
    }

    /// The lines that the machine would print for a test that it skips, with the reason.
    pub(super) fn skipped(&self, why: &str) -> [String; 2] {
        let (package, name) = self.label();
        [format!("@test SKIP 0 {package} {name}"), format!("SKIP {name}: {why}")]
    }

    /// Three lines of the list that the machine reads.
    pub(super) fn line(&self) -> String {
        format!("{}\n{}\n{}\n", self.directory, self.program, self.name)
    }
}

/// Returns the test whose result a line from the machine contains: `@test RESULT MS PACKAGE NAME`.
pub(super) fn said(line: &str) -> Option<(String, String)> {
    let [_, _, package, name] = line.strip_prefix("@test ")?.split(' ').collect::<Vec<_>>()[..]
    else {
        return None;
    };
    Some((package.to_owned(), name.to_owned()))
}

/// Builds the tests of the packages that cargo's options choose, and finds those whose names
/// contain one of the filters, or `vm_` if there is none.
pub(super) fn find(packages: &str, filters: &[&str]) -> Result<Vec<Job>, String> {
    let filters = if filters.is_empty() { &[MARK] } else { filters };
    let line = format!("cargo test {packages} --locked --no-run --quiet --message-format json");
    let messages = LinkSettings::prepare()?.tests(&line).deadline(BUILD).output()?;
    let mut jobs = Vec::new();
    for (directory, program) in messages.lines().filter_map(test_binary) {
        let listed = Command::new(program)
            .args(["--list", "--format", "terse"])
            .current_dir(directory)
            .output();
        let listed = listed.map_err(|error| format!("{program}: {error}"))?;
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        let names = names.lines().filter_map(|line| line.strip_suffix(": test"));
        let chosen = names.filter(|name| filters.iter().any(|filter| name.contains(filter)));
        jobs.extend(chosen.map(|name| Job {
            directory: directory.to_owned(),
            program: program.to_owned(),
            name: name.to_owned(),
        }));
    }
    Ok(jobs)
}

/// Separates tests into those that are due and those that the machine would skip because they need
/// `--full`. Starting a test there only to skip it takes as long as a few other tests, so we ask
/// the executables here. A test that does not answer is due.
pub(super) fn due(jobs: &[Job]) -> Result<(Vec<&Job>, Vec<&Job>), String> {
    let mut asked: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for job in jobs {
        let executable = (job.directory.as_str(), job.program.as_str());
        asked.entry(executable).or_default().push(&job.name);
    }
    let mut later = BTreeSet::new();
    for ((directory, program), names) in asked {
        let said = Command::new("timeout")
            .args([ASKING, program, "--exact", "--nocapture", "--test-threads=1"])
            .args(names)
            .current_dir(directory)
            .envs([("CARGO_MANIFEST_DIR", directory), (ASKED, "1")])
            .output()
            .map_err(|error| format!("{program}: {error}"))?;
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        let skips = skips::find(said.lines()).into_iter();
        let skips = skips.filter(|skip| skip.reason == ONLY_FULL);
        later.extend(skips.map(|skip| (program.to_owned(), skip.name)));
    }
    let is_due = |job: &&Job| !later.contains(&(job.program.clone(), job.name.clone()));
    Ok(jobs.iter().partition(is_due))
}

/// Returns a package's directory and a test binary of it, from one of cargo's messages.
fn test_binary(message: &str) -> Option<(&str, &str)> {
    let is_test =
        message.contains(r#""reason":"compiler-artifact""#) && message.contains(r#""test":true},"#);
    let manifest = is_test.then(|| field(message, "manifest_path")).flatten()?;
    let program = field(message, "executable")?;
    Some((Path::new(manifest).parent()?.to_str()?, program))
}

/// Returns a text field of a flat JSON object. Our paths contain nothing that JSON escapes.
fn field<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = message.split_once(&format!("\"{name}\":\""))?;
    rest.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::{Job, ONLY_FULL, said, test_binary};

    #[test]
    fn a_result_names_its_test() {
        let job = Job {
            directory: "/w/crates/plugins".to_owned(),
            program: "/t/it-1".to_owned(),
            name: "tap::vm_a".to_owned(),
        };
        assert_eq!(said("@test PASS 120 plugins tap::vm_a"), Some(job.label()));
        assert_eq!(said("@test of something"), None);
        assert_eq!(said("SKIP tap::vm_a: only with --full"), None);
    }

    #[test]
    fn a_test_of_full_runs_is_counted_as_if_the_machine_had_skipped_it() {
        let job = Job {
            directory: "/w/crates/plugins".to_owned(),
            program: "/t/it-1".to_owned(),
            name: "tap::vm_a".to_owned(),
        };
        let report = crate::vm::report(&job.skipped(ONLY_FULL));
        assert_eq!(report.tests, [("tap::vm_a".to_owned(), true)]);
        let skips: Vec<_> = report.skips.iter().map(|skip| skip.name.as_str()).collect();
        assert_eq!((skips.as_slice(), report.passed, report.failed), (&["tap::vm_a"][..], 0, 0));
        assert_eq!(report.skips[0].reason, "only with --full");
    }

    #[test]
    fn test_binaries_are_found_in_cargos_messages() {
        let message = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/x#netwright-x@0.1.0","manifest_path":"/w/crates/x/Cargo.toml","target":{"kind":["test"],"name":"it"},"profile":{"opt_level":"0","test":true},"features":[],"filenames":["/t/it-1"],"executable":"/t/it-1","fresh":true}"#;
        assert_eq!(test_binary(message), Some(("/w/crates/x", "/t/it-1")));
        assert_eq!(test_binary(&message.replace(r#""test":true"#, r#""test":false"#)), None);
        assert_eq!(
            test_binary(&message.replace(r#""executable":"/t/it-1""#, r#""executable":null"#)),
            None
        );
    }
}
