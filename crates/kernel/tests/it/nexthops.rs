//! Nexthop objects and the routes that refer to them, seen by iproute2.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};
use kernel::Errno;
use kernel::route::{
    Change, IpFamily, NexthopFilter, NexthopObject, NexthopWay, Route, RouteFilter, RouteKind,
    RouteProtocol, RouteSocket,
};
use serde_json::json;

use crate::guard::{in_netns, json as json_of, sh};

/// An origin of the tests' own.
const OURS: RouteProtocol = RouteProtocol(78);

fn prepared() -> (RouteSocket, u32) {
    sh(
        "ip link set lo up; ip link add veth1 type veth peer name veth2; ip link set veth1 up; ip link set veth2 up; \
        ip addr add 192.0.2.1/24 dev veth1; ip addr add 2001:db8::1/64 dev veth1 nodad",
    );
    let mut socket = RouteSocket::open().unwrap();
    let ifindex = socket.link_by_name("veth1").unwrap().unwrap().index;
    (socket, ifindex)
}

fn via(id: u32, gateway: &str, oif: u32) -> NexthopObject {
    let address: IpAddr = gateway.parse().unwrap();
    NexthopObject { id, protocol: OURS, way: NexthopWay::Gateway { address, oif, onlink: true } }
}

fn by(id: u32, destination: &str) -> Route {
    let route = Route::new(destination.parse().unwrap());
    Route { nexthop: Some(id), protocol: Some(OURS), ..route }
}

#[test]
fn objects_come_change_and_go() {
    in_netns(|| {
        let (mut socket, oif) = prepared();
        assert_eq!(socket.nexthops(NexthopFilter::default()).unwrap(), []);
        let way = |id, way| NexthopObject { id, protocol: OURS, way };
        let objects = [
            // The gateway is not in the link's prefix, so the kernel accepts it only with onlink.
            via(1, "10.244.2.0", oif),
            via(2, "2001:db8:2::", oif),
            way(3, NexthopWay::Link { family: IpFamily::V4, oif }),
            way(4, NexthopWay::Blackhole { family: IpFamily::V6 }),
        ];
        socket.apply(&objects.map(Change::AddNexthop)).unwrap();
        sh("ip nexthop add id 5 via 192.0.2.9 dev veth1; ip nexthop add id 6 group 1/5");
        let ours = NexthopFilter { protocol: Some(OURS), ..NexthopFilter::default() };
        assert_eq!(socket.nexthops(ours).unwrap(), objects);
        let all = socket.nexthops(NexthopFilter::default()).unwrap();
        assert_eq!(all.len(), 6);
        assert_eq!((all[5].id, all[5].way), (6, NexthopWay::Other));
        let by_link = NexthopFilter { oif: Some(oif), ..ours };
        assert_eq!(socket.nexthops(by_link).unwrap(), objects[..3]);
        let no_link = NexthopFilter { oif: Some(4711), ..ours };
        assert_eq!(socket.nexthops(no_link).unwrap(), []);
        let seen = json_of("ip -j nexthop show proto 78");
        assert_eq!(
            seen,
            json!([
                {"id": 1, "gateway": "10.244.2.0", "dev": "veth1", "scope": "link",
                 "protocol": "78", "flags": ["onlink"]},
                {"id": 2, "gateway": "2001:db8:2::", "dev": "veth1", "scope": "link",
                 "protocol": "78", "flags": ["onlink"]},
                {"id": 3, "dev": "veth1", "scope": "host", "protocol": "78", "flags": []},
                {"id": 4, "blackhole": null, "protocol": "78", "flags": []},
            ])
        );

        assert!(socket.apply_one(&Change::AddNexthop(objects[0])).unwrap_err().is_exists());
        let moved = via(1, "192.0.2.7", oif);
        socket.apply_one(&Change::ReplaceNexthop(moved)).unwrap();
        assert_eq!(socket.nexthop(1).unwrap(), Some(moved));
        socket.apply_one(&Change::DelNexthop { id: 1 }).unwrap();
        assert_eq!(socket.nexthop(1).unwrap(), None);
        let gone = socket.apply_one(&Change::DelNexthop { id: 1 }).unwrap_err();
        assert_eq!(gone.errno(), Some(Errno::NOENT), "{gone}");
    });
}

