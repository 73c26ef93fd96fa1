//! CHECK and repair: what is wanted, beside what is there.
//!
//! A round observes everything anew, because one difference hides others: a link that was set down
//! has lost its routes only once it is up. What is wanted is said anew too: a bridge that was
//! created again is another place for claims. A sound attachment costs one round, which is CHECK;
//! that of a chained plugin is not even locked.
//!
//! CHECK reports all differences; repair restores them and reports what remains. An item is
//! restored at most twice, so that two that undo each other do not keep a repair going. If a link
//! is gone, or belongs to another attachment by now, items that need it are neither compared nor
//! restored. A kind of item that only one plugin has is that plugin's (`Wants::compare`,
//! `Wants::restore`). Repair restores a lost claim on an address; CHECK does not report it. A
//! namespace is opened only when an item needs it.

use cni::{AddResult, ItemDrift};
use cni_plugin::{Call, Delegate, Outcome, codes};
use state::Index;
use wanted::{Item, Place, State, Wanted};

use super::any_kind::{AnyKind, ConfiguredKind, KindInfo};
use super::{Difference, Picture};
use crate::shared::attachment::REPAIR_TIMEOUT;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::{claim, container};

/// How often one item is restored in one repair: restoring another may undo it once.
const TRIES: u8 = 2;

/// Runs CHECK: the IPAM plugin's, then every item.
///
/// # Errors
/// Code 104 with all differences; code 100 when the kernel does not answer.
pub(super) fn check(kind: &dyn AnyKind, call: &Call<'_>) -> Result<(), Failure> {
    let own = kind.configured(call)?;
    if own.is_nothing() {
        return Ok(());
    }
    let about = kind.about();
    if let Some(ipam) = ipam(about, call) {
        ipam.check()?;
    }
    let index = Index::new(call.roots());
    Observer::begin(about, call, &index, own)?.observe()?.report(call.common().look)
}

/// Returns the IPAM plugin that assigned the addresses.
fn ipam<'c>(about: KindInfo, call: &'c Call<'_>) -> Option<Delegate<'c>> {
    if about.is_chained { None } else { call.ipam() }
}

/// Runs the CHECK that repairs.
pub(super) fn repair(kind: &dyn AnyKind, call: &Call<'_>) -> Outcome {
    let outcome = |repaired: Result<Vec<String>, Failure>, checked: Result<(), Failure>| Outcome {
        repaired: repaired.map_err(Into::into),
        checked: checked.map_err(Into::into),
    };
    let about = kind.about();
    if about.is_chained && check(kind, call).is_ok() {
        return outcome(Ok(Vec::new()), Ok(()));
    }
    let index = Index::new(call.roots());
    let lock = index.lock_attachment(call.attachment(), REPAIR_TIMEOUT);
    let _lock = match lock {
        Ok(Some(lock)) if index.get(call.attachment(), about.name).found.is_some() => lock,
        // It is being removed, or another plugin judges its own work.
        Ok(_) => return outcome(Ok(Vec::new()), check(kind, call)),
        Err(error) => return outcome(Err(error.into()), check(kind, call)),
    };
    if let Err(refused) = kind.before_repair(call, &index) {
        return outcome(Err(refused), check(kind, call));
    }
    let mut restoring = Restoration::default();
    let checked = in_rounds(kind, call, &index, &mut restoring);
    let repaired = restoring.failures.into_result().map(|()| restoring.lines);
    outcome(repaired, checked)
}

/// What has been restored, and what could not be.
#[derive(Debug, Default)]
struct Restoration {
    lines: Vec<String>,
    failures: Failures,
}

fn in_rounds(
    kind: &dyn AnyKind,
    call: &Call<'_>,
    index: &Index,
    restoring: &mut Restoration,
) -> Result<(), Failure> {
    let (own, about) = (kind.configured(call)?, kind.about());
    let reserved = match ipam(about, call).map(|ipam| ipam.repair()) {
        Some(Ok(lines)) => {
            restoring.lines.extend(lines);
            Ok(())
        }
        Some(Err(error)) => Err(error),
        None => Ok(()),
    };
    let mut observer = Observer::begin(about, call, index, own)?;
    let mut tries = Tries::default();
    let mut done: Vec<(Item, String)> = Vec::new();
    loop {
        let observed = match observer.observe() {
            Ok(observed) => observed,
            Err(error) => {
                restoring.lines.extend(done.into_iter().map(|(_, what)| what));
                return Err(error);
            }
        };
        for (item, what) in done.drain(..) {
            if !observed.differs(&item) && !restoring.lines.contains(&what) {
                restoring.lines.push(what);
            }
        }
        let mut limits = Limits::of(&observed, reserved.is_ok(), &tries);
        for (item, difference) in observed.restorable() {
            if !limits.allow(item, &mut observer.picture) || !tries.again(item) {
                continue;
            }
            let what = observer.picture.what_is_restored(item, difference);
            match observer.picture.restore(observer.own.as_ref(), item) {
                Ok(set) => {
                    let what = set.filter(|text| !text.is_empty()).unwrap_or(what);
                    done.push((item.clone(), what));
                }
                Err(error) => {
                    tries.end(item);
                    limits.without(item);
                    restoring.failures.note::<()>(format_args!("put back {what}"), Err(error));
                }
            }
        }
        if done.is_empty() {
            reserved?;
            let settled = observer.settle(&observed);
            observed.report(false)?;
            restoring.failures.note("release claims of another place", settled);
            return Ok(());
        }
        observer.picture.forget();
    }
}

