//! What passes the link of a pod under network policy has an address of the pod.
//!
//! Network policy judges packets by the pods' addresses ([`crate::pods`]). So a pod must not send
//! from another address, which might belong to another pod or to none, and must not be reached at
//! an address that is not known.
//!
//! | link | table | rules |
//! |---|---|---|
//! | routed (`ptp`) | `inet netwright` | a packet that is forwarded, or that IPVS sends on, has the pod's address as source or destination; a packet has it as source before the kernel answers it |
//! | port of a bridge | `bridge netwright` | the same for frames, which carry only IP and ARP; what the host sends has the pod's address as destination |
//!
//! Frames need more. `br_netfilter` shows the hooks of IP no packet in a frame with a tag, and the
//! receiver ignores a tag of VLAN 0. No pod's verdict covers link-local and group addresses:
//! packets with these would bypass it. So with such addresses only neighbour discovery (RFC 4861)
//! passes between ports, and what DHCP needs before there is an address (RFC 2131 §4.1). A pod's
//! router advertisements and redirects go no further, and no other pod gets its router
//! solicitations.
//!
//! The host would forward a packet between link-local addresses back to its link, and would answer
//! any source with errors, redirects among them. So for the host, a packet of a port from or to a
//! link-local address, or from none, is one to a group: it does neither, and takes no TCP. A bridge
//! leaves frames to most groups 01:80:c2:00:00:0x to the port (linux net/bridge/br_input.c
//! `br_handle_frame`), so the port is a link without addresses too.
//!
//! The kernel answers forged packets of a routed link to the owner of their source, unless they are
//! dropped first: before fragments are joined. Only for the first options of IPv6 does it answer
//! before that; pods get no such answer.
//!
//! A routed link may be in a VRF. For the kernel a forwarded packet then came in by the VRF; it
//! reports the link separately (`meta sdifname`).
//!
//! A pod must not forge its address to the host either: the host might take it for a node, whose
//! tunnels the host trusts. An address is valid only at its own link, not at another link of the
//! same pod: an answer that the pod's routes send out by another link is dropped, both to the host
//! and when it is forwarded. Connection tracking cannot distinguish such an answer from a forged
//! one, which an IPIP tunnel of the host would accept.
//!
//! A link-local source could be any pod's, so no policy about the node itself ([`crate::pods`]) can
//! judge it. From a link-local address a pod may send to link-local addresses and groups of the
//! host, from no address to groups, and from either nothing to other addresses of the host. Two
//! things pass all the same: neighbour discovery, which may ask an address itself (RFC 4861 §7.3.3),
//! and, from a routed link, answers.
//!
//! A pod may claim another's address, by ARP, by neighbour discovery, or as the sender of frames
//! from its hardware address. What the host sends or forwards into a bridge goes to the pod that
//! claims the address, so a port passes none of it that is for another address.
//!
//! A link without addresses is closed: nothing is forwarded from it or to it, and the host gets from
//! it only what needs no address of the pod: neighbour discovery, ARP, and what is sent as above from
//! a link-local address or from none.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kernel::nft::field::ct_state_bits;
use kernel::nft::{CmpOp, Expr, NewChain, NewRule, PayloadBase, Register, TableRef, Value, field};

use crate::element::{Element, Field, Set, ifname};
use crate::layout::{NEIGHBOURS, OWN_LINK, icmpv6, net};
use crate::plan::Plan;

/// The sets of this concern.
pub const SETS: &[Set] = &[
    Set::PodLinks,
    Set::PodAddresses4,
    Set::PodAddresses6,
    Set::PodPorts,
    Set::PortAddresses4,
    Set::PortAddresses6,
];

/// Where packets leave the link of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the host's routing.
    Routed,
    /// In a bridge.
    Bridged,
}

/// EtherTypes (RFC 9542): what a frame of a pod may carry.
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// RFC 4861 §4: what routers send, beside [`NEIGHBOURS`], and what asks for it.
const ROUTER_SOLICITATION: u8 = 133;
pub(crate) const ROUTER_ADVERTISEMENT: u8 = 134;
pub(crate) const REDIRECT: u8 = 137;
/// RFC 4443 §3.4.
const PARAMETER_PROBLEM: u8 = 4;

