//! Device information files (NPWG "Device Information Specification" 1.1.0).
//!
//! A device plugin leaves a file that describes what it allocated ([`plugin_file`]). A CNI plugin
//! may add details in a file of its own, whose path it is given ([`cni_file`]). The contents become
//! `device-info` of the status.

use cni::json::{JsonError, Object};
use serde::{Deserialize, Serialize};

/// The folder of the files.
pub const FOLDER: &str = "/var/run/k8s.cni.cncf.io/devinfo";

/// The folder of device plugins' files, in [`FOLDER`].
pub const PLUGINS: &str = "dp";

/// The folder of CNI plugins' files, in [`FOLDER`].
pub const CNI: &str = "cni";

/// The capability by which a CNI plugin gets the path of its file.
pub const CAPABILITY: &str = "CNIDeviceInfoFile";

/// The version written here.
pub const VERSION: &str = "1.1.0";

/// The largest file that is read: a valid one has some hundred bytes.
pub const MAX_FILE: usize = 64 << 10;

/// What is known of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct DeviceInfo {
    /// `pci`, `vdpa`, `vhost-user` or `memif`.
    pub r#type: String,
    /// The version of the specification.
    pub version: String,
    /// Of a PCI device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<Pci>,
    /// Of a vDPA device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vdpa: Option<Vdpa>,
    /// Of a vhost-user socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vhost_user: Option<VhostUser>,
    /// Of shared memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memif: Option<Memif>,
}

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, rename_all = "kebab-case")]
        pub struct $name {
            $($(#[$field_doc])* #[serde(skip_serializing_if = "String::is_empty")] pub $field: String,)*
        }
    };
}

section! {
    /// A PCI device.
    Pci {
        /// Its PCI address.
        pci_address,
        /// Its vhost-net device.
        vhost_net,
        /// Its RDMA device.
        rdma_device,
        /// Where its physical function is.
        pf_pci_address,
        /// The link that represents it.
        representor_device,
    }
}
section! {
    /// A vDPA device.
    Vdpa {
        /// Its parent.
        parent_device,
        /// `vhost_vdpa` or `virtio_vdpa`.
        driver,
        /// Its path.
        path,
        /// Where its PCI device is.
        pci_address,
        /// Where its physical function is.
        pf_pci_address,
        /// The link that represents it.
        representor_device,
    }
}
section! {
    /// A vhost-user socket.
    VhostUser {
        /// `client` or `server`.
        mode,
        /// Its path.
        path,
    }
}
section! {
    /// Shared memory.
    Memif {
        /// `master` or `slave`.
        role,
        /// Its path.
        path,
        /// `ethernet`, `ip` or `punt`.
        mode,
    }
}

/// Why a file is not valid device information.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// It is longer than [`MAX_FILE`].
    #[error("{0} bytes of device information, more than {MAX_FILE}")]
    TooLong(usize),
    /// It is not JSON of that shape.
    #[error("not device information: {0}")]
    Json(#[source] JsonError),
    /// It does not contain the device's type.
    #[error("device information without \"type\"")]
    NoType,
    /// It does not contain its version.
    #[error("device information without \"version\"")]
    NoVersion,
    /// The section of its type is absent.
    #[error("device information of type {0:?} without {0:?}")]
    NoSection(String),
}

/// Checks the content of a file and returns it unchanged, including unknown keys. Unknown types are
/// accepted.
///
/// # Errors
/// [`DeviceError`].
pub fn read(document: &[u8]) -> Result<Object, DeviceError> {
    if MAX_FILE < document.len() {
        return Err(DeviceError::TooLong(document.len()));
    }
    let info: DeviceInfo = cni::json::from_slice(document).map_err(DeviceError::Json)?;
    if info.version.is_empty() {
        return Err(DeviceError::NoVersion);
    }
    let has_section = match info.r#type.as_str() {
        "" => return Err(DeviceError::NoType),
        "pci" => info.pci.is_some(),
        "vdpa" => info.vdpa.is_some(),
        "vhost-user" => info.vhost_user.is_some(),
        "memif" => info.memif.is_some(),
        _ => true,
    };
    if !has_section {
        return Err(DeviceError::NoSection(info.r#type));
    }
    Object::parse(document).map_err(DeviceError::Json)
}

/// Returns the name of the file that a device plugin leaves, in [`PLUGINS`].
#[must_use]
pub fn plugin_file(resource: &str, id: &str) -> String {
    format!("{}-{}-device.json", resource.replace('/', "-"), id.replace('/', "-"))
}

/// Returns the name of the file of an attachment, in [`CNI`], as Multus names it.
#[must_use]
pub fn cni_file(network: &str, container: &str, ifname: &str) -> String {
    format!("{network}-{container}_{ifname}").replace('/', "-")
}
