//! Where an engine looks for a driver (moby pkg/plugins/discovery).

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Where sockets are.
pub const SOCKET_DIR: &str = "/run/docker/plugins";
/// Where files are that name an address.
pub const SPEC_DIRS: [&str; 2] = ["/etc/docker/plugins", "/usr/lib/docker/plugins"];

/// A place a driver of some name may be at.
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

/// Says why an address leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// It has no scheme.
    #[error("{0:?} is no address: it must begin with unix://")]
    NoScheme(String),
    /// It is not on this host.
    #[error("{0:?} is not a Unix socket, and drivers elsewhere are not called")]
    NotUnix(String),
    /// It is no document of that kind.
    #[error("{0}")]
    Json(String),
}

/// Reads an address: the path of a Unix socket.
///
/// # Errors
/// [`AddressError`].
pub fn socket_of(address: &str) -> Result<PathBuf, AddressError> {
    let address = address.trim();
    match address.split_once("://") {
        Some(("unix", path)) if !path.is_empty() => Ok(path.into()),
        Some(_) => Err(AddressError::NotUnix(address.to_owned())),
        None => Err(AddressError::NoScheme(address.to_owned())),
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
        assert_eq!(socket_of("unix:///run/w.sock\n").unwrap(), Path::new("/run/w.sock"));
        assert!(matches!(socket_of("/run/w.sock"), Err(AddressError::NoScheme(_))));
        assert!(matches!(socket_of("tcp://192.0.2.1:1"), Err(AddressError::NotUnix(_))));
        let json = br#"{"Name":"w","Addr":"unix:///run/w.sock"}"#;
        assert_eq!(address_in_json(json).unwrap(), "unix:///run/w.sock");
    }
}
