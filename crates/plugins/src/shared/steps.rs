//! Changes of links, routes and rules that carry their undo.

use kernel::route::{Change, RouteSocket};

use super::failure::Failure;

/// One change and how it is undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The change.
    pub change: Change,
    /// The changes that restore the previous state, in order; empty if an earlier step's undo
    /// covers it.
    pub back: Vec<Change>,
    /// Whether the kernel may lack support for it: it is then skipped.
    pub optional: bool,
}

impl Step {
    /// Creates a change that must succeed and that one other change undoes.
    #[must_use]
    pub fn new(change: Change, back: Change) -> Self {
        Self { change, back: vec![back], optional: false }
    }

    /// Creates a change that must succeed and has no undo of its own.
    #[must_use]
    pub fn one_way(change: Change) -> Self {
        Self { change, back: Vec::new(), optional: false }
    }
}

/// Makes all changes, in order. On failure it undoes those that were made, last first. Returns
/// whether some optional step was done.
///
/// # Errors
/// The kernel's refusal; the details list everything that could not be undone.
pub fn apply(socket: &mut RouteSocket, steps: &[Step]) -> Result<bool, Failure> {
    let mut optional_done = false;
    for (number, step) in steps.iter().enumerate() {
        match socket.apply_one(&step.change) {
            Ok(()) => optional_done |= step.optional,
            Err(error) if step.optional && error.is_not_found() => {}
            Err(error) => {
                let back = steps[..number].iter().rev().flat_map(|step| &step.back);
                return Err(undo(socket, back, Failure::from(error)));
            }
        }
    }
    Ok(optional_done)
}

/// Undoes steps that were all made, last first, and returns `cause` with what could not be undone.
pub fn undo_all(socket: &mut RouteSocket, steps: &[Step], cause: Failure) -> Failure {
    undo(socket, steps.iter().rev().flat_map(|step| &step.back), cause)
}

fn undo<'s>(
    socket: &mut RouteSocket,
    back: impl Iterator<Item = &'s Change>,
    cause: Failure,
) -> Failure {
    back.fold(cause, |cause, change| match socket.apply_one(change) {
        Err(error) if !error.is_not_found() && !error.is_exists() => {
            cause.with_details(format!("could not {error}"))
        }
        _ => cause,
    })
}
