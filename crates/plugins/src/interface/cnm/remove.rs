//! Removes what ADD created.

use std::cell::OnceCell;
use std::net::IpAddr;

use cni::AttachmentKey;
use cni_plugin::Call;
use cnm::method::Method;
use cnm::network::EndpointName;
use kernel::living::Census;
use kernel::netns::Netns;
use kernel::route::RouteSocket;
use state::Index;

use super::config::{Config, timeout_of};
use super::driver::{AskError, Driver, Timeouts};
use super::journal::{Endpoint, Journal, ReadOutcome, endpoint_id, network_id};
use super::{NAME, link, network, pools};
use crate::shared::attachment;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;

/// Returns the timeouts of this verb: a driver that was silent once gets less time after that.
pub(super) fn timeouts<'k>(call: &Call<'_>, kept: &'k OnceCell<Timeouts>) -> &'k Timeouts {
    kept.get_or_init(|| Timeouts::new(timeout_of(call), call.context().deadline))
}

/// Removes the network that GC finds without an attachment.
pub(super) fn collect(call: &Call<'_>, timeouts: &Timeouts) -> Result<(), Failure> {
    release(call, &Journal::new(call.roots(), call.network().as_str()), timeouts)
}

/// Removes the network if it has no attachment.
fn release(call: &Call<'_>, journal: &Journal, timeouts: &Timeouts) -> Result<(), Failure> {
    if journal.has_endpoints()? || journal.network()? == ReadOutcome::Nothing {
        // An ADD may have been killed at its start.
        return journal.tidy();
    }
    let _lock = network::lock(call)?;
    network::release(call, journal, timeouts)
}

/// Opens the namespace that ADD recorded, if it still exists.
pub(super) fn recorded_netns(
    call: &Call<'_>,
    key: &AttachmentKey,
) -> Result<Option<Netns>, Failure> {
    let record = Index::new(call.roots()).get(key, NAME).found;
    let census = Census::new();
    record.map_or(Ok(None), |record| attachment::find_recorded_netns(call, &record, &census))
}

/// Removes everything that ADD created.
pub(super) fn all(
    call: &Call<'_>,
    key: &AttachmentKey,
    netns: Option<&Netns>,
    timeouts: &Timeouts,
) -> Result<(), Failure> {
    let journal = Journal::new(call.roots(), key.network.as_str());
    let mut failures = Failures::new();
    let found = journal.endpoint(key)?;
    let known = found != ReadOutcome::Nothing;
    match found {
        ReadOutcome::This(endpoint) => undo(call, &endpoint, netns, timeouts, &mut failures),
        ReadOutcome::Damaged(words) => {
            call.warn(format_args!("what was written down about {key} is damaged: {words}"));
            undo_unknown(call, &journal, key, netns, timeouts, &mut failures);
        }
        ReadOutcome::Nothing => undo_unknown(call, &journal, key, netns, timeouts, &mut failures),
    }
    failures.into_result()?;
    if known {
        let _lock = network::lock(call)?;
        journal.remove_endpoint(key)?;
        network::release(call, &journal, timeouts)?;
    } else {
        release(call, &journal, timeouts)?;
    }
    Ok(())
}

/// Undoes the recorded steps, as libnetwork does: ports, Leave, the link, DeleteEndpoint, and last
/// the addresses.
fn undo(
    call: &Call<'_>,
    endpoint: &Endpoint,
    netns: Option<&Netns>,
    timeouts: &Timeouts,
    failures: &mut Failures,
) {
    let key = &endpoint.attachment;
    let name = name_of(key);
    let link = endpoint.link.as_ref().zip(netns);
    let give_back = |failures: &mut Failures, placed: bool| {
        if let Some((lent, netns)) = link.filter(|(lent, _)| lent.placed == placed) {
            failures.note("give the link back", link::give_back(call, key, netns, lent));
        }
    };
    // If the driver put the link into the container, it looks for it there under the name that it
    // gave it.
    give_back(failures, true);
    let driver = Driver::again(&endpoint.driver, timeouts);
    let driver = match endpoint.made {
        true => failures.note("find the driver", driver),
        false => None,
    };
    if let Some(driver) = &driver {
        if endpoint.external {
            let done = driver.tell(Method::RevokeExternalConnectivity, &name);
            failures.note("withdraw the ports", tolerate(call, done));
        }
        failures.note("leave", tolerate(call, driver.tell(Method::Leave, &name)));
    }
    give_back(failures, false);
    if let Some(driver) = &driver {
        failures.note("delete the endpoint", delete(call, driver, &name));
    }
    let Some(known) = &endpoint.ipam_driver else { return };
    if !failures.is_empty() {
        if !endpoint.leases.is_empty() {
            call.warn("the addresses stay reserved: the link may still carry them");
        }
        return;
    }
    if endpoint.leases.is_empty() {
        return;
    }
    let ipam = Driver::again(known, timeouts);
    let Some(ipam) = failures.note("find the IPAM driver", ipam) else { return };
    for lease in &endpoint.leases {
        match lease.address {
            Some(address) => {
                let released = pools::release_address(call, &ipam, &lease.pool, address.addr());
                failures.note(format_args!("release {}", address.addr()), released);
            }
            None => call.warn(format_args!(
                "the IPAM driver may have given an address of pool {:?} and its answer was lost: it is free again when the pool goes",
                lease.pool
            )),
        }
    }
}

