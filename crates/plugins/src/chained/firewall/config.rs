//! The configuration of `firewall`, read and checked.

use cni::code;
use cni_plugin::Call;
use firewall::firewalld;
use firewall::policy::IngressPolicy;
use serde::Deserialize;

use crate::shared::failure::Failure;

/// The chain for administrators' own rules, by default.
const ADMIN_CHAIN: &str = "CNI-ADMIN";
/// The longest name of a chain (linux/netfilter/x_tables.h `XT_FUNCTION_MAXNAMELEN`, less the
/// closing NUL).
const CHAIN_MAX: usize = 28;

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    backend: String,
    iptables_admin_chain_name: String,
    firewalld_zone: String,
    ingress_policy: String,
}

/// What lets the containers' packets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    /// Nothing, unless a foreign rule would drop them.
    Auto,
    /// The reference's chains.
    Iptables,
    /// A zone of firewalld.
    Firewalld,
}

/// The checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub(super) backend: Backend,
    /// The configured text, if it does not name a backend.
    unknown_backend: Option<String>,
    pub(super) admin_chain: String,
    /// The firewalld zone.
    pub(super) zone: String,
    pub(super) policy: IngressPolicy,
}

impl Config {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// Code 6 when a type is wrong, 7 when a value is.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let raw: Raw = call.read_config()?;
        raw.check()
    }
}

impl Config {
    /// Returns a warning about the part of the configuration that is ignored.
    pub(super) fn warning(&self) -> Option<String> {
        let text = self.unknown_backend.as_ref()?;
        Some(format!(
            "backend {text:?} is ignored: it is \"iptables\" or \"firewalld\", or left out"
        ))
    }
}

impl Raw {
    fn check(self) -> Result<Config, Failure> {
        let policy = self.ingress_policy.parse::<IngressPolicy>().map_err(|error| {
            Failure::new(code::INVALID_CONFIG, error.to_string())
                .with_details("ingressPolicy is open, same-bridge or isolated")
        })?;
        let backend = match self.backend.as_str() {
            "iptables" => Backend::Iptables,
            "firewalld" => Backend::Firewalld,
            // The reference reads any other text as "choose", typing errors included.
            _ => Backend::Auto,
        };
        let known = ["", "iptables", "firewalld", "nftables"].contains(&self.backend.as_str());
        let unknown_backend = (!known).then_some(self.backend);
        let admin_chain = match self.iptables_admin_chain_name.as_str() {
            "" => ADMIN_CHAIN.to_owned(),
            name if is_chain_name(name) => name.to_owned(),
            name => {
                return Err(Failure::new(
                    code::INVALID_CONFIG,
                    format!("invalid iptablesAdminChainName {name:?}"),
                )
                .with_details("a chain's name has at most 28 characters, no blanks, and does not begin with - or !"));
            }
        };
        let zone = match self.firewalld_zone {
            zone if zone.is_empty() => firewalld::TRUSTED.to_owned(),
            zone => zone,
        };
        Ok(Config { backend, unknown_backend, admin_chain, zone, policy })
    }
}

fn is_chain_name(name: &str) -> bool {
    name.len() <= CHAIN_MAX
        && !name.starts_with(['-', '!'])
        && name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\'))
}

#[cfg(test)]
impl Config {
    /// Reads and checks a configuration without a call.
    pub(super) fn of_text(json: &str) -> Result<Self, Failure> {
        cni::json::from_str::<Raw>(json).unwrap().check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Config, Failure> {
        Config::of_text(text)
    }

    #[test]
    fn defaults_are_the_references() {
        let config = check("{}").unwrap();
        assert_eq!(config.backend, Backend::Auto);
        assert_eq!(config.admin_chain, "CNI-ADMIN");
        assert_eq!(config.zone, "trusted");
        assert_eq!(config.policy, IngressPolicy::Open);
        assert_eq!(check(r#"{"firewalldZone": "work"}"#).unwrap().zone, "work");
    }

    #[test]
    fn a_backend_that_is_none_is_told() {
        for (text, told) in
            [("", false), ("nftables", false), ("iptables", false), ("iptabels", true)]
        {
            let config = check(&format!(r#"{{"backend": "{text}"}}"#)).unwrap();
            assert_eq!(config.warning().is_some(), told, "{text}");
            assert_eq!(config.backend == Backend::Iptables, text == "iptables", "{text}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        for (text, code, words) in [
            (
                r#"{"ingressPolicy": "closed"}"#,
                code::INVALID_CONFIG,
                "unknown ingress policy: \"closed\"",
            ),
            (r#"{"iptablesAdminChainName": "-x"}"#, code::INVALID_CONFIG, "iptablesAdminChainName"),
            (
                r#"{"iptablesAdminChainName": "a b"}"#,
                code::INVALID_CONFIG,
                "iptablesAdminChainName",
            ),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.code() == code && error.message().contains(words), "{error:?}");
        }
    }

    #[test]
    fn firewalld_is_asked_for_by_name() {
        let asked = check(r#"{"backend": "firewalld"}"#).unwrap();
        assert_eq!(asked.backend, Backend::Firewalld);
    }
}
