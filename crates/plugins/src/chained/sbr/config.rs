//! The configuration of `sbr`, read and checked.

use std::net::IpAddr;

use cni::code;
use cni_plugin::Call;
use kernel::route::IpFamily;
use serde::Deserialize;

use crate::shared::failure::Failure;

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    table: Option<i64>,
    gateways: Option<Vec<String>>,
    add_source_hints: bool,
}

/// The checked configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Config {
    /// The table of the rules; `None` means tables of our own.
    pub(super) table: Option<u32>,
    /// Gateways that replace those in the previous result, at most one of each family.
    pub(super) gateways: Vec<IpAddr>,
    /// Whether the main table keeps the routes to the subnets, with the source address.
    pub(super) source_hints: bool,
    /// Whether the main table keeps all routes: for other plugins, no key asks for it.
    pub(super) keeps_main: bool,
}

impl Config {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// Code 6 when a type is wrong, 7 when a value is.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        call.read_config::<Raw>()?.check()
    }

    /// Returns the configured gateway of a family.
    pub(super) fn gateway(&self, family: IpFamily) -> Option<IpAddr> {
        self.gateways.iter().copied().find(|&gateway| IpFamily::of(gateway) == family)
    }
}

impl Raw {
    fn check(&self) -> Result<Config, Failure> {
        let table = self.table.map(table).transpose()?;
        let given = match table {
            // The reference ignores them in this case.
            Some(_) => &[][..],
            None => self.gateways.as_deref().unwrap_or_default(),
        };
        let gateways = gateways(given)?;
        Ok(Config { table, gateways, source_hints: self.add_source_hints, keeps_main: false })
    }
}

/// Reads a table number. With zero the kernel would choose a table, and the table of local
/// addresses is not allowed.
fn table(number: i64) -> Result<u32, Failure> {
    let valid = u32::try_from(number).ok().filter(|&table| !matches!(table, 0 | 255));
    valid.ok_or_else(|| {
        invalid(format!("table {number} cannot be used"))
            .with_details("table is a number from 1 to 4294967295, but not 255, the kernel's own")
    })
}

fn gateways(given: &[String]) -> Result<Vec<IpAddr>, Failure> {
    if 2 < given.len() {
        return Err(invalid(
            "gateways list cannot contain more than 2 entries (one IPv4, one IPv6)".to_owned(),
        ));
    }
    let mut gateways: Vec<IpAddr> = Vec::new();
    for text in given {
        let gateway: IpAddr = text
            .parse()
            .map_err(|_| invalid(format!("invalid static gateway IP address: {text}")))?;
        let same = gateways.iter().find(|known| known.is_ipv4() == gateway.is_ipv4());
        if let Some(same) = same {
            let version = if gateway.is_ipv4() { "IPv4" } else { "IPv6" };
            return Err(invalid(format!(
                "gateways list contains multiple {version} addresses: {same} and {gateway}"
            )));
        }
        gateways.push(gateway);
    }
    Ok(gateways)
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
        assert_eq!(check("{}").unwrap(), Config::default());
        assert_eq!(check(r#"{"table": 5}"#).unwrap().table, Some(5));
        let config =
            check(r#"{"gateways": ["fd00::1", "10.0.0.1"], "addSourceHints": true}"#).unwrap();
        assert_eq!(config.gateway(IpFamily::V4), Some("10.0.0.1".parse().unwrap()));
        assert_eq!(config.gateway(IpFamily::V6), Some("fd00::1".parse().unwrap()));
        assert!(config.source_hints);
        // Ignored if a table is configured.
        assert_eq!(
            check(r#"{"table": 5, "gateways": ["x"]}"#).unwrap().gateways,
            [] as [IpAddr; 0]
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, words) in [
            (r#"{"table": 0}"#, "table 0 cannot be used"),
            (r#"{"table": -1}"#, "table -1 cannot be used"),
            (r#"{"table": 255}"#, "table 255 cannot be used"),
            (r#"{"table": 4294967296}"#, "table 4294967296 cannot be used"),
            (
                r#"{"gateways": ["10.0.0.1", "fd00::1", "10.0.0.2"]}"#,
                "gateways list cannot contain more than 2 entries (one IPv4, one IPv6)",
            ),
            (r#"{"gateways": ["ten"]}"#, "invalid static gateway IP address: ten"),
            (
                r#"{"gateways": ["10.0.0.1", "10.0.0.2"]}"#,
                "gateways list contains multiple IPv4 addresses: 10.0.0.1 and 10.0.0.2",
            ),
            (
                r#"{"gateways": ["fd00::1", "fd00::2"]}"#,
                "gateways list contains multiple IPv6 addresses: fd00::1 and fd00::2",
            ),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.code() == code::INVALID_CONFIG && error.message() == words, "{error:?}");
        }
    }
}