/// RFC 2131 §4.1.
const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;

/// The chain of `inet netwright` that sees what comes in before the kernel answers it.
pub(crate) const ARRIVALS: &str = "netwright-pods";
/// The chain of `inet netwright` that sees what IPVS sends on.
pub(crate) const SOURCES: &str = "pod_sources";
/// The chain that sees what is for the host, before answers to translated packets get another
/// source.
pub(crate) const INPUT: &str = "pod_input";
const FROM_POD: &str = "from_pod";
const TO_POD: &str = "to_pod";

/// Plans that a pod's link passes these addresses and no others. `host_ifname` is the link's host
/// side.
#[must_use]
pub fn plan(host_ifname: &str, place: Place, addresses: &[IpAddr]) -> Plan {
    let (links, sets) = match place {
        Place::Routed => (Set::PodLinks, [Set::PodAddresses4, Set::PodAddresses6]),
        Place::Bridged => (Set::PodPorts, [Set::PortAddresses4, Set::PortAddresses6]),
    };
    let mut plan = Plan::default();
    plan.push(Element::new(links, vec![ifname(host_ifname)]));
    if place == Place::Bridged {
        // As a link without addresses, for what a bridge leaves to the port.
        plan.push(Element::new(Set::PodLinks, vec![ifname(host_ifname)]));
    }
    for address in addresses {
        let [four, six] = sets;
        let set = if address.is_ipv4() { four } else { six };
        plan.push(Element::new(set, vec![ifname(host_ifname), Field::Address(*address)]));
    }
    plan
}

/// Returns the rules of `inet netwright`. The rules for forwarded packets come first in its chain
/// `forward`.
///
/// What IPVS sends on is not forwarded, and only the hook postrouting shows the link that it came
/// in by. A chain of type nat sees only the first packet of each flow there, so the other packets
/// cost nothing. This chain comes before those that translate, because the kernel stops at the
/// first one that translates.
pub(crate) fn inet_rules(table: &TableRef) -> Vec<NewRule> {
    let (iif, vrf, oif) = (field::iifname(), field::sdifname(), field::oifname());
    let (source, source6) = (field::ip_saddr(), field::ip6_saddr());
    let ways = [
        ("forward", iif, source, Set::PodAddresses4),
        ("forward", iif, source6, Set::PodAddresses6),
        ("forward", vrf, source, Set::PodAddresses4),
        ("forward", vrf, source6, Set::PodAddresses6),
        ("forward", oif, field::ip_daddr(), Set::PodAddresses4),
        ("forward", oif, field::ip6_daddr(), Set::PodAddresses6),
        (SOURCES, iif, source, Set::PodAddresses4),
        (SOURCES, iif, source6, Set::PodAddresses6),
    ];
    let drops = ways.into_iter().map(|(chain, link, address, known)| {
        NewRule::new(table, chain)
            .in_set(&[link], Set::PodLinks.name())
            .not_in_set(&[link, address], known.name())
            .counter()
            .drop()
    });
    let input = [iif, vrf].into_iter().flat_map(|link| input_rules(table, link));
    let arrivals = arrival_rules(table).into_iter();
    arrivals.chain(drops).chain(own_link_rules(table)).chain(input).collect()
}

