//! Runs programs with a deadline, and their output in a log.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How long a program may continue after it was asked to stop.
const GRACE: &str = "--kill-after=10";

/// How much of a failed program's output is shown; the log contains all of it.
const TAIL_LINES: usize = 400;

/// The checkout's real path, for a run that sees it elsewhere ([`crate::place`]).
pub(crate) const CHECKOUT: &str = "NETWRIGHT_CHECKOUT";

/// The real path of cargo's target directory, for such a run.
pub(crate) const TARGET: &str = "NETWRIGHT_TARGET";

/// Returns the workspace's root: cargo passes its current path. The compiled-in path is from build
/// time.
pub(crate) fn root() -> PathBuf {
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let own = own.filter(|own| own.ends_with("xtask")).unwrap_or_else(|| compiled.to_owned());
    own.parent().unwrap_or(&own).to_owned()
}

/// Returns the path that a file has outside this run.
pub(crate) fn shown(path: &Path) -> String {
    let outside = env::var_os(TARGET).map(PathBuf::from);
    match (outside, path.strip_prefix(target_dir())) {
        (Some(target), Ok(relative)) => target.join(relative),
        _ => path.to_owned(),
    }
    .display()
    .to_string()
}

/// Where cargo builds.
pub(crate) fn target_dir() -> PathBuf {
    let target =
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root().join(target)
}

/// Returns the folder of this run's logs.
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
    silence: Option<(Duration, LineFilter)>,
    appends: bool,
}

/// Chooses lines.
type LineFilter = fn(&str) -> bool;

impl Program {
    /// A command line; words are split at spaces.
    pub(crate) fn new(line: &str) -> Self {
        let words = line.split_whitespace().map(str::to_owned).collect();
        Self {
            words,
            variables: Vec::new(),
            deadline: Duration::from_secs(900),
            silence: None,
            appends: false,
        }
    }

