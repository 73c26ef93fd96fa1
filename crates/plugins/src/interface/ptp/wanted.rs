//! What an attachment of `ptp` wants, for CHECK and repair.

use cni::IpConfig;
use ipnet::IpNet;
use wanted::{Address, Item, Reason, Route, RouteMatch, State, Wanted};

use super::{Ptp, plan};
use crate::engine::{Attachment, Picture, Wants};
use crate::shared::failure::Failure;
use crate::shared::{claim, container, forwarding, pair, rules};

impl Wants for Ptp {
    /// The host's end has the attachment's mark.
    type Observation = bool;

    fn observe(
        attached: &Attachment<'_, Self>,
        picture: &mut Picture<'_>,
    ) -> Result<bool, Failure> {
        pair::is_marked(picture, &host_end(attached), attached.key)
    }

    fn wanted(attached: &Attachment<'_, Self>, marked: &bool) -> Wanted {
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
            wanted.push(Item::host(state, Reason::Created));
        }
        wanted.push(Item::host(State::Up { link: host.clone() }, Reason::Created));
        container_side(&mut wanted, attached, &ips);
        // The reference's plugin does not prevent this, so it is not a difference there.
        if recorded.is_some() || *marked {
            wanted.push(Item::host(State::NoAdvertisements { link: host.clone() }, Reason::Safety));
        }
        host_side(&mut wanted, &host, &ips);
        wanted.extend(forwarding::wanted(&ips, config.forwarding));
        if recorded.is_some() || *marked {
            filter(&mut wanted, attached, &host, &ips);
        }
        let claims = recorded.map(|recorded| recorded.claims.as_slice());
        wanted.extend(claim::wanted(claims.unwrap_or_default()));
        wanted
    }
}

/// Returns the name of the host's end. Without a record it is the first link of the host in the
/// result: plugins later in the chain add theirs after it.
fn host_end(attached: &Attachment<'_, Ptp>) -> String {
    let recorded = attached.recorded.map(|recorded| recorded.host_ifname.clone());
    let reported = || {
        let mut links = attached.result.interfaces.iter();
        links.find(|link| link.sandbox.is_empty()).map(|link| link.name.clone())
    };
    recorded.filter(|name| !name.is_empty()).or_else(reported).unwrap_or_default()
}

fn container_side(wanted: &mut Wanted, attached: &Attachment<'_, Ptp>, ips: &[IpConfig]) {
    let link = || attached.ifname.to_owned();
    let reported = attached.result.container_interface(attached.ifname);
    if let Some(mac) = reported.map(|link| link.mac.clone()).filter(|mac| !mac.is_empty()) {
        wanted.push(Item::container(State::Mac { link: link(), mac }, Reason::Created));
    }
    let nodad = plan::OPTIONS.skip_dad;
    wanted.extend(container::wanted_addresses(attached.ifname, ips, nodad, true));
    wanted.push(Item::container(State::Up { link: link() }, Reason::Created));
    let of_gateways =
        plan::kernel_gateway_routes(0, ips).into_iter().zip(plan::gateway_routes(ips));
    let of_gateways = of_gateways.map(|(route, asked)| {
        let mut route = container::wanted_route(attached.ifname, &route, &asked);
        // Another interface of the container may have the same gateway.
        if asked.gw.is_none() {
            route.satisfied_by = RouteMatch::Link;
        }
        (route, Reason::Outbound)
    });
    let of_result = attached.result.routes.iter().map(|asked| {
        let route = plan::kernel_route(0, asked, ips);
        (container::wanted_route(attached.ifname, &route, asked), Reason::Ipam)
    });
    wanted.extend(container::each_once(of_gateways.chain(of_result)));
}

/// The gateways' addresses on the host's end, and the host's routes to the container.
fn host_side(wanted: &mut Wanted, host: &str, ips: &[IpConfig]) {
    let link = || host.to_owned();
    if ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
        wanted.push(Item::host(State::LinkLocal { link: link() }, Reason::Inbound));
    }
    wanted.extend(plan::gateways(ips).into_iter().map(|gateway| {
        let address = Address {
            link: link(),
            address: plan::host_net(gateway),
            gateway: true,
            nodad: true,
            noprefixroute: false,
        };
        Item::host(State::Address(address), Reason::Outbound)
    }));
    for route in plan::host_routes(0, ips) {
        let (to, by) = (route.destination.addr(), route.destination);
        let scope = route.scope.map(|scope| scope.0);
        let route = Route { scope, satisfied_by: RouteMatch::Link, ..Route::new(host, by) };
        wanted.push(Item::host(State::Route(route), Reason::Inbound));
        wanted.push(Item::host(State::Path { link: link(), to, by }, Reason::Inbound));
        let state = State::NotOfHost { address: to, link: link() };
        wanted.push(Item::host(state, Reason::Inbound));
    }
}

