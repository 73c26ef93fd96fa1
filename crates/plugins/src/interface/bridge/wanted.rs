//! What an attachment of `bridge` wants, for CHECK and repair.

use cni::IpConfig;
use ipnet::IpNet;
use kernel::MacAddr;
use wanted::{Item, Place, Reason, State, Wanted};

use super::config::{Config, gateway_name};
use super::connect::{Reach, RecordData};
use super::{Bridge, bridge_item, bridge_link, filter, gateway, port, vlan_gateway, vrf};
use crate::engine::{Attachment, Comparison, Difference, Picture, Wants, unknown};
use crate::shared::container::Options;
use crate::shared::failure::Failure;
use crate::shared::{advertisements, claim, container, forwarding, pair, rules};

/// What decides what is wanted, besides configuration, result and record.
#[derive(Default)]
pub(crate) struct Observation {
    /// An attachment created the bridge, and no other bridge has its name by now.
    ours: bool,
    /// The same of the link that carries the gateways.
    gateway_link_is_ours: bool,
    /// The MTU that a configuration gave the bridge.
    mtu: Option<u32>,
    /// Where the container is reachable; `None` without a bridge.
    reach: Option<Reach>,
    /// The VRF by which the host routes to it.
    vrf: Option<String>,
    /// The host hears its routers by the bridge, beside this container.
    hears_routers: bool,
    /// The host's end has the attachment's mark.
    marked: bool,
}

impl Wants for Bridge {
    type Observation = Observation;

    fn observe(
        attached: &Attachment<'_, Self>,
        picture: &mut Picture<'_>,
    ) -> Result<Observation, Failure> {
        let config = attached.config;
        let named = picture.link(Place::Host, config.bridge.as_str())?;
        let note = bridge_link::read_note(picture.index, config.bridge.as_str())?;
        let ours = note.is_of(named.as_ref());
        let bridge = named.filter(|link| link.is_kind("bridge"));
        let gateway_link_is_ours = match config.vlans.access {
            _ if !config.gateway => false,
            None => ours,
            Some(vlan) => {
                let name = gateway_name(&config.bridge, vlan)?;
                let link = picture.link(Place::Host, name.as_str())?;
                link.is_some_and(|link| vlan_gateway::is_ours(&link))
            }
        };
        let vrf = config.vrf.as_ref().map(|vrf| picture.link(Place::Host, vrf.as_str()));
        let vrf = vrf.transpose()?.flatten();
        let host = &mut picture.namespaces.get()?.host;
        let hears_routers = match (attached.recorded, &bridge) {
            (Some(recorded), _) => filter::keeps_routers_out(&recorded.filter),
            // The reference's plugin leaves the bridge as it is, and so does CHECK: without its
            // routers the host would lose its way out.
            (None, Some(bridge)) if !note.created => {
                note.hears_routers || advertisements::has_learnt(host, bridge)?
            }
            (None, _) => false,
        };
        let reach = bridge.map(|link| Reach::of(host, config, &link, vrf.as_ref())).transpose()?;
        let vrf = reach.as_ref().map(|reach| reach.vrf(host)).transpose()?.flatten();
        let marked = pair::is_marked(picture, &host_end(attached), attached.key)?;
        let mtu = note.mtu;
        Ok(Observation { ours, gateway_link_is_ours, mtu, reach, vrf, hears_routers, marked })
    }

    /// The bridge comes first, because ports need it. The packet filter comes before the port: it
    /// must check what the container sends from the first frame. The port comes before the
    /// container's side: the kernel adds no IPv6 routes to an interface without a carrier.
    fn wanted(attached: &Attachment<'_, Self>, observed: &Observation) -> Wanted {
        let (config, recorded) = (attached.config, attached.recorded);
        let ips: Vec<IpConfig> = attached.result.container_ips(attached.ifname).cloned().collect();
        let mut wanted = Wanted::new();
        let bridge = bridge(attached, observed);
        let vrf = bridge.vrf.clone();
        wanted.push(Item::host(State::Bridge(bridge), Reason::Created));
        wanted.extend(vrf.map(|vrf| vrf_item(config.bridge.as_str(), vrf)));
        let host = host_end(attached);
        wanted.extend(pair::wanted_ends(&host, recorded.is_some(), attached));
        wanted.extend(filter_item(attached, observed, &host, &ips));
        wanted.extend(claim::wanted(&claims(recorded, observed)));
        port_items(&mut wanted, attached, observed, &host);
        let options = Options::new(!config.detect_duplicates);
        let (ifname, result) = (attached.ifname, attached.result);
        wanted.extend(container::wanted_side(ifname, result, &ips, options, config.leave_down));
        if config.gateway && config.has_ipam {
            gateway_items(&mut wanted, attached, observed, &ips);
            wanted.extend(forwarding::wanted(&ips, config.forwarding));
        }
        // With a VLAN the gateway is on a link of its own, with another hardware address.
        if config.vlans.access.is_none() {
            neighbour_items(&mut wanted, attached, &ips);
        }
        wanted
    }

