//! CHECK and STATUS.

use cni::{AddResult, Error, IpConfig};
use cni_plugin::Call;
use ipnet::IpNet;
use kernel::mac::MacAddr;
use kernel::route::{Link, Neighbour, OperState, RouteSocket};
use state::Index;

use super::config::{Config, gateway_name};
use super::connect::{Around, Facts};
use super::{bridge_link, gateway, vlan_gateway};
use crate::engine::Differences;
use crate::ipam::host_local;
use crate::shared::host_side::{self, SubnetRoute};
use crate::shared::{
    advertisements, claim, container, drift, forwarding, kernel_error as kernel, owner, pair,
    repair,
};

/// The state of a bridge's port that carries frames ([`kernel::route::BridgePort::state`]).
const FORWARDING: u8 = 3;

/// Runs CHECK: the IPAM plugin's, then everything else.
pub(super) fn check(call: &Call<'_>) -> Result<(), Error> {
    let config = Config::of(call)?;
    if let Some(ipam) = call.ipam() {
        ipam.check()?;
    }
    check_links(call, &config).map(drop)
}

/// Compares every object that ADD created but the reservation of the addresses, from the container
/// outwards. Returns the claims that the attachment should have.
///
/// # Errors
/// Code 104 with all differences; code 100 when the kernel does not answer.
pub(super) fn check_links(call: &Call<'_>, config: &Config) -> Result<Vec<String>, Error> {
    let result = call.require_prev_result("Required prevResult missing")?;
    let netns = call.open_netns()?;
    let mut host = RouteSocket::open().map_err(kernel)?;
    let mut inside = RouteSocket::open_in(&netns).map_err(kernel)?;

    let index = Index::new(call.roots());
    let mut found = Differences::default();
    let bridge = check_bridge(&mut host, &index, config, &result, &mut found)?;
    // The reference's plugin does not prevent this, so it is not drift there.
    let facts = Facts::read(&index, call.attachment());
    let ours = facts.is_some();
    if let Some(bridge) = &bridge {
        found.note(advertisements::check(&bridge.name))?;
        if ours && bridge_link::learns_past_filters(config, bridge) {
            found.push(format!(
                "bridge {:?} learns from link-local frames, past macspoofchk",
                bridge.name
            ));
        }
    }
    let container = container::reported_link(&mut inside, call, &result, &["veth"]);
    let container = found.note(container)?;
    if let Some(container) = &container
        && !config.leave_down
    {
        found.note(container::require_up(container))?;
    }
    let port = match (&bridge, &container) {
        (Some(bridge), Some(container)) => {
            check_port(&mut host, call, config, &result, (bridge, container), &mut found)?
        }
        _ => None,
    };
    if let (Some(port), true) = (&port, ours) {
        found.note(advertisements::check(&port.name))?;
    }
    let ips: Vec<_> = result.container_ips(call.ifname().as_str()).collect();
    if let Some(container) = &container {
        let (ifindex, ifname) = (container.index, &container.name);
        let missing = container::differences(&mut inside, ifindex, ifname, &ips, &result.routes)?;
        missing.into_iter().for_each(|text| found.push(text));
    }
    if let (Some(bridge), Some(port)) = (&bridge, &port)
        && let Some(mtu) = bridge_link::wrong_mtu(&mut host, &index, bridge, port)?
    {
        found.push(format!("bridge {:?} has MTU {}, not {mtu}", bridge.name, bridge.mtu));
    }
    let ips: Vec<IpConfig> = ips.into_iter().cloned().collect();
    let facts = facts.unwrap_or_default();
    let mut claims = Vec::new();
    found.note(claim::check(call, &index, &facts.claims))?;
    if let Some(bridge) = &bridge {
        let around = Around::of(&mut host, config, bridge)?;
        claims = claim::objects(&around.places(), &facts.ips);
        found.note(around.check(call, &mut host, &ips))?;
        if config.gateway && call.ipam().is_some() {
            check_gateway(&mut host, &index, config, &ips, bridge, &mut found)?;
        }
    }
    if config.gateway && call.ipam().is_some() {
        forwarding::differences(&ips)?.into_iter().for_each(|text| found.push(text));
    }
    let (on_host, in_container) = wrong_neighbours(&mut host, &mut inside, call, config, &result)?;
    for entry in &on_host {
        found.push(repair::neighbour_name(entry, config.bridge.as_str()));
    }
    for entry in &in_container {
        found.push(repair::neighbour_name(entry, call.ifname().as_str()));
    }
    if let (Some(container), Some(port)) = (&container, &port) {
        let filtered =
            super::filter::differences(call, config, &result, container.mac, &port.name)?;
        filtered.into_iter().for_each(|text| found.push(text));
    }
    found.into_result().map(|()| claims)
}

