//! Calls of the executable, and checks of its output.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use testkit::{Lab, Place, Snapshot};

/// The executable under test.
pub(crate) const EXECUTABLE: &str = env!("CARGO_BIN_EXE_netwright");

/// Separate folders for everything the executable keeps.
pub(crate) struct Scratch {
    dir: tempfile::TempDir,
}

/// The outcome of a call.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Scratch { dir: tempfile::Builder::new().prefix("nwt-cli-").tempdir().unwrap() }
    }

    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.dir.path().join(inside)
    }

    /// Writes a file, and the folders above it.
    pub(crate) fn write(&self, inside: &str, text: &str) -> PathBuf {
        let path = self.path(inside);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Replaces the scratch folder's random name, so that tests can compare texts.
    pub(crate) fn plain(&self, text: &str) -> String {
        text.replace(self.dir.path().to_str().unwrap(), "SCRATCH")
    }

    /// A call with an environment of its own, which reads and writes nothing of the machine's.
    #[expect(clippy::disallowed_methods, reason = "the program is what is tested")]
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(EXECUTABLE);
        command.args(args).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        for (variable, inside) in [
            ("NETCONFPATH", "net.d"),
            ("CNI_PATH", "bin"),
            ("NETWRIGHT_RUN_DIR", "run"),
            ("NETWRIGHT_STATE_DIR", "lib"),
            ("NETWRIGHT_CACHE_DIR", "cache"),
        ] {
            command.env(variable, self.path(inside));
        }
        command
    }

    pub(crate) fn call(&self, args: &[&str]) -> CommandOutput {
        said(self.command(args))
    }

    /// A line that is pasted into a shell.
    #[expect(clippy::disallowed_methods, reason = "the line is what is tested")]
    pub(crate) fn shell(&self, line: &str) -> CommandOutput {
        let mut command = Command::new("sh");
        command.args(["-c", line]).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        said(command)
    }
}

/// A call inside a laboratory, with the environment of a person there.
pub(crate) fn command_in(place: &impl Place, args: &[&str]) -> Command {
    let mut command = place.command(EXECUTABLE);
    command.args(args).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

pub(crate) fn call_in(place: &impl Place, args: &[&str]) -> CommandOutput {
    said(command_in(place, args))
}

/// Runs to the end, without input.
pub(crate) fn said(command: Command) -> CommandOutput {
    said_with(command, b"")
}

pub(crate) fn said_with(mut command: Command, input: &[u8]) -> CommandOutput {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that reads nothing may be gone already.
    let _ = child.stdin.take().unwrap().write_all(input);
    of(&child.wait_with_output().unwrap())
}

fn of(output: &Output) -> CommandOutput {
    CommandOutput {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout.clone()).unwrap(),
        stderr: String::from_utf8(output.stderr.clone()).unwrap(),
    }
}

impl CommandOutput {
    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        assert_eq!(self.code, 0, "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn failed(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// Both outputs, standard output first.
    pub(crate) fn both(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// The sorted names in a folder, each with its kind.
pub(crate) fn listing(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).map(|entries| entries.map(Result::unwrap).collect());
    let entries: Vec<std::fs::DirEntry> = entries.unwrap_or_default();
    let mut names: Vec<String> = entries
        .iter()
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            match std::fs::read_link(entry.path()) {
                Ok(target) => format!("{name} -> {}", target.display()),
                Err(_) if entry.path().is_dir() => format!("{name}/"),
                Err(_) => name,
            }
        })
        .collect();
    names.sort();
    names
}

/// What host-local and the cache keep when nothing is attached, as with the reference
/// (docs/files.md, "Address plugins, result cache, backups: formats of others").
const STAYS: [&str; 7] = [
    "files: /var/lib/cni is new",
    "files: /var/lib/cni/networks is new",
    "files: /var/lib/cni/networks/blue is new",
    "files: /var/lib/cni/networks/netwright is new",
    "/last_reserved_ip.",
    "/lock is new",
    "files: /var/lib/cni/results is new",
];

/// Waits until no IPv6 address of the host is under duplicate address detection, which the
/// reference leaves on for its bridge: a comparison must not depend on whether it has ended.
pub(crate) fn wait_for_addresses(lab: &Lab) {
    testkit::wait_for_detection(lab, Duration::from_secs(10));
}

/// Asserts that a laboratory is as before, kernel and files, except for the empty folders of
/// address pools.
#[track_caller]
pub(crate) fn assert_as_before(before: &Snapshot, lab: &Lab) {
    let lines = before.diff(&Snapshot::take(lab));
    let left: Vec<&String> =
        lines.iter().filter(|line| !STAYS.iter().any(|text| line.contains(text))).collect();
    assert!(left.is_empty(), "the host is not as it was: {left:#?}");
}
