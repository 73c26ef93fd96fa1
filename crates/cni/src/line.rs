//! One-line messages between plugins and our daemon over Unix sockets.
//!
//! A message is one JSON object on one line of at most [`MAX_MESSAGE`] bytes, the newline included,
//! with its `version` and one more key, which says what it is about: `{"version":1,"plan":{…}}`.
//! Keys that are not known are ignored, so that either side may be newer by additions; any other
//! change gets another version. A connection may carry several messages, each answered by one.
//!
//! A message that no daemon took is left in a folder beside the socket ([`todo_dir`]), one file per
//! message, which holds the line that would have been sent.
//!
//! ```
//! use netwright_cni::line;
//!
//! #[derive(Default, serde::Serialize, serde::Deserialize)]
//! #[serde(default)]
//! struct Said {
//!     version: u32,
//!     hello: Option<String>,
//! }
//! let text = line::write(&Said { version: 1, hello: Some("there".into()) })?;
//! let said: Said = line::read(&text, 1)?;
//! assert_eq!(line::only([said.hello])?, "there");
//! # Ok::<(), line::LineError>(())
//! ```

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::json::{self, JsonError};
use crate::{Error, code};

/// The longest message, with its newline. A sender of more is cut off.
pub const MAX_MESSAGE: usize = 1 << 20;

/// The folder for messages that no daemon took: the socket's path and `.todo`.
#[must_use]
pub fn todo_dir(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".todo");
    path.into()
}

/// The file with the time at which a daemon was last ready: the socket's path and `.ready`.
///
/// The file holds the milliseconds since the boot (`man 2 clock_gettime` CLOCK_BOOTTIME), as a
/// decimal number. The daemon writes it every few seconds while it is ready, and leaves it behind,
/// so that STATUS can tell a daemon that is being replaced from one that is gone.
#[must_use]
pub fn ready_file(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".ready");
    path.into()
}

/// Says why a message cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// It is longer than [`MAX_MESSAGE`].
    #[error("a message of {0} bytes, longer than {MAX_MESSAGE}")]
    TooLong(usize),
    /// It is not JSON of that shape.
    #[error("not a message: {0}")]
    Shape(#[source] JsonError),
    /// It is of another version.
    #[error("a message of version {found}; this is version {known}")]
    Version {
        /// The message's version.
        found: u32,
        /// The version that is understood.
        known: u32,
    },
    /// This version knows none, or several, of its keys.
    #[error("a message that says nothing that is known")]
    Unknown,
}

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
    /// Whether the same request may succeed later without a change by anybody: a server does not
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

/// Reads a message of a given version: a line, with or without its newline.
///
/// # Errors
/// [`LineError`].
pub fn read<T: DeserializeOwned>(line: &[u8], version: u32) -> Result<T, LineError> {
    /// The one key that every version has.
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Head {
        version: u32,
    }
    if MAX_MESSAGE < line.len() {
        return Err(LineError::TooLong(line.len()));
    }
    // Checked first, since a message of another version may have another shape.
    let head: Head = json::from_slice(line).map_err(LineError::Shape)?;
    if head.version != version {
        return Err(LineError::Version { found: head.version, known: version });
    }
    json::from_slice(line).map_err(LineError::Shape)
}

/// Returns the one value that is there.
///
/// # Errors
/// [`LineError::Unknown`] when there is none, or several.
pub fn only<T, const N: usize>(said: [Option<T>; N]) -> Result<T, LineError> {
    let mut said = said.into_iter().flatten();
    match (said.next(), said.next()) {
        (Some(one), None) => Ok(one),
        _ => Err(LineError::Unknown),
    }
}

/// Writes a message, with its newline.
///
/// # Errors
/// [`LineError::TooLong`].
pub fn write<T: Serialize>(line: &T) -> Result<Vec<u8>, LineError> {
    let mut text = serde_json::to_vec(line).expect("our messages have string keys only");
    // Unparsed text may contain line breaks.
    for byte in &mut text {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    text.push(b'\n');
    if MAX_MESSAGE < text.len() {
        return Err(LineError::TooLong(text.len()));
    }
    Ok(text)
}
