//! Every message is the reference's, word for word.

use super::*;

fn spec(subnet: &str, start: &str, end: &str, gateway: &str) -> RangeSpec {
    let address = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
    RangeSpec {
        subnet: (!subnet.is_empty()).then(|| subnet.parse().unwrap()),
        range_start: address(start),
        range_end: address(end),
        gateway: address(gateway),
    }
}

fn subnet(subnet: &str) -> RangeSpec {
    spec(subnet, "", "", "")
}

/// The error of these range sets as a caller sees it, or how the sets were completed.
fn judge(specs: Vec<Vec<RangeSpec>>) -> String {
    match RangeSets::new(specs) {
        Ok(sets) => sets.sets().iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        Err(error) => cni::Error::from_chain(7, &error).msg,
    }
}

fn judge_one(range: RangeSpec) -> String {
    judge(vec![vec![range]])
}

#[test]
fn defaults_leave_out_network_and_broadcast() {
    assert_eq!(judge_one(subnet("192.0.2.0/24")), "192.0.2.1-192.0.2.254");
    assert_eq!(judge_one(subnet("192.0.2.0/30")), "192.0.2.1-192.0.2.2");
    assert_eq!(judge_one(subnet("2001:db8::/64")), "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff");
    let sets = RangeSets::new(vec![vec![subnet("192.0.2.0/24")]]).unwrap();
    assert_eq!(sets.sets()[0].ranges()[0].gateway().to_string(), "192.0.2.1");
}

/// They are named in many published configurations, and the reference gives them to containers.
#[test]
fn ends_of_the_subnet_that_no_host_can_have_are_left_out() {
    let range = spec("192.0.2.0/24", "192.0.2.0", "192.0.2.255", "");
    assert_eq!(judge_one(range), "192.0.2.1-192.0.2.254");
    let range = spec("2001:db8::/64", "2001:db8::", "2001:db8::ffff:ffff:ffff:ffff", "");
    assert_eq!(judge_one(range), "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff");
    // A slice of a larger subnet has no such ends.
    let range = spec("10.0.0.0/8", "10.1.2.0", "10.1.2.255", "");
    assert_eq!(judge_one(range), "10.1.2.0-10.1.2.255");
    let nothing = spec("192.0.2.0/24", "192.0.2.255", "192.0.2.255", "");
    assert_eq!(
        judge_one(nothing),
        "invalid range set 0: range 192.0.2.255-192.0.2.255 of 192.0.2.0/24 leaves no address for a host"
    );
}

#[test]
fn groups_have_no_ranges() {
    for group in ["224.0.0.0/24", "239.1.0.0/16", "ff02::/64"] {
        let words = judge_one(subnet(group));
        assert!(words.contains("is of multicast addresses"), "{words}");
    }
}

/// The kernel gives `lo` alone the loopback addresses, and routes nothing to the others.
#[test]
fn addresses_that_stand_for_no_host_are_left_out() {
    for none in ["127.0.0.0/24", "0.0.0.0/8", "0.1.0.0/16"] {
        let words = judge_one(subnet(none));
        assert!(words.contains(&format!("Network {none} is of ")), "{words}");
    }
    assert_eq!(judge_one(subnet("::/64")), "::2-::ffff:ffff:ffff:ffff");
    assert_eq!(judge_one(subnet("0.0.0.0/0")), "1.0.0.0-126.255.255.255");
    assert_eq!(judge_one(subnet("255.255.255.0/24")), "255.255.255.1-255.255.255.254");
    let range = spec("0.0.0.0/0", "10.0.0.5", "10.0.0.9", "10.0.0.1");
    assert_eq!(judge_one(range), "10.0.0.5-10.0.0.9");
    assert_eq!(judge_one(spec("::/64", "::1", "::9", "")), "::2-::9");
}

