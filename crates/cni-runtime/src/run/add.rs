//! ADD: the whole chain or nothing.

use std::path::{Path, PathBuf};
use std::time::Instant;

use cni::json::Object;
use cni::{AddResult, AttachmentKey, Command, Error, NetworkList, PluginConfig, Version, code};
use kernel::living::own_pid_ns;
use kernel::netns::Netns;
use serde_json::value::RawValue;

use super::{Answer, ChainResult, Subject, Time, to_raw};
use crate::cache::{CacheError, CachedAttachment, Reservation};
use crate::error::{AddError, PluginError, PluginFailure, RollBack};
use crate::runtime::require_usable;
use crate::{Attachment, Runtime};

/// The code of our plugins for what already exists (docs/errors.md).
const EXISTS: u32 = 106;

/// An attachment that was made.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AddedAttachment {
    /// The result of the last plugin.
    pub result: AddResult,
    /// The same as text, in the version of the list, with the plugins' keys beyond the
    /// specification.
    pub document: Box<RawValue>,
}

impl Runtime<'_> {
    /// Attaches a container to a network: runs ADD on each plugin of the list; each gets the result
    /// of the plugin before it (CNI 1.1.0 §3 "Adding an attachment").
    ///
    /// It is a transaction. Names are checked and every executable is looked up before the first
    /// plugin runs. When plugin *k* fails, DEL is run on *k…0* within
    /// [`Runtime::with_cleanup_time`], each with the last available result. The same happens when
    /// the result cannot be recorded at the end. The first error is the one returned, with the
    /// outcome of the roll-back. A first plugin that is this program's own has undone its part
    /// itself: a DEL would also remove what was there before, made by another runtime.
    ///
    /// An attachment that the cache already has, in the same namespace, is never rolled back: then
    /// the plugins refuse what exists, and undoing would take down a container's working network.
    /// One whose interface is in another namespace is refused before a plugin runs, since another
    /// project's plugin may not tell the two apart.
    ///
    /// A plugin that does not support the list's version is called in the nearest version that it
    /// does support, and `prevResult` and result are converted both ways.
    ///
    /// A single plugin's configuration takes the same path: [`NetworkList::from_plugin`].
    ///
    /// # Errors
    /// [`AddError`].
    pub fn add_list(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        deadline: Option<Instant>,
    ) -> Result<AddedAttachment, AddError> {
        let network = require_usable(list).map_err(AddError::Invalid)?;
        let key = self.key(list, attachment).map_err(AddError::Invalid)?;
        let attachment = &Attachment { pid_ns: own_pid_ns(), ..attachment.clone() };
        self.find_all(list, Command::Add)
            .map_err(|failure| AddError::Plugin { failure, roll_back: RollBack::NotNeeded })?;
        let cannot_record = |cause, roll_back| AddError::Cache {
            network: list.name.clone(),
            cause: Box::new(cause),
            roll_back,
        };
        let reservation = self
            .cache
            .reserve(&key, attachment, &list.source)
            .map_err(|cause| cannot_record(cause, RollBack::NotNeeded))?
            .ok_or_else(|| AddError::Invalid(under_way(&key)))?;
        if let Some(existing) = &reservation.existing
            && !is_same_place(&existing.attachment.netns, &attachment.netns)
            && existing.is_at_its_path()
        {
            return Err(AddError::Invalid(attached_elsewhere(&key, existing)));
        }
        let mut walk = self.add_chain(list, attachment, deadline);
        let undo = |walk: &Walk| self.roll_back(list, attachment, walk, &reservation);
        let roll_back = walk.failure.is_some().then(|| undo(&walk));
        if let Some((failure, roll_back)) = walk.failure.take().zip(roll_back) {
            let is_left = matches!(roll_back, RollBack::Disabled | RollBack::Failed(_));
            if is_left && reservation.existing.is_none() {
                let noted = self.cache.note_failure(
                    &reservation,
                    &network,
                    attachment,
                    &list.source,
                    &failure,
                );
                if let Err(error) = noted {
                    tracing::debug!(err = %error, "cannot record why an attachment failed");
                }
            }
            return Err(AddError::Plugin { failure, roll_back });
        }
        let last = walk.previous.as_ref().expect("a list that was checked has a plugin");
        let recorded =
            self.cache.commit(&reservation, &network, attachment, &list.source, &last.raw);
        recorded.map_err(|cause| cannot_record(cause, undo(&walk)))?;
        Ok(AddedAttachment { result: last.result.clone(), document: last.raw.clone() })
    }

    fn add_chain(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        deadline: Option<Instant>,
    ) -> Walk {
        let mut walk = Walk { ran: 0, undid_itself: false, previous: None, failure: None };
        let types: Vec<&str> = list.plugins.iter().map(|one| one.plugin_type.as_str()).collect();
        for (place, plugin) in list.plugins.iter().enumerate() {
            let subject = Subject {
                attachment: Some(attachment),
                previous: walk.previous.as_ref(),
                followed_by: Some(&types[place + 1..]),
                ..Subject::of(list, Command::Add)
            };
            match self.call(plugin, subject, deadline).and_then(|answer| accept(answer, list)) {
                Ok(chained) => {
                    walk.ran += 1;
                    walk.previous = Some(chained);
                }
                Err(error) => {
                    let found_it_there = self.found_it_there(plugin, &error);
                    walk.undid_itself =
                        place == 0 && !found_it_there && self.undid_itself(plugin, &error);
                    let acted = error.may_have_acted() && !found_it_there && !walk.undid_itself;
                    walk.ran += usize::from(acted);
                    walk.failure = Some(Self::failure(plugin, Command::Add, error));
                    break;
                }
            }
        }
        walk
    }

    /// Says whether one of this program's own plugins refused what exists already, and left nothing:
    /// its DEL would remove what exists.
    fn found_it_there(&self, plugin: &PluginConfig, error: &PluginError) -> bool {
        matches!(error, PluginError::Reported(error) if error.code == EXISTS && !error.left)
            && self.is_own_plugin(plugin)
    }

    /// Says whether one of this program's own plugins has undone what its ADD did.
    fn undid_itself(&self, plugin: &PluginConfig, error: &PluginError) -> bool {
        matches!(error, PluginError::Reported(error) if error.leaves_nothing())
            && self.is_own_plugin(plugin)
    }

    fn is_own_plugin(&self, plugin: &PluginConfig) -> bool {
        let is_own = |path: PathBuf| self.executor.is_own(&path);
        self.find_plugin(&plugin.plugin_type).is_ok_and(is_own)
    }

    /// Undoes what the plugins did that ran. A plugin that refuses its configuration at DEL as it did
    /// at ADD has done nothing.
    fn roll_back(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        walk: &Walk,
        reservation: &Reservation,
    ) -> RollBack {
        let (ran, previous) = (walk.ran, walk.previous.as_ref());
        if ran == 0 {
            if reservation.existing.is_none() {
                let put_back = self.cache.put_back(reservation);
                tell_kept(put_back);
            }
            return if walk.undid_itself { RollBack::Done } else { RollBack::NotNeeded };
        }
        if !self.roll_back {
            return RollBack::Disabled;
        }
        let lived = |found: &CachedAttachment| {
            let netns = &found.attachment.netns;
            // Two paths may lead to one namespace.
            !netns.is_empty() && (*netns == attachment.netns || found.is_at_its_path())
        };
        if reservation.existing.as_deref().is_some_and(lived) {
            return RollBack::Withheld;
        }
        let time = Time::shared(self.cleanup_time);
        let mut failures = self.clone().undoing().del_chain(list, ran, attachment, previous, time);
        let refused = walk.failure.as_ref().and_then(PluginFailure::refused);
        failures.retain(|left| !refused.as_ref().is_some_and(|refused| left.is_only(refused)));
        if !failures.is_empty() {
            return RollBack::Failed(failures);
        }
        tell_kept(self.cache.release(reservation));
        RollBack::Done
    }
}

