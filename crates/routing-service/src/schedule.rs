//! What is due, and when.
//!
//! What is learnt, heard and done says what has become due ([`Due`]); the loop notes it here, and asks
//! here for the next work. Nothing else decides when the kernel is looked at.

use std::ops::BitOrAssign;
use std::time::{Duration, Instant};

use service_kit::pace::{Pace, processor_time};

/// Looks at the kernel and at the packet filter that are due within this time of each other are made
/// together.
pub(super) const TOGETHER: Duration = Duration::from_secs(1);

/// What cannot be written is tried again after this time, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Whether the kernel is to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Look {
    /// No more than before.
    #[default]
    AsBefore,
    /// Soon: some events may gather.
    Soon,
    /// At once.
    Now,
}

/// What has become due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub(super) struct Due {
    /// A look at the kernel.
    pub(super) look: Look,
    /// A look at the packet filter.
    pub(super) filter: bool,
    /// The ways to nodes may be others: the next look asks for all of them.
    pub(super) routes: bool,
    /// The kernel has not answered a question for a way.
    pub(super) unanswered: bool,
    /// Forwarding or a file for pods could not be written.
    pub(super) unwritten: bool,
    /// The last known nodes are others, and are to be written.
    pub(super) record: bool,
}

impl Due {
    /// A look soon.
    pub(super) const LOOK: Due = Due { look: Look::Soon, ..Due::NOTHING };
    const NOTHING: Due = Due {
        look: Look::AsBefore,
        filter: false,
        routes: false,
        unanswered: false,
        unwritten: false,
        record: false,
    };

    /// A look at once, if that is so.
    pub(super) fn look_if(is_so: bool) -> Due {
        Due { look: if is_so { Look::Now } else { Look::AsBefore }, ..Due::NOTHING }
    }
}

impl BitOrAssign for Due {
    fn bitor_assign(&mut self, other: Due) {
        *self = Due {
            look: self.look.max(other.look),
            filter: self.filter | other.filter,
            routes: self.routes | other.routes,
            unanswered: self.unanswered | other.unanswered,
            unwritten: self.unwritten | other.unwritten,
            record: self.record | other.record,
        };
    }
}

/// The next work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// To look at everything, the packet filter too.
    Look,
    /// To look at the packet filter.
    Filter,
}

/// When the kernel and the packet filter are looked at, and when the ways to nodes are asked for.
#[derive(Debug)]
pub(super) struct Schedule {
    looks: Pace,
    filter_looks: Pace,
    /// The ways may be others since the last look began.
    routes: bool,
    /// When all ways were looked up.
    routes_found: Option<Instant>,
    /// After how long the next look tries again what the last one could not write.
    retry: Option<Duration>,
}

impl Schedule {
    pub(super) fn new(interval: Duration) -> Self {
        Schedule {
            looks: Pace::new(interval),
            filter_looks: Pace::new(interval),
            routes: false,
            routes_found: None,
            retry: None,
        }
    }

    /// Returns the interval of looks.
    pub(super) fn interval(&self) -> Duration {
        self.looks.interval()
    }

    /// Looks at this interval from now on.
    pub(super) fn set_interval(&mut self, interval: Duration, now: Instant) {
        self.looks.set_interval(interval, now);
        self.filter_looks.set_interval(interval, now);
    }

    /// Takes note of what has become due.
    pub(super) fn note(&mut self, due: Due, now: Instant) {
        self.routes |= due.routes || due.unanswered;
        if due.look == Look::Soon {
            self.looks.hurry(now);
        }
        if due.filter {
            self.filter_looks.hurry(now);
        }
        // What the last look could not write is tried again already.
        if due.unanswered || (due.unwritten && self.retry.is_none()) {
            self.looks.look_by(now + RETRY.0);
        }
    }

    /// Returns what is due now. If both looks are due soon after each other, one does both: the loop
    /// wakes up once.
    pub(super) fn work(&self, now: Instant) -> Option<Work> {
        let is_filter_due = self.filter_looks.is_due(now);
        if self.looks.is_due(now) || (is_filter_due && self.looks.is_due(now + TOGETHER)) {
            return Some(Work::Look);
        }
        is_filter_due.then_some(Work::Filter)
    }

    /// Returns how long it is until something is due.
    pub(super) fn until_due(&self, now: Instant) -> Duration {
        self.looks.until_due(now).min(self.filter_looks.until_due(now))
    }

    /// Takes note that a look begins. Returns whether the ways may be others since the last one
    /// began: what is heard from here on may be newer than what this look reads, and is for the next.
    pub(super) fn begin_look(&mut self) -> bool {
        std::mem::take(&mut self.routes)
    }

    /// Says whether a look asks for all ways: if they may be others, and after each interval, as the
    /// kernel does not report everything. Takes note that it does.
    pub(super) fn asks_for_routes(&mut self, may_be_others: bool, now: Instant) -> bool {
        let interval = self.looks.interval();
        let is_old = |found: Instant| interval <= now.duration_since(found) + TOGETHER;
        let asks = may_be_others || self.routes_found.is_none_or(is_old);
        if asks {
            self.routes_found = Some(now);
        }
        asks
    }

