//! An option as it travels.

use serde::{Deserialize, Serialize};

/// An option in wire format. DHCPv4 has codes of one octet and values of any length (RFC 3396
/// splits them), DHCPv6 codes of two and values of at most 65 535 octets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawOption<C> {
    /// Its code.
    pub code: C,
    /// Its value.
    #[serde(with = "crate::hex")]
    pub value: Vec<u8>,
}

impl<C: PartialEq> RawOption<C> {
    /// An option.
    pub fn new(code: C, value: impl Into<Vec<u8>>) -> Self {
        RawOption { code, value: value.into() }
    }

    /// Returns the value of the first option with this code.
    pub(crate) fn find(options: &[Self], code: C) -> Option<&[u8]> {
        let option = options.iter().find(|option| option.code == code)?;
        Some(&option.value)
    }
}
