//! The configuration of `portmap`, by an administrator and a runtime, read and checked.

use std::net::IpAddr;

use cni::code;
use cni_plugin::Call;
use firewall::element::Protocol;
use firewall::hostport::{Forward, Snat};
use serde::Deserialize;

use crate::shared::failure::Failure;

/// The bit that marks packets to masquerade, by default (iptables only).
const MARK_BIT: u8 = 13;

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    backend: Option<String>,
    snat: Option<bool>,
    masq_all: bool,
    mark_masq_bit: Option<i64>,
    external_set_mark_chain: Option<String>,
    conditions_v4: Option<Vec<String>>,
    conditions_v6: Option<Vec<String>>,
    runtime_config: RawRuntime,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawRuntime {
    port_mappings: Option<Vec<RawMapping>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawMapping {
    host_port: i64,
    container_port: i64,
    protocol: String,
    #[serde(rename = "hostIP")]
    host_ip: String,
}

/// Where the rules go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Backend {
    /// Our own tables.
    Nftables,
    /// The reference's chains.
    Iptables(Iptables),
}

/// The options that only the iptables backend has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Iptables {
    pub(super) mark_bit: u8,
    pub(super) set_mark_chain: Option<String>,
    pub(super) conditions4: Vec<String>,
    pub(super) conditions6: Vec<String>,
}

impl Default for Iptables {
    fn default() -> Self {
        Iptables {
            mark_bit: MARK_BIT,
            set_mark_chain: None,
            conditions4: Vec::new(),
            conditions6: Vec::new(),
        }
    }
}

/// The checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub(super) backend: Backend,
    pub(super) snat: Snat,
    pub(super) forwards: Vec<Forward>,
}

impl Config {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// Code 6 when a type is wrong, 7 when a value is, 2 when a key asks for something we do not
    /// support.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let raw: Raw = call.read_config()?;
        let mappings = raw.runtime_config.port_mappings.as_deref().unwrap_or_default();
        Ok(Config {
            backend: raw.backend()?,
            snat: raw.snat_mode(),
            forwards: mappings.iter().map(RawMapping::check).collect::<Result<_, _>>()?,
        })
    }
}

impl Raw {
    fn snat_mode(&self) -> Snat {
        match (self.snat, self.masq_all) {
            (Some(false), _) => Snat::No,
            (_, true) => Snat::All,
            (_, false) => Snat::Needed,
        }
    }

    fn backend(&self) -> Result<Backend, Failure> {
        if self.external_set_mark_chain.is_some() && self.mark_masq_bit.is_some() {
            return Err(invalid("Cannot specify externalSetMarkChain and markMasqBit"));
        }
        let mark_bit = match self.mark_masq_bit {
            None => MARK_BIT,
            Some(bit) => u8::try_from(bit)
                .ok()
                .filter(|bit| *bit < 32)
                .ok_or_else(|| invalid("MasqMarkBit must be between 0 and 31"))?,
        };
        let conditions = [
            ("conditionsV4", self.conditions_v4.as_deref().unwrap_or_default()),
            ("conditionsV6", self.conditions_v6.as_deref().unwrap_or_default()),
        ];
        let of_syntax = |iptables: bool| {
            conditions
                .iter()
                .filter(move |(_, words)| !words.is_empty() && is_iptables(words) == iptables)
                .map(|(key, _)| *key)
        };
        let nft_keys: Vec<&str> = of_syntax(false).collect();
        let mut iptables_keys: Vec<&str> = of_syntax(true).collect();
        if self.external_set_mark_chain.is_some() {
            iptables_keys.push("externalSetMarkChain");
        }
        let contradiction = |backend: &str, other: &str, keys: &[&str]| {
            invalid(format!(
                "{backend} backend was requested but configuration contains {other}-specific options [{}]",
                keys.join(" ")
            ))
        };
        let iptables = match self.backend.as_deref() {
            None | Some("") => !iptables_keys.is_empty() || self.mark_masq_bit.is_some(),
            Some("iptables") => true,
            Some("nftables") => false,
            Some(other) => return Err(invalid(format!("unrecognized backend {other:?}"))),
        };
        if iptables {
            if !nft_keys.is_empty() {
                return Err(contradiction("iptables", "nftables", &nft_keys));
            }
            return Ok(Backend::Iptables(Iptables {
                mark_bit,
                set_mark_chain: self.external_set_mark_chain.clone(),
                conditions4: self.conditions_v4.clone().unwrap_or_default(),
                conditions6: self.conditions_v6.clone().unwrap_or_default(),
            }));
        }
        if !iptables_keys.is_empty() {
            return Err(contradiction("nftables", "iptables", &iptables_keys));
        }
        let of_nft = |(_, words): &&(&str, &[String])| !words.is_empty() && !is_iptables(words);
        if let Some((key, words)) = conditions.iter().find(of_nft) {
            return Err(Failure::new(
                code::UNSUPPORTED_FIELD,
                format!("{key}: conditions in nftables' syntax are not supported: {}", words.join(" ")),
            )
            .with_details(
                "our rules are the same for all attachments, so a condition of one cannot be in them (the reference \
                 has the last attachment's hold for all); use hostIP in the port mapping for a destination, or write \
                 the conditions in iptables' syntax, such as \"-s\", \"192.0.2.0/24\"",
            ));
        }
        Ok(Backend::Nftables)
    }
}

