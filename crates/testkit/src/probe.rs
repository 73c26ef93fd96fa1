//! Packets made by hand, and the places that receive them.
//!
//! A [`Station`] sends IP packets from a place and receives all that arrives there, whether a
//! program listens or not. So a test can send thousands of packets without a server, and see for
//! each of them where it arrived.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, sockopt,
};

use crate::place::Place;

/// `linux include/uapi/linux/if_ether.h` ETH_P_IP, ETH_P_IPV6.
const ETHERTYPES: [u16; 2] = [0x0800, 0x86dd];
/// The size of a buffer for thousands of unread packets.
const QUEUE: usize = 16 << 20;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;

/// A place's sockets: for packets of IPv4 and IPv6.
#[derive(Debug)]
pub struct Station {
    out: [OwnedFd; 2],
    arriving: [OwnedFd; 2],
}

impl Station {
    /// Opens the sockets in a place. From then on the station receives everything that the links of
    /// the place receive, also packets for other addresses. It does not receive what the place
    /// sends.
    ///
    /// # Panics
    /// If the privilege for that is missing.
    #[must_use]
    pub fn at(place: &impl Place) -> Self {
        let opened = place.enter(|| -> rustix::io::Result<Station> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let raw = |family| {
                let protocol = Some(ipproto::RAW);
                rustix::net::socket_with(family, SocketType::RAW, flags, protocol)
            };
            let tap = |ethertype: u16| {
                let protocol = NonZeroU32::new(ethertype.to_be().into()).map(Protocol::from_raw);
                let kind = SocketType::DGRAM;
                let tap = rustix::net::socket_with(AddressFamily::PACKET, kind, flags, protocol)?;
                sockopt::set_socket_recv_buffer_size_force(&tap, QUEUE)?;
                Ok::<_, Errno>(tap)
            };
            Ok(Station {
                out: [raw(AddressFamily::INET)?, raw(AddressFamily::INET6)?],
                arriving: [tap(ETHERTYPES[0])?, tap(ETHERTYPES[1])?],
            })
        });
        opened.unwrap_or_else(|error| panic!("sockets of {}: {error}", place.place_name()))
    }

    /// Sends a packet, with its IP header.
    ///
    /// # Panics
    /// When the kernel refuses it, for example because there is no route.
    pub fn send(&self, packet: &Packet) {
        let sent = self.try_send(packet);
        sent.unwrap_or_else(|error| panic!("send to {}: {error}", packet.destination));
    }

    /// Sends a packet, and says whether it left: the kernel reports if a packet filter of the place
    /// has dropped it.
    ///
    /// # Panics
    /// When the kernel refuses it for another reason.
    #[must_use]
    pub fn sends(&self, packet: &Packet) -> bool {
        match self.try_send(packet) {
            Ok(_) => true,
            Err(Errno::PERM) => false,
            Err(error) => panic!("send to {}: {error}", packet.destination),
        }
    }

    fn try_send(&self, packet: &Packet) -> rustix::io::Result<usize> {
        let socket = &self.out[usize::from(packet.destination.is_ipv6())];
        let to = SocketAddr::new(packet.destination, 0);
        rustix::net::sendto(socket, &packet.bytes, SendFlags::empty(), &to)
    }

    /// Passes every packet that has arrived, from its IP header on, to the function. Does not wait.
    ///
    /// # Panics
    /// When packets were lost.
    pub fn heard(&self, mut each: impl FnMut(&[u8])) {
        let mut buffer = vec![0; 2048];
        for socket in &self.arriving {
            loop {
                match rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()) {
                    Ok((length, _)) => each(&buffer[..length]),
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => {}
                    // A link of the place went down or came back.
                    Err(Errno::NETDOWN) => {}
                    Err(error) => panic!("hear packets: {error}"),
                }
            }
        }
    }

    /// What to wait for.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.arriving[0].as_fd(), self.arriving[1].as_fd()]
    }
}

/// Waits until one of the descriptors is readable, or the time is over. Returns whether one is.
///
/// # Panics
/// When the kernel refuses.
#[must_use]
pub fn wait(descriptors: &[BorrowedFd<'_>], timeout: Duration) -> bool {
    let mut waiting: Vec<PollFd<'_>> =
        descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(timeout).expect("a test does not wait for so long");
    loop {
        match poll(&mut waiting, Some(&timeout)) {
            Ok(ready) => return 0 < ready,
            Err(Errno::INTR) => {}
            Err(error) => panic!("wait for packets: {error}"),
        }
    }
}

/// An IP packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Where it goes.
    pub destination: IpAddr,
    /// The packet, with its IP header.
    pub bytes: Vec<u8>,
}

