//! The pools of a network: from an IPAM driver, from a CNI IPAM plugin, or from neither.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::order::gather;
use cni::{AddResult, code};
use cni_plugin::Call;
use cnm::Nothing;
use cnm::ipam::{
    self, Address, AddressSpaces, ReleaseAddress, ReleasePool, RequestAddress, RequestPool,
};
use cnm::method::Method;
use cnm::network::GwAllocAnswer;
use ipnet::IpNet;

use crate::shared::failure::Failure;

use super::config::{Subnet, WantedNetwork};
use super::driver::{AskError, Driver};
use super::journal::{Journal, Network, Pool};
use super::network::{answered_subnet, content};

/// The address space of networks whose driver assigns the addresses; Docker's IPAM `null` has this
/// name for it.
const NULL_SPACE: &str = "null";

/// The address space of networks whose addresses come from a CNI plugin.
const CNI_SPACE: &str = "cni";

/// Requests the pools again, and the addresses that the network and its attachments have from them.
/// Attachments that ended with the boot release what is recorded for them later.
pub(super) fn replay(
    call: &Call<'_>,
    journal: &Journal,
    network: &Network,
    ipam: &Driver<'_>,
) -> Result<(), Failure> {
    let endpoints = journal.endpoints()?;
    let told = |error: AskError| match error {
        error if error.is_refusal() => {
            call.warn(format_args!("a pool is taken again after a reboot: {error}"));
            Ok(())
        }
        error => Err(Failure::from(error)),
    };
    let wanted = network.wanted.clone();
    for pool in network.pools.iter().filter(|pool| !pool.asking) {
        let range = wanted
            .subnets
            .iter()
            .find(|one| one.subnet.is_some_and(|subnet| subnet.to_string() == pool.subnet));
        let range = range.and_then(|one| one.range);
        let question = RequestPool {
            address_space: pool.address_space.clone(),
            pool: pool.subnet.clone(),
            sub_pool: range.map(|range| range.to_string()).unwrap_or_default(),
            options: wanted.ipam_options.clone(),
            v6: pool.v6,
        };
        if let Err(error) = ipam.ask::<ipam::Pool>(Method::RequestPool, &question) {
            told(error)?;
        }
        let leases = endpoints.iter().flat_map(|endpoint| &endpoint.leases);
        let leases = leases.filter(|lease| lease.pool == pool.id);
        let leased: Vec<IpAddr> =
            leases.filter_map(|lease| lease.address).map(|address| address.addr()).collect();
        for address in pool.held.iter().chain(&leased) {
            let is_gateway = pool.gateway.split('/').next() == Some(address.to_string().as_str());
            let options =
                is_gateway.then(|| (ipam::ADDRESS_TYPE.to_owned(), ipam::GATEWAY.to_owned()));
            let question = RequestAddress {
                pool_id: pool.id.clone(),
                address: address.to_string(),
                options: gather(options),
            };
            ipam.tell(Method::RequestAddress, &question).or_else(told)?;
        }
    }
    Ok(())
}

