//! One file of the configuration.

use std::collections::BTreeMap;
use std::path::Path;

use cni::excerpt::Place;
use cni::nearest::nearest;
use cni::order::sort_by_key;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::Config;
use crate::keys::{self, Key, KeyName, TABLES};
use crate::problem::Problem;

/// Where in a file each key is set.
pub(crate) type Places = BTreeMap<KeyName, Place>;

/// Reads a file's text into `config`. Returns where each key is set, and adds every problem.
pub(crate) fn read(
    file: &Path,
    text: &str,
    config: &mut Config,
    problems: &mut Vec<Problem>,
) -> Places {
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut found = Vec::new();
    let mut reader = Reader { file, text, config, problems: &mut found, places: Places::new() };
    for error in &errors {
        let span = error.span().unwrap_or_default();
        let place = Place::at(text, span.start);
        match error.message() {
            "duplicate key" => {
                let name = text.get(span).unwrap_or_default();
                reader.repeated(&document, name, place);
            }
            message => reader.problem(place, message.replace('\n', ", "), None),
        }
    }
    // What is read from a line that is not TOML is a guess.
    let guessed: Vec<usize> = reader.problems.iter().map(|problem| problem.place.line).collect();
    for (name, value) in document.get_ref() {
        reader.table(name, value, &guessed);
    }
    let places = reader.places;
    sort_by_key(&mut found, |problem| (problem.place.line, problem.place.column));
    problems.extend(found);
    places
}

struct Reader<'a> {
    file: &'a Path,
    text: &'a str,
    config: &'a mut Config,
    problems: &'a mut Vec<Problem>,
    places: Places,
}

impl Reader<'_> {
    fn problem(&mut self, place: Place, error: String, hint: Option<String>) {
        let mut problem = Problem::of_file(self.file, error).at(self.text, place);
        problem.hint = hint;
        self.problems.push(problem);
    }

    /// Says where a table or a key stands that stands here too.
    fn repeated(&mut self, document: &Spanned<DeTable<'_>>, name: &str, place: Place) {
        let text = self.text;
        let line_of = |key: &Spanned<std::borrow::Cow<'_, str>>| {
            Some(Place::at(text, key.span().start).line).filter(|line| *line < place.line)
        };
        let line = text.lines().nth(place.line - 1).unwrap_or_default();
        if line.trim_start().starts_with('[') {
            // What was parsed has the last one alone.
            let first = text.lines().take(place.line - 1).position(|line| is_header(line, name));
            let hint = first.map(|before| {
                let line = before + 1;
                format!("line {line} has it already: write the keys there, or into a drop-in")
            });
            return self.problem(place, format!("[{name}] stands here a second time"), hint);
        }
        let tables = document.get_ref().iter();
        let keys = tables.filter_map(|(_, value)| value.get_ref().as_table());
        let same = keys.flat_map(|table| table.iter()).filter(|(key, _)| key.get_ref() == name);
        let hint = same.filter_map(|(key, _)| line_of(key)).max();
        let hint = hint.map(|first| format!("line {first} has it already: keep one of the two"));
        self.problem(place, format!("{name} stands here a second time"), hint);
    }

    fn table(
        &mut self,
        name: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
        guessed: &[usize],
    ) {
        let place = Place::at(self.text, name.span().start);
        if guessed.contains(&place.line) {
            return;
        }
        let word = name.get_ref().as_ref();
        let Some(table) = TABLES.iter().find(|table| table.name == word) else {
            let tables = || TABLES.iter().map(|table| table.name);
            let hint = match nearest(word, tables()) {
                Some(near) => format!("there is [{near}]"),
                None => match keys::KEYS.iter().find(|key| key.name == word) {
                    Some(key) => {
                        format!("{word} is a key of [{}]: it must be below that line", key.table)
                    }
                    None => format!("tables are {}", tables().collect::<Vec<_>>().join(", ")),
                },
            };
            return self.problem(place, format!("there is no table {word:?}"), Some(hint));
        };
        let Some(entries) = value.get_ref().as_table() else {
            let found = value.get_ref().type_str();
            let error = format!("{word} is a table, and not of type {found}");
            return self.problem(place, error, Some(format!("write [{word}], and its keys below")));
        };
        for (name, value) in entries {
            let place = Place::at(self.text, name.span().start);
            if guessed.contains(&place.line) {
                continue;
            }
            match keys::find(table.name, name.get_ref()) {
                Some(key) => self.value(key, place, value),
                None => self.unknown(table.name, name.get_ref(), place),
            }
        }
    }

    fn unknown(&mut self, table: &str, name: &str, place: Place) {
        let known = || keys::of_table(table).map(|key| key.name);
        let elsewhere = keys::KEYS.iter().find(|key| key.name == name);
        let hint = match (nearest(name, known()), elsewhere) {
            (Some(near), _) => format!("did you mean {near:?}?"),
            (None, Some(key)) => format!("[{}] has it", key.table),
            (None, None) => {
                format!("keys of [{table}]: {}", known().collect::<Vec<_>>().join(", "))
            }
        };
        self.problem(place, format!("[{table}] has no key {name:?}"), Some(hint));
    }

    fn value(&mut self, key: &'static Key, place: Place, value: &Spanned<DeValue<'_>>) {
        // If the value is refused, the place counts all the same: the key is not at its default.
        self.places.insert((key.table, key.name), place);
        if let Err(wanted) = (key.setting)(self.config).read(value.get_ref()) {
            let given = self.text.get(value.span()).unwrap_or_default().trim();
            let found = value.get_ref().type_str();
            let error = match given.chars().count() {
                1..=60 => format!("{} must be {}, and not {given}", key.name, wanted.0),
                _ => format!("{} must be {}, and not this {found}", key.name, wanted.0),
            };
            let place = Place::at(self.text, value.span().start);
            self.problem(place, error, None);
        }
    }
}

