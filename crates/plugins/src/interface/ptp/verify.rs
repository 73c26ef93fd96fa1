//! CHECK and STATUS.

use cni::{AddResult, Error, IpConfig, Route};
use cni_plugin::Call;
use ipnet::IpNet;
use kernel::route::{IpFamily, Link, RouteFilter, RouteSocket};
use state::Index;

use super::config::{Config, ipam};
use super::connect::Facts;
use super::plan;
use crate::shared::claim::{self, Routed};
use crate::shared::{
    advertisements, container, drift, forwarding, host_side, kernel_error as kernel, pair, rules,
};

/// Runs CHECK: the IPAM plugin's, then every object that ADD created, from the container outwards.
pub(super) fn check(call: &Call<'_>) -> Result<(), Error> {
    let config = Config::of(call)?;
    ipam(call)?.check()?;
    let result = call.require_prev_result("Required prevResult missing")?;
    let netns = call.open_netns()?;
    let mut host = RouteSocket::open().map_err(kernel)?;
    let mut inside = RouteSocket::open_in(&netns).map_err(kernel)?;

    let link = container::reported_link(&mut inside, call, &result, &["veth"])?;
    container::require_up(&link)?;
    let host_link = check_pair(&mut host, &result, &link)?;
    let ips: Vec<&IpConfig> = result.container_ips(call.ifname().as_str()).collect();
    let placed: Vec<IpConfig> = ips.iter().map(|ip| (*ip).clone()).collect();
    let routes: Vec<Route> =
        plan::through_gateways(&placed).into_iter().chain(result.routes.iter().cloned()).collect();
    container::check(&mut inside, link.index, &link.name, &ips, &routes)?;
    let index = Index::new(call.roots());
    let claims = Facts::read(&index, call.attachment()).unwrap_or_default().claims;
    claim::check(call, &index, &claims)?;
    let routed = Routed::one_by_one(host_link.index);
    claim::check_own(call, &mut host, &routed, &placed)?;
    check_host(&mut host, &host_link, &placed)?;
    forwarding::check(&placed)?;
    check_filter(call, &config, &host_link, &placed)
}

/// Finds the host's end of the pair, which must be one that ADD reported.
fn check_pair(host: &mut RouteSocket, result: &AddResult, link: &Link) -> Result<Link, Error> {
    let missing = || drift(format!("the host's end of interface {:?} was not found", link.name));
    let (peer, reported) = pair::reported_host_end(host, result, link, missing)?;
    container::same_mac(reported, &peer)?;
    Ok(peer)
}

fn check_host(host: &mut RouteSocket, link: &Link, ips: &[IpConfig]) -> Result<(), Error> {
    let lack = host_side::missing_ipv6(host, &link.name, ips)?;
    host_side::require_ipv6(lack, &link.name)?;
    advertisements::check(&link.name)?;
    let present = host.addresses(Some(link.index)).map_err(kernel)?;
    for gateway in plan::gateways(ips) {
        if !present.iter().any(|address| address.address.addr() == gateway) {
            return Err(drift(format!("gateway address {gateway} is gone from {:?}", link.name)));
        }
    }
    for route in plan::host_routes(link.index, ips) {
        if !has_host_route(host, link, &route)? {
            return Err(drift(format!(
                "the host's route to {} by {:?} is gone",
                route.destination, link.name
            )));
        }
        let to = route.destination.addr();
        if let Some(covered) = host_side::covering(host, link, to, &route.destination)? {
            return Err(covered.drift(&link.name));
        }
    }
    Ok(())
}

/// Reports whether the host has a route.
pub(super) fn has_host_route(
    host: &mut RouteSocket,
    link: &Link,
    route: &kernel::route::Route,
) -> Result<bool, Error> {
    let v4 = route.destination.addr().is_ipv4();
    let family = if v4 { IpFamily::V4 } else { IpFamily::V6 };
    let filter = RouteFilter { family, table: None, oif: Some(link.index) };
    let found = host.routes(filter).map_err(kernel)?;
    Ok(found.iter().any(|other| other.destination == route.destination))
}

pub(super) fn check_filter(
    call: &Call<'_>,
    config: &Config,
    host_link: &Link,
    ips: &[IpConfig],
) -> Result<(), Error> {
    let key = call.attachment();
    let index = Index::new(call.roots());
    let ips: Vec<IpNet> = ips.iter().map(|ip| ip.address).collect();
    let wanted = match Facts::read(&index, key) {
        Some(facts) => facts.filter,
        None => rules::masquerade(config.masquerade, key.network.as_str(), &host_link.name, &ips),
    };
    rules::check(&index, key, config.masquerade, &wanted, &ips)
}

/// Runs STATUS of the IPAM plugin. The host always has what a pair needs.
pub(super) fn status(call: &Call<'_>) -> Result<(), Error> {
    ipam(call)?.status()
}

/// Refuses what ADD would refuse on every host.
pub(super) fn validate(call: &Call<'_>) -> Result<(), Error> {
    Config::of(call)?;
    ipam(call).map(drop)
}
