//! Every recorded attachment on this node: the cache and our plugins' records, merged.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use cni::{AddResult, AttachmentKey, Error, GoneNetns, NetworkList, code};
use kernel::living::{Census, Life, NetnsNote, Sign};
use serde::Serialize;
use state::{DamagedFile, Index, Record, Roots};

use crate::cache::{CacheError, CachedAttachment, SkippedFile};
use crate::runtime::PluginChoice;
use crate::{Attachment, DelError, Repairs, Runtime};

/// What is known of a container's namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Presence {
    /// It exists.
    Alive,
    /// It is known to be gone: see [`kernel::living`].
    Gone,
    /// Its place was not recorded, not everything can be seen from here, or another namespace may
    /// have its path by now.
    Unknown,
}

impl Presence {
    /// Returns the word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Presence::Alive => "alive",
            Presence::Gone => "gone",
            Presence::Unknown => "unknown",
        }
    }
}

impl From<Life> for Presence {
    fn from(life: Life) -> Self {
        match life {
            Life::Living => Presence::Alive,
            Life::Gone => Presence::Gone,
            Life::Unknown => Presence::Unknown,
        }
    }
}

/// An attachment, with everything that is known of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KnownAttachment {
    /// The attachment.
    pub key: AttachmentKey,
    /// The runtime's record; `None` when a runtime made it that keeps its cache elsewhere.
    pub cached: Option<CachedAttachment>,
    /// Our plugins' records; empty when others made it.
    pub records: Vec<Record>,
    /// Whether the container is still there.
    pub presence: Presence,
    /// The runtime's file for it, if that is damaged: which file, and why.
    pub damaged: Option<SkippedFile>,
}

/// Where Docker's driver records its endpoints, and the copies of these records (docs/files.md,
/// "Services of `netwrightd`").
const DOCKERS_RECORDS: &str = "docker/endpoints";
const DOCKERS_COPIES: &str = "docker/records/endpoints";

/// Why an attachment of a living container cannot be repaired by its runtime's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RepairObstacle {
    /// It is of a container of Docker's: plugins worked in a namespace of Docker's driver, and
    /// Docker has moved the interface since, or is about to.
    Dockers,
    /// Its runtime keeps its cache elsewhere, or none.
    Elsewhere,
    /// ADD has not completed, or failed.
    Unfinished,
    /// It cannot be seen from here whether its namespace exists.
    Unseen,
}

impl RepairObstacle {
    /// Returns the words for several such attachments.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RepairObstacle::Dockers => "of Docker's containers, which `netwrightd repair` repairs",
            RepairObstacle::Elsewhere => "of runtimes that keep their cache elsewhere",
            RepairObstacle::Unfinished => "whose ADD is not complete",
            RepairObstacle::Unseen => "whose namespace cannot be seen",
        }
    }
}

/// Every attachment, and what could not be read.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Inventory {
    /// The attachments, sorted by their keys.
    pub known: Vec<KnownAttachment>,
    /// Files that were skipped, one line each.
    pub notices: Vec<String>,
    /// Damaged records of our plugins that are of none of the attachments, as far as can be seen
    /// ([`state::ReadOutcome::nameless`]): a container may be attached by each.
    pub nameless: Vec<DamagedFile>,
}

/// What was removed of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// All of it.
    Whole,
    /// What our plugins had recorded of a namespace that is gone. Other plugins have attached the
    /// container again under the same names, as far as can be seen: what they made stays.
    OfPastLife,
}

