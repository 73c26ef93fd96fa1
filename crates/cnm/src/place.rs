//! Where an engine looks for a driver (moby pkg/plugins/discovery).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

/// Where sockets are.
pub const SOCKET_DIR: &str = "/run/docker/plugins";
/// The folders of files that contain an address.
pub const SPEC_DIRS: [&str; 2] = ["/etc/docker/plugins", "/usr/lib/docker/plugins"];

/// A place where a driver with some name may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Candidate {
    /// The driver's own socket.
    Socket(PathBuf),
    /// A line with its address.
    Spec(PathBuf),
    /// A JSON document with its address.
    Json(PathBuf),
}

/// Lists the places in the engine's order. `root` is `/` outside tests.
#[must_use]
pub fn candidates(root: &Path, name: &str) -> Vec<Candidate> {
    let in_root = |dir: &str| root.join(dir.trim_start_matches('/'));
    let both = |dir: PathBuf, suffix: &str| {
        let file = format!("{name}.{suffix}");
        [dir.join(&file), dir.join(name).join(&file)]
    };
    let mut places: Vec<Candidate> =
        both(in_root(SOCKET_DIR), "sock").into_iter().map(Candidate::Socket).collect();
    for dir in SPEC_DIRS.map(in_root) {
        places.extend(both(dir.clone(), "spec").into_iter().map(Candidate::Spec));
        places.extend(both(dir, "json").into_iter().map(Candidate::Json));
    }
    places
}

/// Why an address cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// It has no scheme.
    #[error("{0:?} is not an address: it must begin with unix:// or tcp://")]
    NoScheme(String),
    /// It is not on this host.
    #[error("{0:?} is not on this host: it is neither unix:///PATH nor tcp://127.0.0.1:PORT")]
    Elsewhere(String),
    /// It is not a document of that kind.
    #[error("{0}")]
    Json(String),
}

/// Where a driver listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A port of this host.
    Tcp(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix://{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    /// Reads an address: of a Unix socket, or of a port of this host. Calls to a driver make it
    /// change the host, so they must not cross a network. A driver that listens on all addresses
    /// (`0.0.0.0`) listens here too.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let text = text.trim();
        let elsewhere = || AddressError::Elsewhere(text.to_owned());
        match text.split_once("://") {
            Some(("unix", path)) if !path.is_empty() => Ok(Address::Unix(path.into())),
            Some(("tcp", rest)) => {
                let rest = rest.trim_end_matches('/');
                let port = |name: &str| rest.strip_prefix(name)?.parse::<u16>().ok();
                let address = match port("localhost:") {
                    Some(port) => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
                    None => rest.parse::<SocketAddr>().ok(),
                };
                let mut address = address.ok_or_else(elsewhere)?;
                if address.ip().is_unspecified() {
                    address.set_ip(match address.ip() {
                        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
                    });
                }
                if address.ip().is_loopback() {
                    Ok(Address::Tcp(address))
                } else {
                    Err(elsewhere())
                }
            }
            Some(_) => Err(elsewhere()),
            None => Err(AddressError::NoScheme(text.to_owned())),
        }
    }
}

/// Reads a `.json` file's address.
///
/// # Errors
/// [`AddressError`].
pub fn address_in_json(document: &[u8]) -> Result<String, AddressError> {
    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Document {
        #[serde(rename = "Addr")]
        address: String,
    }
    let document: Document =
        crate::read(document).map_err(|error| AddressError::Json(error.to_string()))?;
    Ok(document.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engines_order() {
        let places = candidates(Path::new("/"), "w");
        assert_eq!(places[0], Candidate::Socket("/run/docker/plugins/w.sock".into()));
        assert_eq!(places[1], Candidate::Socket("/run/docker/plugins/w/w.sock".into()));
        assert_eq!(places[2], Candidate::Spec("/etc/docker/plugins/w.spec".into()));
        assert_eq!(places[4], Candidate::Json("/etc/docker/plugins/w.json".into()));
        assert_eq!(places.len(), 10);
    }

    #[test]
    fn addresses() {
        let read = |text: &str| text.parse::<Address>().map(|address| address.to_string());
        assert_eq!(read("unix:///run/w.sock\n").unwrap(), "unix:///run/w.sock");
        assert_eq!(read("tcp://0.0.0.0:5000").unwrap(), "tcp://127.0.0.1:5000");
        assert_eq!(read("tcp://localhost:5000/").unwrap(), "tcp://127.0.0.1:5000");
        assert_eq!(read("tcp://[::]:5000").unwrap(), "tcp://[::1]:5000");
        assert!(matches!(read("/run/w.sock"), Err(AddressError::NoScheme(_))));
        for elsewhere in ["tcp://192.0.2.1:1", "tcp://w:1", "http://127.0.0.1:1", "unix://"] {
            assert!(matches!(read(elsewhere), Err(AddressError::Elsewhere(_))), "{elsewhere}");
        }
        let json = br#"{"Name":"w","Addr":"unix:///run/w.sock"}"#;
        assert_eq!(address_in_json(json).unwrap(), "unix:///run/w.sock");
    }
}
