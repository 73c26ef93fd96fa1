//! GC: removes what no valid attachment owns.

use std::time::Instant;

use cni::{AttachmentKey, Command, GcAttachment, NetworkList, NetworkName};

use super::{Answer, Subject, Time, has_verb};
use crate::Runtime;
use crate::cache::{CachedAttachment, SkippedFile};
use crate::error::{DelError, GcError, GcFailure};
use crate::runtime::require_usable;

/// What GC did.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct GcReport {
    /// The attachments on which DEL succeeded.
    pub removed: Vec<AttachmentKey>,
    /// The attachments of the network that are valid.
    pub kept: Vec<AttachmentKey>,
    /// The plugins on which the verb GC succeeded.
    pub collected: Vec<String>,
    /// Files of the cache that hold no attachment, of all networks.
    pub passed_over: Vec<SkippedFile>,
    /// Problems that did not stop GC.
    pub notices: Vec<String>,
}

impl Runtime<'_> {
    /// Removes what no valid attachment owns (CNI 1.1.0 §2 "GC").
    ///
    /// Each attachment of the network that the cache has and `valid` does not name gets DEL, with
    /// the configuration with which it was attached, or with the list given here if the cached one
    /// cannot be read. An attachment whose ADD is running ([`CachedAttachment::is_under_way`]) is
    /// kept, named or not. Then, from version 1.1.0 on, each plugin of the list gets the verb GC
    /// with `valid`.
    ///
    /// With `valid` of `None` the valid attachments are not known: then **every** cached attachment
    /// of the network is removed, and plugins are called without the key. A list with `disableGC`
    /// succeeds without running anything.
    ///
    /// Steps for which the deadline leaves no time are not started, and are reported. The caller
    /// must hold off ADD and DEL meanwhile.
    ///
    /// # Errors
    /// [`GcError`] with everything that failed, and what was done nevertheless.
    pub fn gc_list(
        &self,
        list: &NetworkList,
        valid: Option<&[GcAttachment]>,
        deadline: Option<Instant>,
    ) -> Result<GcReport, GcError> {
        let mut work = Work::default();
        if list.disable_gc {
            return work.end();
        }
        match require_usable(list) {
            Err(error) => work.failures.push(GcFailure::Invalid(error)),
            Ok(network) => {
                self.gc_attachments(&network, Some(list), valid, deadline, &mut work);
                if has_verb(&list.cni_version, Command::Gc) {
                    // For its plugins, too, an attachment that is being made counts as valid.
                    let under_way = std::mem::take(&mut work.under_way);
                    let valid: Option<Vec<_>> =
                        valid.map(|valid| valid.iter().cloned().chain(under_way).collect());
                    self.gc_plugins(list, valid.as_deref(), deadline, &mut work);
                }
            }
        }
        work.end()
    }

    /// Removes the attachments of a network whose configuration is gone, each with its cached
    /// configuration. Those whose cached configuration has `disableGC` are kept.
    ///
    /// # Errors
    /// As [`Runtime::gc_list`].
    pub fn gc_network(
        &self,
        network: &NetworkName,
        valid: Option<&[GcAttachment]>,
        deadline: Option<Instant>,
    ) -> Result<GcReport, GcError> {
        let mut work = Work::default();
        self.gc_attachments(network, None, valid, deadline, &mut work);
        work.end()
    }

    fn gc_attachments(
        &self,
        network: &NetworkName,
        list: Option<&NetworkList>,
        valid: Option<&[GcAttachment]>,
        deadline: Option<Instant>,
        work: &mut Work,
    ) {
        let listing = match self.cache.list(None) {
            Ok(listing) => listing,
            Err(error) => return work.failures.push(GcFailure::Cache(error)),
        };
        work.report.passed_over = listing.passed_over;
        for cached in listing.attachments.iter().filter(|cached| cached.network == *network) {
            let key = cached.key();
            let disabled =
                list.is_none() && cached.list().is_ok_and(|cached_list| cached_list.disable_gc);
            // The author of the list cannot have known of an attachment that is being made.
            let is_under_way = cached.is_under_way();
            if is_under_way {
                work.under_way.push(GcAttachment {
                    container_id: key.container_id.to_string(),
                    ifname: key.ifname.to_string(),
                });
            }
            if disabled || is_valid(&key, valid) || is_under_way {
                work.report.kept.push(key);
                continue;
            }
            // Each DEL after the deadline has its own cleanup time; there may be a thousand of
            // them.
            let outcome = if Time::Given(deadline).is_up() {
                Err(DelError::NoTimeLeft)
            } else {
                self.del_stale(cached, list, deadline, work)
            };
            match outcome {
                Ok(()) => work.report.removed.push(key),
                Err(error) => {
                    work.failures.push(GcFailure::Attachment { attachment: key, error });
                }
            }
        }
    }

    fn del_stale(
        &self,
        cached: &CachedAttachment,
        list: Option<&NetworkList>,
        deadline: Option<Instant>,
        work: &mut Work,
    ) -> Result<(), DelError> {
        let deleted = match (self.del_cached(cached, deadline), list) {
            (Err(error @ DelError::NoConfig { .. }), Some(list)) => {
                work.report.notices.push(format!("{error}; the one given to GC was used"));
                self.del_list(list, &cached.attachment, deadline)?
            }
            (deleted, _) => deleted?,
        };
        work.report.notices.extend(deleted.notices);
        Ok(())
    }

    fn gc_plugins(
        &self,
        list: &NetworkList,
        valid: Option<&[GcAttachment]>,
        deadline: Option<Instant>,
        work: &mut Work,
    ) {
        for plugin in &list.plugins {
            let subject = Subject { valid, ..Subject::of(list, Command::Gc) };
            match self.call(plugin, subject, deadline) {
                Ok(Answer::NoSuchVerb) => {}
                Ok(_) => work.report.collected.push(plugin.plugin_type.clone()),
                Err(error) => {
                    work.failures.push(GcFailure::Plugin(Self::failure(
                        plugin,
                        Command::Gc,
                        error,
                    )));
                }
            }
        }
    }
}

fn is_valid(key: &AttachmentKey, valid: Option<&[GcAttachment]>) -> bool {
    valid.unwrap_or_default().iter().any(|valid| {
        valid.container_id == key.container_id.as_str() && valid.ifname == key.ifname.as_str()
    })
}

#[derive(Default)]
struct Work {
    /// Attachments whose ADD is running.
    under_way: Vec<GcAttachment>,
    report: GcReport,
    failures: Vec<GcFailure>,
}

impl Work {
    fn end(self) -> Result<GcReport, GcError> {
        if self.failures.is_empty() {
            return Ok(self.report);
        }
        Err(GcError { report: Box::new(self.report), failures: self.failures })
    }
}
