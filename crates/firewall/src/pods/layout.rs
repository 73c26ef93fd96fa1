//! The parts of `inet netwright-policy` that are the same for each program: maps, chains, rules.
//!
//! `docs/firewall.md` explains them; the snapshot in the tests shows them. The table in a
//! container's namespace (`inside`) has other maps and hooks, and the same chains otherwise.

use std::net::{IpAddr, Ipv6Addr};

use kernel::nft::field::{self, Field, ct_state_bits, tcp_flag_bits};
use kernel::nft::{
    self, Expr, Hook, HookPoint, KeyType, NewChain, NewRule, NewSet, TableRef, Value,
};
use policy::program::{OPEN, OWN_NODE};
use policy::{Direction, IpFamily};

use super::{Logging, TABLE, log_prefix};
use crate::layout::{NEIGHBOURS, OWN_LINK, icmpv6, net};

mod inside;

/// Which table it is, and how it logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) site: Site,
    /// `None` once the kernel has shown that it cannot log, and in a container.
    pub(crate) logging: Option<Logging>,
}

/// Where the table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// On the node, for what it forwards.
    Node {
        /// Whether packets that IPVS sends on are judged too: they are not forwarded.
        services: bool,
    },
    /// In a container's own namespace, for what the container sends and receives.
    Container,
}

/// The table's comment.
pub(crate) const COMMENT: &str = "Netwright. Filled by netwrightd policy: do not edit.";

/// After the usual filters (`filter`, 0), which may drop, but cannot accept for us.
const EGRESS_PRIORITY: i32 = 5;
/// After it: an accept of one chain does not end the other.
const INGRESS_PRIORITY: i32 = 6;
/// After IPVS (linux net/netfilter/ipvs/ip_vs_core.c `ip_vs_ops4`: `NF_IP_PRI_NAT_SRC` - 1 at most),
/// which takes packets for its services there: these may be for an address of the node, and go to
/// pods.
const OWN_NODE_PRIORITY: i32 = 101;

const EGRESS: &str = "egress";
const INGRESS: &str = "ingress";
const EGRESS_SERVICES: &str = "egress-services";
const INGRESS_SERVICES: &str = "ingress-services";
const REVIVED: &str = "revived";
/// The chain that ends a connection that had been cut.
pub(crate) const CUT: &str = "cut";

/// How much of a packet is logged: the headers of IPv6 with some extensions, and of TCP.
const SNAPLEN: u32 = 128;

/// Names the table.
pub(crate) fn table() -> TableRef {
    TableRef::new(nft::Family::Inet, TABLE)
}

/// The map from an address to the chain of its pod.
pub(crate) fn map(direction: Direction, family: IpFamily) -> String {
    format!("{}{}", way(direction), family.digit())
}

/// The set of the keys of that map: Linux 6.1 refuses to look up only the key of a map (6.18 does
/// not).
pub(crate) fn keys(direction: Direction, family: IpFamily) -> String {
    format!("has-{}", map(direction, family))
}

/// The same for addresses of further networks, which are valid at one interface.
pub(crate) fn link_map(direction: Direction, family: IpFamily) -> String {
    format!("net-{}", map(direction, family))
}

/// The set of the keys of that map that policies select.
pub(crate) fn link_keys(direction: Direction, family: IpFamily) -> String {
    format!("has-{}", link_map(direction, family))
}

/// The map from an interface of a container to the chain of its pod.
pub(crate) fn interface_map(direction: Direction) -> String {
    format!("at-{}", way(direction))
}

/// The set of the keys of that map that policies select.
pub(crate) fn interface_keys(direction: Direction) -> String {
    format!("has-{}", interface_map(direction))
}

/// The chain that ends what is denied.
pub(crate) fn deny(direction: Direction) -> String {
    format!("deny-{}", way(direction))
}

fn way(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "in",
        Direction::Egress => "out",
    }
}

/// The type of addresses.
pub(crate) fn key_type(family: IpFamily) -> KeyType {
    match family {
        IpFamily::V4 => KeyType::Ipv4Addr,
        IpFamily::V6 => KeyType::Ipv6Addr,
    }
}

/// The type of addresses of further networks.
pub(crate) fn link_type(family: IpFamily) -> [KeyType; 2] {
    [KeyType::IfName, key_type(family)]
}

pub(crate) fn source(family: IpFamily) -> Field {
    match family {
        IpFamily::V4 => field::ip_saddr(),
        IpFamily::V6 => field::ip6_saddr(),
    }
}

pub(crate) fn destination(family: IpFamily) -> Field {
    match family {
        IpFamily::V4 => field::ip_daddr(),
        IpFamily::V6 => field::ip6_daddr(),
    }
}

/// Lists the maps and sets that no program has.
pub(crate) fn sets(site: Site) -> Vec<NewSet> {
    match site {
        Site::Node { .. } => node_sets(),
        Site::Container => inside::sets(),
    }
}

