//! Networks: the first attachment creates one, the last removes it.
//!
//! Everything here is done under the network's lock.

use cni::AddResult;
use cni_plugin::{Call, codes};
use cnm::Nothing;
use cnm::method::Method;
use cnm::network::{
    Capabilities, CreateNetwork, GwAllocAnswer, GwAllocCheck, IpamData, NetworkName,
};
use cnm::options::{ENABLE_IPV4, ENABLE_IPV6, GENERIC, INTERNAL};
use ipnet::IpNet;
use serde_json::{Map, Value, json};
use state::{Index, LOCK_TIMEOUT, Lock};

use super::config::{Config, WantedNetwork};
use super::driver::{AskError, Driver, Timeouts};
use super::journal::{Journal, Network, ReadOutcome, damaged, network_id};
use super::pools::{give_back, pools_of_others, replay, take_pools};
use crate::shared::failure::Failure;

/// Excludes others that would create or remove the network meanwhile.
pub(super) fn lock(call: &Call<'_>) -> Result<Lock, Failure> {
    let index = Index::new(call.roots());
    let object = format!("cnm {}", call.network());
    Ok(index.lock(&object, LOCK_TIMEOUT)?)
}

/// The drivers of a network.
#[derive(Debug)]
pub(super) struct Drivers<'p> {
    pub(super) network: Driver<'p>,
    pub(super) ipam: Option<Driver<'p>>,
}

impl<'p> Drivers<'p> {
    /// Finds the drivers that a configuration names, and makes sure that they exist.
    pub(super) fn of(wanted: &WantedNetwork, timeouts: &'p Timeouts) -> Result<Self, AskError> {
        let network = Driver::find(&wanted.driver, timeouts)?;
        network.activate("NetworkDriver")?;
        let ipam = wanted.ipam_driver.as_deref();
        let ipam = ipam.map(|name| Driver::find(name, timeouts)).transpose()?;
        if let Some(ipam) = &ipam {
            ipam.activate("IpamDriver")?;
        }
        Ok(Drivers { network, ipam })
    }
}

/// Creates the network unless it exists. `given` is what a CNI IPAM plugin assigned to the first
/// attachment.
pub(super) fn ensure(
    call: &Call<'_>,
    journal: &Journal,
    config: &Config,
    drivers: &Drivers<'_>,
    timeouts: &Timeouts,
    given: Option<&AddResult>,
) -> Result<Network, Failure> {
    match journal.network()? {
        ReadOutcome::This(network) if network.made && network.wanted == config.network => {
            return tell_again(call, journal, network, drivers);
        }
        ReadOutcome::This(network) => {
            if network.made && journal.others_are_on(call.attachment())? {
                return Err(Failure::new(
                    codes::CONFLICT,
                    format!("network {} was made with another configuration", call.network()),
                )
                .with_details("its driver cannot change it: remove its attachments first, or give the network another name"));
            }
            remove(call, journal, &network, timeouts)?;
        }
        found => {
            let words = match &found {
                ReadOutcome::Damaged(words) => words,
                _ => "it is not there",
            };
            // A new network would have the same ID, and if creating it failed, its removal would
            // cut them off.
            if journal.others_are_on(call.attachment())? {
                let what = format!("network {}", call.network());
                return Err(damaged(&what, words).with_details(
                    "others are on it: remove its attachments first, or give the network another name",
                ));
            }
            if found != ReadOutcome::Nothing {
                call.warn(format_args!(
                    "the record of the network is damaged, it is made anew: {words}"
                ));
            }
        }
    }
    let known = |driver: &Driver<'_>| driver.known().clone();
    let ipam = drivers.ipam.as_ref().map(known);
    let name = call.network().as_str();
    let mut network = Network::new(name, known(&drivers.network), ipam, config.network.clone());
    journal.put_network(&network)?;
    match make(journal, &mut network, drivers, given) {
        Ok(()) => Ok(network),
        Err(error) => Err(match remove(call, journal, &network, timeouts) {
            Ok(()) => error,
            Err(undo) => error.with_left(format!("could not remove the network: {undo}")),
        }),
    }
}

