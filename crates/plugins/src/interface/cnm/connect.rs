//! ADD.

use std::net::IpAddr;

use cni::{AddResult, Interface, IpConfig};
use cni_plugin::{Call, codes};
use cnm::ipam::{Address, ENDPOINT_MAC, ENDPOINT_NAME, RequestAddress};
use cnm::method::Method;
use cnm::network::{
    CreateEndpoint, CreatedEndpoint, EndpointInterface, ExternalConnectivity, Join, JoinAnswer,
};
use cnm::options::{EXPOSED_PORTS, PORT_MAP};
use ipnet::IpNet;
use kernel::mac::MacAddr;
use kernel::route::Link;
use serde_json::{Map, Value, json};
use state::{Durability, Index};

use super::config::Config;
use super::driver::{Driver, Timeouts};
use super::journal::{Endpoint, Journal, Lease, LentLink, Network, ReadOutcome, endpoint_id};
use super::link;
use super::network::{self, Drivers, answered_subnet, content};
use super::plan::{parse_mac, plan};
use super::pools::{outside, pools_of_family};
use super::{Cnm, NAME, remove};
use crate::engine::Addition;
use crate::shared::container::{self, Options};
use crate::shared::failure::Failure;
use crate::shared::identity::Identity;
use crate::shared::namespaces::Namespaces;
use crate::shared::{attachment, pair};

/// How the container's interface is configured: the driver, or the IPAM that assigned the
/// addresses, keeps them unique.
/// A driver's route on the link is one of scope `link` in both families.
pub(super) const OPTIONS: Options = Options { scopes_in_ipv6: true, ..Options::new(true) };

/// Runs ADD.
pub(super) fn attach(attaching: &mut Addition<'_, Cnm>) -> Result<AddResult, Failure> {
    let (call, config) = (attaching.call, attaching.config);
    let mut namespaces = Namespaces::open(call.open_netns()?)?;
    let ifname = call.ifname().as_str();
    attachment::refuse_existing(&namespaces.inside, ifname, || {
        format!("failed to attach the container: interface {ifname:?} already exists")
    })?;
    let timeouts = remove::timeouts(call, attaching.kept);
    let drivers = Drivers::of(&config.network, timeouts)?;
    let journal = Journal::new(call.roots(), call.network().as_str());
    delete_unused(call, &journal, timeouts)?;
    make(attaching, &drivers, timeouts, &journal, &mut namespaces)
}

/// Removes what a killed ADD left; refuses if the container is attached elsewhere.
fn delete_unused(call: &Call<'_>, journal: &Journal, timeouts: &Timeouts) -> Result<(), Failure> {
    let key = call.attachment();
    if journal.endpoint(key)? == ReadOutcome::Nothing {
        return Ok(());
    }
    let netns = remove::recorded_netns(call, key)?;
    if let Some(netns) = &netns {
        let mut inside = kernel::route::RouteSocket::open_in(netns)?;
        if link::marked(&mut inside, key)?.is_some() {
            return Err(Failure::new(
                codes::EXISTS,
                format!(
                    "failed to attach the container: {key} already exists in another namespace"
                ),
            )
            .with_details("call DEL first"));
        }
    }
    remove::all(call, key, netns.as_ref(), timeouts)?;
    attachment::remove_record(&Index::new(call.roots()), key, NAME)
}

