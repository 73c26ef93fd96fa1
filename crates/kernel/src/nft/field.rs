//! The packet fields that rules match on, under nft's names.
//!
//! A [`Field`] knows which protocol a packet must have for the field to mean anything;
//! [`NewRule`](super::NewRule) adds that check before the first use, as nft does. Ports are the
//! exception: `th dport` works for any protocol with ports at that offset, so compare [`l4proto`]
//! first or put it into the same key.

use super::expr::Expr;
use super::key::KeyType;
use super::names::Family;
use super::operand::{CtDirection, CtKey, FibFlags, FibResult, MetaKey, PayloadBase, Register};

/// EtherTypes (RFC 9542) of IPv4 and IPv6.
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// RFC 4443 §2.1: the protocol number of ICMPv6.
const ICMPV6: u8 = 58;
/// `linux include/uapi/linux/if_arp.h` ARPHRD_ETHER.
const ARPHRD_ETHER: u16 = 1;

/// A packet field that can be compared or looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    load: Load,
    guard: Option<Guard>,
    kind: KeyType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    Meta(MetaKey),
    Payload(PayloadBase, u32),
    Ct(CtKey, Option<CtDirection>),
    Fib(FibResult, FibFlags),
}

/// The condition under which a field means anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    Ipv4,
    Ipv6,
    Ethernet,
    Icmp6,
}

impl Field {
    const fn meta(key: MetaKey, kind: KeyType) -> Self {
        Self { load: Load::Meta(key), guard: None, kind }
    }

    const fn payload(base: PayloadBase, offset: u32, guard: Option<Guard>, kind: KeyType) -> Self {
        Self { load: Load::Payload(base, offset), guard, kind }
    }

    const fn ct(key: CtKey, direction: Option<CtDirection>, kind: KeyType) -> Self {
        Self { load: Load::Ct(key, direction), guard: None, kind }
    }

    /// The type of its values.
    #[must_use]
    pub fn kind(&self) -> KeyType {
        self.kind
    }

    pub(crate) fn guard(&self) -> Option<Guard> {
        self.guard
    }

    /// The expression that loads it.
    #[must_use]
    pub fn load(&self, register: Register) -> Expr {
        match self.load {
            Load::Meta(key) => Expr::Meta { key, register },
            Load::Payload(base, offset) => {
                // At most 16.
                let len = u32::try_from(self.kind.size()).unwrap_or(u32::MAX);
                Expr::Payload { base, offset, len, register }
            }
            Load::Ct(key, direction) => Expr::Ct { key, direction, register },
            Load::Fib(result, flags) => Expr::Fib { result, flags, register },
        }
    }
}

/// A packet field that rules change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ip6Address {
    /// `ip6 saddr` (RFC 8200: byte 8).
    Source,
    /// `ip6 daddr` (RFC 8200: byte 24).
    Destination,
}

impl Ip6Address {
    /// The expression that writes it.
    pub(crate) fn store(self, register: Register) -> Expr {
        let offset = match self {
            Self::Source => 8,
            Self::Destination => 24,
        };
        Expr::PayloadSet { base: PayloadBase::Network, offset, len: 16, register }
    }
}

impl Guard {
    /// Returns the conditions to check, the lower protocol's first.
    pub(crate) fn needed(self) -> &'static [Guard] {
        match self {
            Self::Ipv4 => &[Self::Ipv4],
            Self::Ipv6 => &[Self::Ipv6],
            Self::Ethernet => &[Self::Ethernet],
            Self::Icmp6 => &[Self::Ipv6, Self::Icmp6],
        }
    }

    /// Returns what to load and which value it must have in a table of a family; `None` if the
    /// condition always holds there.
    pub(crate) fn check(self, family: Family) -> Option<(MetaKey, Vec<u8>)> {
        match (self, family) {
            (Self::Ipv4, Family::Inet) => Some((MetaKey::NfProto, vec![Family::Ip.number()])),
            (Self::Ipv6, Family::Inet) => Some((MetaKey::NfProto, vec![Family::Ip6.number()])),
            (Self::Ipv4, Family::Bridge | Family::Netdev) => {
                Some((MetaKey::Protocol, ETHERTYPE_IPV4.to_be_bytes().to_vec()))
            }
            (Self::Ipv6, Family::Bridge | Family::Netdev) => {
                Some((MetaKey::Protocol, ETHERTYPE_IPV6.to_be_bytes().to_vec()))
            }
            (Self::Ethernet, Family::Inet | Family::Ip | Family::Ip6) => {
                Some((MetaKey::IifType, ARPHRD_ETHER.to_ne_bytes().to_vec()))
            }
            (Self::Icmp6, _) => Some((MetaKey::L4Proto, vec![ICMPV6])),
            (Self::Ipv4 | Self::Ipv6 | Self::Ethernet, _) => None,
        }
    }
}

