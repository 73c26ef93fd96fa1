//! A node's entry as people and programs write it: name, prefixes and addresses, each in a line.
//!
//! A list has thousands of nodes. This module reads an entry as TOML does. It leaves an entry with
//! anything else in it to TOML's parser, which reads it or says what is wrong with it.

/// The line with which an entry begins.
pub(super) const HEAD: &str = "[[node]]";

/// An entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub(super) name: &'a str,
    pub(super) prefixes: Texts<'a>,
    pub(super) underlay: Texts<'a>,
}

/// A list of texts, as it is written between its brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Texts<'a>(&'a str);

/// Reads an entry; `None` if it is not of the plain form.
pub(super) fn read(entry: &str) -> Option<Entry<'_>> {
    let mut lines = entry.split('\n').map(trim).filter(|line| !line.is_empty());
    if lines.next()? != HEAD {
        return None;
    }
    let (mut name, mut prefixes, mut underlay) = (None, None, None);
    for line in lines {
        let (key, value) = line.split_once('=')?;
        let value = trim(value);
        let is_there = match trim(key) {
            "name" => name.replace(text(value)?).is_some(),
            "prefixes" => prefixes.replace(Texts::read(value)?).is_some(),
            "underlay" => underlay.replace(Texts::read(value)?).is_some(),
            _ => return None,
        };
        if is_there {
            return None;
        }
    }
    Some(Entry { name: name?, prefixes: prefixes?, underlay: underlay? })
}

impl<'a> Texts<'a> {
    fn read(value: &'a str) -> Option<Self> {
        let list = trim(value.strip_prefix('[')?.strip_suffix(']')?);
        let mut rest = list;
        while !rest.is_empty() {
            (_, rest) = next(rest)?;
        }
        Some(Texts(list))
    }

    /// Returns the texts.
    pub(super) fn each(self) -> impl Iterator<Item = &'a str> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (one, after) = next(rest)?;
            rest = after;
            Some(one)
        })
    }
}

/// Reads the first text of a list, and the comma behind it if there is one; returns what follows
/// too.
fn next(list: &str) -> Option<(&str, &str)> {
    let (one, rest) = first(list)?;
    let rest = trim(rest);
    let after = if rest.is_empty() { rest } else { trim(rest.strip_prefix(',')?) };
    Some((one, after))
}

/// Reads a value that is a text.
fn text(value: &str) -> Option<&str> {
    let (one, rest) = first(value)?;
    rest.is_empty().then_some(one)
}

/// Reads a text in quotes without escapes; returns what follows it too.
fn first(text: &str) -> Option<(&str, &str)> {
    let (content, rest) = text.strip_prefix('"')?.split_once('"')?;
    let is_plain = !content.contains(|letter: char| letter == '\\' || letter.is_control());
    is_plain.then_some((content, rest))
}

/// Removes what TOML calls white space.
fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn by_toml(text: &str) -> Option<Value> {
        toml::from_str(text).ok()
    }

    /// What is read of an entry, as TOML's parser gives it.
    fn shown(entry: Entry<'_>) -> Value {
        let prefixes: Vec<&str> = entry.prefixes.each().collect();
        let underlay: Vec<&str> = entry.underlay.each().collect();
        json!({"node": [{"name": entry.name, "prefixes": prefixes, "underlay": underlay}]})
    }

    /// Lists that make an entry whole.
    const LISTS: &str = "prefixes = [\"10.244.1.0/24\", \"fd00::/64\"]\nunderlay = []\n";

    #[test]
    fn entries_of_the_usual_form_are_read() {
        for entry in [
            format!("[[node]]\nname = \"a\"\n{LISTS}\n"),
            " [[node]]\t\n\n\tname=\"a = b\" \nprefixes = [ ]\nunderlay = [\"192.0.2.1\",]".into(),
            format!("[[node]]\n{LISTS}name = \"ä [[node]] # none\"\n"),
            "[[node]]\nname = \"\"\nprefixes = [ \"]\" , \"[,\" ]\nunderlay = [\"\"]".into(),
        ] {
            let read = read(&entry).map(shown);
            assert!(read.is_some(), "{entry}");
            assert_eq!(read, by_toml(&entry), "{entry}");
        }
    }

    #[test]
    fn everything_else_is_left_to_the_parser() {
        let of_name = |line: &str| format!("[[node]]\n{LISTS}{line}\n");
        for line in [
            "",
            "name = \"a\" # a comment",
            "# a comment = \"a\"",
            "name = 'a'",
            "name = \"a\\u0062\"",
            "name = \"a\"\r",
            "name = \"a",
            "name = [\"a\"]",
            "name = \"a\"\nname = \"b\"",
            "\"name\" = \"a\"",
            "a.name = \"a\"",
            "name",
            "name = \"a\"\nmtu = 1400",
            "name = \"a\"\nkept = []",
            "name = \"a\"\n[node.a]",
            "name = \"a\"\n[[node]]",
        ] {
            assert_eq!(read(&of_name(line)), None, "{line}");
        }
        for list in
            ["[\"a\" \"b\"]", "[,]", "[\"a\",,]", "[\"a\"]]", "[", "[[\"a\"]]", "\"a\"", "[1]"]
        {
            let entry = format!("[[node]]\nname = \"a\"\nprefixes = []\nunderlay = {list}\n");
            assert_eq!(read(&entry), None, "{list}");
        }
        assert_eq!(read(""), None);
        assert_eq!(read(&format!("name = \"a\"\n{LISTS}[[node]]")), None);
        assert_eq!(read(&format!("[[ node ]]\nname = \"a\"\n{LISTS}")), None);
    }

    proptest! {
        /// What is read is what TOML says.
        #[test]
        fn whatever_is_read_is_read_alike(
            equals in prop::sample::select(vec![" = ", "=", "\t=", "", "== "]),
            words in prop::collection::vec(
                prop::sample::select(vec![
                    "\"", "a", "[", "]", ",", "0", " ", "\t", "\\", "#", "'", "\r", "\n", "é",
                    "\u{7f}", "=", "\"b\"", "\"b\", ", "\"c\" ,",
                ]),
                0..6,
            ),
            is_name in any::<bool>(),
        ) {
            let value = words.concat();
            let entry = match is_name {
                true => format!("[[node]]\nname{equals}{value}\n{LISTS}"),
                false => {
                    format!("[[node]]\nname = \"a\"\nprefixes{equals}[{value}]\nunderlay = []\n")
                }
            };
            if let Some(read) = read(&entry) {
                prop_assert_eq!(by_toml(&entry), Some(shown(read)), "{}", entry);
            }
        }
    }
}
