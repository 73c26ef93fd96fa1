//! Which peers are used: nothing that a used peer has belongs to this node, or to another used peer.
//!
//! Of two that want the same prefix, the older has it: who assigns prefixes does not assign one twice.
//! Addresses and hardware addresses are what a node says of itself. So whoever has worked with one
//! keeps it, and of two that are new the older has it; a peer that is only kept yields to one that its
//! source shows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::{Age, Cluster, HoldReason, Peer, RecordFault, Work};
use crate::backends::BackendId;
use crate::claims::{ClaimConflict, ClaimedPrefix};
use crate::node::Node;
use crate::reader::overlap;
use crate::refused::{Cause, Refusal};
use crate::settings::Source;
use net::IpFamily;

/// How often each peer is judged at most before whoever is older has everything, also what others
/// have worked with. What is found for one then changes it for younger ones only, so it ends.
const OFTEN: usize = 16;

/// What the peers that are judged were used with before, if they were.
struct FormerUse {
    used: BTreeMap<String, Option<Arc<Node>>>,
    /// Peers still to be judged until age alone counts.
    left: usize,
}

impl Cluster {
    /// Judges peers, the older before the younger.
    pub(super) fn judge(&mut self, touched: Vec<String>, work: &mut Work) {
        let mut queue: BTreeSet<Age> = BTreeSet::new();
        let mut freed = work.freed;
        let often = (touched.len() + self.contested.len() + 1).saturating_mul(OFTEN);
        let mut before = FormerUse { used: BTreeMap::new(), left: often };
        for name in touched {
            let Some(age) = self.age(&name) else { continue };
            let peer = self.peers.get_mut(&name).expect("it has an age");
            let used = peer.used.take();
            if let Some(used) = &used {
                self.claims.release(used);
                freed = true;
            }
            before.used.insert(name, used);
            queue.insert(age);
        }
        if freed {
            queue.extend(self.contested.iter().filter_map(|name| self.age(name)));
        }
        let mut earlier_prefixes: BTreeSet<Age> = BTreeSet::new();
        while let Some(age) = queue.pop_first() {
            let name = age.2.as_str();
            work.touch(&self.peers, name);
            let Some(peer) = self.peers.get_mut(name) else { continue };
            let Some(record) = peer.record.clone() else { continue };
            let used = peer.used.take();
            if let Some(used) = &used {
                self.claims.release(used);
            }
            before.used.entry(name.to_owned()).or_insert(used);
            self.contested.remove(name);
            before.left = before.left.saturating_sub(1);
            let verdict =
                self.against_own(&record).and_then(|()| self.against_peers(&record, &age, &before));
            let evicted = match verdict {
                Ok(evicted) => evicted,
                Err(refused) => {
                    let peer = self.peers.get_mut(name).expect("it has a record");
                    peer.refused = Some(Box::new(refused));
                    continue;
                }
            };
            for taken in evicted {
                let whose = taken.whose().clone();
                if let Some(prefix) = taken.earlier_prefix() {
                    self.claims.drop_prefix(prefix);
                    earlier_prefixes.extend(self.age(&whose));
                    freed = true;
                    continue;
                }
                work.touch(&self.peers, &whose);
                let peer = self.peers.get_mut(&*whose).expect("who claims is a peer");
                let used = peer.used.take();
                if let Some(used) = &used {
                    self.claims.release(used);
                    freed = true;
                }
                before.used.entry(whose.to_string()).or_insert(used);
                let younger = self.age(&whose).expect("who claims is a peer");
                // Other peers may wait for what it gives up besides.
                let waiting = self.contested.iter().filter_map(|name| self.age(name));
                queue.extend(waiting.filter(|waiting| younger < *waiting));
                queue.insert(younger);
            }
            self.claims.claim(&record);
            let keeps = !record.kept.is_empty();
            let peer = self.peers.get_mut(name).expect("it has a record");
            (peer.used, peer.refused) = (Some(record), None);
            if keeps {
                earlier_prefixes.insert(age);
            }
        }
        if freed {
            earlier_prefixes.extend(self.contested.iter().filter_map(|name| self.age(name)));
        }
        while let Some(age) = earlier_prefixes.pop_first() {
            earlier_prefixes.extend(self.judge_kept(&age, work));
        }
    }

