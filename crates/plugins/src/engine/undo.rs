//! Makes ADD a transaction: every step that was done has an undo.

use std::fmt;

use crate::shared::failure::Failure;

/// The steps done so far, to be undone in reverse when one fails.
#[derive(Default)]
pub(crate) struct Undo<'a> {
    steps: Vec<(String, Step<'a>)>,
    /// What is undone at the end, last first, each only if all before it was undone.
    last: Vec<(String, Step<'a>)>,
}

type Step<'a> = Box<dyn FnOnce() -> Result<(), Failure> + 'a>;

impl<'a> Undo<'a> {
    /// Starts with nothing to undo.
    #[must_use]
    pub(crate) fn new() -> Self {
        Undo::default()
    }

    /// Adds how to undo what was just done. `what` completes "could not …".
    pub(crate) fn push(
        &mut self,
        what: impl fmt::Display,
        step: impl FnOnce() -> Result<(), Failure> + 'a,
    ) {
        self.steps.push((what.to_string(), Box::new(step)));
    }

    /// Adds what is undone at the end, and only if all else was undone.
    pub(crate) fn push_last(
        &mut self,
        what: impl fmt::Display,
        step: impl FnOnce() -> Result<(), Failure> + 'a,
    ) {
        self.last.push((what.to_string(), Box::new(step)));
    }

    /// Undoes everything, last first, and returns `cause` with what could not be undone.
    #[must_use]
    pub(crate) fn run(self, mut cause: Failure) -> Failure {
        let mut is_undone = true;
        for (what, step) in self.steps.into_iter().rev() {
            if let Err(error) = step() {
                is_undone = false;
                cause = cause.with_left(format!("could not {what}: {error}"));
            }
        }
        for (what, step) in self.last.into_iter().rev() {
            if is_undone && let Err(error) = step() {
                is_undone = false;
                cause = cause.with_left(format!("could not {what}: {error}"));
            }
        }
        cause
    }
}

impl fmt::Debug for Undo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.steps.iter().chain(&self.last).map(|(what, _)| what)).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn undoes_in_reverse_and_keeps_every_error() {
        let order = RefCell::new(Vec::new());
        let mut undo = Undo::new();
        undo.push("delete the bridge", || {
            order.borrow_mut().push(1);
            Ok(())
        });
        undo.push("release the address", || {
            order.borrow_mut().push(2);
            Err(Failure::new(5, "disk full"))
        });
        undo.push_last("give the lease back", || {
            order.borrow_mut().push(3);
            Ok(())
        });
        let error = undo.run(Failure::new(100, "no link"));
        // What is last needs all else undone.
        assert_eq!(*order.borrow(), [2, 1]);
        assert_eq!(error.code(), 100);
        assert!(!cni::Error::from(error.clone()).leaves_nothing());
        assert_eq!(error.to_string(), "no link; could not release the address: disk full");
    }

    #[test]
    fn what_is_last_comes_after_what_was_recorded_later() {
        let order = RefCell::new(Vec::new());
        let note = |number| {
            let order = &order;
            move || {
                order.borrow_mut().push(number);
                Ok(())
            }
        };
        let mut undo = Undo::new();
        undo.push("delete the bridge", note(1));
        undo.push_last("remove the record", note(4));
        undo.push_last("release the address", note(3));
        undo.push("delete the link", note(2));
        let error = cni::Error::from(undo.run(Failure::new(100, "no link")));
        assert_eq!(*order.borrow(), [2, 1, 3, 4]);
        assert!(error.leaves_nothing());
    }
}
