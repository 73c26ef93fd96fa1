//! A parser's complaints, for readers who do not write parsers.

use cni::json::JsonError;

/// The longest excerpt of the user's text in a message.
const EXCERPT_MAX: usize = 60;

/// Says where text stops being JSON, or which value is of the wrong type.
pub(crate) fn json(error: &JsonError) -> String {
    plain(&error.to_string())
}

/// Rephrases messages of `serde_json` for people who write JSON.
pub(crate) fn plain(text: &str) -> String {
    let (what, place) = match text.rfind(" at line ") {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let what = match what {
        _ if what.contains("EOF while parsing") => "it ends before it is complete".to_owned(),
        _ if what.contains("expected ident") || what.contains("expected value") => {
            "there is no JSON value".to_owned()
        }
        _ => [
            ("invalid type: ", "found "),
            ("invalid value: ", "found "),
            ("found sequence", "found a list"),
            ("found map", "found an object"),
            ("found null", "found nothing"),
            ("found integer `", "found `"),
            ("found floating point `", "found `"),
            ("found boolean `", "found `"),
            ("found string ", "found "),
            ("expected a sequence", "wanted a list"),
            ("expected ", "wanted "),
        ]
        .iter()
        .fold(what.to_owned(), |text, (from, to)| text.replace(from, to)),
    };
    format!("{what}{place}")
}

/// Returns an excerpt of the user's text, cut if it is long.
pub(crate) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
