//! The JSON schema of the configuration, for editors.

use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::keys::{self, TABLES};

/// Returns the schema (JSON Schema, draft 2020-12).
#[must_use]
pub fn schema() -> Value {
    let mut config = Config::default();
    let mut tables = Map::new();
    for table in TABLES {
        let mut properties = Map::new();
        for key in keys::of_table(table.name) {
            let setting = (key.setting)(&mut config);
            let mut schema = setting.schema();
            let default = setting.show().and_then(|text| serde_json::from_str::<Value>(&text).ok());
            if let Some(members) = schema.as_object_mut() {
                members.insert("description".to_owned(), key.about.into());
                if let Some(default) = default {
                    members.insert("default".to_owned(), default);
                }
            }
            properties.insert(key.name.to_owned(), schema);
        }
        let about = json!({
            "type": "object",
            "description": table.about,
            "properties": properties,
            "additionalProperties": false,
        });
        tables.insert(table.name.to_owned(), about);
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "netwrightd.toml",
        "type": "object",
        "properties": tables,
        "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_every_key_with_its_default() {
        let schema = schema();
        for key in keys::KEYS {
            let of = &schema["properties"][key.table]["properties"][key.name];
            assert_eq!(of["description"], key.about, "{key:?}");
            let shown = (key.setting)(&mut Config::default()).show();
            assert_eq!(of.get("default").is_some(), shown.is_some(), "{key:?}");
        }
    }
}
