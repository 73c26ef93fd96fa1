//! Links that come up closed, because the plugin `policy` follows in the list and opens them.
//!
//! Between the ADD of the plugin that makes a link and that of `policy`, processes that are in the
//! container already could send and receive: packets of running containers that join a network. So
//! the link comes up as one without addresses ([`firewall::pod_link`]), and where the container's
//! own namespace judges packets, with a verdict that drops all of them. Whoever walks the list says
//! what follows ([`cni::FOLLOWED_BY`]): nothing else tells such a network from one whose links
//! nobody would open.
//!
//! An IPAM plugin that needs the link, as `dhcp` does, has it open until there are addresses.

use cni_plugin::Call;
use firewall::{Plan, pod_link};
use kernel::netns::Netns;
use node_api::policy::{PLUGIN, is_further};
use serde::Deserialize as _;
use serde_json::Value;
use state::{Index, Record};

use super::failure::Failure;
use crate::chained::policy;

/// The key of a record: the container's namespace has a verdict of the interface.
const KEY: &str = "closed";

/// Reports whether `policy` opens the link of this ADD.
#[must_use]
pub(crate) fn awaits_policy(call: &Call<'_>) -> bool {
    call.common().followed_by.iter().any(|name| name == PLUGIN)
}

/// Plans that the host's end of a link passes no address, if `policy` opens it.
#[must_use]
pub(crate) fn plan(call: &Call<'_>, host_ifname: &str, place: pod_link::Place) -> Plan {
    match awaits_policy(call) {
        true => pod_link::plan(host_ifname, place, &[]),
        false => Plan::default(),
    }
}

/// Reports whether a record is that of a plugin that closed the host's end.
#[must_use]
pub(crate) fn closed_by(record: &Record) -> bool {
    let planned = record.data.get("filter").and_then(|plan| Plan::deserialize(plan).ok());
    let mut sets = planned.iter().flat_map(|plan| &plan.own).map(|element| element.set);
    sets.any(|set| pod_link::SETS.contains(&set))
}

/// Closes an interface in the container's namespace, if `policy` opens it there. `record` writes
/// the record with what is added to it, before anything is changed.
///
/// # Errors
/// Code 101 when the kernel refuses, 105 or 11 when our own files fail.
pub(crate) fn close_inside(
    call: &Call<'_>,
    index: &Index,
    netns: &Netns,
    recorded: &mut Value,
    record: impl FnOnce(&Value) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let ifname = call.ifname().as_str();
    if !awaits_policy(call) || !is_further(ifname) {
        return Ok(());
    }
    recorded[KEY] = true.into();
    record(recorded)?;
    policy::close_inside(index, netns, ifname)
}

/// Removes what [`close_inside`] did, if that is recorded and the link is gone. The plugin `policy`
/// has done so if its DEL ran.
///
/// # Errors
/// As [`close_inside`].
pub(crate) fn forget_inside(
    index: &Index,
    netns: Option<&Netns>,
    ifname: &str,
    recorded: Option<&Value>,
) -> Result<(), Failure> {
    let is_closed = recorded.is_some_and(|recorded| recorded[KEY] == true);
    match netns.filter(|_| is_closed) {
        Some(netns) => policy::forget_inside(index, netns, ifname),
        None => Ok(()),
    }
}
