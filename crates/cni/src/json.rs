//! JSON as CNI's ecosystem reads it.
//!
//! Configurations in the field were written against Go's `encoding/json`, so typed reading here keeps
//! its rules: object keys match fields without regard to case, the last of several equal keys wins,
//! `null` leaves a field at its default, unknown keys are ignored, a wrong type is an error. The rest
//! of a document is never rewritten: [`Object`] keeps every value as the text it was, in order, so
//! unknown keys and numbers of any size pass through untouched.
//!
//! ```
//! #[derive(serde::Deserialize, Debug, PartialEq)]
//! #[serde(default)]
//! struct Ipam { subnet: String, size: u8 }
//! # impl Default for Ipam { fn default() -> Self { Ipam { subnet: String::new(), size: 24 } } }
//! let ipam: Ipam = netwright_cni::json::from_str(r#"{"SUBNET": "192.0.2.0/24", "size": null}"#)?;
//! assert_eq!(ipam, Ipam { subnet: "192.0.2.0/24".into(), size: 24 });
//! # Ok::<(), netwright_cni::json::JsonError>(())
//! ```

use std::cell::RefCell;
use std::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;

/// Says why a document could not be read, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct JsonError {
    /// The key path of the offending value, such as `ipam.ranges[0].subnet`; empty for the whole document.
    pub path: String,
    /// The line, counted from 1; 0 when it is not known.
    pub line: usize,
    /// The column in bytes, counted from 1; 0 when it is not known.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    offset: Option<usize>,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if self.line != 0 {
            write!(f, " at line {} column {}", self.line, self.column)?;
        }
        Ok(())
    }
}

impl de::Error for JsonError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        JsonError {
            path: String::new(),
            line: 0,
            column: 0,
            message: message.to_string(),
            offset: None,
        }
    }
}

impl JsonError {
    /// Wraps a `serde_json` error, splitting its position from its text.
    fn of(error: &serde_json::Error) -> Self {
        let text = error.to_string();
        let tail = format!(" at line {} column {}", error.line(), error.column());
        JsonError {
            path: String::new(),
            line: error.line(),
            column: error.column(),
            message: text.strip_suffix(&tail).unwrap_or(&text).to_owned(),
            offset: None,
        }
    }

    /// Forgets the position: it was relative to a part of the document.
    fn unplaced(error: &serde_json::Error) -> Self {
        JsonError { line: 0, column: 0, ..JsonError::of(error) }
    }

    fn within(mut self, step: &str, raw: &RawValue) -> Self {
        if self.path.is_empty() || self.path.starts_with('[') {
            self.path = format!("{step}{}", self.path);
        } else {
            self.path = format!("{step}.{}", self.path);
        }
        self.offset.get_or_insert(raw.get().as_ptr().addr());
        self
    }

    /// Turns the address of the offending text into a line and column of `document`.
    fn place(mut self, document: &str) -> Self {
        if self.line == 0
            && let Some(offset) = self.offset.and_then(|at| at.checked_sub(document.as_ptr().addr()))
            && let Some(before) = document.get(..offset)
        {
            (self.line, self.column) = position(before);
        }
        self.offset = None;
        self
    }
}

/// Returns the line and column of the byte that follows `before`, both counted from 1.
fn position(before: &str) -> (usize, usize) {
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before.len() - line_start + 1)
}

/// A key that no type reads, found by [`unknown_keys`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// The path of the object that holds the key; empty for the document itself.
    pub parent: String,
    /// The key as written.
    pub key: String,
    /// The line of the key's value.
    pub line: usize,
    /// The column of the key's value.
    pub column: usize,
    /// The keys that would have been read there.
    pub known: &'static [&'static str],
}

/// Reads a document from bytes.
///
/// # Errors
/// [`JsonError`] when the bytes are not UTF-8, not JSON, followed by something, or of the wrong shape.
pub fn from_slice<'de, T: Deserialize<'de>>(document: &'de [u8]) -> Result<T, JsonError> {
    let text = std::str::from_utf8(document).map_err(|error| {
        let valid = &document[..error.valid_up_to()];
        let (line, column) = position(std::str::from_utf8(valid).unwrap_or_default());
        JsonError { line, column, ..de::Error::custom("not UTF-8 text") }
    })?;
    from_str(text)
}

/// Reads a document from text.
///
/// # Errors
/// [`JsonError`] when the text is not JSON, is followed by something, or is of the wrong shape.
pub fn from_str<'de, T: Deserialize<'de>>(document: &'de str) -> Result<T, JsonError> {
    let raw: &RawValue = serde_json::from_str(document).map_err(|error| JsonError::of(&error))?;
    from_raw(raw).map_err(|error| error.place(document))
}

