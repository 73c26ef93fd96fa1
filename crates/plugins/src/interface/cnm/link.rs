//! Moves the link that a driver lends into the container, and back.

use cni::{AttachmentKey, IfName, code};
use cni_plugin::{Call, codes};
use kernel::mac::MacAddr;
use kernel::netns::Netns;
use kernel::route::{Change, Link, LinkSet, RouteSocket};

use super::journal::LentLink;
use crate::shared::failure::Failure;
use crate::shared::namespaces::Namespaces;
use crate::shared::owner;

/// Returns the ifindexes of the links in the container.
pub(super) fn numbers(namespaces: &mut Namespaces) -> Result<Vec<u32>, Failure> {
    let links = namespaces.inside.links()?;
    Ok(links.iter().map(|link| link.index).collect())
}

/// A link that a driver named, or put into the container.
#[derive(Debug)]
pub(super) struct OfferedLink {
    pub(super) lent: LentLink,
    /// Its counterparts on the host: the other end of a pair, after the bridge that it is on.
    pub(super) host_side: Vec<Link>,
    ifindex: u32,
}

/// Finds the link that a driver calls `src_name`; without a name, the one that appeared in the
/// container since `before`.
///
/// # Errors
/// Code 111 when there is none.
pub(super) fn find(
    driver: &str,
    namespaces: &mut Namespaces,
    src_name: &str,
    before: &[u32],
) -> Result<OfferedLink, Failure> {
    let wrong = |what: String| Failure::new(codes::DRIVER, format!("driver {driver:?} {what}"));
    if src_name.is_empty() {
        let links = namespaces.inside.links()?;
        let mut new = links.iter().filter(|link| !before.contains(&link.index));
        return match (new.next(), new.next()) {
            (Some(link), None) => {
                let peer = link.link_netnsid.and(link.peer_index).filter(|_| link.is_kind("veth"));
                let host_side = host_side(&mut namespaces.host, peer, link)?;
                Ok(offered(link, true, host_side))
            }
            (None, _) => {
                Err(wrong("named no interface, and put none into the container".to_owned()))
            }
            (Some(one), Some(two)) => Err(wrong(format!(
                "named no interface, and put several into the container: {:?}, {:?}",
                one.name, two.name
            ))),
        };
    }
    if IfName::new(src_name).is_err() {
        return Err(wrong(format!("named an interface that cannot be: {src_name:?}")));
    }
    match namespaces.host.link_by_name(src_name)? {
        Some(link) if link.loopback() => Err(wrong(format!("named the loopback {src_name:?}"))),
        Some(link) => {
            let peer = link.peer_index.filter(|_| link.is_kind("veth"));
            let peer = peer.filter(|_| link.link_netnsid.is_none());
            let host_side = host_side(&mut namespaces.host, peer, &link)?;
            Ok(offered(&link, false, host_side))
        }
        None => Err(wrong(format!("named interface {src_name:?}, which is not on the host"))),
    }
}

fn offered(link: &Link, placed: bool, host_side: Vec<Link>) -> OfferedLink {
    let alias = link.alias.clone().unwrap_or_default();
    let lent = LentLink { name: link.name.clone(), alias, placed, inside: None };
    OfferedLink { lent, host_side, ifindex: link.index }
}

/// Returns the other end of a pair on the host, after the bridge that it is on. A driver may keep
/// that end elsewhere.
fn host_side(host: &mut RouteSocket, peer: Option<u32>, link: &Link) -> Result<Vec<Link>, Failure> {
    let Some(peer) = peer else { return Ok(Vec::new()) };
    let found = host.link_by_index(peer)?;
    // An ifindex of another namespace may belong to any link here: the two ends must name each
    // other.
    let Some(end) = found.filter(|end| end.is_kind("veth") && end.peer_index == Some(link.index))
    else {
        return Ok(Vec::new());
    };
    let bridge = match end.master {
        Some(master) => host.link_by_index(master)?,
        None => None,
    };
    Ok(bridge.filter(|bridge| bridge.is_kind("bridge")).into_iter().chain([end]).collect())
}

