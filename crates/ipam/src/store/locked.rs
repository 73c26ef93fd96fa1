//! What is done while the network's lock is held.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use super::error::{AllocateError, StoreError};
use super::folder::Folder;
use super::reservation::{Holder, Owner, Reservation};
use super::{Step, Store};
use crate::plan::{Assignment, Occupancy, plan};
use crate::range::{RangeSet, RangeSets};

/// How often planning begins anew because an address was taken by someone who does not hold the lock.
const MOST_PLANS: usize = 64;

/// A network's folder while we hold its lock.
#[derive(Debug)]
pub struct Locked<'s> {
    store: &'s Store,
    folder: Folder,
    _lock: state::Lock,
}

/// What [`Locked::collect`] did.
#[derive(Debug, Default)]
pub struct Collected {
    /// The reservations that were removed.
    pub removed: Vec<Reservation>,
    /// What could not be removed.
    pub failed: Vec<StoreError>,
}

impl<'s> Locked<'s> {
    pub(crate) fn new(store: &'s Store, folder: Folder, lock: state::Lock) -> Self {
        Locked { store, folder, _lock: lock }
    }

    /// Reads every reservation, in no order.
    ///
    /// # Errors
    /// [`StoreError::Folder`].
    pub fn reservations(&self) -> Result<Vec<Reservation>, StoreError> {
        self.folder.reservations()
    }

    /// Reserves one address of each range set for an attachment, all or none; see [`plan`].
    ///
    /// # Errors
    /// [`AllocateError`]; what was reserved by this call, and only that, has been released.
    pub fn allocate(
        &self,
        sets: &RangeSets,
        requested: &[IpAddr],
        owner: &Owner,
    ) -> Result<Vec<Assignment>, AllocateError> {
        let mut snapshot = self.snapshot(sets).map_err(AllocateError::Store)?;
        let mut plans = 0;
        loop {
            plans += 1;
            let assignments =
                plan(sets, requested, owner, &snapshot).map_err(AllocateError::Plan)?;
            let mut linked = Vec::with_capacity(assignments.len());
            match self.apply(&assignments, owner, &mut linked) {
                Ok(None) => return Ok(assignments),
                Ok(Some(taken)) if plans < MOST_PLANS => {
                    self.undo(&linked)
                        .map_err(|(first, undo)| AllocateError::Undo { first, undo })?;
                    snapshot.holders.insert(taken, Holder::Unknown);
                }
                Ok(Some(taken)) => {
                    let source = std::io::ErrorKind::AlreadyExists.into();
                    let path = self.folder.path().to_owned();
                    return Err(
                        self.give_up(StoreError::Reserve { address: taken, path, source }, &linked)
                    );
                }
                Err(error) => return Err(self.give_up(error, &linked)),
            }
        }
    }

    /// Makes a plan's files. Answers with the first address that turned out to be taken; `linked` tells what
    /// was made in any case.
    fn apply(
        &self,
        assignments: &[Assignment],
        owner: &Owner,
        linked: &mut Vec<IpAddr>,
    ) -> Result<Option<IpAddr>, StoreError> {
        let content = owner.to_content();
        for assignment in assignments {
            let address = assignment.address.addr();
            let failed = |source| {
                let path = self.folder.path().to_owned();
                StoreError::Reserve { address, path, source }
            };
            let nameless = self.store.write_nameless(&self.folder, &content).map_err(failed)?;
            self.store.reached(Step::Written);
            if !self.folder.link(&nameless, address).map_err(failed)? {
                return Ok(Some(address));
            }
            linked.push(address);
            self.store.reached(Step::Linked);
            self.folder.write_last_reserved(assignment.set, address)?;
            self.store.reached(Step::Noted);
        }
        Ok(None)
    }

    fn give_up(&self, first: StoreError, linked: &[IpAddr]) -> AllocateError {
        match self.undo(linked) {
            Ok(()) => AllocateError::Store(first),
            Err((_, undo)) => AllocateError::Undo { first, undo },
        }
    }

    fn undo(&self, linked: &[IpAddr]) -> Result<(), (StoreError, Vec<IpAddr>)> {
        let mut first = None;
        let mut left = Vec::new();
        for address in linked.iter().rev() {
            if let Err(error) = self.folder.remove(Path::new(&address.to_string())) {
                first.get_or_insert(error);
                left.push(*address);
            }
        }
        match first {
            None => Ok(()),
            Some(error) => Err((error, left)),
        }
    }

