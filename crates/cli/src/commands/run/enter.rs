//! The last step before the command: a process that dies with `netwright run`.
//!
//! Between fork and exec no code of ours may run (it would be unsafe). So the executable starts
//! itself under another name, sets what a child must set for itself, and becomes the command.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode};

use cni::code;
use kernel::cover;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::{EXIT_NO_NETWORK, EXIT_NOT_FOUND, EXIT_NOT_STARTED, Start, resolv};
use crate::dispatch::ENTER;
use crate::failure::Failure;
use crate::shell::{Format, Shell};

/// The form of the error when the command cannot be started.
const JSON: &str = "json";
const TEXT: &str = "text";

/// Starts the command in the namespace of the calling thread. The kernel kills it when that thread
/// ends.
#[expect(clippy::disallowed_methods, reason = "running a command is what `run` is for")]
pub(super) fn spawn(start: &Start) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg0(ENTER)
        .arg(std::process::id().to_string())
        .arg(if start.format == Format::Json { JSON } else { TEXT })
        .arg(start.resolv.as_deref().unwrap_or_default())
        .arg(&start.beside)
        .args(&start.command)
        .spawn()
}

/// Becomes the command. The first argument is the process ID of `netwright run`, the second the
/// form of errors, the third the content of the command's own resolv.conf if it has one, the fourth a
/// folder of ours.
#[expect(clippy::disallowed_methods, reason = "running a command is what `run` is for")]
pub(crate) fn enter(arguments: &[OsString], shell: &mut Shell) -> ExitCode {
    let [parent, format, resolv, beside, program, rest @ ..] = arguments else {
        return ExitCode::from(EXIT_NO_NETWORK);
    };
    let parent = parent.to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
    // If the parent is gone already, its death will send no signal.
    if set_parent_process_death_signal(Some(Signal::KILL)).is_err() || getppid() != parent {
        return ExitCode::from(EXIT_NO_NETWORK);
    }
    if format == JSON {
        shell.format = Format::Json;
    }
    if !resolv.is_empty() {
        let (file, beside) = (Path::new(resolv::FILE), Path::new(beside));
        if let Err(error) = cover::cover_file(file, resolv.as_bytes(), beside) {
            let why = cni::Error::from_chain(code::IO_FAILURE, &error).msg;
            shell.warn(format_args!(
                "the command does not have the name servers that were chosen for it: {why}"
            ));
        }
    }
    let error = Command::new(program).args(rest).exec();
    let failure = Failure::new(code::IO_FAILURE, format!("run {program:?}"));
    shell.fail(&failure.because(&error));
    let missing = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    ExitCode::from(if missing { EXIT_NOT_FOUND } else { EXIT_NOT_STARTED })
}
