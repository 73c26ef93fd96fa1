//! The versions of the specification.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::text::quote;

/// A released version of the CNI specification.
///
/// Versions are ordered as they were released. Anything else in a configuration (`1.2.3`, `1.0`,
/// `abc`) stays text until [`Version::parse`] or [`compare`] judges it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub enum Version {
    /// 0.1.0: ADD and DEL, one address per family.
    #[serde(rename = "0.1.0")]
    V0_1_0,
    /// 0.2.0: VERSION, `args`.
    #[serde(rename = "0.2.0")]
    V0_2_0,
    /// 0.3.0: lists, chaining, interfaces.
    #[serde(rename = "0.3.0")]
    V0_3_0,
    /// 0.3.1: spelling of `ips`.
    #[serde(rename = "0.3.1")]
    V0_3_1,
    /// 0.4.0: CHECK, `prevResult` on DEL.
    #[serde(rename = "0.4.0")]
    V0_4_0,
    /// 1.0.0: `ips[].version` is gone.
    #[serde(rename = "1.0.0")]
    V1_0_0,
    /// 1.1.0: GC, STATUS, `cniVersions`, more of interfaces and routes.
    #[serde(rename = "1.1.0")]
    V1_1_0,
}

impl Version {
    /// Every version, oldest first.
    pub const ALL: &'static [Version] = &[
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];

    /// The newest version.
    pub const CURRENT: Version = Version::V1_1_0;

    /// Returns the version as configurations write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// Reads a version literally: `1.0` is not `1.0.0`. Empty text means 0.1.0.
    #[must_use]
    pub fn parse(text: &str) -> Option<Version> {
        if text.is_empty() {
            return Some(Version::V0_1_0);
        }
        Version::ALL.iter().copied().find(|version| version.as_str() == text)
    }

    /// Returns every version from `first` on.
    #[must_use]
    pub const fn starting_from(first: Version) -> &'static [Version] {
        Version::ALL.split_at(first as usize).1
    }

    /// Returns the shape in which results of this version are written.
    #[must_use]
    pub const fn family(self) -> ResultFamily {
        match self {
            Version::V0_1_0 | Version::V0_2_0 => ResultFamily::V0_2,
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => ResultFamily::V0_4,
            Version::V1_0_0 | Version::V1_1_0 => ResultFamily::V1,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Version::parse(&text)
            .ok_or_else(|| serde::de::Error::custom(format_args!("unknown CNI version {text:?}")))
    }
}

/// The three shapes that a result has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResultFamily {
    /// `ip4` and `ip6` objects.
    V0_2,
    /// `ips` with a `version` each, `dns` always written.
    V0_4,
    /// `ips` without `version`.
    V1,
}

/// A version text that is not up to three numbers separated by dots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidVersion {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

const TOO_MANY_PARTS: &str = "too many parts";

/// The error when the part at that position is not a number.
const NOT_A_NUMBER: [&str; 3] = [
    "failed to convert major version part",
    "failed to convert minor version part",
    "failed to convert micro version part",
];

/// Shown in the reference library's words.
impl fmt::Display for InvalidVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = NOT_A_NUMBER.iter().position(|reason| *reason == self.reason);
        match place.and_then(|place| self.text.split('.').nth(place)) {
            Some(part) => write!(f, "{} {}: not a number", self.reason, quote(part)),
            None => write!(f, "invalid version {}: {}", quote(&self.text), self.reason),
        }
    }
}

impl std::error::Error for InvalidVersion {}

/// Reads a version for ordering: up to three numbers separated by dots; a missing number is 0, and
/// empty text is 0.1.0. Checks such as "CHECK needs 0.4.0" see versions that were never released
/// this way. Numbers too large to hold count as the largest.
///
/// # Errors
/// [`InvalidVersion`] for four or more parts or a part that is not a number.
pub fn triple(text: &str) -> Result<(u32, u32, u32), InvalidVersion> {
    let invalid = |reason| InvalidVersion { text: text.to_owned(), reason };
    if text.is_empty() {
        return Ok((0, 1, 0));
    }
    if 3 < text.split('.').count() {
        return Err(invalid(TOO_MANY_PARTS));
    }
    let mut parts = [0_u32; 3];
    for ((part, slot), reason) in text.split('.').zip(&mut parts).zip(NOT_A_NUMBER) {
        if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid(reason));
        }
        *slot = part.parse().unwrap_or(u32::MAX);
    }
    Ok((parts[0], parts[1], parts[2]))
}

/// Orders two version texts; see [`triple`].
///
/// # Errors
/// [`InvalidVersion`] when one of them cannot be ordered.
pub fn compare(a: &str, b: &str) -> Result<std::cmp::Ordering, InvalidVersion> {
    Ok(triple(a)?.cmp(&triple(b)?))
}
