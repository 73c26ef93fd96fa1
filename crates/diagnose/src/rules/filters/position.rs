//! Where a rule goes that lets packets pass: as far down as it still does so, and before what takes
//! these packets alone. So it takes away no more than it must of the protection that other rules
//! give. Nothing is taken to help that was not followed with the rule in its place.

use super::matches::RuleMatch;
use super::{FilterStop, caught};
use crate::filter::{AddedRule, Change, End, NewRule, Payload, Place, Port};
use crate::model::filter::{Chain, LegacyTable, Rule, Step, Table, Verdict};
use crate::model::{Namespace, Scene, Transport};
use crate::path::{Outcome, Stop, StopCause, Trip, carries, echo, follow_changed};

/// How many trips are followed with each rule that is tried. Those to addresses that rules name come
/// last.
const TRIPS: usize = 8;

/// What comes of packets in a base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::rules) enum Ending {
    /// They pass it.
    Passed,
    /// They are stopped in it.
    Stopped { place: Place, back: bool, further: bool },
    /// That is not certain.
    Unsure,
}

impl Ending {
    /// Reads what comes of a packet at a hook, in the base chain that has stopped it at a place.
    pub(in crate::rules) fn of_walk(end: End, stopped: &Place) -> Self {
        match end {
            End::Stopped(place, _) | End::Unknown(place) if place.is_of_same_base(stopped) => {
                Ending::Stopped { place, back: false, further: false }
            }
            _ => Ending::Passed,
        }
    }
}

/// In which chain a rule is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InsertPoint {
    /// In the base chain: the owner of the other chains may write them again.
    Base,
    /// In the chain with the rule that stops the packets, or before the rule by which they come to it
    /// if others come to it, too.
    Rule,
    /// In a chain that its owner leaves to others.
    Chain(&'static str),
}

/// A place in a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) chain: String,
    /// How many rules come before it.
    index: usize,
    /// The rule before which it is: its number, from 1, and its handle; `None`: at the end.
    pub(super) before: Option<(usize, u64)>,
}

impl Position {
    /// Returns the number of the rule before which it is; the end is after all of them.
    pub(super) fn number(&self) -> usize {
        self.before.map_or(usize::MAX, |(number, _)| number)
    }
}

/// What some trips meet in the base chain of a filter that stops them.
pub(super) struct StoppedTrips<'t> {
    scene: &'t Scene,
    stop: &'t FilterStop,
    /// The trips that end there, each with the other filters that stop it.
    trips: Vec<(Trip<'t>, Vec<Place>)>,
    /// Those that other rules of the base chain stop, above or below, or that come to the same rule
    /// another way: an administrator means them.
    others: Vec<(Trip<'t>, Vec<Place>)>,
}

/// What a trip meets in a base chain below the rule that stops it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Below {
    Nothing,
    /// Something stops it, too.
    Stops,
    /// Something may, such as a rule for some ports.
    MayStop,
}

impl Below {
    /// Says whether somebody drops it on purpose; not if nothing gets past what is below.
    fn is_meant(self, is_open: bool) -> bool {
        match self {
            Below::Nothing => false,
            Below::Stops => is_open,
            Below::MayStop => true,
        }
    }
}

/// What is asked of rules before they are printed.
#[derive(Clone, Copy)]
pub(in crate::rules) struct Effect<'e> {
    /// What comes of the packets that are to pass.
    pub(in crate::rules) ending: &'e dyn Fn(&[AddedRule]) -> Ending,
    /// Whether packets pass that are not to.
    pub(in crate::rules) opens: &'e dyn Fn(&[AddedRule]) -> bool,
}