    /// Releases everything an attachment holds, whichever ranges it is in, and returns the addresses.
    ///
    /// Only when the attachment is not found are reservations of its container in the old format released.
    /// Releasing what is not held is success.
    ///
    /// # Errors
    /// The first failure, after everything else has been tried.
    pub fn release(&self, owner: &Owner) -> Result<Vec<IpAddr>, StoreError> {
        let all = self.folder.reservations()?;
        let mut of_owner: Vec<_> =
            all.iter().filter(|reservation| reservation.holder.is(owner)).collect();
        if of_owner.is_empty() {
            of_owner = all
                .iter()
                .filter(|reservation| reservation.holder.is_container_of(owner))
                .collect();
        }
        let done = self.remove_all(of_owner.into_iter().cloned());
        match done.failed.into_iter().next() {
            None => Ok(done.removed.iter().filter_map(|reservation| reservation.address).collect()),
            Some(error) => Err(error),
        }
    }

    /// Releases every address whose holder is not to be kept. Files that are not named by an address stay.
    ///
    /// # Errors
    /// [`StoreError::Folder`] when the folder cannot be read. What cannot be removed is told in the answer.
    pub fn collect(&self, keep: impl Fn(&Holder) -> bool) -> Result<Collected, StoreError> {
        let all = self.folder.reservations()?;
        Ok(self.remove_all(
            all.into_iter()
                .filter(|reservation| reservation.address.is_some() && !keep(&reservation.holder)),
        ))
    }

    fn remove_all(&self, reservations: impl Iterator<Item = Reservation>) -> Collected {
        let mut done = Collected::default();
        for reservation in reservations {
            match self.folder.remove(&reservation.file) {
                Ok(removed) => {
                    self.store.reached(Step::Removed);
                    if removed {
                        done.removed.push(reservation);
                    }
                }
                Err(error) => done.failed.push(error),
            }
        }
        if !done.removed.is_empty() {
            match self.folder.flush() {
                Ok(()) => self.store.reached(Step::Flushed),
                Err(error) => done.failed.push(error),
            }
        }
        done
    }

    fn snapshot(&self, sets: &RangeSets) -> Result<Snapshot, StoreError> {
        let mut snapshot = Snapshot {
            holders: HashMap::new(),
            by_owner: HashMap::new(),
            last: (0..sets.sets().len()).map(|set| self.folder.last_reserved(set)).collect(),
        };
        for Reservation { address, holder, file } in self.folder.reservations()? {
            let Some(address) = address else { continue };
            let id = match &holder {
                // Nobody was ever told of it, and nobody is writing it while we hold the lock.
                Holder::Nobody => {
                    self.folder.remove(&file)?;
                    continue;
                }
                Holder::Attachment(owner) => Some(owner.container_id.clone()),
                Holder::Container(id) => Some(id.clone()),
                Holder::Unknown => None,
            };
            if let Some(id) = id {
                snapshot.by_owner.entry(id).or_default().push(address);
            }
            snapshot.holders.insert(address, holder);
        }
        Ok(snapshot)
    }
}

/// The folder as it was when the lock was taken.
#[derive(Debug)]
struct Snapshot {
    holders: HashMap<IpAddr, Holder>,
    by_owner: HashMap<String, Vec<IpAddr>>,
    last: Vec<Option<IpAddr>>,
}

impl Occupancy for Snapshot {
    fn is_taken(&self, address: IpAddr) -> bool {
        self.holders.contains_key(&address)
    }

    fn holder(&self, address: IpAddr) -> Option<Holder> {
        self.holders.get(&address).cloned()
    }

    fn held_by(&self, owner: &Owner) -> Vec<IpAddr> {
        let of_container = self.by_owner.get(&owner.container_id);
        let mut held: Vec<IpAddr> = of_container
            .into_iter()
            .flatten()
            .copied()
            .filter(|address| {
                self.holders
                    .get(address)
                    .is_some_and(|holder| holder.is(owner) || holder.is_container_of(owner))
            })
            .collect();
        held.sort();
        held
    }

    fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        self.last.get(set).copied().flatten()
    }

    fn used(&self, set: &RangeSet) -> u128 {
        let used = self.holders.keys().filter(|address| set.range_of(**address).is_some()).count();
        used.try_into().unwrap_or(u128::MAX)
    }
}
