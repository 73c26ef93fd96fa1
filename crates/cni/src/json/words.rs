//! The words of `serde` and `serde_json` in those of people who write JSON.

/// What a parser calls a type that it wants, and what people call it.
const WANTED: [(&str, &str); 19] = [
    ("a boolean", "true or false"),
    ("a borrowed string", "a string"),
    ("a map", "an object"),
    ("a sequence", "a list"),
    ("any valid JSON value", "a value"),
    ("f32", "a number"),
    ("f64", "a number"),
    ("i8", "a whole number"),
    ("i16", "a whole number"),
    ("i32", "a whole number"),
    ("i64", "a whole number"),
    ("string or map", "a string"),
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number that is not negative"),
    ("unit", "null"),
    ("usize", "a whole number that is not negative"),
    ("variant identifier", "a string"),
];

/// The same for what it found.
const FOUND: [(&str, &str); 4] =
    [("map", "an object"), ("null", "nothing"), ("sequence", "a list"), ("unit value", "nothing")];

/// What it calls a value that follows.
const KINDS: [&str; 4] = ["boolean ", "floating point ", "integer ", "string "];

/// Rephrases a message of `serde` or `serde_json` for people who write JSON. A place at its end stays
/// as it is, and so do all other messages.
///
/// ```
/// use netwright_cni::json::plain;
///
/// let words = r#"invalid type: string "1500", expected u32 at line 1 column 8"#;
/// let said = r#"found "1500", wanted a whole number from 0 to 4294967295 at line 1 column 8"#;
/// assert_eq!(plain(words), said);
/// ```
#[must_use]
pub fn plain(text: &str) -> String {
    let (what, place) = match text.rfind(" at line ") {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    rephrased(what).map_or_else(|| text.to_owned(), |what| what + place)
}

fn rephrased(what: &str) -> Option<String> {
    let after = |start: &str| what.strip_prefix(start);
    if let Some(rest) = after("invalid type: ").or_else(|| after("invalid value: ")) {
        let (found, expected) = rest.rsplit_once(", expected ")?;
        return Some(format!("found {}, wanted {}", found_of(found), wanted(expected)));
    }
    if let Some(rest) = after("invalid length ") {
        let (found, expected) = rest.rsplit_once(", expected ")?;
        return Some(format!("the length is {found}, wanted {}", wanted(expected)));
    }
    if let Some(rest) = after("unknown variant `") {
        let (found, known) = rest.split_once("`, ")?;
        return Some(format!("{found:?} is {}", none_of(&quoted(known))));
    }
    if let Some(rest) = after("unknown field `") {
        let (found, known) = rest.split_once("`, ")?;
        return Some(match quoted(known).as_slice() {
            [] => format!("there is no key {found:?}"),
            known => format!("there is no key {found:?}; the keys are {}", known.join(", ")),
        });
    }
    let named = |start: &str| after(start).and_then(|rest| rest.strip_suffix('`'));
    if let Some(field) = named("missing field `") {
        return Some(format!("{field:?} is missing"));
    }
    if let Some(field) = named("duplicate field `") {
        return Some(format!("{field:?} is there twice"));
    }
    Some(match what {
        _ if what.starts_with("EOF while parsing") => "it ends before it is complete".to_owned(),
        "expected ident" | "expected value" => "there is no JSON value".to_owned(),
        "trailing characters" => "there is something behind its end".to_owned(),
        _ => return None,
    })
}

fn found_of(found: &str) -> &str {
    if let Some((_, plain)) = FOUND.iter().find(|(words, _)| *words == found) {
        return plain;
    }
    let value = KINDS.iter().find_map(|kind| found.strip_prefix(kind)).unwrap_or(found);
    value.trim_matches('`')
}

fn wanted(expected: &str) -> String {
    if let Some((_, plain)) = WANTED.iter().find(|(words, _)| *words == expected) {
        return (*plain).to_owned();
    }
    let size = ["a tuple of size ", "an array of length "]
        .iter()
        .find_map(|words| expected.strip_prefix(words));
    match size {
        Some(size) => format!("a list of {size} values"),
        None if expected.starts_with("struct ") => "an object".to_owned(),
        None if expected.starts_with("enum ") => "a string".to_owned(),
        None => expected.to_owned(),
    }
}

/// Returns the names between back quotes, in quotation marks.
fn quoted(list: &str) -> Vec<String> {
    list.split('`').skip(1).step_by(2).map(|name| format!("{name:?}")).collect()
}

fn none_of(known: &[String]) -> String {
    match known {
        [] => "not known".to_owned(),
        [only] => format!("not {only}"),
        [first, second] => format!("neither {first} nor {second}"),
        several => format!("none of {}", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use expect_test::{Expect, expect};
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only errors are looked at")]
    struct All {
        #[serde(default)]
        flag: bool,
        #[serde(default)]
        small: u8,
        #[serde(default)]
        size: u32,
        #[serde(default)]
        signed: i64,
        #[serde(default)]
        rate: f64,
        #[serde(default)]
        list: Vec<String>,
        #[serde(default)]
        map: BTreeMap<String, u16>,
        #[serde(default)]
        pair: (u8, u8),
        #[serde(default)]
        two: Option<Two>,
        #[serde(default)]
        many: Option<Many>,
        #[serde(default)]
        inner: Option<Inner>,
        name: String,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Two {
        Up,
        Down,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Many {
        A,
        B,
        C,
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only errors are looked at")]
    struct Inner {
        name: String,
    }

    #[track_caller]
    fn check(rows: &[&str], expected: Expect) {
        let mut said = String::new();
        for text in rows {
            let error = serde_json::from_str::<All>(text).unwrap_err();
            said.push_str(&format!("{}\n", plain(&error.to_string())));
        }
        expected.assert_eq(&said);
    }

    #[test]
    fn no_word_of_rust_is_left() {
        check(
            &[
                r#"{"flag": "yes"}"#,
                r#"{"small": 300}"#,
                r#"{"small": -1}"#,
                r#"{"size": "1, expected u32"}"#,
                r#"{"signed": 1.5}"#,
                r#"{"rate": null}"#,
                r#"{"list": "a"}"#,
                r#"{"list": [{}]}"#,
                r#"{"map": []}"#,
                r#"{"map": {"a": true}}"#,
                r#"{"pair": [1]}"#,
                r#"{"pair": 1}"#,
                r#"{"two": "left"}"#,
                r#"{"two": 1}"#,
                r#"{"many": "d"}"#,
                r#"{"inner": 1}"#,
                r#"{"inner": {}}"#,
                r#"{"nmae": "x"}"#,
                r#"{"name": "x", "name": "y"}"#,
                "{}",
                "3",
                "",
                r#"{"name": "#,
                r#"{"name": "x"} y"#,
                r#"{"name" "x"}"#,
                r#"{"name": x}"#,
            ],
            expect![[r#"
                found "yes", wanted true or false at line 1 column 14
                found 300, wanted a whole number from 0 to 255 at line 1 column 13
                found -1, wanted a whole number from 0 to 255 at line 1 column 12
                found "1, expected u32", wanted a whole number from 0 to 4294967295 at line 1 column 26
                found 1.5, wanted a whole number at line 1 column 14
                found nothing, wanted a number at line 1 column 13
                found "a", wanted a list at line 1 column 12
                found an object, wanted a string at line 1 column 10
                found a list, wanted an object at line 1 column 8
                found true, wanted a whole number from 0 to 65535 at line 1 column 18
                the length is 1, wanted a list of 2 values at line 1 column 12
                found 1, wanted a list of 2 values at line 1 column 10
                "left" is neither "up" nor "down" at line 1 column 14
                there is no JSON value at line 1 column 9
                "d" is none of "a", "b", "c" at line 1 column 12
                found 1, wanted an object at line 1 column 11
                "name" is missing at line 1 column 12
                there is no key "nmae"; the keys are "flag", "small", "size", "signed", "rate", "list", "map", "pair", "two", "many", "inner", "name" at line 1 column 7
                "name" is there twice at line 1 column 20
                "name" is missing at line 1 column 2
                found 3, wanted an object at line 1 column 1
                it ends before it is complete at line 1 column 0
                it ends before it is complete at line 1 column 9
                there is something behind its end at line 1 column 15
                expected `:` at line 1 column 9
                there is no JSON value at line 1 column 10
            "#]],
        );
    }
}
