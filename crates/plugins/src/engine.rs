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
//! has lost its routes only once it is up. A sound attachment costs one round, which is CHECK.

mod picture;

use cni::{AddResult, AttachmentKey, Error};
use cni_plugin::{Call, Outcome, codes};
use serde::de::DeserializeOwned;
use state::Index;
use wanted::{Place, State, Wanted};

use crate::shared::attachment;
use crate::shared::container;
use crate::shared::failures::Failures;
use crate::shared::repair::REPAIR_TIMEOUT;
use crate::shared::shared_object::lock_error;
use picture::Observation;
pub(crate) use picture::{Difference, Picture};

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

    /// Reads and checks the configuration. Reads nothing else.
    ///
    /// # Errors
    /// Code 7 or 2, naming the key.
    fn config(call: &Call<'_>) -> Result<Self::Config, Error>;

    /// Says what an attachment wants. Pure: the same for CHECK and repair, whatever the kernel has.
    /// Without a record, another project's plugin may have attached the container.
    fn wanted(
        config: &Self::Config,
        recorded: Option<&Self::Recorded>,
        attached: &Attached<'_>,
    ) -> Wanted;

    /// Finds what differs and is not an item: what only this kind compares, and repair leaves to a
    /// person.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    fn others(
        call: &Call<'_>,
        config: &Self::Config,
        attached: &Attached<'_>,
        picture: &mut Picture<'_>,
    ) -> Result<Vec<Difference>, Error> {
        let _ = (call, config, attached, picture);
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

/// Runs CHECK: the IPAM plugin's, then every item.
///
/// # Errors
/// Code 104 with all differences; code 100 when the kernel does not answer.
pub(crate) fn check<K: Kind>(call: &Call<'_>) -> Result<(), Error> {
    let config = K::config(call)?;
    if let Some(ipam) = call.ipam() {
        ipam.check()?;
    }
    let index = Index::new(call.roots());
    Look::<K>::begin(call, &index, config)?.differences().into_result()
}

/// Runs the CHECK that repairs.
pub(crate) fn repair<K: Kind>(call: &Call<'_>) -> Outcome {
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
    let reserved = match call.ipam().map(|ipam| ipam.repair()) {
        Some(Ok(lines)) => {
            restoring.lines.extend(lines);
            Ok(())
        }
        Some(Err(error)) => Err(error),
        None => Ok(()),
    };
    let mut look = Look::<K>::begin(call, index, config)?;
    let mut tries = vec![0; look.wanted.items.len()];
    let mut done: Vec<(usize, String)> = Vec::new();
    loop {
        let observed = look.differences();
        let differs = |number: usize| observed.found.iter().any(|one| one.item == Some(number));
        for (number, what) in done.drain(..) {
            if !differs(number) && !restoring.lines.contains(&what) {
                restoring.lines.push(what);
            }
        }
        let has_address = look.wanted.items.iter().enumerate().any(|(number, item)| {
            item.place == Place::Container
                && matches!(item.state, State::Address(_))
                && !differs(number)
        });
        let mut before = None;
        for difference in &observed.found {
            let Some(number) = difference.item else { continue };
            // One item may differ in several ways.
            if before.replace(number) == Some(number) {
                continue;
            }
            let item = &look.wanted.items[number];
            // A container never gets an address that is not reserved for it, nor routes without one.
            let allowed = match item.state {
                State::Address(_) if item.place == Place::Container => reserved.is_ok(),
                State::Route(_) if item.place == Place::Container => {
                    reserved.is_ok() || has_address
                }
                _ => true,
            };
            if !allowed || TRIES <= tries[number] {
                continue;
            }
            tries[number] += 1;
            let what = look.picture.describe(item);
            match look.picture.restore(item) {
                Ok(()) => done.push((number, what)),
                Err(error) => {
                    tries[number] = TRIES;
                    restoring.failures.note::<()>(format_args!("put back {what}"), Err(error));
                }
            }
        }
        if done.is_empty() {
            reserved?;
            return observed.into_result();
        }
        look.picture.forget();
    }
}

/// An attachment as CHECK and repair look at it.
struct Look<'c, K: Kind> {
    call: &'c Call<'c>,
    config: K::Config,
    result: AddResult,
    wanted: Wanted,
    picture: Picture<'c>,
}

impl<'c, K: Kind> Look<'c, K> {
    fn begin(call: &'c Call<'_>, index: &'c Index, config: K::Config) -> Result<Self, Error> {
        let result = call.require_prev_result("Required prevResult missing")?;
        let netns = call.open_netns()?;
        container::reported_interface(call, &result)?;
        let recorded = attachment::read_facts(index, call.attachment(), K::NAME);
        let wanted = K::wanted(&config, recorded.as_ref(), &attached(call, &result));
        let picture = Picture::open(call, index, K::NAME, netns)?;
        Ok(Look { call, config, result, wanted, picture })
    }

    fn differences(&mut self) -> Observation {
        let mut observed = self.picture.differences(&self.wanted);
        let attached = attached(self.call, &self.result);
        let others = K::others(self.call, &self.config, &attached, &mut self.picture);
        let others = observed.note(others);
        observed.found.extend(others.into_iter().flatten());
        observed
    }
}

fn attached<'a>(call: &'a Call<'_>, result: &'a AddResult) -> Attached<'a> {
    Attached { key: call.attachment(), ifname: call.ifname().as_str(), result }
}

impl Observation {
    /// Reports the differences; without any, what could not be compared.
    fn into_result(self) -> Result<(), Error> {
        as_error(&self.found)?;
        self.failed.map_or(Ok(()), Err)
    }
}

/// The differences that a CHECK finds which compares step by step.
#[derive(Debug, Default)]
pub(crate) struct Differences(Vec<Difference>);

impl Differences {
    /// Collects what a step says of a difference; returns what the step found if there is none.
    ///
    /// # Errors
    /// The step's, unless its code is 104.
    pub(crate) fn note<T>(&mut self, compared: Result<T, Error>) -> Result<Option<T>, Error> {
        match compared {
            Ok(found) => Ok(Some(found)),
            Err(error) => {
                self.0.extend(Difference::of(Err(error))?);
                Ok(None)
            }
        }
    }

    /// Collects one difference.
    pub(crate) fn push(&mut self, text: String) {
        self.0.push(Difference { item: None, text, remedy: String::new(), quiet: false });
    }

    /// Reports them all.
    ///
    /// # Errors
    /// Code 104 when there is any: the first is the message, the others are the details.
    pub(crate) fn into_result(self) -> Result<(), Error> {
        as_error(&self.0)
    }
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
