//! Decodes expressions. What is not understood is kept as [`Expr::Other`].

use super::expr::{BitwiseExpr, Expr, LogGroup};
use super::expr_encode::{
    BYTEORDER_HTON, EXTHDR_OP_TCPOPT, L4CSUM_PSEUDOHDR, LIMIT_PACKETS, NFTA_DATA_VALUE,
    NFTA_DATA_VERDICT, NFTA_EXPR_DATA, NFTA_EXPR_NAME, NFTA_VERDICT_CHAIN, NFTA_VERDICT_CODE,
};
use super::names::{Family, Verdict};
use super::operand::{
    CmpOp, CtDirection, CtKey, FibFlags, FibResult, LookupTo, MetaKey, NatKind, PayloadBase,
    Register, RejectKind, RtKey,
};
use crate::wire::Attribute;

/// Reads one element of a rule's list of expressions.
pub(crate) fn decode(element: &Attribute<'_>) -> Expr {
    let name = element.find(NFTA_EXPR_NAME).map(|name| name.text()).unwrap_or_default();
    let data =
        element.find(NFTA_EXPR_DATA).unwrap_or(Attribute { kind: NFTA_EXPR_DATA, value: &[] });
    decode_known(&name, &data)
        .unwrap_or_else(|| Expr::Other { name, attributes: data.value.to_vec() })
}

fn decode_known(name: &str, data: &Attribute<'_>) -> Option<Expr> {
    let number = |kind| data.find(kind)?.u32_be();
    let register = |kind| Register::from_number(number(kind)?);
    let value = |kind| read_value(&data.find(kind)?);
    Some(match name {
        "meta" => {
            let key = MetaKey::from_number(number(2)?);
            match register(3) {
                Some(register) => Expr::MetaSet { key, register },
                None => Expr::Meta { key, register: register(1)? },
            }
        }
        // An expression with a source register writes to the packet. Those that also write a
        // header's own checksum are kept undecoded.
        "payload" if number(5).is_some() && number(6).unwrap_or(0) == 0 => {
            if number(8)? != L4CSUM_PSEUDOHDR {
                return None;
            }
            Expr::PayloadSet {
                base: PayloadBase::from_number(number(2)?),
                offset: number(3)?,
                len: number(4)?,
                register: register(5)?,
            }
        }
        "payload" if number(5).is_none() => Expr::Payload {
            base: PayloadBase::from_number(number(2)?),
            offset: number(3)?,
            len: number(4)?,
            register: register(1)?,
        },
        "cmp" => Expr::Cmp {
            op: CmpOp::from_number(number(2)?)?,
            register: register(1)?,
            data: value(3)?,
        },
        "range" => Expr::Range {
            invert: number(2)? == 1,
            register: register(1)?,
            from: value(3)?,
            to: value(4)?,
        },
        // Operations other than mask and xor have no mask.
        "bitwise" => Expr::Bitwise(BitwiseExpr {
            source: register(1)?,
            register: register(2)?,
            mask: value(4)?,
            xor: value(5)?,
        }),
        "lookup" => {
            let to = match (number(5).unwrap_or(0) & 1, number(3)) {
                (1, _) => LookupTo::NoMatch,
                (_, None) => LookupTo::Match,
                (_, Some(0)) => LookupTo::Verdict,
                (_, Some(number)) => LookupTo::Register(Register::from_number(number)?),
            };
            Expr::Lookup { set: data.find(1)?.text(), register: register(2)?, to }
        }
        "ct" => {
            let key = CtKey::from_number(number(2)?);
            let direction = data.find(3).and_then(|direction| direction.u8());
            let direction = direction
                .map(|reply| if reply == 0 { CtDirection::Original } else { CtDirection::Reply });
            match register(4) {
                Some(register) => Expr::CtSet { key, register },
                None => Expr::Ct { key, direction, register: register(1)? },
            }
        }
        "fib" => Expr::Fib {
            result: FibResult::from_number(number(2)?)?,
            flags: FibFlags(number(3)?),
            register: register(1)?,
        },
        "rt" => Expr::Rt { key: RtKey::from_number(number(2)?), register: register(1)? },
        "byteorder" if number(3)? == BYTEORDER_HTON => Expr::ToNetworkOrder {
            source: register(1)?,
            register: register(2)?,
            len: number(4)?,
            size: number(5)?,
        },
        // An expression with a source register writes.
        "exthdr" if number(6) == Some(EXTHDR_OP_TCPOPT) && number(7).is_some() => {
            Expr::TcpOptionSet {
                option: data.find(2)?.u8()?,
                offset: number(3)?,
                len: number(4)?,
                register: register(7)?,
            }
        }
        "immediate" => match number(1)? {
            0 => Expr::Verdict(read_verdict(&data.find(2)?)?),
            number => Expr::Immediate { register: Register::from_number(number)?, data: value(2)? },
        },
        // The kernel names the last register of a range even if there is no range.
        "nat" if number(4).is_none_or(|last| number(3) == Some(last)) => Expr::Nat {
            kind: if number(1)? == 0 { NatKind::Source } else { NatKind::Destination },
            family: Family::from_number(u8::try_from(number(2)?).ok()?)?,
            address: register(3),
            port: register(5),
            flags: number(7).unwrap_or(0),
        },
        "masq" if number(2).is_none() => Expr::Masquerade { flags: number(1).unwrap_or(0) },
        "redir" => Expr::Redirect { port: register(1), flags: number(3).unwrap_or(0) },
        "counter" => {
            Expr::Counter { bytes: data.find(1)?.u64_be()?, packets: data.find(2)?.u64_be()? }
        }
        "limit" if number(4).unwrap_or(LIMIT_PACKETS) == LIMIT_PACKETS => Expr::Limit {
            rate: data.find(1)?.u64_be()?,
            seconds: data.find(2)?.u64_be()?,
            burst: number(3).unwrap_or(0),
            over: number(5).unwrap_or(0) & 1 == 1,
        },
        "log" => Expr::Log {
            prefix: data.find(2).map(|prefix| prefix.text()),
            group: data
                .find(1)
                .and_then(|group| group.u16_be())
                .map(|group| LogGroup { number: group, snaplen: number(3) }),
        },
        "reject" => Expr::Reject {
            kind: RejectKind::from_number(number(1)?)?,
            code: data.find(2).and_then(|code| code.u8()).unwrap_or(0),
        },
        "notrack" => Expr::Notrack,
        "match" => Expr::XtMatch {
            name: data.find(1)?.text(),
            revision: number(2)?,
            info: data.find(3)?.value.to_vec(),
        },
        "target" => Expr::XtTarget {
            name: data.find(1)?.text(),
            revision: number(2)?,
            info: data.find(3)?.value.to_vec(),
        },
        _ => return None,
    })
}

