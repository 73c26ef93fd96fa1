//! The table in a container's own namespace, for networks whose packets do not pass the node.
//!
//! There the interface leads to the chain of the pod, for all addresses. What a container forwards
//! from or to such a network is judged as if the pod itself sent or received it.

use kernel::nft::field::{self, Field, ct_state_bits};
use kernel::nft::{HookPoint, KeyType, NewChain, NewRule, NewSet};
use policy::Direction;

use super::{
    CUT, EGRESS, EGRESS_PRIORITY, INGRESS, INGRESS_PRIORITY, REVIVED, base, in_the_middle,
    interface_keys, interface_map, known_passes, known_returns, table,
};
use crate::layout::{NEIGHBOURS, OWN_LINK, icmpv6, net};

/// What is forwarded out of a judged interface, and into the container by one.
const EGRESS_FORWARD: &str = "egress-forward";
const INGRESS_FORWARD: &str = "ingress-forward";

/// ICMPv6 types between a host and its routers: solicitations and advertisements (RFC 4861 §4.1,
/// §4.2).
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;

/// ICMPv6 types by which hosts report their multicast groups to routers and switches, and by which
/// these ask (RFC 2710 §3, RFC 3810 §5). Behind a switch that listens to them, hosts do not find
/// their neighbours without them. They go no further than the link.
const LISTENER_QUERY: u8 = 130;
const LISTENERS: (u8, u8) = (131, 132);
const LISTENERS_V2: u8 = 143;
const ONE_HOP: u8 = 1;

pub(super) fn sets() -> Vec<NewSet> {
    let table = table();
    let key = [KeyType::IfName];
    let of = |direction| {
        [
            NewSet::verdict_map(&table, interface_map(direction), key),
            NewSet::set(&table, interface_keys(direction), key),
        ]
    };
    Direction::ALL.into_iter().flat_map(of).collect()
}

pub(super) fn chains() -> Vec<NewChain> {
    vec![
        base(EGRESS, HookPoint::Output, EGRESS_PRIORITY),
        base(INGRESS, HookPoint::Input, INGRESS_PRIORITY),
        base(EGRESS_FORWARD, HookPoint::Forward, EGRESS_PRIORITY),
        base(INGRESS_FORWARD, HookPoint::Forward, INGRESS_PRIORITY),
    ]
}

pub(super) fn rules() -> Vec<NewRule> {
    let mut rules = Vec::new();
    for (chain, direction) in [
        (EGRESS, Direction::Egress),
        (EGRESS_FORWARD, Direction::Egress),
        (INGRESS, Direction::Ingress),
        (INGRESS_FORWARD, Direction::Ingress),
    ] {
        rules.extend(base_rules(chain, direction));
    }
    rules.push(known_returns());
    // This end is the container's. If a policy restricts which peers may reach it, it may not have
    // begun what it sends. If a policy restricts which peers it may reach, it may have begun what
    // it receives.
    for (known, at) in [
        (Direction::Ingress, interface(Direction::Egress)),
        (Direction::Egress, interface(Direction::Ingress)),
    ] {
        let rule = NewRule::new(&table(), REVIVED);
        rules.push(rule.in_set(&[at], interface_keys(known)).goto(CUT));
    }
    rules
}

/// Replies pass, and so do the messages that every host on a link must send and receive. The
/// container's packets to itself use the loopback interface, which leads to no chain.
///
/// If the interface is in a VRF, the kernel reports the VRF as the interface that a packet came in
/// by, and the interface itself separately (`meta sdifname`, which the hook output does not have).
fn base_rules(chain: &str, direction: Direction) -> Vec<NewRule> {
    let rule = || NewRule::new(&table(), chain);
    let is_ingress = direction == Direction::Ingress;
    let mut rules = vec![known_passes(rule()), in_the_middle(rule()).jump(REVIVED)];
    if is_ingress {
        let begun = rule().has_any(field::ct_state(), ct_state_bits::NEW);
        let known = interface_keys(Direction::Egress);
        rules.push(in_the_middle(begun).in_set(&[field::sdifname()], known).goto(CUT));
    }
    rules.extend(match chain {
        INGRESS => incoming(rule),
        EGRESS => outgoing(rule),
        // Packets of the link itself are not forwarded.
        _ => Vec::new(),
    });
    rules.push(rule().vmap(&[interface(direction)], interface_map(direction)));
    if is_ingress {
        rules.push(rule().vmap(&[field::sdifname()], interface_map(direction)));
    }
    rules
}

/// What a host receives on its link. It is not a router: no other host asks it for advertisements,
/// and redirects belong to connections (`ct state related`).
fn incoming(rule: impl Fn() -> NewRule) -> Vec<NewRule> {
    let query = icmpv6(rule(), (LISTENER_QUERY, LISTENER_QUERY), ONE_HOP);
    vec![
        icmpv6(rule(), (ROUTER_ADVERTISEMENT, NEIGHBOURS.1), OWN_LINK).accept(),
        query.in_net(field::ip6_saddr(), net("fe80::/10")).accept(),
    ]
}

/// What it sends there.
fn outgoing(rule: impl Fn() -> NewRule) -> Vec<NewRule> {
    let to_groups = |types| {
        let rule = icmpv6(rule(), types, ONE_HOP);
        rule.in_net(field::ip6_daddr(), net("ff00::/8")).accept()
    };
    vec![
        icmpv6(rule(), NEIGHBOURS, OWN_LINK).accept(),
        icmpv6(rule(), (ROUTER_SOLICITATION, ROUTER_SOLICITATION), OWN_LINK).accept(),
        to_groups(LISTENERS),
        to_groups((LISTENERS_V2, LISTENERS_V2)),
    ]
}

/// The container's interface.
fn interface(direction: Direction) -> Field {
    match direction {
        Direction::Ingress => field::iifname(),
        Direction::Egress => field::oifname(),
    }
}
