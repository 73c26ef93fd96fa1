//! The layout of our tables: sets, chains, rules.
//!
//! `docs/firewall.md` explains them; the snapshot in the tests shows them.

use std::collections::{BTreeMap, BTreeSet};

use std::net::Ipv6Addr;

use ipnet::IpNet;
use kernel::nft::field::Ip6Address;
use kernel::nft::{
    Batch, CmpOp, Expr, Family, Hook, HookPoint, KeyType, MetaKey, NewChain, NewRule, NewSet,
    PayloadBase, Register, TableRef, Value, field,
};
use kernel::route::IpFamily;

use crate::declared::{self, ChainState};
use crate::element::{Kind, Maps, Set, Table};
use crate::hostport::{self, STAND_IN6};
use crate::masquerade::Outbound;
use crate::{pod_link, routers};

/// A table's comment. It does not contain the layout's version: the kernel keeps the comment with
/// which a table was made. The chains and the number of their rules tell ADD which layout a table
/// has ([`shapes`]), so a change of rules that leaves all numbers alone must rename a chain.
const COMMENT: &str = "Netwright. Filled by its CNI plugins: do not edit.";

/// How the names of base chains begin that later versions add or rename: this version leaves such
/// chains alone. CHECK takes any other base chain that is not in the layout for somebody else's,
/// and a repair removes it.
pub(crate) const LATER: &str = "netwright-";

/// How many rules a masquerade chain has.
pub(crate) const MASQUERADE_RULES: usize = 3;

/// After the programs that translate service addresses at the usual priority (`dstnat`, -100): the
/// first translation of a flow wins, and a service address that is also local must reach the
/// service.
const HOSTPORTS_PRIORITY: i32 = -90;
/// The usual priority of source translation (`srcnat`).
const SRCNAT: i32 = 100;
/// Before all that translate sources.
const BEFORE_SRCNAT: i32 = 90;
/// After source translation on the way in, which has the same priority as on the way out.
pub(crate) const BEHIND_SRCNAT: i32 = 110;
/// Before the kernel joins fragments, which it answers if some do not come (`linux
/// include/uapi/linux/netfilter_ipv4.h` NF_IP_PRI_RAW_BEFORE_DEFRAG).
const BEFORE_FRAGMENTS: i32 = -450;
/// Before connection tracking (`raw`).
pub(crate) const RAW: i32 = -300;
/// The usual priority of packet filters (`filter`).
const FILTER: i32 = 0;
/// The first usual priority of frames (`dstnat` of family bridge), before the bridge learns
/// anything.
const BRIDGE_FIRST: i32 = -300;
/// The usual priority of frame filters (`filter` of family bridge).
const BRIDGE_FILTER: i32 = -200;

/// ICMPv6 types by which neighbours find each other: solicitations and advertisements (RFC 4861
/// §4.3, §4.4). No pod may send those of routers, or redirects, and the node's own are not
/// forwarded.
pub(crate) const NEIGHBOURS: (u8, u8) = (135, 136);
/// The hop limit of what no router has passed on, in neighbour discovery (RFC 4861 §7.1). A message
/// with a smaller one does not come from a neighbour: what it carries would pass all policies.
pub(crate) const OWN_LINK: u8 = 255;

const HOSTPORTS: &str = "hostports";
const HOSTPORT_SNAT: &str = "hostport_snat";

/// Names a table.
pub(crate) fn table_ref(table: Table) -> TableRef {
    let family = match table {
        Table::Inet => Family::Inet,
        Table::Bridge => Family::Bridge,
    };
    TableRef::new(family, table.name())
}

/// Brings a table to this layout, even if parts of it exist. The contents of sets stay. The chains
/// `misplaced` are made anew: they are at another hook, which cannot be changed.
pub(crate) fn lay_out(batch: &mut Batch, table: Table, misplaced: &[String]) {
    let own = table_ref(table);
    batch.add_table(&own, Some(COMMENT));
    for chain in misplaced {
        batch.flush_chain(&own, chain.as_str());
        batch.delete_chain(&own, chain.as_str());
    }
    for set in Set::ALL.iter().filter(|set| set.table() == table) {
        batch.add_set(new_set(&own, *set));
    }
    let (chains, rules) = chains_and_rules(table);
    for chain in &chains {
        batch.add_chain(chain.clone());
        batch.flush_chain(&own, chain.name.clone());
    }
    for rule in rules {
        batch.add_rule(rule);
    }
}

