//! What sources have listed, and what is kept although a list lacks it.
//!
//! A watch that says that an object was deleted is believed. A list that lacks objects may come
//! from a server that has lost them, and without policies the pods of a cluster are open:
//!
//! - A policy that a list lacks stays until a second list lacks it too: [`CONFIRM`] later, or
//!   [`BRAKE`] where more than half of the policies are missing, and more than a [`FEW`].
//! - Objects of other kinds stay for [`BRAKE`] where more than half of the kind are missing.
//!   Without pods and namespaces everything of this node would be closed.
//!
//! Files are this host's own. Objects that they lack go after [`SETTLE`]: a program that replaces a
//! folder does it file by file.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::kinds::{Key, Kind};

/// How long a policy stays that a list lacks, at least.
pub(super) const CONFIRM: Duration = Duration::from_secs(60);

/// How long objects stay that a list lacks together with more than half of their kind.
pub(super) const BRAKE: Duration = Duration::from_secs(600);

/// How many objects of a kind count as few.
pub(super) const FEW: usize = 3;

/// How long objects stay that no file has any longer.
pub(super) const SETTLE: Duration = Duration::from_secs(2);

/// Where objects come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Server,
    Files,
}

/// Returns how long `lost` of `known` objects are kept; `None` if they go at once.
pub(super) fn grace_period(
    origin: Origin,
    kind: Kind,
    lost: usize,
    known: usize,
) -> Option<Duration> {
    let most = FEW < lost && known < lost.saturating_mul(2);
    match (origin, kind.is_policy()) {
        _ if lost == 0 => None,
        (Origin::Files, _) => Some(SETTLE),
        (Origin::Server, _) if most => Some(BRAKE),
        (Origin::Server, true) => Some(CONFIRM),
        (Origin::Server, false) => None,
    }
}

/// The lists of all kinds.
#[derive(Debug)]
pub(super) struct Lists {
    origin: Origin,
    kinds: BTreeMap<Kind, List>,
}

#[derive(Debug, Default)]
struct List {
    /// A whole list was taken.
    complete: bool,
    /// What the list has that is being read, if something was known before it.
    seen: Option<BTreeSet<Key>>,
    /// What is kept, and until when at least.
    held: BTreeMap<Key, Instant>,
    /// When another list was asked for.
    asked: Option<Instant>,
    /// Why the source does not answer.
    silent: Option<String>,
}

impl List {
    fn due(&self) -> Option<Instant> {
        let due = self.held.values().min().copied()?;
        Some(self.asked.map_or(due, |asked| due.max(asked + CONFIRM)))
    }
}

/// What the end of a list leads to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ListOutcome {
    /// What goes.
    pub(super) gone: Vec<Key>,
    /// How many were found missing by this list and are kept, and how long.
    pub(super) kept: Option<(usize, Duration)>,
}

impl Lists {
    pub(super) fn new(origin: Origin) -> Self {
        Lists { origin, kinds: Kind::ALL.map(|kind| (kind, List::default())).into() }
    }

    pub(super) fn origin(&self) -> Origin {
        self.origin
    }

    fn of(&mut self, kind: Kind) -> &mut List {
        self.kinds.entry(kind).or_default()
    }

    /// Reports whether every kind was listed.
    pub(super) fn are_complete(&self) -> bool {
        self.kinds.values().all(|list| list.complete)
    }

    /// Returns the kinds that were not listed yet, each with what its source says if it does not
    /// answer.
    pub(super) fn missing(&self) -> impl Iterator<Item = (Kind, Option<&str>)> {
        let missing = self.kinds.iter().filter(|(_, list)| !list.complete);
        missing.map(|(kind, list)| (*kind, list.silent.as_deref()))
    }

    /// Returns why the source does not answer, if that is so.
    pub(super) fn silence(&self) -> Option<(Kind, &str)> {
        self.kinds.iter().find_map(|(kind, list)| Some((*kind, list.silent.as_deref()?)))
    }

