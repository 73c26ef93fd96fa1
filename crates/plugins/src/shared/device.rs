//! The device behind a link, as sysfs has it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use cni::AttachmentKey;
use kernel::route::{Link, RouteSocket};
use state::Index;

use super::failure::Failure;
use crate::interface::host_device::HostDevice;
use crate::interface::single::SingleLink;

/// Where sysfs is.
const SYSFS: &str = "/sys";

/// Returns the folder of the device that a link is a function of, below `/sys/devices`; `None` if
/// there is none.
///
/// sysfs lists a link's own folder under its name in the network namespace that sysfs was mounted
/// from, which may be another one. Devices are the same in all namespaces, so the kernel is asked
/// for the device.
pub(crate) fn folder(link: &Link) -> Option<PathBuf> {
    reported_folder(link).unwrap_or_else(|| {
        // Kernels before 5.14 do not report the device: the folder must prove that it belongs to
        // this very link.
        let own = Path::new(SYSFS).join("class/net").join(&link.name);
        is_of(&own, link).then(|| fs::canonicalize(own.join("device")).ok())?
    })
}

/// Returns the folder that the kernel reports; `None` if it reports none.
fn reported_folder(link: &Link) -> Option<Option<PathBuf>> {
    let (bus, device) = (link.parent_bus.as_ref()?, link.parent_device.as_ref()?);
    let path = Path::new(SYSFS).join("bus").join(bus).join("devices").join(device);
    Some(fs::canonicalize(path).ok())
}

/// Reports whether a link's folder in sysfs belongs to this link, and not to a link of that name in
/// another namespace.
fn is_of(folder: &Path, link: &Link) -> bool {
    let says = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
    says("ifindex").trim() == link.index.to_string()
        && link.mac.is_some_and(|mac| says("address").trim() == mac.to_string())
}

/// Finds the links that are functions of a device, or of a virtio device on it, given its folder in
/// sysfs; sorted by name.
///
/// The names there are those of the network namespace that sysfs was mounted from, as with
/// [`folder`]. The kernel tells whether a link belongs to the device; if it does not report that,
/// the link's folder tells.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(crate) fn links_of(host: &mut RouteSocket, device: &Path) -> Result<Vec<Link>, Failure> {
    let Ok(own) = fs::canonicalize(device) else { return Ok(Vec::new()) };
    let is_its = |folder: &Path| {
        let on_it = folder.parent() == Some(&own);
        folder == own || (on_it && folder.file_name().is_some_and(is_virtio))
    };
    let mut found = Vec::new();
    let virtio = entries(&own).into_iter().filter(|name| is_virtio(OsStr::new(name)));
    for device in virtio.map(|name| own.join(name)).chain([own.clone()]) {
        for name in entries(&device.join("net")) {
            let Some(link) = host.link_by_name(&name)? else { continue };
            if match reported_folder(&link) {
                Some(folder) => folder.as_deref().is_some_and(is_its),
                None => is_of(&device.join("net").join(&name), &link),
            } {
                found.push(link);
            }
        }
    }
    if found.is_empty() {
        // In the namespace of these names the link may have another name, or be absent.
        let links = host.links()?.into_iter();
        found.extend(
            links.filter(|link| reported_folder(link).flatten().as_deref().is_some_and(is_its)),
        );
    }
    cni::order::sort_by(&mut found, |one, other| one.name.cmp(&other.name));
    found.dedup_by_key(|link| link.index);
    Ok(found)
}

/// Returns whether a name is that of a virtio device, which is a device on a PCI device.
fn is_virtio(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("virtio"))
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Reports whether an attachment's link was lent to its container, so that it outlives it: hardware,
/// which no plugin makes, and what `host-device` moved there.
pub(crate) fn is_lent(index: &Index, key: &AttachmentKey, link: &Link) -> bool {
    let is_hardware = link.kind.is_none() && !link.loopback();
    is_hardware || index.get(key, <HostDevice as SingleLink>::NAME).found.is_some()
}

/// Returns the name of the driver of the device behind a link.
pub(crate) fn driver(link: &Link) -> Option<String> {
    let target = fs::read_link(folder(link)?.join("driver")).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}
