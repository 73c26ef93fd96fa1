//! Rules, written with nft's words.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

use super::expr::{BitwiseExpr, Expr, LogGroup};
use super::field::{self, Field, Guard, Ip6Address, tcp_flag_bits};
use super::key::Value;
use super::names::{Family, TableRef, Verdict};
use super::operand::{
    CmpOp, CtKey, LookupTo, MetaKey, NatKind, PayloadBase, Register, RejectKind, RtKey,
};
use crate::route::IpFamily;

/// `linux include/uapi/linux/netfilter/nf_nat.h` NF_NAT_RANGE_PROTO_RANDOM_FULLY.
const RANDOM_FULLY: u32 = 1 << 4;
/// `linux include/uapi/linux/if_packet.h` PACKET_MULTICAST.
const PACKET_MULTICAST: u8 = 2;
/// RFC 9293 §3.1: the byte of the TCP header with its flags.
const TCP_FLAGS: u32 = 13;
/// RFC 9293 §3.2: the option "maximum segment size".
const TCP_OPTION_MSS: u8 = 2;

/// A rule to add: conditions from left to right, then the action.
///
/// ```
/// use kernel::nft::{Family, NewRule, TableRef, Value, field};
///
/// let table = TableRef::new(Family::Inet, "example");
/// // fib daddr type local dnat ip to meta l4proto . th dport map @ports comment "ports"
/// NewRule::new(&table, "prerouting")
///     .is(field::fib_daddr_type(), Value::LOCAL)
///     .dnat_to_map(kernel::route::IpFamily::V4, &[field::l4proto(), field::th_dport()], "ports")
///     .comment("ports");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRule {
    /// Its table.
    pub table: TableRef,
    /// Its chain.
    pub chain: String,
    /// Its expressions.
    pub exprs: Vec<Expr>,
    /// The comment, for people and for finding the owner; at most
    /// [`MAX_COMMENT`](super::MAX_COMMENT) bytes.
    pub comment: Option<String>,
    guarded: Vec<Guard>,
}

impl NewRule {
    /// A rule that does nothing yet.
    #[must_use]
    pub fn new(table: &TableRef, chain: impl Into<String>) -> Self {
        Self {
            table: table.clone(),
            chain: chain.into(),
            exprs: Vec::new(),
            comment: None,
            guarded: Vec::new(),
        }
    }

    /// Adds a comment.
    #[must_use]
    pub fn comment(self, comment: impl Into<String>) -> Self {
        Self { comment: Some(comment.into()), ..self }
    }

    /// Adds an expression unchanged.
    #[must_use]
    pub fn expr(mut self, expr: Expr) -> Self {
        self.exprs.push(expr);
        self
    }

    /// `FIELD VALUE`: continues if they are equal.
    #[must_use]
    pub fn is(self, field: Field, value: impl Into<Value>) -> Self {
        self.compare(field, CmpOp::Eq, value.into().bytes())
    }

    /// `FIELD != VALUE`: continues if they are not equal (and the packet has the field's protocol).
    #[must_use]
    pub fn is_not(self, field: Field, value: impl Into<Value>) -> Self {
        self.compare(field, CmpOp::Ne, value.into().bytes())
    }

    /// `iifname "PREFIX*"`: continues if a name has the prefix.
    #[must_use]
    pub fn name_starts_with(self, field: Field, prefix: &str) -> Self {
        self.compare(field, CmpOp::Eq, prefix.as_bytes().to_vec())
    }

    /// `FIELD NET`: continues if an address is in a prefix.
    #[must_use]
    pub fn in_net(self, field: Field, net: IpNet) -> Self {
        self.compare_net(field, CmpOp::Eq, net)
    }

    /// `FIELD != NET`: continues if an address is not in a prefix (and the packet has the field's
    /// protocol).
    #[must_use]
    pub fn not_in_net(self, field: Field, net: IpNet) -> Self {
        self.compare_net(field, CmpOp::Ne, net)
    }

    /// `FIELD FIRST-LAST`: continues if a port or address is in a range.
    #[must_use]
    pub fn in_range(self, field: Field, first: impl Into<Value>, last: impl Into<Value>) -> Self {
        let register = Register::FIRST;
        self.load(&[field])
            .expr(Expr::Cmp { op: CmpOp::Ge, register, data: first.into().bytes() })
            .expr(Expr::Cmp { op: CmpOp::Le, register, data: last.into().bytes() })
    }

    /// `ct state BITS`: continues if any of the bits is set.
    #[must_use]
    pub fn has_any(self, field: Field, bits: u32) -> Self {
        self.mask_bits(field, bits, CmpOp::Ne, 0)
    }

