//! Walks a program for a packet, as the packet filter would: the second opinion on the evaluator's
//! verdicts.
//!
//! It knows chains and sets, and neither pods nor policies.

use std::net::IpAddr;

use crate::policy::{Direction, Protocol, Traffic};
use crate::program::{End, Line, LineAction, Link, Match, OPEN, OWN_NODE, Program, Set};
use net::IpFamily;

/// How many jumps nftables follows (linux `include/net/netfilter/nf_tables.h`
/// `NFT_JUMP_STACK_SIZE`).
const DEEPEST: usize = 16;

/// The first packet of a connection, as it is forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Where it comes from.
    pub source: IpAddr,
    /// Where it goes.
    pub destination: IpAddr,
    /// The rest.
    pub traffic: Traffic,
}

enum Outcome {
    Accept,
    Drop,
    /// The chain came to its end.
    Return,
}

/// Reports whether a packet that a node forwards passes both hooks.
///
/// What the node itself sends or receives is not forwarded and meets neither.
#[must_use]
pub fn passes(program: &Program, packet: Packet) -> bool {
    // An accept ends its own hook only.
    hook(program, Direction::Egress, packet) && hook(program, Direction::Ingress, packet)
}

/// Reports whether a packet that comes in by one interface of a node and leaves by another, or the
/// same, passes both hooks.
#[must_use]
pub fn passes_between(program: &Program, from: &str, to: &str, packet: Packet) -> bool {
    hook_at(program, Direction::Egress, Some(from), packet)
        && hook_at(program, Direction::Ingress, Some(to), packet)
}

/// Reports whether a packet that a pod of a node sends to the node itself passes.
#[must_use]
pub fn reaches_node(program: &Program, packet: Packet) -> bool {
    packet.traffic.protocol == Protocol::NeighbourDiscovery
        || !program.chains.contains_key(OWN_NODE)
        || !matches!(walk(program, OWN_NODE, packet, 0), Outcome::Drop)
}

/// Reports whether a packet passes one hook.
#[must_use]
pub fn hook(program: &Program, direction: Direction, packet: Packet) -> bool {
    hook_at(program, direction, None, packet)
}

/// The same for a packet that comes in by an interface (egress), or leaves by it (ingress).
fn hook_at(
    program: &Program,
    direction: Direction,
    interface: Option<&str>,
    packet: Packet,
) -> bool {
    if packet.traffic.protocol == Protocol::NeighbourDiscovery {
        return true;
    }
    let address = match direction {
        Direction::Egress => packet.source,
        Direction::Ingress => packet.destination,
    };
    let link = interface.map(|name| Link { interface: name.to_owned(), address });
    let link = link.and_then(|link| program.links.get(&(direction, link)));
    let chain = link.or_else(|| program.verdicts.get(&(direction, address)));
    let Some(chain) = chain.filter(|chain| *chain != OPEN) else { return true };
    match walk(program, chain, packet, 0) {
        Outcome::Accept | Outcome::Return => true,
        Outcome::Drop => false,
    }
}

fn walk(program: &Program, chain: &str, packet: Packet, deep: usize) -> Outcome {
    // The kernel refuses such programs.
    let Some(lines) = program.chains.get(chain).filter(|_| deep < DEEPEST) else {
        return Outcome::Drop;
    };
    for line in lines {
        if !matches(program, line, packet) {
            continue;
        }
        match &line.then {
            LineAction::Accept => return Outcome::Accept,
            LineAction::Deny => return Outcome::Drop,
            LineAction::Return => return Outcome::Return,
            LineAction::Jump(chain) => match walk(program, chain, packet, deep + 1) {
                Outcome::Return => {}
                ends => return ends,
            },
        }
    }
    Outcome::Return
}

fn matches(program: &Program, line: &Line, packet: Packet) -> bool {
    let Packet { source, destination, traffic } = packet;
    line.matches.iter().all(|wanted| match wanted {
        Match::Address { end, family, set } => {
            let address = match end {
                End::Source => source,
                End::Destination => destination,
            };
            IpFamily::of(address) == *family
                && match program.sets.get(set) {
                    Some(Set::Addresses(all)) => all.contains(&address),
                    Some(Set::Intervals(all)) => {
                        all.iter().any(|(first, last)| (*first..=*last).contains(&address))
                    }
                    Some(Set::Ports(_)) | None => false,
                }
        }
        Match::Protocol(protocol) => traffic.protocol == *protocol,
        Match::Ports { protocol, first, last } => {
            let in_range = |port: u16| (*first..=*last).contains(&port);
            traffic.protocol == *protocol && traffic.port.is_some_and(in_range)
        }
        Match::NamedPort { family, set } => {
            let element = traffic.port.map(|port| (destination, traffic.protocol, port));
            IpFamily::of(destination) == *family
                && match program.sets.get(set) {
                    Some(Set::Ports(all)) => element.is_some_and(|element| all.contains(&element)),
                    _ => false,
                }
        }
    })
}
