//! Keys of sets and maps: values, their types, and their concatenation.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::mac::MacAddr;
use crate::wire;

/// How many bytes an interface name takes (IFNAMSIZ).
const IFNAMSIZ: usize = 16;

/// The type of one component of a key or of a map's data.
///
/// The kernel does not know these types; nft uses them for printing. Numbers: nftables
/// include/datatype.h `enum datatypes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyType {
    /// `ipv4_addr`
    Ipv4Addr,
    /// `ipv6_addr`
    Ipv6Addr,
    /// `ether_addr`
    EtherAddr,
    /// `ether_type`
    EtherType,
    /// `inet_proto`
    InetProto,
    /// `inet_service`
    InetService,
    /// `icmpv6_type`
    Icmp6Type,
    /// `mark`
    Mark,
    /// `iface_index`
    IfIndex,
    /// `ifname`
    IfName,
    /// `nf_proto`
    NfProto,
    /// `ct_state`
    CtState,
    /// `ct_status`
    CtStatus,
    /// `fib_addrtype`
    FibAddrType,
}

impl KeyType {
    const ALL: [Self; 14] = [
        Self::Ipv4Addr,
        Self::Ipv6Addr,
        Self::EtherAddr,
        Self::EtherType,
        Self::InetProto,
        Self::InetService,
        Self::Icmp6Type,
        Self::Mark,
        Self::IfIndex,
        Self::IfName,
        Self::NfProto,
        Self::CtState,
        Self::CtStatus,
        Self::FibAddrType,
    ];

    pub(crate) fn number(self) -> u32 {
        match self {
            Self::NfProto => 2,
            Self::Ipv4Addr => 7,
            Self::Ipv6Addr => 8,
            Self::EtherAddr => 9,
            Self::EtherType => 10,
            Self::InetProto => 12,
            Self::InetService => 13,
            Self::Mark => 19,
            Self::IfIndex => 20,
            Self::CtState => 26,
            Self::CtStatus => 28,
            Self::Icmp6Type => 29,
            Self::FibAddrType => 38,
            Self::IfName => 41,
        }
    }

    /// How many bytes a value takes, without padding.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::NfProto | Self::InetProto | Self::Icmp6Type => 1,
            Self::EtherType | Self::InetService => 2,
            Self::Ipv4Addr
            | Self::Mark
            | Self::IfIndex
            | Self::CtState
            | Self::CtStatus
            | Self::FibAddrType => 4,
            Self::EtherAddr => 6,
            Self::Ipv6Addr | Self::IfName => IFNAMSIZ,
        }
    }

    /// nftables include/datatype.h `enum byteorder`: 1 host, 2 network.
    fn byteorder(self) -> u32 {
        match self {
            Self::Ipv4Addr
            | Self::Ipv6Addr
            | Self::EtherAddr
            | Self::EtherType
            | Self::InetProto
            | Self::InetService
            | Self::Icmp6Type => 2,
            Self::Mark
            | Self::IfIndex
            | Self::IfName
            | Self::NfProto
            | Self::CtState
            | Self::CtStatus
            | Self::FibAddrType => 1,
        }
    }

    fn read(self, bytes: &[u8]) -> Option<Value> {
        let u16_be = || bytes.try_into().ok().map(u16::from_be_bytes);
        let u32 = || wire::u32_at(bytes, 0);
        Some(match self {
            Self::Ipv4Addr => Value::Ipv4(<[u8; 4]>::try_from(bytes).ok()?.into()),
            Self::Ipv6Addr => Value::Ipv6(<[u8; 16]>::try_from(bytes).ok()?.into()),
            Self::EtherAddr => Value::Mac(MacAddr(bytes.try_into().ok()?)),
            Self::EtherType => Value::EtherType(u16_be()?),
            Self::InetProto => Value::Protocol(*bytes.first()?),
            Self::InetService => Value::Port(u16_be()?),
            Self::Icmp6Type => Value::Icmp6Type(*bytes.first()?),
            Self::Mark => Value::Mark(u32()?),
            Self::IfIndex => Value::IfIndex(u32()?),
            Self::IfName => Value::IfName(wire::text(bytes)),
            Self::NfProto => Value::NfProto(*bytes.first()?),
            Self::CtState | Self::CtStatus => Value::Bits(u32()?),
            Self::FibAddrType => Value::AddrType(u32()?),
        })
    }
}

