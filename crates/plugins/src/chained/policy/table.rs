//! Verdicts of addresses, where no daemon writes them.
//!
//! The daemon and all plugins write them under one lock, and list records under the same lock. So
//! neither removes what the other has just written for a record that it has not seen.

use std::net::IpAddr;

use ::firewall::pods::{self, Logging, PodsTable};
use cni::{AttachmentKey, code};
use cni_plugin::{Call, codes};
use node_api::policy::{AttachmentRecord, LOCK};
use state::{DamagedFile, Index, LOCK_TIMEOUT, Lock};

use super::NAME;
use super::ends::Ends;
use crate::shared::attachment::recorded_in;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;

/// Closes addresses, even those that have a verdict.
///
/// # Errors
/// Code 101 when the kernel refuses, 11 when the lock cannot be taken in time.
pub(super) fn close(index: &Index, ends: &Ends) -> Result<(), Failure> {
    let (mut table, _lock) = open(index)?;
    Ok(ends.close(&mut table)?)
}

/// What has become of verdicts that were to go.
#[derive(Debug)]
#[must_use]
pub(super) enum ForgetOutcome {
    /// They are gone: these, which no other attachment has.
    Gone(Ends),
    /// They stay: a damaged record may have one of the addresses too.
    Stay(Failure),
}

impl ForgetOutcome {
    /// Turns it into a failure if verdicts stay.
    ///
    /// # Errors
    /// Code 105.
    pub(super) fn required(self) -> Result<(), Failure> {
        match self {
            ForgetOutcome::Gone(_) => Ok(()),
            ForgetOutcome::Stay(why) => Err(why),
        }
    }
}

/// Removes the verdicts of an attachment's addresses, except those that another attachment has.
///
/// # Errors
/// As [`close`].
pub(super) fn forget(
    index: &Index,
    key: &AttachmentKey,
    ends: &Ends,
) -> Result<ForgetOutcome, Failure> {
    if ends.is_empty() {
        return Ok(ForgetOutcome::Gone(Ends::default()));
    }
    let (mut table, _lock) = open(index)?;
    let others = match recorded(index, Some(key)) {
        Ok(others) => others,
        Err(illegible) => return Ok(ForgetOutcome::Stay(illegible)),
    };
    let gone = ends.without(&others);
    gone.forget(&mut table)?;
    Ok(ForgetOutcome::Gone(gone))
}

/// Removes the verdicts of addresses that no attachment has.
///
/// # Errors
/// As [`close`]; code 105 when a record is damaged, since it may have one of them.
pub(super) fn sweep(index: &Index) -> Result<(), Failure> {
    let (mut table, _lock) = open(index)?;
    let known = recorded(index, None)?;
    let there = Ends::there(&mut table)?;
    Ok(there.without(&known).forget(&mut table)?)
}

/// Removes the table if no attachment is recorded.
///
/// # Errors
/// As [`sweep`].
pub(super) fn remove_unused(index: &Index) -> Result<(), Failure> {
    if !PodsTable::open(Logging::default())?.exists()? {
        return Ok(());
    }
    let (mut table, _lock) = open(index)?;
    let is_unused = recorded(index, None)?.is_empty();
    if is_unused { Ok(table.remove()?) } else { Ok(()) }
}

/// Removes the table.
///
/// # Errors
/// Code 101 when the kernel refuses.
pub(super) fn remove() -> Result<(), Failure> {
    Ok(PodsTable::open(Logging::default())?.remove()?)
}

/// Says for which of these addresses a direction has no verdict; `None` if there is no table at
/// all.
///
/// # Errors
/// Code 101 when the kernel does not answer.
pub(super) fn without_verdict(ends: &Ends) -> Result<Option<Vec<IpAddr>>, Failure> {
    let mut table = PodsTable::open(Logging::default())?;
    if !table.exists()? {
        return Ok(None);
    }
    Ok(Some(ends.without_verdict(&mut table)?))
}

/// Says whether the rules that are the same for all pods exist unchanged. A missing table counts as
/// complete.
///
/// # Errors
/// Code 101 when the kernel does not answer.
pub(super) fn is_complete() -> Result<bool, Failure> {
    Ok(pods::is_complete(&mut PodsTable::open(Logging::default())?)?)
}

/// Rewrites those of them that are missing or changed. Verdicts stay.
///
/// # Errors
/// As [`close`].
pub(super) fn complete(index: &Index) -> Result<(), Failure> {
    let (mut table, _lock) = open(index)?;
    Ok(pods::complete(&mut table)?)
}

/// Records a failure of a removal. Verdicts may stay because another process holds the lock, or
/// because a damaged record may have the address too. The next ADD with that address closes it
/// first. The verdicts are removed when the records are listed next.
pub(super) fn note(call: &Call<'_>, done: Result<ForgetOutcome, Failure>, failures: &mut Failures) {
    let stays = match done {
        Ok(ForgetOutcome::Gone(_)) => return,
        Ok(ForgetOutcome::Stay(why)) => why,
        Err(busy) if busy.code() == code::TRY_AGAIN_LATER => busy,
        Err(failure) => {
            failures.note("remove the verdicts of network policy", Err::<(), _>(failure));
            return;
        }
    };
    call.warn(stays.context("verdicts of network policy stay"));
}

/// Takes the lock under which plugin and daemon write tables.
///
/// # Errors
/// Code 11 when it cannot be taken in time.
pub(super) fn lock(index: &Index) -> Result<Lock, Failure> {
    Ok(index.lock(LOCK, LOCK_TIMEOUT)?)
}

/// Opens the table and takes the lock. The lock must be released first: closing the table may take
/// the kernel a moment (`firewall::close`), and the daemon would wait for it.
fn open(index: &Index) -> Result<(PodsTable, Lock), Failure> {
    let table = PodsTable::open(Logging::default())?;
    Ok((table, lock(index)?))
}

/// Lists the addresses of all attachments except the one that is being removed. The caller has the
/// lock.
fn recorded(index: &Index, without: Option<&AttachmentKey>) -> Result<Ends, Failure> {
    let records = index.list();
    let hash = without.map(AttachmentKey::hash);
    let goes = |damaged: &DamagedFile| hash.is_some() && damaged.hash() == hash.as_deref();
    let mut damaged = records.damaged.iter().filter(|damaged| damaged.may_be_of(NAME));
    if let Some(damaged) = damaged.find(|damaged| !goes(damaged)) {
        return Err(Failure::new(codes::STATE, damaged.to_string())
            .with_details("it may have addresses whose verdicts would be removed"));
    }
    let own = records.found.iter().filter(|record| record.plugin == NAME);
    let own = own.filter(|record| Some(&record.attachment) != without);
    let mut ends = Ends::default();
    for record in own {
        let recorded: Option<AttachmentRecord> = recorded_in(record);
        let Some(recorded) = recorded else {
            let text = format!("what {NAME} recorded of {} is not legible", record.attachment);
            return Err(Failure::new(codes::STATE, text));
        };
        ends.add(Ends::of(&recorded.started));
    }
    Ok(ends)
}