/// `iifname`: the link it came in by; in a bridge table the port.
#[must_use]
pub const fn iifname() -> Field {
    Field::meta(MetaKey::IifName, KeyType::IfName)
}

/// `oifname`: the link it leaves by; in a bridge table the port.
#[must_use]
pub const fn oifname() -> Field {
    Field::meta(MetaKey::OifName, KeyType::IfName)
}

/// `meta ibrname`: the bridge of the port it came in by.
#[must_use]
pub const fn ibrname() -> Field {
    Field::meta(MetaKey::BridgeIifName, KeyType::IfName)
}

/// `meta sdifname`: the link by which it came into its VRF, where [`iifname`] is the VRF; empty
/// outside a VRF. At the hooks input and forward alone.
#[must_use]
pub const fn sdifname() -> Field {
    Field::meta(MetaKey::VrfLinkName, KeyType::IfName)
}

/// `meta mark`.
#[must_use]
pub const fn mark() -> Field {
    Field::meta(MetaKey::Mark, KeyType::Mark)
}

/// `meta nfproto`: IPv4 or IPv6.
#[must_use]
pub const fn nfproto() -> Field {
    Field::meta(MetaKey::NfProto, KeyType::NfProto)
}

/// `meta l4proto`: TCP, UDP, …
#[must_use]
pub const fn l4proto() -> Field {
    Field::meta(MetaKey::L4Proto, KeyType::InetProto)
}

/// `meta protocol`: the EtherType.
#[must_use]
pub const fn protocol() -> Field {
    Field::meta(MetaKey::Protocol, KeyType::EtherType)
}

/// `ip saddr` (RFC 791: byte 12).
#[must_use]
pub const fn ip_saddr() -> Field {
    Field::payload(PayloadBase::Network, 12, Some(Guard::Ipv4), KeyType::Ipv4Addr)
}

/// `ip daddr` (RFC 791: byte 16).
#[must_use]
pub const fn ip_daddr() -> Field {
    Field::payload(PayloadBase::Network, 16, Some(Guard::Ipv4), KeyType::Ipv4Addr)
}

/// `ip6 saddr` (RFC 8200: byte 8).
#[must_use]
pub const fn ip6_saddr() -> Field {
    Field::payload(PayloadBase::Network, 8, Some(Guard::Ipv6), KeyType::Ipv6Addr)
}

/// `ip6 daddr` (RFC 8200: byte 24).
#[must_use]
pub const fn ip6_daddr() -> Field {
    Field::payload(PayloadBase::Network, 24, Some(Guard::Ipv6), KeyType::Ipv6Addr)
}

/// `th sport`: the source port of TCP, UDP, SCTP or DCCP.
#[must_use]
pub const fn th_sport() -> Field {
    Field::payload(PayloadBase::Transport, 0, None, KeyType::InetService)
}

/// `th dport`: the destination port of TCP, UDP, SCTP or DCCP.
#[must_use]
pub const fn th_dport() -> Field {
    Field::payload(PayloadBase::Transport, 2, None, KeyType::InetService)
}

/// `icmpv6 type` (RFC 4443 §2.1: byte 0).
#[must_use]
pub const fn icmp6_type() -> Field {
    Field::payload(PayloadBase::Transport, 0, Some(Guard::Icmp6), KeyType::Icmp6Type)
}

/// `ether daddr`.
#[must_use]
pub const fn ether_daddr() -> Field {
    Field::payload(PayloadBase::Link, 0, Some(Guard::Ethernet), KeyType::EtherAddr)
}

/// `ether saddr`.
#[must_use]
pub const fn ether_saddr() -> Field {
    Field::payload(PayloadBase::Link, 6, Some(Guard::Ethernet), KeyType::EtherAddr)
}

/// `arp saddr ether` (RFC 826: byte 8). For tables of family arp, or after a check of [`protocol`].
#[must_use]
pub const fn arp_sender_mac() -> Field {
    Field::payload(PayloadBase::Network, 8, None, KeyType::EtherAddr)
}

/// `arp saddr ip` (RFC 826: byte 14). For tables of family arp, or after a check of [`protocol`].
#[must_use]
pub const fn arp_sender_ip() -> Field {
    Field::payload(PayloadBase::Network, 14, None, KeyType::Ipv4Addr)
}

