//! The operands of expressions: registers, and the keys of what they load.

/// Maps an enum to the kernel's numbers and back, from one table. A variant without a number does
/// not compile.
macro_rules! numbers {
    ($name:ident, or $other:ident: $($variant:ident = $number:literal),+ $(,)?) => {
        impl $name {
            pub(crate) fn number(self) -> u32 {
                match self {
                    $(Self::$variant => $number,)+
                    Self::$other(number) => number,
                }
            }

            pub(crate) fn from_number(number: u32) -> Self {
                match number {
                    $($number => Self::$variant,)+
                    other => Self::$other(other),
                }
            }
        }
    };
    ($name:ident: $($variant:ident = $number:literal),+ $(,)?) => {
        impl $name {
            pub(crate) fn number(self) -> u32 {
                match self {
                    $(Self::$variant => $number,)+
                }
            }

            pub(crate) fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

/// The registers of expressions: sixteen places of four bytes.
///
/// A value of 16 bytes takes four places, one of 6 bytes two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(u8);

impl Register {
    /// The first place.
    pub const FIRST: Self = Self(0);
    /// The number of places.
    pub const COUNT: u8 = 16;

    /// The place with a number, counted from 0.
    #[must_use]
    pub fn new(place: u8) -> Option<Self> {
        (place < Self::COUNT).then_some(Self(place))
    }

    /// Its number from 0.
    #[must_use]
    pub fn place(self) -> u8 {
        self.0
    }

    /// The place after a value of this many bytes; `None` if there is none.
    #[must_use]
    pub fn behind(self, size: usize) -> Option<Self> {
        let places = u8::try_from(size.div_ceil(4)).ok()?;
        Self::new(self.0.checked_add(places)?)
    }

    /// NFT_REG_1 to NFT_REG_4 if a place starts one, as nft does, otherwise NFT_REG32_00 and so on.
    pub(crate) fn number(self) -> u32 {
        if self.0.is_multiple_of(4) { u32::from(self.0 / 4) + 1 } else { u32::from(self.0) + 8 }
    }

    /// The place at which a register of the kernel's number begins (NFT_REG_*).
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        let place = match number {
            1..=4 => (number - 1) * 4,
            8..=23 => number - 8,
            _ => return None,
        };
        u8::try_from(place).ok().map(Self)
    }
}

/// A property of a packet (NFT_META_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum MetaKey {
    /// EtherType (NFT_META_PROTOCOL).
    Protocol,
    /// Mark (NFT_META_MARK).
    Mark,
    /// Number of the link it came in by (NFT_META_IIF).
    Iif,
    /// Number of the link it leaves by (NFT_META_OIF).
    Oif,
    /// Name of the link it came in by (NFT_META_IIFNAME).
    IifName,
    /// Name of the link it leaves by (NFT_META_OIFNAME).
    OifName,
    /// Hardware type of the link it came in by (NFT_META_IIFTYPE).
    IifType,
    /// User of the socket that sent it (NFT_META_SKUID).
    SocketUser,
    /// IP version (NFT_META_NFPROTO).
    NfProto,
    /// Protocol above IP (NFT_META_L4PROTO).
    L4Proto,
    /// Bridge of the port it came in by (NFT_META_BRI_IIFNAME).
    BridgeIifName,
    /// Unicast, broadcast, multicast (NFT_META_PKTTYPE).
    PktType,
    /// Name of the link by which it came into its VRF (NFT_META_SDIFNAME).
    VrfLinkName,
    /// A number unknown to this code.
    Other(u32),
}

numbers!(MetaKey, or Other:
    Protocol = 1, Mark = 3, Iif = 4, Oif = 5, IifName = 6, OifName = 7, IifType = 8, SocketUser = 10, NfProto = 15,
    L4Proto = 16, BridgeIifName = 17, PktType = 19, VrfLinkName = 34);

/// A header of a packet (NFT_PAYLOAD_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PayloadBase {
    /// Ethernet.
    Link,
    /// IP.
    Network,
    /// TCP, UDP and others.
    Transport,
    /// A number unknown to this code.
    Other(u32),
}

numbers!(PayloadBase, or Other: Link = 0, Network = 1, Transport = 2);

/// A comparison (NFT_CMP_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CmpOp {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

