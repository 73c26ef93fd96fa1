//! The links of this node's pods: their rules, names, bridges and what these show, which verdicts
//! stand on. [`Guard`] compares them and puts them right; here is when that is done.
//!
//! The kernel reports a link that changes, a bridge's settings too, and what is removed from the
//! tables of all plugins. It reports neither a sysctl nor a rule that is added: these are found when
//! the service looks at everything.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use cni::AttachmentKey;
use firewall::FirewallError;
use firewall::element::Table;
use kernel::events::{LinkEvent, LinkListener, TableListener};
use plugins::chained::policy::{Findings, Guard};
use service_kit::health::Health;
use service_kit::pace::{Pace, thread_time};
use service_kit::process::LONG;
use state::{Index, Roots};

use super::shared::SharedEngine;

/// What the service's health calls them.
const NEED: &str = "links of pods";

/// How long another process may be at work on an attachment whose link is not as it should be,
/// until the status says so. An ADD or a DEL takes less.
const STUCK: Duration = Duration::from_secs(30);

/// The links.
#[derive(Debug)]
pub(super) struct Links {
    guard: Guard,
    links: LinkListener,
    tables: TableListener,
    pace: Pace,
    /// The attachments that another process is at work on, and since when.
    busy: BTreeMap<String, Instant>,
    /// What the log said last of links that are closed, or of a look that failed.
    said: Option<String>,
}

/// What a look has put right.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// How much that was.
    pub(super) count: usize,
    /// The addresses of the pods concerned.
    pub(super) addresses: BTreeSet<IpAddr>,
}

impl Links {
    /// Starts to listen.
    pub(super) fn open(roots: &Roots) -> Result<Self, FirewallError> {
        let failed = |error: kernel::netlink::NetlinkError| FirewallError::Open(error.into());
        Ok(Links {
            guard: Guard::new(Index::new(roots)),
            links: LinkListener::open().map_err(failed)?,
            tables: TableListener::open(Table::Inet.name()).map_err(failed)?,
            pace: Pace::new(LONG),
            busy: BTreeMap::new(),
            said: None,
        })
    }

    /// Returns what becomes readable when a link has changed, and when something was removed from
    /// the tables of all plugins.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.links.descriptor(), self.tables.descriptor()]
    }

    /// Takes what the kernel has reported.
    pub(super) fn hear(&mut self) {
        let changed = self.links.heard().map(|events| {
            events.into_iter().any(|event| match event {
                LinkEvent::Changed(index) => self.guard.watches(index),
                _ => true,
            })
        });
        let reduced = self.tables.heard().map(|events| !events.is_empty());
        // What cannot be heard may have been a reason.
        if changed.unwrap_or(true) || reduced.unwrap_or(true) {
            self.pace.hurry(Instant::now());
        }
    }

    /// Notes that an attachment has started, with this link.
    pub(super) fn watch(&mut self, host_ifname: &str) {
        self.guard.watch(host_ifname);
    }

    /// Returns how long it is until a look is due.
    pub(super) fn until_due(&self, now: Instant) -> Duration {
        self.pace.until_due(now)
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.pace.is_due(now)
    }

    /// Looks at all links, and says in the service's status which are closed.
    pub(super) fn look(&mut self, shared: &SharedEngine, health: &Health) -> Repairs {
        let (begin, worked) = (Instant::now(), thread_time());
        let ended = shared.engine().ended();
        let ends = |key: &AttachmentKey| {
            let id =
                (key.network.to_string(), key.container_id.to_string(), key.ifname.to_string());
            ended.contains(&id)
        };
        let looked = self.guard.look(ends);
        let (again, said) = match &looked {
            Ok(Findings { closed, busy, .. }) => {
                self.busy.retain(|key, _| busy.contains(key));
                for key in busy {
                    self.busy.entry(key.clone()).or_insert(begin);
                }
                let is_stuck = |since: &Instant| STUCK < begin.saturating_duration_since(*since);
                let stuck = self.busy.iter().find(|(_, since)| is_stuck(since));
                let stuck = stuck.map(|(key, _)| format!("another process has {key} locked"));
                (!busy.is_empty(), summary(closed).or(stuck))
            }
            Err(error) => (true, Some(error.to_string())),
        };
        if self.said != said {
            match &said {
                Some(why) if looked.is_ok() => {
                    tracing::warn!(why, "links of pods are not as they should be");
                }
                Some(why) => tracing::error!(why, "links of pods may be open"),
                None => tracing::info!("links of pods are as they should be"),
            }
            self.said.clone_from(&said);
        }
        health.needs(NEED, said.map_or(Ok(()), Err));
        let worked = thread_time().saturating_sub(worked);
        self.pace.looked(begin, Instant::now(), worked, again);
        let Ok(Findings { mended, closed, addresses, .. }) = looked else {
            return Repairs::default();
        };
        shared.engine().note_links(closed);
        if let Some(first) = mended.first() {
            tracing::warn!(%first, count = mended.len(), "put right what network policy stands on");
        }
        Repairs { count: mended.len(), addresses }
    }
}

/// Says why links are closed: the first one's reason, and how many more there are.
fn summary(closed: &[String]) -> Option<String> {
    let (first, others) = closed.split_first()?;
    Some(match others.len() {
        0 => format!("closed: {first}"),
        more => format!("closed: {first}; and {more} others"),
    })
}