/// Reads bytes from the kernel's data.
pub(crate) fn read_value(data: &Attribute<'_>) -> Option<Vec<u8>> {
    data.find(NFTA_DATA_VALUE).map(|value| value.value.to_vec())
}

/// Reads a verdict from the kernel's data.
pub(crate) fn read_verdict(data: &Attribute<'_>) -> Option<Verdict> {
    let verdict = data.find(NFTA_DATA_VERDICT)?;
    let code = verdict.find(NFTA_VERDICT_CODE)?.i32_be()?;
    Some(Verdict::from_code(code, verdict.find(NFTA_VERDICT_CHAIN).map(|chain| chain.text())))
}

#[cfg(test)]
mod tests {
    use super::super::expr_encode;
    use super::*;
    use crate::wire::{self, Writer};

    fn round_trip(expr: &Expr) -> Expr {
        let mut writer = Writer::new();
        expr_encode::encode(&mut writer, expr);
        decode(&wire::attributes(writer.bytes()).next().unwrap())
    }

    #[test]
    fn a_translation_to_a_range_is_kept_as_it_is() {
        let nat = |last: u8| {
            let number = |kind: u8, number: u8| [8, 0, kind, 0, 0, 0, 0, number];
            let numbers = [number(1, 0), number(2, 2), number(3, 8), number(4, last)];
            Expr::Other { name: "nat".into(), attributes: numbers.concat() }
        };
        assert!(matches!(round_trip(&nat(8)), Expr::Nat { kind: NatKind::Source, .. }));
        assert_eq!(round_trip(&nat(9)), nat(9));
    }

