//! The configuration of a driver, read and checked.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use cni::code;
use cni_plugin::Call;
use cnm::options::{ExposedPort, PortBinding, protocol_number};
use ipnet::IpNet;
use kernel::mac::MacAddr;
use serde::{Deserialize, Serialize};

use super::driver::Place;
use crate::shared::failure::Failure;
use crate::shared::mac::parse_mac;

/// How long a driver may take for one call by default: as long as Docker's engine waits for a
/// driver to appear.
const TIMEOUT_S: u64 = 30;
/// The largest configurable value: what the kubelet allows for a whole sandbox.
const MAX_TIMEOUT_S: u64 = 240;

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    driver: String,
    options: BTreeMap<String, String>,
    endpoint_options: BTreeMap<String, String>,
    internal: bool,
    ipv6: bool,
    ipam_driver: String,
    ipam_options: BTreeMap<String, String>,
    subnets: Vec<RawSubnet>,
    default_gateway: Option<bool>,
    mac: String,
    timeout: Option<u64>,
    args: RawArgs,
    runtime_config: RawRuntime,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawSubnet {
    subnet: String,
    range: String,
    gateway: String,
    aux_addresses: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawArgs {
    cni: RawMac,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawMac {
    mac: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawRuntime {
    mac: String,
    ips: Vec<String>,
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

/// A subnet as configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Subnet {
    /// The subnet; any subnet if absent.
    pub(super) subnet: Option<IpNet>,
    /// Whether it is IPv6.
    pub(super) v6: bool,
    /// The part from which addresses are assigned.
    pub(super) range: Option<IpNet>,
    /// The gateway.
    pub(super) gateway: Option<IpAddr>,
    /// Further addresses that are not assigned, by name.
    pub(super) aux: BTreeMap<String, IpAddr>,
}

/// What a network is created from. Attachments of one network must agree on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WantedNetwork {
    /// The network driver.
    pub(super) driver: String,
    /// What Docker's users pass with `-o`.
    pub(super) options: BTreeMap<String, String>,
    /// Whether the network has no way out.
    pub(super) internal: bool,
    /// Whether it has IPv6 addresses.
    pub(super) ipv6: bool,
    /// The IPAM driver.
    pub(super) ipam_driver: Option<String>,
    /// What Docker's users pass with `--ipam-opt`.
    pub(super) ipam_options: BTreeMap<String, String>,
    /// The subnets.
    pub(super) subnets: Vec<Subnet>,
}

/// A network as this plugin understands it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub(super) network: WantedNetwork,
    /// What Docker's users pass with `--driver-opt`.
    pub(super) endpoint_options: BTreeMap<String, String>,
    /// Whether there are default routes by the driver's gateways.
    pub(super) default_gateway: bool,
    pub(super) mac: Option<MacAddr>,
    /// The addresses that the runtime asks for.
    pub(super) ips: Vec<IpNet>,
    pub(super) ports: Vec<PortBinding>,
    pub(super) timeout: Duration,
    /// The container's name, for IPAM drivers that use it.
    pub(super) endpoint_name: String,
}

impl Config {
    /// Reads and checks the configuration of a call about an attachment.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let raw = read(call)?;
        let args = call.args(&["MAC"])?;
        let mac = [Some(raw.runtime_config.mac.as_str()), Some(&raw.args.cni.mac), args.get("MAC")];
        let mac = mac.into_iter().chain([Some(raw.mac.as_str())]).flatten();
        let mac = mac.into_iter().find(|text| !text.is_empty()).map(parse_mac).transpose()?;
        let name = args.get("K8S_POD_NAME").filter(|name| !name.is_empty());
        let endpoint_name = name.unwrap_or(call.container_id().as_str()).to_owned();
        let config = Config::check(&raw, has_ipam(call)?)?;
        Ok(Config { mac, endpoint_name, ..config })
    }

    /// Reads and checks what does not depend on an attachment.
    pub(super) fn of_network(call: &Call<'_>) -> Result<Self, Failure> {
        Config::check(&read(call)?, has_ipam(call)?)
    }

    fn check(raw: &Raw, has_ipam: bool) -> Result<Self, Failure> {
        if raw.driver.is_empty() {
            return Err(invalid(
                "\"driver\" is required: the name or the socket of a Docker network driver",
            ));
        }
        let named = |key: &str, text: &str| {
            Place::parse(text).map(drop).map_err(|words| invalid(format!("\"{key}\": {words}")))
        };
        named("driver", &raw.driver)?;
        let ipam_driver = (!raw.ipam_driver.is_empty()).then(|| raw.ipam_driver.clone());
        if let Some(name) = &ipam_driver {
            named("ipamDriver", name)?;
            if has_ipam {
                return Err(invalid("\"ipam\" and \"ipamDriver\" exclude each other"));
            }
        } else if !raw.ipam_options.is_empty() {
            return Err(invalid("\"ipamOptions\" are for an \"ipamDriver\", and there is none"));
        }
        let subnets: Vec<Subnet> =
            raw.subnets.iter().enumerate().map(subnet).collect::<Result<_, _>>()?;
        if ipam_driver.is_none() && !has_ipam && !subnets.is_empty() {
            return Err(invalid(
                "\"subnets\" need an \"ipamDriver\" or \"ipam\": without one the driver gives the addresses",
            ));
        }
        let timeout = raw.timeout.unwrap_or(TIMEOUT_S);
        if !(1..=MAX_TIMEOUT_S).contains(&timeout) {
            return Err(invalid(format!(
                "\"timeout\": {timeout} is not between 1 and {MAX_TIMEOUT_S} seconds"
            )));
        }
        let ips =
            raw.runtime_config.ips.iter().map(|text| requested(text)).collect::<Result<_, _>>()?;
        let mappings = raw.runtime_config.port_mappings.as_deref().unwrap_or_default();
        let ports = mappings.iter().map(binding).collect::<Result<_, _>>()?;
        let network = WantedNetwork {
            driver: raw.driver.clone(),
            options: raw.options.clone(),
            internal: raw.internal,
            ipv6: raw.ipv6 || subnets.iter().any(|subnet| subnet.v6),
            ipam_driver,
            ipam_options: raw.ipam_options.clone(),
            subnets,
        };
        Ok(Config {
            network,
            endpoint_options: raw.endpoint_options.clone(),
            default_gateway: raw.default_gateway.unwrap_or(!raw.internal),
            mac: None,
            ips,
            ports,
            timeout: Duration::from_secs(timeout),
            endpoint_name: String::new(),
        })
    }

    /// Returns the published ports as exposed ports.
    pub(super) fn exposed(&self) -> Vec<ExposedPort> {
        self.ports.iter().map(|one| ExposedPort { proto: one.proto, port: one.port }).collect()
    }
}

