//! The form of the messages: one line each.
//!
//! A message is one JSON object on one line of at most [`MAX_MESSAGE`] bytes, the newline included,
//! with its `version` and one more key, which says what it is about: `{"version":1,"plan":{…}}`.
//! Keys that are not known are ignored, so that either side may be newer by additions; any other
//! change gets another version. A connection may carry several messages, each answered by one.
//!
//! ```
//! use netwright_node_api::multinet::Answer;
//! use netwright_node_api::{LineError, Message};
//!
//! assert_eq!(Answer::Ok.to_line()?, b"{\"version\":1,\"ok\":{}}\n");
//! let newer = br#"{"version":1,"ok":{"weather":"fine"},"id":3}"#;
//! assert_eq!(Answer::from_line(newer)?, Answer::Ok);
//! let other = Answer::from_line(br#"{"version":2}"#);
//! assert_eq!(other, Err(LineError::Version { found: 2, known: 1 }));
//! # Ok::<(), LineError>(())
//! ```

use cni::json::{self, JsonError};
use serde::de::DeserializeOwned;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};

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
    #[error("a message without a known key")]
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

/// The content of a message that says no more than its key: `{}`.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Nothing {}

/// Makes an enum a [`Message`]: each variant is written under its key. Variants without a content
/// come last.
macro_rules! message {
    (
        $of:ty, $version:expr,
        { $($key:ident: $variant:ident($content:ty)),* $(,)? },
        { $($empty:ident: $unit:ident),* }
    ) => {
        impl $crate::line::Message for $of {
            fn from_line(line: &[u8]) -> Result<Self, $crate::line::LineError> {
                #[derive(Default, serde::Deserialize)]
                #[serde(default)]
                struct Line {
                    $($key: Option<$content>,)*
                    $($empty: Option<$crate::line::Nothing>,)*
                }
                let line: Line = $crate::line::read(line, $version)?;
                $crate::line::only([
                    $(line.$key.map(Self::$variant),)*
                    $(line.$empty.map(|_| Self::$unit),)*
                ])
            }

            fn to_line(&self) -> Result<Vec<u8>, $crate::line::LineError> {
                match self {
                    $(Self::$variant(content) => {
                        $crate::line::write($version, stringify!($key), content)
                    })*
                    $(Self::$unit => {
                        let nothing = $crate::line::Nothing {};
                        $crate::line::write($version, stringify!($empty), &nothing)
                    })*
                }
            }
        }
    };
}
pub(crate) use message;

/// Says whether a value is the default one, which is not written.
pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}

/// Reads a message of a given version: a line, with or without its newline.
///
/// # Errors
/// [`LineError`].
pub(crate) fn read<T: DeserializeOwned>(line: &[u8], version: u32) -> Result<T, LineError> {
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
pub(crate) fn only<T, const N: usize>(said: [Option<T>; N]) -> Result<T, LineError> {
    let mut said = said.into_iter().flatten();
    match (said.next(), said.next()) {
        (Some(one), None) => Ok(one),
        _ => Err(LineError::Unknown),
    }
}

/// Writes a message, with its newline: its version, and what it says under its key.
///
/// # Errors
/// [`LineError::TooLong`].
pub(crate) fn write<T: Serialize>(
    version: u32,
    key: &'static str,
    content: &T,
) -> Result<Vec<u8>, LineError> {
    struct KeyedContent<'c, T>(u32, &'static str, &'c T);
    impl<T: Serialize> Serialize for KeyedContent<'_, T> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut keys = serializer.serialize_map(Some(2))?;
            keys.serialize_entry("version", &self.0)?;
            keys.serialize_entry(self.1, self.2)?;
            keys.end()
        }
    }
    let text = write_any(&KeyedContent(version, key, content));
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
