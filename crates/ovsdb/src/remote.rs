//! The address of a database.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::OvsdbError;

/// The port of OVSDB (IANA `ovsdb`).
pub const DEFAULT_PORT: u16 = 6640;

/// The files that a TLS connection needs, in PEM, as in Open vSwitch's programs: options of the
/// same names, and columns of the table `SSL`. All three are needed, because `ovsdb-server`
/// authenticates its clients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys {
    /// Our private key (`--private-key`).
    pub private_key: PathBuf,
    /// The certificate for our key (`--certificate`); certificates of authorities between it and
    /// the server's may follow it.
    pub certificate: PathBuf,
    /// The certificates of the authorities that may sign the server's (`--ca-cert`). No others are
    /// trusted.
    pub ca_cert: PathBuf,
}

/// An address of a database, as Open vSwitch's programs write it (`man 7 ovsdb`, "Connection
/// Methods").
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// `unix:/path`, or a bare path.
    Unix(PathBuf),
    /// `tcp:ADDRESS[:PORT]`.
    Tcp(SocketAddr),
    /// `ssl:ADDRESS[:PORT]`, with the keys to connect ([`Remote::with_keys`]).
    Tls(SocketAddr, Option<Keys>),
}

impl Remote {
    /// Returns the same address with its keys; addresses other than `ssl:` need none and stay
    /// unchanged.
    #[must_use]
    pub fn with_keys(self, keys: Keys) -> Self {
        match self {
            Remote::Tls(address, _) => Remote::Tls(address, Some(keys)),
            other => other,
        }
    }
}

impl FromStr for Remote {
    type Err = OvsdbError;

    fn from_str(text: &str) -> Result<Self, OvsdbError> {
        let invalid = |why| OvsdbError::Address { text: text.to_owned(), why };
        if text.contains('\0') {
            return Err(invalid("it has a zero byte"));
        }
        if text.starts_with('/') {
            return Ok(Remote::Unix(PathBuf::from(text)));
        }
        match text.split_once(':') {
            Some(("unix", path)) if path.starts_with('/') => Ok(Remote::Unix(PathBuf::from(path))),
            Some(("unix", _)) => Err(invalid("the path of a socket begins with /")),
            Some(("tcp", rest)) => socket_address(rest).map(Remote::Tcp).map_err(invalid),
            Some(("ssl", rest)) => {
                socket_address(rest).map(|address| Remote::Tls(address, None)).map_err(invalid)
            }
            _ => Err(invalid("write unix:/PATH, tcp:ADDRESS:PORT, ssl:ADDRESS:PORT or a path")),
        }
    }
}

fn socket_address(text: &str) -> Result<SocketAddr, &'static str> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address: IpAddr =
        bare.parse().map_err(|_| "write an IP address and a port; names are not looked up")?;
    Ok(SocketAddr::new(address, DEFAULT_PORT))
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remote::Unix(path) => write!(f, "unix:{}", path.display()),
            Remote::Tcp(address) => write!(f, "tcp:{address}"),
            Remote::Tls(address, _) => write!(f, "ssl:{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, String> {
        text.parse::<Remote>().map(|remote| remote.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_form_of_address() {
        assert_eq!(read("/run/db.sock").unwrap(), "unix:/run/db.sock");
        assert_eq!(read("unix:/run/db.sock").unwrap(), "unix:/run/db.sock");
        assert_eq!(read("tcp:192.0.2.1:6641").unwrap(), "tcp:192.0.2.1:6641");
        assert_eq!(read("tcp:192.0.2.1").unwrap(), "tcp:192.0.2.1:6640");
        assert_eq!(read("tcp:[2001:db8::1]:6641").unwrap(), "tcp:[2001:db8::1]:6641");
        assert_eq!(read("ssl:[2001:db8::1]").unwrap(), "ssl:[2001:db8::1]:6640");
    }

    #[test]
    fn what_is_no_address_is_told_why() {
        for text in ["", "unix:relative", "tcp:name:1", "tcp:192.0.2.1:x", "udp:1", "unix:", "\0"] {
            assert!(
                read(text).unwrap_err().contains("is not the address of a database"),
                "{text:?}"
            );
        }
    }
}
