//! The life that attachments of every kind have in common.
//!
//! A plugin says once what it wants ([`Kind::wanted`]), as data. CHECK reports how the kernel
//! differs from it, all differences at once; repair removes them, and reports what remains.
//!
//! | verb | order |
//! |---|---|
//! | CHECK | configuration, IPAM, result, then every item |
//! | repair | lock, record, configuration, IPAM, then rounds: observe, restore what differs |
//!
//! A round observes everything anew, because one difference hides others: a link that was set down
//! has lost its routes only once it is up. What is wanted is said anew too: a bridge that was
//! created again is another place for claims. A sound attachment costs one round, which is CHECK;
//! that of a chained plugin is not even locked.

mod compare;
mod picture;
mod restore;

use cni::{AddResult, AttachmentKey, Error};
use cni_plugin::{Call, Delegate, Outcome, codes};
use serde::de::DeserializeOwned;
use state::Index;
use wanted::{Because, Item, Place, State, Wanted};

use crate::shared::attachment::REPAIR_TIMEOUT;
use crate::shared::failures::Failures;
use crate::shared::rules::MasqueradeBackend;
use crate::shared::shared_object::lock_error;
use crate::shared::{attachment, claim, container};
pub(crate) use picture::{Compared, Difference, Found, Picture, differs, sound};

/// How often one item is restored in one repair: restoring another may undo it once.
const TRIES: u8 = 2;

/// One kind of attachment.
pub(crate) trait Kind {
    /// The plugin's type.
    const NAME: &'static str;
    /// The checked configuration.
    type Config;
    /// What the plugin's record holds.
    type Recorded: DeserializeOwned;
    /// What the host has that decides what is wanted, besides the record: whose a shared link is,
    /// for example.
    type Observed: Default;

    /// Whether another plugin attached the interface. Then the result need not report it, and a
    /// repair of a sound attachment takes no lock: there are no claims to settle.
    const CHAINED: bool = false;
    /// What a call without `prevResult` is told.
    const NO_PREVIOUS: &'static str = "Required prevResult missing";

    /// Reads and checks the configuration. Reads nothing else.
    ///
    /// # Errors
    /// Code 7 or 2, naming the key.
    fn config(call: &Call<'_>) -> Result<Self::Config, Error>;

    /// Looks up what decides what is wanted: nothing, by default. Changes nothing.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer; code 105 for our own files.
    fn observe(
        config: &Self::Config,
        recorded: Option<&Self::Recorded>,
        attached: &Attached<'_>,
        picture: &mut Picture<'_>,
    ) -> Result<Self::Observed, Error> {
        let _ = (config, recorded, attached, picture);
        Ok(Self::Observed::default())
    }

    /// Says what an attachment wants. Pure, given what [`Kind::observe`] found: the same for CHECK and
    /// repair. Without a record, another project's plugin may have attached the container.
    fn wanted(
        config: &Self::Config,
        recorded: Option<&Self::Recorded>,
        observed: &Self::Observed,
        attached: &Attached<'_>,
    ) -> Wanted;

    /// Compares an item whose state only this kind has.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    fn compare(config: &Self::Config, picture: &mut Picture<'_>, item: &Item) -> Compared {
        let _ = (config, picture);
        Err(unknown(item))
    }

    /// Restores an item that differs and whose state only this kind has. Returns what was set, or
    /// nothing if the item itself says it.
    ///
    /// # Errors
    /// Code 100 with the kernel's words.
    fn restore(
        config: &Self::Config,
        picture: &mut Picture<'_>,
        item: &Item,
    ) -> Result<Option<String>, Error> {
        let _ = (config, picture);
        Err(unknown(item))
    }

    /// Says in the plugin's own words that an item of the engine differs: a value of a link is `now`,
    /// or a link is gone. `None` for the engine's words.
    fn words(item: &Item, now: Option<&str>) -> Option<String> {
        let _ = (item, now);
        None
    }

    /// Is called once under the attachment's lock before anything is restored: refuses the repair,
    /// or records what DEL must know by then.
    ///
    /// # Errors
    /// Why nothing is restored.
    fn before_repair(call: &Call<'_>, index: &Index) -> Result<(), Error> {
        let _ = (call, index);
        Ok(())
    }