    fn compare(_: &Config, picture: &mut Picture<'_>, item: &Item) -> Comparison {
        match &item.state {
            State::Bridge(bridge) => bridge_item::compare(picture, bridge),
            State::Port(wanted) => port::compare(picture, wanted),
            State::BridgeMtu { link, port, mtu } => {
                bridge_item::compare_mtu(picture, link, port, *mtu)
            }
            State::VlanLink { link, bridge, vlan } => {
                vlan_gateway::compare(picture, link, bridge, *vlan)
            }
            State::Vrf(wanted) => vrf::compare(picture, wanted),
            State::Gateways(gateways) => gateway::compare(picture, gateways),
            _ => Err(unknown(item)),
        }
    }

    fn restore(
        _: &Config,
        picture: &mut Picture<'_>,
        item: &Item,
    ) -> Result<Option<String>, Failure> {
        match &item.state {
            State::Bridge(bridge) => Ok(bridge_item::restore(picture, bridge)?),
            State::Port(wanted) => Ok(port::restore(picture, wanted)?),
            State::BridgeMtu { link, port, mtu } => {
                Ok(bridge_item::restore_mtu(picture, link, port, *mtu)?)
            }
            State::VlanLink { link, bridge, vlan } => {
                Ok(vlan_gateway::restore(picture, link, bridge, *vlan).map(|()| None)?)
            }
            State::Vrf(wanted) => Ok(vrf::restore(picture, wanted).map(|()| None)?),
            State::Gateways(gateways) => Ok(gateway::restore(picture, gateways).map(|()| None)?),
            _ => Err(unknown(item)),
        }
    }

    fn others(
        attached: &Attachment<'_, Self>,
        observed: &Observation,
        picture: &mut Picture<'_>,
    ) -> Result<Vec<Difference>, Failure> {
        let config = attached.config;
        let mut found = Vec::new();
        let name = config.bridge.as_str();
        if reported(attached, name).is_none() {
            found.push(Difference::text(format!("prevResult does not list bridge {name:?}")));
        }
        // Repair does not configure an interface that was left down.
        let mac = mac_of(attached.result.container_interface(attached.ifname));
        if let (true, Some(mac)) = (config.leave_down, mac)
            && let Some(link) = picture.link(Place::Container, attached.ifname)?
            && let Some(has) = link.mac.map(|mac| mac.to_string())
            && !has.eq_ignore_ascii_case(&mac)
        {
            let ifname = attached.ifname;
            let text = format!("interface {ifname:?} has MAC address {has}, ADD reported {mac}");
            found.push(Difference::text(text));
        }
        if let Some(reach) = &observed.reach {
            let ips = attached.result.container_ips(attached.ifname);
            let ips: Vec<IpConfig> = ips.cloned().collect();
            let call = picture.call;
            let host = &mut picture.namespaces.get()?.host;
            found.extend(Difference::of(reach.check(call, host, &ips))?);
        }
        Ok(found)
    }
}

/// Returns what ADD reported of a link of the host.
fn reported<'a>(attached: &Attachment<'a, Bridge>, name: &str) -> Option<&'a cni::Interface> {
    let mut links = attached.result.interfaces.iter();
    links.find(|link| link.name == name && link.sandbox.is_empty())
}

fn mac_of(link: Option<&cni::Interface>) -> Option<String> {
    link.map(|link| link.mac.clone()).filter(|mac| !mac.is_empty())
}

