//! ARP for IPv4 over Ethernet (RFC 826, RFC 5227).

use std::net::Ipv4Addr;

use super::ethernet::{self, EtherType};
use super::{FrameError, octets};
use crate::MacAddr;

/// Hardware type 1, Ethernet; protocol type 0x0800, IPv4; their addresses' lengths 6 and 4.
const HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// An ARP packet for IPv4 over Ethernet has this length.
const LENGTH: usize = 28;

/// The kind of an ARP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArpOperation {
    /// Asks which host has the target address.
    Request,
    /// Says that the sender has it.
    Reply,
}

/// An ARP packet for IPv4 over Ethernet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArpPacket {
    /// Request or reply.
    pub operation: ArpOperation,
    /// The sender.
    pub sender_mac: MacAddr,
    /// The sender's address; 0.0.0.0 in a probe.
    pub sender: Ipv4Addr,
    /// The target; zero in a request.
    pub target_mac: MacAddr,
    /// The address it is about.
    pub target: Ipv4Addr,
}

impl ArpPacket {
    /// Asks whether another host has this address, without claiming it (RFC 5227 §2.1.1).
    pub fn probe(mac: MacAddr, address: Ipv4Addr) -> Self {
        ArpPacket {
            operation: ArpOperation::Request,
            sender_mac: mac,
            sender: Ipv4Addr::UNSPECIFIED,
            target_mac: MacAddr::ZERO,
            target: address,
        }
    }

    /// "This address is mine" (RFC 5227 §2.3).
    pub fn announcement(mac: MacAddr, address: Ipv4Addr) -> Self {
        ArpPacket { sender: address, ..Self::probe(mac, address) }
    }

    /// The whole Ethernet frame: broadcast if it is a request, else to the target.
    pub fn to_frame(&self) -> Vec<u8> {
        let (target, operation) = match self.operation {
            ArpOperation::Request => (MacAddr::BROADCAST, 1),
            ArpOperation::Reply => (self.target_mac, 2),
        };
        let mut frame = ethernet::header(target, self.sender_mac, EtherType::Arp);
        frame.extend_from_slice(&HEAD);
        frame.extend_from_slice(&[0, operation]);
        frame.extend_from_slice(&self.sender_mac.0);
        frame.extend_from_slice(&self.sender.octets());
        frame.extend_from_slice(&self.target_mac.0);
        frame.extend_from_slice(&self.target.octets());
        frame
    }

    /// Reads an Ethernet frame. Trailing octets (Ethernet's padding) are ignored.
    ///
    /// # Errors
    ///
    /// [`FrameError::Short`] and [`FrameError::Other`].
    pub fn parse_frame(frame: &[u8]) -> Result<Self, FrameError> {
        let (_, packet) = ethernet::parse(frame, EtherType::Arp)?;
        Self::parse(packet)
    }

    /// Reads what follows an Ethernet header, as a SOCK_DGRAM packet socket delivers it.
    ///
    /// # Errors
    ///
    /// [`FrameError::Short`] and [`FrameError::Other`].
    pub fn parse(packet: &[u8]) -> Result<Self, FrameError> {
        if packet.len() < LENGTH {
            return Err(FrameError::Short);
        }
        if packet[..6] != HEAD {
            return Err(FrameError::Other);
        }
        let operation = match packet[6..8] {
            [0, 1] => ArpOperation::Request,
            [0, 2] => ArpOperation::Reply,
            _ => return Err(FrameError::Other),
        };
        Ok(ArpPacket {
            operation,
            sender_mac: MacAddr(octets(packet, 8)?),
            sender: Ipv4Addr::from(octets::<4>(packet, 14)?),
            target_mac: MacAddr(octets(packet, 18)?),
            target: Ipv4Addr::from(octets::<4>(packet, 24)?),
        })
    }
}
