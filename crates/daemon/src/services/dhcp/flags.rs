//! The flags, as the reference's daemon has them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use node_api::dhcp::SOCKET;

use super::super::arguments::{Arguments, FlagError};

/// The defaults of the reference's daemon.
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

impl Flags {
    /// Reads the arguments after the service's name.
    pub(super) fn parse(arguments: &[OsString]) -> Result<Self, FlagError> {
        let mut flags = Flags::default();
        let mut arguments = Arguments::new(arguments);
        while let Some(name) = arguments.next()? {
            match name.as_str() {
                "broadcast" => flags.broadcast = arguments.switch()?,
                "hostprefix" => flags.host_prefix = arguments.value()?.into(),
                "pidfile" => flags.pid_file = pid_file(arguments.value()?)?,
                "socketpath" => {
                    let path = Some(arguments.value()?).filter(|path| !path.is_empty());
                    flags.socket = path.map_or_else(|| SOCKET.into(), PathBuf::from);
                }
                "state" => {
                    let path = Some(arguments.value()?).filter(|path| !path.is_empty());
                    flags.state = path.map(PathBuf::from);
                }
                "timeout" => flags.timeout = arguments.duration()?,
                "resendmax" => flags.resend_max = arguments.duration()?,
                "resendtimeout" => flags.resend_timeout = arguments.duration()?,
                _ => return Err(FlagError::Unknown(name)),
            }
        }
        Ok(flags)
    }

    /// Puts the prefix before a path on the host.
    pub(crate) fn on_host(&self, path: &std::path::Path) -> PathBuf {
        if self.host_prefix.as_os_str().is_empty() {
            return path.to_owned();
        }
        self.host_prefix.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// Reads the path of the PID file; an empty path means none.
fn pid_file(path: String) -> Result<Option<PathBuf>, FlagError> {
    match path {
        path if path.is_empty() => Ok(None),
        path if path.starts_with('/') => Ok(Some(path.into())),
        path => Err(FlagError::PidFile(path)),
    }
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
        assert_eq!(parse("-pidfile= -socketpath= -state=").unwrap(), Flags::default());
    }

    #[test]
    fn what_is_wrong_is_said_in_gos_words() {
        let text = |line: &str| parse(line).unwrap_err().to_string();
        assert_eq!(text("-port 7"), "flag provided but not defined: -port");
        assert_eq!(text("-timeout"), "flag needs an argument: -timeout");
        assert_eq!(text("-pidfile d.pid"), "Error writing pidfile \"d.pid\": path not absolute");
    }
}