    /// Finds what differs and is not an item: what only this kind compares, and repair leaves to a
    /// person.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    fn others(
        config: &Self::Config,
        observed: &Self::Observed,
        attached: &Attached<'_>,
        picture: &mut Picture<'_>,
    ) -> Result<Vec<Difference>, Error> {
        let _ = (config, observed, attached, picture);
        Ok(Vec::new())
    }
}

/// What every kind knows of an attachment after ADD.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attached<'a> {
    /// Whose it is.
    pub(crate) key: &'a AttachmentKey,
    /// The container's interface, as it is called now.
    pub(crate) ifname: &'a str,
    /// The result of ADD, and of the plugins after this one.
    pub(crate) result: &'a AddResult,
}

/// Says what a plugin wants first that changes an interface which another one created: it is there,
/// and is still the one that ADD saw.
pub(crate) fn wanted_of_another(ifname: &str) -> Wanted {
    let link = || ifname.to_owned();
    let mut wanted = Wanted::new();
    let exists = State::Link { link: link(), kinds: Vec::new() };
    wanted.push(Item::container(exists, Because::Created));
    wanted.push(Item::container(State::Recorded { link: link() }, Because::Ownership));
    wanted
}

/// Runs CHECK: the IPAM plugin's, then every item.
///
/// # Errors
/// Code 104 with all differences; code 100 when the kernel does not answer.
pub(crate) fn check<K: Kind>(call: &Call<'_>) -> Result<(), Error> {
    let config = K::config(call)?;
    if let Some(ipam) = ipam::<K>(call) {
        ipam.check()?;
    }
    let index = Index::new(call.roots());
    Look::<K>::begin(call, &index, config)?.observe()?.report()
}

/// Returns the IPAM plugin that assigned the addresses.
fn ipam<'c, K: Kind>(call: &'c Call<'_>) -> Option<Delegate<'c>> {
    if K::CHAINED { None } else { call.ipam() }
}

/// Runs the CHECK that repairs.
pub(crate) fn repair<K: Kind>(call: &Call<'_>) -> Outcome {
    if K::CHAINED && check::<K>(call).is_ok() {
        return Outcome { repaired: Ok(Vec::new()), checked: Ok(()) };
    }
    let index = Index::new(call.roots());
    let lock = index.lock_attachment(call.attachment(), REPAIR_TIMEOUT);
    let _lock = match lock {
        Ok(Some(lock)) if index.get(call.attachment(), K::NAME).found.is_some() => lock,
        // It is being removed, or another plugin judges its own work.
        Ok(_) => return Outcome { repaired: Ok(Vec::new()), checked: check::<K>(call) },
        Err(error) => {
            return Outcome { repaired: Err(lock_error(&error)), checked: check::<K>(call) };
        }
    };
    if let Err(refused) = K::before_repair(call, &index) {
        return Outcome { repaired: Err(refused), checked: check::<K>(call) };
    }
    let mut restoring = Restoring::default();
    let checked = in_rounds::<K>(call, &index, &mut restoring);
    let repaired = restoring.failures.into_result().map(|()| restoring.lines);
    Outcome { repaired, checked }
}

/// What has been restored, and what could not be.
#[derive(Debug, Default)]
struct Restoring {
    lines: Vec<String>,
    failures: Failures,
}