fn node_sets() -> Vec<NewSet> {
    let table = table();
    let mut sets = Vec::new();
    for direction in Direction::ALL {
        for family in IpFamily::ALL {
            let key = [key_type(family)];
            sets.push(NewSet::verdict_map(&table, map(direction, family), key));
            sets.push(NewSet::set(&table, keys(direction, family), key));
        }
    }
    for direction in Direction::ALL {
        for family in IpFamily::ALL {
            let key = link_type(family);
            sets.push(NewSet::verdict_map(&table, link_map(direction, family), key));
            sets.push(NewSet::set(&table, link_keys(direction, family), key));
        }
    }
    sets
}

/// Lists the chains that no program has.
pub(crate) fn chains(site: Site) -> Vec<NewChain> {
    let table = table();
    let regular = |name: &str| NewChain::regular(&table, name);
    let mut chains = match site {
        Site::Node { services } => node_chains(services),
        Site::Container => inside::chains(),
    };
    chains.extend([regular(REVIVED), regular(CUT), regular(OPEN)]);
    chains.extend(Direction::ALL.map(|direction| regular(&deny(direction))));
    chains
}

fn node_chains(services: bool) -> Vec<NewChain> {
    let of = |hook: &Base| {
        [(Direction::Egress, EGRESS_PRIORITY), (Direction::Ingress, INGRESS_PRIORITY)]
            .map(|(direction, priority)| base(hook.chain(direction), hook.point(), priority))
    };
    Base::all(services).iter().flat_map(of).collect()
}

fn base(name: &str, point: HookPoint, priority: i32) -> NewChain {
    NewChain::base(&table(), name, Hook::filter(point, priority))
}

/// Describes a chain of a program, without its rules.
pub(crate) fn chain_of_program(name: &str) -> NewChain {
    match name == OWN_NODE {
        true => base(name, HookPoint::Input, OWN_NODE_PRIORITY),
        false => NewChain::regular(&table(), name),
    }
}

/// Lists the rules with which a chain of a program begins: to the node itself, answers pass, and so
/// do neighbours.
pub(crate) fn first_rules(chain: &str) -> Vec<NewRule> {
    if chain != OWN_NODE {
        return Vec::new();
    }
    let rule = || NewRule::new(&table(), chain);
    vec![known_passes(rule()), icmpv6(rule(), NEIGHBOURS, OWN_LINK).accept()]
}

/// Lists the rules of these chains, chain by chain.
///
/// The rules that most packets meet come first: each rule that the first packet of a connection
/// passes costs time.
pub(crate) fn rules(form: Form) -> Vec<NewRule> {
    let mut rules: Vec<NewRule> = match form.site {
        Site::Node { services } => node_rules(services),
        Site::Container => inside::rules(),
    };
    rules.push(cut_rule());
    rules.push(NewRule::new(&table(), OPEN).accept());
    for direction in Direction::ALL {
        rules.extend(deny_rules(direction, form.logging));
    }
    rules
}

/// Ends a connection.
fn cut_rule() -> NewRule {
    NewRule::new(&table(), CUT).counter().reject_with_reset()
}

fn node_rules(services: bool) -> Vec<NewRule> {
    let mut rules = Vec::new();
    for hook in Base::all(services) {
        for direction in Direction::ALL {
            rules.extend(base_rules(*hook, direction));
        }
    }
    rules.extend(revived_rules());
    rules
}

/// Where packets are judged on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    /// What this node forwards.
    Forward,
    /// What IPVS sends on, to the address of the pod. It reached this node's hook input, and leaves
    /// like what a process of this node sends.
    Services,
}

impl Base {
    fn all(services: bool) -> &'static [Base] {
        if services { &[Base::Forward, Base::Services] } else { &[Base::Forward] }
    }

    fn chain(self, direction: Direction) -> &'static str {
        match (self, direction) {
            (Base::Forward, Direction::Egress) => EGRESS,
            (Base::Forward, Direction::Ingress) => INGRESS,
            (Base::Services, Direction::Egress) => EGRESS_SERVICES,
            (Base::Services, Direction::Ingress) => INGRESS_SERVICES,
        }
    }

    fn point(self) -> HookPoint {
        match self {
            Base::Forward => HookPoint::Forward,
            Base::Services => HookPoint::Output,
        }
    }

    /// Whether a rule can see the interface at the end that a direction is about: at the hook
    /// output no packet has come in by one.
    fn knows_interface(self, direction: Direction) -> bool {
        (self, direction) != (Base::Services, Direction::Egress)
    }
}

