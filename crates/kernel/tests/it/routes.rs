use kernel::Errno;
use kernel::route::{
    Change, IpFamily, NextHop, Route, RouteFilter, RouteKind, RouteProtocol, RouteSocket, Rule,
    RuleAction, Scope, TABLE_MAIN,
};

use crate::guard::{in_netns, json, sh};

fn prepared() -> (RouteSocket, u32) {
    sh(
        "ip link add veth1 type veth peer name veth2; ip link set veth1 up; ip link set veth2 up; ip link set lo up",
    );
    sh("ip addr add 192.0.2.1/24 dev veth1; ip addr add 2001:db8::1/64 dev veth1 nodad");
    let mut route = RouteSocket::open().unwrap();
    let ifindex = route.link_by_name("veth1").unwrap().unwrap().index;
    (route, ifindex)
}

fn to(destination: &str) -> Route {
    Route::new(destination.parse().unwrap())
}

#[test]
fn a_route_with_everything() {
    in_netns(|| {
        let (mut socket, oif) = prepared();
        for (destination, gateway, source, family) in [
            ("198.51.100.0/24", "192.0.2.2", "192.0.2.1", IpFamily::V4),
            ("2001:db8:9::/48", "2001:db8::2", "2001:db8::1", IpFamily::V6),
        ] {
            let route = Route {
                gateway: Some(gateway.parse().unwrap()),
                oif: Some(oif),
                table: 1000,
                priority: Some(77),
                protocol: Some(RouteProtocol::STATIC),
                scope: Some(Scope::UNIVERSE),
                mtu: Some(1400),
                advmss: Some(1300),
                onlink: true,
                source: Some(source.parse().unwrap()),
                ..to(destination)
            };
            socket.apply(&[Change::AddRoute(route.clone())]).unwrap();
            let filter = RouteFilter { family, table: Some(1000), oif: Some(oif) };
            assert_eq!(socket.routes(filter).unwrap(), std::slice::from_ref(&route));
            let version = if family == IpFamily::V4 { "-4" } else { "-6" };
            let seen = &json(&format!("ip -j {version} route show table 1000"))[0];
            assert_eq!(seen["dst"], destination);
            assert_eq!(seen["gateway"], gateway);
            assert_eq!(seen["metric"], 77);
            assert_eq!(seen["protocol"], "static");
            assert_eq!(seen["prefsrc"], source);
            assert_eq!(seen["flags"], serde_json::json!(["onlink"]));
            assert_eq!(seen["metrics"], serde_json::json!([{"mtu": 1400, "advmss": 1300}]));
            assert!(socket.apply_one(&Change::AddRoute(route.clone())).unwrap_err().is_exists());
            let changed = Route { mtu: Some(1350), ..route.clone() };
            socket.apply_one(&Change::ReplaceRoute(changed.clone())).unwrap();
            assert_eq!(socket.routes(filter).unwrap(), [changed]);
            // The route is deleted by the attributes that a caller knows.
            socket.apply_one(&Change::DelRoute(Route { table: 1000, ..to(destination) })).unwrap();
            let gone = socket.apply_one(&Change::DelRoute(route)).unwrap_err();
            assert_eq!(gone.errno(), Some(Errno::SRCH));
            assert_eq!(socket.routes(filter).unwrap(), []);
        }
        let nowhere = RouteFilter { family: IpFamily::V4, table: Some(4711), oif: None };
        assert_eq!(socket.routes(nowhere).unwrap(), []);
        let no_link = RouteFilter { oif: Some(4711), ..RouteFilter::main(IpFamily::V6) };
        assert_eq!(socket.routes(no_link).unwrap(), []);
    });
}

#[test]
fn a_table_is_listed_in_part_or_not_at_all() {
    in_netns(|| {
        let (mut socket, oif) = prepared();
        for (family, prefixes) in [
            (IpFamily::V4, ["198.51.100.0/26", "198.51.100.64/26", "198.51.100.128/26"]),
            (IpFamily::V6, ["2001:db8:7::/64", "2001:db8:7:1::/64", "2001:db8:7:2::/64"]),
        ] {
            for destination in prefixes {
                let route = Route { oif: Some(oif), table: 1000, ..to(destination) };
                socket.apply_one(&Change::AddRoute(route)).unwrap();
            }
            let filter = RouteFilter { table: Some(1000), ..RouteFilter::all(family) };
            let second: ipnet::IpNet = prefixes[1].parse().unwrap();
            let take = |route: Route| (route.destination != second).then_some(route.destination);
            let found = socket.routes_as(filter, take).unwrap();
            let wanted: Vec<ipnet::IpNet> =
                [prefixes[0], prefixes[2]].map(|prefix| prefix.parse().unwrap()).to_vec();
            assert_eq!(found, wanted);
            let if_few = |most| RouteSocket::open().unwrap().routes_if_few(filter, most).unwrap();
            assert_eq!(if_few(3), Some(socket.routes(filter).unwrap()));
            assert_eq!(if_few(2), None);
            assert_eq!(if_few(0), None);
        }
        let nowhere = RouteFilter { table: Some(4711), ..RouteFilter::all(IpFamily::V4) };
        assert_eq!(RouteSocket::open().unwrap().routes_if_few(nowhere, 0).unwrap(), Some(vec![]));
    });
}

