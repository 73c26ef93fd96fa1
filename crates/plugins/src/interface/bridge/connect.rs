//! Runs ADD.

use std::time::{Duration, Instant};

use ::firewall::pod_link;
use cni::{AddResult, IfName, Interface, IpConfig, Route};
use cni_plugin::{Call, codes};
use ipnet::IpNet;
use kernel::mac::MacAddr;
use kernel::netns::Netns;
use kernel::route::{Link, OperState, RouteSocket, Scope, TABLE_MAIN};
use serde::{Deserialize, Serialize};
use wanted::Gateways;

use super::bridge_link::HeldBridge;
use super::config::{Config, gateway_name};
use super::gateway::{self, ConflictPolicy};
use super::{Bridge, bridge_link, filter, port, vlan_gateway, vrf};
use crate::engine::{self, Addition};
use crate::shared::claim::{self, ContainerRouting, Place, Segment};
use crate::shared::container::{self, Options};
use crate::shared::failure::Failure;
use crate::shared::namespaces::Namespaces;
use crate::shared::pair::{NewPair, Pair};
use crate::shared::{dns, forwarding, gate, pair, rules};

/// How long a port may take to come up: the reference waits for 2.55 seconds.
const PORT_TIMEOUT: Duration = Duration::from_millis(2550);

/// The pause between two checks of a port that is coming up; it takes a fraction of a millisecond.
const PORT_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The position of the container's interface in the result: after the bridge and the host's end.
const CONTAINER_POSITION: usize = 2;

/// What is recorded about an attachment, for DEL, CHECK and GC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RecordData {
    pub(super) bridge: String,
    pub(super) host_ifname: String,
    pub(super) ips: Vec<IpNet>,
    pub(super) filter: firewall::Plan,
    /// The claims that keep these addresses from other attachments here ([`claim`]).
    pub(super) claims: Vec<String>,
    /// Whether the gateways are those that a server named, which anybody on the bridge may be.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) leased: bool,
}

/// What the IPAM plugin's result means for a bridge: everything that is decided before anything is
/// done.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    ips: Vec<IpConfig>,
    routes: Vec<Route>,
    dns: cni::Dns,
    gateways: Vec<IpNet>,
}

fn plan(call: &Call<'_>, config: &Config, ipam: Option<AddResult>) -> Result<Plan, Failure> {
    let mut result = ipam.unwrap_or_default();
    let mut gateways = Vec::new();
    for ip in &mut result.ips {
        ip.interface = Some(CONTAINER_POSITION);
        if config.gateway {
            let gateway = gateway::of(&ip.address, ip.gateway)?;
            ip.gateway = Some(gateway.addr());
            if !gateways.contains(&gateway) {
                gateways.push(gateway);
            }
        }
    }
    if config.default_gateway {
        add_default_routes(&result.ips, &mut result.routes);
    }
    Ok(Plan {
        ips: result.ips,
        routes: result.routes,
        dns: dns::choose(call.common(), result.dns),
        gateways,
    })
}

/// Adds to each family a default route through its gateway, unless it has one that names a next
/// hop. A default route without a next hop means the same gateway, and gets it, if it is in the main
/// table and not on the link.
fn add_default_routes(ips: &[IpConfig], routes: &mut Vec<Route>) {
    for v4 in [true, false] {
        let Some(gateway) =
            ips.iter().filter_map(|ip| ip.gateway).find(|gateway| gateway.is_ipv4() == v4)
        else {
            continue;
        };
        let is_default = |route: &Route| route.is_default() && route.dst.addr().is_ipv4() == v4;
        if routes.iter().any(|route| is_default(route) && route.gw.is_some()) {
            continue;
        }
        let means_gateway = |route: &Route| {
            let beyond_link = !v4 || route.scope.is_none_or(|scope| scope < Scope::LINK.0);
            is_default(route) && route.table.is_none_or(|table| table == TABLE_MAIN) && beyond_link
        };
        match routes.iter_mut().find(|route| means_gateway(route)) {
            Some(route) => route.gw = Some(gateway),
            None => {
                let dst = if v4 { "0.0.0.0/0" } else { "::/0" };
                let dst = dst.parse().expect("a default destination is a prefix");
                routes.push(Route::new(dst, Some(gateway)));
            }
        }
    }
}

