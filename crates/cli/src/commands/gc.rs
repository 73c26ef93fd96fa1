//! `gc`: removes what deleted containers left behind.
//!
//! Without `--valid` the command removes only attachments that are known and whose namespace is
//! known to be gone, one by one. Then it does not ask plugins to collect: they would remove the
//! attachments of other runtimes on this machine, whose caches we do not see.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use cni::text::one_line;
use cni::{AttachmentKey, CallEnv, Command, GcAttachment, NetworkName};
use cni_invoke::{Builtin as _, Request, Status};
use cni_runtime::{
    CachedAttachment, GcError, GcFailure, GcReport, Inventory, Presence, Removal, Runtime,
};
use plugins::Builtins;
use plugins::marks::{self, Marks};
use plugins::own_folder;
use plugins::shared::forwarding;
use serde::Serialize;
use state::{Index, Record, Roots};

use super::Outcome;
use crate::args::{Common, Gc};
use crate::failure::Failure;
use crate::net::attachments::{self, KnownAttachment};
use crate::net::container;
use crate::net::session::{PluginSource, Session};
use crate::shell::{Report, Shell};
use crate::world::World;
use crate::{VERSION, plugin_process};

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct CollectionReport {
    dry_run: bool,
    removed: Vec<Item>,
    kept: Vec<Item>,
    failed: Vec<CollectionFailure>,
    /// Those of the kept whose ADD did not complete, and of whose containers nothing is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unseen: Vec<Item>,
    /// What had no owner: bridges, and entries of the packet filter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ownerless: Vec<String>,
    /// The networks of what was removed by marks alone: what their address plugins reserved for it is
    /// not known.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    unlooked: BTreeSet<String>,
    /// What stays of attachments that other plugins have made again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attached_again: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
struct Item {
    network: String,
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
}

impl Item {
    fn text(&self) -> String {
        format!("{} of {} on {}", self.ifname, self.container_id, self.network)
    }
}

/// What failed: the removal of one attachment, or something about the network as a whole, such as a
/// plugin's own GC.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Subject {
    Attachment(Item),
    Network { network: String },
}

#[derive(Debug, Serialize)]
struct CollectionFailure {
    #[serde(flatten)]
    subject: Subject,
    error: cni::Error,
}

impl From<&AttachmentKey> for Item {
    fn from(key: &AttachmentKey) -> Self {
        Item {
            network: key.network.to_string(),
            container_id: key.container_id.to_string(),
            ifname: key.ifname.to_string(),
        }
    }
}

impl Report for CollectionReport {
    fn text(&self) -> String {
        let removed = if self.dry_run { "would remove" } else { "removed" };
        let mut text = String::new();
        for item in &self.removed {
            text.push_str(&format!("{removed} {}\n", item.text()));
        }
        for what in &self.ownerless {
            text.push_str(&format!("{removed} {what}\n"));
        }
        for network in &self.unlooked {
            text.push_str(&format!(
                "not looked at: what address plugins reserved on network {network} for attachments without records\n"
            ));
        }
        for line in &self.attached_again {
            text.push_str(&format!("left: {line}\n"));
        }
        for item in &self.unseen {
            text.push_str(&format!(
                "kept {}: its ADD did not complete, and it is not known whether its container \
                 exists. If it does not: netwright del {} {} --ifname {}\n",
                item.text(),
                item.network,
                item.container_id,
                item.ifname
            ));
        }
        for failed in &self.failed {
            let subject = match &failed.subject {
                Subject::Attachment(item) => format!("remove {}", item.text()),
                Subject::Network { network } => format!("collect on network {network}"),
            };
            text.push_str(&format!("failed to {subject}: {}\n", one_line(&failed.error)));
        }
        text.push_str(&format!(
            "{removed} {}, kept {}{}\n",
            self.removed.len(),
            self.kept.len(),
            if self.failed.is_empty() {
                String::new()
            } else {
                format!(", {} failed", self.failed.len())
            }
        ));
        text
    }
}

