//! Random numbers that are the same in every run.

/// A generator with 64 bits of state (Marsaglia's xorshift).
#[derive(Debug)]
pub struct Chance(u64);

impl Chance {
    /// Starts from `NETWRIGHT_SEED`, which a failing run prints, or else from the test's own
    /// number.
    #[must_use]
    #[expect(clippy::print_stderr, reason = "the person who repeats a run needs the number")]
    pub fn new(own: u64) -> Self {
        let asked = std::env::var("NETWRIGHT_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = asked.unwrap_or(own);
        eprintln!("NETWRIGHT_SEED={seed}");
        Chance(seed.max(1))
    }

    /// Returns a number below `end`.
    ///
    /// # Panics
    /// When `end` is zero.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let end = u64::try_from(end).expect("a number has at most 64 bits");
        usize::try_from(self.0 % end).expect("it is below a number of this size")
    }

    /// Returns one of these.
    ///
    /// # Panics
    /// When there are none.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// Returns true once in `times` calls on average.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}
