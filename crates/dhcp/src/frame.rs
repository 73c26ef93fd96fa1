//! Frames for raw sockets: UDP over IPv4 over Ethernet, and ARP.
//!
//! A client without an address cannot use the IP stack: it sends and receives whole frames through
//! an AF_PACKET socket. Its ARP probes need one anyway. These are the few formats it needs, decoded
//! from any bytes without panicking. The tests compare them with smoltcp's.
//!
//! ```
//! use netwright_dhcp::MacAddr;
//! use netwright_dhcp::frame::{Checksums, UdpFrame, UdpPacket};
//!
//! let frame = UdpFrame {
//!     source_mac: "02:00:00:00:00:01".parse()?,
//!     target_mac: MacAddr::BROADCAST,
//!     source: "0.0.0.0:68".parse()?,
//!     target: "255.255.255.255:67".parse()?,
//!     payload: b"DHCPDISCOVER",
//! }
//! .to_frame()?;
//! let packet = UdpPacket::parse_frame(&frame, Checksums::Verify)?;
//! assert_eq!((packet.target.port(), packet.payload), (67, &b"DHCPDISCOVER"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arp;
mod ethernet;
mod udp;

pub use arp::{ArpOperation, ArpPacket};
pub use udp::{Checksums, UdpFrame, UdpPacket};

/// Why a frame was not decoded or encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// It ends early.
    #[error("frame is cut short")]
    Short,
    /// It is something else: another protocol, version, address length.
    #[error("frame is of another protocol")]
    Other,
    /// It is a fragment: fragments are not reassembled here.
    #[error("packet is a fragment")]
    Fragment,
    /// A checksum is wrong.
    #[error("packet has a wrong checksum")]
    Checksum,
    /// It is longer than the protocol allows.
    #[error("datagram does not fit a packet")]
    Long,
}

/// Reads `N` octets at an offset.
fn octets<const N: usize>(from: &[u8], at: usize) -> Result<[u8; N], FrameError> {
    let end = at.checked_add(N).ok_or(FrameError::Short)?;
    from.get(at..end).and_then(|part| part.try_into().ok()).ok_or(FrameError::Short)
}
