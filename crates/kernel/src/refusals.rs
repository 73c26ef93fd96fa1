//! Who refuses what this network namespace sends: a machine that does not let a packet through, or a
//! host at which no program has the port, says so by ICMP and quotes the packet (RFC 792, RFC 4443
//! §3.1).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, recvfrom, socket_with,
};

use crate::echo::{UNREACHABLE, UNREACHABLE_6, message};

/// The protocols that have ports (IANA protocol numbers).
const TCP: u8 = 6;
const UDP: u8 = 17;

/// More than such a message is long.
const LONGEST: usize = 2048;

/// How many messages are read at most: others in the namespace may be refused all the time.
const MOST: usize = 4096;

/// What was refused, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Who says so.
    pub by: IpAddr,
    /// Where the packet was sent.
    pub to: SocketAddr,
    /// It was a datagram of UDP, and not TCP.
    pub is_udp: bool,
}

/// Hears refusals from when it is opened.
///
/// # Namespace
/// That of the thread that opens it.
///
/// # Privileges
/// CAP_NET_RAW.
#[derive(Debug)]
pub struct RefusalListener {
    sockets: Vec<(OwnedFd, bool)>,
}

impl RefusalListener {
    /// Begins to listen.
    ///
    /// # Errors
    /// The kernel's; without IPv6, IPv4 alone is heard.
    pub fn open() -> io::Result<Self> {
        let open = |family: AddressFamily, protocol| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socket_with(family, SocketType::RAW, flags, Some(protocol))
        };
        let mut sockets = vec![(open(AddressFamily::INET, ipproto::ICMP)?, true)];
        let v6 = open(AddressFamily::INET6, ipproto::ICMPV6);
        sockets.extend(v6.ok().map(|socket| (socket, false)));
        Ok(RefusalListener { sockets })
    }

    /// Returns what was heard so far.
    #[must_use]
    pub fn heard(&self) -> Vec<Refusal> {
        let mut found = Vec::new();
        let mut buffer = [0_u8; LONGEST];
        for (socket, of_v4) in &self.sockets {
            for _ in 0..MOST {
                let Ok((length, _, from)) = recvfrom(socket, &mut buffer[..], RecvFlags::empty())
                else {
                    break;
                };
                let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                let read = from.and_then(|from| refusal(&buffer[..length], from.ip(), *of_v4));
                found.extend(read);
            }
        }
        found
    }
}

/// Reads a message. That of IPv4 begins with its IP header.
fn refusal(packet: &[u8], by: IpAddr, of_v4: bool) -> Option<Refusal> {
    let icmp = message(packet, of_v4)?;
    let kind = if of_v4 { UNREACHABLE } else { UNREACHABLE_6 };
    let quoted = icmp.get(8..).filter(|_| icmp.first() == Some(&kind))?;
    let (protocol, to, ports): (u8, IpAddr, &[u8]) = if of_v4 {
        let to: [u8; 4] = quoted.get(16..20)?.try_into().ok()?;
        (*quoted.get(9)?, to.into(), message(quoted, true)?)
    } else {
        let to: [u8; 16] = quoted.get(24..40)?.try_into().ok()?;
        (*quoted.get(6)?, to.into(), quoted.get(40..)?)
    };
    let port: [u8; 2] = ports.get(2..4)?.try_into().ok()?;
    let is_udp = match protocol {
        TCP => false,
        UDP => true,
        _ => return None,
    };
    Some(Refusal { by, to: SocketAddr::new(to, u16::from_be_bytes(port)), is_udp })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message about a packet to port 80.
    fn about(to: IpAddr, protocol: u8) -> Vec<u8> {
        let of_v4 = to.is_ipv4();
        let mut quoted = vec![0_u8; if of_v4 { 20 } else { 40 }];
        let (at, octets) = match to {
            IpAddr::V4(to) => (16, to.octets().to_vec()),
            IpAddr::V6(to) => (24, to.octets().to_vec()),
        };
        quoted[0] = if of_v4 { 0x45 } else { 0x60 };
        quoted[if of_v4 { 9 } else { 6 }] = protocol;
        quoted[at..at + octets.len()].copy_from_slice(&octets);
        quoted.extend([0x9c, 0x40, 0, 80]);
        let mut packet = if of_v4 { vec![0x45_u8; 20] } else { Vec::new() };
        packet.extend([if of_v4 { UNREACHABLE } else { UNREACHABLE_6 }, 1, 0, 0, 0, 0, 0, 0]);
        packet.extend(quoted);
        packet
    }

    #[test]
    fn a_refusal_quotes_what_was_sent() {
        for (by, to) in [("192.0.2.1", "198.51.100.9"), ("2001:db8::1", "2001:db8:9::9")] {
            let (by, to): (IpAddr, IpAddr) = (by.parse().unwrap(), to.parse().unwrap());
            let of_v4 = to.is_ipv4();
            for (protocol, is_udp) in [(TCP, false), (UDP, true)] {
                let packet = about(to, protocol);
                let expected = Refusal { by, to: SocketAddr::new(to, 80), is_udp };
                assert_eq!(refusal(&packet, by, of_v4), Some(expected));
                for length in 0..packet.len() {
                    assert_eq!(refusal(&packet[..length], by, of_v4), None, "{length} bytes");
                }
            }
            // Of an echo request.
            assert_eq!(refusal(&about(to, 1), by, of_v4), None);
        }
    }
}
