//! Events, as they come from the kernel.

use std::time::{Duration, Instant};

use ipnet::{IpNet, Ipv4Net};
use kernel::events::{
    ChangeListener, Event, LinkEvent, LinkListener, Listener, Object, ObjectEvent, ObjectListener,
    TableEvent, TableListener,
};
use kernel::netns::within;
use kernel::nft::{Batch, Family, NftSocket, TableRef};
use kernel::route::{Change, Neighbour, Route, RouteFilter, RouteKind, RouteProtocol, RouteSocket};
use kernel::route::{IpFamily, NexthopFilter};

use crate::guard::{fresh_netns, in_netns, sh, veth_to};

/// Waits for an event that matches.
#[track_caller]
fn await_event(listener: &mut Listener, what: &str, is: impl Fn(&Event) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut heard = Vec::new();
    while Instant::now() < deadline {
        heard.extend(listener.heard().unwrap());
        if heard.iter().any(&is) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("no event for {what}: {heard:?}");
}

#[test]
fn what_goes_away_is_heard_here_and_in_containers() {
    in_netns(|| {
        let far = fresh_netns();
        let mut socket = RouteSocket::open().unwrap();
        veth_to(&mut socket, "v0", &far);
        sh("ip addr add 192.0.2.1/24 dev v0; nft add table inet t; nft add chain inet t c; \
            sysctl -qw net.ipv4.ip_forward=0");
        let inside = |script: &str| within(&far, || sh(script)).unwrap();
        inside(
            "ip link set eth0 up; ip addr add 192.0.2.2/24 dev eth0; ip route add default via 192.0.2.1",
        );
        let mut listener = Listener::open().unwrap();
        assert!(listener.is_everywhere());
        assert_eq!(listener.heard().unwrap(), [], "earlier events are not reported");

        inside("ip route del default");
        await_event(&mut listener, "a route", |event| *event == Event::Removed);
        inside("ip rule add pref 5 table 7; ip rule del pref 5");
        await_event(&mut listener, "a rule", |event| *event == Event::Removed);
        sh("ip addr del 192.0.2.1/24 dev v0");
        await_event(&mut listener, "an address", |event| *event == Event::Removed);
        sh("ip link set v0 down");
        let is_down =
            |event: &Event| matches!(event, Event::Link { name, up: false } if name == "v0");
        await_event(&mut listener, "a link that goes down", is_down);
        sh("nft flush ruleset");
        await_event(&mut listener, "the packet filter", |event| *event == Event::FilterRemoved);
        sh("sysctl -qw net.ipv4.ip_forward=1");
        await_event(&mut listener, "forwarding", |event| *event == Event::Switch);
    });
}

/// It hears of names, ports and settings of bridges, and of nothing but links.
#[test]
fn links_that_change_are_heard_by_their_index() {
    in_netns(|| {
        let mut socket = RouteSocket::open().unwrap();
        let far = fresh_netns();
        veth_to(&mut socket, "v0", &far);
        // The kernel reports no setting of a bridge that is down.
        sh("ip link add br0 type bridge; ip link set br0 up");
        // Before Linux 6.2 a link that is up keeps its name.
        sh("ip link set v0 down");
        let index = |socket: &mut RouteSocket, name: &str| {
            LinkEvent::Changed(socket.link_by_name(name).unwrap().unwrap().index)
        };
        let (link, bridge) = (index(&mut socket, "v0"), index(&mut socket, "br0"));
        let mut listener = LinkListener::open().unwrap();
        assert!(listener.heard().unwrap().is_empty(), "earlier events are not reported");
        // The kernel queues an event before it answers who made the change.
        for (change, changed) in [
            ("ip link set v0 name v1", link),
            ("ip link set v1 master br0", link),
            ("ip link set br0 type bridge nf_call_iptables 1", bridge),
            ("ip link set v1 nomaster", link),
            ("ip link del v1", link),
        ] {
            sh(change);
            let heard = listener.heard().unwrap();
            assert!(heard.contains(&changed), "{change}: {heard:?}");
        }
        sh("ip addr add 192.0.2.1/24 dev br0; nft add table inet t; nft delete table inet t");
        assert!(listener.heard().unwrap().is_empty());
    });
}

#[test]
fn a_listener_keeps_no_container_alive() {
    in_netns(|| {
        let far = fresh_netns();
        let mut socket = RouteSocket::open().unwrap();
        veth_to(&mut socket, "v0", &far);
        let mut listener = Listener::open().unwrap();
        drop(far);
        // The pair is deleted with the namespace.
        await_event(&mut listener, "the end of the pair", |event| *event == Event::Removed);
    });
}

/// Waits for the event of a link's alias, which is set after everything else, and returns the
/// events before it.
#[track_caller]
fn heard_until_now(listener: &mut ObjectListener) -> Vec<ObjectEvent> {
    sh("ip link set lo alias marked");
    let is_mark = |event: &ObjectEvent| matches!(event, ObjectEvent::Changed(Object::Link(link)) if link.alias.as_deref() == Some("marked"));
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut heard = Vec::new();
    while Instant::now() < deadline {
        heard.extend(listener.heard().unwrap());
        if let Some(place) = heard.iter().position(is_mark) {
            // The packet filter's events come by another socket, and later.
            heard.remove(place);
            sh("ip link set lo alias ''");
            listener.heard().unwrap();
            return heard;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("no event of the mark: {heard:?}");
}

/// A word for each event: `+` for a change, `-` for a removal, and what it is about.
fn words(events: &[ObjectEvent]) -> Vec<String> {
    let word = |object: &Object| match object {
        Object::Link(link) => {
            format!("link {} {}", link.name, if link.up() { "up" } else { "down" })
        }
        Object::Address(address) => format!("address {}", address.address),
        Object::Route(route) => format!("route {}", route.destination),
        Object::Neighbour(neighbour) => format!("neighbour {}", neighbour.address),
        Object::VxlanFdb(entry) => format!("entry {} {}", entry.mac, entry.destination),
        Object::Nexthop(nexthop) => format!("nexthop {}", nexthop.id),
        other => format!("{other:?}"),
    };
    let words = events.iter().map(|event| match event {
        ObjectEvent::Changed(object) => format!("+{}", word(object)),
        ObjectEvent::Removed(object) => format!("-{}", word(object)),
        other => format!("{other:?}"),
    });
    words.collect()
}

/// A tunnel over a link, with what a peer needs. The kernel sets a link up before it reads
/// `addrgenmode` of the same request, so each has a request of its own.
const PEER: &str = "ip link set lo up; ip link add v0 type veth peer name v1; \
    ip link set v0 addrgenmode none; ip link set v1 addrgenmode none; \
    ip link set v0 up; ip link set v1 up; \
    ip addr add 192.0.2.1/24 dev v0; \
    ip link add vx type vxlan id 1 local 192.0.2.1 dev v0 dstport 8472 nolearning; \
    ip link set vx addrgenmode none; ip link set vx up; \
    ip neigh add 10.244.2.0 lladdr 02:00:00:00:00:02 dev vx nud permanent; \
    bridge fdb add 02:00:00:00:00:02 dst 192.0.2.2 dev vx self permanent; \
    ip nexthop add id 1 via 10.244.2.0 dev vx onlink; \
    ip route add 10.244.2.0/24 nhid 1 proto 78";

#[test]
fn each_object_that_comes_or_goes_is_named() {
    in_netns(|| {
        sh(PEER);
        let mut listener = ObjectListener::open().unwrap();
        assert_eq!(heard_until_now(&mut listener), [], "earlier events are not reported");
        for (change, expected) in [
            ("ip route add 10.244.3.0/24 nhid 1", "+route 10.244.3.0/24"),
            ("ip route del 10.244.3.0/24", "-route 10.244.3.0/24"),
            ("ip -6 route add unreachable 2001:db8:2::/64", "+route 2001:db8:2::/64"),
            ("ip -6 route del unreachable 2001:db8:2::/64", "-route 2001:db8:2::/64"),
            ("ip nexthop add id 2 blackhole", "+nexthop 2"),
            ("ip nexthop del id 2", "-nexthop 2"),
            (
                "ip neigh replace 10.244.2.0 lladdr 02:00:00:00:00:03 dev vx nud permanent",
                "+neighbour 10.244.2.0",
            ),
            (
                "bridge fdb replace 02:00:00:00:00:02 dst 192.0.2.3 dev vx self permanent",
                "+entry 02:00:00:00:00:02 192.0.2.3",
            ),
            ("bridge fdb del 02:00:00:00:00:02 dev vx self", "-entry 02:00:00:00:00:02 192.0.2.3"),
            ("ip link set vx mtu 1300", "+link vx up"),
            ("nft add table inet x; nft delete table inet x", "FilterRemoved"),
        ] {
            sh(change);
            let mut heard = words(&heard_until_now(&mut listener));
            assert!(heard.iter().any(|word| word == expected), "{change}: {heard:?}");
            // On a busy machine the pair comes up late.
            heard.retain(|word| {
                !["+link v0 up", "+link v1 up", "+route ff00::/8"].contains(&&**word)
            });
            assert!(heard.len() < 3, "{change}: {heard:?}");
        }
        sh("ip addr add 192.0.2.8/32 dev vx; ip addr del 192.0.2.8/32 dev vx");
        let heard = words(&heard_until_now(&mut listener));
        for expected in ["+address 192.0.2.8/32", "-address 192.0.2.8/32"] {
            assert!(heard.iter().any(|word| word == expected), "{heard:?}");
        }
        // A port that leaves its bridge is still there.
        sh("ip link add br0 type bridge; ip link set v1 master br0; ip link set v1 nomaster");
        let heard = words(&heard_until_now(&mut listener));
        assert!(!heard.iter().any(|word| word.starts_with("-link")), "{heard:?}");
        sh("ip link del vx");
        let heard = words(&heard_until_now(&mut listener));
        assert!(heard.iter().any(|word| word == "-link vx down"), "{heard:?}");
    });
}

/// What the documentation of [`ObjectListener`] warns of.
#[test]
fn a_link_that_goes_down_takes_its_routes_without_a_word() {
    in_netns(|| {
        sh(PEER);
        let mut socket = RouteSocket::open().unwrap();
        let mut listener = ObjectListener::open().unwrap();
        let ours = RouteProtocol(78);
        let main = RouteFilter::main(IpFamily::V4);
        assert_eq!(socket.routes_by(ours, main).unwrap().len(), 1);
        sh("ip link set vx down");
        assert_eq!(socket.routes_by(ours, main).unwrap(), []);
        assert_eq!(socket.nexthops(NexthopFilter::default()).unwrap(), []);
        let tunnel = socket.link_by_name("vx").unwrap().unwrap().index;
        assert_eq!(socket.neighbours(IpFamily::V4, Some(tunnel)).unwrap(), []);
        assert_eq!(socket.vxlan_fdb(tunnel).unwrap().len(), 1, "forwarding entries stay");
        let heard = words(&heard_until_now(&mut listener));
        assert!(heard.iter().any(|word| word == "+link vx down"), "{heard:?}");
        let told = |what: &str| heard.iter().any(|word| word.starts_with(what));
        assert!(!told("-route 10.") && !told("-nexthop"), "{heard:?}");
        assert!(told("-neighbour 10.244.2.0"), "{heard:?}");
    });
}

#[test]
fn what_nobody_wants_to_hear_is_left_out() {
    in_netns(|| {
        sh(PEER);
        let mut socket = RouteSocket::open().unwrap();
        let index =
            |socket: &mut RouteSocket, name| socket.link_by_name(name).unwrap().unwrap().index;
        let (tunnel, other) = (index(&mut socket, "vx"), index(&mut socket, "v0"));
        let mut listener = ObjectListener::open().unwrap();
        listener.ignore(&socket).unwrap();
        listener.only_neighbours_of([1, tunnel]).unwrap();
        let neighbour = |ifindex, last: u8| {
            let address = [10, 244, 9, last].into();
            Neighbour::permanent(ifindex, address, kernel::MacAddr([2, 0, 0, 0, 0, 9]))
        };
        let route = Route::new("10.244.8.0/24".parse().unwrap());
        let route = Route { kind: RouteKind::Unreachable, ..route };
        socket
            .apply(&[
                Change::AddRoute(route),
                Change::DelNexthop { id: 1 },
                Change::SetNeighbour(neighbour(tunnel, 1)),
            ])
            .unwrap();
        sh("ip neigh add 10.244.9.2 lladdr 02:00:00:00:00:09 dev vx nud permanent; \
            ip neigh add 10.244.9.3 lladdr 02:00:00:00:00:09 dev v0 nud permanent; \
            ip route add unreachable 10.244.7.0/24");
        let heard = words(&heard_until_now(&mut listener));
        assert_eq!(heard, ["+neighbour 10.244.9.2", "+route 10.244.7.0/24"]);
        listener.only_neighbours_of([other]).unwrap();
        sh("ip neigh del 10.244.9.2 dev vx; ip neigh del 10.244.9.3 dev v0");
        let heard = words(&heard_until_now(&mut listener));
        assert!(heard.iter().any(|word| word == "-neighbour 10.244.9.3"), "{heard:?}");
        assert!(!heard.iter().any(|word| word.contains("10.244.9.2")), "{heard:?}");
    });
}

#[test]
fn lost_events_of_objects_are_told() {
    in_netns(|| {
        // The alias of a link that is down is set without an event.
        sh("ip link set lo up");
        let mut socket = RouteSocket::open().unwrap();
        let mut listener = ObjectListener::with_queue(1 << 20).unwrap();
        let route = |number: u32| {
            let to = Ipv4Net::new((0x0a00_0000 + number).into(), 32).unwrap();
            let route = Route::new(IpNet::V4(to));
            Change::AddRoute(Route { kind: RouteKind::Unreachable, ..route })
        };
        let many: Vec<Change> = (0..20_000).map(route).collect();
        assert_eq!(socket.apply_each(&many).unwrap().len(), 0);
        let heard = listener.heard().unwrap();
        assert!(heard.contains(&ObjectEvent::Lost), "{} events", heard.len());
        assert_eq!(heard_until_now(&mut listener), [], "and then it goes on");
    });
}

/// The listener reports changes by others to one table, and neither our own changes nor those of
/// other tables.
#[test]
fn what_others_take_from_a_table_is_heard() {
    in_netns(|| {
        sh("nft add table inet mine; nft add table inet other; nft add chain inet mine c; \
            nft add chain inet other c; nft 'add set inet mine s { type ipv4_addr; }'; \
            nft add element inet mine s '{ 192.0.2.1, 192.0.2.2 }'");
        let mut listener = TableListener::open("mine").unwrap();
        let mut socket = NftSocket::open().unwrap();
        listener.ignore(socket.port().unwrap());
        let mut heard = |script: &str| -> Vec<TableEvent> {
            sh(script);
            // The kernel reports it before the change is complete.
            listener.heard().unwrap().into_iter().collect()
        };
        assert_eq!(heard("nft delete chain inet other c; nft add chain inet mine d"), []);
        let reduced = [TableEvent::Reduced];
        assert_eq!(heard("nft delete element inet mine s '{ 192.0.2.1 }'"), reduced);
        assert_eq!(heard("nft delete chain inet mine d"), reduced);
        assert_eq!(heard("nft add rule inet mine c accept; nft flush chain inet mine c"), reduced);
        let all = [TableEvent::Deleted, TableEvent::Reduced];
        assert_eq!(heard("nft flush ruleset"), all);
        assert_eq!(heard("nft add table inet mine; nft delete table inet mine"), all[..1]);
        sh("nft add table inet mine");
        let mut batch = Batch::new();
        batch.delete_table(&TableRef::new(Family::Inet, "mine"));
        socket.commit(&batch).unwrap();
        assert_eq!(listener.heard().unwrap().len(), 0);
    });
}

/// The listener reports additions and removals here and in a container, but not those of excluded
/// tables.
#[test]
fn that_anything_changes_is_heard() {
    in_netns(|| {
        let far = fresh_netns();
        let mut socket = RouteSocket::open().unwrap();
        veth_to(&mut socket, "v0", &far);
        sh("ip link set v0 up; ip addr add 192.0.2.1/24 dev v0; sysctl -qw net.ipv4.ip_forward=0");
        let mut listener = ChangeListener::open("mine-").unwrap();
        let mut await_change = |what: &str| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while !listener.heard().unwrap() {
                assert!(Instant::now() < deadline, "{what} is not heard");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for change in [
            "ip route add 198.51.100.0/24 dev v0",
            "ip rule add pref 5 table 7",
            "ip addr add 192.0.2.2/24 dev v0",
            "ip link set v0 mtu 1400",
            "sysctl -qw net.ipv4.ip_forward=1",
            "nft add table inet other",
        ] {
            sh(change);
            await_change(change);
        }
        for change in ["nft add table inet other", "ip link set eth0 up"] {
            within(&far, || sh(change)).unwrap();
            await_change(change);
        }
    });
    in_netns(|| {
        let mut listener = ChangeListener::open("mine-").unwrap();
        sh("nft 'add table inet mine-1; add chain inet mine-1 c; add rule inet mine-1 c accept'; \
            nft delete table inet mine-1");
        // The kernel reports it before the change is complete.
        assert!(!listener.heard().unwrap(), "what is left out is heard");
        sh("nft 'add table inet mine-1; add table inet other'");
        assert!(listener.heard().unwrap());
    });
}
