//! Runs ADD.

use cni::{AddResult, Interface, IpConfig};
use cni_plugin::{Call, codes};
use firewall::pod_link;
use ipnet::IpNet;
use kernel::mac::MacAddr;
use kernel::netlink::NetlinkError;
use kernel::netns::Netns;
use kernel::route::{Change, IpFamily, Link, LinkSet, Route, RouteFilter, RouteSocket, TABLE_MAIN};
use serde::{Deserialize, Serialize};

use super::config::ipam;
use super::{Ptp, plan};
use crate::engine::{self, Addition};
use crate::shared::claim::{self, ContainerRouting};
use crate::shared::failure::Failure;
use crate::shared::namespaces::Namespaces;
use crate::shared::pair::{NewPair, Pair};
use crate::shared::{container, dns, forwarding, gate, host_side, owner, pair, readiness, rules};

/// What is recorded about an attachment, for DEL, CHECK and GC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RecordData {
    pub(super) host_ifname: String,
    pub(super) ips: Vec<IpNet>,
    pub(super) filter: firewall::Plan,
    /// The claims that keep these addresses from other attachments here ([`claim`]).
    pub(super) claims: Vec<String>,
}

/// Sets up the pair, its addresses, and what needs them. The container's end comes up first and the
/// host's last: if only one end is up, the kernel waits. An IPAM plugin that communicates over the
/// link finds both ends up.
pub(super) fn attach(attaching: &mut Addition<'_, Ptp>) -> Result<AddResult, Failure> {
    let (call, index, config) = (attaching.call, attaching.index, attaching.config);
    let key = attaching.key();
    let Namespaces { netns, mut host, mut inside } = Namespaces::open(call.open_netns()?)?;
    let (host, inside) = (&mut host, &mut inside);
    let host_ifname = config.host_ifname.as_ref();
    pair::refuse_existing(host, inside, call, host_ifname)?;
    attaching.begin(None);
    pair::record_name(attaching, host_ifname, &netns)?;
    let mac = kernel::mac::random();
    let mtu = config.mtu.of_now(host)?;
    let wanted = NewPair { host_ifname, mac, mtu, master: None };
    let pair = pair::create(host, call, &netns, wanted)?;
    let early = engine::talks_over_the_link(&ipam(call)?);
    if early {
        bring_up(inside, pair.container_index)?;
        // Before the link is up, and before it is known whether there are addresses of IPv6.
        let _ = host.apply_one(&host_side::link_local(pair.host_index, pair.host_mac));
        bring_up(host, pair.host_index)?;
    }
    let mut result = attaching.addresses()?.unwrap_or_default();
    plan::complete(&mut result.ips);

    let ips: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
    let network = key.network.as_str();
    let routed = ContainerRouting::one_by_one(pair.host_index);
    claim::refuse_unroutable(call, host, &routed, &result.ips)?;
    let places = [routed.place()];
    claim::refuse_gateways(call, host, index, &routed, &places, &result.ips)?;
    let claims = claim::objects(&places, &ips);
    let mut filter = rules::masquerade(config.masquerade, network, &pair.host_ifname, &ips);
    filter.join(gate::plan(call, &pair.host_ifname, pod_link::Place::Routed));
    let recorded = RecordData { host_ifname: pair.host_ifname.clone(), ips, filter, claims };
    attaching.record(&recorded, &netns)?;
    rules::warn_of_sources(call, host, config.masquerade);
    rules::add(index, key, config.masquerade, &recorded.filter, &recorded.ips)?;
    configure_container(call, &netns, inside, pair.container_index, &result)?;
    let has_v6 = result.ips.iter().any(|ip| ip.address.addr().is_ipv6());
    if !early {
        let mut changes = vec![up(pair.host_index)];
        if has_v6 {
            changes.insert(0, host_side::link_local(pair.host_index, pair.host_mac));
        }
        host.apply(&changes)
            .map_err(|error| readiness::explain(error, &changes, &pair.host_ifname))?;
    }
    if has_v6 {
        pair::wait_for_carrier(inside, pair.container_index)?;
        pair::wait_for_carrier(host, pair.host_index)?;
    }
    configure_host(host, &pair, &result.ips)?;
    // The claim comes last. The kernel refuses a second route to an address, and `configure_host`
    // then names the link and the attachment that have it: an address of another `ptp` never gets
    // here, not even where the configuration allows the conflict. The claim is for the attachments
    // that the kernel does not compare: those of a `bridge` with a gateway, which has one route for
    // all its containers.
    claim::take(call, index, &places, &recorded.ips)?;
    forwarding::hold(index, key, &result.ips, config.forwarding)?;
    Ok(report(call, result, &pair, mac))
}