/// The type number of a key or of data: 6 bits per component, the first one highest (nftables
/// `concat_subtype_add`).
pub(crate) fn type_number(types: &[KeyType]) -> u32 {
    types.iter().fold(0, |number, kind| number << 6 | kind.number())
}

/// The reverse of [`type_number`]; `None` if a component is of a type unknown to this code.
pub(crate) fn types_from_number(mut number: u32) -> Option<Vec<KeyType>> {
    let mut types = Vec::new();
    while number != 0 {
        types.insert(0, KeyType::ALL.into_iter().find(|kind| kind.number() == number & 0x3f)?);
        number >>= 6;
    }
    Some(types)
}

/// The length of a key: components of a concatenation are padded to 4 bytes, a single one is not.
pub(crate) fn length(types: &[KeyType]) -> usize {
    match types {
        [single] => single.size(),
        several => several.iter().map(|kind| kind.size().next_multiple_of(4)).sum(),
    }
}

/// The byte order to record for nft; a concatenation has none.
pub(crate) fn byteorder(types: &[KeyType]) -> u32 {
    match types {
        [single] => single.byteorder(),
        _ => 0,
    }
}

/// One component of a key or of a map's data.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Value {
    /// An IPv4 address.
    Ipv4(Ipv4Addr),
    /// An IPv6 address.
    Ipv6(Ipv6Addr),
    /// An Ethernet address.
    Mac(MacAddr),
    /// An EtherType.
    EtherType(u16),
    /// A protocol above IP: 6 TCP, 17 UDP, 132 SCTP.
    Protocol(u8),
    /// A port.
    Port(u16),
    /// A type of ICMPv6.
    Icmp6Type(u8),
    /// A mark.
    Mark(u32),
    /// A link's number.
    IfIndex(u32),
    /// A link's name.
    IfName(String),
    /// 2 for IPv4, 10 for IPv6.
    NfProto(u8),
    /// Bits of a connection's state or status.
    Bits(u32),
    /// The kind of an address (RTN_*): 2 is local.
    AddrType(u32),
}

impl Value {
    /// TCP as a [`Value::Protocol`].
    pub const TCP: Self = Self::Protocol(6);
    /// UDP as a [`Value::Protocol`].
    pub const UDP: Self = Self::Protocol(17);
    /// SCTP as a [`Value::Protocol`].
    pub const SCTP: Self = Self::Protocol(132);
    /// An address of this host (RTN_LOCAL).
    pub const LOCAL: Self = Self::AddrType(2);

    /// The bytes as the kernel compares them, without padding; a name of 16 bytes or more is cut.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Ipv4(address) => address.octets().to_vec(),
            Self::Ipv6(address) => address.octets().to_vec(),
            Self::Mac(mac) => mac.0.to_vec(),
            Self::EtherType(number) | Self::Port(number) => number.to_be_bytes().to_vec(),
            Self::Protocol(number) | Self::NfProto(number) | Self::Icmp6Type(number) => {
                vec![*number]
            }
            Self::Mark(number)
            | Self::IfIndex(number)
            | Self::Bits(number)
            | Self::AddrType(number) => number.to_ne_bytes().to_vec(),
            Self::IfName(name) => {
                let mut bytes = name.as_bytes().to_vec();
                bytes.resize(IFNAMSIZ, 0);
                bytes
            }
        }
    }
}

impl From<IpAddr> for Value {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::Ipv4(v4),
            IpAddr::V6(v6) => Self::Ipv6(v6),
        }
    }
}

impl From<Ipv4Addr> for Value {
    fn from(address: Ipv4Addr) -> Self {
        Self::Ipv4(address)
    }
}

impl From<Ipv6Addr> for Value {
    fn from(address: Ipv6Addr) -> Self {
        Self::Ipv6(address)
    }
}