#[test]
fn default_routes_and_lookups() {
    in_netns(|| {
        let (mut socket, oif) = prepared();
        assert_eq!(socket.route_to("203.0.113.1".parse().unwrap()).unwrap(), None);
        assert_eq!(socket.route_to("2001:db8:ffff::1".parse().unwrap()).unwrap(), None);
        socket
            .apply(&[
                Change::AddRoute(Route {
                    gateway: Some("192.0.2.2".parse().unwrap()),
                    ..to("0.0.0.0/0")
                }),
                Change::AddRoute(Route {
                    gateway: Some("2001:db8::2".parse().unwrap()),
                    ..to("::/0")
                }),
                Change::AddRoute(Route { oif: Some(oif), ..to("203.0.113.0/24") }),
                Change::AddRoute(Route { kind: RouteKind::Unreachable, ..to("198.51.100.0/24") }),
            ])
            .unwrap();
        let main = socket.routes(RouteFilter::main(IpFamily::V4)).unwrap();
        let default = main.iter().find(|route| route.is_default()).unwrap();
        assert_eq!((default.oif, default.table), (Some(oif), TABLE_MAIN));
        let near = main
            .iter()
            .find(|route| route.destination == "203.0.113.0/24".parse().unwrap())
            .unwrap();
        assert_eq!(near.scope, Some(Scope::LINK));
        assert!(main.iter().any(|route| route.kind == RouteKind::Unreachable));
        let own = main.iter().find(|route| route.protocol == Some(RouteProtocol::KERNEL)).unwrap();
        assert_eq!(own.source, Some("192.0.2.1".parse().unwrap()));

        let found = socket.route_to("8.8.8.8".parse().unwrap()).unwrap().unwrap();
        assert_eq!(found.gateway, Some("192.0.2.2".parse().unwrap()));
        assert_eq!(found.oif, Some(oif));
        let found = socket.route_to("192.0.2.1".parse().unwrap()).unwrap().unwrap();
        assert_eq!(found.kind, RouteKind::Local);
        let found = socket.route_to("2001:db8:77::1".parse().unwrap()).unwrap().unwrap();
        assert_eq!(found.gateway, Some("2001:db8::2".parse().unwrap()));
        assert_eq!(socket.route_to("198.51.100.7".parse().unwrap()).unwrap(), None);
        // Routes do not count as something learnt about an address.
        for family in [IpFamily::V4, IpFamily::V6] {
            assert_eq!(socket.learnt_addresses(family).unwrap(), Vec::<std::net::IpAddr>::new());
        }
    });
}

#[test]
fn several_ways_to_one_destination() {
    in_netns(|| {
        let (mut socket, oif) = prepared();
        let hop = |gateway: &str, weight| NextHop {
            gateway: Some(gateway.parse().unwrap()),
            oif: Some(oif),
            weight,
            onlink: false,
        };
        let multi = Route {
            next_hops: vec![hop("192.0.2.2", 1), hop("192.0.2.3", 5)],
            ..to("198.51.100.0/24")
        };
        socket.apply_one(&Change::AddRoute(multi.clone())).unwrap();
        let main = socket.routes(RouteFilter::main(IpFamily::V4)).unwrap();
        let found = main.iter().find(|route| route.destination == multi.destination).unwrap();
        assert_eq!(found.next_hops, multi.next_hops);
        assert!(
            socket
                .routes(RouteFilter { oif: Some(oif), ..RouteFilter::main(IpFamily::V4) })
                .unwrap()
                .contains(found)
        );
        let seen = json("ip -j route show 198.51.100.0/24");
        assert_eq!(seen[0]["nexthops"][1]["weight"], 5);

        // IPv6 merges appended routes.
        for gateway in ["2001:db8::2", "2001:db8::3"] {
            let route = Route {
                gateway: Some(gateway.parse().unwrap()),
                oif: Some(oif),
                ..to("2001:db8:9::/48")
            };
            socket.apply_one(&Change::AppendRoute(route)).unwrap();
        }
        let main = socket.routes(RouteFilter::main(IpFamily::V6)).unwrap();
        let found = main
            .iter()
            .find(|route| route.destination == "2001:db8:9::/48".parse().unwrap())
            .unwrap();
        assert_eq!(found.next_hops.len(), 2, "{found:?}");

        // IPv4 keeps them side by side.
        for gateway in ["192.0.2.2", "192.0.2.3"] {
            let route = Route { gateway: Some(gateway.parse().unwrap()), ..to("203.0.113.0/24") };
            socket.apply_one(&Change::AppendRoute(route.clone())).unwrap();
            let again = socket.apply_one(&Change::AppendRoute(route)).unwrap_err();
            assert!(again.is_exists(), "{again}");
        }
        let main = socket.routes(RouteFilter::main(IpFamily::V4)).unwrap();
        let side_by_side = main
            .iter()
            .filter(|route| route.destination == "203.0.113.0/24".parse().unwrap())
            .count();
        assert_eq!(side_by_side, 2);
    });
}

