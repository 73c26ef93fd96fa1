//! The flags.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use cni_invoke::PLUGIN_DIRS;

use super::super::arguments::{Arguments, FlagError};

/// What is printed for `-help`.
pub(crate) const HELP: &str = "\
Usage: netwrightd docker [FLAG…]

Makes CNI networks into Docker networks: a network and IPAM driver named netwright. See docs/docker.md.

  -cachedir DIR      where attachments are recorded (default /var/lib/cni)
  -confdir DIR       where network lists are (default /etc/cni/net.d)
  -pluginpath DIRS   where plugins are, separated by colons
                     (default /opt/cni/bin:/usr/lib/cni:/usr/libexec/cni)
  -socketpath PATH   where to listen (default /run/docker/plugins/netwright.sock)
  -state DIR         where networks and endpoints are recorded (default /var/lib/netwright/docker)
  -timeout SECONDS   how long the plugins of a network may take (default 10)

One dash or two, values apart or after `=`.
";

const SOCKET: &str = "/run/docker/plugins/netwright.sock";
/// Most plugins take milliseconds; dhcp, which waits for a server, takes seconds.
const TIMEOUT_S: u64 = 10;
/// The longest timeout that can be set: Docker's user waits for it.
const MAX_TIMEOUT_S: u64 = 300;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) cache_dir: PathBuf,
    pub(crate) conf_dir: PathBuf,
    pub(crate) timeout: Duration,
    pub(crate) plugin_path: Vec<PathBuf>,
    pub(crate) socket: PathBuf,
    pub(crate) state: Option<PathBuf>,
}

impl Default for Flags {
    fn default() -> Self {
        Flags {
            cache_dir: cni_runtime::DEFAULT_CACHE_DIR.into(),
            conf_dir: "/etc/cni/net.d".into(),
            timeout: Duration::from_secs(TIMEOUT_S),
            plugin_path: PLUGIN_DIRS.map(PathBuf::from).to_vec(),
            socket: SOCKET.into(),
            state: None,
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
                "cachedir" => flags.cache_dir = arguments.value()?.into(),
                "confdir" => flags.conf_dir = arguments.value()?.into(),
                "pluginpath" => flags.plugin_path = paths(&arguments.value()?),
                "socketpath" => flags.socket = arguments.value()?.into(),
                "state" => flags.state = Some(arguments.value()?.into()),
                // `-patience` is the old name.
                "timeout" | "patience" => {
                    let wanted = format!("a number of seconds from 1 to {MAX_TIMEOUT_S}");
                    let seconds =
                        |text: &str| text.parse().ok().filter(|s| (1..=MAX_TIMEOUT_S).contains(s));
                    flags.timeout = Duration::from_secs(arguments.value_of(&wanted, seconds)?);
                }
                _ => return Err(FlagError::Unknown(name)),
            }
        }
        Ok(flags)
    }
}

fn paths(text: &str) -> Vec<PathBuf> {
    std::env::split_paths(text).filter(|path| !path.as_os_str().is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags, FlagError> {
        let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        Flags::parse(&arguments)
    }

    #[test]
    fn both_ways_of_writing() {
        assert_eq!(parse("").unwrap(), Flags::default());
        let flags = parse("-socketpath /s --state=/st -timeout 3 -pluginpath /a:/b").unwrap();
        assert_eq!(flags.socket, PathBuf::from("/s"));
        assert_eq!(flags.state, Some("/st".into()));
        assert_eq!(flags.timeout, Duration::from_secs(3));
        assert_eq!(flags.plugin_path, [PathBuf::from("/a"), "/b".into()]);
        assert_eq!(parse("-patience 3").unwrap().timeout, Duration::from_secs(3));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let text = |line: &str| parse(line).unwrap_err().to_string();
        assert_eq!(text("-port 7"), "flag provided but not defined: -port");
        assert_eq!(text("-state"), "flag needs an argument: -state");
        for bad in ["0", "301", "x"] {
            assert!(text(&format!("-timeout {bad}")).starts_with("invalid value"), "{bad}");
        }
    }
}