/// Reads a part of a document kept as text. Positions in errors are relative to that part.
///
/// # Errors
/// [`JsonError`] when the value is of the wrong shape.
pub fn from_raw<'de, T: Deserialize<'de>>(raw: &'de RawValue) -> Result<T, JsonError> {
    T::deserialize(Lenient { raw, unknown: None }).map_err(|error| error.place(raw.get()))
}

/// Lists the keys of `document` that `T` and the types inside it do not read.
///
/// # Errors
/// [`JsonError`] when the document cannot be read as a `T` at all.
pub fn unknown_keys<'de, T: Deserialize<'de>>(
    document: &'de str,
) -> Result<Vec<UnknownKey>, JsonError> {
    let raw: &RawValue = serde_json::from_str(document).map_err(|error| JsonError::of(&error))?;
    let log = Log { document, path: RefCell::default(), found: RefCell::default() };
    T::deserialize(Lenient { raw, unknown: Some(&log) }).map_err(|error| error.place(document))?;
    Ok(log.found.into_inner())
}

/// A JSON object whose values stay the text they were, in their order.
///
/// Keys are compared exactly by the methods without a suffix and without regard to ASCII case by those
/// that say so. Of equal keys the last one counts, as in Go.
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

    /// Reads an object from bytes.
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

    /// Returns the value of a key, compared without regard to ASCII case.
    #[must_use]
    pub fn get_ignore_case(&self, key: &str) -> Option<&RawValue> {
        self.entries.iter().rev().find(|(k, _)| k.eq_ignore_ascii_case(key)).map(|(_, v)| &**v)
    }

    /// Sets a key: its first entry (without regard to ASCII case) keeps its place, others go.
    pub fn set(&mut self, key: &str, value: Box<RawValue>) {
        match self.entries.iter().position(|(k, _)| k.eq_ignore_ascii_case(key)) {
            Some(place) => {
                self.entries[place] = (key.to_owned(), value);
                let mut index = 0;
                self.entries.retain(|(k, _)| {
                    index += 1;
                    index - 1 <= place || !k.eq_ignore_ascii_case(key)
                });
            }
            None => self.entries.push((key.to_owned(), value)),
        }
    }

    /// Sets a key to anything that serialises.
    ///
    /// # Panics
    /// When `value` cannot be written as JSON, which only a map with keys that are not strings can cause.
    pub fn set_value<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) {
        let raw = serde_json::value::to_raw_value(value).expect("our types serialise to JSON");
        self.set(key, raw);
    }

    /// Removes every entry of a key, compared without regard to ASCII case.
    pub fn remove(&mut self, key: &str) {
        self.entries.retain(|(k, _)| !k.eq_ignore_ascii_case(key));
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

/// What a look for unknown keys has met so far.
struct Log<'de> {
    document: &'de str,
    path: RefCell<Vec<String>>,
    found: RefCell<Vec<UnknownKey>>,
}

impl Log<'_> {
    fn report(&self, key: &str, value: &RawValue, known: &'static [&'static str]) {
        let offset = value.get().as_ptr().addr() - self.document.as_ptr().addr();
        let (line, column) = position(&self.document[..offset]);
        let parent = self.path.borrow().join("").trim_start_matches('.').to_owned();
        self.found.borrow_mut().push(UnknownKey {
            parent,
            key: key.to_owned(),
            line,
            column,
            known,
        });
    }
}

/// A deserializer over kept text that follows the rules of this module.
#[derive(Clone, Copy)]
struct Lenient<'de, 'log> {
    raw: &'de RawValue,
    unknown: Option<&'log Log<'de>>,
}

type Pairs<'de> = Vec<(String, &'de RawValue)>;

impl<'de, 'log> Lenient<'de, 'log> {
    fn first_byte(self) -> u8 {
        self.raw.get().bytes().next().unwrap_or(b'n')
    }

    fn is_null(self) -> bool {
        self.first_byte() == b'n'
    }

