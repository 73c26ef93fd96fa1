//! UDP over IPv4 over Ethernet.

use std::net::SocketAddrV4;

use crate::MacAddr;

/// A datagram to be put into a frame.
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
    /// [`FrameError::Long`] if it does not fit an IPv4 packet.
    pub fn to_frame(&self) -> Result<Vec<u8>, FrameError> {
        Ok(Vec::new())
    }
}

/// A datagram that was found in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpPacket<'a> {
    /// The frame's source, if the Ethernet header was there to be read.
    pub source_mac: Option<MacAddr>,
    /// The packet's source.
    pub source: SocketAddrV4,
    /// The packet's destination.
    pub target: SocketAddrV4,
    /// The datagram.
    pub payload: &'a [u8],
}

/// Whose word is taken for a datagram being undamaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksums {
    /// The checksum's, or none at all if it is absent (RFC 768). A partial one is accepted too: between
    /// interfaces of one host (veth, macvlan) the kernel fills in only the pseudo-header's sum and leaves the rest to hardware
    /// that never sees the frame.
    Verify,
    /// The kernel's: PACKET_AUXDATA said TP_STATUS_CSUM_VALID or TP_STATUS_CSUMNOTREADY.
    Trust,
}

/// Why a frame was not read or made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// It ends early.
    #[error("frame is cut short")]
    Short,
    /// It is something else: another protocol, version, address length.
    #[error("frame is of another protocol")]
    Other,
    /// It is a fragment: those are not put together here.
    #[error("packet is a fragment")]
    Fragment,
    /// A checksum is wrong.
    #[error("packet has a wrong checksum")]
    Checksum,
    /// It is longer than the protocol allows.
    #[error("datagram does not fit a packet")]
    Long,
}

impl<'a> UdpPacket<'a> {
    /// Reads an Ethernet frame.
    ///
    /// # Errors
    ///
    /// Every variant but [`FrameError::Long`].
    pub fn parse_frame(frame: &'a [u8], checksums: Checksums) -> Result<Self, FrameError> {
        let _ = (frame, checksums);
        Err(FrameError::Short)
    }

    /// Reads what follows an Ethernet header, as a SOCK_DGRAM packet socket delivers it.
    ///
    /// # Errors
    ///
    /// Every variant but [`FrameError::Long`].
    pub fn parse(packet: &'a [u8], checksums: Checksums) -> Result<Self, FrameError> {
        let _ = (packet, checksums);
        Err(FrameError::Short)
    }
}
