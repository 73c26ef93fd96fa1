//! The hops of a way.

use std::net::IpAddr;

use super::site::vrf_above;
use super::{Site, Stop, StopCause, uplink};
use crate::filter::{self, Change, End, Hops, Layer, Packet, Place, Port, Truth, WalkOutcome};
use crate::model::filter::Hook;
use crate::model::{Link, Namespace, Part, Scene};
use crate::routes::{self, RouteDecision};

/// A port at which no program listens, and which no rule translates (IANA: `tcpmux`).
pub(crate) const RARE_PORT: u16 = 1;

/// How many chains that translate are left out for it.
const TRANSLATIONS: usize = 8;

/// Why a packet is not followed any further.
#[derive(Debug)]
pub(super) enum Halt<'s> {
    Stop(Box<Stop<'s>>),
    Unknown,
}

/// How many hops a rule has left to a packet.
#[derive(Debug)]
struct HopLimit<'s> {
    hops: u8,
    layer: Layer,
    hook: Hook,
    place: Place,
    /// The container in whose namespace the rule is.
    inside: Option<&'s str>,
    /// The packet is the answer.
    back: bool,
}

/// Follows a packet.
#[derive(Debug)]
pub(super) struct Tracer<'s> {
    pub(super) scene: &'s Scene,
    /// It may have been stopped before.
    pub(super) unsure: bool,
    /// It is the answer.
    pub(super) back: bool,
    /// It follows the first packet and its answer.
    further: bool,
    /// How many hops it may take, if a rule has surely set that.
    left: Option<HopLimit<'s>>,
    /// How many hops the first packet may take, if no rule changes that and it is known.
    pub(super) begins: Option<u8>,
    /// How the filters are taken to be.
    change: Change<'s>,
    /// Routes that lead elsewhere end the way. Otherwise it goes on as if they did not.
    by_routes: bool,
}

impl<'s> Tracer<'s> {
    pub(super) fn new(scene: &'s Scene) -> Self {
        Tracer {
            scene,
            unsure: false,
            back: false,
            further: false,
            left: None,
            begins: None,
            change: Change::default(),
            by_routes: true,
        }
    }

    /// Follows filters alone, as if they were changed.
    pub(super) fn of_filters(scene: &'s Scene, change: Change<'s>) -> Self {
        Tracer { change, by_routes: false, ..Tracer::new(scene) }
    }

    pub(super) fn stop<T>(&self, why: StopCause<'s>) -> Result<T, Halt<'s>> {
        self.stop_in(None, why)
    }

    fn stop_in<T>(&self, inside: Option<&'s str>, why: StopCause<'s>) -> Result<T, Halt<'s>> {
        let (back, further) = (self.back, self.further);
        Err(Halt::Stop(Box::new(Stop { why, back, further, inside })))
    }

