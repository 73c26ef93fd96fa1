//! Networks and their pools: made by the first attachment, removed by the last.
//!
//! Everything here is done under the network's lock.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::{AddResult, Error, code};
use cni_plugin::{Call, codes};
use cnm::Nothing;
use cnm::ipam::{
    self, Address, AddressSpaces, ReleaseAddress, ReleasePool, RequestAddress, RequestPool,
};
use cnm::method::Method;
use cnm::network::{
    Capabilities, CreateNetwork, GwAllocCheck, GwAllocChecked, IpamData, NetworkName,
};
use cnm::options::{ENABLE_IPV4, ENABLE_IPV6, GENERIC, INTERNAL};
use ipnet::IpNet;
use serde_json::{Map, Value, json};
use state::{Index, Lock};

use super::config::{Config, Subnet, Wanted};
use super::driver::{AskError, Driver, Patience};
use super::journal::{Found, Journal, Network, Pool, network_id};
use crate::shared::shared_object::{LOCK_PATIENCE, file_error, lock_error};

/// The address space of networks whose driver gives the addresses, as Docker's IPAM `null` names it.
const NULL_SPACE: &str = "null";
/// That of networks whose addresses are a CNI plugin's.
const CNI_SPACE: &str = "cni";

/// Keeps others from making or removing the network meanwhile.
pub(super) fn lock(call: &Call<'_>) -> Result<Lock, Error> {
    let index = Index::new(call.roots());
    let object = format!("cnm {}", call.network());
    index.lock(&object, LOCK_PATIENCE).map_err(|error| lock_error(&error))
}

/// The drivers of a network.
#[derive(Debug)]
pub(super) struct Drivers<'p> {
    pub(super) network: Driver<'p>,
    pub(super) ipam: Option<Driver<'p>>,
}

impl<'p> Drivers<'p> {
    /// Finds those that a configuration names, and makes sure that they are there.
    pub(super) fn of(wanted: &Wanted, patience: &'p Patience) -> Result<Self, AskError> {
        let network = Driver::find(&wanted.driver, patience)?;
        network.activate("NetworkDriver")?;
        let ipam = wanted.ipam_driver.as_deref();
        let ipam = ipam.map(|name| Driver::find(name, patience)).transpose()?;
        if let Some(ipam) = &ipam {
            ipam.activate("IpamDriver")?;
        }
        Ok(Drivers { network, ipam })
    }
}

/// Makes the network unless it is there. `given` is what a CNI address plugin gave to the first attachment.
pub(super) fn ensure(
    call: &Call<'_>,
    journal: &Journal,
    config: &Config,
    drivers: &Drivers<'_>,
    patience: &Patience,
    given: Option<&AddResult>,
) -> Result<Network, Error> {
    match journal.network()? {
        Found::This(network) if network.made && network.wanted == config.network => {
            return tell_again(call, journal, network, drivers);
        }
        Found::This(network) => {
            let others = journal.endpoints()?;
            if network.made && others.iter().any(|one| one.attachment != *call.attachment()) {
                return Err(Error::new(
                    codes::CONFLICT,
                    format!("network {} was made with another configuration", call.network()),
                )
                .with_details("its driver cannot change it: remove its attachments first, or give the network another name"));
            }
            remove(call, journal, &network, patience)?;
        }
        Found::Damaged(words) => {
            call.warn(format_args!(
                "the record of the network is damaged, it is made anew: {words}"
            ));
        }
        Found::Nothing => {}
    }
    let known = |driver: &Driver<'_>| driver.known().clone();
    let ipam = drivers.ipam.as_ref().map(known);
    let name = call.network().as_str();
    let mut network = Network::new(name, known(&drivers.network), ipam, config.network.clone());
    journal.put_network(&network)?;
    match make(journal, &mut network, drivers, given) {
        Ok(()) => Ok(network),
        Err(error) => Err(match remove(call, journal, &network, patience) {
            Ok(()) => error,
            Err(undo) => error.with_details(format!("could not remove the network: {undo}")),
        }),
    }
}