    /// Gives a used peer those of its earlier prefixes that no other peer has; a younger peer that
    /// has one as an earlier prefix too loses it. Returns the peers that this may change.
    fn judge_kept(&mut self, age: &Age, work: &mut Work) -> Vec<Age> {
        let name = &age.2;
        work.touch(&self.peers, name);
        let Some(peer) = self.peers.get(name) else { return Vec::new() };
        let (Some(record), Some(used)) = (peer.record.clone(), peer.used.clone()) else {
            return Vec::new();
        };
        let (mut kept, mut evicted) = (Vec::new(), Vec::new());
        for prefix in record.kept.iter().copied() {
            let theirs: Vec<_> = self.claims.overlapping(prefix).cloned().collect();
            let has_it = |claim: &ClaimedPrefix| {
                claim.kept && claim.prefix == prefix && *claim.whose == **name
            };
            let yields = |claim: &ClaimedPrefix| {
                claim.kept && self.age(&claim.whose).is_some_and(|theirs| *age < theirs)
            };
            if theirs.iter().any(has_it) {
                kept.push(prefix);
            } else if self.may_be_kept(&record, prefix) && theirs.iter().all(yields) {
                for claim in theirs {
                    self.claims.drop_prefix(claim.prefix);
                    evicted.extend(self.age(&claim.whose));
                    // Other peers may wait for what else becomes free of it.
                    let waiting = self.contested.iter().filter_map(|name| self.age(name));
                    evicted.extend(waiting.filter(|waiting| age < waiting));
                }
                self.claims.claim_kept(name, prefix);
                kept.push(prefix);
            }
        }
        if kept.len() < record.kept.len() {
            self.contested.insert(name.clone());
        } else {
            self.contested.remove(name);
        }
        if used.kept != kept
            && let Some(peer) = self.peers.get_mut(name)
        {
            peer.used = Some(Arc::new(Node { kept, ..(*record).clone() }));
        }
        evicted
    }

    /// Reports whether an earlier prefix is the cluster's, and not this node's, and no node that is
    /// used has its address in it. Unless a person wrote it, it is no wider than those that the two
    /// nodes were given: a node must not have all that belongs to nobody yet.
    fn may_be_kept(&self, node: &Node, prefix: IpNet) -> bool {
        let own = &self.own.node;
        let mut given = node.prefixes.iter().chain(&own.prefixes);
        let is_as_wide = |given: &IpNet| {
            IpFamily::of_prefix(*given) == IpFamily::of_prefix(prefix)
                && given.prefix_len() <= prefix.prefix_len()
        };
        (self.settings.source == Source::File || given.any(is_as_wide))
            && self.settings.cluster_ranges.iter().any(|range| range.contains(&prefix))
            && self.settings.services_at(prefix).is_none()
            && !own.prefixes.iter().chain(&own.kept).any(|own| overlap(*own, prefix))
            && !own.underlay.iter().any(|address| prefix.contains(&address))
            && !self.claims.has_underlay_in(prefix)
    }

    /// Reports whether a peer surely stays used as it is, now that this node has changed.
    pub(super) fn is_used_still(&self, peer: &Peer) -> bool {
        let record = peer.record.as_ref().filter(|record| record.kept.is_empty());
        peer.used.is_some() && record.is_some_and(|record| self.against_own(record).is_ok())
    }

    fn age(&self, name: &str) -> Option<Age> {
        let peer = self.peers.get(name)?;
        // One that says nothing of itself may be another machine by now, with the same name.
        let is_starting = matches!(peer.unreadable.as_deref(), Some(RecordFault::Incomplete(_)));
        let only_kept = is_starting
            || matches!(peer.held, Some(HoldReason::Brake { .. } | HoldReason::Restored));
        let created = peer.record.as_ref().and_then(|record| record.created);
        Some((only_kept, created.unwrap_or(peer.first_seen), name.to_owned()))
    }

    /// Finds what in a record cannot be true because of what this node is, or because of its
    /// settings.
    fn against_own(&self, node: &Node) -> Result<(), Refusal> {
        let (settings, own) = (&self.settings, &self.own.node);
        let keys = settings.keys(node.dialect);
        let refused = |key: String, cause| Err(Refusal::new(&node.name, key, cause));
        for prefix in node.prefixes.iter().copied() {
            let family = IpFamily::of_prefix(prefix);
            if !settings.cluster_ranges.iter().any(|range| range.contains(&prefix)) {
                let ranges = settings.ranges_of(family);
                return refused(keys.prefixes(), Cause::OutsideRanges { prefix, family, ranges });
            }
            if let Some(range) = settings.services_at(prefix) {
                return refused(keys.prefixes(), Cause::OverlapsServices { prefix, range });
            }
            // An earlier prefix of this node yields: it is the peer's now.
            let mut owns = own.prefixes.iter().copied();
            if let Some(own) = owns.find(|own| overlap(*own, prefix)) {
                return refused(keys.prefixes(), Cause::OverlapsOwn { prefix, own });
            }
            // A range of pods may overlap the host's: an administrator has allowed it.
            if let Some(address) = own.underlay.iter().find(|own| prefix.contains(own)) {
                return refused(keys.prefixes(), Cause::HasOwnAddress { prefix, address });
            }
        }
        for address in node.underlay.iter() {
            let key = || keys.underlay(IpFamily::of(address));
            if own.underlay.iter().any(|own| own == address) {
                return refused(key(), Cause::OwnAddress { address });
            }
            let mut owns = own.prefixes.iter().chain(&own.kept).copied();
            if let Some(own) = owns.find(has(address)) {
                return refused(key(), Cause::InsideOwn { address, own });
            }
            let prefixes = node.prefixes.iter().copied();
            let range = match settings.allow_overlap {
                true => prefixes.chain(settings.space_ranges.iter().copied()).find(has(address)),
                false => settings.ranges().find(has(address)),
            };
            if let Some(range) = range {
                return refused(key(), Cause::InsideRange { address, range });
            }
        }
        for (id, over, mac) in node.macs_over() {
            if own.macs().any(|own| own == mac) {
                return refused(id.backend().mac_key(&keys, over), Cause::OwnMac { mac });
            }
        }
        let judge = |id: &BackendId| id.backend().judge(own, node, &keys);
        match BackendId::ALL.iter().try_for_each(judge) {
            Err((key, cause)) => refused(key, cause),
            Ok(()) => Ok(()),
        }
    }

