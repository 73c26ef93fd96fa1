//! DEL, the undoing of ADD, and GC.

use cni::{AttachmentKey, ContainerId, Error, IfName};
use cni_plugin::Call;
use kernel::netns::Netns;
use kernel::route::{Link, RouteSocket};
use state::Index;

use super::connect::Facts;
use super::{NAME, switch};
use crate::shared::failures::Failures;
use crate::shared::kernel_error as kernel;
use crate::shared::shared_object::{FORWARD_V4, FORWARD_V6};
use crate::shared::{attachment, owner};

/// Runs DEL. Needs nothing but the attachment's key; everything else makes it cheaper.
pub(super) fn del(call: &Call<'_>) -> Result<(), Error> {
    attachment::del(call, |netns| all(call, netns))
}

/// Removes everything that ADD made beside the addresses' reservation.
pub(super) fn all(call: &Call<'_>, netns: Option<&Netns>) -> Result<(), Error> {
    let key = call.attachment();
    let index = Index::new(call.roots());
    let mut failures = Failures::new();
    failures.note("remove the link", remove_link(call, &index, key, netns));
    objects(call, &index, key, &mut failures);
    failures.into_result()
}

/// Removes all but the link: filter elements, holds on shared objects, and last the record of them.
fn objects(call: &Call<'_>, index: &Index, key: &AttachmentKey, failures: &mut Failures) {
    let facts = Facts::read(index, key);
    failures.note("remove filter rules", super::filter::remove(index, key, facts.as_ref()));
    let bridge = facts
        .map(|facts| facts.bridge)
        .or_else(|| held_bridge(index, key))
        .or_else(|| configured_bridge(call));
    if let Some(bridge) = bridge {
        failures.note(
            format_args!("let go of bridge {bridge:?}"),
            switch::release(index, &bridge, key),
        );
    }
    for switch in [FORWARD_V4, FORWARD_V6] {
        failures.note("let go of forwarding", switch.release(index, key));
    }
    if failures.is_empty() {
        failures.note("forget the attachment", attachment::forget(index, key, NAME));
    }
}

/// Finds the bridge an attachment holds when its record is lost.
fn held_bridge(index: &Index, key: &AttachmentKey) -> Option<String> {
    index.objects().found.into_iter().find_map(|object| {
        let bridge = object.strip_prefix("bridge ")?;
        index.holders(&object).found.contains(key).then(|| bridge.to_owned())
    })
}

/// Returns the bridge the configuration names. An ADD that was killed may have made it and written down nothing
/// of the attachment yet.
fn configured_bridge(call: &Call<'_>) -> Option<String> {
    #[derive(serde::Deserialize, Default)]
    #[serde(default)]
    struct Only {
        bridge: String,
    }
    let only: Only = call.read_config().ok()?;
    Some(if only.bridge.is_empty() {
        super::config::DEFAULT_BRIDGE.to_owned()
    } else {
        only.bridge
    })
}

/// Deletes the pair: from the host's end, which carries the owner's mark, or from the container's end when
/// somebody else's plugin made it.
fn remove_link(
    call: &Call<'_>,
    index: &Index,
    key: &AttachmentKey,
    netns: Option<&Netns>,
) -> Result<(), Error> {
    let mut host = RouteSocket::open().map_err(kernel)?;
    let known = Facts::read(index, key).map(|facts| facts.host_ifname);
    let names: Vec<String> = known.into_iter().filter(|name| !name.is_empty()).collect();
    let names = if names.is_empty() {
        (0..owner::HOST_IFNAME_ATTEMPTS).map(|attempt| owner::host_ifname(key, attempt)).collect()
    } else {
        names
    };
    let alias = owner::alias(key);
    for name in names {
        if let Some(link) = host.link_by_name(&name).map_err(kernel)?
            && link.alias.as_deref() == Some(&alias)
        {
            host.delete_link(link.index).map_err(kernel)?;
            return Ok(());
        }
    }
    let Some(netns) = netns else { return Ok(()) };
    let mut inside = RouteSocket::open_in(netns).map_err(kernel)?;
    let Some(link) = inside.link_by_name(call.ifname().as_str()).map_err(kernel)? else {
        return Ok(());
    };
    if link.kind.as_deref() != Some("veth") {
        call.warn(format_args!(
            "interface {:?} is no veth link of a bridge; it is left alone",
            link.name
        ));
        return Ok(());
    }
    if let Some(owner) = foreign_owner(&mut host, &link, &alias)? {
        call.warn(format_args!("interface {:?} belongs to {owner}; it is left alone", link.name));
        return Ok(());
    }
    inside.delete_link(link.index).map(drop).map_err(kernel)
}

/// Returns the owner of the host's end of a pair, if it is marked and not with `alias`.
fn foreign_owner(
    host: &mut RouteSocket,
    link: &Link,
    alias: &str,
) -> Result<Option<String>, Error> {
    let Some(peer) = link.peer_index else { return Ok(None) };
    let peer = host.link_by_index(peer).map_err(kernel)?;
    let marked = peer.and_then(|peer| peer.alias);
    Ok(marked
        .filter(|mark| mark.starts_with(owner::PREFIX) && mark != alias)
        .map(|mark| mark.trim_start_matches(owner::PREFIX).to_owned()))
}

/// Runs GC: removes every attachment of this network that is not among the valid ones, found by our records
/// and by the marks on links, then forwards the verb to the address plugin.
pub(super) fn gc(call: &Call<'_>) -> Result<(), Error> {
    let index = Index::new(call.roots());
    let mut failures = Failures::new();
    let records = attachment::stale_records(call, &index, NAME);
    let mut stale: Vec<_> = records.into_iter().map(|record| record.attachment).collect();
    if let Some(marked) = failures.note("list links", marked_links(call)) {
        stale.extend(marked);
    }
    stale.sort();
    stale.dedup();
    stale.retain(|key| !call.is_valid_attachment(key.container_id.as_str(), key.ifname.as_str()));
    for key in &stale {
        let mut own = Failures::new();
        own.note("remove the link", remove_link(call, &index, key, None));
        objects(call, &index, key, &mut own);
        failures.note(format_args!("collect {key}"), own.into_result());
    }
    failures.note("collect filter rules", super::filter::collect(call, &index));
    if let Some(ipam) = call.ipam() {
        failures.note("collect addresses", ipam.gc());
    }
    failures.into_result()
}

/// Lists the attachments of this network that links on the host are marked with.
fn marked_links(call: &Call<'_>) -> Result<Vec<AttachmentKey>, Error> {
    let mut host = RouteSocket::open().map_err(kernel)?;
    let mark = format!("{}{}/", owner::PREFIX, call.network());
    let links = host.links().map_err(kernel)?;
    let keys = links.into_iter().filter_map(|link| {
        let alias = link.alias?;
        let (container_id, ifname) = alias.strip_prefix(&mark)?.split_once('/')?;
        Some(AttachmentKey {
            network: call.network().clone(),
            container_id: ContainerId::new(container_id).ok()?,
            ifname: IfName::new(ifname).ok()?,
        })
    });
    Ok(keys.collect())
}
