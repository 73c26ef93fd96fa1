//! Removes what ADD created.

use kernel::route::{Link, RouteSocket};
use wanted::Limits;

use super::node::{self, Node};
use super::{Bandwidth, RecordData};
use crate::engine::Removal;
use crate::shared::failure::Failure;

/// Removes everything that ADD created.
pub(super) fn take_down(removal: &Removal<'_, Bandwidth>) -> Result<(), Failure> {
    let (key, recorded) = (removal.key, removal.recorded.as_ref());
    let mut socket = RouteSocket::open()?;
    let host = match recorded {
        Some(recorded) => recorded_host(&mut socket, recorded)?,
        None => unrecorded_host(removal, &mut socket),
    };
    let Some(host) = host else { return remove_ifb(removal, &mut socket) };
    let number = host.index;
    let unshaped = Node::observe(&mut socket, key, host).and_then(|mut node| {
        node.recall(recorded);
        node.shape(&Limits::default()).map(drop)
    });
    match unshaped {
        Err(error) if socket.link_by_index(number)?.is_some() => Err(error),
        // The link disappeared in the meantime.
        Err(_) => remove_ifb(removal, &mut socket),
        Ok(()) => Ok(()),
    }
}

/// Finds what a killed ADD or the reference has created, in the same way as ADD does.
fn unrecorded_host(removal: &Removal<'_, Bandwidth>, socket: &mut RouteSocket) -> Option<Link> {
    let call = Some(removal.call).filter(|_| removal.is_own_call())?;
    let netns = call.open_netns_if_there().ok().flatten()?;
    let result = call.prev_result().ok().flatten()?;
    let mut inside = RouteSocket::open_in(&netns).ok()?;
    node::find_host(socket, &mut inside, call.ifname().as_str(), &result).ok()
}

/// Removes what remains when the host's end is gone, and its qdiscs with it.
fn remove_ifb(removal: &Removal<'_, Bandwidth>, socket: &mut RouteSocket) -> Result<(), Failure> {
    // Without our mark it may be of another life of the container.
    let is_past = |ifb: &Link| !removal.call.is_renewed() || ifb.alias.is_some();
    if let Some(ifb) = node::find_ifb(socket, removal.key)?.0.filter(is_past) {
        socket.delete_link(ifb.index)?;
    }
    Ok(())
}

/// Finds the host's end that ADD recorded; a later link may have its name or its ifindex.
fn recorded_host(socket: &mut RouteSocket, recorded: &RecordData) -> Result<Option<Link>, Failure> {
    let found = socket.link_by_index(recorded.host_index)?;
    Ok(found.filter(|link| link.name == recorded.host_ifname))
}
