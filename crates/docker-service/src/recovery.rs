//! Recovers what is known of lost records: the file and its copy are both damaged, or the file is
//! damaged and a reboot deleted the copy.
//!
//! A pool is rebuilt from its name and from what networks and endpoints record; an endpoint is
//! removed by what the runtime's cache says of it. A network is not rebuilt: Docker's options are
//! recorded nowhere else. It can be removed.

use std::net::IpAddr;
use std::time::Instant;

use cni::{ContainerId, Error};
use cni_plugin::codes;
use cnm::network::CreateEndpoint;
use ipnet::IpNet;

use super::driver::Driver;
use super::endpoint::alias;
use super::handover::{self, Holder};
use super::holds::{Hold, PoolId, SHARED};
use super::journal::{Endpoint, Journal, Pool, Use, short};

impl Journal {
    /// Writes the records of lost pools. Runs before any address is requested: an address given at
    /// that time is not yet in any network or endpoint.
    pub(super) fn write_lost_pools(&self) {
        for id in self.lost_pools() {
            if let Some(pool) = self.rebuilt_pool(&id)
                && let Err(error) = self.put_pool(&pool)
            {
                tracing::warn!(%error, "a record cannot be put back");
            }
        }
    }

    /// Works out what a pool's record must have held. Its range (`--ip-range`) is unknown then.
    pub(super) fn rebuilt_pool(&self, id: &str) -> Option<Pool> {
        let (conflist, subnet) = meaning(id)?;
        let mut pool = Pool { conflist, rebuilt: true, ..Pool::new(id.to_owned(), subnet) };
        for network in self.networks() {
            if network.is_on(&pool) {
                let ids = network.holds.iter().flatten().map(|text| PoolId::parse(text));
                let ours = ids.filter(|one| one.pool == pool.id).map(|one| one.hold);
                let shared = network.holds.is_none().then(|| SHARED.to_owned());
                let holds = ours.chain(shared).map(|name| (name, Hold::default()));
                pool.holds.extend(holds.collect::<Vec<_>>());
            }
            for data in network.asked.ipv4.iter().chain(&network.asked.ipv6) {
                if data.pool.parse() != Ok(subnet) {
                    continue;
                }
                if let Ok(gateway) = data.gateway.parse::<IpNet>() {
                    pool.gateway = Some(gateway.addr());
                    pool.taken.insert(gateway.addr(), Use::Gateway);
                }
                let further = data.aux_addresses.values().filter_map(|text| address(text));
                pool.taken.extend(further.map(|address| (address, Use::Any)));
            }
        }
        for endpoint in self.endpoints() {
            let asked = endpoint.asked.interface.iter();
            let asked = asked.flat_map(|one| [&one.address, &one.address_ipv6]);
            let asked = asked.filter_map(|text| address(text));
            let has = endpoint.layout.addresses.iter().map(IpNet::addr).chain(asked);
            let has = has.filter(|address| subnet.contains(address));
            pool.taken.extend(has.map(|address| (address, Use::Any)).collect::<Vec<_>>());
        }
        tracing::warn!(
            pool = id,
            addresses = pool.taken.len(),
            "the record of a pool is lost; its networks and endpoints say what it held"
        );
        Some(pool)
    }
}

impl Driver {
    /// Removes what the runtime's cache has of an endpoint whose own record, or whose network's
    /// record, is lost.
    pub(super) fn undo_from_cache(&self, endpoint: &Endpoint) -> Result<(), Error> {
        let container = ContainerId::new(&endpoint.id)?;
        let holder = Holder::of(self.run_dir(), endpoint);
        let deadline = Instant::now() + self.timeout;
        // Published ports first.
        for runtime in [&self.port_runtime, &self.runtime] {
            let listing = runtime.cached_attachments(Some(&container));
            let listing = listing.map_err(|error| Error::from_chain(codes::STATE, &error))?;
            for cached in listing.attachments {
                let ifname = cached.attachment.ifname.as_str();
                let back = handover::reclaim_link(&holder, ifname, endpoint, &alias(&cached.key()));
                if let Err(error) = back {
                    tracing::warn!(%error, "an interface was not moved back");
                }
                let deleted = runtime.del_cached(&cached, Some(deadline));
                deleted.map_err(|error| error.to_cni())?;
            }
        }
        Ok(())
    }

    /// Removes an endpoint whose record is lost. The caller holds it.
    pub(super) fn remove_lost_endpoint(&self, id: &str, lost: &Error) -> Result<(), Error> {
        tracing::warn!(endpoint = short(id), %lost, "removing an endpoint by what the runtime's cache says");
        self.remove_endpoint(&stub(id), None)
    }

    /// Removes a network whose record is lost, with its endpoints. The caller holds it.
    pub(super) fn remove_lost_network(&self, id: &str, lost: &Error) -> Result<(), Error> {
        tracing::warn!(network = short(id), %lost, "removing a network of which only its endpoints are known");
        for endpoint in self.endpoints_of(id) {
            let _endpoint = self.hold(&endpoint.id)?;
            self.remove_endpoint(&endpoint, None)?;
        }
        self.journal.remove_network(id)
    }

    /// Removes endpoints whose record is lost and which a reboot has ended: their containers are
    /// gone.
    pub(super) fn collect_lost(&self) {
        for id in self.journal.lost_endpoints() {
            let in_this_boot = Holder::of(self.run_dir(), &stub(&id)).path().exists();
            let Some(_held) = (!in_this_boot).then(|| self.try_hold(&id)).flatten() else {
                continue;
            };
            let Err(lost) = self.journal.endpoint(&id) else { continue };
            if let Err(error) = self.remove_lost_endpoint(&id, &lost) {
                tracing::warn!(endpoint = short(&id), %error, "not collected");
            }
        }
    }
}

/// Returns an endpoint of which only the ID is known.
fn stub(id: &str) -> Endpoint {
    Endpoint::new(CreateEndpoint { endpoint_id: id.to_owned(), ..CreateEndpoint::default() })
}

fn address(text: &str) -> Option<IpAddr> {
    text.parse::<IpNet>().map(|net| net.addr()).or_else(|_| text.parse()).ok()
}

/// Reads a pool's ID: the list whose addresses it has, and the subnet.
fn meaning(id: &str) -> Option<(Option<String>, IpNet)> {
    let subnet = |text: &str| -> Option<IpNet> {
        let (address, length) = text.rsplit_once('-')?;
        IpNet::new(address.parse().ok()?, length.parse().ok()?).ok()
    };
    if let Some(subnet) = subnet(id) {
        return Some((None, subnet));
    }
    let parts = id.match_indices('.').map(|(at, _)| (&id[..at], &id[at + 1..]));
    parts.filter_map(|(list, rest)| Some((Some(list.to_owned()), subnet(rest)?))).next()
}

#[cfg(test)]
mod tests {
    use super::meaning;

    #[test]
    fn a_pools_name_says_whose_it_is() {
        let told = |id: &str| {
            meaning(id).map(|(list, subnet)| format!("{} {subnet}", list.unwrap_or_default()))
        };
        assert_eq!(told("10.73.0.0-24").unwrap(), " 10.73.0.0/24");
        assert_eq!(told("fd6e:7769::-64").unwrap(), " fd6e:7769::/64");
        assert_eq!(told("lan.10.71.0.0-24").unwrap(), "lan 10.71.0.0/24");
        assert_eq!(told("lan.1.10.71.0.0-24").unwrap(), "lan.1 10.71.0.0/24");
        assert_eq!(told("my-lan.fd71::-64").unwrap(), "my-lan fd71::/64");
        assert_eq!(told("lan"), None);
    }
}