    /// Reports whether another peer keeps what a peer wants too.
    fn keeps(&self, taken: &ClaimConflict, node: &Node, age: &Age, before: &FormerUse) -> bool {
        if taken.earlier_prefix().is_some() {
            return false;
        }
        let Some(theirs) = self.age(taken.whose()) else { return false };
        let is_assigned = matches!(taken, ClaimConflict::Prefix { .. });
        if is_assigned || theirs.0 != age.0 || before.left == 0 {
            return theirs < *age;
        }
        let used = |name: &str| match before.used.get(name) {
            Some(used) => used.as_deref(),
            None => self.peers.get(name).and_then(Peer::used),
        };
        let worked = |name: &str| used(name).is_some_and(|used| taken.is_of(used));
        match (worked(taken.whose()), worked(&node.name)) {
            (true, false) => true,
            (false, true) => false,
            _ => theirs < *age,
        }
    }

    /// Finds what in a record another peer keeps; returns what others give up.
    fn against_peers(
        &mut self,
        node: &Node,
        age: &Age,
        before: &FormerUse,
    ) -> Result<Vec<ClaimConflict>, Refusal> {
        let mut taken = self.claims.taken(node);
        if self.settings.allow_overlap {
            taken.extend(self.claims.crossed(node));
        }
        let kept = taken.iter().find(|taken| self.keeps(taken, node, age, before));
        let Some(kept) = kept else { return Ok(taken) };
        let keys = self.settings.keys(node.dialect);
        let peer = kept.whose().to_string();
        let since = self.peers.get(&peer).map_or(age.1, |peer| peer.first_seen);
        let (key, cause) = match kept {
            ClaimConflict::Prefix { prefix, theirs } => {
                let (prefix, theirs) = (*prefix, theirs.prefix);
                (keys.prefixes(), Cause::OverlapsPeer { prefix, theirs, peer, since })
            }
            ClaimConflict::Address { address, .. } => {
                let address = *address;
                let key = keys.underlay(IpFamily::of(address));
                (key, Cause::AddressOfPeer { address, peer, since })
            }
            ClaimConflict::Mac { mac, .. } => {
                let found = node.macs_over().filter(|(_, _, of)| of == mac).last();
                let key = found.map(|(id, over, _)| id.backend().mac_key(&keys, over));
                (key.unwrap_or_default(), Cause::MacOfPeer { mac: *mac, peer, since })
            }
            ClaimConflict::Inside { address, theirs } => {
                let (address, theirs) = (*address, theirs.prefix);
                let key = keys.underlay(IpFamily::of(address));
                (key, Cause::InsidePeer { address, theirs, peer, since })
            }
            ClaimConflict::Has { prefix, address, .. } => {
                let (prefix, address) = (*prefix, *address);
                (keys.prefixes(), Cause::HasAddressOfPeer { prefix, address, peer, since })
            }
        };
        self.contested.insert(node.name.clone());
        Err(Refusal::new(&node.name, key, cause))
    }
}

impl ClaimConflict {
    /// Reports whether a node has its part in it: the value itself, or the prefix or the address of
    /// which one is in the other.
    fn is_of(&self, node: &Node) -> bool {
        let has_address = |address: &IpAddr| node.underlay.iter().any(|of| of == *address);
        match self {
            ClaimConflict::Prefix { .. } => false,
            ClaimConflict::Address { address, .. } => has_address(address),
            ClaimConflict::Mac { mac, .. } => node.macs().any(|of| of == *mac),
            ClaimConflict::Inside { address, theirs: ClaimedPrefix { prefix, .. } }
            | ClaimConflict::Has { prefix, address, .. } => {
                has_address(address) || node.prefixes.contains(prefix)
            }
        }
    }
}

/// Returns what asks whether a range has an address.
fn has(address: IpAddr) -> impl Fn(&IpNet) -> bool {
    move |range| range.contains(&address)
}
