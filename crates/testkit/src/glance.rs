//! A look at a host in about a millisecond, for tests that look ten thousand times.
//!
//! It asks the kernel itself, by dumps, and decodes no more than it takes to tell things apart and to name them; what a
//! [`Snapshot`](crate::Snapshot) sees through programs is more and slower. Both use no code of what is tested.

mod dump;
mod files;
mod links;
mod netfilter;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use dump::Socket;

/// How long what the kernel does by itself may take: a deleted namespace's links, addresses that are being looked at.
const SETTLES: Duration = Duration::from_secs(20);

/// What a host consists of: links, addresses, routes, rules, permanent neighbours, qdiscs, filters, nftables, sysctls and files.
///
/// What the kernel does by itself is left out: indices, counters, carriers, link-local addresses and their routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glance {
    facts: BTreeSet<String>,
}

impl Glance {
    /// What is different afterwards, a line each.
    #[must_use]
    pub fn diff(&self, after: &Glance) -> Vec<String> {
        let gone = self.facts.difference(&after.facts).map(|fact| format!("- {fact}"));
        let new = after.facts.difference(&self.facts).map(|fact| format!("+ {fact}"));
        // As with a `Snapshot`: forwarding may be on afterwards, but not off.
        let stays_on = |line: &String| {
            line.contains("forward")
                && (line.starts_with("- sysctl ") && line.ends_with(" 0")
                    || line.starts_with("+ sysctl ") && line.ends_with(" 1"))
        };
        gone.chain(new).filter(|line| !stays_on(line)).collect()
    }

    /// Everything that was seen.
    pub fn facts(&self) -> impl Iterator<Item = &str> {
        self.facts.iter().map(String::as_str)
    }
}

/// Looks at one network namespace, and at files.
#[derive(Debug)]
pub struct Eye {
    route: Socket,
    netfilter: Socket,
    sysctls: bool,
    files: Vec<PathBuf>,
}

/// Sysctls of no single link that somebody might change. Those of links are told with the links.
const SYSCTLS: [&str; 8] = [
    "ipv4/ip_forward",
    "ipv4/conf/all/forwarding",
    "ipv4/conf/all/route_localnet",
    "ipv4/conf/all/rp_filter",
    "ipv4/conf/default/forwarding",
    "ipv6/conf/all/forwarding",
    "ipv6/conf/all/accept_ra",
    "ipv6/conf/default/forwarding",
];

impl Eye {
    /// Opens an eye in the calling thread's network namespace. The host's sysctls are seen by whoever is there when looking;
    /// files below the folders are too.
    ///
    /// # Panics
    /// When the kernel gives no socket.
    #[must_use]
    pub fn on_host(folders: &[&Path]) -> Self {
        let files = folders.iter().map(|folder| (*folder).to_owned()).collect();
        Eye { route: Socket::route(), netfilter: Socket::netfilter(), sysctls: true, files }
    }

    /// Opens an eye in the calling thread's network namespace, which may be used anywhere.
    ///
    /// # Panics
    /// When the kernel gives no socket.
    #[must_use]
    pub fn in_container() -> Self {
        Eye {
            route: Socket::route(),
            netfilter: Socket::netfilter(),
            sysctls: false,
            files: Vec::new(),
        }
    }

    /// Looks.
    ///
    /// # Panics
    /// When the kernel does not answer.
    #[must_use]
    pub fn look(&self) -> Glance {
        let mut facts = BTreeSet::new();
        links::look(&self.route, &mut facts);
        netfilter::look(&self.netfilter, &mut facts);
        if self.sysctls {
            for name in SYSCTLS {
                let value = std::fs::read_to_string(Path::new("/proc/sys/net").join(name));
                facts.insert(format!("sysctl {name} {}", value.unwrap_or_default().trim()));
            }
        }
        for folder in &self.files {
            files::look(folder, &mut facts);
        }
        Glance { facts }
    }

    /// Looks until nothing is different from before, and returns what still is when the kernel has had its time.
    #[must_use]
    pub fn settles(&self, before: &Glance) -> Vec<String> {
        self.settles_but(before, |_| false)
    }

    /// Looks as [`Eye::settles`], but for differences that are expected.
    #[must_use]
    pub fn settles_but(&self, before: &Glance, is_expected: impl Fn(&str) -> bool) -> Vec<String> {
        let deadline = Instant::now() + SETTLES;
        let mut wait = Duration::from_micros(200);
        loop {
            let mut left = before.diff(&self.look());
            left.retain(|line| !is_expected(line));
            if left.is_empty() || deadline < Instant::now() {
                return left;
            }
            thread::sleep(wait);
            wait = (wait * 2).min(Duration::from_millis(50));
        }
    }
}