    /// `ct status & BITS == 0`: continues if none of the bits is set.
    #[must_use]
    pub fn has_none(self, field: Field, bits: u32) -> Self {
        self.mask_bits(field, bits, CmpOp::Eq, 0)
    }

    /// `mark & BITS == BITS`: continues if all of the bits are set.
    #[must_use]
    pub fn has_all(self, field: Field, bits: u32) -> Self {
        self.mask_bits(field, bits, CmpOp::Eq, bits)
    }

    /// `FIELDS @SET`: continues if the key is in a set.
    #[must_use]
    pub fn in_set(self, fields: &[Field], set: impl Into<String>) -> Self {
        self.look_up(fields, set, LookupTo::Match)
    }

    /// `FIELDS != @SET`: continues if the key is not in a set (and the packet has the fields'
    /// protocols).
    #[must_use]
    pub fn not_in_set(self, fields: &[Field], set: impl Into<String>) -> Self {
        self.look_up(fields, set, LookupTo::NoMatch)
    }

    /// `FIELDS vmap @MAP`: applies the map's verdict; continues with the next rule if the key is
    /// not found.
    #[must_use]
    pub fn vmap(self, fields: &[Field], map: impl Into<String>) -> Self {
        self.look_up(fields, map, LookupTo::Verdict)
    }

    /// `dnat ip to FIELDS map @MAP`: translates the destination to the map's address and port (data
    /// `ipv4_addr . inet_service` or `ipv6_addr . inet_service`).
    #[must_use]
    pub fn dnat_to_map(self, family: IpFamily, fields: &[Field], map: impl Into<String>) -> Self {
        let (family, size) = nat_family(family);
        let address = Register::FIRST;
        self.look_up(fields, map, LookupTo::Register(address)).expr(Expr::Nat {
            kind: NatKind::Destination,
            family,
            address: Some(address),
            port: address.behind(size),
            flags: 0,
        })
    }

    /// `dnat ip to ADDRESS:PORT`.
    #[must_use]
    pub fn dnat(self, address: IpAddr, port: Option<u16>) -> Self {
        self.nat(NatKind::Destination, address, port)
    }

    /// `snat ip to ADDRESS`.
    #[must_use]
    pub fn snat(self, address: IpAddr) -> Self {
        self.nat(NatKind::Source, address, None)
    }

    /// `masquerade`.
    #[must_use]
    pub fn masquerade(self) -> Self {
        self.expr(Expr::Masquerade { flags: 0 })
    }

    /// `masquerade fully-random`.
    #[must_use]
    pub fn masquerade_fully_random(self) -> Self {
        self.expr(Expr::Masquerade { flags: RANDOM_FULLY })
    }

    /// `redirect to :PORT`.
    #[must_use]
    pub fn redirect(self, port: u16) -> Self {
        let register = Register::FIRST;
        self.expr(Expr::Immediate { register, data: port.to_be_bytes().to_vec() })
            .expr(Expr::Redirect { port: Some(register), flags: 0 })
    }

    /// `ip6 saddr set ADDRESS`, or `daddr`, without connection tracking. Must follow a condition
    /// that only IPv6 packets meet.
    #[must_use]
    pub fn set_ip6(self, which: Ip6Address, address: Ipv6Addr) -> Self {
        let register = Register::FIRST;
        self.expr(Expr::Immediate { register, data: address.octets().to_vec() })
            .expr(which.store(register))
    }

    /// `meta skuid >= 0`: continues if a process of this host sent the packet, by a socket that it
    /// has open. Packets that this host forwards have no socket, and those that the kernel itself
    /// makes have no socket of a process.
    #[must_use]
    pub fn from_process(self) -> Self {
        let register = Register::FIRST;
        self.expr(Expr::Meta { key: MetaKey::SocketUser, register }).expr(Expr::Cmp {
            op: CmpOp::Ge,
            register,
            data: vec![0; 4],
        })
    }

    /// `tcp flags & MASK == FLAGS`: continues if these of a TCP packet's flags are so
    /// ([`tcp_flag_bits`]).
    #[must_use]
    pub fn tcp_flags(self, mask: u8, flags: u8) -> Self {
        self.compare_flags(mask, CmpOp::Eq, flags)
    }

    /// `tcp flags & MASK != FLAGS`: continues if these of a TCP packet's flags are not so.
    #[must_use]
    pub fn tcp_flags_not(self, mask: u8, flags: u8) -> Self {
        self.compare_flags(mask, CmpOp::Ne, flags)
    }

