//! Reads the UDP flows that the kernel tracks to published ports, and those of containers to addresses
//! that rules lead elsewhere: while a client goes on sending, its flow keeps the translation with
//! which it began.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use diagnose::model::{Flow, Scene, Transport};
use kernel::conntrack::{ConntrackSocket, Flow as KernelFlow, FlowFilter};
use kernel::netlink::NetlinkError;
use kernel::route::IpFamily;

/// How many are kept: one shows as much as all.
const MOST: usize = 1_000;

/// UDP in IP's header.
const UDP: u8 = 17;

/// The flows of so many containers are read: for each the kernel walks its whole table.
const CONTAINERS: usize = 16;

/// Reads them.
///
/// # Errors
/// Why they could not be read.
pub(super) fn read(scene: &Scene) -> Result<Vec<Flow>, String> {
    let mut found = to_ports(scene)?;
    found.extend(of_containers(scene)?);
    Ok(found)
}

/// Reads those of a few containers, if a chain of the node may translate them.
fn of_containers(scene: &Scene) -> Result<Vec<Flow>, String> {
    let mut chains = scene.host.filter.tables.iter().flat_map(|table| &table.chains);
    let translates = chains.any(|chain| chain.base.as_ref().is_some_and(|base| base.kind == "nat"))
        || scene.host.filter.legacy.iter().any(|table| table.name == "nat");
    let living = scene.containers.iter().filter(|container| container.alive != Some(false));
    if !translates || CONTAINERS < living.clone().count() {
        return Ok(Vec::new());
    }
    let told = |error: NetlinkError| super::namespace::with_causes(&error);
    let mut socket = ConntrackSocket::open().map_err(told)?;
    let mut found = Vec::new();
    for net in living.flat_map(|one| &one.attachments).flat_map(|one| &one.addresses) {
        let family = if net.addr().is_ipv4() { IpFamily::V4 } else { IpFamily::V6 };
        let source = Some(net.addr());
        let filter = FlowFilter { protocol: Some(UDP), source, ..FlowFilter::all(family) };
        let flows = socket.flows(&filter).map_err(told)?;
        let translated =
            |flow: &&KernelFlow| flow.reply.source != flow.original.destination && !flow.has_zone();
        let flows = flows.iter().filter(translated).filter_map(flow);
        found.extend(flows.take(MOST.saturating_sub(found.len())));
    }
    Ok(found)
}

/// Reads those to published ports, unless no port of UDP is published: the kernel walks its whole
/// table.
fn to_ports(scene: &Scene) -> Result<Vec<Flow>, String> {
    let living = scene.containers.iter().filter(|container| container.alive != Some(false));
    let ports = living.flat_map(|one| &one.attachments).flat_map(|one| &one.ports);
    let ports = ports.filter(|port| port.transport == Transport::Udp).map(|port| port.host);
    let ports: BTreeSet<u16> = cni::order::gather(ports);
    if ports.is_empty() {
        return Ok(Vec::new());
    }
    let told = |error: NetlinkError| super::namespace::with_causes(&error);
    let mut socket = ConntrackSocket::open().map_err(told)?;
    let mut found = Vec::new();
    for family in [IpFamily::V4, IpFamily::V6] {
        let filter = FlowFilter { protocol: Some(UDP), ..FlowFilter::all(family) };
        let flows = socket.flows(&filter).map_err(told)?;
        let flows = flows.iter().filter_map(flow);
        let published = flows.filter(|flow| ports.contains(&flow.to.port()));
        found.extend(published.take(MOST - found.len()));
    }
    Ok(found)
}

fn flow(flow: &KernelFlow) -> Option<Flow> {
    let KernelFlow { original, reply, .. } = flow;
    Some(Flow {
        client: SocketAddr::new(original.source?, original.source_port?),
        to: SocketAddr::new(original.destination?, original.destination_port?),
        leads_to: SocketAddr::new(reply.source?, reply.source_port?),
    })
}
