//! ADDs that wait for the first lists.
//!
//! Just after a start the lists of a cluster are a moment away. Until then a pod that starts is
//! closed: its first packets would be lost, and the pod would send them again a second later. So
//! its ADD is answered when policies are enforced, or when the moment is over. A server that does
//! not answer ends the wait at once.

use std::time::{Duration, Instant};

/// The moment. A service that was killed has its lists sooner, if the API server answers. Longer
/// would hold up all pods of a node whose server is slow, and they are closed anyway.
const MOMENT: Duration = Duration::from_millis(500);

/// ADDs that wait, until the moment is over.
#[derive(Debug)]
pub(super) struct AddQueue<T> {
    until: Instant,
    waiting: Vec<T>,
}

impl<T> AddQueue<T> {
    /// The service starts.
    pub(super) fn new(now: Instant) -> Self {
        AddQueue { until: now + MOMENT, waiting: Vec::new() }
    }

    /// Lets something wait until it is taken.
    pub(super) fn hold(&mut self, one: T) {
        self.waiting.push(one);
    }

    /// Returns when what waits is to be taken at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.until)
    }

    /// Takes what waits, if the moment is over, or there is nothing to wait for (`is_over`).
    pub(super) fn take(&mut self, is_over: bool, now: Instant) -> Vec<T> {
        match is_over || self.until <= now {
            true => std::mem::take(&mut self.waiting),
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_taken_at_the_end_of_the_moment_or_before() {
        let start = Instant::now();
        let mut queue = AddQueue::new(start);
        assert_eq!(queue.due(), None);
        queue.hold(1);
        queue.hold(2);
        assert_eq!(queue.due(), Some(start + MOMENT));
        assert!(queue.take(false, start).is_empty());
        assert_eq!(queue.take(true, start), [1, 2]);
        assert_eq!(queue.due(), None);
        queue.hold(3);
        assert_eq!(queue.take(false, start + MOMENT), [3]);
    }
}
