//! For how many addresses the kernel is asked. Addresses that share a question never have different
//! routes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use netwright_routing::alike::Destinations;
use proptest::prelude::*;

use crate::support::{cases, ip, net, one_of_many};

fn destinations(of: &[(&str, bool)]) -> Destinations {
    let mut all = Destinations::default();
    for (destination, shares) in of {
        all.add(net(destination), *shares);
    }
    all
}

/// The routes of a host behind a router: defaults, its segment, its own addresses, and pods'
/// prefixes.
const HOST: [(&str, bool); 8] = [
    ("0.0.0.0/0", false),
    ("192.0.2.0/26", false),
    ("192.0.2.11/32", false),
    ("192.0.2.63/32", false),
    ("10.244.0.0/16", false),
    ("::/0", false),
    ("2001:db8::/64", false),
    ("2001:db8::10/128", false),
];

#[test]
fn many_nodes_behind_a_router_are_one_question_for_each_family() {
    for count in [50, 5000] {
        let nodes = (10..10 + count).map(one_of_many);
        let far = |address: IpAddr| match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(v6) => IpAddr::from((v6.to_bits() | 0xf_u128 << 80).to_be_bytes()),
        };
        let addresses: Vec<IpAddr> =
            nodes.flat_map(|node| node.underlay.iter().map(far).collect::<Vec<_>>()).collect();
        assert_eq!(addresses.len(), usize::from(count) * 2);
        let groups = destinations(&HOST).group(addresses.iter().copied());
        let sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
        assert_eq!(sizes, [usize::from(count); 2]);
    }
}

#[test]
fn what_may_differ_is_asked_for_alone() {
    let groups = |of: &Destinations, addresses: &[&str]| -> Vec<String> {
        let groups = of.group(addresses.iter().map(|address| ip(address)));
        let text = |group: &Vec<IpAddr>| {
            group.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        groups.iter().map(text).collect()
    };
    let all = ["192.0.2.12", "198.18.0.1", "192.0.2.13", "198.18.0.2", "192.0.2.63", "198.18.9.1"];
    let mut host = destinations(&HOST);
    let by_segment = "192.0.2.12 192.0.2.13";
    assert_eq!(groups(&host, &all), [by_segment, "198.18.0.1 198.18.0.2 198.18.9.1", "192.0.2.63"]);
    // A route lies within another, in any table.
    host.add(net("198.18.9.0/24"), false);
    assert_eq!(
        groups(&host, &all),
        [by_segment, "198.18.0.1 198.18.0.2", "192.0.2.63", "198.18.9.1"]
    );
    // The kernel has learnt something about one address.
    host.add_alone(ip("198.18.0.1"));
    host.add_alone(ip("192.0.2.12"));
    assert_eq!(
        groups(&host, &all),
        ["192.0.2.13", "192.0.2.12", "198.18.0.2", "198.18.0.1", "192.0.2.63", "198.18.9.1"]
    );
    // The route around all of them has several next hops: a route within it may leave the decision
    // to it (`throw`).
    host.add(net("0.0.0.0/0"), true);
    assert_eq!(groups(&host, &all).len(), all.len());
    // A host without a route, and then no address to ask for.
    assert_eq!(groups(&Destinations::default(), &["192.0.2.1", "::1"]), ["192.0.2.1", "::1"]);
    assert_eq!(groups(&host, &[]), Vec::<String>::new());
}

/// The addresses and destinations are few, so that many nest.
fn any_destination() -> impl Strategy<Value = (IpNet, bool)> {
    let v4 = (0_u32..16, 26_u8..=32).prop_map(|(low, length)| {
        IpNet::new(std::net::Ipv4Addr::from(0xc000_0200 | low).into(), length).unwrap()
    });
    let v6 = (0_u128..16, 122_u8..=128).prop_map(|(low, length)| {
        IpNet::new(std::net::Ipv6Addr::from(0x2001_0db8_u128 << 96 | low).into(), length).unwrap()
    });
    (prop_oneof![v4, v6, Just(net("0.0.0.0/0")), Just(net("::/0"))], prop::bool::weighted(0.1))
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn addresses_of_one_question_are_in_the_same_destinations(
        of in prop::collection::vec(any_destination(), 0..12),
        alone in prop::collection::btree_set(0_u32..16, 0..3),
    ) {
        let mut all = Destinations::default();
        of.iter().for_each(|(destination, shares)| all.add(*destination, *shares));
        let v4 = |low: u32| IpAddr::from(std::net::Ipv4Addr::from(0xc000_0200 | low));
        let v6 = |low: u128| IpAddr::from(std::net::Ipv6Addr::from(0x2001_0db8_u128 << 96 | low));
        alone.iter().for_each(|low| all.add_alone(v4(*low)));
        let addresses: Vec<IpAddr> = (0..16).map(v4).chain((0..16).map(v6)).collect();
        let groups = all.group(addresses.iter().copied());
        let mut found: Vec<IpAddr> = groups.iter().flatten().copied().collect();
        found.sort();
        prop_assert_eq!(found, addresses);
        for group in groups.iter().filter(|group| 1 < group.len()) {
            let around = |address: &IpAddr| -> BTreeSet<IpNet> {
                let around = of.iter().filter(|(destination, _)| destination.contains(address));
                around.map(|(destination, _)| destination.trunc()).collect()
            };
            let first = around(&group[0]);
            for address in group {
                prop_assert_eq!(&around(address), &first);
                prop_assert_eq!(address.is_ipv4(), group[0].is_ipv4());
                prop_assert!(!alone.iter().any(|low| v4(*low) == *address));
            }
            prop_assert!(!of.iter().any(|(of, shares)| *shares && of.contains(&group[0])));
        }
    }
}