pub(crate) fn main(args: &Gc, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    let session = Session::open(world, common, shell, PluginSource::WithOwn)?;
    let Inventory { mut known, notices, .. } = attachments::all(&session)?;
    for notice in notices {
        shell.warn(notice);
    }
    if let Some(network) = &args.network {
        refuse_unknown(network, &known, &session)?;
        known.retain(|known| known.key.network.as_str() == network);
    }
    let waiting = shell.waiting("collecting");
    let mut report = if !args.valid.is_empty() {
        keep_only(args, &known, &session, world)?
    } else if args.all {
        // Without a record of ours, and not made by our runtime, it may belong to another runtime,
        // and its plugins may not be ours either.
        let is_ours = |known: &KnownAttachment| {
            let cached = known.cached.as_ref().filter(|cached| !cached.is_under_way());
            !known.records.is_empty() || cached.is_some_and(|cached| cached.boot_id.is_some())
        };
        collect(known, args, &session, |known| {
            args.network.is_some() || is_ours(known) || known.presence == Presence::Gone
        })
    } else {
        collect(known, args, &session, |known| known.presence == Presence::Gone)
    };
    if args.all && args.valid.is_empty() {
        by_marks(args, &session, world, &mut report)?;
    }
    if !args.dry_run {
        own_folder::collect(&session.roots, false);
        state::remove_abandoned(session.runtime.cache().results_dir());
        Index::new(&session.roots).remove_abandoned();
        prune(&session, shell);
        if args.all {
            for line in forwarding::left_on(&Index::new(&session.roots)) {
                shell.warn(line);
            }
        }
    }
    drop(waiting);
    shell.print(&report);
    let first = report.failed.into_iter().next();
    Ok(first.map_or(ExitCode::SUCCESS, |failed| Failure::from(failed.error).exit_code()))
}

/// Refuses a network that nothing knows: no file, no attachment, and no mark in the kernel or the packet
/// filter.
fn refuse_unknown(
    network: &str,
    known: &[KnownAttachment],
    session: &Session,
) -> Result<(), Failure> {
    if known.iter().any(|known| known.key.network.as_str() == network) {
        return Ok(());
    }
    let Err(failure) = session.network(network) else { return Ok(()) };
    let keys: Vec<AttachmentKey> = known.iter().map(|known| known.key.clone()).collect();
    let marks = Marks::find(&Index::new(&session.roots), &keys).map_err(cni::Error::from)?;
    match marks.networks().iter().any(|marked| marked == network) {
        true => Ok(()),
        false => Err(failure),
    }
}

/// Removes our tables from the packet filter, and our folder below `/run`, when they are empty.
pub(crate) fn prune(session: &Session, shell: &Shell) {
    // If we have no state, we have no tables either; the check itself must create nothing.
    if !session.roots.run.join("locks").exists() {
        return;
    }
    let index = Index::new(&session.roots);
    if let Err(error) = plugins::chained::policy::prune(&session.roots) {
        shell.warn(format_args!("the table of network policy stays in the packet filter: {error}"));
    }
    let pruned = firewall::Firewall::open(&index).and_then(|mut firewall| firewall.prune());
    match pruned {
        Ok(true) => {
            let _in_use = !index.tidy();
        }
        Ok(false) => {}
        Err(error) => {
            shell.warn(format_args!("empty tables stay in the packet filter: {error}"));
        }
    }
}

/// Removes the attachments that are `doomed`, one by one.
fn collect(
    known: Vec<KnownAttachment>,
    args: &Gc,
    session: &Session,
    doomed: impl Fn(&KnownAttachment) -> bool,
) -> CollectionReport {
    let mut report = CollectionReport { dry_run: args.dry_run, ..CollectionReport::default() };
    for known in known {
        let item = Item::from(&known.key);
        if !doomed(&known) {
            report.unseen.extend(is_unseen(&known, &session.roots).then(|| item.clone()));
            report.kept.push(item);
        } else if args.dry_run {
            report.removed.push(item);
        } else {
            match remove_as_seen(&known, session) {
                Ok(stays) => {
                    report.removed.push(item);
                    report.attached_again.extend(stays);
                }
                // It came back meanwhile, or another call works on it: the next run decides.
                Err(failure)
                    if known.presence == Presence::Gone
                        && failure.to_cni().code == cni::code::TRY_AGAIN_LATER =>
                {
                    report.kept.push(item);
                }
                Err(failure) => {
                    let subject = Subject::Attachment(item);
                    report.failed.push(CollectionFailure { subject, error: failure.to_cni() });
                }
            }
        }
    }
    report
}

/// Says whether an ADD of our runtime did not complete, and it is not known whether its container
/// exists. The container of an attachment of another runtime, or of Docker's, may be seen from
/// elsewhere, and their DEL comes.
fn is_unseen(known: &KnownAttachment, roots: &Roots) -> bool {
    let is_unfinished = |cached: &CachedAttachment| {
        cached.result.is_none() && cached.boot_id.is_some() && !cached.is_under_way()
    };
    known.presence == Presence::Unknown
        && known.cached.as_ref().is_some_and(is_unfinished)
        && !known.is_dockers(roots)
}