impl<'t> StoppedTrips<'t> {
    pub(super) fn of(scene: &'t Scene, stop: &'t FilterStop, trips: &'t [Trip<'t>]) -> Self {
        let mut all = StoppedTrips { scene, stop, trips: Vec::new(), others: Vec::new() };
        let is_of_others =
            |trip: &Trip<'_>| matches!(trip, Trip::Outside { .. } | Trip::Published { .. });
        for trip in trips.iter().copied() {
            let (is_it, is_here, elsewhere) = all.met(&trip);
            if is_it {
                all.trips.push((trip, elsewhere));
            } else if is_here && is_of_others(&trip) {
                all.others.push((trip, elsewhere));
            }
        }
        let is_open = all.keep_below();
        for trip in trips.first().map(by_others).into_iter().flatten() {
            let (is_it, is_here, elsewhere) = all.met(&trip);
            if is_here && (!is_it || all.below(&trip, &elsewhere).is_meant(is_open)) {
                all.others.push((trip, elsewhere));
            }
        }
        all.trips.truncate(TRIPS);
        all.others.truncate(TRIPS);
        all
    }

    /// Returns whether a trip ends at the place, or elsewhere in the base chain, and the filters
    /// besides that stop it.
    fn met(&self, trip: &Trip<'_>) -> (bool, bool, Vec<Place>) {
        let stop = self.stop;
        let stops = caught(self.scene, trip);
        let is_it = |one: &FilterStop| {
            one.is_at(stop) && one.back == stop.back && one.further == stop.further
        };
        let is_here = stops.iter().any(|one| one.may_hide(stop));
        let elsewhere = stops.iter().filter(|one| !one.may_hide(stop));
        let elsewhere = elsewhere.map(|one| one.place.clone()).collect();
        (stops.iter().any(is_it), is_here, elsewhere)
    }

    /// Sorts out the trips that a rule below stops as well. What stops all of them there is no
    /// reason to keep them out. Returns whether some meet nothing there.
    fn keep_below(&mut self) -> bool {
        let trips = std::mem::take(&mut self.trips);
        let below: Vec<Below> =
            trips.iter().map(|(trip, elsewhere)| self.below(trip, elsewhere)).collect();
        let is_open = below.contains(&Below::Nothing);
        for (trip, below) in trips.into_iter().zip(below) {
            match below.is_meant(is_open) {
                true => self.others.push(trip),
                false => self.trips.push(trip),
            }
        }
        is_open
    }

    fn below(&self, trip: &Trip<'_>, elsewhere: &[Place]) -> Below {
        let place = &self.stop.place;
        let site = FilterSite::of(self.scene, None).filter(|_| self.stop.inside.is_none());
        let Some(site) = site.filter(|_| place.rule.is_some()) else { return Below::Nothing };
        let ignored = [site.own(place)];
        let followed = |without: &[Place]| {
            let change = Change { without, ignored: &ignored, ..Change::default() };
            match follow_changed(self.scene, trip, change) {
                Outcome::Passes(_) => Ending::Passed,
                Outcome::Stopped(stop) => self.stopped(*stop),
                Outcome::Unknown => Ending::Unsure,
            }
        };
        match followed(elsewhere) {
            Ending::Passed => Below::Nothing,
            Ending::Stopped { .. } => Below::Stops,
            Ending::Unsure => {
                let without = [elsewhere, std::slice::from_ref(place)].concat();
                match followed(&without) {
                    Ending::Unsure => Below::Nothing,
                    _ => Below::MayStop,
                }
            }
        }
    }

    /// Says whether a trip to an address that the base chain stops elsewhere passes it with some rules
    /// more.
    pub(super) fn opens(&self, added: &[AddedRule]) -> bool {
        let mut others = self.others.iter();
        others.any(|(trip, without)| self.of_one(trip, without, added) == Ending::Passed)
    }

    /// Returns what comes of the trip that gets furthest with some rules more: what stops others is for
    /// their addresses alone.
    pub(super) fn ending(&self, added: &[AddedRule]) -> Ending {
        let mut best = Ending::Unsure;
        for (trip, without) in &self.trips {
            let one = self.of_one(trip, without, added);
            if one == Ending::Passed {
                return one;
            }
            best = match (&best, &one) {
                (Ending::Stopped { place: own, .. }, Ending::Stopped { place, .. })
                    if own.depth() < place.depth() =>
                {
                    one
                }
                (Ending::Unsure, _) => one,
                _ => best,
            };
        }
        best
    }

    fn of_one(&self, trip: &Trip<'_>, without: &[Place], added: &[AddedRule]) -> Ending {
        match follow_changed(self.scene, trip, Change { without, added, ..Change::default() }) {
            Outcome::Passes(_) => Ending::Passed,
            Outcome::Stopped(stop) => self.stopped(*stop),
            // What comes later may be so, whatever the rule does.
            Outcome::Unknown => {
                let without = [without, std::slice::from_ref(&self.stop.place)].concat();
                let change = Change { without: &without, ..Change::default() };
                match follow_changed(self.scene, trip, change) {
                    Outcome::Unknown => Ending::Passed,
                    _ => Ending::Unsure,
                }
            }
        }
    }

    fn stopped(&self, stop: Stop<'_>) -> Ending {
        let Stop { why, back, further, inside } = stop;
        let (StopCause::Filter { place, .. } | StopCause::Expires { place, .. }) = why else {
            return Ending::Passed;
        };
        match self.stop.place.is_of_same_base(&place) && self.stop.inside.as_deref() == inside {
            true => Ending::Stopped { place, back, further },
            false => Ending::Passed,
        }
    }
}