/// How the kernel describes a chain of this layout.
#[derive(Debug, Default)]
pub(crate) struct Shape {
    /// One for each of its rules and for each rule that jumps to it.
    pub(crate) used: u32,
    /// Its netfilter hook, if it is a base chain.
    pub(crate) hook: Option<Hook>,
}

/// Returns how the kernel describes each chain of a table in this layout.
pub(crate) fn shapes(table: Table) -> BTreeMap<String, Shape> {
    let (chains, rules) = chains_and_rules(table);
    let of = |chain: NewChain| (chain.name, Shape { used: 0, hook: chain.hook });
    let mut shapes: BTreeMap<String, Shape> = cni::order::gather(chains.into_iter().map(of));
    for rule in rules {
        let targets = rule.exprs.iter().filter_map(|expr| match expr {
            Expr::Verdict(verdict) => verdict.chain(),
            _ => None,
        });
        for chain in targets.chain([rule.chain.as_str()]) {
            shapes.entry(chain.to_owned()).or_default().used += 1;
        }
    }
    shapes
}

/// Returns the chains of a table that have rules in this layout, and these masquerade chains.
pub(crate) fn chains_with_rules(
    table: Table,
    masquerades: &BTreeSet<Outbound>,
) -> BTreeMap<String, ChainState> {
    let (chains, mut rules) = chains_and_rules(table);
    if table == Table::Inet {
        rules.extend(masquerades.iter().flat_map(masquerade_rules));
    }
    let mut all = declared::chains(chains, rules);
    all.retain(|_, chain| !chain.rules.is_empty());
    all
}

/// Returns the types of a key of a set of these tables, by the set's name.
pub(crate) fn set_keys(name: &str) -> Vec<KeyType> {
    let ours = Set::ALL.iter().find(|ours| ours.name() == name);
    ours.map(|ours| key_types(*ours)).unwrap_or_default()
}

fn chains_and_rules(table: Table) -> (Vec<NewChain>, Vec<NewRule>) {
    match table {
        Table::Inet => inet(&table_ref(table)),
        Table::Bridge => bridge(&table_ref(table)),
    }
}

/// Adds the chain that masquerades what leaves a prefix of a network.
pub(crate) fn add_masquerade(batch: &mut Batch, outbound: &Outbound) {
    let table = table_ref(Table::Inet);
    let name = outbound.chain_name();
    let Outbound { network, prefix, .. } = outbound;
    // Network names have no length limit, comments do.
    let comment: String = format!("{prefix} of {network}").chars().take(127).collect();
    batch.add_chain(NewChain::regular(&table, name.as_str()).comment(comment));
    batch.flush_chain(&table, name.as_str());
    for rule in masquerade_rules(outbound) {
        batch.add_rule(rule);
    }
}

fn masquerade_rules(outbound: &Outbound) -> [NewRule; MASQUERADE_RULES] {
    let (table, name) = (table_ref(Table::Inet), outbound.chain_name());
    let prefix = outbound.prefix;
    let (daddr, multicast) = if prefix.addr().is_ipv4() {
        (field::ip_daddr(), net("224.0.0.0/4"))
    } else {
        (field::ip6_daddr(), net("ff00::/8"))
    };
    let rule = || NewRule::new(&table, name.as_str());
    [
        rule().in_net(daddr, prefix).returns(),
        rule().in_net(daddr, multicast).returns(),
        match outbound.source {
            Some(source) => rule().snat(source),
            None => rule().masquerade(),
        },
    ]
}

/// Returns the types of a set's keys.
pub(crate) fn key_types(set: Set) -> Vec<KeyType> {
    set.key().iter().copied().map(key_type).collect()
}

/// Returns the types of a map's values: an address and a port.
pub(crate) fn endpoint_types(address: Kind) -> [KeyType; 2] {
    [key_type(address), KeyType::InetService]
}

