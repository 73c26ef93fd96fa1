//! Reads a file that a program may be writing.

use std::path::Path;

use serde::de::IgnoredAny;
use state::FileError;

use crate::cache::chain;

/// How often a file is read at most: a program that rewrites it all the time has to stop first.
const READS: usize = 8;

/// Returns a file's content, or why it is not known. The error's second half says whether the file
/// may get a content: a program is writing it.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, (String, bool)> {
    let document = match at_one_moment(|| state::read_optional(path)) {
        Ok(Some(document)) => document,
        Ok(None) => return Err(("it does not exist".to_owned(), false)),
        Err(error) => return Err(error),
    };
    if document.iter().all(u8::is_ascii_whitespace) {
        return Err(("the file is empty".to_owned(), true));
    }
    Ok(document)
}

/// Reads until two reads give the same content. A program that writes in place (`>`, `cp`) empties
/// a file and fills it: a reader meanwhile may get the beginning of the old and the end of the new.
fn at_one_moment(
    mut read: impl FnMut() -> Result<Option<Vec<u8>>, FileError>,
) -> Result<Option<Vec<u8>>, (String, bool)> {
    let mut once = || read().map_err(|error| (chain(&error), false));
    let mut seen = once()?;
    for _ in 1..READS {
        let again = once()?;
        if again == seen {
            return Ok(seen);
        }
        seen = again;
    }
    Err(("it changed at each attempt to read it".to_owned(), true))
}

/// Says whether a document that cannot be read is the beginning of one.
pub(super) fn is_cut_off(document: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(document).is_err_and(|error| error.is_eof())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_is_read_again() {
        let texts = ["old", "old and new", "new", "new", "newer"];
        let mut reads = texts.into_iter();
        let next = || Ok(reads.next().map(|text| text.as_bytes().to_vec()));
        assert_eq!(at_one_moment(next), Ok(Some(b"new".to_vec())));
        let mut number = 0_u8;
        let never_the_same = || {
            number += 1;
            Ok(Some(vec![number]))
        };
        let (reason, unfinished) = at_one_moment(never_the_same).unwrap_err();
        assert_eq!((reason.as_str(), unfinished), ("it changed at each attempt to read it", true));
        assert_eq!(usize::from(number), READS);
    }

    #[test]
    fn a_beginning_is_told_from_nonsense() {
        for (text, cut_off) in [
            ("{", true),
            (r#"{"name": "a", "plugi"#, true),
            ("[1, 2", true),
            ("{}", false),
            ("}", false),
            ("not json", false),
        ] {
            assert_eq!(is_cut_off(text.as_bytes()), cut_off, "{text}");
        }
    }
}
