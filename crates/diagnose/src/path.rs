//! The way of a packet through a scene, hop by hop, and that of its answer.
//!
//! [`follow`] takes a [`Trip`] from namespace to namespace as the kernel would: routes, filters of
//! the container, of the links, of the bridge and of the node. It names the first place where the
//! packet, or its answer, certainly ends. Whatever it cannot know, it does not claim: then the
//! outcome is [`Outcome::Unknown`], which is neither good nor bad.
//!
//! A container's link on a parent (macvlan, ipvlan, a VLAN) leads out by the parent, by the mode of
//! the link; a bridge in a VRF is routed by the VRF's table; a bridge that distinguishes VLANs takes a
//! frame where the VLAN is. At a port of Open vSwitch the way is unknown: the switch decides.
//!
//! It does not look at switches (forwarding), at the state of links, or at what listens: other
//! rules do.

mod apart;
mod frames;
mod interface;
mod outside;
#[cfg(test)]
pub(crate) mod samples;
mod site;
mod steps;
#[cfg(test)]
mod tests;
mod vlans;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::filter::{Change, Layer, NewDestination, Packet, Payload, Place, Port, State, Truth};
use crate::model::filter::Hook;
use crate::model::{Link, Port as PublishedPort, Route, RouteKind, RouteRule, Scene, Transport};

pub(crate) use self::interface::{Interface, may_ask};
pub use self::site::{Joint, Site};
pub(crate) use self::site::{uplinks_of, vrf_above};
pub(crate) use self::steps::RARE_PORT;
use self::steps::{Halt, Tracer};
pub(crate) use self::vlans::{has as has_vlan, untagged as untagged_vlan};

/// A way to follow.
#[derive(Debug, Clone, Copy)]
pub enum Trip<'s> {
    /// A container connects to itself over loopback, to any port.
    Inside {
        /// The container.
        of: &'s Site<'s>,
    },
    /// A container asks for the hardware address of its gateway, which the node is.
    Resolve {
        /// The container.
        from: &'s Site<'s>,
    },
    /// A container connects to an address beyond the node, or to one of the node's own.
    Outside {
        /// The container.
        from: &'s Site<'s>,
        /// The address.
        to: IpAddr,
        /// The protocol and the port.
        with: Payload,
    },
    /// A container sends something to another one of its network.
    Between {
        /// The container.
        from: &'s Site<'s>,
        /// The other one.
        to: &'s Site<'s>,
        /// What is sent.
        with: Payload,
    },
    /// The node connects to a container, to any port.
    FromNode {
        /// The container.
        to: &'s Site<'s>,
    },
    /// A host beyond the node connects to a published port.
    Published {
        /// The container.
        to: &'s Site<'s>,
        /// The port.
        port: &'s PublishedPort,
        /// The address of the node.
        at: IpAddr,
        /// The node's link by which the packet comes in.
        by: &'s Link,
        /// The address of the host.
        from: IpAddr,
    },
    /// A program of the node connects to a published port by loopback.
    PublishedHere {
        /// The container.
        to: &'s Site<'s>,
        /// The port.
        port: &'s PublishedPort,
    },
}

/// What comes of a trip.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome<'s> {
    /// The packet arrives, and the answer as well.
    Passes(Passage<'s>),
    /// One of them does not.
    Stopped(Box<Stop<'s>>),
    /// That is not certain.
    Unknown,
}

/// How a packet left the node.
#[derive(Debug, Clone, PartialEq)]
pub struct Passage<'s> {
    /// The link.
    pub out: Option<&'s Link>,
    /// Whether its source was translated.
    pub source: Truth,
    /// The rule that took it from connection tracking. If its source was translated, the rule takes
    /// the answer, which is not translated back then.
    pub untracked: Option<Place>,
}

/// Where a packet ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Stop<'s> {
    /// What ends it.
    pub why: StopCause<'s>,
    /// It is the answer.
    pub back: bool,
    /// It follows the first packet and its answer.
    pub further: bool,
    /// The ID of the container in whose namespace it ends; `None`: the node's.
    pub inside: Option<&'s str>,
}

