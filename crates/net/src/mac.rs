//! Ethernet addresses.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An Ethernet (MAC-48) address.
///
/// It is read in the three spellings of Go's `net.ParseMAC`, which CNI configurations use, with
/// digits in either case, and always written with colons in lower case, also in JSON.
///
/// ```
/// let mac: net::MacAddr = "02-00-5E-10-00-01".parse()?;
/// assert_eq!(mac.to_string(), "02:00:5e:10:00:01");
/// assert_eq!(mac, "0200.5e10.0001".parse()?);
/// # Ok::<(), net::MacAddrError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct MacAddr(pub [u8; 6]);

/// Text that is not an Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a hardware address such as 02:00:00:00:00:01")]
pub struct MacAddrError(String);

/// How many characters of a text an error repeats: it may come from anywhere.
const REPEATED: usize = 40;

impl MacAddr {
    /// Every host on the link.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);
    /// No host: the target of an ARP request.
    pub const ZERO: MacAddr = MacAddr([0; 6]);

    /// Makes an address that a program may choose, unicast and locally administered (IEEE 802 §8.4),
    /// out of random octets or of a hash.
    #[must_use]
    pub const fn local(mut octets: [u8; 6]) -> Self {
        octets[0] = octets[0] & 0xfe | 0x02;
        MacAddr(octets)
    }

    /// Returns the link-local IPv6 address of an interface with this address (RFC 4291 §2.5.6 and
    /// appendix A).
    #[must_use]
    pub fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        // The "locally administered" bit is inverted: RFC 4291 §2.5.1.
        Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// Reports whether the address names one host: neither a group (multicast, broadcast) nor all
    /// zero. The kernel refuses other addresses for an Ethernet link (`is_valid_ether_addr`).
    #[must_use]
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self != MacAddr::ZERO
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

impl From<[u8; 6]> for MacAddr {
    fn from(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }
}

impl FromStr for MacAddr {
    type Err = MacAddrError;

    /// Reads `02:00:5e:10:00:01`, `02-00-5e-10-00-01` or `0200.5e10.0001`, digits in either case.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || MacAddrError(text.chars().take(REPEATED).collect());
        parse(text.as_bytes()).map(Self).ok_or_else(refuse)
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

/// Reads groups of two or four digits; the separator must be the same throughout.
fn parse(text: &[u8]) -> Option<[u8; 6]> {
    let (group, separator) = match *text.get(2)? {
        separator @ (b':' | b'-') => (2, separator),
        _ if text.get(4) == Some(&b'.') => (4, b'.'),
        _ => return None,
    };
    let mut bytes = [0; 6];
    let mut filled = 0;
    for part in text.split(|&byte| byte == separator) {
        if part.len() != group {
            return None;
        }
        for pair in part.chunks(2) {
            *bytes.get_mut(filled)? = hex_digit(pair[0])? << 4 | hex_digit(pair[1])?;
            filled += 1;
        }
    }
    (filled == bytes.len()).then_some(bytes)
}

fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_three_spellings() {
        let expected = MacAddr([0x02, 0x00, 0x5e, 0x10, 0xab, 0xcd]);
        for text in ["02:00:5e:10:ab:cd", "02-00-5E-10-AB-CD", "0200.5e10.ABcd"] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        assert_eq!(expected.to_string(), "02:00:5e:10:ab:cd");
    }

    #[test]
    fn its_link_local_address() {
        let mac: MacAddr = "02:00:5e:10:ab:cd".parse().unwrap();
        assert_eq!(mac.link_local().to_string(), "fe80::5eff:fe10:abcd");
        let mac: MacAddr = "34:56:78:9a:bc:de".parse().unwrap();
        assert_eq!(mac.link_local().to_string(), "fe80::3656:78ff:fe9a:bcde");
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "",
            "02",
            "02:00:5e:10:ab",
            "02:00:5e:10:ab:cd:",
            "02:00:5e:10:ab:cd:ef",
            "02:00-5e:10:ab:cd",
            "2:00:5e:10:ab:cd",
            "02:00:5e:10:ab:cg",
            "02005e10abcd",
            "0200.5e10",
            "0200.5e10.abcd.0000",
            "02:00:5e:ff:fe:10:ab:cd",
            "+2:00:5e:10:ab:cd",
        ] {
            let error = text.parse::<MacAddr>().unwrap_err();
            let words = format!("{text:?} is not a hardware address such as 02:00:00:00:00:01");
            assert_eq!(error.to_string(), words);
        }
    }

    #[test]
    fn knows_unicast() {
        assert!(MacAddr([2, 0, 0, 0, 0, 1]).is_unicast());
        assert!(!MacAddr([1, 0, 0, 0, 0, 1]).is_unicast());
        assert!(!MacAddr([0; 6]).is_unicast());
        assert!(!MacAddr([0xff; 6]).is_unicast());
    }
}
