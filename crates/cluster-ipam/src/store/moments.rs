//! A store's position: what its answers report, and whether it went back.
//!
//! etcd may be restored from a backup. It then does not know the blocks that were leased since, and
//! would lease them again. An answer that is older than what the node knew when it asked shows
//! that. So does a revision that is higher than the last one by more than 100,000,000, because a
//! store may be restored with a higher revision (`etcdutl snapshot restore --bump-revision`).
//! Revisions above 10^15 are exempt: an API server whose storage is not etcd may use times.
//!
//! The node then gives no address before it has compared its blocks with the store, and takes no
//! new block for 30 s, so that all nodes can compare first. If the store was not restored, nothing
//! else happens.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// No store moves on by more than this between two answers that a process hears: it would take
/// hours of ten thousand changes a second, and a node asks every ten seconds. A backup that is
/// restored with a higher revision is usually put ahead by ten times as much (`etcdutl snapshot
/// restore --bump-revision 1000000000`, as etcd's documentation has it). If a store does move on
/// that far, while a process is suspended for days, its node compares what it has once.
const LEAP: u64 = 100_000_000;

/// A position beyond this is a time and not a count: ten thousand changes a second reach it after
/// three thousand years, and microseconds since 1970 are more. Some API servers keep their records
/// in a database whose versions are times, which move on by more than [`LEAP`] in an instant.
const LAST_COUNT: u64 = 1_000_000_000_000_000;

/// A store's position.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moment {
    /// The store's identity, if it reports one: a restored copy has another.
    pub store: String,
    /// How many changes it has seen, at least.
    pub revision: u64,
}

/// What a client has seen of a store.
///
/// Each request begins with [`Moments::begin`] and each answer ends with [`Moments::heard`]: an
/// answer must not be older than what was known when the request was sent. Answers to concurrent
/// requests may come in any order.
#[derive(Debug, Default)]
pub struct Moments {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    newest: Option<Moment>,
    /// This process has heard an answer: `newest` is not from long ago.
    has_heard: bool,
    went_back: u64,
}

impl Moments {
    /// Returns what is known before a request is sent: how often the store went back, and its
    /// position.
    #[must_use]
    pub fn begin(&self) -> (u64, u64) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        (inner.went_back, inner.newest.as_ref().map_or(0, |moment| moment.revision))
    }

    /// Records an answer's position.
    pub fn heard(&self, begun: (u64, u64), answer: Moment) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if begun.0 != inner.went_back {
            // The request was sent before that was noticed.
            return;
        }
        let has_heard = std::mem::replace(&mut inner.has_heard, true);
        let Some(newest) = &mut inner.newest else {
            inner.newest = Some(answer);
            return;
        };
        let other =
            !answer.store.is_empty() && !newest.store.is_empty() && answer.store != newest.store;
        let leapt = has_heard
            && answer.revision <= LAST_COUNT
            && newest.revision.saturating_add(LEAP) < answer.revision;
        if other || leapt || answer.revision < begun.1 {
            inner.newest = Some(answer);
            inner.went_back += 1;
        } else if newest.revision < answer.revision {
            *newest = answer;
        }
    }

    /// Records the position that an earlier process saw, however long ago.
    pub fn remember(&self, moment: &Moment) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.newest.get_or_insert_with(|| moment.clone());
    }

    /// Returns the newest.
    #[must_use]
    pub fn newest(&self) -> Option<Moment> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).newest.clone()
    }

    /// Returns how often it went back.
    #[must_use]
    pub fn went_back(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).went_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(store: &str, revision: u64) -> Moment {
        Moment { store: store.to_owned(), revision }
    }

    #[test]
    fn an_answer_that_is_older_than_its_question_tells_of_a_copy() {
        let moments = Moments::default();
        moments.heard(moments.begin(), moment("a", 5));
        // Two concurrent requests, answered in reverse order.
        let (first, second) = (moments.begin(), moments.begin());
        moments.heard(second, moment("a", 7));
        moments.heard(first, moment("a", 6));
        assert_eq!((moments.went_back(), moments.newest()), (0, Some(moment("a", 7))));
        let late = moments.begin();
        moments.heard(moments.begin(), moment("a", 3));
        assert_eq!((moments.went_back(), moments.newest()), (1, Some(moment("a", 3))));
        moments.heard(late, moment("a", 4));
        assert_eq!(moments.went_back(), 1);
        // Another store, at any position.
        moments.heard(moments.begin(), moment("b", 9));
        assert_eq!(moments.went_back(), 2);
    }

    #[test]
    fn what_an_earlier_process_heard_counts() {
        let moments = Moments::default();
        moments.remember(&moment("a", 5));
        moments.heard(moments.begin(), moment("a", 4));
        assert_eq!(moments.went_back(), 1);
    }

    #[test]
    fn a_revision_that_leaps_tells_of_a_copy() {
        let moments = Moments::default();
        moments.heard(moments.begin(), moment("a", 5));
        moments.heard(moments.begin(), moment("a", 5 + LEAP));
        assert_eq!(moments.went_back(), 0);
        let late = moments.begin();
        let ahead = moment("a", 6 + 2 * LEAP);
        moments.heard(moments.begin(), ahead.clone());
        assert_eq!((moments.went_back(), moments.newest()), (1, Some(ahead)));
        // Its question was sent before that.
        moments.heard(late, moment("a", 7));
        moments.heard(moments.begin(), moment("a", 7 + 2 * LEAP));
        assert_eq!(moments.went_back(), 1);
    }

    /// The store may have moved on while no process was there.
    #[test]
    fn what_was_heard_long_ago_says_nothing_of_a_leap() {
        let moments = Moments::default();
        moments.remember(&moment("a", 5));
        moments.heard(moments.begin(), moment("a", 6 + LEAP));
        assert_eq!(moments.went_back(), 0);
        moments.heard(moments.begin(), moment("a", 7 + 2 * LEAP));
        assert_eq!(moments.went_back(), 1);
    }

    /// Microseconds since 1970. A node of such a store would never be given a block.
    #[test]
    fn a_revision_that_is_a_time_does_not_leap() {
        let (moments, now) = (Moments::default(), 1_795_000_000_000_000);
        for revision in [now, now + 6 * LEAP, u64::MAX] {
            moments.heard(moments.begin(), moment("", revision));
        }
        assert_eq!(moments.went_back(), 0);
        moments.heard(moments.begin(), moment("", now));
        assert_eq!(moments.went_back(), 1, "a time may go back too");
    }
}
