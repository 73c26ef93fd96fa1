//! Makes ADD a transaction: every step that was done has an undo.

use std::fmt;

use cni::Error;

/// The steps done so far, to be undone in reverse when one fails.
#[derive(Default)]
pub struct Undo<'a> {
    steps: Vec<(String, Step<'a>)>,
}

type Step<'a> = Box<dyn FnOnce() -> Result<(), Error> + 'a>;

impl<'a> Undo<'a> {
    /// Starts with nothing to undo.
    #[must_use]
    pub fn new() -> Self {
        Undo::default()
    }

    /// Records how to undo what was just done. `what` completes "could not …".
    pub fn record(
        &mut self,
        what: impl fmt::Display,
        step: impl FnOnce() -> Result<(), Error> + 'a,
    ) {
        self.steps.push((what.to_string(), Box::new(step)));
    }

    /// Records how to undo what was just done, to be undone after everything recorded so far.
    pub fn record_as_first(
        &mut self,
        what: impl fmt::Display,
        step: impl FnOnce() -> Result<(), Error> + 'a,
    ) {
        self.steps.insert(0, (what.to_string(), Box::new(step)));
    }

    /// Undoes everything, last first, and returns `cause` with whatever could not be undone.
    #[must_use]
    pub fn run(self, cause: Error) -> Error {
        self.steps.into_iter().rev().fold(cause, |cause, (what, step)| match step() {
            Ok(()) => cause,
            Err(error) => cause.with_details(format!("could not {what}: {error}")),
        })
    }
}

impl fmt::Debug for Undo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.steps.iter().map(|(what, _)| what)).finish()
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
        undo.record("delete the bridge", || {
            order.borrow_mut().push(1);
            Ok(())
        });
        undo.record("release the address", || {
            order.borrow_mut().push(2);
            Err(Error::new(5, "disk full"))
        });
        undo.record_as_first("unlock", || {
            order.borrow_mut().push(3);
            Ok(())
        });
        let error = undo.run(Error::new(100, "no link"));
        assert_eq!(*order.borrow(), [2, 1, 3]);
        assert_eq!(error.code, 100);
        assert_eq!(error.to_string(), "no link; could not release the address: disk full");
    }
}
