//! What admitted peers have claimed: prefixes, addresses, hardware addresses. No two peers share
//! one.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::node::Node;
use net::MacAddr;

/// A claimed prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimedPrefix {
    pub(crate) prefix: IpNet,
    pub(crate) whose: Arc<str>,
    /// It is an earlier prefix of the peer, which yields to the prefixes of all other peers.
    pub(crate) kept: bool,
}

/// All claims. No two prefixes in it overlap.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    /// By the first address.
    prefixes: BTreeMap<IpAddr, ClaimedPrefix>,
    addresses: BTreeMap<IpAddr, Arc<str>>,
    macs: HashMap<MacAddr, Arc<str>>,
}

/// Something of a node that another one has claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClaimConflict {
    Prefix {
        prefix: IpNet,
        theirs: ClaimedPrefix,
    },
    Address {
        address: IpAddr,
        whose: Arc<str>,
    },
    Mac {
        mac: MacAddr,
        whose: Arc<str>,
    },
    /// The node's address is in a prefix of the other.
    Inside {
        address: IpAddr,
        theirs: ClaimedPrefix,
    },
    /// The node's prefix has an address of the other in it.
    Has {
        prefix: IpNet,
        address: IpAddr,
        whose: Arc<str>,
    },
}

impl ClaimConflict {
    pub(crate) fn whose(&self) -> &Arc<str> {
        match self {
            ClaimConflict::Prefix { theirs, .. } | ClaimConflict::Inside { theirs, .. } => {
                &theirs.whose
            }
            ClaimConflict::Address { whose, .. }
            | ClaimConflict::Mac { whose, .. }
            | ClaimConflict::Has { whose, .. } => whose,
        }
    }

    /// Returns the other's prefix, if it is an earlier one, which yields.
    pub(crate) fn earlier_prefix(&self) -> Option<IpNet> {
        match self {
            ClaimConflict::Prefix { theirs, .. } | ClaimConflict::Inside { theirs, .. } => {
                theirs.kept.then_some(theirs.prefix)
            }
            ClaimConflict::Address { .. }
            | ClaimConflict::Mac { .. }
            | ClaimConflict::Has { .. } => None,
        }
    }
}

impl Claims {
    /// Returns the claims that overlap a prefix.
    pub(crate) fn overlapping(&self, prefix: IpNet) -> impl Iterator<Item = &ClaimedPrefix> {
        let (first, last) = (prefix.network(), prefix.broadcast());
        let before = self.prefixes.range(..first).next_back().map(|(_, claim)| claim);
        let before = before.filter(move |claim| claim.prefix.contains(&first));
        before.into_iter().chain(self.prefixes.range(first..=last).map(|(_, claim)| claim))
    }

    /// Returns the claim that an address is in.
    pub(crate) fn of_address(&self, address: IpAddr) -> Option<&ClaimedPrefix> {
        self.overlapping(IpNet::from(address)).next()
    }

    /// Returns the peer that has an underlay address.
    pub(crate) fn of_underlay(&self, address: IpAddr) -> Option<&str> {
        self.addresses.get(&address).map(|whose| &**whose)
    }

    /// Reports whether a peer has an underlay address in a prefix.
    pub(crate) fn has_underlay_in(&self, prefix: IpNet) -> bool {
        self.addresses.range(prefix.network()..=prefix.broadcast()).next().is_some()
    }

    /// Returns what other peers have claimed of what a node says it has, its earlier prefixes
    /// aside.
    pub(crate) fn taken(&self, node: &Node) -> Vec<ClaimConflict> {
        let others = |whose: &Arc<str>| **whose != *node.name;
        let mut taken = Vec::new();
        for prefix in node.prefixes.iter().copied() {
            let theirs = self.overlapping(prefix).filter(|claim| others(&claim.whose));
            taken.extend(
                theirs.map(|theirs| ClaimConflict::Prefix { prefix, theirs: theirs.clone() }),
            );
        }
        for address in node.underlay.iter() {
            let whose = self.addresses.get(&address).filter(|whose| others(whose)).cloned();
            taken.extend(whose.map(|whose| ClaimConflict::Address { address, whose }));
        }
        for mac in node.macs() {
            let whose = self.macs.get(&mac).filter(|whose| others(whose)).cloned();
            taken.extend(whose.map(|whose| ClaimConflict::Mac { mac, whose }));
        }
        taken
    }

    /// Returns which addresses of a node are in other peers' prefixes, and the reverse: packets to
    /// one of two such nodes would go to the other. Prefixes and addresses have ranges of their own
    /// unless an administrator has let them overlap.
    pub(crate) fn crossed(&self, node: &Node) -> Vec<ClaimConflict> {
        let others = |whose: &Arc<str>| **whose != *node.name;
        let mut crossed = Vec::new();
        for prefix in node.prefixes.iter().copied() {
            let there = self.addresses.range(prefix.network()..=prefix.broadcast());
            let theirs = there.filter(|(_, whose)| others(whose));
            crossed.extend(theirs.map(|(address, whose)| ClaimConflict::Has {
                prefix,
                address: *address,
                whose: whose.clone(),
            }));
        }
        for address in node.underlay.iter() {
            let theirs = self.of_address(address).filter(|claim| others(&claim.whose)).cloned();
            crossed.extend(theirs.map(|theirs| ClaimConflict::Inside { address, theirs }));
        }
        crossed
    }

    /// Claims what a node has, its earlier prefixes aside. No other peer has any of it.
    pub(crate) fn claim(&mut self, node: &Node) {
        let whose: Arc<str> = node.name.as_str().into();
        for prefix in node.prefixes.iter().copied() {
            let claim = ClaimedPrefix { prefix, whose: whose.clone(), kept: false };
            self.prefixes.insert(prefix.network(), claim);
        }
        for address in node.underlay.iter() {
            self.addresses.insert(address, whose.clone());
        }
        for mac in node.macs() {
            self.macs.insert(mac, whose.clone());
        }
    }

    /// Claims an earlier prefix of a node. No other peer has any of it.
    pub(crate) fn claim_kept(&mut self, name: &str, prefix: IpNet) {
        let claim = ClaimedPrefix { prefix, whose: name.into(), kept: true };
        self.prefixes.insert(prefix.network(), claim);
    }

    /// Drops one prefix.
    pub(crate) fn drop_prefix(&mut self, prefix: IpNet) {
        self.prefixes.remove(&prefix.network());
    }

    /// Drops what a node has claimed.
    pub(crate) fn release(&mut self, node: &Node) {
        let is_its = |whose: Option<&Arc<str>>| whose.is_some_and(|whose| **whose == *node.name);
        for prefix in node.prefixes.iter().chain(&node.kept) {
            let first = prefix.network();
            if is_its(self.prefixes.get(&first).map(|claim| &claim.whose)) {
                self.prefixes.remove(&first);
            }
        }
        for address in node.underlay.iter() {
            if is_its(self.addresses.get(&address)) {
                self.addresses.remove(&address);
            }
        }
        for mac in node.macs() {
            if is_its(self.macs.get(&mac)) {
                self.macs.remove(&mac);
            }
        }
    }
}