    /// `tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu`: makes the largest segment
    /// that a TCP connection's first packets announce as small as the route needs, in the packet's
    /// direction and back. In a chain at the hook forward, output or postrouting.
    #[must_use]
    pub fn clamp_segment_size(self) -> Self {
        let register = Register::FIRST;
        self.tcp_flags(tcp_flag_bits::SYN | tcp_flag_bits::RST, tcp_flag_bits::SYN)
            .expr(Expr::Rt { key: RtKey::TcpMss, register })
            .expr(Expr::ToNetworkOrder { source: register, register, len: 2, size: 2 })
            .expr(Expr::TcpOptionSet { option: TCP_OPTION_MSS, offset: 2, len: 2, register })
    }

    /// `counter`.
    #[must_use]
    pub fn counter(self) -> Self {
        self.expr(Expr::Counter { packets: 0, bytes: 0 })
    }

    /// `meta mark set MARK`.
    #[must_use]
    pub fn set_mark(self, mark: u32) -> Self {
        let register = Register::FIRST;
        self.expr(Expr::Immediate { register, data: mark.to_ne_bytes().to_vec() })
            .expr(Expr::MetaSet { key: MetaKey::Mark, register })
    }

    /// `meta mark set mark & MASK ^ XOR`: with `mask = !bits` and `xor = bits` the bits are set and
    /// the others kept.
    #[must_use]
    pub fn change_mark(self, mask: u32, xor: u32) -> Self {
        let register = Register::FIRST;
        self.expr(Expr::Meta { key: MetaKey::Mark, register })
            .expr(bitwise(&mask.to_ne_bytes(), &xor.to_ne_bytes()))
            .expr(Expr::MetaSet { key: MetaKey::Mark, register })
    }

    /// `meta pkttype set multicast`: makes the host take the packet for one to a group of its link.
    /// So it neither forwards the packet nor answers it with an error, whatever its address, but for
    /// an option that it does not know (linux net/ipv6/ip6_output.c `ip6_forward`, net/ipv6/icmp.c
    /// `icmp6_send`), and TCP does not take it. In a bridge table, at the hook prerouting.
    #[must_use]
    pub fn set_to_group(self) -> Self {
        let register = Register::FIRST;
        self.expr(Expr::Immediate { register, data: vec![PACKET_MULTICAST] })
            .expr(Expr::MetaSet { key: MetaKey::PktType, register })
    }

    /// `ct mark set MARK`.
    #[must_use]
    pub fn set_ct_mark(self, mark: u32) -> Self {
        let register = Register::FIRST;
        self.expr(Expr::Immediate { register, data: mark.to_ne_bytes().to_vec() })
            .expr(Expr::CtSet { key: CtKey::Mark, register })
    }

    /// `limit rate RATE/second burst BURST packets`: continues for this many packets, and ends the
    /// rule for the others.
    #[must_use]
    pub fn limit(self, per_second: u32, burst: u32) -> Self {
        self.expr(Expr::Limit { rate: per_second.into(), seconds: 1, burst, over: false })
    }

    /// `log prefix "PREFIX"`.
    #[must_use]
    pub fn log(self, prefix: impl Into<String>) -> Self {
        self.expr(Expr::Log { prefix: Some(prefix.into()), group: None })
    }

    /// `log prefix "PREFIX" group GROUP snaplen LENGTH`: passes the first bytes of the packet to
    /// the program that listens to the group ([`crate::nflog`]).
    #[must_use]
    pub fn log_to_group(self, prefix: impl Into<String>, group: u16, snaplen: u32) -> Self {
        let group = LogGroup { number: group, snaplen: Some(snaplen) };
        self.expr(Expr::Log { prefix: Some(prefix.into()), group: Some(group) })
    }

    /// `reject with icmpx admin-prohibited`. Not in a bridge table.
    #[must_use]
    pub fn reject_prohibited(self) -> Self {
        self.expr(Expr::Reject { kind: RejectKind::Icmpx, code: 3 })
    }

    /// `reject with tcp reset`: drops the packet and ends its connection at the sender. Must follow a
    /// condition that only TCP packets meet. Not in a bridge table.
    #[must_use]
    pub fn reject_with_reset(self) -> Self {
        self.expr(Expr::Reject { kind: RejectKind::TcpReset, code: 0 })
    }

    /// `accept`, `drop`, `return`, `jump`, `goto`, …
    #[must_use]
    pub fn verdict(self, verdict: Verdict) -> Self {
        self.expr(Expr::Verdict(verdict))
    }

