//! The time that everything in a release bears: `SOURCE_DATE_EPOCH`, the time of the commit
//! (<https://reproducible-builds.org/specs/source-date-epoch/>).

use std::str::FromStr;

use jiff::Timestamp;

/// Seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(Timestamp);

/// A text is not a time since 1970.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{text:?} is not a number of seconds since 1970")]
pub(crate) struct EpochError {
    text: String,
}

impl FromStr for Epoch {
    type Err = EpochError;

    fn from_str(text: &str) -> Result<Self, EpochError> {
        let seconds = text.parse().ok().filter(|seconds: &i64| 0 <= *seconds);
        let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
        time.map(Epoch).ok_or_else(|| EpochError { text: text.to_owned() })
    }
}

impl Epoch {
    /// Returns the seconds.
    pub(crate) fn seconds(self) -> u64 {
        u64::try_from(self.0.as_second()).expect("it was read as a time since 1970")
    }

    /// Returns it as images have it: `2026-11-26T10:00:00Z` (RFC 3339).
    pub(crate) fn iso(self) -> String {
        self.0.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// Returns it as changelogs of Debian's packages have it:
    /// `Thu, 26 Nov 2026 10:00:00 +0000` (RFC 5322).
    pub(crate) fn mail(self) -> String {
        self.0.strftime("%a, %d %b %Y %H:%M:%S +0000").to_string()
    }

    /// Returns the day: `2026-11-26`.
    pub(crate) fn day(self) -> String {
        self.0.strftime("%Y-%m-%d").to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::Epoch;

    #[test]
    fn a_time_is_written_as_each_format_has_it() {
        let time: Epoch = "1795687200".parse().unwrap();
        assert_eq!(time.seconds(), 1_795_687_200);
        assert_eq!(time.iso(), "2026-11-26T10:00:00Z");
        assert_eq!(time.mail(), "Thu, 26 Nov 2026 10:00:00 +0000");
        assert_eq!(time.day(), "2026-11-26");
        for wrong in ["", "-1", "now", "99999999999999999999"] {
            assert!(wrong.parse::<Epoch>().is_err(), "{wrong}");
        }
    }
}
