//! ARP for IPv4 over Ethernet (RFC 826, RFC 5227).

use std::net::Ipv4Addr;

use super::FrameError;
use crate::MacAddr;

/// What an ARP packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArpOperation {
    /// Who has the target address?
    Request,
    /// The sender has.
    Reply,
}

/// An ARP packet for IPv4 over Ethernet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArpPacket {
    /// Question or answer.
    pub operation: ArpOperation,
    /// Who sends it.
    pub sender_mac: MacAddr,
    /// The sender's address; 0.0.0.0 in a probe.
    pub sender: Ipv4Addr,
    /// Whom it is for; zero in a request.
    pub target_mac: MacAddr,
    /// The address it is about.
    pub target: Ipv4Addr,
}

impl ArpPacket {
    /// "Does anybody have this address?", without claiming it (RFC 5227 §2.1.1).
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

    /// The whole Ethernet frame: to everybody if it is a request, else to the target.
    pub fn to_frame(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Reads an Ethernet frame. Trailing octets (Ethernet's padding) are ignored.
    pub fn parse_frame(frame: &[u8]) -> Result<Self, FrameError> {
        let _ = frame;
        Err(FrameError::Short)
    }

    /// Reads what follows an Ethernet header, as a SOCK_DGRAM packet socket delivers it.
    pub fn parse(packet: &[u8]) -> Result<Self, FrameError> {
        let _ = packet;
        Err(FrameError::Short)
    }
}