/// Sets up network, addresses, endpoint, link and ports, in that order. Each step is recorded
/// before it is done.
fn make(
    attaching: &mut Addition<'_, Cnm>,
    drivers: &Drivers<'_>,
    timeouts: &Timeouts,
    journal: &Journal,
    namespaces: &mut Namespaces,
) -> Result<AddResult, Failure> {
    let (call, config, key) = (attaching.call, attaching.config, attaching.key());
    let boot_id = state::boot_id()?;
    let ipam = drivers.ipam.as_ref().map(|driver| driver.known().clone());
    let mut endpoint = Endpoint::new(key, boot_id, drivers.network.known().clone(), ipam);
    attaching.begin(Some(&namespaces.netns));
    {
        let _lock = network::lock(call)?;
        journal.put_endpoint(&endpoint, Durability::Volatile)?;
    }
    attaching.record(&json!({}), &namespaces.netns)?;
    let given = attaching.addresses()?;
    let network = {
        let _lock = network::lock(call)?;
        network::ensure(call, journal, config, drivers, timeouts, given.as_ref())?
    };

    let wished = match &drivers.ipam {
        Some(ipam) => {
            let mac = config.mac.or_else(|| network.needs_mac.then(kernel::mac::random));
            lease(journal, config, &network, ipam, &mut endpoint, mac)?
        }
        None => requested_interface(config, given.as_ref()),
    };
    // Leases outlive a power failure; everything else does not.
    let durability = if drivers.ipam.is_some() { Durability::Synced } else { Durability::Volatile };
    endpoint.made = true;
    journal.put_endpoint(&endpoint, durability)?;
    let driver = &drivers.network;
    let interface = create(config, &network, driver, &endpoint, &wished)?;
    let before = link::numbers(namespaces)?;
    let joined = join(call, config, &network, driver, &endpoint)?;

    let mac = parse_mac(driver, &interface.mac_address)?;
    let plan = plan(call, config, driver, &interface, given, &joined)?;
    let name = joined.interface_name.as_ref().map_or("", |name| name.src_name.as_str());
    let offered = link::find(driver.name(), namespaces, name, &before)?;
    endpoint.link = Some(offered.lent.clone());
    endpoint.external = plan.leads_out || !config.ports.is_empty();
    journal.put_endpoint(&endpoint, Durability::Volatile)?;
    let link = link::take(call, namespaces, &offered, mac)?;
    endpoint.link = Some(LentLink { inside: Some(Identity::of(&link)), ..offered.lent.clone() });
    journal.put_endpoint(&endpoint, Durability::Volatile)?;
    configure(call, namespaces, &link, &plan.result)?;
    if endpoint.external {
        publish(config, &network, driver, &endpoint)?;
    }
    let mut result = plan.result;
    result.interfaces = offered.host_side.iter().map(interface_of).collect();
    for ip in &mut result.ips {
        ip.interface = Some(result.interfaces.len());
    }
    let sandbox = call.env().netns.clone();
    result.interfaces.push(Interface { sandbox, ..interface_of(&link) });
    Ok(result)
}

/// Returns the interface without an IPAM driver: what a CNI plugin assigned, or what the runtime
/// asks for.
fn requested_interface(config: &Config, given: Option<&AddResult>) -> EndpointInterface {
    let addresses: Vec<IpNet> = match given {
        Some(given) => given.ips.iter().map(|ip| ip.address).collect(),
        None => config.ips.clone(),
    };
    interface(&addresses, config.mac)
}

/// Returns an interface with the first address of each family.
fn interface(addresses: &[IpNet], mac: Option<MacAddr>) -> EndpointInterface {
    let first = |v6: bool| {
        let found = addresses.iter().find(|address| address.addr().is_ipv6() == v6);
        found.map(ToString::to_string).unwrap_or_default()
    };
    EndpointInterface {
        address: first(false),
        address_ipv6: first(true),
        mac_address: mac.map(|mac| mac.to_string()).unwrap_or_default(),
    }
}

