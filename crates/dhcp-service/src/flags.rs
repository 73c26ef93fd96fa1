//! The settings, as the reference's daemon has them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agent::config::Dhcp;

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

impl From<&Dhcp> for Flags {
    fn from(of: &Dhcp) -> Self {
        Flags {
            broadcast: of.broadcast,
            host_prefix: of.hostprefix.clone().unwrap_or_default(),
            pid_file: of.pidfile.clone(),
            resend_max: of.resendmax,
            resend_timeout: of.resendtimeout,
            socket: of.socketpath.clone(),
            state: of.state.clone(),
            timeout: of.timeout,
        }
    }
}

impl Flags {
    /// Puts the prefix before a path on the host.
    pub(crate) fn on_host(&self, path: &Path) -> PathBuf {
        if self.host_prefix.as_os_str().is_empty() {
            return path.to_owned();
        }
        self.host_prefix.join(path.strip_prefix("/").unwrap_or(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_goes_before_every_path() {
        let of = Dhcp { hostprefix: Some("/host".into()), ..Dhcp::default() };
        let flags = Flags::from(&of);
        assert_eq!(flags.on_host("/run/netns/a".as_ref()), PathBuf::from("/host/run/netns/a"));
        let without = Flags::from(&Dhcp::default());
        assert_eq!(without.on_host("/run/netns/a".as_ref()), PathBuf::from("/run/netns/a"));
    }
}