/// What a container may not get back now. What is unknown is not allowed.
struct Limits {
    /// The IPAM plugin reserves its addresses.
    is_reserved: bool,
    /// It has an address.
    has_address: bool,
    /// No other attachment has one of its addresses where it is reachable.
    is_free: bool,
    /// The packet filter has what it needs, or gets it now.
    is_filtered: bool,
}

impl Limits {
    fn of(observed: &Observation, is_reserved: bool, tries: &Tries) -> Self {
        let items = || observed.wanted.items.iter().enumerate();
        let is_address =
            |item: &Item| item.place == Place::Container && matches!(item.state, State::Address(_));
        let is_there =
            |number: usize, item: &Item| observed.is_known(number) && !observed.differs(item);
        let mut limits = Limits {
            is_reserved,
            has_address: items().any(|(number, item)| is_address(item) && is_there(number, item)),
            is_free: true,
            is_filtered: true,
        };
        for (number, item) in items() {
            let is_given_up = || tries.are_over(item) && observed.differs(item);
            if !observed.is_known(number) || observed.is_by_hand(number) || is_given_up() {
                limits.without(item);
            }
        }
        limits
    }

    /// Goes on without an item that could not be compared or restored.
    fn without(&mut self, item: &Item) {
        match &item.state {
            State::Claim { .. } => self.is_free = false,
            State::Filter { .. } => self.is_filtered = false,
            _ => {}
        }
    }

    /// Reports whether an item may be restored. A container never gets an address that is not
    /// reserved for it or that another has where it is reachable, nor routes without an address.
    /// Its link never becomes a port of a switch on which another container has its address, nor of
    /// a bridge before its packets are filtered.
    fn allow(&self, item: &Item, picture: &mut Picture<'_>) -> bool {
        match &item.state {
            State::Port(port) => {
                (self.is_free && self.is_filtered) || picture.is_port(port).unwrap_or(false)
            }
            State::OvsPort { .. } | State::OvsInterface { .. } => self.is_free,
            State::Foreign(_) => self.is_filtered,
            State::Address(_) if item.place == Place::Container => self.is_reserved && self.is_free,
            State::Route(_) if item.place == Place::Container => {
                self.is_reserved || self.has_address
            }
            _ => true,
        }
    }
}

/// How often each item was restored.
#[derive(Debug, Default)]
struct Tries(Vec<(Item, u8)>);

impl Tries {
    /// Counts a try; `false` when there were enough.
    fn again(&mut self, item: &Item) -> bool {
        let tries = self.of(item);
        let is_left = *tries < TRIES;
        *tries += u8::from(is_left);
        is_left
    }

    /// Reports whether an item is not tried again.
    fn are_over(&self, item: &Item) -> bool {
        self.0.iter().any(|(known, tries)| known == item && *tries == TRIES)
    }

    /// Has the item not tried again.
    fn end(&mut self, item: &Item) {
        *self.of(item) = TRIES;
    }

    fn of(&mut self, item: &Item) -> &mut u8 {
        let position = self.0.iter().position(|(known, _)| known == item).unwrap_or_else(|| {
            self.0.push((item.clone(), 0));
            self.0.len() - 1
        });
        &mut self.0[position].1
    }
}

/// What one round observed of an attachment.
struct Observation {
    wanted: Wanted,
    /// The differences, in the order of the items.
    found: Vec<Difference>,
    /// The positions of the items that could not be compared.
    unknown: Vec<usize>,
    /// Why something could not be compared: the first such error.
    failed: Option<Failure>,
    /// The record is there and legible.
    is_recorded: bool,
}

