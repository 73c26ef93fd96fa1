//! What a driver's answers mean for the container: computed before the link is changed.

use std::net::IpAddr;

use cni::{AddResult, IpConfig, Route};
use cni_plugin::Call;
use cnm::method::Method;
use cnm::network::{EndpointInterface, JoinAnswer, StaticRoute};
use ipnet::IpNet;
use kernel::mac::MacAddr;
use kernel::route::Scope;

use super::config::Config;
use super::driver::Driver;
use super::network::{answered_subnet, content};
use crate::shared::dns;
use crate::shared::failure::Failure;

/// The most routes that a driver may ask for.
const MAX_ROUTES: usize = 4096;

/// What the container's interface becomes.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) result: AddResult,
    /// Whether it is a way out of the container.
    pub(super) leads_out: bool,
}

/// Derives the container's interface from a driver's answers.
pub(super) fn plan(
    call: &Call<'_>,
    config: &Config,
    driver: &Driver<'_>,
    interface: &EndpointInterface,
    given: Option<AddResult>,
    joined: &JoinAnswer,
) -> Result<Plan, Failure> {
    let mut result = given.unwrap_or_default();
    for text in [&interface.address, &interface.address_ipv6] {
        if text.is_empty() {
            continue;
        }
        let address = answered_subnet(driver, Method::CreateEndpoint, text)?;
        if !result.ips.iter().any(|ip| ip.address == address) {
            result.ips.push(IpConfig::new(address, None));
        }
    }
    let mut leads_out = false;
    for (text, v6) in [(&joined.gateway, false), (&joined.gateway_ipv6, true)] {
        let has_address = result.ips.iter().any(|ip| ip.address.addr().is_ipv6() == v6);
        // libnetwork ignores a gateway of a family without an address.
        if text.is_empty() || !has_address {
            continue;
        }
        let gateway: IpAddr =
            text.parse().ok().filter(|ip: &IpAddr| ip.is_ipv6() == v6).ok_or_else(|| {
                content(driver, Method::Join, format!("{text:?} is no gateway of its family"))
            })?;
        for ip in result.ips.iter_mut().filter(|ip| ip.address.addr().is_ipv6() == v6) {
            ip.gateway = Some(gateway);
        }
        leads_out = true;
        let default = default_of(v6);
        if config.default_gateway && !result.routes.iter().any(|route| route.dst == default) {
            result.routes.push(Route::new(default, Some(gateway)));
        }
    }
    if MAX_ROUTES < joined.static_routes.len() {
        let count = joined.static_routes.len();
        return Err(content(driver, Method::Join, format!("{count} routes are too many")));
    }
    for wanted in &joined.static_routes {
        let route = route(driver, wanted)?;
        if route.is_default() {
            leads_out = true;
            let has = result.routes.iter().any(|other| other.dst == route.dst);
            if !config.default_gateway || has {
                continue;
            }
        }
        result.routes.push(route);
    }
    result.dns = dns::choose(call.common(), result.dns);
    Ok(Plan { result, leads_out })
}

fn default_of(v6: bool) -> IpNet {
    let text = if v6 { "::/0" } else { "0.0.0.0/0" };
    text.parse().expect("a default destination is a prefix")
}

fn route(driver: &Driver<'_>, wanted: &StaticRoute) -> Result<Route, Failure> {
    let wrong = |what: String| content(driver, Method::Join, what);
    let text = &wanted.destination;
    let destination: IpNet =
        text.parse().map_err(|_| wrong(format!("a route to {text:?}, which is no destination")))?;
    match wanted.route_type {
        StaticRoute::NEXT_HOP => {
            let hop = &wanted.next_hop;
            let gateway: Option<IpAddr> = hop.parse().ok();
            let same = |gateway: &IpAddr| gateway.is_ipv6() == destination.addr().is_ipv6();
            let gateway = gateway.filter(same);
            let gateway = gateway.ok_or_else(|| {
                wrong(format!("a route to {text} by {hop:?}, which is no next hop"))
            })?;
            Ok(Route::new(destination, Some(gateway)))
        }
        // On the link, even if there is a gateway.
        StaticRoute::CONNECTED => {
            Ok(Route { scope: Some(Scope::LINK.0), ..Route::new(destination, None) })
        }
        other => Err(wrong(format!("a route to {text} of type {other}, which is neither 0 nor 1"))),
    }
}

/// Reads a MAC address of an answer; `None` when it is empty.
pub(super) fn parse_mac(driver: &Driver<'_>, text: &str) -> Result<Option<MacAddr>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    let mac: Option<MacAddr> = text.parse().ok();
    let mac = mac.filter(|mac| mac.is_unicast());
    mac.map(Some).ok_or_else(|| {
        content(driver, Method::CreateEndpoint, format!("{text:?} is not a MAC address"))
    })
}