/// Sets up bridge, pair, addresses, and what needs them, in that order: an IPAM plugin may
/// communicate over the link.
pub(super) fn attach(attaching: &mut Addition<'_, Bridge>) -> Result<AddResult, Failure> {
    let (call, index, config) = (attaching.call, attaching.index, attaching.config);
    let key = attaching.key();
    let Namespaces { netns, mut host, mut inside } = Namespaces::open(call.open_netns()?)?;
    let (host, inside) = (&mut host, &mut inside);
    let host_ifname = config.host_ifname.as_ref();
    pair::refuse_existing(host, inside, call, host_ifname)?;
    let vrf = vrf::find(host, config.vrf.as_ref().map(IfName::as_str))?;
    attaching.begin(None);
    pair::record_name(attaching, host_ifname, &netns)?;
    let mtu = config.mtu.of_port(host, config.bridge.as_str(), vrf::table(vrf.as_ref()))?;
    let wanted = wanted::Bridge { mtu, ..config.wanted_bridge() };
    let HeldBridge { bridge, hears_routers } =
        bridge_link::ensure(host, index, &wanted, config.gateway, key)?;
    let mac = config.mac.unwrap_or_else(kernel::mac::random);
    let wanted = NewPair { host_ifname, mac, mtu, master: Some(bridge.index) };
    let pair = pair::create(host, call, &netns, wanted)?;
    let port = config.wanted_port(&pair.host_ifname);
    let guard = filter::guard(config, mac, &pair.host_ifname, hears_routers);

    let early = call.ipam().as_ref().is_some_and(engine::talks_over_the_link);
    if early {
        guard_port(attaching, &netns, &guard, &pair.host_ifname)?;
        port::bring_up(host, &port, &bridge, pair.host_index)?;
    }
    let plan = plan(call, config, attaching.addresses()?)?;
    let ips: Vec<IpNet> = plan.ips.iter().map(|ip| ip.address).collect();
    if let (true, Some(vlan)) = (config.gateway, config.vlans.access) {
        // Its subnet would look like another link's.
        vlan_gateway::refuse_renamed(host, gateway_name(&config.bridge, vlan)?.as_str(), vlan)?;
    }
    let reach = Reach::of(host, config, &bridge, vrf.as_ref())?;
    reach.refuse(call, host, &plan.ips)?;
    let places = reach.places();
    let (network, vrf) = (key.network.as_str(), reach.vrf(host)?);
    let mut filter = filter::plan(network, config, &ips, guard, vrf.as_deref());
    filter.join(gate::plan(call, &pair.host_ifname, pod_link::Place::Bridged));
    let recorded = RecordData {
        claims: claim::objects(&places, &ips),
        bridge: config.bridge.to_string(),
        filter,
        host_ifname: pair.host_ifname.clone(),
        ips,
        leased: early && !plan.gateways.is_empty(),
    };
    // Until here marks identify everything; filter elements are found faster by the record.
    attaching.record(&recorded, &netns)?;
    // The claim comes before the gateways, because only the claim keeps an address of another
    // container out: the kernel refuses nothing on a bridge. A gateway's address stays on the
    // bridge until its last attachment leaves, so an ADD that is refused must not have added one.
    // Of two ADDs at the same time, each with the other's address as its gateway, the claims refuse
    // at least one: each looks for claims of its gateway after it has made its own.
    claim::take(call, index, &places, &recorded.ips)?;
    let gateways = Gateways { addresses: plan.gateways.clone(), ..config.wanted_gateways()? };
    let others = ConflictPolicy::of(config);
    let mut new = |host: &mut RouteSocket| {
        claim::refuse_gateways(call, host, index, &reach.routed, &places, &plan.ips)
    };
    if recorded.leased {
        bridge_link::note_leased(host, index, &bridge, &gateways)?;
    }
    let vlan_gateway =
        bridge_link::add_gateways(host, index, &bridge, &gateways, others, &mut new)?;
    rules::warn_of_sources(call, host, config.masquerade);
    rules::add(index, key, config.masquerade, &recorded.filter, &recorded.ips)?;
    configure(inside, &netns, call, config, &plan, pair.container_index)?;
    if !early {
        port::bring_up(host, &port, &bridge, pair.host_index)?;
    }
    if config.gateway {
        forwarding::hold(index, key, &plan.ips, config.forwarding)?;
    }
    if !config.leave_down {
        wait_for_port(host, pair.host_index, &pair.host_ifname)?;
        if plan.ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
            pair::wait_for_carrier(inside, pair.container_index)?;
        }
        if config.detect_duplicates {
            container::wait_for_dad(inside, pair.container_index, call.ifname().as_str())?;
        }
    }
    Ok(report(call, plan, &bridge, vlan_gateway, &pair, mac))
}