/// Describes the bridge. The reference's plugin has bridges learn from link-local frames, so that is
/// not a difference where it attached the container.
fn bridge(attached: &Attachment<'_, Bridge>, observed: &Observation) -> wanted::Bridge {
    let config = attached.config;
    // The address of another program's bridge follows its ports, unless ADD has fixed it.
    let is_fixed = observed.ours || config.gateway;
    let mac = mac_of(reported(attached, config.bridge.as_str())).filter(|_| is_fixed);
    let bridge = config.wanted_bridge();
    let no_link_local_learning = attached.recorded.is_some() && bridge.no_link_local_learning;
    let mtu = bridge.mtu.or(observed.mtu);
    let (ours, hears_routers) = (observed.ours, observed.hears_routers);
    wanted::Bridge { ours, mac, mtu, no_link_local_learning, hears_routers, ..bridge }
}

/// Returns the name of the host's end. Without a record it is the first link of the host in the
/// result that is neither the bridge nor the link of its VLAN.
fn host_end(attached: &Attachment<'_, Bridge>) -> String {
    let config = attached.config;
    let vlan = config.vlans.access.and_then(|vlan| gateway_name(&config.bridge, vlan).ok());
    let is_shared = |name: &str| {
        name == config.bridge.as_str() || vlan.as_ref().is_some_and(|vlan| vlan.as_str() == name)
    };
    let reported = || {
        let mut links = attached.result.interfaces.iter();
        let end = links.find(|link| link.sandbox.is_empty() && !is_shared(&link.name));
        end.map(|link| link.name.clone())
    };
    let recorded = attached.recorded.map(|recorded| recorded.host_ifname.clone());
    recorded.filter(|name| !name.is_empty()).or_else(reported).unwrap_or_default()
}

/// The masquerade and the spoof checks. The reference's plugin has rules of its own for these, so ours
/// are no difference where it attached the container: it neither recorded it nor marked the pair.
fn filter_item(
    attached: &Attachment<'_, Bridge>,
    observed: &Observation,
    host: &str,
    ips: &[IpConfig],
) -> Option<Item> {
    let (config, recorded) = (attached.config, attached.recorded);
    let addresses: Vec<IpNet> = ips.iter().map(|ip| ip.address).collect();
    let planned = || {
        let mac = mac_of(attached.result.container_interface(attached.ifname));
        let mac: Option<MacAddr> = mac.and_then(|mac| mac.parse().ok());
        let network = attached.key.network.as_str();
        let vrf = observed.vrf.as_deref();
        let guard = |mac| filter::guard(config, mac, host, observed.hears_routers);
        let plan = |mac| filter::plan(network, config, &addresses, guard(mac), vrf);
        mac.map(plan).unwrap_or_default()
    };
    let plan = match recorded {
        Some(recorded) => recorded.filter.clone(),
        None if observed.marked => planned(),
        None => return None,
    };
    let because = match config.masquerade {
        Some(_) => Reason::Key("ipMasq".to_owned()),
        None if observed.hears_routers && !config.check_spoofing => Reason::Safety,
        None => Reason::Key("macspoofchk".to_owned()),
    };
    rules::wanted(config.masquerade, plan, addresses, because)
}

fn vrf_item(link: &str, vrf: String) -> Item {
    let state = State::Vrf(wanted::Vrf { link: link.to_owned(), vrf, table: None });
    Item::host(state, Reason::Key("vrf".to_owned()))
}

/// Returns the claims where the container is reachable now: a bridge that was created again is
/// another link, and so may be the one that has its name by now.
fn claims(recorded: Option<&RecordData>, observed: &Observation) -> Vec<String> {
    match (recorded, &observed.reach) {
        (Some(recorded), Some(reach)) => claim::objects(&reach.places(), &recorded.ips),
        (Some(recorded), None) => recorded.claims.clone(),
        (None, _) => Vec::new(),
    }
}

fn port_items(
    wanted: &mut Wanted,
    attached: &Attachment<'_, Bridge>,
    observed: &Observation,
    host: &str,
) {
    let config = attached.config;
    let link = || host.to_owned();
    // The reference's plugin does not prevent this, so it is not a difference there.
    if attached.recorded.is_some() {
        wanted.push(Item::host(State::NoAdvertisements { link: link() }, Reason::Safety));
    }
    wanted.push(Item::host(State::Port(config.wanted_port(host)), Reason::Created));
    wanted.push(Item::host(State::Up { link: link() }, Reason::Created));
    if observed.ours {
        let mtu =
            State::BridgeMtu { link: config.bridge.to_string(), port: link(), mtu: observed.mtu };
        wanted.push(Item::host(mtu, Reason::Created));
    }
}

