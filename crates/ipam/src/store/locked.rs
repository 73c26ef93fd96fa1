//! The operations that need the network's lock.

use std::cell::{Cell, RefCell, RefMut};
use std::net::IpAddr;
use std::path::Path;

use super::error::{AllocateError, StoreError};
use super::folder::{Folder, Scan};
use super::known::{self, Doubt, KnownTable};
use super::mark::Origin;
use super::reservation::{Holder, Owner, Reservation};
use super::{Step, Store};
use crate::plan::{Assignment, Occupancy, plan};
use crate::range::{RangeSet, RangeSets};

/// How often planning starts again because a process without the lock took an address.
const MOST_PLANS: usize = 64;

/// A network's folder while we hold its lock.
#[derive(Debug)]
pub struct LockedStore<'s> {
    store: &'s Store,
    folder: Folder,
    /// The index of the folder during one operation.
    known: RefCell<Option<KnownTable>>,
    /// The first file that the kernel refused to read while the folder was read for an operation.
    unread: RefCell<Option<StoreError>>,
    _lock: state::Lock,
}

/// The result of [`LockedStore::collect`].
#[derive(Debug, Default)]
pub struct CollectReport {
    /// The reservations that were removed.
    pub removed: Vec<Reservation>,
    /// What could not be removed.
    pub failed: Vec<StoreError>,
}

