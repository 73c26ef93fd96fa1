//! The only place in this crate that starts programs.

use std::fs::File;
use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::iptables::{ObservedTable, Restore};
use net::IpFamily;

/// How long `iptables` waits for its lock, in seconds: other programs hold it for one change at a
/// time.
const LOCK_WAIT_S: &str = "10";
/// How long a program may run: longer than its wait for the lock.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Where the programs are when they are not in `PATH`: administrators' folders are often missing
/// from it.
const FOLDERS: [&str; 3] = ["", "/usr/sbin/", "/sbin/"];

/// The programs of one family and kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tool {
    /// The family.
    pub family: IpFamily,
    /// Whether to use `iptables-legacy` instead of the program that the host calls `iptables`.
    pub legacy: bool,
}

/// Why a program of iptables failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IptablesError {
    /// It is not installed.
    #[error("run {program:?}: it is not installed")]
    Missing {
        /// Its name.
        program: String,
    },
    /// It could not be started or its input and output failed.
    #[error("run {command:?}")]
    Run {
        /// The command line.
        command: String,
        /// The failure.
        source: io::Error,
    },
    /// It did not end in time and was killed.
    #[error("run {command:?}: not finished after {} s", TIMEOUT.as_secs())]
    Late {
        /// The command line.
        command: String,
    },
    /// It failed.
    #[error("run {command:?}: {status}: {message}")]
    Failed {
        /// The command line.
        command: String,
        /// Its exit status.
        status: ExitStatus,
        /// Its message, in one line.
        message: String,
    },
}

impl IptablesError {
    /// Says whether the program is not installed at all.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, IptablesError::Missing { .. })
    }
}

impl Tool {
    /// Returns what the host calls `iptables` or `ip6tables`.
    #[must_use]
    pub const fn host(family: IpFamily) -> Tool {
        Tool { family, legacy: false }
    }

    /// Returns the legacy form, which keeps its rules outside nftables.
    #[must_use]
    pub const fn legacy(family: IpFamily) -> Tool {
        Tool { family, legacy: true }
    }

    /// Lists a table: `iptables -t TABLE -S`. A table that legacy iptables does not use is returned
    /// as empty: listing it would make the kernel set it up permanently.
    ///
    /// # Errors
    /// [`IptablesError`].
    pub fn observe(self, table: &str) -> Result<ObservedTable, IptablesError> {
        if self.legacy && !legacy_uses(self.family, table) {
            return Ok(ObservedTable::parse(""));
        }
        let output = run(&self.name(""), &["-w", LOCK_WAIT_S, "-t", table, "-S"], None)?;
        Ok(ObservedTable::parse(&output))
    }

    /// Runs a transaction: `iptables-restore --noflush`.
    ///
    /// # Errors
    /// [`IptablesError`]; nothing has changed then.
    pub fn restore(self, restore: &Restore) -> Result<(), IptablesError> {
        for chain in restore.created() {
            let args = ["-w", LOCK_WAIT_S, "-t", restore.table(), "-N", chain];
            // It may exist by now; if it does not, the next command reports it.
            let _ = run(&self.name(""), &args, None);
        }
        let text = restore.text();
        let args = ["--noflush", "-w", LOCK_WAIT_S];
        run(&self.name("-restore"), &args, Some(&text)).map(drop)
    }

    fn name(self, suffix: &str) -> String {
        let family = match self.family {
            IpFamily::V4 => "iptables",
            IpFamily::V6 => "ip6tables",
        };
        let kind = if self.legacy { "-legacy" } else { "" };
        format!("{family}{kind}{suffix}")
    }
}

/// Says whether legacy iptables uses a table in the caller's namespace.
pub(crate) fn legacy_uses(family: IpFamily, table: &str) -> bool {
    let path = match family {
        IpFamily::V4 => "/proc/thread-self/net/ip_tables_names",
        IpFamily::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    // One page holds all names: there are five at most.
    let mut names = [0; 4096];
    let length = File::open(path).and_then(|mut file| file.read(&mut names)).unwrap_or_default();
    names[..length].split(|byte| *byte == b'\n').any(|name| name == table.as_bytes())
}

/// Runs a program to its end and returns its standard output.
fn run(program: &str, args: &[&str], stdin: Option<&str>) -> Result<String, IptablesError> {
    let command = format!("{program} {}", args.join(" "));
    let failed = |source| IptablesError::Run { command: command.clone(), source };
    let mut child = start(program, args, stdin.is_some())?;
    let (out, err, pipe) = (child.stdout.take(), child.stderr.take(), child.stdin.take());
    let (done, ended) = mpsc::channel();
    // The readers end when the program ends or is killed: its output is closed then.
    let (late, stdout, stderr) = thread::scope(|scope| {
        let stderr = scope.spawn(move || read(err));
        let stdout = scope.spawn(move || {
            let text = read(out);
            // After the timeout the receiver is gone.
            let _ = done.send(());
            text
        });
        scope.spawn(move || {
            if let (Some(mut pipe), Some(text)) = (pipe, stdin) {
                // A program that does not read its input gives the reason on standard error.
                let _ = pipe.write_all(text.as_bytes());
            }
        });
        let late = ended.recv_timeout(TIMEOUT).is_err();
        if late {
            // Fails if it has just ended.
            let _ = child.kill();
        }
        (late, stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default())
    });
    let status = child.wait().map_err(failed)?;
    if late {
        return Err(IptablesError::Late { command });
    }
    if !status.success() {
        let message = stderr.split('\n').filter(|line| !line.is_empty()).collect::<Vec<_>>();
        return Err(IptablesError::Failed { command, status, message: message.join("; ") });
    }
    Ok(stdout)
}

#[expect(clippy::disallowed_methods, reason = "this is the module that executes iptables")]
fn start(program: &str, args: &[&str], input: bool) -> Result<Child, IptablesError> {
    for folder in FOLDERS {
        let started = Command::new(format!("{folder}{program}"))
            .args(args)
            .stdin(if input { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        match started {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Ok(child) => return Ok(child),
            Err(source) => {
                let command = format!("{program} {}", args.join(" "));
                return Err(IptablesError::Run { command, source });
            }
        }
    }
    Err(IptablesError::Missing { program: program.to_owned() })
}

fn read(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What could be read counts.
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
