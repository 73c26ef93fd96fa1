//! What is common to a container's networks, listed by any plugin: they are recorded before they
//! are created, and removed as they were created.
//!
//! Each is an attachment of its own, recorded as a runtime records it ([`cni_runtime::Cache`], in a
//! folder for each container below `lib/<plugin>`). The plugin's record lists which attachments
//! belong together.

use std::path::PathBuf;
use std::sync::Arc;

use cni::{AddResult, AttachmentKey, Command, Error, IfName, NetworkList, NetworkName, code};
use cni_plugin::{Call, codes};
use cni_runtime::{Cache, CachedAttachment, Member, Runtime};
use kernel::living::Census;
use kernel::netns::Netns;
use kernel::route::RouteSocket;
use serde::{Deserialize, Serialize};
use state::{AttachmentLock, Index, Roots};

use crate::engine::{self, StaleAttachment};
use crate::inquiry::Inquiry;
use crate::judge;
use crate::shared::attachment::DEL_TIMEOUT;
use crate::shared::attachment::{self, ADD_TIMEOUT};
use crate::shared::drift;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;

/// A record of one of a container's networks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedMember {
    /// The network.
    pub(crate) network: NetworkName,
    /// The container's interface on it.
    pub(crate) ifname: IfName,
}

impl RecordedMember {
    /// Creates the record of a network.
    ///
    /// # Errors
    /// Code 7 when the network's name is invalid.
    pub(crate) fn of(member: &Member) -> Result<Self, Failure> {
        let network = NetworkName::new(&member.list.name)?;
        Ok(RecordedMember { network, ifname: member.attachment.ifname.clone() })
    }

    /// Returns the network's attachment key, for the container of the outer attachment.
    pub(crate) fn key(&self, outer: &AttachmentKey) -> AttachmentKey {
        AttachmentKey {
            network: self.network.clone(),
            container_id: outer.container_id.clone(),
            ifname: self.ifname.clone(),
        }
    }
}

/// The reason why a container has none of its networks.
#[derive(Debug)]
pub(crate) struct AttachFailure {
    /// The cause.
    pub(crate) error: Failure,
    /// The position of the network that failed; `None` if each was attached and the result was
    /// refused.
    pub(crate) place: Option<usize>,
}

impl AttachFailure {
    /// Reports whether the other networks are completely removed.
    pub(crate) fn is_undone(&self) -> bool {
        !self.error.is_left()
    }
}

/// A container, and the runtime that calls its networks' plugins.
#[derive(Debug)]
pub(crate) struct Container<'c> {
    call: &'c Call<'c>,
    plugin: &'static str,
    /// The attachment that the networks are parts of.
    pub(crate) outer: AttachmentKey,
    pub(crate) runtime: Runtime<'c>,
}

/// Returns what calls plugins: in the same way as this call was made, and ours in this process.
pub(crate) fn runtime<'c>(call: &'c Call<'c>, path: Vec<PathBuf>) -> Runtime<'c> {
    Runtime::new(path, Arc::new(call.context().executor))
}

/// Reports whether a container could be attached to these networks now (STATUS).
///
/// # Errors
/// As [`Inquiry::ask`], with the network's name.
pub(crate) fn ready(
    call: &Call<'_>,
    path: Vec<PathBuf>,
    networks: &[NetworkList],
) -> Result<(), Error> {
    let runtime = runtime(call, path);
    let executor = call.context().executor;
    let is_own = |plugin: &str| runtime.find_plugin(plugin).is_ok_and(|it| executor.is_own(&it));
    let inquiry = Inquiry::new(&runtime, &is_own, call.context().deadline);
    inquiry.networks(networks).map(drop)
}

