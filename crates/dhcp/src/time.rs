//! Time as it is passed in.
//!
//! Two clocks, because neither does alone. What runs runs on the clock since boot, which nobody sets: a lease
//! does not end early because somebody corrected the date. What is saved must mean something after a restart,
//! when the clock since boot may have begun anew: it carries the wall clock as well, and which boot it was.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point of the clock since boot, in milliseconds. Use Linux's CLOCK_BOOTTIME, which goes on during suspend:
/// leases do too. (CLOCK_MONOTONIC, and so `std::time::Instant`, does not.)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The point so many milliseconds after the clock's beginning.
    pub const fn from_millis(ms: u64) -> Self {
        Timestamp(ms)
    }

    /// Milliseconds since the clock's beginning.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; nothing if it is not.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    /// Later by `wait`, cut to milliseconds; the end of time is not passed.
    fn add(self, wait: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Timestamp;

    /// Earlier by `wait`, but not before the clock's beginning.
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
    /// The point so many milliseconds after 1970 began.
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
    /// The clock since boot. Must not go back between calls to one client.
    pub at: Timestamp,
    /// The wall clock. May do what it likes; only saved leases look at it, and only after another boot.
    pub wall: UnixTime,
}

impl Now {
    /// The moment `at`, which was not after this.
    pub(crate) fn before(self, at: Timestamp, boot_id: Option<String>) -> Moment {
        let ago = self.at.0.saturating_sub(at.0);
        let wall_ms = UnixTime(self.wall.0.saturating_sub(ago));
        Moment { at_ms: at, wall_ms, boot_id }
    }
}

/// A point in time that survives a restart of the process, and of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// On the clock since boot, of the boot it was.
    pub at_ms: Timestamp,
    /// On the wall clock.
    pub wall_ms: UnixTime,
    /// Which boot it was: `/proc/sys/kernel/random/boot_id`, as the client was told.
    pub boot_id: Option<String>,
}

impl Moment {
    /// How long ago this was, if that can be known.
    ///
    /// In the same boot the clock since boot says it. Otherwise the wall clock does, unless it would have been
    /// in the future: then nobody knows.
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
        // Who does not know the boot has the wall clock only; nor can a boot's clock go back.
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