    /// A program by its path, which may contain spaces.
    pub(crate) fn at(path: &Path) -> Self {
        Self::new("").arg(path.display().to_string())
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

    /// Ends the program when it has written no line that counts for this long
    /// ([`ProgramFailure::is_silent`]).
    pub(crate) fn silence(mut self, silence: Duration, counts: LineFilter) -> Self {
        self.silence = Some((silence, counts));
        self
    }

    /// Appends to its log.
    pub(crate) fn appending(mut self, appends: bool) -> Self {
        self.appends = appends;
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new("timeout");
        command.arg(GRACE).arg(self.deadline.as_secs().to_string()).args(&self.words);
        command.current_dir(root()).stdin(Stdio::null());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Returns its name for messages.
    fn line(&self) -> String {
        self.words.join(" ")
    }

    /// Runs it and returns its standard output. Its standard error is printed.
    pub(crate) fn output(&self) -> Result<String, String> {
        let output = self.command().stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| format!("{}: {error}", self.line()))?;
        if !output.status.success() {
            return Err(format!("`{}` failed ({})", self.line(), output.status));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs it with both outputs in `LOG.log`, prints the lines that `show` chooses, and returns
    /// all of them.
    ///
    /// # Errors
    /// When it fails; the end of the log has been printed.
    pub(crate) fn logged(
        &self,
        log: &str,
        show: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, ProgramFailure> {
        let path = log_dir().map_err(ProgramFailure::message)?.join(format!("{log}.log"));
        let run = || -> std::io::Result<(Vec<String>, ExitStatus, bool)> {
            let mut options = File::options();
            let mut file = options
                .create(true)
                .write(true)
                .append(self.appends)
                .truncate(!self.appends)
                .open(&path)?;
            let (reader, writer) = std::io::pipe()?;
            let mut command = self.command();
            command.stdout(writer.try_clone()?).stderr(writer);
            let mut child = command.spawn()?;
            drop(command); // with it our ends of the pipe
            let (sender, receiver) = mpsc::channel();
            let reading = thread::spawn(move || read_lines(reader, &sender));
            let mut lines = Vec::new();
            let (mut is_silent, mut heard) = (false, Instant::now());
            loop {
                let limit = match self.silence {
                    Some((limit, _)) if !is_silent => limit.saturating_sub(heard.elapsed()),
                    _ => self.deadline * 2,
                };
                let line = match receiver.recv_timeout(limit) {
                    Ok(line) => line,
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        is_silent = true;
                        // `timeout` passes the signal on, and kills a program that does not obey
                        // it.
                        Command::new("kill").arg(child.id().to_string()).status()?;
                        continue;
                    }
                };
                if self.silence.is_none_or(|(_, counts)| counts(&line)) {
                    heard = Instant::now();
                }
                writeln!(file, "{line}")?;
                if show(&line) {
                    println!("{line}");
                }
                lines.push(line);
            }
            reading.join().expect("the reader does not panic")?;
            Ok((lines, child.wait()?, is_silent))
        };
        match run() {
            // A program that was told to end may report success.
            Ok((lines, status, false)) if status.success() => Ok(lines),
            Ok((lines, status, is_silent)) => {
                for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
                    println!("{line}");
                }
                let failed = match status.code() {
                    Some(TIMED_OUT) if !is_silent => {
                        format!("did not end in {} s", self.deadline.as_secs())
                    }
                    _ => "failed".to_owned(),
                };
                let message =
                    format!("`{}` {failed}; its output is in {}", self.line(), shown(&path));
                Err(ProgramFailure { message, lines, is_silent })
            }
            Err(error) => Err(ProgramFailure::message(format!("{}: {error}", self.line()))),
        }
    }
}

/// The exit code of `timeout` when its program did not end in time.
const TIMED_OUT: i32 = 124;

/// A program failed.
#[derive(Debug)]
pub(crate) struct ProgramFailure {
    pub(crate) message: String,
    pub(crate) lines: Vec<String>,
    /// Whether it was ended because it wrote nothing ([`Program::silence`]).
    pub(crate) is_silent: bool,
}

impl ProgramFailure {
    pub(crate) fn message(message: String) -> Self {
        Self { message, lines: Vec::new(), is_silent: false }
    }
}

impl From<ProgramFailure> for String {
    fn from(failed: ProgramFailure) -> Self {
        failed.message
    }
}

/// Sends each line, until there is no more or the receiver is gone.
fn read_lines(reader: impl std::io::Read, sender: &mpsc::Sender<String>) -> std::io::Result<()> {
    let mut reader = BufReader::new(reader);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        bytes.clear();
        if sender.send(line).is_err() {
            break;
        }
    }
    Ok(())
}

/// Shows nothing: for [`Program::logged`].
pub(crate) fn quiet(_: &str) -> bool {
    false
}

/// Returns the triple of this machine, as rustc names it.
pub(crate) fn host_triple() -> Result<String, String> {
    let version = Program::new("rustc --version --verbose").output()?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc --version names no host".to_owned())
}

/// Whether a program is in `PATH`.
pub(crate) fn exists(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::{Command, Duration, Program, env, fs, log_dir, quiet, root};

    /// Set in the process that reports where the checkout is.
    const MOVED: &str = "NWT_TEST_MOVED";

    /// This program may be built in one place and run in another: cargo does not rebuild it for
    /// that.
    #[test]
    fn a_checkout_that_was_moved_is_found_where_it_is() {
        if env::var_os(MOVED).is_some() {
            return assert_eq!(root().to_str(), Some("/somewhere/else"));
        }
        let output = Command::new(env::current_exe().unwrap())
            .args(["--exact", "run::tests::a_checkout_that_was_moved_is_found_where_it_is"])
            .env(MOVED, "1")
            .env("CARGO_MANIFEST_DIR", "/somewhere/else/xtask")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    }

    #[test]
    fn what_writes_nothing_is_ended_and_its_log_goes_on() {
        let log = format!("silence-{}", std::process::id());
        let program = |script: &str| {
            let second = Duration::from_secs(1);
            Program::new("sh -c").arg(script).silence(second, |line| line != "noise")
        };
        let failed = program("echo one; sleep 60; echo two").logged(&log, quiet).unwrap_err();
        assert!(failed.is_silent, "{failed:?}");
        let obeys = program("trap 'exit 0' TERM; sleep 60 & wait").logged(&log, quiet);
        assert!(obeys.unwrap_err().is_silent, "as a virtual machine ends");
        let noisy = program("while :; do echo noise; sleep 0.1; done").logged(&log, quiet);
        assert!(noisy.unwrap_err().is_silent, "a line that does not count is no sign of life");
        let failed = program("echo one; sleep 60; echo two").logged(&log, quiet).unwrap_err();
        assert_eq!(failed.lines, ["one"]);
        let more = program("echo three").appending(true).logged(&log, quiet).unwrap();
        assert_eq!(more, ["three"]);
        let path = log_dir().unwrap().join(format!("{log}.log"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\nthree\n");
        fs::remove_file(path).unwrap();
    }
}