/// Compares the bridge; `None` if there is none, or it is something else.
fn check_bridge(
    host: &mut RouteSocket,
    index: &Index,
    config: &Config,
    result: &AddResult,
    found: &mut Differences,
) -> Result<Option<Link>, Error> {
    let name = config.bridge.as_str();
    let mut links = result.interfaces.iter();
    let Some(reported) = links.find(|link| link.name == name && link.sandbox.is_empty()) else {
        found.push(format!("prevResult does not list bridge {name:?}"));
        return Ok(None);
    };
    let Some(bridge) = host.link_by_name(name).map_err(kernel)? else {
        found.push(format!("bridge {name:?} is gone"));
        return Ok(None);
    };
    if bridge.kind.as_deref() != Some("bridge") {
        found.push(format!("interface {name:?} is no bridge any more"));
        return Ok(None);
    }
    found.note(container::same_mac(reported, &bridge))?;
    if bridge.promiscuous() != config.promisc {
        found.push(format!(
            "bridge {name:?} has promiscuous mode {}, the configuration asks for {}",
            on_off(bridge.promiscuous()),
            on_off(config.promisc)
        ));
    }
    if !bridge.up() {
        found.push(format!("bridge {name:?} is down"));
    }
    if config.vlans.wanted && !bridge.bridge.as_ref().is_some_and(|bridge| bridge.vlan_filtering) {
        found.push(format!("bridge {name:?} does not filter VLANs any more"));
    }
    if bridge_link::has_unwanted_stp(host, &bridge)? && bridge_link::is_made_by_us(index, &bridge)?
    {
        found.push(format!("bridge {name:?} has STP on, and new ports wait for it"));
    }
    Ok(Some(bridge))
}

/// Compares the host's end of the pair; `None` if it was not found.
fn check_port(
    host: &mut RouteSocket,
    call: &Call<'_>,
    config: &Config,
    result: &AddResult,
    (bridge, container): (&Link, &Link),
    found: &mut Differences,
) -> Result<Option<Link>, Error> {
    let missing = || drift(format!("CNI veth created for bridge {} was not found", config.bridge));
    let Some((port, reported)) = found.note(pair::host_end_of(host, result, container, missing))?
    else {
        return Ok(None);
    };
    if !port.up() {
        found.push(format!("link {:?} is down", port.name));
    }
    found.note(container::same_mtu(reported, &port))?;
    found.note(check_mark(call, &port))?;
    if port.master != Some(bridge.index) {
        found.push(format!(
            "link {:?} is not a port of bridge {:?} any more",
            port.name, bridge.name
        ));
        return Ok(Some(port));
    }
    let has = port.port.unwrap_or_default();
    for (what, asked, is) in [
        ("hairpin mode", config.hairpin, has.hairpin),
        ("isolation", config.isolated, has.isolated),
    ] {
        if asked != is {
            found.push(format!(
                "port {:?} has {what} {}, the configuration asks for {}",
                port.name,
                on_off(is),
                on_off(asked)
            ));
        }
    }
    if holds_back(&port, bridge) {
        found.push(format!("port {:?} of bridge {:?} forwards nothing", port.name, bridge.name));
    }
    found.note(check_vlans(host, config, &port))?;
    Ok(Some(port))
}

