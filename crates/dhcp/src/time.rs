//! Time as it is passed in.
//!
//! There are two clocks, because neither is enough alone. Everything that runs uses the clock since
//! boot, which cannot be set: a lease does not end early because the date was corrected. What is
//! saved must stay valid after a restart, when the clock since boot may have started anew. So it
//! contains the wall clock as well, and the boot's identifier.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point of the clock since boot, in milliseconds. Use Linux's CLOCK_BOOTTIME, which keeps
/// counting during suspend, as leases do. (CLOCK_MONOTONIC, and so `std::time::Instant`, does not.)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The time this many milliseconds after the clock's start.
    pub const fn from_millis(ms: u64) -> Self {
        Timestamp(ms)
    }

    /// Milliseconds since the clock's beginning.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    /// Later by `wait`, cut to milliseconds; stops at the maximum value.
    fn add(self, wait: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Timestamp;

    /// Earlier by `wait`, but not before the clock's start.
    fn sub(self, wait: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}s", self.0 / 1000, self.0 % 1000)
    }
}

/// A point of the wall clock (CLOCK_REALTIME), in milliseconds since 1970.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UnixTime(u64);

impl UnixTime {
    /// The time this many milliseconds after the start of 1970.
    pub const fn from_millis(ms: u64) -> Self {
        UnixTime(ms)
    }

    /// Milliseconds since 1970 began.
    pub const fn as_millis(self) -> u64 {
        self.0
    }
}

/// Both clocks, read together. Every call that depends on time takes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The clock since boot. It must not go back between calls to one client.
    pub at: Timestamp,
    /// The wall clock. It may jump; only saved leases use it, and only after a reboot.
    pub wall: UnixTime,
}

impl Now {
    /// The moment at `at`, which must not be later than this.
    pub(crate) fn before(self, at: Timestamp, boot_id: Option<String>) -> Moment {
        let ago = self.at.0.saturating_sub(at.0);
        let wall_ms = UnixTime(self.wall.0.saturating_sub(ago));
        Moment { at_ms: at, wall_ms, boot_id }
    }
}

/// A point in time that survives a restart of the process, and of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// On the clock since boot, in the boot in which it was taken.
    pub at_ms: Timestamp,
    /// On the wall clock.
    pub wall_ms: UnixTime,
    /// The boot: `/proc/sys/kernel/random/boot_id`, as passed to the client.
    pub boot_id: Option<String>,
}

impl Moment {
    /// How long ago this was, if known.
    ///
    /// In the same boot the clock since boot decides. Otherwise the wall clock does, unless the
    /// moment would be in the future: then its age is unknown.
    pub fn age(&self, now: Now, boot_id: Option<&str>) -> Option<Duration> {
        if self.boot_id.is_some() && self.boot_id.as_deref() == boot_id && self.at_ms <= now.at {
            return Some(now.at.since(self.at_ms));
        }
        now.wall.0.checked_sub(self.wall_ms.0).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_is_by_the_clock_that_can_know_it() {
        let moment = |boot_id: Option<&str>| Moment {
            at_ms: Timestamp(10_000),
            wall_ms: UnixTime(1_000_000),
            boot_id: boot_id.map(str::to_owned),
        };
        let now = |at, wall| Now { at: Timestamp(at), wall: UnixTime(wall) };
        let age = |from: Option<&str>, in_boot: Option<&str>, now| {
            moment(from).age(now, in_boot).map(|age| age.as_millis())
        };
        let (a, b) = (Some("a"), Some("b"));
        assert_eq!(age(a, a, now(15_000, 0)), Some(5_000));
        assert_eq!(age(a, a, now(10_000, 0)), Some(0));
        assert_eq!(age(a, b, now(15_000, 1_000_007)), Some(7));
        assert_eq!(age(a, b, now(15_000, 999_999)), None);
        // Without the boot's identifier only the wall clock counts; and within a boot the clock
        // since boot cannot go back.
        assert_eq!(age(None, None, now(15_000, 1_000_007)), Some(7));
        assert_eq!(age(a, a, now(9_999, 1_000_007)), Some(7));
    }

    #[test]
    fn time_does_not_pass_its_ends() {
        let start = Timestamp(5);
        assert_eq!(start - Duration::from_secs(1), Timestamp(0));
        assert_eq!(start + Duration::MAX, Timestamp(u64::MAX));
        assert_eq!(start.since(Timestamp(6)), Duration::ZERO);
        assert_eq!(format!("{:?}", Timestamp(61_005)), "61.005s");
        let now = Now { at: Timestamp(9_000), wall: UnixTime(50_000) };
        let before = now.before(Timestamp(7_000), None);
        assert_eq!((before.at_ms, before.wall_ms), (Timestamp(7_000), UnixTime(48_000)));
    }
}
