//! How to back off from a program that changes things back, and in which order attachments are
//! looked at while something that they wait for is silent.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use cni::{AttachmentKey, NetworkName};

/// How often the same thing of an attachment is restored before it counts as a conflict.
const STRIKES: u32 = 5;

/// More different things than this are not remembered for one attachment.
const MOST_THINGS: usize = 256;

/// The shortest and the longest pause in a conflict.
const DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// After this time without a repair the counts start anew.
const RESET_AFTER: Duration = Duration::from_secs(120);

/// An attachment that takes longer waits for something: a switch or a server that is silent. Others
/// of its network would wait for it too, each as long, so they wait for the next look instead.
const WAITS: Duration = Duration::from_secs(2);

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
pub(super) enum Remainder {
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
    pub(super) fn left(&mut self, key: &AttachmentKey, left: &str) -> Remainder {
        if left.is_empty() && !self.0.contains_key(key) {
            return Remainder::Nothing;
        }
        let quarrel = self.0.entry(key.clone()).or_default();
        let before = std::mem::replace(&mut quarrel.left, left.to_owned());
        if left.is_empty() {
            quarrel.told.clear();
            Remainder::Nothing
        } else if quarrel.told == left {
            Remainder::Told
        } else if before == left {
            left.clone_into(&mut quarrel.told);
            Remainder::Lasting
        } else {
            Remainder::New
        }
    }

    /// Forgets all other attachments.
    pub(super) fn keep(&mut self, keys: &BTreeSet<AttachmentKey>) {
        self.0.retain(|key, _| keys.contains(key));
    }
}

/// Whose turn it is: in one look, at most one attachment of each network of a runtime waits
/// ([`WAITS`]).
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The attachments that waited when they were last looked at, and in which turn: they come
    /// after the others, and the one of the earliest turn first.
    waited: BTreeMap<AttachmentKey, u64>,
    /// The same, for the next look, as far as this one has come.
    waiting: BTreeMap<AttachmentKey, u64>,
    /// The runtime's networks of which one has waited in this look.
    silent: BTreeSet<NetworkName>,
    /// How many times an attachment has waited.
    turn: u64,
}

impl Turns {
    /// Begins a look.
    pub(super) fn begin(&mut self) {
        self.waiting.clear();
    }

    /// Goes on to the attachments of another runtime. It may have a network of the same name, which
    /// is another one, or whose attachments would never get their turn after those of this one.
    pub(super) fn begin_runtime(&mut self) {
        self.silent.clear();
    }

    /// Returns the place of an attachment among those of a runtime.
    pub(super) fn place(&self, key: &AttachmentKey) -> Option<u64> {
        self.waited.get(key).copied()
    }

    /// Says whether it is an attachment's turn in this look. If not, it keeps its place.
    pub(super) fn is_its(&mut self, key: &AttachmentKey) -> bool {
        let is_its = !self.silent.contains(&key.network);
        if let (false, Some(turn)) = (is_its, self.place(key)) {
            self.waiting.insert(key.clone(), turn);
        }
        is_its
    }

    /// Notes how long it took to look at an attachment.
    pub(super) fn took(&mut self, key: &AttachmentKey, time: Duration) {
        if WAITS < time {
            self.turn += 1;
            self.waiting.insert(key.clone(), self.turn);
            self.silent.insert(key.network.clone());
        }
    }

