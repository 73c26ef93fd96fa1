//! When to look again, and how not to quarrel with somebody who changes things back.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use cni::AttachmentKey;

/// How long events may gather before a look: a burst of them is one change of somebody's.
const SETTLE: Duration = Duration::from_millis(10);

/// After a look, so many times its own duration pass before the next: a node that changes all the time takes a fifth of one
/// processor, and not a whole.
const REST: u32 = 4;

/// So often something of an attachment is put back before it is a quarrel.
const STRIKES: u32 = 5;

/// The shortest and the longest pause in a quarrel.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// After this time without a repair all is forgotten.
const FORGIVEN: Duration = Duration::from_secs(120);

/// When the next look is due.
#[derive(Debug)]
pub(super) struct Pace {
    interval: Duration,
    due: Option<Instant>,
    rested: Option<Instant>,
}

impl Pace {
    pub(super) fn new(interval: Duration) -> Self {
        Pace { interval, due: None, rested: None }
    }

    /// Something was heard.
    pub(super) fn hurry(&mut self, now: Instant) {
        let soon = self.rested.unwrap_or(now).max(now + SETTLE);
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }

    /// A look is over.
    pub(super) fn looked(&mut self, begin: Instant, end: Instant) {
        self.rested = Some(end + (end - begin) * REST);
        self.due = Some(end + self.interval);
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    pub(super) fn until_due(&self, now: Instant) -> Duration {
        self.due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now))
    }
}

#[derive(Debug, Default)]
struct Quarrel {
    strikes: u32,
    last: Option<Instant>,
    not_before: Option<Instant>,
    left: String,
}

/// What was put back lately, and what could not be.
#[derive(Debug, Default)]
pub(super) struct Quarrels(HashMap<AttachmentKey, Quarrel>);

impl Quarrels {
    /// Says whether an attachment may be repaired now.
    pub(super) fn may(&self, key: &AttachmentKey, now: Instant) -> bool {
        let until = self.0.get(key).and_then(|quarrel| quarrel.not_before);
        until.is_none_or(|until| until <= now)
    }

    /// Notes a look. Answers with a pause that begins with it.
    pub(super) fn note(
        &mut self,
        key: &AttachmentKey,
        repaired: bool,
        now: Instant,
    ) -> Option<Duration> {
        if !repaired {
            return None;
        }
        let quarrel = self.0.entry(key.clone()).or_default();
        if quarrel.last.is_none_or(|last| FORGIVEN < now - last) {
            quarrel.strikes = 0;
        }
        quarrel.last = Some(now);
        quarrel.strikes += 1;
        let over = quarrel.strikes.checked_sub(STRIKES)?;
        let pause = PAUSES.0.saturating_mul(1 << over.min(6)).min(PAUSES.1);
        quarrel.not_before = Some(now + pause);
        Some(pause)
    }

    /// Says whether what could not be put back is another than the last time.
    pub(super) fn is_news(&mut self, key: &AttachmentKey, left: &str) -> bool {
        match self.0.get_mut(key) {
            Some(quarrel) if quarrel.left == left => false,
            Some(quarrel) => {
                left.clone_into(&mut quarrel.left);
                true
            }
            None if left.is_empty() => false,
            None => {
                self.0.insert(key.clone(), Quarrel { left: left.to_owned(), ..Quarrel::default() });
                true
            }
        }
    }

    /// Forgets all others.
    pub(super) fn keep(&mut self, keys: &BTreeSet<AttachmentKey>) {
        self.0.retain(|key, _| keys.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> AttachmentKey {
        AttachmentKey {
            network: "n".parse().unwrap(),
            container_id: "c1".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        }
    }

    #[test]
    fn a_look_rests_four_times_its_time() {
        let now = Instant::now();
        let mut pace = Pace::new(Duration::from_secs(60));
        assert!(pace.is_due(now));
        let second = Duration::from_secs(1);
        pace.looked(now, now + second);
        assert_eq!(pace.until_due(now + second), Duration::from_secs(60));
        pace.hurry(now + second);
        assert_eq!(pace.until_due(now + second), Duration::from_secs(4));
        pace.looked(now, now);
        pace.hurry(now + second);
        assert_eq!(pace.until_due(now + second), SETTLE);
    }

    #[test]
    fn whoever_keeps_changing_things_is_given_way() {
        let (mut quarrels, mut now) = (Quarrels::default(), Instant::now());
        for _ in 1..STRIKES {
            assert_eq!(quarrels.note(&key(), true, now), None);
        }
        assert_eq!(quarrels.note(&key(), true, now), Some(Duration::from_secs(1)));
        assert!(!quarrels.may(&key(), now) && quarrels.may(&key(), now + Duration::from_secs(1)));
        for _ in 0..100 {
            assert!(quarrels.note(&key(), true, now).unwrap() <= PAUSES.1);
        }
        now += FORGIVEN + Duration::from_secs(61);
        assert_eq!(quarrels.note(&key(), true, now), None);
        assert_eq!(quarrels.note(&key(), false, now), None);
        quarrels.keep(&BTreeSet::new());
        assert!(quarrels.0.is_empty());
    }

    #[test]
    fn what_cannot_be_put_back_is_told_once() {
        let mut quarrels = Quarrels::default();
        assert!(!quarrels.is_news(&key(), ""));
        assert!(quarrels.is_news(&key(), "a") && !quarrels.is_news(&key(), "a"));
        assert!(quarrels.is_news(&key(), "b") && quarrels.is_news(&key(), ""));
    }
}
