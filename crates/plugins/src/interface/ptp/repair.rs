//! Repairs, under a running container, both ends of the pair, the host's routes, and the packet
//! filter.

use cni::{Error, IpConfig};
use cni_plugin::Call;
use kernel::route::{Change, Link, LinkSet, RouteSocket};

use super::config::{Config, ipam};
use super::connect::Facts;
use super::{NAME, plan, verify};
use crate::shared::claim;
use crate::shared::repair::{self, Inside, Repair};
use crate::shared::{
    advertisements, container, forwarding, host_side, kernel_error as kernel, owner, rules,
};

/// Runs the repair; the reservation of the addresses comes before the addresses.
pub(super) fn run(call: &Call<'_>) -> Result<Vec<String>, Error> {
    repair::of_record(call, NAME, |index, repair| {
        let config = Config::of(call)?;
        let result = call.require_prev_result("Required prevResult missing")?;
        let addresses = ipam(call).map(|_| repair.addresses(call))?;
        let netns = call.open_netns()?;
        let mut host = RouteSocket::open().map_err(kernel)?;
        let mut inside = RouteSocket::open_in(&netns).map_err(kernel)?;
        let link = inside.link_by_name(call.ifname().as_str()).map_err(kernel)?;
        let peer = link.as_ref().and_then(|link| link.peer_index);
        let peer = peer.map(|peer| host.link_by_index(peer)).transpose().map_err(kernel)?.flatten();
        let ips: Vec<IpConfig> = result.container_ips(call.ifname().as_str()).cloned().collect();
        let ways = link.as_ref().map(|link| plan::ways(link.index, &ips)).unwrap_or_default();
        let wanted = Inside {
            kinds: &["veth"],
            options: plan::OPTIONS,
            addresses,
            ways: &ways,
            no_prefix_routes: true,
        };
        let alias = owner::alias(call.attachment());
        let peer = peer.filter(|peer| {
            let reported =
                |link: &cni::Interface| link.name == peer.name && link.sandbox.is_empty();
            let ends = peer.peer_index == link.as_ref().map(|link| link.index);
            ends && result.interfaces.iter().any(reported)
        });
        let Some(peer) = peer else { return Ok(()) };
        put_link_back(&mut host, &peer, &alias, &result, repair);
        repair::container_side(call, &netns, &mut inside, &result, wanted, repair)?;
        put_host_back(&mut host, &peer, &ips, repair)?;
        if let Err(drift) = forwarding::check(&ips) {
            repair.note(
                repair::told(&drift),
                forwarding::hold(index, call.attachment(), &ips, config.forwarding),
            );
        }
        if let (Err(drift), Some(facts)) = (
            verify::check_filter(call, &config, &peer, &ips),
            Facts::read(index, call.attachment()),
        ) {
            let key = call.attachment();
            let added = rules::add(index, key, config.masquerade, &facts.filter, &facts.ips);
            repair.note(repair::told(&drift), added);
        }
        let claims = Facts::read(index, call.attachment()).unwrap_or_default().claims;
        claim::put_back(call, index, &claims, repair)
    })
}

fn put_link_back(
    host: &mut RouteSocket,
    peer: &Link,
    alias: &str,
    result: &cni::AddResult,
    repair: &mut Repair,
) {
    let mut all = result.interfaces.iter();
    let Some(reported) = all.find(|link| link.name == peer.name && link.sandbox.is_empty()) else {
        return;
    };
    let mark = peer.alias.as_deref();
    if mark.is_some_and(|mark| mark != alias && mark.starts_with(owner::PREFIX)) {
        return;
    }
    let set = LinkSet {
        up: (!peer.up()).then_some(true),
        mac: reported.mac.parse().ok().filter(|_| container::same_mac(reported, peer).is_err()),
        mtu: container::same_mtu(reported, peer).is_err().then_some(reported.mtu),
        alias: (mark != Some(alias)).then(|| alias.to_owned()),
        ..LinkSet::default()
    };
    if set != LinkSet::default() {
        let mut parts = Vec::new();
        parts.extend(set.up.map(|_| "up".to_owned()));
        parts.extend(set.mac.map(|mac| format!("MAC address {mac}")));
        parts.extend(set.mtu.map(|mtu| format!("MTU {mtu}")));
        parts.extend(set.alias.as_ref().map(|_| "its owner's mark".to_owned()));
        let what = format!("link {:?}: {}", peer.name, parts.join(", "));
        repair.apply(host, what, &Change::SetLink { ifindex: peer.index, set });
    }
}

/// Restores the gateways' addresses and the host's routes; a route that another attachment or
/// program has by now stays.
fn put_host_back(
    host: &mut RouteSocket,
    peer: &Link,
    ips: &[IpConfig],
    repair: &mut Repair,
) -> Result<(), Error> {
    advertisements::refuse_again(&peer.name, repair);
    host_side::put_ipv6_back(host, &peer.name, ips, repair)?;
    let present = host.addresses(Some(peer.index)).map_err(kernel)?;
    for change in plan::host_addresses(peer.index, ips) {
        if let Change::AddAddress { address, .. } = &change
            && !present.iter().any(|found| found.address.addr() == address.addr())
        {
            let what = format!("gateway address {} of {:?}", address.addr(), peer.name);
            repair.apply(host, what, &change);
        }
    }
    for route in plan::host_routes(peer.index, ips) {
        if verify::has_host_route(host, peer, &route)? {
            let to = route.destination.addr();
            if let Some(covered) = host_side::covering(host, peer, to, &route.destination)? {
                repair.look("leave the way", Err::<(), Error>(covered.drift(&peer.name)));
            }
            continue;
        }
        let what = format!("the host's route to {} by {:?}", route.destination, peer.name);
        let added = host.apply_one(&Change::AddRoute(route));
        repair.note(what, added.map_err(kernel));
    }
    Ok(())
}
