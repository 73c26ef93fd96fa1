//! The files that describe a network's device (NPWG "Device Information Specification" 1.1.0 §5).

use std::path::{Path, PathBuf};

use cni::json::Object;
use cni_plugin::codes;
use cni_runtime::Attachment;
use node_api::multinet::Device;
use npwg::device;
use state::Durability;

use crate::shared::failure::Failure;

/// An attachment's file, and that of the device plugin.
#[derive(Debug, Clone)]
pub(super) struct DeviceFile {
    /// The file to which the CNI plugin may add more.
    pub(super) path: PathBuf,
    source: Option<PathBuf>,
}

impl DeviceFile {
    /// Names both. No part of a name can lead out of the folder.
    pub(super) fn of(
        folder: &Path,
        found: &Device,
        network: &str,
        attachment: &Attachment,
    ) -> Self {
        let container = attachment.container_id.as_str();
        let name = device::cni_file(network, container, attachment.ifname.as_str());
        let plugin = (!found.resource.is_empty()).then(|| {
            folder.join(device::PLUGINS).join(device::plugin_file(&found.resource, &found.id))
        });
        DeviceFile { path: folder.join(device::CNI).join(name), source: plugin }
    }

    /// Passes the device plugin's file to the CNI plugin.
    pub(super) fn prepare(&self) -> Result<(), Failure> {
        let failed = |error: state::FileError| {
            Failure::from_chain(codes::STATE, &error).context("hand over device information")
        };
        if let Some(folder) = self.path.parent() {
            state::create_directory(folder, 0o755).map_err(failed)?;
        }
        // An existing file belongs to an attachment that is gone.
        state::withdraw(&self.path).map_err(failed)?;
        let Some(source) = &self.source else { return Ok(()) };
        match state::read_optional(source).map_err(failed)? {
            Some(bytes) => {
                state::publish(&self.path, &bytes, 0o444, Durability::Volatile).map_err(failed)
            }
            None => Ok(()),
        }
    }

    /// Reads what is known of the device by now; an unreadable file is reported and skipped.
    pub(super) fn read(&self, warn: impl Fn(String)) -> Option<Object> {
        let path = self.path.display();
        match state::read_optional(&self.path) {
            Ok(None) => None,
            Ok(Some(bytes)) => device::read(&bytes).map_err(|e| warn(format!("{path}: {e}"))).ok(),
            Err(error) => {
                warn(error.to_string());
                None
            }
        }
    }
}

/// Removes an attachment's file.
pub(super) fn remove(path: &Path) -> Result<(), Failure> {
    let removed = state::withdraw(path);
    removed.map(drop).map_err(|error| Failure::from_chain(codes::STATE, &error))
}