impl Observation {
    /// Reports whether an item was compared.
    fn is_known(&self, number: usize) -> bool {
        !self.unknown.contains(&number)
    }

    /// Reports whether an item differs and is left to an administrator.
    fn is_by_hand(&self, number: usize) -> bool {
        self.found.iter().any(|one| one.item == Some(number) && !one.by_repair)
    }

    /// Reports whether repair could restore an item.
    fn differs(&self, item: &Item) -> bool {
        self.restorable().any(|(one, _)| one == item)
    }

    /// Returns the items that repair can restore, each with its first difference.
    fn restorable(&self) -> impl Iterator<Item = (&Item, &Difference)> {
        let mut before = None;
        self.found.iter().filter(|one| one.by_repair).filter_map(move |difference| {
            let number = difference.item?;
            (before.replace(number) != Some(number))
                .then(|| (&self.wanted.items[number], difference))
        })
    }

    /// Reports the differences, as data too if `one_by_one`; without any, what could not be
    /// compared.
    fn report(self, one_by_one: bool) -> Result<(), Failure> {
        as_error(&self.found).map_err(|failure| match one_by_one {
            true => failure.with_differences(self.differences()),
            false => failure,
        })?;
        self.failed.map_or(Ok(()), Err)
    }

    /// Lists what CHECK reports, each by itself, with what was wanted.
    fn differences(&self) -> Vec<ItemDrift> {
        let told = self.found.iter().filter(|difference| !difference.quiet);
        told.map(|difference| ItemDrift {
            what: difference.text.clone(),
            remedy: difference.remedy.clone(),
            ours: difference.ours,
            hairpin: difference.hairpin,
            item: difference
                .item
                .and_then(|number| self.wanted.items.get(number))
                .and_then(|item| serde_json::to_value(item).ok()),
        })
        .collect()
    }
}

/// What CHECK and repair need to observe an attachment, in one round after another.
struct Observer<'c> {
    own: Box<dyn ConfiguredKind>,
    result: AddResult,
    picture: Picture<'c>,
}

impl<'c> Observer<'c> {
    fn begin(
        about: KindInfo,
        call: &'c Call<'_>,
        index: &'c Index,
        own: Box<dyn ConfiguredKind>,
    ) -> Result<Self, Failure> {
        let result = call.require_prev_result(about.no_previous)?;
        let netns = if about.is_chained {
            None
        } else {
            let netns = call.open_netns()?;
            container::reported_interface(call, &result)?;
            Some(netns)
        };
        let picture = Picture::open(call, index, about, netns)?;
        Ok(Observer { own, result, picture })
    }

    /// Says what is wanted and compares it with what is there.
    fn observe(&mut self) -> Result<Observation, Failure> {
        let picture = &mut self.picture;
        picture.record = picture.index.get(picture.call.attachment(), picture.about.name).found;
        let wanted = self.own.wanted(&self.result, picture)?;
        let (mut found, failures) = picture.differences(self.own.as_ref(), &wanted);
        let (unknown, mut failed): (Vec<usize>, Vec<Failure>) = failures.into_iter().unzip();
        match self.own.others(&self.result, picture) {
            Ok(others) => found.extend(others),
            Err(error) => failed.push(error),
        }
        let failed = failed.into_iter().next();
        Ok(Observation { wanted, found, unknown, failed, is_recorded: self.own.is_recorded() })
    }

    /// Updates the record to the claims that a sound attachment has now, and releases the others: a
    /// shared link that was created again is another place.
    fn settle(&self, observed: &Observation) -> Result<(), Failure> {
        let is_sound = observed.found.is_empty() && observed.failed.is_none();
        let items = observed.wanted.items.iter();
        let objects: Vec<&String> = items.filter_map(claim::of_item).collect();
        match &self.picture.record {
            Some(record) if observed.is_recorded && is_sound => {
                Ok(claim::settle(self.picture.index, record, &objects)?)
            }
            _ => Ok(()),
        }
    }
}

/// Reports differences: the first as the message, the others as the details, with what helps.
fn as_error(found: &[Difference]) -> Result<(), Failure> {
    let found: Vec<&Difference> = found.iter().filter(|difference| !difference.quiet).collect();
    let Some(first) = found.first() else { return Ok(()) };
    let mut details = Vec::new();
    details.extend(found.iter().skip(1).map(|difference| difference.text.as_str()));
    for difference in &found {
        let remedy = difference.remedy.as_str();
        if !remedy.is_empty() && !details.contains(&remedy) {
            details.push(remedy);
        }
    }
    Err(Failure::new(codes::DRIFT, first.text.clone()).with_details(details.join("; ")))
}
