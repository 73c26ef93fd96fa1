//! Sorting and gathering in little code.
//!
//! The standard library's sorts are quick and large: 3 to 9 kB for each type that is sorted, or
//! collected into a `BTreeMap` or `BTreeSet`. What a node has of anything is a short list, and these
//! functions take a tenth of that. Where lists are long or speed counts, use the standard library's.
//!
//! ```
//! use std::collections::BTreeSet;
//!
//! let mut names = ["web", "db", "web"];
//! netwright_cni::order::sort(&mut names);
//! assert_eq!(names, ["db", "web", "web"]);
//! let once: BTreeSet<&str> = netwright_cni::order::gather(names);
//! assert_eq!(once.len(), 2);
//! ```

use std::cmp::Ordering;

/// Sorts items. Equal ones keep their order.
pub fn sort<T: Ord>(items: &mut [T]) {
    sort_by(items, T::cmp);
}

/// Sorts items by what a function says of each. Equal ones keep their order.
pub fn sort_by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    sort_by(items, |one, other| key(one).cmp(&key(other)));
}

/// Sorts items as a function compares them. Equal ones keep their order.
pub fn sort_by<T>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let mut places = places(items.len(), &|one, other| compare(&items[one], &items[other]));
    for at in 0..places.len() {
        while places[at] != at {
            let to = places[at];
            items.swap(at, to);
            places.swap(at, to);
        }
    }
}

/// Returns each item's place in the order. It is compiled once, for all types.
fn places(count: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|one, other| compare(*one, *other));
    let mut places = vec![0; count];
    for (place, item) in order.into_iter().enumerate() {
        places[item] = place;
    }
    places
}

/// Gathers items into a set, or pairs into a map, one after the other. Of pairs with the same key
/// the last counts.
pub fn gather<C: Default + Extend<T>, T>(items: impl IntoIterator<Item = T>) -> C {
    let mut all = C::default();
    all.extend(items);
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_order_is_the_standard_librarys(pairs in prop::collection::vec(any::<(u8, u8)>(), 0..99)) {
            let pairs: Vec<(u8, u8)> = pairs.into_iter().map(|(key, of)| (key % 9, of)).collect();
            let mut wanted = pairs.clone();
            wanted.sort_by_key(|pair| pair.0);
            let mut sorted = pairs.clone();
            sort_by_key(&mut sorted, |pair| pair.0);
            prop_assert_eq!(&sorted, &wanted);
            sort(&mut sorted);
            wanted.sort_unstable();
            prop_assert_eq!(&sorted, &wanted);
            let gathered: BTreeMap<u8, u8> = gather(pairs.clone());
            prop_assert_eq!(gathered, pairs.into_iter().collect::<BTreeMap<u8, u8>>());
        }
    }
}
