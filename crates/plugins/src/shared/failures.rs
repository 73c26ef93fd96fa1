//! Collects failures: DEL and GC go on after one, and report all of them.

use std::fmt;

use cni_plugin::codes;

use super::failure::Failure;

/// The failures of independent steps.
#[derive(Debug, Default)]
pub struct Failures(Vec<Failure>);

impl Failures {
    /// Creates a collection without failures.
    #[must_use]
    pub fn new() -> Self {
        Failures::default()
    }

    /// Records a step's failure, with words that name the step; returns what the step produced.
    pub fn note<T>(
        &mut self,
        what: impl fmt::Display,
        step: Result<T, impl Into<Failure>>,
    ) -> Option<T> {
        step.map_err(|error| self.0.push(error.into().context(what))).ok()
    }

    /// Does the same for a step whose own words name it.
    pub fn note_as_it_is<T>(&mut self, step: Result<T, Failure>) -> Option<T> {
        step.map_err(|failure| self.0.push(failure)).ok()
    }

    /// Returns whether no step has failed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a single failure as it is, or several as one.
    ///
    /// # Errors
    /// When any step failed.
    pub fn into_result(mut self) -> Result<(), Failure> {
        match self.0.len() {
            0 => Ok(()),
            1 => Err(self.0.remove(0)),
            count => {
                let first = self.0[0].message().to_owned();
                let all: Vec<_> = self.0.iter().map(ToString::to_string).collect();
                Err(Failure::new(
                    codes::SEVERAL,
                    format!("{first} (and {} more failures)", count - 1),
                )
                .with_details(all.join("; ")))
            }
        }
    }
}
