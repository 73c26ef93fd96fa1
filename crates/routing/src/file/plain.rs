//! A node's entry as people and programs write it: a key, an equals sign and a value in each line.
//!
//! A list has thousands. What is read here is read as TOML says; of anything else nothing is, and the
//! parser of TOML reads it, or says what is wrong with it.

use serde_json::{Map, Value};

/// The line with which an entry begins.
pub(super) const HEAD: &str = "[[node]]";

/// A number that needs more digits is left to TOML's parser.
const LONGEST_NUMBER: usize = 18;

/// Reads an entry, as the file that has it alone; `None` if it is not of the plain form.
pub(super) fn read(entry: &str) -> Option<Value> {
    let mut lines = entry.split('\n').map(trim).filter(|line| !line.is_empty());
    if lines.next()? != HEAD {
        return None;
    }
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let mut node = Map::new();
    for line in lines {
        let (key, text) = line.split_once('=')?;
        let key = trim(key);
        if key.is_empty() || !key.bytes().all(is_letter) {
            return None;
        }
        if node.insert(key.to_owned(), value(trim(text))?).is_some() {
            return None;
        }
    }
    let mut file = Map::new();
    file.insert("node".to_owned(), Value::Array(vec![Value::Object(node)]));
    Some(Value::Object(file))
}

/// Reads a text, a list of texts, or a whole number.
fn value(text: &str) -> Option<Value> {
    if let Some(list) = text.strip_prefix('[') {
        return texts(trim(list.strip_suffix(']')?)).map(Value::Array);
    }
    if text.starts_with('"') {
        let (one, rest) = first(text)?;
        return rest.is_empty().then_some(one);
    }
    let has_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_written_so = text == "0" || !text.starts_with('0');
    if !has_digits || !is_written_so || LONGEST_NUMBER < text.len() {
        return None;
    }
    text.parse::<i64>().ok().map(Value::from)
}

/// Reads texts between commas; there may be one behind the last.
fn texts(mut rest: &str) -> Option<Vec<Value>> {
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (one, after) = first(rest)?;
        all.push(one);
        rest = trim(after);
        if !rest.is_empty() {
            rest = trim(rest.strip_prefix(',')?);
        }
    }
    Some(all)
}

/// Reads a text in quotes without escapes; returns what follows it too.
fn first(text: &str) -> Option<(Value, &str)> {
    let (content, rest) = text.strip_prefix('"')?.split_once('"')?;
    let is_plain = !content.contains(|letter: char| letter == '\\' || letter.is_control());
    is_plain.then(|| (Value::from(content), rest))
}

/// Removes what TOML calls white space (TOML 1.0, "Spec").
fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn by_toml(text: &str) -> Option<Value> {
        toml::from_str(text).ok()
    }

    #[test]
    fn entries_of_the_usual_form_are_read() {
        for entry in [
            "[[node]]\nname = \"a\"\nprefixes = [\"10.244.1.0/24\", \"fd00::/64\"]\nmtu = 1400\n\n",
            "[[node]]",
            " [[node]]\t\n\n\tname=\"a = b\" \nkept = [ ]\nunderlay = [\"192.0.2.1\",]\nmtu = 0",
            "[[node]]\nname = \"ä [[node]] # none\"\nzone = \"\"\n",
        ] {
            let read = read(entry);
            assert!(read.is_some(), "{entry}");
            assert_eq!(read, by_toml(entry), "{entry}");
        }
    }

    #[test]
    fn everything_else_is_left_to_the_parser() {
        let head = "[[node]]\n";
        for line in [
            "name = \"a\" # a comment",
            "# a comment = \"a\"",
            "name = 'a'",
            "name = \"a\\u0062\"",
            "name = \"a\"\r",
            "name = \"a",
            "name = \"a\"\nname = \"b\"",
            "\"name\" = \"a\"",
            "a.b = \"a\"",
            "name",
            " = \"a\"",
            "mtu = 01",
            "mtu = -1",
            "mtu = 1_400",
            "mtu = 9223372036854775808",
            "mtu = 1.5",
            "mtu =",
            "kept = [\"a\" \"b\"]",
            "kept = [,]",
            "kept = [\"a\",,]",
            "kept = [\"a\"]]",
            "kept = [",
            "kept = [[\"a\"]]",
            "[node.a]",
            "[[node]]",
        ] {
            assert_eq!(read(&format!("{head}{line}\n")), None, "{line}");
        }
        assert_eq!(read(""), None);
        assert_eq!(read("name = \"a\"\n[[node]]"), None);
        assert_eq!(read("[[ node ]]\nname = \"a\""), None);
    }

    proptest! {
        /// What is read is what TOML says.
        #[test]
        fn whatever_is_read_is_read_alike(
            lines in prop::collection::vec(
                (
                    prop::sample::select(vec!["name", "mtu", "kept", "a-_9", "", "a b", "#"]),
                    prop::sample::select(vec![" = ", "=", "\t=", "", "== "]),
                    prop::collection::vec(
                        prop::sample::select(vec![
                            "\"", "a", "[", "]", ",", "0", "14", " ", "\\", "#", "'", "\r", "é",
                            "\u{7f}", "=", "\"b\"", "\"b\", ", "[\"a\"]",
                        ]),
                        0..5,
                    ),
                ),
                0..4,
            ),
        ) {
            let mut entry = String::from("[[node]]\n");
            for (key, equals, value) in lines {
                entry.push_str(&format!("{key}{equals}{}\n", value.concat()));
            }
            if let Some(value) = read(&entry) {
                prop_assert_eq!(by_toml(&entry), Some(value), "{}", entry);
            }
        }
    }
}
