//! ADD, DEL and GC of every kind, and the plugin that a kind is.
//!
//! # Links before addresses
//!
//! ADD makes the link before it asks for addresses, because an address plugin may talk over the
//! link, as `dhcp` does. DEL deletes the link before it releases the addresses: an address that is
//! released while a link carries it may be given to the next container. With `dhcp`, DEL removes
//! the addresses from the link, releases them over the link, and then deletes the link.
//! `engine::talks_over_the_link` alone decides which order applies. With such a plugin `bridge`
//! sets the port up early, after it has installed the port's spoof checks.

use std::cell::Cell;
use std::collections::BTreeSet;

use cni::json::{JsonError, UnknownKey};
use cni::order::gather;
use cni::{AddResult, AttachmentKey, Command, Error};
use cni_plugin::{Call, Info, Outcome, Plugin};
use kernel::living::Census;
use kernel::netns::Netns;
use serde::Serialize;
use state::{Index, Record};

use super::addresses::{self, Leftovers};
use super::any_kind::{AnyKind, ConfiguredKind, KindInfo, KindState};
use super::{Kind, StaleAttachment, Undo, Wants, chained, check, earlier};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::filter::SparedAttachments;
use crate::shared::{attachment, claim, common_keys, dropping, readiness};

/// What failed when a namespace could not be opened.
const NOT_ENTERED: &str = "open the container's namespace";

/// Why DEL does not release addresses.
const STAY_RESERVED: &str = "the addresses stay reserved: the link may still carry them";

/// The plugin of one kind of attachment.
#[derive(Debug)]
pub(crate) struct Life<K>(pub(crate) K);

impl<K: Wants> Plugin for Life<K> {
    fn info(&self) -> &'static Info {
        const { &K::INFO }
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let added = attachment::add_under_lock(call, &|may_be_recorded| {
            earlier::refuse_second(call, may_be_recorded, K::CHAINED.then_some(K::NAME))?;
            add::<K>(call)
        });
        Ok(added?)
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        Ok(del(self, call)?)
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        Ok(check::check(self, call)?)
    }

    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        check::repair(self, call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        Ok(gc(self, call)?)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        Ok(K::validate(call)?)
    }

    fn doubts(&self, call: &Call<'_>) -> Vec<Error> {
        K::doubts(call).into_iter().map(Error::from).collect()
    }

    fn fits_host(&self, call: &Call<'_>) -> Result<(), Error> {
        Ok(K::fits_host(call)?)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        readiness::refuse_unable(call)?;
        Ok(K::status(call)?)
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        common_keys::unknown::<K::Raw>(config, !K::CHAINED)
    }
}

impl<K: Wants> AnyKind for Life<K> {
    fn about(&self) -> KindInfo {
        KindInfo::of::<K>()
    }

    fn configured(&self, call: &Call<'_>) -> Result<Box<dyn ConfiguredKind>, Failure> {
        Ok(Box::new(KindState::<K>::new(K::config(call)?)))
    }

    fn before_repair(&self, call: &Call<'_>, index: &Index) -> Result<(), Failure> {
        K::before_repair(call, index)
    }

    fn removing(&self) -> Box<dyn Remover> {
        Box::new(RemovalCache::<K> { kept: K::Cache::default() })
    }
}

/// An ADD that is under way.
#[derive(Debug)]
pub(crate) struct Addition<'a, K: Kind> {
    /// The call.
    pub(crate) call: &'a Call<'a>,
    /// Our own files.
    pub(crate) index: &'a Index,
    /// The configuration.
    pub(crate) config: &'a K::Config,
    /// What the kind keeps during this verb.
    pub(crate) kept: &'a K::Cache,
    undo: Undo<'a>,
}

