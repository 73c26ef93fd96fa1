//! Ways of containers that do not pass the node's IP: by a parent link, at a port of Open vSwitch,
//! and by a bridge to a router.

use std::net::IpAddr;

use super::steps::{Halt, Tracer};
use super::{Joint, Passage, Site, StopCause, uplinks_of};
use crate::filter::{Packet, Payload, Truth};
use crate::model::filter::Hook;
use crate::model::{IpvlanMode, IpvlanReach, MacvlanMode};

/// Follows a packet of a container to an address beyond the node, and the answer.
pub(super) fn beyond<'s>(
    tracer: &mut Tracer<'s>,
    from: &'s Site<'s>,
    to: IpAddr,
    with: Payload,
) -> Result<Passage<'s>, Halt<'s>> {
    let packet = Packet::first(from.address, to, with);
    let via = tracer.route_inside(from, to)?;
    let owner = via.and_then(|via| tracer.scene.host.owner_of(via));
    let sent = match from.joint {
        // The switch decides.
        Joint::Pair | Joint::Switch => {
            tracer.out_of(from, &packet)?;
            return Err(Halt::Unknown);
        }
        Joint::Macvlan(_) | Joint::Ipvlan(_)
            if owner.is_some_and(|owner| owner.index == from.host_end.index) && !routes(from) =>
        {
            tracer.out_of(from, &packet)?;
            return tracer.stop(StopCause::Apart { parent: from.host_end });
        }
        _ => tracer.leave_by_parent(from, &packet)?,
    };
    // Another link of the node is the gateway.
    if owner.is_some() {
        return Err(Halt::Unknown);
    }
    tracer.back = true;
    tracer.enter_by_parent(from, &sent.answer())?;
    Ok(Passage { out: Some(from.host_end), source: Truth::No, untracked: None })
}

/// Follows a packet of a container to a router behind the only port of its bridge that leads to no
/// container, and the answer.
pub(super) fn by_bridge<'s>(
    tracer: &mut Tracer<'s>,
    from: &'s Site<'s>,
    packet: &Packet,
) -> Result<Passage<'s>, Halt<'s>> {
    let bridge = from.bridge.ok_or(Halt::Unknown)?;
    let packet = Packet { macs: [from.mac(), None], ..packet.clone() };
    let packet = tracer.leave(from, &packet)?;
    let [out] = uplinks_of(tracer.scene, bridge)[..] else { return Err(Halt::Unknown) };
    let sent = tracer.routed(bridge, [from.host_end, out], &packet)?;
    tracer.back = true;
    let answer = sent.answer().between(Some(&out.name), None);
    tracer.device(Hook::Ingress, &answer)?;
    tracer.bridge(Hook::Prerouting, &answer)?;
    let answer = tracer.routed(bridge, [out, from.host_end], &answer)?;
    tracer.into(from, &answer)?;
    Ok(Passage { out: Some(out), source: Truth::No, untracked: None })
}

/// Takes a packet from one container to another one on the same parent.
pub(super) fn beside<'s>(
    tracer: &mut Tracer<'s>,
    from: &'s Site<'s>,
    to: &'s Site<'s>,
    packet: &Packet,
) -> Result<Packet, Halt<'s>> {
    let is_on_link = tracer.route_inside(from, to.address)?.is_none();
    tracer.out_of(from, packet)?;
    let parent = from.host_end;
    if !is_on_link || parent.index != to.host_end.index {
        return Err(Halt::Unknown);
    }
    match (from.joint, to.joint) {
        (Joint::Macvlan(MacvlanMode::Bridge), Joint::Macvlan(MacvlanMode::Bridge)) => {
            // linux drivers/net/macvlan.c `macvlan_queue_xmit`: as if the parent had received it.
            tracer.device(Hook::Ingress, &packet.between(Some(&parent.name), None))?;
        }
        (Joint::Macvlan(MacvlanMode::Private), Joint::Macvlan(_))
        | (Joint::Macvlan(_), Joint::Macvlan(MacvlanMode::Private)) => {
            return tracer.stop(StopCause::Apart { parent });
        }
        (Joint::Ipvlan(one), Joint::Ipvlan(_)) if one.reach == IpvlanReach::Private => {
            return tracer.stop(StopCause::Apart { parent });
        }
        (Joint::Ipvlan(one), Joint::Ipvlan(_)) if one.reach == IpvlanReach::Bridge => {}
        // An outer switch may send it back, or not.
        _ => return Err(Halt::Unknown),
    }
    tracer.into(to, packet)
}

/// Says whether the parent's namespace routes what a container sends (linux
/// drivers/net/ipvlan/ipvlan_core.c `ipvlan_process_outbound`).
fn routes(site: &Site<'_>) -> bool {
    matches!(site.joint, Joint::Ipvlan(ipvlan) if ipvlan.mode != IpvlanMode::L2)
}

impl<'s> Tracer<'s> {
    /// Takes a packet from a container's program out by its parent.
    fn leave_by_parent(&mut self, site: &'s Site<'s>, packet: &Packet) -> Result<Packet, Halt<'s>> {
        self.out_of(site, packet)?;
        let mut packet = packet.between(None, Some(&site.host_end.name));
        if routes(site) {
            // It is like one of the node's own.
            let sent = self.at_node(Hook::Output, &packet)?;
            let left = self.at_node(Hook::Postrouting, &sent.packet)?;
            if sent.destination.is_some() || left.source != Truth::No {
                return Err(Halt::Unknown);
            }
            packet = left.packet;
        }
        self.device(Hook::Egress, &packet)?;
        Ok(packet)
    }

    /// Takes a packet that came in by the parent to a container's programs.
    fn enter_by_parent(&mut self, site: &'s Site<'s>, packet: &Packet) -> Result<(), Halt<'s>> {
        let mut packet = packet.between(Some(&site.host_end.name), None);
        self.device(Hook::Ingress, &packet)?;
        if matches!(site.joint, Joint::Ipvlan(ipvlan) if ipvlan.mode == IpvlanMode::L3s) {
            let entered = self.at_node(Hook::Prerouting, &packet)?;
            packet = self.at_node(Hook::Input, &entered.packet)?.packet;
        }
        self.into(site, &packet).map(|_| ())
    }
}
