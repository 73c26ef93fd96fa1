//! How far a store is: what its answers say, and whether that went back.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// How far a store is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moment {
    /// Which store it is, where it says so: a copy that is put back is another one.
    pub store: String,
    /// How many changes it has seen, at least.
    pub revision: u64,
}

/// What a client saw of a store.
///
/// Each question begins with [`Moments::begin`] and each answer ends with [`Moments::heard`]: an
/// answer must not be older than what was known when the question was asked. Answers to questions
/// that were asked at once may come in any order.
#[derive(Debug, Default)]
pub struct Moments {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    newest: Option<Moment>,
    went_back: u64,
}

impl Moments {
    /// Returns what is known before a question is asked: how often it went back, and how far it is.
    #[must_use]
    pub fn begin(&self) -> (u64, u64) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        (inner.went_back, inner.newest.as_ref().map_or(0, |moment| moment.revision))
    }

    /// Notes what an answer says.
    pub fn heard(&self, begun: (u64, u64), answer: Moment) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if begun.0 != inner.went_back {
            // It was asked before that was noticed.
            return;
        }
        let Some(newest) = &mut inner.newest else {
            inner.newest = Some(answer);
            return;
        };
        let other =
            !answer.store.is_empty() && !newest.store.is_empty() && answer.store != newest.store;
        if other || answer.revision < begun.1 {
            inner.newest = Some(answer);
            inner.went_back += 1;
        } else if newest.revision < answer.revision {
            *newest = answer;
        }
    }

    /// Notes how far it was when an earlier process heard of it.
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
        // Two at once, answered the other way round.
        let (first, second) = (moments.begin(), moments.begin());
        moments.heard(second, moment("a", 7));
        moments.heard(first, moment("a", 6));
        assert_eq!((moments.went_back(), moments.newest()), (0, Some(moment("a", 7))));
        let late = moments.begin();
        moments.heard(moments.begin(), moment("a", 3));
        assert_eq!((moments.went_back(), moments.newest()), (1, Some(moment("a", 3))));
        moments.heard(late, moment("a", 4));
        assert_eq!(moments.went_back(), 1);
        // Another store, however far it is.
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
}
