//! What rules may ask of a packet besides its bytes.

use std::net::IpAddr;

use super::Layer;
use super::bits::{Byte, host, known, number};
use super::packet::{Packet, State};
use super::run::Run;
use crate::model::Namespace;
use crate::model::filter::{Connection, Hook, Meta};
use crate::routes::{self, RouteDecision};

/// How long the name of a link is in a register (IFNAMSIZ).
const NAME: usize = 16;

/// linux include/uapi/linux/netfilter/nf_tables.h `NFT_META_*`.
const META_IIFTYPE: u32 = 8;
const META_OIFTYPE: u32 = 9;
const META_BRI_IIFNAME: u32 = 17;
const META_BRI_OIFNAME: u32 = 18;
const META_PKTTYPE: u32 = 19;

/// linux include/uapi/linux/if_arp.h.
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

/// Returns a property of a packet; `None` if the kernel ends the rule because there is none.
pub(crate) fn meta(run: &Run<'_>, key: Meta) -> Option<Vec<Byte>> {
    let packet = &run.packet;
    let (iif, oif) = (packet.iif.as_deref(), packet.oif.as_deref());
    Some(match key {
        Meta::IifName | Meta::OifName if is_other(packet, key) => vec![Byte::UNKNOWN; NAME],
        Meta::Iif | Meta::Oif if is_other(packet, key) => vec![Byte::UNKNOWN; 4],
        Meta::IifName => name(iif),
        Meta::OifName => name(oif),
        Meta::Iif => index(run.namespace, iif),
        Meta::Oif => index(run.namespace, oif),
        Meta::L4Proto => vec![Byte::of(packet.protocol()?)],
        Meta::NfProto => match run.layer {
            // linux include/uapi/linux/netfilter.h NFPROTO_*.
            Layer::Ip if packet.is_ipv4() => known(&[2]),
            Layer::Ip => known(&[10]),
            Layer::Arp => known(&[3]),
            Layer::Bridge => known(&[7]),
            Layer::Device => vec![Byte::UNKNOWN; 4],
        },
        Meta::Protocol => known(&packet.ethertype().to_be_bytes()),
        Meta::Mark => match packet.mark {
            Some(mark) => host(mark),
            None => vec![Byte::UNKNOWN; 4],
        },
        Meta::Other(_) if packet.other_than.iter().any(Option::is_some) => {
            vec![Byte::UNKNOWN; NAME]
        }
        Meta::Other(META_IIFTYPE) => link_type(run.namespace, iif),
        Meta::Other(META_OIFTYPE) => link_type(run.namespace, oif),
        Meta::Other(META_BRI_IIFNAME) => bridge_of(run.namespace, iif),
        Meta::Other(META_BRI_OIFNAME) => bridge_of(run.namespace, oif),
        // PACKET_HOST: what is not for this host does not come so far.
        Meta::Other(META_PKTTYPE) if run.layer == Layer::Ip && !is_to_many(packet.destination) => {
            known(&[0])
        }
        Meta::Other(_) => vec![Byte::UNKNOWN; NAME],
    })
}

/// Returns which links the link is not of which a rule asks name or index, if that is all that is
/// known of it.
fn others(packet: &Packet, key: Meta) -> Option<&[String]> {
    let [iif, oif] = &packet.other_than;
    match key {
        Meta::IifName | Meta::Iif => iif.as_deref(),
        Meta::OifName | Meta::Oif => oif.as_deref(),
        _ => None,
    }
}

fn is_other(packet: &Packet, key: Meta) -> bool {
    others(packet, key).is_some()
}

/// Returns values that a property surely does not have, though it is not known.
pub(crate) fn is_not(run: &Run<'_>, key: Meta) -> Vec<Vec<u8>> {
    let Some(others) = others(&run.packet, key) else { return Vec::new() };
    let values = others.iter().filter_map(|other| match key {
        Meta::Iif | Meta::Oif => {
            run.namespace.link(other).map(|link| link.index.to_ne_bytes().to_vec())
        }
        _ => Some(other.as_bytes().to_vec()),
    });
    values.collect()
}

/// A packet that has no such link has the empty name.
fn name(link: Option<&str>) -> Vec<Byte> {
    let mut bytes = known(link.unwrap_or_default().as_bytes());
    bytes.resize(NAME, Byte::of(0));
    bytes
}

fn index(namespace: &Namespace, link: Option<&str>) -> Vec<Byte> {
    match link.map(|name| namespace.link(name)) {
        None => host(0),
        Some(Some(link)) => host(link.index),
        Some(None) => vec![Byte::UNKNOWN; 4],
    }
}

fn link_type(namespace: &Namespace, link: Option<&str>) -> Vec<Byte> {
    let kind = link.and_then(|name| namespace.link(name)).and_then(|link| link.kind.as_deref());
    match (link, kind) {
        (Some("lo"), _) => known(&ARPHRD_LOOPBACK.to_ne_bytes()),
        (_, Some("veth" | "bridge")) => known(&ARPHRD_ETHER.to_ne_bytes()),
        _ => vec![Byte::UNKNOWN; 2],
    }
}

fn bridge_of(namespace: &Namespace, port: Option<&str>) -> Vec<Byte> {
    let port = port.and_then(|name| namespace.link(name));
    let bridge = port.and_then(|port| namespace.link_of(port.master?));
    match bridge {
        Some(bridge) => name(Some(&bridge.name)),
        None => vec![Byte::UNKNOWN; NAME],
    }
}

