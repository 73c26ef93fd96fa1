//! Restores what ADD created and someone changed, under a running container.
//!
//! A plugin repairs only what it has a record of: another plugin judges its own work. A repair
//! holds the attachment's lock, which DEL takes too, so nothing is restored after a DEL. It
//! restores what CHECK would report as missing, and leaves everything else untouched.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use cni::Error;
use cni_plugin::{Call, Outcome, Plugin};
use kernel::mac::MacAddr;
use kernel::route::{Change, Neighbour, NeighbourState, RouteSocket};
use state::{AttachmentLock, Index};

use super::failures::Failures;
use super::kernel_error as kernel;
use super::shared_object::lock_error;

/// How long DEL waits for a repair, which takes milliseconds. Then DEL goes on: it must finish.
pub const DEL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a repair waits for a DEL. After that there is nothing to repair.
pub(crate) const REPAIR_TIMEOUT: Duration = Duration::from_secs(2);

/// What has been restored, and what could not be.
#[derive(Debug, Default)]
pub struct Repair {
    lines: Vec<String>,
    failures: Failures,
}

impl Repair {
    /// Records what was restored, or why it was not.
    pub fn note(&mut self, what: impl fmt::Display, done: Result<(), Error>) {
        let what = what.to_string();
        if self.failures.note(format_args!("put back {what}"), done).is_some() {
            self.lines.push(what);
        }
    }

    /// Makes the IPAM plugin restore what it holds, and reports whether the container may have the
    /// addresses.
    pub fn addresses(&mut self, call: &Call<'_>) -> bool {
        let Some(ipam) = call.ipam() else { return true };
        let lines = self.look("addresses", ipam.repair());
        lines.map(|lines| self.lines.extend(lines)).is_some()
    }

    /// Records a failed observation.
    pub fn look<T>(&mut self, what: &str, found: Result<T, Error>) -> Option<T> {
        self.failures.note(what, found)
    }

    /// Applies a change and records it.
    pub fn apply(&mut self, socket: &mut RouteSocket, what: impl fmt::Display, change: &Change) {
        let done = match socket.apply_one(change) {
            // Another call was faster.
            Err(error) if error.is_exists() => Ok(()),
            done => done.map_err(kernel),
        };
        self.note(what, done);
    }

    fn end(self) -> Result<Vec<String>, Error> {
        self.failures.into_result().map(|()| self.lines)
    }
}

/// Excludes ADD, repairs and other DELs while an attachment is removed. If the lock cannot be
/// taken, DEL goes on, unless it is for a container that was gone and may have come back.
///
/// # Errors
/// Code 11 when it has come back ([`cni::GONE`]).
pub fn lock_out_repair(call: &Call<'_>) -> Result<Option<AttachmentLock>, Error> {
    let index = Index::new(call.roots());
    let key = call.attachment();
    let begun = index.begin_attachment(key, DEL_TIMEOUT).map(Some);
    let lock = match begun {
        // If the folder cannot be created, no ADD can create it either.
        Err(error) if !error.is_busy() => index.lock_attachment(key, DEL_TIMEOUT),
        begun => begun,
    };
    let lock = match lock {
        Ok(lock) => lock,
        Err(error) if call.common().gone.is_some() => return Err(lock_error(&error)),
        Err(error) => {
            call.warn(format_args!("an ADD or a repair may be under way: {error}"));
            None
        }
    };
    call.refuse_if_back()?;
    Ok(lock)
}

/// Repairs an attachment that `plugin` has a record of, under its lock.
///
/// # Errors
/// Code 11 when it is being removed; else what `work` could not restore.
pub fn of_record(
    call: &Call<'_>,
    plugin: &str,
    work: impl FnOnce(&Index, &mut Repair) -> Result<(), Error>,
) -> Result<Vec<String>, Error> {
    let index = Index::new(call.roots());
    let lock = index.lock_attachment(call.attachment(), REPAIR_TIMEOUT);
    let Some(_lock) = lock.map_err(|error| lock_error(&error))? else { return Ok(Vec::new()) };
    if index.get(call.attachment(), plugin).found.is_none() {
        return Ok(Vec::new());
    }
    let mut repair = Repair::default();
    let worked = work(&index, &mut repair);
    repair.look("repair", worked);
    repair.end()
}

/// Repairs what a plugin with a repeatable ADD has created: CHECK reports whether something is
/// missing, and ADD creates it again and leaves the rest. If `is_same` finds that what ADD saw has
/// changed since, the repair reports that and does nothing.
///
/// # Errors
/// As [`of_record`].
pub fn by_adding_again(
    call: &Call<'_>,
    plugin: &dyn Plugin,
    record: &str,
    is_same: impl FnOnce() -> Result<(), Error>,
) -> Result<Vec<String>, Error> {
    of_record(call, record, |_, repair| {
        if repair.look("leave what is not ADD's", is_same()).is_none() {
            return Ok(());
        }
        if let Err(drift) = plugin.check(call)
            && drift.code == cni_plugin::codes::DRIFT
        {
            repair.note(&drift, plugin.add(call).map(drop));
        }
        Ok(())
    })
}

/// Runs the CHECK that repairs for a plugin whose CHECK reports all that its repair restores. A
/// sound attachment is observed once: CHECK says that nothing differs.
pub fn unless_sound(plugin: &dyn Plugin, call: &Call<'_>) -> Outcome {
    match plugin.check(call) {
        Ok(()) => Outcome { repaired: Ok(Vec::new()), checked: Ok(()) },
        Err(_) => Outcome { repaired: plugin.repair(call), checked: plugin.check(call) },
    }
}

/// Finds the lasting entries of an address that lead to another hardware address.
pub fn leads_elsewhere(
    present: &[Neighbour],
    address: IpAddr,
    mac: MacAddr,
) -> impl Iterator<Item = &Neighbour> {
    present.iter().filter(move |entry| {
        let lasting = matches!(entry.state, NeighbourState::PERMANENT | NeighbourState::NOARP);
        !entry.proxy
            && lasting
            && entry.address == address
            && entry.mac.is_some_and(|found| found != mac)
    })
}

/// Names an entry of the neighbour table, for messages.
#[must_use]
pub fn neighbour_name(entry: &Neighbour, ifname: &str) -> String {
    let mac = entry.mac.map(|mac| mac.to_string()).unwrap_or_default();
    format!("neighbour entry of {} on {ifname:?} that leads to {mac}", entry.address)
}