    /// Ends the look, and forgets attachments that are gone.
    pub(super) fn end(&mut self) {
        self.waited = std::mem::take(&mut self.waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> AttachmentKey {
        key_of("n", "c1")
    }

    fn key_of(network: &str, container: &str) -> AttachmentKey {
        AttachmentKey {
            network: network.parse().unwrap(),
            container_id: container.parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        }
    }

    /// The attachments of one runtime in the order of its cache, each with the time that a look at
    /// it takes, and a clock that moves with the looks.
    struct Node {
        attachments: Vec<(AttachmentKey, Duration)>,
        turns: Turns,
        clock: Duration,
    }

    impl Node {
        /// Looks once as the service does. Returns the attachments that it looked at, and how long
        /// that took.
        fn look(&mut self) -> (String, u64) {
            let begin = self.clock;
            self.turns.begin();
            self.turns.begin_runtime();
            let mut all = self.attachments.clone();
            all.sort_by_key(|(key, _)| self.turns.place(key));
            let mut seen = Vec::new();
            for (key, takes) in all {
                if self.turns.is_its(&key) {
                    self.clock += takes;
                    self.turns.took(&key, takes);
                    seen.push(key.container_id.to_string());
                }
            }
            self.turns.end();
            (seen.join(" "), (self.clock - begin).as_secs())
        }
    }

    /// A switch is silent, and each attachment of its network waits for ten seconds.
    #[test]
    fn each_attachment_that_waits_gets_its_turn_and_no_look_waits_for_two() {
        let waits = |name| (key_of("silent", name), Duration::from_secs(10));
        let mut node = Node {
            attachments: vec![waits("c1"), waits("c2"), waits("c3"), (key_of("m", "d"), WAITS)],
            turns: Turns::default(),
            clock: Duration::ZERO,
        };
        let told = |seen: &str| (seen.to_owned(), 12_u64);
        assert_eq!(node.look(), told("c1 d"));
        // An attachment that has not waited yet comes first.
        assert_eq!(node.look(), told("c2 d"));
        assert_eq!(node.look(), told("c3 d"));
        for _ in 0..3 {
            assert_eq!(node.look(), told("d c1"));
            assert_eq!(node.look(), told("d c2"));
            assert_eq!(node.look(), told("d c3"));
        }
        // Another one comes, and one goes.
        node.attachments.insert(0, waits("c0"));
        node.attachments.retain(|(key, _)| key.container_id.as_str() != "c2");
        assert_eq!(node.look(), told("c0 d"));
        assert_eq!(node.look(), told("d c1"));
        assert_eq!(node.look(), told("d c3"));
        assert_eq!(node.look(), told("d c0"));
        // The switch answers again.
        node.attachments.iter_mut().for_each(|(_, takes)| *takes = Duration::ZERO);
        assert_eq!(node.look(), ("d c1 c3 c0".to_owned(), 0));
        assert_eq!(node.look(), ("c0 c1 c3 d".to_owned(), 0));
        assert!(node.turns.waited.is_empty());
    }

    #[test]
    fn a_network_that_is_silent_in_one_runtime_is_looked_at_in_another() {
        let (mut turns, long) = (Turns::default(), Duration::from_secs(10));
        turns.begin();
        turns.begin_runtime();
        turns.took(&key_of("n", "c1"), long);
        assert!(!turns.is_its(&key_of("n", "c2")) && turns.is_its(&key_of("m", "c3")));
        turns.begin_runtime();
        assert!(turns.is_its(&key_of("n", "c4")));
        turns.took(&key_of("n", "c4"), long);
        turns.end();
        let place = |container| turns.place(&key_of("n", container));
        assert_eq!([place("c1"), place("c2"), place("c4")], [Some(1), None, Some(2)]);
    }

    #[test]
    fn whoever_keeps_changing_things_is_given_way() {
        let (mut quarrels, mut now) = (Backoff::default(), Instant::now());
        let route = [("bridge".to_owned(), "route".to_owned())];
        for _ in 1..STRIKES {
            assert_eq!(quarrels.note(&key(), &route, now), None);
        }
        // Many different things are not a conflict.
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
        assert_eq!(quarrels.left(&key(), ""), Remainder::Nothing);
        assert_eq!(quarrels.left(&key(), "a"), Remainder::New);
        assert!(quarrels.is_lasting(&key(), "a") && !quarrels.is_lasting(&key(), "b"));
        assert_eq!(quarrels.left(&key(), "a"), Remainder::Lasting);
        assert_eq!(quarrels.left(&key(), "a"), Remainder::Told);
        assert_eq!(quarrels.left(&key(), "b"), Remainder::New);
        assert_eq!(quarrels.left(&key(), ""), Remainder::Nothing);
        assert_eq!(quarrels.left(&key(), "b"), Remainder::New);
        assert_eq!(quarrels.left(&key(), "b"), Remainder::Lasting);
    }
}