fn key_type(kind: Kind) -> KeyType {
    match kind {
        Kind::Ifname => KeyType::IfName,
        Kind::Address4 => KeyType::Ipv4Addr,
        Kind::Address6 => KeyType::Ipv6Addr,
        Kind::Protocol => KeyType::InetProto,
        Kind::Port => KeyType::InetService,
        Kind::Mac => KeyType::EtherAddr,
    }
}

fn new_set(table: &TableRef, set: Set) -> NewSet {
    match set.maps() {
        Maps::Nothing => NewSet::set(table, set.name(), key_types(set)),
        Maps::Verdict => NewSet::verdict_map(table, set.name(), key_types(set)),
        Maps::Endpoint(address) => {
            NewSet::map(table, set.name(), key_types(set), endpoint_types(address))
        }
    }
}

fn inet(table: &TableRef) -> (Vec<NewChain>, Vec<NewRule>) {
    let base = |name: &str, hook| NewChain::base(table, name, hook);
    let chains = vec![
        NewChain::regular(table, HOSTPORTS),
        NewChain::regular(table, HOSTPORT_SNAT),
        base(pod_link::ARRIVALS, Hook::filter(HookPoint::Prerouting, BEFORE_FRAGMENTS)),
        base("raw", Hook::filter(HookPoint::Prerouting, RAW)),
        base("raw_output", Hook::filter(HookPoint::Output, RAW)),
        base("prerouting", Hook::nat(HookPoint::Prerouting, HOSTPORTS_PRIORITY)),
        base("output", Hook::nat(HookPoint::Output, HOSTPORTS_PRIORITY)),
        base(pod_link::SOURCES, Hook::nat(HookPoint::Postrouting, BEFORE_SRCNAT)),
        base("postrouting", Hook::nat(HookPoint::Postrouting, SRCNAT)),
        base(pod_link::INPUT, Hook::filter(HookPoint::Input, FILTER)),
        base("input", Hook::filter(HookPoint::Input, BEHIND_SRCNAT)),
        base("forward", Hook::filter(HookPoint::Forward, FILTER)),
    ];
    let mut rules = Vec::new();
    let rule = |chain: &str| NewRule::new(table, chain);

    // CVE-2020-8558: route_localnet lets 127.0.0.0/8 out by these interfaces, but it must not come
    // in.
    let localnet = || rule("raw").in_set(&[field::iifname()], Set::Localnet.name());
    rules.push(localnet().in_net(field::ip_saddr(), net("127.0.0.0/8")).drop());
    rules.push(localnet().in_net(field::ip_daddr(), net("127.0.0.0/8")).drop());

    // Packets from ::1 to a port carry another address meanwhile, which no other packet may have.
    let stand_in = hostport::host_net(STAND_IN6);
    for address in [field::ip6_saddr(), field::ip6_daddr()] {
        rules.push(rule("raw").in_net(address, stand_in).drop());
    }
    let port = [field::l4proto(), field::th_dport()];
    rules.push(
        rule("raw_output")
            .in_net(field::ip6_saddr(), net("::1/128"))
            .in_net(field::ip6_daddr(), net("::1/128"))
            .in_set(&port, Set::Loopback6.name())
            .set_ip6(Ip6Address::Source, STAND_IN6),
    );
    rules.push(
        rule("input")
            .in_net(field::ip6_daddr(), stand_in)
            .has_any(field::ct_status(), field::ct_status_bits::DNAT)
            .set_ip6(Ip6Address::Destination, Ipv6Addr::LOCALHOST),
    );
    // `raw` does not see every packet by its link: one that came through a bridge with
    // `br_netfilter` passed prerouting as the bridge's, and does not pass it again for a VLAN
    // device above (linux net/bridge/br_netfilter_hooks.c `ip_sabotage_in`). A translated packet
    // had another address when it came in.
    let came_in = || {
        rule("input")
            .in_net(field::ip_daddr(), net("127.0.0.0/8"))
            .in_set(&[field::iifname()], Set::Localnet.name())
    };
    for translated in [field::ct_status_bits::SNAT, field::ct_status_bits::DNAT] {
        rules.push(came_in().has_any(field::ct_status(), translated).returns());
    }
    rules.push(came_in().drop());
    // Other packets from ::1 could not be answered: where they are sent, ::1 is another host.
    rules.push(rule("output").in_net(field::ip6_saddr(), net("::1/128")).returns());

    // A loopback address is this host's alone. Routing drops such packets from elsewhere, but a
    // translated packet has another address by then. `return` and not `drop`: if another program
    // set `route_localnet`, the packets may be for a program of the host.
    let from_elsewhere = || rule("prerouting").is_not(field::iifname(), loopback());
    rules.push(from_elsewhere().in_net(field::ip_daddr(), net("127.0.0.0/8")).returns());
    // The kernel checks this before this hook, but not for a frame that `br_netfilter` shows.
    rules.push(from_elsewhere().in_net(field::ip6_daddr(), net("::1/128")).returns());

    // CVE-2025-67499: only packets to this host.
    for chain in ["prerouting", "output"] {
        rules.push(rule(chain).is(field::fib_daddr_type(), Value::LOCAL).jump(HOSTPORTS));
    }
    // The address of a link in a VRF is in the VRF's table alone, which only the link shows.
    let at_link = rule("prerouting").is(field::fib_daddr_iif_type(), Value::LOCAL);
    rules.push(at_link.jump(HOSTPORTS));
    rules.extend(hostport_rules(table));
    rules.extend(hostport_snat_rules(table));

    rules.push(
        rule("postrouting")
            .has_any(field::ct_status(), field::ct_status_bits::DNAT)
            .jump(HOSTPORT_SNAT),
    );
    let from = [field::iifname(), field::ip_saddr()];
    rules.push(rule("postrouting").vmap(&from, Set::Masquerade4.name()));
    let from = [field::iifname(), field::ip6_saddr()];
    rules.push(rule("postrouting").vmap(&from, Set::Masquerade6.name()));

    rules.extend(pod_link::inet_rules(table));
    // What a bridge in a VRF forwards came in by the VRF for the kernel, which reports the bridge
    // separately.
    for from in [field::iifname(), field::sdifname()] {
        let way = [from, field::oifname()];
        rules.push(rule("forward").in_set(&way, Set::PolicyIsolated.name()).drop());
        rules.push(rule("forward").in_set(&way, Set::PolicySame.name()).returns());
        rules.push(
            rule("forward")
                .in_set(&[from], Set::PolicyBridges.name())
                .in_set(&[field::oifname()], Set::PolicyBridges.name())
                .drop(),
        );
    }
    (chains, rules)
}