#[test]
fn a_route_that_is_replaced_loses_its_metrics() {
    in_netns(|| {
        let (mut socket, oif) = prepared();
        let ways = [via(1, "10.244.2.0", oif), via(2, "2001:db8:2::", oif)];
        socket.apply(&ways.map(Change::AddNexthop)).unwrap();
        for (id, destination) in [(1, "10.244.2.0/24"), (2, "2001:db8:2::/64")] {
            let narrow = Route { mtu: Some(1350), ..by(id, destination) };
            socket.apply_one(&Change::AddRoute(narrow)).unwrap();
            socket.apply_one(&Change::ReplaceRoute(by(id, destination))).unwrap();
        }
        let shown = sh("ip route show proto 78; ip -6 route show proto 78");
        assert_eq!(shown.lines().count(), 2, "{shown}");
        assert!(!shown.contains("mtu"), "{shown}");
    });
}

#[test]
fn a_refused_object_is_explained() {
    in_netns(|| {
        let (mut socket, oif) = prepared();
        let way =
            NexthopWay::Gateway { address: "10.244.2.0".parse().unwrap(), oif, onlink: false };
        let far = NexthopObject { id: 1, protocol: OURS, way };
        let error = socket.apply_one(&Change::AddNexthop(far)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "add nexthop 1 via 10.244.2.0 on link {oif}: network is unreachable \
                 (ENETUNREACH): Nexthop has invalid gateway"
            )
        );
        let error = socket.apply_one(&Change::AddNexthop(via(1, "10.244.2.0", 4711))).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::INVAL), "{error}");
        let error = socket.apply_one(&Change::AddRoute(by(9, "10.244.2.0/24"))).unwrap_err();
        assert!(error.ext_ack().is_some(), "{error}");
        let read = NexthopObject { way: NexthopWay::Other, ..far };
        let error = socket.apply_one(&Change::AddNexthop(read)).unwrap_err();
        assert!(error.to_string().ends_with("are only read"), "{error}");
        assert_eq!(socket.nexthops(NexthopFilter::default()).unwrap(), []);
    });
}