fn name_of(key: &AttachmentKey) -> EndpointName {
    EndpointName { network_id: network_id(key.network.as_str()), endpoint_id: endpoint_id(key) }
}

/// Turns a driver's refusal to undo something into a warning (the driver logs it too); the rest goes
/// on, as with libnetwork.
fn tolerate(call: &Call<'_>, done: Result<(), AskError>) -> Result<(), Failure> {
    match done {
        Err(error) if error.is_unsupported() => Ok(()),
        Err(error) if error.is_refusal() => {
            call.warn(error);
            Ok(())
        }
        done => Ok(done?),
    }
}

/// Deletes the endpoint. A refusal counts only if the driver still knows the endpoint: drivers
/// refuse what they have forgotten, and that could never be undone.
fn delete(call: &Call<'_>, driver: &Driver<'_>, name: &EndpointName) -> Result<(), Failure> {
    let refusal = match driver.tell(Method::DeleteEndpoint, name) {
        Err(error) if error.is_refusal() => error,
        done => return Ok(done?),
    };
    match driver.ask::<EndpointReport>(Method::EndpointOperInfo, name) {
        Ok(told) if told.says_something() => Err(refusal.into()),
        Err(error) if !error.is_refusal() => Err(error.into()),
        _ => {
            call.warn(format_args!("the endpoint is gone already: {refusal}"));
            Ok(())
        }
    }
}

/// What a driver reports about an endpoint: values of any type, and nulls for an unknown endpoint.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct EndpointReport {
    value: std::collections::BTreeMap<String, serde_json::Value>,
}

impl EndpointReport {
    fn says_something(&self) -> bool {
        self.value.values().any(|value| !value.is_null())
    }
}

/// Removes an attachment without a record: by its IDs, from the driver that the configuration
/// names. Only a link with our mark shows that there was an attachment at all.
fn undo_unknown(
    call: &Call<'_>,
    journal: &Journal,
    key: &AttachmentKey,
    netns: Option<&Netns>,
    timeouts: &Timeouts,
    failures: &mut Failures,
) {
    let Some(addresses) = failures.note("look into the container", marked_addresses(netns, key))
    else {
        return;
    };
    let Ok(config) = Config::of_network(call) else {
        if addresses.is_some() {
            call.warn("a link is left, and the configuration names no driver to take it back");
        }
        return;
    };
    let asked = Driver::find(&config.network.driver, timeouts).and_then(|driver| {
        let name = name_of(key);
        for method in [Method::Leave, Method::DeleteEndpoint] {
            match driver.tell(method, &name) {
                Err(error) if !error.is_refusal() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    });
    let Some(addresses) = addresses else { return };
    failures.note("ask the driver", asked);
    if !failures.is_empty() {
        return;
    }
    failures.note("delete the link", delete_marked(call, netns, key));
    failures.note("release the addresses", release_found(call, journal, &addresses, timeouts));
}

/// Returns the addresses of the link with our mark; `None` if there is no such link.
fn marked_addresses(
    netns: Option<&Netns>,
    key: &AttachmentKey,
) -> Result<Option<Vec<IpAddr>>, Failure> {
    let Some(netns) = netns else { return Ok(None) };
    let mut inside = RouteSocket::open_in(netns)?;
    let Some(link) = link::marked(&mut inside, key)? else { return Ok(None) };
    let addresses = inside.addresses(Some(link.index))?;
    Ok(Some(addresses.iter().map(|address| address.address.addr()).collect()))
}

/// Deletes the link with our mark. The driver's name for it is unknown, so it cannot be returned.
fn delete_marked(
    call: &Call<'_>,
    netns: Option<&Netns>,
    key: &AttachmentKey,
) -> Result<(), Failure> {
    let Some(netns) = netns else { return Ok(()) };
    let mut inside = RouteSocket::open_in(netns)?;
    match link::marked(&mut inside, key)? {
        Some(link) if link.kind.is_some() => Ok(inside.delete_link(link.index).map(drop)?),
        Some(link) => {
            call.warn(format_args!(
                "device {:?} stays in the container: its name on the host is lost",
                link.name
            ));
            Ok(())
        }
        None => Ok(()),
    }
}

/// Releases the addresses that the link had, except those of another attachment of ours.
fn release_found(
    call: &Call<'_>,
    journal: &Journal,
    addresses: &[IpAddr],
    timeouts: &Timeouts,
) -> Result<(), Failure> {
    let Some(network) = journal.network()?.legible() else { return Ok(()) };
    let Some(known) = &network.ipam_driver else { return Ok(()) };
    let ipam = Driver::again(known, timeouts)?;
    let others = journal.endpoints()?;
    let held = |address: &IpAddr| {
        let leases = others.iter().flat_map(|other| &other.leases);
        leases.filter_map(|lease| lease.address).any(|held| held.addr() == *address)
    };
    for address in addresses.iter().filter(|address| !held(address)) {
        let pool = network.pools.iter().find(|pool| {
            pool.subnet.parse::<ipnet::IpNet>().is_ok_and(|subnet| subnet.contains(address))
        });
        if let Some(pool) = pool {
            pools::release_address(call, &ipam, &pool.id, *address)?;
        }
    }
    Ok(())
}