    /// Returns why the source does not answer about policies, if that is so.
    pub(super) fn silence_about_policies(&self) -> Option<(Kind, &str)> {
        let mut policies = self.kinds.iter().filter(|(kind, _)| kind.is_policy());
        policies.find_map(|(kind, list)| Some((*kind, list.silent.as_deref()?)))
    }

    /// The source does not answer about a kind. Returns whether it did before.
    pub(super) fn fall_silent(&mut self, kind: Kind, why: String) -> bool {
        self.of(kind).silent.replace(why).is_none()
    }

    /// The source answers about a kind. Returns whether it did not before.
    pub(super) fn answers(&mut self, kind: Kind) -> bool {
        self.of(kind).silent.take().is_some()
    }

    /// A list begins. `known` says whether there are objects of the kind.
    pub(super) fn begin(&mut self, kind: Kind, known: bool) {
        self.of(kind).seen = known.then(BTreeSet::new);
    }

    /// Reports whether the end of a list of a kind will say what it lacked.
    pub(super) fn compares(&self, kind: Kind) -> bool {
        self.kinds.get(&kind).is_some_and(|list| list.seen.is_some())
    }

    /// The source has an object: it is there, and no longer only kept. Returns whether it was kept.
    pub(super) fn see(&mut self, kind: Kind, key: &Key) -> bool {
        let list = self.of(kind);
        if let Some(seen) = &mut list.seen {
            seen.insert(key.clone());
        }
        !list.held.is_empty() && list.held.remove(key).is_some()
    }

    /// The source says that an object was deleted.
    pub(super) fn forget(&mut self, kind: Kind, key: &Key) {
        let list = self.of(kind);
        list.held.remove(key);
        if let Some(seen) = &mut list.seen {
            seen.remove(key);
        }
    }

    /// Reports whether the list that is being read has an object. Of one that [is not
    /// compared](Self::compares), it has each.
    pub(super) fn has_seen(&self, kind: Kind, key: &Key) -> bool {
        let seen = self.kinds.get(&kind).and_then(|list| list.seen.as_ref());
        seen.is_none_or(|seen| seen.contains(key))
    }

    /// A list is complete. There are `count` objects of the kind, and it has not seen `unseen` of
    /// them ([`has_seen`](Self::has_seen)).
    pub(super) fn complete(
        &mut self,
        kind: Kind,
        count: usize,
        unseen: impl IntoIterator<Item = Key>,
        now: Instant,
    ) -> ListOutcome {
        let origin = self.origin;
        let list = self.of(kind);
        list.complete = true;
        list.asked = None;
        if list.seen.take().is_none() {
            return ListOutcome::default();
        }
        let mut lost = Vec::new();
        let mut gone = Vec::new();
        for key in unseen {
            match list.held.get(&key) {
                Some(until) if *until <= now => gone.push(key),
                Some(_) => {}
                None => lost.push(key),
            }
        }
        for key in &gone {
            list.held.remove(key);
        }
        let Some(grace) = grace_period(origin, kind, lost.len(), count) else {
            gone.append(&mut lost);
            return ListOutcome { gone, kept: None };
        };
        let kept = Some((lost.len(), grace));
        list.held.extend(lost.into_iter().map(|key| (key, now + grace)));
        ListOutcome { gone, kept }
    }

    /// Returns what is kept.
    pub(super) fn held(&self) -> impl Iterator<Item = &Key> {
        self.kinds.values().flat_map(|list| list.held.keys())
    }

    /// Reports whether an object is kept.
    pub(super) fn is_held(&self, kind: Kind, key: &Key) -> bool {
        self.kinds.get(&kind).is_some_and(|list| list.held.contains_key(key))
    }

    /// Reports whether something of a kind is kept.
    pub(super) fn holds(&self, kind: Kind) -> bool {
        self.kinds.get(&kind).is_some_and(|list| !list.held.is_empty())
    }

    /// Returns when something that is kept is to be asked for again, or goes.
    pub(super) fn due(&self) -> Option<Instant> {
        self.kinds.values().filter_map(List::due).min()
    }

