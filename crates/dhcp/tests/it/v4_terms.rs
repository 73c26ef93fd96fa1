//! The meaning of options.

use netwright_dhcp::v4::{Lease, RawOption, Route, Scope, Start, State};

use crate::support::*;

/// The lease from a reply with these options.
fn granted(change: impl Fn(Reply) -> Reply) -> Lease {
    let mut bench = Bench::new(plain(), Start::Fresh);
    bench.reply(&Reply::new(OFFER, &bench.last()));
    bench.reply(&change(Reply::new(ACK, &bench.last())));
    assert_eq!(bench.client.state(), State::Bound);
    bench.lease().clone()
}

fn routes(lease: &Lease) -> Vec<String> {
    let line = |route: &Route| match (route.gateway, route.scope()) {
        (Some(gateway), Scope::Universe) => format!("{} via {gateway}", route.destination),
        (None, Scope::Link) => format!("{} link", route.destination),
        other => panic!("{other:?}"),
    };
    lease.routes.iter().map(line).collect()
}

#[test]
fn everything_typed() {
    let lease = granted(|reply| {
        reply
            .with(1, [255, 255, 255, 192])
            .with(3, [192, 0, 2, 3, 192, 0, 2, 4])
            .with(6, [192, 0, 2, 5, 192, 0, 2, 6, 192, 0, 2, 5])
            .with(12, b"web-1")
            .with(15, b"example.org\0")
            .with(26, [5, 120])
            .with(28, [192, 0, 2, 63])
            .with(42, [192, 0, 2, 7])
            .with(58, 600_u32.to_be_bytes())
            .with(59, 900_u32.to_be_bytes())
            .with(119, b"\x03eng\x07example\x03org\0\x03ops\xc0\x04")
    });
    assert_eq!(lease.address.to_string(), "192.0.2.50/26");
    assert_eq!(lease.gateway.unwrap().to_string(), "192.0.2.3");
    assert_eq!(routes(&lease), ["0.0.0.0/0 via 192.0.2.3"]);
    assert_eq!(
        lease.dns,
        ["192.0.2.5", "192.0.2.6"].map(|dns| dns.parse::<std::net::Ipv4Addr>().unwrap())
    );
    assert_eq!(lease.host_name.as_deref(), Some("web-1"));
    assert_eq!(lease.domain.as_deref(), Some("example.org"));
    assert_eq!(lease.search, ["eng.example.org", "ops.example.org"]);
    assert_eq!(lease.mtu, Some(1400));
    assert_eq!(lease.broadcast.unwrap().to_string(), "192.0.2.63");
    assert_eq!((lease.lease_s, lease.t1_s, lease.t2_s), (Some(7200), 600, 900));
    assert_eq!(lease.option(42), Some(&[192, 0, 2, 7][..]));
    assert!(lease.options.contains(&RawOption::new(26, [5, 120])));
}

#[test]
fn classless_routes_count_alone() {
    let lease = granted(|reply| {
        reply.with(33, [198, 51, 100, 0, 192, 0, 2, 9]).with(
            121,
            [
                &[0, 192, 0, 2, 2][..],
                &[24, 198, 51, 100, 192, 0, 2, 3],
                &[25, 203, 0, 113, 129, 0, 0, 0, 0],
                &[32, 203, 0, 113, 1, 192, 0, 2, 4],
            ]
            .concat(),
        )
    });
    assert_eq!(
        routes(&lease),
        [
            "0.0.0.0/0 via 192.0.2.2",
            "198.51.100.0/24 via 192.0.2.3",
            "203.0.113.128/25 link",
            "203.0.113.1/32 via 192.0.2.4"
        ]
    );
    // The reference reports the first router as the gateway nevertheless.
    assert_eq!(lease.gateway, Some(SERVER));
}

#[test]
fn classless_routes_that_cannot_be_read_are_as_good_as_absent() {
    let too_many = [24, 198, 51, 100, 192, 0, 2, 3].repeat(513);
    for bad in [&[24, 198, 51][..], &[33, 1, 2, 3, 4, 5, 1, 2, 3, 4], &[0, 192, 0, 2], &too_many] {
        let lease = granted(|reply| reply.with(121, bad));
        assert_eq!(routes(&lease), ["0.0.0.0/0 via 192.0.2.1"], "{bad:?}");
    }
}

