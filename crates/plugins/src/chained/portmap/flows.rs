//! Deletes flows whose translation has changed, as far as their protocol does not see to it.
//!
//! A flow keeps the translation it began with. What a client needs then depends on the protocol:
//!
//! - UDP: a flow lives as long as packets arrive. Without this, a resolver that restarts stays
//!   unreachable for the clients that query it most (k8s#59033, plugins#123, plugins#1190).
//! - SCTP: a client that begins anew from the port it had sends its INIT within the old flow, which
//!   each INIT keeps alive (`linux net/netfilter/nf_conntrack_proto_sctp.c` `sctp_conntracks`).
//! - TCP: nothing. The node sees the connection end, and a SYN after that begins a new flow (`linux
//!   net/netfilter/nf_conntrack_proto_tcp.c`, "Attempt to reopen a closed/aborted connection"). A
//!   connection that has not ended goes on when the same container's ports are published again
//!   (`podman network reload`); without its flow, its answers would come from another port.
//!
//! Flows that only pass through the node on the same port are left alone, translated or not:
//! deleting them would give them new source ports, or end an association. So are flows to another
//! container that got the address of one that died before its DEL.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni_plugin::Call;
use firewall::SharedObject;
use firewall::element::Protocol;
use kernel::conntrack::{ConntrackSocket, Flow, FlowFilter};
use kernel::netlink::NetlinkError;
use kernel::route::{IpFamily, RouteSocket};
use state::Index;

use super::NAME;
use super::recorded::{HostPort, RecordData};
use crate::shared::attachment::recorded;
use crate::shared::failure::Failure;
use crate::shared::filter::with_firewall;

/// What makes flows out of date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortChange {
    /// Ports were added: those are that do not lead to the container, as they began before.
    Added,
    /// Ports were removed: those are that lead to it.
    Removed,
}

/// Deletes the outdated flows to an attachment's ports. A failure is only a warning: the flows end
/// by themselves eventually.
pub(super) fn forget(call: &Call<'_>, index: &Index, recorded: &RecordData, when: PortChange) {
    for (protocol, ports) in [(Protocol::Udp, &recorded.udp), (Protocol::Sctp, &recorded.sctp)] {
        for family in [IpFamily::V4, IpFamily::V6] {
            let own: Vec<&HostPort> =
                ports.iter().filter(|port| IpFamily::of(port.container) == family).collect();
            if own.is_empty() {
                continue;
            }
            if let Err(error) = forget_some(index, (protocol, family), &own, when) {
                let name = protocol.name();
                call.warn(format_args!(
                    "forget {name} flows to the container's host ports: {error}"
                ));
            }
        }
    }
}

/// Deletes the outdated flows to some ports, all of one protocol and family.
fn forget_some(
    index: &Index,
    (protocol, family): (Protocol, IpFamily),
    ports: &[&HostPort],
    when: PortChange,
) -> Result<(), Failure> {
    let of = FlowFilter { protocol: Some(protocol.number()), ..FlowFilter::all(family) };
    let mut conntrack = ConntrackSocket::open()?;
    let flows = conntrack.flows(&of)?;
    let mut local = None;
    let mut doomed = BTreeSet::new();
    for flow in &flows {
        let Some(port) = ports.iter().find(|port| is_to(flow, port)) else { continue };
        let leads_there = flow.reply.source == Some(port.container);
        let stale = match when {
            PortChange::Removed => leads_there,
            PortChange::Added if leads_there => false,
            // Ports are forwarded only at addresses of the host.
            PortChange::Added => {
                if local.is_none() {
                    local = Some(local_addresses()?);
                }
                flow.original.destination.is_some_and(|at| {
                    at.is_loopback() || local.iter().flatten().any(|own| *own == at)
                })
            }
        };
        if stale {
            doomed.insert((flow.original.destination, port.port, flow.reply.source));
        }
    }
    for (destination, port, reply_source) in doomed {
        if when == PortChange::Removed
            && let (Some(at), Some(to)) = (destination, reply_source)
            && is_anothers(index, protocol, (at, port), to)?
        {
            continue;
        }
        let filter = FlowFilter { destination, destination_port: Some(port), reply_source, ..of };
        conntrack.delete_flows(&filter)?;
    }
    Ok(())
}

/// Says whether another attachment leads a port of the host to an address, now that this one no
/// longer does: by an element, or by chains of iptables.
fn is_anothers(
    index: &Index,
    protocol: Protocol,
    (at, port): (IpAddr, u16),
    to: IpAddr,
) -> Result<bool, Failure> {
    if with_firewall(index, |firewall| firewall.leads(protocol, (at, port), to))? {
        return Ok(true);
    }
    let everywhere: IpAddr =
        if at.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let leads = |one: &HostPort| one.port == port && one.container == to;
    for at in [at, everywhere] {
        let object = SharedObject::IptablesHostport { protocol, port, at }.object();
        for holder in index.holders(&object).found {
            let theirs: Option<RecordData> = recorded(index, &holder, NAME);
            if theirs.is_some_and(|theirs| theirs.udp.iter().chain(&theirs.sctp).any(leads)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn is_to(flow: &Flow, port: &HostPort) -> bool {
    flow.original.destination_port == Some(port.port)
        && port.at.is_none_or(|at| flow.original.destination == Some(at))
}

fn local_addresses() -> Result<Vec<IpAddr>, NetlinkError> {
    let addresses = RouteSocket::open()?.addresses(None)?;
    Ok(addresses.into_iter().map(|address| address.address.addr()).collect())
}