/// Removes what is marked as ours and belongs to no attachment that is known by now: records and cache
/// may be lost. In a network, what belongs to known attachments stays.
fn by_marks(
    args: &Gc,
    session: &Session,
    world: &World,
    report: &mut CollectionReport,
) -> Result<(), Failure> {
    let known = attachments::at_paths(session)?.known;
    let known: Vec<AttachmentKey> = known.into_iter().map(|known| known.key).collect();
    let index = Index::new(&session.roots);
    let is_asked = |network: &str| args.network.as_deref().is_none_or(|only| only == network);
    let find = || -> Result<Marks, Failure> {
        let mut found = Marks::find(&index, &known).map_err(cni::Error::from)?;
        found.attachments.retain(|key| is_asked(key.network.as_str()));
        found.entries.retain(|network, _| is_asked(network));
        Ok(found)
    };
    let found = find()?;
    let mut left = Marks::default();
    if !args.dry_run {
        for network in found.networks() {
            for error in collect_network(&network, &known, session, world) {
                let subject = Subject::Network { network: network.clone() };
                report.failed.push(CollectionFailure { subject, error });
            }
        }
        left = find()?;
    }
    let gone = found.attachments.difference(&left.attachments);
    let gone: Vec<&AttachmentKey> = gone.collect();
    report.unlooked = cni::order::gather(gone.iter().map(|key| key.network.to_string()));
    report.removed.extend(gone.into_iter().map(Item::from));
    for (network, count) in &found.entries {
        let count = count.saturating_sub(left.entries.get(network).copied().unwrap_or_default());
        if count != 0 {
            report.unlooked.insert(network.clone());
            let what = format!("{count} entries of network {network} in the packet filter");
            report.ownerless.push(what);
        }
    }
    if args.network.is_none() {
        let bridges = match args.dry_run {
            true => found.bridges,
            false => Marks::delete_bridges(&index).map_err(cni::Error::from)?,
        };
        report.ownerless.extend(bridges.iter().map(|name| format!("bridge {name}")));
    }
    Ok(())
}

/// Has each plugin of ours whose marks are on the host collect in a network.
fn collect_network(
    network: &str,
    known: &[AttachmentKey],
    session: &Session,
    world: &World,
) -> Vec<cni::Error> {
    let of_network = known.iter().filter(|key| key.network.as_str() == network);
    let stay = of_network.map(|key| GcAttachment {
        container_id: key.container_id.to_string(),
        ifname: key.ifname.to_string(),
    });
    let stay: Vec<GcAttachment> = stay.collect();
    let builtins = Builtins { roots: session.roots.clone(), build: VERSION };
    let executor = plugin_process::mixed(&builtins, &world.environment);
    let mut errors = Vec::new();
    for plugin in marks::PLUGINS {
        // The path must be there, and nothing is looked up in it: these configurations delegate to
        // nobody.
        let path = session.roots.run.display().to_string();
        let env = CallEnv { command: Command::Gc.to_string(), path, ..CallEnv::default() };
        let request = Request { env, stdin: marks::configuration(plugin, network, &stay) };
        let ended = builtins.call(plugin, &request, &executor, session.deadline());
        let failed = ended.filter(|output| output.status != Status::Success);
        errors.extend(failed.map(|output| {
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
                let text = format!("plugin {plugin:?} failed: {}", output.status);
                cni::Error::new(cni::code::INTERNAL, text)
            })
        }));
    }
    errors
}

/// Removes one attachment, unless an ADD is working on it. Returns what [`remove`] does.
fn remove_as_seen(known: &KnownAttachment, session: &Session) -> Result<Option<String>, Failure> {
    if known.cached.as_ref().is_some_and(CachedAttachment::is_under_way) {
        let text = format!("an ADD of {} is under way", known.key);
        let error = cni::Error::new(cni::code::TRY_AGAIN_LATER, text);
        return Err(Failure::from(error.with_details("nothing was removed")));
    }
    remove_by(&session.runtime.for_seen(known), known, session)
}

/// Removes one attachment, with the configuration with which it was made, what the plugins recorded
/// and, if the configuration was not recorded, the present one. Returns a line that says what stays,
/// if other plugins have attached the container again under the same names.
pub(crate) fn remove(
    known: &KnownAttachment,
    session: &Session,
) -> Result<Option<String>, Failure> {
    remove_by(&session.runtime.for_known(known), known, session)
}

fn remove_by(
    runtime: &Runtime<'_>,
    known: &KnownAttachment,
    session: &Session,
) -> Result<Option<String>, Failure> {
    let present = || match session.network(known.key.network.as_str()) {
        Ok(network) => Ok(network.list),
        Err(failure) => Err(failure.to_cni()),
    };
    let (roots, deadline) = (&session.roots, session.deadline());
    let lives_again = |records: &[Record]| plugins::recorded::lives_again(records, roots);
    let recorded = &plugins::recorded::list;
    let removal = runtime.remove_known(known, roots, recorded, &lives_again, &present, deadline)?;
    Ok((removal == Removal::OfPastLife).then(|| attached_again(known, session)))
}

