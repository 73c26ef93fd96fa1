//! The addresses by which other nodes reach this one: a service that routes its blocks needs them.
//!
//! The service may not ask the kernel for links and routes. A datagram socket says which source
//! address it would have towards a destination, and nothing is sent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Destinations that no host has (RFC 5737, RFC 3849): packets to them take the default route.
const NOWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1)),
];

/// The port does not matter (RFC 863: discard).
const PORT: u16 = 9;

/// Returns the configured addresses, or those from which packets by the default routes come. While
/// a family has no such route, its address `before` counts: others may reach the node without that
/// route.
pub(super) fn find(told: &[IpAddr], before: &[IpAddr]) -> Vec<IpAddr> {
    if !told.is_empty() {
        return told.to_vec();
    }
    let of_family = |nowhere: IpAddr| {
        let is_same = |address: &IpAddr| address.is_ipv4() == nowhere.is_ipv4();
        source_towards(nowhere).or_else(|| before.iter().copied().find(is_same))
    };
    NOWHERE.into_iter().filter_map(of_family).collect()
}

/// Returns the source address of packets to a destination; `None` without a route.
fn source_towards(destination: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match destination {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((destination, PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_unspecified())
}

#[cfg(test)]
mod tests {
    use testkit::{Lab, Place as _};

    use super::*;

    #[test]
    fn the_address_is_that_of_the_default_route_or_what_was_told() {
        testkit::require!("root");
        let lab = Lab::new("ipam-own-addresses");
        assert_eq!(lab.enter(|| find(&[], &[])), Vec::<IpAddr>::new());
        lab.sh(
            "ip link add eth0 type veth peer name far; ip link set eth0 up; ip link set far up\n\
             ip addr add 10.9.0.7/24 dev eth0; ip addr add 192.0.2.7/24 dev eth0\n\
             ip addr add fd00:9::7/64 dev eth0 nodad\n\
             ip route add default via 192.0.2.1 src 192.0.2.7; ip route add default via fd00:9::1",
        );
        let addresses = |list: &[&str]| -> Vec<IpAddr> {
            list.iter().map(|address| address.parse().unwrap()).collect()
        };
        let found = lab.enter(|| find(&[], &[]));
        assert_eq!(found, addresses(&["192.0.2.7", "fd00:9::7"]));
        let told = addresses(&["192.0.2.9"]);
        assert_eq!(lab.enter(|| find(&told, &found)), told);
        lab.sh("ip route del default");
        assert_eq!(lab.enter(|| find(&[], &[])), addresses(&["fd00:9::7"]));
        assert_eq!(lab.enter(|| find(&[], &found)), found);
    }
}