impl<'a, K: Kind> Addition<'a, K> {
    /// Returns whose attachment it is.
    pub(crate) fn key(&self) -> &'a AttachmentKey {
        self.call.attachment()
    }

    /// Returns what an earlier ADD of the attachment recorded.
    pub(crate) fn earlier_record(&self) -> Option<Record> {
        self.index.get(self.key(), K::NAME).found
    }

    /// Removes what an earlier ADD of the attachment made: this one wants nothing.
    ///
    /// # Errors
    /// What could not be removed.
    pub(crate) fn remove_earlier(&self) -> Result<(), Failure> {
        let Some(before) = self.earlier_record() else { return Ok(()) };
        let (call, index, kept) = (self.call, self.index, self.kept);
        Removal::<K>::new(call, index, kept, self.key(), Some(before), None).run()?;
        attachment::remove_record(index, self.key(), K::NAME)
    }

    /// Begins the changes: from here on a failure takes down what was made. `netns` is the
    /// container's, for kinds whose removal needs it. A kind that goes by its record has written it
    /// before: that of an earlier ADD may be of another namespace.
    pub(crate) fn begin(&mut self, netns: Option<&Netns>) {
        let (call, index, kept, netns) = (self.call, self.index, self.kept, netns.cloned());
        let key = call.attachment();
        self.undo
            .push_last("remove the record", move || attachment::remove_record(index, key, K::NAME));
        self.undo.push("remove what was made", move || {
            let record = index.get(key, K::NAME).found;
            Removal::<K>::new(call, index, kept, key, record, netns).run()
        });
    }

    /// Runs the IPAM plugin's ADD, if the configuration has one. On failure the addresses are
    /// released.
    ///
    /// # Errors
    /// The IPAM plugin's own; code 7 when it gave no address.
    pub(crate) fn addresses(&mut self) -> Result<Option<AddResult>, Failure> {
        let ipam = self.call.ipam();
        ipam.map(|ipam| addresses::add(self.call, ipam, &mut self.undo)).transpose()
    }

    /// Records what DEL must know, in place of what an earlier ADD recorded (`before`). On failure
    /// the record is what it was.
    ///
    /// # Errors
    /// Code 105.
    pub(crate) fn replace_record(
        &mut self,
        before: Option<Record>,
        recorded: &impl Serialize,
        netns: &Netns,
    ) -> Result<(), Failure> {
        let (index, key) = (self.index, self.key());
        self.undo.push("restore the record", move || match before {
            Some(before) => Ok(index.put(&before)?),
            None => Ok(attachment::remove_record(index, key, K::NAME)?),
        });
        self.record(recorded, netns)
    }

    /// Records what DEL must know, with the container's namespace.
    ///
    /// # Errors
    /// Code 105.
    pub(crate) fn record(&self, recorded: &impl Serialize, netns: &Netns) -> Result<(), Failure> {
        attachment::write_record(self.call, self.index, K::NAME, recorded, netns)
    }
}

fn add<K: Kind>(call: &Call<'_>) -> Result<AddResult, Failure> {
    let config = K::config(call)?;
    let index = Index::new(call.roots());
    let kept = K::Cache::default();
    let (index, config, kept) = (&index, &config, &kept);
    let mut attaching = Addition::<K> { call, index, config, kept, undo: Undo::new() };
    match K::attach(&mut attaching) {
        Ok(result) => Ok(result),
        Err(cause) => Err(attaching.undo.run(cause)),
    }
}

/// Which namespace a removal gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NetnsEntry {
    /// None: everything is on the host, or the kind opens it itself.
    Never,
    /// The one that DEL's path leads to, if it can be entered. A removal uses it only if it does
    /// not find the host's side, and only after [`Call::is_another`].
    IfNeeded,
    /// The container's, by the path of the call or of the record. If it lives and cannot be entered,
    /// what is on the host is taken down all the same.
    IfPossible,
    /// The container's, by the path of the call or of the record. If it lives and cannot be entered,
    /// nothing is taken down.
    Always,
}

/// The removal of one attachment: by DEL or GC, or because its ADD failed.
#[derive(Debug)]
pub(crate) struct Removal<'a, K: Kind> {
    /// The call.
    pub(crate) call: &'a Call<'a>,
    /// Our own files.
    pub(crate) index: &'a Index,
    /// What the kind keeps during this verb.
    pub(crate) kept: &'a K::Cache,
    /// The attachment's owner. GC's call concerns no single attachment.
    pub(crate) key: &'a AttachmentKey,
    /// The record, if there is one.
    pub(crate) record: Option<Record>,
    /// What it holds, if it is legible.
    pub(crate) recorded: Option<K::RecordData>,
    /// The namespace that [`Kind::ENTER`] asks for.
    pub(crate) netns: Option<Netns>,
    /// The plugin's records, of all networks, as GC read them; none in another verb.
    pub(crate) records: &'a [Record],
    link_is_gone: Cell<bool>,
}

