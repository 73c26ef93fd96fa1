//! What a process says to the person who called it, on standard output and standard error.

use std::io::Write as _;
use std::process::ExitCode;

use agent::Problem;

/// Returns every problem as people read it.
pub fn all_of(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("error: {problem}")).collect()
}

/// Prints the requested text. A reader that is gone is not an error.
pub fn say(text: &str) -> ExitCode {
    match print(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("write to standard output: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Writes to standard output; a reader that is gone is not an error.
///
/// # Errors
/// What the system says.
pub fn print(text: &str) -> std::io::Result<()> {
    match kernel::stdout::Stdout.write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes to standard error.
pub fn complain(text: &str) {
    let _ = std::io::stderr().write_all(cni::text::system(text).as_bytes());
}
