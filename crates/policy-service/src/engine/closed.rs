//! Which pods stay closed because too little is known of them, and what their Events say.
//!
//! A pod is closed for a moment when it starts. One that stays closed runs, and nothing but its node
//! reaches it: an Event says so, and why. An attachment is looked at when it starts, and with each
//! list of records, since a pod may be closed later, too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use policy::object::Uid;

use super::super::lists::Origin;
use super::super::records::{Attachment, Id};
use super::super::tell;
use super::Engine;

/// How long a pod is closed before an Event says so. A server that is busy says within seconds what
/// it knows of a pod that starts.
pub(super) const CLOSED: Duration = Duration::from_secs(10);

/// The attachments that may stay closed.
#[derive(Debug, Default)]
pub(super) struct ClosedAttachments {
    /// Those that were closed when they were looked at last.
    fresh: BTreeSet<Id>,
    /// When each is looked at again.
    due: BTreeMap<Id, Instant>,
    /// Those of whose pods an Event was sent, and the pods.
    sent: BTreeMap<Id, Uid>,
}

impl ClosedAttachments {
    /// Returns when something is to be looked at.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }
}

impl Engine {
    /// Takes note of an attachment that may stay closed.
    pub(super) fn note_closed(&mut self, id: Id) {
        if self.lists.origin() == Origin::Server && !self.closed.due.contains_key(&id) {
            self.closed.fresh.insert(id);
        }
    }

    /// Takes note of all attachments that are closed, and of those that no longer are.
    pub(super) fn note_all_closed(&mut self) {
        let is_closed = |one: &&Attachment| self.closed_pod(&one.id).is_some();
        let closed: Vec<Id> =
            self.records.living().filter(is_closed).map(|one| one.id.clone()).collect();
        let sent: Vec<Id> = self.closed.sent.keys().cloned().collect();
        for id in sent {
            if self.closed_pod(&id).is_none()
                && let Some(uid) = self.closed.sent.remove(&id)
            {
                self.tell.pod_is_right(&uid, tell::UNKNOWN);
            }
        }
        closed.into_iter().for_each(|id| self.note_closed(id));
    }

    /// Sets when those are looked at that are closed now, of the attachments of which note was taken.
    pub(super) fn wait_for_closed(&mut self, now: Instant) {
        for id in std::mem::take(&mut self.closed.fresh) {
            if !self.closed.sent.contains_key(&id) && self.closed_pod(&id).is_some() {
                self.closed.due.entry(id).or_insert(now + CLOSED);
            }
        }
    }

    /// Sends an Event about each pod that has stayed closed.
    pub(super) fn tell_closed(&mut self, now: Instant) {
        let due = self.closed.due.iter().filter(|(_, due)| **due <= now);
        let due: Vec<Id> = due.map(|(id, _)| id.clone()).collect();
        for id in due {
            self.closed.due.remove(&id);
            let Some((pod, why)) = self.closed_pod(&id) else { continue };
            self.closed.sent.insert(id, pod.uid.as_str().into());
            self.tell.unknown(&pod, why);
        }
    }

    /// Returns the pod of an attachment, and why it is closed; `None` if it is not closed, has
    /// ended, the runtime names no pod, or its policies close it, which has an Event of its own.
    fn closed_pod(&self, id: &Id) -> Option<(node_api::Pod, String)> {
        let attachment = self.records.get(id).filter(|one| !self.records.has_ended(&one.id))?;
        let pod = attachment.pod.as_ref().filter(|pod| !pod.uid.is_empty())?;
        if self.beyond.contains_key(pod.uid.as_str()) {
            return None;
        }
        Some((pod.clone(), self.why_not_enforced(attachment)?))
    }
}
