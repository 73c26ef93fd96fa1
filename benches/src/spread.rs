//! Median and quartiles.

use std::fmt;
use std::time::Duration;

/// Median and quartiles in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spread {
    low: f64,
    pub(crate) median: f64,
    high: f64,
}

impl Spread {
    /// `None` without times.
    pub(crate) fn of(times: &[Duration]) -> Option<Self> {
        let mut sorted: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        sorted.sort_by(f64::total_cmp);
        let at = |quarter: usize| sorted.get(sorted.len().checked_sub(1)? * quarter / 4).copied();
        Some(Spread { low: at(1)?, median: at(2)?, high: at(3)? })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2}–{:.2})", self.median, self.low, self.high)
    }
}
