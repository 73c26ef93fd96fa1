//! Networks: made, removed, and found to be forgotten.

use std::time::Instant;

use cni::{Error, GcAttachment, code};
use cnm::network::{CreateNetwork, IpamData, NetworkName};
use ipnet::IpNet;

use super::driver::Driver;
use super::giver;
use super::journal::{Network, short};
use super::pools::LOCAL;
use super::wish::{self, Shelf};

/// The address space of Docker's own IPAM.
const DOCKERS: &str = "LocalDefault";

impl Driver {
    pub(super) fn create_network(&self, asked: &CreateNetwork) -> Result<(), Error> {
        let _held = self.hold(&asked.network_id)?;
        if let Some(there) = self.journal.network(&asked.network_id)? {
            if there.asked == *asked {
                // Asked again: the answer was lost.
                return Ok(());
            }
            return Err(Error::new(
                code::INVALID_CONFIG,
                format!("network {} exists with other options", short(&asked.network_id)),
            ));
        }
        let shelf = Shelf { conf_dir: &self.conf_dir, runtime: &self.runtime };
        let network = wish::plan(asked, shelf)?;
        self.refuse_overlap(&network)?;
        self.journal.put_network(&network)
    }

    /// Refuses what another network of ours has: its name, and for networks that we make its subnet.
    fn refuse_overlap(&self, network: &Network) -> Result<(), Error> {
        if !network.made {
            return Ok(());
        }
        let name = network.list()?.name;
        let pools = subnets(network);
        for other in self.journal.networks() {
            let named = other.list().is_ok_and(|list| list.name == name);
            let taken = subnets(&other);
            let overlap = pools.iter().find_map(|one| {
                let other = taken.iter().find(|two| one.contains(*two) || two.contains(one))?;
                Some((one, other))
            });
            // No pool is given twice, by Docker or by us: it has forgotten the other network, or its removal got lost.
            let both_in = |space| in_space(network, space) && in_space(&other, space);
            let given_anew = overlap.is_some() && (both_in(DOCKERS) || both_in(LOCAL));
            let stale = self.is_forgotten(&other) || given_anew;
            if (named || overlap.is_some()) && stale {
                tracing::warn!(
                    network = short(&other.id),
                    "removing a network whose subnet Docker gave away"
                );
                let _other = self.hold(&other.id)?;
                self.remove_network_before(&other, &pools)?;
                continue;
            }
            let what = match (named, overlap) {
                (true, _) => format!("network {} is named {name:?} too", short(&other.id)),
                (false, Some((one, two))) => {
                    format!("subnet {one} overlaps {two} of network {}", short(&other.id))
                }
                (false, None) => continue,
            };
            return Err(Error::new(code::INVALID_CONFIG, what));
        }
        Ok(())
    }

    /// Whether Docker has removed a network and we were not told: its pools are ours and were given back.
    pub(super) fn is_forgotten(&self, network: &Network) -> bool {
        let pools = self.journal.pools();
        let ours = pools_of(&network.asked).filter(|data| data.address_space == LOCAL);
        let mut ours = ours.filter_map(|data| data.pool.parse::<IpNet>().ok());
        ours.any(|subnet| !pools.iter().any(|pool| pool.subnet == subnet))
    }

    pub(super) fn delete_network(&self, asked: &NetworkName) -> Result<(), Error> {
        let _held = self.hold(&asked.network_id)?;
        match self.journal.network(&asked.network_id) {
            Ok(Some(network)) => self.remove_network(&network),
            Ok(None) => Ok(()),
            Err(lost) => self.remove_lost_network(&asked.network_id, &lost),
        }
    }

    /// Removes a network with everything on it. The caller holds it.
    pub(super) fn remove_network(&self, network: &Network) -> Result<(), Error> {
        self.remove_network_before(network, &[])
    }

    /// The same, and leaves pools that are another's by now.
    fn remove_network_before(&self, network: &Network, heirs: &[IpNet]) -> Result<(), Error> {
        let mut first = None;
        for endpoint in self.endpoints_of(&network.id) {
            // Docker knows of none, or it would not remove the network.
            let _endpoint = self.hold(&endpoint.id)?;
            first = first.or(self.remove_endpoint(&endpoint, Some(network)).err());
        }
        if let Some(error) = first {
            return Err(error);
        }
        if network.made {
            let list = network.list()?;
            let deadline = Instant::now() + self.patience;
            let none: &[GcAttachment] = &[];
            if let Err(error) = self.runtime.gc_list(&list, Some(none), Some(deadline)) {
                tracing::warn!(%error, network = %list.name, "not everything of a network was collected");
            }
            giver::forget_addresses(&list);
        }
        self.journal.remove_network(&network.id)?;
        self.forget_pools(network, heirs)
    }

    /// Docker gives pools back before it removes the network: what is still there got lost.
    fn forget_pools(&self, network: &Network, heirs: &[IpNet]) -> Result<(), Error> {
        let others = self.journal.networks();
        let others: Vec<IpNet> =
            others.iter().flat_map(subnets).chain(heirs.iter().copied()).collect();
        let gone = pools_of(&network.asked).filter(|data| data.address_space == LOCAL);
        let gone: Vec<IpNet> = gone.filter_map(|data| data.pool.parse().ok()).collect();
        for pool in self.journal.pools() {
            if gone.contains(&pool.subnet) && !others.contains(&pool.subnet) {
                self.journal.remove_pool(&pool.id)?;
            }
        }
        Ok(())
    }
}

fn pools_of(asked: &CreateNetwork) -> impl Iterator<Item = &IpamData> {
    asked.ipv4.iter().chain(&asked.ipv6)
}

fn in_space(network: &Network, space: &str) -> bool {
    pools_of(&network.asked).any(|data| data.address_space == space)
}

/// The subnets Docker gave a network.
pub(super) fn subnets(network: &Network) -> Vec<IpNet> {
    let pools = pools_of(&network.asked).filter_map(|data| data.pool.parse::<IpNet>().ok());
    pools.filter(|pool| pool.prefix_len() != 0).collect()
}
