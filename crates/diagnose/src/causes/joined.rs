//! Findings that have ID and object in common are one.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use crate::finding::Finding;

/// Joins findings that have ID and object in common. One may hit 10,000 containers.
pub(super) fn joined(findings: Vec<Finding>) -> Vec<Finding> {
    let mut groups: Vec<Vec<Finding>> = Vec::new();
    let mut places: HashMap<(&'static str, String), usize> = HashMap::new();
    for finding in findings {
        match places.entry((finding.id, finding.object.clone())) {
            Entry::Occupied(place) => groups[*place.get()].push(finding),
            Entry::Vacant(place) => {
                place.insert(groups.len());
                groups.push(vec![finding]);
            }
        }
    }
    groups.into_iter().filter_map(join).collect()
}

/// How many lines of evidence a finding has at most: the first of 200 containers says it all.
const SEEN: usize = 4;

/// Joins findings of one object, in their order.
fn join(mut group: Vec<Finding>) -> Option<Finding> {
    if group.len() < 2 {
        return group.pop();
    }
    let mut others = group.into_iter();
    let mut one = others.next()?;
    let mut hits = UniqueList::of(std::mem::take(&mut one.hits));
    let mut fix = UniqueList::of(std::mem::take(&mut one.fix));
    let mut advice = UniqueList::of(std::mem::take(&mut one.advice));
    let mut breaks = UniqueList::of(std::mem::take(&mut one.breaks));
    for other in others {
        one.severity = one.severity.min(other.severity);
        one.place = one.place.take().or(other.place);
        one.whose = one.whose.take().or(other.whose);
        for line in other.seen {
            if one.seen.len() < SEEN && !one.seen.contains(&line) {
                one.seen.push(line);
            }
        }
        hits.add(other.hits);
        fix.add(other.fix);
        advice.add(other.advice);
        breaks.add(other.breaks);
    }
    one.seen.truncate(SEEN);
    let (hits, fix, advice) = (hits.all, fix.all, advice.all);
    Some(Finding { hits, fix, advice, breaks: breaks.all, ..one })
}

/// What is there once, in the order in which it came.
struct UniqueList<T> {
    all: Vec<T>,
    known: HashSet<T>,
}

impl<T: Clone + Eq + Hash> UniqueList<T> {
    fn of(all: Vec<T>) -> Self {
        let known = all.iter().cloned().collect();
        UniqueList { all, known }
    }

    fn add(&mut self, more: Vec<T>) {
        for one in more {
            if self.known.insert(one.clone()) {
                self.all.push(one);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::WayKind;
    use net::IpFamily;

    /// As it was written down at first: each is compared with all before it.
    fn joined_one_by_one(findings: Vec<Finding>) -> Vec<Finding> {
        fn extend<T: PartialEq>(all: &mut Vec<T>, more: Vec<T>) {
            for one in more {
                if !all.contains(&one) {
                    all.push(one);
                }
            }
        }
        let mut all: Vec<Finding> = Vec::new();
        for other in findings {
            let same = all.iter_mut().find(|one| one.id == other.id && one.object == other.object);
            match same {
                None => all.push(other),
                Some(one) => {
                    one.severity = one.severity.min(other.severity);
                    one.place = one.place.take().or(other.place);
                    one.whose = one.whose.take().or(other.whose);
                    extend(&mut one.seen, other.seen);
                    one.seen.truncate(SEEN);
                    extend(&mut one.hits, other.hits);
                    extend(&mut one.fix, other.fix);
                    extend(&mut one.advice, other.advice);
                    extend(&mut one.breaks, other.breaks);
                }
            }
        }
        all
    }

    #[test]
    fn joining_keeps_order_and_whatever_is_different() {
        let finding = |number: usize| {
            let id = ["forward-dropped", "input-dropped"][number % 2];
            let says = format!("it is number {number}");
            let object = format!("rule {}", number % 5);
            let finding = match number % 3 {
                0 => Finding::warning(id, object, says),
                _ => Finding::error(id, object, says),
            };
            let finding = (0..number % 7).fold(finding, |one, line| {
                one.seen(format!("line {}", line + number % 11))
                    .fix(format!("ip link set up{line} up"))
            });
            let finding = match number % 4 {
                3 => finding.at(format!("place {number}")).of("somebody"),
                _ => finding,
            };
            let family = [None, Some(IpFamily::V4), Some(IpFamily::V6)][number % 3];
            // The first one of a group may have something twice.
            let id = format!("c{}", number % 13);
            finding.hits(id.clone()).hits(id).breaks(WayKind::Outside, family)
        };
        let all: Vec<Finding> = (0..200).map(finding).collect();
        assert_eq!(joined(all.clone()), joined_one_by_one(all));
    }

    /// If each were compared with all before it, this test would take very long.
    #[test]
    fn many_containers_are_joined() {
        const MANY: usize = 20_000;
        let of_all = |number: usize| {
            Finding::error("forward-dropped", "ip filter/FORWARD rule 1", "dropped")
                .hits(format!("container {number}"))
        };
        let of_one = |number: usize| {
            let object = format!("container {number}");
            Finding::error("loopback-down", object.clone(), "down").hits(object)
        };
        let all: Vec<Finding> = (0..MANY).map(of_all).chain((0..MANY).map(of_one)).collect();
        let found = joined(all);
        assert_eq!((found.len(), found[0].hits.len()), (MANY + 1, MANY));
    }
}
