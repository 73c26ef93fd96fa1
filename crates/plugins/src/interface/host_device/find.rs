//! Finding the device on the host.

use std::fs;
use std::path::{Path, PathBuf};

use cni::AttachmentKey;
use cni_plugin::codes;
use kernel::living::Census;
use kernel::mac::MacAddr;
use kernel::route::{Link, RouteSocket};

use super::config::{Bus, Config, Device};
use super::home::RecordData;
use super::{HostDevice, SYSFS, invalid, user_space};
use crate::interface::single::SingleLink;
use crate::shared::attachment::may_live;
use crate::shared::device;
use crate::shared::failure::Failure;

/// The drivers that give a device to a program.
const USER_SPACE_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

/// The device as it was found.
#[derive(Debug)]
pub enum ObservedDevice {
    /// A link of the host.
    Link(Box<HostLink>),
    /// A device that is driven by a program.
    UserSpace {
        /// Its PCI address; empty if only `DPDKMode` indicates it.
        pci_id: String,
    },
}

/// A link of the host.
#[derive(Debug)]
pub struct HostLink {
    /// The link, before anything was done with it.
    pub link: Link,
    /// Its PCI address, if it has one.
    pub pci_id: String,
    /// The device behind it, below `/sys/devices`; empty if there is none.
    pub path: String,
    /// Whether a program has it open, if it is a tap or a tun, as far as is known.
    pub open: bool,
}

/// Finds the device; if it is missing, the error names its holder.
pub(super) fn look(config: &Config, host: &mut RouteSocket) -> Result<ObservedDevice, Failure> {
    if let Some(pci_id) = driven_by_program(config)? {
        let object = user_space::object_of(config);
        let holder = object.and_then(|object| user_space::holder(&config.index, &object));
        return match holder {
            Some(holder) => Err(user_space::in_use(config, &holder)),
            None => Ok(ObservedDevice::UserSpace { pci_id }),
        };
    }
    let link = match find(config, host) {
        Ok(Some(link)) => link,
        Ok(None) => {
            return Err(held(config)
                .unwrap_or_else(|| missing(config, "failed to find physical interface")));
        }
        Err(error) => return Err(held(config).unwrap_or(error)),
    };
    if link.loopback() {
        let (key, _) = config.selection();
        return Err(invalid(
            format!("failed to move link {:?}: it is the loopback link", link.name),
            format!("key {key:?} names a link that every namespace has of its own"),
        ));
    }
    let folder = device::folder(&link);
    let path = folder.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_default();
    let from_path = || Path::new(&path).ancestors().find_map(pci_address);
    let pci_id = match &config.device {
        Device::Bus(bus) if is_pci(bus.id()) => bus.id().to_owned(),
        _ => from_path().unwrap_or_default(),
    };
    Ok(ObservedDevice::Link(Box::new(HostLink { link, pci_id, path, open: false })))
}

/// Returns the device's PCI address if a program drives it. If a PCI address is given, its driver
/// decides, otherwise the key `DPDKMode`.
pub(super) fn driven_by_program(config: &Config) -> Result<Option<String>, Failure> {
    let Some(bus) = &config.pci else {
        return Ok(config.dpdk.then(String::new));
    };
    let folder = pci_folder(bus.id());
    if let (Bus::Id(id), false) = (bus, folder.exists()) {
        if auxiliary_folder(id).exists() {
            return Ok(None);
        }
        return Err(held(config).unwrap_or_else(|| {
            invalid(
                format!("runtime config DeviceID {id} not found or unsupported"),
                "key \"runtimeConfig.deviceID\" is a PCI address, or the name of a device of the auxiliary bus",
            )
        }));
    }
    let link = folder.join("driver");
    let driver = fs::canonicalize(&link).map_err(|error| {
        invalid(
            format!("error with host device: lstat {}: {}", link.display(), words(&error)),
            format!("key {:?} names no PCI device with a driver", key_of(bus)),
        )
    })?;
    let name = driver.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    Ok(USER_SPACE_DRIVERS.contains(&name).then(|| bus.id().to_owned()))
}

fn key_of(bus: &Bus) -> &'static str {
    match bus {
        Bus::Pci(_) => "pciBusID",
        Bus::Id(_) => "runtimeConfig.deviceID",
    }
}

fn find(config: &Config, host: &mut RouteSocket) -> Result<Option<Link>, Failure> {
    match &config.device {
        Device::Name(name) => {
            let found = by_name(host, name)?;
            found.map(Some).ok_or_else(|| missing(config, "Link not found"))
        }
        Device::Mac(mac) => by_mac(host, *mac),
        Device::KernelPath(path) => {
            let folder = path.join("net");
            if !folder.is_dir() {
                let why = format!("failed to find network devices at {folder:?}");
                return Err(missing(config, &why));
            }
            first_of(host, path)
        }
        Device::Bus(bus) => by_bus(config, bus, host),
    }
}