/// The two addresses of a packet, both of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// From where.
    pub source: IpAddr,
    /// To where.
    pub destination: IpAddr,
}

impl Ends {
    /// A TCP packet without data; `flags` as in the header: 2 is SYN.
    #[must_use]
    pub fn tcp(self, from: u16, to: u16, flags: u8) -> Packet {
        self.tcp_at(from, to, flags, [1, 1])
    }

    /// A TCP packet with these sequence and acknowledgement numbers.
    #[must_use]
    pub fn tcp_at(self, from: u16, to: u16, flags: u8, numbers: [u32; 2]) -> Packet {
        let mut header = ports(from, to);
        numbers.iter().for_each(|number| header.extend(number.to_be_bytes()));
        // Five words, flags, window, checksum, nothing urgent.
        header.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        self.packet(TCP, header, Some(16))
    }

    /// A UDP packet without data.
    #[must_use]
    pub fn udp(self, from: u16, to: u16) -> Packet {
        let mut header = ports(from, to);
        header.extend([0, 8, 0, 0]);
        self.packet(UDP, header, Some(6))
    }

    /// The first packet of an SCTP association (RFC 9260 §3.3.2).
    #[must_use]
    pub fn sctp(self, from: u16, to: u16) -> Packet {
        let mut bytes = ports(from, to);
        bytes.extend([0; 8]);
        // INIT: tag, window, streams out and in, first number.
        bytes.extend([1, 0, 0, 20, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
        let checksum = crc32c(&bytes);
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        self.packet(SCTP, bytes, None)
    }

    /// An ICMP echo request.
    #[must_use]
    pub fn echo(self, id: u16) -> Packet {
        let kind = if self.source.is_ipv4() { 8 } else { 128 };
        let protocol = if self.source.is_ipv4() { ICMP } else { ICMPV6 };
        self.packet(protocol, icmp(kind, id), Some(2))
    }

    /// An ICMPv6 message of this type, with a number where an echo request has its identifier. For
    /// IPv4 addresses it is an IPv4 packet with the protocol number of ICMPv6.
    #[must_use]
    pub fn icmp6(self, kind: u8, id: u16) -> Packet {
        self.packet(ICMPV6, icmp(kind, id), Some(2))
    }

    /// Puts the IP header before the payload, and the checksum into the payload at its place.
    fn packet(self, protocol: u8, mut above: Vec<u8>, checksum_at: Option<usize>) -> Packet {
        let length = u16::try_from(above.len()).expect("it is short");
        let mut bytes = Vec::new();
        let mut pseudo = Vec::new();
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                bytes.extend([0x45, 0]);
                bytes.extend((20 + length).to_be_bytes());
                // The kernel writes the number and the checksum of the header.
                bytes.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
                pseudo.extend(source.octets());
                pseudo.extend(destination.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                bytes.extend([0x60, 0, 0, 0]);
                bytes.extend(length.to_be_bytes());
                // Receivers accept neighbour discovery only with the largest hop limit (RFC 4861
                // §7.1).
                bytes.extend([protocol, 255]);
                pseudo.extend(source.octets());
                pseudo.extend(destination.octets());
            }
            _ => panic!("{self:?} are of two families"),
        }
        bytes.extend(&pseudo);
        // RFC 1071, with the pseudo header of RFC 9293 §3.1 and RFC 8200 §8.1; the checksum of ICMP
        // has no pseudo header.
        pseudo.extend([0, protocol]);
        pseudo.extend(length.to_be_bytes());
        if protocol == ICMP {
            pseudo.clear();
        }
        if let Some(at) = checksum_at {
            let sum = checksum(&[pseudo, above.clone()].concat());
            above[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        bytes.extend(above);
        Packet { destination: self.destination, bytes }
    }
}

fn ports(from: u16, to: u16) -> Vec<u8> {
    [from.to_be_bytes(), to.to_be_bytes()].concat()
}

fn icmp(kind: u8, id: u16) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    // A message of neighbour discovery has an address after that, which no test reads.
    let mut bytes = vec![kind, 0, 0, 0, high, low, 0, 1];
    bytes.extend([0; 16]);
    bytes
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| match word {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        [high] => u32::from(u16::from_be_bytes([*high, 0])),
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while 0xffff < sum {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("it was folded")
}

/// RFC 9260 appendix A.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::{checksum, crc32c};

    #[test]
    fn checksums() {
        // RFC 1071 §3, and the check value of CRC-32C.
        assert_eq!(!checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