/// Tells that the record of an attachment stays of which nothing is left. DEL finds nothing to do
/// for it.
fn tell_kept(removed: Result<(), CacheError>) {
    if let Err(error) = removed {
        tracing::warn!(err = %error, "cannot remove the record of an attachment that failed");
    }
}

/// Returns the error for an ADD beside another one of the attachment.
fn under_way(key: &AttachmentKey) -> Error {
    Error::new(code::TRY_AGAIN_LATER, format!("another ADD of {key} is under way"))
        .with_details("nothing was changed")
}

/// Returns the error for an attachment that exists in another namespace.
fn attached_elsewhere(key: &AttachmentKey, existing: &CachedAttachment) -> Error {
    let netns = &existing.attachment.netns;
    let text = format!("{key} already exists in network namespace {netns:?}: the container lives");
    Error::new(EXISTS, text)
        .with_details("nothing was changed; DEL of the attachment comes before another ADD of it")
}

/// Says whether two paths lead to one namespace, as far as they can be followed.
fn is_same_place(one: &str, other: &str) -> bool {
    let open = |path: &str| Netns::open(Path::new(path)).ok();
    one == other || open(one).zip(open(other)).is_some_and(|(one, other)| one.id() == other.id())
}

/// How far ADD got.
struct Walk {
    /// How many plugins may have changed something.
    ran: usize,
    /// The first plugin failed, and undid what it had done.
    undid_itself: bool,
    /// The last available result.
    previous: Option<ChainResult>,
    failure: Option<PluginFailure>,
}

