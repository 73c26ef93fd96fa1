//! VLANs of bridge ports (`bridge vlan`). Kernel: CONFIG_BRIDGE_VLAN_FILTERING.

use std::fmt;

use super::AF_BRIDGE;
use super::link::{IFINFOMSG, RTM_NEWLINK, ifla};
use super::link_kind::header;
use crate::wire::{self, Message, Writer};

/// `linux include/uapi/linux/if_bridge.h`.
const IFLA_BRIDGE_FLAGS: u16 = 0;
const IFLA_BRIDGE_VLAN_INFO: u16 = 2;
const BRIDGE_FLAGS_SELF: u16 = 2;
const BRIDGE_VLAN_INFO_PVID: u16 = 1 << 1;
const BRIDGE_VLAN_INFO_UNTAGGED: u16 = 1 << 2;
const BRIDGE_VLAN_INFO_RANGE_BEGIN: u16 = 1 << 3;
const BRIDGE_VLAN_INFO_RANGE_END: u16 = 1 << 4;
/// `linux include/uapi/linux/rtnetlink.h`: VLANs in ranges.
const RTEXT_FILTER_BRVLAN_COMPRESSED: u32 = 1 << 2;

/// A VLAN, or a range of them, of a bridge port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeVlan {
    /// The first VLAN ID.
    pub first: u16,
    /// The last VLAN ID; the same as the first for a single one.
    pub last: u16,
    /// Incoming untagged frames belong to it. Never set for a range.
    pub pvid: bool,
    /// Its frames leave untagged.
    pub untagged: bool,
}

/// Which side of a bridge a VLAN is set on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BridgeVlanSide {
    /// A port.
    Port,
    /// The bridge as the host's own port (BRIDGE_FLAGS_SELF).
    Bridge,
}

impl BridgeVlan {
    /// A tagged VLAN.
    #[must_use]
    pub fn tagged(id: u16) -> Self {
        Self { first: id, last: id, pvid: false, untagged: false }
    }

    /// The tagged VLANs of a range.
    #[must_use]
    pub fn tagged_range(first: u16, last: u16) -> Self {
        Self { first, last, pvid: false, untagged: false }
    }

    /// The VLAN of untagged frames, in both directions (an access port).
    #[must_use]
    pub fn access(id: u16) -> Self {
        Self { first: id, last: id, pvid: true, untagged: true }
    }

    fn flags(self) -> u16 {
        let pvid = if self.pvid { BRIDGE_VLAN_INFO_PVID } else { 0 };
        let untagged = if self.untagged { BRIDGE_VLAN_INFO_UNTAGGED } else { 0 };
        pvid | untagged
    }

    /// Writes the body of RTM_SETLINK (add) or RTM_DELLINK (delete).
    pub(crate) fn encode(self, ifindex: u32, side: BridgeVlanSide, writer: &mut Writer) {
        writer.raw(&header(AF_BRIDGE, ifindex, 0, 0));
        writer.nest(ifla::AF_SPEC, |writer| {
            if side == BridgeVlanSide::Bridge {
                writer.put_u16(IFLA_BRIDGE_FLAGS, BRIDGE_FLAGS_SELF);
            }
            let mut info = |flags: u16, id: u16| {
                let [a, b] = flags.to_ne_bytes();
                let [c, d] = id.to_ne_bytes();
                writer.put(IFLA_BRIDGE_VLAN_INFO, &[a, b, c, d]);
            };
            if self.first == self.last {
                info(self.flags(), self.first);
            } else {
                info(self.flags() | BRIDGE_VLAN_INFO_RANGE_BEGIN, self.first);
                info(self.flags() | BRIDGE_VLAN_INFO_RANGE_END, self.last);
            }
        });
    }

    /// Reads the VLANs of one port from a reply to [`encode_dump`]; `None` if the message is
    /// another.
    pub(crate) fn decode(message: &Message<'_>) -> Option<(u32, Vec<Self>)> {
        if message.kind != RTM_NEWLINK || message.body.first() != Some(&AF_BRIDGE) {
            return None;
        }
        let ifindex = wire::u32_at(message.body, 4)?;
        let mut vlans = Vec::new();
        let mut begun = None;
        let specs = message.attributes(IFINFOMSG).filter(|outer| outer.kind == ifla::AF_SPEC);
        for info in specs.flat_map(|spec| spec.nested()) {
            let (IFLA_BRIDGE_VLAN_INFO, Some(flags), Some(id)) =
                (info.kind, info.u16(), wire::u16_at(info.value, 2))
            else {
                continue;
            };
            if flags & BRIDGE_VLAN_INFO_RANGE_BEGIN != 0 {
                begun = Some(id);
                continue;
            }
            let ended = flags & BRIDGE_VLAN_INFO_RANGE_END != 0;
            vlans.push(Self {
                first: if ended { begun.take().unwrap_or(id) } else { id },
                last: id,
                pvid: flags & BRIDGE_VLAN_INFO_PVID != 0,
                untagged: flags & BRIDGE_VLAN_INFO_UNTAGGED != 0,
            });
        }
        Some((ifindex, vlans))
    }
}

/// Writes a request for the VLANs of all ports.
pub(crate) fn encode_dump(writer: &mut Writer) {
    writer.raw(&header(AF_BRIDGE, 0, 0, 0));
    writer.put_u32(ifla::EXT_MASK, RTEXT_FILTER_BRVLAN_COMPRESSED);
}

impl fmt::Display for BridgeVlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(vlan: BridgeVlan, side: BridgeVlanSide) -> Vec<u8> {
        let mut writer = Writer::new();
        vlan.encode(5, side, &mut writer);
        writer.bytes().to_vec()
    }

    const HEADER: [u8; 16] = [7, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    /// The bytes that `bridge vlan add dev … vid 10 pvid untagged` sends (except for its
    /// NLA_F_NESTED).
    #[test]
    #[cfg(target_endian = "little")]
    fn one_vlan_as_iproute2_sends_it() {
        let mut expected = HEADER.to_vec();
        expected.extend([12, 0, 26, 0x80, 8, 0, 2, 0, 6, 0, 10, 0]);
        assert_eq!(encoded(BridgeVlan::access(10), BridgeVlanSide::Port), expected);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_range_on_the_bridge_itself() {
        let mut expected = HEADER.to_vec();
        expected.extend([28, 0, 26, 0x80, 6, 0, 0, 0, 2, 0, 0, 0]);
        expected.extend([8, 0, 2, 0, 8, 0, 100, 0, 8, 0, 2, 0, 16, 0, 200, 0]);
        let range = BridgeVlan::tagged_range(100, 200);
        assert_eq!(encoded(range, BridgeVlanSide::Bridge), expected);
    }

    #[test]
    fn reads_what_it_writes() {
        for vlan in
            [BridgeVlan::access(1), BridgeVlan::tagged(7), BridgeVlan::tagged_range(10, 4094)]
        {
            let body = encoded(vlan, BridgeVlanSide::Port);
            let message = Message { kind: RTM_NEWLINK, flags: 0, seq: 0, body: &body };
            assert_eq!(BridgeVlan::decode(&message), Some((5, vec![vlan])));
        }
    }
}
