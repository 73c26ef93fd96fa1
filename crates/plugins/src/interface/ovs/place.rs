//! The address of the database, and the files for its TLS connection.

use ovsdb::vswitch::SOCKET;
use ovsdb::{Keys, Remote};
use serde::{Deserialize, Serialize};

use crate::shared::failure::Failure;

use super::config::invalid;

/// The configuration keys for it; ADD records them for DEL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Place {
    pub(super) socket_file: String,
    /// The files of a TLS connection, as Open vSwitch's programs call them.
    pub(super) private_key: String,
    pub(super) certificate: String,
    pub(super) ca_cert: String,
}

impl Place {
    /// Creates it from an address.
    pub(super) fn of(remote: &Remote) -> Self {
        let socket_file = remote.to_string();
        let Remote::Tls(_, Some(keys)) = remote else {
            return Place { socket_file, ..Place::default() };
        };
        let path = |path: &std::path::Path| path.to_string_lossy().into_owned();
        Place {
            socket_file,
            private_key: path(&keys.private_key),
            certificate: path(&keys.certificate),
            ca_cert: path(&keys.ca_cert),
        }
    }

    /// Reads the address; the default is the usual place.
    ///
    /// # Errors
    /// Code 7 when it is not an address, or its key files are missing.
    pub(super) fn remote(&self) -> Result<Remote, Failure> {
        let text = if self.socket_file.is_empty() { SOCKET } else { &self.socket_file };
        let remote = text.parse().map_err(|error| {
            Failure::from_chain(cni::code::INVALID_CONFIG, &error).context("invalid socket_file")
        })?;
        if !matches!(remote, Remote::Tls(..)) {
            return Ok(remote);
        }
        let files = [
            ("private_key", &self.private_key),
            ("certificate", &self.certificate),
            ("ca_cert", &self.ca_cert),
        ];
        if let Some((key, _)) = files.iter().find(|(_, path)| !path.starts_with('/')) {
            return Err(invalid(
                format!("socket_file {text:?} needs \"{key}\""),
                "keys \"private_key\", \"certificate\" and \"ca_cert\" are the paths of files in PEM, from the root",
            ));
        }
        let [private_key, certificate, ca_cert] = files.map(|(_, path)| path.into());
        Ok(remote.with_keys(Keys { private_key, certificate, ca_cert }))
    }
}
