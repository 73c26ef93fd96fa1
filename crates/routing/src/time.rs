//! Time as the daemon passes it in.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment, in milliseconds since the Unix epoch.
///
/// The daemon reads the wall clock once when it starts and adds what a monotonic clock counts from
/// there, so that setting the clock changes no waiting time.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// Creates one from whole seconds since the epoch.
    #[must_use]
    pub const fn from_seconds(seconds: u64) -> Self {
        Time(seconds.saturating_mul(1000))
    }

    /// Returns the moment that is later by a duration.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Time(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Returns the time from an earlier moment to this one; zero if it is not earlier.
    #[must_use]
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// The time of day in UTC, as messages have it: `14:20`.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = self.0 / 60_000;
        write!(f, "{:02}:{:02} UTC", minutes / 60 % 24, minutes % 60)
    }
}