impl Runtime<'_> {
    /// Reads the cache and the records below `roots`, and determines with one look at the machine
    /// which containers exist.
    ///
    /// # Errors
    /// [`CacheError::File`] when the cache's folder cannot be read.
    pub fn everything(&self, roots: &Roots) -> Result<Inventory, CacheError> {
        self.everything_by(roots, &Census::new())
    }

    /// Does what [`Runtime::everything`] does, with a census that the caller also uses elsewhere.
    ///
    /// # Errors
    /// As [`Runtime::everything`].
    pub fn everything_by(&self, roots: &Roots, census: &Census) -> Result<Inventory, CacheError> {
        self.read_all(roots, &|written| match presence_of(written, census) {
            Presence::Unknown if written.is_taken_back(roots) => Presence::Gone,
            presence => presence,
        })
    }

    /// Does what [`Runtime::everything`] does, but looks only at the containers' paths: what is not
    /// there is [`Presence::Unknown`].
    ///
    /// # Errors
    /// As [`Runtime::everything`].
    pub fn everything_at_paths(&self, roots: &Roots) -> Result<Inventory, CacheError> {
        self.read_all(roots, &|written| {
            if written.is_of_an_earlier_boot() {
                return Presence::Gone;
            }
            let mut noted = written.noted().into_iter();
            let there = noted.any(|noted| Census::life_at_path(&noted) == Life::Living);
            if there { Presence::Alive } else { Presence::Unknown }
        })
    }

    /// Asks the plugins of an attachment what differs from what ADD made, with the configuration
    /// with which it was attached, and changes nothing ([`Runtime::survey_list`]).
    ///
    /// # Errors
    /// As [`Runtime::survey_list`]; its file in the cache is damaged, or is not there
    /// ([`KnownAttachment::apart`]).
    pub fn survey(
        &self,
        known: &KnownAttachment,
        deadline: Option<Instant>,
    ) -> Result<Repairs, Error> {
        let (list, attachment) = known.subject()?;
        let surveyed = self.for_records(&known.records).survey_list(&list, attachment, deadline);
        surveyed.map_err(|error| error.to_cni())
    }

    /// Makes them restore it, as far as they can ([`Runtime::repair_list`]).
    ///
    /// # Errors
    /// As [`Runtime::survey`].
    pub fn repair(
        &self,
        known: &KnownAttachment,
        deadline: Option<Instant>,
    ) -> Result<Repairs, Error> {
        let (list, attachment) = known.subject()?;
        let repaired = self.for_records(&known.records).repair_list(&list, attachment, deadline);
        repaired.map_err(|error| error.to_cni())
    }

    fn read_all(
        &self,
        roots: &Roots,
        judge: &dyn Fn(&WrittenRecords<'_>) -> Presence,
    ) -> Result<Inventory, CacheError> {
        let listing = self.cached_attachments(None)?;
        let mut notices: Vec<String> = listing
            .passed_over
            .iter()
            .map(|passed| format!("ignored {:?}: {}", passed.path, passed.reason))
            .collect();
        let records = Index::new(roots).list();
        notices.extend(records.damaged.iter().map(ToString::to_string));
        let nameless = records.nameless().cloned().collect();
        let mut found: BTreeMap<AttachmentKey, (Option<CachedAttachment>, Vec<Record>)> =
            BTreeMap::new();
        let passed_over = listing.passed_over;
        for cached in listing.attachments {
            let key = cached.key();
            found.entry(key).or_default().0 = Some(cached);
        }
        for record in records.found {
            found.entry(record.attachment.clone()).or_default().1.push(record);
        }
        let known = found.into_iter().map(|(key, (cached, records))| {
            let presence =
                judge(&WrittenRecords { key: &key, cached: cached.as_ref(), records: &records });
            let damaged = match cached {
                Some(_) => None,
                None => passed_over.iter().find(|file| self.cache.is_file_of(&file.path, &key)),
            };
            KnownAttachment { key, cached, records, presence, damaged: damaged.cloned() }
        });
        Ok(Inventory { known: known.collect(), notices, nameless })
    }

    /// Detaches with the configuration with which the attachment was made; `None` if that was not
    /// recorded: then the caller must use the present one ([`KnownAttachment::description`]).
    pub fn del_known(
        &self,
        known: &KnownAttachment,
        deadline: Option<std::time::Instant>,
    ) -> Option<Result<(), DelError>> {
        let mut cached = known.cached.clone()?;
        if known.presence != Presence::Gone {
            return match self.del_cached(&cached, deadline) {
                Err(DelError::NoConfig { .. }) => None,
                deleted => Some(deleted.map(drop)),
            };
        }
        // A foreign plugin does not check again; we can check the runtime's own record.
        let text = |one: &CachedAttachment| one.result.as_ref().map(|raw| raw.get().to_owned());
        let now = self.cached_attachment(&known.key).ok().flatten();
        if now.is_some_and(|now| {
            now.attachment.netns != cached.attachment.netns
                || text(&now) != text(&cached)
                || now.is_under_way()
        }) {
            let attachment = Box::new(known.key.clone());
            return Some(Err(DelError::Back { attachment }));
        }
        cached.attachment.netns.clear();
        match self.for_known(known).del_cached(&cached, deadline) {
            Err(DelError::NoConfig { .. }) => None,
            deleted => Some(deleted.map(drop)),
        }
    }

    /// Removes an attachment: with the configuration with which it was made, if that was recorded,
    /// then with what plugins of ours recorded, as `recorded` makes a list of it, and, if the
    /// configuration was not recorded, with the `present` one. Success means that no record of it is
    /// left.
    ///
    /// If others' plugins have attached the container again under the same names, nothing is removed
    /// but what our plugins recorded of the namespace that is gone: the runtime's record, and all
    /// that is found by the names alone, is of the new life. That is so if the runtime's record is
    /// of an interface that exists, or if `lives_again` says it of our plugins' records.
    ///
    /// # Errors
    /// The first failure, after everything else was tried; that of `present` only if no plugin had a
    /// record.
    pub fn remove_known(
        &self,
        known: &KnownAttachment,
        roots: &Roots,
        recorded: &dyn Fn(&[Record]) -> Option<NetworkList>,
        lives_again: &dyn Fn(&[Record]) -> bool,
        present: &dyn Fn() -> Result<NetworkList, Error>,
        deadline: Option<std::time::Instant>,
    ) -> Result<Removal, Error> {
        let index = Index::new(roots);
        let records = index.of_attachment(&known.key).found;
        let this = self.for_records(&records);
        let runtime = this.for_known(known);
        if self.is_renewed(known, &records) || is_past(known, &records) && lives_again(&records) {
            runtime.remove_past(known, &index, recorded, deadline)?;
            return Ok(Removal::OfPastLife);
        }
        let cached = this.del_known(known, deadline);
        let is_unknown = cached.is_none();
        let mut first = match cached {
            Some(Err(error)) if error.to_cni().code == code::TRY_AGAIN_LATER => {
                return Err(error.to_cni());
            }
            Some(deleted) => deleted.err().map(|error| error.to_cni()),
            None => None,
        };
        let description = known.description();
        if let Some(list) = recorded(&index.of_attachment(&known.key).found) {
            let deleted = runtime.del_recorded(&list, &description, deadline);
            first = first.or(deleted.err().map(|error| error.to_cni()));
        }
        if is_unknown {
            let deleted = match present() {
                Ok(list) => {
                    let deleted = runtime.del_list(&list, &description, deadline);
                    deleted.map(drop).map_err(|error| error.to_cni())
                }
                // Another removal was enough, such as that of the network that this one is part of.
                Err(_) if records.is_empty() && !known.records.is_empty() => Ok(()),
                Err(error) if records.is_empty() => Err(error),
                // Our records were enough.
                Err(_) => self.cache.forget(&known.key).map(drop).map_err(|error| error.to_cni()),
            };
            first = first.or(deleted.err());
        }
        match first {
            Some(error) => Err(error),
            None => left_of(known, &index).map(|()| Removal::Whole),
        }
    }

    /// Says whether the runtime's record is of another life of the container than our plugins'
    /// records: their namespace is gone, and the interface of its result exists.
    fn is_renewed(&self, known: &KnownAttachment, records: &[Record]) -> bool {
        if !is_past(known, records) {
            return false;
        }
        let cached = self.cached_attachment(&known.key).ok().flatten();
        cached.is_some_and(|cached| {
            let written = WrittenRecords { key: &known.key, cached: Some(&cached), records: &[] };
            presence_of(&written, &Census::new()) == Presence::Alive
        })
    }

    /// Removes what our plugins recorded of a namespace that is gone, and nothing that is found by
    /// the attachment's names alone.
    fn remove_past(
        mut self,
        known: &KnownAttachment,
        index: &Index,
        recorded: &dyn Fn(&[Record]) -> Option<NetworkList>,
        deadline: Option<std::time::Instant>,
    ) -> Result<(), Error> {
        self.whose = PluginChoice::Own;
        self.gone.iter_mut().flatten().for_each(|one| one.renewed = true);
        let mut description = known.description();
        description.netns.clear();
        if let Some(list) = recorded(&index.of_attachment(&known.key).found) {
            let deleted = self.del_recorded(&list, &description, deadline);
            deleted.map_err(|error| error.to_cni())?;
        }
        left_of(known, index)
    }

    /// Returns a runtime for the DEL of an attachment: if the attachment is gone, DEL removes
    /// nothing that came back since the look.
    #[must_use]
    pub fn for_known(&self, known: &KnownAttachment) -> Self {
        if known.presence != Presence::Gone {
            return self.clone();
        }
        self.for_seen(known)
    }

    /// Returns a runtime for the DEL of an attachment in the state that was seen: what is made of
    /// it now, or was made since, stays. Its DEL does not run beside an ADD.
    #[must_use]
    pub fn for_seen(&self, known: &KnownAttachment) -> Self {
        let gone = known.records.iter().filter_map(|record| {
            let id = record.netns_id?;
            let cookie = record.netns_cookie;
            Some(GoneNetns { dev: id.dev, ino: id.ino, cookie, renewed: false })
        });
        self.clone().for_gone(gone.collect())
    }
}

