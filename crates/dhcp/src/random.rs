//! Numbers for transaction identifiers and jitter.

use std::time::Duration;

/// A generator (SplitMix64) seeded by the caller: the same seed gives the same schedule.
///
/// Its numbers are not secrets. A transaction identifier only distinguishes replies; any host that
/// sees the request can answer it, with every generator.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn octets(&mut self) -> [u8; 4] {
        let [a, b, c, d, ..] = self.next().to_be_bytes();
        [a, b, c, d]
    }

    /// Returns a duration from zero to `most` inclusive, in milliseconds.
    pub(crate) fn up_to(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX - 1);
        Duration::from_millis(self.next() % most.saturating_add(1))
    }

    pub(crate) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        least.saturating_add(self.up_to(most.saturating_sub(least)))
    }
}
