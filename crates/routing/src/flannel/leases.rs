//! All leases of a cluster, as etcd shows them: which is this node's, and which prefix it may take.
//!
//! As for flanneld, a lease is this node's if it has the node's address. What is chosen is what
//! flanneld chooses: the prefix that the node had before, else one of the first that are free.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

use super::config::{LeaseRange, address_of, number};
use super::lease;
use crate::cluster::NodeRecord;
use crate::reader::overlap;
use crate::settings::Settings;
use crate::time::Time;
use net::{IpFamily, PerFamily};

/// From how many of the first free prefixes one is drawn, as flanneld does.
const DRAWN_FROM: usize = 100;

/// Which prefixes nodes lease, for each family that has a network.
pub type Windows = PerFamily<Option<LeaseRange>>;

/// A lease as etcd has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The last part of its key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// etcd's revision at which it was created.
    pub created: u64,
    /// etcd's revision at which it was changed last.
    pub modified: u64,
    /// The number of the grant, which etcd itself calls a lease: the grant ends by itself, and the
    /// record goes with it. A record without a grant stays: a person has reserved the prefix.
    pub grant: Option<String>,
}

/// There is no room for another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no {family} prefix of length {} is free from {} to {}", leased.length, leased.first, leased.last)]
pub struct NoFreePrefix {
    /// The family.
    pub family: IpFamily,
    /// The prefixes that there are.
    pub leased: LeaseRange,
}

#[derive(Debug)]
struct KnownLease {
    lease: Lease,
    /// The prefixes of its key; none if that cannot be read.
    prefixes: Vec<IpNet>,
    /// The node's address (`PublicIP`), as far as it can be read.
    address: Option<IpAddr>,
}

impl KnownLease {
    fn new(lease: Lease) -> Self {
        let prefixes = lease::prefixes(&lease.key).unwrap_or_default();
        let address = lease::address(&lease.value);
        KnownLease { lease, prefixes, address }
    }

    fn is_of(&self, address: IpAddr) -> bool {
        self.address == Some(address)
    }
}

/// All leases there are.
#[derive(Debug, Default)]
pub struct Leases {
    all: BTreeMap<String, KnownLease>,
    revision: u64,
}

impl Leases {
    /// Takes a complete list, and etcd's revision at which it was so.
    pub fn list(&mut self, all: Vec<Lease>, revision: u64) {
        let known = all.into_iter().map(|lease| (lease.key.clone(), KnownLease::new(lease)));
        self.all = known.collect();
        self.revision = revision;
    }

    /// Takes a lease that is new, or has changed.
    pub fn put(&mut self, lease: Lease) {
        self.revision = self.revision.max(lease.modified);
        self.all.insert(lease.key.clone(), KnownLease::new(lease));
    }

    /// Takes that a lease was deleted, or has expired, at a revision.
    pub fn remove(&mut self, key: &str, revision: u64) {
        self.revision = self.revision.max(revision);
        self.all.remove(key);
    }

