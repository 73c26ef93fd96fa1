//! When to resend messages (RFC 8415 §15).

use std::time::Duration;

use super::MessageKind;
use super::message::XID_MASK;
use crate::Timestamp;
use crate::random::Random;

/// A message's times: IRT, MRT, MRC, MRD. `None` means no limit.
#[derive(Debug, Clone, Copy)]
struct Parameters {
    first: Duration,
    longest: Option<Duration>,
    count: Option<u32>,
    last: Option<Duration>,
}

/// RFC 8415 §7.6.
fn parameters(kind: MessageKind, sol_max_rt: Duration) -> Parameters {
    let second = Duration::from_secs(1);
    let times = |first: Duration, longest: Duration| Parameters {
        first,
        longest: Some(longest),
        count: None,
        last: None,
    };
    match kind {
        MessageKind::Solicit => times(second, sol_max_rt),
        MessageKind::Request => Parameters { count: Some(10), ..times(second, second * 30) },
        MessageKind::Confirm => Parameters { last: Some(second * 10), ..times(second, second * 4) },
        MessageKind::Renew | MessageKind::Rebind => times(second * 10, second * 600),
        MessageKind::Release | MessageKind::Decline => {
            Parameters { first: second, longest: None, count: Some(4), last: None }
        }
    }
}

/// A message that is resent with one transaction identifier.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exchange {
    pub(super) kind: MessageKind,
    pub(super) xid: u32,
    pub(super) first: Timestamp,
    /// When it was last sent.
    pub(super) asked: Timestamp,
    pub(super) sent: u32,
    pub(super) next: Timestamp,
    wait: Duration,
}

impl Exchange {
    pub(super) fn new(kind: MessageKind, random: &mut Random, now: Timestamp) -> Self {
        let xid = u32::from_be_bytes(random.octets()) & XID_MASK;
        Exchange { kind, xid, first: now, asked: now, sent: 0, next: now, wait: Duration::ZERO }
    }

    /// Records that it was sent and plans the next time.
    pub(super) fn sent(&mut self, sol_max_rt: Duration, random: &mut Random, now: Timestamp) {
        let times = parameters(self.kind, sol_max_rt);
        if self.sent == 0 {
            self.first = now;
        }
        self.wait = if self.sent == 0 {
            // §18.2.1: the first wait for ADVERTISE is longer than IRT, so that servers have at
            // least that long.
            let least = match self.kind {
                MessageKind::Solicit => times.first,
                _ => times.first - times.first / 10,
            };
            random.between(least, times.first + times.first / 10)
        } else {
            let twice = self.wait * 2;
            random.between(twice - self.wait / 10, twice + self.wait / 10)
        };
        if let Some(longest) = times.longest.filter(|longest| *longest < self.wait) {
            self.wait = random.between(longest - longest / 10, longest + longest / 10);
        }
        self.asked = now;
        self.sent = self.sent.saturating_add(1);
        self.next = now + self.wait;
        if let Some(last) = times.last {
            self.next = self.next.min(self.first + last);
        }
    }

    /// Whether sending it once more at `now` would be in vain.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        // SOL_MAX_RT changes no end.
        let times = parameters(self.kind, Duration::ZERO);
        times.count.is_some_and(|count| count <= self.sent)
            || times.last.is_some_and(|last| 0 < self.sent && self.first + last <= now)
    }

    /// Nothing sent so far arrived: starts again.
    pub(super) fn again(&mut self, now: Timestamp) {
        (self.sent, self.next) = (0, now);
    }
}
