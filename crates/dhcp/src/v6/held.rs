//! The lease in use: how it starts and ends.

use std::time::Duration;

use super::client::Phase;
use super::exchange::Exchange;
use super::{Action, Client, Lease, LostReason, MessageKind};
use crate::setback::Setbacks;
use crate::{Moment, Now, Timestamp};

/// The lease in use, and its times on the clock since boot. `None` means never.
#[derive(Debug)]
pub(super) struct HeldLease {
    pub(super) lease: Lease,
    pub(super) t1: Option<Timestamp>,
    pub(super) t2: Option<Timestamp>,
    /// When each address ends.
    pub(super) ends: Vec<Option<Timestamp>>,
}

impl Client {
    /// RFC 8415 §18.2.3.
    pub(super) fn reboot(&mut self, lease: Lease, now: Now) {
        let finite = lease.addresses.iter().any(|address| address.valid_s.is_some());
        let age = lease.obtained.age(now, self.config.boot_id.as_deref());
        // A lease whose age is unknown may have expired.
        let age = age.unwrap_or(if finite { Duration::MAX } else { Duration::ZERO });
        self.held = Some(hold(lease, now.at, age));
        if self.expire(now) && self.held.is_none() {
            return;
        }
        if self.held.as_ref().is_some_and(|held| held.t1.is_none_or(|t1| now.at < t1)) {
            let exchange = Exchange::new(MessageKind::Confirm, &mut self.random, now.at);
            self.phase = Phase::Confirming(exchange);
            self.send(now);
        } else {
            self.resume(now);
        }
    }

    /// Ends the addresses in use that have expired, and looks for others if none is left. Says
    /// whether there were any.
    pub(super) fn expire(&mut self, now: Now) -> bool {
        let some = self.drop_expired(now);
        if some && self.held.is_none() {
            self.restart(Duration::ZERO, now);
        }
        some
    }

    pub(super) fn drop_expired(&mut self, now: Now) -> bool {
        let Some(held) = &mut self.held else { return false };
        let over = |end: &Option<Timestamp>| end.is_some_and(|end| end <= now.at);
        if !held.ends.iter().any(over) {
            return false;
        }
        if held.ends.iter().all(over) {
            self.drop_held(LostReason::Expired);
            return true;
        }
        let previous = held.lease.clone();
        let mut ends = held.ends.iter();
        held.lease.addresses.retain(|_| !ends.next().is_some_and(over));
        held.ends.retain(|end| !over(end));
        let lease = Box::new(held.lease.clone());
        self.actions.push_back(Action::Configure { lease, previous: Some(Box::new(previous)) });
        true
    }

    /// Starts to use a lease.
    pub(super) fn bind(&mut self, lease: Lease, now: Now) {
        let previous = self.held.take().map(|held| Box::new(held.lease));
        let age = now.at.since(lease.obtained.at_ms);
        self.actions.push_back(Action::Configure { lease: Box::new(lease.clone()), previous });
        self.held = Some(hold(lease, now.at, age));
        self.phase = Phase::Bound;
        self.search.deadline = None;
        self.search.setbacks = Setbacks::default();
    }

    /// Gives up the lease in use and looks for another.
    pub(super) fn lose(&mut self, reason: LostReason, wait: Duration, now: Now) {
        self.drop_held(reason);
        self.restart(wait, now);
    }

    pub(super) fn drop_held(&mut self, reason: LostReason) {
        let Some(held) = self.held.take() else { return };
        // Requesting them again makes sense only while they may be free.
        self.search.wanted = match reason {
            LostReason::Expired => held.lease.addresses.iter().map(|there| there.address).collect(),
            _ => Vec::new(),
        };
        self.actions.push_back(Action::Deconfigure { lease: Box::new(held.lease), reason });
    }

    /// Returns when a lease was obtained that was requested at `asked`.
    pub(super) fn moment(&self, asked: Timestamp, now: Now) -> Moment {
        now.before(asked, self.config.boot_id.clone())
    }
}

/// Starts to hold a lease that was obtained `age` before `now`.
fn hold(lease: Lease, now: Timestamp, age: Duration) -> HeldLease {
    let at = |after: Option<u32>| {
        after.map(|after| now + Duration::from_secs(u64::from(after)).saturating_sub(age))
    };
    HeldLease {
        t1: at(lease.t1_s),
        t2: at(lease.t2_s),
        ends: lease.addresses.iter().map(|address| at(address.valid_s)).collect(),
        lease,
    }
}
