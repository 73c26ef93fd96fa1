use super::*;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn what(address: &str) -> String {
    no_host(net(address)).unwrap_or_default()
}

#[test]
fn what_no_host_can_have_is_named() {
    for (address, words) in [
        ("10.1.0.0/24", "the network address of 10.1.0.0/24"),
        ("10.1.0.255/24", "the broadcast address of 10.1.0.0/24"),
        ("10.1.0.3/30", "the broadcast address of 10.1.0.0/30"),
        ("fd00::/64", "the address of the routers of fd00::/64"),
        ("224.0.0.7/24", "a multicast address"),
        ("239.255.255.255/32", "a multicast address"),
        ("ff02::7/128", "a multicast address"),
        ("127.0.0.5/8", "a loopback address"),
        ("0.0.0.9/8", "an address of 0.0.0.0/8 (\"this network\")"),
        ("255.255.255.255/31", "the broadcast address of every network"),
        ("::/127", "the unspecified address"),
        ("::1/128", "the loopback address"),
    ] {
        assert_eq!(what(address), words, "{address}");
    }
    for address in [
        "10.1.0.255/16",
        "10.1.0.0/8",
        "10.1.0.0/31",
        "10.1.0.1/31",
        "10.1.0.255/32",
        "240.0.0.1/24",
        "169.254.7.2/24",
        "fd00::/127",
        "fd00::/128",
        "fd00::ffff:ffff:ffff:ffff/64",
        "fe80::2/64",
        "::2/64",
    ] {
        assert_eq!(what(address), "", "{address}");
    }
}

#[test]
fn a_gateway_may_be_outside_its_subnet_or_the_address_of_its_routers() {
    let what = |gateway: &str, subnet: &str| {
        no_gateway(gateway.parse().unwrap(), net(subnet)).unwrap_or_default()
    };
    for (gateway, subnet, words) in [
        ("10.1.0.255", "10.1.0.0/24", "the broadcast address of 10.1.0.0/24"),
        ("10.1.0.0", "10.1.0.0/24", "the network address of 10.1.0.0/24"),
        ("224.0.0.1", "10.1.0.0/24", "a multicast address"),
        ("::1", "::/64", "the loopback address"),
        ("10.1.0.255", "10.2.0.0/24", ""),
        ("fd00::", "fd00::/64", ""),
        ("fd00::1", "10.1.0.0/24", ""),
        ("10.1.0.0", "10.1.0.0/31", ""),
        ("10.1.0.0", "10.1.0.0/32", ""),
    ] {
        assert_eq!(what(gateway, subnet), words, "{gateway} of {subnet}");
    }
}

#[test]
fn subnets_without_hosts_are_named() {
    for (subnet, words) in [
        ("224.0.0.0/24", Some("multicast addresses")),
        ("ff05::/64", Some("multicast addresses")),
        ("127.0.0.0/24", Some("loopback addresses")),
        ("::1/128", Some("the loopback address")),
        ("255.255.255.255/32", Some("the broadcast address of every network")),
        ("10.0.0.0/24", None),
        ("255.255.255.0/24", None),
        ("::/64", None),
        ("0.0.0.0/0", None),
        ("::/0", None),
    ] {
        assert_eq!(no_hosts(net(subnet)), words, "{subnet}");
    }
    assert!(no_hosts(net("0.0.0.0/8")).is_some_and(|what| what.starts_with("addresses of 0.0")));
}

/// The addresses at the ends and beside them, of all subnets that have such ends.
#[test]
fn between_two_addresses_are_only_those_that_hosts_can_have() {
    let between = |subnet: &str, first: &str, last: &str| {
        let pair = hosts_between(net(subnet), first.parse().unwrap(), last.parse().unwrap());
        pair.map_or_else(String::new, |(first, last)| format!("{first} {last}"))
    };
    let whole = |subnet: &str| {
        let net = net(subnet);
        between(subnet, &net.network().to_string(), &net.broadcast().to_string())
    };
    for (subnet, hosts) in [
        ("10.1.0.0/24", "10.1.0.1 10.1.0.254"),
        ("10.1.0.0/30", "10.1.0.1 10.1.0.2"),
        ("10.1.0.0/31", "10.1.0.0 10.1.0.1"),
        ("10.1.0.5/32", "10.1.0.5 10.1.0.5"),
        ("fd00::/126", "fd00::1 fd00::3"),
        ("fd00::/127", "fd00:: fd00::1"),
        ("fd00::5/128", "fd00::5 fd00::5"),
        ("::/64", "::2 ::ffff:ffff:ffff:ffff"),
        ("::/127", ""),
        ("ff00::/8", ""),
        ("fe00::/7", "fe00::1 feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ("255.255.255.254/31", "255.255.255.254 255.255.255.254"),
        ("255.255.255.255/32", ""),
        ("127.0.0.0/8", ""),
        ("126.0.0.0/7", "126.0.0.1 126.255.255.255"),
        ("0.0.0.0/0", "1.0.0.0 126.255.255.255"),
        ("128.0.0.0/1", "128.0.0.1 223.255.255.255"),
        ("::/0", "::2 feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ] {
        assert_eq!(whole(subnet), hosts, "{subnet}");
    }
    assert_eq!(between("10.1.0.0/24", "10.1.0.255", "10.1.0.255"), "");
    assert_eq!(between("10.1.0.0/24", "10.1.0.254", "10.1.0.255"), "10.1.0.254 10.1.0.254");
    assert_eq!(between("0.0.0.0/0", "127.9.9.9", "128.0.0.9"), "128.0.0.0 128.0.0.9");
    assert_eq!(between("0.0.0.0/0", "224.0.0.0", "239.0.0.0"), "");
    assert_eq!(between("10.0.0.0/8", "10.1.2.0", "10.1.2.255"), "10.1.2.0 10.1.2.255");
}