/// Returns what a container sends the same way by other protocols than TCP.
fn by_others<'t>(trip: &Trip<'t>) -> Vec<Trip<'t>> {
    let Trip::Outside { from, to, with: Payload::Tcp { destination: port @ Port::Any, .. } } =
        *trip
    else {
        return Vec::new();
    };
    let all = [carries(Transport::Udp, port), echo(to)];
    all.map(|with| Trip::Outside { from, to, with }).to_vec()
}

/// The filter of a namespace into which rules come.
#[derive(Clone, Copy)]
pub(super) struct FilterSite<'f> {
    pub(super) namespace: &'f Namespace,
    /// The container's ID; `None`: the node.
    pub(super) inside: Option<&'f str>,
}

/// A rule and its place.
pub(super) type PlacedRule = (usize, Position);

impl<'f> FilterSite<'f> {
    /// Returns the namespace of a place; of a container, of which the ID is given.
    pub(super) fn of(scene: &'f Scene, inside: Option<&'f str>) -> Option<Self> {
        let namespace = match inside {
            Some(id) => scene.container(id)?.inside.as_ref()?,
            None => &scene.host,
        };
        Some(FilterSite { namespace, inside })
    }

    /// Returns the rules that let pass what is stopped in a base chain, by their numbers, each with
    /// its place. `None`: nothing shows that they do.
    pub(super) fn placed(
        &self,
        stopped: &Place,
        at: InsertPoint,
        rules: &[RuleMatch<'_>],
        effect: Effect<'_>,
    ) -> Option<Vec<PlacedRule>> {
        let Effect { ending, opens } = effect;
        let mut placed: Vec<PlacedRule> = Vec::new();
        let mut added: Vec<AddedRule> = Vec::new();
        let mut is = ending(&[]);
        let mut place = stopped.clone();
        while is != Ending::Passed {
            if let Ending::Stopped { place: next, .. } = &is {
                place = next.clone();
            }
            let left = (0..rules.len()).filter(|one| placed.iter().all(|(own, _)| own != one));
            let mut found = left.filter_map(|one| {
                let rule = rules.get(one)?;
                let with = |new: &AddedRule| [&added[..], std::slice::from_ref(new)].concat();
                let helps = |new: &AddedRule| {
                    let new = ending(&with(new));
                    new != is && new != Ending::Unsure
                };
                let harms = |new: &AddedRule| opens(&with(new));
                Some((one, self.lowest(&place, at, rule, [&helps, &harms])?))
            });
            let (one, position) = found.next()?;
            added.push(self.added(&place, &position, rules.get(one)?));
            placed.push((one, position));
            is = ending(&added);
        }
        Some(placed)
    }

    /// Returns the lowest place at which a rule helps, and does no harm.
    fn lowest(
        &self,
        place: &Place,
        at: InsertPoint,
        rule: &RuleMatch<'_>,
        [helps, harms]: [&dyn Fn(&AddedRule) -> bool; 2],
    ) -> Option<Position> {
        self.chains(place, at).into_iter().find_map(|(chain, limit)| {
            let count = self.count(place, &chain)?;
            let position = |index: usize| self.position(place, &chain, index);
            let is_good = |index: usize| helps(&self.added(place, &position(index), rule));
            let found = position(last(limit.unwrap_or(count), is_good)?);
            (!harms(&self.added(place, &found, rule))).then_some(found)
        })
    }

    fn position(&self, place: &Place, chain: &str, index: usize) -> Position {
        let handles = self.chain(place, chain).map(|chain| chain.rules.get(index));
        let number = index.saturating_add(1);
        let before = match handles {
            Some(rule) => rule.map(|rule| (number, rule.handle)),
            None => self.count(place, chain).is_some_and(|all| index < all).then_some((number, 0)),
        };
        Position { chain: chain.to_owned(), index, before }
    }

    fn added(&self, place: &Place, position: &Position, rule: &RuleMatch<'_>) -> AddedRule {
        let Position { chain, index, .. } = position;
        let new = match place.legacy {
            true => NewRule::Text(format!("-A {chain} {} -j ACCEPT", rule.iptables())),
            false => {
                let accept = vec![Step::Verdict(Verdict::Accept)];
                let steps = [rule.steps(), accept].concat();
                NewRule::Steps(Rule { handle: 0, comment: None, steps })
            }
        };
        AddedRule {
            inside: self.inside.map(str::to_owned),
            family: place.family,
            table: place.table.clone(),
            chain: chain.clone(),
            index: *index,
            rule: new,
        }
    }

    /// Returns the chains into which a rule may go, the best first, each with the number of its rules
    /// of which the rest stops the packets; `None`: none of them does.
    fn chains(&self, place: &Place, at: InsertPoint) -> Vec<(String, Option<usize>)> {
        let before =
            |(chain, (number, _)): (String, (usize, u64))| (chain, Some(number.saturating_sub(1)));
        let mut frames: Vec<_> = frames(place).into_iter().map(before).collect();
        if frames.is_empty() {
            frames.push((place.base.clone(), None));
        }
        match at {
            InsertPoint::Base => frames,
            InsertPoint::Chain(name) => [vec![(name.to_owned(), None)], frames].concat(),
            // A rule in a chain that others use would let pass what they lead there.
            InsertPoint::Rule => {
                let own = self.own_frames(place).len().clamp(1, frames.len());
                frames.get_mut(..own).unwrap_or_default().reverse();
                frames
            }
        }
    }

    /// Returns the rules that led to a place, and that of the place itself, as far as one rule alone
    /// leads to each chain.
    fn own_frames(&self, place: &Place) -> Vec<(String, (usize, u64))> {
        let frames = frames(place).into_iter();
        frames
            .take_while(|(chain, _)| *chain == place.base || self.callers(place, chain) < 2)
            .collect()
    }

    /// Returns a place that stops no packets but those that come the same way: the rule itself, or
    /// the one that leads to a chain to which others lead, too.
    pub(super) fn own(&self, place: &Place) -> Place {
        let depth = self.own_frames(place).len().saturating_sub(1);
        match place.calls.get(depth) {
            Some(call) => Place {
                chain: call.chain.clone(),
                rule: Some(call.rule),
                says: call.says.clone(),
                calls: place.calls.iter().take(depth).cloned().collect(),
                ..place.clone()
            },
            None => place.clone(),
        }
    }

    /// How many rules, and elements of maps, lead to a chain.
    fn callers(&self, place: &Place, chain: &str) -> usize {
        if let Some(table) = self.legacy(place) {
            let is_call = |rule: &&String| {
                let mut words = rule.split_whitespace();
                words.any(|word| word == "-j" || word == "-g") && words.next() == Some(chain)
            };
            return table.rules.iter().filter(is_call).count();
        }
        let Some(table) = self.table(place) else { return 0 };
        let leads = |verdict: &Verdict| match verdict {
            Verdict::Jump(to) | Verdict::Goto(to) => to == chain,
            _ => false,
        };
        let steps = table.chains.iter().flat_map(|one| &one.rules).flat_map(|rule| &rule.steps);
        let by_rules = steps.filter(|step| matches!(step, Step::Verdict(one) if leads(one)));
        let elements = table.sets.iter().flat_map(|set| &set.elements);
        let by_maps = elements.filter(|element| element.verdict.as_ref().is_some_and(leads));
        by_rules.count().saturating_add(by_maps.count())
    }

    /// How many rules a chain has; `None`: there is no such chain.
    fn count(&self, place: &Place, chain: &str) -> Option<usize> {
        let Some(table) = self.legacy(place) else {
            return self.chain(place, chain).map(|chain| chain.rules.len());
        };
        let is_there = table.policies.iter().any(|(name, _)| name == chain)
            || table.chains.iter().any(|name| name == chain);
        let begins = format!("-A {chain} ");
        let count = table.rules.iter().filter(|rule| rule.starts_with(&begins)).count();
        (is_there || 0 < count).then_some(count)
    }

    fn table(&self, place: &Place) -> Option<&'f Table> {
        let is_it =
            |table: &&Table| table.name == place.table && table.family.as_str() == place.family;
        self.namespace.filter.tables.iter().filter(|_| !place.legacy).find(is_it)
    }

