//! The form of the messages: one line each.
//!
//! A message is one JSON object on one line of at most [`MAX_MESSAGE`] bytes, the newline included,
//! with its `version` and one more key, which says what it is about: `{"version":1,"plan":{…}}`.
//! Keys that are not known are ignored, so that either side may be newer by additions; any other
//! change gets another version. A connection may carry several messages, each answered by one.
//!
//! ```
//! use netwright_node_api::line;
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

use cni::json::{self, JsonError};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The longest message, with its newline. A sender of more is cut off.
pub const MAX_MESSAGE: usize = 1 << 20;

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

/// A message of a protocol: what is written on one line.
pub trait Message: Sized {
    /// Reads a message: a line, with or without its newline.
    ///
    /// # Errors
    /// [`LineError`].
    fn from_line(line: &[u8]) -> Result<Self, LineError>;

    /// Writes the message, with its newline.
    ///
    /// # Errors
    /// [`LineError::TooLong`].
    fn to_line(&self) -> Result<Vec<u8>, LineError>;
}

/// What a message says that has nothing to add: `{}`.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Nothing {}

/// Says whether a value is the default one, which is not written.
pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}

/// Reads a message of a given version: a line, with or without its newline.
///
/// # Errors
/// [`LineError`].
pub fn read<T: DeserializeOwned>(line: &[u8], version: u32) -> Result<T, LineError> {
    if MAX_MESSAGE < line.len() {
        return Err(LineError::TooLong(line.len()));
    }
    read_any(line, version)
}

/// Reads a message of any length.
pub(crate) fn read_any<T: DeserializeOwned>(line: &[u8], version: u32) -> Result<T, LineError> {
    /// The one key that every version has.
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Head {
        version: u32,
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
    let text = write_any(line);
    if MAX_MESSAGE < text.len() {
        return Err(LineError::TooLong(text.len()));
    }
    Ok(text)
}

/// Writes a message of any length.
pub(crate) fn write_any<T: Serialize>(line: &T) -> Vec<u8> {
    let mut text = serde_json::to_vec(line).expect("our messages have string keys only");
    // Unparsed text may contain line breaks.
    for byte in &mut text {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    text.push(b'\n');
    text
}
