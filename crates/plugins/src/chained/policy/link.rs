//! Where packets of a container's link are judged: at the host's side of it, or in the container.

use std::net::IpAddr;

use cni::{AddResult, AttachmentKey, code};
use kernel::route::{BridgeInfo, IpvlanMode, Link, RouteSocket};
use node_api::policy::{AttachmentRecord, is_further};

use crate::shared::failure::Failure;
use crate::shared::namespaces::Namespaces;
use crate::shared::owner;

/// Where packets of a container's link are judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Side {
    /// By this node, which filters them.
    Host(HostSide),
    /// In the container's own namespace: they do not pass this node's filters, or no hook here sees
    /// them.
    Inside,
}

/// The host's side of a container's link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostSide {
    /// Its name.
    pub(super) name: String,
    /// Its ifindex.
    pub(super) index: u32,
    /// The bridge whose port it is.
    pub(super) bridge: Option<Bridge>,
}

/// A bridge, as it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bridge {
    /// Its name.
    pub(super) name: String,
    /// Its ifindex.
    pub(super) index: u32,
    /// Its settings.
    pub(super) info: BridgeInfo,
}

/// A link of the host that `prevResult` lists, of an attachment without a record.
#[derive(Debug)]
pub(super) enum ListedLink {
    /// It has the attachment's mark.
    Own(Box<Link>),
    /// There is none.
    Gone,
    /// It has no such mark.
    Anothers,
}

/// Finds where the packets of the container's interface are judged. On the container's own network
/// they must pass this node's packet filter.
///
/// # Errors
/// Code 7 for an interface that cannot be judged.
pub(super) fn find(
    namespaces: &mut Namespaces,
    ifname: &str,
    result: &AddResult,
) -> Result<Side, Failure> {
    let Namespaces { host, inside, .. } = namespaces;
    let refused = |why: String| {
        let text = format!("network policy cannot judge interface {ifname}: {why}");
        Failure::new(code::INVALID_CONFIG, text)
            .with_details("the plugin works behind bridge and ptp, whose packets this node filters")
    };
    let is_further = is_further(ifname);
    let Some(link) = inside.link_by_name(ifname)? else {
        return Err(refused("it is not in the container".to_owned()));
    };
    let mut in_the_container = || -> Result<Side, Failure> {
        match link.master.map(|master| inside.link_by_index(master)).transpose()?.flatten() {
            // No hook of IP sees what a port passes to such a master.
            Some(master) if !master.is_kind("vrf") => {
                Err(refused(format!("it is a port of {:?} in the container", master.name)))
            }
            _ => Ok(Side::Inside),
        }
    };
    let peer = match (link.kind.as_deref(), link.peer_index) {
        (Some("veth"), Some(peer)) => peer,
        _ if is_further => {
            can_be_judged(&link).map_err(refused)?;
            return in_the_container();
        }
        (kind, _) => {
            let kind = kind.unwrap_or("physical");
            return Err(refused(format!("it is a {kind} link, not one of a pair with the node")));
        }
    };
    // An ifindex counts in its own namespace: here it may be another link's.
    let peer = host.link_by_index(peer)?;
    let peer = peer.filter(|peer| peer.is_kind("veth") && peer.peer_index == Some(link.index));
    let Some(peer) = peer else {
        return match is_further {
            true => in_the_container(),
            false => Err(refused("its other end is not on this node".to_owned())),
        };
    };
    let is_listed = |peer: &Link| {
        let mut host = result.interfaces.iter().filter(|listed| listed.sandbox.is_empty());
        host.any(|listed| listed.name == peer.name)
    };
    // The other end of a device that was lent to the container may be here, and belong to another
    // program.
    if !is_listed(&peer) && is_further {
        return in_the_container();
    }
    if !is_listed(&peer) {
        let text = format!("prevResult does not list its other end, {:?}", peer.name);
        return Err(refused(text));
    }
    let master = peer.master.map(|master| host.link_by_index(master)).transpose()?.flatten();
    let bridge = match master {
        // There the filter sees a packet at the link, at the routing domain, or at the VLAN's
        // interface.
        Some(master) if is_further && is_seen_elsewhere(&master) => {
            let kind = master.kind.as_deref().unwrap_or_default();
            let text = format!(
                "behind {:?} ({kind}), packets of a further network are seen at several interfaces",
                master.name
            );
            return Err(refused(text));
        }
        // A routing domain routes, so its packets are filtered like others.
        None => None,
        Some(master) if master.is_kind("vrf") => None,
        Some(master) if master.bridge.is_some() => Bridge::of(master),
        // A switch, which shows its frames to no filter of IP.
        Some(_) if is_further => return in_the_container(),
        Some(master) => {
            let kind = master.kind.as_deref().unwrap_or("physical");
            let text = format!("its other end is a port of {:?} ({kind})", master.name);
            return Err(refused(text));
        }
    };
    Ok(Side::Host(HostSide { name: peer.name, index: peer.index, bridge }))
}