/// Finds a link by name. An impossible name belongs to no link.
fn by_name(host: &mut RouteSocket, name: &str) -> Result<Option<Link>, Failure> {
    if name.len() > 127 || name.contains('\0') {
        return Ok(None);
    }
    Ok(host.link_by_name(name)?)
}

/// Finds the first link with a hardware address; hardware comes before links that are stacked on it
/// and share its address.
fn by_mac(host: &mut RouteSocket, mac: MacAddr) -> Result<Option<Link>, Failure> {
    let links = host.links()?;
    let found = links.into_iter().filter(|link| link.mac == Some(mac) && !link.loopback());
    Ok(found.min_by_key(|link| (link.kind.is_some(), link.index)))
}

fn by_bus(config: &Config, bus: &Bus, host: &mut RouteSocket) -> Result<Option<Link>, Failure> {
    let id = bus.id();
    let pci = pci_folder(id);
    if let (Bus::Id(_), false) = (bus, pci.exists()) {
        let found = first_of(host, &auxiliary_folder(id))?;
        return found.map(Some).ok_or_else(|| {
            missing(config, &format!("failed to find device name for auxiliary device {id}"))
        });
    }
    if let Some(found) = first_of(host, &pci)? {
        return Ok(Some(found));
    }
    let has_net = pci.join("net").is_dir() || virtio_folder(&pci).is_some_and(|net| net.is_dir());
    Err(missing(
        config,
        &if has_net {
            format!("failed to find device name for pci address {id}")
        } else {
            format!("no net directory under pci device {id}")
        },
    ))
}

fn first_of(host: &mut RouteSocket, device: &Path) -> Result<Option<Link>, Failure> {
    Ok(device::links_of(host, device)?.into_iter().next())
}

fn pci_folder(id: &str) -> PathBuf {
    Path::new(SYSFS).join("bus/pci/devices").join(id)
}

fn auxiliary_folder(id: &str) -> PathBuf {
    Path::new(SYSFS).join("bus/auxiliary/devices").join(id)
}

/// Returns the folder of a virtio device, which is a device on a PCI device.
fn virtio_folder(pci: &Path) -> Option<PathBuf> {
    let name = entries(pci)?.into_iter().find(|name| name.starts_with("virtio"))?;
    Some(pci.join(name).join("net"))
}

/// Returns the names in a folder, sorted; `None` if there is no such folder.
fn entries(folder: &Path) -> Option<Vec<String>> {
    let entries = fs::read_dir(folder).ok()?;
    let mut names: Vec<_> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    Some(names)
}

fn pci_address(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    is_pci(name).then(|| name.to_owned())
}

/// Returns whether a text is a PCI address, `0000:3b:00.1`: domain, bus, device, function.
fn is_pci(text: &str) -> bool {
    let hex = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<&str> = text.split([':', '.']).collect();
    parts.len() == 4 && text.contains('.') && parts.into_iter().all(hex)
}

fn missing(config: &Config, why: &str) -> Failure {
    let (key, text) = config.selection();
    invalid(
        format!("failed to find host device: {why}"),
        format!("key {key:?} asks for {text}, which is not in the host's namespace"),
    )
}

/// An attachment that has the requested device.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) attachment: AttachmentKey,
    pub(super) recorded: RecordData,
    /// Whether its namespace exists.
    pub(super) alive: bool,
}

/// Returns the attachment that has the requested device, if any.
pub(super) fn holder(config: &Config) -> Option<Holder> {
    let census = Census::new();
    let records = config.index.list().found.into_iter();
    records.filter(|record| record.plugin == HostDevice::NAME).find_map(|record| {
        let recorded: RecordData = serde_json::from_value(record.data.clone()).ok()?;
        if !recorded.is_what(config) {
            return None;
        }
        let alive = may_live(&record, &census);
        Some(Holder { attachment: record.attachment, recorded, alive })
    })
}

fn held(config: &Config) -> Option<Failure> {
    // A device that a program drove needs nothing to return.
    let holder = holder(config).filter(|holder| holder.alive || !holder.recorded.user_space)?;
    if holder.alive {
        return Some(user_space::in_use(config, &holder.attachment));
    }
    let (key, text) = config.selection();
    let message = format!(
        "failed to find host device: {key} {text} is not back yet from {}",
        holder.attachment
    );
    Some(
        Failure::new(codes::CONFLICT, message).with_details(
            "its namespace is gone; DEL or GC of that attachment brings the device home",
        ),
    )
}

fn words(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::is_pci;

    #[test]
    fn pci_addresses() {
        assert!(is_pci("0000:3b:00.1") && is_pci("10000:e1:00.0"));
        for other in
            ["virtio0", "eth0", "pci0000:00", "mlx5_core.sf.2", "", "0000:3b:00", "a:b:c:d"]
        {
            assert!(!is_pci(other), "{other}");
        }
    }
}
