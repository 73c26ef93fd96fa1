//! Answers from published ports leave by the network in which the ports are published.
//!
//! A container in two networks has one default route, so its answers leave by the network of that
//! route, whichever network a request came by. The kernel's reverse path filter (`rp_filter`) of
//! IPv4, where it is strict, drops such a request in the container already, and such an answer on
//! the host. A rule about the container's address lets both pass without loosening the filter: the
//! filter follows the rule, and the answer leaves by the link with its source.

use cni::{AddResult, IpConfig};
use kernel::living::Census;
use kernel::sysctl::Sysctl;
use wanted::Item;

use super::recorded::RecordData;
use super::{Portmap, addresses};
use crate::chained::sbr;
use crate::chained::sbr::own_way::{self, OwnWay};
use crate::engine::{Addition, Picture, Removal, Wants as _};
use crate::shared::attachment;
use crate::shared::failure::Failure;

/// The folder of the links' sysctls, below `/proc/sys`.
const OF_LINKS: &str = "net/ipv4/conf";
/// The value of `rp_filter` that means: strict. 0 is off, 2 is loose.
const STRICT: u8 = 1;

/// Plans what the container's answers need; `None` if they need nothing.
///
/// # Errors
/// Code 8 when the namespace cannot be entered, 100 when the kernel does not answer, 11 when another
/// holds the namespace's lock too long.
pub(super) fn plan(
    attaching: &Addition<'_, Portmap>,
    result: &AddResult,
) -> Result<Option<OwnWay>, Failure> {
    if !is_strict() {
        return Ok(None);
    }
    let call = attaching.call;
    let ifname = call.ifname().as_str();
    let Some(ip) = published(result, ifname) else { return Ok(None) };
    let netns = call.open_netns()?;
    let before = attaching.earlier_record();
    let before = before.as_ref().filter(|record| sbr::is_of(record, &netns));
    let known = before.and_then(RecordData::of).and_then(|recorded| recorded.answers);
    OwnWay::plan(&netns, ifname, &ip, known.as_ref())
}

/// Describes it as items; none if the container's answers need nothing.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn items(
    picture: &mut Picture<'_>,
    ifname: &str,
    result: &AddResult,
    recorded: &RecordData,
) -> Result<Option<(sbr::RecordData, Vec<Item>)>, Failure> {
    let known = recorded.answers.as_ref();
    if known.is_none() && !is_strict() {
        return Ok(None);
    }
    match published(result, ifname) {
        Some(ip) => own_way::items(picture, ifname, &ip, known),
        None => Ok(None),
    }
}

/// Records it before it is made: DEL goes by the record.
///
/// # Errors
/// Code 105 when it cannot be written.
pub(super) fn record(picture: &mut Picture<'_>) -> Result<(), Failure> {
    let (call, index) = (picture.call, picture.index);
    let Some(mut recorded) = RecordData::read(index, call.attachment()) else { return Ok(()) };
    let result = call.require_prev_result(Portmap::NO_PREVIOUS)?;
    let wanted = items(picture, call.ifname().as_str(), &result, &recorded)?;
    let wanted = wanted.map(|(wanted, _)| wanted);
    if wanted.is_none() || wanted == recorded.answers {
        return Ok(());
    }
    recorded.answers = wanted;
    recorded.write(call, index)
}

/// Removes it. A container that cannot be entered keeps it, and nothing of the host depends on it.
pub(super) fn remove(removal: &Removal<'_, Portmap>) {
    let answers = removal.recorded.as_ref().and_then(|recorded| recorded.answers.as_ref());
    let (Some(answers), Some(record)) = (answers, &removal.record) else { return };
    let removed = attachment::recorded_netns(record, &Census::new()).and_then(|netns| {
        netns.map_or(Ok(()), |netns| own_way::remove(&netns, &removal.key.ifname, answers))
    });
    if let Err(failure) = removed {
        let message = failure.message();
        removal.call.warn(format_args!("the rule of the container's answers stays: {message}"));
    }
}

/// Returns the address to which IPv4 ports lead.
fn published(result: &AddResult, ifname: &str) -> Option<IpConfig> {
    let first = addresses(result, ifname).into_iter().find(|at| at.addr().is_ipv4())?;
    result.container_ips(ifname).find(|ip| ip.address == first).cloned()
}

/// Says whether the filter is strict for new links, and so for those of containers. The larger of
/// both values counts (linux Documentation/networking/ip-sysctl.rst). A container's namespace begins
/// with those of the first namespace.
fn is_strict() -> bool {
    let value = |of: &str| {
        let sysctl = Sysctl::of_link(OF_LINKS, of, "rp_filter").ok()?;
        sysctl.read().ok()?.parse::<u8>().ok()
    };
    // Where systemd sets it, the first says it.
    let new = value("default").unwrap_or_default();
    new <= STRICT && value("all").is_some_and(|all| all.max(new) == STRICT)
}
