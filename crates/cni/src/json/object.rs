//! JSON objects whose values stay text.

use std::fmt;

use serde::de::{self, Deserialize, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;

use super::{JsonError, from_slice, same_key};

/// A JSON object that keeps the text and the order of its values.
///
/// Methods whose name says so compare keys without regard to case, as Go does; the others compare
/// exactly. Of equal keys the last one counts, as in Go. Keys are decoded and written anew, so a
/// key keeps its meaning but not its escapes; values keep every byte.
#[derive(Clone, Default)]
pub struct Object {
    entries: Vec<(String, Box<RawValue>)>,
}

impl Object {
    /// Makes an object without entries.
    #[must_use]
    pub fn new() -> Self {
        Object::default()
    }

    /// Reads an object from bytes. `null` is an object without entries, as in Go.
    ///
    /// # Errors
    /// [`JsonError`] when the bytes are not one JSON object.
    pub fn parse(document: &[u8]) -> Result<Self, JsonError> {
        from_slice(document)
    }

    /// Returns the value of a key, compared exactly.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&RawValue> {
        self.entries.iter().rev().find(|(k, _)| k == key).map(|(_, value)| &**value)
    }

    /// Returns the value of a key, compared without regard to case; a key that is spelled exactly
    /// takes precedence.
    #[must_use]
    pub fn get_ignore_case(&self, key: &str) -> Option<&RawValue> {
        let in_any_case = || self.entries.iter().rev().find(|(k, _)| same_key(key, k));
        self.get(key).or_else(|| in_any_case().map(|(_, value)| &**value))
    }

    /// Sets a key: its first entry (without regard to case) keeps its place, others are removed.
    pub fn set(&mut self, key: &str, value: Box<RawValue>) {
        let mut new = Some((key.to_owned(), value));
        self.entries.retain_mut(|entry| {
            if !same_key(key, &entry.0) {
                return true;
            }
            let Some(new) = new.take() else { return false };
            *entry = new;
            true
        });
        self.entries.extend(new);
    }

    /// Sets a key to anything that serialises.
    ///
    /// # Panics
    /// When `value` cannot be written as JSON, which only a map with keys that are not strings can
    /// cause.
    pub fn set_value<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) {
        let raw = serde_json::value::to_raw_value(value).expect("our types serialise to JSON");
        self.set(key, raw);
    }

    /// Removes every entry of a key, compared without regard to case.
    pub fn remove(&mut self, key: &str) {
        self.entries.retain(|(k, _)| !same_key(key, k));
    }

    /// Lists the entries in the order of the document.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), &**value))
    }

    /// Says whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Reads the object as a typed value, by this module's rules.
    ///
    /// # Errors
    /// [`JsonError`] when it is of the wrong shape.
    pub fn read<T: de::DeserializeOwned>(&self) -> Result<T, JsonError> {
        from_slice(&self.to_vec())
    }

    /// Writes the object as compact JSON.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an object of JSON texts serialises")
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.to_vec()))
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        self.entries.len() == other.entries.len()
            && self.iter().zip(other.iter()).all(|(a, b)| a.0 == b.0 && a.1.get() == b.1.get())
    }
}

impl Eq for Object {}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.entries.len()))?;
        for (key, value) in &self.entries {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Object;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry::<String, Box<RawValue>>()? {
                    entries.push(entry);
                }
                Ok(Object { entries })
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
