//! What the runtimes' files said when they were whole, so that a damaged one can be written again.
//!
//! Addresses, routes and the configuration of an attachment are in the runtime's file alone:
//! plugins record what they made on the host. So the service keeps what it read at its last look,
//! in memory only: a few kilobytes per attachment.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use cni::{AttachmentKey, Error, code};
use cni_runtime::{KnownAttachment, Runtime};
use state::{Index, Record, Roots};

/// How long to wait for an ADD, a DEL or another repair of the attachment. There will be another
/// look.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Attachments by their runtimes' files.
#[derive(Debug, Default)]
pub(super) struct AttachmentCache(HashMap<PathBuf, KnownAttachment>);

impl AttachmentCache {
    /// Remembers an attachment whose file could be read.
    pub(super) fn note(&mut self, known: KnownAttachment) {
        if let Some(file) = known.file() {
            self.0.insert(file.to_owned(), known);
        }
    }

    /// Forgets all attachments but these.
    pub(super) fn keep(&mut self, seen: &BTreeSet<AttachmentKey>) {
        self.0.retain(|_, known| seen.contains(&known.key));
    }

    /// Writes the file of a damaged attachment again and returns what is known of it now; `None`
    /// when the service does not remember its content, or when the attachment was made anew or
    /// removed since.
    ///
    /// # Errors
    /// When the file cannot be written, or the attachment's lock cannot be taken.
    pub(super) fn write_again(
        &self,
        runtime: &Runtime<'_>,
        roots: &Roots,
        damaged: &KnownAttachment,
    ) -> Result<Option<&KnownAttachment>, Error> {
        let Some(known) = damaged.file().and_then(|file| self.0.get(file)) else { return Ok(None) };
        let Some(cached) = &known.cached else { return Ok(None) };
        let index = Index::new(roots);
        // A DEL holds this lock, and the runtime removes its file after that.
        let lock = index.lock_attachment(&known.key, TIMEOUT);
        let lock = lock.map_err(|error| Error::from_chain(code::TRY_AGAIN_LATER, &error))?;
        if lock.is_none() || !is_same(&index.of_attachment(&known.key).found, &known.records) {
            return Ok(None);
        }
        let written = runtime.cache().rewrite(cached).map_err(|error| error.to_cni())?;
        Ok(written.then_some(known))
    }
}

/// Says whether the plugins' records, which are read in no particular order, are the same: they
/// hold the namespace and what was made.
fn is_same(now: &[Record], then: &[Record]) -> bool {
    now.len() == then.len() && now.iter().all(|record| then.contains(record))
}
