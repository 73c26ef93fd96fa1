//! A view of a host in about a millisecond, for tests that compare ten thousand times.
//!
//! It queries the kernel directly, by dumps, and decodes only what is needed to distinguish and
//! name things. A [`Snapshot`](crate::Snapshot), which uses programs, sees more and is slower.
//! Neither uses code that is under test.

mod dump;
mod files;
mod links;
mod netfilter;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use dump::Socket;

/// How long the kernel may take for its own work: the links of a deleted namespace, duplicate
/// address detection.
const SETTLES: Duration = Duration::from_secs(20);

/// A host's state: links, addresses, routes, rules, permanent neighbours, qdiscs, filters,
/// nftables, sysctls and files.
///
/// What the kernel changes by itself is left out: indices, counters, carriers, link-local addresses
/// and their routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glance {
    facts: BTreeSet<String>,
}

impl Glance {
    /// Returns the differences, one line each.
    #[must_use]
    pub fn diff(&self, after: &Glance) -> Vec<String> {
        let gone = self.facts.difference(&after.facts).map(|fact| format!("- {fact}"));
        let new = after.facts.difference(&self.facts).map(|fact| format!("+ {fact}"));
        // As with a `Snapshot`, forwarding may have been switched on, but not off.
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

/// Watches one network namespace, and files.
#[derive(Debug)]
pub struct Eye {
    route: Socket,
    netfilter: Socket,
    sysctls: bool,
    files: Vec<PathBuf>,
}

/// Sysctls that belong to no single link and that a program might change. The sysctls of links are
/// reported with the links.
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
    /// Opens an [`Eye`] in the calling thread's network namespace. It reads sysctls, and files
    /// below the folders, in the namespace of the thread that looks.
    ///
    /// # Panics
    /// When the kernel opens no socket.
    #[must_use]
    pub fn on_host(folders: &[&Path]) -> Self {
        let files = folders.iter().map(|folder| (*folder).to_owned()).collect();
        Eye { route: Socket::route(), netfilter: Socket::netfilter(), sysctls: true, files }
    }

    /// Opens an [`Eye`] in the calling thread's network namespace; any thread may use it.
    ///
    /// # Panics
    /// When the kernel opens no socket.
    #[must_use]
    pub fn in_container() -> Self {
        Eye {
            route: Socket::route(),
            netfilter: Socket::netfilter(),
            sysctls: false,
            files: Vec::new(),
        }
    }

    /// Takes a glance.
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

    /// Repeats the glance until nothing differs from before. When the kernel's time is over,
    /// returns what still differs.
    #[must_use]
    pub fn settles(&self, before: &Glance) -> Vec<String> {
        self.settles_but(before, |_| false)
    }

    /// Does what [`Eye::settles`] does, ignoring expected differences.
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