/// Refuses a link without a side on this node that cannot be judged in its container either, and
/// says why.
fn can_be_judged(link: &Link) -> Result<(), String> {
    if link.tun.is_some() {
        let why = "it is a tap, by which its machine's packets come in and do not go out";
        return Err(why.to_owned());
    }
    // The kernel receives its packets in the parent's namespace, and hands them to the container's
    // sockets after the hook (linux drivers/net/ipvlan/ipvlan_l3s.c `ipvlan_nf_input`).
    if link.ipvlan_mode == Some(IpvlanMode::L3s) {
        let why = "packets of an ipvlan in mode l3s are received in its parent's namespace: it can be \
                   judged in mode l2 or l3";
        return Err(why.to_owned());
    }
    Ok(())
}

/// Says whether the filter sees packets of a port at other interfaces too: with a routing domain,
/// and with a bridge that distinguishes VLANs.
fn is_seen_elsewhere(master: &Link) -> bool {
    let tells_vlans = master.bridge.as_ref().is_some_and(|info| info.vlan_filtering);
    tells_vlans || master.is_kind("vrf")
}

impl HostSide {
    /// Returns where the packet filter sees its packets, if the interface in the container is that
    /// of a further network. Frames that a bridge shows it are at the bridge.
    pub(super) fn meets(&self, ifname: &str) -> Option<String> {
        let seen_at = self.bridge.as_ref().map_or(&self.name, |bridge| &bridge.name);
        is_further(ifname).then(|| seen_at.clone())
    }
}

impl Bridge {
    /// Reads a bridge; `None` if there is none with this ifindex.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    pub(super) fn read(host: &mut RouteSocket, index: u32) -> Result<Option<Self>, Failure> {
        Ok(host.link_by_index(index)?.and_then(Bridge::of))
    }

    /// Returns what is known of a link, if it is a bridge.
    pub(super) fn of(link: Link) -> Option<Self> {
        let Link { name, index, bridge, .. } = link;
        bridge.map(|info| Bridge { name, index, info })
    }
}

/// Lists the addresses of the container's interface, sorted, each once.
pub(super) fn addresses(result: &AddResult, ifname: &str) -> Vec<IpAddr> {
    sorted(result.container_ips(ifname).map(|ip| ip.address.addr()).collect())
}

/// Lists the addresses of a result, on all interfaces.
pub(super) fn all_addresses(result: &AddResult) -> Vec<IpAddr> {
    sorted(result.ips.iter().map(|ip| ip.address.addr()).collect())
}

fn sorted(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Finds the link that ADD recorded; a later link may have its name, or its ifindex. If another
/// program has renamed it, its mark shows that it is the same.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn recorded(
    host: &mut RouteSocket,
    key: &AttachmentKey,
    recorded: &AttachmentRecord,
) -> Result<Option<Link>, Failure> {
    let Some(index) = recorded.index else { return Ok(None) };
    let found = host.link_by_index(index)?;
    Ok(found.filter(|link| is_named(link, recorded) || is_marked(link, key)))
}

/// Reports whether a link has the name that ADD recorded.
pub(super) fn is_named(link: &Link, recorded: &AttachmentRecord) -> bool {
    recorded.started.interface.as_deref() == Some(link.name.as_str())
}

/// Finds the link with the mark of an attachment about which nothing else is known.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn marked(host: &mut RouteSocket, key: &AttachmentKey) -> Result<Option<Link>, Failure> {
    Ok(host.links()?.into_iter().find(|link| link.is_kind("veth") && is_marked(link, key)))
}

/// Finds the link of an attachment without a record.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn listed(
    host: &mut RouteSocket,
    key: &AttachmentKey,
    result: &AddResult,
) -> Result<ListedLink, Failure> {
    let mut found = ListedLink::Gone;
    for listed in result.interfaces.iter().filter(|listed| listed.sandbox.is_empty()) {
        let Some(link) = host.link_by_name(&listed.name)? else { continue };
        if is_marked(&link, key) {
            return Ok(ListedLink::Own(Box::new(link)));
        }
        if link.is_kind("veth") {
            found = ListedLink::Anothers;
        }
    }
    Ok(found)
}

/// Reports whether a link has the mark of an attachment.
pub(super) fn is_marked(link: &Link, key: &AttachmentKey) -> bool {
    link.alias.as_deref() == Some(&owner::alias(key))
}
