//! Deletes UDP flows whose translation has changed.
//!
//! A flow keeps the translation it began with, and a UDP flow lives as long as packets arrive.
//! Without this, a resolver that restarts stays unreachable for the clients that query it most
//! (k8s#59033, plugins#123, plugins#1190). Flows that only pass through the node on the same port
//! are left alone: deleting them would give them new source ports.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_plugin::Call;
use kernel::conntrack::{ConntrackSocket, Flow, FlowFilter};
use kernel::netlink::NetlinkError;
use kernel::route::{IpFamily, RouteSocket};

use super::recorded::UdpPort;

/// UDP's number (linux/in.h `IPPROTO_UDP`).
const UDP: u8 = 17;

/// Which flows are out of date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// Those that do not lead to the container: they began before its ports were forwarded.
    Added,
    /// Those that do.
    Removed,
}

/// Deletes the outdated flows to these ports. A failure is only a warning: the flows end by
/// themselves eventually.
pub(super) fn forget(call: &Call<'_>, ports: &[UdpPort], when: When) {
    for family in [IpFamily::V4, IpFamily::V6] {
        let own: Vec<&UdpPort> =
            ports.iter().filter(|port| IpFamily::of(port.container) == family).collect();
        if own.is_empty() {
            continue;
        }
        if let Err(error) = forget_family(family, &own, when) {
            call.warn(format_args!("forget UDP flows to the container's host ports: {error}"));
        }
    }
}

fn forget_family(family: IpFamily, ports: &[&UdpPort], when: When) -> Result<(), NetlinkError> {
    let mut conntrack = ConntrackSocket::open()?;
    let udp = FlowFilter { protocol: Some(UDP), ..FlowFilter::all(family) };
    let flows = conntrack.flows(&udp)?;
    let mut local = None;
    let mut doomed = BTreeSet::new();
    for flow in &flows {
        let Some(port) = ports.iter().find(|port| is_to(flow, port)) else { continue };
        let leads_there = flow.reply.source == Some(port.container);
        let translated = flow.reply.source != flow.original.destination;
        let stale = match when {
            When::Removed => leads_there,
            When::Added if leads_there => false,
            When::Added => {
                translated || {
                    if local.is_none() {
                        local = Some(local_addresses()?);
                    }
                    flow.original.destination.is_some_and(|at| {
                        at.is_loopback() || local.iter().flatten().any(|own| *own == at)
                    })
                }
            }
        };
        if stale {
            doomed.insert((flow.original.destination, port.port, flow.reply.source));
        }
    }
    for (destination, port, reply_source) in doomed {
        let filter = FlowFilter { destination, destination_port: Some(port), reply_source, ..udp };
        conntrack.delete_flows(&filter)?;
    }
    Ok(())
}

fn is_to(flow: &Flow, port: &UdpPort) -> bool {
    flow.original.destination_port == Some(port.port)
        && port.at.is_none_or(|at| flow.original.destination == Some(at))
}

fn local_addresses() -> Result<Vec<IpAddr>, NetlinkError> {
    let addresses = RouteSocket::open()?.addresses(None)?;
    Ok(addresses.into_iter().map(|address| address.address.addr()).collect())
}
