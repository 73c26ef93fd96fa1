//! CHECK, repair and STATUS.

use cni::{Error, IpConfig};
use cni_plugin::Call;
use cnm::method::Method;
use cnm::network::EndpointName;

use super::NAME;
use super::config::Config;
use super::connect::OPTIONS;
use super::driver::{Driver, Timeouts};
use super::journal::{Found, Journal, damaged, endpoint_id, network_id};
use super::network::Drivers;
use super::remove::Told;
use crate::interface::single::Namespaces;
use crate::shared::repair::{self, Inside};
use crate::shared::{attachment, container, drift, owner};

/// Runs CHECK: compares the record, the driver's knowledge, and what the container has.
pub(super) fn check(call: &Call<'_>) -> Result<(), Error> {
    let config = Config::of(call)?;
    if let Some(ipam) = call.ipam() {
        ipam.check()?;
    }
    let result = call.require_prev_result("Required prevResult missing")?;
    let key = call.attachment();
    let journal = Journal::new(call.roots(), key.network.as_str());
    let endpoint = match journal.endpoint(key)? {
        Found::This(endpoint) => endpoint,
        Found::Nothing => return Err(drift(format!("nothing is written down about {key}"))),
        Found::Damaged(words) => return Err(damaged(&key.to_string(), &words)),
    };
    let mut namespaces = Namespaces::open(call.open_netns()?)?;
    let ifname = call.ifname().as_str();
    let link = container::reported_link(&mut namespaces.inside, call, &result, &[])?;
    if link.alias.as_deref() != Some(&owner::alias(key)) {
        return Err(drift(format!("interface {ifname:?} is not the one that ADD took")));
    }
    container::require_up(&link)?;
    let ips: Vec<&IpConfig> = result.container_ips(ifname).collect();
    container::check(&mut namespaces.inside, link.index, ifname, &ips, &result.routes)?;
    let timeouts = Timeouts::new(config.timeout, call.context().deadline);
    let driver = Driver::again(&endpoint.driver, &timeouts).map_err(|error| error.to_cni())?;
    let name = EndpointName {
        network_id: network_id(key.network.as_str()),
        endpoint_id: endpoint_id(key),
    };
    match driver.ask::<Told>(Method::EndpointOperInfo, &name) {
        Err(error) if error.is_refusal() && !error.is_unsupported() => {
            Err(drift(format!("the driver does not know the endpoint: {error}")))
        }
        Err(error) if !error.is_refusal() => Err(error.to_cni()),
        _ => Ok(()),
    }
}

/// Repairs the container's side. The driver is responsible for its own.
pub(super) fn repair(call: &Call<'_>) -> Result<Vec<String>, Error> {
    repair::of_record(call, NAME, |_, repair| {
        let wanted = Inside { kinds: &[], options: OPTIONS, addresses: repair.addresses(call) };
        let result = call.require_prev_result("Required prevResult missing")?;
        let mut namespaces = Namespaces::open(call.open_netns()?)?;
        let (netns, inside) = (&namespaces.netns, &mut namespaces.inside);
        repair::container_side(call, netns, inside, &result, wanted, repair).map(drop)
    })
}

/// Runs STATUS: whether the drivers answer, and are drivers of their kind.
pub(super) fn status(call: &Call<'_>) -> Result<(), Error> {
    let config = Config::of_network(call)?;
    if let Some(ipam) = call.ipam() {
        ipam.status()?;
    }
    let timeouts = Timeouts::new(config.timeout, call.context().deadline);
    let there = Drivers::of(&config.network, &timeouts);
    there.map(drop).map_err(|error| attachment::unavailable(error.to_cni()))
}