/// Guards a port that comes up before it has an address: the container's processes may send as soon
/// as it is up.
fn guard_port(
    attaching: &Addition<'_, Bridge>,
    netns: &Netns,
    guard: &firewall::Plan,
    host_ifname: &str,
) -> Result<(), Failure> {
    let (index, config) = (attaching.index, attaching.config);
    let recorded = RecordData {
        bridge: config.bridge.to_string(),
        host_ifname: host_ifname.to_owned(),
        filter: guard.clone(),
        ..RecordData::default()
    };
    if recorded.filter.is_empty() {
        return Ok(());
    }
    // An earlier record would not list these elements.
    attaching.record(&recorded, netns)?;
    rules::add(index, attaching.key(), None, &recorded.filter, &[])
}

/// Where a container of the bridge is reachable: in its VLAN, and by everything that the host
/// routes to.
pub(super) struct Reach {
    segment: Segment,
    /// The link by which the host is in that VLAN, if it is.
    own: Option<Link>,
    /// With a gateway: the table by which the host routes to it.
    routed: ContainerRouting,
    gateway: bool,
}

/// Returns how the host would route to a container of a bridge that may not be there yet.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn routed(
    host: &mut RouteSocket,
    config: &Config,
    bridge: Option<&Link>,
) -> Result<ContainerRouting, Failure> {
    // STATUS reports one that is missing.
    let vrf = vrf::find(host, config.vrf.as_ref().map(IfName::as_str)).ok().flatten();
    match bridge {
        Some(bridge) => Ok(Reach::of(host, config, bridge, vrf.as_ref())?.routed),
        None => {
            let vrf = vrf.and_then(|vrf| Some((vrf.index, vrf.vrf_table?)));
            Ok(ContainerRouting { vrf, ..ContainerRouting::default() })
        }
    }
}

impl Reach {
    pub(super) fn of(
        host: &mut RouteSocket,
        config: &Config,
        bridge: &Link,
        vrf: Option<&Link>,
    ) -> Result<Self, Failure> {
        // Without a VLAN of its own it is in the bridge's default VLAN.
        let vlan = config.vlans.native.filter(|id| *id != bridge.default_vlan());
        let segment = Segment::of_link(bridge, vlan);
        let own = match vlan {
            None => Some(bridge.clone()),
            Some(_) => claim::vlan_link(host, &segment)?,
        };
        let mut routed = match (config.gateway, config.vlans.access) {
            (false, _) => ContainerRouting::default(),
            // The gateway of VLAN 1 is on a link of its own too, unless VLAN 1 is not configured.
            (true, Some(1)) => {
                let name = gateway_name(&config.bridge, 1)?;
                let link = host.link_by_name(name.as_str())?;
                ContainerRouting::by(host, link.as_ref())?
            }
            (true, _) => ContainerRouting::by(host, own.as_ref())?,
        };
        // The link of a VLAN may not exist yet.
        if config.gateway && routed.links.is_empty() {
            routed.vrf = vrf.and_then(|vrf| Some((vrf.index, vrf.vrf_table?)));
        }
        // Several VLANs of it may have the same subnet.
        routed.links.push(bridge.index);
        Ok(Reach { segment, own, routed, gateway: config.gateway })
    }

