//! Reads objects of others, and says at which key they are wrong.

use ipnet::IpNet;
use serde_json::Value;

use crate::refused::{Cause, printable};

/// What is wrong, after the path of its key.
pub(crate) type Fault = (String, Cause);

/// The longest document that is read, in bytes: an API server's objects are smaller.
pub(crate) const LONGEST_DOCUMENT: usize = 4 << 20;

/// A value in an object, with the path of its key.
#[derive(Debug, Clone)]
pub(crate) struct KeyedValue<'a> {
    path: String,
    value: &'a Value,
}

impl<'a> KeyedValue<'a> {
    /// Returns the object itself.
    pub(crate) fn root(value: &'a Value) -> Self {
        KeyedValue { path: String::new(), value }
    }

    /// Returns the path of its key.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns a fault of this value.
    pub(crate) fn fault(&self, cause: Cause) -> Fault {
        (self.path.clone(), cause)
    }

    /// Returns the value of a key, unless it is missing or null.
    pub(crate) fn get(&self, key: &str) -> Result<Option<KeyedValue<'a>>, Fault> {
        let found = self.object()?.get(key);
        let found = found.filter(|value| !value.is_null());
        Ok(found.map(|value| KeyedValue { path: join(&self.path, key), value }))
    }

    /// Returns the value of a key that has to be there.
    pub(crate) fn required(&self, key: &str) -> Result<KeyedValue<'a>, Fault> {
        self.get(key)?.ok_or_else(|| (join(&self.path, key), Cause::Missing))
    }

    /// Returns a fault if there is a key that is not among these.
    ///
    /// A key of another version, or a misspelt one, may forbid what the rest allows.
    pub(crate) fn only(&self, known: &[&str]) -> Option<Fault> {
        let object = match self.object() {
            Ok(object) => object,
            Err(fault) => return Some(fault),
        };
        let key = object.keys().find(|key| !known.contains(&key.as_str()))?;
        let path = join(&self.path, &printable(key));
        Some((path, Cause::UnknownKey { known: known.join(", ") }))
    }

    /// Returns the one key of these that is there, with its value.
    pub(crate) fn exactly_one(
        &self,
        known: &[&'a str],
    ) -> Result<(&'a str, KeyedValue<'a>), Fault> {
        if let Some(fault) = self.only(known) {
            return Err(fault);
        }
        let mut there = Vec::new();
        for key in known {
            there.extend(self.get(key)?.map(|at| (*key, at)));
        }
        if there.len() != 1 {
            let count = there.len();
            return Err(self.fault(Cause::NotOne { count, known: known.join(", ") }));
        }
        there.pop().ok_or_else(|| self.fault(Cause::Missing))
    }

    /// Returns the keys with their values.
    pub(crate) fn entries(&self) -> Result<Vec<(&'a str, KeyedValue<'a>)>, Fault> {
        let entry = |(key, value): (&'a String, &'a Value)| {
            (key.as_str(), KeyedValue { path: join(&self.path, &printable(key)), value })
        };
        Ok(self.object()?.iter().map(entry).collect())
    }

    fn object(&self) -> Result<&'a serde_json::Map<String, Value>, Fault> {
        self.value.as_object().ok_or_else(|| self.not("an object"))
    }

    pub(crate) fn not(&self, wanted: &str) -> Fault {
        // JSON has its own quotes.
        let text = printable(&self.value.to_string());
        self.fault(Cause::NotA { text, wanted: wanted.to_owned() })
    }

    pub(crate) fn text(&self) -> Result<&'a str, Fault> {
        self.value.as_str().ok_or_else(|| self.not("a text"))
    }

    /// Returns the text of a key, if the key is there and its value is a text.
    pub(crate) fn loose_text(&self, key: &str) -> Option<&'a str> {
        self.value.get(key)?.as_str()
    }

    pub(crate) fn is_object(&self) -> bool {
        self.value.is_object()
    }

    pub(crate) fn is_number(&self) -> bool {
        self.value.is_number()
    }

    /// Returns the entries of a list.
    pub(crate) fn list(&self) -> Result<Vec<KeyedValue<'a>>, Fault> {
        let list = self.value.as_array().ok_or_else(|| self.not("a list"))?;
        let entry =
            |(number, value)| KeyedValue { path: format!("{}[{number}]", self.path), value };
        Ok(list.iter().enumerate().map(entry).collect())
    }

    /// Returns the entries of a list that has `least` to `most`.
    pub(crate) fn short_list(
        &self,
        least: usize,
        most: usize,
    ) -> Result<Vec<KeyedValue<'a>>, Fault> {
        let list = self.list()?;
        let count = list.len();
        if most < count {
            return Err(self.fault(Cause::TooMany { count, most }));
        }
        if count < least {
            return Err(self.fault(Cause::Empty));
        }
        Ok(list)
    }

    /// Returns a whole number in a range.
    pub(crate) fn number(&self, least: u16, most: u16) -> Result<u16, Fault> {
        let value = self.value.as_i64().ok_or_else(|| self.not("a whole number"))?;
        let number = u16::try_from(value).ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| {
            let (least, most) = (u64::from(least), u64::from(most));
            self.fault(Cause::OutOfRange { value, least, most })
        })
    }

    pub(crate) fn port(&self) -> Result<u16, Fault> {
        self.number(1, u16::MAX)
    }

    /// Reads a prefix without host bits.
    pub(crate) fn prefix(&self) -> Result<IpNet, Fault> {
        let prefix = self.loose_prefix()?;
        let network = prefix.trunc();
        if network != prefix {
            return Err(self.fault(Cause::HostBits { prefix, network }));
        }
        Ok(prefix)
    }

    /// Reads a prefix that may have host bits.
    pub(crate) fn loose_prefix(&self) -> Result<IpNet, Fault> {
        let text = self.text()?;
        cni::text::parse_cidr(text)
            .ok_or_else(|| self.fault(Cause::not_a(text, "a prefix such as 10.244.1.0/24")))
    }

    /// Reads the name of a container's port (RFC 6335 §5.1).
    pub(crate) fn port_name(&self) -> Result<&'a str, Fault> {
        let name = self.text()?;
        let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let fits = !name.is_empty()
            && name.len() <= 15
            && name.bytes().all(inner)
            && name.bytes().any(|c| c.is_ascii_lowercase())
            && !name.starts_with('-')
            && !name.ends_with('-')
            && !name.contains("--");
        if fits { Ok(name) } else { Err(self.fault(Cause::not_a(name, "a port's name"))) }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Reads a JSON document.
pub(crate) fn json(text: &[u8]) -> Result<Value, Cause> {
    if LONGEST_DOCUMENT < text.len() {
        return Err(Cause::TooLong { bytes: text.len(), most: LONGEST_DOCUMENT });
    }
    serde_json::from_slice(text)
        .map_err(|error| Cause::Malformed { why: cni::json::explain(text, &error).to_string() })
}
