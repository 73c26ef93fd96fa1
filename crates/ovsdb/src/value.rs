//! The values of columns (RFC 7047 §5.1): an atom, a set of atoms, or a map from atoms to atoms.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value as Json, json};

/// The identity of a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(String);

impl Uuid {
    /// Reads a UUID as the database writes it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let shape = |(at, byte): (usize, u8)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        };
        (text.len() == 36 && text.bytes().enumerate().all(shape)).then(|| Uuid(text.to_owned()))
    }

    /// Returns its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A single value.
#[derive(Debug, Clone, PartialEq)]
pub enum Atom {
    /// 64 bits, signed.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// True or false.
    Boolean(bool),
    /// Text.
    String(String),
    /// A row.
    Uuid(Uuid),
    /// A row that the same transaction inserts under this name.
    Named(String),
}

/// The value of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// One value; where a set is expected, a set of one.
    Atom(Atom),
    /// Any number of values.
    Set(Vec<Atom>),
    /// Pairs.
    Map(Vec<(Atom, Atom)>),
}

impl Atom {
    /// Writes it.
    #[must_use]
    pub fn to_json(&self) -> Json {
        match self {
            Atom::Integer(number) => json!(number),
            Atom::Real(number) => json!(number),
            Atom::Boolean(value) => json!(value),
            Atom::String(text) => json!(text),
            Atom::Uuid(uuid) => json!(["uuid", uuid.as_str()]),
            Atom::Named(name) => json!(["named-uuid", name]),
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// What was found instead.
    pub fn parse(json: &Json) -> Result<Self, String> {
        let atom = match json {
            Json::Bool(value) => Some(Atom::Boolean(*value)),
            Json::String(text) => Some(Atom::String(text.clone())),
            Json::Number(number) => {
                number.as_i64().map(Atom::Integer).or_else(|| number.as_f64().map(Atom::Real))
            }
            Json::Array(pair) => match pair.as_slice() {
                [Json::String(tag), Json::String(text)] if tag == "uuid" => {
                    Uuid::parse(text).map(Atom::Uuid)
                }
                [Json::String(tag), Json::String(text)] if tag == "named-uuid" => {
                    Some(Atom::Named(text.clone()))
                }
                _ => None,
            },
            _ => None,
        };
        atom.ok_or_else(|| format!("{} is not a value of a column", short(json)))
    }
}

impl Value {
    /// A set of values.
    pub fn set<A: Into<Atom>>(atoms: impl IntoIterator<Item = A>) -> Self {
        Value::Set(atoms.into_iter().map(Into::into).collect())
    }

    /// A set of one value or none.
    pub fn optional<A: Into<Atom>>(atom: Option<A>) -> Self {
        Value::Set(atom.into_iter().map(Into::into).collect())
    }

    /// A map of texts.
    pub fn map<K: Into<String>, V: Into<String>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        let pairs = pairs.into_iter();
        Value::Map(
            pairs
                .map(|(key, value)| (Atom::String(key.into()), Atom::String(value.into())))
                .collect(),
        )
    }

    /// Writes it.
    #[must_use]
    pub fn to_json(&self) -> Json {
        match self {
            Value::Atom(atom) => atom.to_json(),
            Value::Set(atoms) => {
                json!(["set", atoms.iter().map(Atom::to_json).collect::<Vec<_>>()])
            }
            Value::Map(pairs) => {
                let pairs =
                    pairs.iter().map(|(key, value)| json!([key.to_json(), value.to_json()]));
                json!(["map", pairs.collect::<Vec<_>>()])
            }
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// What was found instead.
    pub fn parse(json: &Json) -> Result<Self, String> {
        let Some([Json::String(tag), Json::Array(items)]) = json.as_array().map(Vec::as_slice)
        else {
            return Atom::parse(json).map(Value::Atom);
        };
        let pair = |json: &Json| match json.as_array().map(Vec::as_slice) {
            Some([key, value]) => Ok((Atom::parse(key)?, Atom::parse(value)?)),
            _ => Err(format!("{} is not a pair of a map", short(json))),
        };
        match tag.as_str() {
            "set" => items.iter().map(Atom::parse).collect::<Result<_, _>>().map(Value::Set),
            "map" => items.iter().map(pair).collect::<Result<_, _>>().map(Value::Map),
            _ => Err(format!("{} is not a value of a column", short(json))),
        }
    }

    /// Returns its values: one, or those of a set.
    #[must_use]
    pub fn atoms(&self) -> &[Atom] {
        match self {
            Value::Atom(atom) => std::slice::from_ref(atom),
            Value::Set(atoms) => atoms,
            Value::Map(_) => &[],
        }
    }
}

/// Returns the beginning of the value that was found, for messages.
fn short(json: &Json) -> String {
    json.to_string().chars().take(60).collect()
}

macro_rules! atoms {
    ($($from:ty => $to:ident),*) => {$(
        impl From<$from> for Atom {
            fn from(value: $from) -> Self {
                Atom::$to(value.into())
            }
        }
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Value::Atom(value.into())
            }
        }
    )*};
}

atoms!(&str => String, String => String, bool => Boolean, i64 => Integer, u32 => Integer, u16 => Integer, Uuid => Uuid);

impl From<&Uuid> for Atom {
    fn from(uuid: &Uuid) -> Self {
        Atom::Uuid(uuid.clone())
    }
}

fn text_of(atom: &Atom) -> Option<&str> {
    match atom {
        Atom::String(text) => Some(text),
        _ => None,
    }
}

/// A row, or some columns of one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row(BTreeMap<String, Value>);

impl Row {
    /// A row without columns.
    #[must_use]
    pub fn new() -> Self {
        Row::default()
    }

