//! The error object of the specification.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::json::plain;
use crate::text::system;
use crate::{ItemDrift, json};

/// Codes of the specification (CNI 1.1.0 §5 "Error") and of the reference implementation.
pub mod code {
    /// The configuration's version is not supported, or does not have the verb.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A field is not supported; the message names its key and value.
    pub const UNSUPPORTED_FIELD: u32 = 2;
    /// The container is not known or does not exist: nothing is left to clean up.
    pub const UNKNOWN_CONTAINER: u32 = 3;
    /// An environment variable is missing or wrong; the message names it.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// Input or output failed.
    pub const IO_FAILURE: u32 = 5;
    /// Something could not be decoded.
    pub const DECODE_FAILURE: u32 = 6;
    /// The network configuration makes no sense.
    pub const INVALID_CONFIG: u32 = 7;
    /// The network namespace is wrong (used by the reference, absent from the specification's
    /// table).
    pub const INVALID_NETNS: u32 = 8;
    /// A condition that passes: try again later.
    pub const TRY_AGAIN_LATER: u32 = 11;
    /// STATUS: the plugin cannot serve ADD.
    pub const PLUGIN_NOT_AVAILABLE: u32 = 50;
    /// STATUS: the plugin cannot serve ADD and existing attachments may suffer.
    pub const LIMITED_CONNECTIVITY: u32 = 51;
    /// A bug of ours. Other projects' plugins use it for any failure.
    pub const INTERNAL: u32 = 999;
}

/// An error as plugins report it on standard output.
///
/// `msg` is one line and begins with the reference implementation's words where callers are known
/// to match on them; `details` holds the chain of causes and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Error {
    /// The version the error object is written in.
    #[serde(rename = "cniVersion", skip_serializing_if = "Option::is_none")]
    pub cni_version: Option<String>,
    /// See [`code`]; 100 and up belong to the plugin.
    pub code: u32,
    /// One line.
    pub msg: String,
    /// Longer text; empty when there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub details: String,
    /// Another project's plugin ended with code 999, or told nothing: that is no bug of ours.
    #[serde(rename = "netwright/foreign", skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
    /// The differences, one by one, if CHECK was asked for them ([`crate::LOOK`]).
    #[serde(rename = "netwright/differences", skip_serializing_if = "<[ItemDrift]>::is_empty")]
    pub differences: Box<[ItemDrift]>,
    /// Something remains of the attachment: ADD could not undo all that it did, or DEL keeps what it
    /// recorded. DEL is needed. Only plugins of this project say it.
    #[serde(rename = "netwright/left", skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// What a plugin that was called by others said, if the error is its refusal of its
    /// configuration: see [`Error::refusal`].
    #[serde(rename = "netwright/refusal", skip_serializing_if = "Option::is_none")]
    pub refused: Option<Box<Refusal>>,
}

/// How a plugin refuses its configuration, in its own words: those that called it put others before
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refusal {
    /// One of the codes for that: 1, 2, 6 or 7.
    pub code: u32,
    /// Its message.
    pub msg: String,
}

/// The codes by which a plugin refuses its configuration, whatever the verb is (CNI 1.1.0 §5
/// "Error").
const OF_CONFIG: [u32; 4] = [
    code::INCOMPATIBLE_VERSION,
    code::UNSUPPORTED_FIELD,
    code::DECODE_FAILURE,
    code::INVALID_CONFIG,
];

impl Error {
    /// Makes an error without details. The words of a [system] error stand
    /// without its number.
    pub fn new(code: u32, msg: impl Into<String>) -> Self {
        Error {
            cni_version: None,
            code,
            msg: system(&msg.into()).into_owned(),
            details: String::new(),
            foreign: false,
            differences: Box::default(),
            left: false,
            refused: None,
        }
    }

    /// Makes an error from any other: its text is the message, its sources are the details.
    pub fn from_chain(code: u32, error: &dyn std::error::Error) -> Self {
        let mut sources = Vec::new();
        let mut next = error.source();
        while let Some(source) = next {
            sources.push(plain(&source.to_string()));
            next = source.source();
        }
        let mut whole = plain(&error.to_string());
        for source in sources {
            if !whole.ends_with(&source) {
                whole.push_str(": ");
                whole.push_str(&source);
            }
        }
        Error::new(code, whole)
    }