/// What ends a packet.
#[derive(Debug, Clone, PartialEq)]
pub enum StopCause<'s> {
    /// A packet filter.
    Filter {
        /// What kind.
        layer: Layer,
        /// The hook.
        hook: Hook,
        /// The rule.
        place: Place,
        /// It is refused with these words; otherwise it is dropped.
        reject: Option<String>,
    },
    /// A router, of which the node is the first: a rule has set how many hops it may take.
    Expires {
        /// Where the rule sees it.
        layer: Layer,
        /// The hook.
        hook: Hook,
        /// The rule.
        place: Place,
    },
    /// A route or a routing rule that refuses.
    Refused {
        /// The route.
        route: Option<&'s Route>,
        /// The rule.
        rule: Option<&'s RouteRule>,
    },
    /// There is no route.
    NoRoute,
    /// It goes by another link than the one that leads to the container.
    Diverted {
        /// The link.
        link: &'s Link,
        /// The route.
        route: &'s Route,
        /// The rule that asked the route's table, if it is not one that every host has.
        rule: Option<&'s RouteRule>,
    },
    /// A bridge that distinguishes VLANs does not take it by this link.
    Vlan {
        /// The port, or the bridge for the node itself.
        port: &'s Link,
        /// The VLAN that it lacks; `None`: it takes no frames without a tag.
        vlan: Option<u16>,
    },
    /// Links on one parent, or such a link and the parent itself, do not reach each other.
    Apart {
        /// The parent.
        parent: &'s Link,
    },
    /// It is translated to another destination than the container's port.
    Redirected {
        /// The rule.
        place: Place,
        /// The destination.
        to: NewDestination,
    },
}

/// Follows a packet and its answer.
#[must_use]
pub fn follow<'s>(scene: &'s Scene, trip: &Trip<'s>) -> Outcome<'s> {
    run(Tracer::new(scene), trip)
}

/// Follows a packet and its answer as if the node's routes led them where they should go, and as if
/// the base chains of some places were not there. So a fault is found that another one hides.
#[must_use]
pub fn follow_filters<'s>(scene: &'s Scene, trip: &Trip<'s>, without: &'s [Place]) -> Outcome<'s> {
    follow_changed(scene, trip, Change { without, ..Change::default() })
}

/// The same, as if the filters were changed.
#[must_use]
pub fn follow_changed<'s>(scene: &'s Scene, trip: &Trip<'s>, change: Change<'s>) -> Outcome<'s> {
    run(Tracer::of_filters(scene, change), trip)
}

fn run<'s>(mut tracer: Tracer<'s>, trip: &Trip<'s>) -> Outcome<'s> {
    let passed = match *trip {
        Trip::Inside { of } => inside(&mut tracer, of),
        Trip::Resolve { from } => resolve(&mut tracer, from),
        Trip::Outside { from, to, with } => outside::outside(&mut tracer, from, to, with),
        Trip::Between { from, to, with } => between(&mut tracer, from, to, with),
        Trip::FromNode { to } => from_node(&mut tracer, to),
        Trip::Published { to, port, at, by, from } => {
            let transport = port.transport;
            let with = carries(transport, Port::Is(port.host));
            let packet = Packet::first(from, at, with);
            published(&mut tracer, to, port, by, &packet)
        }
        Trip::PublishedHere { to, port } => published_here(&mut tracer, to, port),
    };
    match passed {
        Ok(passed) if !tracer.unsure => Outcome::Passes(passed),
        Err(Halt::Stop(stop)) => Outcome::Stopped(stop),
        Ok(_) | Err(Halt::Unknown) => Outcome::Unknown,
    }
}

/// The main routing table (RT_TABLE_MAIN).
const TABLE_MAIN: u32 = 254;