impl<'a, K: Kind> Removal<'a, K> {
    fn new(
        call: &'a Call<'_>,
        index: &'a Index,
        kept: &'a K::Cache,
        key: &'a AttachmentKey,
        record: Option<Record>,
        netns: Option<Netns>,
    ) -> Self {
        let recorded = record.as_ref().and_then(attachment::recorded_in);
        if record.is_some() && recorded.is_none() {
            call.warn(format_args!("ignored what {} recorded of {key}", K::NAME));
        }
        let link_is_gone = Cell::new(false);
        Removal { call, index, kept, key, record, recorded, netns, records: &[], link_is_gone }
    }

    /// Reports whether the call is the attachment's own: its configuration, its path and its
    /// `prevResult` are those of the attachment. GC's call has none of these for it.
    pub(crate) fn is_own_call(&self) -> bool {
        self.call.command() != Command::Gc
    }

    /// Notes that no link carries the attachment's addresses any more: GC may release them even if
    /// something else cannot be taken down.
    pub(crate) fn set_link_gone(&self) {
        self.link_is_gone.set(true);
    }

    /// Returns the result of the plugins before this one, if the call has it.
    pub(crate) fn prev_result(&self) -> Option<AddResult> {
        self.call.prev_result().ok().flatten().filter(|_| self.is_own_call())
    }

    /// Removes everything but the reservation of addresses and the record, which goes last. What
    /// cannot be taken down keeps its claims while the link may carry the addresses: DEL or GC may
    /// come again.
    fn run(&self) -> Result<(), Failure> {
        let taken = self.take_down();
        let released = match taken.is_ok() || self.link_is_gone.get() {
            true => self.release_claims(),
            false => Ok(()),
        };
        taken.and(released)
    }

    /// Removes everything but the record, or, if the container's namespace lives and was not entered,
    /// what the kind can remove without it: then the claims stay for the next DEL or GC.
    fn run_if(&self, is_entered: bool) -> Result<(), Failure> {
        match K::ENTER {
            _ if is_entered => self.run(),
            NetnsEntry::Always => Ok(()),
            _ => self.take_down(),
        }
    }

    fn take_down(&self) -> Result<(), Failure> {
        let mut failures = Failures::new();
        K::take_down(self, &mut failures);
        failures.into_result()
    }

    fn release_claims(&self) -> Result<(), Failure> {
        let mut failures = Failures::new();
        if K::CLAIMS {
            let record = self.record.as_ref().filter(|_| self.recorded.is_some());
            let held = record.map(|record| claim::recorded(&record.data));
            claim::release(self.index, self.key, held.as_deref(), &mut failures);
        }
        failures.into_result()
    }
}

/// A verb that removes attachments, without the kind's type.
pub(super) trait Remover {
    /// Reports whether something of an attachment may be in the container's namespace alone, as its
    /// record says: [`Kind::is_inside`].
    fn is_inside(&self, record: &Record) -> bool;

    /// Lists attachments that may exist without a record: [`Kind::unrecorded`].
    fn unrecorded(
        &self,
        call: &Call<'_>,
        index: &Index,
        failures: &mut Failures,
    ) -> Vec<AttachmentKey>;

    /// Removes one attachment but for its record, as far as its namespace was entered.
    fn remove(&self, one: RemovalTarget<'_>) -> RemovalOutcome;

    /// Removes what belongs to no attachment: [`Kind::collect`].
    fn collect(
        &self,
        call: &Call<'_>,
        index: &Index,
        spared: &SparedAttachments<'_>,
        failures: &mut Failures,
    );
}

/// An attachment that is to be removed.
pub(super) struct RemovalTarget<'a> {
    call: &'a Call<'a>,
    index: &'a Index,
    key: &'a AttachmentKey,
    record: Option<Record>,
    /// The container's namespace, if there is one to enter.
    netns: Option<Netns>,
    /// Its namespace was entered, or there is none to enter.
    is_entered: bool,
    /// As in [`Removal`].
    records: &'a [Record],
}

