//! Published ports.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use firewall::hostport::Forward;
use serde::{Deserialize, Serialize};

/// One published port, in the form of the capability `portMappings` (CNI conventions,
/// "portMappings").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PortMapping {
    pub(crate) host_port: u16,
    pub(crate) container_port: u16,
    pub(crate) protocol: String,
    #[serde(rename = "hostIP", default, skip_serializing_if = "Option::is_none")]
    pub(crate) host_ip: Option<IpAddr>,
}

impl From<Forward> for PortMapping {
    fn from(forward: Forward) -> Self {
        PortMapping {
            host_port: forward.host_port,
            container_port: forward.container_port,
            protocol: forward.protocol.to_string(),
            host_ip: forward.host_ip,
        }
    }
}

/// The protocols that plugins publish.
const PROTOCOLS: [&str; 3] = ["tcp", "udp", "sctp"];

/// Reads `[IP:]HOST:CONTAINER[/PROTOCOL]`; an IPv6 address is in brackets.
impl FromStr for PortMapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (text, protocol) = match text.rsplit_once('/') {
            Some((rest, protocol)) => (rest, protocol.to_ascii_lowercase()),
            None => (text, "tcp".to_owned()),
        };
        if !PROTOCOLS.contains(&protocol.as_str()) {
            return Err(format!("protocol {protocol:?} is not tcp, udp or sctp"));
        }
        let form = || "it must be of the form [IP:]HOST:CONTAINER[/PROTOCOL]".to_owned();
        let (rest, container) = text.rsplit_once(':').ok_or_else(form)?;
        let (address, host) = match rest.rsplit_once(':') {
            Some((address, host)) => (Some(address), host),
            None => (None, rest),
        };
        Ok(PortMapping {
            host_port: port(host)?,
            container_port: port(container)?,
            protocol,
            host_ip: address.map(ip).transpose()?,
        })
    }
}

fn port(text: &str) -> Result<u16, String> {
    match text.parse::<u16>() {
        Ok(0) | Err(_) => Err(format!("{text:?} is not a port (1 to 65535)")),
        Ok(port) => Ok(port),
    }
}

fn ip(text: &str) -> Result<IpAddr, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address = bare.unwrap_or(text).parse::<IpAddr>();
    match address {
        Ok(address) if address.is_ipv4() == bare.is_none() => Ok(address),
        Ok(_) => Err(format!("write the IPv6 address of {text:?} in brackets")),
        Err(_) => Err(format!("{text:?} is not an address")),
    }
}

impl fmt::Display for PortMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host_ip {
            Some(IpAddr::V6(address)) => write!(f, "[{address}]:")?,
            Some(IpAddr::V4(address)) => write!(f, "{address}:")?,
            None => {}
        }
        write!(f, "{}:{}/{}", self.host_port, self.container_port, self.protocol)
    }
}

/// Reads a list separated by commas, as annotations have it.
pub(crate) fn parse_list(text: &str) -> Result<Vec<PortMapping>, String> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(|item| item.parse().map_err(|error| format!("port {item:?}: {error}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_as_people_write_them() {
        let shown = |text: &str| match text.parse::<PortMapping>() {
            Ok(mapping) => mapping.to_string(),
            Err(error) => format!("error: {error}"),
        };
        assert_eq!(shown("8080:80"), "8080:80/tcp");
        assert_eq!(shown("53:53/UDP"), "53:53/udp");
        assert_eq!(shown("192.0.2.1:8080:80"), "192.0.2.1:8080:80/tcp");
        assert_eq!(shown("[2001:db8::1]:8080:80/sctp"), "[2001:db8::1]:8080:80/sctp");
        assert!(shown("80").starts_with("error: it must be of the form"));
        assert_eq!(shown("0:80"), "error: \"0\" is not a port (1 to 65535)");
        assert_eq!(shown("80:65536"), "error: \"65536\" is not a port (1 to 65535)");
        assert_eq!(shown("80:80/icmp"), "error: protocol \"icmp\" is not tcp, udp or sctp");
        assert_eq!(shown("localhost:80:80"), "error: \"localhost\" is not an address");
        assert_eq!(
            shown("2001:db8::1:80:80"),
            "error: write the IPv6 address of \"2001:db8::1\" in brackets"
        );
    }

    #[test]
    fn the_capability_has_the_conventions_keys() {
        let mapping: PortMapping = "192.0.2.1:8080:80".parse().unwrap();
        assert_eq!(
            serde_json::to_string(&mapping).unwrap(),
            r#"{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"192.0.2.1"}"#
        );
    }
}