    /// Follows a packet that comes after the first one and its answer. It counts only if it surely
    /// ends.
    pub(super) fn further(
        &mut self,
        follow: impl FnOnce(&mut Self) -> Result<(), Halt<'s>>,
    ) -> Result<(), Halt<'s>> {
        let before = (self.unsure, self.back);
        (self.back, self.further) = (false, true);
        let followed = follow(self);
        (self.unsure, self.back) = before;
        self.further = false;
        match followed {
            Err(Halt::Unknown) => Ok(()),
            other => other,
        }
    }

    /// Takes a packet through a hook. Where a filter could not be read, nothing is certain.
    pub(super) fn walk(
        &mut self,
        (namespace, inside): (&'s Namespace, Option<&'s str>),
        layer: Layer,
        hook: Hook,
        packet: &Packet,
    ) -> Result<WalkOutcome, Halt<'s>> {
        let is_hidden = self.scene.lacks(Part::Nftables, inside)
            || (layer == Layer::Ip && self.scene.lacks(Part::LegacyIptables, inside));
        if is_hidden {
            self.unsure = true;
        }
        let walked = filter::walk_changed(namespace, inside, layer, hook, packet, self.change);
        let walked = match walked.end {
            End::Lost(place) => {
                self.untranslated((namespace, inside), layer, hook, packet, place)?
            }
            _ => walked,
        };
        let back = self.back;
        match &walked.hops {
            Hops::Kept => {}
            Hops::Set(hops, place) => {
                let (hops, place) = (*hops, place.clone());
                self.left = Some(HopLimit { hops, layer, hook, place, inside, back });
            }
            Hops::Fewer(by, place) => {
                let known = self.left.as_ref().filter(|left| left.back == back);
                let before = known.map(|left| left.hops).or(self.begins.filter(|_| !back));
                let place = place.clone();
                self.left = before.map(|hops| {
                    let hops = hops.saturating_sub(*by);
                    HopLimit { hops, layer, hook, place, inside, back }
                });
            }
            Hops::Unknown => (self.left, self.begins) = (None, None),
        }
        match walked.end {
            End::Stopped(place, reject) => {
                self.stop_in(inside, StopCause::Filter { layer, hook, place, reject })
            }
            End::Lost(_) => Err(Halt::Unknown),
            End::Unknown(_) => {
                self.unsure = true;
                Ok(walked)
            }
            End::Passes => Ok(walked),
        }
    }

    /// A packet to any port may be translated, if a rule translates those to one port. Most are not:
    /// if one to a port that no rule names is not, it goes on as if those rules were not there.
    fn untranslated(
        &self,
        (namespace, inside): (&'s Namespace, Option<&'s str>),
        layer: Layer,
        hook: Hook,
        packet: &Packet,
        place: Place,
    ) -> Result<WalkOutcome, Halt<'s>> {
        let Some((_, Port::Any)) = packet.carries.ports() else { return Err(Halt::Unknown) };
        let carries = packet.carries.to_port(Port::Is(RARE_PORT));
        let rare = Packet { carries, ..packet.clone() };
        let rare = filter::walk_changed(namespace, inside, layer, hook, &rare, self.change);
        if rare.destination.is_some() || matches!(rare.end, End::Lost(_)) {
            return Err(Halt::Unknown);
        }
        let mut without = self.change.without.to_vec();
        without.push(place);
        for _ in 0..TRANSLATIONS {
            let change = Change { without: &without, ..self.change };
            let walked = filter::walk_changed(namespace, inside, layer, hook, packet, change);
            match walked.end {
                End::Lost(place) => without.push(place),
                _ => return Ok(walked),
            }
        }
        Err(Halt::Unknown)
    }

    /// Takes a packet of IP through a hook of the node.
    pub(super) fn at_node(&mut self, hook: Hook, packet: &Packet) -> Result<WalkOutcome, Halt<'s>> {
        self.walk((&self.scene.host, None), Layer::Ip, hook, packet)
    }

    /// Takes a packet that is to be translated through the hook where that is done. A translation
    /// that leads to a program of the node is an end of its own.
    pub(super) fn translated(
        &mut self,
        hook: Hook,
        packet: &Packet,
    ) -> Result<WalkOutcome, Halt<'s>> {
        let host = &self.scene.host;
        let walked = filter::walk_changed(host, None, Layer::Ip, hook, packet, self.change);
        match (&walked.end, &walked.destination) {
            (End::Lost(_), Some((place, to @ filter::NewDestination::Here(_)))) => {
                self.stop(StopCause::Redirected { place: place.clone(), to: to.clone() })
            }
            _ => self.at_node(hook, packet),
        }
    }

    /// Takes a frame through a hook of a link of the node.
    pub(super) fn device(&mut self, hook: Hook, packet: &Packet) -> Result<(), Halt<'s>> {
        self.walk((&self.scene.host, None), Layer::Device, hook, packet).map(|_| ())
    }

    /// Takes a packet that came in by a link of the node through the first hook of IP. A VRF shows it
    /// once more, as its own (linux drivers/net/vrf.c `vrf_ip_rcv`); translations are decided by
    /// then.
    pub(super) fn enter(
        &mut self,
        link: &'s Link,
        packet: &Packet,
    ) -> Result<WalkOutcome, Halt<'s>> {
        let first = self.at_node(Hook::Prerouting, &packet.between(Some(&link.name), None))?;
        let Some(vrf) = vrf_above(&self.scene.host, link) else { return Ok(first) };
        let again = first.packet.between(Some(&vrf.name), None);
        let again = self.at_node(Hook::Prerouting, &again)?;
        if again.destination.is_some() {
            return Err(Halt::Unknown);
        }
        // Routes are asked for the link.
        let packet = again.packet.between(Some(&link.name), None);
        let untracked = first.untracked.or(again.untracked);
        Ok(WalkOutcome { packet, untracked, end: again.end, ..first })
    }

    /// Returns the name by which filters see where a packet came in that is sent on.
    pub(super) fn seen_as(&self, link: &'s Link) -> &'s str {
        vrf_above(&self.scene.host, link).map_or(link.name.as_str(), |vrf| vrf.name.as_str())
    }

    /// Takes a packet through a hook of a container. One that is translated there is not followed.
    fn in_container(
        &mut self,
        site: &'s Site<'s>,
        layer: Layer,
        hook: Hook,
        packet: &Packet,
    ) -> Result<Packet, Halt<'s>> {
        let at = (site.inside, Some(site.container.id.as_str()));
        let walked = self.walk(at, layer, hook, packet)?;
        if walked.destination.is_some() || walked.source != Truth::No {
            return Err(Halt::Unknown);
        }
        Ok(walked.packet)
    }

    /// Takes a packet from a container's program to another one of it, over loopback.
    pub(super) fn looped(&mut self, site: &'s Site<'s>, packet: &Packet) -> Result<(), Halt<'s>> {
        let out = packet.between(None, Some("lo"));
        let out = self.in_container(site, Layer::Ip, Hook::Output, &out)?;
        let out = self.in_container(site, Layer::Ip, Hook::Postrouting, &out)?;
        let back = out.between(Some("lo"), None);
        let back = self.in_container(site, Layer::Ip, Hook::Prerouting, &back)?;
        self.in_container(site, Layer::Ip, Hook::Input, &back)?;
        Ok(())
    }

    /// Takes a packet from a container's program out of its link.
    pub(super) fn out_of(&mut self, site: &'s Site<'s>, packet: &Packet) -> Result<(), Halt<'s>> {
        let out = within(packet).between(None, Some(&site.link.name));
        let out = if packet.is_arp() {
            self.in_container(site, Layer::Arp, Hook::Output, &out)?
        } else {
            let out = self.in_container(site, Layer::Ip, Hook::Output, &out)?;
            self.in_container(site, Layer::Ip, Hook::Postrouting, &out)?
        };
        self.in_container(site, Layer::Device, Hook::Egress, &out).map(|_| ())
    }

    /// Takes a packet from a container's program to the node's end of the link.
    pub(super) fn leave(
        &mut self,
        site: &'s Site<'s>,
        packet: &Packet,
    ) -> Result<Packet, Halt<'s>> {
        self.out_of(site, packet)?;
        let node = packet.between(Some(&site.host_end.name), None);
        self.device(Hook::Ingress, &node)?;
        if site.bridge.is_some() {
            self.bridge(Hook::Prerouting, &node)?;
        }
        Ok(node)
    }

    /// Takes a packet from the node's end of a link into a container, to its programs.
    pub(super) fn into(&mut self, site: &'s Site<'s>, packet: &Packet) -> Result<Packet, Halt<'s>> {
        let inside = within(packet).between(Some(&site.link.name), None);
        self.in_container(site, Layer::Device, Hook::Ingress, &inside)?;
        if packet.is_arp() {
            self.in_container(site, Layer::Arp, Hook::Input, &inside)?;
        } else {
            let inside = self.in_container(site, Layer::Ip, Hook::Prerouting, &inside)?;
            self.in_container(site, Layer::Ip, Hook::Input, &inside)?;
        }
        Ok(packet.clone())
    }

    /// Takes a packet that is for the node to its programs.
    pub(super) fn reach_node(
        &mut self,
        site: &'s Site<'s>,
        packet: &Packet,
    ) -> Result<(), Halt<'s>> {
        let packet = self.up(site, packet)?.between(Some(&site.seen_by.name), None);
        if packet.is_arp() {
            let at = (&self.scene.host, None);
            return self.walk(at, Layer::Arp, Hook::Input, &packet).map(|_| ());
        }
        let entered = self.at_node(Hook::Prerouting, &packet)?;
        if entered.destination.is_some() {
            return Err(Halt::Unknown);
        }
        self.at_node(Hook::Input, &entered.packet).map(|_| ())
    }

    /// Takes a packet of the node to the link that leads to a container.
    pub(super) fn of_node(
        &mut self,
        site: &'s Site<'s>,
        packet: &Packet,
    ) -> Result<Packet, Halt<'s>> {
        let packet = packet.between(None, Some(&site.seen_by.name));
        let packet = if packet.is_arp() {
            self.walk((&self.scene.host, None), Layer::Arp, Hook::Output, &packet)?.packet
        } else {
            let left = self.at_node(Hook::Output, &packet)?;
            if left.destination.is_some() {
                return Err(Halt::Unknown);
            }
            self.at_node(Hook::Postrouting, &left.packet)?.packet
        };
        self.down(site, &packet)
    }

    /// Takes a packet that the node forwards from one link to another. Before it is shown to filters,
    /// it has taken a hop (linux net/ipv4/ip_forward.c `ip_forward`).
    pub(super) fn forward(
        &mut self,
        packet: &Packet,
        iif: &str,
        oif: &str,
    ) -> Result<WalkOutcome, Halt<'s>> {
        self.hop()?;
        self.show_forwarded(packet, iif, oif)
    }

    /// Ends a packet that may not take one hop more.
    fn hop(&mut self) -> Result<(), Halt<'s>> {
        let back = self.back;
        if !back {
            self.begins = self.begins.map(|hops| hops.saturating_sub(1));
        }
        let Some(left) = self.left.take_if(|left| left.back == back) else { return Ok(()) };
        if left.hops <= 1 {
            let HopLimit { layer, hook, place, inside, .. } = left;
            return self.stop_in(inside, StopCause::Expires { layer, hook, place });
        }
        self.left = Some(HopLimit { hops: left.hops - 1, ..left });
        Ok(())
    }

    /// Takes a packet to the router to which the node sends it, if it is not for that itself.
    pub(super) fn passes_router(&mut self, packet: &Packet) -> Result<(), Halt<'s>> {
        if self.left.is_none() {
            return Ok(());
        }
        match self.route(packet) {
            Ok(RouteDecision::By { via: Some(via), .. }) if via != packet.destination => self.hop(),
            _ => Ok(()),
        }
    }

    /// Shows filters a packet that goes on from one link to another.
    pub(super) fn show_forwarded(
        &mut self,
        packet: &Packet,
        iif: &str,
        oif: &str,
    ) -> Result<WalkOutcome, Halt<'s>> {
        let packet = packet.between(Some(iif), Some(oif));
        let packet = self.at_node(Hook::Forward, &packet)?.packet;
        self.at_node(Hook::Postrouting, &packet)
    }

    /// Returns the gateway to which a container sends what is for an address; `None` if it is on
    /// the link. What goes by another link is not followed.
    pub(super) fn route_inside(
        &self,
        site: &'s Site<'s>,
        to: IpAddr,
    ) -> Result<Option<IpAddr>, Halt<'s>> {
        if self.scene.lacks(Part::Routes, Some(&site.container.id)) {
            return Err(Halt::Unknown);
        }
        // A program that uses an interface of a VRF is bound to that.
        let of_vrf = vrf_above(site.inside, site.link).map(|_| site.link.name.as_str());
        match routes::look_up(site.inside, Some(site.address), to, of_vrf, Some(0)) {
            RouteDecision::By { link, via, .. } if link.index == site.link.index => Ok(via),
            RouteDecision::Refused { route, rule } => {
                self.stop_in(Some(&site.container.id), StopCause::Refused { route, rule })
            }
            _ => Err(Halt::Unknown),
        }
    }

    /// Returns the node's link by which a packet leaves.
    pub(super) fn route_out(&self, packet: &Packet) -> Result<&'s Link, Halt<'s>> {
        match self.route(packet)? {
            // It goes on in that VRF.
            RouteDecision::By { link, .. } if link.vrf_table.is_some() => Err(Halt::Unknown),
            RouteDecision::By { link, .. } => Ok(link),
            RouteDecision::Refused { .. } | RouteDecision::Nowhere if !self.by_routes => {
                uplink(self.scene, packet.is_ipv4()).ok_or(Halt::Unknown)
            }
            RouteDecision::Refused { route, rule } => self.stop(StopCause::Refused { route, rule }),
            RouteDecision::Nowhere => self.stop(StopCause::NoRoute),
            RouteDecision::Local(_) | RouteDecision::Unknown => Err(Halt::Unknown),
        }
    }

    /// Says whether the node's routes lead a packet to a container. If they do not know its
    /// network at all, CHECK tells that.
    pub(super) fn route_to(&self, site: &'s Site<'s>, packet: &Packet) -> Result<(), Halt<'s>> {
        if !self.by_routes {
            return Ok(());
        }
        match self.route(packet)? {
            RouteDecision::By { link, .. } if link.index == site.seen_by.index => Ok(()),
            RouteDecision::By { link, route, rule, .. }
                if rule.is_some() || 0 < route.to.prefix_len() =>
            {
                self.stop(StopCause::Diverted { link, route, rule })
            }
            RouteDecision::Refused { route, rule } => self.stop(StopCause::Refused { route, rule }),
            RouteDecision::By { .. }
            | RouteDecision::Nowhere
            | RouteDecision::Local(_)
            | RouteDecision::Unknown => Err(Halt::Unknown),
        }
    }

    fn route(&self, packet: &Packet) -> Result<RouteDecision<'s>, Halt<'s>> {
        if self.scene.lacks(Part::Routes, None) {
            return Err(Halt::Unknown);
        }
        let iif = packet.iif.as_deref();
        let host = &self.scene.host;
        Ok(routes::look_up(host, Some(packet.source), packet.destination, iif, packet.mark))
    }
}

/// Returns a packet as a container's namespace sees it: marks and translations stay on the node.
fn within(packet: &Packet) -> Packet {
    Packet {
        mark: Some(0),
        destination_translated: Some(false),
        source_translated: Some(false),
        answers_to: None,
        answers_as: None,
        vlan: None,
        ..packet.clone()
    }
}