impl<'c> Container<'c> {
    /// Creates it from the attachment that the networks are parts of, and the folders in which
    /// plugins are looked up.
    pub(crate) fn new(
        call: &'c Call<'c>,
        plugin: &'static str,
        outer: &AttachmentKey,
        path: Vec<PathBuf>,
    ) -> Self {
        let mut runtime = runtime(call, path).with_cache(Cache::new(folder(call, plugin, outer)));
        if let Some(gone) = &call.common().gone {
            // The networks' plugins check again under their own locks.
            runtime = runtime.for_gone(gone.clone());
        }
        if call.command() == Command::Del && call.is_undo() {
            runtime = runtime.undoing();
        }
        Container { call, plugin, outer: outer.clone(), runtime }
    }

    /// Excludes others from attaching, changing and detaching the container's networks: for an ADD,
    /// or a change of what a running container has.
    ///
    /// # Errors
    /// Code 11 when another call holds the lock too long, 105 when the lock call fails.
    pub(crate) fn lock(&self) -> Result<AttachmentLock, Failure> {
        let index = Index::new(self.call.roots());
        Ok(index.begin_group(&self.outer, ADD_TIMEOUT)?)
    }

    /// Does the same for DEL, which goes on without the lock, unless it is for a container that was
    /// gone.
    ///
    /// # Errors
    /// Code 11 when that one has come back ([`cni::GONE`]), or may be about to.
    pub(crate) fn lock_for_removal(&self) -> Result<Option<AttachmentLock>, Failure> {
        let begun = Index::new(self.call.roots()).begin_group(&self.outer, DEL_TIMEOUT);
        let lock = match begun {
            Ok(lock) => Some(lock),
            Err(error) if error.is_busy() && self.call.common().gone.is_some() => {
                return Err(Failure::from(error));
            }
            Err(error) if error.is_busy() => {
                self.call.warn(format_args!("an ADD may be under way: {error}"));
                None
            }
            // If the folder cannot be created, no ADD can create it either.
            Err(_) => None,
        };
        self.call.refuse_if_back()?;
        Ok(lock)
    }

    /// Makes GC remove an attachment as it was `look`ed at, with `remove`.
    ///
    /// # Errors
    /// As [`StaleAttachment::collect`].
    pub(crate) fn collect(
        &self,
        stale: &StaleAttachment,
        index: &Index,
        remove: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        stale.collect_under(
            index,
            self.plugin,
            &|timeout| index.begin_group(&self.outer, timeout),
            |_| remove(),
        )
    }

    /// Refuses an ADD if the attachment already exists, here or in another namespace that is not
    /// known to be gone. If a container of that name is gone and left something, `detach` first
    /// removes it, given its record.
    ///
    /// # Errors
    /// Code 106, with nothing changed; what `detach` could not remove.
    pub(crate) fn refuse_existing(
        &self,
        index: &Index,
        netns: &Netns,
        detach: impl FnOnce(serde_json::Value) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(record) = index.get(&self.outer, self.plugin).found else { return Ok(()) };
        if attachment::recorded_netns(&record, &Census::new())?
            .is_some_and(|was| was.id() == netns.id())
        {
            let text = format!("{} already exists, or an ADD of it was killed", self.outer);
            return Err(Failure::new(codes::EXISTS, text)
                .with_details("nothing was changed; run DEL before another ADD"));
        }
        engine::refuse_living(&self.outer, std::slice::from_ref(&record), netns)?;
        detach(record.data)
    }

    /// Attaches to all networks in order, or to none; `settle` may change the results, and refuse
    /// them.
    ///
    /// # Errors
    /// [`AttachFailure`].
    pub(crate) fn attach(
        &self,
        members: &[Member],
        settle: impl FnOnce(&mut Vec<AddResult>) -> Result<(), Failure>,
    ) -> Result<Vec<AddResult>, AttachFailure> {
        let deadline = self.call.context().deadline;
        for (place, member) in members.iter().enumerate() {
            judge::refuse_unfiltered(&member.list, member.attachment.ifname.as_str())
                .map_err(|error| AttachFailure { error: error.into(), place: Some(place) })?;
        }
        let added = self.runtime.add_several(members, deadline).map_err(|failed| {
            let is_failed = |member: &Member| member.attachment.ifname == failed.ifname;
            AttachFailure {
                place: members.iter().position(is_failed),
                error: failed.to_cni().into(),
            }
        })?;
        let mut results: Vec<AddResult> = added.into_iter().map(|one| one.result).collect();
        settle(&mut results).map_err(|error| {
            let left = self.runtime.clone().undoing().del_several(members, deadline);
            AttachFailure { error: left.tell(error.into()).into(), place: None }
        })?;
        Ok(results)
    }

