//! What is wrong with a text that people took for JSON, in words that name what is there, even where
//! it cannot be seen.

use std::borrow::Cow;

use super::position;

/// How many letters of a word that is not JSON a message repeats.
const LONGEST_WORD: usize = 40;

/// What `serde_json` says where something that is not JSON stands between values. In a string it
/// says something else, and what stands there may be anything.
const BETWEEN_VALUES: [&str; 5] =
    ["expected value", "expected `", "expected ident", "key must be", "trailing"];

/// Characters that are not seen, or look like others, with their names.
const UNSEEN: [(char, &str); 7] = [
    ('\u{a0}', "a non-breaking space"),
    ('\u{ad}', "a soft hyphen"),
    ('\u{200b}', "a zero-width space"),
    ('\u{200e}', "a mark of the direction of writing"),
    ('\u{202f}', "a narrow non-breaking space"),
    ('\u{2060}', "a word joiner"),
    ('\u{feff}', "a byte order mark"),
];

/// Words that other languages have for values of JSON.
const WORDS: [(&[&str], &str); 3] = [
    (&["yes", "Yes", "on"], "true"),
    (&["no", "No", "off"], "false"),
    (&["None", "nil", "undefined"], "null"),
];

/// Says what stands at a place where `serde_json` found a fault, and what to do; `None` where its
/// own words say it. `line` and `column` are its own.
pub(super) fn describe(
    document: &str,
    words: &str,
    (line, column): (usize, usize),
) -> Option<(String, (usize, usize))> {
    if !BETWEEN_VALUES.iter().any(|known| words.starts_with(known)) {
        return None;
    }
    let offset = offset(document, line, column)?;
    let (before, rest) = document.split_at_checked(offset)?;
    let trimmed = before.trim_end();
    let last = trimmed.chars().next_back();
    let at = |text: String| Some((text, (line, column)));
    let there = rest.chars().next()?;
    match there {
        '\u{feff}' if offset == 0 => {
            at("the file begins with a byte order mark (U+FEFF): save it as UTF-8 without one"
                .into())
        }
        '/' | '#' => at("JSON has no comments".into()),
        '}' | ']' if last == Some(',') => at(format!("there is a comma too many before {there:?}")),
        ',' if matches!(last, Some(',' | '[' | '{' | ':') | None) => {
            at("there is a comma too many".into())
        }
        ',' if words.starts_with("trailing") => at("there is a comma too many at the end".into()),
        '\'' | '`' => at(format!("{there} is not a quotation mark of JSON (\")")),
        '"' if words.starts_with("expected `,`") => {
            at("there is no comma between this and what is before it".into())
        }
        '=' if words.starts_with("expected `:`") => {
            at("a colon is between a key and its value, not =".into())
        }
        _ if is_quotation_mark(there) => {
            at(format!("{} is not a quotation mark of JSON (\")", code(there)))
        }
        _ if there.is_ascii_alphabetic() && !words.starts_with("trailing") => {
            let (word, offset) = word(document, offset);
            let shown = shown(word);
            let text = if words.starts_with("key must be") {
                format!("the key {shown} needs quotation marks: \"{shown}\"")
            } else {
                let means = |(others, right): &&(&[&str], &str)| {
                    others.contains(&word) || right.eq_ignore_ascii_case(word)
                };
                match WORDS.iter().find(means) {
                    Some((_, right)) => format!("{shown} is not a value of JSON: write {right}"),
                    None => format!("{shown} is not a value of JSON: a text needs quotation marks"),
                }
            };
            Some((text, position(&document[..offset])))
        }
        _ if there.is_ascii() && !there.is_ascii_control() => None,
        _ => {
            let name = UNSEEN.iter().find(|(unseen, _)| *unseen == there).map(|(_, name)| *name);
            let name = match name {
                Some(name) => name.to_owned(),
                None if there.is_control() => "a control character".to_owned(),
                None if there.is_whitespace() => "a space that JSON does not know".to_owned(),
                None => there.to_string(),
            };
            at(format!("{} ({name}) is not allowed here", code(there)))
        }
    }
}

/// Says what bytes are that are not UTF-8.
pub(super) fn not_utf8(document: &[u8], valid_up_to: usize) -> String {
    match document {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            "the file is UTF-16, with a byte order mark: save it as UTF-8 without one".to_owned()
        }
        _ => match document.get(valid_up_to) {
            Some(byte) => format!("not UTF-8 text: byte 0x{byte:02x} (save the file as UTF-8)"),
            None => "not UTF-8 text".to_owned(),
        },
    }
}

/// Typographic quotation marks, of whatever language.
fn is_quotation_mark(there: char) -> bool {
    matches!(
        there,
        '\u{ab}' | '\u{bb}' | '\u{b4}' | '\u{2018}'..='\u{201f}' | '\u{2032}' | '\u{2033}'
            | '\u{2039}' | '\u{203a}' | '\u{300c}'..='\u{300f}' | '\u{301d}'..='\u{301f}'
            | '\u{ff02}' | '\u{ff07}'
    )
}

fn code(there: char) -> String {
    format!("U+{:04X}", u32::from(there))
}

/// Returns the word around a place, and where it begins.
fn word(document: &str, offset: usize) -> (&str, usize) {
    let part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let bytes = document.as_bytes();
    let start = offset - bytes[..offset].iter().rev().take_while(|byte| part(byte)).count();
    let end = offset + bytes[offset..].iter().take_while(|byte| part(byte)).count();
    (&document[start..end], start)
}

/// Returns a word for a message, cut if it is long.
fn shown(word: &str) -> Cow<'_, str> {
    match word.get(..LONGEST_WORD) {
        Some(start) if start.len() < word.len() => Cow::Owned(format!("{start}…")),
        _ => Cow::Borrowed(word),
    }
}

/// Returns the place of a line and a column of `serde_json`, both counted from 1, in bytes.
fn offset(document: &str, line: usize, column: usize) -> Option<usize> {
    let before: usize =
        document.split_inclusive('\n').take(line.checked_sub(1)?).map(str::len).sum();
    Some(before + column.checked_sub(1)?)
}