/// Returns the link by which packets would leave if the routes were as they should be. Without a
/// default route it goes through all containers: a rule asks once, not for each container.
pub(crate) fn uplink(scene: &Scene, ipv4: bool) -> Option<&Link> {
    let host = &scene.host;
    let of_route = |route: &Route| host.link_of(route.hops.first()?.link?);
    let is_default = |route: &&Route| {
        route.kind == RouteKind::Unicast && route.to.prefix_len() == 0 && of_route(route).is_some()
    };
    // Other tables than the main one are for packets that a routing rule picks.
    let rank = |route: &&Route| {
        (route.to.addr().is_ipv4() != ipv4, route.table != TABLE_MAIN, route.metric)
    };
    let link = host.routes.iter().filter(is_default).min_by_key(rank).and_then(of_route);
    link.or_else(|| {
        let of_containers = links_of_containers(scene);
        let is_uplink = |link: &&Link| {
            link.name != "lo"
                && !matches!(link.kind.as_deref(), Some("bridge" | "dummy" | "tun" | "wireguard"))
                && link.addresses.iter().any(|own| own.address.addr().is_ipv4() == ipv4)
                && !of_containers.contains(link.name.as_str())
        };
        host.links.iter().find(is_uplink)
    })
}

/// The names of the node's links that lead to containers.
pub(crate) fn links_of_containers(scene: &Scene) -> HashSet<&str> {
    let attachments = scene.containers.iter().flat_map(|container| &container.attachments);
    attachments.flat_map(|attachment| &attachment.host_links).map(String::as_str).collect()
}

/// Returns the address of a link by which others know the node: not one of the link alone.
pub(crate) fn address_of(link: &Link, ipv4: bool) -> Option<IpAddr> {
    let mut addresses = link.addresses.iter().map(|own| own.address.addr());
    addresses.find(|address| match address {
        IpAddr::V4(_) => ipv4,
        IpAddr::V6(address) => !ipv4 && address.segments()[0] & 0xffc0 != 0xfe80,
    })
}

/// Returns a request for an echo from an address (RFC 792; RFC 4443 §4.1).
#[must_use]
pub fn echo(to: IpAddr) -> Payload {
    Payload::Icmp { kind: if to.is_ipv4() { 8 } else { 128 } }
}

/// Returns a connection of a client to a port.
#[must_use]
pub fn carries(transport: Transport, destination: Port) -> Payload {
    match transport {
        Transport::Tcp => Payload::Tcp { source: Port::High, destination },
        Transport::Udp => Payload::Udp { source: Port::High, destination },
    }
}

const ANY_TCP: Payload = Payload::Tcp { source: Port::High, destination: Port::Any };

/// ICMPv6 types (RFC 4861 §4.3).
const NEIGHBOUR_SOLICITATION: u8 = 135;

fn inside<'s>(tracer: &mut Tracer<'s>, of: &'s Site<'s>) -> Result<Passage<'s>, Halt<'s>> {
    let own = loopback(of.address.is_ipv4());
    let packet = Packet::first(own, own, ANY_TCP);
    tracer.looped(of, &packet)?;
    tracer.back = true;
    tracer.looped(of, &packet.answer())?;
    Ok(Passage { out: None, source: Truth::No, untracked: None })
}

/// The address of loopback.
pub(crate) fn loopback(ipv4: bool) -> IpAddr {
    if ipv4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() }
}

fn resolve<'s>(tracer: &mut Tracer<'s>, from: &'s Site<'s>) -> Result<Passage<'s>, Halt<'s>> {
    let Some(gateway) = from.gateway.filter(|_| from.joint == Joint::Pair) else {
        return Err(Halt::Unknown);
    };
    let mut packet = match gateway {
        IpAddr::V4(_) => Packet::first(from.address, gateway, Payload::Arp { reply: false }),
        IpAddr::V6(gateway) => {
            let with = Payload::Icmp { kind: NEIGHBOUR_SOLICITATION };
            let packet = Packet::first(from.address, solicited_node(gateway).into(), with);
            // linux net/netfilter/nf_conntrack_proto_icmpv6.c does not track neighbour discovery.
            Packet { state: State::Untracked, ..packet }
        }
    };
    packet.macs = [from.mac(), None];
    let asked = tracer.leave(from, &packet)?;
    tracer.reach_node(from, &asked)?;
    tracer.back = true;
    let answer = Packet { source: gateway, macs: [None, from.mac()], ..packet.answer() };
    let answer = tracer.of_node(from, &answer)?;
    tracer.into(from, &answer)?;
    Ok(Passage { out: None, source: Truth::No, untracked: None })
}

