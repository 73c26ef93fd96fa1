//! Runs ADD.

use cni::{AddResult, AttachmentKey, IpConfig};
use cni_plugin::{Call, codes};
use ipnet::IpNet;
use kernel::mac::MacAddr;
use kernel::netns::Netns;
use kernel::route::{Change, Link, LinkSet, RouteSocket};
use ovsdb::vswitch::{Bridge, DATABASE, Port, TypedRow as _};
use ovsdb::{Atom, Condition, Handle, Mutation, Row, Transaction, Uuid, Value, WaitCondition};
use serde::{Deserialize, Serialize};

use super::config::{Config, PortKind};
use super::database::{ATTEMPTS, Switch, busy, is_unmade};
use super::made::{ContainerLink, report};
use super::mirrors::{self, SeenMirror};
use super::place::Place;
use super::rows::{self, Owner, ids};
use super::{Ovs, interior, joined, limits, local_port};
use crate::engine::{self, Addition};
use crate::shared::claim::{self, Segment};
use crate::shared::container::{self, Options};
use crate::shared::failure::Failure;
use crate::shared::identity::Identity;
use crate::shared::namespaces::Namespaces;
use crate::shared::pair::{NewPair, Pair};
use crate::shared::{advertisements, owner, pair};

/// The datapath that reads frames as they are.
const USER_SPACE: &str = "netdev";

/// How the container's interface is configured: the IPAM plugin keeps addresses unique.
pub(super) const OPTIONS: Options = Options::new(true);

/// What is recorded about an attachment, for DEL and GC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RecordData {
    pub(super) place: Place,
    pub(super) bridge: String,
    /// The pair's end on the host; empty for a port that the switch created.
    pub(super) host_ifname: String,
    /// Whether there may be a bridge or tunnels that are removed with the network's last port.
    pub(super) shares: bool,
    /// The container's interface, if the switch created it.
    pub(super) inside: Option<Identity>,
    /// The claims that keep these addresses from other attachments here ([`claim`]).
    pub(super) claims: Vec<String>,
    /// Whether the bridge's own link takes no router advertisements for its sake.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) quiet: bool,
}

/// What the database contained before anything was changed.
#[derive(Debug, Default)]
pub(super) struct ObservedRows {
    /// The bridge's datapath, if the bridge exists.
    datapath: Option<String>,
    /// Ports to remove: those of an earlier boot, or a leftover of this attachment.
    stale: Vec<(Uuid, Option<String>)>,
    tunnels: Vec<String>,
    mirrors: Vec<SeenMirror>,
    /// Whether the bridge is in the database, but no switch has created it.
    unmade: bool,
}

/// Runs ADD.
pub(super) fn attach(attaching: &mut Addition<'_, Ovs>) -> Result<AddResult, Failure> {
    let (call, config) = (attaching.call, attaching.config);
    let Namespaces { netns, mut host, mut inside } = Namespaces::open(call.open_netns()?)?;
    pair::refuse_existing(&mut host, &inside, call, None)?;
    let mut switch = Switch::connect(call, &config.remote)?;
    let seen = observe(&mut switch, call, config)?;
    if seen.unmade {
        switch.check_schema()?;
        switch.require_made(&config.bridge)?;
    }
    let mut site =
        Site { netns: &netns, host: &mut host, inside: &mut inside, switch: &mut switch };
    make(attaching, seen, &mut site)
}

/// The context in which ADD works.
pub(super) struct Site<'s> {
    pub(super) netns: &'s Netns,
    pub(super) host: &'s mut RouteSocket,
    pub(super) inside: &'s mut RouteSocket,
    pub(super) switch: &'s mut Switch,
}

/// Returns the name of the link or port that ADD would use on the host.
pub(super) fn port_name(key: &AttachmentKey, config: &Config) -> String {
    match config.kind {
        PortKind::Veth => owner::host_ifname(key, 0),
        PortKind::Internal => rows::interior_name(key),
    }
}