    /// Returns the row with one more column.
    #[must_use]
    pub fn with(mut self, column: &str, value: impl Into<Value>) -> Self {
        self.0.insert(column.to_owned(), value.into());
        self
    }

    /// Writes it.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let mut columns = serde_json::Map::new();
        columns.extend(self.0.iter().map(|(name, value)| (name.clone(), value.to_json())));
        Json::Object(columns)
    }

    /// Reads one.
    ///
    /// # Errors
    /// What was found instead.
    pub fn parse(json: &Json) -> Result<Self, String> {
        let columns = json.as_object().ok_or_else(|| format!("{} is not a row", short(json)))?;
        let mut row = Row::new();
        for (name, value) in columns {
            let value = Value::parse(value).map_err(|why| format!("column {name:?}: {why}"))?;
            row.0.insert(name.clone(), value);
        }
        Ok(row)
    }

    /// Returns a column.
    #[must_use]
    pub fn get(&self, column: &str) -> Option<&Value> {
        self.0.get(column)
    }

    /// Lists the columns.
    pub fn columns(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    fn atoms(&self, column: &str) -> &[Atom] {
        self.get(column).map(Value::atoms).unwrap_or_default()
    }

    /// Returns a column's single text; empty if it has none.
    #[must_use]
    pub fn text(&self, column: &str) -> &str {
        match self.atoms(column) {
            [Atom::String(text)] => text,
            _ => "",
        }
    }

    /// Returns a column's texts.
    #[must_use]
    pub fn texts(&self, column: &str) -> Vec<&str> {
        self.atoms(column).iter().filter_map(text_of).collect()
    }

    /// Returns a column's one number.
    #[must_use]
    pub fn integer(&self, column: &str) -> Option<i64> {
        match self.atoms(column) {
            [Atom::Integer(number)] => Some(*number),
            _ => None,
        }
    }

    /// Returns a column's numbers.
    #[must_use]
    pub fn integers(&self, column: &str) -> Vec<i64> {
        let number =
            |atom: &Atom| if let Atom::Integer(number) = atom { Some(*number) } else { None };
        self.atoms(column).iter().filter_map(number).collect()
    }

    /// Returns a column's single truth value.
    #[must_use]
    pub fn boolean(&self, column: &str) -> Option<bool> {
        match self.atoms(column) {
            [Atom::Boolean(value)] => Some(*value),
            _ => None,
        }
    }

    /// Returns the rows that a column refers to.
    #[must_use]
    pub fn uuids(&self, column: &str) -> Vec<Uuid> {
        let uuid =
            |atom: &Atom| if let Atom::Uuid(uuid) = atom { Some(uuid.clone()) } else { None };
        self.atoms(column).iter().filter_map(uuid).collect()
    }

    /// Returns the single row that a column refers to.
    #[must_use]
    pub fn uuid(&self, column: &str) -> Option<Uuid> {
        match self.atoms(column) {
            [Atom::Uuid(uuid)] => Some(uuid.clone()),
            _ => None,
        }
    }

    /// Returns a column's pairs of texts.
    #[must_use]
    pub fn map(&self, column: &str) -> BTreeMap<String, String> {
        let Some(Value::Map(pairs)) = self.get(column) else { return BTreeMap::new() };
        let texts = |pair: &(Atom, Atom)| match pair {
            (Atom::String(key), Atom::String(value)) => Some((key.clone(), value.clone())),
            _ => None,
        };
        let mut map = BTreeMap::new();
        map.extend(pairs.iter().filter_map(texts));
        map
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn atom() -> impl Strategy<Value = Atom> {
        prop_oneof![
            any::<i64>().prop_map(Atom::Integer),
            any::<bool>().prop_map(Atom::Boolean),
            ".{0,9}".prop_map(Atom::String),
            "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
                .prop_map(|text| Atom::Uuid(Uuid::parse(&text).unwrap())),
            "[a-z]{1,9}".prop_map(Atom::Named),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            value in prop_oneof![
                atom().prop_map(Value::Atom),
                prop::collection::vec(atom(), 0..4).prop_map(Value::Set),
                prop::collection::vec((atom(), atom()), 0..4).prop_map(Value::Map),
            ]
        ) {
            prop_assert_eq!(Value::parse(&value.to_json()).unwrap(), value);
        }
    }

    #[test]
    fn what_is_no_value_is_refused() {
        for text in [
            "null",
            "{}",
            "[]",
            r#"["set"]"#,
            r#"["bag",[]]"#,
            r#"["map",[[1]]]"#,
            r#"["uuid","1"]"#,
        ] {
            assert!(Value::parse(&serde_json::from_str(text).unwrap()).is_err(), "{text}");
        }
    }
}
