//! Addresses that stand for hosts beyond the node.
//!
//! Nothing is sent to them. A filter that stops packets to all of them stops whatever leaves the
//! node. So that no filter is blamed that lets some hosts through, the addresses that the rules
//! themselves name are among them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use net::IpFamily;

use crate::model::Scene;
use crate::model::filter::{Header, Step, Table};
use crate::rules::is_link_local;

/// Some addresses of the Internet, and some private ones.
const V4: [[u8; 4]; 5] =
    [[45, 0, 0, 1], [93, 184, 0, 1], [185, 0, 0, 1], [10, 255, 255, 1], [192, 168, 255, 1]];
const V6: [[u16; 8]; 4] = [
    [0x2400, 0, 0, 0, 0, 0, 0, 1],
    [0x2600, 0, 0, 0, 0, 0, 0, 1],
    [0x2a00, 0, 0, 0, 0, 0, 0, 1],
    [0xfdff, 0xffff, 0xffff, 0, 0, 0, 0, 1],
];

/// How many addresses of rules are tried.
const NAMED: usize = 64;

/// Returns addresses to which the node has no route of its own.
pub(super) fn samples(scene: &Scene, family: IpFamily) -> Vec<IpAddr> {
    let fixed: Vec<IpAddr> = match family {
        IpFamily::V4 => V4.into_iter().map(IpAddr::from).collect(),
        IpFamily::V6 => V6.into_iter().map(IpAddr::from).collect(),
    };
    let mut named = BTreeSet::new();
    for table in &scene.host.filter.tables {
        named.extend(of_table(table));
    }
    for table in &scene.host.filter.legacy {
        named.extend(table.rules.iter().flat_map(|rule| of_text(rule)));
    }
    let near = near(scene);
    let is_beyond = |address: &IpAddr| {
        address.is_ipv4() == (family == IpFamily::V4)
            && !address.is_unspecified()
            && !address.is_loopback()
            && !address.is_multicast()
            && !is_on_link(*address)
            && !near.iter().any(|net| net.contains(address))
    };
    let named = named.into_iter().filter(is_beyond).take(NAMED);
    fixed.iter().copied().filter(is_beyond).chain(named).collect()
}

/// Says whether no router forwards packets to an address. Rules for services of the node itself name
/// such ones, as that of firewalld for DHCPv6.
fn is_on_link(address: IpAddr) -> bool {
    is_link_local(address) || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// The subnets that the node and its containers are in, and those to which routes lead.
fn near(scene: &Scene) -> Vec<IpNet> {
    let host = &scene.host;
    let own = host.links.iter().flat_map(|link| &link.addresses).map(|own| own.address.trunc());
    let routes = host.routes.iter().map(|route| route.to);
    let pools = scene.networks.iter().flat_map(|network| network.subnets.iter().copied());
    own.chain(routes).chain(pools).filter(|net| 0 < net.prefix_len()).collect()
}

/// The addresses that rules compare with, or look up in sets.
fn of_table(table: &Table) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for rule in table.chains.iter().flat_map(|chain| &chain.rules) {
        // How long the address is whose beginning was loaded.
        let mut loaded = None;
        for step in &rule.steps {
            match step {
                Step::Payload { base: Header::Network, offset, .. } => {
                    loaded = match offset {
                        12 | 16 => Some(4),
                        8 | 24 => Some(16),
                        _ => None,
                    };
                }
                Step::Payload { .. } | Step::Meta { .. } | Step::Connection { .. } => loaded = None,
                Step::Compare { with: bytes, .. } | Step::Range { first: bytes, .. } => {
                    found.extend(loaded.and_then(|len| address(bytes, len)));
                }
                _ => {}
            }
        }
    }
    for element in table.sets.iter().flat_map(|set| set.elements.iter().take(NAMED)) {
        let lens: Vec<usize> =
            element.parts.iter().map(|len| usize::try_from(*len).unwrap_or(usize::MAX)).collect();
        if lens.is_empty() {
            found.extend(address(&element.first, element.first.len()));
        }
        let mut at = 0_usize;
        for len in lens {
            let end = at.saturating_add(len);
            found.extend(element.first.get(at..end).and_then(|bytes| address(bytes, len)));
            // Parts may be filled up with zeros.
            at = end.checked_next_multiple_of(4).unwrap_or(usize::MAX);
        }
    }
    found
}

/// Reads an address of which the rest is 0.
fn address(bytes: &[u8], len: usize) -> Option<IpAddr> {
    let mut whole = bytes.to_vec();
    if whole.is_empty() || len < whole.len() {
        return None;
    }
    whole.resize(len, 0);
    if let Ok(octets) = <[u8; 4]>::try_from(&whole[..]) {
        return Some(octets.into());
    }
    <[u8; 16]>::try_from(&whole[..]).ok().map(IpAddr::from)
}

/// The addresses of a rule of the older iptables.
fn of_text(rule: &str) -> Vec<IpAddr> {
    let words = rule.split_whitespace();
    words
        .filter_map(|word| {
            word.parse::<IpNet>().map(|net| net.addr()).or_else(|_| word.parse::<IpAddr>()).ok()
        })
        .collect()
}

/// Returns an address of the same subnet.
pub(super) fn beside(net: IpNet) -> Option<IpAddr> {
    let other: IpAddr = match net.addr() {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [a, b, c, d ^ 1].into()
        }
        IpAddr::V6(address) => {
            let mut octets = address.octets();
            octets[15] ^= 1;
            octets.into()
        }
    };
    net.contains(&other).then_some(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::samples::{base, destination, drop, rule, source, table};
    use crate::model::filter::{Family as Kin, Hook};
    use crate::path::samples::{ip, node, with};

    #[test]
    fn addresses_that_rules_name_are_tried() {
        let rules = vec![
            rule(&[destination("203.0.113.9"), drop()]),
            rule(&[source("2001:db8:9::1"), drop()]),
            rule(&[destination("fe80::"), drop()]),
            rule(&[destination("255.255.255.255"), drop()]),
            // The pool is not beyond the node.
            rule(&[source("10.88.0.2"), drop()]),
        ];
        let forward = base("forward", Hook::Forward, 0, rules);
        let scene = with(node(), table(Kin::Inet, "own", vec![forward]));
        let v4 = samples(&scene, IpFamily::V4);
        assert!(v4.contains(&ip("203.0.113.9")));
        assert!(v4.contains(&ip("45.0.0.1")));
        assert!(!v4.contains(&ip("10.88.0.2")));
        assert!(!v4.contains(&ip("255.255.255.255")));
        let v6 = samples(&scene, IpFamily::V6);
        assert!(v6.contains(&ip("2001:db8:9::1")));
        assert!(!v6.contains(&ip("fe80::")));
    }

    #[test]
    fn a_neighbour_is_in_the_same_subnet() {
        assert_eq!(beside("192.0.2.2/24".parse().unwrap()), Some(ip("192.0.2.3")));
        assert_eq!(beside("2001:db8::2/64".parse().unwrap()), Some(ip("2001:db8::3")));
        assert_eq!(beside("192.0.2.2/32".parse().unwrap()), None);
    }
}
