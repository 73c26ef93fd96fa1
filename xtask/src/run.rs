//! Running programs: with a deadline, their output in a log.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long a program may go on after it was asked to stop.
const GRACE: &str = "--kill-after=10";

/// How much of a failed program's output is shown; the log has all of it.
const TAIL_LINES: usize = 400;

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

/// Where cargo builds.
pub(crate) fn target_dir() -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root().join(target)
}

/// Where logs of this run go.
pub(crate) fn log_dir() -> Result<PathBuf, String> {
    let dir = target_dir().join("ci");
    fs::create_dir_all(&dir).map_err(|error| format!("create {}: {error}", dir.display()))?;
    Ok(dir)
}

/// A program to run in the workspace's root.
#[derive(Debug)]
pub(crate) struct Program {
    words: Vec<String>,
    variables: Vec<(String, String)>,
    deadline: Duration,
}

impl Program {
    /// A command line; words are split at spaces.
    pub(crate) fn new(line: &str) -> Self {
        let words = line.split_whitespace().map(str::to_owned).collect();
        Self { words, variables: Vec::new(), deadline: Duration::from_secs(900) }
    }

    pub(crate) fn arg(mut self, arg: impl Into<String>) -> Self {
        self.words.push(arg.into());
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new("timeout");
        command.arg(GRACE).arg(self.deadline.as_secs().to_string()).args(&self.words);
        command.current_dir(root()).stdin(Stdio::null());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// What it is called in messages.
    fn line(&self) -> String {
        self.words.join(" ")
    }

    /// Runs it and returns its standard output. Its standard error is shown.
    pub(crate) fn output(&self) -> Result<String, String> {
        let output = self.command().stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| format!("{}: {error}", self.line()))?;
        if !output.status.success() {
            return Err(format!("`{}` failed ({})", self.line(), output.status));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs it with both outputs in `LOG.log`, shows the lines that `show` chooses, and returns all of them.
    ///
    /// # Errors
    /// When it fails: the end of the log has been shown then.
    pub(crate) fn logged(
        &self,
        log: &str,
        show: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, Failed> {
        let path = log_dir().map_err(Failed::message)?.join(format!("{log}.log"));
        let run = || -> std::io::Result<(Vec<String>, bool)> {
            let mut file = File::create(&path)?;
            let (reader, writer) = std::io::pipe()?;
            let mut command = self.command();
            command.stdout(writer.try_clone()?).stderr(writer);
            let mut child = command.spawn()?;
            drop(command); // with it our ends of the pipe
            let mut lines = Vec::new();
            let mut reader = BufReader::new(reader);
            let mut bytes = Vec::new();
            while reader.read_until(b'\n', &mut bytes)? > 0 {
                let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
                bytes.clear();
                writeln!(file, "{line}")?;
                if show(&line) {
                    println!("{line}");
                }
                lines.push(line);
            }
            Ok((lines, child.wait()?.success()))
        };
        match run() {
            Ok((lines, true)) => Ok(lines),
            Ok((lines, false)) => {
                for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
                    println!("{line}");
                }
                let message =
                    format!("`{}` failed; its output is in {}", self.line(), path.display());
                Err(Failed { message, lines })
            }
            Err(error) => Err(Failed::message(format!("{}: {error}", self.line()))),
        }
    }
}

/// A program failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) message: String,
    pub(crate) lines: Vec<String>,
}

impl Failed {
    pub(crate) fn message(message: String) -> Self {
        Self { message, lines: Vec::new() }
    }
}

impl From<Failed> for String {
    fn from(failed: Failed) -> Self {
        failed.message
    }
}

/// Shows nothing: for [`Program::logged`].
pub(crate) fn quiet(_: &str) -> bool {
    false
}

/// The triple of this machine, as rustc calls it.
pub(crate) fn host_triple() -> Result<String, String> {
    let version = Program::new("rustc --version --verbose").output()?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc --version names no host".to_owned())
}

/// Whether a program is on the path.
pub(crate) fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
