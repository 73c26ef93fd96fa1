//! What expressions work on: registers, and the keys of what they load.

/// Where expressions put and find values: sixteen places of four bytes.
///
/// A value of 16 bytes takes four places, one of 6 bytes two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(u8);

impl Register {
    /// The first place.
    pub const FIRST: Self = Self(0);
    /// How many places there are.
    pub const COUNT: u8 = 16;

    /// The place with a number from 0.
    #[must_use]
    pub fn new(place: u8) -> Option<Self> {
        (place < Self::COUNT).then_some(Self(place))
    }

    /// Its number from 0.
    #[must_use]
    pub fn place(self) -> u8 {
        self.0
    }

    /// The place behind a value of so many bytes; `None` if there is none.
    #[must_use]
    pub fn behind(self, size: usize) -> Option<Self> {
        let places = u8::try_from(size.div_ceil(4)).ok()?;
        Self::new(self.0.checked_add(places)?)
    }

    /// NFT_REG_1 to NFT_REG_4 where a place starts one, as nft does, otherwise NFT_REG32_00 and so on.
    pub(crate) fn number(self) -> u32 {
        if self.0.is_multiple_of(4) { u32::from(self.0 / 4) + 1 } else { u32::from(self.0) + 8 }
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        let place = match number {
            1..=4 => (number - 1) * 4,
            8..=23 => number - 8,
            _ => return None,
        };
        u8::try_from(place).ok().map(Self)
    }
}

/// Something about a packet (NFT_META_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    /// IP version (NFT_META_NFPROTO).
    NfProto,
    /// Protocol above IP (NFT_META_L4PROTO).
    L4Proto,
    /// Bridge of the port it came in by (NFT_META_BRI_IIFNAME).
    BridgeIifName,
    /// Unicast, broadcast, multicast (NFT_META_PKTTYPE).
    PktType,
    /// A number this code does not know.
    Other(u32),
}

impl MetaKey {
    const NUMBERS: [(Self, u32); 11] = [
        (Self::Protocol, 1),
        (Self::Mark, 3),
        (Self::Iif, 4),
        (Self::Oif, 5),
        (Self::IifName, 6),
        (Self::OifName, 7),
        (Self::IifType, 8),
        (Self::NfProto, 15),
        (Self::L4Proto, 16),
        (Self::BridgeIifName, 17),
        (Self::PktType, 19),
    ];

    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Other(number) => number,
            known => Self::NUMBERS.iter().find(|entry| entry.0 == known).map_or(0, |entry| entry.1),
        }
    }

    pub(crate) fn from_number(number: u32) -> Self {
        let found = Self::NUMBERS.iter().find(|entry| entry.1 == number);
        found.map_or(Self::Other(number), |entry| entry.0)
    }
}

/// A header of a packet (NFT_PAYLOAD_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PayloadBase {
    /// Ethernet.
    Link,
    /// IP.
    Network,
    /// TCP, UDP and others.
    Transport,
    /// A number this code does not know.
    Other(u32),
}

impl PayloadBase {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Link => 0,
            Self::Network => 1,
            Self::Transport => 2,
            Self::Other(number) => number,
        }
    }

    pub(crate) fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Link,
            1 => Self::Network,
            2 => Self::Transport,
            other => Self::Other(other),
        }
    }
}

/// A comparison (NFT_CMP_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

impl CmpOp {
    const NUMBERS: [(Self, u32); 6] =
        [(Self::Eq, 0), (Self::Ne, 1), (Self::Lt, 2), (Self::Le, 3), (Self::Gt, 4), (Self::Ge, 5)];

    pub(crate) fn number(self) -> u32 {
        Self::NUMBERS.iter().find(|entry| entry.0 == self).map_or(0, |entry| entry.1)
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::NUMBERS.iter().find(|entry| entry.1 == number).map(|entry| entry.0)
    }
}

/// What becomes of what a lookup finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LookupTo {
    /// Only whether it is there matters.
    Match,
    /// The rule goes on if it is *not* there.
    NoMatch,
    /// The map's verdict is taken.
    Verdict,
    /// The map's data go to a register.
    Register(Register),
}

/// Something about a connection (NFT_CT_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    /// A number this code does not know.
    Other(u32),
}

impl CtKey {
    const NUMBERS: [(Self, u32); 12] = [
        (Self::State, 0),
        (Self::Direction, 1),
        (Self::Status, 2),
        (Self::Mark, 3),
        (Self::L3Proto, 7),
        (Self::Protocol, 10),
        (Self::SourcePort, 11),
        (Self::DestinationPort, 12),
        (Self::SourceIp, 19),
        (Self::DestinationIp, 20),
        (Self::SourceIp6, 21),
        (Self::DestinationIp6, 22),
    ];

    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Other(number) => number,
            known => Self::NUMBERS.iter().find(|entry| entry.0 == known).map_or(0, |entry| entry.1),
        }
    }

    pub(crate) fn from_number(number: u32) -> Self {
        let found = Self::NUMBERS.iter().find(|entry| entry.1 == number);
        found.map_or(Self::Other(number), |entry| entry.0)
    }
}

/// A direction of a connection (IP_CT_DIR_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CtDirection {
    /// From the one who began.
    Original,
    /// To the one who began.
    Reply,
}

/// What is asked of the routing table (NFT_FIB_RESULT_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FibResult {
    /// The number of the link.
    Oif,
    /// The name of the link.
    OifName,
    /// The kind of the address: local, broadcast, …
    AddrType,
}

impl FibResult {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Oif => 1,
            Self::OifName => 2,
            Self::AddrType => 3,
        }
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        [Self::Oif, Self::OifName, Self::AddrType]
            .into_iter()
            .find(|known| known.number() == number)
    }
}

/// About what the routing table is asked (NFTA_FIB_F_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FibFlags(pub u32);

impl FibFlags {
    /// The source address.
    pub const SADDR: Self = Self(1);
    /// The destination address.
    pub const DADDR: Self = Self(2);
    /// With the mark.
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

/// Which address is translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NatKind {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// How a refusal is told (NFT_REJECT_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectKind {
    /// ICMP or ICMPv6, with the code of the packet's IP version.
    Icmp,
    /// TCP reset.
    TcpReset,
    /// ICMP or ICMPv6, whichever fits; the code is one of both: 0 no route, 1 port, 2 host, 3 prohibited.
    Icmpx,
}

impl RejectKind {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Icmp => 0,
            Self::TcpReset => 1,
            Self::Icmpx => 2,
        }
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        [Self::Icmp, Self::TcpReset, Self::Icmpx].into_iter().find(|known| known.number() == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_nfts_numbers() {
        let first = Register::FIRST;
        assert_eq!(first.number(), 1);
        // nft: `[ payload load 2b @ transport header + 2 => reg 9 ]` behind a protocol of one byte.
        assert_eq!(first.behind(1).unwrap().number(), 9);
        // nft: `addr_min reg 1 proto_min reg 2` behind an IPv6 address.
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