impl CachedAttachment {
    /// Says whether the namespace to which its path leads has the interface that ADD reported.
    pub(crate) fn is_at_its_path(&self) -> bool {
        let key = self.key();
        let written = WrittenRecords { key: &key, cached: Some(self), records: &[] };
        let netns = Path::new(&self.attachment.netns);
        self.result.is_some() && written.sign().is_some_and(|sign| sign.is_at(netns))
    }
}

/// What was recorded of an attachment.
struct WrittenRecords<'w> {
    key: &'w AttachmentKey,
    cached: Option<&'w CachedAttachment>,
    records: &'w [Record],
}

impl WrittenRecords<'_> {
    /// Says whether everything known of it was recorded before the last start of the machine.
    /// Plugins' records do not outlive a restart.
    fn is_of_an_earlier_boot(&self) -> bool {
        self.records.is_empty() && self.cached.is_some_and(CachedAttachment::is_of_an_earlier_boot)
    }

    /// Returns what identifies the container's interface, as ADD reported it; `None` if ADD did not
    /// complete.
    fn sign(&self) -> Option<Sign> {
        let result = self.cached?.result().ok()??;
        let ifname = self.key.ifname.as_str();
        let mut interfaces = result.interfaces.iter();
        let reported = interfaces.find(|one| one.name == ifname && !one.sandbox.is_empty());
        Some(Sign {
            ifname: ifname.to_owned(),
            mac: reported.and_then(|one| one.mac.parse().ok()),
            addresses: result.container_ips(ifname).map(|ip| ip.address.addr()).collect(),
        })
    }

    /// Returns the PID namespace in which the runtime's record was made, as in [`NetnsNote::pid_ns`].
    fn pid_ns(&self) -> Option<u64> {
        self.cached?.attachment.pid_ns
    }

    fn has_no_result(&self) -> bool {
        matches!(self.cached.map(CachedAttachment::result), Some(Ok(None)))
    }

    /// Says what became of a namespace. If only its path was recorded, it lives only if the
    /// interface is in it: the path may lead to another namespace by now.
    fn life(&self, noted: &NetnsNote, census: &Census) -> Life {
        match census.life(noted) {
            Life::Living if noted.id.is_none() && !self.is_at(&noted.path) => Life::Unknown,
            life => life,
        }
    }

    fn is_at(&self, path: &Path) -> bool {
        // A running ADD works in the namespace to which the path leads now.
        self.cached.is_some_and(CachedAttachment::is_under_way)
            || self.sign().is_some_and(|sign| sign.is_at(path))
    }

    /// Says whether Docker's driver is done with the endpoint that this is of: another plugin's DEL
    /// may have left what ours recorded. The driver writes its record of an endpoint, and a copy,
    /// before ADD; after DEL it removes the passage, and then both.
    fn is_taken_back(&self, roots: &Roots) -> bool {
        let is_absent = |path: &Path| {
            let found = path.symlink_metadata();
            found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        };
        let passages = roots.run.join(state::PASSAGES);
        let passed =
            |noted: &NetnsNote| noted.path.starts_with(&passages) && is_absent(&noted.path);
        let noted = self.noted();
        let copies = roots.run.join(DOCKERS_COPIES);
        let file = format!("{}.json", self.key.container_id);
        !noted.is_empty()
            && noted.iter().all(passed)
            && !self.cached.is_some_and(CachedAttachment::is_under_way)
            && copies.is_dir()
            && is_absent(&copies.join(&file))
            && is_absent(&roots.lib.join(DOCKERS_RECORDS).join(&file))
    }

    /// Returns everything that identifies the container's namespace.
    fn noted(&self) -> Vec<NetnsNote> {
        let mut all = state::noted_in(self.records);
        let cached = self.cached.map(|cached| Path::new(&cached.attachment.netns));
        if let Some(path) = cached.filter(|path| !path.as_os_str().is_empty())
            && !all.iter().any(|noted| noted.path == path)
        {
            // What a plugin recorded under another path applies to this namespace too.
            let like = all.iter().find(|noted| noted.id.is_some()).cloned().unwrap_or_default();
            let passage = state::is_passage(path);
            all.push(NetnsNote { path: path.to_owned(), passage, ..like });
        }
        all
    }
}

