//! Planning against a model of the reference's allocator.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::range::{Range, RangeSpec};

#[derive(Debug, Default, Clone)]
struct Fake {
    holders: BTreeMap<IpAddr, Holder>,
    last: BTreeMap<usize, IpAddr>,
}

impl Fake {
    fn apply(&mut self, assignments: &[Assignment], owner: &Owner) {
        for assignment in assignments {
            let address = assignment.address.addr();
            let before = self.holders.insert(address, Holder::Attachment(owner.clone()));
            assert_eq!(before, None, "{address} was handed out twice");
            self.last.insert(assignment.set, address);
        }
    }
}

impl Occupancy for Fake {
    fn is_taken(&self, address: IpAddr) -> bool {
        self.holders.contains_key(&address)
    }
    fn holder(&self, address: IpAddr) -> Option<Holder> {
        self.holders.get(&address).cloned()
    }
    fn held_by(&self, owner: &Owner) -> Vec<IpAddr> {
        let all = self.holders.iter();
        all.filter(|(_, holder)| holder.is(owner) || holder.is_container_of(owner))
            .map(|(address, _)| *address)
            .collect()
    }
    fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        self.last.get(&set).copied()
    }
    fn used(&self, set: &RangeSet) -> u128 {
        let used = self.holders.keys().filter(|address| set.range_of(**address).is_some());
        used.count().try_into().unwrap()
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn subnets(sets: &[&[&str]]) -> RangeSets {
    let spec = |subnet: &&str| RangeSpec { subnet: subnet.parse().ok(), ..RangeSpec::default() };
    RangeSets::new(sets.iter().map(|set| set.iter().map(spec).collect()).collect()).unwrap()
}

fn owner(id: &str) -> Owner {
    Owner::new(id, "eth0")
}

fn outcome(result: Result<Vec<Assignment>, PlanError>) -> Result<Vec<String>, String> {
    result
        .map(|all| all.iter().map(|a| format!("{} via {}", a.address, a.gateway)).collect())
        .map_err(|error| cni::Error::from_chain(102, &error).msg)
}

#[test]
fn each_set_gives_one_address() {
    let sets = subnets(&[&["192.0.2.0/29"], &["2001:db8::/64"]]);
    let got = outcome(plan(&sets, &[], &owner("c1"), &Fake::default())).unwrap();
    assert_eq!(got, ["192.0.2.2/29 via 192.0.2.1", "2001:db8::2/64 via 2001:db8::1"]);
}

#[test]
fn requests_go_to_their_set_and_may_be_doubled() {
    let sets = subnets(&[&["192.0.2.0/29"], &["198.51.100.0/29"]]);
    let requested = [ip("198.51.100.5"), ip("::ffff:198.51.100.5")];
    let got = outcome(plan(&sets, &requested, &owner("c1"), &Fake::default())).unwrap();
    assert_eq!(got, ["192.0.2.2/29 via 192.0.2.1", "198.51.100.5/29 via 198.51.100.1"]);
}

#[test]
fn refusals_use_the_words_of_the_reference() {
    let sets = subnets(&[&["198.51.100.0/29"], &["192.0.2.0/30", "192.0.2.4/30"]]);
    let mut fake = Fake::default();
    fake.holders.insert(ip("192.0.2.2"), Holder::Attachment(owner("c1")));
    let ask = |fake: &Fake, requested: &[&str], id: &str| {
        let requested: Vec<IpAddr> = requested.iter().map(|text| ip(text)).collect();
        outcome(plan(&sets, &requested, &owner(id), fake)).unwrap_err()
    };
    let set = "192.0.2.1-192.0.2.2,192.0.2.5-192.0.2.6";
    assert_eq!(
        ask(&fake, &["192.0.2.1"], "c2"),
        "failed to allocate for range 1: requested ip 192.0.2.1 is subnet's gateway"
    );
    assert_eq!(
        ask(&fake, &["192.0.2.2"], "c1"),
        format!(
            "failed to allocate for range 1: requested IP address 192.0.2.2 is not available in range set {set}"
        )
    );
    assert_eq!(
        ask(&fake, &[], "c1"),
        "failed to allocate for range 1: 192.0.2.2 has been allocated to c1, duplicate allocation is not allowed"
    );
    assert_eq!(
        ask(&fake, &["198.51.100.4", "198.51.100.5", "203.0.113.7"], "c2"),
        "failed to allocate all requested IPs: 198.51.100.5 203.0.113.7"
    );
    fake.holders.insert(ip("192.0.2.6"), Holder::Unknown);
    assert_eq!(
        ask(&fake, &[], "c2"),
        format!("failed to allocate for range 1: no IP addresses available in range set: {set}")
    );
    let exhausted = plan(&sets, &[], &owner("c2"), &fake).unwrap_err();
    let PlanError::Set { source: SetError::Exhausted { used, capacity, .. }, .. } = exhausted
    else {
        panic!("{exhausted:?}");
    };
    assert_eq!((used, capacity), (2, 2));
}

#[test]
fn the_old_format_counts_as_a_duplicate() {
    let sets = subnets(&[&["192.0.2.0/29"]]);
    let mut fake = Fake::default();
    fake.holders.insert(ip("192.0.2.5"), Holder::Container("c1".into()));
    let error = outcome(plan(&sets, &[], &owner("c1"), &fake)).unwrap_err();
    assert!(error.contains("192.0.2.5 has been allocated to c1"), "{error}");
    // A second interface of a container with a known first one is no duplicate.
    fake.holders.insert(ip("192.0.2.5"), Holder::Attachment(Owner::new("c1", "eth1")));
    assert!(plan(&sets, &[], &owner("c1"), &fake).is_ok());
}

#[test]
fn a_huge_range_costs_as_many_steps_as_it_has_neighbours() {
    let sets = subnets(&[&["2001:db8::/32"]]);
    let mut fake = Fake::default();
    for index in 0..2000_u32 {
        let assignments = plan(&sets, &[], &owner(&format!("c{index}")), &fake).unwrap();
        fake.apply(&assignments, &owner(&format!("c{index}")));
        fake.last.clear();
    }
    assert!(fake.is_taken(ip("2001:db8::7d1")));
}

#[test]
fn no_gateway_of_any_range_is_handed_out() {
    let range = |start: &str, end: &str, gateway: &str| RangeSpec {
        subnet: "192.0.2.0/24".parse().ok(),
        range_start: start.parse().ok(),
        range_end: end.parse().ok(),
        gateway: gateway.parse().ok(),
    };
    let sets = RangeSets::new(vec![vec![
        range("192.0.2.2", "192.0.2.3", "192.0.2.1"),
        range("192.0.2.10", "192.0.2.11", "192.0.2.2"),
    ]])
    .unwrap();
    let got = outcome(plan(&sets, &[], &owner("c1"), &Fake::default())).unwrap();
    assert_eq!(got, ["192.0.2.3/24 via 192.0.2.1"]);
    let error = plan(&sets, &[ip("192.0.2.2")], &owner("c1"), &Fake::default()).unwrap_err();
    assert!(matches!(error, PlanError::Set { source: SetError::Gateway { .. }, .. }));
}

/// The reference's iterator (plugins v1.9.1, host-local/backend/allocator/allocator.go,
/// `RangeIter`), with the same steps.
struct ReferenceIterator<'a> {
    set: &'a [Range],
    index: usize,
    current: Option<IpAddr>,
    start: Option<IpAddr>,
}