/// Reports whether a port that could forward does not. With STP that is for the protocol to decide.
pub(super) fn holds_back(port: &Link, bridge: &Link) -> bool {
    let stp = bridge.bridge.as_ref().is_some_and(|bridge| bridge.stp);
    let forwards = port.port.is_none_or(|port| port.state == FORWARDING);
    !forwards && !stp && bridge.up() && port.up() && port.oper_state == OperState::Up
}

/// Checks the mark, by which an object is found if our record is lost. What others created has no
/// mark.
fn check_mark(call: &Call<'_>, port: &Link) -> Result<(), Error> {
    let key = call.attachment();
    let alias = owner::alias(key);
    if port.alias.as_ref() == Some(&alias) || Facts::read(&Index::new(call.roots()), key).is_none()
    {
        return Ok(());
    }
    let found = port.alias.as_deref().unwrap_or("none");
    Err(drift(format!("link {:?} has mark (alias) {found}, not {alias}", port.name)))
}

pub(super) fn check_vlans(
    host: &mut RouteSocket,
    config: &Config,
    port: &Link,
) -> Result<(), Error> {
    if !config.vlans.wanted {
        return Ok(());
    }
    let present = host.bridge_vlans(port.index).map_err(kernel)?;
    let native = config.vlans.native;
    for id in config.vlans.tagged.iter().copied().chain(native) {
        let Some(vlan) = present.iter().find(|vlan| (vlan.first..=vlan.last).contains(&id)) else {
            return Err(drift(format!("port {:?} is not in VLAN {id} any more", port.name)));
        };
        if Some(id) == native && !(vlan.pvid && vlan.untagged) {
            return Err(drift(format!("VLAN {id} is not port {:?}'s own any more", port.name)));
        }
    }
    Ok(())
}

/// Verifies that the gateways exist and reach the containers.
fn check_gateway(
    host: &mut RouteSocket,
    index: &Index,
    config: &Config,
    ips: &[IpConfig],
    bridge: &Link,
    found: &mut Differences,
) -> Result<(), Error> {
    let ours = bridge_link::own_gateway_link(host, index, config, bridge)?;
    if let (Some(link), Some(vlan)) = (&ours, config.vlans.access) {
        found.note(vlan_gateway::check(host, link, bridge, vlan))?;
    }
    if let Some(link) = &ours {
        let lack = host_side::missing_ipv6(host, &link.name, ips)?;
        found.note(host_side::require_ipv6(lack, &link.name))?;
    }
    found.note(check_gateway_addresses(host, config, ips))?;
    let Some(link) = &ours else { return Ok(()) };
    let astray = host_side::astray(host, link, &ways(ips))?;
    for way in &astray.missing {
        found.push(format!("{} is gone", host_side::route_name(way, &link.name)));
    }
    for covered in &astray.covered {
        found.note::<()>(Err(covered.drift(&link.name)))?;
    }
    Ok(())
}

/// Returns the subnets that must be reachable by the link with the gateways.
pub(super) fn ways(ips: &[IpConfig]) -> Vec<SubnetRoute> {
    let of = |ip: &IpConfig| {
        let gateway = gateway::of(&ip.address, ip.gateway).ok()?;
        Some(SubnetRoute { gateway, to: ip.address.addr() })
    };
    ips.iter().filter_map(of).collect()
}

pub(super) fn check_gateway_addresses(
    host: &mut RouteSocket,
    config: &Config,
    ips: &[IpConfig],
) -> Result<(), Error> {
    let name = match config.vlans.access {
        Some(vlan) => super::config::gateway_name(&config.bridge, vlan)?,
        None => config.bridge.clone(),
    };
    let link = host
        .link_by_name(name.as_str())
        .map_err(kernel)?
        .ok_or_else(|| drift(format!("link {:?} with the gateway is gone", name.as_str())))?;
    let present = host.addresses(Some(link.index)).map_err(kernel)?;
    let missing = ips.iter().filter_map(|ip| ip.gateway);
    let missing =
        missing.filter(|gateway| !present.iter().any(|found| found.address.addr() == *gateway));
    let missing: Vec<String> = missing.map(|gateway| gateway.to_string()).collect();
    match missing.as_slice() {
        [] => Ok(()),
        [gateway] => {
            Err(drift(format!("gateway address {gateway} is gone from {:?}", name.as_str())))
        }
        several => Err(drift(format!(
            "gateway addresses {} are gone from {:?}",
            several.join(", "),
            name.as_str()
        ))),
    }
}