fn base_rules(hook: Base, direction: Direction) -> Vec<NewRule> {
    let name = hook.chain(direction);
    let rule = || NewRule::new(&table(), name);
    let address = |family| match direction {
        Direction::Ingress => destination(family),
        Direction::Egress => source(family),
    };
    let interface = interface(direction);
    let lead_link =
        |family| rule().vmap(&[interface, address(family)], link_map(direction, family));
    let lead = |family| rule().vmap(&[address(family)], map(direction, family));
    let leads = |family| {
        let link = hook.knows_interface(direction).then(|| lead_link(family));
        link.into_iter().chain([lead(family)])
    };
    let mut rules = vec![known_passes(rule())];
    if hook == Base::Services {
        rules.extend(own_rules(rule));
    }
    if direction == Direction::Egress {
        rules.push(in_the_middle(rule()).jump(REVIVED));
    }
    rules.extend(leads(IpFamily::V4));
    rules.push(icmpv6(rule(), NEIGHBOURS, OWN_LINK).accept());
    if (hook, direction) == (Base::Services, Direction::Egress) {
        rules.extend(nameless_rules(rule));
    }
    rules.extend(leads(IpFamily::V6));
    rules
}

/// Lets pass what belongs to a connection that is known.
fn known_passes(rule: NewRule) -> NewRule {
    rule.has_any(field::ct_state(), ct_state_bits::ESTABLISHED | ct_state_bits::RELATED).accept()
}

/// Lets pass what the node itself sends. A process is recognised by its socket and not by its
/// address: the kernel does not report an address of a VRF as the node's. What the kernel sends has
/// no such socket, but an address of the node.
fn own_rules(rule: impl Fn() -> NewRule) -> [NewRule; 2] {
    [rule().from_process().accept(), rule().is(field::fib_saddr_type(), Value::LOCAL).accept()]
}

/// Denies what IPVS sends on with a source that could be any pod's. The kernel forwards no such
/// packets, and no host can answer them. The kernel itself sends some to its own link and to groups
/// (RFC 3810 §5.2.13).
fn nameless_rules(rule: impl Fn() -> NewRule) -> [NewRule; 2] {
    let unspecified = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let (own_link, groups) = (net("fe80::/10"), net("ff00::/8"));
    let denied = |rule: NewRule| {
        rule.not_in_net(field::ip6_daddr(), own_link)
            .not_in_net(field::ip6_daddr(), groups)
            .goto(deny(Direction::Egress))
    };
    [
        denied(rule().in_net(field::ip6_saddr(), own_link)),
        denied(rule().is(field::ip6_saddr(), unspecified)),
    ]
}

/// The interface at the end that a direction is about.
fn interface(direction: Direction) -> Field {
    match direction {
        Direction::Ingress => field::oifname(),
        Direction::Egress => field::iifname(),
    }
}

/// A TCP packet that is not the first of a connection.
fn in_the_middle(rule: NewRule) -> NewRule {
    let mask = tcp_flag_bits::SYN | tcp_flag_bits::ACK | tcp_flag_bits::RST | tcp_flag_bits::FIN;
    rule.tcp_flags_not(mask, tcp_flag_bits::SYN)
}

/// A packet in the middle of a TCP connection that connection tracking has just begun to track.
///
/// Connection tracking takes the packet's sender for the end that opened the connection. After a
/// flow was deleted because a change forbids it, the sender may be the other end: then its packet
/// would be accepted, and forbidden packets would pass as answers to it. So such a packet is not
/// trusted if a policy restricts which peers may reach one end, or which peers an end may reach.
/// Packets of state invalid are left alone: they begin no connection, and a reset for one of them
/// would end a living connection.
fn revived_rules() -> Vec<NewRule> {
    let rule = |chain: &str| NewRule::new(&table(), chain);
    let mut rules = vec![known_returns()];
    let ends = [
        (Direction::Ingress, source as fn(IpFamily) -> Field, field::iifname()),
        (Direction::Egress, destination, field::oifname()),
    ];
    for (direction, end, interface) in ends {
        for family in IpFamily::ALL {
            let address = end(family);
            let known = rule(REVIVED).in_set(&[address], keys(direction, family));
            rules.push(known.goto(CUT));
            let fields = [interface, address];
            let known = rule(REVIVED).in_set(&fields, link_keys(direction, family));
            rules.push(known.goto(CUT));
        }
    }
    rules
}

/// Leaves alone what connection tracking has not just begun to track.
fn known_returns() -> NewRule {
    NewRule::new(&table(), REVIVED).has_none(field::ct_state(), ct_state_bits::NEW).returns()
}

fn deny_rules(direction: Direction, logging: Option<Logging>) -> Vec<NewRule> {
    let chain = deny(direction);
    let rule = || NewRule::new(&table(), &chain);
    let mut rules = Vec::new();
    if let Some(Logging { group, rate }) = logging {
        let logged = match rate {
            0 => rule(),
            rate => rule().limit(rate, rate),
        };
        rules.push(logged.log_to_group(log_prefix(direction), group, SNAPLEN));
    }
    let connection = rule().has_any(field::ct_state(), ct_state_bits::NEW);
    rules.push(rule().counter());
    rules.push(in_the_middle(connection).reject_with_reset());
    rules.push(rule().drop());
    rules
}

/// Says whether a rule logs packets.
pub(crate) fn logs(exprs: &[Expr]) -> bool {
    exprs.iter().any(|expr| matches!(expr, Expr::Log { .. }))
}
