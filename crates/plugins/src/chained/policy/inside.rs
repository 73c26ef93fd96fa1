//! The table in the container's own namespace, for further networks whose packets do not pass this
//! node: macvlan, ipvlan, SR-IOV and other devices that were moved there, VLANs, Open vSwitch.
//!
//! The container's interface leads to the verdicts of its pod. Other interfaces of the container may
//! have theirs in the same table.

use ::firewall::FirewallError;
use ::firewall::pods::{self, PodsTable};
use kernel::living::Census;
use kernel::netns::Netns;
use kernel::route::{Change, Link, LinkSet, RouteSocket};
use node_api::policy::AttachmentRecord;
use state::{Index, Record};

use super::{NAME, Policy, table};
use crate::engine::Removal;
use crate::shared::attachment::{recorded_in, recorded_netns};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;

/// Closes an interface of the container, even if it has a verdict.
///
/// # Errors
/// Code 101 when the kernel refuses, 11 when the lock cannot be taken in time.
pub(super) fn close(index: &Index, netns: &Netns, ifname: &str) -> Result<(), Failure> {
    let mut inside = PodsTable::open_inside(netns)?;
    let _lock = table::lock(index)?;
    Ok(pods::close_interface(&mut inside, ifname)?)
}

/// Removes the verdicts of an interface, and with the last one the table.
///
/// # Errors
/// As [`close`].
pub(super) fn forget(index: &Index, netns: &Netns, ifname: &str) -> Result<(), Failure> {
    let mut inside = PodsTable::open_inside(netns)?;
    let _lock = table::lock(index)?;
    if !inside.exists()? {
        return Ok(());
    }
    let forgotten = pods::forget_interface(&mut inside, ifname);
    match forgotten.and_then(|()| pods::interfaces(&mut inside)) {
        Ok(others) if !others.is_empty() => Ok(()),
        Ok(_) => Ok(inside.remove()?),
        // The container itself has made the table unreadable. The other interfaces that are judged
        // there are closed until the daemon makes the table anew.
        Err(FirewallError::Tables(_)) => match judged_besides(index, netns, ifname) {
            others if others.is_empty() => Ok(inside.remove()?),
            others => Ok(pods::close_alone(&mut inside, &others)?),
        },
        Err(error) => Err(error.into()),
    }
}

/// Lists the other interfaces that are judged in a namespace, by their records.
fn judged_besides(index: &Index, netns: &Netns, ifname: &str) -> Vec<String> {
    let is_there = |record: &Record| {
        let recorded: Option<AttachmentRecord> = recorded_in(record);
        recorded.is_some_and(|recorded| recorded.started.inside)
            && record.noted().is_some_and(|noted| noted.id == Some(netns.id()))
    };
    let records = index.list().found;
    let own = records.iter().filter(|record| record.plugin == NAME && is_there(record));
    let names = own.map(|record| record.attachment.ifname.to_string());
    names.filter(|name| name != ifname).collect()
}

/// Says what is missing of an interface's verdicts: there is no table, or a direction leads
/// nowhere. An interface that no policy selects leads to a chain that lets everything pass.
///
/// # Errors
/// Code 101 when the kernel does not answer.
pub(super) fn difference(netns: &Netns, ifname: &str) -> Result<Option<String>, Failure> {
    let mut inside = PodsTable::open_inside(netns)?;
    if !inside.exists()? {
        let text = "the container's packet filter has no verdicts of network policy";
        return Ok(Some(text.to_owned()));
    }
    let found = pods::interface_verdicts(&mut inside, ifname)?;
    let is_whole = found.ingress.is_some() && found.egress.is_some();
    Ok((!is_whole).then(|| format!("the container's {ifname} has no verdict of network policy")))
}

/// Removes what is in the container's namespace, if that lives: the link is set down first, so that
/// it carries nothing when it loses its verdicts. `tell` makes the daemon ignore it.
pub(super) fn take_down(
    removal: &Removal<'_, Policy>,
    tell: impl FnOnce(),
    failures: &mut Failures,
) {
    let (index, ifname) = (removal.index, removal.key.ifname.as_str());
    let opened = match removal.is_own_call() {
        true => removal.call.open_netns_if_there().map_err(Failure::from),
        false => Ok(None),
    };
    let opened = match (opened, &removal.record) {
        (Ok(None), Some(record)) => recorded_netns(record, &Census::new()),
        (opened, _) => opened,
    };
    let Some(netns) = failures.note("open the container's namespace", opened) else { return };
    match netns {
        Some(netns) => remove(index, (&netns, ifname), tell, failures),
        None => tell(),
    }
}

/// Does the same for an attachment without a record, if something of it is left.
pub(super) fn take_down_unrecorded(removal: &Removal<'_, Policy>, failures: &mut Failures) {
    let (index, ifname) = (removal.index, removal.key.ifname.as_str());
    let Ok(Some(netns)) = removal.call.open_netns_if_there() else { return };
    if matches!(difference(&netns, ifname), Ok(None)) {
        remove(index, (&netns, ifname), || (), failures);
    }
}

fn remove(
    index: &Index,
    (netns, ifname): (&Netns, &str),
    tell: impl FnOnce(),
    failures: &mut Failures,
) {
    let off = set_down(netns, ifname);
    if failures.note("set the container's link down", off).is_some() {
        tell();
        let forgotten = forget(index, netns, ifname);
        failures.note("remove the verdicts of network policy", forgotten);
    }
}

fn set_down(netns: &Netns, ifname: &str) -> Result<(), Failure> {
    let mut inside = RouteSocket::open_in(netns)?;
    let Some(link) = inside.link_by_name(ifname)?.filter(Link::up) else { return Ok(()) };
    let set = LinkSet::default().up(false);
    match inside.apply_one(&Change::SetLink { ifindex: link.index, set }) {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}