fn in_rounds<K: Kind>(
    call: &Call<'_>,
    index: &Index,
    restoring: &mut Restoring,
) -> Result<(), Error> {
    let config = K::config(call)?;
    let reserved = match ipam::<K>(call).map(|ipam| ipam.repair()) {
        Some(Ok(lines)) => {
            restoring.lines.extend(lines);
            Ok(())
        }
        Some(Err(error)) => Err(error),
        None => Ok(()),
    };
    let mut look = Look::<K>::begin(call, index, config)?;
    let mut tries = Tries::default();
    let mut done: Vec<(Item, String)> = Vec::new();
    loop {
        let observed = match look.observe() {
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
            if !limits.allow(item, &mut look.picture) || !tries.again(item) {
                continue;
            }
            let what = look.picture.what_is_restored(item, difference);
            match look.picture.restore::<K>(&look.config, item) {
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
            let settled = look.settle(&observed);
            observed.report()?;
            restoring.failures.note("release claims of another place", settled);
            return Ok(());
        }
        look.picture.forget();
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
            if !observed.is_known(number) || observed.is_left(number) || is_given_up() {
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
    /// reserved for it or that another has where it is reachable, nor routes without an address. It
    /// never comes to a switch where another has its address, or before its packets are filtered.
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

/// What a look at an attachment found.
struct Observation {
    wanted: Wanted,
    /// The differences, in the order of the items.
    found: Vec<Difference>,
    /// The positions of the items that could not be compared.
    unknown: Vec<usize>,
    /// Why something could not be compared: the first such error.
    failed: Option<Error>,
    /// The record is there and legible.
    is_recorded: bool,
}

impl Observation {
    /// Reports whether an item was compared.
    fn is_known(&self, number: usize) -> bool {
        !self.unknown.contains(&number)
    }

    /// Reports whether an item differs and is left to a person.
    fn is_left(&self, number: usize) -> bool {
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

    /// Reports the differences; without any, what could not be compared.
    fn report(self) -> Result<(), Error> {
        as_error(&self.found)?;
        self.failed.map_or(Ok(()), Err)
    }
}

/// An attachment as CHECK and repair look at it.
struct Look<'c, K: Kind> {
    call: &'c Call<'c>,
    index: &'c Index,
    config: K::Config,
    result: AddResult,
    picture: Picture<'c>,
}

impl<'c, K: Kind> Look<'c, K> {
    fn begin(call: &'c Call<'_>, index: &'c Index, config: K::Config) -> Result<Self, Error> {
        let result = call.require_prev_result(K::NO_PREVIOUS)?;
        let netns = if K::CHAINED {
            None
        } else {
            let netns = call.open_netns()?;
            container::reported_interface(call, &result)?;
            Some(netns)
        };
        let picture = Picture::open(call, index, K::NAME, netns)?;
        Ok(Look { call, index, config, result, picture })
    }

    /// Says what is wanted and compares it with what is there.
    fn observe(&mut self) -> Result<Observation, Error> {
        let (key, ifname) = (self.call.attachment(), self.call.ifname().as_str());
        self.picture.record = self.index.get(key, K::NAME).found;
        let record = self.picture.record.as_ref();
        let recorded: Option<K::Recorded> = record.and_then(attachment::recorded_in);
        let recorded = recorded.as_ref();
        let attached = Attached { key, ifname, result: &self.result };
        let seen = K::observe(&self.config, recorded, &attached, &mut self.picture)?;
        let wanted = K::wanted(&self.config, recorded, &seen, &attached);
        let (mut found, failures) = self.picture.differences::<K>(&self.config, &wanted);
        let (unknown, mut failed): (Vec<usize>, Vec<Error>) = failures.into_iter().unzip();
        match K::others(&self.config, &seen, &attached, &mut self.picture) {
            Ok(others) => found.extend(others),
            Err(error) => failed.push(error),
        }
        let failed = failed.into_iter().next();
        Ok(Observation { wanted, found, unknown, failed, is_recorded: recorded.is_some() })
    }

    /// Has the record list the claims that a sound attachment has now, and releases the others: a
    /// shared link that was created again is another place.
    fn settle(&self, observed: &Observation) -> Result<(), Error> {
        let is_sound = observed.found.is_empty() && observed.failed.is_none();
        let items = observed.wanted.items.iter();
        let objects: Vec<&String> = items.filter_map(claim::of_item).collect();
        match &self.picture.record {
            Some(record) if observed.is_recorded && is_sound => {
                claim::settle(self.index, record, &objects)
            }
            _ => Ok(()),
        }
    }
}

/// Returns the error for an item that a kind wants and does not know how to compare or restore.
pub(crate) fn unknown(item: &Item) -> Error {
    Error::new(codes::CONFLICT, format!("unknown item {:?}", item.state))
}

/// Reports differences: the first as the message, the others as the details, with what helps.
fn as_error(found: &[Difference]) -> Result<(), Error> {
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
    Err(Error::new(codes::DRIFT, first.text.clone()).with_details(details.join("; ")))
}

/// Returns the backend of masquerading of an item.
fn backend(iptables: bool) -> Option<MasqueradeBackend> {
    Some(if iptables { MasqueradeBackend::Iptables } else { MasqueradeBackend::Nftables })
}
