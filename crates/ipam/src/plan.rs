//! Chooses the next addresses.
//!
//! [`plan`] decides for all range sets at once and changes nothing, so a request that cannot be met
//! completely leaves no trace. The order of addresses and of checks and the words of the errors are
//! the reference's.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::range::{RangeSet, RangeSets};
use crate::store::{Holder, Owner};

/// What planning reads from a store. Answers must not change while it runs.
pub trait Occupancy {
    /// Returns whether an address must not be assigned.
    fn is_taken(&self, address: IpAddr) -> bool;

    /// Returns the holder of a taken address, for the error message.
    fn holder(&self, address: IpAddr) -> Option<Holder>;

    /// Lists the addresses that an attachment holds, including those of its container in the old
    /// format.
    fn held_by(&self, owner: &Owner) -> Vec<IpAddr>;

    /// Returns the address that was last assigned from a range set.
    fn last_reserved(&self, set: usize) -> Option<IpAddr>;

    /// Counts the taken addresses in a range set. Called only if none is free.
    fn used(&self, set: &RangeSet) -> u128;

    /// Finds the first address of a range set's ring that is neither taken nor withheld.
    fn first_free(
        &self,
        set: &RangeSet,
        last: Option<IpAddr>,
        is_withheld: &dyn Fn(IpAddr) -> bool,
    ) -> Option<IpAddr> {
        let mut ring = set.ring(last).map(|(address, _)| address);
        ring.find(|address| !is_withheld(*address) && !self.is_taken(*address))
    }
}

/// An address chosen for an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// The range set, counted from 0.
    pub set: usize,
    /// The address with its subnet's prefix length.
    pub address: IpNet,
    /// The gateway of its range.
    pub gateway: IpAddr,
}

/// The reason why no addresses were chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A range set gives no address.
    #[error("failed to allocate for range {index}")]
    Set {
        /// The set, counted from 0.
        index: usize,
        /// The reason.
        source: SetError,
    },
    /// Requested addresses are in no range set, or are a second one in the same set.
    #[error("failed to allocate all requested IPs:{}", addresses.iter().fold(String::new(), |text, address| format!("{text} {address}")))]
    Unsatisfied {
        /// The addresses, in the order in which they were requested.
        addresses: Vec<IpAddr>,
    },
}

/// The reason why a range set gives no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// The requested address is a gateway.
    #[error("requested ip {address} is subnet's gateway")]
    Gateway {
        /// The address.
        address: IpAddr,
    },
    /// The requested address is taken.
    #[error("requested IP address {address} is not available in range set {set}")]
    Taken {
        /// The address.
        address: IpAddr,
        /// The set.
        set: RangeSet,
        /// Its holder.
        holder: Option<Holder>,
    },
    /// The attachment already has an address of this set.
    #[error("{address} has been allocated to {container_id}, duplicate allocation is not allowed")]
    Duplicate {
        /// The address it has.
        address: IpAddr,
        /// The container.
        container_id: String,
    },
    /// Every address is taken.
    #[error("no IP addresses available in range set: {set}")]
    Exhausted {
        /// The set.
        set: RangeSet,
        /// How many are taken.
        used: u128,
        /// How many could be assigned.
        capacity: u128,
    },
}

/// Chooses one address of each range set.
///
/// Each set takes the first of `requested` that lies in it; the same address may be requested more
/// than once. A set without a requested address continues after the address that it gave last.
///
/// # Errors
/// [`PlanError`], for the first set that gives none.
pub fn plan(
    sets: &RangeSets,
    requested: &[IpAddr],
    owner: &Owner,
    occupancy: &dyn Occupancy,
) -> Result<Vec<Assignment>, PlanError> {
    let mut pending: Vec<IpAddr> = Vec::with_capacity(requested.len());
    for address in requested.iter().map(IpAddr::to_canonical) {
        if !pending.contains(&address) {
            pending.push(address);
        }
    }
    let mut assignments = Vec::with_capacity(sets.sets().len());
    for (index, set) in sets.sets().iter().enumerate() {
        let wanted = pending.iter().position(|address| set.range_of(*address).is_some());
        let chosen = match wanted.map(|place| pending.remove(place)) {
            Some(address) => take_requested(sets, set, address, occupancy),
            None => take_next(sets, index, set, owner, occupancy),
        };
        let (address, prefix_len, gateway) =
            chosen.map_err(|source| PlanError::Set { index, source })?;
        let address = IpNet::new(address, prefix_len)
            .expect("the prefix length is that of a subnet of the same family");
        assignments.push(Assignment { set: index, address, gateway });
    }
    if !pending.is_empty() {
        return Err(PlanError::Unsatisfied { addresses: pending });
    }
    Ok(assignments)
}

/// An address, the prefix length of its subnet, and its gateway.
type Choice = (IpAddr, u8, IpAddr);

fn take_requested(
    sets: &RangeSets,
    set: &RangeSet,
    address: IpAddr,
    occupancy: &dyn Occupancy,
) -> Result<Choice, SetError> {
    let range = set.range_of(address).expect("the address was found in the set");
    if sets.is_gateway(address) {
        return Err(SetError::Gateway { address });
    }
    if occupancy.is_taken(address) {
        let holder = occupancy.holder(address);
        return Err(SetError::Taken { address, set: set.clone(), holder });
    }
    Ok((address, range.subnet().prefix_len(), range.gateway()))
}

fn take_next(
    sets: &RangeSets,
    index: usize,
    set: &RangeSet,
    owner: &Owner,
    occupancy: &dyn Occupancy,
) -> Result<Choice, SetError> {
    let held = occupancy.held_by(owner);
    if let Some(address) = held.into_iter().find(|address| set.range_of(*address).is_some()) {
        return Err(SetError::Duplicate { address, container_id: owner.container_id.clone() });
    }
    occupancy
        .first_free(set, occupancy.last_reserved(index), &|address| sets.is_gateway(address))
        .and_then(|address| {
            let range = set.range_of(address)?;
            Some((address, range.subnet().prefix_len(), range.gateway()))
        })
        .ok_or_else(|| SetError::Exhausted {
            set: set.clone(),
            used: occupancy.used(set),
            capacity: sets.capacity(set),
        })
}

#[cfg(test)]
mod tests;