fn presence_of(written: &WrittenRecords<'_>, census: &Census) -> Presence {
    if written.is_of_an_earlier_boot() {
        return Presence::Gone;
    }
    let noted = written.noted();
    let lives: Vec<Life> = noted.iter().map(|noted| written.life(noted, census)).collect();
    if lives.is_empty() {
        return Presence::Unknown;
    }
    if lives.contains(&Life::Living) {
        return Presence::Alive;
    }
    // Its runtime may see a namespace that cannot be seen from here, and undoes an ADD that fails.
    if written.cached.is_some_and(CachedAttachment::is_under_way) {
        return Presence::Unknown;
    }
    let unknown = noted
        .iter()
        .zip(&lives)
        .filter(|(_, life)| **life == Life::Unknown)
        .map(|(noted, _)| noted);
    for noted in unknown {
        // Only the path was recorded: by a runtime without records, or before a restart of the
        // machine. Then look for the interface in all namespaces. If the path leads to a namespace,
        // that may be the container's, with the interface renamed.
        let life = match (noted.id, noted.open()) {
            // Docker may have given the interface another name.
            (None, Ok(None)) if !noted.passage => life_of_interface(written, census),
            (None, Ok(Some(_))) if is_elsewhere(written, census) => Life::Living,
            _ => Life::Unknown,
        };
        if life != Life::Gone {
            return life.into();
        }
    }
    Presence::Gone
}

