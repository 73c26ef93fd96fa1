//! Repairs, under a running container, its interface, the port, the bridge, and the packet filter.

use cni::{AddResult, Error, IpConfig};
use cni_plugin::{Call, Outcome};
use ipnet::IpNet;
use kernel::route::{Change, Link, LinkSet, RouteSocket};
use state::Index;

use super::config::{Config, gateway_name};
use super::connect::{Around, Facts, plan_vlans};
use super::gateway::{self, OnConflict, Wanted};
use super::{NAME, bridge_link, filter, verify, vlan_gateway};
use crate::shared::container::Options;
use crate::shared::repair::{self, Inside, Repair};
use crate::shared::{advertisements, claim, forwarding, host_side, kernel_error as kernel, owner};

/// Runs the repair. The bridge comes first, because ports need it; the reservation of the addresses
/// comes before the addresses.
///
/// A sound attachment is observed once: CHECK's part is asked first.
pub(super) fn run(call: &Call<'_>) -> Outcome {
    let mut sound = false;
    let repaired = repair::of_record(call, NAME, |index, repair| {
        let config = Config::of(call)?;
        let result = call.require_prev_result("Required prevResult missing")?;
        let addresses = repair.addresses(call);
        sound = addresses && is_sound(call, index, &config)?;
        if sound {
            return Ok(());
        }
        let netns = call.open_netns()?;
        let mut host = RouteSocket::open().map_err(kernel)?;
        let mut inside = RouteSocket::open_in(&netns).map_err(kernel)?;

        let bridge =
            bridge_link::put_back(&mut host, index, &config, call.attachment(), &result, repair)?;
        let facts = Facts::read(index, call.attachment()).unwrap_or_default();
        // A bridge that was created again is another link, and so may be the one that has its name
        // by now.
        let claims = match &bridge {
            Some(bridge) => {
                claim::objects(&Around::of(&mut host, &config, bridge)?.places(), &facts.ips)
            }
            None => Vec::new(),
        };
        let taken =
            repair.look("find the address free", claim::check(call, index, &claims)).is_none();
        let wanted = Inside {
            kinds: &["veth"],
            options: Options { skip_dad: !config.detect_duplicates },
            addresses: addresses && !config.leave_down,
        };
        // The host's end comes first: the kernel adds no IPv6 routes to an interface without a
        // carrier.
        let link = inside.link_by_name(call.ifname().as_str()).map_err(kernel)?;
        let port = link.as_ref().and_then(|link| link.peer_index);
        let port = match port {
            Some(port) => host.link_by_index(port).map_err(kernel)?,
            None => None,
        };
        let ends = |port: &Link| port.peer_index == link.as_ref().map(|link| link.index);
        let port = port.filter(|port| ends(port) && is_reported(port, &result));
        // The filter comes before the port: it must check what the container sends from the first
        // frame.
        if let (Some(port), Some(link)) = (&port, &link) {
            put_filter_back(call, index, &config, &result, link, port, repair);
        }
        if let (Some(port), Some(bridge)) = (&port, &bridge) {
            if !taken || port.master == Some(bridge.index) {
                put_port_back(&mut host, call, &config, &result, port, bridge, repair)?;
            }
            put_mtu_back(&mut host, index, bridge, port, repair)?;
        }
        if port.is_some() && !config.leave_down {
            repair::container_side(call, &netns, &mut inside, &result, wanted, repair)?;
        }
        if let Some(bridge) = &bridge {
            around(call, index, &config, &result, &mut host, &mut inside, bridge, repair)?;
        }
        match bridge {
            // The conflict is already reported.
            Some(_) if taken => Ok(()),
            Some(_) => claim::move_to(call, index, NAME, &claims, repair),
            None => claim::put_back(call, index, &facts.claims, repair),
        }
    });
    Outcome { repaired, checked: if sound { Ok(()) } else { verify::check(call) } }
}

/// Reports whether nothing differs, and the attachment has its claims where it is reachable now.
fn is_sound(call: &Call<'_>, index: &Index, config: &Config) -> Result<bool, Error> {
    let Ok(claims) = verify::check_links(call, config) else { return Ok(false) };
    // What is not legible says nothing of claims, nor whether the mark is to be there.
    let Some(recorded) = Facts::read(index, call.attachment()) else { return Ok(false) };
    for claim in &claims {
        if !claim::is_held(index, call.attachment(), claim)? {
            return Ok(false);
        }
    }
    Ok(claims == recorded.claims)
}

