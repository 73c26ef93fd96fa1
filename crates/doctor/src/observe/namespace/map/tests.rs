use kernel::route::{NextHop as KernelHop, TABLE_MAIN};

use super::*;

fn to(net: &str) -> KernelRoute {
    KernelRoute::new(net.parse().unwrap())
}

#[test]
fn routes_keep_where_they_lead() {
    let hop = |last: u8, link| KernelHop {
        gateway: Some([192, 0, 2, last].into()),
        oif: Some(link),
        weight: 1,
        onlink: false,
    };
    let several = KernelRoute { next_hops: vec![hop(1, 2), hop(2, 3)], ..to("0.0.0.0/0") };
    let links: Vec<_> = route(several).unwrap().hops.iter().map(|hop| hop.link).collect();
    assert_eq!(links, [Some(2), Some(3)]);
    let one = KernelRoute {
        oif: Some(4),
        priority: Some(100),
        protocol: Some(RouteProtocol::DHCP),
        mtu: Some(1400),
        ..to("198.51.100.0/24")
    };
    let one = route(one).unwrap();
    assert_eq!(one.hops, [NextHop { via: None, link: Some(4) }]);
    assert_eq!((one.metric, one.protocol, one.mtu), (100, Some(16), Some(1400)));
    assert_eq!(one.table, TABLE_MAIN);
    let hole = route(KernelRoute { kind: KernelKind::Blackhole, ..to("2001:db8::/32") }).unwrap();
    assert_eq!((hole.kind, hole.hops.len()), (RouteKind::Blackhole, 0));
    // What the kernel makes for addresses says nothing more than they do.
    assert_eq!(route(KernelRoute { table: TABLE_LOCAL, ..to("192.0.2.1/32") }), None);
    let of = |protocol| KernelRoute {
        table: TABLE_LOCAL,
        kind: KernelKind::Local,
        protocol: Some(protocol),
        ..to("192.0.2.0/25")
    };
    assert_eq!(route(of(RouteProtocol::KERNEL)), None);
    let made = route(of(RouteProtocol::BOOT)).unwrap();
    assert_eq!((made.table, made.kind), (TABLE_LOCAL, RouteKind::Other));
    let group = KernelRoute { kind: KernelKind::Multicast, table: 7, ..to("ff00::/8") };
    assert_eq!(route(group), None);
}

#[test]
fn a_rule_with_conditions_that_are_not_known_does_something_unknown() {
    let base = || KernelRule {
        priority: Some(100),
        source: Some("10.88.0.0/24".parse().unwrap()),
        mark: Some((0x80000, 0xff0000)),
        ..KernelRule::to_table(IpFamily::V4, 52)
    };
    let mapped = rule(base());
    assert_eq!((mapped.ipv4, mapped.priority, mapped.action), (true, 100, RuleAction::Table(52)));
    assert_eq!(mapped.mark, Some((0x80000, 0xff0000)));
    assert_eq!(rule(KernelRule { further: true, ..base() }).action, RuleAction::Other);
    assert_eq!(rule(KernelRule { of_vrf: true, ..base() }).action, RuleAction::Other);
    let short = rule(KernelRule { further: true, suppress: Some(0), ..base() });
    assert_eq!((short.action, short.suppress), (rule(base()).action, Some(0)));
    let refuses = KernelRule { action: KernelAction::Prohibit, ..base() };
    assert_eq!(rule(refuses).action, RuleAction::Prohibit);
}

#[test]
fn only_neighbours_that_matter_are_kept() {
    let one = kernel::route::Neighbour {
        state: NeighbourState::REACHABLE,
        ..kernel::route::Neighbour::permanent(
            2,
            "192.0.2.9".parse().unwrap(),
            "02:00:00:00:00:09".parse().unwrap(),
        )
    };
    assert_eq!(neighbour(&one), None);
    let failed =
        kernel::route::Neighbour { state: NeighbourState::FAILED, mac: None, ..one.clone() };
    let failed = neighbour(&failed).unwrap();
    assert_eq!((failed.failed, failed.permanent, failed.mac), (true, false, None));
    let own = kernel::route::Neighbour { state: NeighbourState::PERMANENT, ..one };
    assert_eq!(neighbour(&own).unwrap().mac.as_deref(), Some("02:00:00:00:00:09"));
}

#[test]
fn what_a_link_is_on_a_parent_is_kept() {
    let mut link = KernelLink::default();
    link.kind = Some("macvlan".to_owned());
    link.peer_index = Some(7);
    link.link_netnsid = Some(0);
    link.macvlan_mode = Some(KernelMacvlan::Private);
    let mapped = to_link(link.clone(), false, Vec::new());
    assert_eq!((mapped.peer, mapped.peer_netnsid), (Some(7), Some(0)));
    assert_eq!((mapped.macvlan, mapped.ipvlan), (Some(MacvlanMode::Private), None));
    link.macvlan_mode = None;
    link.ipvlan_mode = Some(KernelIpvlan::L3s);
    link.ipvlan_reach = Some(KernelReach::Vepa);
    let ipvlan = Ipvlan { mode: IpvlanMode::L3s, reach: IpvlanReach::Vepa };
    assert_eq!(to_link(link, false, Vec::new()).ipvlan, Some(ipvlan));
}
