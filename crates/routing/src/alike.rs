//! Which addresses the kernel treats alike: it is asked for the ways to few of them, and not to
//! each.
//!
//! The kernel finds the way to an address by the routes whose destination the address is in. Two
//! addresses that are in the same destinations of all tables have the same way, with any metrics,
//! links and rules, unless
//!
//! - a rule asks for the destination: a caller that lists the tables looks at the rules first;
//! - a route has several ways, and the address decides which of them a packet takes;
//! - the kernel has learnt something of the one address: a smaller MTU, another gateway.
//!
//! Such addresses are asked for one by one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use net::{IpFamily, PerFamily};

/// The destinations of all routes that the kernel may follow, and what it knows of single
/// addresses.
#[derive(Debug, Clone, Default)]
pub struct Destinations {
    /// Each with whether a route to it has several ways.
    all: HashMap<IpNet, bool>,
    /// Their lengths.
    lengths: PerFamily<BTreeSet<u8>>,
    alone: BTreeSet<IpAddr>,
}

impl Destinations {
    /// Takes the destination of a route. `shares`: the route has several ways, or may have.
    pub fn add(&mut self, destination: IpNet, shares: bool) {
        let destination = destination.trunc();
        let family = IpFamily::of_prefix(destination);
        self.lengths.get_mut(family).insert(destination.prefix_len());
        *self.all.entry(destination).or_default() |= shares;
    }

    /// Takes an address of which the kernel has learnt something.
    pub fn add_alone(&mut self, address: IpAddr) {
        self.alone.insert(address);
    }

    /// Puts addresses together that have the same way. Each is in one of the groups, and no group
    /// is empty.
    #[must_use]
    pub fn group(&self, addresses: impl IntoIterator<Item = IpAddr>) -> Vec<Vec<IpAddr>> {
        let mut groups: Vec<Vec<IpAddr>> = Vec::new();
        // The place of each group, by the innermost destination: the others around it follow from
        // that. `None`: the addresses in it are asked for one by one.
        let mut places: BTreeMap<(IpFamily, Option<IpNet>), Option<usize>> = BTreeMap::new();
        for address in addresses {
            let innermost = self.around(address).next().map(|(destination, _)| destination);
            let place = *places.entry((IpFamily::of(address), innermost)).or_insert_with(|| {
                let shares = self.around(address).any(|(_, shares)| shares);
                (!shares).then(|| {
                    groups.push(Vec::new());
                    groups.len() - 1
                })
            });
            match place.filter(|_| !self.alone.contains(&address)) {
                Some(place) => groups[place].push(address),
                None => groups.push(vec![address]),
            }
        }
        groups.retain(|group| !group.is_empty());
        groups
    }

    /// Returns the destinations that an address is in, the innermost first.
    fn around(&self, address: IpAddr) -> impl Iterator<Item = (IpNet, bool)> {
        let lengths = self.lengths.get(IpFamily::of(address)).iter().rev();
        lengths.filter_map(move |length| {
            let destination = IpNet::new(address, *length).ok()?.trunc();
            Some((destination, *self.all.get(&destination)?))
        })
    }
}