/// Returns the rules for what comes in, before the kernel forwards it or answers it, and for what
/// the kernel has answered before: options of IPv6 (linux net/ipv6/ip6_input.c `ip6_rcv_core`).
/// Every packet of the host meets them, so a packet looks up the link only in the rule of its own
/// family and source.
fn arrival_rules(table: &TableRef) -> [NewRule; 3] {
    let rule = || NewRule::new(table, ARRIVALS);
    let iif = field::iifname();
    let unless = |rule: NewRule, address, known: Set| {
        rule.in_set(&[iif], Set::PodLinks.name())
            .not_in_set(&[iif, address], known.name())
            .counter()
            .drop()
    };
    let (source, source6) = (field::ip_saddr(), field::ip6_saddr());
    let some = rule().is_not(source, IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let some6 = rule()
        .not_in_net(source6, net("fe80::/10"))
        .is_not(source6, IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let problem = NewRule::new(table, "raw_output")
        .is(field::icmp6_type(), Value::Icmp6Type(PARAMETER_PROBLEM))
        .in_set(&[field::oifname()], Set::PodLinks.name());
    [
        unless(some, source, Set::PodAddresses4),
        unless(some6, source6, Set::PodAddresses6),
        problem.counter().drop(),
    ]
}

/// Returns the rules for what passes from a link-local address to every address of the host.
fn own_link_rules(table: &TableRef) -> [NewRule; 2] {
    let rule = || NewRule::new(table, INPUT);
    let neighbours = icmpv6(rule(), NEIGHBOURS, OWN_LINK);
    let own_link = net("fe80::/10");
    let known = ct_state_bits::ESTABLISHED | ct_state_bits::RELATED;
    [
        neighbours.in_net(field::ip6_saddr(), own_link).accept(),
        rule().in_net(field::ip6_saddr(), own_link).has_any(field::ct_state(), known).accept(),
    ]
}

/// Returns the rules for what comes in for the host by a link. Everything that the host receives
/// meets them, so a packet looks up the link only in the rule of its own family and source.
fn input_rules(table: &TableRef, link: field::Field) -> [NewRule; 2] {
    let rule = || NewRule::new(table, INPUT);
    let source6 = field::ip6_saddr();
    let drop = |rule: NewRule| rule.in_set(&[link], Set::PodLinks.name()).counter().drop();
    let unspecified = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let (own_link, groups) = (net("fe80::/10"), net("ff00::/8"));
    let from_link = rule().in_net(source6, own_link).not_in_net(field::ip6_daddr(), own_link);
    let from_none = rule().is(source6, unspecified);
    [
        drop(from_link.not_in_net(field::ip6_daddr(), groups)),
        drop(from_none.not_in_net(field::ip6_daddr(), groups)),
    ]
}

/// Returns the chains of `bridge netwright` besides its base chains.
pub(crate) fn bridge_chains(table: &TableRef) -> [NewChain; 2] {
    [NewChain::regular(table, FROM_POD), NewChain::regular(table, TO_POD)]
}

/// Returns the rules of `bridge netwright`.
pub(crate) fn bridge_rules(table: &TableRef) -> Vec<NewRule> {
    let (iif, oif) = (field::iifname(), field::oifname());
    let rule = |chain: &str| NewRule::new(table, chain);
    let from_port = || rule("prerouting").in_set(&[iif], Set::PodPorts.name());
    let to_group = |rule: NewRule| rule.in_set(&[iif], Set::PodPorts.name()).set_to_group();
    let (own_link, unspecified) = (net("fe80::/10"), IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let drop = |rule: NewRule| rule.counter().drop();
    let unless = |chain, link, address, known: Set| {
        drop(rule(chain).not_in_set(&[link, address], known.name()))
    };
    // The host may send to groups and to link-local addresses of every pod.
    let from_host = |groups: [&str; 2], address, known: Set| {
        let to_port = rule("output").in_set(&[oif], Set::PodPorts.name());
        let to_one = groups.into_iter().fold(to_port, |rule, of| rule.not_in_net(address, net(of)));
        drop(to_one.not_in_set(&[oif, address], known.name()))
    };
    vec![
        // Before the bridge learns anything, and for what the host would route.
        drop(is_no_ip(from_port())),
        drop(
            from_port()
                .is_not(field::ip_saddr(), IpAddr::V4(Ipv4Addr::UNSPECIFIED))
                .not_in_set(&[iif, field::ip_saddr()], Set::PortAddresses4.name()),
        ),
        drop(
            from_port()
                .not_in_net(field::ip6_saddr(), own_link)
                .is_not(field::ip6_saddr(), unspecified)
                .not_in_set(&[iif, field::ip6_saddr()], Set::PortAddresses6.name()),
        ),
        // Such a source could be any pod's, and no policy knows such a destination. The host neither
        // forwards these packets nor answers with errors. From such a source only to the link or to
        // groups.
        to_group(rule("prerouting").in_net(field::ip6_saddr(), own_link)),
        to_group(rule("prerouting").is(field::ip6_saddr(), unspecified)),
        to_group(rule("prerouting").in_net(field::ip6_daddr(), own_link)),
        icmpv6(from_port(), NEIGHBOURS, OWN_LINK).accept(),
        drop(
            from_port()
                .in_net(field::ip6_saddr(), own_link)
                .not_in_net(field::ip6_daddr(), own_link)
                .not_in_net(field::ip6_daddr(), net("ff00::/8")),
        ),
        drop(
            from_port()
                .is(field::ip6_saddr(), unspecified)
                .not_in_net(field::ip6_daddr(), net("ff00::/8")),
        ),
        rule("forward").in_set(&[iif], Set::PodPorts.name()).jump(FROM_POD),
        rule("forward").in_set(&[oif], Set::PodPorts.name()).jump(TO_POD),
        icmpv6(rule(FROM_POD), (ROUTER_SOLICITATION, ROUTER_SOLICITATION), OWN_LINK).returns(),
        icmpv6(rule(FROM_POD), NEIGHBOURS, OWN_LINK).returns(),
        rule(FROM_POD)
            .is(field::ip_saddr(), IpAddr::V4(Ipv4Addr::UNSPECIFIED))
            .is(field::l4proto(), Value::UDP)
            .is(field::th_dport(), Value::Port(DHCP_SERVER))
            .returns(),
        unless(FROM_POD, iif, field::ip_saddr(), Set::PortAddresses4),
        unless(FROM_POD, iif, field::ip6_saddr(), Set::PortAddresses6),
        drop(is_no_ip(rule(TO_POD))),
        icmpv6(rule(TO_POD), (ROUTER_ADVERTISEMENT, REDIRECT), OWN_LINK).returns(),
        rule(TO_POD)
            .is(field::ip_daddr(), IpAddr::V4(Ipv4Addr::BROADCAST))
            .is(field::l4proto(), Value::UDP)
            .is(field::th_dport(), Value::Port(DHCP_CLIENT))
            .returns(),
        unless(TO_POD, oif, field::ip_daddr(), Set::PortAddresses4),
        unless(TO_POD, oif, field::ip6_daddr(), Set::PortAddresses6),
        from_host(["224.0.0.0/4", "255.255.255.255/32"], field::ip_daddr(), Set::PortAddresses4),
        from_host(["fe80::/10", "ff00::/8"], field::ip6_daddr(), Set::PortAddresses6),
        drop(
            rule("output")
                .is(field::icmp6_type(), Value::Icmp6Type(PARAMETER_PROBLEM))
                .in_set(&[oif], Set::PodPorts.name()),
        ),
    ]
}

/// Continues if a frame carries neither IP nor ARP. The type is read from the frame:
/// `meta protocol` is the type behind a tag that the kernel has removed.
fn is_no_ip(rule: NewRule) -> NewRule {
    let register = Register::FIRST;
    let load = Expr::Payload { base: PayloadBase::Link, offset: 12, len: 2, register };
    let types = [ETHERTYPE_IPV4, ETHERTYPE_ARP, ETHERTYPE_IPV6];
    types.into_iter().fold(rule.expr(load), |rule, number| {
        let data = Value::EtherType(number).bytes();
        rule.expr(Expr::Cmp { op: CmpOp::Ne, register, data })
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn what_a_pods_link_may_pass() {
        let addresses: Vec<IpAddr> =
            ["192.0.2.5", "2001:db8::5"].into_iter().map(|text| text.parse().unwrap()).collect();
        expect![[r#"
            inet netwright pod_links { "veth1" }
            inet netwright pod_addresses4 { "veth1" . 192.0.2.5 }
            inet netwright pod_addresses6 { "veth1" . 2001:db8::5 }
        "#]]
        .assert_eq(&plan("veth1", Place::Routed, &addresses).to_string());
        expect![[r#"
            bridge netwright pod_ports { "veth1" }
            inet netwright pod_links { "veth1" }
            bridge netwright port_addresses4 { "veth1" . 192.0.2.5 }
            bridge netwright port_addresses6 { "veth1" . 2001:db8::5 }
        "#]]
        .assert_eq(&plan("veth1", Place::Bridged, &addresses).to_string());
        expect![[r#"
            inet netwright pod_links { "veth1" }
        "#]]
        .assert_eq(&plan("veth1", Place::Routed, &[]).to_string());
    }
}
