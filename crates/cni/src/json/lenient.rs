//! The deserializer that follows Go's rules.
//!
//! It works on unparsed text: it splits an object or array into the texts of its parts, reads each
//! part in turn, and leaves scalars to `serde_json`. So each level of a type scans its text once
//! more; the limit on depth bounds that.

use std::fmt;

use serde::de::{
    self, Deserialize, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

use super::unknown::Log;
use super::{JsonError, MAX_DEPTH, same_key};

/// A deserializer over unparsed text that follows the rules of this module.
#[derive(Clone, Copy)]
pub(super) struct LenientDeserializer<'de, 'log> {
    raw: &'de RawValue,
    depth: usize,
    unknown: Option<&'log Log<'de>>,
}

type Pairs<'de> = Vec<(String, &'de RawValue)>;
type Fields<'de> = Vec<(&'static str, &'de RawValue)>;

/// A step from a value to a part of it.
#[derive(Clone, Copy)]
enum Step<'s> {
    Key(&'s str),
    Index(usize),
}

impl fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Key(key) => f.write_str(key),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl Step<'_> {
    /// Adds the step to the path of an error in the part.
    fn before(self, error: JsonError, raw: &RawValue) -> JsonError {
        error.within(&self.to_string(), raw)
    }
}

impl<'de, 'log> LenientDeserializer<'de, 'log> {
    pub(super) fn new(raw: &'de RawValue, unknown: Option<&'log Log<'de>>) -> Self {
        LenientDeserializer { raw, depth: 0, unknown }
    }

    fn first_byte(self) -> u8 {
        self.raw.get().bytes().next().unwrap_or(b'n')
    }

    fn is_null(self) -> bool {
        self.first_byte() == b'n'
    }

    fn json(self) -> serde_json::Deserializer<serde_json::de::StrRead<'de>> {
        serde_json::Deserializer::from_str(self.raw.get())
    }

    /// Descends into a part. The depth limit ends the recursion here, in any text that the caller
    /// kept.
    fn part(self, raw: &'de RawValue) -> Result<Self, JsonError> {
        if MAX_DEPTH <= self.depth {
            return Err(de::Error::custom(format_args!("nested deeper than {MAX_DEPTH} levels")));
        }
        Ok(LenientDeserializer { raw, depth: self.depth + 1, ..self })
    }

    /// Reads a part. It is compiled for every type that is a part, so it does little itself.
    fn read<S: DeserializeSeed<'de>>(
        self,
        step: Step<'_>,
        raw: &'de RawValue,
        seed: S,
    ) -> Result<S::Value, JsonError> {
        let part = self.enter(step, raw)?;
        let value = seed.deserialize(part);
        self.leave();
        value.map_err(|error| step.before(error, raw))
    }

    /// Descends into a part, also on the path of unknown keys.
    fn enter(self, step: Step<'_>, raw: &'de RawValue) -> Result<Self, JsonError> {
        let part = self.part(raw).map_err(|error| step.before(error, raw))?;
        if let Some(log) = self.unknown {
            log.enter(match step {
                Step::Key(key) => format!(".{key}"),
                Step::Index(_) => step.to_string(),
            });
        }
        Ok(part)
    }

    /// Goes back from a part.
    fn leave(self) {
        if let Some(log) = self.unknown {
            log.leave();
        }
    }

    /// Splits an object into its entries; `null` has none.
    pub(super) fn pairs(self) -> Result<Pairs<'de>, JsonError> {
        struct CollectVisitor;
        impl<'de> Visitor<'de> for CollectVisitor {
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
        de::Deserializer::deserialize_map(&mut self.json(), CollectVisitor)
            .map_err(|error| JsonError::unplaced(&error))
    }

    fn elements(self) -> Result<Vec<&'de RawValue>, JsonError> {
        if self.is_null() {
            return Ok(Vec::new());
        }
        Vec::deserialize(&mut self.json()).map_err(|error| JsonError::unplaced(&error))
    }

    /// Keeps the entries that name a field, under the field's own spelling: the last with exactly
    /// that spelling, or else the last of any case.
    fn fields(self, known: &'static [&'static str]) -> Result<Fields<'de>, JsonError> {
        let mut kept: Fields<'de> = Vec::new();
        let mut settled: Vec<&str> = Vec::new();
        for (key, value) in self.pairs()? {
            let exact = known.iter().find(|field| **field == key);
            let field = exact.or_else(|| known.iter().find(|field| same_key(field, &key)));
            let Some(field) = field else {
                if let Some(log) = self.unknown {
                    log.report(&key, value, known);
                }
                continue;
            };
            if value.get() == "null" {
                continue;
            }
            if exact.is_some() {
                settled.push(*field);
            } else if settled.contains(field) {
                continue;
            }
            kept.retain(|(name, _)| name != field);
            kept.push((*field, value));
        }
        Ok(kept)
    }
}