/// What became of an attachment that was to be removed.
pub(super) struct RemovalOutcome {
    result: Result<(), Failure>,
    /// No link carries its addresses any more.
    link_is_gone: bool,
}

/// What a kind keeps during a verb that removes attachments.
struct RemovalCache<K: Kind> {
    kept: K::Cache,
}

impl<K: Kind> Remover for RemovalCache<K> {
    fn is_inside(&self, record: &Record) -> bool {
        let recorded: Option<K::RecordData> = attachment::recorded_in(record);
        recorded.is_some_and(|recorded| K::is_inside(&recorded))
    }

    fn unrecorded(
        &self,
        call: &Call<'_>,
        index: &Index,
        failures: &mut Failures,
    ) -> Vec<AttachmentKey> {
        K::unrecorded(call, index, failures)
    }

    fn remove(&self, one: RemovalTarget<'_>) -> RemovalOutcome {
        let RemovalTarget { call, index, key, record, netns, is_entered, records } = one;
        let mut removal = Removal::<K>::new(call, index, &self.kept, key, record, netns);
        removal.records = records;
        let result = removal.run_if(is_entered);
        RemovalOutcome { result, link_is_gone: removal.link_is_gone.get() }
    }

    fn collect(
        &self,
        call: &Call<'_>,
        index: &Index,
        spared: &SparedAttachments<'_>,
        failures: &mut Failures,
    ) {
        K::collect(&Collection { call, index, kept: &self.kept, spared }, failures);
    }
}

/// A GC, after it has removed the attachments that are stale.
#[derive(Debug)]
pub(crate) struct Collection<'a, K: Kind> {
    /// The call.
    pub(crate) call: &'a Call<'a>,
    /// Our own files.
    pub(crate) index: &'a Index,
    /// What the kind keeps during this verb.
    pub(crate) kept: &'a K::Cache,
    /// What is left alone.
    pub(crate) spared: &'a SparedAttachments<'a>,
}

/// DEL releases the addresses after all else, and not at all while the link may still carry them. If
/// the IPAM plugin needs the link for the release, DEL takes the addresses from the link, releases
/// them, and then removes the link. The record goes last: by it another DEL or GC finds what this one
/// could not remove or release.
fn del(kind: &dyn AnyKind, call: &Call<'_>) -> Result<(), Failure> {
    let (index, key) = (Index::new(call.roots()), call.attachment());
    let (about, removing) = (kind.about(), kind.removing());
    let mut failures = Failures::new();
    if !about.is_chained {
        chained::remove(call, &index, &mut failures);
    }
    let _lock = attachment::lock_for_removal(call)?;
    // A plugin that was missing during ADD gave no address, and DEL must not wait for it to appear.
    let ipam = call.ipam().filter(|ipam| !about.is_chained && (!call.is_undo() || ipam.is_there()));
    let ipam = ipam.filter(|ipam| !call.is_renewed() || addresses::knows_lives(ipam));
    let over_the_link = ipam.filter(addresses::talks_over_the_link);
    let record = index.get(key, about.name).found;
    let is_recorded = record.is_some();
    let enter = if over_the_link.is_some() { NetnsEntry::Always } else { about.enter };
    let opened = match to_enter(call, enter) {
        Ok(None) => {
            let is_inside = |record: &Record| removing.is_inside(record);
            recorded_netns(call, about.enter, record.as_ref(), &is_inside, &Census::new())
        }
        opened => opened,
    };
    let netns = failures.note(NOT_ENTERED, opened);
    let is_entered = netns.is_some();
    let netns = netns.flatten();
    if let Some(ipam) = over_the_link {
        if let Some(netns) = &netns {
            let taken = addresses::take_from_link(call, netns);
            failures.note("take the addresses from the link", taken);
        }
        if failures.is_empty() {
            failures.note("release the addresses", ipam.del());
        } else {
            call.warn(STAY_RESERVED);
        }
    }
    let index = &index;
    let one = RemovalTarget { call, index, key, record, netns, is_entered, records: &[] };
    failures.note_as_it_is(removing.remove(one).result);
    // What cannot be removed dies with the container, and blocks nothing.
    if !about.is_chained
        && let Err(error) = dropping::remove_at_end(call)
    {
        call.warn(error);
    }
    if let (Some(ipam), None) = (ipam, over_the_link) {
        if failures.is_empty() {
            failures.note("release the addresses", ipam.del());
        } else {
            call.warn(STAY_RESERVED);
        }
    }
    if failures.is_empty() {
        failures.note_as_it_is(attachment::remove_record(index, key, about.name));
    }
    failures.into_result().map_err(|failure| if is_recorded { failure.leaving() } else { failure })
}

