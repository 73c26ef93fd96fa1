#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod http;
pub mod ipam;
pub mod method;
pub mod network;
pub mod options;
pub mod place;

use cni::json::JsonError;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The media type of requests and answers (moby pkg/plugins/transport).
pub const MEDIA_TYPE: &str = "application/vnd.docker.plugins.v1.2+json";

/// Reads a message by Go's rules for JSON: keys match in any case, `null` and an empty document
/// count as absent, unknown keys are ignored.
///
/// # Errors
/// [`JsonError`] with the place.
pub fn read<T: DeserializeOwned>(document: &[u8]) -> Result<T, JsonError> {
    let empty = document.iter().all(u8::is_ascii_whitespace);
    cni::json::from_slice(if empty { b"{}" } else { document })
}

/// Writes a message.
#[must_use]
pub fn write<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).expect("our messages have string keys only")
}

/// An error in an answer: network drivers use `Err`, IPAM drivers `Error`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Failure {
    /// The text of a network driver, or of a driver that refused the request itself.
    #[serde(rename = "Err", skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// The text of an IPAM driver.
    #[serde(rename = "Error", skip_serializing_if = "String::is_empty")]
    pub ipam: String,
}

impl Failure {
    /// Sets both fields, so that any caller shows the text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Failure { network: text.clone(), ipam: text }
    }

    /// Returns the text; `None` when there was no error.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        [&self.network, &self.ipam].into_iter().find(|text| !text.is_empty()).map(String::as_str)
    }
}

/// An answer without content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Nothing {}