/// Says what stays of an attachment that other plugins have made again.
fn attached_again(known: &KnownAttachment, session: &Session) -> String {
    let record = known.cached.as_ref().map(|cached| cached.path.clone());
    let record = record.filter(|path| path.exists());
    let reserved = plugins::recorded::reserved_again(&known.records, &session.roots);
    let files: Vec<String> =
        record.into_iter().chain(reserved).map(|path| path.display().to_string()).collect();
    let files =
        if files.is_empty() { String::new() } else { format!(", and {}", files.join(", ")) };
    format!(
        "{}: other plugins have attached it again, as far as can be seen: their rules stay{files}; \
         their DEL removes them",
        known.key
    )
}

/// Removes every attachment of one network except those named, and lets its plugins collect.
fn keep_only(
    args: &Gc,
    known: &[KnownAttachment],
    session: &Session,
    world: &World,
) -> Result<CollectionReport, Failure> {
    let name = args.network.as_deref().unwrap_or_default();
    let network = NetworkName::new(name)?;
    let valid = valid(&args.valid, known, (world, &session.roots))?;
    let is_valid = |key: &AttachmentKey| {
        valid.iter().any(|valid| {
            valid.container_id == key.container_id.as_str() && valid.ifname == key.ifname.as_str()
        })
    };
    let mut report = CollectionReport { dry_run: args.dry_run, ..CollectionReport::default() };
    if args.dry_run {
        for known in known {
            let list = if is_valid(&known.key) { &mut report.kept } else { &mut report.removed };
            list.push(Item::from(&known.key));
        }
        return Ok(report);
    }
    let deadline = session.deadline();
    let ended = match session.network(name) {
        Ok(network) => session.runtime.gc_list(&network.list, Some(&valid), deadline),
        // The configuration is gone: the cache has that of each attachment.
        Err(_) if !known.is_empty() => session.runtime.gc_network(&network, Some(&valid), deadline),
        Err(failure) => return Err(failure),
    };
    // What neither the cache nor the present configuration knows, plugins have recorded.
    let index = Index::new(&session.roots);
    let is_left = |one: &&KnownAttachment| {
        !is_valid(&one.key) && !index.of_attachment(&one.key).found.is_empty()
    };
    for one in known.iter().filter(is_left) {
        let item = Item::from(&one.key);
        match remove_as_seen(one, session) {
            Ok(stays) => {
                report.removed.push(item);
                report.attached_again.extend(stays);
            }
            Err(failure) => {
                report.failed.push(CollectionFailure {
                    subject: Subject::Attachment(item),
                    error: failure.to_cni(),
                });
            }
        }
    }
    let (done, failures) = match ended {
        Ok(done) => (done, Vec::new()),
        Err(GcError { report, failures, .. }) => (*report, failures),
    };
    let GcReport { removed, kept, .. } = done;
    let by_records = std::mem::take(&mut report.removed);
    report.removed = removed.iter().map(Item::from).collect();
    report.removed.extend(by_records);
    report.kept = kept.iter().map(Item::from).collect();
    let failed = |failure: GcFailure| match failure {
        GcFailure::Attachment { attachment, error } => CollectionFailure {
            subject: Subject::Attachment(Item::from(&attachment)),
            error: error.to_cni(),
        },
        other => CollectionFailure {
            subject: Subject::Network { network: name.to_owned() },
            error: other.to_cni(),
        },
    };
    report.failed.extend(failures.into_iter().map(failed));
    Ok(report)
}

/// Finds the attachments that `CONTAINER[:IFNAME]` means. For a container that is not known, uses
/// the ID that cnitool derives, so that it is kept if a plugin knows it.
fn valid(
    names: &[String],
    known: &[KnownAttachment],
    (world, roots): (&World, &Roots),
) -> Result<Vec<GcAttachment>, Failure> {
    let mut valid: BTreeMap<(String, String), GcAttachment> = BTreeMap::new();
    for text in names {
        let (name, ifname) = match text.rsplit_once(':') {
            Some((name, ifname)) if !ifname.is_empty() && !ifname.contains('/') => {
                (name, Some(ifname))
            }
            _ => (text.as_str(), None),
        };
        let container = container::resolve(name, world)?;
        let mut found: Vec<GcAttachment> =
            attachments::of_container(known.to_vec(), &container, roots)
                .iter()
                .filter(|known| ifname.is_none_or(|ifname| known.key.ifname.as_str() == ifname))
                .map(|known| GcAttachment {
                    container_id: known.key.container_id.to_string(),
                    ifname: known.key.ifname.to_string(),
                })
                .collect();
        if found.is_empty() {
            found.push(GcAttachment {
                container_id: container.derived_id().to_string(),
                ifname: ifname.unwrap_or("eth0").to_owned(),
            });
        }
        for attachment in found {
            valid.insert((attachment.container_id.clone(), attachment.ifname.clone()), attachment);
        }
    }
    Ok(valid.into_values().collect())
}
