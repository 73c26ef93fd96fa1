//! Packet sockets: what they receive, and what they send.

use std::time::{Duration, Instant};

use kernel::netns::{Netns, within};
use kernel::packet::{Filter, MAX_FRAME, PacketSocket};
use kernel::route::{Change, LinkSet, OperState, RouteSocket};

use crate::guard::{fresh_netns, in_netns, sh, veth_to};

const TIMEOUT: Duration = Duration::from_secs(10);

/// A pair with 192.0.2.1 here and 192.0.2.2 there; returns the far namespace and both ifindexes.
fn pair() -> (Netns, u32, u32) {
    let far = fresh_netns();
    let mut route = RouteSocket::open().unwrap();
    let (here, there) = veth_to(&mut route, "p0", &far);
    sh("ip addr add 192.0.2.1/24 dev p0; ip addr add 2001:db8::1/64 dev p0 nodad");
    within(&far, || {
        sh("ip addr add 192.0.2.2/24 dev eth0; ip addr add 2001:db8::2/64 dev eth0 nodad; ip link set eth0 up");
    })
    .unwrap();
    // Until then the kernel silently drops frames, although the carrier is there.
    wait_until_up(&mut route, here);
    wait_until_up(&mut RouteSocket::open_in(&far).unwrap(), there);
    (far, here, there)
}

fn wait_until_up(route: &mut RouteSocket, ifindex: u32) {
    let deadline = Instant::now() + TIMEOUT;
    while route.link_by_index(ifindex).unwrap().unwrap().oper_state != OperState::Up {
        assert!(Instant::now() < deadline, "link {ifindex} does not come up");
        std::thread::yield_now();
    }
}

/// Waits for the next frame.
fn next(socket: &PacketSocket) -> (Vec<u8>, bool) {
    let mut buffer = vec![0; MAX_FRAME];
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(frame) = socket.receive(&mut buffer).unwrap() {
            return (frame.octets.to_vec(), frame.checksum_missing);
        }
        assert!(Instant::now() < deadline, "no frame");
        std::thread::yield_now();
    }
}

fn nothing(socket: &PacketSocket) -> bool {
    socket.receive(&mut [0; MAX_FRAME]).unwrap().is_none()
}

#[test]
fn the_filter_lets_one_port_through() {
    in_netns(|| {
        let (far, _, there) = pair();
        let v4 = PacketSocket::open_in(&far, there, &Filter::udp4_to_port(68)).unwrap();
        let v6 = PacketSocket::open_in(&far, there, &Filter::udp6_to_port(546)).unwrap();
        let silent = PacketSocket::open_in(&far, there, &Filter::nothing()).unwrap();
        let sender = std::net::UdpSocket::bind("192.0.2.1:0").unwrap();
        let sender6 = std::net::UdpSocket::bind("[2001:db8::1]:0").unwrap();
        for port in [67, 69, 68] {
            sender.send_to(format!("to {port}").as_bytes(), ("192.0.2.2", port)).unwrap();
        }
        for port in [547, 545, 546] {
            sender6.send_to(format!("to {port}").as_bytes(), ("2001:db8::2", port)).unwrap();
        }
        let (frame, checksum_missing) = next(&v4);
        assert!(frame.ends_with(b"to 68"), "{frame:?}");
        assert_eq!(frame[12..14], [8, 0], "the frame begins with its Ethernet header");
        assert!(checksum_missing, "a veth's sender leaves the checksum to its hardware");
        assert!(next(&v6).0.ends_with(b"to 546"));
        assert!(nothing(&v4) && nothing(&v6) && nothing(&silent));
    });
}

#[test]
fn what_is_sent_arrives_as_it_is() {
    in_netns(|| {
        let (far, here, there) = pair();
        let listener = PacketSocket::open_in(&far, there, &Filter::arp()).unwrap();
        let sender = PacketSocket::open(here, &Filter::nothing()).unwrap();
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 1, 0x08, 0x06]);
        frame.extend(0..46_u8);
        sender.send(&frame).unwrap();
        // The neighbour's own requests may come before.
        let received = loop {
            let (received, _) = next(&listener);
            if received[6..12] == [2, 0, 0, 0, 0, 1] {
                break received;
            }
        };
        assert_eq!(received, frame);
        assert!(sender.send(&vec![0; MAX_FRAME + 1]).is_err());
    });
}

#[test]
fn a_link_that_goes_down_is_told() {
    in_netns(|| {
        let (far, _, there) = pair();
        let socket = PacketSocket::open_in(&far, there, &Filter::udp4_to_port(68)).unwrap();
        let mut inside = RouteSocket::open_in(&far).unwrap();
        let down = Change::SetLink { ifindex: there, set: LinkSet::default().up(false) };
        inside.apply_one(&down).unwrap();
        let error = socket.receive(&mut [0; MAX_FRAME]).unwrap_err();
        assert!(error.is_link_down(), "{error:?}");
        assert!(socket.send(&[0; 60]).unwrap_err().is_link_down());
        let error = PacketSocket::open_in(&far, 4711, &Filter::arp()).unwrap_err();
        assert!(error.is_link_down(), "{error:?}");
        assert!(PacketSocket::open(0, &Filter::arp()).is_err());
    });
}