    /// Refuses addresses that the host has where it reaches the container, or to which it could not
    /// route.
    pub(super) fn refuse(
        &self,
        call: &Call<'_>,
        host: &mut RouteSocket,
        ips: &[IpConfig],
    ) -> Result<(), Failure> {
        if self.gateway {
            // The segment's own addresses are among those.
            return claim::refuse_unroutable(call, host, &self.routed, ips);
        }
        let ips: Vec<IpNet> = ips.iter().map(|ip| ip.address).collect();
        claim::refuse_addresses_of(call, host, self.own.as_slice(), &ips)?;
        claim::refuse_addresses_on(call, host, &self.segment, &ips)
    }

    /// Reports addresses that the host has there by now (CHECK).
    pub(super) fn check(
        &self,
        call: &Call<'_>,
        host: &mut RouteSocket,
        ips: &[IpConfig],
    ) -> Result<(), Failure> {
        if self.gateway {
            return claim::check_own(call, host, &self.routed, ips);
        }
        self.refuse(call, host, ips).map_err(claim::as_drift)
    }

    /// Returns the name of the VRF by whose table the host routes to the container.
    pub(super) fn vrf(&self, host: &mut RouteSocket) -> Result<Option<String>, Failure> {
        let Some((vrf, _)) = self.routed.vrf else { return Ok(None) };
        Ok(host.link_by_index(vrf)?.map(|vrf| vrf.name))
    }

    pub(super) fn places(&self) -> Vec<Place> {
        let mut places = vec![Place::Segment(self.segment.clone())];
        if self.gateway {
            places.push(self.routed.place());
        }
        places
    }
}

/// Sets up the container's side.
fn configure(
    inside: &mut RouteSocket,
    netns: &Netns,
    call: &Call<'_>,
    config: &Config,
    plan: &Plan,
    ifindex: u32,
) -> Result<(), Failure> {
    if config.leave_down {
        return Ok(());
    }
    let ips: Vec<&IpConfig> = plan.ips.iter().collect();
    let options = Options::new(!config.detect_duplicates);
    let ifname = call.ifname().as_str();
    container::configure(inside, netns, ifindex, ifname, &ips, &plan.routes, options)
}

fn wait_for_port(host: &mut RouteSocket, ifindex: u32, ifname: &str) -> Result<(), Failure> {
    let deadline = Instant::now() + PORT_TIMEOUT;
    loop {
        let link = host.link_by_index(ifindex)?;
        let state = link.map(|link| link.oper_state);
        match state {
            Some(OperState::Up | OperState::Unknown) => return Ok(()),
            Some(state) if deadline < Instant::now() => {
                return Err(Failure::new(
                    codes::KERNEL,
                    format!("bridge port in error state: {state:?}"),
                )
                .with_details(format!("port {ifname:?} did not come up within {PORT_TIMEOUT:?}")));
            }
            Some(_) => std::thread::sleep(PORT_POLL_INTERVAL),
            None => {
                return Err(Failure::new(codes::CONFLICT, format!("port {ifname:?} vanished")));
            }
        }
    }
}

fn report(
    call: &Call<'_>,
    plan: Plan,
    bridge: &Link,
    vlan_gateway: Option<(String, Option<MacAddr>)>,
    pair: &Pair,
    mac: MacAddr,
) -> AddResult {
    let host_side = |name: &str, mac: Option<MacAddr>, mtu: u32| Interface {
        name: name.to_owned(),
        mac: mac.map(|mac| mac.to_string()).unwrap_or_default(),
        mtu,
        ..Interface::default()
    };
    let mut interfaces = vec![
        host_side(&bridge.name, bridge.mac, bridge.mtu),
        host_side(&pair.host_ifname, Some(pair.host_mac), pair.mtu),
        Interface {
            sandbox: call.env().netns.clone(),
            ..host_side(call.ifname().as_str(), Some(mac), pair.mtu)
        },
    ];
    if let Some((name, mac)) = vlan_gateway {
        interfaces.push(host_side(&name, mac, bridge.mtu));
    }
    AddResult { interfaces, ips: plan.ips, routes: plan.routes, dns: plan.dns }
}
