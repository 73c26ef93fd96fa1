//! The lease in use: how it starts and ends.

use std::time::Duration;

use super::client::Phase;
use super::exchange::Exchange;
use super::{Action, Client, Lease, LostReason};
use crate::setback::Setbacks;
use crate::{Moment, Now, Timestamp};

/// T1 and T2 come earlier by up to this, at random (RFC 2131 §4.4.5): hosts that were started
/// together must not renew together. A sixteenth of the time, but not more than a minute.
const FUZZ_DIVISOR: u32 = 16;
const MAX_FUZZ: Duration = Duration::from_secs(60);

/// The lease in use, and its times on the clock since boot. No times if it lasts for ever.
#[derive(Debug)]
pub(super) struct HeldLease {
    pub(super) lease: Lease,
    times: Option<Times>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) t1: Timestamp,
    pub(super) t2: Timestamp,
    pub(super) expires: Timestamp,
}

impl Client {
    /// RFC 2131 §3.2, §4.4.2.
    pub(super) fn reboot(&mut self, lease: Lease, now: Now) {
        let age = lease.obtained.age(now, self.config.boot_id.as_deref());
        let lasts = lease.lease_s.map(|lease_s| Duration::from_secs(u64::from(lease_s)));
        // A lease whose age is unknown may have expired.
        let holds = match (lasts, age) {
            (None, _) => true,
            (Some(lasts), Some(age)) => age < lasts,
            (Some(_), None) => false,
        };
        self.held = Some(self.hold(lease, now.at, age.unwrap_or_default()));
        if holds {
            self.phase = Phase::Rebooting(Exchange::new(&mut self.random, now.at));
            self.request_saved(now);
        } else {
            self.lose(LostReason::Expired, Duration::ZERO, now);
        }
    }

    /// Ends the lease in use if it has expired, and looks for another. Says whether it did.
    pub(super) fn expire(&mut self, now: Now) -> bool {
        let over = self.drop_expired(now);
        if over {
            self.restart(Duration::ZERO, now);
        }
        over
    }

    pub(super) fn drop_expired(&mut self, now: Now) -> bool {
        let over = self.times().is_some_and(|times| times.expires <= now.at);
        if over {
            self.drop_held(LostReason::Expired, now);
        }
        over
    }

    /// Starts to use a lease, unless it has already expired: it counts from the first REQUEST, and
    /// the answer may be to a later one.
    pub(super) fn bind(&mut self, lease: Lease, now: Now) {
        let age = now.at.since(lease.obtained.at_ms);
        let over = |lease_s: u32| Duration::from_secs(u64::from(lease_s)) <= age;
        if lease.lease_s.is_some_and(over) {
            self.search.wanted = Some(lease.address.addr());
            self.drop_held(LostReason::Expired, now);
            let wait = self.setback();
            self.restart(wait, now);
            return;
        }
        let previous = self.held.take().map(|held| Box::new(held.lease));
        self.actions.push_back(Action::Configure { lease: Box::new(lease.clone()), previous });
        self.held = Some(self.hold(lease, now.at, age));
        self.phase = Phase::Bound;
        self.search.deadline = None;
        self.search.setbacks = Setbacks::default();
        self.search.conflicts = 0;
    }

    /// Gives up the lease in use and looks for another.
    pub(super) fn lose(&mut self, reason: LostReason, wait: Duration, now: Now) {
        self.drop_held(reason, now);
        self.restart(wait, now);
    }

    /// Gives up the lease in use, if there is one. The caller must change the state.
    pub(super) fn drop_held(&mut self, reason: LostReason, now: Now) {
        let Some(held) = self.held.take() else { return };
        self.announcing = None;
        self.defended = None;
        self.search.began = now.at;
        // Requesting it again makes sense only while it may be free.
        self.search.wanted = (reason == LostReason::Expired).then(|| held.lease.address.addr());
        self.actions.push_back(Action::Deconfigure { lease: Box::new(held.lease), reason });
    }

    fn hold(&mut self, lease: Lease, now: Timestamp, age: Duration) -> HeldLease {
        let at = |after: u32| now + Duration::from_secs(u64::from(after)).saturating_sub(age);
        let times = lease.lease_s.map(|lease_s| {
            let t1 = Duration::from_secs(u64::from(lease.t1_s));
            let fuzz = self.random.up_to((t1 / FUZZ_DIVISOR).min(MAX_FUZZ));
            Times { t1: at(lease.t1_s) - fuzz, t2: at(lease.t2_s) - fuzz, expires: at(lease_s) }
        });
        HeldLease { lease, times }
    }

    /// Returns when a lease was obtained that was requested at `asked`.
    pub(super) fn moment(&self, asked: Timestamp, now: Now) -> Moment {
        now.before(asked, self.config.boot_id.clone())
    }

    pub(super) fn times(&self) -> Option<Times> {
        self.held.as_ref()?.times
    }
}
