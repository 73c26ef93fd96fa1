//! Prefixes as elements of a set: the kernel refuses ranges that overlap.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

/// Prefixes, each with how often it was added.
///
/// Two prefixes are disjoint, or one contains the other. So the outermost ones are a set of the
/// same addresses without overlaps, and each is a prefix that the caller has added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    counts: BTreeMap<IpNet, u32>,
    outermost: BTreeSet<IpNet>,
}

/// What a change means for the outermost prefixes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// They are outermost now.
    pub(crate) came: Vec<IpNet>,
    /// They no longer are.
    pub(crate) gone: Vec<IpNet>,
}

impl Ranges {
    /// Adds a prefix, once more if it is there.
    pub(crate) fn add(&mut self, prefix: IpNet) -> Step {
        let prefix = prefix.trunc();
        let count = self.counts.entry(prefix).or_default();
        *count = count.saturating_add(1);
        if self.is_covered(prefix) {
            return Step::default();
        }
        let inside = self.outermost.range(prefix..).copied();
        let gone: Vec<IpNet> = inside.take_while(|inside| prefix.contains(inside)).collect();
        for inside in &gone {
            self.outermost.remove(inside);
        }
        self.outermost.insert(prefix);
        Step { came: vec![prefix], gone }
    }

    /// Removes a prefix once; a prefix that is not there is ignored.
    pub(crate) fn remove(&mut self, prefix: IpNet) -> Step {
        let prefix = prefix.trunc();
        let Some(count) = self.counts.get_mut(&prefix) else { return Step::default() };
        *count -= 1;
        if 0 < *count {
            return Step::default();
        }
        self.counts.remove(&prefix);
        if !self.outermost.remove(&prefix) {
            return Step::default();
        }
        let inside = self.counts.range(prefix..).map(|(inside, _)| *inside);
        let mut came: Vec<IpNet> = Vec::new();
        for inside in inside.take_while(|inside| prefix.contains(inside)) {
            // In this order a prefix comes after those that contain it.
            if !came.last().is_some_and(|last| last.contains(&inside)) {
                came.push(inside);
            }
        }
        self.outermost.extend(&came);
        Step { came, gone: vec![prefix] }
    }

    /// Lists the outermost prefixes.
    pub(crate) fn outermost(&self) -> impl Iterator<Item = IpNet> {
        self.outermost.iter().copied()
    }

    /// Says whether an outermost prefix contains this one, or is this one. Prefixes are in the order
    /// of their addresses, then of their lengths; between the two there is no other outermost one.
    fn is_covered(&self, prefix: IpNet) -> bool {
        let before = self.outermost.range(..=prefix).next_back();
        before.is_some_and(|before| before.contains(&prefix))
    }
}

impl FromIterator<IpNet> for Ranges {
    fn from_iter<T: IntoIterator<Item = IpNet>>(prefixes: T) -> Self {
        let mut ranges = Ranges::default();
        for prefix in prefixes {
            ranges.add(prefix);
        }
        ranges
    }
}

/// What several steps mean together.
#[derive(Debug)]
pub(crate) struct Net<T> {
    pub(crate) came: BTreeSet<T>,
    pub(crate) gone: BTreeSet<T>,
}

impl<T: Ord> Net<T> {
    pub(crate) fn new() -> Self {
        Net { came: BTreeSet::new(), gone: BTreeSet::new() }
    }

    pub(crate) fn come(&mut self, item: T) {
        if !self.gone.remove(&item) {
            self.came.insert(item);
        }
    }

