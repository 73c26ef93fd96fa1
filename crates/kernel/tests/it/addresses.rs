use std::net::IpAddr;

use kernel::route::{AddressOptions, Change, IpFamily, Neighbour, RouteSocket, Scope};
use kernel::{Errno, MacAddr};

use crate::guard::{in_netns, json, sh};

#[test]
fn addresses_come_and_go() {
    in_netns(|| {
        sh(
            "ip link add veth1 type veth peer name veth2; ip link set veth1 up; ip link set veth2 up",
        );
        let mut route = RouteSocket::open().unwrap();
        let ifindex = route.link_by_name("veth1").unwrap().unwrap().index;
        let add = |address: &str, options| Change::AddAddress {
            ifindex,
            address: address.parse().unwrap(),
            options,
        };
        let nodad = AddressOptions { nodad: true, ..AddressOptions::default() };
        let broadcast = AddressOptions {
            broadcast: Some("192.0.2.255".parse().unwrap()),
            ..AddressOptions::default()
        };
        let near = AddressOptions {
            noprefixroute: true,
            scope: Some(Scope::LINK),
            ..AddressOptions::default()
        };
        route
            .apply(&[
                add("192.0.2.1/24", broadcast),
                add("198.51.100.1/32", near),
                add("2001:db8::1/64", nodad),
                add("2001:db8:1::1/64", AddressOptions::default()),
            ])
            .unwrap();
        let found = route.addresses(Some(ifindex)).unwrap();
        let get = |text: &str| {
            let wanted = text.parse().unwrap();
            found
                .iter()
                .find(|found| found.address == wanted)
                .unwrap_or_else(|| panic!("{found:?}"))
        };
        assert_eq!(get("192.0.2.1/24").broadcast, broadcast.broadcast);
        assert_eq!(get("192.0.2.1/24").label.as_deref(), Some("veth1"));
        assert_eq!(get("198.51.100.1/32").scope, Scope::LINK);
        assert!(!get("2001:db8::1/64").tentative(), "usable at once");
        assert!(get("2001:db8:1::1/64").tentative());
        assert!(get("2001:db8::1/64").permanent());
        assert!(route.addresses(None).unwrap().len() >= found.len());
        assert_eq!(route.addresses(Some(4711)).unwrap(), []);

        let seen = json("ip -j addr show dev veth1");
        let seen = seen[0]["addr_info"].as_array().unwrap();
        let seen = |local: &str| seen.iter().find(|entry| entry["local"] == local).unwrap();
        assert_eq!(seen("192.0.2.1")["broadcast"], "192.0.2.255");
        assert_eq!(seen("198.51.100.1")["scope"], "link");
        assert_eq!(seen("198.51.100.1")["noprefixroute"], true);
        assert_eq!(seen("2001:db8::1")["nodad"], true);

        let twice = route.apply_one(&add("192.0.2.1/24", AddressOptions::default())).unwrap_err();
        assert!(twice.is_exists(), "{twice}");
        let delete = Change::DelAddress { ifindex, address: "192.0.2.1/24".parse().unwrap() };
        route.apply_one(&delete).unwrap();
        let gone = route.apply_one(&delete).unwrap_err();
        assert_eq!(gone.errno(), Some(Errno::ADDRNOTAVAIL));
        assert!(gone.is_not_found());
    });
}

#[test]
fn a_peer_of_a_point_to_point_address() {
    in_netns(|| {
        sh("ip link add veth1 type veth peer name veth2");
        sh("ip addr add 192.0.2.1 peer 192.0.2.2/32 dev veth1");
        let mut route = RouteSocket::open().unwrap();
        let ifindex = route.link_by_name("veth1").unwrap().unwrap().index;
        let found = route.addresses(Some(ifindex)).unwrap();
        assert_eq!(found[0].address, "192.0.2.1/32".parse().unwrap());
        assert_eq!(found[0].peer, Some("192.0.2.2".parse().unwrap()));
    });
}

#[test]
fn neighbours() {
    in_netns(|| {
        sh(
            "ip link add veth1 type veth peer name veth2; ip link set veth1 up; ip link set veth2 up",
        );
        let mut route = RouteSocket::open().unwrap();
        let ifindex = route.link_by_name("veth1").unwrap().unwrap().index;
        for address in ["192.0.2.9", "2001:db8::9"] {
            let address: IpAddr = address.parse().unwrap();
            let family = IpFamily::of(address);
            let neighbour = Neighbour::permanent(ifindex, address, MacAddr([2, 0, 0, 0, 0, 9]));
            route.apply(&[Change::SetNeighbour(neighbour.clone())]).unwrap();
            assert!(route.neighbours(family, Some(ifindex)).unwrap().contains(&neighbour));
            assert!(route.neighbours(family, None).unwrap().contains(&neighbour));
            assert_eq!(route.neighbour(ifindex, address).unwrap().as_ref(), Some(&neighbour));
            assert!(
                sh("ip neigh")
                    .contains(&format!("{address} dev veth1 lladdr 02:00:00:00:00:09 PERMANENT"))
            );
            route.apply(&[Change::DelNeighbour(neighbour.clone())]).unwrap();
            assert!(!route.neighbours(family, Some(ifindex)).unwrap().contains(&neighbour));
            assert_eq!(route.neighbour(ifindex, address).unwrap(), None);
            assert_eq!(route.neighbour(4711, address).unwrap(), None);
        }
        assert_eq!(route.neighbours(IpFamily::V4, Some(4711)).unwrap(), []);
    });
}