fn bring_up(socket: &mut RouteSocket, ifindex: u32) -> Result<(), Failure> {
    Ok(socket.apply_one(&up(ifindex))?)
}

fn up(ifindex: u32) -> Change {
    Change::SetLink { ifindex, set: LinkSet::default().up(true) }
}

fn configure_container(
    call: &Call<'_>,
    netns: &Netns,
    inside: &mut RouteSocket,
    ifindex: u32,
    result: &AddResult,
) -> Result<(), Failure> {
    let ifname = call.ifname().as_str();
    let ips: Vec<&IpConfig> = result.ips.iter().collect();
    container::prepare(inside, netns, ifindex, ifname, &ips, plan::OPTIONS)?;
    let changes = plan::container(ifindex, &result.ips, &result.routes);
    let what = || format!("configure interface {ifname:?}");
    inside.apply(&changes).map_err(|error| Failure::from(error).context(what()))
}

/// Adds the gateways' addresses to the host's end, and the host's routes to the container.
fn configure_host(host: &mut RouteSocket, pair: &Pair, ips: &[IpConfig]) -> Result<(), Failure> {
    let addresses = plan::host_addresses(pair.host_index, ips);
    let failed =
        |error: Failure| error.context(format_args!("configure link {:?}", pair.host_ifname));
    host.apply(&addresses)
        .map_err(|error| readiness::explain(error, &addresses, &pair.host_ifname))
        .map_err(failed)?;
    for route in plan::host_routes(pair.host_index, ips) {
        let destination = route.destination;
        let add = Change::AddRoute(route);
        let mut added = host.apply_one(&add);
        if added.as_ref().is_err_and(NetlinkError::is_exists) {
            let holder = self::holder(host, destination);
            // The kernel deletes the pair of a container that has ended some time later, and its route
            // with it.
            if let Some(link) = &holder
                && !pair::delete_if_ending(host, link)?
            {
                return Err(taken(holder.as_ref(), destination));
            }
            added = host.apply_one(&add);
            if added.as_ref().is_err_and(NetlinkError::is_exists) {
                return Err(taken(self::holder(host, destination).as_ref(), destination));
            }
        }
        added.map_err(|error| failed(error.into()))?;
    }
    Ok(())
}

/// Returns the link to which the host's route to an address leads.
fn holder(host: &mut RouteSocket, destination: IpNet) -> Option<Link> {
    let family = IpFamily::of(destination.addr());
    let filter = RouteFilter { family, table: Some(TABLE_MAIN), oif: None };
    let route = host
        .routes(filter)
        .unwrap_or_default()
        .into_iter()
        .find(|route: &Route| route.destination == destination);
    route.and_then(|route| route.oif).and_then(|index| host.link_by_index(index).ok().flatten())
}

/// Names the holder of the host's route to an address.
fn taken(link: Option<&Link>, destination: IpNet) -> Failure {
    let whose = match link {
        Some(link) => {
            let mark = link.alias.as_deref().and_then(|alias| alias.strip_prefix(owner::PREFIX));
            let of = mark.map(|key| format!(" of {key}")).unwrap_or_default();
            format!("it leads to link {:?}{of}", link.name)
        }
        None => "it leads elsewhere".to_owned(),
    };
    Failure::new(codes::CONFLICT, format!("the host has a route to {} already", destination.addr()))
        .with_details(format!("{whose}; two containers cannot have one address"))
}

fn report(call: &Call<'_>, result: AddResult, pair: &Pair, mac: MacAddr) -> AddResult {
    let host = Interface {
        name: pair.host_ifname.clone(),
        mac: pair.host_mac.to_string(),
        mtu: pair.mtu,
        ..Interface::default()
    };
    let container = Interface {
        name: call.ifname().to_string(),
        mac: mac.to_string(),
        mtu: pair.mtu,
        sandbox: call.env().netns.clone(),
        ..Interface::default()
    };
    AddResult {
        interfaces: vec![host, container],
        dns: dns::choose(call.common(), result.dns),
        ips: result.ips,
        routes: result.routes,
    }
}