/// Requests an address of each family that the network has.
fn lease(
    journal: &Journal,
    config: &Config,
    network: &Network,
    ipam: &Driver<'_>,
    endpoint: &mut Endpoint,
    mac: Option<MacAddr>,
) -> Result<EndpointInterface, Failure> {
    let mut options = vec![(ENDPOINT_NAME.to_owned(), config.endpoint_name.clone())];
    if let (true, Some(mac)) = (network.needs_mac, mac) {
        options.push((ENDPOINT_MAC.to_owned(), mac.to_string()));
    }
    let mut addresses = Vec::new();
    for v6 in [false, true] {
        let asked = config.ips.iter().map(IpNet::addr).find(|address| address.is_ipv6() == v6);
        if let Some(address) = asked {
            refuse_held(journal, address)?;
        }
        let mut refusal = None;
        for pool in pools_of_family(network, v6) {
            let holds =
                |address| pool.subnet.parse::<IpNet>().is_ok_and(|net| net.contains(&address));
            if asked.is_some_and(|address| !holds(address)) {
                continue;
            }
            endpoint.leases.push(Lease { pool: pool.id.clone(), address: asked.map(IpNet::from) });
            journal.put_endpoint(endpoint, Durability::Synced)?;
            let question = RequestAddress {
                pool_id: pool.id.clone(),
                address: asked.map(|address| address.to_string()).unwrap_or_default(),
                options: cni::order::gather(options.iter().cloned()),
            };
            let answer: Address = match ipam.ask(Method::RequestAddress, &question) {
                Ok(answer) => answer,
                Err(error) if error.is_refusal() => {
                    endpoint.leases.pop();
                    refusal = Some(error);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let address = answered_subnet(ipam, Method::RequestAddress, &answer.address)?;
            if let Some(lease) = endpoint.leases.last_mut() {
                lease.address = Some(address);
            }
            addresses.push(address);
            refusal = None;
            break;
        }
        if let Some(error) = refusal {
            // The next step records what is held.
            journal.put_endpoint(endpoint, Durability::Synced)?;
            return Err(Failure::from(error).with_code(codes::ADDRESS));
        }
        if let Some(address) =
            asked.filter(|asked| !addresses.iter().any(|one| one.addr() == *asked))
        {
            return Err(outside(address));
        }
    }
    Ok(interface(&addresses, mac))
}

/// Refuses an address that another attachment of ours has: only the attachment that recorded an
/// address releases it.
fn refuse_held(journal: &Journal, address: IpAddr) -> Result<(), Failure> {
    for other in journal.endpoints()? {
        let held = other.leases.iter().filter_map(|lease| lease.address);
        if held.into_iter().any(|held| held.addr() == address) {
            let text = format!("address {address} is held by {}", other.attachment);
            return Err(Failure::new(codes::ADDRESS, text));
        }
    }
    Ok(())
}

/// Creates the endpoint; returns its interface, with the values that either side decided.
fn create(
    config: &Config,
    network: &Network,
    driver: &Driver<'_>,
    endpoint: &Endpoint,
    wished: &EndpointInterface,
) -> Result<EndpointInterface, Failure> {
    let mut options = port_options(config);
    for (key, value) in &config.endpoint_options {
        options.insert(key.clone(), json!(value));
    }
    let question = CreateEndpoint {
        network_id: network.id.clone(),
        endpoint_id: endpoint_id(&endpoint.attachment),
        interface: Some(wished.clone()),
        options: object(options),
    };
    let method = Method::CreateEndpoint;
    let answer: CreatedEndpoint = driver.ask(method, &question)?;
    let answer = answer.interface.unwrap_or_default();
    let merge = |what: &str, ours: &str, theirs: &str| -> Result<String, Failure> {
        match (ours.is_empty(), theirs.is_empty()) {
            (true, _) => Ok(theirs.to_owned()),
            (false, true) => Ok(ours.to_owned()),
            // libnetwork refuses even an equal value; accepting it does no harm.
            (false, false) if ours.eq_ignore_ascii_case(theirs) => Ok(ours.to_owned()),
            (false, false) => {
                let words = format!("{what} {theirs} in place of {ours}, which was asked for");
                Err(content(driver, method, words))
            }
        }
    };
    Ok(EndpointInterface {
        address: merge("address", &wished.address, &answer.address)?,
        address_ipv6: merge("address", &wished.address_ipv6, &answer.address_ipv6)?,
        mac_address: merge("MAC address", &wished.mac_address, &answer.mac_address)?,
    })
}

fn join(
    call: &Call<'_>,
    config: &Config,
    network: &Network,
    driver: &Driver<'_>,
    endpoint: &Endpoint,
) -> Result<JoinAnswer, Failure> {
    // The driver has a different working directory.
    let netns = std::path::absolute(&call.env().netns).map_err(|error| {
        Failure::from_chain(codes::STATE, &error).context("make CNI_NETNS absolute")
    })?;
    let question = Join {
        network_id: network.id.clone(),
        endpoint_id: endpoint_id(&endpoint.attachment),
        sandbox_key: netns.display().to_string(),
        options: object(port_options(config)),
    };
    Ok(driver.ask(Method::Join, &question)?)
}

/// Brings the link up with its addresses and routes.
fn configure(
    call: &Call<'_>,
    namespaces: &mut Namespaces,
    link: &Link,
    result: &AddResult,
) -> Result<(), Failure> {
    let ips: Vec<&IpConfig> = result.ips.iter().collect();
    let ifname = call.ifname().as_str();
    let Namespaces { inside, netns, .. } = namespaces;
    container::configure(inside, netns, link.index, ifname, &ips, &result.routes, OPTIONS)?;
    if ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
        pair::wait_for_carrier(inside, link.index)?;
    }
    Ok(())
}

/// Tells the driver that the network is a way out, and which ports are published by it.
fn publish(
    config: &Config,
    network: &Network,
    driver: &Driver<'_>,
    endpoint: &Endpoint,
) -> Result<(), Failure> {
    let question = ExternalConnectivity {
        network_id: network.id.clone(),
        endpoint_id: endpoint_id(&endpoint.attachment),
        options: object(port_options(config)),
    };
    match driver.tell(Method::ProgramExternalConnectivity, &question) {
        Err(error) if error.is_unsupported() && config.ports.is_empty() => Ok(()),
        Err(error) if error.is_unsupported() => Err(Failure::from(error).with_details(
            "it publishes no ports: declare the capability portMappings at the plugin portmap, behind this one",
        )),
        done => Ok(done?),
    }
}

fn port_options(config: &Config) -> Map<String, Value> {
    let mut options = Map::new();
    if !config.ports.is_empty() {
        options.insert(EXPOSED_PORTS.to_owned(), json!(config.exposed()));
        options.insert(PORT_MAP.to_owned(), json!(config.ports));
    }
    options
}

fn object(options: Map<String, Value>) -> cni::json::Object {
    let text = Value::Object(options).to_string();
    cni::json::Object::parse(text.as_bytes()).expect("an object was written")
}

fn interface_of(link: &Link) -> Interface {
    Interface {
        name: link.name.clone(),
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        mtu: link.mtu,
        ..Interface::default()
    }
}
