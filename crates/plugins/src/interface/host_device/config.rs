//! The configuration of `host-device`: which device.

use std::path::{Component, Path, PathBuf};

use cni_plugin::Call;
use kernel::mac::MacAddr;
use serde::Deserialize;
use state::Index;

use crate::shared::failure::Failure;

use super::invalid;

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Raw {
    device: String,
    hwaddr: String,
    kernelpath: String,
    #[serde(rename = "pciBusID")]
    pci_bus_id: String,
    #[serde(rename = "DPDKMode")]
    dpdk_mode: bool,
    allow_address_conflict: bool,
    runtime_config: RawRuntime,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawRuntime {
    #[serde(rename = "deviceID")]
    device_id: String,
}

/// The checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The device, by the first of its keys that is given.
    pub(super) device: Device,
    /// The PCI address, if one is given in addition to the device: its driver decides about DPDK.
    pub(super) pci: Option<Bus>,
    /// The key `DPDKMode`: it counts if no PCI address is given.
    pub(super) dpdk: bool,
    /// The index that records which attachment holds which device.
    pub(super) index: Index,
}

/// How the configuration selects the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Device {
    /// Key `device`.
    Name(String),
    /// Key `hwaddr`.
    Mac(MacAddr),
    /// Key `kernelpath`.
    KernelPath(PathBuf),
    /// Key `pciBusID` or `runtimeConfig.deviceID`.
    Bus(Bus),
}

/// A device by its name on a bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bus {
    /// Key `pciBusID`.
    Pci(String),
    /// Key `runtimeConfig.deviceID`: a PCI address, or the name of a device of the auxiliary bus.
    Id(String),
}

impl Bus {
    pub(super) fn id(&self) -> &str {
        let (Bus::Pci(id) | Bus::Id(id)) = self;
        id
    }
}

impl Config {
    /// Reads the configuration and checks what can be checked without the host.
    pub(super) fn read(call: &Call<'_>) -> Result<Self, Failure> {
        let raw: Raw = call.read_config()?;
        let pci = raw.bus()?;
        let device = raw.device(pci.as_ref())?;
        Ok(Config { device, pci, dpdk: raw.dpdk_mode, index: Index::new(call.roots()) })
    }

    /// Returns the key and the text that select the device, for messages.
    pub(super) fn selection(&self) -> (&'static str, String) {
        match &self.device {
            Device::Name(name) => ("device", name.clone()),
            Device::Mac(mac) => ("hwaddr", mac.to_string()),
            Device::KernelPath(path) => ("kernelpath", path.display().to_string()),
            Device::Bus(Bus::Pci(id)) => ("pciBusID", id.clone()),
            Device::Bus(Bus::Id(id)) => ("runtimeConfig.deviceID", id.clone()),
        }
    }
}

impl Raw {
    fn bus(&self) -> Result<Option<Bus>, Failure> {
        let id = &self.runtime_config.device_id;
        if !id.is_empty() {
            return plain("runtimeConfig.deviceID", id).map(|id| Some(Bus::Id(id)));
        }
        if !self.pci_bus_id.is_empty() {
            return plain("pciBusID", &self.pci_bus_id).map(|id| Some(Bus::Pci(id)));
        }
        Ok(None)
    }

    fn device(&self, bus: Option<&Bus>) -> Result<Device, Failure> {
        if !self.device.is_empty() {
            return Ok(Device::Name(self.device.clone()));
        }
        if !self.hwaddr.is_empty() {
            return self.hwaddr.parse().map(Device::Mac).map_err(|error| {
                invalid(
                    format!(
                        "failed to find host device: failed to parse MAC address {:?}: {error}",
                        self.hwaddr
                    ),
                    "key \"hwaddr\" is an Ethernet address",
                )
            });
        }
        if !self.kernelpath.is_empty() {
            return kernel_path(&self.kernelpath).map(Device::KernelPath);
        }
        bus.cloned().map(Device::Bus).ok_or_else(|| {
            invalid(
                "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"",
                "or let the runtime name the device: capability \"deviceID\"",
            )
        })
    }
}

fn kernel_path(text: &str) -> Result<PathBuf, Failure> {
    let path = Path::new(text);
    let climbs = path.components().any(|part| part == Component::ParentDir);
    if !text.starts_with("/sys/devices/") || climbs {
        return Err(invalid(
            format!(
                "failed to find host device: kernel device path {text:?} must be absolute and begin with /sys/devices/"
            ),
            "key \"kernelpath\" is the folder that `readlink -f /sys/class/net/LINK/device` prints",
        ));
    }
    Ok(path.to_owned())
}

/// Checks a name that becomes part of a path.
fn plain(key: &str, text: &str) -> Result<String, Failure> {
    if text.starts_with('.') || text.contains('/') || text.contains('\0') {
        return Err(invalid(format!("invalid {key} {text:?}"), "it is not the name of a device"));
    }
    Ok(text.to_owned())
}
