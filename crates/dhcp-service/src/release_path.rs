//! Reaches DHCP servers once a container's interface is gone.
//!
//! The daemon releases a lease from the lease's address, in a frame as the interface would have
//! sent it. Runtimes may delete the interface before they call DEL, and namespaces vanish. So while
//! the interface lives the daemon looks up what it is attached to; later it makes a similar link
//! there for a moment, or sends the frame by its parent.

use dhcp::MacAddr;
use kernel::packet::{Filter, PacketSocket};
use kernel::route::{
    Change, Link, LinkKind, LinkSet, MacvlanMode, MacvlanOptions, NewLink, OperState, RouteSocket,
    VethPeer,
};
use kernel::sysctl::{Sysctl, SysctlError};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long the link of a container that has ended may keep its hardware address.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause between attempts while that address is busy.
const BUSY_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long a temporary link may take until it carries frames.
const READY_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause between checks of that link; it takes a millisecond.
const READY_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// `linux include/uapi/linux/if_bridge.h` BR_STATE_FORWARDING.
const FORWARDING: u8 = 3;
/// The name of such a link: this prefix and a number of our process.
const PREFIX: &str = "nwdhcp";
/// 802.1Q tag (`linux include/uapi/linux/if_ether.h` ETH_P_8021Q).
const TAG: [u8; 2] = [0x81, 0x00];
/// The offset of a tag in a frame: after both addresses.
const TAG_AT: usize = 12;

/// What an interface is attached to, on the host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ReleasePath {
    /// Its peer is a port of a bridge.
    Bridge { ifname: String },
    /// It is a macvlan on a parent.
    Macvlan { ifname: String },
    /// It is a VLAN on a parent.
    Vlan { ifname: String, id: u16 },
    /// It shares its parent's address (ipvlan).
    Parent { ifname: String },
    /// Nothing that is known, or nothing that outlives it.
    #[default]
    Unknown,
}