/// Returns the pools of a network whose addresses do not come from an IPAM driver.
pub(super) fn pools_of_others(
    wanted: &WantedNetwork,
    given: Option<&AddResult>,
) -> Result<Vec<Pool>, Failure> {
    let Some(given) = given else {
        let any = |v6: bool, subnet: &str| Pool {
            v6,
            address_space: NULL_SPACE.to_owned(),
            subnet: subnet.to_owned(),
            ..Pool::default()
        };
        let v6 = wanted.ipv6.then(|| any(true, "::/0"));
        return Ok([any(false, "0.0.0.0/0")].into_iter().chain(v6).collect());
    };
    let of = |subnet: IpNet, gateway: Option<IpAddr>| -> Result<Pool, Failure> {
        Ok(Pool {
            v6: subnet.addr().is_ipv6(),
            address_space: CNI_SPACE.to_owned(),
            subnet: subnet.to_string(),
            gateway: gateway.map(|gateway| with_length(gateway, subnet)).unwrap_or_default(),
            ..Pool::default()
        })
    };
    let mut pools: Vec<Pool> = Vec::new();
    for subnet in &wanted.subnets {
        let whole = subnet.subnet.expect("what is configured names its subnet");
        let own = given.ips.iter().find(|ip| whole.contains(&ip.address.addr()));
        let mut pool = of(whole, subnet.gateway.or(own.and_then(|ip| ip.gateway)))?;
        let aux = subnet.aux.iter().map(|(name, ip)| (name.clone(), with_length(*ip, whole)));
        pool.aux = gather(aux);
        pools.push(pool);
    }
    if wanted.subnets.is_empty() {
        for ip in &given.ips {
            let pool = of(ip.address.trunc(), ip.gateway)?;
            if !pools.iter().any(|other| other.subnet == pool.subnet) {
                pools.push(pool);
            }
        }
    }
    Ok(pools)
}

/// Requests the pools from their driver, with the addresses that the network itself needs. Each is
/// recorded before the request, and again with the answer.
pub(super) fn take_pools(
    journal: &Journal,
    network: &mut Network,
    ipam: &Driver<'_>,
    is_global: bool,
    skip: GwAllocAnswer,
) -> Result<(), Failure> {
    let capabilities = match ipam.ask::<ipam::Capabilities>(Method::IpamCapabilities, &Nothing {}) {
        Err(error) if error.is_unsupported() => ipam::Capabilities::default(),
        answer => answer?,
    };
    network.needs_mac = capabilities.requires_mac_address;
    network.needs_replay = capabilities.requires_request_replay;
    let spaces: AddressSpaces = ipam.ask(Method::DefaultAddressSpaces, &Nothing {})?;
    let space = match is_global {
        true => spaces.global_default_address_space,
        false => spaces.local_default_address_space,
    };
    let any = |v6| Subnet { subnet: None, v6, range: None, gateway: None, aux: BTreeMap::new() };
    let mut wanted = network.wanted.subnets.clone();
    if wanted.is_empty() {
        wanted.push(any(false));
    }
    if network.wanted.ipv6 && !wanted.iter().any(|subnet| subnet.v6) {
        wanted.push(any(true));
    }
    for subnet in wanted {
        network.pools.push(Pool {
            asking: true,
            v6: subnet.v6,
            address_space: space.clone(),
            subnet: subnet.subnet.map(|subnet| subnet.to_string()).unwrap_or_default(),
            ..Pool::default()
        });
        journal.put_network(network)?;
        let position = network.pools.len() - 1;
        let question = question(&network.pools[position], &network.wanted, &subnet);
        let answer: ipam::Pool = ipam.ask(Method::RequestPool, &question)?;
        let pool = &mut network.pools[position];
        pool.asking = false;
        pool.id.clone_from(&answer.pool_id);
        pool.subnet.clone_from(&answer.pool);
        // Before the answer is checked: the pool must be released in any case.
        journal.put_network(network)?;
        let whole = answered_subnet(ipam, Method::RequestPool, &answer.pool)?;
        if whole.addr().is_ipv6() != subnet.v6 {
            let words = format!("pool {whole} is of the other family");
            return Err(content(ipam, Method::RequestPool, words));
        }
        let skip = if subnet.v6 { skip.skip_ipv6 } else { skip.skip_ipv4 };
        let from_data = answer.data.get(ipam::GATEWAY).filter(|text| !text.is_empty());
        if let (None, Some(text)) = (subnet.gateway, from_data) {
            network.pools[position].gateway.clone_from(text);
        } else if subnet.gateway.is_some() || !skip {
            let options = [(ipam::ADDRESS_TYPE.to_owned(), ipam::GATEWAY.to_owned())];
            let gateway = hold(journal, network, position, ipam, subnet.gateway, options.into())?;
            network.pools[position].gateway = gateway.to_string();
        }
        for (name, address) in &subnet.aux {
            let held = hold(journal, network, position, ipam, Some(*address), BTreeMap::new())?;
            network.pools[position].aux.insert(name.clone(), held.to_string());
        }
    }
    journal.put_network(network)
}

