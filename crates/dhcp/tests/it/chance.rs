//! Repeatable random numbers.

/// A generator of numbers (xorshift64*), which prints its seed when the test fails.
#[derive(Debug)]
pub(crate) struct Chance {
    seed: u64,
    state: u64,
}

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Chance { seed, state: (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound.max(1)
    }

    /// True this many times of a hundred.
    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

impl Drop for Chance {
    #[expect(clippy::print_stderr, reason = "a repetition of the test needs it")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.seed);
        }
    }
}