    /// Returns the kinds of which something is due.
    pub(super) fn to_confirm(&self, now: Instant) -> Vec<Kind> {
        let is_due = |list: &List| list.due().is_some_and(|due| due <= now);
        self.kinds.iter().filter(|(_, list)| is_due(list)).map(|(kind, _)| *kind).collect()
    }

    /// Another list of a kind was asked for: nothing of it is due for a while.
    pub(super) fn ask(&mut self, kind: Kind, now: Instant) {
        self.of(kind).asked = Some(now);
    }

    /// No longer keeps anything of a kind. Returns what was kept.
    pub(super) fn let_go(&mut self, kind: Kind) -> Vec<Key> {
        std::mem::take(&mut self.of(kind).held).into_keys().collect()
    }

    /// No longer keeps what is due of a kind. Returns it.
    pub(super) fn let_due_go(&mut self, kind: Kind, now: Instant) -> Vec<Key> {
        let list = self.of(kind);
        let due = list.held.extract_if(.., |_, until| *until <= now);
        due.map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(count: usize) -> Vec<Key> {
        (0..count).map(|number| Key::Namespace(number.to_string())).collect()
    }

    /// Lists the first `first` of `of` objects.
    fn list(
        lists: &mut Lists,
        kind: Kind,
        (first, of): (usize, usize),
        now: Instant,
    ) -> ListOutcome {
        let all = keys(of);
        lists.begin(kind, 0 < of);
        for key in &all[..first] {
            lists.see(kind, key);
        }
        let unseen: Vec<Key> = all.into_iter().filter(|key| !lists.has_seen(kind, key)).collect();
        lists.complete(kind, of, unseen, now)
    }

    #[test]
    fn a_policy_goes_when_a_second_list_lacks_it() {
        let start = Instant::now();
        let mut lists = Lists::new(Origin::Server);
        let kind = Kind::NetworkPolicies;
        assert_eq!(list(&mut lists, kind, (0, 0), start), ListOutcome::default());
        let kept = |count, time| ListOutcome { gone: Vec::new(), kept: Some((count, time)) };
        assert_eq!(list(&mut lists, kind, (9, 10), start), kept(1, CONFIRM));
        // Another list before its time.
        let early = start + CONFIRM / 2;
        assert_eq!(list(&mut lists, kind, (9, 10), early), ListOutcome::default());
        assert_eq!(lists.to_confirm(early), []);
        let late = start + CONFIRM;
        assert_eq!(lists.to_confirm(late), [kind]);
        lists.ask(kind, late);
        assert_eq!(lists.to_confirm(late), []);
        assert_eq!(lists.due(), Some(late + CONFIRM));
        assert_eq!(list(&mut lists, kind, (9, 10), late).gone, keys(10)[9..]);
        assert_eq!(lists.due(), None);
        // Most of them.
        assert_eq!(list(&mut lists, kind, (4, 9), late), kept(5, BRAKE));
        assert!(!lists.see(kind, &keys(1)[0]) && lists.see(kind, &keys(6)[5]));
        assert_eq!(lists.held().count(), 4);
        assert_eq!(lists.let_go(kind).len(), 4);
    }

    #[test]
    fn other_objects_are_kept_where_most_are_missing() {
        let now = Instant::now();
        let mut lists = Lists::new(Origin::Server);
        let gone = |judged: ListOutcome| (judged.gone.len(), judged.kept);
        assert_eq!(gone(list(&mut lists, Kind::Pods, (5, 10), now)), (5, None));
        assert_eq!(gone(list(&mut lists, Kind::Pods, (4, 10), now)), (0, Some((6, BRAKE))));
        assert_eq!(gone(list(&mut lists, Kind::Nodes, (0, 3), now)), (3, None));
        let mut files = Lists::new(Origin::Files);
        assert_eq!(gone(list(&mut files, Kind::Nodes, (2, 3), now)), (0, Some((1, SETTLE))));
        assert_eq!(files.let_due_go(Kind::Nodes, now).len(), 0);
        assert_eq!(files.let_due_go(Kind::Nodes, now + SETTLE).len(), 1);
    }
}