/// Opens the namespace that DEL's path leads to.
fn to_enter(call: &Call<'_>, enter: NetnsEntry) -> Result<Option<Netns>, Error> {
    match enter {
        NetnsEntry::Never => Ok(None),
        // The container's end is deleted with the host's end, whether or not the namespace can be
        // entered.
        NetnsEntry::IfNeeded => Ok(call.open_any_netns().ok().flatten()),
        NetnsEntry::IfPossible | NetnsEntry::Always => call.open_netns_if_there(),
    }
}

/// Opens the namespace that the record names, for a kind that needs it.
fn recorded_netns(
    call: &Call<'_>,
    enter: NetnsEntry,
    record: Option<&Record>,
    is_inside: &dyn Fn(&Record) -> bool,
    census: &Census,
) -> Result<Option<Netns>, Error> {
    let (Some(record), NetnsEntry::IfPossible | NetnsEntry::Always) = (record, enter) else {
        return Ok(None);
    };
    match is_inside(record) {
        true => Ok(attachment::find_recorded_netns(call, record, census)?),
        false => Ok(attachment::recorded_netns(record, census)?),
    }
}

fn gc(kind: &dyn AnyKind, call: &Call<'_>) -> Result<(), Failure> {
    let (index, census) = (Index::new(call.roots()), Census::new());
    let (KindInfo { name, is_chained, enter, .. }, removing) = (kind.about(), kind.removing());
    let is_inside = |record: &Record| removing.is_inside(record);
    let mut failures = Failures::new();
    let records = attachment::records_of(call, &index, name);
    let mut stale: Vec<StaleAttachment> = records
        .iter()
        .filter(|record| attachment::is_stale(call, &record.attachment))
        .map(|record| StaleAttachment::of(record.clone()))
        .collect();
    let mut known: BTreeSet<AttachmentKey> = gather(stale.iter().map(|one| one.key.clone()));
    for key in removing.unrecorded(call, &index, &mut failures) {
        if attachment::is_stale(call, &key) && known.insert(key.clone()) {
            let one = StaleAttachment::read(&index, name, key);
            // Else an ADD has recorded it since the records were listed.
            stale.extend((!one.is_recorded()).then_some(one));
        }
    }
    let mut left =
        if failures.is_empty() { Leftovers::LinksOf(Vec::new()) } else { Leftovers::Unknown };
    let mut spared = SparedAttachments::new(call, &index, name);
    let stale_keys: Vec<AttachmentKey> = stale.iter().map(|one| one.key.clone()).collect();
    for one in stale {
        let mut link_is_gone = false;
        let collected = one.collect(&index, name, |record| {
            let mut own = Failures::new();
            let opened = recorded_netns(call, enter, record.as_ref(), &is_inside, &census);
            let netns = own.note(NOT_ENTERED, opened);
            let is_entered = netns.is_some();
            let (netns, index, key, records) = (netns.flatten(), &index, &one.key, &records);
            let doomed = RemovalTarget { call, index, key, record, netns, is_entered, records };
            let removed = removing.remove(doomed);
            own.note_as_it_is(removed.result);
            link_is_gone = own.is_empty() || removed.link_is_gone;
            if own.is_empty() {
                own.note_as_it_is(attachment::remove_record(index, key, name));
            }
            own.into_result()
        });
        spared.note(&one.key, &collected);
        failures.note(format_args!("collect {}", one.key), collected);
        if let (false, Leftovers::LinksOf(keys)) = (link_is_gone, &mut left) {
            keys.push(one.key);
        }
    }
    removing.collect(call, &index, &spared, &mut failures);
    if !is_chained {
        addresses::collect(call, name, &stale_keys, left, &mut failures);
    }
    failures.into_result()
}
