//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An Ethernet address, the kind of hardware address that DHCP uses here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Every host on the link.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);
    /// No host: the target of an ARP request.
    pub const ZERO: MacAddr = MacAddr([0; 6]);
}

/// Text that is not six pairs of hexadecimal digits separated by colons.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a hardware address of the form 02:00:00:00:00:01")]
pub struct MacAddrError(String);

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddr {
    type Err = MacAddrError;

    fn from_str(text: &str) -> Result<Self, MacAddrError> {
        let refuse = || MacAddrError(text.to_owned());
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(refuse)?;
            if !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(refuse());
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| refuse())?;
        }
        if parts.next().is_some() {
            return Err(refuse());
        }
        Ok(MacAddr(octets))
    }
}

impl From<MacAddr> for String {
    fn from(mac: MacAddr) -> String {
        mac.to_string()
    }
}

impl TryFrom<String> for MacAddr {
    type Error = MacAddrError;

    fn try_from(text: String) -> Result<Self, MacAddrError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let mac: MacAddr = "02:00:00:0a:FF:01".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:00:0a:ff:01");
        for bad in
            ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "2:00:00:00:00:01", "+2:00:00:00:00:01"]
        {
            assert!(bad.parse::<MacAddr>().is_err(), "{bad}");
        }
    }
}