/// Reads everything that decides whether and how ADD goes on.
pub(super) fn observe(
    switch: &mut Switch,
    call: &Call<'_>,
    config: &Config,
) -> Result<ObservedRows, Failure> {
    let key = call.attachment();
    let boot = state::boot_id()?;
    let name = port_name(key, config);
    let mut look = Transaction::new(DATABASE);
    let by_name = vec![Condition::equals("name", config.bridge.as_str())];
    let bridge = look.select(Bridge::TABLE, by_name, &["name", "datapath_type", "datapath_id"]);
    let same_name = vec![Condition::equals("name", name.as_str())];
    let taken = look.select(Port::TABLE, same_name, Port::COLUMNS);
    let network = rows::has_id(ids::NETWORK, key.network.as_str());
    let old = vec![network, rows::lacks_id(ids::BOOT, &boot)];
    let old = look.select(Port::TABLE, old, Port::COLUMNS);
    let own = vec![rows::has_id(ids::OWNER, &key.hash())];
    let own = look.select(Port::TABLE, own, Port::COLUMNS);
    let tunnels = config.tunnel.is_some().then(|| {
        let tunnels = vec![rows::has_id(ids::TUNNEL, key.network.as_str())];
        look.select(Port::TABLE, tunnels, &["name"])
    });
    let mirrors = mirrors::look(&mut look, &config.mirrors);
    let found = switch.transact(&look)?;

    let datapath = found.rows(bridge).first().map(|row| row.text("datapath_type").to_owned());
    if datapath.is_none() && config.create.is_none() {
        return Err(Failure::new(
            codes::SWITCH,
            format!("failed to find bridge {:?}", config.bridge),
        )
        .with_details("make it (ovs-vsctl add-br), or set \"createBridge\""));
    }
    let taken = found.rows(taken).first().map(Port::read);
    if let Some(port) =
        taken.filter(|port| rows::owner_of(&port.external_ids).as_ref() != Some(key))
    {
        let whose = rows::owner_of(&port.external_ids);
        let whose = whose.map_or("another program's".to_owned(), |key| format!("that of {key}"));
        return Err(Failure::new(codes::EXISTS, format!("port {:?} exists already", port.name))
            .with_details(format!("it is {whose}; nothing was changed")));
    }
    let mut stale: Vec<(Uuid, Option<String>)> = Vec::new();
    for row in found.rows(old).iter().chain(found.rows(own)) {
        let port = Port::read(row);
        let hash = port.external_ids.get(ids::OWNER).cloned();
        let Some(uuid) = port.uuid else { continue };
        if stale.iter().all(|(known, _)| *known != uuid) {
            stale.push((uuid, hash));
        }
    }
    let tunnels = tunnels
        .map(|handle| found.rows(handle).iter().map(|row| row.text("name").to_owned()).collect());
    Ok(ObservedRows {
        datapath,
        unmade: found.rows(bridge).first().is_some_and(is_unmade),
        stale,
        tunnels: tunnels.unwrap_or_default(),
        mirrors: mirrors::seen(&found, &mirrors, &config.mirrors, None)?,
    })
}

/// Plans the transaction that creates the port, and returns it with the handle of its interface.
fn plan(
    config: &Config,
    owner: &Owner<'_>,
    seen: &ObservedRows,
    name: &str,
    mac: MacAddr,
) -> (Transaction, Handle) {
    let network = owner.key.network.as_str();
    let mut wanted = Transaction::new(DATABASE);
    let bridge = || vec![Condition::equals("name", config.bridge.as_str())];
    if seen.datapath.is_some() {
        let row = [Row::new().with("name", config.bridge.as_str())];
        wanted.assume(Bridge::TABLE, bridge(), &["name"], WaitCondition::Equal, &row);
    }
    remove_ports(&mut wanted, &seen.stale);
    let interface = rows::write_port(&mut wanted, config, owner, name, Some(mac));
    let mut ports = vec!["port".to_owned()];
    if let Some(tunnel) = &config.tunnel {
        for (number, remote) in tunnel.remotes.iter().enumerate() {
            let tunnel_name = rows::tunnel_name(network, tunnel, remote);
            if seen.tunnels.contains(&tunnel_name) {
                // The last port of the network may leave meanwhile, and remove them.
                let row = [Row::new().with("name", tunnel_name.as_str())];
                let found = vec![Condition::equals("name", tunnel_name.as_str())];
                wanted.assume(Port::TABLE, found, &["name"], WaitCondition::Equal, &row);
                continue;
            }
            let as_name = format!("tunnel{number}");
            rows::write_tunnel(&mut wanted, config, network, tunnel, remote, &as_name);
            ports.push(as_name);
        }
    }
    match (&seen.datapath, &config.create) {
        (None, Some(create)) => rows::write_bridge(&mut wanted, &config.bridge, create, &ports),
        _ => {
            let ports = ports.into_iter().map(Atom::Named).collect();
            let insert = [Mutation::insert("ports", Value::Set(ports))];
            wanted.mutate(Bridge::TABLE, bridge(), &insert);
        }
    }
    let port = rows::named("port");
    mirrors::join(&mut wanted, &config.bridge, &config.mirrors, &port, &seen.mirrors);
    wanted.comment(&format!("netwright: add {}", owner.key));
    (wanted, interface)
}

