//! The flags, as the reference's daemon has them: Go's flag package reads them.
//!
//! One dash or two, the value apart or after `=`; a switch takes its value only after `=`. Durations are Go's: `10s`,
//! `1m30s`, `500ms`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// What the reference's daemon has when nobody says otherwise.
const SOCKET: &str = "/run/cni/dhcp.sock";
const TIMEOUT: Duration = Duration::from_secs(10);
const RESEND_MAX: Duration = Duration::from_secs(62);
const RESEND_TIMEOUT: Duration = Duration::from_secs(208);

/// What is printed for `-help`.
pub(crate) const HELP: &str = "\
Usage: netwrightd dhcp [FLAG…]      (also: netwright dhcp daemon, dhcp daemon)

Keeps DHCP leases for the CNI plugin dhcp. See docs/dhcp.md.

  -broadcast                 ask servers to broadcast their replies
  -hostprefix DIR            put DIR before the socket's path and every namespace's
  -pidfile FILE              write the process ID there, and remove it at the end; absolute
  -resendmax DURATION        the longest wait before a message is sent again (default 1m2s)
  -resendtimeout DURATION    how long to try for a lease before ADD fails (default 3m28s)
  -socketpath PATH           where to listen (default /run/cni/dhcp.sock)
  -state DIR                 where leases are kept (default /var/lib/netwright/dhcp)
  -timeout DURATION          the wait before a message is sent again for the first time (default 10s, of which 4s are used)

One dash or two, values apart or after `=`. Durations: 10s, 1m30s, 500ms.
";

/// The flags, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) broadcast: bool,
    pub(crate) host_prefix: PathBuf,
    pub(crate) pid_file: Option<PathBuf>,
    pub(crate) resend_max: Duration,
    pub(crate) resend_timeout: Duration,
    pub(crate) socket: PathBuf,
    pub(crate) state: Option<PathBuf>,
    pub(crate) timeout: Duration,
}

impl Default for Flags {
    fn default() -> Self {
        Flags {
            broadcast: false,
            host_prefix: PathBuf::new(),
            pid_file: None,
            resend_max: RESEND_MAX,
            resend_timeout: RESEND_TIMEOUT,
            socket: SOCKET.into(),
            state: None,
            timeout: TIMEOUT,
        }
    }
}

/// Why there are no flags.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum FlagError {
    #[error("help was asked for")]
    Help,
    #[error("flag provided but not defined: -{0}")]
    Unknown(String),
    #[error("flag needs an argument: -{0}")]
    NoValue(String),
    #[error("invalid value {value:?} for flag -{flag}: {reason}")]
    Invalid { flag: String, value: String, reason: &'static str },
    #[error("unexpected argument {0:?}")]
    Argument(String),
    #[error("Error writing pidfile {0:?}: path not absolute")]
    PidFile(String),
}

impl Flags {
    /// Reads the arguments behind the service's name.
    pub(crate) fn parse(arguments: &[OsString]) -> Result<Self, FlagError> {
        let mut flags = Flags::default();
        let mut rest = arguments.iter().map(|text| text.to_string_lossy().into_owned());
        while let Some(argument) = rest.next() {
            let Some(flag) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-'))
            else {
                return Err(FlagError::Argument(argument));
            };
            let (name, given) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            if name == "broadcast" {
                flags.broadcast = match given {
                    None => true,
                    Some(value) => switch(&value).ok_or_else(|| FlagError::Invalid {
                        flag: name.to_owned(),
                        value,
                        reason: "not true or false",
                    })?,
                };
                continue;
            }
            if matches!(name, "h" | "help") {
                return Err(FlagError::Help);
            }
            if !VALUED.contains(&name) {
                return Err(FlagError::Unknown(name.to_owned()));
            }
            let value =
                given.or_else(|| rest.next()).ok_or_else(|| FlagError::NoValue(name.to_owned()))?;
            flags.set(name, value)?;
        }
        Ok(flags)
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), FlagError> {
        let time = |value: String| {
            duration(&value).ok_or_else(|| FlagError::Invalid {
                flag: name.to_owned(),
                value,
                reason: "not a duration such as 10s or 1m30s",
            })
        };
        match name {
            "hostprefix" => self.host_prefix = value.into(),
            "pidfile" if value.is_empty() => self.pid_file = None,
            "pidfile" if !value.starts_with('/') => return Err(FlagError::PidFile(value)),
            "pidfile" => self.pid_file = Some(value.into()),
            "socketpath" if value.is_empty() => self.socket = SOCKET.into(),
            "socketpath" => self.socket = value.into(),
            "state" => {
                self.state =
                    Some(value.into()).filter(|path: &PathBuf| !path.as_os_str().is_empty());
            }
            "timeout" => self.timeout = time(value)?,
            "resendmax" => self.resend_max = time(value)?,
            _ => self.resend_timeout = time(value)?,
        }
        Ok(())
    }

    /// Puts the prefix before a path of the host's.
    pub(crate) fn on_host(&self, path: &std::path::Path) -> PathBuf {
        if self.host_prefix.as_os_str().is_empty() {
            return path.to_owned();
        }
        self.host_prefix.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// The flags that take a value.
const VALUED: [&str; 7] =
    ["hostprefix", "pidfile", "socketpath", "state", "timeout", "resendmax", "resendtimeout"];

/// Go's strconv.ParseBool.
fn switch(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Go's time.ParseDuration, without negative ones: numbers, perhaps with a fraction, each with its unit.
pub(crate) fn duration(text: &str) -> Option<Duration> {
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

    fn parse(line: &str) -> Result<Flags, FlagError> {
        let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        Flags::parse(&arguments)
    }

    #[test]
    fn as_go_reads_them() {
        assert_eq!(parse("").unwrap(), Flags::default());
        let flags = parse(
            "-pidfile /run/d.pid --hostprefix=/host -socketpath /s -broadcast -timeout 2s --resendmax=1m30s -resendtimeout 500ms --state /st",
        )
        .unwrap();
        let want = Flags {
            broadcast: true,
            host_prefix: "/host".into(),
            pid_file: Some("/run/d.pid".into()),
            resend_max: Duration::from_secs(90),
            resend_timeout: Duration::from_millis(500),
            socket: "/s".into(),
            state: Some("/st".into()),
            timeout: Duration::from_secs(2),
        };
        assert_eq!(flags, want);
        assert_eq!(flags.on_host("/run/netns/a".as_ref()), PathBuf::from("/host/run/netns/a"));
        assert!(!parse("-broadcast=false").unwrap().broadcast);
        assert_eq!(parse("-timeout 1.5h").unwrap().timeout, Duration::from_secs(5400));
        assert_eq!(parse("-timeout 0").unwrap().timeout, Duration::ZERO);
    }

    #[test]
    fn what_is_wrong_is_said_in_gos_words() {
        let text = |line: &str| parse(line).unwrap_err().to_string();
        assert_eq!(text("-port 7"), "flag provided but not defined: -port");
        assert_eq!(text("-timeout"), "flag needs an argument: -timeout");
        assert_eq!(text("start"), "unexpected argument \"start\"");
        assert_eq!(text("-pidfile d.pid"), "Error writing pidfile \"d.pid\": path not absolute");
        for bad in ["10", "s", "1x", "-1s", "1..s"] {
            assert!(text(&format!("-timeout {bad}")).starts_with("invalid value"), "{bad}");
        }
        assert_eq!(parse("-h"), Err(FlagError::Help));
    }
}
