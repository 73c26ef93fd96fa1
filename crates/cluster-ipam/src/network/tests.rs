use proptest::prelude::*;

use super::*;

fn range(text: &str) -> RangeSpec {
    text.parse().unwrap()
}

fn network(ranges: &[RangeSpec]) -> Result<Network, NetworkError> {
    let mut spec = NetworkSpec::new("n");
    spec.ranges = ranges.to_vec();
    Network::new(spec)
}

fn only(spec: RangeSpec) -> Range {
    network(&[spec]).unwrap().ranges()[0].clone()
}

fn all(range: &Range) -> Vec<String> {
    let mut found = Vec::new();
    let mut at = range.next(0);
    while let Some(number) = at {
        found.push(address_of(range.family(), number).to_string());
        at = number.checked_add(1).and_then(|next| range.next(next));
    }
    found
}

#[test]
fn the_network_and_broadcast_addresses_and_the_gateway_are_nobodys() {
    let mut spec = range("192.0.2.0/29");
    spec.gateway = Some("192.0.2.1".parse().unwrap());
    let range = only(spec);
    assert_eq!(all(&range), ["192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5", "192.0.2.6"]);
    assert_eq!(range.capacity(), 5);
    assert_eq!(
        all(&only("2001:db8::/126".parse().unwrap())),
        ["2001:db8::1", "2001:db8::2", "2001:db8::3"]
    );
    assert_eq!(all(&only("192.0.2.4/31".parse().unwrap())), ["192.0.2.4", "192.0.2.5"]);
    assert_eq!(all(&only("192.0.2.4/32".parse().unwrap())), ["192.0.2.4"]);
    // Also if the configuration begins or ends there.
    assert_eq!(all(&only("192.0.2.0-192.0.2.7/29".parse().unwrap())).len(), 6);
}

#[test]
fn addresses_that_stand_for_no_host_are_nobodys() {
    for (subnet, what) in [
        ("224.0.0.0/24", "multicast addresses"),
        ("ff05::/64", "multicast addresses"),
        ("127.0.0.0/24", "loopback addresses"),
        ("0.0.0.0/8", "addresses of 0.0.0.0/8 (\"this network\")"),
        ("::1/128", "the loopback address"),
        ("255.255.255.255/32", "the broadcast address of every network"),
    ] {
        let words = format!("the range of {subnet} has {what}, which no host can have as its own");
        assert_eq!(network(&[range(subnet)]).unwrap_err().to_string(), words);
    }
    assert_eq!(all(&only(range("255.255.255.254/31"))), ["255.255.255.254"]);
    assert_eq!(all(&only(range("::/126"))), ["::2", "::3"]);
    assert_eq!(only(range("0.0.0.0/0")).first().to_string(), "1.0.0.0");
}

#[test]
fn exclusions_are_prefixes_or_addresses() {
    let mut spec = range("192.0.2.10-192.0.2.20/24");
    spec.exclude =
        ["192.0.2.10", "192.0.2.12/30", "192.0.2.14/31", "2001:db8::/32", "198.51.100.0/24"]
            .iter()
            .map(|text| parse_prefix(text).unwrap())
            .collect();
    let range = only(spec);
    assert_eq!(
        all(&range),
        ["192.0.2.11", "192.0.2.16", "192.0.2.17", "192.0.2.18", "192.0.2.19", "192.0.2.20"]
    );
    assert!(range.allows("192.0.2.11".parse().unwrap()));
    assert!(!range.allows("192.0.2.12".parse().unwrap()));
    assert!(!range.allows("2001:db8::1".parse().unwrap()));
    assert_eq!(range.capacity(), 6);
}

#[test]
fn a_v6_range_may_be_as_large_as_there_are_addresses() {
    let range = only("::/0".parse().unwrap());
    assert_eq!(range.first().to_string(), "::2");
    // The first multicast address.
    let groups = 0xff << 120;
    assert_eq!(range.next(groups - 1), Some(groups - 1));
    assert_eq!((range.next(groups), range.next(u128::MAX)), (None, None));
    assert_eq!(range.capacity(), groups - 2);
}

#[test]
fn blocks_are_small_beside_the_range() {
    let in_cluster = |text: &str, nodes: usize| {
        let network = network(&[range(text)]).unwrap();
        network.block_prefix(&network.ranges()[0], nodes)
    };
    let prefix = |text: &str| in_cluster(text, 3);
    assert_eq!(prefix("10.0.0.0/8"), 26);
    assert_eq!(prefix("10.0.0.0/18"), 26);
    assert_eq!(prefix("10.0.0.0/20"), 26);
    assert_eq!(prefix("10.0.0.0/22"), 28);
    assert_eq!(prefix("192.0.2.0/24"), 30);
    assert_eq!(prefix("192.0.2.0/25"), 31);
    assert_eq!(prefix("192.0.2.0/26"), 32);
    assert_eq!(prefix("192.0.2.0/29"), 32);
    assert_eq!(prefix("2001:db8::/64"), 122);
    assert_eq!(prefix("2001:db8::/116"), 122);
    assert_eq!(prefix("::/0"), 122);
    // The size of the assignable range counts, not that of the subnet.
    assert_eq!(prefix("192.0.2.10-192.0.2.20/24"), 32);
    // Each node has four blocks, if there are enough addresses.
    assert_eq!(in_cluster("192.0.2.0/24", 16), 30);
    assert_eq!(in_cluster("192.0.2.0/24", 17), 31);
    assert_eq!(in_cluster("192.0.2.0/24", 100), 32);
    assert_eq!(in_cluster("10.0.0.0/16", 5000), 31);
    assert_eq!(in_cluster("10.0.0.0/8", usize::MAX), 32);
    let mut spec = NetworkSpec::new("n");
    spec.ranges = vec![range("10.0.0.0/28"), range("2001:db8::/64")];
    (spec.block_v4, spec.block_v6) = (Some(24), Some(120));
    let network = Network::new(spec).unwrap();
    assert_eq!(network.block_prefix(&network.ranges()[0], 1), 28);
    assert_eq!(network.block_prefix(&network.ranges()[1], 1), 120);
}