/// Removes ports from the bridges that they are on, with their rows.
pub(super) fn remove_ports(transaction: &mut Transaction, ports: &[(Uuid, Option<String>)]) {
    if ports.is_empty() {
        return;
    }
    let uuids = Value::set(ports.iter().map(|(uuid, _)| uuid));
    transaction.mutate(Bridge::TABLE, vec![], &[Mutation::delete("ports", uuids)]);
    for (uuid, hash) in ports {
        let Some(hash) = hash else { continue };
        // Rows of root tables must be unreferenced before they are deleted, even though the port is
        // deleted too.
        let none = Row::new().with("qos", Value::Set(Vec::new()));
        transaction.update(Port::TABLE, vec![Condition::is(uuid)], &none);
        for table in ["QoS", "Queue"] {
            transaction.delete(table, vec![rows::has_id(ids::OWNER, hash)]);
        }
    }
}

/// Writes the port. If what was read has changed meanwhile, it is read again.
pub(super) fn write(
    switch: &mut Switch,
    call: &Call<'_>,
    config: &Config,
    mut seen: ObservedRows,
    name: &str,
    mac: MacAddr,
) -> Result<(Uuid, bool), Failure> {
    let boot = state::boot_id()?;
    let owner = Owner { key: call.attachment(), netns: &call.env().netns, boot: &boot };
    for _ in 0..ATTEMPTS {
        let (wanted, interface) = plan(config, &owner, &seen, name, mac);
        match switch.try_transact(&wanted) {
            Ok(outcome) => {
                let user_space = match (&seen.datapath, &config.create) {
                    (Some(datapath), _) => datapath == USER_SPACE,
                    (None, create) => {
                        create.as_ref().is_some_and(|new| new.datapath_type == USER_SPACE)
                    }
                };
                return Ok((outcome.inserted(interface).clone(), user_space));
            }
            Err(error) if error.is_conflict() || error.is_duplicate() => {
                seen = observe(switch, call, config)?;
            }
            Err(error) => return Err(switch.explain(error)),
        }
    }
    Err(busy())
}

/// Sets up port, addresses, and the container's side. An IPAM plugin that communicates over the
/// link runs when the port exists, every other before: the port's row contains the hardware address
/// of its link.
fn make(
    attaching: &mut Addition<'_, Ovs>,
    seen: ObservedRows,
    site: &mut Site<'_>,
) -> Result<AddResult, Failure> {
    let (call, index, config) = (attaching.call, attaching.index, attaching.config);
    let mut recorded = RecordData {
        place: Place::of(&config.remote),
        bridge: config.bridge.clone(),
        host_ifname: String::new(),
        shares: config.create.is_some() || config.tunnel.is_some(),
        inside: None,
        claims: Vec::new(),
        quiet: false,
    };
    attaching.record(&recorded, site.netns)?;
    attaching.begin(Some(site.netns));
    let first_mac = config.mac.unwrap_or_else(kernel::mac::random);
    let pair = match config.kind {
        PortKind::Veth => {
            let wanted =
                NewPair { host_ifname: None, mac: first_mac, mtu: config.mtu, master: None };
            Some(pair::create(site.host, call, site.netns, wanted)?)
        }
        PortKind::Internal => None,
    };
    if let Some(pair) = &pair
        && pair.host_ifname != owner::host_ifname(call.attachment(), 0)
    {
        recorded.host_ifname.clone_from(&pair.host_ifname);
        attaching.record(&recorded, site.netns)?;
    }
    let early = call.ipam().as_ref().is_some_and(engine::talks_over_the_link);
    let mut addresses = if early { None } else { attaching.addresses()? };
    let mac = match (&config.mac, &addresses) {
        (None, Some(result)) => derived_mac(result).unwrap_or(first_mac),
        _ => first_mac,
    };
    let name = pair
        .as_ref()
        .map_or_else(|| port_name(call.attachment(), config), |pair| pair.host_ifname.clone());
    site.switch.listen()?;
    let makes_bridge = seen.datapath.is_none();
    let (interface, user_space) = write(site.switch, call, config, seen, &name, mac)?;
    // Before the link is up: a switch that adopts a link writes back the flags that it read
    // earlier, and would set the link down again.
    match makes_bridge {
        true => site.switch.wait_for_first_port(&config.bridge, &interface, &name)?,
        false => site.switch.wait_for_port(&interface, &name)?,
    };
    if let Some(pair) = &pair {
        limits::require(site.host, &config.qos, pair)?;
    }
    if local_port::quiet(index, site.host, &config.bridge, call.attachment())? {
        recorded.quiet = true;
        attaching.record(&recorded, site.netns)?;
    }
    let made = match pair {
        Some(pair) => {
            prepare(site, &pair, call, mac, user_space)?;
            ContainerLink::Pair(pair)
        }
        None => {
            let taken = interior::take(call, site, &name, mac, config.mtu)?;
            recorded.inside = Some(taken.identity);
            attaching.record(&recorded, site.netns)?;
            ContainerLink::Interior(taken)
        }
    };
    if early {
        made.bring_up(site)?;
        addresses = attaching.addresses()?;
    }
    let mut result = addresses.unwrap_or_default();
    for ip in &mut result.ips {
        ip.interface = Some(made.position());
    }
    if !result.ips.is_empty() {
        let addresses: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
        let own = own_link(site.host, config)?;
        claim::refuse_addresses_of(call, site.host, own.as_slice(), &addresses)?;
        let vlan = vlan(config);
        let bridges = joined::bridges(site.switch, &config.bridge, vlan)?;
        let place = |bridge: &String| claim::Place::Segment(Segment::of_switch(bridge, vlan));
        let places: Vec<claim::Place> = bridges.iter().map(place).collect();
        recorded.claims = claim::objects(&places, &addresses);
        attaching.record(&recorded, site.netns)?;
        claim::take(call, index, &places, &addresses)?;
    }
    let ips: Vec<&IpConfig> = result.ips.iter().collect();
    let (ifindex, ifname) = (made.container_index(), call.ifname().as_str());
    container::configure(site.inside, site.netns, ifindex, ifname, &ips, &result.routes, OPTIONS)?;
    if !early {
        made.bring_up(site)?;
    }
    if ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
        pair::wait_for_carrier(site.inside, ifindex)?;
    }
    Ok(report(call, result, &made, mac))
}

