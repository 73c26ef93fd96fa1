//! DEL: runs every plugin, even if others fail.

use std::time::Instant;

use cni::{AddResult, Command, NetworkList, Version, code};
use serde_json::value::RawValue;

use super::{Answer, ChainResult, Subject, Time, has_verb, to_raw};
use crate::cache::{CachedAttachment, Lookup};
use crate::error::{DelError, PluginError, PluginFailure};
use crate::runtime::require_usable;
use crate::{Attachment, Runtime};

/// An attachment that was removed.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct DeletedAttachment {
    /// Whether the cache knew the attachment.
    pub was_cached: bool,
    /// Problems that did not stop DEL: a cached result that cannot be read, a record that cannot be
    /// removed.
    pub notices: Vec<String>,
}

impl Runtime<'_> {
    /// Detaches a container from a network: runs DEL on each plugin of the list, the last first
    /// (CNI 1.1.0 §3 "Deleting an attachment").
    ///
    /// Every plugin is run even when another fails or is missing. From version 0.4.0 on each gets
    /// the result of ADD from the cache; a cache that cannot be read is ignored and reported.
    /// Arguments and capability arguments that the caller leaves empty are taken from the cache, so
    /// that a plugin finds what it made for them. A plugin that answers with code 3 (unknown
    /// container) has nothing to remove and counts as successful.
    ///
    /// The record is removed when all plugins succeeded, else it stays for the next attempt: DEL
    /// may be repeated until it succeeds, and after that it succeeds again. A plugin that refuses
    /// its configuration as it did at the ADD that failed has made nothing: it is reported, and
    /// does not keep the record.
    ///
    /// When the deadline passes, the plugins that have not run yet share
    /// [`Runtime::with_cleanup_time`].
    ///
    /// # Errors
    /// [`DelError`] with every plugin's failure.
    pub fn del_list(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        deadline: Option<Instant>,
    ) -> Result<DeletedAttachment, DelError> {
        require_usable(list).map_err(DelError::Invalid)?;
        let key = self.key(list, attachment).map_err(DelError::Invalid)?;
        let mut deleted = DeletedAttachment::default();
        let (record, previous) = self.recorded(&self.cache.look_up(&key), list, &mut deleted);
        let mut attachment = attachment.clone();
        let mut refused = None;
        if let Some(cached) = record {
            deleted.was_cached = true;
            if attachment.args.iter().next().is_none() {
                attachment.args = cached.attachment.args;
            }
            if attachment.capability_args.is_empty() {
                attachment.capability_args = cached.attachment.capability_args;
            }
            refused = cached.refused;
        }
        let time = Time::Given(deadline);
        let mut failures =
            self.del_chain(list, list.plugins.len(), &attachment, previous.as_ref(), time);
        failures.retain(|failure| {
            let made_nothing = refused.as_ref().is_some_and(|refused| failure.is_only(refused));
            if made_nothing {
                deleted.notices.push(format!("{failure}; so it did at ADD, and has made nothing"));
            }
            !made_nothing
        });
        if !failures.is_empty() {
            return Err(DelError::Plugins(failures));
        }
        if let Err(error) = self.cache.forget(&key) {
            deleted.notices.push(error.to_string());
        }
        Ok(deleted)
    }

    /// Detaches as [`Runtime::del_list`] does, with the configuration and the arguments with which
    /// it was attached. This is for networks whose configuration is gone or has changed.
    ///
    /// Set `cached.attachment.netns` to empty text when the namespace is known to be gone.
    ///
    /// # Errors
    /// [`DelError::NoConfig`] when the cached configuration cannot be read; else as
    /// [`Runtime::del_list`].
    pub fn del_cached(
        &self,
        cached: &CachedAttachment,
        deadline: Option<Instant>,
    ) -> Result<DeletedAttachment, DelError> {
        let list = cached.list().map_err(|error| DelError::NoConfig {
            attachment: Box::new(cached.key()),
            reason: error.to_string(),
        })?;
        if list.name != cached.network.as_str() {
            return Err(DelError::NoConfig {
                attachment: Box::new(cached.key()),
                reason: format!("the cached one is for network {:?}", list.name),
            });
        }
        self.del_list(&list, &cached.attachment, deadline)
    }

    /// Runs DEL of every plugin of a list that was made from what plugins recorded. The runtime's
    /// own record stays as it is.
    ///
    /// # Errors
    /// [`DelError`] with every plugin's failure.
    pub fn del_recorded(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        deadline: Option<Instant>,
    ) -> Result<(), DelError> {
        let count = list.plugins.len();
        let failures = self.del_chain(list, count, attachment, None, Time::Given(deadline));
        if failures.is_empty() { Ok(()) } else { Err(DelError::Plugins(failures)) }
    }

    /// Runs DEL on the first `ran` plugins, the last of them first, and returns what failed.
    pub(super) fn del_chain(
        &self,
        list: &NetworkList,
        ran: usize,
        attachment: &Attachment,
        previous: Option<&ChainResult>,
        mut time: Time,
    ) -> Vec<PluginFailure> {
        let mut failures = Vec::new();
        let previous = previous.filter(|_| takes_previous(list));
        for (left, plugin) in list.plugins.iter().enumerate().take(ran).rev() {
            if time.is_up() {
                time = Time::shared(self.cleanup_time);
            }
            let subject = Subject {
                attachment: Some(attachment),
                previous,
                ..Subject::of(list, Command::Del)
            };
            match self.call(plugin, subject, time.next(left + 1)) {
                Ok(Answer::Said { .. } | Answer::SaidUnknown { .. } | Answer::NoSuchVerb) => {}
                // CNI 1.1.0 §5 "Error": code 3 implies that there is nothing to clean up.
                Err(PluginError::Reported(error)) if error.code == code::UNKNOWN_CONTAINER => {}
                Err(error) => failures.push(Self::failure(plugin, Command::Del, error)),
            }
        }
        failures
    }

    /// Reads what the cache has for an attachment that is to be removed.
    fn recorded(
        &self,
        found: &Lookup,
        list: &NetworkList,
        deleted: &mut DeletedAttachment,
    ) -> (Option<CachedAttachment>, Option<ChainResult>) {
        let (record, raw, path) = match found {
            Lookup::Missing => return (None, None),
            Lookup::Found(cached) => {
                (Some((**cached).clone()), cached.result.as_deref(), &cached.path)
            }
            Lookup::Legacy { path, result } => (None, Some(&**result), path),
            Lookup::Kind { path, kind } => {
                deleted.notices.push(format!("cache file {path:?} is of another kind: {kind}"));
                return (None, None);
            }
            Lookup::Garbage { path, reason } => {
                deleted.notices.push(format!("cache file {path:?} cannot be read: {reason}"));
                return (None, None);
            }
        };
        let Some(raw) = raw.filter(|_| takes_previous(list)) else { return (record, None) };
        match convert(raw, list) {
            Ok(previous) => (record, Some(previous)),
            Err(error) => {
                deleted.notices.push(format!("cached result in {path:?} cannot be used: {error}"));
                (record, None)
            }
        }
    }
}

/// CNI 0.4.0 introduced `prevResult` for DEL.
fn takes_previous(list: &NetworkList) -> bool {
    has_verb(&list.cni_version, Command::Check)
}

/// Converts a cached result to the version of a list.
pub(super) fn convert(raw: &RawValue, list: &NetworkList) -> Result<ChainResult, cni::Error> {
    let document = raw.get().as_bytes();
    let named = AddResult::version_of(document)?;
    let wanted = Version::parse(&list.cni_version).unwrap_or(Version::CURRENT);
    let version = named.unwrap_or(Version::V0_1_0);
    let result = AddResult::parse(document, version)?;
    let raw = if named == Some(wanted) { raw.to_owned() } else { to_raw(&result, wanted)? };
    Ok(ChainResult { raw, result })
}
