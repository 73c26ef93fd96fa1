//! Hardware addresses of tunnels. (`kernel` has a type of its own, which is not known here.)

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::family::Family;

/// An Ethernet address, read and written as `02:00:00:00:00:01`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddr(pub [u8; 6]);

/// Text that is not six pairs of hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a hardware address such as 02:00:00:00:00:01")]
pub struct MacAddrError(String);

impl MacAddr {
    /// Returns the address of a node's tunnel of a family: the same whenever it is made, so that
    /// peers need not hear of it. It is unicast and locally administered (IEEE 802 §8.4).
    #[must_use]
    pub fn of_tunnel(uid: &str, underlay: Family) -> Self {
        let digest = Sha256::digest(["netwright routing ", underlay.name(), " ", uid].concat());
        let mut octets = [0; 6];
        octets.copy_from_slice(&digest[..6]);
        octets[0] = octets[0] & 0xfe | 0x02;
        MacAddr(octets)
    }

    /// Returns the link-local address that stands for it (RFC 4291 appendix A).
    #[must_use]
    pub fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        let id = [a ^ 0x02, b, c, 0xff, 0xfe, d, e, f];
        let mut octets = [0; 16];
        octets[..2].copy_from_slice(&[0xfe, 0x80]);
        octets[8..].copy_from_slice(&id);
        octets.into()
    }

    /// Reports whether a link can have it: it is unicast, and not zero.
    #[must_use]
    pub fn is_usable(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

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
        let octet = |pair: &str| {
            let two_digits = pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
            if two_digits { u8::from_str_radix(pair, 16).ok() } else { None }
        };
        let octets: Option<Vec<u8>> = text.split([':', '-']).map(octet).collect();
        let octets = octets.and_then(|octets| octets.try_into().ok());
        // A message does not repeat a text without end.
        octets.map(MacAddr).ok_or_else(|| MacAddrError(text.chars().take(40).collect()))
    }
}

impl TryFrom<String> for MacAddr {
    type Error = MacAddrError;

    fn try_from(text: String) -> Result<Self, MacAddrError> {
        text.parse()
    }
}

impl From<MacAddr> for String {
    fn from(mac: MacAddr) -> String {
        mac.to_string()
    }
}