impl RawMapping {
    fn check(&self) -> Result<Forward, Failure> {
        let port = |what: &str, number: i64| {
            u16::try_from(number)
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| invalid(format!("Invalid {what} port number: {number}")))
        };
        let container_port = port("container", self.container_port)?;
        let host_port = port("host", self.host_port)?;
        let protocol = Protocol::parse(&self.protocol).ok_or_else(|| {
            invalid(format!("unknown protocol {:?} of host port {host_port}", self.protocol))
                .with_details("tcp, udp and sctp can be forwarded")
        })?;
        let host_ip = match self.host_ip.as_str() {
            "" => None,
            text => Some(host_ip(text).ok_or_else(|| {
                invalid(format!("invalid hostIP {text:?} of host port {host_port}")).with_details(
                    "an IPv4 or IPv6 address is wanted, without prefix length or zone",
                )
            })?),
        };
        Ok(Forward { protocol, host_port, container_port, host_ip })
    }
}

/// Reads an address; an IPv4-mapped IPv6 address becomes IPv4.
fn host_ip(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Reports whether words are in iptables syntax, by the reference's rule.
fn is_iptables(words: &[String]) -> bool {
    words.first().is_some_and(|word| word.starts_with('-') || word.starts_with('!'))
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(code::INVALID_CONFIG, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Raw {
        cni::json::from_str(text).unwrap()
    }

    fn mapping(text: &str) -> Result<Forward, Failure> {
        let raw = raw(&format!(r#"{{"runtimeConfig": {{"portMappings": [{text}]}}}}"#));
        raw.runtime_config.port_mappings.unwrap()[0].check()
    }

    #[test]
    fn capability_keys_come_in_any_case() {
        let forward = mapping(
            r#"{"HostPort": 8080, "ContainerPort": 80, "Protocol": "TCP", "HostIP": "192.0.2.1"}"#,
        );
        let expected = Forward {
            protocol: Protocol::Tcp,
            host_port: 8080,
            container_port: 80,
            host_ip: Some("192.0.2.1".parse().unwrap()),
        };
        assert_eq!(forward.unwrap(), expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, words) in [
            (
                r#"{"hostPort": 0, "containerPort": 80, "protocol": "tcp"}"#,
                "Invalid host port number: 0",
            ),
            (
                r#"{"hostPort": 65536, "containerPort": 80, "protocol": "tcp"}"#,
                "Invalid host port number: 65536",
            ),
            (
                r#"{"hostPort": 1, "containerPort": -1, "protocol": "tcp"}"#,
                "Invalid container port number: -1",
            ),
            (
                r#"{"hostPort": 1, "containerPort": 1, "protocol": "icmp"}"#,
                "unknown protocol \"icmp\"",
            ),
            (r#"{"hostPort": 1, "containerPort": 1}"#, "unknown protocol \"\""),
            (
                r#"{"hostPort": 1, "containerPort": 1, "protocol": "udp", "hostIP": "10.1.1"}"#,
                "invalid hostIP \"10.1.1\"",
            ),
        ] {
            let error = mapping(text).unwrap_err();
            assert!(
                error.code() == code::INVALID_CONFIG && error.message().contains(words),
                "{error:?}"
            );
        }
    }

    #[test]
    fn options_choose_the_backend() {
        let iptables = |text: &str| matches!(raw(text).backend(), Ok(Backend::Iptables(_)));
        assert_eq!(raw("{}").backend().unwrap(), Backend::Nftables);
        assert_eq!(raw(r#"{"backend": "nftables"}"#).backend().unwrap(), Backend::Nftables);
        assert!(iptables(r#"{"backend": "iptables"}"#));
        assert!(iptables(r#"{"conditionsV4": ["!", "-d", "192.0.2.0/24"]}"#));
        assert!(iptables(r#"{"markMasqBit": 5}"#));
        assert!(iptables(r#"{"externalSetMarkChain": "KUBE-MARK-MASQ"}"#));
    }

    #[test]
    fn options_that_contradict_are_refused() {
        for (text, words) in [
            (
                r#"{"backend": "nftables", "conditionsV4": ["-d", "192.0.2.1"]}"#,
                "nftables backend was requested but configuration contains iptables-specific options [conditionsV4]",
            ),
            (
                r#"{"backend": "iptables", "conditionsV6": ["ip6", "daddr", "::1"]}"#,
                "iptables backend was requested but configuration contains nftables-specific options [conditionsV6]",
            ),
            (r#"{"backend": "x"}"#, "unrecognized backend \"x\""),
            (r#"{"markMasqBit": 32}"#, "MasqMarkBit must be between 0 and 31"),
            (
                r#"{"markMasqBit": 1, "externalSetMarkChain": "X"}"#,
                "Cannot specify externalSetMarkChain and markMasqBit",
            ),
            (
                r#"{"conditionsV6": ["ip6", "daddr", "!=", "2001:db8::/64"]}"#,
                "conditionsV6: conditions in nftables' syntax are not supported: ip6 daddr != 2001:db8::/64",
            ),
        ] {
            let error = raw(text).backend().unwrap_err();
            assert!(error.message().contains(words), "{error:?}");
        }
    }

    #[test]
    fn snat_has_three_forms() {
        assert_eq!(raw("{}").snat_mode(), Snat::Needed);
        assert_eq!(raw(r#"{"snat": false, "masqAll": true}"#).snat_mode(), Snat::No);
        assert_eq!(raw(r#"{"masqAll": true}"#).snat_mode(), Snat::All);
    }
}
