//! The headers of a packet of which only the beginning may be there.

use std::fmt;
use std::net::IpAddr;

use crate::route::ip_from;

/// RFC 791 §3.1, RFC 8200 §3.
const IPV6_HEADER: usize = 40;
/// The bits of an IPv4 header's offset field that count.
const IPV4_OFFSET: u16 = 0x1fff;
const IPV4_MORE: u16 = 0x2000;
/// The same of IPv6's fragment header (RFC 8200 §4.5).
const IPV6_OFFSET: u16 = 0xfff8;
const IPV6_MORE: u16 = 1;

/// Protocol numbers (IANA), also of IPv6's extension headers.
mod number {
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const ICMP: u8 = 1;
    pub(super) const TCP: u8 = 6;
    pub(super) const UDP: u8 = 17;
    pub(super) const DCCP: u8 = 33;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const AUTHENTICATION: u8 = 51;
    pub(super) const ICMPV6: u8 = 58;
    pub(super) const DESTINATION: u8 = 60;
    pub(super) const SCTP: u8 = 132;
    pub(super) const UDP_LITE: u8 = 136;
}

/// What a packet's headers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packet {
    /// From where.
    pub source: IpAddr,
    /// To where.
    pub destination: IpAddr,
    /// The protocol above IP and its extension headers; of a cut packet the last that can be read.
    pub protocol: u8,
    /// The source's and the destination's port, where the protocol has ports and they are there.
    pub ports: Option<(u16, u16)>,
    /// Type and code, of ICMP and ICMPv6.
    pub icmp: Option<(u8, u8)>,
    /// The flags of TCP ([`crate::nft::field::tcp_flag_bits`]).
    pub tcp_flags: Option<u8>,
    /// Whether it is a part of a packet. Only the first part has ports.
    pub is_fragment: bool,
}

impl Packet {
    /// Reads a packet from its IP header on. The rest may be cut anywhere behind the addresses.
    /// `None` if it is not an IP packet or too little of it is there.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => Self::read_v4(bytes),
            6 => Self::read_v6(bytes),
            _ => None,
        }
    }

    fn read_v4(bytes: &[u8]) -> Option<Self> {
        let length = usize::from(bytes.first()? & 0x0f).max(5) * 4;
        let place = u16_at(bytes, 6)?;
        let packet = Packet {
            source: ip_from(bytes.get(12..16)?)?,
            destination: ip_from(bytes.get(16..20)?)?,
            protocol: *bytes.get(9)?,
            ports: None,
            icmp: None,
            tcp_flags: None,
            is_fragment: place & (IPV4_OFFSET | IPV4_MORE) != 0,
        };
        let is_first = place & IPV4_OFFSET == 0;
        Some(if is_first { packet.above(bytes.get(length..)) } else { packet })
    }

    /// Follows the extension headers that the kernel's packet filter follows (linux
    /// net/ipv6/exthdrs_core.c `ipv6_find_hdr`).
    fn read_v6(bytes: &[u8]) -> Option<Self> {
        let mut packet = Packet {
            source: ip_from(bytes.get(8..24)?)?,
            destination: ip_from(bytes.get(24..40)?)?,
            protocol: *bytes.get(6)?,
            ports: None,
            icmp: None,
            tcp_flags: None,
            is_fragment: false,
        };
        let mut at = IPV6_HEADER;
        loop {
            let header = bytes.get(at..).unwrap_or_default();
            let (Some(next), Some(count)) = (header.first(), header.get(1)) else {
                return Some(packet);
            };
            // At least 8, so it ends.
            let length = match packet.protocol {
                number::HOP_BY_HOP | number::ROUTING | number::DESTINATION => {
                    (usize::from(*count) + 1) * 8
                }
                number::AUTHENTICATION => (usize::from(*count) + 2) * 4,
                number::FRAGMENT => 8,
                _ => return Some(packet.above(Some(header))),
            };
            if packet.protocol == number::FRAGMENT {
                let Some(place) = u16_at(header, 2) else { return Some(packet) };
                packet.is_fragment = place & (IPV6_OFFSET | IPV6_MORE) != 0;
                if place & IPV6_OFFSET != 0 {
                    // What follows is the middle of something.
                    packet.protocol = *next;
                    return Some(packet);
                }
            }
            packet.protocol = *next;
            at += length;
        }
    }

    /// Reads what is above IP, as far as it is there.
    fn above(mut self, header: Option<&[u8]>) -> Self {
        let header = header.unwrap_or_default();
        match self.protocol {
            number::TCP | number::UDP | number::DCCP | number::SCTP | number::UDP_LITE => {
                self.ports = u16_at(header, 0).zip(u16_at(header, 2));
            }
            number::ICMP | number::ICMPV6 => {
                self.icmp = header.first().copied().zip(header.get(1).copied());
            }
            _ => {}
        }
        if self.protocol == number::TCP {
            self.tcp_flags = header.get(13).copied();
        }
        self
    }
}