#[test]
fn static_routes_go_by_class_and_come_before_the_routers() {
    let lease = granted(|reply| {
        reply.with(
            33,
            [
                &[10, 0, 0, 0, 192, 0, 2, 9][..],
                &[172, 16, 0, 0, 192, 0, 2, 9],
                &[198, 51, 100, 0, 192, 0, 2, 9],
                &[198, 51, 100, 7, 192, 0, 2, 9],
                &[0, 0, 0, 0, 192, 0, 2, 9],
                &[224, 0, 0, 0, 192, 0, 2, 9],
                &[1, 2, 3],
            ]
            .concat(),
        )
    });
    assert_eq!(
        routes(&lease),
        [
            "10.0.0.0/8 via 192.0.2.9",
            "172.16.0.0/16 via 192.0.2.9",
            "198.51.100.0/24 via 192.0.2.9",
            "198.51.100.7/32 via 192.0.2.9",
            "0.0.0.0/0 via 192.0.2.1"
        ]
    );
}

#[test]
fn nonsense_costs_its_option_only() {
    let lease = granted(|reply| {
        reply
            .with(3, [0, 0, 0, 0, 1])
            .with(6, [1, 2])
            .with(12, b"web 1")
            .with(15, b"example.org\nnameserver 203.0.113.66")
            .with(26, [0, 67])
            .with(28, [1])
            .with(119, b"\xc0\0")
    });
    assert_eq!((lease.gateway, lease.mtu, lease.broadcast), (None, None, None));
    assert_eq!((lease.host_name, lease.domain), (None, None));
    assert_eq!((lease.dns.len(), lease.search.len(), lease.routes.len()), (0, 0, 0));
}

#[test]
fn renewal_times_out_of_order_are_replaced_by_the_defaults() {
    let s = |seconds: u32| seconds.to_be_bytes();
    for (t1, t2) in [(0, 900), (901, 900), (600, 7201), (u32::MAX, u32::MAX)] {
        let lease = granted(|reply| reply.with(58, s(t1)).with(59, s(t2)));
        assert_eq!((lease.t1_s, lease.t2_s), (3600, 6300), "{t1} {t2}");
    }
    let lease = granted(|reply| reply.lasting(1));
    assert_eq!((lease.t1_s, lease.t2_s), (1, 1));
}

#[test]
fn masks_with_holes_are_none() {
    for bad in [[255, 0, 255, 0], [0, 0, 0, 0], [0, 255, 255, 255]] {
        let mut bench = Bench::new(plain(), Start::Fresh);
        bench.reply(&Reply::new(OFFER, &bench.last()));
        bench.reply(&Reply::new(ACK, &bench.last()).with(1, bad));
        assert_eq!(bench.client.lease(), None);
    }
    assert_eq!(granted(|reply| reply.with(1, [255; 4])).address.prefix_len(), 32);
}

// RFC 3396
#[test]
fn long_options_are_joined_wherever_their_parts_are() {
    let domains = (0..40).fold(Vec::new(), |mut wire, n| {
        wire.extend([9, b'a', b'0' + n / 10, b'0' + n % 10, b'-', b'-', b'-', b'-', b'-', b'z', 0]);
        wire
    });
    let lease = granted(|reply| reply.with(119, &domains));
    assert_eq!(lease.search.len(), 40);

    let lease = granted(|mut reply| {
        let (first, second) = domains.split_at(200);
        reply.options.push((119, first.to_vec()));
        reply.options.push((6, vec![192, 0, 2, 5]));
        reply.options.push((119, second.to_vec()));
        reply
    });
    assert_eq!((lease.search.len(), lease.dns.len()), (40, 1));
}

// RFC 2131 §4.1, RFC 3396 §5
#[test]
fn overloaded_fields_are_read_after_the_options_file_before_sname() {
    let in_both = |overload: u8| {
        granted(|mut reply| {
            reply = reply.with(52, [overload]);
            reply.options.push((6, vec![192, 0, 2, 5]));
            reply.file = vec![6, 4, 192, 0, 2, 6, 0, 0, 255, 6];
            reply.sname = vec![6, 4, 192, 0, 2, 7, 255];
            reply
        })
    };
    for (overload, last) in [(1, &[5, 6][..]), (2, &[5, 7]), (3, &[5, 6, 7])] {
        let dns = in_both(overload).dns;
        assert_eq!(dns.iter().map(|dns| dns.octets()[3]).collect::<Vec<_>>(), last);
    }
    let plain = granted(|mut reply| {
        reply.file = b"pxelinux.0".to_vec();
        reply.sname = vec![6, 4, 192, 0, 2, 7];
        reply
    });
    assert_eq!(plain.dns, [] as [std::net::Ipv4Addr; 0]);
}