/// Brings the link into the container with its final name, address and mark, in one message if it
/// moves. It stays down.
///
/// # Errors
/// Code 100.
pub(super) fn take(
    call: &Call<'_>,
    namespaces: &mut Namespaces,
    offered: &OfferedLink,
    mac: Option<MacAddr>,
) -> Result<Link, Failure> {
    let ifname = call.ifname().as_str();
    let set = LinkSet {
        name: Some(ifname.to_owned()),
        alias: Some(owner::alias(call.attachment())),
        ..LinkSet::default()
    };
    let failed = |error| {
        Failure::from(error).context(format_args!("failed to take link {:?}", offered.lent.name))
    };
    let ifindex = offered.ifindex;
    if offered.lent.placed {
        let down = Change::SetLink { ifindex, set: LinkSet::default().up(false) };
        namespaces.inside.apply_one(&down).map_err(failed)?;
        namespaces.inside.apply_one(&Change::SetLink { ifindex, set }).map_err(failed)?;
    } else {
        let set = LinkSet { netns: Some(namespaces.netns.clone()), ..set };
        namespaces.host.apply_one(&Change::SetLink { ifindex, set }).map_err(failed)?;
    }
    let gone = || {
        Failure::new(
            codes::CONFLICT,
            format!("link {:?} vanished on its way into the container", offered.lent.name),
        )
    };
    let link = namespaces.inside.link_by_name(ifname)?.ok_or_else(gone)?;
    let Some(mac) = mac.filter(|mac| link.mac != Some(*mac)) else { return Ok(link) };
    let set = LinkSet { mac: Some(mac), ..LinkSet::default() };
    namespaces.inside.apply_one(&Change::SetLink { ifindex: link.index, set }).map_err(failed)?;
    namespaces.inside.link_by_name(ifname)?.ok_or_else(gone)
}

/// Finds an attachment's link in its container by its mark, under any name.
///
/// # Errors
/// Code 100.
pub(super) fn marked(
    inside: &mut RouteSocket,
    key: &AttachmentKey,
) -> Result<Option<Link>, Failure> {
    let mark = owner::alias(key);
    let is_it = |link: &Link| link.alias.as_deref() == Some(&mark);
    let named = inside.link_by_name(key.ifname.as_str())?;
    if let Some(link) = named.filter(&is_it) {
        return Ok(Some(link));
    }
    Ok(inside.links()?.into_iter().find(is_it))
}

/// Finds the link that was lent: the recorded one, and not another that has its mark.
fn lent_link(
    call: &Call<'_>,
    inside: &mut RouteSocket,
    key: &AttachmentKey,
    lent: &LentLink,
) -> Result<Option<Link>, Failure> {
    let Some(identity) = lent.inside else { return marked(inside, key) };
    let found = identity.find(inside)?;
    if found.is_none() && marked(inside, key)?.is_some() {
        call.warn(format_args!(
            "interface {:?} is another link than {:?}, which the driver lent; it stays there",
            key.ifname.as_str(),
            lent.name
        ));
    }
    Ok(found)
}

/// Restores the link as it came: under its name, and on the host unless the driver had put it into
/// the container itself. If there is no link to restore, that is success.
///
/// # Errors
/// Code 100.
pub(super) fn give_back(
    call: &Call<'_>,
    key: &AttachmentKey,
    netns: &Netns,
    lent: &LentLink,
) -> Result<(), Failure> {
    let mut inside = RouteSocket::open_in(netns)?;
    let Some(link) = lent_link(call, &mut inside, key, lent)? else { return Ok(()) };
    let home =
        Netns::current().map_err(|error| Failure::from_chain(code::INVALID_NETNS, &error))?;
    let ifindex = link.index;
    let set = LinkSet {
        netns: (!lent.placed).then_some(home),
        name: Some(lent.name.clone()),
        alias: Some(lent.alias.clone()),
        ..LinkSet::default()
    };
    let down = Change::SetLink { ifindex, set: LinkSet::default().up(false) };
    let done =
        inside.apply_one(&down).and_then(|()| inside.apply_one(&Change::SetLink { ifindex, set }));
    match done {
        Err(error) if error.is_not_found() => Ok(()),
        // Another link has its name by now, so the link that the driver created for this container
        // is of no further use.
        Err(error) if error.is_exists() && link.kind.is_some() => {
            call.warn(format_args!("link {:?} is deleted, not given back: {error}", lent.name));
            Ok(inside.delete_link(ifindex).map(drop)?)
        }
        done => done.map_err(|error| {
            Failure::from(error).context(format_args!("failed to give link {:?} back", lent.name))
        }),
    }
}
