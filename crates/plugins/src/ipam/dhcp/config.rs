//! The configuration of `dhcp`.

use std::path::PathBuf;

use cni::{Args, code};
use cni_plugin::Call;
use net::IpFamily;
use node_api::dhcp::{Client, ProvidedOption, SOCKET};
use node_api::socket;
use serde::Deserialize;

use crate::shared::failure::Failure;

use super::options;

/// How many options may be requested or sent: there are no more.
const MAX_OPTIONS: usize = 255;

/// A valid configuration.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) socket: PathBuf,
    pub(super) client: Client,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Document {
    ipam: Option<Ipam>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ipam {
    #[serde(rename = "type")]
    _type: String,
    #[serde(rename = "daemonSocketPath")]
    daemon_socket_path: String,
    request: Vec<Request>,
    provide: Vec<ProvideEntry>,
    priority: i64,
    families: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Request {
    #[serde(rename = "skipDefault")]
    skip_default: bool,
    option: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProvideEntry {
    option: String,
    value: String,
    #[serde(rename = "fromArg")]
    from_arg: String,
}

impl Config {
    /// Reads and checks the configuration of a call.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let document: Document = call.read_config()?;
        let ipam = document.ipam.ok_or_else(|| {
            invalid("IPAM config missing 'ipam' key")
                .with_details("the network's plugin has no \"ipam\" object")
        })?;
        let socket = checked_socket(&ipam.daemon_socket_path)?;
        let args = Args::parse_lenient(&call.env().args);
        Ok(Config { socket, client: client(&ipam, &args)? })
    }
}

fn client(ipam: &Ipam, args: &Args) -> Result<Client, Failure> {
    if MAX_OPTIONS < ipam.request.len() || MAX_OPTIONS < ipam.provide.len() {
        return Err(invalid(format!(
            "ipam.request or ipam.provide has more than {MAX_OPTIONS} entries"
        )));
    }
    let mut request = Vec::new();
    // An entry without an option only carries `skipDefault`.
    for one in ipam.request.iter().filter(|one| !one.option.is_empty()) {
        request.push(options::parse(&one.option).map_err(invalid)?);
    }
    let mut provide = Vec::new();
    for one in &ipam.provide {
        let code = options::parse(&one.option).map_err(invalid)?;
        if code == 0 || code == 255 {
            return Err(invalid(format!(
                "ipam.provide: option {code} is no option that has a value"
            )));
        }
        let from_arg = args.get(&one.from_arg).filter(|_| !one.from_arg.is_empty());
        for value in [Some(one.value.as_str()), from_arg].into_iter().flatten() {
            if options::MAX_VALUE < value.len() {
                return Err(invalid(format!(
                    "value too long for option {:?}: {} octets are more than {}",
                    one.option,
                    value.len(),
                    options::MAX_VALUE
                )));
            }
        }
        // The last value wins, as with the reference.
        let configured = Some(one.value.as_str()).filter(|value| !value.is_empty());
        if let Some(value) = from_arg.or(configured) {
            provide.retain(|other: &ProvidedOption| other.code != code);
            provide.push(ProvidedOption { code, value: value.as_bytes().to_vec() });
        }
    }
    let priority = u32::try_from(ipam.priority).map_err(|_| {
        invalid(format!("ipam.priority: {} is no metric of a route", ipam.priority))
            .with_details("it is a number from 0 to 4294967295")
    })?;
    Ok(Client {
        families: families(&ipam.families)?,
        request,
        skip_default: ipam.request.iter().any(|one| one.skip_default),
        provide,
        priority: Some(priority).filter(|priority| *priority != 0),
    })
}

fn families(names: &[String]) -> Result<Vec<IpFamily>, Failure> {
    if names.is_empty() {
        return Ok(vec![IpFamily::V4]);
    }
    let mut families = Vec::new();
    for name in names {
        let family = match name.as_str() {
            "v4" | "ipv4" => IpFamily::V4,
            "v6" | "ipv6" => IpFamily::V6,
            other => {
                return Err(invalid(format!("ipam.families: {other:?} is no family"))
                    .with_details("it is a list of \"v4\" and \"v6\"; without it, [\"v4\"]"));
            }
        };
        if !families.contains(&family) {
            families.push(family);
        }
    }
    families.sort_unstable();
    Ok(families)
}

/// Reads only the daemon's socket: for verbs that must work if the rest is invalid or missing.
pub(super) fn socket_path(call: &Call<'_>) -> Result<PathBuf, Failure> {
    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Document {
        ipam: OnlySocketPath,
    }
    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct OnlySocketPath {
        #[serde(rename = "daemonSocketPath")]
        daemon_socket_path: String,
    }
    let document: Document = call.read_config()?;
    checked_socket(&document.ipam.daemon_socket_path)
}

fn checked_socket(text: &str) -> Result<PathBuf, Failure> {
    if text.is_empty() {
        return Ok(SOCKET.into());
    }
    Ok(socket::checked_path("ipam.daemonSocketPath", text)?)
}

/// Lists the unknown keys of `ipam`. The rest of the document belongs to the calling plugin.
pub(super) fn unknown_keys(
    config: &str,
) -> Result<Vec<cni::json::UnknownKey>, cni::json::JsonError> {
    let mut unknown = cni::json::unknown_keys::<Document>(config)?;
    unknown.retain(|key| key.parent == "ipam" || key.parent.starts_with("ipam."));
    Ok(unknown)
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(code::INVALID_CONFIG, message)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use expect_test::{Expect, expect};

    use super::*;

    fn check(ipam: &str, args: &str, want: Expect) {
        let ipam: Ipam = serde_json::from_str(ipam).unwrap();
        let text = match client(&ipam, &Args::parse_lenient(args)) {
            Ok(client) => serde_json::to_string(&client).unwrap(),
            Err(error) => format!("{} {error}", error.code()),
        };
        want.assert_eq(&text);
    }

    #[test]
    fn what_is_asked_for_and_sent() {
        check("{}", "", expect![[r#"{"families":["v4"]}"#]]);
        check(
            r#"{"request":[{"skipDefault":true},{"option":"routers"},{"option":"43"}],"priority":20}"#,
            "",
            expect![[r#"{"families":["v4"],"request":[3,43],"skipDefault":true,"priority":20}"#]],
        );
        let provide = r#"{"provide":[{"option":"host-name","value":"web","fromArg":"K8S_POD_NAME"},{"option":"60"}]}"#;
        check(
            provide,
            "A=1",
            expect![[r#"{"families":["v4"],"provide":[{"code":12,"value":"776562"}]}"#]],
        );
        check(
            provide,
            "junk;K8S_POD_NAME=p=1",
            expect![[r#"{"families":["v4"],"provide":[{"code":12,"value":"703d31"}]}"#]],
        );
        check(r#"{"families":["ipv6","v4","v6"]}"#, "", expect![[r#"{"families":["v4","v6"]}"#]]);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        check(
            r#"{"request":[{"option":"hostname"}]}"#,
            "",
            expect![[r#"7 Can not parse option "hostname": invalid digit found in string"#]],
        );
        check(
            r#"{"provide":[{"option":"host-name","fromArg":"N"}]}"#,
            &format!("N={}", "x".repeat(256)),
            expect![[r#"7 value too long for option "host-name": 256 octets are more than 255"#]],
        );
        check(
            r#"{"provide":[{"option":"255","value":"x"}]}"#,
            "",
            expect!["7 ipam.provide: option 255 is no option that has a value"],
        );
        check(
            r#"{"priority":-1}"#,
            "",
            expect![
                "7 ipam.priority: -1 is no metric of a route; it is a number from 0 to 4294967295"
            ],
        );
        check(
            r#"{"families":["v5"]}"#,
            "",
            expect![[
                r#"7 ipam.families: "v5" is no family; it is a list of "v4" and "v6"; without it, ["v4"]"#
            ]],
        );
    }

    #[test]
    fn the_socket_is_somewhere_definite() {
        assert_eq!(checked_socket("").unwrap(), Path::new(SOCKET));
        assert!(checked_socket("run/dhcp.sock").is_err());
        assert!(checked_socket(&format!("/{}", "x".repeat(107))).is_err());
    }
}
