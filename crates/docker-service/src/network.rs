//! Networks: creating and removing them, and recognising forgotten ones.

use std::time::Instant;

use cni::{Error, GcAttachment, code};
use cnm::network::{CreateNetwork, IpamData, NetworkName};
use ipnet::IpNet;

use super::create_options::{self, Shelf};
use super::driver::Driver;
use super::journal::{Network, short};
use super::pool_config;
use super::pools::LOCAL;
use super::sandbox::Engine;

/// The address space of Docker's own IPAM.
const DOCKERS: &str = "LocalDefault";
/// The ID to hold while a network is compared with all others and recorded; no network has this ID.
const ALL: &str = "networks";

impl Driver {
    pub(super) fn create_network(
        &self,
        asked: &CreateNetwork,
        engine: Option<Engine>,
    ) -> Result<(), Error> {
        let _held = self.hold(&asked.network_id)?;
        if let Some(there) = self.journal.network(&asked.network_id)? {
            if there.asked == *asked {
                // A repeated call: the answer was lost.
                return Ok(());
            }
            return Err(Error::new(
                code::INVALID_CONFIG,
                format!("network {} exists with other options", short(&asked.network_id)),
            ));
        }
        let shelf = Shelf { conf_dir: &self.conf_dir, runtime: &self.runtime };
        let mut network = create_options::plan(asked, shelf)?;
        let _all = self.hold(ALL)?;
        self.refuse_overlap(&network)?;
        // After that: a network that Docker has forgotten may have had the subnet or the name.
        create_options::refuse_host(&network.list()?)?;
        let _pools = self.hold_pools()?;
        network.holds = self.claim(&network, engine)?;
        self.journal.put_network(&network)
    }

    /// Refuses a network whose list we made if another network of ours has its name or overlaps
    /// with its subnet.
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
            // An engine gives none of its pools twice: it has forgotten the other network, or its
            // removal got lost. Another engine may have the other network, and containers on it.
            // For pools of our own the holds say which network has them, and they may overlap with
            // those of lists.
            let both_in = |space| in_space(network, space) && in_space(&other, space);
            let given_anew = overlap.is_some() && both_in(DOCKERS) && !self.may_be_in_use(&other);
            let stale = self.is_forgotten(&other) || given_anew;
            if (named || overlap.is_some()) && stale {
                tracing::warn!(
                    network = short(&other.id),
                    "removing a network whose subnet Docker gave to another"
                );
                let _other = self.hold(&other.id)?;
                self.remove_network(&other)?;
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

    /// Says whether Docker has removed a network without a call to us: its pools are ours and were
    /// released. For networks of older drivers we only know which pools exist.
    pub(super) fn is_forgotten(&self, network: &Network) -> bool {
        if network.released || network.holds.is_some() {
            return network.released;
        }
        // A pool that cannot be read may be there.
        let Ok(pools) = self.journal.all_pools() else { return false };
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
        let mut first = None;
        for endpoint in self.endpoints_of(&network.id) {
            // Docker knows no endpoint of it, or it would not remove the network.
            let _endpoint = self.hold(&endpoint.id)?;
            first = first.or(self.remove_endpoint(&endpoint, Some(network)).err());
        }
        if let Some(error) = first {
            return Err(error);
        }
        if network.made {
            let list = network.list()?;
            let deadline = Instant::now() + self.timeout;
            let collected = self.attached_by_others(&list.name).and_then(|others| {
                let collected = self.runtime.gc_list(&list, Some(&others), Some(deadline));
                collected.map_err(|error| error.to_cni())
            });
            if let Err(error) = collected {
                tracing::warn!(%error, network = %list.name, "a part of a network was not collected");
            }
            pool_config::forget_addresses(&list);
        }
        self.forget_network(network)
    }

    /// Lists the attachments of other runtimes to a network of this name: a list of that name may
    /// have come to the node since Docker's network was made.
    fn attached_by_others(&self, name: &str) -> Result<Vec<GcAttachment>, Error> {
        let roots = self.roots.for_one_call();
        let everything = self.runtime.everything_at_paths(&roots);
        let everything = everything.map_err(|error| error.to_cni())?;
        if let Some(unread) = roots.unread() {
            let text = format!("read {}: {}", unread.path.display(), unread.reason);
            return Err(Error::new(code::IO_FAILURE, text));
        }
        let others = everything
            .known
            .iter()
            .filter(|known| known.key.network.as_str() == name && !known.is_dockers(&self.roots));
        let attached = others.map(|known| GcAttachment {
            container_id: known.key.container_id.to_string(),
            ifname: known.key.ifname.to_string(),
        });
        Ok(attached.collect())
    }
}

pub(super) fn pools_of(asked: &CreateNetwork) -> impl Iterator<Item = &IpamData> {
    asked.ipv4.iter().chain(&asked.ipv6)
}

fn in_space(network: &Network, space: &str) -> bool {
    pools_of(&network.asked).any(|data| data.address_space == space)
}

/// Returns the subnets that Docker gave a network.
pub(super) fn subnets(network: &Network) -> Vec<IpNet> {
    let pools = pools_of(&network.asked).filter_map(|data| data.pool.parse::<IpNet>().ok());
    pools.filter(|pool| pool.prefix_len() != 0).collect()
}
