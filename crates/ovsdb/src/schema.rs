//! Which tables and columns a server's database has (RFC 7047 §3.2).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::error::OvsdbError;

/// The known part of a database's schema: names, not types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    /// The database's name.
    pub database: String,
    /// The schema's version, `8.3.1`.
    pub version: String,
    tables: BTreeMap<String, BTreeSet<String>>,
}

impl Schema {
    /// Reads a schema.
    ///
    /// # Errors
    /// What was found instead.
    pub fn parse(json: &Json) -> Result<Self, String> {
        let text = |key: &str| json.get(key).and_then(Json::as_str).unwrap_or_default().to_owned();
        let tables =
            json.get("tables").and_then(Json::as_object).ok_or("a schema has no tables")?;
        let mut found = BTreeMap::new();
        for (name, table) in tables {
            let columns = table.get("columns").and_then(Json::as_object);
            let columns = columns.ok_or_else(|| format!("table {name:?} has no columns"))?;
            let mut names = BTreeSet::new();
            names.extend(columns.keys().cloned());
            found.insert(name.clone(), names);
        }
        Ok(Schema { database: text("name"), version: text("version"), tables: found })
    }

    /// Says whether a table has a column.
    #[must_use]
    pub fn has(&self, table: &str, column: &str) -> bool {
        self.tables.get(table).is_some_and(|columns| columns.contains(column))
    }

    /// Checks that the tables and columns exist. The server need not list the columns that every
    /// table has (`_uuid`).
    ///
    /// # Errors
    /// [`OvsdbError::Schema`] with the first that does not.
    pub fn require(&self, tables: &[(&str, &[&str])]) -> Result<(), OvsdbError> {
        for (table, columns) in tables {
            let missing = match self.tables.get(*table) {
                None => Some(format!("table {table:?}")),
                Some(has) => columns
                    .iter()
                    .find(|column| !column.starts_with('_') && !has.contains(**column))
                    .map(|column| format!("column {column:?} in table {table:?}")),
            };
            if let Some(missing) = missing {
                let (database, version) = (self.database.clone(), self.version.clone());
                return Err(OvsdbError::Schema { database, version, missing });
            }
        }
        Ok(())
    }
}
