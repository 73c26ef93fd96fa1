//! JSON as CNI's ecosystem reads it.
//!
//! Configurations in the field were written against Go's `encoding/json`, so typed reading here
//! keeps its rules, with one exception. Object keys match fields without regard to case, the last
//! of several equal keys wins, a key that is spelled exactly wins over other spellings of it
//! wherever they stand (in Go the last of all wins: that is the exception), `null` leaves a field
//! at its default, unknown keys are ignored, a wrong type is an error. The rest of a document is
//! never rewritten: [`Object`] keeps the text of every value, in order, so unknown keys and numbers
//! of any size pass through untouched.
//!
//! Stricter than Go: text must be UTF-8, escapes must be whole characters, and nothing may be
//! nested deeper than [`MAX_DEPTH`]. Reading costs at most [`MAX_DEPTH`] passes over the document.
//!
//! ```
//! #[derive(serde::Deserialize, Debug, PartialEq)]
//! #[serde(default)]
//! struct Ipam { subnet: String, size: u8 }
//! # impl Default for Ipam { fn default() -> Self { Ipam { subnet: String::new(), size: 24 } } }
//! let ipam: Ipam = netwright_cni::json::from_str(r#"{"SUBNET": "192.0.2.0/24", "size": null}"#)?;
//! assert_eq!(ipam, Ipam { subnet: "192.0.2.0/24".into(), size: 24 });
//! # Ok::<(), netwright_cni::json::JsonError>(())
//! ```

use std::fmt;

use serde::de::{self, Deserialize};
use serde_json::value::RawValue;

mod fault;
mod lenient;
mod object;
mod unknown;
mod words;

use lenient::LenientDeserializer;
pub use object::Object;
pub use unknown::{UnknownKey, unknown_keys, unknown_keys_besides};
pub use words::plain;

/// The deepest nesting of objects and arrays that is read. `serde_json` stops at 128 and Go at
/// 10 000; the margin lets a document of this depth be wrapped into another (a request, the cache)
/// and read again.
pub const MAX_DEPTH: usize = 100;

/// Says why a document could not be read, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct JsonError {
    /// The key path of the offending value, such as `ipam.ranges[0].subnet`; empty for the whole
    /// document.
    pub path: String,
    /// The line, counted from 1; 0 when it is not known.
    pub line: usize,
    /// The column in bytes, counted from 1; 0 when it is not known.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    offset: Option<usize>,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if self.line != 0 {
            write!(f, " at line {} column {}", self.line, self.column)?;
        }
        Ok(())
    }
}

impl de::Error for JsonError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        JsonError {
            path: String::new(),
            line: 0,
            column: 0,
            message: plain(&message.to_string()),
            offset: None,
        }
    }
}

impl JsonError {
    /// Wraps a `serde_json` error, splitting its position from its text.
    fn of(error: &serde_json::Error) -> Self {
        JsonError {
            path: String::new(),
            line: error.line(),
            column: error.column(),
            message: plain(&without_place(error)),
            offset: None,
        }
    }

    /// Drops the position: it was relative to a part of the document.
    fn unplaced(error: &serde_json::Error) -> Self {
        JsonError { line: 0, column: 0, ..JsonError::of(error) }
    }

    fn within(mut self, step: &str, raw: &RawValue) -> Self {
        if self.path.is_empty() || self.path.starts_with('[') {
            self.path = format!("{step}{}", self.path);
        } else {
            self.path = format!("{step}.{}", self.path);
        }
        self.offset.get_or_insert(raw.get().as_ptr().addr());
        self
    }

    /// Converts the address of the offending text to a line and column of `document`.
    fn place(mut self, document: &str) -> Self {
        if self.line == 0
            && let Some(offset) =
                self.offset.and_then(|at| at.checked_sub(document.as_ptr().addr()))
            && let Some(before) = document.get(..offset)
        {
            (self.line, self.column) = position(before);
        }
        self.offset = None;
        self
    }
}

/// Returns the message of a `serde_json` error alone.
fn without_place(error: &serde_json::Error) -> String {
    let mut text = error.to_string();
    let tail = format!(" at line {} column {}", error.line(), error.column());
    let end = text.strip_suffix(&tail).unwrap_or(&text).len();
    text.truncate(end);
    text
}