/// Finds neighbour entries that lead to the wrong hardware address: the container's on the host,
/// and the gateway's in the container.
pub(super) fn wrong_neighbours(
    host: &mut RouteSocket,
    inside: &mut RouteSocket,
    call: &Call<'_>,
    config: &Config,
    result: &AddResult,
) -> Result<(Vec<Neighbour>, Vec<Neighbour>), Error> {
    let ifname = call.ifname().as_str();
    let mac_of = |name: &str, inside: bool| {
        let mut all = result.interfaces.iter();
        let link = all.find(|link| link.name == name && link.sandbox.is_empty() != inside)?;
        link.mac.parse::<MacAddr>().ok()
    };
    let ips: Vec<&IpConfig> = result.container_ips(ifname).collect();
    let mut wrong = (Vec::new(), Vec::new());
    // With a VLAN the gateway is on a link of its own, with another hardware address.
    if config.vlans.access.is_some() {
        return Ok(wrong);
    }
    let bridge = host.link_by_name(config.bridge.as_str()).map_err(kernel)?;
    if let (Some(bridge), Some(mac)) = (&bridge, mac_of(ifname, true)) {
        let who: Vec<_> = ips.iter().map(|ip| (ip.address.addr(), mac)).collect();
        wrong.0 = repair::wrong_neighbours(host, bridge.index, &who)?;
    }
    let link = inside.link_by_name(ifname).map_err(kernel)?;
    if let (Some(link), Some(mac), true) =
        (link, mac_of(config.bridge.as_str(), false), config.gateway)
    {
        let gateways = ips.iter().filter_map(|ip| ip.gateway);
        let who: Vec<_> = gateways.map(|gateway| (gateway, mac)).collect();
        wrong.1 = repair::wrong_neighbours(inside, link.index, &who)?;
    }
    Ok(wrong)
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Runs STATUS of the IPAM plugin.
pub(super) fn status(call: &Call<'_>) -> Result<(), Error> {
    call.ipam().map_or(Ok(()), |ipam| ipam.status())
}

/// Refuses a bridge name that another link has, and a bridge whose address conflicts with the
/// gateway's.
pub(super) fn fits_host(call: &Call<'_>) -> Result<(), Error> {
    let config = Config::of(call)?;
    let mut host = RouteSocket::open().map_err(kernel)?;
    bridge_link::observe(&mut host, &config)?;
    let Some((name, gateways)) = gateways(call, &config)? else { return Ok(()) };
    match host.link_by_name(&name).map_err(kernel)? {
        Some(link) => {
            gateway::refuse_others(&link.name, &gateway::present(&mut host, link.index)?, &gateways)
        }
        None => Ok(()),
    }
}

/// Returns the link of the host that carries the gateways and the addresses that the configuration
/// gives it, as far as they are known before addresses are assigned: with the IPAM plugin
/// `host-local`. `None` if other addresses do not matter.
pub(super) fn gateways(
    call: &Call<'_>,
    config: &Config,
) -> Result<Option<(String, Vec<IpNet>)>, Error> {
    if !config.gateway || config.force_address {
        return Ok(None);
    }
    let gateways = host_local::gateways(call);
    let name = match config.vlans.access {
        Some(vlan) => gateway_name(&config.bridge, vlan)?,
        None => config.bridge.clone(),
    };
    Ok((!gateways.is_empty()).then(|| (name.to_string(), gateways)))
}
