//! When to resend messages.

use std::time::Duration;

use super::Timing;
use crate::Timestamp;
use crate::random::Random;

/// No wait is shorter, under any configuration.
const MIN_WAIT: Duration = Duration::from_millis(10);

/// The last wait for which doubling matters: 2¹⁶ times the first one exceeds any reasonable bound.
const MAX_DOUBLINGS: u32 = 16;

/// A renewal is tried at least this often before its time is over, however short that is, and at
/// most this often.
const RENEWAL_TRIES: u32 = 4;
const MIN_RENEWAL_WAIT: Duration = Duration::from_secs(4);

/// A message that is resent with one transaction identifier (RFC 2131 §4.1).
#[derive(Debug, Clone, Copy)]
pub(super) struct Exchange {
    pub(super) xid: u32,
    /// When it was first sent: a lease counts from then, even if the server answered a later copy.
    pub(super) first: Timestamp,
    pub(super) sent: u32,
    pub(super) next: Timestamp,
    /// `secs` of the last DISCOVER, which its REQUESTs repeat (RFC 2131 §4.4.1).
    pub(super) secs: u16,
    doublings: u32,
}

impl Exchange {
    pub(super) fn new(random: &mut Random, now: Timestamp) -> Self {
        let xid = u32::from_be_bytes(random.octets());
        Exchange { xid, first: now, sent: 0, next: now, secs: 0, doublings: 0 }
    }

    /// The same transaction's next message.
    pub(super) fn follow(self, now: Timestamp) -> Self {
        Exchange { first: now, sent: 0, next: now, doublings: 0, ..self }
    }

    /// Records that it was sent and plans the next time.
    pub(super) fn sent(&mut self, timing: &Timing, random: &mut Random, now: Timestamp) {
        let base = timing.initial.saturating_mul(1 << self.doublings).min(timing.longest);
        let wait = base.saturating_sub(timing.jitter);
        let wait = wait.saturating_add(random.up_to(timing.jitter.saturating_mul(2)));
        self.next = now + wait.max(MIN_WAIT);
        self.sent = self.sent.saturating_add(1);
        self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS);
    }

    /// Nothing sent so far arrived: starts again.
    pub(super) fn again(&mut self, now: Timestamp) {
        (self.sent, self.next, self.doublings) = (0, now, 0);
    }
}

/// A renewal, which ends at T2 or with the lease (RFC 2131 §4.4.5).
///
/// Every message has a transaction identifier of its own (§4.1 allows it). So a reply shows which
/// message it answers, and a lease that was requested an hour ago does not count from a minute ago.
#[derive(Debug, Clone, Copy)]
pub(super) struct Renewal {
    pub(super) xid: u32,
    pub(super) began: Timestamp,
    /// When the last message was sent.
    pub(super) asked: Timestamp,
    pub(super) next: Timestamp,
    /// When renewing gives way to rebinding, or to expiry.
    pub(super) until: Timestamp,
}

impl Renewal {
    pub(super) fn new(now: Timestamp, until: Timestamp) -> Self {
        Renewal { xid: 0, began: now, asked: now, next: now, until }
    }

    /// Records that a message is being sent now and plans the next one: after half of the time
    /// left, but not before `renew_shortest`. If that would leave only one try, the wait is
    /// shorter: otherwise the loss of two packets would cost a lease of two minutes.
    pub(super) fn sent(&mut self, timing: &Timing, random: &mut Random, now: Timestamp) {
        let part = self.until.since(self.began) / RENEWAL_TRIES;
        let shortest = timing.renew_shortest.min(part).max(MIN_RENEWAL_WAIT);
        self.xid = u32::from_be_bytes(random.octets());
        self.asked = now;
        self.next = now + (self.until.since(now) / 2).max(shortest);
    }
}