/// A frame could not be sent.
#[derive(Debug, Error)]
pub(crate) enum ReleasePathError {
    #[error("nothing on the host leads to the server")]
    None,
    #[error("{0:?} is gone")]
    Gone(String),
    #[error(transparent)]
    Link(#[from] kernel::NetlinkError),
    #[error(transparent)]
    Socket(#[from] kernel::packet::PacketError),
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}

impl ReleasePath {
    /// Looks up what a container's interface is attached to. `host` is a socket of the host's
    /// namespace.
    pub(crate) fn of(host: &mut RouteSocket, link: &Link) -> ReleasePath {
        let by_index =
            |host: &mut RouteSocket, index: u32| host.link_by_index(index).ok().flatten();
        let Some(lower) = link.peer_index.and_then(|index| by_index(host, index)) else {
            return ReleasePath::Unknown;
        };
        let ifname = lower.name.clone();
        match link.kind.as_deref() {
            Some("veth") => {
                // Numbers are per namespace: the link with that number here may be another one.
                let is_peer = lower.is_kind("veth") && lower.peer_index == Some(link.index);
                let bridge =
                    lower.master.filter(|_| is_peer).and_then(|index| by_index(host, index));
                match bridge.filter(|bridge| bridge.is_kind("bridge")) {
                    Some(bridge) => ReleasePath::Bridge { ifname: bridge.name },
                    None => ReleasePath::Unknown,
                }
            }
            Some("macvlan") => ReleasePath::Macvlan { ifname },
            Some("ipvlan") => ReleasePath::Parent { ifname },
            Some("vlan") => match link.vlan {
                Some(vlan) => ReleasePath::Vlan { ifname, id: vlan.id },
                None => ReleasePath::Unknown,
            },
            _ => ReleasePath::Unknown,
        }
    }

    /// Sends a frame by this path, on the host. May take two seconds.
    pub(crate) fn send(&self, frame: &[u8], mac: MacAddr) -> Result<(), ReleasePathError> {
        let mut host = RouteSocket::open()?;
        let mut find = |ifname: &str| {
            host.link_by_name(ifname)?.ok_or_else(|| ReleasePathError::Gone(ifname.to_owned()))
        };
        match self {
            ReleasePath::Unknown => Err(ReleasePathError::None),
            ReleasePath::Parent { ifname } => send_by(find(ifname)?.index, frame),
            ReleasePath::Vlan { ifname, id } => send_by(find(ifname)?.index, &tagged(frame, *id)),
            ReleasePath::Bridge { ifname } => {
                let bridge = find(ifname)?.index;
                send_into_bridge(&mut host, bridge, frame, mac)
            }
            ReleasePath::Macvlan { ifname } => {
                let parent = find(ifname)?.index;
                send_by_macvlan(&mut host, parent, frame, mac)
            }
        }
    }
}

fn send_by(ifindex: u32, frame: &[u8]) -> Result<(), ReleasePathError> {
    Ok(PacketSocket::open(ifindex, &Filter::nothing())?.send(frame)?)
}

/// Returns the frame with an 802.1Q tag.
fn tagged(frame: &[u8], id: u16) -> Vec<u8> {
    let mut tagged = frame.to_vec();
    if TAG_AT <= tagged.len() {
        tagged.splice(TAG_AT..TAG_AT, TAG.into_iter().chain(id.to_be_bytes()));
    }
    tagged
}

/// Sends through a temporary port: what a bridge sends itself does not reach the host it belongs
/// to.
fn send_into_bridge(
    host: &mut RouteSocket,
    bridge: u32,
    frame: &[u8],
    mac: MacAddr,
) -> Result<(), ReleasePathError> {
    let near = format!("{PREFIX}c");
    let new = NewLink {
        master: Some(bridge),
        ..NewLink::new(format!("{PREFIX}p"), LinkKind::Veth(VethPeer::new(&near)))
    };
    let port = create(host, &new, &[&near])?;
    let sent = port.peer_index.ok_or(ReleasePathError::Gone(near)).and_then(|near| {
        let set = LinkSet { mac: Some(mac), ..LinkSet::default() }.up(true);
        host.apply_one(&Change::SetLink { ifindex: near, set })?;
        wait(host, near, |link| link.oper_state == OperState::Up)?;
        wait(host, port.index, |link| link.port.is_none_or(|port| port.state == FORWARDING))?;
        send_by(near, frame)
    });
    host.delete_link(port.index)?;
    sent
}

/// Sends through a temporary macvlan: what the parent sends does not reach other macvlans on it.
fn send_by_macvlan(
    host: &mut RouteSocket,
    parent: u32,
    frame: &[u8],
    mac: MacAddr,
) -> Result<(), ReleasePathError> {
    let options = MacvlanOptions { mode: MacvlanMode::Bridge, broadcast_queue_len: None };
    let new = NewLink {
        parent: Some(parent),
        mac: Some(mac),
        ..NewLink::new(format!("{PREFIX}m"), LinkKind::Macvlan(options))
    };
    let link = create_in_turn(host, &new)?;
    let sent = wait(host, link.index, |link| link.oper_state == OperState::Up)
        .and_then(|()| send_by(link.index, frame));
    host.delete_link(link.index)?;
    sent
}

/// Creates a link with the hardware address of one that may still be going: the kernel takes a
/// namespace down some time after its deletion, and keeps the address busy until then.
fn create_in_turn(host: &mut RouteSocket, new: &NewLink) -> Result<Link, ReleasePathError> {
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        match create(host, new, &[]) {
            Err(ReleasePathError::Link(error)) if is_busy(&error) && Instant::now() < deadline => {
                std::thread::sleep(BUSY_POLL_INTERVAL);
            }
            done => return done,
        }
    }
}

/// Says whether another link on the parent has the hardware address (`linux drivers/net/macvlan.c`:
/// EBUSY while it is created, EADDRINUSE while it is set up).
fn is_busy(error: &kernel::NetlinkError) -> bool {
    matches!(error.errno(), Some(kernel::Errno::BUSY | kernel::Errno::ADDRINUSE))
}

/// Creates a temporary link and brings it up; removes one that a killed daemon left. Neither it nor
/// its `others` have IPv6: containers on the same bridge or parent may send router advertisements
/// (CVE-2020-10749).
fn create(
    host: &mut RouteSocket,
    new: &NewLink,
    others: &[&str],
) -> Result<Link, ReleasePathError> {
    let link = match host.create_link(new) {
        Err(error) if error.is_exists() => {
            if let Some(old) = host.link_by_name(&new.name)? {
                host.delete_link(old.index)?;
            }
            host.create_link(new)?
        }
        made => made?,
    };
    let mut names = others.iter().copied().chain([new.name.as_str()]);
    let up = Change::SetLink { ifindex: link.index, set: LinkSet::default().up(true) };
    let ready = names.try_for_each(without_ipv6).and_then(|()| Ok(host.apply_one(&up)?));
    if let Err(error) = ready {
        host.delete_link(link.index)?;
        return Err(error);
    }
    Ok(link)
}

/// Switches IPv6 off on a link. A kernel without IPv6 does not have that switch.
fn without_ipv6(ifname: &str) -> Result<(), ReleasePathError> {
    let switch = Sysctl::of_link("net/ipv6/conf", ifname, "disable_ipv6")?;
    match switch.write("1") {
        Err(error) if !error.is_missing() => Err(error.into()),
        _ => Ok(()),
    }
}

fn wait(
    host: &mut RouteSocket,
    ifindex: u32,
    mut ready: impl FnMut(&Link) -> bool,
) -> Result<(), ReleasePathError> {
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        let link = host.link_by_index(ifindex)?;
        let link = link.ok_or_else(|| ReleasePathError::Gone(format!("link {ifindex}")))?;
        // At the deadline the frame is sent all the same: it may arrive.
        if ready(&link) || deadline < Instant::now() {
            return Ok(());
        }
        std::thread::sleep(READY_POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_stands_behind_both_addresses() {
        let frame: Vec<u8> = (0..16).collect();
        let want = [&frame[..12], &[0x81, 0, 0x01, 0x02], &frame[12..]].concat();
        assert_eq!(tagged(&frame, 0x102), want);
        assert_eq!(tagged(&frame[..3], 1), frame[..3]);
    }
}