    fn chain(&self, place: &Place, name: &str) -> Option<&'f Chain> {
        self.table(place)?.chains.iter().find(|chain| chain.name == name)
    }

    fn legacy(&self, place: &Place) -> Option<&'f LegacyTable> {
        let is_it = |table: &&LegacyTable| {
            table.name == place.table && table.ipv4 == (place.family == "iptables")
        };
        self.namespace.filter.legacy.iter().filter(|_| place.legacy).find(is_it)
    }
}

/// Returns the chains on the way to a place, from the base chain on, each with the rule that the packet
/// took; a policy has none.
fn frames(place: &Place) -> Vec<(String, (usize, u64))> {
    let calls = place.calls.iter().map(|call| (call.chain.clone(), call.rule));
    calls.chain(place.rule.map(|rule| (place.chain.clone(), rule))).collect()
}

/// Returns the last number up to a limit of which a test holds; it holds of all before that, if of any.
fn last(limit: usize, holds: impl Fn(usize) -> bool) -> Option<usize> {
    if holds(limit) {
        return Some(limit);
    }
    if limit == 0 || !holds(0) {
        return None;
    }
    let (mut good, mut bad) = (0_usize, limit);
    while good.saturating_add(1) < bad {
        let middle = good.midpoint(bad);
        if holds(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Some(good)
}
