//! Octets as hexadecimal text, for saved leases.

use std::fmt::Write as _;

use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

pub(crate) fn encode(octets: &[u8]) -> String {
    octets.iter().fold(String::with_capacity(2 * octets.len()), |mut text, octet| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{octet:02x}");
        text
    })
}

pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digit = |letter: &u8| char::from(*letter).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        })
        .collect()
}

pub(crate) fn serialize<S: Serializer>(octets: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&encode(octets))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    decode(&text).ok_or_else(|| D::Error::custom("not an even number of hexadecimal digits"))
}

/// The same for octets that may be absent.
pub(crate) mod option {
    use super::{Deserialize, Deserializer, Serializer, decode, encode};
    use serde::de::Error as _;

    #[expect(clippy::ref_option, reason = "serde passes the field by reference")]
    pub(crate) fn serialize<S: Serializer>(
        octets: &Option<Vec<u8>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match octets {
            Some(octets) => to.serialize_some(&encode(octets)),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
        let octets = decode(&text);
        octets.map(Some).ok_or_else(|| D::Error::custom("not an even number of hexadecimal digits"))
    }
}