fn make(
    journal: &Journal,
    network: &mut Network,
    drivers: &Drivers<'_>,
    given: Option<&AddResult>,
) -> Result<(), Error> {
    let asked = |error: AskError| error.to_cni();
    let driver = &drivers.network;
    let capabilities: Capabilities =
        driver.ask(Method::NetworkCapabilities, &Nothing {}).map_err(asked)?;
    let skip = if capabilities.gw_alloc_checker {
        let check = GwAllocCheck { options: options(&network.wanted, true) };
        driver.ask(Method::GwAllocCheck, &check).map_err(asked)?
    } else {
        GwAllocChecked::default()
    };
    match &drivers.ipam {
        Some(ipam) => {
            let is_global = capabilities.scope == "global";
            take_pools(journal, network, ipam, is_global, skip)?;
        }
        None => network.pools = pools_of_others(&network.wanted, given)?,
    }
    tell(driver, network).map_err(asked)?;
    network.made = true;
    network.boot_id = state::boot_id().map_err(|error| file_error(&error))?;
    journal.put_network(network)
}

fn tell(driver: &Driver<'_>, network: &Network) -> Result<(), AskError> {
    let data = |v6: bool| -> Vec<IpamData> {
        let pools = network.pools.iter().filter(|pool| pool.v6 == v6);
        let data = pools.map(|pool| IpamData {
            address_space: pool.address_space.clone(),
            pool: pool.subnet.clone(),
            gateway: pool.gateway.clone(),
            aux_addresses: pool.aux.clone(),
        });
        data.collect()
    };
    let question = CreateNetwork {
        network_id: network.id.clone(),
        options: options(&network.wanted, network.pools.iter().any(|pool| !pool.v6)),
        ipv4: data(false),
        ipv6: data(true),
    };
    driver.tell(Method::CreateNetwork, &question)
}

/// After a reboot a driver may have forgotten the network, which is for it to know: one that has not refuses, or makes
/// nothing.
fn tell_again(
    call: &Call<'_>,
    journal: &Journal,
    mut network: Network,
    drivers: &Drivers<'_>,
) -> Result<Network, Error> {
    let boot_id = state::boot_id().map_err(|error| file_error(&error))?;
    if network.boot_id == boot_id {
        return Ok(network);
    }
    if let Some(ipam) = drivers.ipam.as_ref().filter(|_| network.needs_replay) {
        replay(call, journal, &network, ipam)?;
    }
    match tell(&drivers.network, &network) {
        Ok(()) => {}
        Err(error) if error.is_refusal() => {
            call.warn(format_args!("the network is told again after a reboot: {error}"));
        }
        Err(error) => return Err(error.to_cni()),
    }
    network.boot_id = boot_id;
    journal.put_network(&network)?;
    Ok(network)
}

/// Takes the pools again, and what the network and its attachments have of them: who has ended with the boot will give
/// back what is written down.
fn replay(
    call: &Call<'_>,
    journal: &Journal,
    network: &Network,
    ipam: &Driver<'_>,
) -> Result<(), Error> {
    let endpoints = journal.endpoints()?;
    let told = |error: AskError| match error {
        error if error.is_refusal() => {
            call.warn(format_args!("a pool is taken again after a reboot: {error}"));
            Ok(())
        }
        error => Err(error.to_cni()),
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
                options: options.into_iter().collect(),
            };
            ipam.tell(Method::RequestAddress, &question).or_else(told)?;
        }
    }
    Ok(())
}

/// The options as Docker sends them.
fn options(wanted: &Wanted, ipv4: bool) -> cni::json::Object {
    let mut options = Map::new();
    options.insert(GENERIC.to_owned(), json!(wanted.options));
    options.insert(ENABLE_IPV4.to_owned(), json!(ipv4));
    options.insert(ENABLE_IPV6.to_owned(), json!(wanted.ipv6));
    if wanted.internal {
        options.insert(INTERNAL.to_owned(), json!(true));
    }
    let text = Value::Object(options).to_string();
    cni::json::Object::parse(text.as_bytes()).expect("an object was written")
}

