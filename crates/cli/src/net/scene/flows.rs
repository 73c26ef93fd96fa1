//! Reads the UDP flows to published ports that the kernel tracks: while a client goes on sending,
//! its flow keeps the translation with which it began.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use kernel::conntrack::{ConntrackSocket, Flow as KernelFlow, FlowFilter};
use kernel::netlink::NetlinkError;
use kernel::route::IpFamily;
use scene::{Flow, Scene, Transport};

/// How many are kept: one shows as much as all.
const MOST: usize = 1_000;

/// UDP in IP's header.
const UDP: u8 = 17;

/// Reads them, unless no port of UDP is published: the kernel walks its whole table.
///
/// # Errors
/// Why they could not be read.
pub(super) fn read(scene: &Scene) -> Result<Vec<Flow>, String> {
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