fn read(call: &Call<'_>) -> Result<Raw, Failure> {
    call.read_config().map_err(|error| Failure::from(error).with_code(code::INVALID_CONFIG))
}

/// Returns how long one call of a driver may take, for DEL and GC, even if the rest of the
/// configuration is invalid.
pub(super) fn timeout_of(call: &Call<'_>) -> Duration {
    let given = read(call).ok().and_then(|raw| raw.timeout);
    Duration::from_secs(given.unwrap_or(TIMEOUT_S).clamp(1, MAX_TIMEOUT_S))
}

fn has_ipam(call: &Call<'_>) -> Result<bool, Failure> {
    let Some(ipam) = call.ipam() else { return Ok(false) };
    if crate::engine::talks_over_the_link(&ipam) {
        return Err(invalid(format!(
            "\"ipam\": type {:?} talks over the interface",
            ipam.plugin_type()
        ))
        .with_details("a Docker driver makes the interface for addresses that are there already"));
    }
    Ok(true)
}

fn subnet((number, raw): (usize, &RawSubnet)) -> Result<Subnet, Failure> {
    let wrong =
        |key: &str, words: String| invalid(format!("\"subnets\"[{number}].\"{key}\": {words}"));
    let net = |key: &str, text: &str| -> Result<IpNet, Failure> {
        let net: IpNet = text
            .parse()
            .map_err(|_| wrong(key, format!("{text:?} is no subnet such as 192.0.2.0/24")))?;
        if net.trunc() == net {
            Ok(net)
        } else {
            Err(wrong(key, format!("{text:?} has host bits: write {}", net.trunc())))
        }
    };
    let whole = net("subnet", &raw.subnet)?;
    let within = |key: &str, text: &str| -> Result<IpAddr, Failure> {
        let address: IpAddr =
            text.parse().map_err(|_| wrong(key, format!("{text:?} is no address")))?;
        if whole.contains(&address) {
            Ok(address)
        } else {
            Err(wrong(key, format!("{address} is not in {whole}")))
        }
    };
    let range = if raw.range.is_empty() { None } else { Some(net("range", &raw.range)?) };
    if let Some(range) = range.filter(|range| !whole.contains(range)) {
        return Err(wrong("range", format!("{range} is not in {whole}")));
    }
    let gateway =
        if raw.gateway.is_empty() { None } else { Some(within("gateway", &raw.gateway)?) };
    let mut aux = BTreeMap::new();
    for (name, text) in &raw.aux_addresses {
        aux.insert(name.clone(), within("auxAddresses", text)?);
    }
    Ok(Subnet { subnet: Some(whole), v6: whole.addr().is_ipv6(), range, gateway, aux })
}

/// Parses an address of the capability `ips`, with or without a prefix length.
fn requested(text: &str) -> Result<IpNet, Failure> {
    let net = text.parse::<IpNet>().ok();
    let net = net.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    net.ok_or_else(|| invalid(format!("\"ips\" of runtimeConfig: {text:?} is no address")))
}

