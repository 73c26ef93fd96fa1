//! Frames for raw sockets: UDP over IPv4 over Ethernet, and ARP.

mod arp;
mod udp;

pub use arp::{ArpOperation, ArpPacket};
pub use udp::{Checksums, FrameError, UdpFrame, UdpPacket};