/// `ct state`: bits, see [`ct_state_bits`].
#[must_use]
pub const fn ct_state() -> Field {
    Field::ct(CtKey::State, None, KeyType::CtState)
}

/// `ct status`: bits, see [`ct_status_bits`].
#[must_use]
pub const fn ct_status() -> Field {
    Field::ct(CtKey::Status, None, KeyType::CtStatus)
}

/// `ct mark`.
#[must_use]
pub const fn ct_mark() -> Field {
    Field::ct(CtKey::Mark, None, KeyType::Mark)
}

/// `ct original ip daddr`: the destination of the first packet, before any translation.
#[must_use]
pub const fn ct_original_ip_daddr() -> Field {
    Field::ct(CtKey::DestinationIp, Some(CtDirection::Original), KeyType::Ipv4Addr)
}

/// `ct original ip6 daddr`: the destination of the first packet, before any translation.
#[must_use]
pub const fn ct_original_ip6_daddr() -> Field {
    Field::ct(CtKey::DestinationIp6, Some(CtDirection::Original), KeyType::Ipv6Addr)
}

/// `ct original ip saddr`.
#[must_use]
pub const fn ct_original_ip_saddr() -> Field {
    Field::ct(CtKey::SourceIp, Some(CtDirection::Original), KeyType::Ipv4Addr)
}

/// `ct original ip6 saddr`.
#[must_use]
pub const fn ct_original_ip6_saddr() -> Field {
    Field::ct(CtKey::SourceIp6, Some(CtDirection::Original), KeyType::Ipv6Addr)
}

/// `ct original proto-dst`: the destination port of the first packet.
#[must_use]
pub const fn ct_original_proto_dst() -> Field {
    Field::ct(CtKey::DestinationPort, Some(CtDirection::Original), KeyType::InetService)
}

/// `fib daddr type`: whether the destination is an address of this host, a broadcast address, …
#[must_use]
pub const fn fib_daddr_type() -> Field {
    Field {
        load: Load::Fib(FibResult::AddrType, FibFlags::DADDR),
        guard: None,
        kind: KeyType::FibAddrType,
    }
}

/// `fib daddr . iif type`: the same of an address of the link that the packet came in by. If that
/// link is in a VRF, only this shows that the address is this host's: the VRF's table has it. It
/// may be used at the hooks prerouting, input and forward.
#[must_use]
pub const fn fib_daddr_iif_type() -> Field {
    Field {
        load: Load::Fib(FibResult::AddrType, FibFlags(FibFlags::DADDR.0 | FibFlags::IIF.0)),
        guard: None,
        kind: KeyType::FibAddrType,
    }
}

/// `fib saddr type`.
#[must_use]
pub const fn fib_saddr_type() -> Field {
    Field {
        load: Load::Fib(FibResult::AddrType, FibFlags::SADDR),
        guard: None,
        kind: KeyType::FibAddrType,
    }
}

/// `fib saddr . iif oif`: the link that the packet came in by, if this host would answer by it; else
/// 0. It may be used at the hook prerouting.
#[must_use]
pub const fn fib_reverse_oif() -> Field {
    Field {
        load: Load::Fib(FibResult::Oif, FibFlags(FibFlags::SADDR.0 | FibFlags::IIF.0)),
        guard: None,
        kind: KeyType::IfIndex,
    }
}

/// Bits of [`ct_state`] (nftables src/ct.c, `NF_CT_STATE_BIT`).
pub mod ct_state_bits {
    /// Belongs to no connection.
    pub const INVALID: u32 = 1;
    /// Of a connection with packets in both directions.
    pub const ESTABLISHED: u32 = 2;
    /// Belongs to another connection, such as an ICMP error.
    pub const RELATED: u32 = 4;
    /// The first of a connection.
    pub const NEW: u32 = 8;
    /// Exempt from tracking.
    pub const UNTRACKED: u32 = 64;
}

/// Bits of [`ct_status`] (`linux include/uapi/linux/netfilter/nf_conntrack_common.h` IPS_*).
pub mod ct_status_bits {
    /// The source is translated.
    pub const SNAT: u32 = 1 << 4;
    /// The destination is translated.
    pub const DNAT: u32 = 1 << 5;
}

/// Bits of the byte with TCP's flags (RFC 9293 §3.1).
pub mod tcp_flag_bits {
    /// The sender has no more to send.
    pub const FIN: u8 = 0x01;
    /// The first packet in either direction.
    pub const SYN: u8 = 0x02;
    /// There is no such connection.
    pub const RST: u8 = 0x04;
    /// It acknowledges.
    pub const ACK: u8 = 0x10;
}
