//! When this node writes its lease in etcd.
//!
//! Two nodes with one address would overwrite each other's lease for ever. So after each write
//! there is a pause: half a second, then one, and thirty once this has gone on for a minute. If
//! other nodes get the prefix first, or etcd refuses, each pause is twice the last one, up to
//! thirty seconds, until the node has a lease. While no member answers, a write is tried after half
//! a second, then every second, and after half a minute every thirty; when the watch works again,
//! at once. Each pause is up to half as long again, at random, so that thousands of nodes do not
//! come at once.

use std::time::{Duration, Instant};

/// How a pause grows from one attempt to the next. All pauses are up to half as long again: when
/// thousands of nodes want a lease at once, each that gets one makes the others' lists old.
#[derive(Debug)]
struct Pauses {
    first: Duration,
    /// Each pause is twice the last one, up to this one.
    most: Duration,
    /// Once the attempts have gone on for so long, the pauses are longer.
    lasting: Duration,
    long: Duration,
}

const FIRST: Duration = Duration::from_millis(500);
const MOST: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);

/// Two nodes with one address would write in turn for ever, each as soon as it may: so they write
/// less and less often. What another node overwrites now and then is put right at once.
const WRITES: Pauses =
    Pauses { first: FIRST, most: MOST, lasting: Duration::from_secs(60), long: LONG };
/// After so long without a write, and at least as long as the last pause, the pause is the first
/// one again.
const QUIET: Duration = Duration::from_secs(2);
/// Other nodes may get the prefixes that this node tries to get, one after the other.
const LOST: Pauses = Pauses { first: FIRST, most: LONG, lasting: Duration::MAX, long: LONG };
/// While no member answers, another one may answer in a moment.
const AWAY: Pauses =
    Pauses { first: FIRST, most: MOST, lasting: Duration::from_secs(30), long: LONG };

/// Attempts, one after the other.
#[derive(Debug, Clone, Copy)]
struct Attempts {
    /// When the first one was made.
    since: Instant,
    /// The pause after the last one, before it was made longer by chance.
    pause: Duration,
    /// When the next one may be made.
    again: Instant,
}

impl Attempts {
    /// Takes note of an attempt. `random` is any number.
    fn after(before: Option<Attempts>, pauses: &Pauses, now: Instant, random: u64) -> Self {
        let since = before.map_or(now, |before| before.since);
        let pause = match before {
            Some(before) if now.saturating_duration_since(since) < pauses.lasting => {
                (before.pause * 2).min(pauses.most)
            }
            Some(_) => pauses.long,
            None => pauses.first,
        };
        Attempts { since, pause, again: now + spread(pause, random) }
    }
}

/// When this node may write its lease.
#[derive(Debug, Default)]
pub struct Turns {
    writes: Option<Attempts>,
    /// Other nodes were first.
    lost: Option<Attempts>,
    /// No member has answered.
    away: Option<Attempts>,
}