    #[test]
    fn everything_written_is_read_back() {
        let first = Register::FIRST;
        let ninth = Register::new(9).unwrap();
        let exprs = [
            Expr::Meta { key: MetaKey::L4Proto, register: ninth },
            Expr::MetaSet { key: MetaKey::Mark, register: first },
            Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, register: first },
            Expr::Cmp { op: CmpOp::Ne, register: first, data: vec![1, 2, 3] },
            Expr::Range { invert: true, register: first, from: vec![1], to: vec![2] },
            Expr::Bitwise(BitwiseExpr {
                source: first,
                register: ninth,
                mask: vec![255; 4],
                xor: vec![0; 4],
            }),
            Expr::Lookup { set: "s".into(), register: first, to: LookupTo::Match },
            Expr::Lookup { set: "s".into(), register: first, to: LookupTo::NoMatch },
            Expr::Lookup { set: "s".into(), register: first, to: LookupTo::Verdict },
            Expr::Lookup { set: "s".into(), register: first, to: LookupTo::Register(ninth) },
            Expr::Ct {
                key: CtKey::DestinationIp,
                direction: Some(CtDirection::Original),
                register: first,
            },
            Expr::Ct { key: CtKey::State, direction: None, register: first },
            Expr::CtSet { key: CtKey::Mark, register: first },
            Expr::Fib {
                result: FibResult::AddrType,
                flags: FibFlags::DADDR.and(FibFlags::IIF),
                register: first,
            },
            Expr::Rt { key: RtKey::TcpMss, register: first },
            Expr::ToNetworkOrder { source: first, register: ninth, len: 2, size: 2 },
            Expr::TcpOptionSet { option: 2, offset: 2, len: 2, register: first },
            Expr::Immediate { register: first, data: vec![1, 2] },
            Expr::Verdict(Verdict::Goto("c".into())),
            Expr::Verdict(Verdict::Drop),
            Expr::Nat {
                kind: NatKind::Destination,
                family: Family::Ip6,
                address: Some(first),
                port: Some(ninth),
                flags: 3,
            },
            Expr::Masquerade { flags: 16 },
            Expr::Redirect { port: Some(first), flags: 2 },
            Expr::Counter { packets: 5, bytes: u64::MAX },
            Expr::Limit { rate: 100, seconds: 1, burst: 5, over: false },
            Expr::Limit { rate: u64::MAX, seconds: 3600, burst: u32::MAX, over: true },
            Expr::Log { prefix: Some("p".into()), group: None },
            Expr::Log { prefix: None, group: Some(LogGroup { number: 7, snaplen: None }) },
            Expr::Log {
                prefix: Some("nwt-in ".into()),
                group: Some(LogGroup { number: u16::MAX, snaplen: Some(128) }),
            },
            Expr::Reject { kind: RejectKind::TcpReset, code: 0 },
            Expr::Reject { kind: RejectKind::Icmpx, code: 1 },
            Expr::Notrack,
            Expr::XtMatch { name: "comment".into(), revision: 0, info: vec![1; 256] },
            Expr::XtTarget { name: "MASQUERADE".into(), revision: 1, info: vec![2; 20] },
            Expr::Other { name: "quota".into(), attributes: vec![8, 0, 1, 0, 0, 0, 0, 1] },
        ];
        for expr in exprs {
            assert_eq!(round_trip(&expr), expr);
        }
    }

    proptest::proptest! {
        #[test]
        fn reading_anything_ends(bytes: Vec<u8>, which in 0_usize..24) {
            const NAMES: [&str; 24] = [
                "meta", "payload", "cmp", "range", "bitwise", "lookup", "ct", "fib", "immediate", "nat", "masq",
                "redir", "counter", "log", "reject", "notrack", "match", "target", "", "quota",
                "rt", "byteorder", "exthdr", "limit",
            ];
            let mut writer = Writer::new();
            writer.put_text(NFTA_EXPR_NAME, NAMES[which]);
            writer.nest(NFTA_EXPR_DATA, |writer| writer.raw(&bytes));
            decode(&Attribute { kind: 1, value: writer.bytes() });
            decode(&Attribute { kind: 1, value: &bytes });
        }
    }
}
