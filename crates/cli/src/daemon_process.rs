//! Becomes the daemon, a separate program beside this one.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

/// The daemon's executable, in this executable's folder.
pub(crate) const DAEMON: &str = "netwrightd";

/// The exit code of shells when a program is not found.
const NOT_FOUND: u8 = 127;

/// Replaces this process by a service of the daemon. It keeps its process ID and open descriptors,
/// as service managers that pass in sockets need.
pub(crate) fn become_it(service: &str, arguments: &[OsString]) -> ExitCode {
    let own = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let daemon = own.with_file_name(DAEMON);
    #[expect(clippy::disallowed_methods, reason = "no program is run: this one becomes the daemon")]
    let error = Command::new(&daemon).arg(service).args(arguments).exec();
    let text = format!(
        "netwright: start {}: {error}\nhint: `netwright install` puts it there, if it was beside the executable that installs\n",
        daemon.display()
    );
    // Ignore write errors: there is no other place to report them.
    let _ = std::io::stderr().write_all(text.as_bytes());
    ExitCode::from(NOT_FOUND)
}