    /// Appends details.
    #[must_use]
    pub fn with_details(mut self, details: impl AsRef<str>) -> Self {
        if !self.details.is_empty() && !details.as_ref().is_empty() {
            self.details.push_str("; ");
        }
        self.details.push_str(&system(details.as_ref()));
        self
    }

    /// Appends what an ADD that failed could not undo: see [`Error::left`].
    #[must_use]
    pub fn with_left(self, details: impl AsRef<str>) -> Self {
        self.leaving().with_details(details)
    }

    /// Notes that something remains: see [`Error::left`].
    #[must_use]
    pub fn leaving(self) -> Self {
        Error { left: true, ..self }
    }

    /// Notes that what this ADD left has been removed since.
    #[must_use]
    pub fn undone(self) -> Self {
        Error { left: false, ..self }
    }

    /// Returns how a plugin refuses its configuration, if that is what the error says: the innermost
    /// of several that called each other.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        let own = || {
            let is_refusal = OF_CONFIG.contains(&self.code);
            is_refusal.then(|| Refusal { code: self.code, msg: self.msg.clone() })
        };
        self.refused.as_deref().cloned().or_else(own)
    }

    /// Keeps how the plugin refuses its configuration, for callers that put words before the
    /// message.
    #[must_use]
    pub fn with_refusal(self) -> Self {
        let refused = self.refusal().map(Box::new);
        Error { refused, ..self }
    }

    /// Says whether a DEL that failed with this error met nothing but the refusal with which ADD had
    /// failed, and nothing else remains. A plugin that refuses its configuration at every verb has
    /// made nothing.
    #[must_use]
    pub fn is_only(&self, refusal: &Refusal) -> bool {
        !self.left && self.refusal().as_ref() == Some(refusal)
    }

    /// Says whether a plugin of this project, whose ADD ended with this error, has undone all that it
    /// did: a DEL would remove what was there before. After a bug (code 999) nobody knows.
    #[must_use]
    pub fn leaves_nothing(&self) -> bool {
        !self.left && self.code != code::INTERNAL
    }

    /// Notes that another project's plugin ended with this error: see [`Error::foreign`].
    #[must_use]
    pub fn of_foreign(self) -> Self {
        Error { foreign: self.code == code::INTERNAL, ..self }
    }

    /// Puts words before the message; keeps code and details.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.msg = system(&format!("{what}: {}", self.msg)).into_owned();
        self
    }

    /// Reads an error object, as printed by a plugin.
    ///
    /// # Errors
    /// [`json::JsonError`] when it is not a JSON object of that shape.
    pub fn parse(document: &[u8]) -> Result<Self, json::JsonError> {
        json::from_slice(document)
    }

    /// Writes the error as the reference does: indented by four spaces, no closing newline.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        crate::to_json_indented(self)
    }
}

/// Shown as the reference library shows it: the message, then the details after a semicolon.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.msg)?;
        if !self.details.is_empty() {
            write!(f, "; {}", self.details)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl<'de> Deserialize<'de> for Error {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Raw {
            #[serde(rename = "cniVersion")]
            cni_version: Option<String>,
            code: u32,
            msg: String,
            details: String,
            #[serde(rename = "netwright/foreign")]
            foreign: bool,
            #[serde(rename = "netwright/differences")]
            differences: Box<[ItemDrift]>,
            #[serde(rename = "netwright/left")]
            left: bool,
            #[serde(rename = "netwright/refusal")]
            refused: Option<Box<Refusal>>,
        }
        let raw = Raw::deserialize(deserializer)?;
        Ok(Error {
            cni_version: raw.cni_version,
            code: raw.code,
            msg: raw.msg,
            details: raw.details,
            foreign: raw.foreign,
            differences: raw.differences,
            left: raw.left,
            refused: raw.refused,
        })
    }
}
