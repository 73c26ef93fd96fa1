//! CHECK and STATUS, which change nothing.

use std::time::Instant;

use cni::{Command, NetworkList};

use super::del::convert;
use super::{ChainResult, Subject, Time, has_verb};
use crate::cache::{CacheError, Lookup};
use crate::error::{CheckError, StatusError};
use crate::runtime::require_usable;
use crate::{Attachment, Runtime};

/// Which plugins of a list CHECK asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    ToFirstFailure,
    EveryPlugin,
}

impl Runtime<'_> {
    /// Asks each plugin of a list whether what ADD made is still there (CNI 1.1.0 §3 "Checking an
    /// attachment"). Stops at the first that fails.
    ///
    /// A list with `disableCheck` succeeds without running anything. A plugin that supports no
    /// version with CHECK is skipped.
    ///
    /// # Errors
    /// [`CheckError`]; a plugin's error is shown in the plugin's words.
    pub fn check_list(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        deadline: Option<Instant>,
    ) -> Result<(), CheckError> {
        self.check(list, attachment, Extent::ToFirstFailure, deadline)
    }

    /// Does what [`Runtime::check_list`] does, and asks the plugins behind one that fails too, as
    /// long as there is time. The error is that of the first; its details name what the others
    /// find.
    ///
    /// The specification has a runtime stop at the first failure. This is for callers that show the
    /// answer to an administrator.
    ///
    /// # Errors
    /// As [`Runtime::check_list`].
    pub fn check_whole_list(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        deadline: Option<Instant>,
    ) -> Result<(), CheckError> {
        self.check(list, attachment, Extent::EveryPlugin, deadline)
    }

    fn check(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        extent: Extent,
        deadline: Option<Instant>,
    ) -> Result<(), CheckError> {
        require_usable(list).map_err(CheckError::Invalid)?;
        let key = self.key(list, attachment).map_err(CheckError::Invalid)?;
        if !has_verb(&list.cni_version, Command::Check) {
            return Err(CheckError::Version(list.cni_version.clone()));
        }
        if list.disable_check {
            return Ok(());
        }
        let previous = self
            .cached_result(&self.cache.look_up(&key), list)
            .map_err(|cause| CheckError::Cache { network: list.name.clone(), cause })?;
        let mut failures = Vec::new();
        for plugin in &list.plugins {
            let subject = Subject {
                attachment: Some(attachment),
                previous: previous.as_ref(),
                ..Subject::of(list, Command::Check)
            };
            if let Err(error) = self.call(plugin, subject, deadline) {
                failures.push(Self::failure(plugin, Command::Check, error));
                if extent == Extent::ToFirstFailure || Time::Given(deadline).is_up() {
                    break;
                }
            }
        }
        let mut failures = failures.into_iter();
        match failures.next() {
            None => Ok(()),
            Some(first) => Err(CheckError::Plugin { first, others: failures.collect() }),
        }
    }

    /// Asks each plugin of a list whether ADD would be served (CNI 1.1.0 §2 "STATUS"). Stops at the
    /// first that fails.
    ///
    /// A list older than 1.1.0 succeeds without running anything; a plugin that supports no version
    /// with STATUS is skipped.
    ///
    /// # Errors
    /// [`StatusError`]; a plugin's error is shown in the plugin's words.
    pub fn status_list(
        &self,
        list: &NetworkList,
        deadline: Option<Instant>,
    ) -> Result<(), StatusError> {
        require_usable(list).map_err(StatusError::Invalid)?;
        if !has_verb(&list.cni_version, Command::Status) {
            return Ok(());
        }
        for plugin in &list.plugins {
            let subject = Subject::of(list, Command::Status);
            self.call(plugin, subject, deadline).map_err(|error| {
                StatusError::Plugin(Self::failure(plugin, Command::Status, error))
            })?;
        }
        Ok(())
    }

    pub(super) fn cached_result(
        &self,
        found: &Lookup,
        list: &NetworkList,
    ) -> Result<Option<ChainResult>, CacheError> {
        let network = list.name.clone();
        let (raw, path) = match found {
            Lookup::Missing => return Ok(None),
            Lookup::Found(cached) => (cached.result.as_deref(), &cached.path),
            Lookup::Legacy { path, result } => (Some(&**result), path),
            Lookup::Kind { path, kind } => {
                return Err(CacheError::Kind { network, path: path.clone(), kind: kind.clone() });
            }
            Lookup::Garbage { path, reason } => {
                let (path, reason) = (path.clone(), reason.clone());
                return Err(CacheError::Garbage { network, path, reason });
            }
        };
        raw.map(|raw| convert(raw, list)).transpose().map_err(|error| CacheError::Convert {
            version: list.cni_version.clone(),
            path: path.clone(),
            reason: error.to_string(),
        })
    }
}