impl<'a> ReferenceIterator<'a> {
    fn new(set: &'a [Range], last: Option<IpAddr>) -> Self {
        let position = last.and_then(|last| set.iter().position(|range| range.contains(last)));
        match position {
            Some(index) => ReferenceIterator { set, index, current: last, start: None },
            None => ReferenceIterator { set, index: 0, current: None, start: Some(set[0].start()) },
        }
    }
}

impl Iterator for ReferenceIterator<'_> {
    type Item = IpAddr;
    fn next(&mut self) -> Option<IpAddr> {
        let mut range = &self.set[self.index];
        let Some(current) = self.current else {
            self.current = Some(range.start());
            self.start = self.current;
            return if self.current == Some(range.gateway()) { self.next() } else { self.current };
        };
        let next = if current == range.end() {
            self.index = (self.index + 1) % self.set.len();
            range = &self.set[self.index];
            range.start()
        } else {
            match current {
                IpAddr::V4(address) => IpAddr::from((u32::from(address) + 1).to_be_bytes()),
                IpAddr::V6(address) => IpAddr::from((u128::from(address) + 1).to_be_bytes()),
            }
        };
        self.current = Some(next);
        match self.start {
            None => self.start = Some(next),
            Some(start) if start == next => return None,
            Some(_) => {}
        }
        if next == range.gateway() { self.next() } else { Some(next) }
    }
}

