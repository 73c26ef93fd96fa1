//! A place for an entry.

use std::net::IpAddr;

use super::{Entry, Key};
use crate::range::to_number;

/// Bytes of a slot.
pub(super) const SLOT: usize = 32;
pub(super) const EMPTY: u8 = 0;
pub(super) const REMOVED: u8 = 1;
pub(super) const V4: u8 = 4;
pub(super) const V6: u8 = 6;

/// A place for an entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) key: Key,
    pub(super) kind: u8,
    pub(super) number: u128,
}

impl Slot {
    pub(super) fn of(entry: Entry) -> Slot {
        let kind = if entry.address.is_ipv4() { V4 } else { V6 };
        Slot { key: entry.key, kind, number: to_number(entry.address) }
    }

    pub(super) fn is(&self, entry: Entry) -> bool {
        let other = Slot::of(entry);
        (self.key, self.kind, self.number) == (other.key, other.kind, other.number)
    }

    pub(super) fn address(&self) -> IpAddr {
        match u32::try_from(self.number) {
            Ok(number) if self.kind == V4 => std::net::Ipv4Addr::from(number).into(),
            _ => std::net::Ipv6Addr::from(self.number).into(),
        }
    }

    /// Encodes the slot. A key's lowest byte is zero; the kind is stored there.
    pub(super) fn to_bytes(self) -> [u8; SLOT] {
        let mut bytes = [0; SLOT];
        bytes[..16].copy_from_slice(&(self.key | u128::from(self.kind)).to_le_bytes());
        bytes[16..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: [u8; SLOT]) -> Slot {
        let (key, number) = bytes.split_at(16);
        let number_of =
            |bytes: &[u8]| u128::from_le_bytes(bytes.try_into().expect("half of a slot"));
        Slot { key: number_of(key) & !0xff, kind: key[0], number: number_of(number) }
    }
}