fn make(
    journal: &Journal,
    network: &mut Network,
    drivers: &Drivers<'_>,
    given: Option<&AddResult>,
) -> Result<(), Failure> {
    let driver = &drivers.network;
    let capabilities: Capabilities = driver.ask(Method::NetworkCapabilities, &Nothing {})?;
    let skip = if capabilities.gw_alloc_checker {
        let check = GwAllocCheck { options: options(&network.wanted, true) };
        driver.ask(Method::GwAllocCheck, &check)?
    } else {
        GwAllocAnswer::default()
    };
    match &drivers.ipam {
        Some(ipam) => {
            let is_global = capabilities.scope == "global";
            take_pools(journal, network, ipam, is_global, skip)?;
        }
        None => network.pools = pools_of_others(&network.wanted, given)?,
    }
    tell(driver, network)?;
    network.made = true;
    network.boot_id = state::boot_id()?;
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

/// Announces the network again after a reboot, since a driver may have forgotten it. Only the
/// driver knows: one that remembers it refuses, or creates nothing.
fn tell_again(
    call: &Call<'_>,
    journal: &Journal,
    mut network: Network,
    drivers: &Drivers<'_>,
) -> Result<Network, Failure> {
    let boot_id = state::boot_id()?;
    if network.boot_id == boot_id {
        return Ok(network);
    }
    if let Some(ipam) = drivers.ipam.as_ref().filter(|_| network.needs_replay) {
        replay(call, journal, &network, ipam)?;
    }
    match tell(&drivers.network, &network) {
        Ok(()) => {}
        Err(error) if error.is_refusal() => {
            call.warn(format_args!(
                "the driver refused the network that was announced again after a reboot: {error}"
            ));
        }
        Err(error) => return Err(error.into()),
    }
    network.boot_id = boot_id;
    journal.put_network(&network)?;
    Ok(network)
}

/// The options as Docker sends them.
fn options(wanted: &WantedNetwork, ipv4: bool) -> cni::json::Object {
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

/// Reads an address or a pool with its prefix length.
pub(super) fn answered_subnet(
    driver: &Driver<'_>,
    method: Method,
    text: &str,
) -> Result<IpNet, Failure> {
    text.parse().map_err(|_| {
        content(driver, method, format!("{text:?} is not an address with a prefix length"))
    })
}

/// Returns the error for an unusable answer.
pub(super) fn content(driver: &Driver<'_>, method: Method, reason: String) -> Failure {
    AskError::Content { driver: driver.name().to_owned(), method, reason }.into()
}

/// Removes the network if no attachment is left. The caller has removed its own record.
pub(super) fn release(
    call: &Call<'_>,
    journal: &Journal,
    timeouts: &Timeouts,
) -> Result<(), Failure> {
    if journal.has_endpoints()? {
        return Ok(());
    }
    match journal.network()? {
        ReadOutcome::Nothing => Ok(()),
        ReadOutcome::This(network) => remove(call, journal, &network, timeouts),
        ReadOutcome::Damaged(words) => {
            call.warn(format_args!(
                "the record of the network is damaged, its pools are not given back: {words}"
            ));
            if let Ok(config) = Config::of_network(call)
                && let Ok(driver) = Driver::find(&config.network.driver, timeouts)
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

/// Removes the network: from its driver, then its pools. If the driver refuses, that is accepted:
/// the record stays, for the next attachment or the next time that the last one leaves.
fn remove(
    call: &Call<'_>,
    journal: &Journal,
    network: &Network,
    timeouts: &Timeouts,
) -> Result<(), Failure> {
    let driver = Driver::again(&network.driver, timeouts)?;
    let name = NetworkName { network_id: network.id.clone() };
    if network.made {
        // If the answer is lost, a refusal of the next attempt is ignored.
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
        // The driver may never have received it.
        Err(error) if error.is_refusal() => {}
        Err(error) => return Err(error.into()),
    }
    if let Some(known) = &network.ipam_driver {
        let ipam = Driver::again(known, timeouts)?;
        for pool in &network.pools {
            give_back(call, &ipam, network, pool)?;
        }
    }
    journal.remove_network()
}
