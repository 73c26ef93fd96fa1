//! When to look again at what other programs may have changed.

use std::time::{Duration, Instant};

/// How long events may gather before a look: a burst of them is one change.
const SETTLE: Duration = Duration::from_millis(10);

/// When to look again at what could not be restored.
const AGAIN: Duration = Duration::from_secs(1);

/// After a look, the next one waits so many times the processor time that it took: on a node that
/// changes all the time, repair uses a fifth of one processor and not all of it.
const REST: u32 = 4;

/// The time that a look merely waited (for a switch that is starting) is waited again, up to this
/// long: our own processor time does not include plugins in other processes.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// When the next look is due.
#[derive(Debug)]
pub struct Pace {
    interval: Duration,
    due: Option<Instant>,
    rested: Option<Instant>,
}

impl Pace {
    /// Begins with a look that is due.
    pub fn new(interval: Duration) -> Self {
        Pace { interval, due: None, rested: None }
    }

    /// Returns the interval.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Looks at this interval from now on.
    pub fn set_interval(&mut self, interval: Duration, now: Instant) {
        self.interval = interval;
        self.due = self.due.map(|due| due.min(now + interval));
    }

    /// Notes an event.
    pub fn hurry(&mut self, now: Instant) {
        let soon = self.rested.unwrap_or(now).max(now + SETTLE);
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }

    /// Notes the end of a look that took `worked` of processor time; `again` asks for another one
    /// soon.
    pub fn looked(&mut self, begin: Instant, end: Instant, worked: Duration, again: bool) {
        let rested = end + (worked * REST).max((end - begin).min(LONGEST_WAIT));
        self.rested = Some(rested);
        let interval = if again { AGAIN.min(self.interval) } else { self.interval };
        self.due = Some(end + interval);
    }

    /// Looks at this time at the latest.
    pub fn look_by(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Reports whether a look is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    /// Returns how long it is until a look is due.
    pub fn until_due(&self, now: Instant) -> Duration {
        self.due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now))
    }
}

/// Returns the processor time that this process has used.
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns the processor time that the calling thread has used.
pub fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_rests_four_times_the_time_it_worked() {
        let now = Instant::now();
        let mut pace = Pace::new(Duration::from_secs(60));
        assert!(pace.is_due(now));
        let second = Duration::from_secs(1);
        pace.looked(now, now + second, second, false);
        assert_eq!(pace.until_due(now + second), Duration::from_secs(60));
        pace.hurry(now + second);
        assert_eq!(pace.until_due(now + second), Duration::from_secs(4));
        pace.looked(now, now, Duration::ZERO, false);
        pace.hurry(now + second);
        assert_eq!(pace.until_due(now + second), SETTLE);
        pace.looked(now, now + 9 * second, Duration::ZERO, false);
        pace.hurry(now + 9 * second);
        assert_eq!(pace.until_due(now + 9 * second), second);
        pace.looked(now, now, Duration::ZERO, true);
        assert_eq!(pace.until_due(now), AGAIN);
        pace.look_by(now + 2 * second);
        assert_eq!(pace.until_due(now), AGAIN);
        pace.looked(now, now, Duration::ZERO, false);
        pace.look_by(now + 2 * second);
        assert_eq!(pace.until_due(now), 2 * second);
    }
}
