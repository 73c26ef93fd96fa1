//! Addresses as configurations and results write them.

use std::net::IpAddr;

use ipnet::IpNet;

/// `#[serde(with)]` for an address with a prefix length; host bits are kept.
pub mod cidr {
    use super::IpNet;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::borrow::Cow;

    /// Writes `192.0.2.1/24`.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(value: &IpNet, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    /// Reads `192.0.2.1/24`.
    ///
    /// # Errors
    /// `invalid CIDR address: X`, as Go says it.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpNet, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(|_| D::Error::custom(format_args!("invalid CIDR address: {text}")))
    }
}

/// `#[serde(with)]` for an address that may be absent: `null` and empty text mean none.
pub mod optional_ip {
    use super::IpAddr;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::borrow::Cow;

    /// Writes the address, or `null`.
    ///
    /// # Errors
    /// The serializer's.
    #[expect(clippy::ref_option, reason = "serde passes references")]
    pub fn serialize<S: Serializer>(value: &Option<IpAddr>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(address) => serializer.collect_str(address),
            None => serializer.serialize_none(),
        }
    }

    /// Reads an address.
    ///
    /// # Errors
    /// `invalid IP address: X`.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<IpAddr>, D::Error> {
        let text = Option::<Cow<'_, str>>::deserialize(deserializer)?;
        match text.as_deref() {
            None | Some("") => Ok(None),
            Some(text) => text
                .parse()
                .map(Some)
                .map_err(|_| D::Error::custom(format_args!("invalid IP address: {text}"))),
        }
    }
}
