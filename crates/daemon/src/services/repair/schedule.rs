//! How to back off from a program that changes things back.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use cni::AttachmentKey;

/// The same thing of an attachment is restored so often before it counts as a conflict.
const STRIKES: u32 = 5;

/// More different things than this are not remembered for one attachment.
const MOST_THINGS: usize = 256;

/// The shortest and the longest pause in a conflict.
const DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// After this time without a repair the counts start anew.
const RESET_AFTER: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
struct Quarrel {
    /// How often each thing was restored.
    count: HashMap<String, u32>,
    last: Option<Instant>,
    not_before: Option<Instant>,
    /// What could not be restored at the last look, and what of that has been logged.
    left: String,
    told: String,
}

/// Whether something could not be restored, and whether that is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    /// It was not so at the last look: look again soon.
    New,
    /// It was so at the last look too: log it.
    Lasting,
    /// It has been logged.
    Told,
}

/// What was restored lately, and what could not be.
#[derive(Debug, Default)]
pub(super) struct Backoff(HashMap<AttachmentKey, Quarrel>);

impl Backoff {
    /// Says whether an attachment may be repaired now.
    pub(super) fn may(&self, key: &AttachmentKey, now: Instant) -> bool {
        let until = self.0.get(key).and_then(|quarrel| quarrel.not_before);
        until.is_none_or(|until| until <= now)
    }

    /// Notes a look and what it restored. Returns a pause, if one starts now.
    pub(super) fn note(
        &mut self,
        key: &AttachmentKey,
        put_back: &[(String, String)],
        now: Instant,
    ) -> Option<Duration> {
        if put_back.is_empty() {
            return None;
        }
        let quarrel = self.0.entry(key.clone()).or_default();
        let forgiven = quarrel.last.is_none_or(|last| RESET_AFTER < now - last);
        if forgiven || MOST_THINGS < quarrel.count.len() {
            quarrel.count.clear();
        }
        quarrel.last = Some(now);
        let mut most = 0;
        for (_, what) in put_back {
            let count = quarrel.count.entry(what.clone()).or_default();
            *count += 1;
            most = most.max(*count);
        }
        let over = most.checked_sub(STRIKES)?;
        let pause = DELAYS.0.saturating_mul(1 << over.min(6)).min(DELAYS.1);
        quarrel.not_before = Some(now + pause);
        Some(pause)
    }

    /// Says whether this could not be restored at the last look either, alone or with more.
    pub(super) fn is_lasting(&self, key: &AttachmentKey, left: &str) -> bool {
        self.0.get(key).is_some_and(|quarrel| quarrel.left.starts_with(left))
    }

    /// Says what to do about what could not be restored: a DEL, or an incomplete change by another
    /// program, looks like that for a moment.
    pub(super) fn left(&mut self, key: &AttachmentKey, left: &str) -> Left {
        if left.is_empty() && !self.0.contains_key(key) {
            return Left::Nothing;
        }
        let quarrel = self.0.entry(key.clone()).or_default();
        let before = std::mem::replace(&mut quarrel.left, left.to_owned());
        if left.is_empty() {
            quarrel.told.clear();
            Left::Nothing
        } else if quarrel.told == left {
            Left::Told
        } else if before == left {
            left.clone_into(&mut quarrel.told);
            Left::Lasting
        } else {
            Left::New
        }
    }

    /// Forgets all other attachments.
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
    fn whoever_keeps_changing_things_is_given_way() {
        let (mut quarrels, mut now) = (Backoff::default(), Instant::now());
        let route = [("bridge".to_owned(), "route".to_owned())];
        for _ in 1..STRIKES {
            assert_eq!(quarrels.note(&key(), &route, now), None);
        }
        // Many different things are no quarrel.
        for number in 0..2 * STRIKES {
            let other = [("bridge".to_owned(), format!("thing {number}"))];
            assert_eq!(quarrels.note(&key(), &other, now), None);
        }
        assert_eq!(quarrels.note(&key(), &route, now), Some(Duration::from_secs(1)));
        assert!(!quarrels.may(&key(), now) && quarrels.may(&key(), now + Duration::from_secs(1)));
        for _ in 0..100 {
            assert!(quarrels.note(&key(), &route, now).unwrap() <= DELAYS.1);
        }
        now += RESET_AFTER + Duration::from_secs(61);
        assert_eq!(quarrels.note(&key(), &route, now), None);
        assert_eq!(quarrels.note(&key(), &[], now), None);
        quarrels.keep(&BTreeSet::new());
        assert!(quarrels.0.is_empty());
    }

    #[test]
    fn what_cannot_be_put_back_is_told_once() {
        let mut quarrels = Backoff::default();
        assert_eq!(quarrels.left(&key(), ""), Left::Nothing);
        assert_eq!(quarrels.left(&key(), "a"), Left::New);
        assert!(quarrels.is_lasting(&key(), "a") && !quarrels.is_lasting(&key(), "b"));
        assert_eq!(quarrels.left(&key(), "a"), Left::Lasting);
        assert_eq!(quarrels.left(&key(), "a"), Left::Told);
        assert_eq!(quarrels.left(&key(), "b"), Left::New);
        assert_eq!(quarrels.left(&key(), ""), Left::Nothing);
        assert_eq!(quarrels.left(&key(), "b"), Left::New);
        assert_eq!(quarrels.left(&key(), "b"), Left::Lasting);
    }
}