    fn json(self) -> serde_json::Deserializer<serde_json::de::StrRead<'de>> {
        serde_json::Deserializer::from_str(self.raw.get())
    }

    /// Splits an object into its entries; `null` has none.
    fn pairs(self) -> Result<Pairs<'de>, JsonError> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Pairs<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    pairs.push(entry);
                }
                Ok(pairs)
            }
        }
        if self.is_null() {
            return Ok(Vec::new());
        }
        de::Deserializer::deserialize_map(&mut self.json(), Collect)
            .map_err(|error| JsonError::unplaced(&error))
    }

    fn elements(self) -> Result<Vec<&'de RawValue>, JsonError> {
        if self.is_null() {
            return Ok(Vec::new());
        }
        Vec::deserialize(&mut self.json()).map_err(|error| JsonError::unplaced(&error))
    }

    /// Keeps the entries that name a field, under the field's own spelling, the last of each.
    fn fields(self, known: &'static [&'static str]) -> Result<Pairs<'de>, JsonError> {
        let mut kept: Pairs<'de> = Vec::new();
        for (key, value) in self.pairs()? {
            let exact = known.iter().find(|field| **field == key);
            let field = exact.or_else(|| known.iter().find(|field| same_letters(field, &key)));
            let Some(field) = field else {
                if let Some(log) = self.unknown {
                    log.report(&key, value, known);
                }
                continue;
            };
            if value.get() == "null" {
                continue;
            }
            kept.retain(|(name, _)| name != field);
            kept.push(((*field).to_owned(), value));
        }
        Ok(kept)
    }
}

/// Compares keys as Go does: without regard to case.
fn same_letters(field: &str, key: &str) -> bool {
    field.eq_ignore_ascii_case(key) || (!key.is_ascii() && field.to_lowercase() == key.to_lowercase())
}

macro_rules! forward_scalars {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
            de::Deserializer::$method(&mut self.json(), visitor)
                .map_err(|error| JsonError::unplaced(&error))
        }
    )*};
}

impl<'de> de::Deserializer<'de> for Lenient<'de, '_> {
    type Error = JsonError;

    forward_scalars! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32
        deserialize_f64 deserialize_char deserialize_str deserialize_string deserialize_bytes
        deserialize_byte_buf deserialize_unit deserialize_identifier deserialize_ignored_any
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        match self.first_byte() {
            b'{' => self.deserialize_map(visitor),
            b'[' => self.deserialize_seq(visitor),
            _ => de::Deserializer::deserialize_any(&mut self.json(), visitor)
                .map_err(|error| JsonError::unplaced(&error)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        visitor.visit_seq(Elements { rest: self.elements()?.into_iter(), index: 0, of: self })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, JsonError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, JsonError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        visitor.visit_map(Entries::new(self.pairs()?, self))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, JsonError> {
        visitor.visit_map(Entries::new(self.fields(fields)?, self))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, JsonError> {
        // serde_json hands out kept text (RawValue) only through its own deserializer, asked by this name.
        if name.starts_with("$serde_json::private::") {
            return de::Deserializer::deserialize_newtype_struct(&mut self.json(), name, visitor)
                .map_err(|error| JsonError::unplaced(&error));
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, JsonError> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, JsonError> {
        de::Deserializer::deserialize_enum(&mut self.json(), name, variants, visitor)
            .map_err(|error| JsonError::unplaced(&error))
    }
}

struct Entries<'de, 'log> {
    rest: std::vec::IntoIter<(String, &'de RawValue)>,
    value: Option<(String, &'de RawValue)>,
    of: Lenient<'de, 'log>,
}

impl<'de, 'log> Entries<'de, 'log> {
    fn new(pairs: Pairs<'de>, of: Lenient<'de, 'log>) -> Self {
        Entries { rest: pairs.into_iter(), value: None, of }
    }
}

impl<'de> MapAccess<'de> for Entries<'de, '_> {
    type Error = JsonError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, JsonError> {
        let Some((key, value)) = self.rest.next() else { return Ok(None) };
        self.value = Some((key.clone(), value));
        seed.deserialize(key.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, JsonError> {
        let (key, raw) = self.value.take().expect("serde asks for a value only after its key");
        descend(self.of.unknown, || format!(".{key}"), |unknown| {
            seed.deserialize(Lenient { raw, unknown }).map_err(|error| error.within(&key, raw))
        })
    }
}

struct Elements<'de, 'log> {
    rest: std::vec::IntoIter<&'de RawValue>,
    index: usize,
    of: Lenient<'de, 'log>,
}

impl<'de> SeqAccess<'de> for Elements<'de, '_> {
    type Error = JsonError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, JsonError> {
        let Some(raw) = self.rest.next() else { return Ok(None) };
        let step = format!("[{}]", self.index);
        self.index += 1;
        descend(self.of.unknown, || step.clone(), |unknown| {
            seed.deserialize(Lenient { raw, unknown }).map_err(|error| error.within(&step, raw))
        })
        .map(Some)
    }
}

/// Runs `read` with one more step on the log's path.
fn descend<'de, 'log, T>(
    log: Option<&'log Log<'de>>,
    step: impl FnOnce() -> String,
    read: impl FnOnce(Option<&'log Log<'de>>) -> Result<T, JsonError>,
) -> Result<T, JsonError> {
    let Some(log) = log else { return read(None) };
    log.path.borrow_mut().push(step());
    let value = read(Some(log));
    log.path.borrow_mut().pop();
    value
}