/// Says whether some namespace of the machine has the interface that ADD reported.
fn is_elsewhere(written: &WrittenRecords<'_>, census: &Census) -> bool {
    written.sign().is_some_and(|sign| census.seek(&sign, written.pid_ns()) == Life::Living)
}

/// Says what became of a container by the interface that ADD reported.
fn life_of_interface(written: &WrittenRecords<'_>, census: &Census) -> Life {
    match written.sign() {
        Some(sign) => census.seek(&sign, written.pid_ns()),
        // That ADD has died, and no plugin recorded a namespace in which it worked. From elsewhere
        // its path may still be seen.
        None if written.has_no_result() && census.sees_everything(written.pid_ns()) => Life::Gone,
        None => Life::Unknown,
    }
}

fn netns_of(records: &[Record]) -> Option<String> {
    records.iter().find_map(|record| Some(record.netns.as_ref()?.to_string_lossy().into_owned()))
}

impl KnownAttachment {
    /// Describes one of several networks that together are an attachment; nothing but this entry is
    /// known of it.
    #[must_use]
    pub fn part(of: &KnownAttachment, cached: CachedAttachment) -> Self {
        let key = cached.key();
        KnownAttachment {
            presence: of.presence,
            cached: Some(cached),
            key,
            records: Vec::new(),
            damaged: None,
        }
    }

