//! Which VXLAN links are this service's tunnels, which routes it keeps in mind, and what it finds while
//! others change the kernel.

use kernel::events::{ObjectEvent, ObjectListener};
use routing::settings::NodeFacts;
use testkit::{Lab, Place as _};

use super::*;

/// What this node is, with an address and a UID, or right after the start.
fn own(settings: &Settings, address: Option<&str>) -> OwnNode {
    let uplink = |address: &str| {
        let uplink = Uplink { name: "eth0".into(), mtu: 1500 };
        (uplink, address.parse().unwrap())
    };
    let found = NodeFacts {
        name: "a".to_owned(),
        uid: "uid-a".to_owned(),
        prefixes: Vec::new(),
        kept: Vec::new(),
        zone: None,
        uplinks: PerFamily { v4: address.map(uplink), v6: None },
        taken_over: PerFamily::default(),
    };
    OwnNode::new(settings, found)
}

fn settings() -> Settings {
    Settings::new(vec!["10.244.0.0/16".parse().unwrap()])
}

fn link(name: &str, alias: Option<&str>, group: u32) -> Link {
    let mut link = Link::default();
    link.name = name.to_owned();
    link.alias = alias.map(str::to_owned);
    link.group = group;
    link
}

/// The service may be killed after each message: the link has a mark after the first one, and the
/// one that lasts after the last.
#[test]
fn a_tunnel_is_marked_from_its_first_message_on() {
    let made = link("nw-vxlan4", None, GROUP_UNFINISHED);
    let with_alias = link("nw-vxlan4", Some(ALIAS), GROUP_UNFINISHED);
    let finished = link("nw-vxlan4", Some(ALIAS), 0);
    assert!([&made, &with_alias, &finished].into_iter().all(is_marked));
    assert_eq!([&made, &with_alias, &finished].map(is_finished), [false, false, true]);
}

/// Such an address is on the loopback where hosts speak BGP, and kube-proxy's IPVS mode has addresses
/// on a dummy.
#[test]
fn an_address_by_whose_link_nothing_leaves_leaves_by_the_default_route() {
    let [eth0, mut lo, mut dummy] = ["eth0", "lo", "kube-ipvs0"].map(|name| link(name, None, 0));
    // IFF_LOOPBACK (linux include/uapi/linux/if.h).
    lo.flags = 8;
    dummy.kind = Some("dummy".to_owned());
    let by = |with_it: &[&Link], default: Option<&Link>| {
        let found = carrier(with_it.iter().copied(), || default);
        found.map(|link| link.name.clone())
    };
    let is = |name: &str| Some(name.to_owned());
    assert_eq!(by(&[&lo], Some(&eth0)), is("eth0"));
    assert_eq!(by(&[&dummy, &eth0], None), is("eth0"));
    assert_eq!(by(&[&lo], None), is("lo"));
    assert_eq!(by(&[], Some(&eth0)), None);
}

/// A router has a million routes, of which this service needs none.
#[test]
fn routes_that_say_nothing_of_pods_are_not_kept() {
    let ranges: Vec<IpNet> =
        ["10.244.0.0/16", "fd00:244::/48"].map(|range| range.parse().unwrap()).to_vec();
    for (destination, is_kept) in [
        ("0.0.0.0/0", true),
        ("::/0", true),
        ("10.244.3.0/24", true),
        ("10.0.0.0/8", true),
        ("fd00:244:0:3::/64", true),
        ("fd00::/8", true),
        ("192.0.2.7/32", true),
        ("2001:db8::7/128", true),
        ("198.51.100.0/24", false),
        ("10.245.0.0/16", false),
        ("2001:db8::/32", false),
    ] {
        let route = Route::new(destination.parse().unwrap());
        assert_eq!(matters(&route, &ranges), is_kept, "{destination}");
    }
}

/// Another program removes a nexthop while the service looks, and the kernel does not report that
/// its IPv4 route goes with it. The look has found both, so the nexthop's event says something new,
/// and asks for another look.
#[test]
fn a_nexthop_that_goes_during_a_look_was_found_with_its_route() {
    testkit::require!("root");
    let lab = Lab::new("routing-host");
    lab.sh(&format!(
        "ip link add eth0 type veth peer name far; ip link set eth0 up; ip link set far up; \
         ip addr add 192.0.2.1/24 dev eth0; \
         ip nexthop add id {NEXTHOP_FIRST} via 192.0.2.2 dev eth0 proto {PROTOCOL}; \
         ip route add 10.244.2.0/24 nhid {NEXTHOP_FIRST} proto {PROTOCOL} metric {METRIC}"
    ));
    let settings = settings();
    let own = own(&settings, Some("192.0.2.1"));
    let ranges: Vec<IpNet> = settings.ranges().collect();
    let (mut netlink, mut listener) =
        lab.enter(|| (RouteSocket::open().unwrap(), ObjectListener::open().unwrap()));
    let mut host = Host::read(&mut netlink, &own, &ranges).unwrap();
    lab.sh(&format!("ip nexthop flush proto {PROTOCOL}"));
    let observed = host.observe(&mut netlink, &ranges, &own, Vec::new()).unwrap();
    let found = observed.objects();
    assert!(found.contains_key(&Key::Route { prefix: "10.244.2.0/24".parse().unwrap() }));
    assert!(found.contains_key(&Key::Nexthop { id: NEXTHOP_FIRST }));
    let is_news = |event: &ObjectEvent| match event {
        ObjectEvent::Removed(object) => {
            host.links.ours(object).is_some_and(|(key, _)| found.contains_key(&key))
        }
        _ => false,
    };
    let heard = listener.heard().unwrap();
    assert!(heard.iter().any(is_news), "{heard:?}");
    let mut host = Host::read(&mut netlink, &own, &ranges).unwrap();
    let observed = host.observe(&mut netlink, &ranges, &own, Vec::new()).unwrap();
    assert!(observed.objects().is_empty(), "{observed:?}");
}