    /// Detaches from all recorded networks, the last first; a failure does not stop the others.
    /// `netns` is the container's present namespace, if that is known.
    pub(crate) fn detach(
        &self,
        members: &[RecordedMember],
        netns: Option<&str>,
        failures: &mut Failures,
    ) {
        for member in members.iter().rev() {
            self.detach_one(&member.key(&self.outer), netns, None, failures);
        }
    }

    /// Detaches from all networks in the container's folder: for lost records.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(crate) fn detach_recorded(
        &self,
        netns: Option<&str>,
        failures: &mut Failures,
    ) -> Result<(), Failure> {
        let listing = self.runtime.cached_attachments(None)?;
        for cached in listing.attachments.iter().rev() {
            self.detach_one(&cached.key(), netns, None, failures);
        }
        Ok(())
    }

    /// Detaches from one network: as it was when it was attached, else as it is configured now.
    pub(crate) fn detach_one(
        &self,
        key: &AttachmentKey,
        netns: Option<&str>,
        configured: Option<&Member>,
        failures: &mut Failures,
    ) {
        let deadline = self.call.context().deadline;
        let what = format!("network {:?}", key.network.as_str());
        match self.runtime.cached_attachment(key) {
            Ok(Some(mut cached)) => {
                if let Some(netns) = netns {
                    netns.clone_into(&mut cached.attachment.netns);
                }
                let deleted = self.runtime.del_cached(&cached, deadline).map(drop);
                // Its record stays.
                failures.note(what, deleted.map_err(|error| Failure::from(error).leaving()));
            }
            Ok(None) => {
                if let Some(member) = configured {
                    let deleted = self.runtime.del_list(&member.list, &member.attachment, deadline);
                    failures.note(what, deleted.map(drop));
                }
            }
            Err(error) => {
                failures.note(what, Err::<(), _>(error));
            }
        }
    }

    /// Makes every network's plugins run CHECK, the first against what the runtime expects of it.
    ///
    /// # Errors
    /// What is missing or different.
    pub(crate) fn check(
        &self,
        members: &[RecordedMember],
        expected: &AddResult,
    ) -> Result<(), Failure> {
        for (place, member) in members.iter().enumerate() {
            let cached = self.runtime.cached_attachment(&member.key(&self.outer));
            let cached = cached?.ok_or_else(|| {
                drift(format!("nothing is recorded of network {:?}", member.network.as_str()))
            })?;
            if place == 0 {
                check_addresses(self.call, expected, &cached)?;
            }
            let list = cached.list()?;
            let deadline = self.call.context().deadline;
            let checked = self.runtime.check_list(&list, &cached.attachment, deadline);
            checked.map_err(|error| {
                Failure::from(error).context(format_args!("network {:?}", member.network.as_str()))
            })?;
        }
        Ok(())
    }

    /// Makes every network's plugins restore what they can.
    ///
    /// # Errors
    /// What could not be restored, all together.
    pub(crate) fn repair(&self, members: &[RecordedMember]) -> Result<Vec<String>, Failure> {
        let (mut lines, mut failures) = (Vec::new(), Failures::new());
        for member in members {
            let cached = self.runtime.cached_attachment(&member.key(&self.outer));
            let Some(cached) = cached? else { continue };
            let list = cached.list()?;
            let deadline = self.call.context().deadline;
            let repaired = self.runtime.repair_list(&list, &cached.attachment, deadline);
            let what = format!("network {:?}", member.network.as_str());
            let done = failures.note(what, repaired).unwrap_or_default();
            lines.extend(done.put_back.into_iter().map(|(_, line)| line));
        }
        failures.into_result().map(|()| lines)
    }

    /// Returns the folder with the records of its networks, which is removed with them.
    pub(crate) fn folder(&self) -> PathBuf {
        folder(self.call, self.plugin, &self.outer)
    }

    /// Removes the container's records: first those of its networks, then its own.
    ///
    /// # Errors
    /// Code 105.
    pub(crate) fn forget(&self, index: &Index) -> Result<(), Failure> {
        let folder = self.folder();
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let what = format!("remove {}", folder.display());
                Err(Failure::from_chain(codes::STATE, &error).context(what))
            }
            _ => attachment::remove_record(index, &self.outer, self.plugin),
        }
    }
}

