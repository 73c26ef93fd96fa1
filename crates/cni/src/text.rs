//! Addresses and quoted words in the form of configurations, results and messages.
//!
//! Addresses are read as in Go, because the same text must mean the same address to every plugin of
//! a chain: no leading zeros in IPv4 (which other programs take for octal), no zone, and an IPv4
//! address written as IPv6 (`::ffff:192.0.2.1`) is the IPv4 address.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// Reads an address.
#[must_use]
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Reads an address with a prefix length, such as `192.0.2.1/24`; host bits are kept.
#[must_use]
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    if !prefix.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let prefix: u8 = prefix.parse().ok()?;
    let canonical = address.to_canonical();
    let mapped = canonical.is_ipv4() && address.is_ipv6();
    IpNet::new(canonical, if mapped { prefix.checked_sub(96)? } else { prefix }).ok()
}

/// Quotes text as Go's `%q` does, for messages that repeat the reference's words.
#[must_use]
pub fn quote(text: &str) -> String {
    use std::fmt::Write as _;
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            _ if letter.is_ascii_control() => {
                write!(quoted, "\\x{:02x}", u32::from(letter))
                    .expect("writing to a String cannot fail");
            }
            _ if letter.is_control() => {
                write!(quoted, "\\u{:04x}", u32::from(letter))
                    .expect("writing to a String cannot fail");
            }
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// Quotes each word and writes them as Go prints a list of strings with `%q`: `["a" "b"]`.
pub fn quote_list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(quote).collect();
    format!("[{}]", quoted.join(" "))
}

/// How many letters [`shortened`] keeps of a text that other programs or users wrote.
const LONGEST: usize = 80;

/// Returns a text that other programs or users wrote in a form for logs and records:
/// [shortened], and on [one line](one_line).
#[must_use]
pub fn printable(text: &str) -> String {
    one_line(shortened(text))
}

/// Returns the first letters of a text that other programs or users wrote. A message shows them with
/// `{:?}`, which escapes what [`one_line`] does.
#[must_use]
pub fn shortened(text: &str) -> String {
    let mut shown: String = text.chars().take(LONGEST).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

/// Returns the text without what Rust's library adds to the words of a system error: its number, as in
/// `No such file or directory (os error 2)`.
///
/// ```
/// let said = std::io::Error::from_raw_os_error(2).to_string();
/// assert_eq!(netwright_cni::text::system(&said), "No such file or directory");
/// ```
#[must_use]
pub fn system(text: &str) -> Cow<'_, str> {
    const OPENS: &str = " (os error ";
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(OPENS) {
        kept.push_str(before);
        match after.split_once(')') {
            Some((number, behind)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                rest = behind;
            }
            _ => {
                kept.push_str(OPENS);
                rest = after;
            }
        }
    }
    if rest.len() == text.len() {
        return Cow::Borrowed(text);
    }
    kept.push_str(rest);
    Cow::Owned(kept)
}

/// Writes text that other programs or users wrote into a line for people. It escapes, as Rust does
/// (`\u{1b}`), what a terminal would obey (ECMA-48: C0, DEL and C1), what ends a line, and what
/// shows letters in another order (UAX #9). So a chosen name of a file, a container or a label
/// cannot recolour, rename or rewrite the reader's terminal, nor add lines that are not ours. It
/// leaves out the numbers of [system] errors.
#[must_use]
pub fn one_line(text: impl fmt::Display) -> String {
    escape(&text.to_string(), |_| false)
}

/// Does what [`one_line`] does for text with its own lines and tabs.
#[must_use]
pub fn lines(text: impl fmt::Display) -> String {
    escape(&text.to_string(), |letter| matches!(letter, '\n' | '\t'))
}

fn escape(text: &str, keeps: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in system(text).chars() {
        if is_obeyed(letter) && !keeps(letter) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// Says whether a character does something other than appear in its place.
fn is_obeyed(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{2028}' | '\u{2029}')
        // The marks, embeddings, overrides and isolates of UAX #9.
        || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}')
        || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

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
        super::parse_cidr(&text)
            .ok_or_else(|| D::Error::custom(format_args!("invalid CIDR address: {text}")))
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
    pub fn serialize<S: Serializer>(
        value: &Option<IpAddr>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
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
            Some(text) => super::parse_ip(text)
                .map(Some)
                .ok_or_else(|| D::Error::custom(format_args!("invalid IP address: {text}"))),
        }
    }
}