/// A port at one address takes precedence over the port at all addresses.
fn hostport_rules(table: &TableRef) -> Vec<NewRule> {
    let families = [
        (IpFamily::V4, Value::NfProto(2), field::ip_daddr(), Set::HostportsAt4, Set::Hostports4),
        (IpFamily::V6, Value::NfProto(10), field::ip6_daddr(), Set::HostportsAt6, Set::Hostports6),
    ];
    let mut rules = Vec::new();
    for (family, number, daddr, at, all) in families {
        let port = [field::l4proto(), field::th_dport()];
        let exact = [daddr, field::l4proto(), field::th_dport()];
        rules.push(NewRule::new(table, HOSTPORTS).dnat_to_map(family, &exact, at.name()));
        rules.push(NewRule::new(table, HOSTPORTS).is(field::nfproto(), number).dnat_to_map(
            family,
            &port,
            all.name(),
        ));
    }
    rules
}

fn hostport_snat_rules(table: &TableRef) -> Vec<NewRule> {
    let rule = || NewRule::new(table, HOSTPORT_SNAT);
    let out4 = [field::oifname(), field::ip_daddr()];
    let out6 = [field::oifname(), field::ip6_daddr()];
    let way4 = [field::iifname(), field::oifname(), field::ip_daddr()];
    let way6 = [field::iifname(), field::oifname(), field::ip6_daddr()];
    vec![
        rule().in_set(&out4, Set::SnatAll4.name()).masquerade(),
        rule().in_set(&out6, Set::SnatAll6.name()).masquerade(),
        rule()
            .in_net(field::ip_saddr(), net("127.0.0.0/8"))
            .in_set(&out4, Set::LocalSnat4.name())
            .masquerade(),
        // For every destination: nothing outside this host can answer this address.
        rule().in_net(field::ip6_saddr(), hostport::host_net(STAND_IN6)).masquerade(),
        rule().is(field::fib_saddr_type(), Value::LOCAL).returns(),
        // br_netfilter passes these on in one go and names no input interface.
        no_interface_in(rule()).in_set(&out4, Set::LocalSnat4.name()).masquerade(),
        no_interface_in(rule()).in_set(&out6, Set::LocalSnat6.name()).masquerade(),
        rule().in_set(&way4, Set::Hairpin4.name()).masquerade(),
        rule().in_set(&way6, Set::Hairpin6.name()).masquerade(),
    ]
}

