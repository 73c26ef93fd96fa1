//! The VRF of the host that the link with the gateways belongs to (key `vrf`): the bridge, or the link
//! of its VLAN. The VRF is the administrator's; a link of ours is created in it.
//!
//! An existing link is never moved: with a move the kernel sets it down and up, and it loses its IPv6
//! addresses and its routes. Only repair moves one, back to where ADD created it.

use cni::{IfName, code};
use cni_plugin::codes;
use kernel::route::{Change, Link, LinkSet, RouteSocket, TABLE_MAIN};
use wanted::{Place, Vrf};

use super::{bridge_link, vlan_gateway};
use crate::engine::{Comparison, Mismatch, Picture, differs, sound};
use crate::shared::failure::Failure;

/// What to do about a VRF that is missing or is something else.
const KEY: &str = "key \"vrf\" is the name of a VRF of the host, which its administrator creates: \
                   ip link add NAME type vrf table NUMBER; ip link set NAME up";

/// Why repair leaves a link outside.
const OF_OTHERS: &str = "another program created the link, and repair leaves it alone";

/// Reads the key.
///
/// # Errors
/// Code 7 for what cannot be the name of a link, and for a network without a gateway.
pub(super) fn parse(text: &str, has_gateway: bool) -> Result<Option<IfName>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    let name = IfName::new(text)
        .map_err(|error| invalid(format!("invalid vrf {text:?}: {}", error.msg)))?;
    if !has_gateway {
        let message = format!("vrf {text:?} needs isGateway or isDefaultGateway");
        return Err(Failure::new(code::INVALID_CONFIG, message).with_details(
            "without a gateway on the host, the host routes nothing for the network",
        ));
    }
    Ok(Some(name))
}

/// Finds the VRF, if the configuration names one.
///
/// # Errors
/// Code 7 when no VRF has this name.
pub(super) fn find(host: &mut RouteSocket, name: Option<&str>) -> Result<Option<Link>, Failure> {
    let Some(name) = name else { return Ok(None) };
    let Some(link) = host.link_by_name(name)? else {
        return Err(invalid(format!("VRF {name:?} does not exist")));
    };
    require_vrf(&link, name)?;
    Ok(Some(link))
}

/// Refuses a name that is not that of a VRF, or not a VRF's own: the packet filter knows the VRF by its
/// own name alone.
fn require_vrf(link: &Link, name: &str) -> Result<(), Failure> {
    if link.vrf_table.is_none() {
        let kind = link.kind.as_deref().unwrap_or("physical link");
        return Err(invalid(format!("{name:?} is not a VRF but a {kind}")));
    }
    if link.name != name {
        return Err(invalid(format!("{name:?} is another name of VRF {:?}", link.name)));
    }
    Ok(())
}

/// Returns the ifindex of the VRF, as the master of a link to create.
///
/// # Errors
/// As [`find`].
pub(super) fn index(host: &mut RouteSocket, name: Option<&str>) -> Result<Option<u32>, Failure> {
    Ok(find(host, name)?.map(|vrf| vrf.index))
}

/// Returns the routing table of the containers' packets: the VRF's, or the main one.
pub(super) fn table(vrf: Option<&Link>) -> u32 {
    vrf.and_then(|vrf| vrf.vrf_table).unwrap_or(TABLE_MAIN)
}

/// Refuses an existing link that does not belong to the VRF that the configuration names. Changes
/// nothing.
///
/// # Errors
/// As [`find`]; code 108 when the link belongs to another link, or to none.
pub(super) fn require_inside(
    host: &mut RouteSocket,
    link: &Link,
    vrf: Option<&str>,
) -> Result<(), Failure> {
    let Some(vrf) = find(host, vrf)? else { return Ok(()) };
    if link.master == Some(vrf.index) {
        return Ok(());
    }
    let (name, wanted) = (&link.name, &vrf.name);
    let place = match link.master {
        None => "is in no VRF".to_owned(),
        Some(index) => {
            let master = host.link_by_index(index)?;
            format!("belongs to {:?}", master.map_or(index.to_string(), |master| master.name))
        }
    };
    let message = format!("link {name:?} {place}, the configuration asks for VRF {wanted:?}");
    Err(Failure::new(codes::CONFLICT, message).with_details(format!(
        "containers that use it would lose their routes: detach them first, or name another bridge; \
         an administrator moves the link with: ip link set {name} master {wanted}"
    )))
}

/// Refuses what would make every ADD on this host fail: the name of a link that is not a VRF, and an
/// existing link outside the VRF. A VRF that does not exist yet may come.
///
/// # Errors
/// As [`require_inside`].
pub(super) fn fits_host(
    host: &mut RouteSocket,
    vrf: Option<&IfName>,
    link: &str,
) -> Result<(), Failure> {
    let Some(name) = vrf.map(IfName::as_str) else { return Ok(()) };
    let Some(vrf) = host.link_by_name(name)? else { return Ok(()) };
    require_vrf(&vrf, name)?;
    let Some(link) = host.link_by_name(link)? else { return Ok(()) };
    require_inside(host, &link, Some(name))
}

/// Compares the VRF of a link. If the link is gone, another item says so.
///
/// # Errors
/// Code 100 when the kernel does not answer, 105 when the bridge's note cannot be read.
pub(super) fn compare(picture: &mut Picture<'_>, wanted: &Vrf) -> Comparison {
    let (name, vrf) = (&wanted.link, &wanted.vrf);
    let Some(link) = picture.link(Place::Host, name)? else { return sound() };
    let found = picture.link(Place::Host, vrf)?;
    let Some(found) = found.filter(|found| found.vrf_table.is_some()) else {
        let text = format!("link {name:?} is in no VRF: VRF {vrf:?} is gone");
        return Ok(vec![Mismatch::by_hand(text, KEY)]);
    };
    if link.master == Some(found.index) {
        return sound();
    }
    let text = format!("link {name:?} is not in VRF {vrf:?} any more");
    let is_ours = vlan_gateway::is_ours(&link)
        || bridge_link::read_note(picture.index, name)?.is_of(Some(&link));
    if is_ours { differs(text) } else { Ok(vec![Mismatch::by_hand(text, OF_OTHERS)]) }
}

/// Moves a link of ours back into its VRF. What the kernel takes from it meanwhile differs then, and
/// is restored next.
///
/// # Errors
/// As [`find`]; code 100 with the kernel's words.
pub(super) fn restore(picture: &mut Picture<'_>, wanted: &Vrf) -> Result<(), Failure> {
    let host = &mut picture.namespaces.get()?.host;
    let Some(link) = host.link_by_name(&wanted.link)? else { return Ok(()) };
    let master = index(host, Some(&wanted.vrf))?;
    let set = LinkSet { master: Some(master), ..LinkSet::default() };
    Ok(host.apply_one(&Change::SetLink { ifindex: link.index, set })?)
}

fn invalid(message: String) -> Failure {
    Failure::new(code::INVALID_CONFIG, message).with_details(KEY)
}
