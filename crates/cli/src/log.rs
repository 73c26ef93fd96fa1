//! Logs what happens, in lines on standard error, if asked to: `NETWRIGHT_LOG=debug`.
//!
//! Logs are off by default: a plugin's standard error ends up in its runtime's log. `info` is one
//! line per call, `debug` each change of the kernel, with the attachment for which it is made.

use std::ffi::OsStr;
use std::io;

use tracing::level_filters::LevelFilter;

/// The variable that switches logs on.
pub(crate) const VARIABLE: &str = "NETWRIGHT_LOG";

/// Starts logging if the variable's value says so. Reports a value that it does not understand, and
/// continues.
pub(crate) fn start(value: Option<&OsStr>) {
    let Some(level) = value.filter(|value| !value.is_empty()).map(level) else { return };
    let subscriber = tracing_subscriber::fmt()
        .with_writer(|| EscapedStderr)
        .with_ansi(false)
        .with_target(false)
        .with_max_level(level.unwrap_or(LevelFilter::INFO))
        .finish();
    // Only once per process: nothing else sets one.
    let _ = tracing::subscriber::set_global_default(subscriber);
    if level.is_none() {
        tracing::warn!("{VARIABLE} must be error, warn, info, debug or trace; info is used");
    }
}

/// Standard error, escaped so that a terminal obeys nothing that other programs wrote.
struct EscapedStderr;

impl io::Write for EscapedStderr {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = cni::text::lines(String::from_utf8_lossy(event));
        io::stderr().write_all(text.as_bytes()).map(|()| event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Reads a level's name.
fn level(value: &OsStr) -> Option<LevelFilter> {
    value.to_str().and_then(|text| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels() {
        assert_eq!(level("debug".as_ref()), Some(LevelFilter::DEBUG));
        assert_eq!(level("WARN".as_ref()), Some(LevelFilter::WARN));
        assert_eq!(level("loud".as_ref()), None);
    }
}
