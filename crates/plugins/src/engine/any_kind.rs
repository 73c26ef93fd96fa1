//! A kind without its type. The verbs ask it so, and are compiled once instead of for each kind.

use cni::AddResult;
use cni_plugin::Call;
use state::Index;
use wanted::{Item, Wanted};

use super::life::Remover;
use super::{Attachment, Comparison, Difference, NetnsEntry, Picture, Wants};
use crate::shared::attachment;
use crate::shared::failure::Failure;

/// The constants of a kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct KindInfo {
    /// [`Kind::NAME`](super::Kind::NAME).
    pub(super) name: &'static str,
    /// [`Kind::CHAINED`](super::Kind::CHAINED).
    pub(super) is_chained: bool,
    /// [`Kind::ENTER`](super::Kind::ENTER).
    pub(super) enter: NetnsEntry,
    /// [`Wants::NO_PREVIOUS`].
    pub(super) no_previous: &'static str,
}

impl KindInfo {
    /// Returns those of a kind.
    pub(super) fn of<K: Wants>() -> Self {
        KindInfo {
            name: K::NAME,
            is_chained: K::CHAINED,
            enter: K::ENTER,
            no_previous: K::NO_PREVIOUS,
        }
    }
}

/// A kind, as the verbs ask it.
pub(super) trait AnyKind {
    /// Returns its constants.
    fn about(&self) -> KindInfo;

    /// Reads and checks the configuration: [`Kind::config`](super::Kind::config).
    ///
    /// # Errors
    /// Code 7 or 2, naming the key.
    fn configured(&self, call: &Call<'_>) -> Result<Box<dyn ConfiguredKind>, Failure>;

    /// Is called before anything is restored: [`Wants::before_repair`].
    ///
    /// # Errors
    /// Why nothing is restored.
    fn before_repair(&self, call: &Call<'_>, index: &Index) -> Result<(), Failure>;

    /// Begins a verb that removes attachments.
    fn removing(&self) -> Box<dyn Remover>;
}

/// A kind with a configuration, as CHECK and repair ask it about one attachment.
pub(super) trait ConfiguredKind {
    /// Reports whether the configuration asks for nothing: [`Wants::is_nothing`].
    fn is_nothing(&self) -> bool;

    /// Says what is wanted, given the record that the picture has: [`Wants::observe`], then
    /// [`Wants::wanted`].
    ///
    /// # Errors
    /// As [`Wants::observe`].
    fn wanted(&mut self, result: &AddResult, picture: &mut Picture<'_>) -> Result<Wanted, Failure>;

    /// Reports whether there was a legible record when it said what is wanted.
    fn is_recorded(&self) -> bool;

    /// Finds what differs and is not an item: [`Wants::others`].
    ///
    /// # Errors
    /// As [`Wants::others`].
    fn others(
        &self,
        result: &AddResult,
        picture: &mut Picture<'_>,
    ) -> Result<Vec<Difference>, Failure>;

    /// Compares an item whose state only this kind has: [`Wants::compare`].
    ///
    /// # Errors
    /// As [`Wants::compare`].
    fn compare(&self, picture: &mut Picture<'_>, item: &Item) -> Comparison;

    /// Restores an item whose state only this kind has: [`Wants::restore`].
    ///
    /// # Errors
    /// As [`Wants::restore`].
    fn restore(&self, picture: &mut Picture<'_>, item: &Item) -> Result<Option<String>, Failure>;

    /// Says in the plugin's own words that an item of the engine differs: [`Wants::words`].
    fn words(&self, item: &Item, now: Option<&str>) -> Option<String>;
}

/// What a kind knows of one attachment.
pub(super) struct KindState<K: Wants> {
    config: K::Config,
    recorded: Option<K::RecordData>,
    observed: K::Observation,
}

impl<K: Wants> KindState<K> {
    /// Begins with a configuration.
    pub(super) fn new(config: K::Config) -> Self {
        KindState { config, recorded: None, observed: K::Observation::default() }
    }

    fn attached<'a>(&'a self, call: &'a Call<'_>, result: &'a AddResult) -> Attachment<'a, K> {
        let (key, ifname) = (call.attachment(), call.ifname().as_str());
        let (config, recorded) = (&self.config, self.recorded.as_ref());
        Attachment { key, ifname, result, config, recorded }
    }
}

impl<K: Wants> ConfiguredKind for KindState<K> {
    fn is_nothing(&self) -> bool {
        K::is_nothing(&self.config)
    }

    fn wanted(&mut self, result: &AddResult, picture: &mut Picture<'_>) -> Result<Wanted, Failure> {
        let call = picture.call;
        self.recorded = picture.record.as_ref().and_then(attachment::recorded_in);
        let observed = K::observe(&self.attached(call, result), picture)?;
        let wanted = K::wanted(&self.attached(call, result), &observed);
        self.observed = observed;
        Ok(wanted)
    }

    fn is_recorded(&self) -> bool {
        self.recorded.is_some()
    }

    fn others(
        &self,
        result: &AddResult,
        picture: &mut Picture<'_>,
    ) -> Result<Vec<Difference>, Failure> {
        K::others(&self.attached(picture.call, result), &self.observed, picture)
    }

    fn compare(&self, picture: &mut Picture<'_>, item: &Item) -> Comparison {
        K::compare(&self.config, picture, item)
    }

    fn restore(&self, picture: &mut Picture<'_>, item: &Item) -> Result<Option<String>, Failure> {
        K::restore(&self.config, picture, item)
    }

    fn words(&self, item: &Item, now: Option<&str>) -> Option<String> {
        K::words(item, now)
    }
}
