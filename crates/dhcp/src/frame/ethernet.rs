//! The Ethernet header.

use super::{FrameError, octets};
use crate::MacAddr;

/// linux include/uapi/linux/if_ether.h ETH_HLEN
pub(super) const LENGTH: usize = 14;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EtherType {
    Ipv4,
    Arp,
}

impl EtherType {
    /// linux include/uapi/linux/if_ether.h ETH_P_IP, ETH_P_ARP
    fn to_octets(self) -> [u8; 2] {
        match self {
            EtherType::Ipv4 => [0x08, 0x00],
            EtherType::Arp => [0x08, 0x06],
        }
    }
}

pub(super) fn header(target: MacAddr, source: MacAddr, kind: EtherType) -> Vec<u8> {
    [&target.0[..], &source.0, &kind.to_octets()].concat()
}

/// Returns the sender and the contents of a frame.
pub(super) fn parse(frame: &[u8], kind: EtherType) -> Result<(MacAddr, &[u8]), FrameError> {
    let packet = frame.get(LENGTH..).ok_or(FrameError::Short)?;
    if octets::<2>(frame, 12)? != kind.to_octets() {
        return Err(FrameError::Other);
    }
    Ok((MacAddr(octets(frame, 6)?), packet))
}
