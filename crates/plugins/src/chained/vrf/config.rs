//! The configuration of `vrf`, read and checked.

use cni::{IfName, code};
use cni_plugin::Call;
use serde::Deserialize;

use crate::shared::failure::Failure;

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    #[serde(rename = "vrfname")]
    vrf_name: String,
    table: i64,
}

/// The checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// The VRF's name.
    pub(super) vrf: String,
    /// Its table; `None` means one that nothing uses.
    pub(super) table: Option<u32>,
}

impl Config {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// Code 6 when a type is wrong, 7 when a value is.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        call.read_config::<Raw>()?.check()
    }
}

impl Raw {
    fn check(self) -> Result<Config, Failure> {
        let name: Result<IfName, _> = self.vrf_name.parse();
        if let Err(why) = name {
            return Err(invalid("configuration is expected to have a valid vrf name".to_owned())
                .with_details(format!("vrfname is {:?}: {why}", self.vrf_name)));
        }
        let table = u32::try_from(self.table).map_err(|_| {
            invalid(format!("table {} cannot be used", self.table)).with_details(
                "table is a number from 1 to 4294967295, or 0 for one that nothing uses",
            )
        })?;
        Ok(Config { vrf: self.vrf_name, table: (table != 0).then_some(table) })
    }
}

fn invalid(message: String) -> Failure {
    Failure::new(code::INVALID_CONFIG, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Config, Failure> {
        cni::json::from_str::<Raw>(text).unwrap().check()
    }

    #[test]
    fn what_may_be_asked_for() {
        let blue = |table| Config { vrf: "blue".to_owned(), table };
        assert_eq!(check(r#"{"vrfname": "blue"}"#).unwrap(), blue(None));
        assert_eq!(check(r#"{"vrfname": "blue", "table": 0}"#).unwrap(), blue(None));
        assert_eq!(
            check(r#"{"VRFName": "blue", "table": 4294967295}"#).unwrap(),
            blue(Some(u32::MAX))
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, words) in [
            ("{}", "configuration is expected to have a valid vrf name"),
            (r#"{"vrfname": ""}"#, "configuration is expected to have a valid vrf name"),
            (r#"{"vrfname": "a/b"}"#, "configuration is expected to have a valid vrf name"),
            (
                r#"{"vrfname": "sixteen-letters-"}"#,
                "configuration is expected to have a valid vrf name",
            ),
            (r#"{"vrfname": "blue", "table": -1}"#, "table -1 cannot be used"),
            (r#"{"vrfname": "blue", "table": 4294967296}"#, "table 4294967296 cannot be used"),
        ] {
            let error = check(text).unwrap_err();
            assert!(
                error.code() == code::INVALID_CONFIG && error.message() == words,
                "{text}: {error:?}"
            );
        }
    }
}
