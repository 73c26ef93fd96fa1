//! Events, as they come from the kernel.

use std::time::{Duration, Instant};

use kernel::events::{Event, Listener};
use kernel::netns::within;
use kernel::route::RouteSocket;

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

#[test]
fn a_listener_keeps_no_container_alive() {
    in_netns(|| {
        let far = fresh_netns();
        let mut socket = RouteSocket::open().unwrap();
        veth_to(&mut socket, "v0", &far);
        let mut listener = Listener::open().unwrap();
        drop(far);
        // The pair goes with the namespace.
        await_event(&mut listener, "the end of the pair", |event| *event == Event::Removed);
    });
}
