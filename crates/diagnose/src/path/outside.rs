//! A container's packet to an address that is none of its network's, and the answer.

use std::net::IpAddr;

use super::steps::{Halt, Tracer};
use super::{Joint, Passage, Site, address_of, apart};
use crate::filter::{Packet, Payload, Truth};
use crate::model::Part;
use crate::model::filter::Hook;

pub(super) fn outside<'s>(
    tracer: &mut Tracer<'s>,
    from: &'s Site<'s>,
    to: IpAddr,
    with: Payload,
) -> Result<Passage<'s>, Halt<'s>> {
    if from.joint != Joint::Pair {
        return apart::beyond(tracer, from, to, with);
    }
    tracer.begins = hops(from);
    let sent = Packet { macs: from.macs_out(), ..Packet::first(from.address, to, with) };
    let via = tracer.route_inside(from, to)?;
    let scene = tracer.scene;
    let is_own = |address: IpAddr| scene.host.owner_of(address).is_some();
    let is_routed = from.is_routed() && !scene.lacks(Part::Unjudged, None);
    if is_own(to) && (is_routed || via.is_none_or(is_own)) {
        return to_node(tracer, from, &sent);
    }
    if !is_routed && !is_own(via.ok_or(Halt::Unknown)?) {
        return apart::by_bridge(tracer, from, &sent);
    }
    let packet = tracer.leave(from, &sent)?;
    let packet = tracer.up(from, &packet)?;
    let mut entered = tracer.enter(from.seen_by, &packet)?;
    let is_service = entered.destination.is_some();
    if is_service {
        // The machine that serves it answers, and the answer gets the service's address.
        entered.packet.answers_as = Some(to);
    }
    let out = tracer.route_out(&entered.packet)?;
    // The answer of one who is on the same bridge need not come by the node.
    if is_service && out.index == from.seen_by.index {
        return Err(Halt::Unknown);
    }
    let left = tracer.forward(&entered.packet, tracer.seen_as(from.seen_by), &out.name)?;
    tracer.device(Hook::Egress, &left.packet.between(None, Some(&out.name)))?;
    tracer.passes_router(&entered.packet)?;
    let passed = Passage { out: Some(out), source: left.source, untracked: entered.untracked };

    tracer.back = true;
    let mut answer = left.packet.answer();
    let address = address_of(out, to.is_ipv4());
    let answer = match (left.source, address) {
        (Truth::No, _) => Some(answer),
        (Truth::Yes, Some(address)) => {
            answer.destination = address;
            answer.answers_to = Some(from.address);
            Some(answer)
        }
        _ => None,
    };
    let answer = match answer {
        Some(answer) => {
            tracer.device(Hook::Ingress, &answer.between(Some(&out.name), None))?;
            let entered = tracer.enter(out, &answer)?;
            if passed.source == Truth::Yes && entered.untracked.is_some() {
                return Ok(Passage { untracked: entered.untracked, ..passed });
            }
            entered.packet
        }
        // It is not known by which address it comes back, so what is done before its translation is
        // not known either.
        None => {
            tracer.unsure = true;
            left.packet.answer().between(Some(&out.name), None)
        }
    };
    if answer.destination != from.address {
        return Err(Halt::Unknown);
    }
    tracer.route_to(from, &answer)?;
    let answer = tracer.forward(&answer, tracer.seen_as(out), &from.seen_by.name)?.packet;
    // It has the service's port again, too.
    let answer = Packet { carries: sent.answer().carries, ..answer };
    let answer = tracer.down(from, &answer)?;
    tracer.into(from, &answer)?;
    // Another machine may be the end of it.
    if !is_service && matches!(with, Payload::Tcp { .. }) {
        let sent = Packet {
            source_translated: left.packet.source_translated,
            destination_translated: left.packet.destination_translated,
            ..sent.further()
        };
        tracer.further(|tracer| {
            let packet = tracer.leave(from, &sent)?;
            let packet = tracer.up(from, &packet)?;
            let entered = tracer.enter(from.seen_by, &packet)?;
            let iif = tracer.seen_as(from.seen_by);
            let packet = entered.packet.between(Some(iif), Some(&out.name));
            tracer.at_node(Hook::Forward, &packet).map(|_| ())
        })?;
    }
    Ok(passed)
}

/// How many hops a container's packets may take, as its kernel begins.
fn hops(from: &Site<'_>) -> Option<u8> {
    let name = match from.address {
        IpAddr::V4(_) => "net.ipv4.ip_default_ttl".to_owned(),
        IpAddr::V6(_) => format!("net.ipv6.conf.{}.hop_limit", from.link.name),
    };
    u8::try_from(from.inside.number(&name)?).ok()
}

/// Takes a packet to a program of the node, and its answer to the container.
fn to_node<'s>(
    tracer: &mut Tracer<'s>,
    from: &'s Site<'s>,
    sent: &Packet,
) -> Result<Passage<'s>, Halt<'s>> {
    if !from.is_the_nodes() {
        return Err(Halt::Unknown);
    }
    let packet = tracer.leave(from, sent)?;
    tracer.reach_node(from, &packet)?;
    tracer.back = true;
    let answer = tracer.of_node(from, &packet.answer())?;
    tracer.into(from, &answer)?;
    Ok(Passage { out: None, source: Truth::No, untracked: None })
}
