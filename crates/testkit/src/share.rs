//! How many of all possible cases a run with `--full` tries.
//!
//! A test that injects faults at every one of thousands of moments takes hours. An ordinary run
//! tries a few of them. A run with `--full` tries a share, spread evenly over all of them, and
//! another share in each round. The round is the day's number, which `cargo xtask` passes. All
//! cases have been tried after as many rounds as the share goes into the whole, and one more. With
//! [`EVERY_VARIABLE`] one run tries all.

use std::env;

use crate::feature::available;

/// Set when a run with `--full` must try all cases.
pub const EVERY_VARIABLE: &str = "NETWRIGHT_EVERY";

/// The round, a number.
pub const ROUND_VARIABLE: &str = "NETWRIGHT_ROUND";

/// How many faults a call or a command gets with `--full`. There are 258 calls, with some 1,100
/// moments and errors each. With 16 of each they take some four minutes on two processors.
pub const STRIKES: usize = 16;

/// Returns how many equal cases a run with `--full` tries: `share`, or all if the variable is set.
#[must_use]
pub fn count<N: Ord>(all: N, share: N) -> N {
    if env::var_os(EVERY_VARIABLE).is_some() { all } else { share.min(all) }
}

/// Returns the round; 0 if none is set.
#[must_use]
pub fn round() -> usize {
    let round = env::var(ROUND_VARIABLE).ok();
    round.and_then(|round| round.parse().ok()).unwrap_or_default()
}

/// Chooses which of these a run with `--full` tries: at most `share` of them, or every one if the
/// variable is set.
#[must_use]
pub fn of_this_round<T>(all: Vec<T>, share: usize) -> Vec<T> {
    if env::var_os(EVERY_VARIABLE).is_some() {
        return all;
    }
    let chosen = spread(all.len(), share, round());
    let mut chosen = chosen.into_iter().peekable();
    let numbered = all.into_iter().enumerate();
    numbered.filter(|(number, _)| chosen.next_if_eq(number).is_some()).map(|(_, one)| one).collect()
}

/// Returns where a run with `--full` begins among equal places: its round. An ordinary run begins at
/// 0, so it is the same every day.
#[must_use]
pub fn offset() -> usize {
    if available("full") { round() } else { 0 }
}

/// Returns the seed of a random sequence: `seed` in an ordinary run, and another one in each round of
/// a run with `--full`.
#[must_use]
pub fn seed_of_this_round(seed: u64) -> u64 {
    seed + u64::try_from(offset()).unwrap_or_default()
}

/// Whether a case that one of several rounds tries is due: `place` is its place among so many
/// rounds, as in `"1/3"`.
///
/// # Panics
/// When the words are not a place among rounds.
#[must_use]
pub fn is_of_this_round(place: &str) -> bool {
    env::var_os(EVERY_VARIABLE).is_some() || is_of(place, round())
}

fn is_of(place: &str, round: usize) -> bool {
    let parsed = place
        .split_once('/')
        .and_then(|(place, of)| Some((place.parse::<usize>().ok()?, of.parse::<usize>().ok()?)));
    match parsed {
        // Runs that are a week apart would not reach all places of seven.
        Some((place, of)) if place < of && !of.is_multiple_of(7) => round % of == place,
        _ => panic!("{place:?} is no place among rounds, such as \"1/3\""),
    }
}

/// Picks one from each stretch of the whole, at a different place in each stretch: neighbours are
/// often alike in one way or another.
fn spread(all: usize, share: usize, round: usize) -> Vec<usize> {
    let mut stretch = all.div_ceil(share.max(1)).max(1);
    // Runs that are a week apart also reach all places.
    if stretch.is_multiple_of(7) {
        stretch += 1;
    }
    let stretches = 0..all.div_ceil(stretch);
    let places = stretches.map(|number| number * stretch + (round + number) % stretch);
    places.filter(|place| *place < all).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{is_of, spread};

    #[test]
    fn rounds_together_try_all_and_none_more_than_its_share() {
        for (all, share) in
            [(445_usize, 100), (700, 100), (100, 100), (99, 100), (5, 100), (0, 100), (13, 1)]
        {
            for apart in [1, 7] {
                let mut tried = BTreeSet::new();
                for round in 0..all.div_ceil(share) + 1 {
                    let chosen = spread(all, share, 20_779 + apart * round);
                    assert!(chosen.len() <= share, "{all} {share}: {chosen:?}");
                    tried.extend(chosen);
                }
                assert_eq!(tried.len(), all, "{all}, {share} of them every {apart} days");
            }
        }
    }

    #[test]
    fn each_place_among_rounds_comes_by_the_day_and_by_the_week() {
        for apart in [1, 7] {
            for place in ["0/3", "1/3", "2/3"] {
                let due = (0..3).filter(|round| is_of(place, 20_779 + apart * round)).count();
                assert_eq!(due, 1, "{place} every {apart} days");
            }
        }
        for wrong in ["3/3", "1/7", "0/0", "1", "a/b"] {
            assert!(std::panic::catch_unwind(|| is_of(wrong, 0)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_share_is_spread_over_the_whole() {
        assert_eq!(spread(12, 4, 0), [0, 4, 8, 9]);
        assert_eq!(spread(12, 4, 1), [1, 5, 6, 10]);
        assert_eq!(spread(3, 4, 5), [0, 1, 2]);
    }
}