impl Turns {
    /// Returns how long nothing may be written.
    #[must_use]
    pub fn rest(&self, now: Instant) -> Duration {
        let all = [self.writes, self.lost, self.away].into_iter().flatten();
        let at = all.map(|attempts| attempts.again).max();
        at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// Takes note that something was written, or that somebody else has written it meanwhile.
    /// `random` is any number.
    pub fn written(&mut self, now: Instant, random: u64) {
        let goes_on = |writes: &Attempts| {
            now.saturating_duration_since(writes.again) <= QUIET.max(writes.pause)
        };
        let before = self.writes.filter(goes_on);
        self.writes = Some(Attempts::after(before, &WRITES, now, random));
        self.lost = None;
    }

    /// Takes note that another node got a prefix first, or that etcd refuses. `random` is any number.
    pub fn lost(&mut self, now: Instant, random: u64) {
        self.lost = Some(Attempts::after(self.lost, &LOST, now, random));
    }

    /// Takes note that this node has its lease, as it is to be.
    pub fn held(&mut self) {
        self.lost = None;
    }

    /// Takes note that no member has answered. `random` is any number.
    pub fn away(&mut self, now: Instant, random: u64) {
        self.away = Some(Attempts::after(self.away, &AWAY, now, random));
    }

    /// Takes note that a member answers.
    pub fn answers(&mut self) {
        self.away = None;
    }
}

/// Returns a pause that is up to half as long again: not all nodes come at once when etcd is back.
/// `random` is any number.
#[must_use]
pub fn spread(pause: Duration, random: u64) -> Duration {
    let half = u64::try_from(pause.as_millis() / 2).unwrap_or_default();
    pause + Duration::from_millis(random % (half + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes attempts, each as soon as it may be made, and returns the rests after them in
    /// milliseconds.
    fn rests(
        turns: &mut Turns,
        now: &mut Instant,
        count: usize,
        attempt: impl Fn(&mut Turns, Instant),
    ) -> Vec<u128> {
        let one = |_| {
            attempt(turns, *now);
            let rest = turns.rest(*now);
            *now += rest;
            rest.as_millis()
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn two_nodes_with_one_address_write_less_and_less_often() {
        let (mut turns, mut now) = (Turns::default(), Instant::now());
        assert_eq!(turns.rest(now), Duration::ZERO);
        let write = |turns: &mut Turns, now| turns.written(now, 0);
        let pauses = rests(&mut turns, &mut now, 64, write);
        assert_eq!(pauses[..2], [500, 1_000]);
        assert_eq!(pauses[2..61], [1_000; 59]);
        assert_eq!(pauses[61..], [30_000; 3]);
        // The other node is gone. What another program overwrites every few seconds is put right at
        // once.
        now += Duration::from_secs(31);
        for _ in 0..5 {
            turns.written(now, 0);
            assert_eq!(turns.rest(now), FIRST);
            now += Duration::from_secs(4);
        }
    }

    /// What happens several times within seconds is put right within seconds.
    #[test]
    fn a_minute_of_writes_has_short_pauses() {
        let (mut turns, begin) = (Turns::default(), Instant::now());
        let mut now = begin;
        while now < begin + Duration::from_secs(60) {
            turns.written(now, u64::MAX);
            assert!(turns.rest(now) <= MOST * 3 / 2, "{:?}", turns.rest(now));
            now += turns.rest(now);
        }
    }

    /// When thousands of nodes want a prefix at once, each that gets one makes the others try again.
    #[test]
    fn attempts_to_get_a_prefix_become_fewer_until_one_succeeds() {
        let (mut turns, mut now) = (Turns::default(), Instant::now());
        let lose = |turns: &mut Turns, now| turns.lost(now, 0);
        let pauses = rests(&mut turns, &mut now, 8, lose);
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        turns.written(now, 0);
        assert_eq!(turns.rest(now), FIRST);
        now += FIRST;
        assert_eq!(rests(&mut turns, &mut now, 2, lose), [500, 1_000]);
        // A refusal that is over does not count at the next one.
        turns.held();
        assert_eq!(rests(&mut turns, &mut now, 2, lose), [500, 1_000]);
    }

    /// Thousands of nodes neither come at once, nor often to a server that is slow for long.
    #[test]
    fn attempts_while_nobody_answers_become_fewer() {
        let (mut turns, begin) = (Turns::default(), Instant::now());
        for (after, pause) in [(0, FIRST), (1, MOST), (3, MOST), (29, MOST), (30, LONG)] {
            let now = begin + Duration::from_secs(after);
            let before = turns.away;
            for random in [0, 1, u64::MAX] {
                turns.away = before;
                turns.away(now, random);
                let rest = turns.rest(now);
                assert!(pause <= rest && rest <= pause * 3 / 2, "{rest:?} after {after} s");
            }
        }
        // Another one answers. What was written before counts.
        let now = begin + Duration::from_secs(3700);
        turns.written(now, 1);
        turns.away(now, 0);
        assert!(FIRST * 2 < turns.rest(now));
        turns.answers();
        assert_eq!(turns.rest(now), FIRST + Duration::from_millis(1));
        turns.away(now, 0);
        turns.written(now, 0);
        turns.answers();
        assert_eq!(turns.rest(now), FIRST * 2);
    }
}
