//! Makes many changes, and passes what became of them to routing.
//!
//! A cold start makes tens of thousands of objects, and the kernel works on each while the loop
//! waits. What needs no answer of it is done by another thread meanwhile.

use std::panic::resume_unwind;
use std::thread::{self, Builder, ScopedJoinHandle};

use routing::plan::Change;

use super::context::{Context, log};

/// How many changes are made before what became of them is passed on; it is held until then. Only a
/// cold start and the loss of a tunnel need more, on a node with hundreds of others.
const PART: usize = 2048;

/// The kernel's answer to each of some changes.
pub(super) type Results = Vec<Result<(), String>>;

/// What became of changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ChangesOutcome {
    /// The first that was made.
    pub(super) first: Option<Change>,
    /// One has failed, and not as it did before.
    pub(super) is_news: bool,
}

impl ChangesOutcome {
    /// Adds what became of later changes.
    pub(super) fn then(self, later: ChangesOutcome) -> Self {
        ChangesOutcome { first: self.first.or(later.first), is_news: self.is_news || later.is_news }
    }
}

/// Reports whether changes are so many that other work is done meanwhile.
pub(super) fn are_many(changes: &[Change]) -> bool {
    PART < changes.len()
}

/// Passes to routing what became of changes, and logs which have failed.
pub(super) fn note<'a>(
    context: &Context,
    results: impl IntoIterator<Item = (&'a Change, Result<(), String>)>,
) -> ChangesOutcome {
    let mut made = ChangesOutcome::default();
    let now = context.clock.now();
    let mut routing = context.routing();
    for (change, result) in results {
        context.counts.changes.changed(result.is_ok());
        if let Err(error) = result {
            if let Some(news) = routing.failed(change, &error, now) {
                log(&news);
                made.is_news = true;
            }
            continue;
        }
        made.first = made.first.or_else(|| Some(change.clone()));
        routing.cut_off_by(change).iter().for_each(log);
        routing.done(change);
    }
    made
}

/// Makes changes in parts, and notes what became of them, in their order. While the kernel makes a
/// part, another thread notes what became of the part before. `earlier` are made already: they are
/// noted first.
pub(super) fn in_parts(
    earlier: &[Change],
    changes: &[Change],
    mut make: impl FnMut(&[Change]) -> Results,
    note: impl Fn(&[Change], Results) -> ChangesOutcome + Sync,
) -> ChangesOutcome {
    let mut made = ChangesOutcome::default();
    let mut last: (&[Change], Results) = (earlier, vec![Ok(()); earlier.len()]);
    for part in changes.chunks(PART) {
        let (before, results) = last;
        let (noted, results) = if before.is_empty() {
            (ChangesOutcome::default(), make(part))
        } else {
            at_once(|| note(before, results), || make(part))
        };
        made = made.then(noted);
        last = (part, results);
    }
    let (part, results) = last;
    made.then(note(part, results))
}

/// Does two things at the same time, the first in a thread of its own. If that cannot be started,
/// it does one after the other.
pub(super) fn at_once<A: Send, B>(
    one: impl FnOnce() -> A + Send,
    other: impl FnOnce() -> B,
) -> (A, B) {
    by(Builder::new().name("beside".to_owned()), one, other)
}

fn by<A: Send, B>(
    beside: Builder,
    one: impl FnOnce() -> A + Send,
    other: impl FnOnce() -> B,
) -> (A, B) {
    let mut waiting = Some(one);
    let (done, of_other) = thread::scope(|scope| {
        let begun = beside.spawn_scoped(scope, || waiting.take().map(|one| one()));
        let of_other = other();
        let done = begun.ok().map(ScopedJoinHandle::join);
        (done, of_other)
    });
    let of_one = match done {
        Some(Ok(of_one)) => of_one,
        Some(Err(panic)) => resume_unwind(panic),
        None => None,
    };
    let of_one = match (of_one, waiting) {
        (Some(of_one), _) => of_one,
        (None, one) => one.expect("no thread has done it")(),
    };
    (of_one, of_other)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use routing::object::{Key, Value};

    use super::*;

    #[test]
    fn the_first_of_two_things_is_done_by_another_thread() {
        let here = thread::current().id();
        let (one, other) = at_once(|| thread::current().id(), || thread::current().id());
        assert!(one != here && other == here);
    }

    #[test]
    fn without_a_thread_one_is_done_after_the_other() {
        let here = thread::current().id();
        let done = Mutex::new(Vec::new());
        let act = |what: &'static str| {
            done.lock().unwrap().push(what);
            thread::current().id()
        };
        // No process has room for such a stack.
        let beside = Builder::new().stack_size(1 << 48);
        assert_eq!(by(beside, || act("one"), || act("other")), (here, here));
        assert_eq!(*done.lock().unwrap(), ["other", "one"]);
    }

    #[test]
    fn what_became_of_each_change_is_noted_once_and_in_order() {
        let change = |id| Change::Create(Key::Nexthop { id }, Value::There);
        let changes: Vec<Change> = (0..).map(change).take(3 + 2 * PART + 2).collect();
        let refused = &changes[PART + 3];
        let (earlier, later) = changes.split_at(3);
        let mut lengths = Vec::new();
        let make = |part: &[Change]| -> Results {
            lengths.push(part.len());
            let answer = |change: &Change| match change == refused {
                true => Err("no".to_owned()),
                false => Ok(()),
            };
            part.iter().map(answer).collect()
        };
        let noted = Mutex::new(Vec::new());
        let note = |part: &[Change], results: Results| {
            let is_news = results.iter().any(Result::is_err);
            noted.lock().unwrap().extend(part.iter().cloned().zip(results));
            ChangesOutcome { first: part.first().cloned(), is_news }
        };
        let made = in_parts(earlier, later, make, note);
        assert_eq!(made, ChangesOutcome { first: changes.first().cloned(), is_news: true });
        assert_eq!(lengths, [PART, PART, 2]);
        let (of, results): (Vec<Change>, Results) = noted.into_inner().unwrap().into_iter().unzip();
        assert!(of == changes);
        let failed: Vec<usize> = (0..results.len()).filter(|at| results[*at].is_err()).collect();
        assert_eq!(failed, [PART + 3]);
    }

    /// As after most looks: a thread would only cost time.
    #[test]
    fn few_changes_are_made_and_noted_by_the_loop() {
        let here = thread::current().id();
        let changes = [Change::Create(Key::Nexthop { id: 1 }, Value::There)];
        let note = |_: &[Change], results: Results| {
            assert_eq!(thread::current().id(), here);
            ChangesOutcome { first: None, is_news: results.len() != 1 }
        };
        let made = in_parts(&[], &changes, |part| vec![Ok(()); part.len()], note);
        assert_eq!(made, ChangesOutcome::default());
        assert_eq!(in_parts(&[], &[], |_| unreachable!(), |_, _| ChangesOutcome::default()), made);
    }
}