/// `10.0.0.1:4711 to 10.0.0.2:80, protocol 6`.
impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ports {
            Some((from, to)) => {
                let (from, to) = ((self.source, from).into(), (self.destination, to).into());
                let (from, to): (std::net::SocketAddr, std::net::SocketAddr) = (from, to);
                write!(f, "{from} to {to}")?;
            }
            None => write!(f, "{} to {}", self.source, self.destination)?,
        }
        write!(f, ", protocol {}", self.protocol)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: [u8; 20] =
        [0x12, 0x67, 0x00, 0x50, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0];

    fn v4(protocol: u8, place: u16, options: &[u8], above: &[u8]) -> Vec<u8> {
        let words = u8::try_from(5 + options.len() / 4).unwrap();
        let [high, low] = place.to_be_bytes();
        let mut bytes = vec![0x40 | words, 0, 0, 40, 0, 0, high, low, 64, protocol, 0, 0];
        bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend(options);
        bytes.extend(above);
        bytes
    }

    fn v6(first: u8, rest: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![0x60, 0, 0, 0, 0, 0, first, 64];
        for last in [1, 2] {
            let mut address = [0; 16];
            address[..2].copy_from_slice(&[0xfd, 0]);
            address[15] = last;
            bytes.extend(address);
        }
        bytes.extend(rest.concat());
        bytes
    }

    #[track_caller]
    fn check(bytes: &[u8], expected: &str) {
        let packet = Packet::read(bytes).unwrap();
        let fragment = if packet.is_fragment { ", fragment" } else { "" };
        let flags = packet.tcp_flags.map(|flags| format!(", flags {flags}")).unwrap_or_default();
        let icmp = packet.icmp.map(|icmp| format!(", icmp {icmp:?}")).unwrap_or_default();
        assert_eq!(format!("{packet}{flags}{icmp}{fragment}"), expected);
    }

    #[test]
    fn ipv4() {
        check(&v4(6, 0, &[], &TCP), "10.0.0.1:4711 to 10.0.0.2:80, protocol 6, flags 2");
        check(&v4(6, 0x4000, &[1; 8], &TCP), "10.0.0.1:4711 to 10.0.0.2:80, protocol 6, flags 2");
        check(
            &v4(6, 0x2000, &[], &TCP),
            "10.0.0.1:4711 to 10.0.0.2:80, protocol 6, flags 2, fragment",
        );
        check(&v4(6, 0x0001, &[], &TCP), "10.0.0.1 to 10.0.0.2, protocol 6, fragment");
        check(&v4(1, 0, &[], &[8, 0, 1, 2]), "10.0.0.1 to 10.0.0.2, protocol 1, icmp (8, 0)");
        check(&v4(47, 0, &[], &TCP), "10.0.0.1 to 10.0.0.2, protocol 47");
        // Cut behind the addresses, and within the ports.
        check(&v4(17, 0, &[], &[]), "10.0.0.1 to 10.0.0.2, protocol 17");
        check(&v4(17, 0, &[], &TCP[..3]), "10.0.0.1 to 10.0.0.2, protocol 17");
        check(&v4(132, 0, &[], &TCP[..4]), "10.0.0.1:4711 to 10.0.0.2:80, protocol 132");
        assert_eq!(Packet::read(&v4(6, 0, &[], &[])[..19]), None);
    }

    #[test]
    fn ipv6() {
        let ends = "fd00::1 to fd00::2";
        let ports = "[fd00::1]:4711 to [fd00::2]:80";
        check(&v6(6, &[&TCP]), &format!("{ports}, protocol 6, flags 2"));
        check(&v6(58, &[&[128, 0]]), &format!("{ends}, protocol 58, icmp (128, 0)"));
        let hop_by_hop = [43, 0, 5, 2, 0, 0, 1, 0];
        let routing = [60, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let options = [51, 0, 1, 4, 0, 0, 0, 0];
        let authentication =
            [44, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let first = [6, 0, 0, 1, 0, 0, 0, 9];
        let all: [&[u8]; 6] = [&hop_by_hop, &routing, &options, &authentication, &first, &TCP];
        check(&v6(0, &all), &format!("{ports}, protocol 6, flags 2, fragment"));
        let later = [17, 0, 0, 0x10, 0, 0, 0, 9];
        check(&v6(44, &[&later, &TCP]), &format!("{ends}, protocol 17, fragment"));
        // A fragment header that is the only one.
        let alone = [17, 0, 0, 0, 0, 0, 0, 9];
        check(&v6(44, &[&alone, &TCP]), &format!("{ports}, protocol 17"));
        // Cut within the extension headers.
        check(&v6(0, &[&hop_by_hop, &routing[..9]]), &format!("{ends}, protocol 60"));
        check(&v6(0, &[]), &format!("{ends}, protocol 0"));
        // No next header.
        check(&v6(59, &[&TCP]), &format!("{ends}, protocol 59"));
        assert_eq!(Packet::read(&v6(6, &[])[..39]), None);
    }

    proptest::proptest! {
        #[test]
        fn reading_anything_ends(mut bytes: Vec<u8>, version in 0_u8..16, next: u8) {
            let _ = Packet::read(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = version << 4 | *first & 0x0f;
            }
            let _ = Packet::read(&bytes);
            let _ = Packet::read(&v6(next, &[&bytes]));
            let _ = Packet::read(&v6(0, &[&[next, 0, 0, 0, 0, 0, 0, 0], &bytes]));
        }
    }
}
