//! What a bridge does with a frame: its VLANs, its filters, and those of IP that see its frames.

use super::Site;
use super::steps::{Halt, Tracer};
use crate::filter::{Layer, Packet, Truth};
use crate::model::filter::Hook;
use crate::model::{Link, Part};

impl<'s> Tracer<'s> {
    /// Takes a packet from a port of a bridge up to the node's IP.
    pub(super) fn up(&mut self, site: &'s Site<'s>, packet: &Packet) -> Result<Packet, Halt<'s>> {
        let Some(bridge) = site.bridge else { return Ok(packet.clone()) };
        self.tagged(bridge, [site.host_end, site.node_port.unwrap_or(bridge)], site.seen_by)?;
        if let Some(port) = site.node_port {
            let across = packet.between(Some(&site.host_end.name), Some(&port.name));
            self.across(bridge, &across)?;
        } else {
            self.bridge(Hook::Input, packet)?;
            self.device(Hook::Ingress, &packet.between(Some(&bridge.name), None))?;
        }
        if site.seen_by.index != bridge.index {
            self.device(Hook::Ingress, &packet.between(Some(&site.seen_by.name), None))?;
        }
        Ok(packet.clone())
    }

    /// Takes a frame from one port of a bridge out by another one, of which one leads to a router.
    pub(super) fn routed(
        &mut self,
        bridge: &Link,
        [from, to]: [&'s Link; 2],
        packet: &Packet,
    ) -> Result<Packet, Halt<'s>> {
        let vlan = self.retagged(bridge, [from, to], packet.vlan)?;
        let frame = Packet { vlan, ..packet.between(Some(&from.name), Some(&to.name)) };
        self.across(bridge, &frame)?;
        Ok(frame)
    }

    /// Takes a frame from one port of a bridge out by another one.
    fn across(&mut self, bridge: &Link, packet: &Packet) -> Result<(), Halt<'s>> {
        self.unsure |= self.shows_frames(bridge, packet.is_ipv4()) != Truth::No;
        self.bridge(Hook::Forward, packet)?;
        self.bridge(Hook::Postrouting, packet)?;
        self.device(Hook::Egress, packet)
    }

    /// Takes a packet from the node's IP to the port of a bridge that leads to a container.
    pub(super) fn down(&mut self, site: &'s Site<'s>, packet: &Packet) -> Result<Packet, Halt<'s>> {
        self.device(Hook::Egress, &packet.between(None, Some(&site.seen_by.name)))?;
        let Some(bridge) = site.bridge else { return Ok(packet.clone()) };
        self.tagged(bridge, [site.node_port.unwrap_or(bridge), site.host_end], site.seen_by)?;
        if let Some(port) = site.node_port {
            let own = packet.between(Some(&port.name), None);
            self.device(Hook::Ingress, &own)?;
            self.bridge(Hook::Prerouting, &own)?;
            self.across(bridge, &packet.between(Some(&port.name), Some(&site.host_end.name)))?;
        } else {
            let frame = packet.between(None, Some(&site.host_end.name));
            self.bridge(Hook::Output, &frame)?;
            self.bridge(Hook::Postrouting, &frame)?;
            self.device(Hook::Egress, &frame)?;
        }
        Ok(packet.clone())
    }

    /// Takes a frame from one port of a bridge to another. `br_netfilter` shows it to IP's filters.
    pub(super) fn bridged(
        &mut self,
        from: &'s Site<'s>,
        to: &'s Site<'s>,
        packet: &Packet,
    ) -> Result<Packet, Halt<'s>> {
        if let Some(bridge) = from.bridge {
            self.tagged(bridge, [from.host_end, to.host_end], bridge)?;
        }
        let (iif, oif) = (Some(from.host_end.name.as_str()), Some(to.host_end.name.as_str()));
        let mut packet = packet.between(iif, oif);
        let shown = from.bridge.map(|bridge| self.shows_frames(bridge, packet.is_ipv4()));
        match (shown.unwrap_or(Truth::No), from.bridge) {
            (Truth::Yes, Some(bridge)) => {
                let name = Some(bridge.name.as_str());
                let entered = self.at_node(Hook::Prerouting, &packet.between(name, None))?;
                if entered.destination.is_some() {
                    return Err(Halt::Unknown);
                }
                self.bridge(Hook::Forward, &packet)?;
                let left = self.show_forwarded(&entered.packet, &bridge.name, &bridge.name)?;
                if left.source != Truth::No {
                    return Err(Halt::Unknown);
                }
                packet = left.packet.between(iif, oif);
            }
            (shown, _) => {
                self.unsure |= shown == Truth::Maybe;
                self.bridge(Hook::Forward, &packet)?;
            }
        }
        self.bridge(Hook::Postrouting, &packet)?;
        self.device(Hook::Egress, &packet)?;
        Ok(packet)
    }

    /// Says whether `br_netfilter` shows frames of a bridge to IP's filters: those of all bridges
    /// by a kernel parameter, or those of this one (linux net/bridge/br_netfilter_hooks.c
    /// `br_nf_pre_routing`). Without the module there is no such parameter.
    fn shows_frames(&self, bridge: &Link, ipv4: bool) -> Truth {
        let (key, own) = if ipv4 {
            ("net.bridge.bridge-nf-call-iptables", bridge.shows_ipv4)
        } else {
            ("net.bridge.bridge-nf-call-ip6tables", bridge.shows_ipv6)
        };
        match self.scene.host.number(key) {
            Some(number) if number != 0 || own => Truth::Yes,
            None if self.scene.lacks(Part::Sysctls, None) => Truth::Maybe,
            _ => Truth::No,
        }
    }

    pub(super) fn bridge(&mut self, hook: Hook, packet: &Packet) -> Result<(), Halt<'s>> {
        self.walk((&self.scene.host, None), Layer::Bridge, hook, packet).map(|_| ())
    }
}