#[test]
fn an_ipv6_gateway_for_ipv4() {
    in_netns(|| {
        let (mut socket, oif) = prepared();
        let route = Route {
            gateway: Some("2001:db8::2".parse().unwrap()),
            oif: Some(oif),
            ..to("198.51.100.0/24")
        };
        socket.apply_one(&Change::AddRoute(route.clone())).unwrap();
        let seen = json("ip -j route show 198.51.100.0/24");
        assert_eq!(seen[0]["via"], serde_json::json!({"family": "inet6", "host": "2001:db8::2"}));
        let main = socket.routes(RouteFilter::main(IpFamily::V4)).unwrap();
        assert!(main.iter().any(|found| found.gateway == route.gateway));
    });
}

#[test]
fn an_unreachable_gateway_is_explained() {
    in_netns(|| {
        let (mut socket, _) = prepared();
        let route = Route { gateway: Some("198.51.100.1".parse().unwrap()), ..to("0.0.0.0/0") };
        let error = socket.apply_one(&Change::AddRoute(route)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "add route 0.0.0.0/0 via 198.51.100.1: network is unreachable (ENETUNREACH): \
             Nexthop has invalid gateway"
        );
    });
}

#[test]
fn rules() {
    in_netns(|| {
        let mut socket = RouteSocket::open().unwrap();
        for (family, net) in [(IpFamily::V4, "192.0.2.0/24"), (IpFamily::V6, "2001:db8::/32")] {
            let before = socket.rules(family).unwrap();
            assert!(before.iter().any(|rule| rule.action == RuleAction::Table(TABLE_MAIN)));
            let rule = Rule {
                priority: Some(500),
                source: Some(net.parse().unwrap()),
                iifname: Some("eth0".to_owned()),
                mark: Some((1, 0xff)),
                ..Rule::to_table(family, 1000)
            };
            socket.apply(&[Change::AddRule(rule.clone())]).unwrap();
            assert!(socket.rules(family).unwrap().contains(&rule), "{:?}", socket.rules(family));
            assert!(socket.apply_one(&Change::AddRule(rule.clone())).unwrap_err().is_exists());
            let version = if family == IpFamily::V4 { "-4" } else { "-6" };
            let seen = sh(&format!("ip {version} rule show pref 500"));
            assert_eq!(
                seen.trim(),
                format!("500:\tfrom {net} fwmark 0x1/0xff iif eth0 [detached] lookup 1000")
            );
            socket.apply(&[Change::DelRule(rule.clone())]).unwrap();
            assert_eq!(socket.rules(family).unwrap(), before);
            assert!(socket.apply_one(&Change::DelRule(rule)).unwrap_err().is_not_found());
        }
    });
}

#[test]
fn the_mtu_of_the_uplink() {
    in_netns(|| {
        sh(
            "for one in 1 2; do ip link add up$one type veth peer name peer$one; ip link set peer$one up; \
            ip link set up$one up; done; ip link set lo up; ip link set up1 mtu 1400",
        );
        let mut socket = RouteSocket::open().unwrap();
        for (routes, expected) in [
            ("", None),
            ("-4 route add 192.0.2.0/24 dev up1", None),
            ("-4 route add default dev up2", Some(1500)),
            // A VPN leaves the default route as it is.
            ("-4 route add 0.0.0.0/1 dev up1", Some(1400)),
            ("-4 route add 0.0.0.0/2 dev up1", None),
            ("-4 route add default dev up2 mtu 1300", Some(1300)),
            ("-4 route add default dev up2 mtu 9000", Some(1500)),
            (
                "-4 route add default dev up2 metric 1; ip route add default dev up1 metric 9",
                Some(1400),
            ),
            ("-4 route add default nexthop dev up2 nexthop dev up1", Some(1400)),
            ("-6 route add default dev up2; ip -4 route add default dev up1", Some(1400)),
            ("-6 route add 2000::/3 dev up1", Some(1400)),
            ("-6 route add unreachable default metric 77", None),
            ("-4 route add default dev lo", None),
            ("-4 route add default dev up1 table 77", None),
        ] {
            sh("ip -4 route flush table main; ip -6 route flush table main");
            if !routes.is_empty() {
                sh(&format!("ip {routes}"));
            }
            assert_eq!(socket.uplink_mtu(TABLE_MAIN).unwrap(), expected, "{routes}");
        }
        assert_eq!(socket.uplink_mtu(77).unwrap(), Some(1400));
    });
}
