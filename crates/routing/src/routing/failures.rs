//! Changes that the kernel refused: the log names them, and they are tried again.

use std::collections::BTreeSet;
use std::time::Duration;

use ipnet::IpNet;

use super::Routing;
use crate::cluster::News;
use crate::object::Key;
use crate::plan::Change;
use crate::time::Time;

/// How long a change that failed is left alone before it is tried again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A change that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) error: String,
    pub(crate) since: Time,
    wait: Duration,
    pub(super) again: Time,
}

impl Failure {
    /// Returns a failure that comes now, after an earlier one of the same change.
    fn after(known: Option<&Failure>, error: &str, now: Time) -> Self {
        let wait = known.map_or(RETRY.0, |failure| (failure.wait * 2).min(RETRY.1));
        let since = known.map_or(now, |failure| failure.since);
        Failure { error: error.to_owned(), since, wait, again: now.after(wait) }
    }

    /// Reports whether it came again after the first pause.
    fn is_lasting(&self) -> bool {
        RETRY.0 <= self.again.since(self.since.after(self.wait))
    }
}

impl Routing {
    /// Takes that a change failed, with the kernel's words. It is tried again later. If something
    /// is there that was to be created, what is known of the kernel is old: [`Routing::look`].
    ///
    /// Returns a sentence for the log, the first time.
    pub fn failed(&mut self, change: &Change, error: &str, now: Time) -> Option<News> {
        let known = match change.key() {
            Some(key) => self.failures.get(key),
            None => self.foreign_failures.get(change),
        };
        let is_new = known.is_none_or(|failure| failure.error != error);
        let failure = Failure::after(known, error, now);
        match change.key() {
            Some(key) => self.failures.insert(key.clone(), failure),
            None => self.foreign_failures.insert(change.clone(), failure),
        };
        let whose = change.key().and_then(|key| self.wanted.whose(key));
        let whose = whose.filter(|whose| !whose.is_empty());
        is_new.then(|| News::warning(whose, format!("{change}: {error}")))
    }

    /// Returns what the kernel refuses to make, or to remove, of this node itself, with the
    /// kernel's words, and how many more there are. A failure of a peer's object concerns that peer
    /// alone: its row says so. All is tried again at [`Routing::due`].
    #[must_use]
    pub fn failing(&self) -> Option<String> {
        let of_node = self.left().filter(|(key, _)| key.is_of_node());
        first_and_more(of_node.map(|(key, failure)| format!("{key}: {}", failure.error)))
    }

    /// Returns which removals have failed, without those of this node itself: of objects of peers
    /// that are gone, of what other programs put on our tunnels, of flanneld's routes. It says why
    /// the first one has failed, and how many more there are.
    pub(crate) fn unremoved(&self) -> Option<String> {
        let ours = self
            .left()
            .filter(|(key, _)| !key.is_of_node() && self.wanted.get(key).is_none())
            .map(|(key, failure)| format!("remove {key}: {}", failure.error));
        let theirs = self
            .foreign_failures
            .iter()
            .filter(|(change, _)| self.is_there(change))
            .map(|(change, failure)| format!("{change}: {}", failure.error));
        first_and_more(ours.chain(theirs))
    }

    /// Reports whether the kernel has refused an object of a peer for a while: then that peer alone
    /// lacks it. At first it may be about to be there.
    pub(super) fn is_still_refused(&self, key: &Key) -> bool {
        !key.is_of_node() && self.failures.get(key).is_some_and(Failure::is_lasting)
    }

    /// Returns the failures of objects that still differ from what is wanted. What was put right
    /// meanwhile, or is no longer wanted, is not tried again.
    fn left(&self) -> impl Iterator<Item = (&Key, &Failure)> {
        let objects = self.observed.objects();
        self.failures.iter().filter(move |(key, _)| self.wanted.get(key) != objects.get(*key))
    }

    /// Returns the removals of others' routes that are tried again now, and forgets the failures of
    /// those that are no longer wanted. None goes before ours stands.
    pub(super) fn foreign_again(&mut self, now: Time) -> Vec<Change> {
        let due = self.foreign_failures.iter().filter(|(_, failure)| failure.again <= now);
        let prefixes: BTreeSet<IpNet> = due.filter_map(|(change, _)| of_foreign(change)).collect();
        let wanted = match &self.waiting {
            None => self.flannels_routes(prefixes.iter().filter(|prefix| self.stands(**prefix))),
            Some(_) => Vec::new(),
        };
        let is_due = |change: &Change| of_foreign(change).is_some_and(|of| prefixes.contains(&of));
        self.foreign_failures.retain(|change, _| !is_due(change) || wanted.contains(change));
        wanted
    }

    /// Reports whether a change can be made now that those before it were made, or have failed: a
    /// route of others goes only once ours stands, if one is wanted.
    #[must_use]
    pub fn may_follow(&self, change: &Change) -> bool {
        of_foreign(change).is_none_or(|prefix| self.stands(prefix))
    }

    /// Reports whether our route to a prefix is there, or none is wanted.
    fn stands(&self, prefix: IpNet) -> bool {
        let key = Key::Route { prefix };
        self.wanted.get(&key).is_none_or(|value| self.has(&key, value))
    }

    /// Reports whether the route of others is there that a change removes.
    fn is_there(&self, change: &Change) -> bool {
        match change {
            Change::RemoveForeign(prefix, route) => {
                self.observed.foreign.get(prefix).is_some_and(|routes| routes.contains(route))
            }
            _ => false,
        }
    }
}

/// Returns the first of some sentences, and how many more there are.
fn first_and_more(mut sentences: impl Iterator<Item = String>) -> Option<String> {
    let first = sentences.next()?;
    match sentences.count() {
        0 => Some(first),
        more => Some(format!("{first} (and {more} more)")),
    }
}

/// Returns the prefix of the route of others that a change removes.
fn of_foreign(change: &Change) -> Option<IpNet> {
    match change {
        Change::RemoveForeign(prefix, _) => Some(*prefix),
        _ => None,
    }
}