impl From<MacAddr> for Value {
    fn from(mac: MacAddr) -> Self {
        Self::Mac(mac)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ipv4(address) => write!(f, "{address}"),
            Self::Ipv6(address) => write!(f, "{address}"),
            Self::Mac(mac) => write!(f, "{mac}"),
            Self::EtherType(number) => write!(f, "{number:#06x}"),
            Self::Protocol(6) => f.write_str("tcp"),
            Self::Protocol(17) => f.write_str("udp"),
            Self::Protocol(132) => f.write_str("sctp"),
            Self::Protocol(number) | Self::NfProto(number) | Self::Icmp6Type(number) => {
                write!(f, "{number}")
            }
            Self::Port(port) => write!(f, "{port}"),
            Self::Mark(number) | Self::Bits(number) => write!(f, "{number:#x}"),
            Self::IfIndex(number) | Self::AddrType(number) => write!(f, "{number}"),
            Self::IfName(name) => write!(f, "{name:?}"),
        }
    }
}

/// A key of a set or map, or the data of a map: one value, or several concatenated ones.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key {
    bytes: Vec<u8>,
}

impl Key {
    /// Puts values together.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = Value>) -> Self {
        let mut parts = values.into_iter().map(|value| value.bytes());
        let Some(mut bytes) = parts.next() else { return Self { bytes: Vec::new() } };
        for part in parts {
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        Self { bytes }
    }

    /// Takes the bytes in the kernel's layout.
    #[must_use]
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into() }
    }

    /// The bytes in the kernel's layout.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The next key in the kernel's order, which is that of the bytes; `None` after the last.
    pub(crate) fn next(&self) -> Option<Self> {
        let mut bytes = self.bytes.clone();
        for byte in bytes.iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                return Some(Self { bytes });
            }
        }
        None
    }

    /// The previous key in the kernel's order; `None` before the first.
    pub(crate) fn previous(&self) -> Option<Self> {
        let mut bytes = self.bytes.clone();
        for byte in bytes.iter_mut().rev() {
            *byte = byte.wrapping_sub(1);
            if *byte != 0xff {
                return Some(Self { bytes });
            }
        }
        None
    }

    /// Splits the key into values; `None` if its length does not match the types.
    #[must_use]
    pub fn values(&self, types: &[KeyType]) -> Option<Vec<Value>> {
        let mut rest = &self.bytes[..];
        let mut values = Vec::with_capacity(types.len());
        for kind in types {
            values.push(kind.read(rest.get(..kind.size())?)?);
            // The kernel may send the data of a map without the padding of its last component.
            rest = rest.get(kind.size().next_multiple_of(4)..).unwrap_or_default();
        }
        rest.is_empty().then_some(values)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(")?;
        for byte in &self.bytes {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

impl From<Value> for Key {
    fn from(value: Value) -> Self {
        Self { bytes: value.bytes() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concatenations_are_padded_and_single_values_not() {
        let port = Key::from(Value::Port(80));
        assert_eq!(port.bytes(), [0, 80]);
        let key = Key::of([Value::TCP, Value::Port(8080)]);
        assert_eq!(key.bytes(), [6, 0, 0, 0, 0x1f, 0x90, 0, 0]);
        let types = [KeyType::InetProto, KeyType::InetService];
        assert_eq!(length(&types), 8);
        assert_eq!(key.values(&types), Some(vec![Value::TCP, Value::Port(8080)]));
        assert_eq!(key.values(&[KeyType::InetService]), None);
    }

    /// nft: `type ifname . ipv4_addr` is 41 << 6 | 7.
    #[test]
    fn type_numbers_are_those_of_nft() {
        let types = [KeyType::IfName, KeyType::Ipv4Addr];
        assert_eq!(type_number(&types), 41 << 6 | 7);
        assert_eq!(types_from_number(41 << 6 | 7), Some(types.to_vec()));
        assert_eq!(types_from_number(63), None);
    }

    #[test]
    fn every_type_reads_what_it_writes() {
        for value in [
            Value::Ipv4(Ipv4Addr::new(192, 0, 2, 1)),
            Value::IfName("eth0".into()),
            Value::Mark(7),
            Value::Mac(MacAddr([2, 0, 0, 0, 0, 1])),
        ] {
            let found = KeyType::ALL.into_iter().any(|kind| {
                let key = Key::from(value.clone());
                kind.size() == key.bytes().len() && key.values(&[kind]) == Some(vec![value.clone()])
            });
            assert!(found, "{value}");
        }
    }

    proptest::proptest! {
        #[test]
        fn reading_any_key_ends(bytes: Vec<u8>, number: u32) {
            if let Some(types) = types_from_number(number) {
                let _ = Key::from_bytes(bytes).values(&types);
            }
        }
    }
}