numbers!(CmpOp: Eq = 0, Ne = 1, Lt = 2, Le = 3, Gt = 4, Ge = 5);

/// What happens with the result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LookupTo {
    /// Only whether the key is found matters.
    Match,
    /// The rule goes on if the key is *not* found.
    NoMatch,
    /// The map's verdict is taken.
    Verdict,
    /// The map's data are stored in a register.
    Register(Register),
}

/// A property of a connection (NFT_CT_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CtKey {
    /// State bits (NFT_CT_STATE).
    State,
    /// Direction of the packet (NFT_CT_DIRECTION).
    Direction,
    /// Status bits (NFT_CT_STATUS).
    Status,
    /// Mark (NFT_CT_MARK).
    Mark,
    /// IP version (NFT_CT_L3PROTOCOL).
    L3Proto,
    /// Protocol above IP (NFT_CT_PROTOCOL).
    Protocol,
    /// Source port (NFT_CT_PROTO_SRC).
    SourcePort,
    /// Destination port (NFT_CT_PROTO_DST).
    DestinationPort,
    /// Source IPv4 address (NFT_CT_SRC_IP).
    SourceIp,
    /// Destination IPv4 address (NFT_CT_DST_IP).
    DestinationIp,
    /// Source IPv6 address (NFT_CT_SRC_IP6).
    SourceIp6,
    /// Destination IPv6 address (NFT_CT_DST_IP6).
    DestinationIp6,
    /// A number unknown to this code.
    Other(u32),
}

numbers!(CtKey, or Other:
    State = 0, Direction = 1, Status = 2, Mark = 3, L3Proto = 7, Protocol = 10, SourcePort = 11, DestinationPort = 12,
    SourceIp = 19, DestinationIp = 20, SourceIp6 = 21, DestinationIp6 = 22);

/// A direction of a connection (IP_CT_DIR_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CtDirection {
    /// From the side that opened the connection.
    Original,
    /// To the side that opened the connection.
    Reply,
}

/// What to look up in the routing table (NFT_FIB_RESULT_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FibResult {
    /// The number of the link.
    Oif,
    /// The name of the link.
    OifName,
    /// The kind of the address: local, broadcast, …
    AddrType,
}

numbers!(FibResult: Oif = 1, OifName = 2, AddrType = 3);

/// The input of a routing table lookup (NFTA_FIB_F_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FibFlags(pub u32);

impl FibFlags {
    /// The source address.
    pub const SADDR: Self = Self(1);
    /// The destination address.
    pub const DADDR: Self = Self(2);
    /// Including the mark.
    pub const MARK: Self = Self(4);
    /// On the link it came in by.
    pub const IIF: Self = Self(8);
    /// On the link it leaves by.
    pub const OIF: Self = Self(16);

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A property of a packet's route (NFT_RT_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RtKey {
    /// The largest TCP segment that fits, in the packet's direction and back (NFT_RT_TCPMSS).
    TcpMss,
    /// A number unknown to this code.
    Other(u32),
}

numbers!(RtKey, or Other: TcpMss = 3);

/// Which address is translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NatKind {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// How a refusal is sent (NFT_REJECT_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectKind {
    /// ICMP or ICMPv6, with the code of the packet's IP version.
    Icmp,
    /// TCP reset.
    TcpReset,
    /// ICMP or ICMPv6, as the packet requires; the code means the same in both: 0 no route, 1 port,
    /// 2 host, 3 prohibited.
    Icmpx,
}

numbers!(RejectKind: Icmp = 0, TcpReset = 1, Icmpx = 2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_nfts_numbers() {
        let first = Register::FIRST;
        assert_eq!(first.number(), 1);
        // nft: `[ payload load 2b @ transport header + 2 => reg 9 ]` after a protocol of one byte.
        assert_eq!(first.behind(1).unwrap().number(), 9);
        // nft: `addr_min reg 1 proto_min reg 2` after an IPv6 address.
        assert_eq!(first.behind(16).unwrap().number(), 2);
        assert_eq!(Register::new(15).unwrap().behind(4), None);
        for place in 0..Register::COUNT {
            let register = Register::new(place).unwrap();
            assert_eq!(Register::from_number(register.number()), Some(register));
        }
        assert_eq!(Register::from_number(0), None);
        assert_eq!(Register::from_number(24), None);
    }
}