    /// Returns the path of the namespace; empty when it was not recorded.
    #[must_use]
    pub fn netns(&self) -> String {
        let cached = self.cached.as_ref().map(|cached| cached.attachment.netns.clone());
        cached
            .filter(|netns| !netns.is_empty())
            .or_else(|| netns_of(&self.records))
            .unwrap_or_default()
    }

    /// Says whether it is of a container of Docker's: plugins worked in a namespace of Docker's
    /// driver.
    #[must_use]
    pub fn is_dockers(&self, roots: &Roots) -> bool {
        // docs/files.md, "Services of `netwrightd`".
        Path::new(&self.netns()).starts_with(roots.run.join(state::PASSAGES))
    }

    /// Says why an attachment whose container is not gone is not to be repaired; `None` when it is
    /// to be repaired, or when its damaged file is to be reported.
    #[must_use]
    pub fn apart(&self, roots: &Roots) -> Option<RepairObstacle> {
        if self.is_dockers(roots) {
            return Some(RepairObstacle::Dockers);
        }
        match (self.presence, &self.cached) {
            (Presence::Unknown, _) => Some(RepairObstacle::Unseen),
            (_, Some(cached)) if cached.result.is_none() => Some(RepairObstacle::Unfinished),
            (_, None) if self.damaged.is_none() => Some(RepairObstacle::Elsewhere),
            _ => None,
        }
    }

    /// Returns the error for an attachment whose file in the runtime's cache is damaged, or whose
    /// result in it is.
    #[must_use]
    pub fn damage(&self) -> Option<Error> {
        let hint = "the plugins' records of it are kept: DEL removes them, and another ADD writes them again";
        let told = |path: &Path, reason: &str| {
            Error::new(
                code::DECODE_FAILURE,
                format!("its file in the cache is damaged: {path:?}: {reason}"),
            )
            .with_details(hint)
        };
        match (&self.cached, &self.damaged) {
            (Some(cached), _) => Some(told(&cached.path, &cached.result().err()?.to_string())),
            (None, Some(file)) => Some(told(&file.path, &file.reason)),
            (None, None) => None,
        }
    }

    /// Returns the configuration with which it was attached, and the runtime's description.
    ///
    /// # Errors
    /// [`KnownAttachment::damage`], and that the runtime's file is not here.
    fn subject(&self) -> Result<(NetworkList, &Attachment), Error> {
        if let Some(damage) = self.damage() {
            return Err(damage);
        }
        let missing = || Error::new(code::UNKNOWN_CONTAINER, "its file is not in the cache");
        let cached = self.cached.as_ref().ok_or_else(missing)?;
        Ok((cached.list()?, &cached.attachment))
    }

