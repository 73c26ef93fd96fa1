//! Restores what ADD changed.

use std::path::{Path, PathBuf};

use cni_plugin::{Call, codes};
use kernel::living::Census;
use kernel::netns::Netns;
use state::Record;

use super::node::{self, Node};
use super::plan::{self, DelObservation, RecordData, Step};
use super::{Tuning, backup, config, in_netns};
use crate::engine::Removal;
use crate::shared::attachment;
use crate::shared::device;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;

/// Restores what still exists in the attachment's namespace.
pub(super) fn take_down(removal: &Removal<'_, Tuning>, failures: &mut Failures) {
    let Some(mut node) = failures.note("read the boot's ID", Node::new(removal.call, removal.key))
    else {
        return;
    };
    // The backup's name is the same in every life of the container.
    let path = backup_path(removal).filter(|_| !removal.call.is_renewed());
    let read = |path| backup::read(path, |text| removal.call.warn(text));
    let backup = path.as_deref().map_or(Ok(None), read);
    let recorded = removal.recorded.clone();
    let recorded =
        recorded.or_else(|| RecordData::from_claims(node::claims_of(removal.index, removal.key)));
    let is_there = !matches!(backup, Ok(None)) || recorded.is_some();
    let Some(netns) =
        failures.note("open the container's namespace", open_netns(removal, &node, is_there))
    else {
        return;
    };
    // Without the namespace there is no link that needs its values.
    let backup = if netns.is_some() { backup } else { backup.or(Ok(None)) };
    let Some(backup) = failures.note_as_it_is(backup) else { return };
    let observed =
        DelObservation { backup_path: path, backup, recorded, ..DelObservation::default() };
    failures.note_as_it_is(restore(removal, &mut node, observed, netns.as_ref()));
}

/// Opens the namespace that ADD changed, if it still exists.
fn open_netns(
    removal: &Removal<'_, Tuning>,
    node: &Node<'_>,
    is_there: bool,
) -> Result<Option<Netns>, Failure> {
    let call = removal.call;
    if !is_there {
        return Ok(None);
    }
    match &removal.record {
        Some(record) if removal.is_own_call() => {
            Ok(call.open_any_netns()?.filter(|netns| node.is_of(record, netns)))
        }
        Some(record) => {
            let netns = attachment::recorded_netns(record, &Census::new())?;
            Ok(netns.filter(|netns| node.is_of(record, netns)))
        }
        None if removal.is_own_call() => Ok(call.open_netns_if_there()?),
        None => Ok(None),
    }
}

/// Finds the backup: where ADD put it, even if the configuration names another place by now. A
/// damaged record may name a place where nothing is.
fn backup_path(removal: &Removal<'_, Tuning>) -> Option<PathBuf> {
    let recorded = removal.recorded.as_ref().and_then(|recorded| recorded.backup.clone());
    if removal.is_own_call() {
        let folder = config::read_data_dir(removal.call.document());
        let configured = backup::path(&folder, removal.key);
        let recorded = recorded.filter(|path| *path == configured || path.exists());
        return Some(recorded.unwrap_or(configured));
    }
    // The backup's name does not include the network: it may belong to an attachment of the same
    // name to another network.
    let mut others = removal.records.iter().filter(|one| one.attachment != *removal.key);
    recorded.filter(|path| !others.any(|other| is_backup_of(path, other)))
}

/// Restores the link's values and the sysctls.
///
/// What ends with the container and cannot be restored is a warning, so that the plugins before this
/// one still get their DEL: sysctls, and a link that was made for it. A link that was lent to it
/// (`host-device`) is an error and stays recorded for the next attempt.
fn restore(
    removal: &Removal<'_, Tuning>,
    node: &mut Node<'_>,
    mut observed: DelObservation,
    netns: Option<&Netns>,
) -> Result<(), Failure> {
    let (call, mut lent) = (removal.call, false);
    let Some(netns) = netns else { return run_del(call, node, &observed, lent) };
    in_netns(netns, || {
        observed.namespace = true;
        let own =
            |recorded: &RecordData| recorded.ifindex.is_some() && recorded.own().next().is_some();
        if observed.backup.is_some() || observed.recorded.as_ref().is_some_and(own) {
            let ifindex = observed.recorded.as_ref().and_then(|recorded| recorded.ifindex);
            let link = node.recorded_link(ifindex)?;
            // The interface's own sysctls are below the link's present name; the container may have
            // renamed it. A link that came back from another namespace may have another ifindex;
            // then only its name identifies it.
            if let (Some(link), Some(recorded)) = (&link, &mut observed.recorded) {
                recorded.rename_own(&link.name);
            }
            lent =
                link.as_ref().is_some_and(|link| device::is_lent(removal.index, removal.key, link));
            observed.link =
                link.as_ref().map(node::link_state).filter(|_| observed.backup.is_some());
        }
        run_del(call, node, &observed, lent)
    })
}

fn run_del(
    call: &Call<'_>,
    node: &mut Node<'_>,
    observed: &DelObservation,
    lent: bool,
) -> Result<(), Failure> {
    let steps = plan::del(observed);
    let mut failures = Failures::new();
    for (step, error) in plan::run_all(&steps, node, lent) {
        match step {
            Step::SetLink { .. } if !lent => {
                call.warn(format_args!("could not {}: {error}", step.describe()));
            }
            Step::ReleaseSysctl { .. } | Step::RestoreSysctl { .. }
                if error.code() != codes::STATE =>
            {
                call.warn(format_args!("could not {}: {error}", step.describe()));
            }
            _ => {
                failures.note::<()>(step.describe(), Err(error));
            }
        }
    }
    failures.into_result()
}

fn is_backup_of(path: &Path, record: &Record) -> bool {
    record.data["backup"].as_str().is_some_and(|backup| Path::new(backup) == path)
}