/// Says whether a line begins a table.
fn is_header(line: &str, table: &str) -> bool {
    let name = line.trim_start().strip_prefix('[').map(str::trim_start);
    let after = name.and_then(|name| name.strip_prefix(table));
    after.is_some_and(|rest| rest.trim_start().starts_with(']'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(text: &str, want: Expect) {
        let (mut config, mut problems) = (Config::default(), Vec::new());
        read(Path::new("/f"), text, &mut config, &mut problems);
        let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
        want.assert_eq(&all.concat());
    }

    #[test]
    fn every_problem_is_found_with_its_place() {
        check(
            "[repair]\ninterval = 2\nintervall = \"2s\"\n\n[colect]\nact = true\n[collect]\nact = \"yes\"\npath = [\"bin\"]\n",
            expect![[r#"
                /f:2:12: interval must be a duration such as "10s" or "1m30s", and not 2
                  |
                2 | interval = 2
                  |            ^
                /f:3:1: [repair] has no key "intervall"
                  |
                3 | intervall = "2s"
                  | ^
                hint: did you mean "interval"?
                /f:5:2: there is no table "colect"
                  |
                5 | [colect]
                  |  ^
                hint: there is [collect]
                /f:8:7: act must be true or false, and not "yes"
                  |
                8 | act = "yes"
                  |       ^
                /f:9:8: path must be a list, each of it an absolute path, and not ["bin"]
                  |
                9 | path = ["bin"]
                  |        ^
            "#]],
        );
    }

    #[test]
    fn a_key_that_stands_in_the_wrong_place_is_led_to_the_right_one() {
        check(
            "etcd = [\"https://192.0.2.1:2379\"]\nlog = \"text\"\n[repair]\ngrace = \"1s\"\n",
            expect![[r#"
                /f:1:1: there is no table "etcd"
                  |
                1 | etcd = ["https://192.0.2.1:2379"]
                  | ^
                hint: etcd is a key of [ipam]: it must be below that line
                /f:2:1: log is a table, and not of type string
                  |
                2 | log = "text"
                  | ^
                hint: write [log], and its keys below
                /f:4:1: [repair] has no key "grace"
                  |
                4 | grace = "1s"
                  | ^
                hint: [collect] has it
            "#]],
        );
    }

    #[test]
    fn what_is_no_toml_hides_nothing_else() {
        check(
            "[repair]\nenable = true\nenable = false\ninterval = \n[collect]\nact = 1\n[repair]\n",
            expect![[r#"
                /f:3:1: enable stands here a second time
                  |
                3 | enable = false
                  | ^
                hint: line 2 has it already: keep one of the two
                /f:4:12: string values must be quoted, expected literal string
                  |
                4 | interval =
                  |            ^
                /f:6:7: act must be true or false, and not 1
                  |
                6 | act = 1
                  |       ^
                /f:7:2: [repair] stands here a second time
                  |
                7 | [repair]
                  |  ^
                hint: line 1 has it already: write the keys there, or into a drop-in
            "#]],
        );
    }

    /// One mistake leads to one problem, at the value, and the key stays at its default.
    #[test]
    fn a_value_of_another_type_is_told_with_its_key_and_place() {
        for key in keys::KEYS {
            for value in ["{}", "[{}]", "1.5", "1979-05-27"] {
                let text = format!("[{}]\n\n{} = {value}\n", key.table, key.name);
                let (mut config, mut problems) = (Config::default(), Vec::new());
                let places = read(Path::new("/f"), &text, &mut config, &mut problems);
                let lines: Vec<String> = problems.iter().map(Problem::line).collect();
                let [line] = lines.as_slice() else { panic!("{text}: {lines:#?}") };
                let column = key.name.len() + " = ".len() + 1;
                let start = format!("/f:3:{column}: {} must be ", key.name);
                let end = format!(", and not {value}");
                assert!(line.starts_with(&start) && line.ends_with(&end), "{text}: {line}");
                assert_eq!(config, Config::default(), "{text}");
                assert!(places.contains_key(&(key.table, key.name)), "{text}");
            }
        }
    }
}
