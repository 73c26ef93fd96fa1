//! The answer of a service that does not do what a plugin asked for.

use cni::{Error, code};
use serde::{Deserialize, Serialize};

/// An answer that refuses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(default)]
#[error("{msg}")]
pub struct Refusal {
    /// The code that the plugin is to end with ([`code`]); 0 is [`code::TRY_AGAIN_LATER`] where
    /// [`Refusal::retry`] is set and [`code::INVALID_CONFIG`] where it is not.
    pub code: u32,
    /// One sentence.
    pub msg: String,
    /// Longer text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub details: String,
    /// Whether the same request may succeed later without any change: a server does not
    /// answer, something is not known yet.
    pub retry: bool,
}

impl Refusal {
    /// Refuses permanently.
    pub fn new(code: u32, msg: impl Into<String>) -> Self {
        Refusal { code, msg: msg.into(), details: String::new(), retry: false }
    }

    /// Refuses for now; the same request may succeed later.
    pub fn for_now(msg: impl Into<String>) -> Self {
        let code = code::TRY_AGAIN_LATER;
        Refusal { code, msg: msg.into(), details: String::new(), retry: true }
    }

    /// Adds details.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// Returns the error that the plugin ends with.
    #[must_use]
    pub fn to_cni(&self) -> Error {
        let code = match (self.code, self.retry) {
            (0, true) => code::TRY_AGAIN_LATER,
            (0, false) => code::INVALID_CONFIG,
            (code, _) => code,
        };
        Error::new(code, &self.msg).with_details(&self.details)
    }
}