impl<'s> LockedStore<'s> {
    pub(crate) fn new(store: &'s Store, folder: Folder, lock: state::Lock) -> Self {
        LockedStore {
            store,
            folder,
            known: RefCell::new(None),
            unread: RefCell::new(None),
            _lock: lock,
        }
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
    /// [`AllocateError`]; everything that this call had reserved, and only that, has been released.
    pub fn allocate(
        &self,
        sets: &RangeSets,
        requested: &[IpAddr],
        owner: &Owner,
    ) -> Result<Vec<Assignment>, AllocateError> {
        let done = self.allocate_in(sets, requested, owner);
        self.seal();
        done
    }

    /// Reserves one address for an attachment that has it already, if its reservation was lost.
    /// `false` means that another holder has it and keeps it.
    ///
    /// # Errors
    /// [`StoreError`]; the address is then as before.
    pub fn restore(&self, owner: &Owner, address: IpAddr) -> Result<bool, StoreError> {
        let done = self.restore_in(owner, address);
        self.seal();
        done
    }

    fn restore_in(&self, owner: &Owner, address: IpAddr) -> Result<bool, StoreError> {
        let mut known = self.known()?;
        known.open_seal();
        let failed = |source| {
            let path = self.folder.path().to_owned();
            StoreError::Reserve { address, path, source }
        };
        let nameless = self.store.write_nameless(&self.folder, owner, address).map_err(failed)?;
        let free = self.folder.link(&nameless, address).map_err(failed)?;
        if free {
            known.insert(owner, address);
        } else {
            known.distrust();
        }
        Ok(free)
    }

    fn allocate_in(
        &self,
        sets: &RangeSets,
        requested: &[IpAddr],
        owner: &Owner,
    ) -> Result<Vec<Assignment>, AllocateError> {
        let mut plans = 0;
        loop {
            plans += 1;
            let mut known = self.known().map_err(AllocateError::Store)?;
            let view = View { folder: &self.folder, known: &known, is_in_doubt: Cell::new(false) };
            let planned = plan(sets, requested, owner, &view);
            if view.is_in_doubt.get() && plans < MOST_PLANS {
                drop(known);
                self.forget();
                continue;
            }
            let assignments = planned.map_err(AllocateError::Plan)?;
            known.open_seal();
            let mut linked = Vec::with_capacity(assignments.len());
            match self.apply(&assignments, owner, &mut linked) {
                Ok(None) => {
                    for assignment in &assignments {
                        known.insert(owner, assignment.address.addr());
                    }
                    self.store.reached(Step::Indexed);
                    return Ok(assignments);
                }
                Ok(Some(_taken)) if plans < MOST_PLANS => {
                    drop(known);
                    self.forget();
                    self.undo(&linked)
                        .map_err(|(first, undo)| AllocateError::Undo { first, undo })?;
                }
                Ok(Some(taken)) => {
                    known.distrust();
                    let source = std::io::ErrorKind::AlreadyExists.into();
                    let path = self.folder.path().to_owned();
                    return Err(
                        self.give_up(StoreError::Reserve { address: taken, path, source }, &linked)
                    );
                }
                Err(error) => {
                    let error = self.give_up(error, &linked);
                    if matches!(error, AllocateError::Undo { .. }) {
                        known.distrust();
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Reads the folder, and records what could not be read.
    fn scan(&self) -> Result<Scan, StoreError> {
        let mut scan = self.folder.scan()?;
        if let Some(error) = scan.unread.take() {
            self.unread.borrow_mut().get_or_insert(error);
        }
        Ok(scan)
    }

    /// Returns the index of the folder. If the index does not match the folder, the folder is read.
    fn known(&self) -> Result<RefMut<'_, KnownTable>, StoreError> {
        let mut known = self.known.borrow_mut();
        if known.is_none() {
            let path = self.store.index.as_deref();
            *known = Some(match KnownTable::load(&self.folder, path) {
                Some(known) => known,
                None => KnownTable::build(&self.folder, self.scan()?, path),
            });
        }
        Ok(RefMut::map(known, |known| known.as_mut().expect("it was just filled")))
    }

    /// Drops the cached state and the index with it: the folder differs from them.
    fn forget(&self) {
        if let Some(mut known) = self.known.borrow_mut().take() {
            known.open_seal();
            known.distrust();
            known.seal(&self.folder);
        }
    }

    /// Seals folder and index, if there was a change, and drops the cached state.
    fn seal(&self) {
        if let Some(mut known) = self.known.borrow_mut().take() {
            known.seal(&self.folder);
            self.store.reached(Step::Sealed);
        }
    }

    /// Creates the files of a plan. Returns the first address that turned out to be taken; `linked`
    /// lists what was created in any case.
    fn apply(
        &self,
        assignments: &[Assignment],
        owner: &Owner,
        linked: &mut Vec<IpAddr>,
    ) -> Result<Option<IpAddr>, StoreError> {
        for assignment in assignments {
            let address = assignment.address.addr();
            let failed = |source| {
                let path = self.folder.path().to_owned();
                StoreError::Reserve { address, path, source }
            };
            let nameless =
                self.store.write_nameless(&self.folder, owner, address).map_err(failed)?;
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

    /// Releases everything that an attachment holds, in all ranges, and returns the addresses.
    ///
    /// Reservations of its container in the old format are released only if the attachment is not
    /// found. Releasing what is not held is success.
    ///
    /// # Errors
    /// The first failure, after everything else has been tried. A file that could not be read may
    /// be this attachment's.
    pub fn release(&self, owner: &Owner) -> Result<Vec<IpAddr>, StoreError> {
        let held = self.held_by(owner)?;
        if !held.is_empty() {
            self.known()?.open_seal();
        }
        let done = self.remove_all(held.into_iter());
        let mut known = self.known()?;
        for reservation in &done.removed {
            known.remove(reservation);
        }
        if !done.removed.is_empty() {
            self.store.reached(Step::Indexed);
        }
        drop(known);
        self.seal();
        match done.failed.into_iter().next().or_else(|| self.unread.take()) {
            None => Ok(done.removed.iter().filter_map(|reservation| reservation.address).collect()),
            Some(error) => Err(error),
        }
    }

    /// Lists every file of an attachment; if there is none, those of its container in the old
    /// format.
    fn held_by(&self, owner: &Owner) -> Result<Vec<Reservation>, StoreError> {
        let keys = [known::key_of_owner(owner), known::key_of_container(&owner.container_id)];
        // In the second round the folder has been read.
        for _ in 0..2 {
            let known = self.known()?;
            if known.strays() {
                break;
            }
            let held = match known.held(&self.folder, &keys[..1]) {
                Ok(held) if held.is_empty() => known.held(&self.folder, &keys[1..]),
                held => held,
            };
            match held {
                Ok(held) => return Ok(held),
                Err(Doubt) => {
                    drop(known);
                    self.forget();
                }
            }
        }
        let all = self.scan()?.reservations;
        let of = |is_theirs: fn(&Holder, &Owner) -> bool| -> Vec<Reservation> {
            all.iter().filter(|one| is_theirs(&one.holder, owner)).cloned().collect()
        };
        let held = of(Holder::is);
        Ok(if held.is_empty() { of(Holder::is_container_of) } else { held })
    }

    /// Releases every address whose holder `keep` rejects. Files whose name is not an address stay,
    /// and so do those that could not be read.
    ///
    /// # Errors
    /// [`StoreError::Folder`] when the folder cannot be read. The answer lists what cannot be
    /// removed or read.
    pub fn collect(&self, keep: impl Fn(&Holder) -> bool) -> Result<CollectReport, StoreError> {
        let Scan { reservations, strays, is_whole, .. } = self.scan()?;
        let is_stale = |one: &Reservation| {
            one.address.is_some() && one.holder != Holder::Unread && !keep(&one.holder)
        };
        let (stale, kept): (Vec<_>, Vec<_>) = reservations.into_iter().partition(is_stale);
        let mut done = self.remove_all(stale.into_iter());
        done.failed.extend(self.unread.take());
        self.forget();
        if done.failed.is_empty() {
            let path = self.store.index.as_deref();
            let scan = Scan { reservations: kept, strays, is_whole, unread: None };
            *self.known.borrow_mut() = Some(KnownTable::build(&self.folder, scan, path));
            self.seal();
        }
        Ok(done)
    }

    /// Lists every reservation whose namespace was recorded.
    ///
    /// # Errors
    /// [`StoreError::Folder`].
    pub fn origins(&self) -> Result<Vec<(Reservation, Origin)>, StoreError> {
        let reservations = self.folder.reservations()?.into_iter();
        let named = reservations.filter(|one| one.address.is_some());
        Ok(named.filter_map(|one| self.folder.origin(&one.file).map(|at| (one, at))).collect())
    }

    /// Lists what an attachment holds, each with the namespace that it was reserved for, if that was
    /// recorded.
    ///
    /// # Errors
    /// [`StoreError::Folder`].
    pub fn held(&self, owner: &Owner) -> Result<Vec<(Reservation, Option<Origin>)>, StoreError> {
        let held = self.held_by(owner)?.into_iter();
        Ok(held.map(|one| (one.clone(), self.folder.origin(&one.file))).collect())
    }

    /// Returns the namespace that an address was reserved for, if that was recorded.
    #[must_use]
    pub fn origin_of(&self, address: IpAddr) -> Option<Origin> {
        self.folder.origin(Path::new(&address.to_string()))
    }

    /// Removes reservations whose holders are known to be gone.
    pub fn remove(&self, reservations: Vec<Reservation>) -> CollectReport {
        let done = self.remove_all(reservations.into_iter());
        // The next access reads the folder.
        self.forget();
        done
    }

    fn remove_all(&self, reservations: impl Iterator<Item = Reservation>) -> CollectReport {
        let mut done = CollectReport::default();
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
}

/// The folder as planning sees it.
#[derive(Debug)]
struct View<'l> {
    folder: &'l Folder,
    known: &'l KnownTable,
    /// Whether the answers given are unreliable.
    is_in_doubt: Cell<bool>,
}

impl View<'_> {
    fn or_doubt<T: Default>(&self, answer: Result<T, Doubt>) -> T {
        answer.unwrap_or_else(|Doubt| {
            self.is_in_doubt.set(true);
            T::default()
        })
    }
}

impl Occupancy for View<'_> {
    fn is_taken(&self, address: IpAddr) -> bool {
        self.folder.is_there(address)
    }

    fn holder(&self, address: IpAddr) -> Option<Holder> {
        self.folder.holder_of(address)
    }

    fn held_by(&self, owner: &Owner) -> Vec<IpAddr> {
        let keys = [known::key_of_owner(owner), known::key_of_container(&owner.container_id)];
        let held = self.or_doubt(self.known.held(self.folder, &keys));
        let mut held: Vec<IpAddr> = held.into_iter().filter_map(|one| one.address).collect();
        held.sort_unstable();
        held
    }

    fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        self.folder.last_reserved(set)
    }

    fn used(&self, set: &RangeSet) -> u128 {
        // It is unknown whether the set is full, and counting a set that is not full may take
        // forever.
        if self.is_in_doubt.get() {
            return 0;
        }
        self.or_doubt(self.known.used(self.folder, set))
    }

    fn first_free(
        &self,
        set: &RangeSet,
        last: Option<IpAddr>,
        is_withheld: &dyn Fn(IpAddr) -> bool,
    ) -> Option<IpAddr> {
        self.or_doubt(self.known.first_free(self.folder, set, last, is_withheld))
    }
}
