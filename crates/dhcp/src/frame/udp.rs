//! UDP over IPv4 over Ethernet (RFC 768, RFC 791, RFC 1071).

use std::net::{Ipv4Addr, SocketAddrV4};

use super::ethernet::{self, EtherType};
use super::{FrameError, octets};
use crate::MacAddr;

/// An IPv4 header without options.
const IP_LENGTH: usize = 20;

/// A UDP header.
const UDP_LENGTH: usize = 8;

/// linux include/uapi/linux/in.h IPPROTO_UDP
const UDP: u8 = 17;

/// As hosts send it; DHCP messages pass no router (relays make new packets).
const TIME_TO_LIVE: u8 = 64;

/// A datagram to send in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpFrame<'a> {
    /// The frame's source.
    pub source_mac: MacAddr,
    /// The frame's destination.
    pub target_mac: MacAddr,
    /// The packet's source.
    pub source: SocketAddrV4,
    /// The packet's destination.
    pub target: SocketAddrV4,
    /// The datagram.
    pub payload: &'a [u8],
}

impl UdpFrame<'_> {
    /// The whole Ethernet frame, checksums filled in.
    ///
    /// # Errors
    ///
    /// [`FrameError::Long`] if it does not fit an IPv4 packet. The caller must check whether it
    /// fits the link.
    pub fn to_frame(&self) -> Result<Vec<u8>, FrameError> {
        let length = |header: usize| {
            u16::try_from(header + self.payload.len()).map_err(|_| FrameError::Long)
        };
        let (total, datagram) = (length(IP_LENGTH + UDP_LENGTH)?, length(UDP_LENGTH)?);
        let mut ip = [0; IP_LENGTH];
        // Version 4, five words of header.
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        // Do not fragment: then the identification may be zero (RFC 6864 §4.1).
        ip[6] = 0x40;
        ip[8] = TIME_TO_LIVE;
        ip[9] = UDP;
        ip[12..16].copy_from_slice(&self.source.ip().octets());
        ip[16..20].copy_from_slice(&self.target.ip().octets());
        let checksum = !fold(sum(&ip));
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());

        let mut udp = [0; UDP_LENGTH];
        udp[..2].copy_from_slice(&self.source.port().to_be_bytes());
        udp[2..4].copy_from_slice(&self.target.port().to_be_bytes());
        udp[4..6].copy_from_slice(&datagram.to_be_bytes());
        let pseudo = pseudo_header(*self.source.ip(), *self.target.ip(), datagram);
        // RFC 768: a checksum of zero is sent as all ones, zero means none.
        let checksum = match !fold(pseudo + sum(&udp) + sum(self.payload)) {
            0 => 0xffff,
            checksum => checksum,
        };
        udp[6..8].copy_from_slice(&checksum.to_be_bytes());

        let mut frame = ethernet::header(self.target_mac, self.source_mac, EtherType::Ipv4);
        frame.reserve(ip.len() + udp.len() + self.payload.len());
        frame.extend_from_slice(&ip);
        frame.extend_from_slice(&udp);
        frame.extend_from_slice(self.payload);
        Ok(frame)
    }
}

/// A datagram received in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpPacket<'a> {
    /// The frame's source, if the Ethernet header was available.
    pub source_mac: Option<MacAddr>,
    /// The packet's source.
    pub source: SocketAddrV4,
    /// The packet's destination.
    pub target: SocketAddrV4,
    /// The datagram.
    pub payload: &'a [u8],
}

/// What shows that a datagram is undamaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksums {
    /// Its checksum; an absent one is accepted (RFC 768). A partial one is accepted too: between
    /// interfaces of one host (veth, macvlan) the kernel fills in only the pseudo-header's sum and
    /// leaves the rest to hardware that never sees the frame.
    Verify,
    /// The kernel: PACKET_AUXDATA contained TP_STATUS_CSUM_VALID or TP_STATUS_CSUMNOTREADY.
    Trust,
}

impl<'a> UdpPacket<'a> {
    /// Reads an Ethernet frame.
    ///
    /// # Errors
    ///
    /// Every variant but [`FrameError::Long`].
    pub fn parse_frame(frame: &'a [u8], checksums: Checksums) -> Result<Self, FrameError> {
        let (source_mac, packet) = ethernet::parse(frame, EtherType::Ipv4)?;
        Ok(UdpPacket { source_mac: Some(source_mac), ..Self::parse(packet, checksums)? })
    }

    /// Reads what follows an Ethernet header, as a SOCK_DGRAM packet socket delivers it.
    ///
    /// # Errors
    ///
    /// Every variant but [`FrameError::Long`].
    pub fn parse(packet: &'a [u8], checksums: Checksums) -> Result<Self, FrameError> {
        let first = *packet.first().ok_or(FrameError::Short)?;
        if first >> 4 != 4 {
            return Err(FrameError::Other);
        }
        let header_length = usize::from(first & 0x0f) * 4;
        let total = usize::from(u16::from_be_bytes(octets(packet, 2)?));
        if header_length < IP_LENGTH || total < header_length {
            return Err(FrameError::Short);
        }
        // Ethernet's padding is left out.
        let packet = packet.get(..total).ok_or(FrameError::Short)?;
        let (ip, datagram) = packet.split_at(header_length);
        if checksums == Checksums::Verify && fold(sum(ip)) != 0xffff {
            return Err(FrameError::Checksum);
        }
        // More fragments, or not the first one.
        if u16::from_be_bytes(octets(ip, 6)?) & 0x3fff != 0 {
            return Err(FrameError::Fragment);
        }
        if ip[9] != UDP {
            return Err(FrameError::Other);
        }
        let source = Ipv4Addr::from(octets::<4>(ip, 12)?);
        let target = Ipv4Addr::from(octets::<4>(ip, 16)?);

        let length = u16::from_be_bytes(octets(datagram, 4)?);
        let checksum = u16::from_be_bytes(octets(datagram, 6)?);
        let datagram = datagram.get(..usize::from(length)).ok_or(FrameError::Short)?;
        let payload = datagram.get(UDP_LENGTH..).ok_or(FrameError::Short)?;
        let pseudo = pseudo_header(source, target, length);
        // The second: linux include/linux/skbuff.h CHECKSUM_PARTIAL.
        let good = || fold(pseudo + sum(datagram)) == 0xffff || checksum == fold(pseudo);
        if checksums == Checksums::Verify && checksum != 0 && !good() {
            return Err(FrameError::Checksum);
        }
        let port = |at| octets(datagram, at).map(u16::from_be_bytes);
        Ok(UdpPacket {
            source_mac: None,
            source: SocketAddrV4::new(source, port(0)?),
            target: SocketAddrV4::new(target, port(2)?),
            payload,
        })
    }
}

/// The sum of 16-bit words, the last padded with zero. It cannot overflow: a packet has at most 65
/// 535 octets.
fn sum(octets: &[u8]) -> u32 {
    let word = |pair: &[u8]| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        [high] => u32::from(*high) << 8,
        _ => 0,
    };
    octets.chunks(2).map(word).fold(0, u32::wrapping_add)
}

fn fold(sum: u32) -> u16 {
    let mut sum = sum;
    while u16::try_from(sum).is_err() {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(u16::MAX)
}

fn pseudo_header(source: Ipv4Addr, target: Ipv4Addr, length: u16) -> u32 {
    sum(&source.octets()) + sum(&target.octets()) + u32::from(UDP) + u32::from(length)
}
