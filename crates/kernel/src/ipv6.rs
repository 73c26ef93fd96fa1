//! Whether this host has IPv6.
//!
//! A kernel may have none (`ipv6.disable=1`), and the sysctl `disable_ipv6` may switch it off on
//! links: that of `default` on links that come later (linux Documentation/networking/ip-sysctl.rst).
//! The kernel then refuses IPv6 addresses, and says "permission denied" (linux net/ipv6/addrconf.c
//! `addrconf_add_dev`).

use std::fmt;

use crate::sysctl::{Folder, Sysctl};

/// The folders of the links' sysctls of each IP version.
const OF_LINKS: &str = "net/ipv6/conf";
const OF_LINKS_V4: &str = "net/ipv4/conf";

/// The name of the values that a new link gets.
const NEW_LINKS: &str = "default";

/// Why links of this host have no IPv6.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ipv6Obstacle {
    /// The kernel has none.
    Kernel,
    /// This sysctl is 1.
    Switched(Sysctl),
}

impl Ipv6Obstacle {
    /// Says why links that come from now on have no IPv6; `None` if they have, or if the kernel does
    /// not tell.
    ///
    /// # Namespace
    /// That of the calling thread.
    #[must_use]
    pub fn for_new_links() -> Option<Self> {
        Self::of(NEW_LINKS)
    }

    /// Says why a link has no IPv6; `None` if it has, or if the kernel does not tell.
    ///
    /// # Namespace
    /// That of the calling thread.
    #[must_use]
    pub fn for_link(ifname: &str) -> Option<Self> {
        let own = Self::of(ifname)?;
        // What switched it off on the link was most likely the value that it began with.
        Some(Self::for_new_links().unwrap_or(own))
    }

    /// Says whether the kernel has no IPv6 at all.
    ///
    /// # Namespace
    /// That of the calling thread.
    #[must_use]
    pub fn in_kernel() -> bool {
        Self::of(NEW_LINKS) == Some(Ipv6Obstacle::Kernel)
    }

    fn of(ifname: &str) -> Option<Self> {
        let sysctl = Sysctl::of_link(OF_LINKS, ifname, "disable_ipv6").ok()?;
        match sysctl.read() {
            Ok(value) => (value != "0").then_some(Ipv6Obstacle::Switched(sysctl)),
            // Without the parameters of IPv4 too, nothing is known.
            Err(error) if error.is_missing() => {
                let has = |folder| Folder::open(folder).is_ok();
                (!has(OF_LINKS) && has(OF_LINKS_V4)).then_some(Ipv6Obstacle::Kernel)
            }
            Err(_) => None,
        }
    }

    /// Returns what an operator can do who wants it on.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Ipv6Obstacle::Kernel => "boot without ipv6.disable=1".to_owned(),
            Ipv6Obstacle::Switched(sysctl) => format!("sysctl -w {}=0", sysctl.spelled()),
        }
    }
}

impl fmt::Display for Ipv6Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ipv6Obstacle::Kernel => f.write_str("this host's kernel has no IPv6 (ipv6.disable=1)"),
            Ipv6Obstacle::Switched(sysctl) => {
                write!(f, "IPv6 is switched off on this host ({} is 1)", sysctl.spelled())
            }
        }
    }
}
