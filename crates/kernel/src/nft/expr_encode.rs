//! Encodes expressions. Attribute numbers: `linux include/uapi/linux/netfilter/nf_tables.h` NFTA_*.

use super::expr::Expr;
use super::names::Verdict;
use super::operand::{CtDirection, LookupTo, NatKind, Register};
use crate::wire::Writer;

pub(crate) const NFTA_LIST_ELEM: u16 = 1;
pub(crate) const NFTA_EXPR_NAME: u16 = 1;
pub(crate) const NFTA_EXPR_DATA: u16 = 2;
pub(crate) const NFTA_DATA_VALUE: u16 = 1;
pub(crate) const NFTA_DATA_VERDICT: u16 = 2;
pub(crate) const NFTA_VERDICT_CODE: u16 = 1;
pub(crate) const NFTA_VERDICT_CHAIN: u16 = 2;
/// NFT_REG_VERDICT: where a verdict goes.
const VERDICT_REGISTER: u32 = 0;
/// NFT_PAYLOAD_L4CSUM_PSEUDOHDR: the written bytes count in the checksums of the layer above.
pub(crate) const L4CSUM_PSEUDOHDR: u32 = 1;
/// NFT_BYTEORDER_HTON.
pub(crate) const BYTEORDER_HTON: u32 = 1;
/// NFT_LIMIT_PKTS: packets are counted, not bytes.
pub(crate) const LIMIT_PACKETS: u32 = 0;
/// NFT_EXTHDR_OP_TCPOPT.
pub(crate) const EXTHDR_OP_TCPOPT: u32 = 1;

/// Writes one element of a rule's list of expressions.
pub(crate) fn encode(writer: &mut Writer, expr: &Expr) {
    writer.nest(NFTA_LIST_ELEM, |writer| {
        writer.put_text(NFTA_EXPR_NAME, name(expr));
        match expr {
            // Without attributes; the kernel does not require an empty list.
            Expr::Notrack => {}
            Expr::Other { attributes, .. } => {
                writer.nest(NFTA_EXPR_DATA, |writer| writer.raw(attributes));
            }
            known => writer.nest(NFTA_EXPR_DATA, |writer| encode_data(writer, known)),
        }
    });
}

fn name(expr: &Expr) -> &str {
    match expr {
        Expr::Meta { .. } | Expr::MetaSet { .. } => "meta",
        Expr::Payload { .. } | Expr::PayloadSet { .. } => "payload",
        Expr::Cmp { .. } => "cmp",
        Expr::Range { .. } => "range",
        Expr::Bitwise(_) => "bitwise",
        Expr::Lookup { .. } => "lookup",
        Expr::Ct { .. } | Expr::CtSet { .. } => "ct",
        Expr::Fib { .. } => "fib",
        Expr::Rt { .. } => "rt",
        Expr::ToNetworkOrder { .. } => "byteorder",
        Expr::TcpOptionSet { .. } => "exthdr",
        Expr::Immediate { .. } | Expr::Verdict(_) => "immediate",
        Expr::Nat { .. } => "nat",
        Expr::Masquerade { .. } => "masq",
        Expr::Redirect { .. } => "redir",
        Expr::Counter { .. } => "counter",
        Expr::Limit { .. } => "limit",
        Expr::Log { .. } => "log",
        Expr::Reject { .. } => "reject",
        Expr::Notrack => "notrack",
        Expr::XtMatch { .. } => "match",
        Expr::XtTarget { .. } => "target",
        Expr::Other { name, .. } => name,
    }
}