#[test]
fn a_space_is_the_names_or_the_subnets() {
    let mut spec = NetworkSpec::new("n");
    spec.ranges = vec![range("10.0.0.0/24")];
    let space = |spec: &NetworkSpec| {
        let network = Network::new(spec.clone()).unwrap();
        network.space(&network.ranges()[0])
    };
    assert_eq!(space(&spec), "default");
    spec.space = "blue".into();
    assert_eq!(space(&spec), "blue");
    spec.overlapping = false;
    assert_eq!(space(&spec), "blue@10.0.0.0-24");
}

#[test]
fn what_makes_no_sense_is_said_in_a_sentence() {
    let refused = |ranges: &[RangeSpec]| network(ranges).unwrap_err().to_string();
    assert_eq!(refused(&[]), "network \"n\" has no range of addresses");
    let text = "tea".parse::<RangeSpec>().unwrap_err().to_string();
    assert_eq!(
        text,
        "\"tea\" is not a range: write a subnet such as 192.0.2.0/24, or 192.0.2.10-192.0.2.20/24"
    );
    for bad in ["", "10.0.0.0", "10.0.0.0/33", "10.0.0.1-/24", "10.0.0.1-x/24", "10.0.0.0/x", "/24"]
    {
        assert!(bad.parse::<RangeSpec>().is_err(), "{bad}");
    }
    assert_eq!(
        refused(&[range("192.0.2.10-192.0.3.20/24")]),
        "the range's end 192.0.3.20 is not in its subnet 192.0.2.0/24"
    );
    assert_eq!(
        refused(&[range("192.0.2.10-2001:db8::1/24")]),
        "the range's end 2001:db8::1 is not in its subnet 192.0.2.0/24"
    );
    assert_eq!(
        refused(&[range("192.0.2.20-192.0.2.10/24")]),
        "the range of 192.0.2.0/24 ends at 192.0.2.10, before its start 192.0.2.20"
    );
    let mut spec = range("192.0.2.0/30");
    spec.exclude = vec!["192.0.2.0/24".parse().unwrap()];
    assert_eq!(refused(&[spec]), "the range of 192.0.2.0/30 leaves no address to assign");
    // Only the network's own address is left out.
    assert_eq!(
        refused(&[range("192.0.2.0-192.0.2.0/24")]),
        "the range of 192.0.2.0/24 leaves no address to assign"
    );
    let mut spec = range("192.0.2.0/30");
    spec.gateway = Some("2001:db8::1".parse().unwrap());
    assert_eq!(refused(&[spec]), "the gateway 2001:db8::1 of 192.0.2.0/30 is of the other family");
    let many = vec![range("192.0.2.0/24"); MAX_RANGES + 1];
    assert_eq!(refused(&many), "65 ranges, more than 64");
    let spec = |change: &dyn Fn(&mut NetworkSpec)| {
        let mut spec = NetworkSpec::new("n");
        spec.ranges = vec![range("192.0.2.0/24")];
        change(&mut spec);
        Network::new(spec).unwrap_err().to_string()
    };
    assert_eq!(
        spec(&|spec| spec.block_v4 = Some(8)),
        "blocks of /8 do not fit: IPv4 blocks are from /22 to /32, at most 1024 addresses"
    );
    assert!(spec(&|spec| spec.block_v6 = Some(129)).starts_with("blocks of /129 do not fit: IPv6"));
    assert!(
        spec(&|spec| spec.space = "Blue".into()).starts_with("network_name \"Blue\" is not valid")
    );
    assert_eq!(spec(&|spec| spec.network.clear()), "the network has no name");
}

proptest! {
    #[test]
    fn no_range_panics(text in "[0-9a-f:./-]{0,40}") {
        if let Ok(spec) = text.parse::<RangeSpec>() {
            let _ = network(&[spec]);
        }
    }

    #[test]
    fn what_may_be_assigned_is_in_the_range_and_counted(
        base in any::<u32>(), prefix in 22..=32_u8,
        excluded in prop::collection::vec((any::<u32>(), 24..=32_u8), 0..6),
    ) {
        let subnet = IpNet::new(Ipv4Addr::from_bits(base).into(), prefix).unwrap().trunc();
        let inside = |bits: u32| {
            let mask = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
            Ipv4Addr::from_bits((base & !mask) | (bits & mask))
        };
        let exclude: Vec<IpNet> = excluded.iter()
            .map(|(bits, prefix)| IpNet::new(inside(*bits).into(), *prefix).unwrap()).collect();
        let spec = RangeSpec { subnet, first: None, last: None, exclude: exclude.clone(), gateway: None };
        let Ok(network) = network(&[spec]) else { return Ok(()) };
        let range = &network.ranges()[0];
        let found = all(range);
        prop_assert_eq!(u128::try_from(found.len()).unwrap(), range.capacity());
        for text in found {
            let address: IpAddr = text.parse().unwrap();
            prop_assert!(subnet.contains(&address) && range.allows(address));
            prop_assert!(!exclude.iter().any(|one| one.contains(&address)));
            prop_assert!(prefix > 30 || (address != subnet.network() && address != subnet.broadcast()));
        }
    }
}