/// The gateways' addresses, and what the host needs to reach the containers.
fn gateway_items(
    wanted: &mut Wanted,
    attached: &Attachment<'_, Bridge>,
    observed: &Observation,
    ips: &[IpConfig],
) {
    let with: Vec<(&IpConfig, IpNet)> = ips
        .iter()
        .filter_map(|ip| Some((ip, gateway::of(&ip.address, ip.gateway).ok()?)))
        .collect();
    let Ok(mut all) = attached.config.wanted_gateways() else { return };
    if with.is_empty() {
        return;
    }
    all.ours = observed.gateway_link_is_ours;
    for (_, gateway) in with.iter().filter(|(ip, _)| ip.gateway.is_some()) {
        if !all.addresses.contains(gateway) {
            all.addresses.push(*gateway);
        }
    }
    // Containers know the link by its old hardware address.
    all.mac = all.vlan.and_then(|_| mac_of(reported(attached, &all.link)));
    let link = all.link.clone();
    if !all.ours {
        wanted.push(Item::host(State::Gateways(all), Reason::Outbound));
        return;
    }
    if let Some(vlan) = all.vlan {
        let state = State::VlanLink { link: link.clone(), bridge: all.bridge.clone(), vlan };
        wanted.push(Item::host(state, Reason::Key("vlan".to_owned())));
    }
    wanted.extend(all.vrf.clone().map(|vrf| vrf_item(&link, vrf)));
    if ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
        wanted.push(Item::host(State::LinkLocal { link: link.clone() }, Reason::Inbound));
    }
    wanted.push(Item::host(State::Gateways(all), Reason::Outbound));
    wanted.extend(with.into_iter().map(|(ip, gateway)| {
        let (link, to) = (link.clone(), ip.address.addr());
        Item::host(State::SubnetRoute { link, gateway, to }, Reason::Inbound)
    }));
}

