//! What a reply grants, read from its options.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use super::message::{Message, code};
use super::{Lease, Route};
use crate::{MacAddr, Moment, names};

/// The reference's default, for a server that does not send a lease time.
const DEFAULT_LEASE_S: u32 = 3600;

/// RFC 2132 §3.3, §9.2: this many seconds means for ever.
const INFINITE: u32 = u32::MAX;

/// RFC 2132 §5.1: the smallest valid MTU.
const MIN_MTU: u16 = 68;

/// More name servers than any resolver asks, and more routes than fit a message of 1500 octets.
const MAX_SERVERS: usize = 32;
const MAX_ROUTES: usize = 512;

/// Why a reply grants nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TermsError {
    /// No server identifier (option 54) that is a host's address.
    Server,
    /// `yiaddr` is not a host's address.
    Address,
    /// No subnet mask (option 1) and none known from before.
    SubnetMask,
    /// It would expire at once.
    LeaseTime,
}

/// Returns the server that sent a reply.
pub(super) fn server(reply: &Message) -> Option<Ipv4Addr> {
    address(reply.option(code::SERVER)?).filter(|server| is_host(*server))
}

/// Says whether an address can be a host's.
pub(super) fn is_host(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    // 0/8 is "this network" (RFC 1122 §3.2.1.3), 224 and above is not unicast.
    !matches!(first, 0 | 127 | 224..)
}

/// Returns the lease that a reply grants. An invalid option is ignored alone, except for those
/// without which there is no lease. `previous` is the lease being renewed: its mask is kept if the
/// reply has none.
pub(super) fn lease(
    reply: &Message,
    source: Option<MacAddr>,
    obtained: Moment,
    previous: Option<&Lease>,
) -> Result<Lease, TermsError> {
    let server = server(reply).ok_or(TermsError::Server)?;
    if !is_host(reply.yiaddr) {
        return Err(TermsError::Address);
    }
    let length = prefix_length(reply)
        .or_else(|| {
            let previous = previous?.address;
            (previous.addr() == reply.yiaddr).then(|| previous.prefix_len())
        })
        .ok_or(TermsError::SubnetMask)?;
    let address = Ipv4Net::new(reply.yiaddr, length).map_err(|_| TermsError::SubnetMask)?;
    let lease_s = match seconds(reply, code::LEASE_TIME) {
        Some(0) => return Err(TermsError::LeaseTime),
        Some(INFINITE) => None,
        Some(lease_s) => Some(lease_s),
        None => Some(DEFAULT_LEASE_S),
    };
    let (t1_s, t2_s) = match lease_s {
        Some(lease_s) => renewal_times(reply, lease_s),
        None => (INFINITE, INFINITE),
    };
    let gateway = addresses(reply, code::ROUTERS).into_iter().find(|router| is_host(*router));
    let mtu =
        reply.option(code::MTU).and_then(|value| Some(u16::from_be_bytes(value.try_into().ok()?)));
    Ok(Lease {
        address,
        server,
        server_mac: source,
        gateway,
        routes: routes(reply, gateway),
        dns: addresses(reply, code::DNS),
        domain: reply.option(code::DOMAIN).and_then(names::from_text),
        search: reply
            .option(code::SEARCH)
            .and_then(|value| names::list(value, true))
            .unwrap_or_default(),
        mtu: mtu.filter(|mtu| MIN_MTU <= *mtu),
        host_name: reply.option(code::HOST_NAME).and_then(names::from_text),
        broadcast: reply.option(code::BROADCAST).and_then(self::address),
        obtained,
        lease_s,
        t1_s,
        t2_s,
        options: reply.options.clone(),
    })
}