    /// Returns the runtime's file of the attachment, whole or damaged.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        let cached = self.cached.as_ref().map(|cached| cached.path.as_path());
        cached.or_else(|| self.damaged.as_ref().map(|file| file.path.as_path()))
    }

    /// Returns what ADD returned, if that can be read.
    #[must_use]
    pub fn result(&self) -> Option<AddResult> {
        self.cached.as_ref().and_then(|cached| cached.result().ok().flatten())
    }

    /// Describes the attachment for DEL; the namespace is left out when it is gone.
    #[must_use]
    pub fn description(&self) -> Attachment {
        let netns = if self.presence == Presence::Gone { String::new() } else { self.netns() };
        Attachment::new(self.key.container_id.clone(), self.key.ifname.clone(), netns)
    }
}

/// Says whether an attachment is of a namespace that our plugins recorded and that is gone.
fn is_past(known: &KnownAttachment, records: &[Record]) -> bool {
    known.presence == Presence::Gone && records.iter().any(|record| record.netns_id.is_some())
}

/// Returns the error for records of an attachment that its removal has left.
fn left_of(known: &KnownAttachment, index: &Index) -> Result<(), Error> {
    let left = index.of_attachment(&known.key);
    let plugin = left.found.first().map(|record| format!("the record of {:?}", record.plugin));
    let damaged =
        left.damaged.first().map(|damaged| format!("a damaged record, {:?}", damaged.path));
    match plugin.or(damaged) {
        None => Ok(()),
        Some(what) => {
            let text = format!("{what} of {} stays: no plugin here removes it", known.key);
            Err(Error::new(code::PLUGIN_NOT_AVAILABLE, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_alone_proves_nothing() {
        let key = AttachmentKey {
            network: cni::NetworkName::new("n").unwrap(),
            container_id: cni::ContainerId::new("c").unwrap(),
            ifname: cni::IfName::new("eth0").unwrap(),
        };
        let census = Census::new();
        for path in ["", "/nonexistent/netns", "/etc/hostname", "/proc/self/ns/net"] {
            let record = Record::new(key.clone(), "bridge", "", serde_json::Value::Null);
            let records = [record.with_netns(path, None)];
            let written = WrittenRecords { key: &key, cached: None, records: &records };
            assert_eq!(presence_of(&written, &census), Presence::Unknown, "{path}");
        }
    }

    /// Docker has removed a container while another project's plugin stood in for ours, whose
    /// records stay.
    #[test]
    fn an_endpoint_that_dockers_driver_has_removed_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::new(dir.path().join("run"), dir.path().join("lib"));
        let key = AttachmentKey {
            network: cni::NetworkName::new("n").unwrap(),
            container_id: cni::ContainerId::new("f114b62ece17").unwrap(),
            ifname: cni::IfName::new("eth0").unwrap(),
        };
        let passage = roots.run.join(state::PASSAGES).join("nwdf114b62ece17");
        let record = Record::new(key.clone(), "portmap", "", serde_json::Value::Null);
        Index::new(&roots).put(&record.with_netns(&passage, None)).unwrap();
        let runtime = Runtime::new(
            Vec::<std::path::PathBuf>::new(),
            std::sync::Arc::new(cni_invoke::Exec::default()),
        )
        .with_cache(crate::Cache::new(dir.path().join("cache")));
        let is = || runtime.everything(&roots).unwrap().known[0].presence;
        // Without the driver's folder nobody knows.
        assert_eq!(is(), Presence::Unknown);
        let copies = roots.run.join(DOCKERS_COPIES);
        std::fs::create_dir_all(&copies).unwrap();
        assert_eq!(is(), Presence::Gone);
        for folder in [copies, roots.lib.join(DOCKERS_RECORDS), passage.parent().unwrap().into()] {
            std::fs::create_dir_all(&folder).unwrap();
            let file = match folder.ends_with(state::PASSAGES) {
                true => passage.clone(),
                false => folder.join("f114b62ece17.json"),
            };
            std::fs::write(&file, "").unwrap();
            assert_eq!(is(), Presence::Unknown, "{file:?}");
            std::fs::remove_file(&file).unwrap();
        }
        assert_eq!(is(), Presence::Gone);
    }
}