    pub(crate) fn go(&mut self, item: T) {
        if !self.came.remove(&item) {
            self.gone.insert(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use ipnet::{Ipv4Net, Ipv6Net};
    use proptest::prelude::*;

    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_wider_prefix_takes_the_place_of_those_inside() {
        let mut ranges: Ranges =
            nets(&["10.0.1.0/24", "10.0.2.0/24", "10.9.0.0/16", "fd00::/64"]).into_iter().collect();
        let wide = "10.0.0.0/16".parse().unwrap();
        let (inside, wider) = (nets(&["10.0.1.0/24", "10.0.2.0/24"]), vec![wide]);
        assert_eq!(ranges.add(wide), Step { came: wider.clone(), gone: inside.clone() });
        assert_eq!(ranges.add("10.0.3.0/24".parse().unwrap()), Step::default());
        assert_eq!(ranges.remove("10.0.3.0/24".parse().unwrap()), Step::default());
        assert_eq!(ranges.remove(wide), Step { came: inside, gone: wider });
    }

    #[test]
    fn what_was_added_twice_stays_until_it_was_removed_twice() {
        let mut ranges = Ranges::default();
        // Bits behind the prefix do not make another prefix.
        assert_eq!(ranges.add("10.0.1.7/24".parse().unwrap()).came, nets(&["10.0.1.0/24"]));
        assert_eq!(ranges.add("10.0.1.0/24".parse().unwrap()), Step::default());
        assert_eq!(ranges.remove("10.0.1.0/24".parse().unwrap()), Step::default());
        assert_eq!(ranges.remove("10.0.1.0/24".parse().unwrap()).gone, nets(&["10.0.1.0/24"]));
        assert_eq!(ranges.remove("10.0.1.0/24".parse().unwrap()), Step::default());
    }

    /// Few addresses and all lengths, so that many nest, in both families.
    fn prefixes() -> impl Strategy<Value = IpNet> {
        let v4 = (0_u32..16, 26_u8..=32).prop_map(|(low, length)| {
            let address = Ipv4Addr::from(0x0a00_0000 | low << 2);
            IpNet::V4(Ipv4Net::new(address, length).unwrap().trunc())
        });
        let v6 = (0_u128..8, 124_u8..=128).prop_map(|(low, length)| {
            let address = Ipv6Addr::from(0xfd00_u128 << 112 | low);
            IpNet::V6(Ipv6Net::new(address, length).unwrap().trunc())
        });
        prop_oneof![v4, v6, Just("0.0.0.0/0".parse().unwrap()), Just("::/0".parse().unwrap())]
    }

    proptest! {
        /// For all additions and removals, in any order: the steps lead to the outermost of the
        /// prefixes that are there. Those do not overlap, and they hold the same addresses.
        #[test]
        fn steps_lead_to_the_outermost(acts in prop::collection::vec((prefixes(), any::<bool>()), 0..60)) {
            let (mut ranges, mut model) = (Ranges::default(), Vec::new());
            let mut elements = BTreeSet::new();
            for (prefix, adds) in acts {
                let step = if adds {
                    model.push(prefix);
                    ranges.add(prefix)
                } else {
                    if let Some(at) = model.iter().position(|known| *known == prefix) {
                        model.swap_remove(at);
                    }
                    ranges.remove(prefix)
                };
                for gone in step.gone {
                    prop_assert!(elements.remove(&gone), "{gone} was not there");
                }
                for came in step.came {
                    let overlaps = |other: &IpNet| other.contains(&came) || came.contains(other);
                    prop_assert!(!elements.iter().any(overlaps), "{came} overlaps");
                    elements.insert(came);
                }
                prop_assert_eq!(&ranges.outermost().collect::<BTreeSet<_>>(), &elements);
            }
            for prefix in &model {
                prop_assert!(elements.iter().any(|element| element.contains(prefix)), "{prefix}");
            }
            prop_assert!(elements.iter().all(|element| model.contains(element)));
        }

        #[test]
        fn a_net_change_is_the_difference(acts in prop::collection::vec((0_u8..6, any::<bool>()), 0..30)) {
            let before = BTreeSet::from([0_u8, 1, 2]);
            let (mut now, mut net) = (before.clone(), Net::new());
            for (item, comes) in acts {
                if comes && now.insert(item) {
                    net.come(item);
                } else if !comes && now.remove(&item) {
                    net.go(item);
                }
            }
            prop_assert_eq!(net.came, now.difference(&before).copied().collect());
            prop_assert_eq!(net.gone, before.difference(&now).copied().collect());
        }
    }
}