    /// Returns etcd's revision at which the leases were as they are here.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns a lease.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Lease> {
        self.all.get(key).map(|known| &known.lease)
    }

    /// Returns the prefixes of all leases.
    pub fn prefixes(&self) -> impl Iterator<Item = IpNet> {
        self.all.values().flat_map(|known| known.prefixes.iter().copied())
    }

    /// Returns the prefixes of a lease; none if its key cannot be read.
    #[must_use]
    pub fn prefixes_of(&self, key: &str) -> &[IpNet] {
        self.all.get(key).map_or(&[][..], |known| &known.prefixes[..])
    }

    /// Returns the node of a lease.
    #[must_use]
    pub fn seen(&self, key: &str, settings: &Settings) -> Option<NodeRecord> {
        let (lease, of_flannel) = (self.get(key)?, settings.flannel.as_ref()?);
        let mut seen = lease::read(key, &lease.value, of_flannel, settings);
        if let Ok(node) = &mut seen.node {
            // This is not a time, but an order, and the same on every node: of two nodes that want
            // the same, the older has it.
            node.created = Some(Time(lease.created));
        }
        Some(seen)
    }

    /// Returns the nodes of all leases but this node's.
    #[must_use]
    pub fn others(&self, own: Option<&str>, settings: &Settings) -> Vec<NodeRecord> {
        let others = self.all.keys().filter(|key| own != Some(key.as_str()));
        others.filter_map(|key| self.seen(key, settings)).collect()
    }

    /// Returns this node's lease: one that has its address and is of the cluster's prefixes. Of
    /// several, the one with the prefixes that the node had before, else one that a person has
    /// reserved.
    ///
    /// `held` is the lease as this node last held it, or created it unheard, and `written` are the
    /// values that this node has wanted there since. A lease with one of these values is this node's, even if the node's
    /// address is another now.
    #[must_use]
    pub fn own(
        &self,
        address: IpAddr,
        held: Option<&Lease>,
        written: &[Vec<u8>],
        before: &[IpNet],
        windows: &Windows,
    ) -> Option<&Lease> {
        let is_own = |known: &&KnownLease| known.is_of(address) && fit(&known.prefixes, windows);
        let owns = || self.all.values().filter(is_own);
        let found = owns()
            .find(|known| known.prefixes == before)
            .or_else(|| owns().find(|known| known.lease.grant.is_none()))
            .or_else(|| owns().next());
        let is_held = |known: &&KnownLease| {
            let value = &known.lease.value;
            (held.is_some_and(|held| held.value == *value) || written.contains(value))
                && fit(&known.prefixes, windows)
        };
        let held = || self.all.get(&held?.key).filter(is_held);
        found.or_else(held).map(|known| &known.lease)
    }

    /// Returns leases that have this node's address and are no longer of the cluster's prefixes:
    /// flanneld deletes them. A lease that a person has reserved stays.
    pub fn outdated(&self, address: IpAddr, windows: &Windows) -> impl Iterator<Item = &Lease> {
        let is_outdated = move |known: &&KnownLease| {
            known.is_of(address)
                && known.lease.grant.is_some()
                && !known.prefixes.is_empty()
                && !fit(&known.prefixes, windows)
        };
        self.all.values().filter(is_outdated).map(|known| &known.lease)
    }

    /// Returns leases that have this node's address, but those that a person has reserved.
    pub fn with_address(&self, address: IpAddr) -> impl Iterator<Item = &Lease> {
        let is_own = move |known: &&KnownLease| known.is_of(address) && known.lease.grant.is_some();
        self.all.values().filter(is_own).map(|known| &known.lease)
    }

    /// Chooses prefixes for this node: the first of `before` that are of the cluster's and free,
    /// else some that are free. `random` is any number.
    ///
    /// # Errors
    /// If none is free.
    pub fn choose<'a>(
        &self,
        before: impl IntoIterator<Item = &'a [IpNet]>,
        windows: &Windows,
        random: u64,
    ) -> Result<Vec<IpNet>, NoFreePrefix> {
        let is_free = |prefix: &IpNet| !self.prefixes().any(|taken| overlap(taken, *prefix));
        let may_have = |prefixes: &&[IpNet]| fit(prefixes, windows) && prefixes.iter().all(is_free);
        if let Some(prefixes) = before.into_iter().find(may_have) {
            return Ok(prefixes.to_vec());
        }
        let mut chosen = Vec::new();
        let mut random = random;
        for (family, leased) in windows.iter() {
            let Some(leased) = *leased else { continue };
            let free = self.free(family, leased);
            let count = u64::try_from(free.len()).unwrap_or(u64::MAX);
            let drawn = random.checked_rem(count).ok_or(NoFreePrefix { family, leased })?;
            random /= count;
            chosen.extend(usize::try_from(drawn).ok().and_then(|drawn| free.get(drawn)));
        }
        Ok(chosen)
    }

    /// Returns the first prefixes of a family that are free.
    fn free(&self, family: IpFamily, leased: LeaseRange) -> Vec<IpNet> {
        let of_family = self.prefixes().filter(|prefix| IpFamily::of_prefix(*prefix) == family);
        let mut taken: Vec<(u128, u128)> = of_family
            .map(|prefix| (number(prefix.network()), number(prefix.broadcast())))
            .collect();
        taken.sort_unstable();
        let mut taken = taken.into_iter().peekable();
        // The last address of the leases that begin before the end of the examined place.
        let mut taken_until: Option<u128> = None;
        let size = leased.size();
        let (mut at, last) = (number(leased.first), number(leased.last));
        let mut free = Vec::new();
        while at <= last && free.len() < DRAWN_FROM {
            let end = at + (size - 1);
            while let Some((_, stop)) = taken.next_if(|(start, _)| *start <= end) {
                taken_until = taken_until.max(Some(stop));
            }
            let steps = match taken_until.and_then(|stop| stop.checked_sub(at)) {
                // One lease may be as large as thousands of places.
                Some(rest) => rest / size + 1,
                None => {
                    free.extend(IpNet::new(address_of(at, family), leased.length));
                    1
                }
            };
            match steps.checked_mul(size).and_then(|step| at.checked_add(step)) {
                Some(next) => at = next,
                None => break,
            }
        }
        free
    }
}

/// Reports whether prefixes are what a node of this cluster has: one of each family, of those that
/// are leased.
fn fit(prefixes: &[IpNet], windows: &Windows) -> bool {
    windows.iter().all(|(family, leased)| {
        let mut of_family =
            prefixes.iter().filter(|prefix| IpFamily::of_prefix(**prefix) == family);
        match (leased, of_family.next(), of_family.next()) {
            (Some(leased), Some(prefix), None) => leased.has(*prefix),
            (None, None, None) => true,
            _ => false,
        }
    })
}
