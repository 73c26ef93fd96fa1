//! Rules for tests, as the kernel keeps them.

use std::net::IpAddr;

use crate::model::Namespace;
use crate::model::filter::{
    Base, Chain, Comparison, Connection, Element, Family, Header, Hook, MapTo, Meta, Rule, Ruleset,
    Set, Step, Table, Verdict,
};

pub(crate) fn rule(parts: &[Vec<Step>]) -> Rule {
    Rule { handle: 7, comment: None, steps: parts.concat() }
}

pub(crate) fn drop() -> Vec<Step> {
    vec![Step::Verdict(Verdict::Drop)]
}

pub(crate) fn accept() -> Vec<Step> {
    vec![Step::Verdict(Verdict::Accept)]
}

pub(crate) fn jump(chain: &str) -> Vec<Step> {
    vec![Step::Verdict(Verdict::Jump(chain.to_owned()))]
}

pub(crate) fn reject() -> Vec<Step> {
    vec![Step::Reject { with: "icmpx admin-prohibited".to_owned() }]
}

/// An expression that is not known, such as a match of iptables.
pub(crate) fn unknown(name: &str) -> Vec<Step> {
    vec![Step::Unknown { name: name.to_owned() }]
}

fn padded(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}

fn equal(with: Vec<u8>) -> Step {
    Step::Compare { op: Comparison::Equal, from: 0, with }
}

pub(crate) fn iifname(name: &str) -> Vec<Step> {
    vec![Step::Meta { key: Meta::IifName, to: 0 }, equal(padded(name))]
}

pub(crate) fn oifname(name: &str) -> Vec<Step> {
    vec![Step::Meta { key: Meta::OifName, to: 0 }, equal(padded(name))]
}

/// `ct state established,related`.
pub(crate) fn established() -> Vec<Step> {
    vec![
        Step::Connection { key: Connection::State, to: 0 },
        Step::Bitwise { from: 0, to: 0, mask: 6_u32.to_ne_bytes().to_vec(), xor: vec![0; 4] },
        Step::Compare { op: Comparison::NotEqual, from: 0, with: vec![0; 4] },
    ]
}

/// `ip saddr ADDRESS` or `ip6 saddr ADDRESS`.
pub(crate) fn source(address: &str) -> Vec<Step> {
    match address.parse().unwrap() {
        IpAddr::V4(address) => bytes(Header::Network, 12, &address.octets()),
        IpAddr::V6(address) => bytes(Header::Network, 8, &address.octets()),
    }
}

/// `ip daddr ADDRESS` or `ip6 daddr ADDRESS`.
pub(crate) fn destination(address: &str) -> Vec<Step> {
    match address.parse().unwrap() {
        IpAddr::V4(address) => bytes(Header::Network, 16, &address.octets()),
        IpAddr::V6(address) => bytes(Header::Network, 24, &address.octets()),
    }
}

/// `ip daddr PREFIX`.
pub(crate) fn destination_in(prefix: &str) -> Vec<Step> {
    let net: ipnet::Ipv4Net = prefix.parse().unwrap();
    vec![
        Step::Payload { base: Header::Network, offset: 16, len: 4, to: 0 },
        Step::Bitwise { from: 0, to: 0, mask: net.netmask().octets().to_vec(), xor: vec![0; 4] },
        equal(net.network().octets().to_vec()),
    ]
}

/// `meta l4proto NUMBER`.
pub(crate) fn protocol(number: u8) -> Vec<Step> {
    vec![Step::Meta { key: Meta::L4Proto, to: 0 }, equal(vec![number])]
}

pub(crate) fn tcp_port(port: u16) -> Vec<Step> {
    [protocol(6), bytes(Header::Transport, 2, &port.to_be_bytes())].concat()
}

/// `tcp sport PORT`.
pub(crate) fn tcp_from(port: u16) -> Vec<Step> {
    [protocol(6), bytes(Header::Transport, 0, &port.to_be_bytes())].concat()
}

pub(crate) fn udp_port(port: u16) -> Vec<Step> {
    [protocol(17), bytes(Header::Transport, 2, &port.to_be_bytes())].concat()
}

/// `udp sport PORT`.
pub(crate) fn udp_from(port: u16) -> Vec<Step> {
    [protocol(17), bytes(Header::Transport, 0, &port.to_be_bytes())].concat()
}

fn bytes(base: Header, offset: u32, with: &[u8]) -> Vec<Step> {
    let len = u32::try_from(with.len()).unwrap();
    vec![Step::Payload { base, offset, len, to: 0 }, equal(with.to_vec())]
}

/// `ip ttl set NUMBER`, with the byte beside it, as nft writes it for the header's checksum.
pub(crate) fn ttl(hops: u8) -> Vec<Step> {
    vec![
        Step::Payload { base: Header::Network, offset: 8, len: 2, to: 0 },
        Step::Bitwise { from: 0, to: 0, mask: vec![0, 0xff], xor: vec![hops, 0] },
        Step::Write { base: Header::Network, offset: 8, len: 2, from: 0 },
    ]
}

/// `dnat to ADDRESS:PORT`.
pub(crate) fn dnat(address: &str, port: u16) -> Vec<Step> {
    let octets = match address.parse().unwrap() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    vec![
        Step::Immediate { to: 0, data: octets },
        Step::Immediate { to: 4, data: port.to_be_bytes().to_vec() },
        Step::DestinationNat { address: Some(0), port: Some(4) },
    ]
}

/// `iifname vmap { NAME : VERDICT, … }`.
pub(crate) fn iif_vmap(set: &str) -> Vec<Step> {
    vec![
        Step::Meta { key: Meta::IifName, to: 0 },
        Step::Lookup { set: set.to_owned(), from: 0, invert: false, to: Some(MapTo::Verdict) },
    ]
}

pub(crate) fn verdicts(name: &str, elements: &[(&str, Verdict)]) -> Set {
    let elements = elements.iter().map(|(link, verdict)| Element {
        first: padded(link),
        last: None,
        parts: Vec::new(),
        data: None,
        verdict: Some(verdict.clone()),
    });
    Set { name: name.to_owned(), elements: elements.collect(), truncated: false }
}

pub(crate) fn chain(name: &str, rules: Vec<Rule>) -> Chain {
    Chain { name: name.to_owned(), base: None, rules }
}

/// A base chain of type filter whose policy is `accept`.
pub(crate) fn base(name: &str, hook: Hook, priority: i32, rules: Vec<Rule>) -> Chain {
    let base = Base { hook, priority, kind: "filter".to_owned(), drops: false, device: None };
    Chain { base: Some(base), ..chain(name, rules) }
}

pub(crate) fn nat(name: &str, hook: Hook, priority: i32, rules: Vec<Rule>) -> Chain {
    let base = Base { hook, priority, kind: "nat".to_owned(), drops: false, device: None };
    Chain { base: Some(base), ..chain(name, rules) }
}

/// Gives a base chain the policy `drop`.
pub(crate) fn dropping(mut chain: Chain) -> Chain {
    if let Some(base) = &mut chain.base {
        base.drops = true;
    }
    chain
}

pub(crate) fn table(family: Family, name: &str, chains: Vec<Chain>) -> Table {
    Table { family, name: name.to_owned(), dormant: false, chains, sets: Vec::new() }
}

pub(crate) fn namespace(tables: Vec<Table>) -> Namespace {
    Namespace { filter: Ruleset { tables, ..Ruleset::default() }, ..Namespace::default() }
}