/// A set of ranges in subnets of their own, so that a gateway belongs to one range only.
fn any_set() -> impl Strategy<Value = RangeSets> {
    let range = (any::<bool>(), 1_u8..7, 0_u8..7, 0_u8..9);
    proptest::collection::vec(range, 1..4).prop_map(|ranges| {
        let specs = ranges.iter().enumerate().map(|(index, &(whole, start, length, gateway))| {
            let at = |host: u8| {
                Some(IpAddr::from([192, 0, 2, u8::try_from(index).unwrap() * 16 + host]))
            };
            RangeSpec {
                subnet: format!("192.0.2.{}/28", index * 16).parse().ok(),
                range_start: if whole { None } else { at(start) },
                range_end: if whole { None } else { at(start + length) },
                gateway: if gateway == 0 { None } else { at(gateway) },
            }
        });
        RangeSets::new(vec![specs.collect()]).unwrap()
    })
}

/// The events on a busy node.
#[derive(Debug, Clone)]
enum Act {
    Add(u8),
    Ask(u8, u8),
    Del(u8),
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0_u8..60).prop_map(Act::Add),
        1 => (0_u8..60, 0_u8..64).prop_map(|(id, host)| Act::Ask(id, host)),
        2 => (0_u8..60).prop_map(Act::Del),
    ]
}

proptest! {
    #[test]
    fn the_order_is_the_references(sets in any_set(), last in proptest::option::of(0_u8..64)) {
        let last = last.map(|host| IpAddr::from([192, 0, 2, host]));
        let set = &sets.sets()[0];
        let ours: Vec<IpAddr> = set
            .ring(last)
            .map(|(address, _)| address)
            .filter(|address| !sets.is_gateway(*address))
            .collect();
        let theirs: Vec<IpAddr> = ReferenceIterator::new(set.ranges(), last).take(200).collect();
        prop_assert_eq!(ours, theirs);
    }

    #[test]
    fn no_address_is_handed_out_twice_and_no_gateway_ever(
        sets in any_set(),
        acts in proptest::collection::vec(any_act(), 1..150),
    ) {
        let mut fake = Fake::default();
        for act in acts {
            let (id, requested) = match act {
                Act::Del(id) => {
                    let owner = owner(&id.to_string());
                    fake.holders.retain(|_, holder| !holder.is(&owner));
                    continue;
                }
                Act::Add(id) => (id, vec![]),
                Act::Ask(id, host) => (id, vec![IpAddr::from([192, 0, 2, host])]),
            };
            let owner = owner(&id.to_string());
            let before = fake.clone();
            match plan(&sets, &requested, &owner, &fake) {
                Ok(assignments) => {
                    // Panics when an address was taken.
                    fake.apply(&assignments, &owner);
                    for assignment in &assignments {
                        let address = assignment.address.addr();
                        prop_assert!(!sets.is_gateway(address));
                        let range = sets.sets()[assignment.set].range_of(address).unwrap();
                        prop_assert_eq!(assignment.gateway, range.gateway());
                        prop_assert_eq!(assignment.address.trunc(), range.subnet());
                    }
                }
                Err(PlanError::Set { source: SetError::Exhausted { used, capacity, .. }, .. }) => {
                    prop_assert_eq!(used, capacity);
                    let taken: BTreeSet<_> = before.holders.keys().collect();
                    let set = &sets.sets()[0];
                    prop_assert!(set.ring(None).all(|(address, _)|
                        sets.is_gateway(address) || taken.contains(&address)));
                }
                Err(_) => {}
            }
        }
    }
}
