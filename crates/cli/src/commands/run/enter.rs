//! The last step before the command: a process that dies with `netwright run`.
//!
//! Between fork and exec no code of ours may run (it would be unsafe). So the executable starts
//! itself under another name, sets what a child must set for itself, and becomes the command.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};

use cni::code;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::{EXIT_NO_NETWORK, EXIT_NOT_FOUND, EXIT_NOT_STARTED};
use crate::dispatch::ENTER;
use crate::failure::Failure;
use crate::shell::{Format, Shell};

/// The form of the error when the command cannot be started.
const JSON: &str = "json";
const TEXT: &str = "text";

/// Starts the command in the namespace of the calling thread. The kernel kills it when that thread
/// ends.
#[expect(clippy::disallowed_methods, reason = "running a command is what `run` is for")]
pub(super) fn spawn(command: &[OsString], format: Format) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg0(ENTER)
        .arg(std::process::id().to_string())
        .arg(if format == Format::Json { JSON } else { TEXT })
        .args(command)
        .spawn()
}

/// Becomes the command. The first argument is the process ID of `netwright run`, the second the
/// form of errors.
#[expect(clippy::disallowed_methods, reason = "running a command is what `run` is for")]
pub(crate) fn enter(arguments: &[OsString], shell: &mut Shell) -> ExitCode {
    let [parent, format, program, rest @ ..] = arguments else {
        return ExitCode::from(EXIT_NO_NETWORK);
    };
    let parent = parent.to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
    // If the parent is gone already, its death will send no signal.
    if set_parent_process_death_signal(Some(Signal::KILL)).is_err() || getppid() != parent {
        return ExitCode::from(EXIT_NO_NETWORK);
    }
    let error = Command::new(program).args(rest).exec();
    if format == JSON {
        shell.format = Format::Json;
    }
    let failure = Failure::new(code::IO_FAILURE, format!("run {program:?}"));
    shell.fail(&failure.because(&error));
    let missing = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    ExitCode::from(if missing { EXIT_NOT_FOUND } else { EXIT_NOT_STARTED })
}
