//! The links that a container made on the device, such as a macvlan or a VLAN.
//!
//! The kernel leaves them in the container when the device moves, and they go on receiving and
//! sending by it. A link in a namespace that the container made is not visible from the container's
//! own namespace, and is not found.

use cni_plugin::Call;
use kernel::netns::Netns;
use kernel::route::{Link, RouteSocket};

use crate::shared::failure::Failure;

/// The kinds of links that have another end, which the kernel reports as a parent is reported.
const PAIRS: [&str; 3] = ["veth", "netkit", "vxcan"];

/// How often the container's links are listed: it may make links while they are deleted.
const TRIES: usize = 16;

/// Deletes the links on a device, and names them. `home` is the device's namespace if that is no
/// longer the container's. If the container makes links faster than they are deleted, it warns.
///
/// # Errors
/// Code 100 when the kernel refuses.
pub(super) fn delete(
    call: &Call<'_>,
    inside: &mut RouteSocket,
    device: &Link,
    home: Option<&Netns>,
) -> Result<(), Failure> {
    for _ in 0..TRIES {
        let links = inside.links()?;
        // The kernel gives the namespace a number when it first lists such a link.
        let netns_id = match home {
            Some(home) => match inside.netns_id(home)? {
                None => return Ok(()),
                id => id,
            },
            None => None,
        };
        // Hardware has no kind, and cannot be deleted.
        let on_device = links.iter().filter(|link| {
            (link.peer_index, link.link_netnsid) == (Some(device.index), netns_id)
                && link.kind.is_some()
                && !PAIRS.iter().any(|kind| link.is_kind(kind))
        });
        let mut found = false;
        for link in on_device {
            found = true;
            if inside.delete_link(link.index)? {
                call.warn(format_args!(
                    "the container has made {:?} on device {:?}, which returns to the host; it is deleted",
                    link.name, device.name
                ));
            }
        }
        if !found {
            return Ok(());
        }
    }
    call.warn(format_args!(
        "the container goes on making links on device {:?}: they still receive and send by it",
        device.name
    ));
    Ok(())
}
