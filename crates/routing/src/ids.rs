//! The numbers of nexthop objects.
//!
//! A number follows from the peer's name and the family, among 16 million from `0x4e000000`; if it
//! is taken, the next is used. A route that exists keeps its nexthop, so a daemon that starts
//! again, with or without its file, changes nothing.

use std::collections::{HashMap, HashSet};

use crate::object::{NEXTHOP_FIRST, NEXTHOPS};
use net::{IpFamily, PerFamily};

/// Which peer and family has which number.
///
/// A number follows from the peer's name and the family. If another one has it, the next free one
/// is taken. A route that is there already keeps its nexthop, so that a daemon that starts again
/// changes nothing.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    of: HashMap<String, PerFamily<Option<u32>>>,
    taken: HashSet<u32>,
}

impl Ids {
    /// Returns the number of a peer and family; a new one is `preferred`, if that is free, or one
    /// that `is_free`.
    pub(crate) fn of(
        &mut self,
        peer: &str,
        family: IpFamily,
        preferred: Option<u32>,
        is_free: impl Fn(u32) -> bool,
    ) -> u32 {
        if let Some(id) = self.of.get(peer).and_then(|ids| *ids.get(family)) {
            return id;
        }
        let ours = |id: &u32| is_ours(*id) && !self.taken.contains(id);
        let id = preferred.filter(ours).unwrap_or_else(|| {
            let start = hash(peer, family);
            let candidates = (0..NEXTHOPS).map(|step| NEXTHOP_FIRST + (start + step) % NEXTHOPS);
            let mut free = candidates.filter(|id| !self.taken.contains(id) && is_free(*id));
            free.next().expect("there are more numbers than peers")
        });
        self.taken.insert(id);
        *self.of.entry(peer.to_owned()).or_default().get_mut(family) = Some(id);
        id
    }

    /// Frees the numbers of a peer.
    pub(crate) fn release(&mut self, peer: &str) {
        let ids = self.of.remove(peer).unwrap_or_default();
        for id in ids.iter().filter_map(|(_, id)| *id) {
            self.taken.remove(&id);
        }
    }
}

/// Reports whether a number is of our range.
pub(crate) fn is_ours(id: u32) -> bool {
    id.checked_sub(NEXTHOP_FIRST).is_some_and(|number| number < NEXTHOPS)
}

/// Returns where the search for a number begins: by the peer's name (FNV-1a), with both families
/// beside each other.
fn hash(peer: &str, family: IpFamily) -> u32 {
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let hash = peer.bytes().fold(0x811c_9dc5, mix);
    let folded = hash ^ (hash >> 24);
    ((folded << 1) | u32::from(family == IpFamily::V6)) % NEXTHOPS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of a cluster differ in few letters. What is searched for costs the search.
    #[test]
    fn thousands_of_peers_begin_at_numbers_of_their_own() {
        for shape in ["node-", "n", "ip-10-0-3-", "a.very.long.name.of.a.machine-"] {
            let names: Vec<String> = (0..5000).map(|number| format!("{shape}{number}")).collect();
            let both = |name: &String| IpFamily::ALL.map(|family| hash(name, family));
            let numbers: Vec<[u32; 2]> = names.iter().map(both).collect();
            assert!(numbers.iter().all(|[v4, v6]| *v6 < NEXTHOPS && *v6 == v4 + 1));
            let different: HashSet<[u32; 2]> = numbers.into_iter().collect();
            assert!(names.len() - different.len() < 10, "{shape}: {}", different.len());
        }
    }
}
