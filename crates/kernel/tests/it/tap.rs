//! Packets of flows, seen at links.

use std::net::UdpSocket;
use std::time::Duration;

use kernel::nft::trace::{Flow, Protocol};
use kernel::route::RouteSocket;
use kernel::tap::Tap;

use crate::guard::{in_netns, lo_up};

/// How long a packet may take to arrive.
const DEADLINE: Duration = Duration::from_secs(20);

#[test]
fn packets_of_a_flow_are_seen_at_links_and_no_others() {
    in_netns(|| {
        lo_up(&mut RouteSocket::open().unwrap());
        let [own, other, server] = [(), (), ()].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let (at, to) = (own.local_addr().unwrap(), server.local_addr().unwrap());
        let flow = Flow {
            protocol: Protocol::Udp,
            source: at.ip(),
            source_port: at.port(),
            destination: to.ip(),
            destination_port: to.port(),
        };
        let tap = Tap::open(&[flow]).unwrap();
        let hears = |socket: &UdpSocket| {
            socket.set_read_timeout(Some(DEADLINE)).unwrap();
            socket.recv(&mut [0; 10]).unwrap();
        };
        for socket in [&other, &own] {
            socket.send_to(&[7; 10], to).unwrap();
            hears(&server);
        }
        for socket in [&other, &own] {
            server.send_to(&[7; 10], socket.local_addr().unwrap()).unwrap();
            hears(socket);
        }
        let seen = tap.seen().unwrap();
        let told: Vec<_> = seen
            .iter()
            .map(|one| (one.ifindex, one.outgoing, flow.way_of(&one.packet, one.identifier)))
            .collect();
        let (there, back) = (Some(false), Some(true));
        // `lo` is the first link.
        let expected = [(1, true, there), (1, false, there), (1, true, back), (1, false, back)];
        assert_eq!(told, expected, "{seen:?}");
        assert!(tap.seen().unwrap().is_empty());
    });
}
