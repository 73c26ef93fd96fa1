//! The defaults and the effective values, as TOML.

use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::keys::{self, Key, TABLES};
use crate::load::LoadedConfig;

/// The width of comments.
const WIDTH: usize = 100;

/// Returns a configuration in which every key has its default, commented out, below what it means.
#[must_use]
pub fn defaults() -> String {
    first(&Config::default())
}

/// Returns the same for a machine's first configuration: the keys whose values differ from the
/// defaults are set.
#[must_use]
pub fn first(config: &Config) -> String {
    let mut text = String::from(
        "# The configuration of netwrightd. What is commented out is the default.\n\
         # netwrightd config check says what is wrong with it; a service reads it when it starts.\n",
    );
    let (mut config, mut usual) = (config.clone(), Config::default());
    for table in TABLES {
        text.push_str(&format!("\n# {}.\n[{}]\n", table.about, table.name));
        for key in keys::of_table(table.name) {
            text.push_str(&comment(key.about));
            let shown = |config: &mut Config| {
                (key.setting)(config).show().unwrap_or_else(|| "\"\"".to_owned())
            };
            let (value, usual) = (shown(&mut config), shown(&mut usual));
            let sign = if value == usual { "# " } else { "" };
            text.push_str(&format!("{sign}{} = {value}\n", key.name));
        }
    }
    text
}

/// Returns the effective value of every key, with where it comes from.
#[must_use]
pub fn effective(loaded: &LoadedConfig) -> String {
    let mut config = loaded.config.clone();
    let mut text = String::new();
    for table in TABLES {
        let space = if text.is_empty() { "" } else { "\n" };
        text.push_str(&format!("{space}[{}]\n", table.name));
        for key in keys::of_table(table.name) {
            let value = (key.setting)(&mut config).show().unwrap_or_else(|| "\"\"".to_owned());
            let source = match loaded.sources.get(&(key.table, key.name)) {
                Some(source) => format!("{}{}", source.file.display(), source.place),
                None => "default".to_owned(),
            };
            let source = cni::text::one_line(source);
            text.push_str(&format!("{} = {value} # {source}\n", key.name));
        }
    }
    text
}

/// Returns the effective value of every key, with where it comes from, as JSON: an object for each
/// table, with one for each key.
#[must_use]
pub fn values(loaded: &LoadedConfig) -> Value {
    let mut config = loaded.config.clone();
    let mut tables = Map::new();
    for table in TABLES {
        let mut entries = Map::new();
        for key in keys::of_table(table.name) {
            let shown = (key.setting)(&mut config).show();
            // Booleans, numbers, strings and lists of strings are written alike in TOML and JSON.
            let value = shown.and_then(|text| serde_json::from_str::<Value>(&text).ok());
            let source = loaded.sources.get(&(key.table, key.name));
            let from = source.map(|source| {
                let place = source.place;
                json!({"file": source.file, "line": place.line, "column": place.column})
            });
            entries.insert(key.name.to_owned(), json!({"value": value, "from": from}));
        }
        tables.insert(table.name.to_owned(), Value::Object(entries));
    }
    Value::Object(tables)
}

/// Returns a configuration that sets what `loaded` sets, and nothing else.
#[must_use]
pub fn minimal(loaded: &LoadedConfig) -> String {
    let mut config = loaded.config.clone();
    let mut text = String::new();
    for table in TABLES {
        let set = |key: &&Key| loaded.sources.contains_key(&(key.table, key.name));
        let keys: Vec<&Key> = keys::of_table(table.name).filter(set).collect();
        if keys.is_empty() {
            continue;
        }
        text.push_str(&format!("[{}]\n", table.name));
        for key in keys {
            let value = (key.setting)(&mut config).show().unwrap_or_else(|| "\"\"".to_owned());
            text.push_str(&format!("{} = {value}\n", key.name));
        }
    }
    text
}

/// Writes a sentence as comment lines.
fn comment(about: &str) -> String {
    let mut first = about.chars();
    let capital: String = first.next().iter().flat_map(|c| c.to_uppercase()).collect();
    let sentence = format!("{capital}{}.", first.as_str());
    let (mut text, mut line) = (String::new(), String::from("#"));
    for word in sentence.split(' ') {
        if WIDTH < line.chars().count() + 1 + word.chars().count() {
            text.push_str(&format!("{line}\n"));
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    format!("{text}{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;
    use std::path::Path;

    /// An administrator who removes the comment signs has the same configuration.
    #[test]
    fn the_defaults_are_the_defaults() {
        let text: String = defaults()
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(set) if set.contains(" = ") => format!("{set}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let (mut config, mut problems) = (Config::default(), Vec::new());
        let places = document::read(Path::new("/f"), &text, &mut config, &mut problems);
        assert_eq!(problems, []);
        assert_eq!(config, Config::default());
        assert_eq!(places.len(), keys::KEYS.len());
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH || !line.starts_with('#')));
    }

    #[test]
    fn a_first_configuration_sets_what_differs() {
        let mut wanted = Config::default();
        wanted.repair.enable = true;
        wanted.repair.path = vec!["/plugins".into()];
        let (mut config, mut problems) = (Config::default(), Vec::new());
        let places = document::read(Path::new("/f"), &first(&wanted), &mut config, &mut problems);
        assert_eq!(problems, []);
        assert_eq!(config, wanted);
        let set: Vec<_> = places.keys().copied().collect();
        assert_eq!(set, [("repair", "enable"), ("repair", "path")]);
    }
}