fn is_reported(port: &Link, result: &AddResult) -> bool {
    result.interfaces.iter().any(|link| link.name == port.name && link.sandbox.is_empty())
}

/// Restores the host's end: a port of the bridge, up, marked, and set as configured.
fn put_port_back(
    host: &mut RouteSocket,
    call: &Call<'_>,
    config: &Config,
    result: &AddResult,
    port: &Link,
    bridge: &Link,
    repair: &mut Repair,
) -> Result<(), Error> {
    let alias = owner::alias(call.attachment());
    if port.alias.as_ref().is_some_and(|mark| *mark != alias && mark.starts_with(owner::PREFIX)) {
        return Ok(());
    }
    let has = port.port.unwrap_or_default();
    let attached = port.master == Some(bridge.index);
    let reported =
        result.interfaces.iter().find(|link| link.name == port.name && link.sandbox.is_empty());
    let mtu = reported.map(|link| link.mtu).filter(|mtu| *mtu != 0 && *mtu != port.mtu);
    let differs = |wanted: bool, found: bool| (!attached || wanted != found).then_some(wanted);
    let set = LinkSet {
        up: (!port.up()).then_some(true),
        master: (!attached).then_some(Some(bridge.index)),
        alias: (port.alias.as_ref() != Some(&alias)).then(|| alias.clone()),
        hairpin: differs(config.hairpin, has.hairpin),
        isolated: differs(config.isolated, has.isolated),
        // A new port forwards as soon as it may.
        forwarding: attached && verify::holds_back(port, bridge),
        mtu,
        ..LinkSet::default()
    };
    let ifindex = port.index;
    let what = format!("link {:?}: {}", port.name, described(&set, bridge));
    if !attached {
        let put = attach_again(host, config, ifindex, set);
        repair.note(what, put);
    } else if set != LinkSet::default() {
        repair.apply(host, what, &Change::SetLink { ifindex, set });
    }
    advertisements::refuse_again(&port.name, repair);
    if let Err(drift) = verify::check_vlans(host, config, port) {
        let done = host.apply(&plan_vlans(ifindex, &config.vlans));
        repair.note(&drift, done.map_err(|error| kernel(error.source)));
    }
    Ok(())
}

/// Makes a link a port again. It stays down until all of it is set: a new port is not isolated, and
/// is in the bridge's default VLAN.
fn attach_again(
    host: &mut RouteSocket,
    config: &Config,
    ifindex: u32,
    set: LinkSet,
) -> Result<(), Error> {
    let up = |up| {
        let set = LinkSet { up: Some(up), ..LinkSet::default() };
        Change::SetLink { ifindex, set }
    };
    let mut changes =
        vec![up(false), Change::SetLink { ifindex, set: LinkSet { up: None, ..set } }];
    changes.extend(plan_vlans(ifindex, &config.vlans));
    changes.push(up(true));
    host.apply(&changes).map_err(|error| kernel(error.source))
}

fn described(set: &LinkSet, bridge: &Link) -> String {
    let mut parts = Vec::new();
    if set.master.is_some() {
        parts.push(format!("port of bridge {:?}", bridge.name));
    }
    if set.up.is_some() {
        parts.push("up".to_owned());
    }
    if set.alias.is_some() {
        parts.push("its owner's mark".to_owned());
    }
    for (what, on) in [("hairpin mode", set.hairpin), ("isolation", set.isolated)] {
        // Both are set on a new port; off is its default anyway.
        if let Some(on) = on.filter(|on| *on || set.master.is_none()) {
            parts.push(format!("{what} {}", if on { "on" } else { "off" }));
        }
    }
    if set.forwarding {
        parts.push("forwards".to_owned());
    }
    if let Some(mtu) = set.mtu {
        parts.push(format!("MTU {mtu}"));
    }
    parts.join(", ")
}