/// The pools of a network whose addresses are no IPAM driver's.
fn pools_of_others(wanted: &Wanted, given: Option<&AddResult>) -> Result<Vec<Pool>, Error> {
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
    let of = |subnet: IpNet, gateway: Option<IpAddr>| -> Result<Pool, Error> {
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
        pool.aux =
            subnet.aux.iter().map(|(name, ip)| (name.clone(), with_length(*ip, whole))).collect();
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

fn take_pools(
    journal: &Journal,
    network: &mut Network,
    ipam: &Driver<'_>,
    is_global: bool,
    skip: GwAllocChecked,
) -> Result<(), Error> {
    let asked = |error: AskError| error.to_cni();
    let capabilities = match ipam.ask::<ipam::Capabilities>(Method::IpamCapabilities, &Nothing {}) {
        Err(error) if error.is_unsupported() => ipam::Capabilities::default(),
        answer => answer.map_err(asked)?,
    };
    network.needs_mac = capabilities.requires_mac_address;
    network.needs_replay = capabilities.requires_request_replay;
    let spaces: AddressSpaces =
        ipam.ask(Method::DefaultAddressSpaces, &Nothing {}).map_err(asked)?;
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
        let answer: ipam::Pool = ipam.ask(Method::RequestPool, &question).map_err(asked)?;
        let pool = &mut network.pools[position];
        pool.asking = false;
        pool.id.clone_from(&answer.pool_id);
        pool.subnet.clone_from(&answer.pool);
        // Before anything of the answer is judged: it must be given back.
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

fn question(pool: &Pool, wanted: &Wanted, subnet: &Subnet) -> RequestPool {
    RequestPool {
        address_space: pool.address_space.clone(),
        pool: subnet.subnet.map(|subnet| subnet.to_string()).unwrap_or_default(),
        sub_pool: subnet.range.map(|range| range.to_string()).unwrap_or_default(),
        options: wanted.ipam_options.clone(),
        v6: pool.v6,
    }
}

/// Takes an address for the network itself.
fn hold(
    journal: &Journal,
    network: &mut Network,
    position: usize,
    ipam: &Driver<'_>,
    wanted: Option<IpAddr>,
    options: BTreeMap<String, String>,
) -> Result<IpNet, Error> {
    let question = RequestAddress {
        pool_id: network.pools[position].id.clone(),
        address: wanted.map(|address| address.to_string()).unwrap_or_default(),
        options,
    };
    let answer: Address =
        ipam.ask(Method::RequestAddress, &question).map_err(|error| error.to_cni())?;
    let address = answered_subnet(ipam, Method::RequestAddress, &answer.address)?;
    network.pools[position].held.push(address.addr());
    journal.put_network(network)?;
    Ok(address)
}

/// Reads an address or a pool with its prefix length.
pub(super) fn answered_subnet(
    driver: &Driver<'_>,
    method: Method,
    text: &str,
) -> Result<IpNet, Error> {
    text.parse().map_err(|_| {
        content(driver, method, format!("{text:?} is no address with a prefix length"))
    })
}

/// The error for an answer that is no use.
pub(super) fn content(driver: &Driver<'_>, method: Method, reason: String) -> Error {
    AskError::Content { driver: driver.name().to_owned(), method, reason }.to_cni()
}

fn with_length(address: IpAddr, subnet: IpNet) -> String {
    format!("{address}/{}", subnet.prefix_len())
}

/// Removes the network if no attachment is left. The caller has forgotten its own.
pub(super) fn release(
    call: &Call<'_>,
    journal: &Journal,
    patience: &Patience,
) -> Result<(), Error> {
    if journal.has_endpoints()? {
        return Ok(());
    }
    match journal.network()? {
        Found::Nothing => Ok(()),
        Found::This(network) => remove(call, journal, &network, patience),
        Found::Damaged(words) => {
            call.warn(format_args!(
                "the record of the network is damaged, its pools are not given back: {words}"
            ));
            if let Ok(config) = Config::of_network(call)
                && let Ok(driver) = Driver::find(&config.network.driver, patience)
            {
                let network_id = network_id(call.network().as_str());
                let deleted = driver.tell(Method::DeleteNetwork, &NetworkName { network_id });
                if let Err(error) = deleted {
                    call.warn(error);
                }
            }
            journal.remove_network()
        }
    }
}

/// Removes the network: from its driver, then its pools. A driver that does not want to is not argued with: it stays written
/// down then, for the next attachment or the next time that the last one goes.
fn remove(
    call: &Call<'_>,
    journal: &Journal,
    network: &Network,
    patience: &Patience,
) -> Result<(), Error> {
    let asked = |error: AskError| error.to_cni();
    let driver = Driver::again(&network.driver, patience).map_err(asked)?;
    let name = NetworkName { network_id: network.id.clone() };
    if network.made {
        // Should the answer be lost, a refusal of what comes next time counts no more.
        let mut going = network.clone();
        going.made = false;
        journal.put_network(&going)?;
    }
    match driver.tell(Method::DeleteNetwork, &name) {
        Ok(()) => {}
        Err(error) if error.is_refusal() && network.made => {
            journal.put_network(network)?;
            call.warn(format_args!("the network stays: {error}"));
            return Ok(());
        }
        // It may never have heard of it.
        Err(error) if error.is_refusal() => {}
        Err(error) => return Err(error.to_cni()),
    }
    if let Some(known) = &network.ipam_driver {
        let ipam = Driver::again(known, patience).map_err(asked)?;
        for pool in &network.pools {
            give_back(call, &ipam, network, pool)?;
        }
    }
    journal.remove_network()
}

fn give_back(
    call: &Call<'_>,
    ipam: &Driver<'_>,
    network: &Network,
    pool: &Pool,
) -> Result<(), Error> {
    let mut pool_id = pool.id.clone();
    if pool.asking {
        let subnet = network
            .wanted
            .subnets
            .iter()
            .find(|one| one.subnet.is_some_and(|subnet| subnet.to_string() == pool.subnet));
        let Some(subnet) = subnet else {
            call.warn("the IPAM driver may have given a pool and its answer was lost: nobody can give it back");
            return Ok(());
        };
        // Asked again it gives the same, or says that it is taken, which tells as much.
        match ipam.ask::<ipam::Pool>(Method::RequestPool, &question(pool, &network.wanted, subnet))
        {
            Ok(answer) => pool_id = answer.pool_id,
            Err(error) if error.is_refusal() => {
                call.warn(format_args!("a pool whose answer was lost may stay: {error}"));
                return Ok(());
            }
            Err(error) => return Err(error.to_cni()),
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
        done => done.map_err(|error| error.to_cni()),
    }
}

/// Gives an address back. One that the driver does not know is given back already.
pub(super) fn release_address(
    call: &Call<'_>,
    ipam: &Driver<'_>,
    pool_id: &str,
    address: IpAddr,
) -> Result<(), Error> {
    let question = ReleaseAddress { pool_id: pool_id.to_owned(), address: address.to_string() };
    match ipam.tell(Method::ReleaseAddress, &question) {
        Err(error) if error.is_refusal() => {
            call.warn(error);
            Ok(())
        }
        done => done.map_err(|error| error.to_cni()),
    }
}

/// An answer that says which pool an address of a family comes from, in the order of the pools.
pub(super) fn pools_of_family(network: &Network, v6: bool) -> impl Iterator<Item = &Pool> {
    network.pools.iter().filter(move |pool| pool.v6 == v6 && !pool.asking)
}

/// The error for an address that no pool has.
pub(super) fn outside(address: IpAddr) -> Error {
    Error::new(
        code::INVALID_CONFIG,
        format!("\"ips\" of runtimeConfig: {address} is in no subnet of the network"),
    )
}