fn question(pool: &Pool, wanted: &WantedNetwork, subnet: &Subnet) -> RequestPool {
    RequestPool {
        address_space: pool.address_space.clone(),
        pool: subnet.subnet.map(|subnet| subnet.to_string()).unwrap_or_default(),
        sub_pool: subnet.range.map(|range| range.to_string()).unwrap_or_default(),
        options: wanted.ipam_options.clone(),
        v6: pool.v6,
    }
}

/// Requests an address for the network itself.
fn hold(
    journal: &Journal,
    network: &mut Network,
    position: usize,
    ipam: &Driver<'_>,
    wanted: Option<IpAddr>,
    options: BTreeMap<String, String>,
) -> Result<IpNet, Failure> {
    let question = RequestAddress {
        pool_id: network.pools[position].id.clone(),
        address: wanted.map(|address| address.to_string()).unwrap_or_default(),
        options,
    };
    let answer: Address = ipam.ask(Method::RequestAddress, &question)?;
    let address = answered_subnet(ipam, Method::RequestAddress, &answer.address)?;
    network.pools[position].held.push(address.addr());
    journal.put_network(network)?;
    Ok(address)
}

fn with_length(address: IpAddr, subnet: IpNet) -> String {
    format!("{address}/{}", subnet.prefix_len())
}

/// Releases a pool with the network's own addresses from it.
pub(super) fn give_back(
    call: &Call<'_>,
    ipam: &Driver<'_>,
    network: &Network,
    pool: &Pool,
) -> Result<(), Failure> {
    let mut pool_id = pool.id.clone();
    if pool.asking {
        let subnet = network
            .wanted
            .subnets
            .iter()
            .find(|one| one.subnet.is_some_and(|subnet| subnet.to_string() == pool.subnet));
        let Some(subnet) = subnet else {
            call.warn("the IPAM driver may have given a pool, but its answer was lost: the pool cannot be given back");
            return Ok(());
        };
        // A repeated request gets the same pool, or the answer that it is taken, which is as good.
        match ipam.ask::<ipam::Pool>(Method::RequestPool, &question(pool, &network.wanted, subnet))
        {
            Ok(answer) => pool_id = answer.pool_id,
            Err(error) if error.is_refusal() => {
                call.warn(format_args!("a pool whose answer was lost may stay: {error}"));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
    for address in &pool.held {
        release_address(call, ipam, &pool_id, *address)?;
    }
    match ipam.tell(Method::ReleasePool, &ReleasePool { pool_id }) {
        Err(error) if error.is_refusal() => {
            call.warn(error);
            Ok(())
        }
        done => Ok(done?),
    }
}

/// Releases an address. One that the driver does not know is already released.
pub(super) fn release_address(
    call: &Call<'_>,
    ipam: &Driver<'_>,
    pool_id: &str,
    address: IpAddr,
) -> Result<(), Failure> {
    let question = ReleaseAddress { pool_id: pool_id.to_owned(), address: address.to_string() };
    match ipam.tell(Method::ReleaseAddress, &question) {
        Err(error) if error.is_refusal() => {
            call.warn(error);
            Ok(())
        }
        done => Ok(done?),
    }
}

/// Returns the pools of a family, in their order.
pub(super) fn pools_of_family(network: &Network, v6: bool) -> impl Iterator<Item = &Pool> {
    network.pools.iter().filter(move |pool| pool.v6 == v6 && !pool.asking)
}

/// Returns the error for an address that is in no pool.
pub(super) fn outside(address: IpAddr) -> Failure {
    Failure::new(
        code::INVALID_CONFIG,
        format!("\"ips\" of runtimeConfig: {address} is in no subnet of the network"),
    )
}