    /// Takes note that a look has ended; `again` asks for another one soon.
    pub(super) fn looked(&mut self, watch: &Stopwatch, again: bool) {
        self.looks.looked(watch.begin, Instant::now(), watch.worked(), again);
    }

    /// Takes note of what has become due during a look that has ended.
    pub(super) fn note_of_look(&mut self, due: Due, now: Instant) {
        let longer = |retry: Duration| (retry * 2).min(RETRY.1);
        self.retry = due.unwritten.then(|| self.retry.map_or(RETRY.0, longer));
        if let Some(retry) = self.retry {
            self.looks.look_by(now + retry);
        }
        self.note(due, now);
    }

    /// Takes note that a look at the packet filter has ended; `again` asks for another one soon.
    pub(super) fn filter_looked(&mut self, watch: &Stopwatch, again: bool) {
        self.filter_looks.looked(watch.begin, Instant::now(), watch.worked(), again);
    }
}

/// How long something takes, by the clock and of the processor's time.
#[derive(Debug)]
pub(super) struct Stopwatch {
    begin: Instant,
    worked: Duration,
}

impl Stopwatch {
    pub(super) fn start() -> Self {
        Stopwatch { begin: Instant::now(), worked: processor_time() }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    fn worked(&self) -> Duration {
        processor_time().saturating_sub(self.worked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(60);

    /// A schedule after a look of both kinds that took no time.
    fn after_looks() -> (Schedule, Instant) {
        let mut schedule = Schedule::new(INTERVAL);
        let now = Instant::now();
        schedule.looks.looked(now, now, Duration::ZERO, false);
        schedule.filter_looks.looked(now, now, Duration::ZERO, false);
        (schedule, now)
    }

    #[test]
    fn looks_that_are_due_soon_after_each_other_are_made_together() {
        let (mut schedule, now) = after_looks();
        assert_eq!(schedule.work(now), None);
        assert_eq!(schedule.until_due(now), INTERVAL);
        assert_eq!(schedule.work(now + INTERVAL), Some(Work::Look));
        schedule.note(Due { filter: true, ..Due::default() }, now);
        assert_eq!(schedule.work(now + INTERVAL / 2), Some(Work::Filter));
        assert_eq!(schedule.work(now + INTERVAL - TOGETHER), Some(Work::Look));
        schedule.note(Due::LOOK, now);
        assert_eq!(schedule.work(now + INTERVAL / 2), Some(Work::Look));
    }

    #[test]
    fn a_look_asks_for_all_ways_after_an_event_and_after_each_interval() {
        let (mut schedule, now) = after_looks();
        assert!(!schedule.begin_look());
        assert!(schedule.asks_for_routes(false, now), "the first one");
        assert!(!schedule.asks_for_routes(false, now + INTERVAL / 2));
        assert!(schedule.asks_for_routes(true, now + INTERVAL / 2));
        assert!(schedule.asks_for_routes(false, now + INTERVAL / 2 + INTERVAL));
        for due in
            [Due { routes: true, ..Due::default() }, Due { unanswered: true, ..Due::default() }]
        {
            schedule.note(due, now);
            assert!(schedule.begin_look());
            assert!(!schedule.begin_look(), "once");
        }
    }

    #[test]
    fn what_cannot_be_written_is_tried_again_after_longer_and_longer() {
        let (mut schedule, now) = after_looks();
        let failed = Due { unwritten: true, ..Due::default() };
        let after = |schedule: &mut Schedule, due: Due| {
            schedule.looks.looked(now, now, Duration::ZERO, false);
            schedule.note_of_look(due, now);
            schedule.looks.until_due(now).as_secs()
        };
        let seconds: Vec<u64> = (0..8).map(|_| after(&mut schedule, failed)).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        // What fails beside a look does not shorten that.
        schedule.note(failed, now);
        assert_eq!(schedule.looks.until_due(now), INTERVAL);
        assert_eq!(after(&mut schedule, Due::default()), INTERVAL.as_secs());
        schedule.note(failed, now);
        assert_eq!(schedule.looks.until_due(now), RETRY.0);
    }

    /// While a look goes on, an event may be newer than what it has read.
    #[test]
    fn what_becomes_due_during_a_look_is_due_after_it() {
        let (mut schedule, now) = after_looks();
        schedule.note_of_look(Due { routes: true, ..Due::LOOK }, now);
        assert!(schedule.looks.until_due(now) < RETRY.0);
        assert!(schedule.begin_look());
    }

    #[test]
    fn what_is_due_adds_up() {
        let mut due = Due::look_if(false);
        assert_eq!(due, Due::default());
        due |= Due { filter: true, ..Due::LOOK };
        due |= Due { record: true, ..Due::look_if(true) };
        due |= Due::LOOK;
        let all = Due { look: Look::Now, filter: true, record: true, ..Due::default() };
        assert_eq!(due, all);
    }
}
