//! A version of IP in documents: `ipv4` or `ipv6`.

use net::IpFamily;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The words, for `#[serde(with = "FamilyWord")]`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "IpFamily", rename_all = "lowercase")]
pub(crate) enum FamilyWord {
    #[serde(rename = "ipv4")]
    V4,
    #[serde(rename = "ipv6")]
    V6,
}

/// The same where there may be none.
pub(crate) mod option {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Word(#[serde(with = "FamilyWord")] IpFamily);

    #[expect(clippy::ref_option, reason = "serde passes fields so")]
    pub(crate) fn serialize<S: Serializer>(
        family: &Option<IpFamily>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        family.map(Word).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<IpFamily>, D::Error> {
        Ok(Option::<Word>::deserialize(from)?.map(|word| word.0))
    }
}
