//! Delays after setbacks: a server that refuses what it offers is not asked again without pause.

use std::time::Duration;

/// The wait after the second setback in a row.
const FIRST: Duration = Duration::from_secs(1);

/// More doublings than any maximum wait needs.
const MAX_DOUBLINGS: u32 = 16;

/// The number of setbacks in a row.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Setbacks(u32);

impl Setbacks {
    /// Counts a setback and returns how long to wait: not at all after the first, then twice as
    /// long each time, up to `longest`.
    pub(crate) fn one_more(&mut self, longest: Duration) -> Duration {
        let before = self.0;
        self.0 = before.saturating_add(1);
        match before.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => (FIRST * (1 << doublings.min(MAX_DOUBLINGS))).min(longest),
        }
    }

    /// Whether there was none.
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let mut setbacks = Setbacks::default();
        assert!(setbacks.is_none());
        let mut waits = || setbacks.one_more(Duration::from_secs(10)).as_secs();
        let waits: Vec<_> = (0..7).map(|_| waits()).collect();
        assert_eq!(waits, [0, 1, 2, 4, 8, 10, 10]);
        assert!(!setbacks.is_none());
        let mut many = Setbacks(u32::MAX);
        assert_eq!(many.one_more(Duration::from_secs(120)).as_secs(), 120);
    }
}
