//! Reads the flags of every service as Go's flag package does, which the reference's daemon uses.
//!
//! A flag has one dash or two; its value follows as the next argument or after `=`. A switch takes
//! its value only after `=`. Durations are written as in Go: `10s`, `1m30s`, `500ms`.

use std::ffi::OsString;
use std::time::Duration;

use thiserror::Error;

use super::Stop;

/// Why the flags cannot be read, in Go's words.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum FlagError {
    #[error("help was asked for")]
    Help,
    #[error("flag provided but not defined: -{0}")]
    Unknown(String),
    #[error("flag needs an argument: -{0}")]
    NoValue(String),
    #[error("invalid value {value:?} for flag -{flag}: {reason}")]
    Invalid { flag: String, value: String, reason: String },
    #[error("unexpected argument {0:?}")]
    Argument(String),
    #[error("Error writing pidfile {0:?}: path not absolute")]
    PidFile(String),
}

impl From<FlagError> for Stop {
    fn from(error: FlagError) -> Self {
        match error {
            FlagError::Help => Stop::Help,
            error => Stop::Usage(error.to_string()),
        }
    }
}

/// The arguments after a service's name, flag by flag.
#[derive(Debug)]
pub(super) struct Arguments {
    rest: std::vec::IntoIter<String>,
    name: String,
    /// The value after the flag's `=`.
    given: Option<String>,
}

impl Arguments {
    pub(super) fn new(arguments: &[OsString]) -> Self {
        let texts: Vec<_> =
            arguments.iter().map(|text| text.to_string_lossy().into_owned()).collect();
        Arguments { rest: texts.into_iter(), name: String::new(), given: None }
    }

    /// Moves to the next flag and returns its name.
    pub(super) fn next(&mut self) -> Result<Option<String>, FlagError> {
        let Some(argument) = self.rest.next() else { return Ok(None) };
        let flag = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-'));
        let Some(flag) = flag else { return Err(FlagError::Argument(argument)) };
        let (name, given) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        if matches!(name, "h" | "help") {
            return Err(FlagError::Help);
        }
        (self.name, self.given) = (name.to_owned(), given);
        Ok(Some(self.name.clone()))
    }

    pub(super) fn value(&mut self) -> Result<String, FlagError> {
        let value = self.given.take().or_else(|| self.rest.next());
        value.ok_or_else(|| FlagError::NoValue(self.name.clone()))
    }

    /// Returns the flag's value as `read` reads it; if `read` cannot, the error says that it is not
    /// `wanted`.
    pub(super) fn value_of<T>(
        &mut self,
        wanted: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, FlagError> {
        let value = self.value()?;
        read(&value).ok_or_else(|| FlagError::Invalid {
            flag: self.name.clone(),
            value,
            reason: format!("not {wanted}"),
        })
    }

    /// Says whether a switch is on.
    pub(super) fn switch(&mut self) -> Result<bool, FlagError> {
        if self.given.is_none() {
            return Ok(true);
        }
        self.value_of("true or false", switch)
    }

    pub(super) fn duration(&mut self) -> Result<Duration, FlagError> {
        self.value_of("a duration such as 10s or 1m30s", duration)
    }
}

/// Go's strconv.ParseBool.
fn switch(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Go's time.ParseDuration without negative durations: numbers, perhaps with a fraction, each with
/// its unit.
fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let after = &rest[end..];
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let unit = match &after[..unit_end] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        seconds += number * unit;
        rest = &after[unit_end..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Arguments {
        Arguments::new(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_value_stands_apart_or_behind_an_equals_sign() {
        let mut all = arguments("-a 1 --b=2 -c --d=false -e 1m30s");
        assert_eq!(all.next().unwrap().as_deref(), Some("a"));
        assert_eq!(all.value().unwrap(), "1");
        assert_eq!(all.next().unwrap().as_deref(), Some("b"));
        assert_eq!(all.value().unwrap(), "2");
        assert_eq!(all.next().unwrap().as_deref(), Some("c"));
        assert!(all.switch().unwrap());
        assert_eq!(all.next().unwrap().as_deref(), Some("d"));
        assert!(!all.switch().unwrap());
        assert_eq!(all.next().unwrap().as_deref(), Some("e"));
        assert_eq!(all.duration().unwrap(), Duration::from_secs(90));
        assert_eq!(all.next().unwrap(), None);
    }

    #[test]
    fn what_is_wrong_is_said_in_gos_words() {
        assert_eq!(arguments("-h").next(), Err(FlagError::Help));
        let text = arguments("start").next().unwrap_err().to_string();
        assert_eq!(text, "unexpected argument \"start\"");
        let value = |line: &str| {
            let mut all = arguments(line);
            all.next().unwrap();
            all.duration().map_err(|error| error.to_string())
        };
        assert_eq!(value("-t"), Err("flag needs an argument: -t".to_owned()));
        assert_eq!(value("-t 0"), Ok(Duration::ZERO));
        assert_eq!(value("-t 1.5h"), Ok(Duration::from_secs(5400)));
        for bad in ["10", "s", "1x", "-1s", "1..s"] {
            assert!(value(&format!("-t {bad}")).unwrap_err().starts_with("invalid value"), "{bad}");
        }
    }
}