fn encode_data(writer: &mut Writer, expr: &Expr) {
    match expr {
        Expr::Meta { key, register } => {
            writer.put_u32_be(2, key.number());
            put_register(writer, 1, *register);
        }
        Expr::MetaSet { key, register } => {
            writer.put_u32_be(2, key.number());
            put_register(writer, 3, *register);
        }
        Expr::Payload { base, offset, len, register } => {
            put_register(writer, 1, *register);
            writer.put_u32_be(2, base.number());
            writer.put_u32_be(3, *offset);
            writer.put_u32_be(4, *len);
        }
        Expr::PayloadSet { base, offset, len, register } => {
            put_register(writer, 5, *register);
            writer.put_u32_be(2, base.number());
            writer.put_u32_be(3, *offset);
            writer.put_u32_be(4, *len);
            writer.put_u32_be(8, L4CSUM_PSEUDOHDR);
        }
        Expr::Cmp { op, register, data } => {
            put_register(writer, 1, *register);
            writer.put_u32_be(2, op.number());
            put_value(writer, 3, data);
        }
        Expr::Range { invert, register, from, to } => {
            put_register(writer, 1, *register);
            writer.put_u32_be(2, u32::from(*invert));
            put_value(writer, 3, from);
            put_value(writer, 4, to);
        }
        Expr::Bitwise(bitwise) => {
            put_register(writer, 1, bitwise.source);
            put_register(writer, 2, bitwise.register);
            writer.put_u32_be(3, u32::try_from(bitwise.mask.len()).unwrap_or(u32::MAX));
            put_value(writer, 4, &bitwise.mask);
            put_value(writer, 5, &bitwise.xor);
        }
        Expr::Lookup { set, register, to } => {
            put_register(writer, 2, *register);
            match to {
                LookupTo::Match => {}
                LookupTo::NoMatch => writer.put_u32_be(5, 1),
                LookupTo::Verdict => writer.put_u32_be(3, VERDICT_REGISTER),
                LookupTo::Register(register) => put_register(writer, 3, *register),
            }
            writer.put_text(1, set);
        }
        Expr::Ct { key, direction, register } => {
            writer.put_u32_be(2, key.number());
            put_register(writer, 1, *register);
            if let Some(direction) = direction {
                writer.put_u8(3, u8::from(*direction == CtDirection::Reply));
            }
        }
        Expr::CtSet { key, register } => {
            writer.put_u32_be(2, key.number());
            put_register(writer, 4, *register);
        }
        Expr::Fib { result, flags, register } => {
            writer.put_u32_be(3, flags.0);
            writer.put_u32_be(2, result.number());
            put_register(writer, 1, *register);
        }
        Expr::Rt { key, register } => {
            put_register(writer, 1, *register);
            writer.put_u32_be(2, key.number());
        }
        Expr::ToNetworkOrder { source, register, len, size } => {
            put_register(writer, 1, *source);
            put_register(writer, 2, *register);
            writer.put_u32_be(3, BYTEORDER_HTON);
            writer.put_u32_be(4, *len);
            writer.put_u32_be(5, *size);
        }
        Expr::TcpOptionSet { option, offset, len, register } => {
            writer.put_u8(2, *option);
            writer.put_u32_be(3, *offset);
            writer.put_u32_be(4, *len);
            writer.put_u32_be(6, EXTHDR_OP_TCPOPT);
            put_register(writer, 7, *register);
        }
        Expr::Immediate { register, data } => {
            put_register(writer, 1, *register);
            put_value(writer, 2, data);
        }
        Expr::Verdict(verdict) => {
            writer.put_u32_be(1, VERDICT_REGISTER);
            put_verdict(writer, 2, verdict);
        }
        Expr::Nat { .. } | Expr::Masquerade { .. } | Expr::Redirect { .. } => {
            encode_nat(writer, expr);
        }
        Expr::Counter { packets, bytes } => {
            writer.put_u64_be(1, *bytes);
            writer.put_u64_be(2, *packets);
        }
        Expr::Limit { rate, seconds, burst, over } => {
            writer.put_u64_be(1, *rate);
            writer.put_u64_be(2, *seconds);
            writer.put_u32_be(3, *burst);
            writer.put_u32_be(4, LIMIT_PACKETS);
            writer.put_u32_be(5, u32::from(*over));
        }
        Expr::Log { prefix, group } => {
            if let Some(group) = group {
                writer.put(1, &group.number.to_be_bytes());
            }
            if let Some(prefix) = prefix {
                writer.put_text(2, prefix);
            }
            if let Some(snaplen) = group.and_then(|group| group.snaplen) {
                writer.put_u32_be(3, snaplen);
            }
        }
        Expr::Reject { kind, code } => {
            writer.put_u32_be(1, kind.number());
            writer.put_u8(2, *code);
        }
        Expr::XtMatch { name, revision, info } | Expr::XtTarget { name, revision, info } => {
            writer.put_text(1, name);
            writer.put_u32_be(2, *revision);
            writer.put(3, info);
        }
        Expr::Notrack | Expr::Other { .. } => {}
    }
}

fn encode_nat(writer: &mut Writer, expr: &Expr) {
    match expr {
        Expr::Nat { kind, family, address, port, flags } => {
            writer.put_u32_be(1, u32::from(*kind == NatKind::Destination));
            writer.put_u32_be(2, u32::from(family.number()));
            if let Some(register) = address {
                put_register(writer, 3, *register);
            }
            if let Some(register) = port {
                put_register(writer, 5, *register);
            }
            put_flags(writer, 7, *flags);
        }
        Expr::Masquerade { flags } => put_flags(writer, 1, *flags),
        Expr::Redirect { port, flags } => {
            if let Some(register) = port {
                put_register(writer, 1, *register);
            }
            put_flags(writer, 3, *flags);
        }
        _ => {}
    }
}

fn put_flags(writer: &mut Writer, kind: u16, flags: u32) {
    if flags != 0 {
        writer.put_u32_be(kind, flags);
    }
}

fn put_register(writer: &mut Writer, kind: u16, register: Register) {
    writer.put_u32_be(kind, register.number());
}

/// Writes bytes as the kernel's data.
pub(crate) fn put_value(writer: &mut Writer, kind: u16, value: &[u8]) {
    writer.nest(kind, |writer| writer.put(NFTA_DATA_VALUE, value));
}

/// Writes a verdict as the kernel's data.
pub(crate) fn put_verdict(writer: &mut Writer, kind: u16, verdict: &Verdict) {
    writer.nest(kind, |writer| {
        writer.nest(NFTA_DATA_VERDICT, |writer| {
            writer.put(NFTA_VERDICT_CODE, &verdict.code().to_be_bytes());
            if let Some(chain) = verdict.chain() {
                writer.put_text(NFTA_VERDICT_CHAIN, chain);
            }
        });
    });
}