/// Reads what a plugin printed, and converts it to the version of the list.
fn accept(answer: Answer, list: &NetworkList) -> Result<ChainResult, PluginError> {
    match answer {
        Answer::Said { stdout, asked } => {
            let wanted = Version::parse(&list.cni_version).unwrap_or(asked);
            read(&stdout, asked, wanted).map_err(PluginError::Answer)
        }
        Answer::SaidUnknown { stdout } => {
            // A version newer than ours: only a result that names a version we know can be read.
            let version = AddResult::version_of(&stdout).map_err(PluginError::Answer)?;
            let Some(version) = version else {
                return Err(PluginError::Answer(Error::new(
                    code::INCOMPATIBLE_VERSION,
                    format!("the version {:?} of the result is not known", list.cni_version),
                )));
            };
            read(&stdout, version, version).map_err(PluginError::Answer)
        }
        Answer::NoSuchVerb => Err(PluginError::Answer(Error::new(
            code::INTERNAL,
            "every version has ADD, and yet the plugin was not asked",
        ))),
    }
}

fn read(stdout: &[u8], asked: Version, wanted: Version) -> Result<ChainResult, Error> {
    let document = if stdout.trim_ascii() == b"null" { b"{}" } else { stdout };
    let mut object = Object::parse(document).map_err(|error| {
        Error::new(code::DECODE_FAILURE, format!("failed to unmarshal raw result: {error}"))
    })?;
    let version = AddResult::version_of(document)?.unwrap_or(asked);
    let result = AddResult::parse(document, version)?;
    if version != wanted {
        let raw = to_raw(&result, wanted)?;
        return Ok(ChainResult { raw, result });
    }
    object.set_value("cniVersion", wanted.as_str());
    let text = without_white_space(&object.to_vec());
    let raw = serde_json::from_slice(&text)
        .map_err(|error| Error::new(code::INTERNAL, format!("write result as JSON: {error}")))?;
    Ok(ChainResult { raw, result })
}

/// Removes white space between the tokens of a JSON text.
fn without_white_space(text: &[u8]) -> Vec<u8> {
    let (mut in_string, mut escaped) = (false, false);
    let mut kept = text.to_vec();
    kept.retain(|byte| {
        let keep = in_string || !byte.is_ascii_whitespace();
        if *byte == b'"' && !escaped {
            in_string = !in_string;
        }
        escaped = in_string && *byte == b'\\' && !escaped;
        keep
    });
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_white_space_between_tokens_goes() {
        let text = "{ \"a b\" :\n\t[ 1 , \"\\\" \\\\\" , \" c\" ] }\r\n";
        let expected = "{\"a b\":[1,\"\\\" \\\\\",\" c\"]}";
        assert_eq!(without_white_space(text.as_bytes()), expected.as_bytes());
    }
}
