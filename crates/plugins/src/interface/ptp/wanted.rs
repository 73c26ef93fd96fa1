//! What an attachment of `ptp` wants, for CHECK and repair.

use cni::IpConfig;
use ipnet::IpNet;
use wanted::{Address, Because, Item, Route, SatisfiedBy, State, Wanted};

use super::{Ptp, plan};
use crate::engine::{Attached, Wants};
use crate::shared::{claim, container, forwarding, pair, rules};

impl Wants for Ptp {
    type Observed = ();

    fn wanted(attached: &Attached<'_, Self>, (): &()) -> Wanted {
        let (config, recorded) = (attached.config, attached.recorded);
        let ips: Vec<IpConfig> = attached.result.container_ips(attached.ifname).cloned().collect();
        let mut wanted = Wanted::new();
        let host = host_end(attached);
        // The host's end comes first: the kernel adds no IPv6 routes to an interface without a
        // carrier.
        wanted.extend(pair::wanted_ends(&host, recorded.is_some(), attached));
        let mut links = attached.result.interfaces.iter();
        let reported = links.find(|link| link.name == host && link.sandbox.is_empty());
        if let Some(mac) = reported.map(|link| link.mac.clone()).filter(|mac| !mac.is_empty()) {
            let state = State::Mac { link: host.clone(), mac };
            wanted.push(Item::host(state, Because::Created));
        }
        wanted.push(Item::host(State::Up { link: host.clone() }, Because::Created));
        container_side(&mut wanted, attached, &ips);
        host_side(&mut wanted, &host, &ips);
        wanted.extend(forwarding::wanted(&ips, config.forwarding));
        filter(&mut wanted, attached, &host, &ips);
        let claims = recorded.map(|recorded| recorded.claims.as_slice());
        wanted.extend(claim::wanted(claims.unwrap_or_default()));
        wanted
    }
}

/// Returns the name of the host's end. Without a record it is the first link of the host in the
/// result: plugins later in the chain add theirs after it.
fn host_end(attached: &Attached<'_, Ptp>) -> String {
    let recorded = attached.recorded.map(|recorded| recorded.host_ifname.clone());
    let reported = || {
        let mut links = attached.result.interfaces.iter();
        links.find(|link| link.sandbox.is_empty()).map(|link| link.name.clone())
    };
    recorded.filter(|name| !name.is_empty()).or_else(reported).unwrap_or_default()
}

fn container_side(wanted: &mut Wanted, attached: &Attached<'_, Ptp>, ips: &[IpConfig]) {
    let link = || attached.ifname.to_owned();
    let reported = attached.result.container_interface(attached.ifname);
    if let Some(mac) = reported.map(|link| link.mac.clone()).filter(|mac| !mac.is_empty()) {
        wanted.push(Item::container(State::Mac { link: link(), mac }, Because::Created));
    }
    let nodad = plan::OPTIONS.skip_dad;
    wanted.extend(container::wanted_addresses(attached.ifname, ips, nodad, true));
    wanted.push(Item::container(State::Up { link: link() }, Because::Created));
    let of_gateways =
        plan::kernel_gateway_routes(0, ips).into_iter().zip(plan::gateway_routes(ips));
    let of_gateways = of_gateways.map(|(route, asked)| {
        let mut route = container::wanted_route(attached.ifname, &route, &asked);
        // Another interface of the container may have the same gateway.
        if asked.gw.is_none() {
            route.satisfied_by = SatisfiedBy::Link;
        }
        (route, Because::Outbound)
    });
    let of_result = attached.result.routes.iter().map(|asked| {
        let route = plan::kernel_route(0, asked, ips);
        (container::wanted_route(attached.ifname, &route, asked), Because::Ipam)
    });
    wanted.extend(container::each_once(of_gateways.chain(of_result)));
}

/// The gateways' addresses on the host's end, and the host's routes to the container.
fn host_side(wanted: &mut Wanted, host: &str, ips: &[IpConfig]) {
    let link = || host.to_owned();
    wanted.push(Item::host(State::NoAdvertisements { link: link() }, Because::Safety));
    if ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
        wanted.push(Item::host(State::LinkLocal { link: link() }, Because::Inbound));
    }
    wanted.extend(plan::gateways(ips).into_iter().map(|gateway| {
        let address = Address {
            link: link(),
            address: plan::host_net(gateway),
            gateway: true,
            nodad: true,
            noprefixroute: false,
        };
        Item::host(State::Address(address), Because::Outbound)
    }));
    for route in plan::host_routes(0, ips) {
        let (to, by) = (route.destination.addr(), route.destination);
        let scope = route.scope.map(|scope| scope.0);
        let route = Route { scope, satisfied_by: SatisfiedBy::Link, ..Route::new(host, by) };
        wanted.push(Item::host(State::Route(route), Because::Inbound));
        wanted.push(Item::host(State::Path { link: link(), to, by }, Because::Inbound));
        let state = State::NotOfHost { address: to, link: link() };
        wanted.push(Item::host(state, Because::Inbound));
    }
}

fn filter(wanted: &mut Wanted, attached: &Attached<'_, Ptp>, host: &str, ips: &[IpConfig]) {
    let (config, recorded) = (attached.config, attached.recorded);
    let addresses: Vec<IpNet> = ips.iter().map(|ip| ip.address).collect();
    let network = attached.key.network.as_str();
    let planned = || rules::masquerade(config.masquerade, network, host, &addresses);
    let plan = recorded.map_or_else(planned, |recorded| recorded.filter.clone());
    let because = Because::Key("ipMasq".to_owned());
    wanted.extend(rules::wanted(config.masquerade, plan, addresses, because));
}