#[test]
fn routes_follow_their_object() {
    in_netns(|| {
        let (mut socket, oif) = prepared();
        let metric = |route| Route { priority: Some(4_000_000), mtu: Some(1350), ..route };
        for (family, id, gateways, destination, address) in [
            (IpFamily::V4, 1, ["10.244.2.0", "192.0.2.7"], "10.244.2.0/24", "10.244.2.9"),
            (IpFamily::V6, 2, ["2001:db8:2::", "2001:db8::7"], "2001:db8:2::/64", "2001:db8:2::9"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            let route = Route { table: 1000, ..metric(by(id, destination)) };
            socket
                .apply(&[
                    Change::AddNexthop(via(id, gateways[0], oif)),
                    Change::ReplaceRoute(by(id, destination)),
                    Change::ReplaceRoute(route.clone()),
                ])
                .unwrap();
            let found = socket.routes_by(OURS, RouteFilter::all(family)).unwrap();
            assert_eq!(found.len(), 2, "{found:?}");
            let found = found.into_iter().find(|found| found.table == 1000).unwrap();
            assert_eq!(found.nexthop, Some(id));
            assert_eq!((found.priority, found.mtu), (Some(4_000_000), Some(1350)));
            assert_eq!((found.protocol, found.kind), (Some(OURS), RouteKind::Unicast));
            // A reported object can be sent again.
            socket.apply_one(&Change::ReplaceRoute(found.clone())).unwrap();
            let of_link = RouteFilter { oif: Some(oif), ..RouteFilter::main(family) };
            assert_eq!(socket.routes_by(OURS, of_link).unwrap().len(), 1);
            let none = socket.routes_by(RouteProtocol(79), RouteFilter::all(family)).unwrap();
            assert_eq!(none, []);

            for gateway in gateways {
                socket.apply_one(&Change::ReplaceNexthop(via(id, gateway, oif))).unwrap();
                let way = socket.route_to(address).unwrap().unwrap();
                assert_eq!((way.gateway, way.oif), (Some(gateway.parse().unwrap()), Some(oif)));
            }
            // Compatible output off: the object is named, and its link is not.
            sh("sysctl -qw net.ipv4.nexthop_compat_mode=0");
            let found = socket.routes_by(OURS, of_link).unwrap();
            assert_eq!((found.len(), found[0].nexthop, found[0].oif), (1, Some(id), None));
            sh("sysctl -qw net.ipv4.nexthop_compat_mode=1");

            socket.apply_one(&Change::DelNexthop { id }).unwrap();
            let left = socket.routes_by(OURS, RouteFilter::all(family)).unwrap();
            assert_eq!(left, [], "its routes went with it");
        }
    });
}

#[test]
fn what_has_no_other_way_is_unreachable() {
    in_netns(|| {
        let (mut socket, oif) = prepared();
        for (family, destination, address, gateway) in [
            (IpFamily::V4, "10.244.0.0/16", "10.244.2.9", "192.0.2.7"),
            (IpFamily::V6, "2001:db8:2::/48", "2001:db8:2::9", "2001:db8::7"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            let worst = Route {
                kind: RouteKind::Unreachable,
                protocol: Some(OURS),
                priority: Some(u32::MAX - 1),
                ..Route::new(destination.parse().unwrap())
            };
            socket.apply_one(&Change::ReplaceRoute(worst)).unwrap();
            let found = socket.routes_by(OURS, RouteFilter::main(family)).unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].kind, RouteKind::Unreachable);
            assert_eq!(found[0].priority, Some(u32::MAX - 1));
            let way = socket.route_to(address).unwrap();
            assert!(way.is_none_or(|way| way.kind == RouteKind::Unreachable));
            let better = Route {
                gateway: Some(gateway.parse().unwrap()),
                mtu: Some(1350),
                ..Route::new(destination.parse().unwrap())
            };
            socket.apply_one(&Change::AddRoute(better)).unwrap();
            let way = socket.route_to(address).unwrap().unwrap();
            assert_eq!((way.oif, way.mtu), (Some(oif), Some(1350)));
            assert_eq!(way.gateway, Some(gateway.parse().unwrap()));
            assert_eq!(way.source.map(|source| source.is_ipv4()), Some(family == IpFamily::V4));
        }
    });
}

/// There are two kinds of objects for each of 1,000 peers, and two peers that the kernel refuses.
#[test]
fn many_changes_and_a_few_failures() {
    in_netns(|| {
        let (mut socket, oif) = prepared();
        let mut changes = Vec::new();
        for number in 0..1000_u32 {
            let peer = Ipv4Net::new((0x0a00_0000 + (number << 8)).into(), 24).unwrap();
            let link = if [500, 999].contains(&number) { 4711 } else { oif };
            changes.push(Change::AddNexthop(via(number + 1, &peer.addr().to_string(), link)));
            let route = by(number + 1, &IpNet::V4(peer).to_string());
            changes.push(Change::AddRoute(route));
        }
        let failed = socket.apply_each(&changes).unwrap();
        let places: Vec<_> = failed.iter().map(|error| error.index).collect();
        assert_eq!(places, [1000, 1001, 1998, 1999]);
        assert_eq!(failed[0].source.errno(), Some(Errno::INVAL));
        assert!(
            failed[0].to_string().starts_with("add nexthop 501 via 10.1.244.0"),
            "{}",
            failed[0]
        );
        let ours = NexthopFilter { protocol: Some(OURS), ..NexthopFilter::default() };
        assert_eq!(socket.nexthops(ours).unwrap().len(), 998);
        let routes = socket.routes_by(OURS, RouteFilter::main(IpFamily::V4)).unwrap();
        assert_eq!(routes.len(), 998);
        // Every message of a datagram may fail, and the last one too.
        let again = socket.apply_each(&changes).unwrap();
        assert_eq!(again.len(), 2000);
        assert!(again[0].source.is_exists());
        assert_eq!(socket.apply_each(&[]).unwrap().len(), 0);
    });
}
