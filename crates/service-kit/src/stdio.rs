//! What a process says to the person who called it, on standard output and standard error.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use agent::Problem;

/// Returns every problem as people read it.
pub fn all_of(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("error: {problem}")).collect()
}

/// Returns lines whose cells stand below each other. Other programs and users may have written what is
/// in a cell.
#[must_use]
pub fn columns(lines: &[Vec<String>]) -> String {
    let one_line = |line: &Vec<String>| line.iter().map(cni::text::one_line).collect();
    let lines: Vec<Vec<String>> = lines.iter().map(one_line).collect();
    let count = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default()
    };
    // The last one is as long as it is.
    let widths: Vec<usize> = (0..count.saturating_sub(1)).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(text, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", line.last().map_or("", String::as_str));
    }
    text
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
