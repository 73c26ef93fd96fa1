//! The whole state of a host's networking, before and after.

mod collect;
mod json;
mod sysctl;

pub use sysctl::sysctls;

use std::collections::{BTreeMap, BTreeSet};

use crate::lab::Lab;
use crate::place::Place;

/// All state of a lab's host in which networking may leave something.
///
/// Links (name, kind, master, flags, MTU, addresses and what `ip -details` shows), routes of all
/// tables, rules, permanent neighbours and bridge FDB entries, nftables without handles and
/// counters, the output of iptables (nft and legacy), every sysctl under `/proc/sys/net`, qdiscs
/// and filters, mounts, and the files below [`Snapshot::FILES`]: path, mode, owner and content.
///
/// Forwarding, IPv4's or IPv6's, that was off and is on afterwards is not a difference: it stays on
/// after the last container, since other programs may rely on it by then. This is the one
/// exception, with what the kernel changes along with it. Forwarding that is switched off is a
/// difference.
///
/// It waits for addresses that are still in duplicate address detection: their routes come later.
/// What changes by itself is left out: interface indices, carrier, counters, learned neighbours,
/// conntrack entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    facts: BTreeMap<Fact, String>,
}

/// The subject of a snapshot's line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Fact {
    section: &'static str,
    name: String,
}

impl Snapshot {
    /// The directories whose files are compared. Missing ones are fine.
    pub const FILES: [&str; 7] = [
        "/run",
        "/etc/cni",
        "/etc/netwright",
        "/var/lib/cni",
        "/var/lib/netwright",
        "/opt/cni",
        "/var/lib/containers",
    ];

    /// Files that Debian's own programs make and never remove.
    pub const TOLERATED: [&str; 2] = ["/run/xtables.lock", "/run/ebtables.lock"];

    /// Looks at everything.
    #[must_use]
    pub fn take(lab: &Lab) -> Self {
        Self::with_files(lab, &Self::FILES)
    }

    /// Takes a snapshot with other directories than [`Snapshot::FILES`].
    #[must_use]
    pub fn with_files(lab: &Lab, directories: &[&str]) -> Self {
        Self { facts: collect::all(lab, directories) }
    }

    /// Takes a snapshot of a container: the contents of its namespace, no files.
    #[must_use]
    pub fn of(place: &impl Place) -> Self {
        Self { facts: collect::all(place, &[]) }
    }

    /// Everything in the snapshot: section, name and value of each fact.
    pub fn facts(&self) -> impl Iterator<Item = (&'static str, &str, &str)> {
        self.facts.iter().map(|(fact, value)| (fact.section, fact.name.as_str(), value.as_str()))
    }

    /// Returns the differences, one readable line each; nothing if there are none.
    #[must_use]
    pub fn diff(&self, after: &Self) -> Vec<String> {
        if self == after {
            return Vec::new();
        }
        let all: BTreeSet<&Fact> = self.facts.keys().chain(after.facts.keys()).collect();
        let mut lines = Vec::new();
        let stays_on = Forwarding::switched_on(self, after);
        for fact in all {
            let Fact { section, name } = fact;
            let (was, is) = (self.facts.get(fact), after.facts.get(fact));
            if was == is || stays_on.explains(fact, was, is) {
                continue;
            }
            match (was, is) {
                (Some(was), Some(is)) => {
                    lines.push(format!("{section}: {name} was `{was}`, is `{is}`"));
                }
                (Some(was), None) => lines.push(format!("{section}: {name} is gone, was `{was}`")),
                (None, is) => {
                    lines.push(format!(
                        "{section}: {name} is new: `{}`",
                        is.map_or("", String::as_str)
                    ));
                }
            }
        }
        lines
    }

    /// Asserts that there is no difference.
    #[track_caller]
    pub fn assert_same(&self, after: &Self) {
        self.assert_same_but(after, &[]);
    }

    /// Asserts that there is no difference except lines of [`Snapshot::diff`] that contain one of
    /// the texts.
    ///
    /// A text that no line contains is an error: the exception is no longer needed, or never was.
    #[track_caller]
    pub fn assert_same_but(&self, after: &Self, expected: &[&str]) {
        let lines = self.diff(after);
        let unexpected: Vec<_> =
            lines.iter().filter(|line| !expected.iter().any(|text| line.contains(text))).collect();
        assert!(unexpected.is_empty(), "the host is not as it was:\n{}", join(&unexpected));
        let unused: Vec<_> = expected
            .iter()
            .filter(|text| !lines.iter().any(|line| line.contains(**text)))
            .collect();
        assert!(
            unused.is_empty(),
            "no difference contains {unused:?}; the differences are:\n{}",
            join(&lines)
        );
    }

    /// The facts of one section (`links`, `routes`, `nftables`, …) as lines `name: value`, for
    /// messages.
    #[must_use]
    pub fn section(&self, section: &str) -> Vec<String> {
        let facts = self.facts.iter().filter(|(fact, _)| fact.section == section);
        facts.map(|(fact, value)| format!("{}: {value}", fact.name)).collect()
    }
}

/// Which kinds of forwarding were off before and are on afterwards.
#[derive(Debug, Clone, Copy)]
struct Forwarding {
    v4: bool,
    v6: bool,
}

impl Forwarding {
    fn switched_on(before: &Snapshot, after: &Snapshot) -> Self {
        let switched_on = |name: &str| {
            let fact = Fact { section: "sysctls", name: name.to_owned() };
            let value = |snapshot: &Snapshot| snapshot.facts.get(&fact).cloned();
            value(before).as_deref() == Some("0") && value(after).as_deref() == Some("1")
        };
        Self {
            v4: switched_on("net/ipv4/ip_forward"),
            v6: switched_on("net/ipv6/conf/all/forwarding"),
        }
    }

    /// Says whether the kernel made this difference when forwarding was switched on.
    fn explains(self, fact: &Fact, was: Option<&String>, is: Option<&String>) -> bool {
        let (was, is) = (was.map(String::as_str), is.map(String::as_str));
        let is_switch = |family: &str| {
            let conf = format!("net/{family}/conf/");
            fact.name.starts_with(&conf) && fact.name.ends_with("/forwarding")
        };
        match (fact.section, was, is) {
            ("sysctls", Some("0"), Some("1")) => {
                (self.v4 && (fact.name == "net/ipv4/ip_forward" || is_switch("ipv4")))
                    || (self.v6 && is_switch("ipv6"))
            }
            // A router accepts no redirects (linux net/ipv4/devinet.c inet_forward_change).
            ("sysctls", Some("1"), Some("0")) => {
                self.v4 && fact.name == "net/ipv4/conf/all/accept_redirects"
            }
            // Before that, links that listen to routers are told to go on.
            ("sysctls", Some("1"), Some("2")) => self.v6 && fact.name.ends_with("/accept_ra"),
            // Routers have an address in common (RFC 4291 §2.6.1), and groups that they listen to.
            ("routes", None, Some(_)) => self.v6 && fact.name.contains("anycast "),
            ("fdb", None, Some(_)) => self.v6 && fact.name.starts_with("33:33:"),
            _ => false,
        }
    }
}

fn join(lines: &[impl std::fmt::Display]) -> String {
    lines.iter().map(|line| format!("  {line}\n")).collect()
}