#[test]
fn each_message_of_the_reference_can_be_had() {
    let cases = [
        (vec![], "no IP ranges specified"),
        (vec![vec![]], "invalid range set 0: empty range set"),
        (vec![vec![subnet("")]], "invalid range set 0: IP <nil> not v4 nor v6"),
        (
            vec![vec![subnet("192.0.2.0/31")]],
            "invalid range set 0: Network 192.0.2.0/31 too small to allocate from",
        ),
        (
            vec![vec![subnet("2001:db8::/127")]],
            "invalid range set 0: Network 2001:db8::/127 too small to allocate from",
        ),
        (
            vec![vec![subnet("::ffff:192.0.2.0/120")]],
            "invalid range set 0: IPNet IP and Mask version mismatch",
        ),
        (
            vec![vec![subnet("192.0.2.9/24")]],
            "invalid range set 0: Network has host bits set. For a subnet mask of length 24 the network address is 192.0.2.0",
        ),
        (
            vec![vec![spec("192.0.2.0/24", "198.51.100.1", "", "")]],
            "invalid range set 0: RangeStart 198.51.100.1 not in network 192.0.2.0/24",
        ),
        (
            vec![vec![spec("192.0.2.0/24", "192.0.2.9", "192.0.2.8", "")]],
            "invalid range set 0: RangeStart 192.0.2.9 not in network 192.0.2.0/24",
        ),
        (
            vec![vec![spec("192.0.2.0/24", "", "192.0.3.1", "")]],
            "invalid range set 0: RangeEnd 192.0.3.1 not in network 192.0.2.0/24",
        ),
        (
            vec![vec![spec("192.0.2.0/24", "", "2001:db8::1", "")]],
            "invalid range set 0: RangeEnd 2001:db8::1 not in network 192.0.2.0/24",
        ),
        (
            vec![
                vec![subnet("192.0.2.0/24")],
                vec![subnet("2001:db8::/64"), subnet("192.0.3.0/24")],
            ],
            "invalid range set 1: mixed address families",
        ),
        (
            vec![vec![subnet("192.0.2.0/24"), spec("192.0.2.0/25", "", "192.0.2.9", "")]],
            "invalid range set 0: subnets 192.0.2.1-192.0.2.254 and 192.0.2.1-192.0.2.9 overlap",
        ),
        (
            vec![
                vec![subnet("198.51.100.0/24")],
                vec![subnet("192.0.2.0/24")],
                vec![subnet("2001:db8::/64")],
                vec![subnet("192.0.0.0/16")],
            ],
            "range set 1 overlaps with 3",
        ),
    ];
    for (specs, message) in cases {
        assert_eq!(judge(specs.clone()), message, "{specs:?}");
    }
}

#[test]
fn ranges_are_read_as_configurations_write_them() {
    let spec: RangeSpec = cni::json::from_str(
        r#"{"subnet": "192.0.2.0/24", "RANGESTART": "::ffff:192.0.2.5", "rangeEnd": "", "gateway": null}"#,
    )
    .unwrap();
    let range = Range::new(&spec).unwrap();
    assert_eq!(range.to_string(), "192.0.2.5-192.0.2.254");
    let error = cni::json::from_str::<RangeSpec>(r#"{"subnet": "192.0.2.0"}"#).unwrap_err();
    assert!(error.message.contains("invalid CIDR address: 192.0.2.0"), "{error}");
}

#[test]
fn the_ring_goes_through_all_ranges_and_ends_before_its_beginning() {
    let set = RangeSet::new(&[
        spec("192.0.2.0/29", "192.0.2.5", "192.0.2.6", ""),
        spec("198.51.100.0/29", "198.51.100.1", "198.51.100.2", ""),
    ])
    .unwrap();
    let ring = |last: &str| {
        set.ring(last.parse().ok()).map(|(address, _)| address.to_string()).collect::<Vec<_>>()
    };
    let whole = ["192.0.2.5", "192.0.2.6", "198.51.100.1", "198.51.100.2"];
    assert_eq!(ring(""), whole);
    assert_eq!(ring("203.0.113.1"), whole);
    assert_eq!(ring("2001:db8::1"), whole);
    assert_eq!(ring("198.51.100.2"), whole);
    assert_eq!(ring("192.0.2.6"), ["198.51.100.1", "198.51.100.2", "192.0.2.5", "192.0.2.6"]);
    let single = RangeSet::new(&[spec("192.0.2.0/29", "192.0.2.5", "192.0.2.5", "")]).unwrap();
    assert_eq!(single.ring(None).count(), 1);
    assert_eq!(single.ring("192.0.2.5".parse().ok()).count(), 1);
}

#[test]
fn the_end_of_all_addresses_is_no_trap() {
    let set =
        RangeSet::new(&[spec("::/0", "feff:ffff:ffff:ffff:ffff:ffff:ffff:fffe", "", "")]).unwrap();
    assert_eq!(set.ring(None).count(), 2);
    let groups = RangeSet::new(&[spec("::/0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe", "", "")]);
    assert!(matches!(groups, Err(RangeSetError::Range(RangeError::NoHosts { .. }))));
    let set = RangeSet::new(&[spec("255.255.255.0/24", "255.255.255.254", "255.255.255.255", "")])
        .unwrap();
    assert_eq!(set.ring(None).count(), 1);
    let all = RangeSets::new(vec![vec![spec("::/0", "::", "", "")]]).unwrap();
    // From ::2 to the last before ff00::; the gateway ::1 is not among them.
    assert_eq!(all.capacity(&all.sets()[0]), (0xff << 120) - 2);
}

#[test]
fn capacity_leaves_out_each_gateway_once() {
    let sets = RangeSets::new(vec![vec![
        spec("192.0.2.0/24", "192.0.2.1", "192.0.2.10", "192.0.2.20"),
        spec("192.0.2.0/24", "192.0.2.20", "192.0.2.29", "192.0.2.20"),
        spec("198.51.100.0/24", "198.51.100.1", "198.51.100.10", "203.0.113.1"),
    ]])
    .unwrap();
    assert_eq!(sets.capacity(&sets.sets()[0]), 29);
}