fn is_to_many(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_multicast(),
    }
}

/// The priority of connection tracking (`NF_IP_PRI_CONNTRACK`).
const CONNTRACK: i32 = -200;

/// Says whether connection tracking has not seen the packet yet.
pub(super) fn is_before_tracking(run: &Run<'_>) -> bool {
    match run.hook {
        Hook::Ingress => true,
        Hook::Prerouting | Hook::Output => run.priority < CONNTRACK,
        Hook::Input | Hook::Forward | Hook::Postrouting | Hook::Egress => false,
    }
}

/// linux include/uapi/linux/netfilter/nf_tables.h `NFT_CT_DIRECTION`.
const CT_DIRECTION: u32 = 1;

/// linux include/uapi/linux/netfilter/nf_conntrack_common.h: `NF_CT_STATE_BIT` and `IPS_*`.
const STATE_INVALID: u32 = 1;
const STATE_ESTABLISHED: u32 = 1 << 1;
const STATE_NEW: u32 = 1 << 3;
const STATE_UNTRACKED: u32 = 1 << 6;
const STATUS_SRC_NAT: u32 = 1 << 4;
const STATUS_DST_NAT: u32 = 1 << 5;

/// Returns a property of the packet's connection; `None` if the kernel ends the rule because there
/// is none.
pub(crate) fn connection(run: &Run<'_>, key: Connection) -> Option<Vec<Byte>> {
    let unknown = || Some(vec![Byte::UNKNOWN; NAME]);
    let packet = &run.packet;
    let is_looped = packet.iif.as_deref() == Some("lo");
    let is_unclear = run.maybe_untracked && run.untracked.is_none();
    if run.layer != Layer::Ip || is_unclear || is_looped {
        return unknown();
    }
    let is_untracked = packet.state == State::Untracked || run.untracked.is_some();
    if is_before_tracking(run) && run.untracked.is_none() {
        return if key == Connection::State { Some(host(STATE_INVALID)) } else { None };
    }
    if matches!(run.hook, Hook::Prerouting | Hook::Output) && run.priority == CONNTRACK {
        return unknown();
    }
    match key {
        Connection::State if is_untracked => Some(host(STATE_UNTRACKED)),
        _ if is_untracked => None,
        Connection::State => match packet.state {
            State::New => Some(host(STATE_NEW)),
            State::Answer | State::Further => Some(host(STATE_ESTABLISHED)),
            State::Untracked => unknown(),
        },
        Connection::Status => {
            let bit = |known: Option<bool>, bit: u32| match known {
                Some(true) => (bit, bit),
                Some(false) => (0, bit),
                None => (0, 0),
            };
            let source = bit(packet.source_translated, STATUS_SRC_NAT);
            let destination = bit(packet.destination_translated, STATUS_DST_NAT);
            Some(number(source.0 | destination.0, source.1 | destination.1).to_vec())
        }
        Connection::Other(CT_DIRECTION) => match packet.state {
            State::New | State::Further => Some(known(&[0])),
            State::Answer => Some(known(&[1])),
            State::Untracked => unknown(),
        },
        Connection::Mark | Connection::Other(_) => unknown(),
    }
}

/// What the kernel's routes say of an address.
pub(crate) enum Fib {
    Bytes(Vec<Byte>),
    NotZero,
}

/// linux include/uapi/linux/rtnetlink.h `RTN_*`.
const RTN_UNICAST: u32 = 1;
const RTN_LOCAL: u32 = 2;
const RTN_BROADCAST: u32 = 3;
const RTN_MULTICAST: u32 = 5;

pub(crate) fn fib(run: &Run<'_>, source: bool, kind: bool) -> Fib {
    let unknown = Fib::Bytes(vec![Byte::UNKNOWN; NAME]);
    if run.layer != Layer::Ip || run.rewritten {
        return unknown;
    }
    let packet = &run.packet;
    let range = packet.range(source);
    if range.prefix_len() < range.max_prefix_len() {
        return unknown;
    }
    let address = range.addr();
    if kind {
        return match type_of(run.namespace, address) {
            Some(kind) => Fib::Bytes(host(kind)),
            None => unknown,
        };
    }
    // Rules ask whether the way back leads out by the link that the packet came in by.
    let iif = packet.iif.as_deref();
    match routes::look_up(run.namespace, None, address, iif, packet.mark) {
        RouteDecision::By { link, .. } if source && iif == Some(link.name.as_str()) => Fib::NotZero,
        _ => unknown,
    }
}

/// Returns the type of an address for a host; `None` if that is not known.
pub(crate) fn type_of(namespace: &Namespace, address: IpAddr) -> Option<u32> {
    if address.is_multicast() {
        return Some(RTN_MULTICAST);
    }
    if address.is_loopback() || namespace.owner_of(address).is_some() {
        return Some(RTN_LOCAL);
    }
    let mut own = namespace.links.iter().flat_map(|link| &link.addresses);
    let is_broadcast = match address {
        IpAddr::V4(address) => {
            address.is_broadcast()
                || own.any(|own| match own.address {
                    ipnet::IpNet::V4(net) => net.prefix_len() < 31 && net.broadcast() == address,
                    ipnet::IpNet::V6(_) => false,
                })
        }
        IpAddr::V6(_) => false,
    };
    if is_broadcast {
        return Some(RTN_BROADCAST);
    }
    match routes::look_up(namespace, None, address, None, Some(0)) {
        RouteDecision::By { .. } => Some(RTN_UNICAST),
        _ => None,
    }
}
