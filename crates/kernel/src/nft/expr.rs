//! The expressions that rules consist of.
//!
//! Most rules are written with [`NewRule`](super::NewRule), which creates these expressions. A rule
//! read from the kernel is decoded to them too.

use super::names::{Family, Verdict};
use super::operand::{
    CmpOp, CtDirection, CtKey, FibFlags, FibResult, LookupTo, MetaKey, NatKind, PayloadBase,
    Register, RejectKind, RtKey,
};

/// One expression of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expr {
    /// Loads a property of the packet.
    Meta {
        /// What.
        key: MetaKey,
        /// Where to.
        register: Register,
    },
    /// Sets a property of the packet.
    MetaSet {
        /// What.
        key: MetaKey,
        /// From where.
        register: Register,
    },
    /// Loads bytes of the packet.
    Payload {
        /// The header from which the offset counts.
        base: PayloadBase,
        /// Their offset.
        offset: u32,
        /// How many.
        len: u32,
        /// Where to.
        register: Register,
    },
    /// Writes bytes of the packet. The checksums of TCP, UDP and ICMPv6 are updated, as for an
    /// address; a header's own is not.
    PayloadSet {
        /// The header from which the offset counts.
        base: PayloadBase,
        /// Their offset.
        offset: u32,
        /// How many.
        len: u32,
        /// From where.
        register: Register,
    },
    /// Compares a register; the rule ends here if it does not match.
    Cmp {
        /// How.
        op: CmpOp,
        /// What.
        register: Register,
        /// The bytes to compare with.
        data: Vec<u8>,
    },
    /// Compares a register with a range; the rule ends here if it does not match.
    Range {
        /// Matches outside the range instead of inside.
        invert: bool,
        /// What.
        register: Register,
        /// The first value.
        from: Vec<u8>,
        /// The last value.
        to: Vec<u8>,
    },
    /// Masks a register and flips bits in it.
    Bitwise(BitwiseExpr),
    /// Looks a register up in a set or map; the rule ends here if it is not found.
    Lookup {
        /// The set or map.
        set: String,
        /// The key, and what the following registers contain.
        register: Register,
        /// What to do with the result.
        to: LookupTo,
    },
    /// Loads a property of the connection.
    Ct {
        /// What.
        key: CtKey,
        /// The direction, for addresses and ports.
        direction: Option<CtDirection>,
        /// Where to.
        register: Register,
    },
    /// Sets a property of the connection.
    CtSet {
        /// What.
        key: CtKey,
        /// From where.
        register: Register,
    },
    /// Looks up an address of the packet in the routing table.
    Fib {
        /// The wanted result.
        result: FibResult,
        /// The addresses and links to look up.
        flags: FibFlags,
        /// Where to.
        register: Register,
    },
    /// Loads a property of the packet's route.
    Rt {
        /// What.
        key: RtKey,
        /// Where to.
        register: Register,
    },
    /// Turns the numbers in a register from the host's byte order into the network's.
    ToNetworkOrder {
        /// From where.
        source: Register,
        /// Where to.
        register: Register,
        /// How many bytes there are.
        len: u32,
        /// How long each number is: 2, 4 or 8 bytes.
        size: u32,
    },
    /// Writes bytes of an option of the TCP header, if the packet has it. The checksum is updated.
    /// A largest segment (option 2) is only made smaller.
    TcpOptionSet {
        /// The option's number.
        option: u8,
        /// The offset of the bytes in the option.
        offset: u32,
        /// How many.
        len: u32,
        /// From where.
        register: Register,
    },
    /// Puts bytes into a register.
    Immediate {
        /// Where to.
        register: Register,
        /// What.
        data: Vec<u8>,
    },
    /// Decides.
    Verdict(Verdict),
    /// Translates an address.
    Nat {
        /// Which address.
        kind: NatKind,
        /// The IP version: [`Family::Ip`] or [`Family::Ip6`].
        family: Family,
        /// The new address.
        address: Option<Register>,
        /// The new port.
        port: Option<Register>,
        /// NF_NAT_RANGE_*; the kernel adds what the registers imply.
        flags: u32,
    },
    /// Translates the source to an address of the link the packet leaves by.
    Masquerade {
        /// NF_NAT_RANGE_*.
        flags: u32,
    },
    /// Translates the destination to this host.
    Redirect {
        /// The new port.
        port: Option<Register>,
        /// NF_NAT_RANGE_*.
        flags: u32,
    },
    /// Counts.
    Counter {
        /// Packets so far.
        packets: u64,
        /// Bytes so far.
        bytes: u64,
    },
    /// Goes on for as many packets as are allowed, and ends the rule for the others.
    Limit {
        /// How many packets.
        rate: u64,
        /// In how many seconds.
        seconds: u64,
        /// How many more may come at once.
        burst: u32,
        /// Goes on for the others instead.
        over: bool,
    },
    /// Writes to the kernel's log, or passes the packet to the program that listens to a group of
    /// nflog ([`crate::nflog`]).
    Log {
        /// The prefix of the line, or of what the listener gets.
        prefix: Option<String>,
        /// The group.
        group: Option<LogGroup>,
    },
    /// Refuses the packet, and informs the sender.
    Reject {
        /// How the refusal is sent.
        kind: RejectKind,
        /// The ICMP code.
        code: u8,
    },
    /// Exempts the packet from connection tracking.
    Notrack,
    /// A match of iptables, in a rule made by iptables-nft.
    XtMatch {
        /// Its name, such as `comment`.
        name: String,
        /// Its revision.
        revision: u32,
        /// Its settings, as the kernel's C structure.
        info: Vec<u8>,
    },
    /// A target of iptables, in a rule made by iptables-nft.
    XtTarget {
        /// Its name, such as `MASQUERADE`.
        name: String,
        /// Its revision.
        revision: u32,
        /// Its settings, as the kernel's C structure.
        info: Vec<u8>,
    },
    /// An expression unknown to this code.
    Other {
        /// Its name.
        name: String,
        /// Its attributes.
        attributes: Vec<u8>,
    },
}

/// A group of nflog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogGroup {
    /// Its number.
    pub number: u16,
    /// How many bytes of each packet are passed at most; `None`: as many as the listener wants.
    pub snaplen: Option<u32>,
}

/// `register = (register & mask) ^ xor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BitwiseExpr {
    /// From where.
    pub source: Register,
    /// Where to.
    pub register: Register,
    /// The bits that are kept.
    pub mask: Vec<u8>,
    /// The bits that are flipped afterwards; as long as the mask.
    pub xor: Vec<u8>,
}
