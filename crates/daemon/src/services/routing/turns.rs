//! When this node writes its lease in etcd.

use std::time::{Duration, Instant};

use super::etcd_keys::spread;

/// Pauses between writes, at first and at most. All pauses here are up to half as long again: when
/// thousands of nodes want a lease at once, each that gets one makes the others' lists old.
pub(super) const WRITE: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(30));
/// After so long without a write, and at least as long as the last pause, the pause is the first
/// one again.
const QUIET: Duration = Duration::from_secs(2);
/// Pauses while no member answers: short at first, since another member may answer in a moment, and
/// long once none has answered for [`LASTING`].
const AWAY: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(30));
const LASTING: Duration = Duration::from_secs(30);

/// When this node may write its lease. Two nodes with one address would write in turn for ever,
/// each as soon as it may: so they write less and less often. What another node overwrites now and
/// then is put right at once.
#[derive(Debug)]
pub(super) struct Turns {
    pause: Duration,
    /// Not before then, after what was written.
    again: Option<Instant>,
    /// Since when no member answers, and when to try again.
    away: Option<(Instant, Instant)>,
}

impl Default for Turns {
    fn default() -> Self {
        Turns { pause: WRITE.0, again: None, away: None }
    }
}

impl Turns {
    /// Returns how long nothing may be written.
    pub(super) fn rest(&self, now: Instant) -> Duration {
        let at = self.again.max(self.away.map(|(_, at)| at));
        at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// Takes note that something was written, or refused. Returns the pause after it. `random` is any
    /// number.
    pub(super) fn written(&mut self, now: Instant, random: u64) -> Duration {
        let quiet = QUIET.max(self.pause);
        if self.again.is_some_and(|at| quiet < now.saturating_duration_since(at)) {
            self.pause = WRITE.0;
        }
        let pause = spread(self.pause, random);
        self.again = Some(now + pause);
        self.pause = (self.pause * 2).min(WRITE.1);
        pause
    }

    /// Takes note that no member has answered. Returns the pause after it. `random` is any number.
    pub(super) fn away(&mut self, now: Instant, random: u64) -> Duration {
        let since = self.away.map_or(now, |(since, _)| since);
        let lasts = LASTING <= now.saturating_duration_since(since);
        let pause = spread(if lasts { AWAY.1 } else { AWAY.0 }, random);
        self.away = Some((since, now + pause));
        pause
    }

    /// Takes note that a member answers.
    pub(super) fn answers(&mut self) {
        self.away = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_with_one_address_write_less_and_less_often() {
        let (mut turns, mut now) = (Turns::default(), Instant::now());
        assert_eq!(turns.rest(now), Duration::ZERO);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            pauses.push(turns.written(now, 0).as_millis());
            now += turns.rest(now) + Duration::from_millis(10);
        }
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        // The other node is gone. What another program overwrites every few seconds is put right at
        // once.
        now += Duration::from_secs(31);
        for _ in 0..5 {
            assert_eq!(turns.written(now, 0), WRITE.0);
            now += Duration::from_secs(4);
        }
    }

    /// Thousands of nodes neither come at once, nor often to a server that is slow for long.
    #[test]
    fn attempts_while_nobody_answers_become_fewer() {
        let (mut turns, begin) = (Turns::default(), Instant::now());
        for (after, pause) in [(0, AWAY.0), (29, AWAY.0), (30, AWAY.1), (3600, AWAY.1)] {
            let now = begin + Duration::from_secs(after);
            for random in [0, 1, u64::MAX] {
                let rest = turns.away(now, random);
                assert!(pause <= rest && rest <= pause * 3 / 2, "{rest:?} after {after} s");
                assert_eq!(turns.rest(now), rest);
            }
            assert_ne!(turns.away(now, 0), turns.away(now, 1));
        }
        // Another one answers. What was written before counts.
        let now = begin + Duration::from_secs(3700);
        assert_eq!(turns.written(now, 1), WRITE.0 + Duration::from_millis(1));
        assert!(WRITE.0 < turns.away(now, 0));
        turns.answers();
        assert_eq!(turns.rest(now), WRITE.0 + Duration::from_millis(1));
        assert_eq!(turns.away(now, 0), AWAY.0);
    }
}