/// Returns the VLAN of the container's segment.
fn vlan(config: &Config) -> Option<u16> {
    config.vlans.tag.filter(|tag| *tag != 0)
}

/// Returns the host's own link on the container's segment: the bridge's, which is in no VLAN.
pub(super) fn own_link(host: &mut RouteSocket, config: &Config) -> Result<Option<Link>, Failure> {
    match vlan(config) {
        // No link can have a longer name.
        None if config.bridge.len() < 16 => Ok(host.link_by_name(&config.bridge)?),
        _ => Ok(None),
    }
}

/// Prepares a new pair for its use as a port.
fn prepare(
    site: &mut Site<'_>,
    pair: &Pair,
    call: &Call<'_>,
    mac: MacAddr,
    user_space: bool,
) -> Result<(), Failure> {
    let set = LinkSet { no_own_ipv6: true, ..LinkSet::default() };
    site.host.apply_one(&Change::SetLink { ifindex: pair.host_index, set })?;
    // A switch in user space leaves the frames that it reads to the kernel too.
    advertisements::refuse(&pair.host_ifname)?;
    let set = LinkSet { mac: Some(mac), ..LinkSet::default() };
    let ifindex = pair.container_index;
    site.inside.apply_one(&Change::SetLink { ifindex, set })?;
    if user_space {
        fill_in_checksums(site.netns, call)?;
    }
    Ok(())
}

/// Makes the kernel fill in checksums: a switch in user space forwards frames as they are.
pub(super) fn fill_in_checksums(netns: &Netns, call: &Call<'_>) -> Result<(), Failure> {
    kernel::ethtool::fill_in_checksums(netns, call.ifname().as_str())
        .map_err(|error| Failure::from_chain(codes::KERNEL, &error))
}

/// Returns the hardware address that the reference gives an interface with this address: `0a:58`
/// and the IPv4 address, or the first bytes of the hash of the IPv6 address's text.
fn derived_mac(result: &AddResult) -> Option<MacAddr> {
    let first = result.ips.first()?.address.addr();
    let rest = match first {
        std::net::IpAddr::V4(address) => address.octets(),
        std::net::IpAddr::V6(address) => {
            let digits = cni::owner::sha512_hex(address.to_string(), 8);
            u32::from_str_radix(&digits, 16).ok()?.to_be_bytes()
        }
    };
    let [a, b, c, d] = rest;
    Some(MacAddr([0x0a, 0x58, a, b, c, d]))
}