    /// `accept`.
    #[must_use]
    pub fn accept(self) -> Self {
        self.verdict(Verdict::Accept)
    }

    /// `drop`.
    #[must_use]
    pub fn drop(self) -> Self {
        self.verdict(Verdict::Drop)
    }

    /// `return`.
    #[must_use]
    pub fn returns(self) -> Self {
        self.verdict(Verdict::Return)
    }

    /// `jump CHAIN`.
    #[must_use]
    pub fn jump(self, chain: impl Into<String>) -> Self {
        self.verdict(Verdict::Jump(chain.into()))
    }

    /// `goto CHAIN`.
    #[must_use]
    pub fn goto(self, chain: impl Into<String>) -> Self {
        self.verdict(Verdict::Goto(chain.into()))
    }

    /// Loads fields into consecutive registers, from the first one on, after the checks they need.
    #[must_use]
    pub fn load(mut self, fields: &[Field]) -> Self {
        for guard in fields.iter().filter_map(Field::guard).flat_map(Guard::needed) {
            if self.guarded.contains(guard) {
                continue;
            }
            self.guarded.push(*guard);
            if let Some((key, data)) = guard.check(self.table.family) {
                let register = Register::FIRST;
                self.exprs.push(Expr::Meta { key, register });
                self.exprs.push(Expr::Cmp { op: CmpOp::Eq, register, data });
            }
        }
        let mut next = Some(Register::FIRST);
        for field in fields {
            let register = next.expect("the fields of a key fit the 64 bytes of the registers");
            self.exprs.push(field.load(register));
            next = register.behind(field.kind().size());
        }
        self
    }

    fn compare(self, field: Field, op: CmpOp, data: Vec<u8>) -> Self {
        self.load(&[field]).expr(Expr::Cmp { op, register: Register::FIRST, data })
    }

    fn compare_flags(self, mask: u8, op: CmpOp, flags: u8) -> Self {
        let register = Register::FIRST;
        let base = PayloadBase::Transport;
        self.is(field::l4proto(), Value::TCP)
            .expr(Expr::Payload { base, offset: TCP_FLAGS, len: 1, register })
            .expr(bitwise(&[mask], &[0]))
            .expr(Expr::Cmp { op, register, data: vec![flags] })
    }

    fn compare_net(self, field: Field, op: CmpOp, net: IpNet) -> Self {
        let mask = Value::from(net.netmask()).bytes();
        let loaded = self.load(&[field]);
        let masked = if net.prefix_len() == net.max_prefix_len() {
            loaded
        } else {
            let xor = vec![0; mask.len()];
            loaded.expr(bitwise(&mask, &xor))
        };
        let data = Value::from(net.network()).bytes();
        masked.expr(Expr::Cmp { op, register: Register::FIRST, data })
    }

    fn mask_bits(self, field: Field, bits: u32, op: CmpOp, expected: u32) -> Self {
        self.load(&[field]).expr(bitwise(&bits.to_ne_bytes(), &[0; 4])).expr(Expr::Cmp {
            op,
            register: Register::FIRST,
            data: expected.to_ne_bytes().to_vec(),
        })
    }

    fn look_up(self, fields: &[Field], set: impl Into<String>, to: LookupTo) -> Self {
        self.load(fields).expr(Expr::Lookup { set: set.into(), register: Register::FIRST, to })
    }

    fn nat(self, kind: NatKind, address: IpAddr, port: Option<u16>) -> Self {
        let (family, size) = nat_family(IpFamily::of(address));
        let register = Register::FIRST;
        let behind = register.behind(size);
        let mut rule = self.expr(Expr::Immediate { register, data: Value::from(address).bytes() });
        let port_register = port.and(behind);
        if let (Some(port), Some(register)) = (port, port_register) {
            rule = rule.expr(Expr::Immediate { register, data: port.to_be_bytes().to_vec() });
        }
        rule.expr(Expr::Nat {
            kind,
            family,
            address: Some(register),
            port: port_register,
            flags: 0,
        })
    }
}

fn nat_family(family: IpFamily) -> (Family, usize) {
    match family {
        IpFamily::V4 => (Family::Ip, 4),
        IpFamily::V6 => (Family::Ip6, 16),
    }
}

fn bitwise(mask: &[u8], xor: &[u8]) -> Expr {
    let register = Register::FIRST;
    Expr::Bitwise(BitwiseExpr {
        source: register,
        register,
        mask: mask.to_vec(),
        xor: xor.to_vec(),
    })
}
