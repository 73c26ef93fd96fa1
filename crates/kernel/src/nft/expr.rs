//! The expressions that rules consist of.
//!
//! Most rules are written with [`NewRule`](super::NewRule), which makes these; they are also what a rule read from the
//! kernel is decoded to.

use super::names::{Family, Verdict};
use super::operand::{
    CmpOp, CtDirection, CtKey, FibFlags, FibResult, LookupTo, MetaKey, NatKind, PayloadBase,
    Register, RejectKind,
};

/// One expression of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expr {
    /// Loads something about the packet.
    Meta {
        /// What.
        key: MetaKey,
        /// Where to.
        register: Register,
    },
    /// Sets something about the packet.
    MetaSet {
        /// What.
        key: MetaKey,
        /// From where.
        register: Register,
    },
    /// Loads bytes of the packet.
    Payload {
        /// From which header on.
        base: PayloadBase,
        /// Where they start.
        offset: u32,
        /// How many.
        len: u32,
        /// Where to.
        register: Register,
    },
    /// Writes bytes of the packet. Checksums of TCP, UDP and ICMPv6 follow, as for an address; a header's own does not.
    PayloadSet {
        /// From which header on.
        base: PayloadBase,
        /// Where they start.
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
        /// With what.
        data: Vec<u8>,
    },
    /// Compares a register with a range; the rule ends here if it does not match.
    Range {
        /// Matches outside instead of inside.
        invert: bool,
        /// What.
        register: Register,
        /// The first value.
        from: Vec<u8>,
        /// The last value.
        to: Vec<u8>,
    },
    /// Masks a register and flips bits of it.
    Bitwise(BitwiseExpr),
    /// Looks a register up in a set or map; the rule ends here if it is not there.
    Lookup {
        /// The set or map.
        set: String,
        /// The key, and what stands in the registers behind it.
        register: Register,
        /// What becomes of what is found.
        to: LookupTo,
    },
    /// Loads something about the connection.
    Ct {
        /// What.
        key: CtKey,
        /// Of which direction, for addresses and ports.
        direction: Option<CtDirection>,
        /// Where to.
        register: Register,
    },
    /// Sets something about the connection.
    CtSet {
        /// What.
        key: CtKey,
        /// From where.
        register: Register,
    },
    /// Asks the routing table about an address of the packet.
    Fib {
        /// What is asked.
        result: FibResult,
        /// About what.
        flags: FibFlags,
        /// Where to.
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
        /// Of which IP version: [`Family::Ip`] or [`Family::Ip6`].
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
    /// Writes to the kernel's log.
    Log {
        /// What stands before.
        prefix: Option<String>,
    },
    /// Refuses, and tells the sender.
    Reject {
        /// How it is told.
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
    /// An expression this code does not know.
    Other {
        /// Its name.
        name: String,
        /// Its attributes.
        attributes: Vec<u8>,
    },
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
    /// The bits that are flipped then; as long as the mask.
    pub xor: Vec<u8>,
}