/// Restores the bridge's MTU, if the bridge is ours. It follows the ports' MTU, which is already
/// restored.
fn put_mtu_back(
    host: &mut RouteSocket,
    index: &Index,
    bridge: &Link,
    port: &Link,
    repair: &mut Repair,
) -> Result<(), Error> {
    let [bridge, port] = [bridge.index, port.index].map(|link| host.link_by_index(link));
    let (Some(bridge), Some(port)) = (bridge.map_err(kernel)?, port.map_err(kernel)?) else {
        return Ok(());
    };
    if let Some(mtu) = bridge_link::wrong_mtu(host, index, &bridge, &port)? {
        let set = LinkSet { mtu: Some(mtu), ..LinkSet::default() };
        let what = format!("bridge {:?}: MTU {mtu}", bridge.name);
        repair.apply(host, what, &Change::SetLink { ifindex: bridge.index, set });
    }
    Ok(())
}

/// Restores the gateways, and what they need to reach the containers.
fn put_gateways_back(
    index: &Index,
    config: &Config,
    (result, ips): (&AddResult, &[IpConfig]),
    host: &mut RouteSocket,
    bridge: &Link,
    repair: &mut Repair,
) -> Result<(), Error> {
    let ours = bridge_link::own_gateway_link(host, index, config, bridge)?;
    if let (Some(link), Some(vlan)) = (&ours, config.vlans.access) {
        vlan_gateway::put_back(host, link, bridge, vlan, repair)?;
    }
    if let Some(link) = &ours {
        host_side::put_ipv6_back(host, &link.name, ips, repair)?;
    }
    if let Err(drift) = verify::check_gateway_addresses(host, config, ips) {
        let gateways = ips.iter().map(|ip| gateway::of(&ip.address, ip.gateway));
        let gateways = gateways.collect::<Result<Vec<IpNet>, Error>>()?;
        // An address that is in the way by now is a foreign one. On a link of ours it can stay in
        // addition to ours.
        let others = if ours.is_some() { OnConflict::Keep } else { OnConflict::Refuse };
        // Containers know the link by its old hardware address.
        let vlan =
            config.vlans.access.map(|vlan| gateway_name(&config.bridge, vlan)).transpose()?;
        let known = |name: &str| result.interfaces.iter().find(|link| link.name == name);
        let vlan_mac = vlan.and_then(|name| known(name.as_str())?.mac.parse().ok());
        let wanted = Wanted { addresses: &gateways, others, vlan_mac };
        let given =
            bridge_link::give_gateways(host, index, config, bridge, &wanted, &mut |_| Ok(()));
        repair.note(&drift, given.map(drop));
    }
    let Some(link) = &ours else { return Ok(()) };
    let astray = host_side::astray(host, link, &verify::ways(ips))?;
    for way in astray.missing {
        let what = host_side::route_name(&way, &link.name);
        repair.apply(host, what, &host_side::restore_route(&way, link.index));
    }
    for covered in astray.covered {
        repair.look("leave the way", Err::<(), Error>(covered.drift(&link.name)));
    }
    Ok(())
}

/// Restores what the container needs of the host besides its port: the gateways' addresses,
/// forwarding, and the correct neighbour entries.
#[expect(clippy::too_many_arguments, reason = "both sides of the pair, and what is known of them")]
fn around(
    call: &Call<'_>,
    index: &Index,
    config: &Config,
    result: &AddResult,
    host: &mut RouteSocket,
    inside: &mut RouteSocket,
    bridge: &Link,
    repair: &mut Repair,
) -> Result<(), Error> {
    let ips: Vec<IpConfig> = result.container_ips(call.ifname().as_str()).cloned().collect();
    if config.gateway && call.ipam().is_some() {
        put_gateways_back(index, config, (result, &ips), host, bridge, repair)?;
        if let Err(drift) = forwarding::check(&ips) {
            repair
                .note(&drift, forwarding::hold(index, call.attachment(), &ips, config.forwarding));
        }
    }
    let (on_host, in_container) = verify::wrong_neighbours(host, inside, call, config, result)?;
    repair::forget_neighbours(host, &bridge.name, on_host, repair);
    repair::forget_neighbours(inside, call.ifname().as_str(), in_container, repair);
    Ok(())
}

fn put_filter_back(
    call: &Call<'_>,
    index: &Index,
    config: &Config,
    result: &AddResult,
    link: &Link,
    port: &Link,
    repair: &mut Repair,
) {
    let Err(drift) = filter::check(call, config, result, link.mac, &port.name) else { return };
    let Some(facts) = Facts::read(index, call.attachment()) else { return };
    let key = call.attachment();
    let added = crate::shared::rules::add(index, key, config.masquerade, &facts.filter, &facts.ips);
    repair.note(&drift, added);
}