/// T1 and T2 from the server, if they are in order; else half and seven eighths (RFC 2131 §4.4.5).
fn renewal_times(reply: &Message, lease_s: u32) -> (u32, u32) {
    // Rounded up: otherwise a lease of one second would be renewed at once, again and again.
    let t1_s = seconds(reply, code::T1).unwrap_or(lease_s.div_ceil(2));
    let t2_s = seconds(reply, code::T2).unwrap_or(lease_s - lease_s / 8);
    if 0 < t1_s && t1_s <= t2_s && t2_s <= lease_s {
        (t1_s, t2_s)
    } else {
        (lease_s.div_ceil(2), lease_s - lease_s / 8)
    }
}

fn prefix_length(reply: &Message) -> Option<u8> {
    let mask = u32::from(address(reply.option(code::SUBNET_MASK)?)?);
    // A mask of no bits would put the whole Internet on one link: it counts as no mask.
    let ones = mask.leading_ones();
    (0 < ones && ones + mask.trailing_zeros() == 32).then(|| u8::try_from(ones).ok())?
}

/// RFC 3442 "DHCP Client Behavior": with classless routes, neither static routes nor routers count.
/// Only unreadable classless routes count as absent.
fn routes(reply: &Message, gateway: Option<Ipv4Addr>) -> Vec<Route> {
    let classless = reply.option(code::CLASSLESS_ROUTES).and_then(classless_routes);
    if let Some(routes) = classless.filter(|routes| !routes.is_empty()) {
        return routes;
    }
    let mut routes = static_routes(reply);
    routes.extend(
        gateway.map(|gateway| Route { destination: Ipv4Net::default(), gateway: Some(gateway) }),
    );
    routes
}

/// RFC 3442 "Classless Route Option Format": a prefix length, as many octets of the prefix as it
/// covers, a router.
fn classless_routes(value: &[u8]) -> Option<Vec<Route>> {
    let mut routes = Vec::new();
    let mut rest = value;
    while let [length, after @ ..] = rest {
        if routes.len() == MAX_ROUTES {
            return None;
        }
        let significant = usize::from(length.div_ceil(8));
        let mut prefix = [0; 4];
        let (given, after) = after.split_at_checked(significant)?;
        prefix.get_mut(..significant)?.copy_from_slice(given);
        let (router, after) = after.split_at_checked(4)?;
        let router = address(router)?;
        routes.push(Route {
            destination: Ipv4Net::new(prefix.into(), *length).ok()?.trunc(),
            gateway: (!router.is_unspecified()).then_some(router),
        });
        rest = after;
    }
    Some(routes)
}

/// RFC 2132 §5.8: destinations by their class, each with its router.
fn static_routes(reply: &Message) -> Vec<Route> {
    let value = reply.option(code::STATIC_ROUTES).unwrap_or_default();
    let pairs = value.chunks_exact(8).take(MAX_ROUTES);
    pairs
        .filter_map(|pair| {
            let (destination, router) = (address(&pair[..4])?, address(&pair[4..])?);
            Some(Route { destination: classful(destination)?, gateway: Some(router) })
        })
        .collect()
}

/// Returns the network of an address's class, or the host if it has bits beyond that: the option
/// cannot express anything else. It must not contain a default route.
fn classful(destination: Ipv4Addr) -> Option<Ipv4Net> {
    let length = match destination.octets()[0] {
        0 => return None,
        1..128 => 8,
        128..192 => 16,
        192..224 => 24,
        224.. => return None,
    };
    let network = Ipv4Net::new(destination, length).ok()?;
    let host = Ipv4Net::new(destination, 32).ok()?;
    Some(if network.network() == destination { network } else { host })
}

fn address(value: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from)
}

/// Each address once.
fn addresses(reply: &Message, code: u8) -> Vec<Ipv4Addr> {
    let value = reply.option(code).unwrap_or_default();
    let mut found = Vec::new();
    for address in value.chunks_exact(4).filter_map(address) {
        if found.len() < MAX_SERVERS && !found.contains(&address) && !address.is_unspecified() {
            found.push(address);
        }
    }
    found
}

fn seconds(reply: &Message, code: u8) -> Option<u32> {
    reply.option(code)?.try_into().ok().map(u32::from_be_bytes)
}