/// Continues if a packet came in by no link. Written as a number: nft can list an empty name but
/// cannot read it back.
pub(crate) fn no_interface_in(rule: NewRule) -> NewRule {
    let register = Register::FIRST;
    rule.expr(Expr::Meta { key: MetaKey::Iif, register }).expr(Expr::Cmp {
        op: CmpOp::Eq,
        register,
        data: 0_u32.to_ne_bytes().to_vec(),
    })
}

fn bridge(table: &TableRef) -> (Vec<NewChain>, Vec<NewRule>) {
    let mut chains = Vec::from(pod_link::bridge_chains(table));
    chains.extend([
        NewChain::base(table, "prerouting", Hook::filter(HookPoint::Prerouting, BRIDGE_FIRST)),
        NewChain::base(table, "forward", Hook::filter(HookPoint::Forward, BRIDGE_FILTER)),
        NewChain::base(table, "output", Hook::filter(HookPoint::Output, BRIDGE_FILTER)),
        NewChain::base(table, routers::CHAIN, Hook::filter(HookPoint::Input, BRIDGE_FILTER)),
    ]);
    let mut rules = vec![
        NewRule::new(table, "prerouting")
            .in_set(&[field::iifname()], Set::SpoofPorts.name())
            .not_in_set(&[field::iifname(), field::ether_saddr()], Set::SpoofAllowed.name())
            .drop(),
        NewRule::new(table, "forward")
            .in_set(&[field::iifname()], Set::IsolatedPorts.name())
            .in_set(&[field::oifname()], Set::IsolatedPorts.name())
            .drop(),
    ];
    rules.extend(pod_link::bridge_rules(table));
    rules.extend(routers::rules(table));
    (chains, rules)
}

/// Continues if a packet is ICMPv6 of one of these types, and has this hop limit (RFC 8200 §3: byte
/// 7).
pub(crate) fn icmpv6(rule: NewRule, (first, last): (u8, u8), hop_limit: u8) -> NewRule {
    let (kind, register) = (field::icmp6_type(), Register::FIRST);
    let rule = match first == last {
        true => rule.is(kind, Value::Icmp6Type(first)),
        false => rule.in_range(kind, Value::Icmp6Type(first), Value::Icmp6Type(last)),
    };
    rule.expr(Expr::Payload { base: PayloadBase::Network, offset: 7, len: 1, register })
        .expr(Expr::Cmp { op: CmpOp::Eq, register, data: vec![hop_limit] })
}

/// The name of the loopback interface.
fn loopback() -> Value {
    Value::IfName("lo".to_owned())
}

pub(crate) fn net(text: &str) -> IpNet {
    text.parse().expect("prefixes in this file are written right")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A version that does not know it would remove it.
    #[test]
    fn older_versions_leave_a_new_base_chain_alone() {
        for table in Table::ALL {
            let known: &[&str] = match table {
                Table::Inet => &[
                    "raw",
                    "raw_output",
                    "prerouting",
                    "output",
                    "pod_sources",
                    "postrouting",
                    "pod_input",
                    "input",
                    "forward",
                ],
                Table::Bridge => &["prerouting", "forward", "output"],
            };
            for (name, shape) in shapes(*table) {
                let is_known = known.contains(&name.as_str()) || name.starts_with(LATER);
                assert!(shape.hook.is_none() || is_known, "{table} {name}");
            }
        }
    }
}