/// RFC 4291 §2.7.1.
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    let low = u16::from_be_bytes([b, c]);
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), low)
}

fn between<'s>(
    tracer: &mut Tracer<'s>,
    from: &'s Site<'s>,
    to: &'s Site<'s>,
    with: Payload,
) -> Result<Passage<'s>, Halt<'s>> {
    let packet = Packet::first(from.address, to.address, with);
    let packet = cross(tracer, from, to, &packet)?;
    tracer.back = true;
    cross(tracer, to, from, &packet.answer())?;
    Ok(Passage { out: None, source: Truth::No, untracked: None })
}

/// Takes a packet from one container to another.
fn cross<'s>(
    tracer: &mut Tracer<'s>,
    from: &'s Site<'s>,
    to: &'s Site<'s>,
    packet: &Packet,
) -> Result<Packet, Halt<'s>> {
    if from.joint != Joint::Pair || to.joint != Joint::Pair {
        return apart::beside(tracer, from, to, packet);
    }
    let bridge = from.bridge.map(|bridge| bridge.index);
    let is_bridged = bridge.is_some() && bridge == to.bridge.map(|bridge| bridge.index);
    let packet = match tracer.route_inside(from, to.address)? {
        None if is_bridged => {
            let packet = Packet { macs: [from.mac(), to.mac()], ..packet.clone() };
            let packet = tracer.leave(from, &packet)?;
            tracer.bridged(from, to, &packet)?
        }
        None => return Err(Halt::Unknown),
        Some(via) if tracer.scene.host.owner_of(via).is_some() => {
            let packet = Packet { macs: from.macs_out(), ..packet.clone() };
            let packet = tracer.leave(from, &packet)?;
            let packet = tracer.up(from, &packet)?;
            let entered = tracer.enter(from.seen_by, &packet)?;
            if entered.packet.destination != to.address {
                return Err(Halt::Unknown);
            }
            tracer.route_to(to, &entered.packet)?;
            let seen_as = tracer.seen_as(from.seen_by);
            let left = tracer.forward(&entered.packet, seen_as, &to.seen_by.name)?;
            if left.source != Truth::No {
                return Err(Halt::Unknown);
            }
            tracer.down(to, &left.packet)?
        }
        Some(_) => return Err(Halt::Unknown),
    };
    tracer.into(to, &packet)
}

fn from_node<'s>(tracer: &mut Tracer<'s>, to: &'s Site<'s>) -> Result<Passage<'s>, Halt<'s>> {
    if !to.is_the_nodes() {
        return Err(Halt::Unknown);
    }
    let own = address_of(to.seen_by, to.address.is_ipv4());
    let source = own.or(to.gateway).ok_or(Halt::Unknown)?;
    let packet = Packet::first(source, to.address, ANY_TCP);
    tracer.route_to(to, &packet)?;
    let packet = tracer.of_node(to, &packet)?;
    if packet.source_translated != Some(false) || packet.destination != to.address {
        return Err(Halt::Unknown);
    }
    let packet = tracer.into(to, &packet)?;

    tracer.back = true;
    let answer = Packet { macs: to.macs_out(), ..packet.answer() };
    let answer = tracer.leave(to, &answer)?;
    tracer.reach_node(to, &answer)?;
    Ok(Passage { out: None, source: Truth::No, untracked: None })
}

