//! Random numbers that are the same in every run.

/// A generator with 64 bits of state (Marsaglia's xorshift).
pub(crate) struct Chance(u64);

impl Chance {
    /// Begins with `NETWRIGHT_SEED`, which a failing run prints, or with the test's own number.
    pub(crate) fn new(own: u64) -> Self {
        let asked = std::env::var("NETWRIGHT_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = asked.unwrap_or(own);
        eprintln!("NETWRIGHT_SEED={seed}");
        Chance(seed.max(1))
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(end).unwrap()).unwrap()
    }

    /// True once in so many times.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}