/// Scalars: `null` is the type's zero value, as Go leaves it (a list `[null]` of strings holds one
/// empty string). Fields never get here with `null`; they keep their own default.
macro_rules! forward_scalars {
    ($($method:ident => $visit:ident($zero:expr),)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
            if self.is_null() {
                return visitor.$visit($zero);
            }
            de::Deserializer::$method(&mut self.json(), visitor)
                .map_err(|error| JsonError::unplaced(&error))
        }
    )*};
}

macro_rules! forward {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
            de::Deserializer::$method(&mut self.json(), visitor)
                .map_err(|error| JsonError::unplaced(&error))
        }
    )*};
}

impl<'de> de::Deserializer<'de> for LenientDeserializer<'de, '_> {
    type Error = JsonError;

    forward_scalars! {
        deserialize_bool => visit_bool(false),
        deserialize_i8 => visit_i64(0),
        deserialize_i16 => visit_i64(0),
        deserialize_i32 => visit_i64(0),
        deserialize_i64 => visit_i64(0),
        deserialize_i128 => visit_i64(0),
        deserialize_u8 => visit_u64(0),
        deserialize_u16 => visit_u64(0),
        deserialize_u32 => visit_u64(0),
        deserialize_u64 => visit_u64(0),
        deserialize_u128 => visit_u64(0),
        deserialize_f32 => visit_f64(0.0),
        deserialize_f64 => visit_f64(0.0),
        deserialize_str => visit_borrowed_str(""),
        deserialize_string => visit_borrowed_str(""),
    }

    forward! {
        deserialize_char deserialize_bytes deserialize_byte_buf deserialize_unit
        deserialize_identifier deserialize_ignored_any
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

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, JsonError> {
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
        visitor.visit_map(Entries { rest: self.pairs()?.into_iter(), value: None, of: self })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, JsonError> {
        visitor.visit_map(Entries { rest: self.fields(fields)?.into_iter(), value: None, of: self })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, JsonError> {
        // serde_json returns unparsed text (RawValue) only through its own deserializer, which it
        // recognises by this name.
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

/// The entries of an object; the keys are those of fields, or as written.
struct Entries<'de, 'log, Key> {
    rest: std::vec::IntoIter<(Key, &'de RawValue)>,
    value: Option<(Key, &'de RawValue)>,
    of: LenientDeserializer<'de, 'log>,
}

impl<'de, Key: AsRef<str>> MapAccess<'de> for Entries<'de, '_, Key> {
    type Error = JsonError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, JsonError> {
        let Some((key, value)) = self.rest.next() else { return Ok(None) };
        let read = seed.deserialize(key.as_ref().into_deserializer());
        self.value = Some((key, value));
        read.map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, JsonError> {
        let (key, raw) = self.value.take().expect("serde asks for a value only after its key");
        self.of.read(Step::Key(key.as_ref()), raw, seed)
    }
}

struct Elements<'de, 'log> {
    rest: std::vec::IntoIter<&'de RawValue>,
    index: usize,
    of: LenientDeserializer<'de, 'log>,
}

impl<'de> SeqAccess<'de> for Elements<'de, '_> {
    type Error = JsonError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, JsonError> {
        let Some(raw) = self.rest.next() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        self.of.read(Step::Index(index), raw, seed).map(Some)
    }
}