fn binding(raw: &RawMapping) -> Result<PortBinding, Failure> {
    let wrong = |what: String| invalid(format!("\"portMappings\" of runtimeConfig: {what}"));
    let port = |key: &str, value: i64| {
        let port = u16::try_from(value).ok().filter(|port| *port != 0);
        port.ok_or_else(|| wrong(format!("{key} {value} is no port")))
    };
    let name = if raw.protocol.is_empty() { "tcp".to_owned() } else { raw.protocol.to_lowercase() };
    let proto = protocol_number(&name)
        .ok_or_else(|| wrong(format!("protocol {name:?} is not tcp, udp or sctp")))?;
    if !raw.host_ip.is_empty() && raw.host_ip.parse::<IpAddr>().is_err() {
        return Err(wrong(format!("hostIP {:?} is no address", raw.host_ip)));
    }
    let host_port = port("hostPort", raw.host_port)?;
    Ok(PortBinding {
        proto,
        ip: String::new(),
        port: port("containerPort", raw.container_port)?,
        host_ip: raw.host_ip.clone(),
        host_port,
        host_port_end: host_port,
    })
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(code::INVALID_CONFIG, message)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(json: &str, expected: Expect) {
        let raw: Raw = cni::json::from_str(json).unwrap();
        let all: serde_json::Value = serde_json::from_str(json).unwrap();
        let has_ipam = all.get("ipam").is_some();
        let text = match Config::check(&raw, has_ipam) {
            Ok(config) => format!("{:?} {:?}", config.network.subnets, config.ports),
            Err(error) => format!("{} {error}", error.code()),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn keys_that_need_or_exclude_each_other() {
        check(
            "{}",
            expect![[
                r#"7 "driver" is required: the name or the socket of a Docker network driver"#
            ]],
        );
        check(
            r#"{"driver":"w","ipam":{},"ipamDriver":"w"}"#,
            expect![[r#"7 "ipam" and "ipamDriver" exclude each other"#]],
        );
        check(
            r#"{"driver":"w","ipamOptions":{"a":"b"}}"#,
            expect![[r#"7 "ipamOptions" are for an "ipamDriver", and there is none"#]],
        );
        check(
            r#"{"driver":"w","subnets":[{"subnet":"192.0.2.0/24"}]}"#,
            expect![[
                r#"7 "subnets" need an "ipamDriver" or "ipam": without one the driver gives the addresses"#
            ]],
        );
        check(
            r#"{"driver":"w","timeout":0}"#,
            expect![[r#"7 "timeout": 0 is not between 1 and 240 seconds"#]],
        );
        check(
            r#"{"driver":"a b"}"#,
            expect![[
                r#"7 "driver": "a b" is neither a driver's name nor the absolute path of its socket"#
            ]],
        );
    }

    #[test]
    fn subnets_are_checked() {
        let with =
            |subnet: &str| format!(r#"{{"driver":"w","ipamDriver":"w","subnets":[{subnet}]}}"#);
        check(
            &with(r#"{"subnet":"192.0.2.1/24"}"#),
            expect![[
                r#"7 "subnets"[0]."subnet": "192.0.2.1/24" has host bits: write 192.0.2.0/24"#
            ]],
        );
        check(
            &with(r#"{"subnet":"x"}"#),
            expect![[r#"7 "subnets"[0]."subnet": "x" is no subnet such as 192.0.2.0/24"#]],
        );
        check(
            &with(r#"{"subnet":"192.0.2.0/24","gateway":"2001:db8::1"}"#),
            expect![[r#"7 "subnets"[0]."gateway": 2001:db8::1 is not in 192.0.2.0/24"#]],
        );
        check(
            &with(r#"{"subnet":"192.0.2.0/24","range":"198.51.100.0/25"}"#),
            expect![[r#"7 "subnets"[0]."range": 198.51.100.0/25 is not in 192.0.2.0/24"#]],
        );
    }

    #[test]
    fn ports_are_checked() {
        let with =
            |port: &str| format!(r#"{{"driver":"w","runtimeConfig":{{"portMappings":[{port}]}}}}"#);
        check(
            &with(r#"{"hostPort":0,"containerPort":80}"#),
            expect![[r#"7 "portMappings" of runtimeConfig: hostPort 0 is no port"#]],
        );
        check(
            &with(r#"{"hostPort":1,"containerPort":80,"protocol":"icmp"}"#),
            expect![[
                r#"7 "portMappings" of runtimeConfig: protocol "icmp" is not tcp, udp or sctp"#
            ]],
        );
        check(
            &with(r#"{"hostPort":1,"containerPort":80,"hostIP":"x"}"#),
            expect![[r#"7 "portMappings" of runtimeConfig: hostIP "x" is no address"#]],
        );
        check(
            &with(r#"{"hostPort":1,"containerPort":80,"protocol":"UDP"}"#),
            expect![[
                r#"[] [PortBinding { proto: 17, ip: "", port: 80, host_ip: "", host_port: 1, host_port_end: 1 }]"#
            ]],
        );
    }
}
