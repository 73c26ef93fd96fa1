//! Attachments that GC removes.

use std::time::Duration;

use cni::{AttachmentKey, code};
use state::{AttachmentLock, Index, LockError, Record};

use crate::shared::failure::Failure;

/// How long GC waits for an ADD, a DEL or a repair of an attachment, which take milliseconds.
pub(crate) const GC_TIMEOUT: Duration = Duration::from_secs(2);

/// An attachment that GC's list does not name, as it was when GC read it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StaleAttachment {
    /// The attachment.
    pub(crate) key: AttachmentKey,
    record: Option<Record>,
}

impl StaleAttachment {
    /// Reads an attachment as `plugin` recorded it.
    #[must_use]
    pub(crate) fn read(index: &Index, plugin: &str, key: AttachmentKey) -> Self {
        StaleAttachment { record: index.get(&key, plugin).found, key }
    }

    /// Creates one from a record that was just read.
    #[must_use]
    pub(crate) fn of(record: Record) -> Self {
        StaleAttachment { key: record.attachment.clone(), record: Some(record) }
    }

    /// Reports whether the plugin had recorded it.
    #[must_use]
    pub(crate) fn is_recorded(&self) -> bool {
        self.record.is_some()
    }

    /// Removes it with `remove`, under its lock. The list is older than the read, so it does not
    /// name what another call has created or removed since; that is kept, and so is what another
    /// call was creating when GC reached it.
    ///
    /// # Errors
    /// Code 11 when an ADD or a DEL is running for it; else those of `remove`.
    pub(crate) fn collect(
        &self,
        index: &Index,
        plugin: &str,
        remove: impl FnOnce(Option<Record>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.collect_under(
            index,
            plugin,
            &|timeout| index.begin_attachment(&self.key, timeout),
            remove,
        )
    }

    /// Does the same as [`StaleAttachment::collect`] under another lock. `begin` takes it, and waits
    /// for other calls at most for the time that it is given.
    ///
    /// # Errors
    /// As [`StaleAttachment::collect`].
    pub(crate) fn collect_under(
        &self,
        index: &Index,
        plugin: &str,
        begin: &dyn Fn(Duration) -> Result<AttachmentLock, LockError>,
        remove: impl FnOnce(Option<Record>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let begin = |timeout| match begin(timeout) {
            Ok(lock) => Ok(Some(lock)),
            Err(error) if error.is_busy() => Err(error),
            // If nothing can be written, no ADD can run either.
            Err(_) => Ok(None),
        };
        let (_lock, waited) = match begin(Duration::ZERO) {
            Ok(lock) => (lock, false),
            Err(_) => (begin(GC_TIMEOUT)?, true),
        };
        let now = index.get(&self.key, plugin).found;
        if now.is_some() && (waited || now != self.record) {
            let text = format!("{} was attached meanwhile", self.key);
            return Err(
                Failure::new(code::TRY_AGAIN_LATER, text).with_details("nothing was removed")
            );
        }
        remove(now)
    }
}
