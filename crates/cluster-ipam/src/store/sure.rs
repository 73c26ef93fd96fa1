//! A store that finds out the outcome of a write.

use serde_json::Value;

use super::{Entry, Filter, Key, Kind, Moment, Revision, Store, StoreError};

/// Repeats reads that were not answered, and finds out the outcome of writes that were not.
///
/// A write that names a revision happens at most once, however often it is requested. A record
/// whose text equals what was to be written was written by us, or by a process that wanted the
/// same: every record but a space's names its node.
#[derive(Debug)]
pub struct SureStore<S> {
    inner: S,
    attempts: u32,
}

impl<S: Store> SureStore<S> {
    /// Creates a store that sends each request at most `attempts` times.
    pub fn new(inner: S, attempts: u32) -> Self {
        SureStore { inner, attempts: attempts.max(1) }
    }

    fn again<T>(&self, mut ask: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut answer = ask();
        for _ in 1..self.attempts {
            match answer {
                Err(StoreError::Away(_)) => answer = ask(),
                answer => return answer,
            }
        }
        answer
    }

    /// Writes until the outcome is known.
    fn write<T>(
        &self,
        key: &Key,
        was: Option<&Revision>,
        mut write: impl FnMut() -> Result<T, StoreError>,
        is_done: impl Fn(Option<&Entry>) -> Option<T>,
    ) -> Result<T, StoreError> {
        let mut answer = write();
        let mut doubtful = false;
        for _ in 1..self.attempts {
            match &answer {
                Err(StoreError::Away(_)) => doubtful = true,
                Err(StoreError::Conflict) if doubtful => {}
                _ => return answer,
            }
            let found = self.again(|| self.inner.get(key))?;
            if let Some(done) = is_done(found.as_ref()) {
                return Ok(done);
            }
            if found.as_ref().map(|entry| &entry.revision) != was {
                return Err(StoreError::Conflict);
            }
            answer = write();
        }
        answer
    }
}

impl<S: Store> Store for SureStore<S> {
    fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.again(|| self.inner.get(key))
    }

    fn list(&self, kind: Kind, filter: Filter<'_>) -> Result<Vec<Entry>, StoreError> {
        self.again(|| self.inner.list(kind, filter))
    }

    fn create(&self, key: &Key, value: &Value) -> Result<Revision, StoreError> {
        self.write(
            key,
            None,
            || self.inner.create(key, value),
            |found| same(found, value).map(|entry| entry.revision.clone()),
        )
    }

    fn put_while(
        &self,
        key: &Key,
        was: Option<&Revision>,
        value: &Value,
        other: (&Key, &Revision),
    ) -> Result<Revision, StoreError> {
        let write = || self.inner.put_while(key, was, value, other);
        self.write(key, was, write, |found| match was {
            None => same(found, value).map(|entry| entry.revision.clone()),
            Some(was) => replaced(found, was, value),
        })
    }

    fn update(&self, key: &Key, was: &Revision, value: &Value) -> Result<Revision, StoreError> {
        let write = || self.inner.update(key, was, value);
        self.write(key, Some(was), write, |found| replaced(found, was, value))
    }

    fn delete(&self, key: &Key, was: &Revision) -> Result<(), StoreError> {
        let write = || self.inner.delete(key, was);
        self.write(key, Some(was), write, |found| found.is_none().then_some(()))
    }

    fn went_back(&self) -> u64 {
        self.inner.went_back()
    }

    fn moment(&self) -> Option<Moment> {
        self.inner.moment()
    }

    fn remember(&self, moment: &Moment) {
        self.inner.remember(moment);
    }

    fn is_gone(&self, node: &str) -> Result<bool, StoreError> {
        self.again(|| self.inner.is_gone(node))
    }
}

fn replaced(found: Option<&Entry>, was: &Revision, value: &Value) -> Option<Revision> {
    let done = same(found, value).filter(|entry| entry.revision != *was);
    done.map(|entry| entry.revision.clone())
}

fn same<'e>(found: Option<&'e Entry>, value: &Value) -> Option<&'e Entry> {
    found.filter(|entry| entry.value == *value)
}

#[cfg(test)]
mod tests {
    use super::super::{Fault, Memory};
    use super::*;

    fn key() -> Key {
        Key::new(Kind::Node, "n")
    }

    fn value(text: &str) -> Value {
        serde_json::json!({"node": "n", "says": text})
    }

    #[test]
    fn an_answer_that_is_lost_is_found_out() {
        let memory = Memory::default();
        let (view, truth) = (memory.view(), memory.view());
        let sure = SureStore::new(view.clone(), 3);
        let next = |fault: Fault| {
            let mut first = true;
            view.misbehave(move |verb, _| {
                let is_write = matches!(verb, "create" | "update" | "delete");
                if is_write && std::mem::take(&mut first) { fault } else { Fault::None }
            });
        };
        for fault in [Fault::Unanswered, Fault::Lost] {
            next(fault);
            let one = sure.create(&key(), &value("one")).unwrap();
            assert_eq!(truth.get(&key()).unwrap().unwrap().revision, one);
            next(fault);
            let two = sure.update(&key(), &one, &value("two")).unwrap();
            assert_eq!(truth.get(&key()).unwrap().unwrap().revision, two);
            assert_eq!(sure.update(&key(), &one, &value("two")), Err(StoreError::Conflict));
            next(fault);
            sure.delete(&key(), &two).unwrap();
            assert_eq!(truth.get(&key()).unwrap(), None);
        }
        // A write that lands while it is repeated.
        next(Fault::Late);
        let one = sure.create(&key(), &value("one")).unwrap();
        truth.land();
        assert_eq!(truth.get(&key()).unwrap().unwrap().revision, one);
    }

    #[test]
    fn a_record_is_replaced_only_while_another_one_stays() {
        let memory = Memory::default();
        let (view, truth) = (memory.view(), memory.view());
        let sure = SureStore::new(view.clone(), 3);
        let other = Key::new(Kind::Node, "other");
        let of_other = truth.create(&other, &value("one")).unwrap();
        let one = sure.create(&key(), &value("one")).unwrap();
        let mut first = true;
        view.misbehave(move |verb, _| {
            let is_first = verb == "update" && std::mem::take(&mut first);
            if is_first { Fault::Unanswered } else { Fault::None }
        });
        let two = sure.put_while(&key(), Some(&one), &value("two"), (&other, &of_other)).unwrap();
        assert_eq!(truth.get(&key()).unwrap().unwrap().revision, two);
        truth.update(&other, &of_other, &value("two")).unwrap();
        let late = sure.put_while(&key(), Some(&two), &value("three"), (&other, &of_other));
        assert_eq!(late, Err(StoreError::Conflict));
        assert_eq!(truth.get(&key()).unwrap().unwrap().value, value("two"));
    }

    #[test]
    fn who_was_quicker_is_not_us() {
        let memory = Memory::default();
        let (view, truth) = (memory.view(), memory.view());
        let sure = SureStore::new(view.clone(), 3);
        let theirs = truth.clone();
        let mut first = true;
        view.misbehave(move |verb, key| {
            if verb == "create" && std::mem::take(&mut first) {
                theirs.create(key, &value("theirs")).unwrap();
                return Fault::Lost;
            }
            Fault::None
        });
        assert_eq!(sure.create(&key(), &value("ours")), Err(StoreError::Conflict));
        view.misbehave(|_, _| Fault::Lost);
        assert!(matches!(sure.get(&key()), Err(StoreError::Away(_))));
    }
}