fn neighbour_items(wanted: &mut Wanted, attached: &Attachment<'_, Bridge>, ips: &[IpConfig]) {
    let config = attached.config;
    let bridge = config.bridge.as_str();
    if let Some(mac) = mac_of(attached.result.container_interface(attached.ifname)) {
        wanted.extend(ips.iter().map(|ip| {
            let (link, address, mac) = (bridge.to_owned(), ip.address.addr(), mac.clone());
            Item::host(State::NoNeighbour { link, address, mac }, Reason::Inbound)
        }));
    }
    if let (Some(mac), true) = (mac_of(reported(attached, bridge)), config.gateway) {
        wanted.extend(ips.iter().filter_map(|ip| ip.gateway).map(|address| {
            let (link, mac) = (attached.ifname.to_owned(), mac.clone());
            Item::container(State::NoNeighbour { link, address, mac }, Reason::Outbound)
        }));
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::engine::sample;

    fn result(gateway_link: Option<&str>) -> cni::AddResult {
        let mut interfaces = vec![
            sample::host_link("cni0", "02:00:00:00:00:01"),
            sample::host_link("veth1", "02:00:00:00:00:02"),
            sample::interface(),
        ];
        interfaces.extend(gateway_link.map(|name| sample::host_link(name, "02:00:00:00:00:04")));
        sample::result(interfaces, &[("10.1.0.2/24", "10.1.0.1")], &["0.0.0.0/0"])
    }

    fn recorded(filter: firewall::Plan) -> RecordData {
        RecordData {
            host_ifname: "veth1".to_owned(),
            filter,
            claims: vec!["claim".to_owned()],
            ..RecordData::default()
        }
    }

    fn wanted(config: &Config, result: &cni::AddResult, recorded: &RecordData) -> Wanted {
        let seen = Observation { ours: true, gateway_link_is_ours: true, ..Observation::default() };
        let (key, recorded) = (&sample::key(), Some(recorded));
        let attached = Attachment::<Bridge> { key, ifname: "eth0", result, config, recorded };
        Bridge::wanted(&attached, &seen)
    }

    #[test]
    fn a_bridge_that_was_created_for_containers() {
        let config = Config::of_text(r#"{"isDefaultGateway":true,"vlan":100,"ipam":{}}"#).unwrap();
        let recorded = recorded(firewall::Plan::default());
        let wanted = wanted(&config, &result(Some("cni0.100")), &recorded);
        expect![[r#"
            host: bridge "cni0" (ADD created it)
            container: interface "eth0" (veth) (ADD created it)
            host: link "veth1", the other end of interface "eth0" (ADD created it)
            host: MTU 1500 of link "veth1" (ADD created it)
            host: the owner's mark of link "veth1" (it shows the owner)
            host: the claim "claim" (it shows the owner)
            host: no router advertisements by link "veth1" (accept_ra 0) (a container must not change the host)
            host: link "veth1": port of bridge "cni0" (ADD created it)
            host: link "veth1" up (ADD created it)
            host: MTU of bridge "cni0" (ADD created it)
            container: MAC address 02:00:00:00:00:03 of interface "eth0" (ADD created it)
            container: address 10.1.0.2/24 of interface "eth0" (the IPAM plugin assigned it)
            container: interface "eth0" up (ADD created it)
            container: route 0.0.0.0/0 via 10.1.0.1 of interface "eth0" (the IPAM plugin assigned it)
            host: link "cni0.100" to VLAN 100 of bridge "cni0" (the configuration's vlan asks for it)
            host: gateway addresses 10.1.0.1 of "cni0.100" (the container reaches others by it)
            host: the host's route to 10.1.0.0/24 by "cni0.100" (the host reaches the container by it)
            host: IPv4 forwarding (the container reaches others by it)
        "#]].assert_eq(&wanted.to_string());
    }

    #[test]
    fn a_bridge_that_masquerades_and_whose_ports_are_hairpins() {
        let config = Config::of_text(
            r#"{"isGateway":true,"ipMasq":true,"hairpinMode":true,"macspoofchk":true,"ipam":{}}"#,
        )
        .unwrap();
        let mac = "02:00:00:00:00:03".parse().unwrap();
        let guard = filter::guard(&config, mac, "veth1", false);
        let filter = filter::plan("n", &config, &["10.1.0.2/24".parse().unwrap()], guard, None);
        let wanted = wanted(&config, &result(None), &recorded(filter));
        expect![[r#"
            host: bridge "cni0" (ADD created it)
            container: interface "eth0" (veth) (ADD created it)
            host: link "veth1", the other end of interface "eth0" (ADD created it)
            host: MTU 1500 of link "veth1" (ADD created it)
            host: the owner's mark of link "veth1" (it shows the owner)
            host: packet filter: inet netwright masquerade4 { "cni0" . 10.1.0.2 : jump masquerade-1e1a10eb03cd4c8f }, bridge netwright spoof_ports { "veth1" }, bridge netwright spoof_allowed { "veth1" . 02:00:00:00:00:03 } (the configuration's ipMasq asks for it)
            host: the claim "claim" (it shows the owner)
            host: no router advertisements by link "veth1" (accept_ra 0) (a container must not change the host)
            host: link "veth1": port of bridge "cni0" (ADD created it)
            host: link "veth1" up (ADD created it)
            host: MTU of bridge "cni0" (ADD created it)
            container: MAC address 02:00:00:00:00:03 of interface "eth0" (ADD created it)
            container: address 10.1.0.2/24 of interface "eth0" (the IPAM plugin assigned it)
            container: interface "eth0" up (ADD created it)
            container: route 0.0.0.0/0 via 10.1.0.1 of interface "eth0" (the IPAM plugin assigned it)
            host: gateway addresses 10.1.0.1 of "cni0" (the container reaches others by it)
            host: the host's route to 10.1.0.0/24 by "cni0" (the host reaches the container by it)
            host: IPv4 forwarding (the container reaches others by it)
            host: no lasting neighbour entry of 10.1.0.2 on "cni0" but 02:00:00:00:00:03 (the host reaches the container by it)
            container: no lasting neighbour entry of 10.1.0.1 on "eth0" but 02:00:00:00:00:01 (the container reaches others by it)
        "#]].assert_eq(&wanted.to_string());
        // What the words leave out.
        let mut states = wanted.items.iter().map(|item| &item.state);
        assert!(states.any(|state| matches!(state, State::Port(port) if port.hairpin)));
    }
}