/// The masquerade. The reference's plugin has rules of its own for it, so ours are no difference where
/// it attached the container: it neither recorded it nor marked the pair.
fn filter(wanted: &mut Wanted, attached: &Attachment<'_, Ptp>, host: &str, ips: &[IpConfig]) {
    let (config, recorded) = (attached.config, attached.recorded);
    let addresses: Vec<IpNet> = ips.iter().map(|ip| ip.address).collect();
    let network = attached.key.network.as_str();
    let planned = || rules::masquerade(config.masquerade, network, host, &addresses);
    let plan = recorded.map_or_else(planned, |recorded| recorded.filter.clone());
    let because = Reason::Key("ipMasq".to_owned());
    wanted.extend(rules::wanted(config.masquerade, plan, addresses, because));
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::config::Config;
    use super::super::connect::RecordData;
    use super::*;
    use crate::engine::sample;
    use crate::shared::rules::MasqueradeBackend;

    #[test]
    fn a_pair_with_addresses_of_both_families_that_is_masqueraded() {
        let config = Config {
            masquerade: Some(MasqueradeBackend::Nftables(firewall::masquerade::Sources::default())),
            mtu: crate::shared::mtu::Mtu::Kernels,
            host_ifname: None,
            forwarding: forwarding::at_the_end(false),
        };
        let result = sample::result(
            vec![sample::host_link("veth1", "02:00:00:00:00:02"), sample::interface()],
            &[("10.1.0.2/24", "10.1.0.1"), ("2001:db8::2/64", "2001:db8::1")],
            &["0.0.0.0/0", "::/0"],
        );
        let ips: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
        let recorded = RecordData {
            host_ifname: "veth1".to_owned(),
            filter: rules::masquerade(config.masquerade, "n", "veth1", &ips),
            ips,
            claims: vec!["claim".to_owned()],
        };
        let (key, config, recorded) = (&sample::key(), &config, Some(&recorded));
        let attached = Attachment::<Ptp> { key, ifname: "eth0", result: &result, config, recorded };
        let wanted = Ptp::wanted(&attached, &true);
        expect![[r#"
            container: interface "eth0" (veth) (ADD created it)
            host: link "veth1", the other end of interface "eth0" (ADD created it)
            host: MTU 1500 of link "veth1" (ADD created it)
            host: the owner's mark of link "veth1" (it shows the owner)
            host: MAC address 02:00:00:00:00:02 of link "veth1" (ADD created it)
            host: link "veth1" up (ADD created it)
            container: MAC address 02:00:00:00:00:03 of interface "eth0" (ADD created it)
            container: address 10.1.0.2/24 of interface "eth0" (the IPAM plugin assigned it)
            container: address 2001:db8::2/64 of interface "eth0" (the IPAM plugin assigned it)
            container: interface "eth0" up (ADD created it)
            container: route 10.1.0.1/32 of interface "eth0" (the container reaches others by it)
            container: route 2001:db8::1/128 of interface "eth0" (the container reaches others by it)
            container: route 10.1.0.0/24 via 10.1.0.1 of interface "eth0" (the container reaches others by it)
            container: route 2001:db8::/64 via 2001:db8::1 of interface "eth0" (the container reaches others by it)
            container: route 0.0.0.0/0 via 10.1.0.1 of interface "eth0" (the IPAM plugin assigned it)
            container: route ::/0 via 2001:db8::1 of interface "eth0" (the IPAM plugin assigned it)
            host: no router advertisements by link "veth1" (accept_ra 0) (a container must not change the host)
            host: link-local IPv6 address of "veth1" (the host reaches the container by it)
            host: gateway address 10.1.0.1 of "veth1" (the container reaches others by it)
            host: gateway address 2001:db8::1 of "veth1" (the container reaches others by it)
            host: the host's route to 10.1.0.2/32 by "veth1" (the host reaches the container by it)
            host: the host's packets to 10.1.0.2 leave by "veth1" (the host reaches the container by it)
            host: 10.1.0.2 is not the host's own (the host reaches the container by it)
            host: the host's route to 2001:db8::2/128 by "veth1" (the host reaches the container by it)
            host: the host's packets to 2001:db8::2 leave by "veth1" (the host reaches the container by it)
            host: 2001:db8::2 is not the host's own (the host reaches the container by it)
            host: IPv4 forwarding (the container reaches others by it)
            host: IPv6 forwarding (the container reaches others by it)
            host: packet filter: inet netwright masquerade4 { "veth1" . 10.1.0.2 : jump masquerade-1e1a10eb03cd4c8f }, inet netwright masquerade6 { "veth1" . 2001:db8::2 : jump masquerade-06e62a5cfd8d8ef9 } (the configuration's ipMasq asks for it)
            host: the claim "claim" (it shows the owner)
        "#]].assert_eq(&wanted.to_string());
    }
}
