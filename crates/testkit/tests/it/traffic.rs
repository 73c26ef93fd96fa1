use std::net::IpAddr;

use testkit::traffic::{self, Server};
use testkit::{Lab, Place as _, require};

#[test]
fn the_outside_is_reached_and_knows_no_way_back() {
    require!("root", "program:ping");
    let lab = Lab::new("outside");
    let outside = lab.outside();
    traffic::assert_pings(&lab, "198.51.100.2");
    traffic::assert_pings(&lab, "2001:db8:ffff::2");
    traffic::assert_no_ping(&lab, "198.51.100.9");

    let _v4 = Server::tcp(&outside, "0.0.0.0:80", "web");
    let _v6 = Server::udp(&outside, "[::]:53", "dns");
    let answer = traffic::assert_tcp(&lab, "198.51.100.2:80");
    assert_eq!(
        (answer.server.as_str(), answer.seen.ip()),
        ("web", IpAddr::from([198, 51, 100, 1]))
    );
    let answer = traffic::assert_udp(&lab, "[2001:db8:ffff::2]:53");
    assert_eq!(
        (answer.server.as_str(), answer.seen.ip().to_string().as_str()),
        ("dns", "2001:db8:ffff::1")
    );
    traffic::assert_no_tcp(&lab, "198.51.100.2:81");
    traffic::assert_no_udp(&lab, "198.51.100.2:54");

    // A container behind the host without masquerade: its packets arrive, the answers do not.
    let c1 = lab.container("c1");
    lab.sh("ip link add v1 type veth peer name eth0 netns c1 && ip addr add 192.0.2.1/24 dev v1 && ip link set v1 up");
    lab.sh("echo 1 > /proc/sys/net/ipv4/ip_forward");
    c1.sh("ip addr add 192.0.2.2/24 dev eth0 && ip link set eth0 up && ip route add default via 192.0.2.1");
    traffic::assert_pings(&c1, "198.51.100.1");
    traffic::assert_no_ping(&c1, "198.51.100.2");
    lab.sh("nft add table ip t '{ chain c { type nat hook postrouting priority 100; oifname up0 masquerade; }; }'");
    let answer = traffic::assert_tcp(&c1, "198.51.100.2:80");
    assert_eq!(answer.seen.ip(), IpAddr::from([198, 51, 100, 1]));
}
