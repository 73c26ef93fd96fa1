//! DEL and GC.

use cni::{AttachmentKey, ContainerId, Error, IfName};
use cni_plugin::Call;
use kernel::route::{Link, RouteSocket};
use state::Index;
use wanted::Limits;

use super::node::{self, Node};
use super::{NAME, Recorded};
use crate::shared::attachment::{self, Stale};
use crate::shared::failures::Failures;
use crate::shared::{kernel_error as kernel, owner};

/// Runs DEL. Needs only the attachment's key.
pub(super) fn del(call: &Call<'_>) -> Result<(), Error> {
    let index = Index::new(call.roots());
    let key = call.attachment();
    let facts: Option<Recorded> = attachment::recorded(&index, key, NAME);
    // Without a record, DEL finds what a killed ADD or the reference has created in the same way as
    // ADD does.
    let unknown = |socket: &mut RouteSocket| match facts {
        Some(_) => None,
        None => {
            let netns = call.open_netns_if_there().ok().flatten()?;
            let result = call.prev_result().ok().flatten()?;
            let mut inside = RouteSocket::open_in(&netns).ok()?;
            node::find_host(socket, &mut inside, call.ifname().as_str(), &result).ok()
        }
    };
    take_down(&index, key, facts.as_ref(), unknown)
}

/// Removes what ADD created, and its record.
fn take_down(
    index: &Index,
    key: &AttachmentKey,
    facts: Option<&Recorded>,
    unknown: impl FnOnce(&mut RouteSocket) -> Option<Link>,
) -> Result<(), Error> {
    let mut socket = RouteSocket::open().map_err(kernel)?;
    let host = match facts {
        Some(facts) => noted_host(&mut socket, facts)?,
        None => unknown(&mut socket),
    };
    match host {
        Some(host) => {
            let number = host.index;
            let unshaped = Node::observe(&mut socket, key, host).and_then(|mut node| {
                node.recall(facts);
                node.shape(&Limits::default()).map(drop)
            });
            if let Err(error) = unshaped {
                if socket.link_by_index(number).map_err(kernel)?.is_some() {
                    return Err(error);
                }
                // The link disappeared in the meantime.
                remove_ifb(&mut socket, key)?;
            }
        }
        None => remove_ifb(&mut socket, key)?,
    }
    attachment::forget(index, key, NAME)
}

/// Removes what remains when the host's end is gone, and its qdiscs with it.
fn remove_ifb(socket: &mut RouteSocket, key: &AttachmentKey) -> Result<(), Error> {
    if let (Some(ifb), _) = node::find_ifb(socket, key)? {
        socket.delete_link(ifb.index).map_err(kernel)?;
    }
    Ok(())
}

/// Finds the host's end that ADD recorded; a later link may have its name or its ifindex.
fn noted_host(socket: &mut RouteSocket, facts: &Recorded) -> Result<Option<Link>, Error> {
    let found = socket.link_by_index(facts.host_index).map_err(kernel)?;
    Ok(found.filter(|link| link.name == facts.host_ifname))
}

/// Runs GC on attachments of this network that are not valid, found by our records and by the marks
/// on links.
pub(super) fn gc(call: &Call<'_>) -> Result<(), Error> {
    let index = Index::new(call.roots());
    let mut failures = Failures::new();
    let recorded = attachment::stale_records(call, &index, NAME);
    let mut stale: Vec<_> = recorded.into_iter().map(|record| record.attachment).collect();
    if let Some(marked) = failures.note("list links", marked(call)) {
        stale.extend(marked);
    }
    stale.sort();
    stale.dedup();
    for key in stale {
        let one = Stale::look(&index, NAME, key);
        let down = one.collect(&index, NAME, || {
            let facts: Option<Recorded> = attachment::recorded(&index, &one.key, NAME);
            take_down(&index, &one.key, facts.as_ref(), |_| None)
        });
        failures.note(format_args!("collect {}", one.key), down);
    }
    failures.into_result()
}

/// Lists the attachments of this network whose mark is on an ifb link and that GC's list does not
/// name.
fn marked(call: &Call<'_>) -> Result<Vec<AttachmentKey>, Error> {
    let mut socket = RouteSocket::open().map_err(kernel)?;
    let mark = format!("{}{}/", owner::PREFIX, call.network());
    let links = socket.links().map_err(kernel)?;
    let keys = links.into_iter().filter(|link| link.is_kind("ifb")).filter_map(|link| {
        let alias = link.alias?;
        let (container_id, ifname) = alias.strip_prefix(&mark)?.split_once('/')?;
        Some(AttachmentKey {
            network: call.network().clone(),
            container_id: ContainerId::new(container_id).ok()?,
            ifname: IfName::new(ifname).ok()?,
        })
    });
    let valid = |key: &AttachmentKey| {
        call.is_valid_attachment(key.container_id.as_str(), key.ifname.as_str())
    };
    Ok(keys.filter(|key| !valid(key)).collect())
}
