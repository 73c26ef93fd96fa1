//! Chooses which tests run in the virtual machine.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::MARK;
use crate::musl::Linked;
use crate::run::root;

/// Building all tests on a small machine.
const BUILD: Duration = Duration::from_secs(900);

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
    let messages = Linked::prepare()?.tests(&line).deadline(BUILD).output()?;
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
    use super::{Job, said, test_binary};

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
