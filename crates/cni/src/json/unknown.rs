//! Finds keys that no type reads.

use std::cell::RefCell;

use serde::de::Deserialize;
use serde_json::value::RawValue;

use super::lenient::LenientDeserializer;
use super::{JsonError, whole};
use crate::order::sort_by_key;

/// A key that no type reads, found by [`unknown_keys`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// The path of the object that holds the key; empty for the document itself.
    pub parent: String,
    /// The key as written.
    pub key: String,
    /// The line of the key, counted from 1.
    pub line: usize,
    /// The column of the key's opening quote in bytes, counted from 1.
    pub column: usize,
    /// The keys that would have been read there.
    pub known: Vec<&'static str>,
}

impl UnknownKey {
    /// Returns the known key that was probably meant, if one is near: at most one edit for every
    /// three letters. An edit adds, drops or replaces a letter, or swaps it with its neighbour.
    #[must_use]
    pub fn nearest(&self) -> Option<&'static str> {
        let written: Vec<char> = self.key.chars().take(MAX_COMPARED).collect();
        if MAX_COMPARED <= written.len() {
            return None;
        }
        let allowed = (written.len() / 3).max(1);
        self.known
            .iter()
            .map(|known| (distance(&written, known), *known))
            .filter(|(edits, known)| *edits <= allowed && *edits < known.chars().count())
            .min_by_key(|(edits, _)| *edits)
            .map(|(_, known)| known)
    }
}

/// Keys of this length or more do not count as misspellings; the bound keeps [`distance`] cheap.
const MAX_COMPARED: usize = 64;

/// The most keys that [`unknown_keys`] lists: no user reads more, and a hostile document could hold
/// millions.
const MAX_LISTED: usize = 1000;

/// The longest part of a path that is kept; keys of maps can be of any length.
const MAX_STEP: usize = 64;

/// Counts the edits between two words, without regard to ASCII case (optimal string alignment).
fn distance(written: &[char], known: &str) -> usize {
    let known: Vec<char> = known.chars().map(|letter| letter.to_ascii_lowercase()).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=known.len()).collect();
    for (row, letter) in written.iter().map(char::to_ascii_lowercase).enumerate() {
        let mut current = vec![row + 1];
        for (column, other) in known.iter().enumerate() {
            let replaced = above[column] + usize::from(letter != *other);
            let mut best = replaced.min(above[column + 1] + 1).min(current[column] + 1);
            let swapped = 0 < row
                && 0 < column
                && letter == known[column - 1]
                && written[row - 1].to_ascii_lowercase() == *other;
            if swapped {
                best = best.min(before[column - 1] + 1);
            }
            current.push(best);
        }
        before = std::mem::replace(&mut above, current);
    }
    above[known.len()]
}

/// Lists the keys of `document` that `T` and the types inside it do not read, in their order, at
/// most the first thousand.
///
/// # Errors
/// [`JsonError`] when the document cannot be read as a `T` at all.
pub fn unknown_keys<'de, T: Deserialize<'de>>(
    document: &'de str,
) -> Result<Vec<UnknownKey>, JsonError> {
    let log = Log { document, path: RefCell::default(), found: RefCell::default() };
    T::deserialize(LenientDeserializer::new(whole(document)?, Some(&log)))
        .map_err(|error| error.place(document))?;
    Ok(log.into_found())
}

/// Lists the same except keys of the document itself that its reader knows besides `T`, such as those
/// that every configuration may have. Like all keys, they match without regard to ASCII case.
///
/// # Errors
/// As [`unknown_keys`].
pub fn unknown_keys_besides<'de, T: Deserialize<'de>>(
    document: &'de str,
    besides: &[&'static str],
) -> Result<Vec<UnknownKey>, JsonError> {
    Ok(without(unknown_keys::<T>(document)?, besides))
}

fn without(mut found: Vec<UnknownKey>, besides: &[&'static str]) -> Vec<UnknownKey> {
    let is_besides = |key: &str| besides.iter().any(|known| known.eq_ignore_ascii_case(key));
    found.retain(|one| !one.parent.is_empty() || !is_besides(&one.key));
    for one in found.iter_mut().filter(|one| one.parent.is_empty()) {
        one.known.extend(besides);
    }
    found
}

/// The state of a search for unknown keys.
pub(super) struct Log<'de> {
    document: &'de str,
    path: RefCell<Vec<String>>,
    found: RefCell<Vec<(usize, UnknownKey)>>,
}

impl<'de> Log<'de> {
    /// Puts one more step on the path.
    pub(super) fn enter(&self, mut step: String) {
        if MAX_STEP < step.len() {
            step.truncate(step.floor_char_boundary(MAX_STEP));
            step.push('…');
        }
        self.path.borrow_mut().push(step);
    }

    /// Takes the last step from the path.
    pub(super) fn leave(&self) {
        self.path.borrow_mut().pop();
    }

    pub(super) fn report(&self, key: &str, value: &RawValue, known: &'static [&'static str]) {
        let mut found = self.found.borrow_mut();
        if MAX_LISTED <= found.len() {
            return;
        }
        let parent = self.path.borrow().join("").trim_start_matches('.').to_owned();
        let known = known.to_vec();
        let key = UnknownKey { parent, key: key.to_owned(), line: 0, column: 0, known };
        found.push((self.offset_of_key(value), key));
    }

    /// Finds where the key of a value begins, going back over the colon and the key's closing
    /// quote. A quote within a key follows a backslash, its opening quote never does.
    fn offset_of_key(&self, value: &RawValue) -> usize {
        let bytes = self.document.as_bytes();
        let mut at = value.get().as_ptr().addr() - self.document.as_ptr().addr();
        let mut quotes = 0;
        while 0 < at {
            at -= 1;
            if bytes[at] == b'"' && (quotes == 0 || at == 0 || bytes[at - 1] != b'\\') {
                quotes += 1;
                if quotes == 2 {
                    break;
                }
            }
        }
        at
    }

    fn into_found(self) -> Vec<UnknownKey> {
        let mut found = self.found.into_inner();
        sort_by_key(&mut found, |(offset, _)| *offset);
        let (mut line, mut line_start, mut seen) = (1, 0, 0);
        let place = |(offset, key): (usize, UnknownKey)| {
            let passed = &self.document.as_bytes()[seen..offset];
            for (index, byte) in passed.iter().enumerate() {
                if *byte == b'\n' {
                    line += 1;
                    line_start = seen + index + 1;
                }
            }
            seen = offset;
            UnknownKey { line, column: offset - line_start + 1, ..key }
        };
        found.into_iter().map(place).collect()
    }
}
