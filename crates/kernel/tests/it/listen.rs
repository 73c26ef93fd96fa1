use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use kernel::listen::{Answer, Transport, ask, holder};
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::guard::{in_netns, sh};

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn tcp(text: &str) -> Answer {
    ask(Transport::Tcp, at(text))
}

fn udp(text: &str) -> Answer {
    ask(Transport::Udp, at(text))
}

#[test]
fn a_port_is_taken_when_bind_says_so() {
    in_netns(|| {
        sh(
            "ip link set lo up && ip addr add 192.0.2.1/32 dev lo && ip addr add 2001:db8::1/128 dev lo nodad",
        );
        for free in ["0.0.0.0:80", "[::]:80", "192.0.2.1:80", "[2001:db8::1]:80"] {
            assert_eq!((tcp(free), udp(free)), (Answer::Free, Answer::Free), "{free}");
        }
        for missing in ["192.0.2.2:80", "[2001:db8::2]:80"] {
            assert_eq!(tcp(missing), Answer::NoSuchAddress, "{missing}");
            assert_eq!(udp(missing), Answer::NoSuchAddress, "{missing}");
        }
        // The program listens at one address.
        let _one = TcpListener::bind("192.0.2.1:81").unwrap();
        assert_eq!((tcp("192.0.2.1:81"), tcp("0.0.0.0:81")), (Answer::Taken, Answer::Taken));
        assert_eq!((tcp("127.0.0.1:81"), tcp("[::]:81")), (Answer::Free, Answer::Free));
        assert_eq!(udp("192.0.2.1:81"), Answer::Free);
        // The program listens at `::`, which includes IPv4.
        let _dual = TcpListener::bind("[::]:82").unwrap();
        for taken in ["0.0.0.0:82", "192.0.2.1:82", "[::]:82", "[2001:db8::1]:82"] {
            assert_eq!(tcp(taken), Answer::Taken, "{taken}");
        }
        // A link-local address belongs to a link, which the question does not name.
        sh(
            "ip link add v0 type veth peer name v1 && ip link set v1 up && ip link set v0 up && ip addr add fe80::7/64 dev v0 nodad",
        );
        assert_eq!((tcp("[fe80::7]:82"), udp("[fe80::7]:82")), (Answer::Taken, Answer::Free));
        assert_eq!(tcp("[fe80::8]:82"), Answer::NoSuchAddress);
        let _datagrams = UdpSocket::bind("0.0.0.0:83").unwrap();
        assert_eq!((udp("127.0.0.1:83"), udp("[::]:83")), (Answer::Taken, Answer::Free));
    });
}

/// Connections that a program has accepted, and closed ones, do not prevent another program from
/// listening.
#[test]
fn connections_are_not_in_the_way() {
    in_netns(|| {
        sh("ip link set lo up");
        let listener = TcpListener::bind("127.0.0.1:84").unwrap();
        let client = TcpStream::connect("127.0.0.1:84").unwrap();
        let (accepted, _) = listener.accept().unwrap();
        drop(listener);
        assert_eq!(tcp("0.0.0.0:84"), Answer::Free);
        drop(accepted);
        drop(client);
        assert_eq!(tcp("0.0.0.0:84"), Answer::Free);
    });
}

/// A program has bound a port, as programs do that share it with others, and is about to listen.
#[test]
fn a_port_that_is_bound_and_not_listened_on_is_taken() {
    in_netns(|| {
        sh("ip link set lo up");
        let bound = |at: SocketAddr, reuse: bool| {
            let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let fd = rustix::net::socket(family, SocketType::STREAM, None).unwrap();
            sockopt::set_socket_reuseaddr(&fd, reuse).unwrap();
            rustix::net::bind(&fd, &at).unwrap();
            fd
        };
        for reuse in [false, true] {
            let four = bound(at("127.0.0.1:89"), reuse);
            let six = bound(at("[::1]:90"), reuse);
            for taken in ["127.0.0.1:89", "0.0.0.0:89", "[::1]:90", "[::]:90"] {
                assert_eq!(tcp(taken), Answer::Taken, "{taken}, reuse {reuse}");
            }
            for free in ["[::1]:89", "127.0.0.1:90"] {
                assert_eq!(tcp(free), Answer::Free, "{free}, reuse {reuse}");
            }
            drop((four, six));
            assert_eq!((tcp("0.0.0.0:89"), tcp("[::]:90")), (Answer::Free, Answer::Free));
        }
    });
}

#[test]
fn the_process_that_has_a_port_is_found() {
    in_netns(|| {
        sh("ip link set lo up");
        let _tcp = TcpListener::bind("[::]:85").unwrap();
        let _udp = UdpSocket::bind("127.0.0.1:86").unwrap();
        for (transport, text) in [
            (Transport::Tcp, "0.0.0.0:85"),
            (Transport::Tcp, "[::1]:85"),
            (Transport::Udp, "0.0.0.0:86"),
        ] {
            let found = holder(transport, at(text), &[]).unwrap();
            let process = found.process.unwrap();
            assert_eq!((found.uid, process.pid), (0, std::process::id()), "{text}");
            assert!(process.is_ancestor && !process.name.is_empty());
        }
        assert_eq!(holder(Transport::Tcp, at("0.0.0.0:87"), &[]), None);
    });
}

/// No program can listen by a protocol that the kernel does not have; opening a socket would load
/// it.
#[test]
fn nobody_has_a_port_of_sctp_where_the_kernel_has_none() {
    in_netns(|| {
        if std::path::Path::new("/proc/thread-self/net/sctp").exists() {
            return;
        }
        assert_eq!(ask(Transport::Sctp, at("0.0.0.0:88")), Answer::Free);
    });
}
