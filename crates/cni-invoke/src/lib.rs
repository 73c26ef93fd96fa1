#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod exec;
mod find;
mod mixed;
mod outcome;
mod script;
mod trust;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use exec::Exec;
pub use find::{FindError, find, find_own};
pub use mixed::{Builtin, MixedExecutor};
pub use script::{executable_of, script_of};
pub use trust::{Distrust, REQUIRE_TRUSTED_PLUGINS, Reason, distrust};

/// The folders in which distributions install plugins: the default search path.
pub const PLUGIN_DIRS: [&str; 3] = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];

/// The input of a plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The protocol's environment.
    pub env: cni::CallEnv,
    /// The configuration, on standard input.
    pub stdin: Vec<u8>,
}

/// The output of a plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Standard output: one JSON object, or nothing.
    pub stdout: Vec<u8>,
    /// Standard error: free text.
    pub stderr: Vec<u8>,
    /// How the plugin ended.
    pub status: Status,
}

/// How a plugin ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Status {
    /// With exit code 0.
    #[default]
    Success,
    /// With another exit code.
    Exit(i32),
    /// By a signal.
    Signal(i32),
}

/// Formats the status as Go does, because failure texts of the reference library end with it.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Success => f.write_str("exit status 0"),
            Status::Exit(code) => write!(f, "exit status {code}"),
            Status::Signal(signal) => match go_signal_name(*signal) {
                Some(name) => write!(f, "signal: {name}"),
                None => write!(f, "signal: signal {signal}"),
            },
        }
    }
}

/// Names a signal as Go does (src/syscall/zerrors_linux_amd64.go).
fn go_signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        _ => return None,
    })
}

/// Calls plugins.
pub trait Executor: fmt::Debug + Send + Sync {
    /// Calls the plugin at a path and waits for its end, at the latest until `deadline`.
    ///
    /// A failure of the plugin itself is not an error here; see [`Output::into_stdout`].
    ///
    /// # Errors
    /// [`InvokeError`] when the plugin could not be started or did not end in time.
    fn call(
        &self,
        executable: &Path,
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<Output, InvokeError>;

    /// Says whether a path leads to the program that calls, as one of its own plugins.
    fn is_own(&self, executable: &Path) -> bool {
        let _ = executable;
        false
    }
}

impl<E: Executor + ?Sized> Executor for &E {
    fn call(
        &self,
        executable: &Path,
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<Output, InvokeError> {
        (**self).call(executable, request, deadline)
    }

    fn is_own(&self, executable: &Path) -> bool {
        (**self).is_own(executable)
    }
}

/// The reason why a plugin did not run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvokeError {
    /// The process could not be started.
    #[error("start plugin {executable:?}")]
    Start {
        /// The executable.
        executable: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Its pipes failed.
    #[error("talk to plugin {executable:?}")]
    Talk {
        /// The executable.
        executable: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// It was killed because its time was up.
    #[error("plugin {executable:?} did not finish within {allowed:?} and was killed")]
    Deadline {
        /// The executable.
        executable: PathBuf,
        /// How long it had.
        allowed: Duration,
    },
    /// A user other than root can change it, and the administrator does not allow that.
    #[error("plugin {executable:?} is not run: {}", listed(.why))]
    Untrusted {
        /// The executable.
        executable: PathBuf,
        /// What others can change.
        why: Vec<Distrust>,
    },
    /// It wrote more than any result needs.
    #[error("plugin {executable:?} wrote more than {limit} bytes and was killed")]
    TooMuchOutput {
        /// The executable.
        executable: PathBuf,
        /// The limit.
        limit: usize,
    },
}

fn listed(why: &[Distrust]) -> String {
    why.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl InvokeError {
    /// Returns the error object for it: code 11 when a retry can help, 5 otherwise.
    #[must_use]
    pub fn to_cni(&self) -> cni::Error {
        let code = match self {
            InvokeError::Deadline { .. } => cni::code::TRY_AGAIN_LATER,
            // Another process is installing it.
            InvokeError::Start { source, .. }
                if source.kind() == io::ErrorKind::ExecutableFileBusy =>
            {
                cni::code::TRY_AGAIN_LATER
            }
            _ => cni::code::IO_FAILURE,
        };
        cni::Error::from_chain(code, self)
    }
}