/// Returns the line and column of the byte that follows `before`, both counted from 1.
fn position(before: &str) -> (usize, usize) {
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before.len() - line_start + 1)
}

/// Reads a document from bytes.
///
/// # Errors
/// [`JsonError`] when the bytes are not UTF-8, not JSON, followed by something, nested too deeply,
/// or of the wrong shape.
pub fn from_slice<'de, T: Deserialize<'de>>(document: &'de [u8]) -> Result<T, JsonError> {
    from_str(utf8(document)?)
}

/// Reads a document from text.
///
/// # Errors
/// [`JsonError`] when the text is not JSON, is followed by something, nested too deeply, or of the
/// wrong shape.
pub fn from_str<'de, T: Deserialize<'de>>(document: &'de str) -> Result<T, JsonError> {
    from_part(whole(document)?, document)
}

/// Reads a part of a document kept as text. Positions in errors are relative to that part.
///
/// # Errors
/// [`JsonError`] when the value is of the wrong shape.
pub fn from_raw<'de, T: Deserialize<'de>>(raw: &'de RawValue) -> Result<T, JsonError> {
    from_part(raw, raw.get())
}

/// Reads a part of `document`, with positions in errors relative to the document.
pub(crate) fn from_part<'de, T: Deserialize<'de>>(
    raw: &'de RawValue,
    document: &str,
) -> Result<T, JsonError> {
    T::deserialize(LenientDeserializer::new(raw, None)).map_err(|error| error.place(document))
}

/// Splits an object into its entries; `null` has none.
pub(crate) fn entries(document: &str) -> Result<Vec<(String, &RawValue)>, JsonError> {
    LenientDeserializer::new(whole(document)?, None).pairs()
}

/// Returns bytes as text.
pub(crate) fn utf8(document: &[u8]) -> Result<&str, JsonError> {
    std::str::from_utf8(document).map_err(|error| {
        let valid = &document[..error.valid_up_to()];
        let (line, column) = position(std::str::from_utf8(valid).unwrap_or_default());
        let message = fault::not_utf8(document, error.valid_up_to());
        JsonError { line, column, ..de::Error::custom(message) }
    })
}

/// Checks that a document is one JSON value, nested no deeper than [`MAX_DEPTH`].
fn whole(document: &str) -> Result<&RawValue, JsonError> {
    if let Some(offset) = too_deep(document) {
        let (line, column) = position(&document[..offset]);
        let message = format!("nested deeper than {MAX_DEPTH} levels");
        return Err(JsonError { line, column, ..de::Error::custom(message) });
    }
    serde_json::from_str(document).map_err(|error| explain(document.as_bytes(), &error))
}

/// Describes why `serde_json` could not read a text that people wrote: names what stands there,
/// also where it cannot be seen.
#[must_use]
pub fn explain(document: &[u8], error: &serde_json::Error) -> JsonError {
    let text = match utf8(document) {
        Ok(text) => text,
        Err(error) => return error,
    };
    match fault::describe(text, &without_place(error), (error.line(), error.column())) {
        Some((message, (line, column))) => {
            JsonError { message, line, column, ..JsonError::of(error) }
        }
        None => JsonError::of(error),
    }
}

/// Finds the bracket that opens one level too many. `serde_json` scans unparsed text without a
/// limit on depth, so the limit has to be ours.
fn too_deep(document: &str) -> Option<usize> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (offset, byte) in document.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                if MAX_DEPTH < depth {
                    return Some(offset);
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// Compares a known key with a written one as Go's `encoding/json` does: without regard to case,
/// where the Kelvin sign is a `k` and the long s an `s`, because Unicode folds them so.
pub(crate) fn same_key(known: &str, written: &str) -> bool {
    fn fold(letter: char) -> char {
        match letter {
            '\u{212a}' => 'k',
            '\u{17f}' => 's',
            _ => letter.to_ascii_lowercase(),
        }
    }
    known.eq_ignore_ascii_case(written)
        || (!written.is_ascii() && known.chars().map(fold).eq(written.chars().map(fold)))
}