/// Refuses interfaces that already exist in the container: a network's ADD would refuse them too,
/// and the others would have to be undone.
///
/// # Errors
/// Code 106.
pub(crate) fn refuse_interfaces(inside: &RouteSocket, members: &[Member]) -> Result<(), Failure> {
    members.iter().try_for_each(|member| {
        let ifname = member.attachment.ifname.as_str();
        attachment::refuse_existing(inside, ifname, || {
            format!("interface {ifname:?} already exists in the container")
        })
    })
}

/// Opens the container's namespace for reading.
///
/// # Errors
/// Code 100.
pub(crate) fn look_into(netns: &Netns) -> Result<RouteSocket, Failure> {
    Ok(RouteSocket::open_in(netns)?)
}

/// Reads the record of an attachment.
///
/// # Errors
/// Code 3 when there is none.
pub(crate) fn recorded<T: serde::de::DeserializeOwned>(
    call: &Call<'_>,
    plugin: &str,
) -> Result<T, Failure> {
    let key = call.attachment();
    attachment::recorded(&Index::new(call.roots()), key, plugin)
        .ok_or_else(|| Failure::new(code::UNKNOWN_CONTAINER, format!("{key} is not attached")))
}

/// Verifies that the previous result lists no container address that its first network has not
/// given.
fn check_addresses(
    call: &Call<'_>,
    expected: &AddResult,
    cached: &CachedAttachment,
) -> Result<(), Failure> {
    let Some(raw) = &cached.result else {
        return Err(drift(format!("network {:?} was not attached", cached.network.as_str())));
    };
    let given = AddResult::parse(raw.get().as_bytes(), call.version())?;
    let ifname = call.ifname().as_str();
    let mut expected = expected.container_ips(ifname);
    let unknown =
        expected.find(|ip| !given.container_ips(ifname).any(|own| own.address == ip.address));
    match unknown {
        Some(ip) => Err(drift(format!(
            "network {:?} gave {ifname} no address {}",
            cached.network.as_str(),
            ip.address
        ))),
        None => Ok(()),
    }
}

/// Returns the recorded networks that form one attachment; none if `plugin` is not one that
/// attaches several.
pub(crate) fn parts(roots: &Roots, plugin: &str, outer: &AttachmentKey) -> Vec<CachedAttachment> {
    let listing = Cache::new(folder_below(roots, plugin, outer)).list(None);
    listing.map(|listing| listing.attachments).unwrap_or_default()
}

/// Returns the folder of a container's attachment records; each container has one, which is removed
/// with it.
fn folder(call: &Call<'_>, plugin: &str, outer: &AttachmentKey) -> PathBuf {
    folder_below(call.roots(), plugin, outer)
}

fn folder_below(roots: &Roots, plugin: &str, outer: &AttachmentKey) -> PathBuf {
    let AttachmentKey { network, container_id, ifname } = outer;
    let name = format!("{network}:{container_id}:{ifname}");
    roots.lib.join(plugin).join(name)
}