fn published<'s>(
    tracer: &mut Tracer<'s>,
    to: &'s Site<'s>,
    port: &PublishedPort,
    by: &'s Link,
    packet: &Packet,
) -> Result<Passage<'s>, Halt<'s>> {
    if !to.is_the_nodes() {
        return Err(Halt::Unknown);
    }
    let (at, client) = (packet.destination, packet.source);
    let packet = packet.between(Some(&by.name), None);
    tracer.device(Hook::Ingress, &packet)?;
    let entered = tracer.translated(Hook::Prerouting, &packet)?;
    match entered.destination {
        Some((_, NewDestination::To(address, target)))
            if address == Some(to.address) && target.is_none_or(|own| own == port.container) => {}
        Some((place, to)) => {
            return tracer.stop(StopCause::Redirected { place, to });
        }
        // What should have led it to the container is missing: that is told by CHECK.
        None => return Err(Halt::Unknown),
    }
    tracer.route_to(to, &entered.packet)?;
    let left = tracer.forward(&entered.packet, &by.name, &to.seen_by.name)?;
    let arrived = tracer.down(to, &left.packet)?;
    tracer.into(to, &arrived)?;
    if left.source != Truth::No {
        return Err(Halt::Unknown);
    }

    tracer.back = true;
    let mut answer = Packet { macs: to.macs_out(), ..arrived.answer() };
    answer.answers_as = Some(at);
    let via = tracer.route_inside(to, client)?.ok_or(Halt::Unknown)?;
    if tracer.scene.host.owner_of(via).is_none() {
        return Err(Halt::Unknown);
    }
    let answer = tracer.leave(to, &answer)?;
    let answer = tracer.up(to, &answer)?.between(Some(&to.seen_by.name), None);
    let answer = tracer.at_node(Hook::Prerouting, &answer)?.packet;
    let out = tracer.route_out(&answer)?;
    let left = tracer.forward(&answer, &to.seen_by.name, &out.name)?;
    tracer.device(Hook::Egress, &left.packet.between(None, Some(&out.name)))?;
    if matches!(entered.packet.carries, Payload::Tcp { .. }) {
        // A rule may mark only the first packet.
        let sent = Packet { mark: None, ..entered.packet.further() };
        let sent = sent.between(Some(&by.name), Some(&to.seen_by.name));
        tracer.further(|tracer| {
            let sent = tracer.at_node(Hook::Forward, &sent)?.packet;
            let sent = tracer.down(to, &sent)?;
            tracer.into(to, &sent).map(|_| ())
        })?;
    }
    Ok(Passage { out: Some(out), source: Truth::No, untracked: None })
}

fn published_here<'s>(
    tracer: &mut Tracer<'s>,
    to: &'s Site<'s>,
    port: &PublishedPort,
) -> Result<Passage<'s>, Halt<'s>> {
    if !to.is_the_nodes() {
        return Err(Halt::Unknown);
    }
    let own = loopback(to.address.is_ipv4());
    let packet = Packet::first(own, own, carries(port.transport, Port::Is(port.host)));
    let sent = tracer.translated(Hook::Output, &packet.between(None, Some("lo")))?;
    match sent.destination {
        Some((_, NewDestination::To(address, target)))
            if address == Some(to.address) && target.is_none_or(|own| own == port.container) => {}
        Some((place, to)) => return tracer.stop(StopCause::Redirected { place, to }),
        None => return Err(Halt::Unknown),
    }
    let packet = sent.packet.between(None, Some(&to.seen_by.name));
    let left = tracer.at_node(Hook::Postrouting, &packet)?;
    let source = address_of(to.seen_by, to.address.is_ipv4());
    let (Some(source), Truth::Yes) = (source, left.source) else { return Err(Halt::Unknown) };
    let packet = tracer.down(to, &Packet { source, ..left.packet })?;
    let packet = tracer.into(to, &packet)?;

    tracer.back = true;
    let mut answer = Packet { macs: to.macs_out(), ..packet.answer() };
    answer.answers_to = Some(own);
    answer.answers_as = Some(own);
    let answer = tracer.leave(to, &answer)?;
    tracer.reach_node(to, &answer)?;
    Ok(Passage { out: None, source: Truth::Yes, untracked: None })
}
